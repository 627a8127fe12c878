package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// closedOr checks that a call beside Close returned a value or ErrClosed.
func closedOr(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, cache.ErrClosed) {
		t.Errorf("%s beside Close: %v", what, err)
	}
}

// watched runs f and ends the process with all stacks if it hangs: a test alone could not be ended.
func watched(d time.Duration, what string, f func()) {
	watchdog := time.AfterFunc(d, func() {
		stacks := make([]byte, 1<<20)
		panic(fmt.Sprintf("%s hangs:\n%s", what, stacks[:runtime.Stack(stacks, true)]))
	})
	defer watchdog.Stop()
	f()
}

func TestC115_CallsBesideCloseReturnAValueOrErrClosed(t *testing.T) {
	rounds := 500
	if testing.Short() {
		rounds = 50
	}
	w := newWorld(t)
	rdb := w.server.Client(t)
	enough := time.Now().Add(10 * time.Second) // of a busy machine
	for n := range rounds {
		if n >= 50 && time.Now().After(enough) {
			t.Logf("%d rounds", n)
			break
		}
		watched(10*time.Second, "a round", func() { closeBesideCalls(t, w, rdb) })
		if t.Failed() {
			t.Fatalf("in round %d", n)
		}
	}
}

// closeBesideCalls closes a client beside 16 callers, after a random number of their calls, three times at once and once more.
func closeBesideCalls(t *testing.T, w *world, rdb *redis.Client) {
	i := openInstance(t, rdb, setup{
		config: cache.Config{Namespace: w.namespace, ReadBudget: patience, WriteBudget: patience},
		policy: cache.Policy{TTL: time.Minute, LocalEntries: 100},
		loader: w.load,
	})
	ctx := context.Background()
	var seeds atomic.Int64
	calls := []func(key string){
		func(key string) {
			if _, err := i.Get(ctx, key); !errors.Is(err, cache.ErrNotFound) {
				closedOr(t, "Get", err)
			}
		},
		func(string) { closedOr(t, "Set", i.Set(ctx, fmt.Sprint("seed-", seeds.Add(1)), v1)) }, // which nobody else writes: else it may not be kept
		func(key string) { closedOr(t, "Invalidate", i.Invalidate(ctx, key, "k0")) },
		func(key string) {
			_, err := i.GetMany(ctx, []string{key, "k1", "k2"})
			closedOr(t, "GetMany", err)
		},
		func(key string) {
			_, err := i.Update(ctx, key, func(context.Context) (string, error) { return v2, nil })
			closedOr(t, "Update", err)
		},
		func(key string) {
			_, err := i.Fetch(ctx, key, func(context.Context) (string, error) { return v3, nil })
			if !errors.Is(err, cache.ErrNotFound) {
				closedOr(t, "Fetch", err)
			}
		},
		func(key string) { i.Stats(); i.client.Stats() },
	}
	var done atomic.Int64
	closing := make(chan struct{})
	closeAfter := 1 + rand.Int64N(24)
	var callers, closers sync.WaitGroup
	for n := range 16 {
		callers.Go(func() {
			for c, late := n, 0; late < 20; c++ { // not for ever: calls on a closed client take no time
				calls[c%len(calls)](fmt.Sprintf("k%d", c%7))
				if done.Add(1) == closeAfter {
					close(closing)
				}
				select {
				case <-closing:
					late++
				default:
				}
			}
		})
	}
	<-closing
	for range 3 {
		closers.Go(func() {
			if err := i.client.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	closers.Wait()
	if err := i.client.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	callers.Wait()
	for _, call := range calls {
		call("k0") // after Close
	}
	if _, err := i.Get(ctx, "a key that nobody holds"); !errors.Is(err, cache.ErrClosed) {
		t.Errorf("Get after Close: %v", err)
	}
	if err := i.Invalidate(ctx, "k0"); !errors.Is(err, cache.ErrClosed) {
		t.Errorf("Invalidate after Close: %v", err)
	}
}

func TestC115_CloseFromALoaderReturns(t *testing.T) {
	w := newWorld(t)
	rdb := w.server.Client(t)
	var i *instance
	i = openInstance(t, rdb, setup{
		config: cache.Config{Namespace: w.namespace},
		policy: cache.Policy{TTL: time.Minute},
		loader: func(ctx context.Context, keys []string) (map[string]string, error) {
			_ = i.client.Close() // an error: this loader itself was still running
			return w.load(ctx, keys)
		},
	})
	w.put("k", v1)
	watched(10*time.Second, "Close from a loader", func() {
		v, err := i.Get(t.Context(), "k")
		closedOr(t, "Get", err)
		if err == nil && v != v1 {
			t.Errorf("Get = %q", v)
		}
		_ = i.client.Close()
	})
}

// TestCloseIsBounded, also where a writer hangs, Redis hangs, and a delete is owed.
func TestCloseIsBounded(t *testing.T) {
	w := newWorldOn(t, redistest.Start(t))
	const read, write = 50 * time.Millisecond, 300 * time.Millisecond
	a := w.instance(t, beating(soonBeat), func(s *setup) { s.config.ReadBudget, s.config.WriteBudget = read, write })
	a.awaitLive(t)
	gate := newGate(t)
	written := start(func() (string, error) {
		return a.Update(t.Context(), "written", func(context.Context) (string, error) { return v1, gate.pass(context.Background()) })
	})
	gate.await(t, "the writer")
	w.server.Pause(t)
	isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "k"))
	began := time.Now()
	if err := a.client.Close(); !errors.Is(err, cache.ErrUnconfirmed) {
		t.Errorf("Close: %v; want that a delete is lost", err)
	}
	if took, most := time.Since(began), 2*(read+write)+write+2500*time.Millisecond; took > most {
		t.Errorf("Close took %v, more than %v", took, most)
	}
	gate.open()
	receive(t, "the writer", written)
	w.server.Resume(t)
}
