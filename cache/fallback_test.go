package cache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// isUnavailable checks an error.
func isUnavailable(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, cache.ErrUnavailable) {
		t.Errorf("%s: %v; want ErrUnavailable", what, err)
	}
}

// keeping makes an instance keep what it loads without Redis for longer than any test.
func keeping(s *setup) { s.config.DegradedTTL = time.Hour }

// strict lets nobody answer in Redis' place.
func strict(s *setup) { s.policy.Fallback = cache.FallbackError }

func TestFallbackErrorSparesTheSource(t *testing.T) {
	w := newWorld(t)
	a, proxy, away := w.cutOff(t, strict, once)
	for _, key := range []string{"here", "k", "bypassed"} {
		w.put(key, v1)
	}
	a.mustGetFrom(t, "here", v1, cache.TierLoader) // a miss, which Redis has confirmed
	a.client.Idle(t)
	a.mustGetFrom(t, "here", v1, cache.TierLocal)
	mustDo(t, a.Set(t.Context(), "bypassed", v1))
	before := w.loads()

	away()
	_, err := a.Get(t.Context(), "k")
	isUnavailable(t, "Get", err)
	r, err := a.GetResult(t.Context(), "k")
	isUnavailable(t, "GetResult", err)
	if r.Value != "" || r.Tier != 0 {
		t.Errorf("%+v beside ErrUnavailable", r)
	}
	values, err := a.GetMany(t.Context(), []string{"k", "here", "none"})
	var failed *cache.KeyErrors[string]
	if !errors.As(err, &failed) || len(failed.ByKey) != 2 || len(values) != 1 || values["here"] != v1 {
		t.Fatalf("GetMany = %v, %v; want what is local, and errors for two keys", values, err)
	}
	isUnavailable(t, "k in a batch", failed.ByKey["k"])
	isUnavailable(t, "none in a batch", failed.ByKey["none"])
	_, err = a.Fetch(t.Context(), "fetched", func(context.Context) (string, error) {
		t.Error("the loader of Fetch was called")
		return v1, nil
	})
	isUnavailable(t, "Fetch", err)
	if n := w.loads() - before; n != 0 {
		t.Errorf("%d loads", n)
	}
	if s := a.Stats(); s.Unavailable != 5 || s.Degraded != 0 {
		t.Errorf("%d keys count as unavailable, %d as degraded; want 5 and none", s.Unavailable, s.Degraded)
	}

	w.put("bypassed", v2)
	isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "bypassed"))
	if n := a.client.Stats().SickNodes; n != 1 {
		t.Fatalf("%d sick nodes after 6 failures", n)
	}
	_, err = a.Get(t.Context(), "bypassed")
	isUnavailable(t, "a bypassed key, while Redis is sick", err)

	proxy.Refuse(false)
	eventually(t, "Redis is used again", func() bool {
		v, err := a.Get(t.Context(), "k")
		return v == v1 && err == nil
	})
	a.client.Idle(t)
	w.holds(t, a, "k", v1)
	degraded := a.Stats().Degraded
	a.mustGetFrom(t, "bypassed", v2, cache.TierLoader) // else what Redis did not delete could not be had for TTL
	if s := a.Stats(); s.Unavailable < 6 || s.Degraded != degraded+1 {
		t.Errorf("%d keys count as unavailable, %d more as degraded; want 6 or more, and 1", s.Unavailable, s.Degraded-degraded)
	}
	if _, err := a.Get(t.Context(), "none"); !errors.Is(err, cache.ErrNotFound) {
		t.Errorf("what the source lacks: %v", err)
	}
}

