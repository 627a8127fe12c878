package redistest_test

import (
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
)

func wantCounts(t *testing.T, got, want map[string]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

func TestCounter(t *testing.T) {
	server := redistest.Shared(t)
	key := server.Prefix(t) + "k"
	// A database of its own and an identity make the handshake as long as it gets.
	rdb := server.Client(t, func(o *redis.Options) { o.DB, o.ClientName, o.DisableIdentity = 3, "counted", false })
	var counter redistest.Counter
	rdb.AddHook(&counter)
	if got := counter.Snapshot(); got.Trips != 0 || got.Commands == nil || len(got.Commands) != 0 {
		t.Errorf("a fresh counter says %+v", got)
	}

	rdb.Do(ctx, "SET", key, "1")
	rdb.Get(ctx, key)
	rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Get(ctx, key)
		p.Get(ctx, key)
		p.Del(ctx, key)
		return nil
	})
	rdb.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Incr(ctx, key).Err() })
	got := counter.Snapshot()
	wantCounts(t, got.Commands, map[string]int{"set": 1, "get": 3, "del": 1, "multi": 1, "incr": 1, "exec": 1})
	if got.Trips != 4 {
		t.Errorf("%d trips, want 4", got.Trips)
	}

	counter.Reset()
	wantCounts(t, counter.Snapshot().Commands, map[string]int{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				rdb.Get(ctx, key)
				counter.Snapshot()
			}
		})
	}
	wg.Wait()
	got = counter.Snapshot()
	wantCounts(t, got.Commands, map[string]int{"get": 400})
	if got.Trips != 400 {
		t.Errorf("%d trips, want 400", got.Trips)
	}
}

func TestCommands(t *testing.T) {
	server := redistest.Start(t)
	key := server.Prefix(t) + "k"
	rdb := server.Client(t, func(o *redis.Options) { o.DB = 2 }) // no connection yet: its handshake falls into the count
	script := redis.NewScript(`redis.call("SET", KEYS[1], ARGV[1]) return redis.call("GET", KEYS[1])`)
	odd := "lua] \"get\"\r\n[0 lua] \x00ü"
	got := server.Commands(t, func() {
		for range 3 {
			if err := script.Run(ctx, rdb, []string{key}, odd).Err(); err != nil {
				t.Error(err)
			}
		}
		if got, err := rdb.Do(ctx, "GeT", key).Result(); got != odd || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		rdb.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Set(ctx, key, odd, 0).Err() })
		rdb.Set(ctx, key, strings.Repeat("x", 1<<20), 0)
	})
	// The first evalsha is answered with NOSCRIPT and repeated as eval.
	wantCounts(t, got, map[string]int{"evalsha": 3, "eval": 1, "get": 1, "multi": 1, "set": 2, "exec": 1})

	wantCounts(t, server.Commands(t, func() {}), map[string]int{})

	var wg sync.WaitGroup
	got = server.Commands(t, func() {
		for range 8 {
			wg.Go(func() {
				for range 250 {
					rdb.Incr(ctx, key)
				}
			})
		}
		wg.Wait()
	})
	wantCounts(t, got, map[string]int{"incr": 2000})
}

// The hook counts what was asked, the server what came: a reply lost on the way makes go-redis send again.
func TestCommandsSeesRetries(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	rdb := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
	var counter redistest.Counter
	rdb.AddHook(&counter)
	proxy.DropReply(1, "incr", false)
	got := server.Commands(t, func() {
		if n, err := rdb.Incr(ctx, "n").Result(); n != 2 || err != nil {
			t.Errorf("INCR = %d, %v; want 2", n, err)
		}
	})
	wantCounts(t, got, map[string]int{"incr": 2})
	wantCounts(t, counter.Snapshot().Commands, map[string]int{"incr": 1})
}

func TestCommandsSurvivesATestThatEnds(t *testing.T) {
	server := redistest.Shared(t)
	f := new(fakeTB)
	f.run(func() { server.Commands(f, func() { f.Fatalf("on purpose") }) })
	if err := server.Admin().Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
}
