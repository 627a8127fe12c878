package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience bounds every wait; it is far more than anything needs on a quiet machine. A test of the bound shortens it.
var patience = 15 * time.Second

const (
	stopLimit = 5 * time.Second      // from SIGTERM to SIGKILL
	pollEvery = 2 * time.Millisecond // between two dials of a server that is starting
)

// Server is one redis-server on a loopback port that stays the same over restarts. It keeps nothing on disk, except what a test
// saves with SAVE.
type Server struct {
	bin    string
	config string   // a configuration file, or empty
	args   []string // the caller's
	dir    string
	addr   string
	shared bool
	admin  *redis.Client
	logged sync.Map // testing.TB -> true: tests that will show the output if they fail

	mu     sync.Mutex // guards the rest
	proc   *process   // nil while the server is down
	paused bool
	master *Server // what it is a replica of when it starts, or nil
	way    *Proxy  // between the two, or nil
}

// Start gives the test a server of its own, stopped when the test ends. The arguments are added to the command line and win over
// the defaults (no persistence, DEBUG enabled, loopback only). They must not ask for a password.
//
// A missing redis-server, or one below 7.0, fails the test. It never skips it.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return startFor(t, &Server{args: args})
}

func startFor(t testing.TB, s *Server) *Server {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	s.endWith(t)
	return s
}

func (s *Server) endWith(t testing.TB) {
	t.Cleanup(func() {
		s.halt((*process).kill) // nobody cares for its good order any more
		s.showLog(t, 0)
		s.close()
	})
}

func newServer(args []string) (*Server, error) {
	s := &Server{args: args}
	return s, s.start()
}

// start makes what the server needs and starts it on a port that is free.
func (s *Server) start() error {
	var err error
	if s.bin, err = findServer(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "redistest"); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; {
		s.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort()))
		err := s.launch(nil)
		if err == nil {
			break
		}
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			os.RemoveAll(s.dir)
			return err
		}
	}
	s.admin = s.newAdmin(0)
	if err := s.awaitLoaded(); err != nil {
		s.close()
		return err
	}
	return nil
}

// freePort draws from below the ports that systems give to outgoing connections: else the port of a server that is down for a
// moment could be taken by any client. The same holds for the second port of a cluster's node, which is 10000 above. It is a
// variable so that a test can hand out a taken one.
var freePort = func() int {
	for {
		port := 10000 + rand.IntN(10000)
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			l.Close()
			return port
		}
	}
}

var errPortTaken = errors.New("the port was taken")

// launch starts the process and returns when it answers, be it with LOADING. Who answers is checked by pid: a server of another
// test may have got the port first.
func (s *Server) launch(extra []string) error {
	_, port, _ := net.SplitHostPort(s.addr)
	var args []string
	if s.config != "" {
		args = append(args, s.config) // no other place will do
	}
	args = append(args,
		"--port", port, "--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0")
	from := s.logSize()
	p, err := startProcess(s.bin, slices.Concat(args, s.replicaArgs(), s.args, extra), s.logPath())
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; {
		state, err := probe(s.addr)
		if err == nil && state.pid == p.pid() {
			s.mu.Lock()
			s.proc, s.paused = p, false
			s.mu.Unlock()
			return nil
		}
		if p.exited(pollEvery) {
			p.kill()
			output := s.logSince(from)
			if strings.Contains(output, "Address already in use") {
				return errPortTaken
			}
			return fmt.Errorf("redis-server ended at its start:\n%s", output)
		}
		if time.Now().After(deadline) {
			p.kill()
			return fmt.Errorf("redis-server does not answer on %s (%v):\n%s", s.addr, err, s.logSince(from))
		}
	}
}

// awaitLoaded returns when the server has its data in memory.
func (s *Server) awaitLoaded() error {
	p, err := s.running()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; {
		state, err := probe(s.addr)
		switch {
		case err == nil && !state.loading:
			return nil
		case p.exited(pollEvery):
			return errors.New("redis-server ended while loading")
		case time.Now().After(deadline):
			return fmt.Errorf("redis-server is still loading (%v)", err)
		}
	}
}

func (s *Server) running() (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil, fmt.Errorf("the server on %s is down", s.addr)
	}
	return s.proc, nil
}

// halt ends the process by the given method; nothing happens when the server is down already.
func (s *Server) halt(end func(*process)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		end(s.proc)
		s.proc, s.paused = nil, false
	}
}

func (s *Server) close() {
	s.halt((*process).stop)
	if s.admin != nil {
		s.admin.Close()
	}
	os.RemoveAll(s.dir)
}

// Addr returns host and port.
func (s *Server) Addr() string { return s.addr }

func (s *Server) logPath() string { return filepath.Join(s.dir, "redis.log") }

func (s *Server) logSize() int64 {
	info, err := os.Stat(s.logPath())
	if err != nil {
		return 0
	}
	return info.Size()
}

// logSince returns the server's output behind an offset, at most its last 8 KiB.
func (s *Server) logSince(from int64) string {
	const most = 8 << 10
	text, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	text = text[min(from, int64(len(text))):]
	return string(text[max(0, len(text)-most):])
}

func (s *Server) showLog(t testing.TB, from int64) {
	t.Helper()
	if t.Failed() {
		t.Logf("redis-server on %s:\n%s", s.addr, s.logSince(from))
	}
}
