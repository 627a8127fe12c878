package cache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestC116_CloseLeavesNothingBehind(t *testing.T) {
	w := newWorld(t)
	name := "c116-" + strings.Trim(w.namespace, ":")
	connections := func() int {
		list, err := w.server.Admin().ClientList(context.Background()).Result()
		mustDo(t, err)
		return strings.Count(list, "name="+name)
	}
	t.Run("50 lives", func(t *testing.T) {
		before := goleak.IgnoreCurrent()
		rdb := redis.NewClient(&redis.Options{Addr: w.server.Addr(), ClientName: name, DisableIdentity: true, PoolSize: 4, PipelinePoolSize: 2})
		for n := range 50 {
			i := openInstance(t, rdb, setup{
				config: cache.Config{Namespace: w.namespace},
				policy: cache.Policy{TTL: time.Minute, LeaseTTL: 100 * time.Millisecond},
				loader: w.load,
			})
			useAll(t, i, fmt.Sprintf("k%d", n))
			mustDo(t, i.client.Close())
			if got := connections(); got > 4+2 {
				t.Fatalf("%d connections after %d lives, the pools hold 4 and 2", got, n+1)
			}
		}
		mustDo(t, rdb.Close())
		noneLeft(t, before)
		eventually(t, "no connections are left", func() bool { return connections() == 0 })
	})
	t.Run("a New that fails", func(t *testing.T) {
		before := goleak.IgnoreCurrent()
		rdb := redis.NewClient(&redis.Options{Addr: w.server.Addr(), DisableIdentity: true})
		client, err := cache.Open(rdb, cache.Config{Namespace: w.namespace})
		mustDo(t, err)
		taken, err := cache.New(client, "taken", w.load, cache.Policy{TTL: time.Minute})
		mustDo(t, err)
		for range 20 {
			for what, fails := range map[string]func() error{
				"a bad option": func() error {
					_, err := cache.New(client, "users", w.load, cache.Policy{TTL: -time.Minute})
					return err
				},
				"no loader": func() error {
					_, err := cache.New[string, string](client, "users", nil, cache.Policy{TTL: time.Minute})
					return err
				},
				"a taken name": func() error {
					_, err := cache.New(client, taken.Name(), w.load, cache.Policy{TTL: time.Minute})
					return err
				},
				"a bad budget": func() error {
					_, err := cache.Open(rdb, cache.Config{ReadBudget: -time.Second})
					return err
				},
			} {
				var config *cache.ConfigError
				if err := fails(); !errors.As(err, &config) {
					t.Fatalf("%s: %v", what, err)
				}
			}
		}
		users, err := cache.New(client, "users", w.load, cache.Policy{TTL: time.Minute})
		mustDo(t, err) // what failed has not taken the name
		w.put("k", v1)
		if v, err := users.Get(t.Context(), "k"); v != v1 || err != nil {
			t.Errorf("Get = %q, %v", v, err)
		}
		mustDo(t, client.Close())
		if _, err := cache.New(client, "late", w.load, cache.Policy{TTL: time.Minute}); !errors.Is(err, cache.ErrClosed) {
			t.Errorf("New after Close: %v", err)
		}
		mustDo(t, rdb.Close())
		noneLeft(t, before)
	})
	t.Run("Redis is down", func(t *testing.T) {
		server := redistest.Start(t)
		server.Kill(t)
		before := goleak.IgnoreCurrent()
		for range 5 {
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), DialerRetries: 1})
			i := openInstance(t, rdb, setup{policy: cache.Policy{TTL: time.Minute}, loader: w.load})
			if err := i.Invalidate(t.Context(), "k"); !errors.Is(err, cache.ErrUnconfirmed) {
				t.Errorf("Invalidate: %v", err)
			}
			i.mustGet(t, "k", v1)
			if err := i.client.Close(); !errors.Is(err, cache.ErrUnconfirmed) {
				t.Errorf("Close with a delete that is owed: %v", err)
			}
			mustDo(t, rdb.Close())
		}
		noneLeft(t, before)
	})
	t.Run("imported and not used", func(t *testing.T) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleVariable+"="+roleIdler)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Errorf("goroutines of init functions: %v\n%s", err, out.String())
		}
	})
}

