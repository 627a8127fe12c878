package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// weather is a Redis that can fall sick in many ways, and two instances on it. Their Redis clients have go-redis' own time-outs and
// retries, on which nothing may depend.
type weather struct {
	*source
	namespace string
	budgets   [2]time.Duration // for reads, for writes
	server    *redistest.Server
	sentinel  *redistest.Sentinel
	cluster   *redistest.Cluster
	rdb       redis.UniversalClient // of a
	a, b      *instance

	test    testing.TB
	mu      sync.Mutex
	proxies map[string]*redistest.Proxy // by the address they lead to
}

// newWeather starts a Redis of a kind.
func newWeather(t testing.TB, on, coverage string, budgets [2]time.Duration) *weather {
	w := &weather{
		source: &source{rows: map[string]string{}}, namespace: "weather", budgets: budgets, test: t, proxies: map[string]*redistest.Proxy{},
	}
	switch on {
	case "standalone":
		w.server = redistest.Start(t)
	case "sentinel":
		w.sentinel = redistest.StartSentinel(t)
	case "cluster":
		w.cluster = redistest.StartCluster(t, "--cluster-require-full-coverage", coverage)
	}
	w.a, w.rdb = w.open(t)
	w.b, _ = w.open(t)
	return w
}

// nodes are the servers that hold data.
func (w *weather) nodes() []*redistest.Server {
	switch {
	case w.cluster != nil:
		return w.cluster.Nodes()
	case w.sentinel != nil:
		return []*redistest.Server{w.sentinel.Master(), w.sentinel.Replica()}
	}
	return []*redistest.Server{w.server}
}

// client makes a Redis client whose connections all pass a proxy.
func (w *weather) client(t testing.TB) redis.UniversalClient {
	switch {
	case w.cluster != nil:
		return w.cluster.Client(t, func(o *redis.ClusterOptions) { o.Dialer = w.dial })
	case w.sentinel != nil:
		return w.sentinel.Client(t, func(o *redis.FailoverOptions) { o.Dialer = w.dial })
	}
	return w.server.Client(t, func(o *redis.Options) { o.Dialer = w.dial })
}

