package cache_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// topology is a way to run Redis.
type topology struct {
	nodes   func() []*redistest.Server
	nodeFor func(key string) *redistest.Server // nil where there is but one
	client  func(t testing.TB, d *door, db int) redis.UniversalClient
}

func standalone(t testing.TB) *topology {
	server := redistest.Shared(t)
	return &topology{
		nodes: func() []*redistest.Server { return []*redistest.Server{server} },
		client: func(t testing.TB, d *door, db int) redis.UniversalClient {
			return server.Client(t, func(o *redis.Options) { o.DB, o.Dialer, o.DialerRetries, o.ReadTimeout = db, d.dial, 1, patience })
		},
	}
}

func sentinel(t testing.TB) *topology { return sentinelOf(redistest.StartSentinel(t), patience) }

func sentinelOf(s *redistest.Sentinel, timeout time.Duration) *topology {
	return &topology{
		nodes: func() []*redistest.Server { return []*redistest.Server{s.Master(), s.Replica()} },
		client: func(t testing.TB, d *door, db int) redis.UniversalClient {
			return s.Client(t, func(o *redis.FailoverOptions) {
				o.DB, o.Dialer, o.DialerRetries, o.ReadTimeout = db, d.dial, 1, timeout
			})
		},
	}
}

func cluster(t testing.TB) *topology { return clusterOf(redistest.SharedCluster(t), patience) }

func clusterOf(c *redistest.Cluster, timeout time.Duration) *topology {
	return &topology{
		nodes: c.Nodes, nodeFor: c.NodeFor,
		client: func(t testing.TB, d *door, _ int) redis.UniversalClient {
			return c.Client(t, func(o *redis.ClusterOptions) { o.Dialer, o.DialerRetries, o.ReadTimeout = d.dial, 1, timeout })
		},
	}
}

// killSubscriptions closes the connections that hear, from the servers' side.
func (w *topology) killSubscriptions(t testing.TB) {
	for _, node := range w.nodes() {
		node.KillClients(t, "pubsub")
	}
}

// door stands before all new connections of one Redis client.
type door struct{ shut atomic.Bool }

func (d *door) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.shut.Load() {
		return nil, errors.New("the door is shut")
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// mode is what the instances of a pair have.
type mode struct{ local, bus bool }

// pair is two instances on one Redis and one source.
type pair struct {
	*source
	*topology
	mode
	namespace string
	change    []func(*setup)
	a, b      *instance
	toB       *door // before the connections of b
}

// newPair opens two instances that keep what they have for an hour.
func newPair(t testing.TB, on *topology, m mode, change ...func(*setup)) *pair {
	t.Helper()
	p := &pair{
		source: &source{rows: map[string]string{}}, topology: on, mode: m, namespace: on.nodes()[0].Prefix(t),
		change: change, toB: &door{},
	}
	p.a = p.open(t, new(door), 0)
	p.b = p.open(t, p.toB, 0)
	return p
}

// meeting is for instances that must hear of one another: where the bus is off, the local tier must not keep for long.
func (m mode) meeting(s *setup) {
	if m.local && !m.bus {
		s.policy.LocalTTL = 50 * time.Millisecond
	}
}

// open opens an instance, and waits until it has looked at Redis and its bus hears.
func (p *pair) open(t testing.TB, d *door, db int, change ...func(*setup)) *instance {
	t.Helper()
	s := setup{
		config: cache.Config{
			Namespace: p.namespace, ReadBudget: patience, WriteBudget: patience, Heartbeat: cache.Off, DegradedTTL: time.Hour,
			Logger: slog.New(slog.DiscardHandler),
		},
		policy: cache.Policy{TTL: 2 * time.Hour, LocalTTL: time.Hour, NegativeTTL: time.Hour, LocalEntries: 10_000},
		loader: p.load,
	}
	if p.bus {
		s.config.Heartbeat = 30 * time.Millisecond
	}
	if !p.local {
		s.policy.LocalTTL = cache.Off
	}
	for _, c := range append(p.change, change...) {
		c(&s)
	}
	client, err := cache.Open(p.client(t, d, db), s.config)
	mustDo(t, err)
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !t.Failed() {
			t.Errorf("close: %v", err)
		}
	})
	users, err := cache.New(client, "users", s.loader, s.policy)
	mustDo(t, err)
	i := &instance{Cache: users, client: client}
	client.Idle(t)
	if p.bus {
		eventually(t, "a bus that hears", i.live)
	}
	return i
}

