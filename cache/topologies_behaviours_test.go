package cache_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// behaviours is what TestBehaviour runs: each opens a pair of its own.
var behaviours = []struct {
	name           string
	test           func(*testing.T, *topology, mode)
	bus, databases bool // only where there is a bus, or more than one database
}{
	{name: "tiers", test: behaviourTiers},
	{name: "absent", test: behaviourAbsent},
	{name: "many", test: behaviourMany},
	{name: "invalidate", test: behaviourInvalidate},
	{name: "update", test: behaviourUpdate},
	{name: "set", test: behaviourSet},
	{name: "overtaken load", test: behaviourOvertaken},
	{name: "one load", test: behaviourOneLoad},
	{name: "holder fails", test: behaviourHolderFails},
	{name: "holder closes", test: behaviourHolderCloses},
	{name: "own message", test: behaviourOwnMessage, bus: true},
	{name: "many invalidated", test: behaviourManyInvalidated},
	{name: "gap", test: behaviourGap, bus: true},
	{name: "gap in a load", test: behaviourGapInLoad, bus: true},
	{name: "reconnection", test: behaviourReconnection, bus: true},
	{name: "scripts lost", test: behaviourScriptsLost},
	{name: "two caches", test: behaviourTwoCaches},
	{name: "two namespaces", test: behaviourTwoNamespaces},
	{name: "two databases", test: behaviourTwoDatabases, databases: true},
	{name: "closed", test: behaviourClosed},
}

func behaviourTiers(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m)
	p.put("k", v0)
	p.a.mustGetFrom(t, "k", v0, cache.TierLoader)
	p.a.client.Idle(t)
	p.b.mustGetFrom(t, "k", v0, cache.TierRedis)
	p.settles(t, p.a, "k", v0)
	p.settles(t, p.b, "k", v0)
	p.loaded(t, 1)
	if s := p.a.Stats(); s.Misses != 1 || s.Fills != 1 || s.Loads != 1 || s.LoaderCalls != 1 {
		t.Errorf("the one that loaded counts %+v", s)
	}
	if s := p.b.Stats(); s.Misses != 0 || s.Fills != 0 || s.Loads != 0 || s.RedisHits == 0 {
		t.Errorf("the one that found it in Redis counts %+v", s)
	}
}

func behaviourAbsent(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m, m.meeting)
	p.a.says(t, "k", nothing)
	p.a.client.Idle(t)
	p.a.says(t, "k", nothing)
	p.b.says(t, "k", nothing)
	p.b.says(t, "k", nothing)
	p.loaded(t, 1)
	p.changes(t, p.a, "k", v1)
	p.a.says(t, "k", v1)
	p.b.comes(t, "k", v1)
}

func behaviourMany(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m)
	var all []string
	want := map[string]string{}
	nodes := map[*redistest.Server]bool{}
	for n := range 90 {
		key := fmt.Sprintf("key-%d", n)
		all = append(all, key)
		if n%3 > 0 {
			want[key] = "value of " + key
			p.put(key, want[key])
		}
		if on.nodeFor != nil {
			nodes[on.nodeFor(p.a.PhysicalKey(t, key))] = true
		}
	}
	if on.nodeFor != nil && len(nodes) != len(on.nodes()) {
		t.Errorf("the keys are on %d nodes, want all %d", len(nodes), len(on.nodes()))
	}
	get := func(i *instance, keys []string) map[string]string {
		t.Helper()
		values, err := i.GetMany(t.Context(), keys)
		if err != nil {
			t.Error(err)
		}
		i.client.Idle(t)
		return values
	}
	if got := get(p.a, all[:30]); len(got) != 20 {
		t.Errorf("of the first 30 keys, %d have a value, want 20", len(got))
	}
	p.loaded(t, 1)
	for range 2 { // from Redis and the loader; then from the nearest tier
		if got := get(p.b, append(all, all[:10]...)); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		p.loaded(t, 2)
	}
	if s := p.b.Stats(); s.Loads != 60 || s.LoaderCalls != 1 || s.Fills != 60 || s.RedisHits < 30 {
		t.Errorf("counted %+v, want 60 keys in one call of the loader, and 30 keys found in Redis", s)
	}
}

func behaviourInvalidate(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m, m.meeting)
	p.both(t, "k", v0)
	p.changes(t, p.a, "k", v1)
	p.a.says(t, "k", v1)
	p.b.comes(t, "k", v1)
	p.changes(t, p.b, "k", v2)
	p.b.says(t, "k", v2)
	p.a.comes(t, "k", v2)
}

