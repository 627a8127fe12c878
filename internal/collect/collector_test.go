package collect_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/collect"
	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Run(m) }

// ample is a budget that a busy machine does not run out of.
const ample = 8 * time.Second

func open(t testing.TB, rdb redis.UniversalClient, budget time.Duration) *collect.Collector {
	t.Helper()
	c := collect.New(rdb, budget)
	t.Cleanup(func() {
		if left := c.Close(ample); left != 0 {
			t.Errorf("%d trips are still under way", left)
		}
	})
	return c
}

// fill writes some keys, each with its own name as value.
func fill(t testing.TB, rdb redis.UniversalClient, prefix string, n int) {
	t.Helper()
	for i := range n {
		if err := rdb.Set(context.Background(), prefix+strconv.Itoa(i), prefix+strconv.Itoa(i), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// behind makes n reads wait behind trips that hang, and returns their answers once the way is free.
func behind(t *testing.T, c *collect.Collector, proxy *redistest.Proxy, keys []string) (answers map[string]string, trips uint64) {
	t.Helper()
	ctx := context.Background()
	proxy.Freeze(redistest.ToClient)
	var first, rest sync.WaitGroup
	twoTrips(t, c, &first, func() { c.Do(ctx, rediscall.NewCommand(ctx, "echo", "first")) })
	before := c.Trips()
	var mu sync.Mutex
	answers = map[string]string{}
	for _, key := range keys {
		rest.Go(func() {
			v, err := c.Get(ctx, key)
			if err != nil {
				v = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			answers[key] = v
		})
	}
	waiting(t, c, len(keys))
	proxy.Thaw()
	first.Wait()
	rest.Wait()
	return answers, c.Trips() - before
}

// twoTrips makes two calls that hang, each on a trip of its own: as many as a node has under way at once in good weather.
func twoTrips(t testing.TB, c *collect.Collector, calls *sync.WaitGroup, call func()) {
	t.Helper()
	until(t, "no trip is under way", func() bool { return c.Busy() == 0 })
	for n := range 2 {
		calls.Go(call)
		until(t, fmt.Sprintf("trip %d hangs", n+1), func() bool { return c.Busy() == n+1 })
	}
}

func waiting(t testing.TB, c *collect.Collector, n int) {
	t.Helper()
	until(t, fmt.Sprintf("%d calls wait", n), func() bool { return c.Waiting() == n })
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(ample); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("this did not happen: %s", what)
		}
	}
}

// TestWhatWaitsGoesTogether: reads that wait behind hanging trips go in one, each gets its own answer, and the kinds of answer are
// those of GET.
func TestWhatWaitsGoesTogether(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	c := open(t, server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), ample)
	fill(t, server.Admin(), "k", 50)
	if err := server.Admin().HSet(context.Background(), "hash", "f", "v").Err(); err != nil {
		t.Fatal(err)
	}
	keys := []string{"hash", "nothing"}
	for i := range 50 {
		keys = append(keys, "k"+strconv.Itoa(i))
	}
	answers, trips := behind(t, c, proxy, keys)
	for key, got := range answers {
		want := key
		if key == "hash" || key == "nothing" {
			want = redis.Nil.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if trips > 2 { // the two workers may each take a part
		t.Errorf("%d trips for %d reads that waited", trips, len(keys))
	}
}

// TestWhoMayNotMGETIsServedByGET: an access list that allows GET alone.
func TestWhoMayNotMGETIsServedByGET(t *testing.T) {
	server := redistest.Start(t)
	if err := server.Admin().Do(t.Context(), "acl", "setuser", "plain", "on", ">x", "~*", "+@all", "-mget").Err(); err != nil {
		t.Fatal(err)
	}
	proxy := redistest.NewProxy(t, server.Addr())
	c := open(t, server.Client(t, func(o *redis.Options) { o.Addr, o.Username, o.Password = proxy.Addr(), "plain", "x" }), ample)
	fill(t, server.Admin(), "k", 10)
	var keys []string
	for i := range 10 {
		keys = append(keys, "k"+strconv.Itoa(i))
	}
	behind(t, c, proxy, keys) // learns it
	answers, _ := behind(t, c, proxy, keys)
	for key, got := range answers {
		if got != key {
			t.Errorf("%s: %q", key, got)
		}
	}
}

// TestWaitersObeyTheirOwnContext: who waits leaves when its context ends, and what was given up is not sent.
func TestWaitersObeyTheirOwnContext(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	c := open(t, server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), ample)
	ctx := context.Background()
	proxy.Freeze(redistest.ToClient)
	var first sync.WaitGroup
	twoTrips(t, c, &first, func() { c.Do(ctx, rediscall.NewCommand(ctx, "echo", "first")) })
	leaving, leave := context.WithCancel(ctx)
	left := make(chan error, 1)
	go func() { left <- c.Do(leaving, rediscall.NewCommand(ctx, "incr", "given-up")) }()
	waiting(t, c, 1)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
	proxy.Thaw()
	first.Wait()
	if err := c.Do(ctx, rediscall.NewCommand(ctx, "ping")); err != nil {
		t.Fatal(err)
	}
	if n, err := server.Admin().Exists(ctx, "given-up").Result(); n != 0 || err != nil {
		t.Errorf("what was given up has run: %d, %v", n, err)
	}
}

// TestADeadConnectionStopsNobodyElse: while two trips hang for their whole budget, later calls go on others.
func TestADeadConnectionStopsNobodyElse(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Only("blpop") // freezes the connections that such a command travels on
	const budget = 2 * time.Second
	c := open(t, server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), budget)
	fill(t, server.Admin(), "k", 1)
	ctx := context.Background()
	var stuck sync.WaitGroup
	twoTrips(t, c, &stuck, func() {
		if err := c.Do(ctx, rediscall.NewCommand(ctx, "blpop", "never", 0)); rediscall.Classify(err) != rediscall.Timeout {
			t.Errorf("a call that hangs: %v", err)
		}
	})
	began := time.Now()
	for i := range 20 {
		if v, err := c.Get(ctx, "k0"); v != "k0" || err != nil {
			t.Fatalf("read %d beside them: %q, %v after %v", i, v, err, time.Since(began))
		}
	}
	stuck.Wait()
}

// TestANodeThatIsSilentHoldsUpItsOwnKeysOnly.
func TestANodeThatIsSilentHoldsUpItsOwnKeysOnly(t *testing.T) {
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	c := open(t, rdb, 500*time.Millisecond)
	ctx := context.Background()
	keys := map[*redistest.Server]string{}
	for i := 0; len(keys) < 3; i++ {
		key := fmt.Sprintf("k%d", i)
		keys[cluster.NodeFor(key)] = key
	}
	var commands []*rediscall.Command
	for _, key := range keys {
		if err := rdb.Set(ctx, key, key, 0).Err(); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, rediscall.NewCommand(ctx, "get", key))
	}
	if err := c.Do(ctx, commands...); err != nil {
		t.Fatal(err)
	}
	silent := cluster.Nodes()[1]
	silent.Pause(t)
	again := make([]*rediscall.Command, len(commands))
	for i, cmd := range commands {
		again[i] = cmd.Copy(ctx)
	}
	if err := c.Do(ctx, again...); err != nil {
		t.Fatalf("a batch over all nodes: %v", err)
	}
	for _, cmd := range again {
		if key := cmd.Key(); cluster.NodeFor(key) == silent {
			if rediscall.Classify(cmd.Err()) != rediscall.Timeout {
				t.Errorf("the key of the silent node: %v", cmd)
			}
		} else if v, err := cmd.Text(); v != key || err != nil {
			t.Errorf("%s, whose node is well: %q, %v", key, v, err)
		}
	}
	silent.Resume(t)
	cluster.AwaitOK(t)
	for _, key := range keys {
		for deadline := time.Now().Add(ample); ; time.Sleep(5 * time.Millisecond) {
			if v, err := c.Get(ctx, key); v == key && err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s does not come back", key)
			}
		}
	}
}

// TestAClosedCollectorRefuses, and Close may come at any time.
func TestAClosedCollectorRefuses(t *testing.T) {
	server := redistest.Shared(t)
	ctx := context.Background()
	for range 20 {
		c := collect.New(server.Client(t), ample)
		var calls sync.WaitGroup
		for range 8 {
			calls.Go(func() {
				for range 50 {
					if _, err := c.Get(ctx, "nothing"); !errors.Is(err, redis.Nil) && !errors.Is(err, redis.ErrClosed) {
						t.Errorf("a read beside Close: %v", err)
					}
				}
			})
		}
		if left := c.Close(ample); left != 0 {
			t.Errorf("%d are left", left)
		}
		calls.Wait()
		if err := c.Do(ctx, rediscall.NewCommand(ctx, "ping")); !errors.Is(err, redis.ErrClosed) {
			t.Errorf("a call after Close: %v", err)
		}
	}
}
