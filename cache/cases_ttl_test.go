package cache_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

func TestC04_NoTTLMakesAnImmortalEntry(t *testing.T) {
	t.Run("Refused", caseTTLRefused)
	t.Run("Tiny", caseTTLTiny)
	t.Run("Jitter", caseTTLJitter)
	t.Run("NegativeOff", caseTTLNegativeOff)
	t.Run("LocalOff", caseTTLLocalOff)
	t.Run("LocalEndsWithRedis", caseTTLLocalEndsWithRedis)
}

// caseTTLRefused: what is not a TTL is refused at construction, with the field and a remedy, and nothing is made of it.
func caseTTLRefused(t *testing.T) {
	in := caseOpen(t, caseNamespace(t))
	past := time.Until(time.Now().Add(-time.Hour))
	fields := map[string]struct {
		policy func(time.Duration) cache.Policy
		bad    []time.Duration
	}{
		"Policy.TTL": {
			func(d time.Duration) cache.Policy { return cache.Policy{TTL: d} },
			[]time.Duration{-2, -1, 0, 500 * time.Microsecond, time.Millisecond - 1, past, 1<<63 - 1, -1 << 63},
		},
		"Policy.LocalTTL": {
			func(d time.Duration) cache.Policy { return cache.Policy{TTL: time.Minute, LocalTTL: d} },
			[]time.Duration{-2, 500 * time.Microsecond, time.Millisecond - 1, past, time.Minute + 1, 1<<63 - 1, -1 << 63},
		},
		"Policy.NegativeTTL": {
			func(d time.Duration) cache.Policy { return cache.Policy{TTL: time.Minute, NegativeTTL: d} },
			[]time.Duration{-2, 500 * time.Microsecond, time.Millisecond - 1, past, 1<<63 - 1, -1 << 63},
		},
	}
	for field, f := range fields {
		for _, bad := range f.bad {
			c, err := cache.New(in.Client, "refused", caseRows().load, f.policy(bad))
			var wrong *cache.ConfigError
			if !errors.As(err, &wrong) || wrong.Field != field || wrong.Value != bad || wrong.Remedy == "" || c != nil {
				t.Errorf("%s = %v: got %v, %v; want a *cache.ConfigError for it", field, bad, c, err)
			}
		}
	}
	if _, err := cache.New(in.Client, "refused", caseRows().load, cache.Policy{TTL: time.Millisecond}); err != nil {
		t.Errorf("after all refusals: %v; the name should still be free", err)
	}
}

// caseTTLTiny: a TTL near a millisecond ends, and it ends what stood there before, in both tiers.
func caseTTLTiny(t *testing.T) {
	for _, ttl := range []time.Duration{time.Millisecond, 1500 * time.Microsecond} {
		for _, jitter := range []float64{cache.Off, 0.5} {
			t.Run(fmt.Sprintf("%v/%v", ttl, jitter), func(t *testing.T) {
				namespace := caseNamespace(t)
				source := caseRows("k")
				long := caseNew(t, caseOpen(t, namespace), source.load, cache.Policy{TTL: time.Minute, LocalTTL: cache.Off})
				in := caseOpen(t, namespace)
				tiny := caseNew(t, in, source.load, cache.Policy{TTL: ttl, NegativeTTL: ttl, Jitter: jitter})
				physical := tiny.PhysicalKey(t, "k")
				ends := func(what string, after int) {
					t.Helper()
					if ms := casePTTL(t, physical); ms == -1 || ms > 2 {
						t.Fatalf("PTTL is %d after %s", ms, what)
					}
					caseUntil(t, what+" ends in Redis", func() bool { return caseExists(t, physical) == 0 })
					if row, err := tiny.Get(t.Context(), "k"); after > 0 && (err != nil || row.Version != after) {
						t.Fatalf("got %v, %v when %s had ended", row, err, what)
					}
					in.Idle(t)
				}
				for range 10 {
					if err := long.Set(t.Context(), "k", caseRow{"k", 7}); err != nil {
						t.Fatal(err)
					}
					if row, err := tiny.Get(t.Context(), "k"); err != nil || row.Version != 7 {
						t.Fatalf("the old value: %v, %v", row, err)
					}
					if err := tiny.Set(t.Context(), "k", caseRow{"k", 8}); err != nil {
						t.Fatal(err)
					}
					ends("a Set", 1)
					ends("a fill", 1)
				}
				source.write("k", 0)
				if _, err := tiny.Get(t.Context(), "k"); err != cache.ErrNotFound {
					caseUntil(t, "the value ends", func() bool { _, err := tiny.Get(t.Context(), "k"); return err == cache.ErrNotFound })
				}
				in.Idle(t)
				ends("a negative fill", 0)
				if s := tiny.Stats(); s.FillErrors > 0 {
					t.Errorf("%d fills were refused by Redis", s.FillErrors)
				}
			})
		}
	}
}

