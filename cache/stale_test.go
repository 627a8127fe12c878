package cache_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// moody is a source with one row for each key, which fails, hangs or takes its time on demand.
type moody struct {
	row   atomic.Pointer[string]
	fail  atomic.Pointer[error]
	takes atomic.Int64 // a load, in nanoseconds
	loads atomic.Int64
}

func newMoody(row string) *moody {
	m := new(moody)
	m.row.Store(&row)
	return m
}

func (m *moody) fails(err error) { m.fail.Store(&err) }
func (m *moody) works()          { m.fail.Store(nil) }
func (m *moody) put(row string)  { m.row.Store(&row) }

func (m *moody) load(ctx context.Context, keys []int) (map[int]string, error) {
	m.loads.Add(1)
	row := *m.row.Load()
	select {
	case <-time.After(time.Duration(m.takes.Load())):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := m.fail.Load(); err != nil {
		return nil, *err
	}
	rows := map[int]string{}
	for _, key := range keys {
		rows[key] = row
	}
	return rows, nil
}

var errMoody = errors.New("the database is away")

// exact is a policy without jitter, whose values stand in for 10 s.
var exact = cache.Policy{TTL: time.Minute, Jitter: cache.Off, StaleTTL: 10 * time.Second, RetryAfter: 2 * time.Second, LoadTimeout: 5 * time.Second}

// asks checks an answer, and how often the source was called since the start.
func asks(t *testing.T, c *cache.Cache[int, string], m *moody, key int, want string, stale bool, why cache.Why, loads int64) {
	t.Helper()
	r, err := c.GetResult(t.Context(), key)
	if err != nil || r.Value != want || r.Stale != stale || r.Why != why || m.loads.Load() != loads {
		t.Errorf("%+v, %v after %d loads; want %q, stale %v (%s), after %d", r, err, m.loads.Load(), want, stale, why, loads)
	}
}

// TestC24: a value stands in until its end, is tried anew at most once in RetryAfter, and serving it prolongs nothing.
func TestC24_StaleValuesEnd(t *testing.T) {
	for name, localTTL := range map[string]time.Duration{"default": 0, "a short local TTL": time.Second, "no local tier": cache.Off} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
				policy := exact
				policy.LocalTTL = localTTL
				m := newMoody("one")
				client := dial()
				c := mustNew(t, client, "row", m.load, policy)
				began := time.Now()
				asks(t, c, m, 1, "one", false, cache.WhyMiss, 1)
				client.Idle(t)
				m.fails(errMoody)
				for time.Since(began) < 59*time.Second {
					if r, err := c.GetResult(t.Context(), 1); err != nil || r.Stale || r.Value != "one" {
						t.Fatalf("after %v: %+v, %v", time.Since(began), r, err)
					}
					time.Sleep(500 * time.Millisecond)
				}
				time.Sleep(time.Until(began.Add(60*time.Second + 100*time.Millisecond)))
				before, loads := time.Now(), m.loads.Load()
				for time.Since(began) < 69*time.Second+900*time.Millisecond {
					r, err := c.GetResult(t.Context(), 1)
					if err != nil || !r.Stale || r.Value != "one" || r.Why != cache.WhyFailed {
						t.Fatalf("after %v: %+v, %v", time.Since(began), r, err)
					}
					if want := time.Since(began); r.Age < want-50*time.Millisecond || r.Age > want+50*time.Millisecond {
						t.Errorf("its age is %v after %v", r.Age, want)
					}
					time.Sleep(100 * time.Millisecond)
				}
				tries := m.loads.Load() - loads
				pause := policy.RetryAfter
				if localTTL > 0 {
					pause = min(pause, localTTL)
				}
				if most := int64(time.Since(before)/pause) + 1; localTTL != cache.Off && (tries > most+1 || tries < most/2) {
					t.Errorf("%d tries in %v, with a pause of %v", tries, time.Since(before), pause)
				}
				time.Sleep(time.Until(began.Add(70*time.Second + 200*time.Millisecond)))
				for range 20 {
					if v, err := c.Get(t.Context(), 1); !errors.Is(err, errMoody) || v != "" {
						t.Fatalf("after its end: %q, %v", v, err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				m.works()
				m.put("two")
				if v, err := c.Get(t.Context(), 1); v != "two" || err != nil {
					t.Errorf("when the source works again: %q, %v", v, err)
				}
			})
		})
	}
}

