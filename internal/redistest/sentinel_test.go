package redistest_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
)

// wantRoles also waits until a client that asks Sentinel has found the master.
func wantRoles(t *testing.T, s *redistest.Sentinel, master, replica *redistest.Server, rdb *redis.Client) {
	t.Helper()
	if s.Master() != master || s.Replica() != replica {
		t.Fatal("the roles are not those wanted")
	}
	value := s.Master().Prefix(t)
	eventually(t, "the client at the master", func() bool {
		return rdb.Set(ctx, "k", value, 0).Err() == nil && master.Admin().Get(ctx, "k").Val() == value
	})
}

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	a, b := s.Master(), s.Replica()
	rdb := s.Client(t)
	wantRoles(t, s, a, b, rdb)

	// Traffic must neither keep Sentinel from it nor be kept from the new master.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				rdb.Incr(ctx, "n")
			}
		}
	})
	s.Failover(t)
	close(stop)
	wg.Wait()
	wantRoles(t, s, b, a, rdb)
	s.Replica().CatchUp(t)
	wantValue(t, a, "k", b.Admin().Get(ctx, "k").Val())
	if err := a.Admin().Set(ctx, "k", "v", 0).Err(); !redis.HasErrorPrefix(err, "READONLY") {
		t.Errorf("SET on the old master: %v", err)
	}
	s.Failover(t) // and back
	wantRoles(t, s, a, b, rdb)
}

func TestSentinelKillMaster(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	a, b := s.Master(), s.Replica()
	rdb := s.Client(t, func(o *redis.FailoverOptions) { o.DialerRetries = 1 })
	mustSet(t, a, "kept", "v")
	b.CatchUp(t)
	s.KillMaster(t)
	wantRoles(t, s, b, a, rdb)
	wantValue(t, b, "kept", "v")

	a.StartAgain(t)
	a.CatchUp(t)
	wantValue(t, a, "kept", "v")
	s.KillMaster(t)
	wantRoles(t, s, a, b, rdb)
	wantValue(t, a, "kept", "v")
}

func TestSentinelReplacesAPausedMaster(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	a, b := s.Master(), s.Replica()
	rdb := s.Client(t, func(o *redis.FailoverOptions) { o.ReadTimeout = 100 * time.Millisecond })
	wantRoles(t, s, a, b, rdb)
	a.Pause(t)
	s.AwaitPromotion(t)
	wantRoles(t, s, b, a, rdb)
	a.Resume(t)
	a.CatchUp(t) // Sentinel has made it a replica
}

func TestSentinelFailsClearly(t *testing.T) {
	s := redistest.StartSentinel(t)
	defer redistest.ShortenPatience(20 * time.Millisecond)()
	f := new(fakeTB)
	if out := f.run(func() { s.AwaitPromotion(f) }); !f.failed || !strings.Contains(out, "no failover is going on") {
		t.Errorf("failed %v with %q", f.failed, out)
	}
	s.Replica().Pause(t)
	f = new(fakeTB)
	if out := f.run(func() { s.Failover(f) }); !f.failed || !strings.Contains(out, "the promotion") {
		t.Errorf("failed %v with %q", f.failed, out)
	}
	s.Replica().Kill(t)
	for name, end := range map[string]func(testing.TB){"Failover": s.Failover, "KillMaster": s.KillMaster} {
		f := new(fakeTB)
		if out := f.run(func() { end(f) }); !f.failed || !strings.Contains(out, "nobody can take over") {
			t.Errorf("%s: failed %v with %q", name, f.failed, out)
		}
	}
}
