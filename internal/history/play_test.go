package history

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/invalidation"
)

// The settings of all instances: short, so that everything ends and is renewed often.
const (
	heartbeat   = 30 * time.Millisecond
	readBudget  = 60 * time.Millisecond
	writeBudget = 120 * time.Millisecond
	degradedTTL = 300 * time.Millisecond
	ttl         = 2 * time.Second  // short, so that values stand in, and are refreshed
	staleTTL    = 20 * time.Second // much longer than the bound: what is wrong stays wrong
	softTimeout = time.Millisecond // a load takes up to three
	// bound is the longest way to learn of something: the silence of three beats, then what was taken in while the bus was
	// known to be deaf; the rest is for a busy machine and for the pause of a whole process.
	bound = 3*heartbeat + degradedTTL + 2*time.Second
)

const (
	cacheName = "rows"
	marksName = "marks" // what carries the word that the messages before it were handled
)

// loaderDelay is how long a load takes at most beyond the query.
const loaderDelay = 3 * time.Millisecond

// database is the source of all instances: a Redis of its own, which never fails.
type database struct{ rdb *redis.Client }

func (d database) load(ctx context.Context, keys []string) (map[string]string, error) {
	values, err := d.rdb.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, err
	}
	rows := map[string]string{}
	for i, v := range values {
		if text, ok := v.(string); ok {
			rows[keys[i]] = text
		}
	}
	time.Sleep(rand.N(loaderDelay)) // a slow source: time for others to invalidate what was read
	return rows, nil
}

// openCache opens the cache of an instance.
func openCache(rdb redis.UniversalClient, d database, namespace string, local bool) (*cache.Client, *cache.Cache[string, string], error) {
	client, err := cache.Open(rdb, cache.Config{
		Namespace: namespace, ReadBudget: readBudget, WriteBudget: writeBudget, Heartbeat: heartbeat, DegradedTTL: degradedTTL,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, nil, err
	}
	policy := cache.Policy{
		TTL: ttl, LeaseTTL: 300 * time.Millisecond, LoadTimeout: 2 * time.Second, LocalEntries: 1000,
		StaleTTL: staleTTL, SoftTimeout: softTimeout, RefreshAfter: 0.5,
	}
	if !local {
		policy.LocalTTL, policy.RefreshAfter = cache.Off, cache.Off
	}
	rows, err := cache.New(client, cacheName, d.load, policy)
	return client, rows, err
}

// mark tells the other instances, behind an invalidation and by the same node, which version it was about.
func mark(ctx context.Context, bus *invalidation.Bus, rdb redis.UniversalClient, namespace, key string, version int) {
	m := bus.Prepare(marksName, fmt.Sprintf("%s/%d", key, version))
	defer m.Done()
	rdb.Eval(ctx, "return redis.call('PUBLISH', ARGV[1], ARGV[2])", []string{physical(namespace, key)}, m.Channel, m.Payload)
}

// physical is the key under which Redis holds an entry.
func physical(namespace, key string) string { return namespace + ":c:" + cacheName + ":" + key }

// instance is a cache as one process has it.
type instance interface {
	name() string
	get(ctx context.Context, key string) (string, error)
	getMany(ctx context.Context, keys []string) (map[string]string, error)
	update(ctx context.Context, key string, commit func() (string, int, error)) (version int, err error)
	invalidate(ctx context.Context, key string, version int) error
}

// local is an instance in this process.
type local struct {
	label     string
	namespace string
	client    *cache.Client
	rows      *cache.Cache[string, string]
	direct    redis.UniversalClient // a way to Redis that no proxy stands in
}

func (w *world) openLocal(t testing.TB, label string, rdb redis.UniversalClient, near bool) *local {
	t.Helper()
	client, rows, err := openCache(rdb, w.source, w.namespace, near)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	l := &local{label: label, namespace: w.namespace, client: client, rows: rows, direct: w.topology.client(t)}
	client.Bus().Subscribe(marksName, invalidation.Handler{
		Keys: func(marks []string) {
			// A mark may come over a new subscription before the first heartbeat has: what it is behind was not heard then.
			for _, m := range marks {
				if client.Bus().Live() {
					w.told(label, m)
				}
			}
		},
		Gap: func(string) { w.check.gap(label) },
	})
	return l
}

func (l *local) name() string { return l.label }

func (l *local) get(ctx context.Context, key string) (string, error) { return l.rows.Get(ctx, key) }

func (l *local) getMany(ctx context.Context, keys []string) (map[string]string, error) {
	return l.rows.GetMany(ctx, keys)
}

func (l *local) update(ctx context.Context, key string, commit func() (string, int, error)) (version int, err error) {
	_, err = l.rows.Update(ctx, key, func(context.Context) (value string, err error) {
		value, version, err = commit()
		return value, err
	})
	if err == nil {
		mark(ctx, l.client.Bus(), l.direct, l.namespace, key, version)
	}
	return version, err
}

func (l *local) invalidate(ctx context.Context, key string, version int) error {
	err := l.rows.Invalidate(ctx, key)
	if err == nil {
		mark(ctx, l.client.Bus(), l.direct, l.namespace, key, version)
	}
	return err
}
