package cache_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// caseBad counts the entries of Redis that could not be used.
func caseBad(s cache.Stats) uint64 {
	return s.BadFrames + s.ForeignFrames + s.WrongTypes + s.DecodeErrors
}

// casePayload is how caseRow stands in Redis.
func casePayload(t *testing.T, row caseRow) string {
	t.Helper()
	raw, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// caseRaw returns the bytes that stand in Redis for a row of version 1.
func caseRaw(t *testing.T, rows *cache.Cache[string, caseRow], key string) string {
	t.Helper()
	if err := rows.Set(t.Context(), key, caseRow{key, 1}); err != nil {
		t.Fatal(err)
	}
	raw, err := redistest.Shared(t).Admin().Get(t.Context(), rows.PhysicalKey(t, key)).Result()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(raw, casePayload(t, caseRow{key, 1})) {
		t.Fatalf("%q does not end with the row", raw)
	}
	return raw
}

func TestC14_EntryThatCannotBeReadIsReplaced(t *testing.T) {
	t.Run("Bytes", caseBadBytes)
	t.Run("OtherLength", caseBadLength)
	t.Run("EveryByteOfTheHeader", caseDamagedHeader)
	t.Run("InABatch", caseBadInABatch)
	t.Run("Write", caseBadUnderAWrite)
}

// casePlant gives a function that puts a string at a physical key.
func casePlant(raw string) func(*redis.Client, string) error {
	return func(rdb *redis.Client, physical string) error {
		return rdb.Set(context.Background(), physical, raw, 10*time.Minute).Err()
	}
}

func caseBadBytes(t *testing.T) {
	namespace, source := caseNamespace(t), caseRows()
	inA := caseOpen(t, namespace)
	a := caseNew(t, inA, source.load, cache.Policy{TTL: time.Minute})
	b := caseNew(t, caseOpen(t, namespace), source.load, cache.Policy{TTL: time.Minute})
	admin, ctx := redistest.Shared(t).Admin(), t.Context()

	good := caseRaw(t, a, "good")
	payload := casePayload(t, caseRow{"good", 1})
	header := strings.TrimSuffix(good, payload)
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(zip, strings.Repeat(good, 10))
	_ = zip.Close()

	typed := func(name string, args ...any) func(*redis.Client, string) error {
		return func(rdb *redis.Client, physical string) error {
			if err := rdb.Do(ctx, append([]any{name, physical}, args...)...).Err(); err != nil {
				return err
			}
			return rdb.Expire(ctx, physical, 10*time.Minute).Err()
		}
	}
	// "good" is the key itself, so that what is right about the bytes is right indeed.
	for name, plant := range map[string]func(*redis.Client, string) error{
		"garbage":                  casePlant("garbage"),
		"a cut header":             casePlant(good[:len(good)/3]),
		"a header alone":           casePlant(header),
		"a cut payload":            casePlant(good[:len(good)-1]),
		"a byte too many":          casePlant(good + "x"),
		"a payload of other shape": casePlant(header + strings.Repeat("x", len(payload))),
		"a payload of other type":  casePlant(header + `"` + strings.Repeat("x", len(payload)-2) + `"`),
		"an empty string":          casePlant(""),
		"a megabyte of zeros":      casePlant(strings.Repeat("\x00", 1<<20)),
		"half of a compressed one": casePlant(zipped.String()[:zipped.Len()/2]),
		"JSON":                     casePlant(`{"Key":"good","Version":9}`),
		"another key's entry":      casePlant(strings.Replace(good, "good", "food", 1)),
		"a list":                   typed("rpush", "x", "y"),
		"a hash":                   typed("hset", "x", "y"),
		"a stream":                 typed("xadd", "*", "x", "y"),
	} {
		t.Run(name, func(t *testing.T) {
			const key = "good"
			physical := a.PhysicalKey(t, key)
			if err := a.Invalidate(ctx, key); err != nil {
				t.Fatal(err)
			}
			if err := b.Invalidate(ctx, key); err != nil {
				t.Fatal(err)
			}
			if err := plant(admin, physical); err != nil {
				t.Fatal(err)
			}
			source.write(key, 2)
			calls, badA, badB := source.calls(), caseBad(a.Stats()), caseBad(b.Stats())

			r, err := a.GetResult(ctx, key)
			if err != nil || r.Value != (caseRow{key, 2}) || r.Tier != cache.TierLoader {
				t.Errorf("on A: %+v, %v; want the row from the loader", r, err)
			}
			inA.Idle(t)
			if r, err := b.GetResult(ctx, key); err != nil || r.Value != (caseRow{key, 2}) || r.Tier != cache.TierRedis {
				t.Errorf("on B: %+v, %v; want the row from Redis", r, err)
			}
			if r, err := a.GetResult(ctx, key); err != nil || r.Tier != cache.TierLocal {
				t.Errorf("on A again: %+v, %v; want a hit", r, err)
			}
			if n := source.calls() - calls; n != 1 {
				t.Errorf("%d loads, want 1", n)
			}
			if n, m := caseBad(a.Stats())-badA, caseBad(b.Stats())-badB; n != 1 || m != 0 {
				t.Errorf("%d bad entries on A, %d on B; want 1 and 0: %+v", n, m, a.Stats())
			}
			if ms := casePTTL(t, physical); ms <= 0 || ms > 60_000 {
				t.Errorf("PTTL is %d: the entry was not replaced by one of ours", ms)
			}
		})
	}
}

// caseBadLength: bytes that the codec would take are not taken when they are too few or too many.
func caseBadLength(t *testing.T) {
	in, ctx := caseOpen(t, caseNamespace(t)), t.Context()
	rows := caseNew(t, in, cache.Single(func(context.Context, string) (string, error) { return "loaded", nil }), cache.Policy{TTL: time.Minute})
	admin, physical := redistest.Shared(t).Admin(), rows.PhysicalKey(t, "k")
	if err := rows.Set(ctx, "k", "value"); err != nil {
		t.Fatal(err)
	}
	raw, err := admin.Get(ctx, physical).Result()
	if err != nil || !strings.HasSuffix(raw, "value") {
		t.Fatalf("%q, %v", raw, err)
	}
	for _, bad := range []string{raw[:len(raw)-1], raw + "s", strings.TrimSuffix(raw, "value")} {
		if err := admin.Set(ctx, physical, bad, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		in.DropLocal()
		for range 2 {
			if v, err := rows.Get(ctx, "k"); err != nil || v != "loaded" {
				t.Errorf("with %d bytes in place of %d: %q, %v", len(bad), len(raw), v, err)
			}
			in.Idle(t)
		}
	}
	if s := rows.Stats(); s.BadFrames != 3 || s.Loads != 3 {
		t.Errorf("after three bad entries: %+v", s)
	}
}

// caseDamagedHeader flips each bit of the header alone. Whatever it was, one load repairs it, if one is needed at all. But for
// the schema: an entry that seems to belong to a newer release is left alone.
func caseDamagedHeader(t *testing.T) {
	namespace, source, ctx := caseNamespace(t), caseRows("k"), t.Context()
	policy := cache.Policy{TTL: 10 * time.Minute, LocalTTL: cache.Off}
	inA := caseOpen(t, namespace)
	a := caseNew(t, inA, source.load, policy)
	b := caseNew(t, caseOpen(t, namespace), source.load, policy)
	admin, physical := redistest.Shared(t).Admin(), a.PhysicalKey(t, "k")
	good := caseRaw(t, a, "k")
	header := len(good) - len(casePayload(t, caseRow{"k", 1}))
	newer, repaired := 0, 0
	for bit := range 8 * header {
		raw := []byte(good)
		raw[bit/8] ^= 1 << (bit % 8)
		if err := admin.Set(ctx, physical, raw, 10*time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		calls, before := source.calls(), a.Stats().NewerSchema
		what := fmt.Sprintf("bit %d of byte %d", bit%8, bit/8)
		r, err := a.GetResult(ctx, "k")
		if err != nil || r.Value != (caseRow{"k", 1}) {
			t.Errorf("%s: %+v, %v; want the row", what, r, err)
			continue
		}
		inA.Idle(t)
		if a.Stats().NewerSchema > before {
			newer++
			continue
		}
		if r, err := b.GetResult(ctx, "k"); err != nil || r.Value != (caseRow{"k", 1}) || r.Tier != cache.TierRedis {
			t.Errorf("%s: after A had it by way of %v (%v), B got %+v, %v; want the row from Redis", what, r.Tier, r.Why, r, err)
		}
		repaired += source.calls() - calls
	}
	if newer != 16 || repaired < 8*30 {
		t.Errorf("%d bits made the entry one of a newer release, %d made it unreadable: this proves little", newer, repaired)
	}
}

func caseBadInABatch(t *testing.T) {
	namespace, source, ctx := caseNamespace(t), caseRows("a", "b", "c", "d"), t.Context()
	in := caseOpen(t, namespace)
	seed := caseNew(t, caseOpen(t, namespace), source.load, cache.Policy{TTL: time.Minute})
	rows := caseNew(t, in, source.load, cache.Policy{TTL: time.Minute})
	keys := []string{"a", "b", "c", "d"}
	for _, key := range []string{"b", "d"} {
		if err := seed.Set(ctx, key, caseRow{key, 7}); err != nil {
			t.Fatal(err)
		}
	}
	admin := redistest.Shared(t).Admin()
	if err := admin.Set(ctx, rows.PhysicalKey(t, "a"), "garbage", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.RPush(ctx, rows.PhysicalKey(t, "c"), "x").Err(); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"the first batch", "from the local tier", "from Redis"} {
		all, err := rows.GetMany(ctx, keys)
		if err != nil || len(all) != 4 || all["a"].Version != 1 || all["b"].Version != 7 || all["c"].Version != 1 || all["d"].Version != 7 {
			t.Errorf("%s: %v, %v", what, all, err)
		}
		in.Idle(t)
		if what == "from the local tier" {
			in.DropLocal()
		}
	}
	if asked := fmt.Sprint(source.asked()); asked != "[a c]" || caseBad(rows.Stats()) != 2 {
		t.Errorf("the loader was asked for %s, want a and c once each; %+v", asked, rows.Stats())
	}
}

// caseBadUnderAWrite: Set and Update replace what cannot be read, and Invalidate removes it.
func caseBadUnderAWrite(t *testing.T) {
	in, ctx := caseOpen(t, caseNamespace(t)), t.Context()
	rows := caseNew(t, in, caseRows().load, cache.Policy{TTL: time.Minute})
	admin, physical := redistest.Shared(t).Admin(), rows.PhysicalKey(t, "k")
	for name, write := range map[string]func() error{
		"Set": func() error { return rows.Set(ctx, "k", caseRow{"k", 7}) },
		"Update": func() error {
			_, err := rows.Update(ctx, "k", func(context.Context) (caseRow, error) { return caseRow{"k", 7}, nil })
			return err
		},
		"Invalidate": func() error { return rows.Invalidate(ctx, "k") },
	} {
		for _, list := range []bool{false, true} {
			err := admin.Del(ctx, physical).Err()
			if err == nil && list {
				err = admin.RPush(ctx, physical, "x").Err()
			} else if err == nil {
				err = admin.Set(ctx, physical, "garbage", 0).Err()
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := write(); err != nil {
				t.Errorf("%s, list %v: %v", name, list, err)
			}
			in.DropLocal()
			if name == "Invalidate" {
				if caseExists(t, physical) != 0 {
					t.Errorf("%s, list %v: something is left", name, list)
				}
			} else if r, err := rows.GetResult(ctx, "k"); err != nil || r.Value.Version != 7 || r.Tier != cache.TierRedis {
				t.Errorf("%s, list %v: %+v, %v; want the new value from Redis", name, list, r, err)
			}
		}
	}
}
