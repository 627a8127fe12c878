package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// Faults that were found by looking for them, each with the test that failed first.

var errDatabase = errors.New("the database is away")

// TestAWrappedKeyErrorsFailsAllKeys: a loader that passes on the error of another cache's GetMany knows nothing of any key.
// TestKeyErrorsReadTheSameEachTime, and say how many they do not show.
func TestKeyErrorsReadTheSameEachTime(t *testing.T) {
	failed := &cache.KeyErrors[int]{ByKey: map[int]error{}}
	for key := range 5 {
		failed.ByKey[key] = errors.New("locked")
	}
	for range 20 {
		if got, want := failed.Error(), "5 keys failed; 0: locked; 1: locked; 2: locked; and 2 more"; got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
}

func TestAWrappedKeyErrorsFailsAllKeys(t *testing.T) {
	client := open(t, redistest.Shared(t).Client(t), cache.Config{Namespace: caseNamespace(t)})
	users := mustNew(t, client, "user", func(_ context.Context, keys []string) (map[string]string, error) {
		return map[string]string{"a": "row"}, &cache.KeyErrors[string]{ByKey: map[string]error{"b": errDatabase}}
	}, cache.Policy{TTL: time.Minute})
	profiles := mustNew(t, client, "profile", func(ctx context.Context, keys []string) (map[string]string, error) {
		rows, err := users.GetMany(ctx, keys)
		if err != nil {
			return nil, err
		}
		return rows, nil
	}, cache.Policy{TTL: time.Minute})
	var failed *cache.KeyErrors[string]
	if rows, err := profiles.GetMany(t.Context(), []string{"a", "b"}); len(rows) != 0 || !errors.As(err, &failed) || len(failed.ByKey) != 2 {
		t.Errorf("got %v, %v; want the error for both keys", rows, err)
	}
	client.Idle(t)
	if v, err := profiles.Get(t.Context(), "a"); !errors.Is(err, errDatabase) && v != "row" {
		t.Errorf("a row that exists gives %q, %v after its loader failed", v, err)
	}
}

// TestAPanicIsNeverNotFound, whatever its value wraps.
func TestAPanicIsNeverNotFound(t *testing.T) {
	client := open(t, redistest.Shared(t).Client(t), cache.Config{Namespace: caseNamespace(t)})
	boom := func() { panic(fmt.Errorf("must: %w", cache.ErrNotFound)) }
	many := mustNew(t, client, "many", func(context.Context, []int) (map[int]string, error) { boom(); return nil, nil },
		cache.Policy{TTL: time.Minute})
	single := mustNew(t, client, "single", cache.Single(func(context.Context, int) (string, error) { boom(); return "", nil }),
		cache.Policy{TTL: time.Minute})
	for _, users := range []*cache.Cache[int, string]{many, single} {
		var panicked *cache.PanicError
		if _, err := users.Get(t.Context(), 1); !errors.As(err, &panicked) {
			t.Errorf("%s: Get: %v, want a *PanicError", users.Name(), err)
		}
		if _, err := users.GetMany(t.Context(), []int{1, 2}); !errors.As(err, &panicked) {
			t.Errorf("%s: GetMany: %v, want a *PanicError", users.Name(), err)
		}
	}
}

// TestAnUpdateDoesNotSettleANewerDelete: the source holds 2 since before Invalidate was called, and its delete is lost; an
// Update that committed 1 before that fills later.
func TestAnUpdateDoesNotSettleANewerDelete(t *testing.T) {
	server := redistest.Shared(t)
	proxy := redistest.NewProxy(t, server.Addr())
	rdb := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
	client := open(t, rdb, cache.Config{Namespace: caseNamespace(t), ReadBudget: 2 * time.Second, WriteBudget: 500 * time.Millisecond})
	var source atomic.Int64
	rows := mustNew(t, client, "row", func(_ context.Context, keys []string) (map[string]int64, error) {
		return map[string]int64{keys[0]: source.Load()}, nil
	}, cache.Policy{TTL: time.Minute})
	committed, goOn := make(chan struct{}), make(chan struct{})
	updated := caseGo(func() (int64, error) {
		return rows.Update(t.Context(), "k", func(context.Context) (int64, error) {
			source.Store(1)
			close(committed)
			<-goOn
			return 1, nil
		})
	})
	<-committed
	source.Store(2)
	proxy.DelayMatching(cache.DeleteDigest(), 20*time.Second)
	if err := rows.Invalidate(t.Context(), "k"); !errors.Is(err, cache.ErrUnconfirmed) {
		t.Fatalf("Invalidate: %v, want ErrUnconfirmed", err)
	}
	close(goOn)
	if a := caseTake(t, updated); a.value != 1 || a.err != nil {
		t.Errorf("Update: %+v", a)
	}
	for _, tier := range []string{"with", "without"} {
		if r, err := rows.GetResult(t.Context(), "k"); r.Value != 2 || err != nil {
			t.Errorf("%s a local tier: %+v, %v; want 2", tier, r, err)
		}
		client.DropLocal()
	}
	proxy.DelayMatching(cache.DeleteDigest(), 0)
}

// TestInvalidateHoldsWhileTheClientCloses: a loader that does not heed its context keeps Close waiting.
func TestInvalidateHoldsWhileTheClientCloses(t *testing.T) {
	client, err := cache.Open(redistest.Shared(t).Client(t), cache.Config{Namespace: caseNamespace(t)})
	if err != nil {
		t.Fatal(err)
	}
	var source atomic.Int64
	source.Store(1)
	stuck := make(chan struct{})
	rows := mustNew(t, client, "row", func(_ context.Context, keys []string) (map[string]int64, error) {
		if keys[0] == "stuck" {
			<-stuck
		}
		return map[string]int64{keys[0]: source.Load()}, nil
	}, cache.Policy{TTL: time.Minute})
	if v, err := rows.Get(t.Context(), "k"); v != 1 || err != nil {
		t.Fatal(v, err)
	}
	client.Idle(t)
	waiting := caseGo(func() (int64, error) { return rows.Get(t.Context(), "stuck") })
	caseUntil(t, "the loader is stuck", func() bool { return rows.Stats().LoaderCalls == 2 })
	closed := caseGo(func() (struct{}, error) { return struct{}{}, client.Close() })
	caseTake(t, waiting) // Close has begun
	source.Store(2)
	if err := rows.Invalidate(t.Context(), "k"); err != nil && !errors.Is(err, cache.ErrClosed) {
		t.Errorf("Invalidate: %v", err)
	}
	if v, err := rows.Get(t.Context(), "k"); err == nil && v == 1 {
		t.Error("a Get after Invalidate returned gives the old value")
	}
	if a := caseTake(t, closed); a.err == nil {
		t.Error("Close says nothing of the loader that still runs")
	}
	close(stuck)
}

// TestNobodyWaitsForAWrite: a reader of a key that is being written, in the write itself or elsewhere, loads, and keeps nothing.
func TestNobodyWaitsForAWrite(t *testing.T) {
	namespace := caseNamespace(t)
	rdb := redistest.Shared(t).Client(t)
	here := mustNew(t, open(t, rdb, cache.Config{Namespace: namespace}), "row", loadText[int], cache.Policy{TTL: time.Minute})
	there := mustNew(t, open(t, rdb, cache.Config{Namespace: namespace}), "row", loadText[int], cache.Policy{TTL: time.Minute})
	_, err := here.Update(t.Context(), 1, func(ctx context.Context) (string, error) {
		for _, c := range []*cache.Cache[int, string]{here, there} {
			if r, err := c.GetResult(ctx, 1); r.Value != "a row" || r.Why != cache.WhyWriting || err != nil {
				t.Errorf("while it is written: %+v, %v", r, err)
			}
		}
		return "new", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*cache.Cache[int, string]{here, there} {
		if v, err := c.Get(t.Context(), 1); v != "new" || err != nil {
			t.Errorf("after the write: %q, %v", v, err)
		}
	}
}

// TestABatchWaitsForAnotherProcessAsOne: the keys that another process loads cost one command a key and look, and no load.
func TestABatchWaitsForAnotherProcessAsOne(t *testing.T) {
	const n = 2000
	namespace := caseNamespace(t)
	rdb := redistest.Shared(t).Client(t)
	patient := cache.Config{Namespace: namespace, ReadBudget: 10 * time.Second, WriteBudget: 10 * time.Second}
	gate := make(chan struct{})
	holder := mustNew(t, open(t, rdb, patient), "row", func(ctx context.Context, keys []int) (map[int]string, error) {
		<-gate
		return loadText(ctx, keys)
	}, cache.Policy{TTL: time.Minute, LeaseTTL: time.Minute})
	waiter := mustNew(t, open(t, rdb, patient), "row", loadText[int], cache.Policy{TTL: time.Minute})
	keys := make([]int, n)
	for i := range keys {
		keys[i] = i
	}
	get := func(c *cache.Cache[int, string]) <-chan caseAnswer[int] {
		return caseGo(func() (int, error) { rows, err := c.GetMany(t.Context(), keys); return len(rows), err })
	}
	first := get(holder)
	caseUntil(t, "the load has begun", func() bool { return holder.Stats().LoaderCalls == 1 })
	second := get(waiter)
	caseUntil(t, "the wait has begun", func() bool { return waiter.Stats().LeaseWaits == n })
	close(gate)
	for _, answer := range []<-chan caseAnswer[int]{first, second} {
		if a := caseTake(t, answer); a.value != n || a.err != nil {
			t.Errorf("%d rows, %v; want %d", a.value, a.err, n)
		}
	}
	if a, b := holder.Stats(), waiter.Stats(); a.LoaderCalls != 1 || b.LoaderCalls != 0 {
		t.Errorf("%d and %d calls of the loader, want 1 and 0", a.LoaderCalls, b.LoaderCalls)
	}
}

// TestAKeyThatIsNotEqualToItselfIsRefused: no map would ever give it back.
func TestAKeyThatIsNotEqualToItselfIsRefused(t *testing.T) {
	type point struct{ X float64 }
	client := open(t, redistest.Shared(t).Client(t), cache.Config{Namespace: caseNamespace(t)})
	points := mustNew(t, client, "point", loadText[point], cache.Policy{TTL: time.Minute}, cache.Hooks[point, string]{
		Key: func(dst []byte, p point) ([]byte, error) { return fmt.Append(dst, p.X), nil },
	})
	if _, err := points.Get(t.Context(), point{math.NaN()}); !errors.Is(err, cache.ErrBadKey) {
		t.Errorf("a NaN: %v, want ErrBadKey", err)
	}
	if n := points.Stats().InFlight; n != 0 {
		t.Errorf("%d flights are left", n)
	}
}

// TestACostHookThatPanicsHarmsNobody: the value is served, and not kept here.
func TestACostHookThatPanicsHarmsNobody(t *testing.T) {
	client := open(t, redistest.Shared(t).Client(t), cache.Config{Namespace: caseNamespace(t)})
	rows := mustNew(t, client, "row", loadText[int], cache.Policy{TTL: time.Minute}, cache.Hooks[int, string]{
		Cost: func(string) int64 { panic("boom") },
	})
	if m, err := rows.GetMany(t.Context(), []int{1, 2}); len(m) != 2 || err != nil {
		t.Errorf("got %v, %v", m, err)
	}
	client.Idle(t)
	if s := rows.Stats(); s.Fills != 2 || s.LocalRejected != 2 {
		t.Errorf("%+v; want two fills of Redis, and none here", s)
	}
}

// TestAServerClockThatWasSetForwardIsNoticed: a frame from the future says so, and the local tier keeps it for a second only.
func TestAServerClockThatWasSetForwardIsNoticed(t *testing.T) {
	namespace := caseNamespace(t)
	rdb := redistest.Shared(t).Client(t)
	filler, late := open(t, rdb, cache.Config{Namespace: namespace}), open(t, rdb, cache.Config{Namespace: namespace})
	rows := mustNew(t, filler, "row", loadText[int], cache.Policy{TTL: time.Hour})
	if _, err := rows.Get(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	filler.Idle(t)
	late.ShiftServerClock(-time.Hour) // as if the server had been set forward since
	behind := mustNew(t, late, "row", loadText[int], cache.Policy{TTL: time.Hour})
	if r, err := behind.GetResult(t.Context(), 1); r.Tier != cache.TierRedis || r.Age != 0 || err != nil {
		t.Fatalf("%+v, %v; want a Redis hit of unknown age", r, err)
	}
	caseUntil(t, "the local tier lets go", func() bool {
		r, err := behind.GetResult(t.Context(), 1)
		return err == nil && r.Tier == cache.TierRedis
	})
}
