package cache_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// batchNames returns the keys k<from> to k<to>, all of one length.
func batchNames(from, to int) (keys []string) {
	for i := from; i <= to; i++ {
		keys = append(keys, fmt.Sprintf("k%05d", i))
	}
	return keys
}

// batchWants checks an answer: the rows of some keys, all of one version, and an error that names some others.
func batchWants(t testing.TB, what string, all map[string]caseRow, err error, version int, found []string, failed ...string) {
	t.Helper()
	if len(all) != len(found) {
		t.Errorf("%s: %d rows, want %d", what, len(all), len(found))
	}
	for _, key := range found {
		if all[key] != (caseRow{key, version}) {
			t.Errorf("%s: %s is %v, want version %d", what, key, all[key], version)
		}
	}
	var byKey *cache.KeyErrors[string]
	if errors.As(err, &byKey) != (len(failed) > 0) || (err == nil) != (len(failed) == 0) {
		t.Fatalf("%s: the error %v, want one of the keys %q", what, err, failed)
	}
	if byKey != nil && !slices.Equal(slices.Sorted(maps.Keys(byKey.ByKey)), failed) {
		t.Errorf("%s: the error %v, want one of the keys %q", what, err, failed)
	}
}

// batchFails fails some keys, and no others.
func batchFails(source *caseSource, bad ...string) cache.Loader[string, caseRow] {
	return func(ctx context.Context, keys []string) (map[string]caseRow, error) {
		rows, err := source.load(ctx, keys)
		failed := map[string]error{}
		for _, key := range keys {
			if slices.Contains(bad, key) {
				failed[key] = errDatabase
				delete(rows, key)
			}
		}
		if err == nil && len(failed) > 0 {
			err = &cache.KeyErrors[string]{ByKey: failed}
		}
		return rows, err
	}
}

// batchJoined waits until some more callers share the flights of others.
func batchJoined[V any](t testing.TB, rows *cache.Cache[string, V], n uint64) {
	t.Helper()
	caseUntil(t, fmt.Sprintf("%d joined", n), func() bool { return rows.Stats().Joined == n })
}

func permutations(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, shorter := range permutations(n - 1) {
		for at := range n {
			all = append(all, slices.Insert(slices.Clone(shorter), at, n-1))
		}
	}
	return all
}

func TestC59_AnyOrderOfAnyTiersIsComplete(t *testing.T) {
	namespace, ctx := caseNamespace(t), t.Context()
	policy := cache.Policy{TTL: time.Hour, LocalTTL: time.Hour, NegativeTTL: time.Hour, LocalEntries: 10_000}
	source := caseRows()
	var bad []string
	for n := range 120 {
		for i := range 5 {
			source.write(fmt.Sprintf("%d-%d", i, n), min(1, i+1))
		}
		source.write(fmt.Sprintf("3-%d", n), 0)
		bad = append(bad, fmt.Sprintf("5-%d", n))
	}
	in := caseOpen(t, namespace)
	other := caseNew(t, caseOpen(t, namespace), source.load, policy)
	rows := caseNew(t, in, batchFails(source, bad...), policy)
	for n, order := range permutations(5) {
		key := func(i int) string { return fmt.Sprintf("%d-%d", i, n) }
		keys := make([]string, 5)
		for at, i := range order {
			keys[at] = key(i)
		}
		keys = slices.Insert(keys, n%6, key(5)) // fails
		seed := []string{key(0), key(1), key(3)}
		if _, err := other.GetMany(ctx, seed); err != nil {
			t.Fatal(err)
		}
		near := []string{key(0)} // the others are in Redis alone
		if n%2 == 0 {
			near = append(near, key(3))
		}
		if _, err := rows.GetMany(ctx, near); err != nil {
			t.Fatal(err)
		}
		gate, joined, loads := newGate(t), rows.Stats().Joined, rows.Stats().Loads
		flying := caseGo(func() (caseRow, error) {
			return rows.Fetch(ctx, key(4), func(ctx context.Context) (caseRow, error) { return caseRow{key(4), 1}, gate.pass(ctx) })
		})
		gate.await(t, "a load of another caller")
		many := caseGo(func() (map[string]caseRow, error) { return rows.GetMany(ctx, keys) })
		batchJoined(t, rows, joined+1)
		gate.open()
		a := caseTake(t, many)
		batchWants(t, fmt.Sprint("order ", keys), a.value, a.err, 1, []string{key(0), key(1), key(2), key(4)}, key(5))
		if a := caseTake(t, flying); a.err != nil {
			t.Error(a)
		}
		if n := rows.Stats().Loads - loads; n != 3 {
			t.Errorf("order %q: %d loads, want that of the other caller, one of what no tier has, one that fails", keys, n)
		}
	}
}

