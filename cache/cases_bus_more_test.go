package cache_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
	"github.com/go-nearside/nearside/invalidation"
)

func TestC41_AStalledConsumerLosesNothingInSilence(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, server *redistest.Server, channel string){
		"a stall": func(*testing.T, *redistest.Server, string) {},
		"a stall until Redis gives the connection up": func(t *testing.T, server *redistest.Server, channel string) {
			server.Config(t, "client-output-buffer-limit", "pubsub 1048576 0 0")
			junk := strings.Repeat("x", 64<<10)
			eventually(t, "Redis closes the connection", func() bool {
				mustDo(t, server.Admin().Publish(t.Context(), channel, junk).Err())
				clients, err := server.Admin().Do(t.Context(), "client", "list", "type", "pubsub").Text()
				return !strings.Contains(clients, "name=stalled ") && err == nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, redistest.Start(t))
			// B itself has no reason to doubt. A tells its last number soon.
			a, b := w.instance(t, beating(soonBeat)), w.instance(t, beating(rareBeat), func(s *setup) { s.redis.ClientName = "stalled" })
			b.awaitLive(t)
			channels, err := w.server.Admin().PubSubChannels(t.Context(), "*:b:{*:0}").Result()
			if err != nil || len(channels) != 1 {
				t.Fatalf("channels %q, %v", channels, err)
			}
			var keys []string
			for n := range 50 {
				keys = append(keys, fmt.Sprint("k", n))
				w.put(keys[n], v1)
			}
			if _, err := b.GetMany(t.Context(), keys); err != nil {
				t.Fatal(err)
			}
			b.client.Idle(t)
			if n := b.Stats().LocalFills; n != 50 {
				t.Fatalf("B holds %d keys", n)
			}
			stall := newGate(t)
			b.client.Bus().Subscribe("stall", invalidation.Handler{Keys: func([]string) { _ = stall.pass(context.Background()) }})
			mustDo(t, a.client.Bus().Publish(t.Context(), "stall", "now"))
			stall.await(t, "the consumer stalls")
			before(t, w.server, channels[0])
			for _, key := range keys {
				w.put(key, v2)
			}
			mustDo(t, a.Invalidate(t.Context(), keys...))
			time.Sleep(500 * time.Millisecond) // the stall itself: longer than a queue waits that drops what it has no room for
			stall.open()
			for _, key := range keys {
				b.awaitValue(t, key, v2)
			}
		})
	}
}

// elsewhere is a client whose subscriptions go where another client does.
type elsewhere struct {
	redis.UniversalClient
	subscriber atomic.Pointer[redis.Client]
}

// Subscribe subscribes at the other place.
func (e *elsewhere) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return e.subscriber.Load().Subscribe(ctx, channels...)
}

func TestC45_ADemotedMasterDeceivesNobody(t *testing.T) {
	replicate := func(t *testing.T, replica, master *redistest.Server) {
		t.Helper()
		host, port, err := net.SplitHostPort(master.Addr())
		mustDo(t, err)
		mustDo(t, replica.Admin().ReplicaOf(t.Context(), host, port).Err())
		eventually(t, "the replica follows", func() bool {
			info, err := replica.Admin().Info(t.Context(), "replication").Result()
			return strings.Contains(info, "master_link_status:up") && err == nil
		})
	}
	t.Run("who invalidates is left there", func(t *testing.T) {
		master, demoted := redistest.Start(t), redistest.Start(t)
		w := newWorldOn(t, master)
		a, b := w.instance(t, beating(soonBeat), at(demoted)), w.instance(t, beating(soonBeat))
		w.put("k", v1)
		a.mustGet(t, "k", v1)
		b.awaitLive(t)
		b.awaitLocal(t, "k", v1)
		replicate(t, demoted, master)
		w.put("k", v2)
		err := a.Invalidate(t.Context(), "k")
		if !errors.Is(err, cache.ErrUnconfirmed) || !strings.Contains(err.Error(), "READONLY") {
			t.Errorf("Invalidate on a demoted master returned %v", err)
		}
		a.mustGet(t, "k", v2)
	})
	t.Run("who listens is left there", func(t *testing.T) {
		master, demoted := redistest.Start(t), redistest.Start(t)
		replicate(t, demoted, master)
		w := newWorldOn(t, master)
		a := w.instance(t, beating(soonBeat))
		rdb := &elsewhere{UniversalClient: master.Client(t)}
		rdb.subscriber.Store(demoted.Client(t))
		client, err := cache.Open(rdb, cache.Config{
			Namespace: w.namespace, ReadBudget: patience, WriteBudget: patience, Heartbeat: soonBeat, DegradedTTL: time.Hour,
		})
		mustDo(t, err)
		t.Cleanup(func() { mustDo(t, client.Close()) })
		users, err := cache.New(client, "users", w.load, cache.Policy{TTL: time.Hour, LocalTTL: time.Hour})
		mustDo(t, err)
		b := &instance{Cache: users, client: client}
		w.put("k", v1)
		b.awaitLive(t) // beats reach the replica too
		b.awaitLocal(t, "k", v1)
		rdb.subscriber.Store(master.Client(t)) // for new subscriptions; the present one stays where it is
		mustDo(t, demoted.Admin().ReplicaOf(t.Context(), "no", "one").Err())
		w.change(t, a, "k", v2)
		b.awaitValue(t, "k", v2)
		b.awaitLive(t)
		if b.client.Bus().Health().Gaps["silence"] == 0 {
			t.Error("no silence was noticed")
		}
	})
}