// A read that works and a lease that does not are no answer either.
func TestFallbackErrorWithoutALease(t *testing.T) {
	w := newWorldOn(t, redistest.Start(t))
	a := w.instance(t, strict)
	w.put("k", v1)
	mustDo(t, w.server.Admin().ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := a.Get(t.Context(), "k")
	isUnavailable(t, "a miss without a lease", err)
	if w.loads() != 0 {
		t.Error("the loader was called")
	}
	mustDo(t, w.server.Admin().ConfigSet(t.Context(), "maxmemory", "0").Err())
	a.mustGetFrom(t, "k", v1, cache.TierLoader)
}

func TestWhatIsLoadedWithoutRedisIsKeptAWhile(t *testing.T) {
	// askOften asks 100 times for a key that the source has and one that it lacks, and tells how often the loader was called.
	askOften := func(t *testing.T, w *world, a *instance, want string) (loads int) {
		t.Helper()
		before := w.loads()
		for range 100 {
			a.mustGet(t, "k", want)
			if _, err := a.Get(t.Context(), "none"); !errors.Is(err, cache.ErrNotFound) {
				t.Fatalf("what the source lacks: %v", err)
			}
			if m, err := a.GetMany(t.Context(), []string{"none", "k"}); len(m) != 1 || m["k"] != want || err != nil {
				t.Fatalf("GetMany = %v, %v", m, err)
			}
		}
		return w.loads() - before
	}
	t.Run("without a bus", func(t *testing.T) {
		w := newWorld(t)
		a, _, away := w.cutOff(t, keeping)
		w.put("k", v1)
		away()
		if n := askOften(t, w, a, v1); n != 2 {
			t.Errorf("%d loads of two keys", n)
		}
		if s := a.Stats(); s.Degraded != 2 || s.LocalFills != 2 || s.Fills != 0 || s.Unavailable != 0 {
			t.Errorf("%+v; want two degraded keys, kept here alone", s)
		}
		for _, key := range []string{"k", "none"} {
			if raw := w.raw(t, a, key); raw != "" {
				t.Errorf("Redis holds %q", raw)
			}
		}
	})
	t.Run("with a bus that does not hear", func(t *testing.T) {
		w := newWorld(t)
		a, _, away := w.cutOff(t, beating(soonBeat))
		w.put("k", v1)
		a.awaitLive(t)
		away()
		a.awaitDeaf(t)
		if n := askOften(t, w, a, v1); n > 4 { // twice, if the loss was told late
			t.Errorf("%d loads of two keys", n)
		}
	})
	t.Run("unless there is no local tier", func(t *testing.T) {
		w := newWorld(t)
		a, _, away := w.cutOff(t, keeping, localTTL(cache.Off))
		w.put("k", v1)
		away()
		for range 3 {
			a.mustGetFrom(t, "k", v1, cache.TierLoader)
		}
		if s := a.Stats(); w.loads() != 3 || s.Degraded != 3 || s.LocalFills != 0 {
			t.Errorf("%d loads, %d of them degraded, %d fills; want 3, 3 and none", w.loads(), s.Degraded, s.LocalFills)
		}
	})
	t.Run("unless absence is not to be kept", func(t *testing.T) {
		w := newWorld(t)
		a, _, away := w.cutOff(t, keeping, func(s *setup) { s.policy.NegativeTTL = cache.Off })
		away()
		for range 3 {
			if _, err := a.Get(t.Context(), "none"); !errors.Is(err, cache.ErrNotFound) {
				t.Errorf("what the source lacks: %v", err)
			}
		}
		if n := w.loads(); n != 3 {
			t.Errorf("%d loads, want 3", n)
		}
	})
	t.Run("also past a Redis that is well, while a delete is owed", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, valved, once, keeping)
		mustDo(t, a.Set(t.Context(), "k", v1))
		w.put("k", v2)
		a.unconfirmed(t, "k")
		if n := askOften(t, w, a, v2); n != 2 {
			t.Errorf("%d loads of two keys", n)
		}
		w.holds(t, a, "k", v1)
	})
	t.Run("and no longer", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client) {
			loads := 0
			users := mustNew(t, dial(), "user", func(ctx context.Context, keys []int) (map[int]string, error) {
				loads++
				time.Sleep(2 * time.Second) // which do not count
				return loadText(ctx, keys)
			}, cache.Policy{TTL: time.Hour, Jitter: cache.Off})
			server.SetError("LOADING Redis is loading the dataset in memory")
			for second := range 12 {
				if _, err := users.Get(t.Context(), 1); err != nil {
					t.Error(err)
				}
				if want := 1 + second/5; loads != want {
					t.Errorf("%d loads after %d calls a second apart, want %d: DegradedTTL is 5 s", loads, second+1, want)
				}
				time.Sleep(time.Second)
			}
		})
	})
}
