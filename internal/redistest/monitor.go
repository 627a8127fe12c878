package redistest

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// Commands returns which commands clients sent to the server while f ran, counted by name in lower case: the server's own view, by
// MONITOR, retries included. Left out are the commands that scripts ran inside, the handshake of connections (as in [Counter]),
// and what MONITOR never shows: administrative commands and those refused before they ran (LOADING, OOM, wrong arguments).
//
// All clients are seen, the Admin client and tests running beside this one too. Commands that f leaves unanswered may be missed.
func (s *Server) Commands(t testing.TB, f func()) map[string]int {
	t.Helper()
	m, err := s.monitor()
	if err != nil {
		t.Fatalf("redistest: monitor: %v", err)
	}
	defer m.close()
	if err := s.mark(m.begin); err != nil {
		t.Fatalf("redistest: monitor: %v", err)
	}
	f()
	if err := s.mark(m.end); err != nil {
		t.Fatalf("redistest: monitor: %v", err)
	}
	m.conn.SetReadDeadline(time.Now().Add(patience))
	<-m.done
	if m.err != nil {
		t.Fatalf("redistest: monitor: %v", m.err)
	}
	return m.counts
}

// monitor counts what the server reports on one connection between two marks.
type monitor struct {
	conn       net.Conn
	begin, end string
	done       chan struct{} // closed when counts and err are final
	counts     map[string]int
	err        error
}

func (s *Server) monitor() (*monitor, error) {
	conn, err := net.DialTimeout("tcp", s.addr, patience)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(conn)
	if _, err = io.WriteString(conn, "MONITOR\r\n"); err == nil {
		var line string
		if line, err = r.ReadString('\n'); err == nil && line != "+OK\r\n" {
			err = fmt.Errorf("answered by %q", line)
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	m := &monitor{
		conn:   conn,
		begin:  "redistest-begin-" + rand.Text(),
		end:    "redistest-end-" + rand.Text(),
		done:   make(chan struct{}),
		counts: make(map[string]int),
	}
	// Read while f runs, or the server would have to keep it all.
	go func() {
		defer close(m.done)
		m.err = m.read(r)
	}()
	return m, nil
}

// mark sends a command that stands out in the report, and returns when the server has executed it.
func (s *Server) mark(text string) error {
	return s.admin.Echo(context.Background(), text).Err()
}

func (m *monitor) read(r *bufio.Reader) error {
	counting := false
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		origin, name, rest, ok := parseMonitor(line)
		switch {
		case !ok:
			return errors.New("not understood: " + line)
		case name == "echo" && rest == m.begin:
			counting = true
		case name == "echo" && rest == m.end:
			return nil
		case counting && origin != "lua" && !isHandshake(name):
			m.counts[name]++
		}
	}
}

func (m *monitor) close() {
	m.conn.Close()
	<-m.done
}

// parseMonitor takes apart a line such as
//
//	+1700000000.123456 [0 127.0.0.1:50000] "get" "some key"
//
// where the origin is "lua" for the commands of scripts. The rest is the text between the outer quotes of the arguments.
func parseMonitor(line string) (origin, name, rest string, ok bool) {
	_, line, found := strings.Cut(line, " [")
	source, command, found2 := strings.Cut(line, `] "`)
	_, origin, found3 := strings.Cut(source, " ")
	name, rest, _ = strings.Cut(strings.TrimSpace(command), `"`)
	rest = strings.TrimSuffix(strings.TrimPrefix(rest, ` "`), `"`)
	return origin, strings.ToLower(name), rest, found && found2 && found3
}