// at points an instance at another server than that of its world.
func at(server *redistest.Server) func(*setup) {
	return func(s *setup) { s.redis.Addr = server.Addr() }
}

func TestC46_NothingIsToldBeforeTheDeleteIsDone(t *testing.T) {
	w := newWorld(t)
	a, b := w.instance(t, beating(soonBeat), valved), w.instance(t, beating(rareBeat))
	w.put("k", v1)
	b.awaitLive(t)
	b.awaitLocal(t, "k", v1)
	ctx, ours := mark(t.Context())
	request := a.valve.before(t, func(ctx context.Context, cmd redis.Cmder) bool { return ours(ctx, cmd) && cmd.Name() != "publish" })
	w.put("k", v2)
	invalidated := a.startInvalidate(ctx, "k")
	request.await(t, "the delete")
	for range 100 { // so that B would fill from the dying copy, if it had been told
		b.mustGet(t, "k", v1)
		time.Sleep(100 * time.Microsecond)
	}
	if told := b.Stats().Received; told != 0 {
		t.Errorf("B was told of %d keys while the delete was on its way", told)
	}
	request.open()
	mustDo(t, receive(t, "Invalidate", invalidated).err)
	b.awaitValue(t, "k", v2)
	for range 100 {
		b.mustGet(t, "k", v2)
	}
}

func TestC52_ManyKeysGoInPartsOfBoundedSize(t *testing.T) {
	const many, part = 5000, 500
	w := newWorldOn(t, redistest.Start(t))
	proxy := redistest.NewProxy(t, w.server.Addr())
	a, b := w.instance(t, beating(rareBeat), through(proxy)), w.instance(t, beating(rareBeat))
	b.awaitLive(t)
	keys := make([]string, many)
	puts := func(value string) {
		for _, key := range keys {
			w.put(key, value)
		}
	}
	serves := func(value string, keys ...string) {
		t.Helper()
		eventually(t, "B serves the new values", func() bool {
			m, err := b.GetMany(t.Context(), keys)
			return err == nil && !slices.ContainsFunc(keys, func(key string) bool { return m[key] != value })
		})
		b.client.Idle(t)
	}
	for n := range keys {
		keys[n] = fmt.Sprintf("key-%0196d", n)
	}
	puts(v1)
	serves(v1, keys...)
	if n := b.Stats().LocalFills; n != many {
		t.Fatalf("B holds %d keys, want %d", n, many)
	}
	watch := w.server.Client(t).PSubscribe(t.Context(), "*")
	defer watch.Close()
	_, err := watch.Receive(t.Context())
	mustDo(t, err)
	mustDo(t, a.Invalidate(t.Context(), "another")) // teaches the script
	puts(v2)

	// Another client, whose reads come in between.
	longest, stop, stopped := time.Duration(0), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			began := time.Now()
			w.server.Admin().Get(context.Background(), "k")
			longest = max(longest, time.Since(began))
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	trips := a.client.Stats().RoundTrips
	mustDo(t, a.Invalidate(t.Context(), keys...))
	close(stop)
	<-stopped
	if n := a.client.Stats().RoundTrips - trips; n != many/part {
		t.Errorf("%d keys went in %d round trips, want %d", many, n, many/part)
	}
	if t.Logf("the longest read beside: %v", longest); longest > 5*time.Second {
		t.Error("Redis answered nobody else")
	}
	for range many {
		received, err := watch.ReceiveTimeout(t.Context(), patience)
		mustDo(t, err)
		if m := received.(*redis.Message); len(m.Payload) > 64<<10 {
			t.Fatalf("a message of %d bytes", len(m.Payload))
		}
	}
	if n := calls(t, w.server, "del"); n != 0 {
		t.Errorf("%d DEL, which frees the memory while all wait", n)
	}
	eventually(t, "B was told of all", func() bool { return b.Stats().Received == many+1 })
	serves(v2, keys...)

	t.Run("an error half-way", func(t *testing.T) {
		puts(v3)
		proxy.DropReply(1, keys[many/2], false)
		err := a.Invalidate(t.Context(), keys...)
		var failed *cache.KeyErrors[string]
		if !errors.As(err, &failed) || !errors.Is(err, cache.ErrUnconfirmed) || len(failed.ByKey) >= many || failed.ByKey[keys[many/2]] == nil {
			t.Fatalf("%.200v; want the names of the keys that failed", err)
		}
		done := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return failed.ByKey[key] != nil })
		serves(v3, done...)
		mustDo(t, a.Invalidate(t.Context(), keys...))
		serves(v3, keys...)
	})
}