// staleNow returns a cache that holds "one" for key 1 past its TTL, in both tiers; the source has "two", and fails.
func staleNow(t *testing.T, dial func() *cache.Client, change func(*cache.Policy)) (*cache.Client, *cache.Cache[int, string], *moody) {
	t.Helper()
	policy := exact
	if change != nil {
		change(&policy)
	}
	m := newMoody("one")
	client := dial()
	c := mustNew(t, client, "row", m.load, policy)
	asks(t, c, m, 1, "one", false, cache.WhyMiss, 1)
	client.Idle(t)
	m.put("two")
	m.fails(errMoody)
	time.Sleep(policy.TTL + time.Second)
	return client, c, m
}

func TestWhatWasInvalidatedNeverStandsIn(t *testing.T) {
	for name, invalidate := range map[string]func(t *testing.T, c, other *cache.Cache[int, string]){
		"here": func(t *testing.T, c, _ *cache.Cache[int, string]) { mustDo(t, c.Invalidate(t.Context(), 1)) },
		"by a failed Update": func(t *testing.T, c, _ *cache.Cache[int, string]) {
			_, err := c.Update(t.Context(), 1, func(context.Context) (string, error) { return "", errMoody })
			if !errors.Is(err, errMoody) {
				t.Error(err)
			}
		},
		"by another client": func(t *testing.T, _, other *cache.Cache[int, string]) { mustDo(t, other.Invalidate(t.Context(), 1)) },
	} {
		for _, already := range []bool{false, true} { // whether it stands in before
			t.Run(name, func(t *testing.T) {
				inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
					client, c, m := staleNow(t, dial, func(p *cache.Policy) {
						if name == "by another client" { // there is no bus
							p.LocalTTL = cache.Off
						}
					})
					other := mustNew(t, dial(), "row", m.load, exact)
					if already {
						asks(t, c, m, 1, "one", true, cache.WhyFailed, 2)
					}
					invalidate(t, c, other)
					for range 3 {
						if v, err := c.Get(t.Context(), 1); !errors.Is(err, errMoody) || v != "" {
							t.Errorf("after an invalidation: %q, %v", v, err)
						}
						client.Idle(t)
					}
					m.works()
					if v, err := c.Get(t.Context(), 1); v != "two" || err != nil {
						t.Errorf("%q, %v", v, err)
					}
				})
			})
		}
	}
}

// TestAnInvalidationDuringTheLoadKeepsItFromStandingIn: the value was read before.
func TestAnInvalidationDuringTheLoadKeepsItFromStandingIn(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		_, c, m := staleNow(t, dial, nil)
		m.takes.Store(int64(time.Second))
		done := make(chan error, 1)
		go func() {
			_, err := c.Get(t.Context(), 1)
			done <- err
		}()
		synctest.Wait()
		mustDo(t, c.Invalidate(t.Context(), 1))
		if err := <-done; !errors.Is(err, errMoody) {
			t.Errorf("a load that was overtaken: %v", err)
		}
	})
}

