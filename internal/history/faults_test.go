package history

import (
	"context"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
)

// topology is a Redis of one kind, and what can go wrong with it.
type topology struct {
	where   string // the kind and the addresses, for dial
	cluster bool
	client  func(testing.TB) redis.UniversalClient                   // goes straight
	through func(testing.TB, *redistest.Proxy) redis.UniversalClient // goes through a proxy; nil where that is not possible
	server  *redistest.Server                                        // for a proxy to lead to
	faults  map[string]func(testing.TB, *world)
}

// fault times: shorter and longer than the silence of three heartbeats.
func someTime() time.Duration { return 60*time.Millisecond + rand.N(240*time.Millisecond) }

// hold keeps a fault up.
func hold() { time.Sleep(someTime()) }

func standalone(t testing.TB) *topology {
	server := redistest.Start(t, "--save", "")
	return &topology{
		where: "standalone " + server.Addr(), server: server,
		client: func(t testing.TB) redis.UniversalClient { return server.Client(t) },
		through: func(t testing.TB, p *redistest.Proxy) redis.UniversalClient {
			return server.Client(t, func(o *redis.Options) { o.Addr = p.Addr() })
		},
		faults: map[string]func(testing.TB, *world){
			"kill pub/sub":    func(t testing.TB, _ *world) { server.KillClients(t, "pubsub") },
			"kill clients":    func(t testing.TB, _ *world) { server.KillClients(t, "normal") },
			"cut":             func(_ testing.TB, w *world) { w.proxy().Cut() },
			"black hole":      func(_ testing.TB, w *world) { p := w.proxy(); p.BlackHole(); hold(); p.Heal() },
			"frozen replies":  func(_ testing.TB, w *world) { p := w.proxy(); p.Freeze(redistest.ToClient); hold(); p.Thaw() },
			"frozen requests": func(_ testing.TB, w *world) { p := w.proxy(); p.Freeze(redistest.ToServer); hold(); p.Thaw() },
			"server stopped":  func(t testing.TB, _ *world) { server.Pause(t); hold(); server.Resume(t) },
			"restarted empty": func(t testing.TB, _ *world) { server.Kill(t); server.RestartEmpty(t) },
			"flushed":         func(_ testing.TB, _ *world) { server.Admin().FlushAll(context.Background()) },
			"process stopped": pauseMember,
			"slow": func(_ testing.TB, w *world) {
				p := w.proxy()
				p.Delay(redistest.ToClient, 2*readBudget)
				hold()
				p.Delay(redistest.ToClient, 0)
			},
			"out of memory": asked(server, []any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}),
			"read-only":     asked(server, []any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}),
			"long outage": func(t testing.TB, _ *world) {
				server.Kill(t)
				time.Sleep(1200 * time.Millisecond)
				server.StartAgain(t)
			},
		},
	}
}

// asked lets a server fall sick by a command, and recover by another.
func asked(server *redistest.Server, begin, end []any) func(testing.TB, *world) {
	return func(t testing.TB, _ *world) {
		for _, command := range [][]any{begin, end} {
			if err := server.Admin().Do(context.Background(), command...).Err(); err != nil {
				t.Error(err)
			}
			hold()
		}
	}
}

func pauseMember(t testing.TB, w *world) {
	if err := w.member.pause(); err != nil {
		t.Error(err)
	}
	hold()
	if err := w.member.resume(); err != nil {
		t.Error(err)
	}
}

func sentinel(t testing.TB) *topology {
	s := redistest.StartSentinel(t)
	return &topology{
		where:  "sentinel " + s.Addr(),
		client: func(t testing.TB) redis.UniversalClient { return s.Client(t) },
		faults: map[string]func(testing.TB, *world){
			"kill pub/sub":    func(t testing.TB, _ *world) { s.Master().KillClients(t, "pubsub") },
			"kill clients":    func(t testing.TB, _ *world) { s.Master().KillClients(t, "normal") },
			"server stopped":  func(t testing.TB, _ *world) { m := s.Master(); m.Pause(t); hold(); m.Resume(t) },
			"process stopped": pauseMember,
			"failover": func(t testing.TB, w *world) {
				w.check.forget() // what the old master confirms now may be lost
				s.Failover(t)
				awaitReplica(t, s.Replica())
				w.check.forget()
			},
		},
	}
}

// awaitReplica returns when a server has seen that it is a replica: from then on it confirms no write.
func awaitReplica(t testing.TB, s *redistest.Server) {
	t.Helper()
	eventually(t, "the old master is a replica", func() bool {
		return strings.Contains(s.Admin().Info(context.Background(), "replication").Val(), "role:slave")
	})
}

func cluster(t testing.TB) *topology {
	c := redistest.StartCluster(t)
	var addrs []string
	for _, node := range c.Nodes() {
		addrs = append(addrs, node.Addr())
	}
	one := func() *redistest.Server { return c.Nodes()[rand.N(len(addrs))] }
	return &topology{
		where: "cluster " + strings.Join(addrs, ","), cluster: true,
		client: func(t testing.TB) redis.UniversalClient {
			return c.Client(t, func(o *redis.ClusterOptions) {
				// A connection to a stopped node must not take seconds.
				o.ReadTimeout, o.WriteTimeout, o.DialTimeout = time.Second, time.Second, time.Second
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					d := net.Dialer{Timeout: time.Second}
					return d.DialContext(ctx, network, addr)
				}
			})
		},
		faults: map[string]func(testing.TB, *world){
			"kill pub/sub": func(t testing.TB, _ *world) {
				for _, node := range c.Nodes() {
					node.KillClients(t, "pubsub")
				}
			},
			"kill clients":    func(t testing.TB, _ *world) { one().KillClients(t, "normal") },
			"server stopped":  func(t testing.TB, _ *world) { node := one(); node.Pause(t); hold(); node.Resume(t) },
			"process stopped": pauseMember,
		},
	}
}

// proxy is the way of one of the instances.
func (w *world) proxy() *redistest.Proxy { return w.proxies[w.random.IntN(len(w.proxies))] }

// weather lets each fault happen some times, in an order that follows from the seed, with a pause of good weather behind each,
// and goes on with faults until enough answers were checked.
func (w *world) weather(t testing.TB, times, answers int) (seen map[string]int) {
	seen = map[string]int{}
	names := slices.Sorted(maps.Keys(w.topology.faults))
	for done := false; !done; {
		w.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			w.lastFault.Store(time.Now().Add(time.Hour).UnixNano())
			w.topology.faults[name](t, w)
			w.lastFault.Store(time.Now().UnixNano())
			seen[name]++
			if t.Failed() {
				return seen
			}
			time.Sleep(someTime()) // good weather, as much as it takes to hear again or less
			if w.topology.cluster {
				time.Sleep(found)
			}
		}
		done = seen[names[0]] >= times && w.check.count() >= answers
	}
	return seen
}
