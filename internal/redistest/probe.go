package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// status is what a server says about itself, also while it loads.
type status struct {
	pid     int
	loading bool
}

// probe asks the server at addr once. It speaks the protocol by hand: a pool that failed to dial remembers it for a while.
func probe(addr string) (status, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return status{}, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, "INFO server persistence\r\n"); err != nil {
		return status{}, err
	}
	r := bufio.NewReader(conn)
	head, err := r.ReadString('\n')
	if err != nil {
		return status{}, err
	}
	size, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(head, "$")))
	if err != nil {
		return status{}, fmt.Errorf("INFO is answered by %q", head)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return status{}, err
	}
	var s status
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "process_id":
			s.pid, _ = strconv.Atoi(value)
		case "loading":
			s.loading = value == "1"
		}
	}
	return s, nil
}
