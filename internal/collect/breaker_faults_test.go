package collect_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/collect"
	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/redistest"
)

// fault makes a Redis sick, and well again.
type fault struct {
	name   string
	strike func(t *testing.T, s *redistest.Server, p *redistest.Proxy, rdb *redis.Client) (heal func())
	clone  bool // whether one of the client can be made
}

var faults = []fault{
	{"stopped", func(t *testing.T, s *redistest.Server, _ *redistest.Proxy, _ *redis.Client) func() {
		s.Stop(t)
		return func() { s.StartAgain(t) }
	}, true},
	{"cut", func(_ *testing.T, _ *redistest.Server, p *redistest.Proxy, _ *redis.Client) func() {
		p.Refuse(true)
		p.Cut()
		return func() { p.Refuse(false) }
	}, true},
	{"hung", hang, true},
	{"hung, no clone", hang, false},
	{"loading", func(t *testing.T, s *redistest.Server, _ *redistest.Proxy, _ *redis.Client) func() {
		return s.Loading(t)
	}, true},
	{"busy", func(t *testing.T, s *redistest.Server, _ *redistest.Proxy, _ *redis.Client) func() {
		s.Config(t, "busy-reply-threshold", "1")
		ended := make(chan error, 1)
		endless := s.Client(t, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = -1, -1 })
		go func() { ended <- endless.Eval(context.Background(), "while true do end", nil).Err() }()
		until(t, "it is busy", func() bool {
			return redis.HasErrorPrefix(s.Admin().Get(context.Background(), "k").Err(), "BUSY")
		})
		return func() { s.Admin().ScriptKill(context.Background()); <-ended }
	}, true},
	{"no connection left", func(t *testing.T, s *redistest.Server, p *redistest.Proxy, _ *redis.Client) func() {
		s.Config(t, "maxclients", "1")
		p.Cut()
		return func() { s.Admin().ConfigSet(context.Background(), "maxclients", "100") }
	}, true},
	{"full pool", func(t *testing.T, _ *redistest.Server, _ *redistest.Proxy, rdb *redis.Client) func() {
		return redistest.ExhaustPool(t, rdb)
	}, true},
}

func hang(_ *testing.T, _ *redistest.Server, p *redistest.Proxy, _ *redis.Client) func() {
	p.Freeze(redistest.ToClient)
	return p.Thaw
}

// TestASickRedisIsLeftInPeace after few calls, and found again when it is well.
func TestASickRedisIsLeftInPeace(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			rdb := server.Client(t, func(o *redis.Options) {
				o.Addr, o.DialerRetries, o.PoolSize, o.ReadTimeout, o.PoolTimeout = proxy.Addr(), 1, 20, ample, 100*time.Millisecond
			})
			var client redis.UniversalClient = rdb
			if !f.clone {
				client = struct{ redis.UniversalClient }{rdb}
			}
			c := open(t, client, 300*time.Millisecond)
			answered := func() bool { _, err := c.Get(context.Background(), "k"); return err == redis.Nil }
			until(t, "a call is answered", answered)
			heal := f.strike(t, server, proxy, rdb)
			calls := 0
			for ; c.Sick() == 0 && calls < 10; calls++ {
				if answered() {
					t.Fatal("a sick Redis answers")
				}
			}
			if c.Sick() != 1 || calls > 6 {
				t.Errorf("%d breakers are open after %d calls", c.Sick(), calls)
			}
			trips := c.Trips()
			if _, err := c.Get(context.Background(), "k"); !errors.Is(err, rediscall.ErrBreakerOpen) || c.Trips() != trips {
				t.Errorf("a call of a sick Redis: %v", err)
			}
			heal()
			until(t, "Redis is found again", answered)
			if c.Sick() != 0 {
				t.Error("the breaker is open, and a call was answered")
			}
		})
	}
}

// TestASlowRedisIsNotSick: it keeps its callers beyond the leash, and some leave.
func TestASlowRedisIsNotSick(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	c := open(t, server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), ample)
	fill(t, server.Admin(), "k", 1)
	proxy.Delay(redistest.ToClient, 30*time.Millisecond)
	for n := range 30 {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Millisecond)
		_, err := c.Get(ctx, "k0")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("read %d, which leaves: %v", n, err)
		}
		if v, err := c.Get(context.Background(), "k0"); v != "k0" || err != nil {
			t.Errorf("read %d: %q, %v", n, v, err)
		}
		isSick(t, c, 0, "a slow Redis")
	}
}

