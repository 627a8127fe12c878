package cache_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// evalsha stands in the request of every script, and in no other: warm up before.
const evalsha = "evalsha"

// aLease stands in each command that takes a lease, be it a SET or the script: the beginning of a lease's frame.
const aLease = "NS1l"

func TestRule3_RedisIsFilledOnlyUnderALiveLease(t *testing.T) {
	t.Run("what Redis refused is not kept here", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t)
		w.put("k", v1)
		gate := w.hold(t)
		first := a.startGet(t.Context(), "k")
		gate.await(t, "the load")
		w.put("k", v2)
		mustDo(t, w.server.Admin().Unlink(t.Context(), a.PhysicalKey(t, "k")).Err())
		gate.open()
		receive(t, "the first caller", first).must(t, v1)
		a.client.Idle(t)
		if s := a.Stats(); s.FillsRefused != 1 || s.Fills != 0 || s.LocalFills != 0 {
			t.Errorf("%d refused, %d fills, %d local fills; want 1, 0, 0", s.FillsRefused, s.Fills, s.LocalFills)
		}
		w.lacks(t, a, "k", v1)
		a.mustGet(t, "k", v2)
	})
	t.Run("FLUSHDB voids all leases", func(t *testing.T) {
		server := redistest.Start(t)
		w := newWorldOn(t, server)
		a := w.instance(t)
		w.put("k", v1)
		gate := w.hold(t)
		first := a.startGet(t.Context(), "k")
		gate.await(t, "the load")
		mustDo(t, server.Admin().FlushDB(t.Context()).Err())
		gate.open()
		receive(t, "the first caller", first).must(t, v1)
		a.client.Idle(t)
		if n, err := server.Admin().DBSize(t.Context()).Result(); n != 0 || err != nil {
			t.Errorf("%d keys after the fill, %v", n, err)
		}
	})
	t.Run("what Redis had no room for is kept here alone", func(t *testing.T) {
		server := redistest.Start(t)
		w := newWorldOn(t, server)
		a := w.instance(t)
		w.put("k", v1)
		gate := w.hold(t)
		first := a.startGet(t.Context(), "k")
		gate.await(t, "the load")
		server.Config(t, "maxmemory", "1")
		gate.open()
		receive(t, "the first caller", first).must(t, v1)
		a.client.Idle(t)
		if s := a.Stats(); s.FillErrors != 1 || s.Fills != 0 || s.LocalFills != 1 {
			t.Errorf("%d fills failed, %d fills, %d local fills; want 1, 0, 1", s.FillErrors, s.Fills, s.LocalFills)
		}
		a.mustGetFrom(t, "k", v1, cache.TierLocal)
	})
	t.Run("after an error of Redis it is not filled", func(t *testing.T) {
		for _, cut := range []string{"\r\nget\r\n", aLease} {
			w := newWorld(t)
			proxy := redistest.NewProxy(t, w.server.Addr())
			a := w.instance(t, through(proxy), forgetful, func(s *setup) { s.policy.LeaseTTL = time.Minute })
			w.warmUp(t, a)
			before := a.Stats()
			w.put("k", v1)
			// The first command, or both attempts to take the lease, get no answer.
			proxy.DropReply(2, cut, false)
			a.mustGetFrom(t, "k", v1, cache.TierLoader)
			proxy.DropReply(0, "", false)
			a.client.Idle(t)
			s := a.Stats()
			if s.Fills+s.FillsRefused+s.FillErrors != before.Fills+before.FillsRefused+before.FillErrors || s.LocalFills != before.LocalFills {
				t.Errorf("%q lost: a fill without a lease: %+v", cut, s)
			}
			w.lacks(t, a, "k", v1)
			a.mustGet(t, "k", v1)
			a.client.Idle(t)
			w.holds(t, a, "k", v1) // under a lease: those that were lost were given back
			if s := a.Stats(); s.LeaseTimeouts != 0 {
				t.Errorf("%d waits for a lease of nobody", s.LeaseTimeouts)
			}
		}
	})
	for name, change := range changes {
		t.Run(name+" voids the lease", func(t *testing.T) {
			w := newWorld(t)
			a, b := w.instance(t), w.instance(t)
			w.put("k", v1)
			gate := w.hold(t)
			first := a.startGet(t.Context(), "k")
			gate.await(t, "the load")
			mustDo(t, change(t.Context(), w, b, "k", v2))
			gate.open()
			receive(t, "the first caller", first).must(t, v1)
			a.client.Idle(t)
			if n := a.Stats().FillsRefused; n != 1 {
				t.Errorf("%d fills refused, want 1", n)
			}
			w.lacks(t, a, "k", v1)
			a.mustGet(t, "k", v2)
		})
	}
	t.Run("another lease is not the one that was lost", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.instance(t), w.instance(t)
		w.put("k", v1)
		old := w.hold(t)
		first := a.startGet(t.Context(), "k")
		old.await(t, "the load of what is old")
		w.put("k", v2)
		mustDo(t, b.Invalidate(t.Context(), "k"))
		next := w.hold(t)
		second := b.startGet(t.Context(), "k")
		next.await(t, "the load under the next lease")
		old.open()
		receive(t, "the first caller", first).must(t, v1)
		a.client.Idle(t)
		w.lacks(t, a, "k", v1)
		next.open()
		receive(t, "the second caller", second).must(t, v2)
		b.client.Idle(t)
		w.holds(t, b, "k", v2)
	})
	t.Run("Update voids the lease before it writes", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.instance(t), w.instance(t)
		w.put("k", v1)
		gate := w.hold(t)
		first := a.startGet(t.Context(), "k")
		gate.await(t, "the load")
		_, err := b.Update(t.Context(), "k", func(context.Context) (string, error) {
			gate.open() // the load ends while the write is under way
			receive(t, "the first caller", first).must(t, v1)
			a.client.Idle(t)
			w.lacks(t, a, "k", v1)
			w.put("k", v2)
			return v2, nil
		})
		mustDo(t, err)
		a.mustGet(t, "k", v2)
		b.mustGet(t, "k", v2)
		w.holds(t, a, "k", v2)
	})
}

