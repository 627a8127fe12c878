package cache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

func TestC05_FirstCallersCancelDoesNotFailOthers(t *testing.T) {
	type traceKey struct{}
	policy := cache.Policy{TTL: time.Minute}

	// open makes a cache with a loader that hands out its context, honours it, and waits for the gate.
	open := func(t *testing.T, namespace string) (in *caseInstance, rows *cache.Cache[string, caseRow], source *caseSource, loads chan context.Context) {
		source = caseRows("a", "b", "c")
		loads = make(chan context.Context, 16)
		in = caseOpen(t, namespace)
		rows = caseNew(t, in, func(ctx context.Context, keys []string) (map[string]caseRow, error) {
			loads <- ctx
			return source.load(ctx, keys)
		}, policy)
		return in, rows, source, loads
	}
	checkKept := func(t *testing.T, namespace string, in *caseInstance, rows *cache.Cache[string, caseRow], key string) {
		t.Helper()
		in.Idle(t)
		if r, err := rows.GetResult(t.Context(), key); err != nil || r.Tier != cache.TierLocal {
			t.Errorf("%s afterwards: %+v, %v; it should be cached in the process", key, r, err)
		}
		other := caseNew(t, caseOpen(t, namespace), caseRows().load, policy)
		if r, err := other.GetResult(t.Context(), key); err != nil || r.Tier != cache.TierRedis {
			t.Errorf("%s in another process: %+v, %v; it should be cached in Redis", key, r, err)
		}
	}

	t.Run("Get", func(t *testing.T) {
		namespace := caseNamespace(t)
		in, rows, source, loads := open(t, namespace)
		letGo := source.hold(t)
		ctx1, cancel1 := context.WithCancel(context.WithValue(t.Context(), traceKey{}, "trace"))
		defer cancel1()
		first := caseGo(func() (caseRow, error) { return rows.Get(ctx1, "a") })
		loadCtx := <-loads
		var others []<-chan caseAnswer[caseRow]
		for range 19 {
			others = append(others, caseGo(func() (caseRow, error) { return rows.Get(t.Context(), "a") }))
		}
		caseUntil(t, "19 callers joined", func() bool { return rows.Stats().Joined == 19 })

		cancel1()
		if a := caseTake(t, first); !errors.Is(a.err, context.Canceled) {
			t.Errorf("the first caller got %+v, want context.Canceled", a)
		}
		if err := loadCtx.Err(); err != nil {
			t.Errorf("the loader's context ended with the first caller's: %v", err)
		}
		if loadCtx.Value(traceKey{}) != "trace" {
			t.Error("the loader does not see the values of the first caller's context")
		}
		letGo()
		for i, other := range others {
			if a := caseTake(t, other); a.err != nil || a.value != (caseRow{"a", 1}) {
				t.Errorf("caller %d got %+v", i+2, a)
			}
		}
		if source.calls() != 1 {
			t.Errorf("%d loads, want 1", source.calls())
		}
		checkKept(t, namespace, in, rows, "a")
	})

	t.Run("GetMany", func(t *testing.T) {
		namespace := caseNamespace(t)
		in, rows, source, loads := open(t, namespace)
		letGo := source.hold(t)
		ctx1, cancel1 := context.WithCancel(t.Context())
		defer cancel1()
		first := caseGo(func() (map[string]caseRow, error) { return rows.GetMany(ctx1, []string{"a", "b"}) })
		loadCtx := <-loads
		one := caseGo(func() (caseRow, error) { return rows.Get(t.Context(), "a") })
		many := caseGo(func() (map[string]caseRow, error) { return rows.GetMany(t.Context(), []string{"b", "c"}) })
		<-loads // of c
		caseUntil(t, "both joined", func() bool { return rows.Stats().Joined == 2 })

		cancel1()
		if a := caseTake(t, first); !errors.Is(a.err, context.Canceled) {
			t.Errorf("the first caller got %+v, want context.Canceled", a)
		}
		if err := loadCtx.Err(); err != nil {
			t.Errorf("the loader's context ended with the first caller's: %v", err)
		}
		letGo()
		if a := caseTake(t, one); a.err != nil || a.value != (caseRow{"a", 1}) {
			t.Errorf("who joined by Get got %+v", a)
		}
		if a := caseTake(t, many); a.err != nil || len(a.value) != 2 || a.value["b"] != (caseRow{"b", 1}) || a.value["c"] != (caseRow{"c", 1}) {
			t.Errorf("who joined by GetMany got %+v", a)
		}
		if source.calls() != 2 {
			t.Errorf("%d loads, want 1 of a and b, 1 of c", source.calls())
		}
		checkKept(t, namespace, in, rows, "a")
		checkKept(t, namespace, in, rows, "b")
	})

	t.Run("NobodyIsLeft", func(t *testing.T) {
		in, rows, source, loads := open(t, caseNamespace(t))
		letGo := source.hold(t)
		ctx1, cancel1 := context.WithCancel(t.Context())
		defer cancel1()
		first := caseGo(func() (caseRow, error) { return rows.Get(ctx1, "a") })
		loadCtx := <-loads
		cancel1()
		if a := caseTake(t, first); !errors.Is(a.err, context.Canceled) {
			t.Errorf("the first caller got %+v, want context.Canceled", a)
		}
		caseUntil(t, "the load is cancelled", func() bool { return loadCtx.Err() != nil })
		letGo()
		if row, err := rows.Get(t.Context(), "a"); err != nil || row != (caseRow{"a", 1}) {
			t.Errorf("who came after the last one left got %+v, %v", row, err)
		}
		in.Idle(t)
	})
}