// TestAClientThatIsClosedIsNotSick: nobody can ask it any more.
func TestAClientThatIsClosedIsNotSick(t *testing.T) {
	server := redistest.Shared(t)
	for _, clone := range []bool{true, false} {
		rdb := server.Client(t)
		var client redis.UniversalClient = rdb
		if !clone {
			client = struct{ redis.UniversalClient }{rdb}
		}
		c := open(t, client, ample)
		rdb.Close()
		for range 20 {
			if _, err := c.Get(context.Background(), "k"); !errors.Is(err, redis.ErrClosed) {
				t.Error(err)
			}
		}
		isSick(t, c, 0, "a closed client")
	}
}

// TestOneSilentNodeIsSick, and the others are asked as before.
func TestOneSilentNodeIsSick(t *testing.T) {
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	c := open(t, cluster.Client(t), time.Second)
	ctx, silent := context.Background(), cluster.Nodes()[1]
	var keys []string
	for i := range 30 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	isWell := func(key string) bool { return cluster.NodeFor(key) != silent }
	look := func(well func(key string) bool) (odd string) {
		reads, cmds := make([]collect.Read, len(keys)), make([]*rediscall.Command, len(keys))
		for i, key := range keys {
			cmds[i] = rediscall.NewCommand(ctx, "get", key)
		}
		if err := errors.Join(c.GetMany(ctx, keys, reads), c.Do(ctx, cmds...)); err != nil {
			return err.Error()
		}
		for i, key := range keys {
			_, alone := c.Get(ctx, key)
			for _, err := range []error{alone, reads[i].Err, cmds[i].Err()} {
				if well(key) && err != redis.Nil || !well(key) && !errors.Is(err, rediscall.ErrBreakerOpen) {
					odd = fmt.Sprintf("%s: %v", key, err)
				}
			}
		}
		return odd
	}
	all := func(string) bool { return true }
	until(t, "all nodes answer", func() bool { return look(all) == "" })
	silent.Pause(t)
	for _, key := range keys {
		if !isWell(key) && c.Sick() == 0 {
			_, _ = c.Get(ctx, key)
		}
	}
	isSick(t, c, 1, "one silent node")
	for range 3 {
		began := time.Now()
		if odd := look(isWell); odd != "" {
			t.Error(odd)
		}
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("the others were held up: %v", took)
		}
		isSick(t, c, 1, "one silent node")
	}
	silent.Resume(t)
	cluster.AwaitOK(t)
	until(t, "all nodes answer again", func() bool { return look(all) == "" })
	isSick(t, c, 0, "all nodes are well")
}

// TestKeysOfADeadNodeAreFoundElsewhere: the slots of a node are given to another while its breaker is open.
func TestKeysOfADeadNodeAreFoundElsewhere(t *testing.T) {
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	c := open(t, cluster.Client(t), 300*time.Millisecond)
	ctx, heir, dead, key := context.Background(), cluster.Nodes()[0], cluster.Nodes()[1], "k"
	for cluster.NodeFor(key) != dead {
		key += "k"
	}
	answered := func() bool { _, err := c.Get(ctx, key); return err == redis.Nil }
	until(t, "a call is answered", answered)
	id := dead.Admin().ClusterMyID(ctx).Val()
	dead.Kill(t)
	until(t, "its breaker is open", func() bool { return !answered() && c.Sick() == 1 })
	for began := time.Now(); time.Since(began) < 2500*time.Millisecond; time.Sleep(10 * time.Millisecond) {
		answered() // until all that looked for the nodes anew after the failures has seen what was
	}
	err := errors.Join(heir.Admin().ClusterForget(ctx, id).Err(), cluster.Nodes()[2].Admin().ClusterForget(ctx, id).Err(),
		heir.Admin().ClusterAddSlotsRange(ctx, 16384/3+1, 16384*2/3).Err())
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the key is found on its new node", answered)
	until(t, "nobody is sick", func() bool { return answered() && c.Sick() == 0 })
}