// caseTTLJitter: jitter shortens by its fraction at most, never lengthens, and can be switched off.
func caseTTLJitter(t *testing.T) {
	keys := make([]string, 200)
	for i := range keys {
		keys[i] = fmt.Sprint(i)
	}
	const slack = 20_000 // ms; for the time that passes until PTTL is asked
	for jitter, least := range map[float64]int64{0.5: 300_000 - slack, 0: 540_000 - slack, cache.Off: 600_000 - slack} {
		in, source := caseOpen(t, caseNamespace(t)), caseRows(keys[:100]...) // the other half is absent
		rows := caseNew(t, in, source.load, cache.Policy{TTL: 10 * time.Minute, NegativeTTL: 10 * time.Minute, Jitter: jitter})
		if _, err := rows.GetMany(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		in.Idle(t)
		shortest, longest := int64(1<<62), int64(0)
		for _, key := range keys {
			ms := casePTTL(t, rows.PhysicalKey(t, key))
			shortest, longest = min(shortest, ms), max(longest, ms)
		}
		if shortest < least || longest > 600_000 {
			t.Errorf("jitter %v: PTTL from %d to %d ms, want %d to 600000", jitter, shortest, longest, least)
		}
		if jitter == 0.5 && longest-shortest < 100_000 {
			t.Errorf("jitter %v: PTTL from %d to %d ms, want them far apart", jitter, shortest, longest)
		}
	}
}

// caseTTLNegativeOff: "not found" is kept nowhere, nor is the lease it was loaded under.
func caseTTLNegativeOff(t *testing.T) {
	in, source := caseOpen(t, caseNamespace(t)), caseRows()
	rows := caseNew(t, in, source.load, cache.Policy{TTL: time.Minute, NegativeTTL: cache.Off})
	for call := 1; call <= 3; call++ {
		if r, err := rows.GetResult(t.Context(), "k"); err != cache.ErrNotFound || r.Tier != cache.TierLoader || source.calls() != call {
			t.Errorf("call %d: %+v, %v, %d loads", call, r, err, source.calls())
		}
		in.Idle(t)
		if caseExists(t, rows.PhysicalKey(t, "k")) != 0 {
			t.Error("something is kept in Redis")
		}
	}
	source.write("k", 1)
	if row, err := rows.Get(t.Context(), "k"); err != nil || row.Version != 1 {
		t.Errorf("got %v, %v after the row was made", row, err)
	}
}

// caseTTLLocalOff: without a local tier nothing is kept in the process, and Redis answers.
func caseTTLLocalOff(t *testing.T) {
	in, source := caseOpen(t, caseNamespace(t)), caseRows("k")
	rows := caseNew(t, in, source.load, cache.Policy{TTL: time.Minute, LocalTTL: cache.Off})
	if err := rows.Set(t.Context(), "k", caseRow{"k", 7}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if r, err := rows.GetResult(t.Context(), "k"); err != nil || r.Value.Version != 7 || r.Tier != cache.TierRedis {
			t.Errorf("got %+v, %v; want it from Redis", r, err)
		}
	}
	if s := rows.Stats(); s.LocalHits+s.LocalFills > 0 {
		t.Errorf("the local tier is off, and counts: %+v", s)
	}
}

// caseTTLLocalEndsWithRedis: what comes from Redis late in its life does not live on in the process after Redis dropped it.
func caseTTLLocalEndsWithRedis(t *testing.T) {
	namespace := caseNamespace(t)
	policy := cache.Policy{TTL: 600 * time.Millisecond, LocalTTL: 600 * time.Millisecond, Jitter: cache.Off}
	seed := caseNew(t, caseOpen(t, namespace), caseRows().load, policy)
	in, source := caseOpen(t, namespace), caseRows("k")
	rows := caseNew(t, in, source.load, policy)
	physical := rows.PhysicalKey(t, "k")
	for try := 1; ; try++ {
		if err := seed.Set(t.Context(), "k", caseRow{"k", 7}); err != nil {
			t.Fatal(err)
		}
		caseUntil(t, "most of the TTL passed", func() bool { return casePTTL(t, physical) < 300 })
		if r, _ := rows.GetResult(t.Context(), "k"); r.Value.Version == 7 && r.Tier == cache.TierRedis {
			break
		}
		if in.Idle(t); try == 20 {
			t.Fatal("each read came after the end of the TTL")
		}
		if err := rows.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	hit := false
	caseUntil(t, "Redis drops the entry", func() bool {
		gone := caseExists(t, physical) == 0
		r, err := rows.GetResult(t.Context(), "k")
		hit = hit || r.Tier == cache.TierLocal && r.Value.Version == 7
		if gone && (err != nil || r.Value.Version != 1) {
			t.Fatalf("Redis has dropped the entry, and Get gives %+v, %v", r, err)
		}
		return gone || r.Value.Version == 1
	})
	if !hit {
		t.Error("the local tier did not answer before that: this proves nothing")
	}
}