func TestReasonsOfStaleAnswers(t *testing.T) {
	t.Run("not found is an answer", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			_, c, m := staleNow(t, dial, nil)
			m.fails(cache.ErrNotFound)
			if _, err := c.Get(t.Context(), 1); err != cache.ErrNotFound {
				t.Errorf("%v", err)
			}
			m.fails(errMoody)
			time.Sleep(time.Minute) // past NegativeTTL: nothing is left that could stand in
			if _, err := c.Get(t.Context(), 1); !errors.Is(err, errMoody) {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("a hard time-out", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			_, c, m := staleNow(t, dial, nil)
			m.takes.Store(int64(time.Hour))
			began := time.Now()
			asks(t, c, m, 1, "one", true, cache.WhyTimeout, 2)
			if took := time.Since(began); took != exact.LoadTimeout {
				t.Errorf("after %v", took)
			}
			asks(t, c, m, 1, "one", true, cache.WhyTimeout, 2)
		})
	})
	t.Run("a batch", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			_, c, _ := staleNow(t, dial, nil)
			values, err := c.GetMany(t.Context(), []int{1, 2})
			var failed *cache.KeyErrors[int]
			if values[1] != "one" || !errors.As(err, &failed) || len(failed.ByKey) != 1 || !errors.Is(failed.ByKey[2], errMoody) {
				t.Errorf("%v, %v; want what stands in, and the error of the key for which nothing does", values, err)
			}
		})
	})
	t.Run("another process serves what it finds in Redis", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			_, _, m := staleNow(t, dial, nil)
			fresh := dial()
			fresh.Idle(t) // it knows the server's clock
			c := mustNew(t, fresh, "row", m.load, exact)
			asks(t, c, m, 1, "one", true, cache.WhyFailed, 2)
			asks(t, c, m, 1, "one", true, cache.WhyFailed, 2)
			time.Sleep(10 * time.Second)
			if _, err := c.Get(t.Context(), 1); !errors.Is(err, errMoody) {
				t.Errorf("after its end: %v", err)
			}
		})
	})
	t.Run("overloaded", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, _ func() *cache.Client) {
			client := open(t, dialFake(t, server), cache.Config{MaxLoads: 1})
			_, c, m := staleNow(t, func() *cache.Client { return client }, nil)
			m.works()
			m.takes.Store(int64(2 * time.Second))
			for key := range 5 { // one runs, four wait
				go func() { _, _ = c.Get(t.Context(), 100+key) }()
			}
			synctest.Wait()
			asks(t, c, m, 1, "one", true, cache.WhyOverloaded, 2)
			time.Sleep(time.Minute)
		})
	})
}

// slowElsewhere returns a second process, beside one that is loading key 1 anew for a second: both hold "one", past its TTL.
func slowElsewhere(t *testing.T, dial func() *cache.Client) (*cache.Client, *cache.Cache[int, string], *moody) {
	t.Helper()
	soft := func(p *cache.Policy) { p.SoftTimeout = 100 * time.Millisecond }
	_, c, m := staleNow(t, dial, soft)
	m.works()
	m.takes.Store(int64(time.Second))
	second := dial()
	second.Idle(t)
	policy := exact
	soft(&policy)
	other := mustNew(t, second, "row", m.load, policy)
	go func() { _, _ = c.Get(t.Context(), 1) }()
	synctest.Wait()
	return second, other, m
}

