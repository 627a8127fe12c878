package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

func TestC10_NotFoundEndsWhenTheRowIsCreated(t *testing.T) {
	const key = "k"
	policy := cache.Policy{TTL: 10 * time.Minute, NegativeTTL: 30 * time.Second}

	// open makes instances A and B that have both learned that there is no such row. What A changes, B's local tier learns by its
	// LocalTTL.
	open := func(t *testing.T) (a, b *cache.Cache[string, caseRow], source *caseSource) {
		namespace := caseNamespace(t)
		source = caseRows()
		inA := caseOpen(t, namespace)
		a = caseNew(t, inA, source.load, policy)
		short := policy
		short.LocalTTL = 200 * time.Millisecond
		b = caseNew(t, caseOpen(t, namespace), source.load, short)

		for i, want := range []cache.Tier{cache.TierLoader, cache.TierLocal} {
			if r, err := a.GetResult(t.Context(), key); !errors.Is(err, cache.ErrNotFound) || r.Tier != want {
				t.Fatalf("call %d on A: %+v, %v; want ErrNotFound from %v", i+1, r, err, want)
			}
			inA.Idle(t)
		}
		if r, err := b.GetResult(t.Context(), key); !errors.Is(err, cache.ErrNotFound) || r.Tier != cache.TierRedis {
			t.Fatalf("on B: %+v, %v; want ErrNotFound from Redis", r, err)
		}
		if source.calls() != 1 {
			t.Fatalf("%d loads, want 1", source.calls())
		}
		if ms := casePTTL(t, a.PhysicalKey(t, key)); ms <= 0 || ms > 30_000 {
			t.Errorf("PTTL of the negative entry is %d, want up to 30000", ms)
		}
		return a, b, source
	}
	seesAtOnce := func(t *testing.T, a *cache.Cache[string, caseRow], version int) {
		t.Helper()
		if row, err := a.Get(t.Context(), key); err != nil || row != (caseRow{key, version}) {
			t.Errorf("on A at once: %v, %v", row, err)
		}
	}
	seesSoon := func(t *testing.T, b *cache.Cache[string, caseRow], version int) {
		t.Helper()
		var row caseRow
		var err error
		caseUntil(t, "B sees the row", func() bool { row, err = b.Get(t.Context(), key); return err == nil })
		if row != (caseRow{key, version}) {
			t.Errorf("on B: %v", row)
		}
	}

	t.Run("Invalidate", func(t *testing.T) {
		a, b, source := open(t)
		source.write(key, 1)
		if err := a.Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		seesAtOnce(t, a, 1)
		seesSoon(t, b, 1)
	})
	t.Run("Set", func(t *testing.T) {
		a, b, source := open(t)
		if err := a.Set(t.Context(), key, caseRow{key, 7}); err != nil {
			t.Fatal(err)
		}
		if r, err := a.GetResult(t.Context(), key); err != nil || r.Value.Version != 7 || r.Tier != cache.TierLocal {
			t.Errorf("on A at once: %+v, %v; want the value from the local tier", r, err)
		}
		if ms := casePTTL(t, a.PhysicalKey(t, key)); ms <= 30_000 {
			t.Errorf("PTTL of the value is %d: that of the negative entry", ms)
		}
		seesSoon(t, b, 7)
		if source.calls() != 1 {
			t.Errorf("%d loads: B should have got the value from Redis", source.calls())
		}
	})
	t.Run("Update", func(t *testing.T) {
		a, b, source := open(t)
		if _, err := a.Update(t.Context(), key, func(context.Context) (caseRow, error) {
			source.write(key, 3)
			return caseRow{key, 3}, nil
		}); err != nil {
			t.Fatal(err)
		}
		seesAtOnce(t, a, 3)
		seesSoon(t, b, 3)
		if source.calls() != 1 {
			t.Errorf("%d loads: the value should have been in both tiers", source.calls())
		}
	})
	t.Run("NegativeTTL", func(t *testing.T) {
		namespace, source := caseNamespace(t), caseRows()
		short := cache.Policy{TTL: 10 * time.Minute, NegativeTTL: 150 * time.Millisecond}
		in := caseOpen(t, namespace)
		a := caseNew(t, in, source.load, short)
		b := caseNew(t, caseOpen(t, namespace), source.load, short)
		if _, err := a.Get(t.Context(), key); !errors.Is(err, cache.ErrNotFound) {
			t.Fatalf("got %v", err)
		}
		in.Idle(t)
		_, _ = b.Get(t.Context(), key)
		source.write(key, 1)
		seesSoon(t, a, 1)
		seesSoon(t, b, 1)
	})
	t.Run("CreatedDuringTheLoad", func(t *testing.T) {
		in, source := caseOpen(t, caseNamespace(t)), caseRows()
		rows := caseNew(t, in, source.load, policy)
		letGo := source.hold(t)
		late := caseGo(func() (caseRow, error) { return rows.Get(t.Context(), key) })
		caseUntil(t, "the load has seen no row", func() bool { return source.calls() == 1 })
		source.write(key, 1)
		if err := rows.Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		letGo()
		caseTake(t, late) // either answer is right: it began before the row was there
		in.Idle(t)
		seesAtOnce(t, rows, 1)
	})
}