func behaviourUpdate(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m, m.meeting)
	p.both(t, "k", v0)
	v, err := p.a.Update(t.Context(), "k", func(context.Context) (string, error) {
		p.put("k", v1)
		return v1, nil
	})
	answer{v, err}.must(t, v1)
	p.a.says(t, "k", v1)
	p.b.comes(t, "k", v1)
	p.loaded(t, 1) // the first: an update fills

	refused := errors.New("refused")
	if _, err := p.a.Update(t.Context(), "k", func(context.Context) (string, error) {
		p.put("k", v2) // the commit may have happened all the same
		return "", refused
	}); !errors.Is(err, refused) {
		t.Errorf("Update returned %v, want the writer's error", err)
	}
	p.a.says(t, "k", v2)
	p.b.comes(t, "k", v2)
}

func behaviourSet(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m, m.meeting)
	p.both(t, "k", v0)
	mustDo(t, p.a.Set(t.Context(), "k", v1))
	p.a.says(t, "k", v1)
	p.b.comes(t, "k", v1)
	p.loaded(t, 1)
}

func behaviourManyInvalidated(t *testing.T, on *topology, m mode) {
	const n = 1500
	p := newPair(t, on, m, m.meeting)
	keys := make([]string, n)
	all := func(value string) {
		for i := range keys {
			keys[i] = fmt.Sprintf("key-%d", i)
			p.put(keys[i], value)
		}
	}
	have := func(i *instance, value string) bool {
		t.Helper()
		values, err := i.GetMany(t.Context(), keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if v != value {
				return false
			}
		}
		i.client.Idle(t)
		return len(values) == n
	}
	all(v0)
	if !have(p.a, v0) || !have(p.b, v0) {
		t.Error("not all keys have their first value")
	}
	all(v1)
	mustDo(t, p.a.Invalidate(t.Context(), keys...))
	if !have(p.a, v1) {
		t.Error("the one that invalidated serves old values")
	}
	eventually(t, "new values everywhere", func() bool { return have(p.b, v1) })
	if s := p.a.Stats(); s.Invalidated != n || s.Unconfirmed != 0 || s.Unpublished != 0 {
		t.Errorf("counted %+v", s)
	}
}

func behaviourScriptsLost(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m, m.meeting)
	flush := func() {
		for _, node := range on.nodes() {
			mustDo(t, node.Admin().ScriptFlush(t.Context()).Err())
		}
	}
	p.both(t, "k", v0)
	flush()
	p.changes(t, p.a, "k", v1)
	flush()
	p.a.says(t, "k", v1)
	p.b.comes(t, "k", v1)
	p.a.client.Idle(t)
	flush()
	mustDo(t, p.a.Set(t.Context(), "k", v2))
	p.b.comes(t, "k", v2)
	g := p.hold(t)
	p.put("slow", v3)
	slow := p.a.startGet(t.Context(), "slow")
	g.await(t, "a load")
	flush()
	g.open()
	receive(t, "the slow Get", slow).must(t, v3)
	p.a.client.Idle(t)
	p.b.mustGetFrom(t, "slow", v3, cache.TierRedis)
}

func behaviourClosed(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m, m.meeting)
	p.both(t, "k", v0)
	bus := p.a.client.Bus()
	mustDo(t, p.a.client.Close())
	mustDo(t, p.a.client.Close())
	ctx := t.Context()
	closed := func(call string, err error) {
		t.Helper()
		if !errors.Is(err, cache.ErrClosed) {
			t.Errorf("%s returned %v, want ErrClosed", call, err)
		}
	}
	_, err := p.a.Get(ctx, "k")
	closed("Get", err)
	_, err = p.a.GetMany(ctx, []string{"k", "other"})
	closed("GetMany", err)
	closed("Set", p.a.Set(ctx, "k", v1))
	closed("Invalidate", p.a.Invalidate(ctx, "k"))
	_, err = p.a.Update(ctx, "k", func(context.Context) (string, error) {
		t.Error("the writer ran")
		return v1, nil
	})
	closed("Update", err)
	_, err = cache.New(p.a.client, "late", p.load, p.a.Policy())
	closed("New", err)
	if bus != nil && bus.Live() {
		t.Error("the bus of a closed client says that it hears")
	}
	p.b.says(t, "k", v0)
	p.changes(t, p.b, "k", v1)
	p.b.says(t, "k", v1)
}
