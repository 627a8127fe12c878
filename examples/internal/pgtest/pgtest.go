// Package pgtest starts a PostgreSQL of the test's own, on its own port, ended when the test ends.
package pgtest

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// patience bounds each wait for the server.
const patience = 30 * time.Second

// Server is a PostgreSQL with one superuser, postgres, whom it trusts.
type Server struct {
	URL string

	dir, bin string
	port     int
	owner    *syscall.Credential // nil: ourselves
	process  *exec.Cmd           // nil while it is stopped
	exited   chan struct{}       // closed when process has ended
}

// Start makes a cluster and starts its server. A PostgreSQL that is not installed fails the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{}
	if err := s.create(); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		s.Stop(t)
		os.RemoveAll(s.dir)
	})
	s.StartAgain(t)
	return s
}

func (s *Server) create() (err error) {
	initdb, err := find("initdb")
	if err != nil {
		return err
	}
	s.bin = filepath.Dir(initdb)
	if s.dir, err = os.MkdirTemp("", "pgtest"); err != nil {
		return err
	}
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		if s.owner, err = unprivileged(); err != nil {
			return err
		}
		if err := os.Chown(s.dir, int(s.owner.Uid), int(s.owner.Gid)); err != nil {
			return err
		}
	}
	if s.port, err = freePort(); err != nil {
		return err
	}
	s.URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable&connect_timeout=5", s.port)
	out, err := s.command("initdb", "-D", s.dir+"/data", "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// find looks for a program of PostgreSQL on PATH and where Debian puts it.
func find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return "", fmt.Errorf("%s is not installed: make test installs PostgreSQL, or says how", name)
	}
	return slices.Max(found), nil
}

func unprivileged() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("there is no user postgres and no user nobody to run PostgreSQL as")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner}
	return cmd
}

// StartAgain starts the server, with the data that it has, and waits until it answers.
func (s *Server) StartAgain(t testing.TB) {
	t.Helper()
	s.process = s.command("postgres", "-D", s.dir+"/data", "-p", strconv.Itoa(s.port), "-k", s.dir, "-h", "127.0.0.1",
		"-c", "fsync=off", "-c", "full_page_writes=off")
	if err := s.process.Start(); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	exited := make(chan struct{})
	s.exited = exited
	go func(p *exec.Cmd) {
		defer close(exited)
		_ = p.Wait() // how it ended does not matter
	}(s.process)
	db, err := sql.Open("pgx", s.URL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for err = db.PingContext(ctx); err != nil; err = db.PingContext(ctx) {
		select {
		case <-exited:
			t.Fatal("pgtest: the server ended at its start")
		case <-ctx.Done():
			t.Fatalf("pgtest: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Stop ends the server at once, without a farewell to its clients. What was committed stays.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if s.process == nil {
		return
	}
	_ = s.process.Process.Signal(syscall.SIGQUIT) // PostgreSQL calls that an immediate shutdown
	select {
	case <-s.exited:
	case <-time.After(patience):
		_ = s.process.Process.Kill()
		<-s.exited
		t.Errorf("pgtest: the server did not end within %v", patience)
	}
	s.process = nil
}
