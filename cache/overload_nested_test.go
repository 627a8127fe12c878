package cache_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// TestALoadDoesNotWaitForALeaseThatWaitsForIt: a gap of the bus comes between, so the load that waits for a place cannot be joined, and has the lease.
func TestALoadDoesNotWaitForALeaseThatWaitsForIt(t *testing.T) {
	w := newWorld(t)
	var a *instance
	in, goOn := make(chan struct{}), make(chan struct{})
	a = w.instance(t, func(s *setup) {
		s.config.MaxLoads = 1
		s.policy.LoadTimeout = 3 * time.Second
		s.loader = cache.Single(func(ctx context.Context, key string) (string, error) {
			if key != "root" {
				return v1, nil
			}
			close(in)
			<-goOn
			return a.Get(ctx, "y")
		})
	})
	root := a.startGet(t.Context(), "root")
	<-in
	y := a.startGet(t.Context(), "y")
	a.awaitLoads(t, 1, 1)
	a.client.DropLocal() // as a gap of the bus does
	began := time.Now()
	close(goOn)
	got := receive(t, "root", root)
	if got.err != nil || time.Since(began) > time.Second {
		t.Errorf("root after %v: %q, %v", time.Since(began), got.value, got.err)
	}
	receive(t, "y", y)
}

// TestTwoProcessesDoNotWaitForEachOther: each is full with a load that asks for a key whose lease the other has, and queues with.
func TestTwoProcessesDoNotWaitForEachOther(t *testing.T) {
	w := newWorld(t)
	var a, b *instance
	aIn, bIn := make(chan struct{}), make(chan struct{})
	goOn := make(chan struct{})
	mk := func(self **instance, in chan struct{}, root, inner string) *instance {
		return w.instance(t, beating(soonBeat), func(s *setup) {
			s.config.MaxLoads = 1
			s.policy.LoadTimeout = 4 * time.Second
			s.loader = cache.Single(func(ctx context.Context, key string) (string, error) {
				if key != root {
					return v1, nil
				}
				close(in)
				<-goOn
				return (*self).Get(ctx, inner)
			})
		})
	}
	a = mk(&a, aIn, "root-a", "x")
	b = mk(&b, bIn, "root-b", "y")
	ra, rb := a.startGet(t.Context(), "root-a"), b.startGet(t.Context(), "root-b")
	<-aIn
	<-bIn
	y, x := a.startGet(t.Context(), "y"), b.startGet(t.Context(), "x") // leases taken, queued
	a.awaitLoads(t, 1, 1)
	b.awaitLoads(t, 1, 1)
	began := time.Now()
	close(goOn)
	for name, c := range map[string]<-chan answer{"root-a": ra, "root-b": rb, "x": x, "y": y} {
		got := receive(t, name, c)
		if got.err != nil || got.value != v1 {
			t.Errorf("%s after %v: %q, %v", name, time.Since(began), got.value, got.err)
		}
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("took %v", took)
	}
}

// TestALoadGoesUnderItsPlaceThroughAnotherClient: a loader asks another client, whose loader asks the first.
func TestALoadGoesUnderItsPlaceThroughAnotherClient(t *testing.T) {
	w1, w2 := newWorld(t), newWorld(t)
	one := func(s *setup) { s.config.MaxLoads = 1; s.policy.LoadTimeout = 3 * time.Second }
	var c1, c2 *instance
	c1 = w1.instance(t, one, func(s *setup) {
		s.loader = cache.Single(func(ctx context.Context, key string) (string, error) {
			if key == "leaf" {
				return v1, nil
			}
			return c2.Get(ctx, "mid")
		})
	})
	c2 = w2.instance(t, one, func(s *setup) {
		s.loader = cache.Single(func(ctx context.Context, key string) (string, error) { return c1.Get(ctx, "leaf") })
	})
	began := time.Now()
	v, err := c1.Get(t.Context(), "root")
	if v != v1 || err != nil || time.Since(began) > time.Second {
		t.Errorf("after %v: %q, %v", time.Since(began), v, err)
	}
}

// TestTheContextOfALoadThatEndedHoldsNoPlace: loads that are begun on it wait like others.
func TestTheContextOfALoadThatEndedHoldsNoPlace(t *testing.T) {
	w := newWorld(t)
	var a *instance
	var running, most atomic.Int64
	release := make(chan struct{})
	var bg sync.WaitGroup
	a = w.instance(t, func(s *setup) {
		s.config.MaxLoads = 1
		s.loader = cache.Single(func(ctx context.Context, key string) (string, error) {
			if key == "root" {
				for i := range 20 {
					bg.Go(func() {
						_, _ = a.Get(context.WithoutCancel(ctx), fmt.Sprint("related-", i)) // warm what belongs to it
					})
				}
				return v1, nil
			}
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-release
			return v1, nil
		})
	})
	a.mustGet(t, "root", v1)
	a.awaitLoads(t, 1, 4)
	eventually(t, "those beyond the queue are refused", func() bool { return a.client.Stats().Overloaded == 15 })
	close(release)
	bg.Wait()
	if most.Load() > 1 {
		t.Errorf("%d loads ran at once, MaxLoads is 1", most.Load())
	}
}

// TestABatchBySingleEndsWithItsCaller: also where the function heeds no context.
func TestABatchBySingleEndsWithItsCaller(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64
	a := w.instance(t, func(s *setup) {
		s.loader = cache.Single(func(context.Context, string) (string, error) { // as one with a driver that knows no context
			calls.Add(1)
			time.Sleep(5 * time.Millisecond)
			return v1, nil
		})
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _ = a.GetMany(ctx, bulk("k", 1000))
	eventually(t, "its end has come to the load", func() bool { return a.client.Stats().LoadsRunning < 16 })
	n := calls.Load()
	a.client.Idle(t)
	if m := calls.Load(); m > n+16 {
		t.Errorf("%d calls when the caller had left, %d in the end", n, m)
	}
}

// TestWhoLeavesIsNotCountedAsDegraded: in good weather nothing is.
func TestWhoLeavesIsNotCountedAsDegraded(t *testing.T) {
	for _, fb := range []cache.Fallback{cache.FallbackLoader, cache.FallbackError} {
		w := newWorld(t)
		a := w.instance(t, valved, func(s *setup) { s.policy.Fallback = fb })
		w.warmUp(t, a)
		for i := range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			h := a.valve.before(t, aScript)
			got := a.startGet(ctx, fmt.Sprint("k", i))
			h.await(t, "lease")
			cancel()
			<-got
			h.open()
			a.client.Idle(t)
		}
		s := a.Stats()
		if s.Degraded+s.Unavailable > 0 {
			t.Errorf("%s: degraded %d unavailable %d in good weather", fb, s.Degraded, s.Unavailable)
		}
	}
}
