package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestRule6_NilIsAnAnswerAndTheRestIsWeather(t *testing.T) {
	t.Run("a miss is no error", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t)
		w.put("k", v1)
		a.mustGet(t, "k", v1)
		if _, err := a.Get(t.Context(), "none"); !errors.Is(err, cache.ErrNotFound) {
			t.Errorf("a row that is not there: %v", err)
		}
		a.client.Idle(t)
		if s := a.Stats(); a.redisErrors() != 0 || s.Misses != 2 {
			t.Errorf("%d misses, errors %v; want 2 and none", s.Misses, a.client.Stats().RedisErrors)
		}
	})
	// Of a *redis.Client the cache uses a clone with short time-outs; of another kind of client it can leave the calls behind.
	for kind, hidden := range map[string]bool{"a *redis.Client": false, "another kind of client": true} {
		t.Run("a Redis that hangs costs its budget, "+kind, func(t *testing.T) {
			const budget = 50 * time.Millisecond
			w := newWorldOn(t, redistest.Start(t))
			a := w.instance(t, forgetful, func(s *setup) { s.config.ReadBudget, s.config.WriteBudget, s.valved = budget, budget, hidden })
			w.put("k", v1)
			mustDo(t, a.rdb.Ping(t.Context()).Err())
			w.server.Pause(t)
			for n := range 4 {
				began := time.Now()
				r, err := a.GetResult(t.Context(), "k")
				if r.Value != v1 || r.Tier != cache.TierLoader || r.Why != cache.WhyRedis || err != nil {
					t.Errorf("%+v, %v", r, err)
				}
				// The time-outs of the Redis client would make it 15 s.
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("Get %d took %v with a budget of %v", n, took, budget)
				}
			}
			began := time.Now()
			if m, err := a.GetMany(t.Context(), []string{"k", "none"}); len(m) != 1 || m["k"] != v1 || err != nil {
				t.Errorf("GetMany = %v, %v", m, err)
			}
			if err := a.Invalidate(t.Context(), "k"); !errors.Is(err, cache.ErrUnconfirmed) {
				t.Errorf("Invalidate: %v", err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("a batch and a delete took %v with budgets of %v", took, budget)
			}
			if n := a.client.Stats().RedisErrors["timeout"]; n < 6 {
				t.Errorf("%d time-outs counted: %v", n, a.client.Stats().RedisErrors)
			}
			w.server.Resume(t)
		})
	}
	t.Run("a row that exists is never reported missing", func(t *testing.T) {
		w := newWorld(t)
		proxy := redistest.NewProxy(t, w.server.Addr())
		a := w.instance(t, through(proxy))
		w.put("k", v1)
		proxy.Refuse(true)
		proxy.Cut()
		a.mustGetFrom(t, "k", v1, cache.TierLoader)
		proxy.Refuse(false)
		eventually(t, "Redis is used again", func() bool {
			a.mustGet(t, "k", v1)
			a.client.Idle(t)
			return a.Stats().Fills > 0
		})
		w.holds(t, a, "k", v1)
	})
	t.Run("the caller's end is no error of Redis", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t)
		a.client.Idle(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.Get(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("Get with a context that has ended: %v", err)
		}
		a.client.Idle(t)
		if n := a.redisErrors(); n != 0 {
			t.Errorf("%d errors counted: %v", n, a.client.Stats().RedisErrors)
		}
	})
}

// unconfirmedDelete returns an instance whose last Invalidate of "k" did not reach Redis, which holds v1; the source has v2.
func unconfirmedDelete(t *testing.T, w *world) (*redistest.Proxy, *instance) {
	t.Helper()
	proxy := redistest.NewProxy(t, w.server.Addr())
	a := w.instance(t, through(proxy), forgetful, once)
	w.put("k", v1)
	a.mustGet(t, "k", v1)
	a.client.Idle(t)
	w.holds(t, a, "k", v1)
	a.mustGetFrom(t, "k", v1, cache.TierLocal)
	w.put("k", v2)
	proxy.Refuse(true)
	proxy.Cut()
	err := a.Invalidate(t.Context(), "k")
	var failed *cache.KeyErrors[string]
	if !errors.Is(err, cache.ErrUnconfirmed) || !errors.As(err, &failed) || len(failed.ByKey) != 1 || failed.ByKey["k"] == nil {
		t.Fatalf("Invalidate: %v; want ErrUnconfirmed for the key", err)
	}
	return proxy, a
}

// unconfirmed calls Invalidate with a context that ends while its delete is held, which goes on when the hold-up is opened.
func (i *instance) unconfirmed(t *testing.T, key string) *holdup {
	t.Helper()
	ctx, ours := mark(t.Context())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := i.valve.before(t, ours)
	invalidated := i.startInvalidate(ctx, key)
	request.await(t, "the delete")
	cancel()
	if got := receive(t, "Invalidate", invalidated); !errors.Is(got.err, cache.ErrUnconfirmed) || !errors.Is(got.err, context.Canceled) {
		t.Errorf("Invalidate: %v; want ErrUnconfirmed and the end of the context", got.err)
	}
	return request
}

// comeBack makes Redis reachable again, and waits until another key shows it.
func comeBack(t *testing.T, w *world, proxy *redistest.Proxy, i *instance) {
	t.Helper()
	proxy.Refuse(false)
	w.put("other", v1)
	eventually(t, "Redis is used again", func() bool {
		i.client.DropLocal()
		r, err := i.GetResult(t.Context(), "other")
		i.client.Idle(t)
		return err == nil && r.Tier == cache.TierRedis
	})
}

