package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
)

// Replica starts a replica of the server for the test, as [Start] does, and returns when it has all data. It stays a replica over
// its restarts and over those of the master.
//
// Replication goes through a proxy, see [Server.CutReplication]. Where the replica lags, [Server.CatchUp] waits for it.
func (s *Server) Replica(t testing.TB) *Server {
	t.Helper()
	replica := startFor(t, &Server{master: s, way: NewProxy(t, s.addr)})
	replica.CatchUp(t)
	return replica
}

// CatchUp returns when the replica has executed what its master had executed at the call.
func (s *Server) CatchUp(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	master := s.master
	s.mu.Unlock()
	if master == nil {
		t.Fatalf("redistest: catch up: the server on %s is not a replica", s.addr)
	}
	if err := s.catchUp(master); err != nil {
		t.Fatalf("redistest: catch up: %v", err)
	}
}

// CutReplication cuts a server made by [Server.Replica] off from its master and returns when it has noticed. It answers from the
// data that it has. [Server.HealReplication] ends that.
func (s *Server) CutReplication(t testing.TB) {
	t.Helper()
	way := s.mustHaveWay(t, "CutReplication")
	way.Refuse(true)
	way.Cut()
	err := await("the end of the replication", func() error {
		info, err := s.replication()
		if err == nil && info.linked {
			err = errors.New("the link is up")
		}
		return err
	})
	if err != nil {
		t.Fatalf("redistest: cut the replication: %v", err)
	}
}

// HealReplication lets a replica reach its master again and returns when it has caught up. That takes up to a second, since it
// tries once in a second.
func (s *Server) HealReplication(t testing.TB) {
	t.Helper()
	s.mustHaveWay(t, "HealReplication").Refuse(false)
	s.CatchUp(t)
}

func (s *Server) mustHaveWay(t testing.TB, method string) *Proxy {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.way == nil {
		t.Fatalf("redistest: %s is for the replicas that Replica makes", method)
	}
	return s.way
}

// replicaArgs is what makes the server a replica at its start.
func (s *Server) replicaArgs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.master == nil {
		return nil
	}
	addr := s.master.addr
	if s.way != nil {
		addr = s.way.Addr()
	}
	host, port, _ := net.SplitHostPort(addr)
	return []string{"--replicaof", host, port}
}

// setMaster says what the server is to be when it starts again.
func (s *Server) setMaster(master *Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.master = master
}

// replication is how a server sees its own part in it.
type replication struct {
	master  bool
	linked  bool   // a replica's link to its master is up
	history string // the replication id: the same on both sides of a link
	offset  int64  // in the history: executed so far
}

func (s *Server) replication() (replication, error) {
	text, err := s.admin.Info(context.Background(), "replication").Result()
	if err != nil {
		return replication{}, err
	}
	info := parseInfo(text)
	r := replication{
		master:  info["role"] == "master",
		linked:  info["master_link_status"] == "up",
		history: info["master_replid"],
	}
	offset := info["slave_repl_offset"]
	if r.master {
		offset = info["master_repl_offset"]
	}
	r.offset, err = strconv.ParseInt(offset, 10, 64)
	return r, err
}

func (s *Server) catchUp(master *Server) error {
	var want, is replication
	return await("the replica as far as its master", func() error {
		// A master begins another history when its first replica comes, when it was promoted, and when it starts again.
		if want.history == "" || want.history != is.history {
			var err error
			if want, err = master.replication(); err != nil {
				return fmt.Errorf("master: %w", err)
			}
		}
		var err error
		is, err = s.replication()
		if err == nil && (!is.linked || is.history != want.history || is.offset < want.offset) {
			err = fmt.Errorf("the master was at %+v, the replica is at %+v", want, is)
		}
		return err
	})
}

// parseInfo takes apart the answer to INFO, or to CLUSTER INFO.
func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}
