package cache_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/go-nearside/nearside/cache"
)

// ahead is a policy without jitter that refreshes after 48 of 60 s.
var ahead = cache.Policy{TTL: time.Minute, Jitter: cache.Off, RefreshAfter: 0.8, RetryAfter: 2 * time.Second, LoadTimeout: 5 * time.Second}

// TestC26: a hot key under steady reads of three processes is loaded once in its time, and no reader waits for it.
func TestC26_OneRefreshForAllProcesses(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		m := newMoody("one")
		var caches []*cache.Cache[int, string]
		for range 3 {
			client := dial()
			client.Idle(t) // knows the server's clock
			caches = append(caches, mustNew(t, client, "row", m.load, ahead))
		}
		for _, c := range caches {
			_, err := c.Get(t.Context(), 1)
			mustDo(t, err)
			synctest.Wait()
		}
		m.takes.Store(int64(300 * time.Millisecond))
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			for _, c := range caches {
				asked := time.Now()
				if v, err := c.Get(t.Context(), 1); v != "one" || err != nil {
					t.Fatalf("after %v: %q, %v", time.Since(began), v, err)
				}
				if took := time.Since(asked); took > 5*time.Millisecond {
					t.Errorf("after %v a reader waited for %v", time.Since(began), took)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		// One load each 48 s, and as long as it takes until the last process has the new value.
		if n := m.loads.Load() - 1; n < 11 || n > 12 {
			t.Errorf("%d loads in 10 minutes, want 12", n)
		}
		var refreshes uint64
		for _, c := range caches {
			refreshes += c.Stats().Refreshes
		}
		if n := uint64(m.loads.Load() - 1); refreshes != n {
			t.Errorf("%d refreshes are counted, of %d", refreshes, n)
		}
	})
}

// due returns a cache that holds "one" for some keys, old enough to be refreshed; the source has "two".
func due(t *testing.T, dial func() *cache.Client, policy cache.Policy, keys ...int) (*cache.Client, *cache.Cache[int, string], *moody) {
	t.Helper()
	m := newMoody("one")
	client := dial()
	client.Idle(t)
	c := mustNew(t, client, "row", m.load, policy)
	_, err := c.GetMany(t.Context(), keys)
	mustDo(t, err)
	client.Idle(t)
	time.Sleep(50 * time.Second)
	m.put("two")
	return client, c, m
}

func TestRefresh(t *testing.T) {
	t.Run("one that fails keeps what there is", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			client, c, m := due(t, dial, ahead, 1)
			m.fails(errMoody)
			for range 90 { // 9 s
				if r, err := c.GetResult(t.Context(), 1); r.Value != "one" || r.Stale || err != nil {
					t.Fatalf("%+v, %v", r, err)
				}
				client.Idle(t)
				time.Sleep(100 * time.Millisecond)
			}
			if n := m.loads.Load() - 1; n < 4 || n > 5 {
				t.Errorf("%d tries in 9 s, want one each 2 s", n)
			}
			m.works()
			time.Sleep(2 * time.Second)
			if v, err := c.Get(t.Context(), 1); v != "two" || err != nil { // its TTL is over
				t.Errorf("%q, %v", v, err)
			}
		})
	})
	t.Run("a batch is refreshed by one load", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			client, c, m := due(t, dial, ahead, 1, 2, 3)
			for _, want := range []string{"one", "two"} {
				values, err := c.GetMany(t.Context(), []int{1, 2, 3})
				if len(values) != 3 || values[1] != want || values[3] != want || err != nil {
					t.Errorf("%v, %v; want %q", values, err, want)
				}
				client.Idle(t)
			}
			if n, keys := m.loads.Load(), c.Stats().Refreshes; n != 2 || keys != 3 {
				t.Errorf("%d loads, %d keys were refreshed; want 2 and 3", n, keys)
			}
		})
	})
	t.Run("an invalidation voids it", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			client, c, m := due(t, dial, ahead, 1)
			m.takes.Store(int64(time.Second))
			_, err := c.Get(t.Context(), 1)
			mustDo(t, err)
			synctest.Wait()
			if m.loads.Load() != 2 {
				t.Fatal("no refresh is under way")
			}
			m.put("three")
			mustDo(t, c.Invalidate(t.Context(), 1))
			for range 2 {
				if v, err := c.Get(t.Context(), 1); v != "three" || err != nil {
					t.Errorf("%q, %v", v, err)
				}
				client.Idle(t)
			}
		})
	})
	t.Run("who reads Redis meanwhile does not wait", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			_, c, m := due(t, dial, ahead, 1)
			second := dial()
			second.Idle(t)
			other := mustNew(t, second, "row", m.load, ahead)
			m.takes.Store(int64(time.Second))
			_, err := c.Get(t.Context(), 1)
			mustDo(t, err)
			synctest.Wait()
			began := time.Now()
			if r, err := other.GetResult(t.Context(), 1); r.Value != "one" || r.Tier != cache.TierRedis || err != nil || time.Since(began) > 5*time.Millisecond {
				t.Errorf("what is fresh, while it is refreshed: %+v, %v after %v", r, err, time.Since(began))
			}
		})
	})
	t.Run("not found, and what stands in, are not refreshed", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			policy := ahead
			policy.NegativeTTL = time.Hour
			client, c, m := due(t, dial, policy)
			m.fails(cache.ErrNotFound)
			for range 3 {
				if _, err := c.Get(t.Context(), 7); !errors.Is(err, cache.ErrNotFound) {
					t.Error(err)
				}
				client.Idle(t)
				time.Sleep(20 * time.Minute)
			}
			if n := m.loads.Load(); n > 2 {
				t.Errorf("%d loads", n)
			}
		})
	})
	t.Run("a panic of the loader harms nobody", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			client := dial()
			client.Idle(t)
			calls := 0
			c := mustNew(t, client, "row", func(ctx context.Context, keys []int) (map[int]string, error) {
				if calls++; calls == 2 {
					panic("a bug")
				}
				return loadText(ctx, keys)
			}, ahead)
			for range 3 {
				v, err := c.Get(t.Context(), 1)
				if v != "a row" || err != nil {
					t.Errorf("%q, %v", v, err)
				}
				client.Idle(t)
				time.Sleep(48500 * time.Millisecond / 2)
			}
		})
	})
}

// TestResilient: its preset is a valid policy, at any TTL that is.
func TestResilient(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		client := dial()
		for name, ttl := range map[string]time.Duration{"second": time.Second, "day": 24 * time.Hour} {
			p := mustNew(t, client, name, loadText[int], cache.Resilient(ttl)).Policy()
			if p.TTL != ttl || p.StaleTTL != 10*ttl || p.RefreshAfter != 0.8 || p.SoftTimeout != 300*time.Millisecond {
				t.Errorf("%+v", p)
			}
		}
	})
}