func (i *instance) live() bool { return i.client.Bus().Live() }

// gaps is how often the bus of an instance may have missed something.
func (i *instance) gaps() (n uint64) {
	for _, count := range i.client.Bus().Health().Gaps {
		n += count
	}
	return n
}

// nothing is what look returns for a row that is not there.
const nothing = "not found"

// look returns what a Get that begins now says.
func (i *instance) look(t testing.TB, key string) string {
	t.Helper()
	v, err := i.Get(t.Context(), key)
	switch {
	case errors.Is(err, cache.ErrNotFound):
		return nothing
	case err != nil:
		return err.Error()
	}
	return v
}

// says checks what a Get that begins now returns.
func (i *instance) says(t testing.TB, key, want string) {
	t.Helper()
	if got := i.look(t, key); got != want {
		t.Errorf("a Get of %q says %q, want %q", key, got, want)
	}
}

// comes waits until an instance has heard of a change: by the bus, or by the end of its local TTL.
func (i *instance) comes(t testing.TB, key, want string) {
	t.Helper()
	eventually(t, "Get of "+key+" says "+want, func() bool { return i.look(t, key) == want })
}

// nearest is the tier that answers what an instance has asked for before.
func (p *pair) nearest() cache.Tier {
	if p.local {
		return cache.TierLocal
	}
	return cache.TierRedis
}

// settles waits until the nearest tier answers. That need not be at once: a gap of the bus voids what the local tier holds.
func (p *pair) settles(t testing.TB, i *instance, key, want string) {
	t.Helper()
	eventually(t, "an answer from the tier "+p.nearest().String(), func() bool {
		i.says(t, key, want)
		i.client.Idle(t)
		r, _ := i.GetResult(t.Context(), key)
		return r.Tier == p.nearest() && r.Why == cache.WhyHit
	})
}

// loaded checks how many calls of the loader there were.
func (p *pair) loaded(t testing.TB, want int) {
	t.Helper()
	if n := p.loads(); n != want {
		t.Errorf("%d calls of the loader, want %d", n, want)
	}
}

// both makes both instances hold a value.
func (p *pair) both(t testing.TB, key, value string) {
	t.Helper()
	p.put(key, value)
	for _, i := range []*instance{p.a, p.b} {
		i.says(t, key, value)
		i.client.Idle(t)
	}
}

// changes puts a value into the source and invalidates it on one instance.
func (p *pair) changes(t testing.TB, i *instance, key, value string) {
	t.Helper()
	p.put(key, value)
	mustDo(t, i.Invalidate(t.Context(), key))
}

// TestBehaviour: the cache does the same on every topology, with and without a local tier and a bus.
func TestBehaviour(t *testing.T) {
	onOff := func(name string, on bool) string {
		if on {
			return name + " on"
		}
		return name + " off"
	}
	for _, top := range []struct {
		name  string
		start func(testing.TB) *topology
	}{{"standalone", standalone}, {"sentinel", sentinel}, {"cluster", cluster}} {
		t.Run(top.name, func(t *testing.T) {
			on := top.start(t)
			for _, local := range []bool{true, false} {
				t.Run(onOff("local", local), func(t *testing.T) {
					for _, bus := range []bool{true, false} {
						t.Run(onOff("bus", bus), func(t *testing.T) {
							for _, b := range behaviours {
								m := mode{local, bus}
								if b.bus && !bus || b.databases && top.name == "cluster" {
									continue // there is no such thing
								}
								t.Run(b.name, func(t *testing.T) { b.test(t, on, m) })
							}
						})
					}
				})
			}
		})
	}
}
