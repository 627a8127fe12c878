package cache_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

func TestC64_OneKeysFailureIsItsOwn(t *testing.T) {
	namespace, ctx, policy := caseNamespace(t), t.Context(), cache.Policy{TTL: time.Minute}
	keys := batchNames(1, 10)
	five, rest := keys[4], slices.Delete(slices.Clone(keys), 4, 5)
	source := caseRows(keys...)
	in, fails := caseOpen(t, namespace), true
	rows := caseNew(t, in, func(ctx context.Context, keys []string) (map[string]caseRow, error) {
		if fails {
			return batchFails(source, five)(ctx, keys)
		}
		return source.load(ctx, keys)
	}, policy)
	open := source.hold(t)
	many := caseGo(func() (map[string]caseRow, error) { return rows.GetMany(ctx, keys) })
	caseUntil(t, "the load begins", func() bool { return source.calls() == 1 })
	bad, good := caseGo(func() (caseRow, error) { return rows.Get(ctx, five) }), caseGo(func() (caseRow, error) { return rows.Get(ctx, keys[5]) })
	batchJoined(t, rows, 2)
	open()
	a := caseTake(t, many)
	batchWants(t, "the batch", a.value, a.err, 1, rest, five)
	if a := caseTake(t, bad); !errors.Is(a.err, errDatabase) {
		t.Errorf("who joined the key that fails got %v", a)
	}
	if a := caseTake(t, good); a.err != nil || a.value != (caseRow{keys[5], 1}) {
		t.Errorf("who joined another key got %v", a)
	}
	in.Idle(t)
	calls := source.calls()
	got, err := rows.GetMany(ctx, rest)
	batchWants(t, "the others from this process", got, err, 1, rest)
	elsewhere := caseNew(t, caseOpen(t, namespace), caseRows().load, policy)
	got, err = elsewhere.GetMany(ctx, rest)
	batchWants(t, "the others from Redis", got, err, 1, rest)
	if n := source.calls(); n != calls {
		t.Error("a key that did not fail was not kept")
	}
	if n := caseExists(t, rows.PhysicalKey(t, five)); n != 0 {
		t.Error("Redis has something of the key that failed")
	}
	fails = false
	if row, err := rows.Get(ctx, five); err != nil || row.Version != 1 {
		t.Errorf("the key that failed, once it does not: %v, %v", row, err)
	}

	// The whole call fails: what the tiers have comes beside the error.
	in.Idle(t)
	down := caseNew(t, caseOpen(t, namespace), func(context.Context, []string) (map[string]caseRow, error) {
		return map[string]caseRow{"cold": {"cold", 1}}, errDatabase
	}, policy)
	if _, err := down.Get(ctx, keys[0]); err != nil { // into the process
		t.Fatal(err)
	}
	for range 2 {
		got, err = down.GetMany(ctx, []string{"cold", keys[0], "cold too", keys[1]})
		batchWants(t, "a database that is down", got, err, 1, keys[:2], "cold", "cold too")
		if !errors.Is(err, errDatabase) || !strings.Contains(err.Error(), "cold too") {
			t.Errorf("the error is %v", err)
		}
	}
	caseUntil(t, "nothing is left in Redis", func() bool {
		return caseExists(t, down.PhysicalKey(t, "cold"), down.PhysicalKey(t, "cold too")) == 0
	})
}
func TestP14_KeysOfABatchDoNotHangTogether(t *testing.T) {
	t.Run("a database that is down fails the followers too", func(t *testing.T) {
		gate := newGate(t)
		rows := caseNew(t, caseOpen(t, caseNamespace(t)), func(ctx context.Context, _ []string) (map[string]caseRow, error) {
			return nil, errors.Join(gate.pass(ctx), errDatabase)
		}, cache.Policy{TTL: time.Minute})
		many := func() (map[string]caseRow, error) { return rows.GetMany(t.Context(), []string{"a", "b"}) }
		first := caseGo(many)
		gate.await(t, "the load")
		second := caseGo(many)
		batchJoined(t, rows, 2)
		gate.open()
		for what, answers := range map[string]<-chan caseAnswer[map[string]caseRow]{"the first": first, "the follower": second} {
			a := caseTake(t, answers)
			batchWants(t, what, a.value, a.err, 1, nil, "a", "b")
			if !errors.Is(a.err, errDatabase) {
				t.Errorf("%s got %v", what, a.err)
			}
		}
	})
	t.Run("lists that look alike share nothing", func(t *testing.T) {
		source := caseRows("a b", "a", "b", "[a b]", "a,b")
		rows := caseNew(t, caseOpen(t, caseNamespace(t)), source.load, cache.Policy{TTL: time.Minute})
		open := source.hold(t)
		lists := [][]string{{"a b"}, {"a", "b"}, {"[a b]"}, {"a,b"}}
		var answers []<-chan caseAnswer[map[string]caseRow]
		for _, keys := range lists {
			answers = append(answers, caseGo(func() (map[string]caseRow, error) { return rows.GetMany(t.Context(), keys) }))
		}
		caseUntil(t, "each is loaded by itself", func() bool { return source.calls() == len(lists) })
		open()
		for i, keys := range lists {
			a := caseTake(t, answers[i])
			batchWants(t, fmt.Sprintf("%q", keys), a.value, a.err, 1, keys)
		}
	})
	t.Run("an invalidated key holds up no other", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.instance(t), w.instance(t)
		keys := batchNames(1, 20)
		for _, key := range keys {
			w.put(key, v1)
		}
		gate := w.hold(t)
		batch := caseGo(func() (map[string]string, error) { return a.GetMany(t.Context(), keys) })
		gate.await(t, "the load")
		w.change(t, a, keys[7], v2)
		gate.open()
		if got := caseTake(t, batch); got.err != nil || len(got.value) != len(keys) || got.value[keys[0]] != v1 {
			t.Errorf("the batch got %d rows, %v", len(got.value), got.err)
		}
		a.client.Idle(t)
		w.lacks(t, a, keys[7], v1)
		want := map[string]string{}
		for _, key := range keys {
			want[key] = v1
		}
		want[keys[7]] = v2
		for what, i := range map[string]*instance{"here": a, "elsewhere": b} {
			if got, err := i.GetMany(t.Context(), keys); err != nil || !maps.Equal(got, want) {
				t.Errorf("%s: %v, %v", what, got, err)
			}
			i.client.Idle(t) // its fill of the key is in Redis before the other asks
		}
		if s := b.Stats(); s.LeaseWaits != 0 || s.RedisHits < 19 {
			t.Errorf("%+v: the others are not in Redis, or are locked", s)
		}
	})
}

