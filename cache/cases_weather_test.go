package cache_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// TestC19: who holds the lease of a load dies, or is gone and its lease stands for ever. That a slow load keeps its lease is
// TestLeaseIsRenewedWhileItsLoadRuns.
func TestC19_AnotherTakesOverFromAHolderThatDied(t *testing.T) {
	for name, forEver := range map[string]bool{"its lease ends": false, "its lease has no TTL": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			wait := func(s *setup) { s.policy.LeaseWait = 500 * time.Millisecond }
			b, c := w.instance(t, wait), w.instance(t, wait)
			w.put("k", v1)
			mustDo(t, w.server.Admin().Set(t.Context(), w.namespace+"row:k", v1, 0).Err())
			a := w.startMember(t)
			a.tell(t, "held get k")
			a.hear(t, "loaded")
			waiters := []<-chan answer{b.startGet(t.Context(), "k"), c.startGet(t.Context(), "k")}
			eventually(t, "both wait", func() bool { return b.Stats().LeaseWaits == 1 && c.Stats().LeaseWaits == 1 })
			mustDo(t, a.cmd.Process.Kill())
			if forEver {
				mustDo(t, w.server.Admin().Persist(t.Context(), b.PhysicalKey(t, "k")).Err())
			}
			for _, waiter := range waiters {
				receive(t, "a waiter", waiter).must(t, v1)
			}
			if n := w.loads(); !forEver && n != 1 {
				t.Errorf("%d loads took over, want 1", n)
			}
		})
	}
}

// TestC20: a Redis that stalls costs some budgets, and then nothing until it goes on.
func TestC20_AStalledRedisCostsNothingForLong(t *testing.T) {
	w := newWorldOn(t, redistest.Start(t))
	a := w.instance(t, func(s *setup) { s.config.ReadBudget, s.config.WriteBudget = 100*time.Millisecond, 250*time.Millisecond })
	for n := range 200 {
		w.put(fmt.Sprint(n), v1)
	}
	w.put("written", v1)
	w.put("warm", v1)
	a.mustGet(t, "warm", v1)
	a.mustGet(t, "written", v1)
	a.client.Idle(t)
	w.server.Pause(t)
	a.mustGetFrom(t, "warm", v1, cache.TierLocal)
	for n := 0; a.client.Stats().SickNodes == 0; n++ {
		a.mustGet(t, fmt.Sprint(n), v1)
	}
	budgets := a.client.Stats().RedisErrors["timeout"]
	if budgets > 10 {
		t.Errorf("the breaker opened after %d budgets", budgets)
	}
	for n := range 100 {
		a.mustGetFrom(t, fmt.Sprint(100+n), v1, cache.TierLoader)
	}
	if n := a.client.Stats().RedisErrors["timeout"]; n != budgets {
		t.Errorf("%d Gets waited for a budget, with the breaker open", n-budgets)
	}
	commit := func(context.Context) (string, error) { w.put("written", v2); return v2, nil }
	if _, err := a.Update(t.Context(), "written", commit); !errors.Is(err, cache.ErrUnconfirmed) {
		t.Errorf("Update: %v", err)
	}
	w.server.Resume(t)
	fresh := w.instance(t)
	eventually(t, "Redis is used again, and holds what was written", func() bool {
		a.mustGet(t, "written", v2)
		a.client.Idle(t)
		a.client.DropLocal()
		r, err := a.GetResult(t.Context(), "written")
		return err == nil && r.Value == v2 && r.Tier == cache.TierRedis
	})
	fresh.mustGetFrom(t, "written", v2, cache.TierRedis)
}

// TestC21: a call under way is left when the caller's context ends, and its connection gives nobody another's answer.
func TestC21_ACallersEndEndsTheWaitForRedis(t *testing.T) {
	for _, heeds := range []bool{false, true} {
		t.Run(fmt.Sprintf("ContextTimeoutEnabled %v", heeds), func(t *testing.T) {
			w := newWorldOn(t, redistest.Start(t))
			rdb := w.server.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled, o.ReadTimeout = heeds, patience })
			i := openInstance(t, rdb, setup{
				config: cache.Config{Namespace: w.namespace, ReadBudget: patience, WriteBudget: patience},
				policy: cache.Policy{TTL: time.Hour, LocalTTL: cache.Off}, loader: w.load,
			})
			defer i.client.Close()
			for n := range 20 {
				w.put(fmt.Sprint(n), fmt.Sprint("row ", n))
				i.mustGet(t, fmt.Sprint(n), fmt.Sprint("row ", n))
			}
			i.client.Idle(t)
			w.server.Pause(t)
			for n := range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				want := context.Canceled
				if n%2 == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
					want = context.DeadlineExceeded
				} else {
					time.AfterFunc(50*time.Millisecond, cancel)
				}
				began := time.Now()
				if _, err := i.Get(ctx, fmt.Sprint(n)); !errors.Is(err, want) {
					t.Errorf("Get: %v, want %v", err, want)
				}
				if took := time.Since(began); took > 3*time.Second { // the budget and the client's time-outs are 15 s
					t.Errorf("the call ended after %v", took)
				}
				cancel()
			}
			w.server.Resume(t)
			for n := range 20 {
				i.mustGet(t, fmt.Sprint(n), fmt.Sprint("row ", n))
			}
		})
	}
}