// TestSoftTimeout: who waits goes on with what stands in, and the load goes on and fills.
func TestSoftTimeout(t *testing.T) {
	soft := func(p *cache.Policy) { p.SoftTimeout = 100 * time.Millisecond }
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		client, c, m := staleNow(t, dial, soft)
		m.works()
		m.takes.Store(int64(time.Second))
		began := time.Now()
		asks(t, c, m, 1, "one", true, cache.WhySlow, 2)
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("after %v", took)
		}
		asks(t, c, m, 1, "one", true, cache.WhySlow, 2) // at once, and no second load
		if took := time.Since(began); took > 110*time.Millisecond {
			t.Errorf("the second one after %v", took)
		}
		client.Idle(t)
		if took := time.Since(began); took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("the load ended after %v", took)
		}
		asks(t, c, m, 1, "two", false, cache.WhyHit, 2)
		other := mustNew(t, dial(), "row", m.load, exact)
		asks(t, other, m, 1, "two", false, cache.WhyHit, 2)

		// Where nothing stands in, it means nothing.
		began = time.Now()
		asks(t, c, m, 2, "two", false, cache.WhyMiss, 3)
		if took := time.Since(began); took < time.Second {
			t.Errorf("after %v", took)
		}
	})
	t.Run("of who waits for another's load", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			second, other, m := slowElsewhere(t, dial)
			began := time.Now()
			asks(t, other, m, 1, "one", true, cache.WhySlow, 2)
			if took := time.Since(began); took != 100*time.Millisecond {
				t.Errorf("after %v", took)
			}
			second.Idle(t)
			asks(t, other, m, 1, "two", false, cache.WhyHit, 2)
		})
	})
	t.Run("an invalidation during the load", func(t *testing.T) {
		inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
			client, c, m := staleNow(t, dial, soft)
			m.works()
			m.takes.Store(int64(time.Second))
			asks(t, c, m, 1, "one", true, cache.WhySlow, 2)
			m.put("three")
			mustDo(t, c.Invalidate(t.Context(), 1))
			asks(t, c, m, 1, "three", false, cache.WhyMiss, 3)
			client.Idle(t)
			asks(t, c, m, 1, "three", false, cache.WhyHit, 3)
		})
	})
}

// TestFallbackStaleWithoutTheBus: with Redis the bus is gone, and with it the trust in what is local; by choice it stands in.
func TestFallbackStaleWithoutTheBus(t *testing.T) {
	for _, fallback := range []cache.Fallback{cache.FallbackStale, cache.FallbackError, cache.FallbackLoader} {
		server := redistest.Start(t)
		client := open(t, server.Client(t), cache.Config{Heartbeat: soonBeat, ReadBudget: patience, WriteBudget: patience})
		m := newMoody("one")
		policy := cache.Policy{TTL: time.Hour, StaleTTL: time.Hour, Fallback: fallback}
		c := mustNew(t, client, "row", m.load, policy)
		eventually(t, "the bus hears", client.Bus().Live)
		for key := range 2 {
			_, err := c.Get(t.Context(), key)
			mustDo(t, err)
		}
		client.Idle(t)
		server.Kill(t)
		eventually(t, "the bus knows that it does not hear", func() bool { return !client.Bus().Live() })
		m.put("two")
		r, err := c.GetResult(t.Context(), 0)
		switch {
		case fallback == cache.FallbackStale && (r.Value != "one" || !r.Stale || r.Why != cache.WhyRedis || err != nil),
			fallback == cache.FallbackError && !errors.Is(err, cache.ErrUnavailable), // not what may have been invalidated elsewhere
			fallback == cache.FallbackLoader && (r.Value != "two" || r.Stale || err != nil):
			t.Errorf("%s: %+v, %v", fallback, r, err)
		}
		if err := c.Invalidate(t.Context(), 1); !errors.Is(err, cache.ErrUnconfirmed) {
			t.Errorf("%s: %v", fallback, err)
		}
		if v, err := c.Get(t.Context(), 1); v == "one" {
			t.Errorf("%s: what was invalidated here stands in: %q, %v", fallback, v, err)
		}
	}
}

// TestFallbackStale: with Redis away, what this process has stands in, and the source is spared.
func TestFallbackStale(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client) {
		client, c, m := staleNow(t, dial, func(p *cache.Policy) { p.Fallback = cache.FallbackStale })
		m.works()
		server.SetError("ERR away")
		asks(t, c, m, 1, "one", true, cache.WhyRedis, 1)
		asks(t, c, m, 2, "two", false, cache.WhyRedis, 2) // nothing stands in
		if err := c.Invalidate(t.Context(), 1); !errors.Is(err, cache.ErrUnconfirmed) {
			t.Errorf("%v", err)
		}
		asks(t, c, m, 1, "two", false, cache.WhyBypassed, 3)
		server.SetError("")
		client.Idle(t)
	})
}