func TestLoadersThatAnswerSomethingElse(t *testing.T) {
	keys := []string{"a", "b", "c"}
	row := func(key string) caseRow { return caseRow{key, 1} }
	type answer = map[string]caseRow
	for name, c := range map[string]struct {
		loader cache.Loader[string, caseRow]
		found  []string
		failed []string
	}{
		"too few": {func(context.Context, []string) (answer, error) { return answer{"b": row("b")}, nil }, []string{"b"}, nil},
		"none":    {func(context.Context, []string) (answer, error) { return nil, nil }, nil, nil},
		"too many": {func(context.Context, []string) (answer, error) {
			return answer{"a": row("a"), "b": row("b"), "c": row("c"), "d": row("d")}, nil
		}, keys, nil},
		"foreign ones": {func(context.Context, []string) (answer, error) {
			return answer{"x": row("a"), "y": row("b"), "z": row("c")}, nil
		}, nil, nil},
		"keys it has turned": {func(_ context.Context, keys []string) (answer, error) {
			slices.Reverse(keys)
			return answer{keys[0]: row(keys[0]), "b": row("b"), keys[2]: row(keys[2])}, nil
		}, keys, nil},
		"an error of one key": {func(context.Context, []string) (answer, error) {
			return answer{"a": row("a"), "b": row("b"), "c": row("c")}, &cache.KeyErrors[string]{ByKey: map[string]error{"b": errDatabase}}
		}, []string{"a", "c"}, []string{"b"}},
		"an error of another": {func(context.Context, []string) (answer, error) {
			return answer{"a": row("a"), "b": row("b"), "c": row("c")}, &cache.KeyErrors[string]{ByKey: map[string]error{"x": errDatabase}}
		}, keys, nil},
		"errors and no rows": {func(context.Context, []string) (answer, error) {
			return nil, &cache.KeyErrors[string]{ByKey: map[string]error{"b": errDatabase}}
		}, nil, keys},
		"a panic": {func(context.Context, []string) (answer, error) { panic("boom") }, nil, keys},
	} {
		t.Run(name, func(t *testing.T) {
			in := caseOpen(t, caseNamespace(t))
			rows := caseNew(t, in, c.loader, cache.Policy{TTL: time.Minute})
			mustDo(t, rows.Set(t.Context(), "set", row("set")))
			for _, why := range []string{"cold", "again"} {
				all, err := rows.GetMany(t.Context(), []string{"a", "set", "b", "a", "c"})
				batchWants(t, why, all, err, 1, append([]string{"set"}, c.found...), c.failed...)
				in.Idle(t)
			}
			for _, foreign := range []string{"d", "x", "y", "z"} {
				if caseExists(t, rows.PhysicalKey(t, foreign)) != 0 {
					t.Errorf("the row of %s was kept, which nobody asked for", foreign)
				}
			}
			if name == "foreign ones" { // the rows may be those of the keys, so these are not known to be absent
				if n := caseExists(t, rows.PhysicalKey(t, "a"), rows.PhysicalKey(t, "b"), rows.PhysicalKey(t, "c")); n != 0 {
					t.Errorf("%d keys are kept as absent", n)
				}
			}
			if name == "too few" && rows.Stats().Loads != 3 {
				t.Errorf("%d loads: who is absent was asked for again", rows.Stats().Loads)
			}
		})
	}
}