// TestC23: out of memory, Redis refuses what needs more, and deletes.
func TestC23_AFullRedisFailsNoReader(t *testing.T) {
	w := newWorldOn(t, redistest.Start(t))
	a, b := w.instance(t, beating(soonBeat)), w.instance(t, beating(soonBeat))
	keys := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
	for _, key := range keys {
		w.put(key, v1)
	}
	for _, i := range []*instance{a, b} {
		i.awaitLive(t)
		_, err := i.GetMany(t.Context(), keys[:5])
		mustDo(t, err)
		i.client.Idle(t)
	}
	w.server.Config(t, "maxmemory-policy", "noeviction")
	w.server.Config(t, "maxmemory", "1")
	if m, err := a.GetMany(t.Context(), keys); len(m) != 10 || err != nil {
		t.Errorf("GetMany: %v, %v", m, err)
	}
	a.mustGet(t, "0", v1)
	if n := a.client.Stats().RedisErrors["oom"]; n == 0 {
		t.Error("no error was counted")
	}
	a.client.Idle(t)

	// Set needs a lease, which is refused. The old value must not stay, anywhere.
	w.put("1", v2)
	if err := a.Set(t.Context(), "1", v2); !errors.Is(err, cache.ErrNotKept) {
		t.Errorf("Set: %v; want ErrNotKept", err)
	}
	w.lacks(t, a, "1", v1)
	a.mustGet(t, "1", v2)
	b.awaitValue(t, "1", v2)
	w.change(t, a, "2", v2)
	w.lacks(t, a, "2", v1)
	a.mustGet(t, "2", v2)
	b.awaitValue(t, "2", v2)
}

// TestC120: what a Redis that swallows everything costs in goroutines and connections.
func TestC120_GoroutinesDoNotPileUp(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	db := &scarce{bears: 1000, takes: 5 * time.Millisecond}
	i := openScarce(t, server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), db, 256, 0)
	base := runtime.NumGoroutine()
	proxy.BlackHole()
	var key atomic.Int64
	tr := startTraffic(500, []*instance{i}, func() string { return fmt.Sprint(key.Add(1)) })
	defer tr.stop()
	most := 0
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		most = max(most, runtime.NumGoroutine()-base)
	}
	tr.stop()
	t.Logf("%d goroutines more at most, %d connections in all, %d answers", most, proxy.Stats().Accepted, tr.asked.Load())
	if most > 300 {
		t.Errorf("%d goroutines more than before", most)
	}
	if n := proxy.Stats().Accepted; n > 100 {
		t.Errorf("%d connections in 5 s", n)
	}
	if n := tr.failed.Load(); n > 0 {
		t.Errorf("%d Gets failed: %v", n, *tr.first.Load())
	}
}

// TestC122: the address leads to another server, and the open connections to the old one, which is now its replica.
func TestC122_AfterAFailoverByAddressWritesSucceed(t *testing.T) {
	old, heir := redistest.Start(t), redistest.Start(t)
	var at atomic.Pointer[redistest.Server]
	at.Store(old)
	w := newWorldOn(t, old)
	dial := func(s *setup) {
		s.redis.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at.Load().Addr())
		}
	}
	a, b := w.instance(t, beating(soonBeat), dial), w.instance(t, beating(soonBeat), dial)
	for _, i := range []*instance{a, b} {
		i.awaitLive(t)
	}
	w.put("k", v1)
	a.mustGet(t, "k", v1)
	b.mustGet(t, "k", v1)
	host, port, err := net.SplitHostPort(heir.Addr())
	mustDo(t, err)
	at.Store(heir)
	mustDo(t, old.Admin().ReplicaOf(t.Context(), host, port).Err())

	eventually(t, "a write succeeds", func() bool { return a.Set(t.Context(), "seed", v1) == nil })
	for n := range 5 {
		value := fmt.Sprint("value ", n)
		w.put("k", value)
		mustDo(t, a.Invalidate(t.Context(), "k"))
		b.awaitValue(t, "k", value)
		a.client.Idle(t)
	}
	eventually(t, "nobody listens to the old server", func() bool {
		return len(old.Admin().PubSubChannels(t.Context(), "*").Val()) == 0 && len(heir.Admin().PubSubChannels(t.Context(), "*").Val()) > 0
	})
}
