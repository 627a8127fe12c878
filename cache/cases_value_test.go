package cache_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// caseCounting loads the same value for each key, and counts the calls.
func caseCounting[V any](v V) (cache.Loader[string, V], *atomic.Int32) {
	calls := &atomic.Int32{}
	return func(_ context.Context, keys []string) (map[string]V, error) {
		calls.Add(1)
		all := make(map[string]V, len(keys))
		for _, key := range keys {
			all[key] = v
		}
		return all, nil
	}, calls
}

// caseThroughTheTiers loads a value once and checks that each tier of each instance gives want.
func caseThroughTheTiers[V any](value V, want V) func(*testing.T) {
	return func(t *testing.T) {
		namespace, policy := caseNamespace(t), cache.Policy{TTL: time.Minute}
		load, calls := caseCounting(value)
		inA, inB := caseOpen(t, namespace), caseOpen(t, namespace)
		a, b := caseNew(t, inA, load, policy), caseNew(t, inB, load, policy)
		check := func(what string, c *cache.Cache[string, V], key string, tier cache.Tier) {
			t.Helper()
			r, err := c.GetResult(t.Context(), key)
			if err != nil || r.Tier != tier || !reflect.DeepEqual(r.Value, want) {
				t.Errorf("%s: %#v from %v, %v; want %#v from %v", what, r.Value, r.Tier, err, want, tier)
			}
		}
		check("loaded", a, "k", cache.TierLoader)
		inA.Idle(t)
		check("on A", a, "k", cache.TierLocal)
		check("on B", b, "k", cache.TierRedis)
		check("on B", b, "k", cache.TierLocal)
		inA.DropLocal()
		check("on A without its local tier", a, "k", cache.TierRedis)
		for what, c := range map[string]*cache.Cache[string, V]{"A": a, "B": b} {
			all, err := c.GetMany(t.Context(), []string{"k"})
			if got, ok := all["k"]; err != nil || !ok || !reflect.DeepEqual(got, want) {
				t.Errorf("a batch on %s: %#v, %v; want %#v", what, all, err, want)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}

		if err := a.Set(t.Context(), "set", value); err != nil {
			t.Fatal(err)
		}
		check("set", a, "set", cache.TierLocal)
		check("set, on B", b, "set", cache.TierRedis)
		if got, err := a.Update(t.Context(), "updated", func(context.Context) (V, error) { return value, nil }); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("updated: %#v, %v; want %#v", got, err, want)
		}
		check("updated", a, "updated", cache.TierLocal)
		check("updated, on B", b, "updated", cache.TierRedis)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d loads after Set and Update, want 1", n)
		}
	}
}

// caseSame is caseThroughTheTiers for a value that comes back as it is.
func caseSame[V any](value V) func(*testing.T) { return caseThroughTheTiers(value, value) }

func TestC11_EmptyValuesAreValues(t *testing.T) {
	t.Run("string", caseSame(""))
	t.Run("int", caseSame(0))
	t.Run("bool", caseSame(false))
	t.Run("float", caseSame(0.0))
	t.Run("struct{}", caseSame(struct{}{}))
	t.Run("nil pointer", caseSame[*caseRow](nil))
	t.Run("nil pointer to a pointer's target", caseSame[*int](nil))
	t.Run("empty slice", caseSame([]int{}))
	t.Run("nil slice", caseSame[[]int](nil))
	t.Run("empty bytes", caseSame([]byte{}))
	t.Run("nil bytes", caseSame[[]byte](nil))
	t.Run("empty map", caseSame(map[string]int{}))
	t.Run("nil map", caseSame[map[string]int](nil))
	t.Run("nil interface", caseSame[any](nil))
	t.Run("empty string in an interface", caseSame[any](""))
	t.Run("zero time", caseSame(time.Time{}))
	t.Run("expiring under a reader", caseExpiring)
}

// caseExpiring: a value that expires while it is read is there or is missing, and never empty.
func caseExpiring(t *testing.T) {
	const rounds = 1500
	namespace := caseNamespace(t)
	policy := cache.Policy{TTL: time.Millisecond, NegativeTTL: cache.Off}
	nothing := cache.Single(func(context.Context, string) (string, error) { return "", cache.ErrNotFound })
	a, b := caseNew(t, caseOpen(t, namespace), nothing, policy), caseNew(t, caseOpen(t, namespace), nothing, policy)

	var over atomic.Bool
	var hits, misses atomic.Int32
	read := func(c *cache.Cache[string, string]) (struct{}, error) {
		for !over.Load() {
			switch v, err := c.Get(t.Context(), "k"); {
			case err == nil && v == "value":
				hits.Add(1)
			case err == cache.ErrNotFound && v == "":
				misses.Add(1)
			default:
				return struct{}{}, fmt.Errorf("got %q, %w", v, err)
			}
		}
		return struct{}{}, nil
	}
	readers := []<-chan caseAnswer[struct{}]{
		caseGo(func() (struct{}, error) { return read(a) }), caseGo(func() (struct{}, error) { return read(b) }),
	}
	physical := a.PhysicalKey(t, "k")
	for round := range rounds {
		if err := a.Set(t.Context(), "k", "value"); err != nil {
			t.Errorf("round %d: %v", round, err)
			break
		}
		if round%10 == 0 {
			before := misses.Load()
			caseUntil(t, "the value expires", func() bool { return misses.Load() > before || caseExists(t, physical) == 0 })
		}
	}
	over.Store(true)
	for _, reader := range readers {
		if a := caseTake(t, reader); a.err != nil {
			t.Error(a.err)
		}
	}
	if hits.Load() == 0 || misses.Load() == 0 {
		t.Errorf("%d hits, %d misses: this proves nothing", hits.Load(), misses.Load())
	}
}