func TestC61_BatchWritesHaveATTL(t *testing.T) {
	server := redistest.Start(t) // of its own: its connections are killed
	keys, absent := batchNames(1, 400), batchNames(401, 500)
	source, ctx := caseRows(keys...), t.Context()
	in := caseOpenOn(t, server, server.Prefix(t))
	rows := caseNew(t, in, source.load, cache.Policy{TTL: time.Hour, NegativeTTL: time.Minute, LocalTTL: cache.Off})
	all := append(slices.Clone(keys), absent...)
	// check returns how many of the keys are in Redis: each must end.
	check := func(what string, keys []string, longest time.Duration) (there int) {
		t.Helper()
		in.Idle(t)
		pipe, replies := server.Admin().Pipeline(), make([]*redis.Cmd, len(keys))
		for i, key := range keys {
			replies[i] = pipe.Do(ctx, "pttl", rows.PhysicalKey(t, key))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		for i, reply := range replies {
			switch ms, err := reply.Int64(); {
			case err != nil:
				t.Fatal(err)
			case ms == -1 || ms > longest.Milliseconds():
				t.Fatalf("%s: %s lives for %d ms", what, keys[i], ms)
			case ms > longest.Milliseconds()*8/10: // not a lease
				there++
			}
		}
		return there
	}
	writes := map[string]func() error{
		"GetMany": func() error { _, err := rows.GetMany(ctx, all); return err },
		"SetMany": func() error {
			values := map[string]caseRow{}
			for _, key := range keys {
				values[key] = caseRow{key, 1}
			}
			return rows.SetMany(ctx, values)
		},
	}
	for name, write := range writes {
		if err := errors.Join(rows.Invalidate(ctx, all...), write()); err != nil {
			t.Fatal(err)
		}
		if n := check(name, keys, time.Hour); n != len(keys) {
			t.Errorf("%s: Redis has %d of %d rows", name, n, len(keys))
		}
		if n := check(name, absent, time.Minute); name == "GetMany" && n != len(absent) {
			t.Errorf("%s: Redis knows of %d rows that they are absent, want %d", name, n, len(absent))
		}
		if err := rows.Invalidate(ctx, all...); err != nil {
			t.Fatal(err)
		}
		_, trips := in.sent(t, func() { _ = write() })
		if trips > 3 {
			t.Errorf("%s: %d round trips, want one for each of reads, leases and fills", name, trips)
		}
		for round := range 50 { // a kill in the middle
			caseUntil(t, "the keys are deleted", func() bool { return rows.Invalidate(ctx, all...) == nil })
			in.Idle(t)
			trips := in.Stats().RoundTrips
			written := caseGo(func() (struct{}, error) { return struct{}{}, write() })
			caseUntil(t, "a trip begins", func() bool { return in.Stats().RoundTrips > trips+uint64(round%3) || len(written) > 0 })
			server.KillClients(t, "normal")
			if a := caseTake(t, written); a.err != nil && name == "GetMany" {
				t.Error(a.err)
			}
			check(name+", killed", keys, time.Hour)
			check(name+", killed", absent, time.Minute)
		}
	}
}

func TestC63_OverlappingBatchesShareTheirKeys(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	var mu sync.Mutex
	loads := map[string]int{}
	i := w.instance(t, func(s *setup) {
		s.loader = func(ctx context.Context, keys []string) (map[string]string, error) {
			mu.Lock()
			for _, key := range keys {
				loads[key]++
			}
			mu.Unlock()
			return w.load(ctx, keys)
		}
	})
	all := batchNames(1, 151)
	for _, key := range all {
		w.put(key, key)
	}
	gates := []*gate{w.hold(t), w.hold(t), w.hold(t)}
	many := func(keys ...string) <-chan caseAnswer[map[string]string] {
		return caseGo(func() (map[string]string, error) { return i.GetMany(ctx, keys) })
	}
	took := func(answers <-chan caseAnswer[map[string]string], keys ...string) {
		t.Helper()
		a := caseTake(t, answers)
		if a.err != nil || len(a.value) != len(keys) {
			t.Errorf("%d rows of %d, %v", len(a.value), len(keys), a.err)
		}
		for _, key := range keys {
			if a.value[key] != key {
				t.Errorf("%s is %q", key, a.value[key])
			}
		}
	}
	first := many(all[:100]...)
	gates[0].await(t, "the load of the first")
	second := many(all[49:150]...)
	gates[1].await(t, "the load of the second")
	inFirst, inSecond := i.startGet(ctx, all[74]), i.startGet(ctx, all[119])
	batchJoined(t, i.Cache, 51+2)
	third := many(all[74], all[119], all[150])
	gates[2].await(t, "the load of the third")
	gates[0].open() // who waits for its keys alone goes on
	took(first, all[:100]...)
	receive(t, "the key of the first", inFirst).must(t, all[74])
	gates[1].open()
	took(second, all[49:150]...)
	receive(t, "the key of the second", inSecond).must(t, all[119])
	select {
	case a := <-third:
		t.Errorf("the third returned %v before its own load", a)
	default:
	}
	gates[2].open()
	took(third, all[74], all[119], all[150])
	for _, key := range all {
		if loads[key] != 1 {
			t.Errorf("%s was loaded %d times", key, loads[key])
		}
	}

	// Batches that hold one another's keys, in all orders.
	var callers sync.WaitGroup
	for n := range 8 {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), 63))
			for range 125 {
				var keys []string
				for _, at := range random.Perm(20)[:8] {
					keys = append(keys, all[at])
				}
				if err := i.Invalidate(ctx, keys[0], keys[1]); err != nil {
					t.Error(err)
				}
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				if got, err := i.GetMany(ctx, keys); err != nil || len(got) != 8 || got[keys[7]] != keys[7] {
					t.Errorf("%v, %v", got, err)
				}
				cancel()
			}
		})
	}
	callers.Wait()
}
