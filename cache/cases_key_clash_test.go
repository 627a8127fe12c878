package cache_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// The parts of TestC29 about keys that clash in a hook or in their hash.

// caseKeyHook: a hook that gives back a slice of its own, and does not append, mixes no caches up and gets nothing overwritten.
func caseKeyHook(t *testing.T) {
	in, ctx := caseOpen(t, caseNamespace(t)), t.Context()
	type id struct{ bytes *[4]byte }
	one, two := id{&[4]byte{'o', 'n', 'e', '!'}}, id{&[4]byte{'t', 'w', 'o', '!'}}
	hooks := cache.Hooks[id, string]{Key: func(_ []byte, k id) ([]byte, error) { return k.bytes[:3], nil }}
	var caches []*cache.Cache[id, string]
	for _, name := range []string{"left", "right"} {
		c, err := cache.New(in.Client, name, cache.Single(func(_ context.Context, k id) (string, error) {
			return name + " " + string(k.bytes[:]), nil
		}), cache.Policy{TTL: time.Minute, LocalEntries: 1000}, hooks)
		if err != nil {
			t.Fatal(err)
		}
		caches = append(caches, c)
	}
	defer redistest.Shared(t).Admin().Del(context.Background(), "one", "two") // where a key without prefix would stand
	for range 2 {
		for _, c := range caches {
			for _, k := range []id{one, two} {
				v, err := c.Get(ctx, k)
				if want := c.Name() + " " + string(k.bytes[:]); !errors.Is(err, cache.ErrBadKey) && (err != nil || v != want) {
					t.Errorf("%s: got %q, %v; want %q", c.Name(), v, err, want)
				}
				in.Idle(t)
			}
		}
		in.DropLocal()
	}
	if string(one.bytes[:]) != "one!" || string(two.bytes[:]) != "two!" {
		t.Errorf("the user's bytes were overwritten: %q, %q", one.bytes[:], two.bytes[:])
	}
	if caseExists(t, "one", "two") != 0 {
		t.Error("entries stand outside the namespace")
	}
}

// caseCollision returns two different keys with the same xxhash. Of the 64 bytes of a key, the hash takes in the eight at 16 and
// then the eight at 48, by steps that can be undone: so the second eight can be chosen to make up for any first.
func caseCollision(first, second uint64) (string, string) {
	const prime1, prime2 = 11400714785074694791, 14029467366897019727
	after := func(first uint64) uint64 { return bits.RotateLeft64(first*prime2, 31) * prime1 }
	inverse := uint64(prime2)
	for range 6 { // Newton: each step doubles the bits that are right
		inverse *= 2 - prime2*inverse
	}
	key := func(at16, at48 uint64) string {
		raw := [64]byte{}
		binary.LittleEndian.PutUint64(raw[16:], at16)
		binary.LittleEndian.PutUint64(raw[48:], at48)
		return string(raw[:])
	}
	return key(first, 0), key(second, (after(first)-after(second))*inverse)
}

// caseOneHash: keys that share a hash share nothing else.
func caseOneHash(t *testing.T) {
	one, two := caseCollision(1, 2)
	if one == two || xxhash.Sum64String(one) != xxhash.Sum64String(two) {
		t.Fatal("these are not two keys with one hash")
	}
	in, ctx := caseOpen(t, caseNamespace(t)), t.Context()
	values, loading, letGo := map[string]string{one: "one", two: "two"}, atomic.Int32{}, make(chan struct{})
	c := caseNew(t, in, cache.Single(func(ctx context.Context, key string) (string, error) {
		loading.Add(1)
		select {
		case <-letGo:
			return values[key], nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}), cache.Policy{TTL: time.Minute})
	check := func(what string, loads int32) {
		t.Helper()
		for _, key := range []string{one, two, two, one} {
			if v, err := c.Get(ctx, key); err != nil || v != values[key] {
				t.Errorf("%s: got %q, %v; want %q", what, v, err, values[key])
			}
		}
		if n := loading.Load(); n != loads {
			t.Errorf("%s: %d loads, want %d", what, n, loads)
		}
	}

	first, second := caseGo(func() (string, error) { return c.Get(ctx, one) }), caseGo(func() (string, error) { return c.Get(ctx, two) })
	caseUntil(t, "both are loading", func() bool { return loading.Load() == 2 })
	close(letGo)
	if a := caseTake(t, first); a.err != nil || a.value != "one" {
		t.Errorf("loaded: got %v, want one", a)
	}
	if a := caseTake(t, second); a.err != nil || a.value != "two" {
		t.Errorf("loaded: got %v, want two", a)
	}
	in.Idle(t)
	check("from the local tier", 2)
	in.DropLocal()
	check("from Redis", 2)
	values[one] = "new"
	if err := c.Set(ctx, one, "new"); err != nil {
		t.Fatal(err)
	}
	check("after a Set of one", 2)
	if err := c.Invalidate(ctx, two); err != nil {
		t.Fatal(err)
	}
	check("after the other was dropped", 3)
}
