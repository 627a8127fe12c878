package cache_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestC55_MissingKeySpoilsNoNeighbour(t *testing.T) {
	keys := make([]string, 10)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%d", i+1)
	}
	server := redistest.Start(t) // of its own: all that it sees is counted
	for name, missing := range map[string][]string{
		"first and last": {"k1", "k10"},
		"first":          {"k1"},
		"middle":         {"k5"},
		"last":           {"k10"},
		"all":            keys,
		"none":           {},
	} {
		t.Run(name, func(t *testing.T) {
			namespace, ctx := server.Prefix(t), t.Context()
			source := caseRows(keys...)
			seed := caseNew(t, caseOpenOn(t, server, namespace), caseRows().load, cache.Policy{TTL: time.Minute})
			in := caseOpenOn(t, server, namespace)
			rows := caseNew(t, in, source.load, cache.Policy{TTL: time.Minute})
			version := map[string]int{}
			for _, key := range keys {
				if version[key] = 1; !slices.Contains(missing, key) {
					version[key] = 7
					if err := seed.Set(ctx, key, caseRow{key, 7}); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, what := range []string{"the first batch", "from the local tier", "from Redis"} {
				if what == "from Redis" {
					in.DropLocal()
				}
				commands, trips := in.sent(t, func() {
					all, err := rows.GetMany(ctx, keys)
					if err != nil || len(all) != len(keys) {
						t.Errorf("%s: %d rows, %v", what, len(all), err)
					}
					for key, row := range all {
						if row != (caseRow{key, version[key]}) {
							t.Errorf("%s: %s is %v, want version %d", what, key, row, version[key])
						}
					}
				})
				switch {
				case what == "from the local tier":
					if trips != 0 {
						t.Errorf("%s: %v in %d trips", what, commands, trips)
					}
				case commands["mget"] != 1 || (what == "from Redis" || len(missing) == 0) && (len(commands) != 1 || trips != 1):
					t.Errorf("%s: %v in %d trips, want one MGET in one", what, commands, trips)
				}
			}
			if asked := fmt.Sprint(source.asked()); asked != fmt.Sprint(slices.Sorted(slices.Values(missing))) {
				t.Errorf("the loader was asked for %v, want %v", asked, missing)
			}
			if n := source.calls(); n != min(1, len(missing)) {
				t.Errorf("%d calls of the loader for %d missing keys", n, len(missing))
			}
			if errs := in.Stats().RedisErrors; len(errs) != 0 {
				t.Errorf("a missing key is counted as an error of Redis: %v", errs)
			}
		})
	}

	t.Run("absent and of a wrong type", func(t *testing.T) {
		namespace, ctx := caseNamespace(t), t.Context()
		source := caseRows("k3")
		in := caseOpen(t, namespace)
		rows := caseNew(t, in, source.load, cache.Policy{TTL: time.Minute})
		if err := redistest.Shared(t).Admin().RPush(ctx, rows.PhysicalKey(t, "k1"), "x").Err(); err != nil {
			t.Fatal(err)
		}
		if err := rows.Set(ctx, "k2", caseRow{"k2", 7}); err != nil {
			t.Fatal(err)
		}
		in.DropLocal()
		for range 3 {
			all, err := rows.GetMany(ctx, []string{"k1", "k2", "k3", "k4"}) // k1 and k4 have no row
			if err != nil || len(all) != 2 || all["k2"].Version != 7 || all["k3"].Version != 1 {
				t.Errorf("got %v, %v", all, err)
			}
			in.Idle(t)
			in.DropLocal()
		}
		if asked := fmt.Sprint(source.asked()); asked != "[k1 k3 k4]" {
			t.Errorf("the loader was asked for %s", asked)
		}
	})
}

func TestC57_KeyTwiceInOneBatch(t *testing.T) {
	keys := []string{"a", "b", "a", "c", "b", "a"}
	server := redistest.Start(t) // of its own: all that it sees is counted
	// strict fails on duplicates, and counts the keys.
	strict := func(source *caseSource) cache.Loader[string, caseRow] {
		return func(ctx context.Context, keys []string) (map[string]caseRow, error) {
			for i, key := range keys {
				if slices.Contains(keys[:i], key) {
					return nil, fmt.Errorf("%q twice in %q", key, keys)
				}
			}
			return source.load(ctx, keys)
		}
	}
	for name, loader := range map[string]func(*caseSource) cache.Loader[string, caseRow]{
		"Batch": strict,
		"Single": func(source *caseSource) cache.Loader[string, caseRow] {
			return cache.Single(func(ctx context.Context, key string) (caseRow, error) {
				all, err := source.load(ctx, []string{key})
				return all[key], err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, source, ctx := caseOpenOn(t, server, server.Prefix(t)), caseRows("a", "b", "c", "x", "y"), t.Context()
			rows := caseNew(t, in, loader(source), cache.Policy{TTL: time.Minute})
			check := func(what string, trips int, want map[string]int) {
				t.Helper()
				commands, made := in.sent(t, func() {
					all, err := rows.GetMany(ctx, keys)
					if err != nil || len(all) != 3 {
						t.Errorf("%s: %v, %v", what, all, err)
					}
					for _, key := range keys {
						if all[key] != (caseRow{key, 1}) {
							t.Errorf("%s: %s is %v", what, key, all[key])
						}
					}
				})
				if made != trips || !maps.Equal(commands, want) {
					t.Errorf("%s: %v in %d trips, want %v in %d", what, commands, made, want, trips)
				}
			}
			// So that Redis knows the scripts.
			if _, err := rows.GetMany(ctx, []string{"x", "y"}); err != nil {
				t.Fatal(err)
			}
			in.Idle(t)
			before, warm := len(source.asked()), rows.Stats()

			check("cold", 3, map[string]int{"mget": 1, "set": 3, "evalsha": 3}) // a lease and a fill for each
			if n := rows.Stats().Fills - warm.Fills; n != 3 {
				t.Errorf("%d fills, want 3", n)
			}
			if n := len(source.asked()) - before; n != 3 {
				t.Errorf("the loader was asked %d times, want once for each of three keys: %q", n, source.asked())
			}
			check("from the local tier", 0, map[string]int{})
			in.DropLocal()
			check("from Redis", 1, map[string]int{"mget": 1})

			commands, trips := in.sent(t, func() {
				if err := rows.Invalidate(ctx, keys...); err != nil {
					t.Error(err)
				}
			})
			if n := rows.Stats().Invalidated; n != 3 {
				t.Errorf("%d deletes, want 3: %v in %d trips", n, commands, trips)
			}
			check("after Invalidate", 3, map[string]int{"mget": 1, "set": 3, "evalsha": 3})
			if n := len(source.asked()) - before; n != 6 {
				t.Errorf("the loader was asked %d times, want twice for each of three keys", n)
			}
		})
	}
}

func TestC60_EmptyBatchAsksNobody(t *testing.T) {
	server := redistest.Start(t) // of its own: all that it sees is counted
	in, source, ctx := caseOpenOn(t, server, server.Prefix(t)), caseRows("a", "b"), t.Context()
	rows := caseNew(t, in, source.load, cache.Policy{TTL: time.Minute})
	if _, err := rows.GetMany(ctx, []string{"a", "b", "absent"}); err != nil {
		t.Fatal(err)
	}
	commands, trips := in.sent(t, func() {
		for name, keys := range map[string][]string{"nil": nil, "empty": {}} {
			if all, err := rows.GetMany(ctx, keys); err != nil || all == nil || len(all) != 0 {
				t.Errorf("GetMany(%s): %v, %v; want an empty map", name, all, err)
			}
			if err := rows.Invalidate(ctx, keys...); err != nil {
				t.Errorf("Invalidate(%s): %v", name, err)
			}
		}
		if all, err := rows.GetMany(ctx, []string{"a", "b"}); err != nil || len(all) != 2 {
			t.Errorf("GetMany of what the local tier has: %v, %v", all, err)
		}
		if all, err := rows.GetMany(ctx, []string{"absent"}); err != nil || all == nil || len(all) != 0 {
			t.Errorf("GetMany of what the local tier knows to be absent: %v, %v", all, err)
		}
	})
	if trips != 0 || len(commands) != 0 {
		t.Errorf("Redis was asked: %v in %d trips", commands, trips)
	}
	if source.calls() != 1 {
		t.Errorf("%d calls of the loader, want the first alone", source.calls())
	}
}
