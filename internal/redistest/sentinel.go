package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is what a [Sentinel] calls its master.
const MasterName = "primary"

// Sentinel is a master and a replica, and one redis-sentinel that watches them with a quorum of one. Its own commands (PING, INFO,
// PUBLISH) are among those that [Server.Commands] counts.
//
// A master that does not answer for a second is dead to it, for whatever reason, and the replica takes over. A master that was only
// paused is made a replica a second or two after it goes on. Sentinel closes the clients' connections of a server whose role it
// changes.
type Sentinel struct {
	server *Server

	mu              sync.Mutex // guards the rest
	master, replica *Server
}

// StartSentinel gives the test a master, a replica and a Sentinel of its own, ended when the test ends.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	master := Start(t)
	replica := startFor(t, &Server{master: master}) // without a proxy: Sentinel wants it to name the master itself
	replica.CatchUp(t)

	host, port, _ := net.SplitHostPort(master.addr)
	config := filepath.Join(t.TempDir(), "sentinel.conf") // Sentinel will not run without one
	// A shorter failover-timeout would give up promotions that are under way: they are checked once in a second.
	text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 1\n"+
		"sentinel down-after-milliseconds %[1]s 1000\n"+
		"sentinel failover-timeout %[1]s 3000\n", MasterName, host, port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatalf("redistest: sentinel: %v", err)
	}
	s := &Sentinel{
		server:  startFor(t, &Server{config: config, args: []string{"--sentinel"}}),
		master:  master,
		replica: replica,
	}
	if err := s.hurry(); err != nil {
		t.Fatalf("redistest: sentinel: %v", err)
	}
	err := await("the replica in Sentinel's eyes", func() error {
		status, err := s.status()
		if err == nil && status["num-slaves"] != "1" {
			err = fmt.Errorf("it has %s replicas", status["num-slaves"])
		}
		return err
	})
	if err != nil {
		t.Fatalf("redistest: sentinel: %v", err)
	}
	return s
}

// hurry makes Sentinel look more often, and so act sooner, than it does in production.
func (s *Sentinel) hurry() error {
	return s.server.admin.Do(context.Background(), "sentinel", "debug",
		"info-period", "100", "publish-period", "100", "ping-period", "200", "tilt-period", "500").Err()
}

// Addr returns host and port of the Sentinel itself.
func (s *Sentinel) Addr() string { return s.server.addr }

// Master returns the server that is master since the last Failover, KillMaster or AwaitPromotion.
func (s *Sentinel) Master() *Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.master
}

// Replica returns the other server. After KillMaster it is down, and StartAgain makes it a replica.
func (s *Sentinel) Replica() *Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replica
}

// Client returns a client that asks Sentinel for the master, closed when the test ends. It has the defaults of go-redis but for a
// handshake of one command, as in [Server.Client]; the options may change everything.
func (s *Sentinel) Client(t testing.TB, options ...func(*redis.FailoverOptions)) *redis.Client {
	t.Helper()
	opt := &redis.FailoverOptions{
		MasterName:      MasterName,
		SentinelAddrs:   []string{s.Addr()},
		DisableIdentity: true,
	}
	for _, set := range options {
		set(opt)
	}
	client := redis.NewFailoverClient(opt)
	t.Cleanup(func() { client.Close() })
	return client
}

// Failover makes the two change places while both are up (SENTINEL FAILOVER), and returns when the new master answers as master
// and the old one follows it. In between, for about a second, both take writes, and those to the old one are lost.
func (s *Sentinel) Failover(t testing.TB) {
	t.Helper()
	s.mustHaveReplica(t)
	ctx := context.Background()
	from, to := s.Master(), s.Replica()
	err := s.promotion(to, func() error {
		// Refused while the replica does not look well yet, or while Sentinel is at it by itself.
		return s.server.admin.Do(ctx, "sentinel", "failover", MasterName).Err()
	})
	if err == nil {
		err = from.catchUp(to)
	}
	if err != nil {
		t.Fatalf("redistest: failover: %v", err)
	}
	s.swap()
}

// KillMaster ends the master with SIGKILL and returns when Sentinel has promoted the replica. What the replica did not have yet is
// lost.
func (s *Sentinel) KillMaster(t testing.TB) {
	t.Helper()
	s.mustHaveReplica(t)
	s.Master().Kill(t)
	s.AwaitPromotion(t)
}

func (s *Sentinel) mustHaveReplica(t testing.TB) {
	t.Helper()
	if _, err := s.Replica().running(); err != nil {
		t.Fatalf("redistest: sentinel: nobody can take over: %v", err)
	}
}

// AwaitPromotion returns when Sentinel has promoted the replica by itself, as it does when the master was paused.
func (s *Sentinel) AwaitPromotion(t testing.TB) {
	t.Helper()
	err := s.promotion(s.Replica(), func() error { return errors.New("no failover is going on") })
	if err != nil {
		t.Fatalf("redistest: promotion: %v", err)
	}
	s.swap()
}

// promotion returns when Sentinel names to as the master and to says so itself. While Sentinel does nothing about it, idle is called.
func (s *Sentinel) promotion(to *Server, idle func() error) error {
	return await("the promotion", func() error {
		status, err := s.status() // place and progress in one answer: a failover is never asked for twice
		switch {
		case err != nil:
			return err
		case net.JoinHostPort(status["ip"], status["port"]) != to.addr:
			if !strings.Contains(status["flags"], "failover_in_progress") {
				if err := idle(); err != nil {
					return err
				}
			}
			return fmt.Errorf("sentinel says %v", status)
		}
		is, err := to.replication()
		if err == nil && !is.master {
			err = errors.New("it is a replica")
		}
		return err
	})
}

// status is what Sentinel says of the master.
func (s *Sentinel) status() (map[string]string, error) {
	ctx := context.Background()
	cmd := redis.NewMapStringStringCmd(ctx, "sentinel", "master", MasterName)
	err := s.server.admin.Process(ctx, cmd)
	return cmd.Val(), err
}

func (s *Sentinel) swap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.master, s.replica = s.replica, s.master
	s.master.setMaster(nil)
	s.replica.setMaster(s.master)
}