func TestRule3_LostRepliesToScripts(t *testing.T) {
	lost := func(t *testing.T, keepOpen bool) (*world, *redistest.Proxy, *instance) {
		w := newWorld(t)
		proxy := redistest.NewProxy(t, w.server.Addr())
		a := w.instance(t, through(proxy), forgetful, func(s *setup) {
			s.policy.LeaseTTL = time.Minute // who would have to wait for its end does not pass
			if keepOpen {
				s.config.ReadBudget, s.config.WriteBudget = 700*time.Millisecond, 700*time.Millisecond
			}
		})
		w.warmUp(t, a)
		w.put("k", v1)
		return w, proxy, a
	}
	for name, keepOpen := range map[string]bool{"the connection ends": false, "the connection stays silent": true} {
		t.Run("of the lease, "+name, func(t *testing.T) {
			w, proxy, a := lost(t, keepOpen)
			loads, fills := w.loads(), a.Stats().Fills
			proxy.DropReply(1, aLease, keepOpen)
			r, err := a.GetResult(t.Context(), "k")
			if r.Value != v1 || r.Why != cache.WhyMiss || err != nil {
				t.Errorf("%+v, %v", r, err)
			}
			a.client.Idle(t)
			if n := proxy.Stats().Dropped; n != 1 {
				t.Fatalf("%d replies were lost, want 1", n)
			}
			if n := w.loads() - loads; n != 1 {
				t.Errorf("%d loads, want 1", n)
			}
			if n := a.Stats().Fills - fills; n != 1 {
				t.Errorf("%d fills, want 1", n)
			}
			w.holds(t, a, "k", v1)
			a.mustGetFrom(t, "k", v1, cache.TierLocal)
		})
		t.Run("of the fill, "+name, func(t *testing.T) {
			w, proxy, a := lost(t, keepOpen)
			before := a.Stats()
			gate := w.hold(t)
			reader := a.startGet(t.Context(), "k")
			gate.await(t, "the load")
			proxy.DropReply(1, evalsha, keepOpen)
			sent := w.server.Commands(t, func() {
				gate.open()
				receive(t, "the reader", reader).must(t, v1)
				a.client.Idle(t)
			})
			if n := proxy.Stats().Dropped; n != 1 {
				t.Fatalf("%d replies were lost, want 1", n)
			}
			if sent[evalsha] != 2 {
				t.Errorf("the server saw %v, want one fill, and the lease given back", sent)
			}
			s := a.Stats()
			if s.FillErrors-before.FillErrors != 1 || s.Fills != before.Fills || s.LocalFills != before.LocalFills {
				t.Errorf("the unknown fill counts as %+v, before %+v", s, before)
			}
			a.mustGetFrom(t, "k", v1, cache.TierRedis) // it did run, and nothing of it was kept here
		})
		t.Run("of the leases of a batch, "+name, func(t *testing.T) {
			w, proxy, a := lost(t, keepOpen)
			loads, fills := w.loads(), a.Stats().Fills
			keys := []string{"k", "k1", "k2"}
			for _, key := range keys {
				w.put(key, v1)
			}
			proxy.DropReply(1, aLease, keepOpen)
			if m, err := a.GetMany(t.Context(), keys); len(m) != 3 || err != nil {
				t.Errorf("GetMany = %v, %v", m, err)
			}
			a.client.Idle(t)
			if loaded, filled := w.loads()-loads, a.Stats().Fills-fills; loaded != 1 || filled != 3 {
				t.Errorf("%d loads and %d fills, want 1 and 3", loaded, filled)
			}
			for _, key := range keys {
				w.holds(t, a, key, v1)
				a.mustGetFrom(t, key, v1, cache.TierLocal)
			}
		})
		t.Run("of the fills of a batch, "+name, func(t *testing.T) {
			w, proxy, a := lost(t, keepOpen)
			w.put("k1", v1)
			before := a.Stats()
			gate := w.hold(t)
			reader := start(func() (string, error) {
				m, err := a.GetMany(t.Context(), []string{"k", "k1"})
				return m["k"] + m["k1"], err
			})
			gate.await(t, "the load")
			proxy.DropReply(1, evalsha, keepOpen)
			sent := w.server.Commands(t, func() {
				gate.open()
				receive(t, "the reader", reader).must(t, v1+v1)
				a.client.Idle(t)
			})
			s := a.Stats()
			// Two fills, and two leases given back.
			if sent[evalsha] != 4 || s.Fills != before.Fills || s.LocalFills != before.LocalFills || s.FillErrors-before.FillErrors != 2 {
				t.Errorf("the server saw %v, the unknown fills count as %+v, before %+v", sent, s, before)
			}
			a.mustGetFrom(t, "k", v1, cache.TierRedis)
		})
		t.Run("of the lease of an Update, "+name, func(t *testing.T) {
			w, proxy, a := lost(t, keepOpen)
			proxy.DropReply(1, aLease, keepOpen)
			mustDo(t, changes["Update"](t.Context(), w, a, "k", v2))
			a.client.Idle(t)
			w.holds(t, a, "k", v2)
			a.mustGet(t, "k", v2)
		})
		t.Run("of the fill of an Update, "+name, func(t *testing.T) {
			w, proxy, a := lost(t, keepOpen)
			_, err := a.Update(t.Context(), "k", func(context.Context) (string, error) {
				proxy.DropReply(1, evalsha, keepOpen)
				w.put("k", v2)
				return v2, nil
			})
			mustDo(t, err) // the key was deleted instead
			if n := proxy.Stats().Dropped; n != 1 {
				t.Fatalf("%d replies were lost, want 1", n)
			}
			a.client.Idle(t)
			w.put("k", v3)
			mustDo(t, a.Invalidate(t.Context(), "k"))
			a.mustGet(t, "k", v3)
		})
	}
}

