package cache_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// TestCommandsPerGet: what a Get sends to Redis, exactly.
func TestCommandsPerGet(t *testing.T) {
	server := redistest.Start(t) // of its own: the server's view counts all clients
	a := open(t, server.Client(t), cache.Config{Namespace: server.Prefix(t)})
	users := mustNew(t, a, "user", loadText[int], cache.Policy{TTL: time.Hour})
	ctx := context.Background()
	expect := func(what string, trips int, want map[string]int, f func() error) {
		t.Helper()
		before := a.Stats().RoundTrips
		seen := server.Commands(t, func() {
			if err := f(); err != nil {
				t.Error(err)
			}
			a.Idle(t)
		})
		if made := int(a.Stats().RoundTrips - before); !maps.Equal(seen, want) || made != trips {
			t.Errorf("%s: the server saw %v in %d round trips, want %v in %d", what, seen, made, want, trips)
		}
	}
	get := func(key int) func() error {
		return func() error { _, err := users.Get(ctx, key); return err }
	}
	update := func() error {
		_, err := users.Update(ctx, 1, func(context.Context) (string, error) { return "new", nil })
		return err
	}
	if err := errors.Join(get(0)(), update(), users.Invalidate(ctx, 0, 1), get(0)()); err != nil { // teaches the scripts to the server
		t.Fatal(err)
	}
	a.Idle(t)

	expect("a miss", 3, map[string]int{"get": 1, "set": 1, "evalsha": 1}, get(1))
	expect("a local hit", 0, map[string]int{}, get(1))
	a.DropLocal()
	expect("a Redis hit", 1, map[string]int{"get": 1}, get(1))
	expect("an invalidation", 1, map[string]int{"evalsha": 1}, func() error { return users.Invalidate(ctx, 1) })
	expect("an update", 2, map[string]int{"evalsha": 2}, update)
	expect("a batch with a local hit, a Redis hit and 2 misses", 3, map[string]int{"mget": 1, "set": 2, "evalsha": 2}, func() error {
		_, err := users.GetMany(ctx, []int{0, 1, 10, 11, 11, 1}) // 1 is local, 0 and the new ones are not
		return err
	})
	if err := server.Admin().ScriptFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	expect("a miss on a server that lost the scripts", 4, map[string]int{"get": 1, "set": 1, "evalsha": 1, "eval": 1}, get(2))
}

// open opens a client that the end of the test closes, and waits until it has looked at Redis. It has no bus, unless config says
// how often it beats.
func open(t *testing.T, rdb redis.UniversalClient, config cache.Config) *cache.Client {
	t.Helper()
	if config.Heartbeat == 0 {
		config.Heartbeat = cache.Off
	}
	client, err := cache.Open(rdb, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !errors.Is(err, cache.ErrUnconfirmed) { // of a test that broke Redis
			t.Error(err)
		}
	})
	client.Idle(t)
	return client
}

func mustNew[K comparable, V any](t *testing.T, client *cache.Client, name string, loader cache.Loader[K, V], policy cache.Policy, hooks ...cache.Hooks[K, V]) *cache.Cache[K, V] {
	t.Helper()
	c, err := cache.New(client, name, loader, policy, hooks...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// loadText finds a row for every key.
func loadText[K comparable](_ context.Context, keys []K) (map[K]string, error) {
	rows := make(map[K]string, len(keys))
	for _, key := range keys {
		rows[key] = "a row"
	}
	return rows, nil
}
