package redistest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Kill ends the server with SIGKILL: connections are reset, nothing is saved.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.mustOwn(t, "Kill")
	s.halt((*process).kill)
}

// Stop shuts the server down in good order, as SIGTERM does. Nothing is saved by it.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.mustOwn(t, "Stop")
	s.halt((*process).stop)
}

// StartAgain starts a server that is down, on the same port, and returns when it serves. Its data is that of the last SAVE; a test
// that saved nothing gets an empty server. Settings made by CONFIG SET are gone.
func (s *Server) StartAgain(t testing.TB) {
	t.Helper()
	s.mustOwn(t, "StartAgain")
	if err := s.startAgain(); err != nil {
		t.Fatalf("redistest: start again: %v", err)
	}
}

// RestartEmpty kills the server and starts it on the same port with no data at all.
func (s *Server) RestartEmpty(t testing.TB) {
	t.Helper()
	s.Kill(t)
	s.removeDump()
	s.StartAgain(t)
}

func (s *Server) startAgain(extra ...string) error {
	if _, err := s.running(); err == nil {
		return errors.New("the server is up")
	}
	for deadline := time.Now().Add(patience); ; {
		err := s.launch(extra)
		if err == nil {
			break
		}
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return err
		}
	}
	if len(extra) > 0 {
		return nil // meant to be loading
	}
	return s.awaitLoaded()
}

func (s *Server) removeDump() { os.Remove(filepath.Join(s.dir, "dump.rdb")) }

// Pause stops the process without closing anything (SIGSTOP): connections stay open, new ones are taken by the kernel, nothing is
// answered. It returns when the server has stopped. [Server.Resume] lets it go on, the end of the test does too, and then what was
// sent meanwhile is executed.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { s.resume() })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		t.Fatal("redistest: pause: the server is down")
	}
	if s.paused {
		return
	}
	if err := s.proc.pause(); err != nil {
		t.Fatalf("redistest: pause: %v", err)
	}
	s.paused = true
}

// Resume lets a paused server go on (SIGCONT). A server that was not paused does not notice.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	if err := s.resume(); err != nil {
		t.Fatalf("redistest: resume: %v", err)
	}
}

func (s *Server) resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.paused {
		return nil
	}
	s.paused = false
	return s.proc.resume()
}

// Config changes one setting of the running server and puts the old value back when the test ends.
func (s *Server) Config(t testing.TB, key, value string) {
	t.Helper()
	ctx := context.Background()
	old, err := s.admin.ConfigGet(ctx, key).Result()
	if err == nil && len(old) != 1 {
		err = errors.New("no such setting, or a pattern")
	}
	if err == nil {
		err = s.admin.ConfigSet(ctx, key, value).Err()
	}
	if err != nil {
		t.Fatalf("redistest: config %s: %v", key, err)
	}
	t.Cleanup(func() {
		for name, was := range old {
			err := s.admin.ConfigSet(ctx, name, was).Err()
			if _, down := s.running(); err != nil && down == nil {
				t.Errorf("redistest: config %s: cannot be put back to %q: %v", name, was, err)
			}
		}
	})
}

// KillClients closes the connections of a kind ("normal", "pubsub", "replica", "master") from the server's side, but for the one
// that asks, and returns how many there were.
func (s *Server) KillClients(t testing.TB, kind string) int {
	t.Helper()
	killed, err := s.admin.ClientKillByFilter(context.Background(), "TYPE", kind).Result()
	if err != nil {
		t.Fatalf("redistest: kill clients of type %s: %v", kind, err)
	}
	return int(killed)
}

// Loading restarts the server with all its data and so slowly that every command is answered with LOADING until finish is called.
// Then it loads the rest at once and serves. Without finish the loading ends by itself after about ten seconds. Database 15 is
// used for the ballast, and emptied.
func (s *Server) Loading(t testing.TB) (finish func()) {
	t.Helper()
	s.mustOwn(t, "Loading")
	ctx := context.Background()
	ballast := s.newAdmin(15)
	t.Cleanup(func() { ballast.Close() })
	err := ballast.Do(ctx, "debug", "populate", "20000", "redistest:ballast").Err()
	if err == nil {
		err = ballast.Save(ctx).Err()
	}
	if err != nil {
		t.Fatalf("redistest: loading: save the ballast: %v", err)
	}
	s.halt((*process).kill)
	if err := s.startAgain("--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024"); err != nil {
		t.Fatalf("redistest: loading: %v", err)
	}
	if state, err := probe(s.addr); err != nil || !state.loading {
		t.Fatalf("redistest: loading: the server does not load (%v)", err)
	}
	return sync.OnceFunc(func() {
		t.Helper()
		err := s.admin.ConfigSet(ctx, "key-load-delay", "0").Err()
		if err == nil {
			err = s.awaitLoaded()
		}
		if err == nil {
			err = ballast.FlushDB(ctx).Err()
		}
		if err != nil {
			t.Fatalf("redistest: finish loading: %v", err)
		}
		s.removeDump()
	})
}

func (s *Server) mustOwn(t testing.TB, method string) {
	t.Helper()
	if s.shared {
		t.Fatalf("redistest: %s would end the server for all tests of the package: take one from Start or StartCluster", method)
	}
}
