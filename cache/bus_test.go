package cache_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// calls counts how often a server ran a command since it started, in scripts too.
func calls(t testing.TB, server *redistest.Server, command string) (n int) {
	t.Helper()
	info, err := server.Admin().Info(t.Context(), "commandstats").Result()
	mustDo(t, err)
	if _, rest, ok := strings.Cut(info, "cmdstat_"+command+":calls="); ok {
		_, err = fmt.Sscanf(rest, "%d", &n)
		mustDo(t, err)
	}
	return n
}

// published counts the messages that were published on a server.
func published(t testing.TB, server *redistest.Server) int { return calls(t, server, "publish") }

func TestTheEndOfALoadIsPublishedOnceIfSomebodyWaits(t *testing.T) {
	w := newWorldOn(t, redistest.Start(t))
	a, b, c := w.instance(t, beating(rareBeat)), w.instance(t, beating(rareBeat)), w.instance(t, beating(rareBeat))
	eventually(t, "the first beats", func() bool { return published(t, w.server) == 3 })
	w.put("k", v1)
	a.mustGet(t, "k", v1)
	a.client.Idle(t)
	if n := published(t, w.server); n != 3 {
		t.Errorf("%d messages for a load that nobody waited for", n-3)
	}

	w.put("awaited", v1)
	gate := w.hold(t)
	first := a.startGet(t.Context(), "awaited")
	gate.await(t, "the load")
	others := []<-chan answer{b.startGet(t.Context(), "awaited"), c.startGet(t.Context(), "awaited")}
	marked := func() bool { raw := w.raw(t, a, "awaited"); return len(raw) > 6 && raw[4:6] == "l\x02" }
	eventually(t, "both wait, and Redis knows", func() bool { return b.Stats().LeaseWaits+c.Stats().LeaseWaits == 2 && marked() })
	gate.open()
	for _, one := range append(others, first) {
		receive(t, "a caller", one).must(t, v1)
	}
	a.client.Idle(t)
	if n := published(t, w.server); n != 4 {
		t.Errorf("%d messages for a load that two waited for, want 1", n-3)
	}
	if n := w.loads(); n != 2 {
		t.Errorf("%d loads, want 2", n)
	}
}

// TestTheBusWakesWhoWaits: after a wait of seconds the next look by a timer is up to a tenth of a second away.
func TestTheBusWakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		t.Cleanup(server.Close)
		const slow = 5*time.Second + 20*time.Millisecond
		dial := func() *cache.Cache[int, string] {
			rdb := redis.NewClient(&redis.Options{
				Addr:   "127.0.0.1:1", // never dialled
				Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
			})
			t.Cleanup(func() { _ = rdb.Close() })
			client := open(t, rdb, cache.Config{Heartbeat: 500 * time.Millisecond})
			eventually(t, "the bus hears", client.Bus().Live)
			return mustNew(t, client, "user", func(ctx context.Context, keys []int) (map[int]string, error) {
				time.Sleep(slow)
				return loadText(ctx, keys)
			}, cache.Policy{TTL: time.Hour})
		}
		a, b := dial(), dial()
		began := time.Now()
		go func() { _, _ = a.Get(t.Context(), 1) }()
		synctest.Wait()
		r, err := b.GetResult(t.Context(), 1)
		if took := time.Since(began); r.Tier != cache.TierRedis || err != nil || took != slow {
			t.Errorf("%+v, %v after %v; want the value of the other at the moment of its fill, after %v", r, err, took, slow)
		}
	})
}

func TestWhatIsKeptWhileTheBusDoesNotHearEndsAfterDegradedTTL(t *testing.T) {
	w := newWorld(t)
	degraded := func(s *setup) { s.config.DegradedTTL = 500 * time.Millisecond }
	live := w.instance(t, beating(rareBeat), degraded)
	proxy := redistest.NewProxy(t, w.server.Addr())
	proxy.Only("subscribe")
	proxy.BlackHole()
	deaf := w.instance(t, through(proxy), beating(soonBeat), degraded)
	w.put("k", v1)
	live.awaitLive(t)
	live.awaitLocal(t, "k", v1)
	deaf.awaitLocal(t, "k", v1)
	w.change(t, live, "k", v2) // which the deaf one does not hear
	live.awaitLocal(t, "k", v2)
	deaf.awaitValue(t, "k", v2)
	if deaf.client.Bus().Live() || deaf.Stats().Received > 0 {
		t.Error("it was not deaf")
	}
	deaf.awaitLocal(t, "k", v2)
	eventually(t, "that ends too", func() bool { r, _ := deaf.GetResult(t.Context(), "k"); return r.Tier == cache.TierRedis })
	live.mustGetFrom(t, "k", v2, cache.TierLocal) // which it has held for longer
	proxy.Heal()
}

