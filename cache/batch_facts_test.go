package cache_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// What Redis and go-redis do to batches.

// holdsKey matches a round trip that holds a key of an instance.
func holdsKey(t testing.TB, i *instance, key string) func(context.Context, redis.Cmder) bool {
	physical := i.PhysicalKey(t, key)
	return func(_ context.Context, cmd redis.Cmder) bool { return holds(cmd, physical) }
}

func TestABatchOutlivesTheLossOfItsScripts(t *testing.T) {
	w := newWorldOn(t, redistest.Start(t)) // of its own: it loses the scripts of all
	i, elsewhere, ctx := w.instance(t, valved), w.instance(t), t.Context()
	keys, values := batchNames(1, 1000), map[string]string{}
	for _, key := range keys {
		values[key] = v1
		w.put(key, v1)
	}
	flush := func() { mustDo(t, w.server.Admin().ScriptFlush(ctx).Err()) }
	// in the middle: between the two round trips of the scripts.
	flushed := func(f func() (string, error)) {
		t.Helper()
		middle := i.valve.before(t, func(ctx context.Context, cmd redis.Cmder) bool {
			return aScript(ctx, cmd) && holdsKey(t, i, keys[700])(ctx, cmd)
		})
		done := start(f)
		middle.await(t, "the second round trip")
		flush()
		middle.open()
		receive(t, "a batch", done).must(t, "")
		i.client.Idle(t)
		if n := i.redisErrors(); n != 0 {
			t.Errorf("%v", i.client.Stats().RedisErrors)
		}
	}
	has := func(want string) {
		t.Helper()
		elsewhere.client.DropLocal()
		got, err := elsewhere.GetMany(ctx, keys)
		if err != nil || len(got) != len(keys) || got[keys[0]] != want || got[keys[999]] != want {
			t.Errorf("elsewhere: %d rows, %q, %v", len(got), got[keys[0]], err)
		}
	}
	invalidate := func() (string, error) { return "", i.Invalidate(ctx, keys...) }
	w.warmUp(t, i)
	before := i.Stats()
	flushed(func() (string, error) { return "", i.SetMany(ctx, values) })
	if n := i.Stats().Fills - before.Fills; n != 1000 {
		t.Errorf("SetMany: %d fills", n)
	}
	has(v1)
	if n := elsewhere.Stats().RedisHits; n != 1000 {
		t.Errorf("SetMany: %d of 1000 keys are in Redis", n)
	}
	flushed(invalidate)
	for _, key := range keys {
		w.put(key, v2)
	}
	before = i.Stats()
	flushed(func() (string, error) { _, err := i.GetMany(ctx, keys); return "", err })
	if s := i.Stats(); s.Fills-before.Fills != 1000 || s.FillErrors != 0 || s.LoaderCalls-before.LoaderCalls != 1 {
		t.Errorf("GetMany: %+v", s)
	}
	has(v2)

	// And wherever the flushes happen to come.
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			case <-time.After(time.Millisecond):
				if err := w.server.Admin().ScriptFlush(ctx).Err(); err != nil {
					stopped <- err
					return
				}
			}
		}
	}()
	for range 5 {
		if _, err := invalidate(); err != nil {
			t.Error(err)
		}
		if got, err := i.GetMany(ctx, keys); err != nil || len(got) != len(keys) {
			t.Errorf("%d rows, %v", len(got), err)
		}
		i.client.Idle(t)
	}
	close(stop)
	mustDo(t, <-stopped)
	if s := i.Stats(); s.FillErrors != 0 || s.Unconfirmed != 0 {
		t.Errorf("%+v", s)
	}
}

func TestABatchSpansTheSlotsOfACluster(t *testing.T) {
	p := newPair(t, cluster(t), mode{local: true})
	keys, nodes, want := batchNames(1, 600), map[*redistest.Server]bool{}, map[string]string{}
	for _, key := range keys {
		p.put(key, "value of "+key)
		want[key] = "value of " + key
		nodes[p.nodeFor(p.a.PhysicalKey(t, key))] = true
	}
	if len(nodes) != 3 {
		t.Errorf("the keys are on %d nodes", len(nodes))
	}
	for _, i := range []*instance{p.a, p.b, p.a} {
		got, err := i.GetMany(t.Context(), keys)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%d rows, %v", len(got), err)
		}
		i.client.Idle(t)
	}
	p.loaded(t, 1)
	if n := p.b.Stats().RedisHits; n != 600 {
		t.Errorf("%d keys came from Redis", n)
	}
	mustDo(t, p.a.Invalidate(t.Context(), keys...))
	mustDo(t, p.a.SetMany(t.Context(), want))
	mustDo(t, p.a.Invalidate(t.Context(), keys...))
	for _, node := range p.nodes() {
		for _, key := range keys {
			if p.nodeFor(p.a.PhysicalKey(t, key)) == node && node.Admin().Exists(t.Context(), p.a.PhysicalKey(t, key)).Val() != 0 {
				t.Fatalf("%s was not deleted", key)
			}
		}
	}
	for _, i := range []*instance{p.a, p.b} {
		if n := i.redisErrors(); n != 0 {
			t.Errorf("errors of Redis: %v", i.client.Stats().RedisErrors)
		}
	}
}

