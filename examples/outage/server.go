package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a redis-server that keeps nothing on disk, on a port that stays the same over restarts.
type server struct {
	dir, port string
	cmd       *exec.Cmd
	ended     chan struct{} // closed when the process has ended
}

// errNoServer says how to get what is missing.
func errNoServer() error {
	install := "sudo apt-get install redis-server"
	if runtime.GOOS == "darwin" {
		install = "brew install redis"
	}
	return fmt.Errorf("no redis-server on PATH; this installs it:\n\n  %s\n\nor run with -embedded, which needs none", install)
}

func startServer() (backend, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, errNoServer()
	}
	dir, err := os.MkdirTemp("", "outage")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir, port: freePort()}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// freePort draws from below the ports that systems give to outgoing connections: else, while Redis is down, a client that dials its port
// could be given the same port and meet itself.
func freePort() (port string) {
	for range 100 {
		port = strconv.Itoa(10_000 + rand.IntN(10_000))
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			l.Close()
			break
		}
	}
	return port
}

func (s *server) addr() string { return net.JoinHostPort("127.0.0.1", s.port) }

func (s *server) phases() []phase {
	return []phase{
		{name: "healthy"},
		{name: "hangs (STOP)", sick: true, act: func() error { return s.signal(syscall.SIGSTOP) }},
		{name: "goes on (CONT)", act: func() error { return s.signal(syscall.SIGCONT) }},
		{name: "refuses (KILL)", sick: true, act: s.kill},
		{name: "restarted empty", act: s.start},
		{name: "recovered"},
	}
}

// start starts the process and returns when it answers.
func (s *server) start() error {
	var output bytes.Buffer
	s.cmd = exec.Command("redis-server", "--port", s.port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no")
	s.cmd.Stdout, s.cmd.Stderr = &output, &output
	if err := s.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := s.cmd, make(chan struct{})
	s.ended = ended
	go func() {
		cmd.Wait()
		close(ended)
	}()
	for patience := time.After(5 * time.Second); ; {
		version, err := s.version()
		if err == nil {
			if major, _, _ := strings.Cut(version, "."); len(major) == 1 && major < "7" {
				return errors.Join(fmt.Errorf("redis-server is version %s: nearside needs 7.0", version), s.kill())
			}
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("redis-server ended at its start:\n%s", &output)
		case <-patience:
			return errors.Join(fmt.Errorf("redis-server does not answer: %w", err), s.kill())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// version asks the process, and makes sure that it is ours.
func (s *server) version() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Addr: s.addr(), DialerRetries: 1, MaxRetries: -1, ContextTimeoutEnabled: true})
	defer rdb.Close()
	info, err := rdb.InfoMap(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	if pid := info["Server"]["process_id"]; pid != strconv.Itoa(s.cmd.Process.Pid) {
		return "", fmt.Errorf("port %s is that of process %s", s.port, pid)
	}
	return info["Server"]["redis_version"], nil
}

func (s *server) signal(signal os.Signal) error { return s.cmd.Process.Signal(signal) }

func (s *server) answer() { s.signal(syscall.SIGCONT) } // fails if there is no process, which hangs nobody

// kill ends the process, stopped or not.
func (s *server) kill() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.ended
	return nil
}

func (s *server) close() {
	s.kill()
	os.RemoveAll(s.dir)
}
