package cache_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// caseBoom panics, under a name that can be found in the stack.
func caseBoom(value any) { panic(value) }

// caseBoomCodec is JSON that panics while it is told to.
type caseBoomCodec struct {
	appends, decodes atomic.Int32 // so many calls panic
}

func (c *caseBoomCodec) Append(dst []byte, row caseRow) ([]byte, error) {
	if c.appends.Add(-1) >= 0 {
		caseBoom("boom")
	}
	raw, err := json.Marshal(row)
	return append(dst, raw...), err
}

func (c *caseBoomCodec) Decode(data []byte) (row caseRow, err error) {
	if c.decodes.Add(-1) >= 0 {
		caseBoom("boom")
	}
	err = json.Unmarshal(data, &row)
	return row, err
}

// caseIsBoom checks that an error is the panic of caseBoom("boom").
func caseIsBoom(t *testing.T, err error) {
	t.Helper()
	var panicked *cache.PanicError
	if !errors.As(err, &panicked) {
		t.Errorf("got the error %v, want a *cache.PanicError", err)
		return
	}
	if panicked.Value != "boom" || !bytes.Contains(panicked.Stack, []byte("caseBoom")) {
		t.Errorf("the panic's value is %v, its stack:\n%s", panicked.Value, panicked.Stack)
	}
}

// casePanicking makes a cache of a loader that runs fail in its first call, after 20 callers are waiting for it.
func casePanicking(t *testing.T, fail func(), hooks ...cache.Hooks[string, caseRow]) (*caseInstance, *cache.Cache[string, caseRow], *caseSource) {
	t.Helper()
	in, source := caseOpen(t, caseNamespace(t)), caseRows("a", "b", "c")
	open, calls := make(chan struct{}), atomic.Int32{}
	rows := caseNew(t, in, func(ctx context.Context, keys []string) (map[string]caseRow, error) {
		if calls.Add(1) == 1 {
			select {
			case <-open:
			case <-ctx.Done():
			}
			fail()
		}
		return source.load(ctx, keys)
	}, cache.Policy{TTL: time.Minute}, hooks...)
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		for rows.Stats().Joined < 19 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		close(open)
	}()
	t.Cleanup(func() { <-opened })
	return in, rows, source
}

// caseTwenty calls Get 20 times at once.
func caseTwenty(t *testing.T, rows *cache.Cache[string, caseRow], check func(caseAnswer[caseRow])) {
	t.Helper()
	var callers []<-chan caseAnswer[caseRow]
	for range 20 {
		callers = append(callers, caseGo(func() (caseRow, error) { return rows.Get(t.Context(), "a") }))
	}
	for _, caller := range callers {
		check(caseTake(t, caller))
	}
}

// caseWorks checks that nothing of a panic is left: no flight, no lease, and the next Get loads and keeps.
func caseWorks(t *testing.T, in *caseInstance, rows *cache.Cache[string, caseRow]) {
	t.Helper()
	if n := rows.Stats().InFlight; n != 0 {
		t.Errorf("%d flights are left", n)
	}
	in.Idle(t)
	if caseExists(t, rows.PhysicalKey(t, "a")) != 0 {
		t.Error("a lease is left in Redis")
	}
	if r, err := rows.GetResult(t.Context(), "a"); err != nil || r.Value != (caseRow{"a", 1}) || r.Why != cache.WhyMiss {
		t.Errorf("the next Get: %+v, %v; it should load and keep", r, err)
	}
	in.Idle(t)
	if r, err := rows.GetResult(t.Context(), "a"); err != nil || r.Tier != cache.TierLocal {
		t.Errorf("the Get after that: %+v, %v; it should be a hit", r, err)
	}
}

func TestC08_PanicReachesAllCallersAndWedgesNothing(t *testing.T) {
	t.Run("Loader", func(t *testing.T) {
		in, rows, source := casePanicking(t, func() { caseBoom("boom") })
		caseTwenty(t, rows, func(a caseAnswer[caseRow]) { caseIsBoom(t, a.err) })
		if source.calls() != 0 {
			t.Errorf("%d loads before the next Get", source.calls())
		}
		caseWorks(t, in, rows)
	})
	t.Run("LoaderWithAnError", func(t *testing.T) {
		boom := errors.New("boom")
		in, rows, _ := casePanicking(t, func() { caseBoom(boom) })
		caseTwenty(t, rows, func(a caseAnswer[caseRow]) {
			var panicked *cache.PanicError
			if !errors.As(a.err, &panicked) || !errors.Is(a.err, boom) {
				t.Errorf("got the error %v, want a *cache.PanicError that wraps boom", a.err)
			}
		})
		caseWorks(t, in, rows)
	})
	t.Run("LoaderEndsItsGoroutine", func(t *testing.T) {
		in, rows, _ := casePanicking(t, runtime.Goexit)
		caseTwenty(t, rows, func(a caseAnswer[caseRow]) {
			var panicked *cache.PanicError
			if !errors.As(a.err, &panicked) {
				t.Errorf("got the error %v, want a *cache.PanicError", a.err)
			}
		})
		caseWorks(t, in, rows)
	})
	t.Run("CodecEncodes", func(t *testing.T) {
		codec := &caseBoomCodec{}
		codec.appends.Store(1)
		in, rows, _ := casePanicking(t, func() {}, cache.Hooks[string, caseRow]{Codec: codec})
		caseTwenty(t, rows, func(a caseAnswer[caseRow]) { caseIsBoom(t, a.err) })
		caseWorks(t, in, rows)
	})
	t.Run("CodecReadsBack", func(t *testing.T) {
		codec := &caseBoomCodec{}
		codec.decodes.Store(1)
		in, rows, _ := casePanicking(t, func() {}, cache.Hooks[string, caseRow]{Codec: codec})
		caseTwenty(t, rows, func(a caseAnswer[caseRow]) { caseIsBoom(t, a.err) })
		caseWorks(t, in, rows)
	})
	t.Run("CodecOverBytesFromRedis", casePanicOverRedis)
	t.Run("Batch", casePanicInABatch)
	t.Run("Write", casePanicInAWrite)
	t.Run("LoaderReturnsATypedNil", caseTypedNil)
}

// casePanicOverRedis: a panic while bytes from Redis are decoded is an entry that cannot be read, so the loader answers (C14).
func casePanicOverRedis(t *testing.T) {
	codec := &caseBoomCodec{}
	in, rows, source := casePanicking(t, func() {}, cache.Hooks[string, caseRow]{Codec: codec})
	if err := rows.Set(t.Context(), "a", caseRow{"a", 7}); err != nil {
		t.Fatal(err)
	}
	in.DropLocal()
	codec.decodes.Store(1)
	caseTwenty(t, rows, func(a caseAnswer[caseRow]) {
		if a.err != nil || a.value != (caseRow{"a", 1}) {
			t.Errorf("got %+v, want the loader's row", a)
		}
	})
	if s := rows.Stats(); s.DecodeErrors != 1 || source.calls() != 1 || s.InFlight > 1 {
		t.Errorf("%d loads, %+v", source.calls(), s)
	}
	in.Idle(t)
	if r, err := rows.GetResult(t.Context(), "a"); err != nil || r.Tier != cache.TierLocal || rows.Stats().InFlight != 0 {
		t.Errorf("afterwards: %+v, %v, %d flights", r, err, rows.Stats().InFlight)
	}
}
