package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// crowd is a source that counts the loads which run at once, and lets each go on when the test says so.
type crowd struct {
	mu      sync.Mutex
	tickets chan struct{} // guarded by mu; one for each load that may go on; closed: all may
	started []string      // guarded by mu; the keys, as their loads began
	running int           // guarded by mu
	most    int           // guarded by mu
}

func newCrowd(t testing.TB) *crowd {
	c := &crowd{tickets: make(chan struct{})}
	t.Cleanup(c.open)
	return c
}

// one loads a key.
func (c *crowd) one(ctx context.Context, key string) (string, error) {
	c.mu.Lock()
	c.started = append(c.started, key)
	c.running++
	c.most = max(c.most, c.running)
	tickets := c.tickets
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running--
	}()
	select {
	case <-tickets:
		return v1, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// letOneGo ends one load.
func (c *crowd) letOneGo(t testing.TB) {
	t.Helper()
	c.mu.Lock()
	tickets := c.tickets
	c.mu.Unlock()
	select {
	case tickets <- struct{}{}:
	case <-time.After(patience):
		t.Fatal("no load runs")
	}
}

// open lets all loads go on, now and from now on. It may be called again.
func (c *crowd) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.tickets:
	default:
		close(c.tickets)
	}
}

// await returns when so many loads have begun, and tells of which keys.
func (c *crowd) await(t testing.TB, n int) (keys []string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d loads", n), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		keys = slices.Clone(c.started)
		return len(keys) >= n
	})
	return keys
}

// peak is the greatest number of loads that ran at once.
func (c *crowd) peak() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// bounded gives an instance a crowd, of which some may load at once.
func (c *crowd) bounded(places int) func(*setup) {
	return func(s *setup) {
		s.config.MaxLoads, s.policy.LoadTimeout = places, patience
		s.loader = cache.Single(c.one)
	}
}

// awaitLoads returns when so many loads run and wait.
func (i *instance) awaitLoads(t testing.TB, running, waiting int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d loads that run and %d that wait", running, waiting), func() bool {
		s := i.client.Stats()
		return s.LoadsRunning == running && s.LoadsWaiting == waiting
	})
}

// crowdIn asks for keys, one after another, until one load runs and four wait: a client with one place is full then.
func (i *instance) crowdIn(t testing.TB) (answers []<-chan answer) {
	t.Helper()
	for n := range 5 {
		answers = append(answers, i.startGet(t.Context(), fmt.Sprint("crowd-", n)))
		i.awaitLoads(t, 1, n)
	}
	return answers
}

// isOverloaded checks an error.
func isOverloaded(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, cache.ErrOverloaded) {
		t.Errorf("%s: %v; want ErrOverloaded", what, err)
	}
}

func TestLoadsAreBoundedAndWaitInOrder(t *testing.T) {
	w, loads := newWorld(t), newCrowd(t)
	a := w.instance(t, loads.bounded(2))
	var answers []<-chan answer
	var keys []string
	for n := range 10 {
		keys = append(keys, fmt.Sprint("key-", n))
		answers = append(answers, a.startGet(t.Context(), keys[n]))
		a.awaitLoads(t, min(n+1, 2), max(n-1, 0))
		loads.await(t, min(n+1, 2))
	}
	_, err := a.Get(t.Context(), "one too many")
	isOverloaded(t, "the eleventh load", err)
	a.awaitLoads(t, 2, 8) // it waited for nobody
	if n := a.client.Stats().Overloaded; n != 1 {
		t.Errorf("%d loads were refused, want 1", n)
	}
	for n := 3; n <= 10; n++ {
		loads.letOneGo(t)
		loads.await(t, n)
		a.awaitLoads(t, 2, 10-n)
	}
	loads.open()
	for _, got := range answers {
		receive(t, "one that waited", got).must(t, v1)
	}
	if started := loads.await(t, 10); !slices.Equal(started, keys) {
		t.Errorf("loads began in the order %v, want %v", started, keys)
	}
	if n := loads.peak(); n != 2 {
		t.Errorf("%d loads ran at once, want 2", n)
	}
	a.awaitLoads(t, 0, 0)
	a.mustGet(t, "one too many", v1) // a refusal is not kept
}

func TestWhoLeavesTheQueueMakesPlace(t *testing.T) {
	w, loads := newWorld(t), newCrowd(t)
	a := w.instance(t, loads.bounded(1))
	ctx, cancel := context.WithCancel(t.Context())
	first := a.startGet(t.Context(), "first")
	loads.await(t, 1)
	leaver := a.startGet(ctx, "leaver")
	a.awaitLoads(t, 1, 1)
	var answers []<-chan answer
	for n := range 3 {
		answers = append(answers, a.startGet(t.Context(), fmt.Sprint("other-", n)))
		a.awaitLoads(t, 1, n+2)
	}
	_, err := a.Get(t.Context(), "last")
	isOverloaded(t, "a load that finds the queue full", err)
	cancel()
	if got := receive(t, "who leaves", leaver); !errors.Is(got.err, context.Canceled) || errors.Is(got.err, cache.ErrOverloaded) {
		t.Errorf("who leaves gets %v", got.err)
	}
	a.awaitLoads(t, 1, 3)
	answers = append(answers, first, a.startGet(t.Context(), "last"))
	a.awaitLoads(t, 1, 4)
	loads.open()
	for _, got := range answers {
		receive(t, "one that stayed", got).must(t, v1)
	}
	if keys := loads.await(t, 5); slices.Contains(keys, "leaver") {
		t.Error("the loader was called for nobody")
	}
}

// Overloaded is to wake somebody up: a caller that has enough of waiting is no overload.
func TestWhoLeavesTheQueueIsNotCountedAsRefused(t *testing.T) {
	w, loads := newWorld(t), newCrowd(t)
	a := w.instance(t, loads.bounded(1))
	first := a.startGet(t.Context(), "first")
	loads.await(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	leaver := a.startGet(ctx, "leaver")
	a.awaitLoads(t, 1, 1)
	cancel()
	receive(t, "who leaves", leaver)
	a.awaitLoads(t, 1, 0)
	if n := a.client.Stats().Overloaded; n != 0 {
		t.Errorf("%d loads were refused, want none", n)
	}
	loads.open()
	receive(t, "the first", first).must(t, v1)
}

// What waits for a place waits for LoadTimeout at most. The caches of a client share its places.
func TestNoPlaceWithinLoadTimeout(t *testing.T) {
	w, loads := newWorld(t), newCrowd(t)
	a := w.instance(t, loads.bounded(1))
	called := false
	hasty := mustNew(t, a.client, "hasty", func(ctx context.Context, keys []string) (map[string]string, error) {
		called = true
		return loadText(ctx, keys)
	}, cache.Policy{TTL: time.Hour, LoadTimeout: 100 * time.Millisecond})
	first := a.startGet(t.Context(), "first")
	loads.await(t, 1)
	_, err := hasty.Get(t.Context(), "k")
	isOverloaded(t, "a load without a place", err)
	if called {
		t.Error("the loader was called without a place")
	}
	a.awaitLoads(t, 1, 0)
	if n := a.client.Stats().Overloaded; n != 1 {
		t.Errorf("%d loads were refused, want 1", n)
	}
	loads.open()
	receive(t, "the first", first).must(t, v1)
	a.awaitLoads(t, 0, 0)
	if _, err := hasty.Get(t.Context(), "k"); err != nil {
		t.Errorf("with a free place: %v", err)
	}
}