func TestRule7_UnconfirmedDeleteBypassesRedisForItsKey(t *testing.T) {
	t.Run("until a later one is confirmed", func(t *testing.T) {
		for name, confirm := range changes {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				proxy, a := unconfirmedDelete(t, w)
				a.mustGetFrom(t, "k", v2, cache.TierLoader) // the local drop happened all the same
				comeBack(t, w, proxy, a)
				w.holds(t, a, "k", v1) // or this test shows nothing
				for range 3 {
					r, err := a.GetResult(t.Context(), "k")
					if r.Value != v2 || r.Tier != cache.TierLoader || r.Why != cache.WhyBypassed || err != nil {
						t.Errorf("%+v, %v", r, err)
					}
					if m, err := a.GetMany(t.Context(), []string{"k", "other"}); m["k"] != v2 || m["other"] != v1 || err != nil {
						t.Errorf("GetMany = %v, %v", m, err)
					}
				}
				if n := a.Stats().UnconfirmedKeys; n != 1 {
					t.Errorf("%d keys are bypassed, want 1", n)
				}
				mustDo(t, confirm(t.Context(), w, a, "k", v3))
				if n := a.Stats().UnconfirmedKeys; n != 0 {
					t.Errorf("%d keys are bypassed after a confirmation", n)
				}
				a.mustGet(t, "k", v3)
				a.client.Idle(t)
				w.holds(t, a, "k", v3)
				a.mustGetFrom(t, "k", v3, cache.TierLocal)
				w.lacks(t, a, "k", v1)
			})
		}
	})
	t.Run("a failed Update or Set is treated alike", func(t *testing.T) {
		for _, name := range []string{"Update", "Set"} {
			w := newWorld(t)
			proxy := redistest.NewProxy(t, w.server.Addr())
			a := w.instance(t, through(proxy), once)
			w.put("k", v1)
			mustDo(t, a.Set(t.Context(), "k", v1))
			proxy.Refuse(true)
			proxy.Cut()
			if err := changes[name](t.Context(), w, a, "k", v2); !errors.Is(err, cache.ErrUnconfirmed) {
				t.Fatalf("%s: %v", name, err)
			}
			comeBack(t, w, proxy, a)
			w.holds(t, a, "k", v1)
			a.mustGetFrom(t, "k", v2, cache.TierLoader)
			mustDo(t, a.Invalidate(t.Context(), "k"))
			a.mustGet(t, "k", v2)
			a.client.Idle(t)
			w.holds(t, a, "k", v2)
		}
	})
	t.Run("when the caller's context ends, until the delete is confirmed behind", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, valved, forgetful, once)
		w.put("k", v1)
		mustDo(t, a.Set(t.Context(), "k", v1))
		w.put("k", v2)
		request := a.unconfirmed(t, "k")
		w.holds(t, a, "k", v1)
		for range 3 {
			a.mustGetFrom(t, "k", v2, cache.TierLoader)
		}
		request.open()
		eventually(t, "the delete is confirmed", func() bool { return a.Stats().UnconfirmedKeys == 0 })
		a.mustGet(t, "k", v2)
		a.client.Idle(t)
		w.holds(t, a, "k", v2)
	})
	t.Run("a load under way when it fails does not end it", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, valved, forgetful, once)
		w.put("k", v1)
		gate := w.hold(t)
		reader := a.startGet(t.Context(), "k")
		gate.await(t, "the load")
		w.put("k", v2)
		request := a.unconfirmed(t, "k")
		gate.open()
		receive(t, "the reader", reader).oneOf(t, v1, v2)
		a.mustGetFrom(t, "k", v2, cache.TierLoader)
		request.open()
		a.client.Idle(t)
		w.lacks(t, a, "k", v1)
		a.mustGet(t, "k", v2)
	})
	t.Run("a write under way when it fails does not end it", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, valved, forgetful, once)
		var request *holdup
		_, err := a.Update(t.Context(), "k", func(context.Context) (string, error) {
			w.put("k", v1) // committed, and then
			w.put("k", v2) // overwritten by somebody who invalidates
			request = a.unconfirmed(t, "k")
			return v1, nil
		})
		mustDo(t, err)
		for range 3 {
			a.mustGet(t, "k", v2)
		}
		request.open()
		a.client.Idle(t)
		a.mustGet(t, "k", v2)
	})
	t.Run("a confirmation clears no newer debt", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, valved, forgetful, once)
		mustDo(t, a.Set(t.Context(), "k", v1))
		requests := []*holdup{a.unconfirmed(t, "k"), a.unconfirmed(t, "k")}
		w.put("k", v2)
		requests[0].open()
		eventually(t, "the first delete is done", func() bool { return w.raw(t, a, "k") == "" })
		mustDo(t, w.instance(t).Set(t.Context(), "k", v1)) // what the second delete has to remove
		for n := range 100 {
			mustDo(t, a.Invalidate(t.Context(), fmt.Sprint(n))) // the first one is long through
		}
		a.mustGetFrom(t, "k", v2, cache.TierLoader)
		requests[1].open()
		eventually(t, "the second delete is confirmed", func() bool { return a.Stats().UnconfirmedKeys == 0 })
		a.mustGet(t, "k", v2)
		a.client.Idle(t)
		w.holds(t, a, "k", v2)
	})
}
