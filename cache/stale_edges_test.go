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

// TestWhoWentOnWithAStaleValueLeavesNoFlight: it waited for another process' load.
func TestWhoWentOnWithAStaleValueLeavesNoFlight(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		second, other, m := slowElsewhere(t, dial)
		asks(t, other, m, 1, "one", true, cache.WhySlow, 2)
		second.Idle(t)
		asks(t, other, m, 1, "two", false, cache.WhyHit, 2)
		m.put("three")
		for _, d := range []time.Duration{72 * time.Second, time.Hour, 24 * time.Hour} {
			time.Sleep(d)
			r, err := other.GetResult(t.Context(), 1)
			if r.Value != "three" || err != nil {
				t.Errorf("after %v: %+v, %v", d, r, err)
			}
		}
	})
}

// TestASlowLoadDoesNotProlongAStaleValue: who comes after its end waits.
func TestASlowLoadDoesNotProlongAStaleValue(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		began := time.Now()
		_, c, m := staleNow(t, dial, func(p *cache.Policy) { p.SoftTimeout = 100 * time.Millisecond; p.LoadTimeout = 10 * time.Second })
		m.works()
		m.takes.Store(int64(9 * time.Second))
		time.Sleep(time.Until(began.Add(69800 * time.Millisecond)))
		asks(t, c, m, 1, "one", true, cache.WhySlow, 2)
		time.Sleep(time.Until(began.Add(75 * time.Second)))
		r, err := c.GetResult(t.Context(), 1)
		if r.Stale || err != nil {
			t.Errorf("after its end: %+v, %v", r, err)
		}
	})
}

// TestNothingLocalStandsInWithoutABus: nobody tells what others invalidate.
func TestNothingLocalStandsInWithoutABus(t *testing.T) {
	for _, foreign := range []string{"other's Invalidate", "DEL"} {
		t.Run(foreign, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client) {
				policy := exact
				policy.LocalTTL = time.Second
				m := newMoody("one")
				client := dial()
				c := mustNew(t, client, "row", m.load, policy)
				asks(t, c, m, 1, "one", false, cache.WhyMiss, 1)
				client.Idle(t)
				m.put("two")
				m.fails(errMoody)
				if foreign == "DEL" {
					server.FlushAll()
				} else {
					other := mustNew(t, dial(), "row", m.load, policy)
					mustDo(t, other.Invalidate(t.Context(), 1))
				}
				for range 5 {
					time.Sleep(10 * time.Second)
					r, err := c.GetResult(t.Context(), 1)
					if err == nil {
						t.Errorf("10 s after an invalidation, with LocalTTL 1 s: %+v", r)
					}
				}
			})
		})
	}
}

// TestNotFoundIsTheLastAnswerAlsoIfItIsNotKept: the value before it is gone.
func TestNotFoundIsTheLastAnswerAlsoIfItIsNotKept(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		client, c, m := staleNow(t, dial, func(p *cache.Policy) { p.NegativeTTL = cache.Off })
		m.fails(cache.ErrNotFound)
		if _, err := c.Get(t.Context(), 1); err != cache.ErrNotFound {
			t.Errorf("%v", err)
		}
		client.Idle(t)
		time.Sleep(20 * time.Millisecond)
		m.fails(errMoody)
		if r, err := c.GetResult(t.Context(), 1); !errors.Is(err, errMoody) {
			t.Errorf("after not found: %+v %v", r, err)
		}
	})
}

// TestALoadTakenOverGoesOnBehind: those who waited left with a stale value.
func TestALoadTakenOverGoesOnBehind(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		soft := func(p *cache.Policy) { p.SoftTimeout = 100 * time.Millisecond }
		_, c, m := staleNow(t, dial, soft) // fails
		m.takes.Store(int64(time.Second))
		second := dial()
		second.Idle(t)
		policy := exact
		soft(&policy)
		loads := 0
		ended := make(chan error, 10)
		other := mustNew(t, second, "row", func(ctx context.Context, keys []int) (map[int]string, error) {
			loads++
			select {
			case <-time.After(time.Second):
				ended <- nil
				return map[int]string{1: "two"}, nil
			case <-ctx.Done():
				ended <- ctx.Err()
				return nil, ctx.Err()
			}
		}, policy)
		go func() { _, _ = c.Get(t.Context(), 1) }()
		synctest.Wait()
		asks(t, other, m, 1, "one", true, cache.WhySlow, 2)
		second.Idle(t)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("cancelled: %v", err)
			}
		default:
			t.Errorf("no load ran: %d", loads)
		}
		if v, err := other.Get(t.Context(), 1); v != "two" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
	})
}

// TestWhatRedisHasLostStandsInForNobody: it was invalidated while one waited.
func TestWhatRedisHasLostStandsInForNobody(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client) {
		_, c, m := staleNow(t, dial, func(p *cache.Policy) { p.LocalTTL = cache.Off })
		second := dial()
		second.Idle(t)
		policy := exact
		policy.LocalTTL = cache.Off
		other := mustNew(t, second, "row", m.load, policy)
		m.takes.Store(int64(time.Second))
		go func() { _, _ = c.Get(t.Context(), 1) }() // has the lease
		synctest.Wait()
		first := make(chan error, 1)
		go func() { _, err := other.Get(t.Context(), 1); first <- err }() // waits
		time.Sleep(100 * time.Millisecond)
		mustDo(t, c.Invalidate(t.Context(), 1))
		time.Sleep(300 * time.Millisecond)
		r, err := other.GetResult(t.Context(), 1) // begins 300 ms after; no local tier, no bus
		<-first
		if err == nil {
			t.Errorf("no local tier: what Redis has lost stands in for who came after the invalidation: %+v", r)
		}
	})
}