func (w *weather) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if w.sentinel == nil || addr != w.sentinel.Addr() {
		addr = w.proxy(addr).Addr()
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

func (w *weather) proxy(addr string) *redistest.Proxy {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.proxies[addr] == nil {
		w.proxies[addr] = redistest.NewProxy(w.test, addr)
	}
	return w.proxies[addr]
}

// ways does something with the proxies of all nodes.
func (w *weather) ways(do func(*redistest.Proxy)) {
	for _, node := range w.nodes() {
		do(w.proxy(node.Addr()))
	}
}

// open opens an instance whose bus hears.
func (w *weather) open(t testing.TB) (*instance, redis.UniversalClient) {
	t.Helper()
	rdb := w.client(t)
	client, err := cache.Open(rdb, cache.Config{
		Namespace: w.namespace, ReadBudget: w.budgets[0], WriteBudget: w.budgets[1], Heartbeat: 100 * time.Millisecond,
		DegradedTTL: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	mustDo(t, err)
	t.Cleanup(func() { client.Close() }) // a cache that could not be closed leaks, which is found
	users, err := cache.New(client, "users", w.load, cache.Policy{TTL: time.Hour})
	mustDo(t, err)
	i := &instance{Cache: users, client: client}
	eventually(t, "a bus that hears", i.live)
	return i, rdb
}

// keys returns the names of n rows, all of which stand on a node if there is one.
func (w *weather) keys(t testing.TB, n int, wanted func(*weather, *redistest.Server) bool) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("row-", i)
		if wanted == nil || wanted(w, w.cluster.NodeFor(w.a.PhysicalKey(t, key))) {
			keys = append(keys, key)
		}
	}
	return keys
}

// fault is one kind of weather, and what it does to calls. The table in the package comment is made of it.
type fault struct {
	name     string
	on       string // the kinds of Redis on which it can happen
	coverage string // of a cluster: whether full coverage is required
	hangs    bool   // budgets end calls; they are short then, else so long that a busy machine does not look like this fault
	begin    func(*testing.T, *weather) (end func())
	wanted   func(*weather, *redistest.Server) bool // the nodes of the keys that are looked at; nil: any

	reads   string // who answers Get and GetMany
	writes  string // what Update and Invalidate return
	counted string // the kinds of error in ClientStats.RedisErrors; one of those divided by a slash
	breaker string // opens, or stays closed
}

const (
	byRedis  = "Redis"
	byLoader = "loader"
	written  = "nil"
	owed     = "ErrUnconfirmed"
	opens    = "opens"
	closed   = "-"
)

// row is the fault's line in the table of the package comment.
func (f *fault) row() string {
	return strings.TrimRight(fmt.Sprintf("%-46s %-8s %-15s %-38s %s", f.name, f.reads, f.writes, f.counted, f.breaker), " ")
}

// TestTheTableOfTheDocIsTheFaultMatrix: the package comment says what TestWeather shows.
func TestTheTableOfTheDocIsTheFaultMatrix(t *testing.T) {
	head := fault{name: "what befalls Redis", reads: "Get", writes: "writes", counted: "counted as", breaker: "breaker"}
	table := "//	" + head.row() + "\n"
	for _, f := range faults {
		table += "//	" + f.row() + "\n"
	}
	doc, err := os.ReadFile("doc.go")
	mustDo(t, err)
	if !strings.Contains(string(doc), table) {
		t.Errorf("doc.go must hold this table:\n%s", table)
	}
}

// TestWeather is the fault matrix: each fault, on each kind of Redis on which it can happen, and each call.
func TestWeather(t *testing.T) {
	for _, f := range faults {
		for _, on := range strings.Fields(f.on) {
			t.Run(f.name+", "+on, func(t *testing.T) {
				t.Parallel()
				f.test(t, on)
			})
		}
	}
}

func (f *fault) test(t *testing.T, on string) {
	budgets := [2]time.Duration{patience, patience}
	if f.hangs {
		budgets = [2]time.Duration{100 * time.Millisecond, 250 * time.Millisecond}
	}
	w := newWeather(t, on, f.coverage, budgets)
	keys := w.keys(t, 42, f.wanted)
	updated, invalidated := keys[40], keys[41]
	for _, key := range keys {
		w.put(key, v1)
	}
	for _, i := range []*instance{w.a, w.b} {
		m, err := i.GetMany(t.Context(), keys)
		if len(m) != len(keys) || err != nil {
			t.Fatalf("before: %d of %d keys, %v", len(m), len(keys), err)
		}
		i.client.Idle(t)
	}
	w.a.client.DropLocal()
	before := w.a.client.Stats().RedisErrors

	end := f.begin(t, w)
	f.reading(t, w, keys[:40])
	f.writing(t, w, updated, invalidated)
	f.counting(t, before, w.a.client.Stats())
	end()

	// Redis is used again, by all; what could not be deleted is gone.
	for _, i := range []*instance{w.a, w.b} {
		eventually(t, "Redis is used again", func() bool {
			i.client.DropLocal()
			r, err := i.GetResult(t.Context(), keys[0])
			i.client.Idle(t)
			return err == nil && r.Value == v1 && r.Tier == cache.TierRedis
		})
	}
	eventually(t, "nothing is owed", func() bool { return w.a.Stats().UnconfirmedKeys == 0 })
	eventually(t, "a bus that hears", w.a.live)
	fresh, _ := w.open(t)
	for _, key := range []string{updated, invalidated} {
		fresh.says(t, key, v2)
		w.a.says(t, key, v2)
		w.b.comes(t, key, v2)
	}
	eventually(t, "a healthy Redis", func() bool {
		w.a.client.DropLocal()
		_, err := w.a.GetMany(t.Context(), keys)
		mustDo(t, err)
		return w.a.client.Stats().SickNodes == 0
	})
}

// bounded checks how long a call took. What go-redis waits by default is 5 s and more.
func (w *weather) bounded(t *testing.T, call string, do func()) {
	t.Helper()
	began := time.Now()
	do()
	if took, most := time.Since(began), 2*(w.budgets[0]+w.budgets[1])+2*time.Second; took > most {
		t.Errorf("%s took %v, more than %v", call, took, most)
	}
}

// reading checks who answers, while nobody holds the keys but Redis.
func (f *fault) reading(t *testing.T, w *weather, keys []string) {
	t.Helper()
	tier := cache.TierRedis
	if f.reads == byLoader {
		tier = cache.TierLoader
	}
	for _, key := range keys[:20] {
		w.bounded(t, "Get", func() {
			if r, err := w.a.GetResult(t.Context(), key); err != nil || r.Value != v1 || r.Tier != tier {
				t.Errorf("Get of %s: %+v, %v; want it from %v", key, r, err, tier)
			}
		})
	}
	loads := w.loads()
	w.bounded(t, "GetMany", func() {
		m, err := w.a.GetMany(t.Context(), keys[20:])
		if err != nil || len(m) != 20 {
			t.Errorf("GetMany: %d of 20 keys, %v", len(m), err)
		}
		for key, v := range m {
			if v != v1 {
				t.Errorf("GetMany: %s is %q", key, v)
			}
		}
	})
	if loaded := w.loads() > loads; loaded != (f.reads == byLoader) {
		t.Errorf("GetMany called the loader: %v; it is to come from: %s", loaded, f.reads)
	}
}

// writing checks what writers are told, and that this instance serves what they wrote, whatever that was.
func (f *fault) writing(t *testing.T, w *weather, updated, invalidated string) {
	t.Helper()
	told := func(call string, err error) {
		if f.writes == written && err != nil || f.writes == owed && !errors.Is(err, cache.ErrUnconfirmed) {
			t.Errorf("%s: %v; want %s", call, err, f.writes)
		}
	}
	w.bounded(t, "Update", func() {
		v, err := w.a.Update(t.Context(), updated, func(context.Context) (string, error) { w.put(updated, v2); return v2, nil })
		if v != v2 {
			t.Errorf("Update returned %q", v)
		}
		told("Update", err)
	})
	w.put(invalidated, v2)
	w.bounded(t, "Invalidate", func() { told("Invalidate", w.a.Invalidate(t.Context(), invalidated)) })
	w.a.says(t, updated, v2)
	w.a.says(t, invalidated, v2)
}

// counting checks what was counted.
func (f *fault) counting(t *testing.T, before map[string]uint64, stats cache.ClientStats) {
	t.Helper()
	kinds := map[string]bool{}
	for kind, n := range stats.RedisErrors {
		if n > before[kind] {
			kinds[kind] = true
		}
	}
	opened := kinds["breaker_open"]
	delete(kinds, "breaker_open")
	if opened != (f.breaker == opens) {
		t.Errorf("the breaker opened: %v; want that it %s: %v", opened, f.breaker, stats.RedisErrors)
	}
	if len(kinds) == 0 {
		kinds["nothing"] = true
	}
	found := false
	for _, kind := range strings.Split(f.counted, " / ") {
		found = found || kinds[kind]
		delete(kinds, kind)
	}
	if !found || len(kinds) > 0 && !f.hangs {
		t.Errorf("counted %v; want %q", stats.RedisErrors, f.counted)
	}
}