func TestC16_NoValueChangesOnItsWayThroughTheCache(t *testing.T) {
	const id = 4244637855813302974 // float64 would make it 4244637855813303296
	type user struct {
		ID     int64
		Any    any
		Secret string `json:"-"`
	}
	zoned := time.Date(2026, 3, 29, 1, 59, 59, 123456789, time.FixedZone("", 5*3600+45*60))

	t.Run("int64", caseSame(int64(id)))
	t.Run("uint64", caseSame(uint64(math.MaxUint64)))
	t.Run("any of int64", caseThroughTheTiers[any](int64(id), json.Number("4244637855813302974")))
	t.Run("any of uint64", caseThroughTheTiers[any](uint64(math.MaxUint64), json.Number("18446744073709551615")))
	t.Run("any of a map", caseThroughTheTiers[any](map[string]any{"id": int64(id)}, map[string]any{"id": json.Number("4244637855813302974")}))
	t.Run("map of any", caseThroughTheTiers(
		map[string]any{"id": int64(id), "in": []any{uint64(math.MaxUint64), "text", true, nil, 0.1}},
		map[string]any{"id": json.Number("4244637855813302974"), "in": []any{json.Number("18446744073709551615"), "text", true, nil, json.Number("0.1")}},
	))
	t.Run("struct with any", caseThroughTheTiers(user{id, int64(id), "dropped"}, user{id, json.Number("4244637855813302974"), ""}))
	t.Run("pointer to a struct with any", caseThroughTheTiers(&user{ID: id, Any: int64(id)}, &user{ID: id, Any: json.Number("4244637855813302974")}))
	t.Run("any of a struct", caseThroughTheTiers[any](user{ID: id, Any: "x"}, map[string]any{"ID": json.Number("4244637855813302974"), "Any": "x"}))
	t.Run("time", caseSame(zoned))
	t.Run("any of a time", caseThroughTheTiers[any](zoned, "2026-03-29T01:59:59.123456789+05:45"))
	t.Run("largest float", caseSame(math.MaxFloat64))
	t.Run("smallest float", caseSame(math.SmallestNonzeroFloat64))
	t.Run("bytes", caseSame([]byte("\x00\xff\xfe {\"id\":1}")))
	t.Run("any of bytes", caseThroughTheTiers[any]([]byte("\xff"), "/w=="))
	t.Run("string that is not UTF-8", caseSame("caf\xe9\x00"))
	t.Run("string with replacement character", caseSame([]string{"\ufffd", `\ufffd`, `\\ufffd`, "<&>\u2028"}))

	t.Run("NaN", caseRefused(math.NaN(), func(v float64) bool { return math.IsNaN(v) }))
	t.Run("infinity in any", caseRefused[any](math.Inf(1), func(v any) bool { return v == math.Inf(1) }))
	t.Run("NaN in a map", caseRefused(map[string]float64{"x": math.NaN()}, func(v map[string]float64) bool { return math.IsNaN(v["x"]) }))
	t.Run("not UTF-8 in a slice", caseRefused([]string{"caf\xe9"}, func(v []string) bool { return v[0] == "caf\xe9" }))
	t.Run("not UTF-8 beside an escape", caseRefused([]string{`\`, "\xe9"}, func(v []string) bool { return v[1] == "\xe9" }))
	t.Run("not UTF-8 in any", caseRefused[any]("caf\xe9", func(v any) bool { return v == "caf\xe9" }))
	t.Run("not UTF-8 in a map's key", caseRefused(map[string]int{"\xff": 1}, func(v map[string]int) bool { return v["\xff"] == 1 }))
	t.Run("channel in any", caseRefused[any](make(chan int), func(v any) bool { return v != nil }))
}

// caseRefused checks that a value that the codec cannot hold is served as the loader gave it, and kept nowhere.
func caseRefused[V any](value V, same func(V) bool) func(*testing.T) {
	return func(t *testing.T) {
		namespace := caseNamespace(t)
		load, calls := caseCounting(value)
		in := caseOpen(t, namespace)
		rows := caseNew(t, in, load, cache.Policy{TTL: time.Minute})
		for call := int32(1); call <= 2; call++ {
			if r, err := rows.GetResult(t.Context(), "k"); err != nil || !same(r.Value) || r.Tier != cache.TierLoader || calls.Load() != call {
				t.Errorf("call %d: %+v, %v, %d loads; want the loader's value", call, r, err, calls.Load())
			}
			in.Idle(t)
			if caseExists(t, rows.PhysicalKey(t, "k")) != 0 {
				t.Error("something is kept in Redis")
			}
		}
		if s := rows.Stats(); s.EncodeErrors != 2 || s.LeaseWaits != 0 {
			t.Errorf("after two loads: %+v", s)
		}

		var good V
		if err := rows.Set(t.Context(), "k", good); err != nil {
			t.Fatal(err)
		}
		if err := rows.Set(t.Context(), "k", value); !errors.Is(err, cache.ErrCodec) {
			t.Errorf("Set: %v, want ErrCodec", err)
		}
		if r, err := rows.GetResult(t.Context(), "k"); err != nil || !same(r.Value) || r.Tier != cache.TierLoader {
			t.Errorf("after Set was refused: %+v, %v; the old value should be gone", r, err)
		}
		if got, err := rows.Update(t.Context(), "k", func(context.Context) (V, error) { return value, nil }); !errors.Is(err, cache.ErrCodec) || !same(got) {
			t.Errorf("Update: %v, %v; want the value beside ErrCodec", got, err)
		}
	}
}
