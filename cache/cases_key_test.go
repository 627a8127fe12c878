package cache_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

func TestC29_DifferentKeysNeverMeet(t *testing.T) {
	t.Run("NamesAndKeys", caseNamesAndKeys)
	t.Run("BadKeys", caseBadKeys)
	t.Run("KeyHook", caseKeyHook)
	t.Run("OneHash", caseOneHash)
	t.Run("Integers", caseIntegerKeys)
}

// caseOne is one key of one cache.
type caseOne struct {
	cache *cache.Cache[string, string]
	key   string
	value string // its own
}

// caseNamesAndKeys: caches whose names and keys could be taken for one another, joined in any way.
func caseNamesAndKeys(t *testing.T) {
	base, ctx := caseNamespace(t), t.Context()
	long := strings.Repeat("x", 10<<10)
	keys := []string{
		"k", "b:k", ":k", "b%3Ak", "c:a:k", "k\x00", "k\n", "k ", "K", "{x}", "x", "%", "\xff", "\xff\xfe", "\u00e9", "e\u0301",
		long + "1", long + "2", long,
	}
	var all []caseOne
	var mu sync.Mutex
	loads := map[string]int{} // by value
	gate := make(chan struct{})
	for namespace, names := range map[string][]string{
		base:                          {"a", "a:b", "a%3Ab", "a:", "{a}", "a\x00\xff"},
		base + ":":                    {"a"},
		base + ":c:a":                 {"b"},
		base + "%3Ac%3Aa":             {"b"},
		strings.TrimSuffix(base, ":"): {"a", ":a"},
	} {
		in := caseOpen(t, namespace)
		for _, name := range names {
			c, err := cache.New(in.Client, name, cache.Single(func(ctx context.Context, key string) (string, error) {
				value := fmt.Sprintf("%q %q %q", namespace, name, key)
				mu.Lock()
				loads[value]++
				mu.Unlock()
				select {
				case <-gate:
					return value, nil
				case <-ctx.Done():
					return "", ctx.Err()
				}
			}), cache.Policy{TTL: time.Minute, LeaseTTL: time.Minute, LocalEntries: 1000})
			if err != nil {
				t.Fatalf("name %q: %v", name, err)
			}
			t.Cleanup(func() { in.Idle(t) })
			for _, key := range keys {
				all = append(all, caseOne{c, key, fmt.Sprintf("%q %q %q", namespace, name, key)})
			}
		}
	}
	loaded := func() int { mu.Lock(); defer mu.Unlock(); return len(loads) }

	// In flight: nobody joins another's flight, or waits for another's lease.
	var answers []<-chan caseAnswer[string]
	for _, one := range all {
		answers = append(answers, caseGo(func() (string, error) { return one.cache.Get(ctx, one.key) }))
	}
	caseUntil(t, fmt.Sprintf("all %d keys are loading at once", len(all)), func() bool { return loaded() == len(all) })
	close(gate)
	for i, one := range all {
		if a := caseTake(t, answers[i]); a.err != nil || a.value != one.value {
			t.Errorf("loaded: %s got %.100q, %v", one.value, a.value, a.err)
		}
	}
	caseUntil(t, "the fills are done", func() bool {
		return !slices.ContainsFunc(all, func(one caseOne) bool { return one.cache.Stats().InFlight > 0 })
	})

	// In Redis, and from the local tier.
	physical := map[string]string{}
	for _, one := range all {
		p := one.cache.PhysicalKey(t, one.key)
		if other, taken := physical[p]; taken {
			t.Errorf("%s and %s have one physical key", one.value, other)
		}
		physical[p] = one.value
	}
	if n := caseExists(t, slices.Collect(maps.Keys(physical))...); n != len(all) {
		t.Errorf("%d entries in Redis for %d keys", n, len(all))
	}
	checkAll := func(what string, but int) {
		t.Helper()
		for i, one := range all {
			if v, err := one.cache.Get(ctx, one.key); i != but && (err != nil || v != one.value) {
				t.Errorf("%s: %s got %.100q, %v", what, one.value, v, err)
			}
		}
	}
	checkAll("again", -1)
	if total := caseSum(&mu, loads); total != len(all) {
		t.Errorf("%d loads for %d keys", total, len(all))
	}

	// An Invalidate of one leaves the others, in each tier.
	for i, one := range all {
		if err := one.cache.Invalidate(ctx, one.key); err != nil {
			t.Fatalf("%s: %v", one.value, err)
		}
		if caseExists(t, one.cache.PhysicalKey(t, one.key)) != 0 {
			t.Errorf("%s was not dropped", one.value)
		}
		if i%40 == 0 {
			if n := caseExists(t, slices.Collect(maps.Keys(physical))...); n != len(all)-i-1 {
				t.Errorf("%d entries in Redis after %d of %d were dropped, the last of them %s", n, i+1, len(all), one.value)
			}
			before := caseSum(&mu, loads)
			for _, other := range all[i+1:] {
				if v, err := other.cache.Get(ctx, other.key); err != nil || v != other.value {
					t.Errorf("after %s was dropped, %s got %.100q, %v", one.value, other.value, v, err)
				}
			}
			if n := caseSum(&mu, loads) - before; n != 0 {
				t.Errorf("after %s was dropped, %d others had to be loaded", one.value, n)
			}
		}
	}
	for _, p := range []string{"a", "x"} { // the kind stands apart from the name: locks and limits of that name have another
		c, err := cache.New(caseOpen(t, "shared").Client, p, cache.Single(func(context.Context, string) (string, error) { return "", nil }), cache.Policy{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := c.PhysicalKey(t, "k"), "shared:c:"+p+":k"; got != want {
			t.Errorf("physical key %q, want %q", got, want)
		}
	}
}

func caseSum(mu *sync.Mutex, loads map[string]int) (n int) {
	mu.Lock()
	defer mu.Unlock()
	for _, count := range loads {
		n += count
	}
	return n
}

// caseBadKeys: an empty key and one that is too long are refused by each call, and spoil no neighbour.
func caseBadKeys(t *testing.T) {
	in, source, ctx := caseOpen(t, caseNamespace(t)), caseRows(), t.Context()
	rows := caseNew(t, in, source.load, cache.Policy{TTL: time.Minute})
	longest := strings.Repeat("y", cache.MaxKeyBytes)
	source.write(longest, 1)
	source.write("k", 1)
	for what, bad := range map[string]string{"empty": "", "too long": longest + "y"} {
		_, getErr := rows.Get(ctx, bad)
		_, resultErr := rows.GetResult(ctx, bad)
		_, fetchErr := rows.Fetch(ctx, bad, func(context.Context) (caseRow, error) { return caseRow{}, nil })
		_, updateErr := rows.Update(ctx, bad, func(context.Context) (caseRow, error) {
			t.Errorf("%s: Update wrote to the source", what)
			return caseRow{}, nil
		})
		for op, err := range map[string]error{
			"Get": getErr, "GetResult": resultErr, "Fetch": fetchErr, "Update": updateErr,
			"Set": rows.Set(ctx, bad, caseRow{}), "Invalidate": rows.Invalidate(ctx, bad),
		} {
			if !errors.Is(err, cache.ErrBadKey) {
				t.Errorf("%s of a key that is %s: %v, want ErrBadKey", op, what, err)
			}
		}
		all, err := rows.GetMany(ctx, []string{"k", bad, longest})
		var failed *cache.KeyErrors[string]
		if !errors.As(err, &failed) || len(failed.ByKey) != 1 || !errors.Is(failed.ByKey[bad], cache.ErrBadKey) || len(all) != 2 {
			t.Errorf("GetMany with a key that is %s: %d rows, %v", what, len(all), err)
		}
		in.Idle(t)
		if err := rows.Invalidate(ctx, "k", bad); !errors.Is(err, cache.ErrBadKey) || caseExists(t, rows.PhysicalKey(t, "k")) != 0 {
			t.Errorf("Invalidate beside a key that is %s: %v; the good one should be dropped", what, err)
		}
	}
	if slices.Contains(source.asked(), "") {
		t.Error("the loader was asked for the empty key")
	}
}

// caseIntegerKeys: keys of each integer type are told apart to the last bit.
func caseIntegerKeys(t *testing.T) {
	in := caseOpen(t, caseNamespace(t))
	t.Run("int8", caseIntegers[int8](in, -128, -1, 0, 1, 127))
	t.Run("int16", caseIntegers[int16](in, -1<<15, -129, -1, 0, 127, 1<<15-1))
	t.Run("int64", caseIntegers(in, -1<<63, -1<<53-1, -1<<53, -1, 0, 1, 1<<53, 1<<53+1, 1<<63-1))
	t.Run("uint8", caseIntegers[uint8](in, 0, 1, 128, 255))
	t.Run("uint64", caseIntegers[uint64](in, 0, 1, 1<<53, 1<<53+1, 1<<63, 1<<64-1))
}

func caseIntegers[K comparable](in *caseInstance, keys ...K) func(*testing.T) {
	return func(t *testing.T) {
		c, err := cache.New(in.Client, t.Name(), func(_ context.Context, keys []K) (map[K]string, error) {
			all := map[K]string{}
			for _, key := range keys {
				all[key] = fmt.Sprint(key)
			}
			return all, nil
		}, cache.Policy{TTL: time.Minute, LocalEntries: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{"loaded", "local", "in Redis"} {
			all, err := c.GetMany(t.Context(), keys)
			if err != nil || len(all) != len(keys) {
				t.Errorf("%s: %v, %v", what, all, err)
			}
			for key, v := range all {
				if v != fmt.Sprint(key) || !strings.HasSuffix(c.PhysicalKey(t, key), ":"+v) {
					t.Errorf("%s: %v has %q, at %q", what, key, v, c.PhysicalKey(t, key))
				}
			}
			in.Idle(t)
			if what == "local" {
				in.DropLocal()
			}
		}
		if n := c.Stats().Loads; n != uint64(len(keys)) {
			t.Errorf("%d loads of %d keys", n, len(keys))
		}
	}
}