// useAll makes an instance do all that it can: a load that outlives its lease, hits of each tier, writes, deletes, a wait for
// another's lease, a failed load.
func useAll(t *testing.T, i *instance, key string) {
	t.Helper()
	ctx := t.Context()
	mustDo(t, i.Set(ctx, key, v1))
	i.mustGet(t, key, v1)
	i.client.DropLocal()
	i.mustGet(t, key, v1)
	mustDo(t, i.Invalidate(ctx, key, key+"x"))
	_, err := i.Update(ctx, key, func(context.Context) (string, error) { return v2, nil })
	mustDo(t, err)
	_, err = i.GetMany(ctx, []string{key, key + "x", key + "y"})
	mustDo(t, err)
	failure := errors.New("fails")
	if _, err = i.Fetch(ctx, key+"z", func(context.Context) (string, error) { return "", failure }); !errors.Is(err, failure) {
		t.Errorf("Fetch: %v", err)
	}
	// A caller that leaves a load which never ends by itself, and that Close has to end.
	gone, cancel := context.WithCancel(ctx)
	loading := make(chan struct{})
	left := start(func() (string, error) {
		return i.Fetch(gone, key+"never", func(ctx context.Context) (string, error) {
			close(loading)
			<-ctx.Done()
			return "", ctx.Err()
		})
	})
	receive(t, "the load", loading)
	cancel()
	if got := receive(t, "the caller that left", left); !errors.Is(got.err, context.Canceled) {
		t.Errorf("the caller that left: %v", got.err)
	}
}

// noneLeft checks that no goroutine is left but those of before. Those of a pool that could not dial have a second.
func noneLeft(t *testing.T, before goleak.Option) {
	t.Helper()
	var err error
	if !within(3*time.Second, func() bool { err = goleak.Find(before); return err == nil }) {
		t.Error(err)
	}
}

func TestC117_RedisClientStaysTheCallers(t *testing.T) {
	t.Run("the cache closes first", func(t *testing.T) {
		w := newWorld(t)
		rdb := w.server.Client(t)
		open := func(name string) *instance {
			return openInstance(t, rdb, setup{
				config: cache.Config{Namespace: w.namespace + name}, policy: cache.Policy{TTL: time.Minute}, loader: w.load,
			})
		}
		w.put("k", v1)
		a, b := open("a"), open("b")
		defer b.client.Close()
		a.mustGet(t, "k", v1)
		mustDo(t, a.client.Close())
		mustDo(t, rdb.Ping(t.Context()).Err())
		_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Ping(t.Context()).Err() })
		mustDo(t, err)
		b.mustGet(t, "k", v1)
		b.client.Idle(t)
		w.holds(t, b, "k", v1)
		mustDo(t, b.Invalidate(t.Context(), "k"))
		if n := b.redisErrors(); n != 0 {
			t.Errorf("%d errors of Redis at the other user of the client: %v", n, b.client.Stats().RedisErrors)
		}
	})
	t.Run("the Redis client closes first", func(t *testing.T) {
		w := newWorld(t)
		rdb := w.server.Client(t)
		i := openInstance(t, rdb, setup{config: cache.Config{Namespace: w.namespace, DegradedTTL: time.Millisecond}, policy: cache.Policy{TTL: time.Minute}, loader: w.load})
		w.put("warm", v1)
		w.put("cold", v1)
		i.mustGet(t, "warm", v1)
		i.client.Idle(t)
		mustDo(t, rdb.Close())
		i.mustGetFrom(t, "warm", v1, cache.TierLocal)
		for range 10 {
			i.mustGetFrom(t, "cold", v1, cache.TierLoader)
		}
		counted := i.client.Stats().RedisErrors["closed"]
		if counted == 0 || counted > 20 { // no busy loop behind: at most a read and a script per Get
			t.Errorf("10 Gets on a closed client counted %d errors", counted)
		}
		w.put("warm", v2)
		if err := i.Invalidate(t.Context(), "warm"); !errors.Is(err, cache.ErrUnconfirmed) {
			t.Errorf("Invalidate on a closed client: %v", err)
		}
		i.mustGet(t, "warm", v2)
		if err := i.client.Close(); !errors.Is(err, cache.ErrUnconfirmed) {
			t.Errorf("Close with a delete that is owed: %v", err)
		}
		if _, err := i.Get(t.Context(), "other"); !errors.Is(err, cache.ErrClosed) {
			t.Errorf("Get after Close: %v", err)
		}
	})
}
