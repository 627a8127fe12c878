package cache_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
)

const (
	everywhere = "standalone sentinel cluster"
	noSentinel = "standalone cluster" // where Sentinel would promote the replica, which is another fault
)

var faults = []fault{
	{
		name: "stopped (SIGSTOP)", on: noSentinel, coverage: "yes", hangs: true, begin: onNodes((*redistest.Server).Pause, (*redistest.Server).Resume),
		reads: byLoader, writes: owed, counted: "timeout", breaker: opens,
	},
	{
		name: "killed", on: "standalone", hangs: true, begin: onNodes((*redistest.Server).Kill, (*redistest.Server).StartAgain),
		reads: byLoader, writes: owed, counted: "transport / timeout", breaker: opens,
	},
	{
		name: "restarted empty", on: "standalone", begin: onNodes((*redistest.Server).RestartEmpty, nil),
		reads: byLoader, writes: written, counted: "nothing / transport", breaker: closed,
	},
	{
		name: "black hole", on: everywhere, coverage: "yes", hangs: true, begin: onWays((*redistest.Proxy).BlackHole, func(p *redistest.Proxy) { p.Heal() }),
		reads: byLoader, writes: owed, counted: "timeout", breaker: opens,
	},
	{
		name: "300 ms slow", on: everywhere, coverage: "yes", hangs: true, begin: onWays(
			func(p *redistest.Proxy) { p.Delay(redistest.ToClient, 300*time.Millisecond) },
			func(p *redistest.Proxy) { p.Delay(redistest.ToClient, 0) },
		),
		reads: byLoader, writes: owed, counted: "timeout", breaker: opens,
	},
	{
		name: "connections refused", on: everywhere, coverage: "yes", hangs: true, begin: onWays(
			func(p *redistest.Proxy) { p.Refuse(true); p.Cut() },
			func(p *redistest.Proxy) { p.Refuse(false) },
		),
		reads: byLoader, writes: owed, counted: "transport / timeout", breaker: opens,
	},
	{
		name: "out of memory", on: everywhere, coverage: "yes", begin: admin([]any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}),
		reads: byRedis, writes: written, counted: "oom", breaker: closed,
	},
	{
		name: "read-only", on: "standalone", begin: admin([]any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}),
		reads: byRedis, writes: owed, counted: "read_only", breaker: closed,
	},
	{
		name: "too few replicas", on: noSentinel, coverage: "yes",
		begin: admin([]any{"config", "set", "min-replicas-to-write", "3"}, []any{"config", "set", "min-replicas-to-write", "0"}),
		reads: byRedis, writes: owed, counted: "master_down", breaker: closed,
	},
	{
		name: "loading its data", on: "standalone", begin: func(t *testing.T, w *weather) func() { return w.server.Loading(t) },
		reads: byLoader, writes: owed, counted: "loading", breaker: opens,
	},
	{
		name: "a script that does not end", on: noSentinel, coverage: "yes", begin: busy,
		reads: byLoader, writes: owed, counted: "busy", breaker: opens,
	},
	{
		name: "no connection free", on: "standalone sentinel", hangs: true,
		begin: func(t *testing.T, w *weather) func() { return redistest.ExhaustPool(t, w.rdb.(*redis.Client)) },
		reads: byLoader, writes: owed, counted: "pool / timeout", breaker: opens,
	},
	{
		name: "rights withdrawn", on: everywhere, coverage: "yes", begin: admin(
			[]any{"acl", "setuser", "default", "-get", "-mget", "-eval", "-evalsha"}, []any{"acl", "setuser", "default", "+@all"},
		),
		reads: byLoader, writes: owed, counted: "denied", breaker: closed,
	},
	{
		name: "a master is dead: its keys", on: "cluster", coverage: "no", hangs: true, begin: deadMaster, wanted: onDead,
		reads: byLoader, writes: owed, counted: "transport / timeout / cluster_down", breaker: opens,
	},
	{
		name: "a master is dead: the other keys", on: "cluster", coverage: "no", begin: deadMaster, wanted: onLiving,
		reads: byRedis, writes: written, counted: "nothing", breaker: closed,
	},
	{
		name: "a master is dead, full coverage is required", on: "cluster", coverage: "yes", hangs: true, begin: deadMaster, wanted: onLiving,
		reads: byLoader, writes: owed, counted: "cluster_down", breaker: opens,
	},
	{
		name: "after a failover", on: "sentinel", hangs: true, begin: func(t *testing.T, w *weather) func() {
			w.sentinel.Replica().CatchUp(t)
			w.sentinel.KillMaster(t)
			return func() {}
		},
		reads: byRedis, writes: written, counted: "nothing / transport / timeout", breaker: closed,
	},
}

// onNodes disturbs all servers.
func onNodes(begin, end func(*redistest.Server, testing.TB)) func(*testing.T, *weather) func() {
	return func(t *testing.T, w *weather) func() {
		for _, node := range w.nodes() {
			begin(node, t)
		}
		return func() {
			for _, node := range w.nodes() {
				if end != nil {
					end(node, t)
				}
			}
			if w.cluster != nil {
				w.cluster.AwaitOK(t)
			}
		}
	}
}

// onWays disturbs the ways to all servers.
func onWays(begin, end func(*redistest.Proxy)) func(*testing.T, *weather) func() {
	return func(_ *testing.T, w *weather) func() {
		w.ways(begin)
		return func() { w.ways(end) }
	}
}

// admin sends a command to all servers.
func admin(begin, end []any) func(*testing.T, *weather) func() {
	return onNodes(
		func(s *redistest.Server, t testing.TB) { mustDo(t, s.Admin().Do(t.Context(), begin...).Err()) },
		func(s *redistest.Server, t testing.TB) { mustDo(t, s.Admin().Do(t.Context(), end...).Err()) },
	)
}

// busy runs a script without end on all servers, until it is killed.
var busy = onNodes(
	func(s *redistest.Server, t testing.TB) {
		ctx := t.Context()
		mustDo(t, s.Admin().ConfigSet(ctx, "busy-reply-threshold", "1").Err())
		go s.Admin().Eval(ctx, "while true do end", nil)
		eventually(t, "BUSY", func() bool { return redis.HasErrorPrefix(s.Admin().Ping(ctx).Err(), "BUSY") })
	},
	func(s *redistest.Server, t testing.TB) { mustDo(t, s.Admin().ScriptKill(t.Context()).Err()) },
)

// deadMaster kills the first node of a cluster, and waits until the others know.
func deadMaster(t *testing.T, w *weather) func() {
	dead := w.cluster.Nodes()[0]
	dead.Kill(t)
	w.cluster.AwaitDead(t, dead)
	return func() {
		dead.StartAgain(t)
		w.cluster.AwaitOK(t)
	}
}

// onDead and onLiving want keys of the node that dies, or of the others.
func onDead(w *weather, node *redistest.Server) bool   { return node == w.cluster.Nodes()[0] }
func onLiving(w *weather, node *redistest.Server) bool { return !onDead(w, node) }
