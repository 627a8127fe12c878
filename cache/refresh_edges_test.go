package cache_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/go-nearside/nearside/cache"
)

// TestARefreshThatFindsNothingRemovesTheValue: also if "not found" is not kept.
func TestARefreshThatFindsNothingRemovesTheValue(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		policy := ahead
		policy.NegativeTTL = cache.Off
		client, c, m := due(t, dial, policy, 1)
		m.fails(cache.ErrNotFound)
		if _, err := c.Get(t.Context(), 1); err != nil {
			t.Error(err)
		}
		client.Idle(t)
		time.Sleep(20 * time.Millisecond)
		if _, err := c.Get(t.Context(), 1); err != cache.ErrNotFound {
			t.Errorf("%v", err)
		}
	})
}

// TestRefreshesKeepUpWithAnyRhythm: a long RetryAfter, or a short TTL, makes nobody wait.
func TestRefreshesKeepUpWithAnyRhythm(t *testing.T) {
	for _, p := range []cache.Policy{
		{TTL: 500 * time.Millisecond, RefreshAfter: 0.8},
		{TTL: time.Second, RefreshAfter: 0.8},
		{TTL: 2 * time.Second, RefreshAfter: 0.5, RetryAfter: 10 * time.Second},
		{TTL: 5 * time.Second, RefreshAfter: 0.8},
		{TTL: 60 * time.Second, RefreshAfter: 0.8, RetryAfter: 5 * time.Minute},
	} {
		t.Run(p.TTL.String(), func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
				m := newMoody("one")
				client := dial()
				client.Idle(t)
				c := mustNew(t, client, "row", m.load, p)
				m.takes.Store(int64(20 * time.Millisecond))
				began, waits := time.Now(), 0
				for time.Since(began) < 10*p.TTL {
					asked := time.Now()
					_, err := c.Get(t.Context(), 1)
					mustDo(t, err)
					if time.Since(asked) > 5*time.Millisecond {
						waits++
					}
					time.Sleep(p.TTL / 200)
				}
				if waits > 1 {
					t.Errorf("readers waited %d times", waits)
				}
			})
		})
	}
}

// TestRefreshesTakeNoPlaceFromUsers: they give way where no place is free.
func TestRefreshesTakeNoPlaceFromUsers(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, _ func() *cache.Client) {
		client := open(t, dialFake(t, server), cache.Config{MaxLoads: 1})
		m := newMoody("one")
		c := mustNew(t, client, "row", m.load, ahead)
		for key := 1; key <= 8; key++ {
			_, _ = c.Get(t.Context(), key)
			client.Idle(t)
		}
		time.Sleep(50 * time.Second)
		m.takes.Store(int64(time.Second))
		for key := 1; key <= 8; key++ {
			_, err := c.Get(t.Context(), key)
			mustDo(t, err)
			synctest.Wait()
		}
		began := time.Now()
		_, err := c.Get(t.Context(), 100)
		if err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("a miss beside refreshes: %v after %v", err, time.Since(began))
		}
	})
}

// TestABatchFromRedisIsRefreshedByOneLoad: its local entries have ended.
func TestABatchFromRedisIsRefreshedByOneLoad(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client) {
		policy := ahead
		policy.LocalTTL = time.Second
		m := newMoody("one")
		client := dial()
		client.Idle(t)
		c := mustNew(t, client, "row", m.load, policy)
		var keys []int
		for k := range 3 { // few: the pipes of fake time hold nothing, so a long pipeline blocks
			_, err := c.Get(t.Context(), k)
			mustDo(t, err)
			client.Idle(t)
			keys = append(keys, k)
		}
		time.Sleep(50 * time.Second)
		m.takes.Store(int64(500 * time.Millisecond))
		before := m.loads.Load()
		_, err := c.GetMany(t.Context(), keys)
		mustDo(t, err)
		client.Idle(t)
		if n, keys := m.loads.Load()-before, c.Stats().Refreshes; n != 1 || keys != 3 {
			t.Errorf("%d loads of %d keys", n, keys)
		}
	})
}
