package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
)

// nested makes an instance with one place whose loader asks a second cache of the client for the key "inner", when the gate is open.
func nested(t *testing.T) (w *world, outer *instance, inner *cache.Cache[string, string], gate *gate) {
	t.Helper()
	w, gate = newWorld(t), newGate(t)
	outer = w.instance(t, func(s *setup) {
		s.config.MaxLoads = 1
		s.loader = cache.Single(func(ctx context.Context, key string) (string, error) {
			if err := gate.pass(ctx); err != nil {
				return "", err
			}
			if key == "batch" {
				values, err := inner.GetMany(ctx, []string{"inner"})
				return values["inner"], err
			}
			return inner.Get(ctx, "inner")
		})
	})
	w.put("inner", v1)
	inner = mustNew(t, outer.client, "inner", w.load, cache.Policy{TTL: time.Hour})
	return w, outer, inner, gate
}

// A load that a load asks for goes under its place: else each would wait for the other.
func TestALoadInsideALoadDoesNotWaitForItsPlace(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		_, outer, _, gate := nested(t)
		got := outer.startGet(t.Context(), "k")
		gate.await(t, "the load")
		gate.open()
		receive(t, "the outer load", got).must(t, v1)
		outer.awaitLoads(t, 0, 0)
	})
	t.Run("with the queue full", func(t *testing.T) {
		w, outer, inner, gate := nested(t)
		got := outer.startGet(t.Context(), "k")
		gate.await(t, "the load")
		var others []<-chan answer
		for n, key := range bulk("other", 4) {
			w.put(key, v2)
			others = append(others, start(func() (string, error) { return inner.Get(t.Context(), key) }))
			outer.awaitLoads(t, 1, n+1)
		}
		gate.open()
		receive(t, "the outer load", got).must(t, v1)
		for _, other := range others {
			receive(t, "one that waited", other).must(t, v2)
		}
		outer.awaitLoads(t, 0, 0)
	})
	for _, batch := range []bool{false, true} {
		t.Run(fmt.Sprint("that waits in the queue for another caller, in a batch: ", batch), func(t *testing.T) {
			_, outer, inner, gate := nested(t)
			got := outer.startGet(t.Context(), map[bool]string{false: "k", true: "batch"}[batch])
			gate.await(t, "the load")
			waiting := start(func() (string, error) { return inner.Get(t.Context(), "inner") })
			outer.awaitLoads(t, 1, 1)
			gate.open() // the outer load now joins the flight of one that waits for its place
			receive(t, "the outer load", got).must(t, v1)
			receive(t, "the one that waited", waiting).must(t, v1)
			outer.awaitLoads(t, 0, 0)
		})
	}
	t.Run("of one key of a batch", func(t *testing.T) {
		w, loads := newWorld(t), newCrowd(t)
		loads.open()
		var inner *cache.Cache[string, string]
		outer := w.instance(t, func(s *setup) {
			s.config.MaxLoads = 2
			s.loader = cache.Single(func(ctx context.Context, key string) (string, error) { return inner.Get(ctx, key) })
		})
		inner = mustNew(t, outer.client, "inner", cache.Single(loads.one), cache.Policy{TTL: time.Hour})
		receive(t, "the batch", outer.startGetMany(t.Context(), bulk("k", 40))).must(t, v1)
		if n := loads.peak(); n > 2 {
			t.Errorf("%d loads ran at once for 2 places", n)
		}
		outer.awaitLoads(t, 0, 0)
	})
}

// Two clients do not share places: a load inside a load of another client waits as any other.
func TestTwoClientsHaveTheirOwnPlaces(t *testing.T) {
	w, loads := newWorld(t), newCrowd(t)
	b := w.instance(t, loads.bounded(1))
	first := b.startGet(t.Context(), "first")
	loads.await(t, 1)
	a := w.instance(t, func(s *setup) {
		s.config.Namespace += "a"
		s.config.MaxLoads = 1
		s.loader = cache.Single(func(ctx context.Context, key string) (string, error) { return b.Get(ctx, key) })
	})
	got := a.startGet(t.Context(), "k")
	a.awaitLoads(t, 1, 0)
	b.awaitLoads(t, 1, 1)
	loads.open()
	receive(t, "the first", first).must(t, v1)
	receive(t, "the load through two clients", got).must(t, v1)
	if n := loads.peak(); n != 1 {
		t.Errorf("%d loads ran at once, want 1", n)
	}
}

func TestCloseEndsTheQueue(t *testing.T) {
	w, loads := newWorld(t), newCrowd(t)
	a := w.instance(t, loads.bounded(1))
	answers := a.crowdIn(t)
	loads.await(t, 1)
	if err := a.client.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for _, got := range answers {
		if got := receive(t, "a caller", got); !errors.Is(got.err, cache.ErrClosed) {
			t.Errorf("beside Close a caller got %q, %v; want ErrClosed", got.value, got.err)
		}
	}
	if s := a.client.Stats(); s.LoadsRunning != 0 || s.LoadsWaiting != 0 || s.Overloaded != 0 {
		t.Errorf("%d loads run, %d wait and %d were refused after Close", s.LoadsRunning, s.LoadsWaiting, s.Overloaded)
	}
	if keys := loads.await(t, 1); len(keys) > 1 {
		t.Errorf("loads began beside Close: %v", keys[1:])
	}
}

// Who shares the flight of a load that is refused is refused too, and nobody elsewhere waits for it.
func TestARefusedLoadTellsAllAndGivesItsLeaseBack(t *testing.T) {
	w, loads := newWorld(t), newCrowd(t)
	long := func(s *setup) { s.policy.LeaseTTL = time.Minute }
	a := w.instance(t, loads.bounded(1), valved, long)
	b := w.instance(t, long)
	w.warmUp(t, b)
	w.put("k", v1)
	answers := a.crowdIn(t)
	ctx, ours := mark(t.Context())
	lease := a.valve.after(t, func(ctx context.Context, cmd redis.Cmder) bool { return ours(ctx, cmd) && aScript(ctx, cmd) })
	leader := a.startGet(ctx, "k")
	lease.await(t, "the lease")
	if w.raw(t, a, "k") == "" {
		t.Fatal("no lease stands in Redis: this test shows nothing")
	}
	joined := a.Stats().Joined
	follower := a.startGet(t.Context(), "k")
	eventually(t, "one that joins", func() bool { return a.Stats().Joined > joined })
	lease.open()
	isOverloaded(t, "the leader", receive(t, "the leader", leader).err)
	isOverloaded(t, "who joined", receive(t, "who joined", follower).err)
	if r, err := b.GetResult(t.Context(), "k"); r.Value != v1 || r.Why != cache.WhyMiss || err != nil {
		t.Errorf("another instance gets %+v, %v; want a load under a lease of its own", r, err)
	}
	if n := a.client.Stats().Overloaded; n != 1 {
		t.Errorf("%d loads were refused, want 1", n)
	}
	loads.open()
	for _, got := range answers {
		receive(t, "the crowd", got).must(t, v1)
	}
}