func TestC06_WaiterLeavesAtItsOwnDeadline(t *testing.T) {
	in := caseOpen(t, caseNamespace(t))
	source := caseRows("a", "hit")
	rows := caseNew(t, in, source.load, cache.Policy{TTL: time.Minute})
	if _, err := rows.Get(t.Context(), "hit"); err != nil {
		t.Fatal(err)
	}
	in.Idle(t)
	letGo := source.hold(t)
	first := caseGo(func() (caseRow, error) { return rows.Get(t.Context(), "a") })
	caseUntil(t, "the load began", func() bool { return source.calls() == 2 })

	// The load does not end before all of these have returned.
	deadline := func(t *testing.T) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	t.Run("Get", func(t *testing.T) {
		ctx := deadline(t)
		if a := caseTake(t, caseGo(func() (caseRow, error) { return rows.Get(ctx, "a") })); !errors.Is(a.err, context.DeadlineExceeded) {
			t.Errorf("got %+v, want context.DeadlineExceeded", a)
		}
	})
	t.Run("Fetch", func(t *testing.T) {
		ctx := deadline(t)
		a := caseTake(t, caseGo(func() (caseRow, error) {
			return rows.Fetch(ctx, "a", func(context.Context) (caseRow, error) { return caseRow{}, errors.New("loaded twice") })
		}))
		if !errors.Is(a.err, context.DeadlineExceeded) {
			t.Errorf("got %+v, want context.DeadlineExceeded", a)
		}
	})
	t.Run("GetMany", func(t *testing.T) {
		ctx := deadline(t)
		a := caseTake(t, caseGo(func() (map[string]caseRow, error) { return rows.GetMany(ctx, []string{"a", "hit"}) }))
		var failed *cache.KeyErrors[string]
		if !errors.As(a.err, &failed) || len(failed.ByKey) != 1 || !errors.Is(failed.ByKey["a"], context.DeadlineExceeded) {
			t.Errorf("got the error %v, want context.DeadlineExceeded for a alone", a.err)
		}
		if len(a.value) != 1 || a.value["hit"] != (caseRow{"hit", 1}) {
			t.Errorf("got %+v, want the row that was there", a.value)
		}
	})
	if n := rows.Stats().Joined; n != 3 {
		t.Errorf("%d joined, want 3", n)
	}

	letGo()
	if a := caseTake(t, first); a.err != nil || a.value != (caseRow{"a", 1}) {
		t.Errorf("the first caller got %+v", a)
	}
	if source.calls() != 2 {
		t.Errorf("%d loads of a, want 1", source.calls()-1)
	}
	in.Idle(t)
	if n := rows.Stats().InFlight; n != 0 {
		t.Errorf("%d flights are left", n)
	}
}