func TestC32_OnlyNotFoundIsCached(t *testing.T) {
	ordinary := errors.New("connection reset by the database")
	for name, c := range map[string]struct {
		value map[string]caseRow
		err   error
		is    error
		kept  bool
	}{
		"AnError":                   {err: ordinary, is: ordinary},
		"AWrappedError":             {err: fmt.Errorf("load: %w", ordinary), is: ordinary},
		"DeadlineExceeded":          {err: context.DeadlineExceeded, is: context.DeadlineExceeded},
		"Canceled":                  {err: fmt.Errorf("load: %w", context.Canceled), is: context.Canceled},
		"AValueBesideAnError":       {value: map[string]caseRow{"k": {"k", 9}}, err: ordinary, is: ordinary},
		"AnErrorOfTheKey":           {err: &cache.KeyErrors[string]{ByKey: map[string]error{"k": ordinary}}, is: ordinary},
		"AValueBesideAnErrorOfIt":   {value: map[string]caseRow{"k": {"k", 9}}, err: &cache.KeyErrors[string]{ByKey: map[string]error{"k": ordinary}}, is: ordinary},
		"NotFound":                  {err: cache.ErrNotFound, is: cache.ErrNotFound, kept: true},
		"AWrappedNotFound":          {err: fmt.Errorf("load: %w", cache.ErrNotFound), is: cache.ErrNotFound, kept: true},
		"AValueBesideNotFound":      {value: map[string]caseRow{"k": {"k", 9}}, err: cache.ErrNotFound, is: cache.ErrNotFound, kept: true},
		"NotFoundOfTheKey":          {err: &cache.KeyErrors[string]{ByKey: map[string]error{"k": fmt.Errorf("load: %w", cache.ErrNotFound)}}, is: cache.ErrNotFound, kept: true},
		"AValueBesideNotFoundOfIt":  {value: map[string]caseRow{"k": {"k", 9}}, err: &cache.KeyErrors[string]{ByKey: map[string]error{"k": cache.ErrNotFound}}, is: cache.ErrNotFound, kept: true},
		"MissingInTheAnswer":        {value: map[string]caseRow{}, is: cache.ErrNotFound, kept: true},
		"OnlyRowsThatNobodyAskedOf": {value: map[string]caseRow{"other": {"other", 9}}, is: cache.ErrNotFound}, // the row may be among them
	} {
		t.Run(name, func(t *testing.T) {
			namespace, source := caseNamespace(t), caseRows("k")
			in, calls := caseOpen(t, namespace), 0
			rows := caseNew(t, in, func(ctx context.Context, keys []string) (map[string]caseRow, error) {
				if calls++; calls == 1 {
					return c.value, c.err
				}
				return source.load(ctx, keys)
			}, cache.Policy{TTL: time.Minute})
			other := caseNew(t, caseOpen(t, namespace), caseRows("k").load, cache.Policy{TTL: time.Minute})

			if row, err := rows.Get(t.Context(), "k"); !errors.Is(err, c.is) || row != (caseRow{}) {
				t.Errorf("the first call: %v, %v; want the error alone", row, err)
			}
			in.Idle(t)
			if kept := caseExists(t, rows.PhysicalKey(t, "k")) == 1; kept != c.kept {
				t.Errorf("something is kept in Redis: %v, want %v", kept, c.kept)
			}
			if !c.kept {
				if r, err := rows.GetResult(t.Context(), "k"); err != nil || r.Value.Version != 1 || r.Tier != cache.TierLoader || r.Why != cache.WhyMiss {
					t.Errorf("the second call: %+v, %v; want the row from the loader", r, err)
				}
				return
			}
			if r, err := rows.GetResult(t.Context(), "k"); !errors.Is(err, cache.ErrNotFound) || r.Tier != cache.TierLocal || r.Value != (caseRow{}) {
				t.Errorf("the second call: %+v, %v; want ErrNotFound from the local tier", r, err)
			}
			if r, err := other.GetResult(t.Context(), "k"); !errors.Is(err, cache.ErrNotFound) || r.Tier != cache.TierRedis {
				t.Errorf("in another process: %+v, %v; want ErrNotFound from Redis", r, err)
			}
			if _, err := rows.Get(t.Context(), "other"); !errors.Is(err, cache.ErrNotFound) {
				t.Errorf("a row that nobody asked for: %v; it is not kept", err)
			}
		})
	}
}