func TestWhoMayNotPublishIsToldThatTheOthersWereNot(t *testing.T) {
	server := redistest.Start(t)
	mustDo(t, server.Admin().Do(t.Context(), "acl", "setuser", "mute", "on", ">x", "~*", "+@all", "resetchannels").Err())
	w := newWorldOn(t, server)
	s := setup{config: cache.Config{Namespace: w.namespace, ReadBudget: patience, WriteBudget: patience}, loader: w.load}
	beating(soonBeat)(&s)
	mute := openInstance(t, server.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "x" }), s)
	t.Cleanup(func() { mustDo(t, mute.client.Close()) })
	is := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, cache.ErrUnpublished) || errors.Is(err, cache.ErrUnconfirmed) || !strings.Contains(err.Error(), "publish") {
			t.Errorf("%s returned %v", what, err)
		}
	}
	w.put("k", v1)
	mute.mustGet(t, "k", v1)
	mute.client.Idle(t)
	w.holds(t, mute, "k", v1)
	w.put("k", v2)
	err := mute.Invalidate(t.Context(), "k")
	is("Invalidate", err)
	var failed *cache.KeyErrors[string]
	if !errors.As(err, &failed) || failed.ByKey["k"] == nil {
		t.Errorf("%v does not name the key", err)
	}
	w.lacks(t, mute, "k", v1)
	mute.mustGet(t, "k", v2)
	mute.client.Idle(t)
	w.holds(t, mute, "k", v2) // Redis is used for the key

	v, err := mute.Update(t.Context(), "k", func(context.Context) (string, error) { w.put("k", v3); return v3, nil })
	is("Update", err)
	if v != v3 {
		t.Errorf("Update returned %q beside its error, want %s", v, v3)
	}
	w.holds(t, mute, "k", v3)
	mute.mustGet(t, "k", v3)
	if s := mute.Stats(); s.Unpublished != 2 || s.Unconfirmed != 0 || s.UnconfirmedKeys != 0 {
		t.Errorf("%+v; want 2 messages that were not published, and nothing unconfirmed", s)
	}
	if mute.client.Stats().RedisErrors["denied"] == 0 || mute.client.Bus().Live() {
		t.Errorf("%v, live %v", mute.client.Stats().RedisErrors, mute.client.Bus().Live())
	}
}

// TestTheBusCostsByTheNumberOfProcesses: n processes receive n beats in the time of one, and n times what one of them publishes.
func TestTheBusCostsByTheNumberOfProcesses(t *testing.T) {
	const n = 50
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.PoolSize = 2 * n })
	admin := server.Admin()
	var clients []*cache.Client
	for range n {
		clients = append(clients, open(t, rdb, cache.Config{Namespace: "many", Heartbeat: 400 * time.Millisecond, WriteBudget: patience}))
	}
	users := mustNew(t, clients[0], "user", loadText[int], cache.Policy{TTL: time.Hour})
	for _, c := range clients {
		eventually(t, "all hear", c.Bus().Live)
	}
	common := "many:b:{many:0}"
	var own []string
	eventually(t, "each has a channel for its beats, which nobody else hears", func() bool {
		var err error
		own, err = admin.PubSubChannels(t.Context(), common+":*").Result()
		mustDo(t, err)
		receivers, err := admin.PubSubNumSub(t.Context(), append(own, common)...).Result()
		mustDo(t, err)
		for _, channel := range own {
			if receivers[channel] != 1 {
				return false
			}
		}
		return len(own) == n && receivers[common] == n
	})
	watch := rdb.PSubscribe(t.Context(), common+"*")
	defer watch.Close()
	_, err := watch.Receive(t.Context())
	mustDo(t, err)
	// until counts the messages that are published until a channel has carried some.
	until := func(last string, times int) map[string]int {
		seen := map[string]int{}
		for deadline := time.Now().Add(patience); seen[last] < times; {
			if time.Now().After(deadline) {
				t.Fatalf("within %v only %v", patience, seen)
			}
			received, err := watch.ReceiveTimeout(t.Context(), patience)
			mustDo(t, err)
			seen[received.(*redis.Message).Channel]++
		}
		return seen
	}
	if seen := until(own[0], 3); seen[common] != 0 {
		t.Errorf("quiet processes tell the others %d messages", seen[common])
	}
	mustDo(t, users.Invalidate(t.Context(), 1))
	until(common, 3) // the message, and its number at two beats
	if more := until(own[0], 3)[common]; more != 0 {
		t.Errorf("one invalidation made %d messages to everybody, want 3", 3+more)
	}
	for i, c := range clients[1:] {
		if h := c.Bus().Health(); h.Received > 1 {
			t.Errorf("client %d: %+v; want 1 message received", i+1, h)
		}
	}
}

