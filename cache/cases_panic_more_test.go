package cache_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// The parts of TestC08 about batches, writes and strange errors.

func casePanicInABatch(t *testing.T) {
	keys := []string{"a", "b", "c"}
	checkWorks := func(t *testing.T, in *caseInstance, rows *cache.Cache[string, caseRow]) {
		t.Helper()
		if n := rows.Stats().InFlight; n != 0 {
			t.Errorf("%d flights are left", n)
		}
		in.Idle(t)
		for _, key := range keys {
			if caseExists(t, rows.PhysicalKey(t, key)) != 0 {
				t.Errorf("a lease of %s is left in Redis", key)
			}
		}
		if all, err := rows.GetMany(t.Context(), keys); err != nil || len(all) != 3 {
			t.Errorf("the next GetMany: %v, %v", all, err)
		}
		if n := rows.Stats().LeaseWaits; n != 0 {
			t.Errorf("%d waits for a lease that nobody holds", n)
		}
	}

	t.Run("Loader", func(t *testing.T) {
		in, source, panics := caseOpen(t, caseNamespace(t)), caseRows(keys...), atomic.Int32{}
		panics.Store(1)
		rows := caseNew(t, in, func(ctx context.Context, keys []string) (map[string]caseRow, error) {
			if panics.Add(-1) >= 0 {
				caseBoom("boom")
			}
			return source.load(ctx, keys)
		}, cache.Policy{TTL: time.Minute})
		all, err := rows.GetMany(t.Context(), keys)
		var failed *cache.KeyErrors[string]
		if !errors.As(err, &failed) || len(failed.ByKey) != 3 || len(all) != 0 {
			t.Fatalf("got %v, %v; want an error for each key", all, err)
		}
		for _, key := range keys {
			caseIsBoom(t, failed.ByKey[key])
		}
		checkWorks(t, in, rows)
	})
	t.Run("Single", func(t *testing.T) {
		in, source, panics := caseOpen(t, caseNamespace(t)), caseRows(keys...), atomic.Int32{}
		panics.Store(1)
		rows := caseNew(t, in, cache.Single(func(ctx context.Context, key string) (caseRow, error) {
			if key == "b" && panics.Add(-1) >= 0 {
				caseBoom("boom")
			}
			all, err := source.load(ctx, []string{key})
			return all[key], err
		}), cache.Policy{TTL: time.Minute})
		all, err := rows.GetMany(t.Context(), keys)
		var failed *cache.KeyErrors[string]
		if !errors.As(err, &failed) || len(failed.ByKey) != 1 || len(all) != 2 {
			t.Fatalf("got %v, %v; want an error for b alone", all, err)
		}
		caseIsBoom(t, failed.ByKey["b"])
		in.Idle(t)
		if all, err := rows.GetMany(t.Context(), keys); err != nil || len(all) != 3 {
			t.Errorf("the next GetMany: %v, %v", all, err)
		}
	})
	t.Run("Codec", func(t *testing.T) {
		in, codec := caseOpen(t, caseNamespace(t)), &caseBoomCodec{}
		codec.appends.Store(3)
		rows := caseNew(t, in, caseRows(keys...).load, cache.Policy{TTL: time.Minute}, cache.Hooks[string, caseRow]{Codec: codec})
		_, err := rows.GetMany(t.Context(), keys)
		var failed *cache.KeyErrors[string]
		if !errors.As(err, &failed) || len(failed.ByKey) != 3 {
			t.Fatalf("got %v, want an error for each key", err)
		}
		for _, key := range keys {
			caseIsBoom(t, failed.ByKey[key])
		}
		checkWorks(t, in, rows)
	})
}

func casePanicInAWrite(t *testing.T) {
	open := func(t *testing.T) (*caseInstance, *cache.Cache[string, caseRow], *caseBoomCodec) {
		in, codec := caseOpen(t, caseNamespace(t)), &caseBoomCodec{}
		rows := caseNew(t, in, caseRows("a").load, cache.Policy{TTL: time.Minute}, cache.Hooks[string, caseRow]{Codec: codec})
		if err := rows.Set(t.Context(), "a", caseRow{"a", 7}); err != nil {
			t.Fatal(err)
		}
		return in, rows, codec
	}
	t.Run("CodecInSet", func(t *testing.T) {
		in, rows, codec := open(t)
		codec.appends.Store(1)
		caseIsBoom(t, rows.Set(t.Context(), "a", caseRow{"a", 8}))
		caseWorks(t, in, rows)
	})
	t.Run("Update", func(t *testing.T) {
		in, rows, _ := open(t)
		func() {
			defer func() {
				if v := recover(); v != "boom" {
					t.Errorf("recovered %v: the panic of write belongs to its caller", v)
				}
			}()
			_, _ = rows.Update(t.Context(), "a", func(context.Context) (caseRow, error) { caseBoom("boom"); return caseRow{}, nil })
		}()
		caseWorks(t, in, rows)
	})
	t.Run("CodecEndsTheGoroutineInUpdate", func(t *testing.T) {
		in := caseOpen(t, caseNamespace(t))
		exits := atomic.Bool{}
		rows := caseNew(t, in, caseRows("a").load, cache.Policy{TTL: time.Minute},
			cache.Hooks[string, caseRow]{Codec: caseExitCodec{&exits}})
		if err := rows.Set(t.Context(), "a", caseRow{"a", 7}); err != nil {
			t.Fatal(err)
		}
		exits.Store(true)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = rows.Update(t.Context(), "a", func(context.Context) (caseRow, error) { return caseRow{"a", 1}, nil })
		}()
		<-ended
		exits.Store(false)
		caseWorks(t, in, rows)
	})
}

// caseExitCodec is JSON that ends its goroutine while it is told to.
type caseExitCodec struct{ exits *atomic.Bool }

func (c caseExitCodec) Append(dst []byte, row caseRow) ([]byte, error) {
	if c.exits.Load() {
		runtime.Goexit()
	}
	raw, err := json.Marshal(row)
	return append(dst, raw...), err
}

func (c caseExitCodec) Decode(data []byte) (row caseRow, err error) {
	err = json.Unmarshal(data, &row)
	return row, err
}

// caseTypedNil: a nil *KeyErrors in an error is not nil, and not a reason to panic inside the cache.
func caseTypedNil(t *testing.T) {
	in, source, calls := caseOpen(t, caseNamespace(t)), caseRows("a"), atomic.Int32{}
	rows := caseNew(t, in, func(ctx context.Context, keys []string) (map[string]caseRow, error) {
		if calls.Add(1) == 1 {
			var none *cache.KeyErrors[string]
			return nil, none
		}
		return source.load(ctx, keys)
	}, cache.Policy{TTL: time.Minute, NegativeTTL: cache.Off})
	if row, err := rows.Get(t.Context(), "a"); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v from a loader that returned nothing", row, err)
	}
	caseWorks(t, in, rows)
}