func TestRule3_DelayedAcquireLetsNothingOldIn(t *testing.T) {
	w := newWorld(t)
	slow := redistest.NewProxy(t, w.server.Addr())
	slow.Only(aLease) // connections freeze at their first acquire
	var straight atomic.Bool
	a := w.instance(t, through(slow), func(s *setup) {
		s.config.ReadBudget = 700 * time.Millisecond
		s.policy.LeaseTTL = 1500 * time.Millisecond
		s.redis.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if straight.Load() {
				addr = w.server.Addr()
			}
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}
	})
	teacher := w.instance(t)
	w.warmUp(t, teacher) // the server knows the scripts, and no script has gone through the proxy
	a.client.Idle(t)
	w.put("k", v1)
	mustDo(t, a.rdb.Ping(t.Context()).Err())
	slow.Await(t, "one connection, for a read and the first acquire", func(s redistest.Stats) bool { return s.Live == 1 })

	slow.Freeze(redistest.ToServer)
	straight.Store(true) // who has to dial from now on gets through
	gate := w.hold(t)
	reader := a.startGet(t.Context(), "k")
	gate.await(t, "a load under the lease of a later attempt")
	if n := slow.Stats().Held[redistest.ToServer]; n == 0 {
		t.Fatal("no acquire is on its way")
	}
	w.put("k", v2)
	mustDo(t, a.Invalidate(t.Context(), "k"))
	if raw := w.raw(t, a, "k"); raw != "" {
		t.Fatalf("Redis holds %q after Invalidate", raw)
	}
	slow.Thaw()
	slow.Await(t, "the first acquire reaches Redis", func(s redistest.Stats) bool { return s.Held[redistest.ToServer] == 0 })
	gate.open()
	receive(t, "the reader", reader).oneOf(t, v1, v2)
	a.client.Idle(t)
	w.lacks(t, a, "k", v1)
	if s := a.Stats(); s.FillsRefused != 1 || s.LocalFills != 0 {
		t.Errorf("%d fills refused, %d local fills; want 1 and 0", s.FillsRefused, s.LocalFills)
	}
	a.mustGet(t, "k", v2)
	teacher.mustGet(t, "k", v2)
}
