package cache_test

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// caseBox is a value that can be changed through a pointer, a slice and a map.
type caseBox struct {
	Number int
	Slice  []int
	Map    map[string]int
}

func caseNewBox() *caseBox {
	return &caseBox{1, []int{1, 2, 3}, map[string]int{"a": 1}}
}

func (b *caseBox) clone() *caseBox {
	return &caseBox{b.Number, slices.Clone(b.Slice), maps.Clone(b.Map)}
}

func (b *caseBox) scribble() {
	b.Number++
	b.Slice[0]++
	b.Slice = append(b.Slice, 4)
	b.Map["b"]++
}

func TestC13_ChangingAnObjectChangesNothingInTheCache(t *testing.T) {
	t.Run("Clone/pointer", caseOwnCopies(caseNewBox, (*caseBox).clone, (*caseBox).scribble))
	t.Run("Clone/bytes", caseOwnCopies(
		func() []byte { return []byte("abc")[:3:3] },
		slices.Clone[[]byte],
		func(b []byte) { b[0]++; _ = append(b[:1], 'z') },
	))
	t.Run("Clone/map", caseOwnCopies(
		func() map[string]int { return map[string]int{"a": 1} },
		maps.Clone[map[string]int],
		func(m map[string]int) { m["a"]++; m["b"]++ },
	))
	t.Run("CloneGetsValuesOnly", caseCloneGetsValuesOnly)

	// Without Clone what the cache gives out is shared and read-only, as the package says. What it took in stays the giver's.
	t.Run("TakenIn/pointer", caseTakenIn(caseNewBox, (*caseBox).scribble))
	t.Run("TakenIn/bytes", caseTakenIn(func() []byte { return []byte("abc") }, func(b []byte) { b[0]++ }))
	t.Run("TakenIn/map", caseTakenIn(func() map[string]int { return map[string]int{"a": 1} }, func(m map[string]int) { m["a"]++ }))
}

// caseOwnCopies: with Clone, callers may do what they like with what they got, at the same time and wherever it came from. The
// race detector watches.
func caseOwnCopies[V any](fresh func() V, clone func(V) V, scribble func(V)) func(*testing.T) {
	return func(t *testing.T) {
		namespace, hooks := caseNamespace(t), cache.Hooks[string, V]{Clone: clone}
		in := caseOpen(t, namespace)
		letGo := make(chan struct{})
		rows := caseNew(t, in, cache.Single(func(ctx context.Context, _ string) (V, error) {
			select {
			case <-letGo:
			case <-ctx.Done():
			}
			return fresh(), nil
		}), cache.Policy{TTL: time.Minute}, hooks)
		check := func(what string, got V, err error) {
			t.Helper()
			if err != nil || !reflect.DeepEqual(got, fresh()) {
				t.Errorf("%s: %v, %v; want %v", what, got, err, fresh())
			}
		}
		get := func() (V, error) { return rows.Get(t.Context(), "k") }

		first, second := caseGo(get), caseGo(get)
		caseUntil(t, "two callers share a flight", func() bool { return rows.Stats().Joined == 1 })
		close(letGo)
		a, b := caseTake(t, first), caseTake(t, second)
		check("the first caller", a.value, a.err)
		scribble(a.value)
		check("the second caller of the flight", b.value, b.err)
		scribble(b.value)
		in.Idle(t)

		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for n := range 50 {
					var v V
					var err error
					switch n % 3 {
					case 0:
						v, err = rows.Get(t.Context(), "k")
					case 1:
						var r cache.Result[V]
						r, err = rows.GetResult(t.Context(), "k")
						v = r.Value
					case 2:
						var m map[string]V
						m, err = rows.GetMany(t.Context(), []string{"k"})
						v = m["k"]
					}
					check("a hit", v, err)
					if i%2 == 0 {
						scribble(v)
					}
				}
			})
		}
		all.Wait()

		written, err := rows.Update(t.Context(), "k", func(context.Context) (V, error) { return fresh(), nil })
		check("Update", written, err)
		scribble(written)
		v, err := rows.Get(t.Context(), "k")
		check("after Update", v, err)
		in.DropLocal()
		for _, what := range []string{"from Redis", "after that"} {
			v, err := rows.Get(t.Context(), "k")
			check(what, v, err)
			scribble(v)
		}
	}
}

// caseTakenIn: the objects that a loader, Set or Update handed in can be changed afterwards.
func caseTakenIn[V any](fresh func() V, scribble func(V)) func(*testing.T) {
	return func(t *testing.T) {
		in, loaded := caseOpen(t, caseNamespace(t)), fresh()
		rows := caseNew(t, in, cache.Single(func(context.Context, string) (V, error) { return loaded, nil }), cache.Policy{TTL: time.Minute})
		given := map[string]V{"loaded": loaded, "set": fresh(), "updated": fresh()}
		early, err := rows.Get(t.Context(), "loaded")
		if err != nil {
			t.Fatal(err)
		}
		if err := rows.Set(t.Context(), "set", given["set"]); err != nil {
			t.Fatal(err)
		}
		if _, err := rows.Update(t.Context(), "updated", func(context.Context) (V, error) { return given["updated"], nil }); err != nil {
			t.Fatal(err)
		}
		for _, v := range given {
			scribble(v)
		}
		in.Idle(t)
		if !reflect.DeepEqual(early, fresh()) {
			t.Errorf("what the first Get returned is now %v, want %v", early, fresh())
		}
		for key := range given {
			if r, err := rows.GetResult(t.Context(), key); err != nil || r.Tier != cache.TierLocal || !reflect.DeepEqual(r.Value, fresh()) {
				t.Errorf("%s: %+v, %v; want %v from the local tier", key, r, err, fresh())
			}
		}
	}
}

// caseCloneGetsValuesOnly: Clone is a function of values: where there is none it is not called with a nil pointer.
func caseCloneGetsValuesOnly(t *testing.T) {
	in := caseOpen(t, caseNamespace(t))
	var calledWithNil atomic.Int32
	rows := caseNew(t, in, cache.Single(func(ctx context.Context, key string) (*caseBox, error) {
		if key == "absent" {
			return nil, cache.ErrNotFound
		}
		return nil, context.DeadlineExceeded
	}), cache.Policy{TTL: time.Minute}, cache.Hooks[string, *caseBox]{Clone: func(b *caseBox) *caseBox {
		if b == nil {
			calledWithNil.Add(1)
			return nil // most would panic here
		}
		return b.clone()
	}})
	check := func(what string) {
		t.Helper()
		if n := calledWithNil.Swap(0); n > 0 {
			t.Errorf("%s: Clone was called %d times without a value", what, n)
		}
	}
	_, _ = rows.Get(t.Context(), "absent")
	check("Get of an absent row")
	in.Idle(t)
	_, _ = rows.Get(t.Context(), "absent")
	check("Get of an absent row, a local hit")
	_, _ = rows.GetResult(t.Context(), "absent")
	check("GetResult of an absent row")
	_, _ = rows.Fetch(t.Context(), "absent", func(context.Context) (*caseBox, error) { return nil, cache.ErrNotFound })
	check("Fetch of an absent row")
	_, _ = rows.Get(t.Context(), "failing")
	check("Get that fails")
	_, _ = rows.Get(t.Context(), "")
	check("Get of a bad key")
	_, _ = rows.GetMany(t.Context(), []string{"absent", "failing"})
	check("GetMany")
	_, _ = rows.Update(t.Context(), "failing", func(context.Context) (*caseBox, error) { return nil, context.DeadlineExceeded })
	check("Update that fails")
}