// TestCommandsOnTheBus: what calls send to Redis, exactly, while a bus is on.
func TestCommandsOnTheBus(t *testing.T) {
	server := redistest.Start(t) // of its own: the server's view counts all clients
	a := open(t, server.Client(t), cache.Config{
		Namespace: server.Prefix(t), Heartbeat: rareBeat, ReadBudget: patience, WriteBudget: patience,
	})
	users := mustNew(t, a, "user", loadText[int], cache.Policy{TTL: time.Hour})
	ctx := t.Context()
	get := func(key int) func() error {
		return func() error { _, err := users.Get(ctx, key); return err }
	}
	update := func() error {
		_, err := users.Update(ctx, 1, func(context.Context) (string, error) { return "new", nil })
		return err
	}
	eventually(t, "the first beat", func() bool { return a.Bus().Live() && published(t, server) == 1 })
	for _, teach := range []func() error{get(0), update, func() error { return users.Invalidate(ctx, 1) }} {
		mustDo(t, teach())
	}
	a.Idle(t)
	expect := func(what string, trips, messages int, want map[string]int, f func() error) {
		t.Helper()
		before, tripsBefore := published(t, server), a.Stats().RoundTrips
		seen := server.Commands(t, func() {
			if err := f(); err != nil {
				t.Error(err)
			}
			a.Idle(t)
		})
		made, told := int(a.Stats().RoundTrips-tripsBefore), published(t, server)-before
		if !maps.Equal(seen, want) || made != trips || told != messages {
			t.Errorf("%s: the server saw %v in %d round trips and %d messages, want %v in %d and %d", what, seen, made, told, want, trips, messages)
		}
	}
	expect("a miss", 3, 0, map[string]int{"get": 1, "set": 1, "evalsha": 1}, get(1))
	expect("a local hit", 0, 0, map[string]int{}, get(1))
	a.DropLocal()
	expect("a Redis hit", 1, 0, map[string]int{"get": 1}, get(1))
	expect("an invalidation", 1, 1, map[string]int{"evalsha": 1}, func() error { return users.Invalidate(ctx, 1) })
	expect("one of three keys", 1, 3, map[string]int{"evalsha": 3}, func() error { return users.Invalidate(ctx, 1, 2, 3) })
	expect("an update", 2, 1, map[string]int{"evalsha": 2}, update)
	expect("a set", 2, 1, map[string]int{"evalsha": 2}, func() error { return users.Set(ctx, 1, "new") })
}

// TestAValueBesideErrUnpublishedIsACopy: it is kept, so the caller gets one of its own where Hooks.Clone makes it.
func TestAValueBesideErrUnpublishedIsACopy(t *testing.T) {
	server := redistest.Start(t)
	mustDo(t, server.Admin().Do(t.Context(), "acl", "setuser", "mute", "on", ">x", "~*", "+@all", "resetchannels").Err())
	client := open(t, server.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "x" }), cache.Config{
		Heartbeat: soonBeat, ReadBudget: patience, WriteBudget: patience, DegradedTTL: time.Hour,
	})
	rows := mustNew(t, client, "row", func(context.Context, []string) (map[string][]int, error) { return nil, nil },
		cache.Policy{TTL: time.Hour}, cache.Hooks[string, []int]{Clone: slices.Clone[[]int]})
	v, err := rows.Update(t.Context(), "k", func(context.Context) ([]int, error) { return []int{1}, nil })
	if !errors.Is(err, cache.ErrUnpublished) || len(v) != 1 {
		t.Fatalf("%v, %v", v, err)
	}
	v[0] = 99
	r, err := rows.GetResult(t.Context(), "k")
	if err != nil || r.Value[0] != 1 || r.Tier != cache.TierLocal {
		t.Errorf("%+v, %v", r, err)
	}
}