func TestAWrongTypeSpoilsNoNeighbour(t *testing.T) {
	w, ctx, keys := newWorld(t), t.Context(), batchNames(1, 100)
	i, want := w.instance(t, localTTL(cache.Off)), map[string]string{}
	for _, key := range keys {
		want[key] = v1
		w.put(key, v1)
	}
	spoil := func() {
		for n, key := range []string{keys[0], keys[50], keys[99]} {
			physical, admin := i.PhysicalKey(t, key), w.server.Admin()
			mustDo(t, admin.Del(ctx, physical).Err())
			switch n {
			case 0:
				mustDo(t, admin.RPush(ctx, physical, "x").Err())
			case 1:
				mustDo(t, admin.HSet(ctx, physical, "f", "x").Err())
			default:
				mustDo(t, admin.SAdd(ctx, physical, "x").Err())
			}
		}
	}
	mustDo(t, i.SetMany(ctx, want))
	calls := map[string]func() error{
		"GetMany": func() error {
			before := i.Stats()
			got, err := i.GetMany(ctx, keys)
			if s := i.Stats(); !maps.Equal(got, want) || s.RedisHits-before.RedisHits != 97 || s.Loads-before.Loads != 3 {
				t.Errorf("%d rows, %d from Redis, %d loaded", len(got), s.RedisHits-before.RedisHits, s.Loads-before.Loads)
			}
			return err
		},
		"SetMany": func() error { return i.SetMany(ctx, want) },
		"Invalidate": func() error {
			err := i.Invalidate(ctx, keys...)
			w.lacks(t, i, keys[1], v1)
			return errors.Join(err, i.SetMany(ctx, want))
		},
	}
	for name, call := range calls {
		spoil()
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		i.client.Idle(t)
		for _, key := range []string{keys[0], keys[49], keys[50], keys[99]} {
			w.holds(t, i, key, v1)
		}
	}
}

func TestManyKeysGoInBoundedTripsThatCanBeLeft(t *testing.T) {
	const many, part = 10_000, 500
	w, keys := newWorld(t), batchNames(1, 10_000)
	for _, key := range keys {
		w.put(key, v1)
	}
	i := w.instance(t, valved, localTTL(cache.Off))
	w.warmUp(t, i)
	trips := func(what string, want int, f func() error) {
		t.Helper()
		i.client.Idle(t)
		before := i.client.Stats().RoundTrips
		mustDo(t, f())
		i.client.Idle(t)
		if n := int(i.client.Stats().RoundTrips - before); n != want {
			t.Errorf("%s: %d keys went in %d round trips, want %d", what, many, n, want)
		}
	}
	get := func(ctx context.Context) (map[string]string, error) {
		return i.GetMany(ctx, slices.Concat(keys, keys[:100], keys[:1]))
	}
	mustGet := func() error {
		got, err := get(t.Context())
		if len(got) != many || got[keys[many-1]] != v1 {
			err = errors.Join(err, fmt.Errorf("%d rows", len(got)))
		}
		return err
	}
	trips("a cold GetMany", 3*many/part, mustGet)
	trips("a GetMany from Redis", many/part, mustGet)
	trips("an Invalidate", many/part, func() error { return i.Invalidate(t.Context(), slices.Concat(keys, keys)...) })
	if n := w.loads(); n != 2 { // and the one that warmed up
		t.Errorf("%d calls of the loader", n)
	}
	mustDo(t, mustGet())
	i.client.Idle(t)

	before := i.client.Stats().RoundTrips
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	second := i.valve.before(t, holdsKey(t, i, keys[part]))
	left := caseGo(func() (map[string]string, error) { return get(ctx) })
	second.await(t, "the second round trip")
	cancel()
	if a := caseTake(t, left); !errors.Is(a.err, context.Canceled) {
		t.Errorf("a GetMany that was left: %d rows, %v", len(a.value), a.err)
	}
	second.open()
	i.client.Idle(t)
	if n := i.client.Stats().RoundTrips - before; n > 4 { // one or two may have begun
		t.Errorf("%d round trips, though nobody waits since the second", n)
	}

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	second = i.valve.before(t, holdsKey(t, i, keys[part]))
	dropped := caseGo(func() (struct{}, error) { return struct{}{}, i.Invalidate(ctx, keys...) })
	second.await(t, "the second round trip")
	cancel()
	var failed *cache.KeyErrors[string]
	if a := caseTake(t, dropped); !errors.Is(a.err, cache.ErrUnconfirmed) || !errors.As(a.err, &failed) || len(failed.ByKey) != many {
		t.Errorf("an Invalidate that was left: %.200v", a.err)
	}
	second.open() // it goes on behind
	i.client.Idle(t)
	if n := i.Stats().UnconfirmedKeys; n != 0 {
		t.Errorf("%d keys are not known to be deleted", n)
	}
	w.lacks(t, i, keys[many-1], v1)
}
