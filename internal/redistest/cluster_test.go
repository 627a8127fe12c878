package redistest_test

import (
	"maps"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
)

// keyOn returns a key that lives on the node.
func keyOn(c *redistest.Cluster, node *redistest.Server, prefix string) string {
	for i := 0; ; i++ {
		if key := prefix + strconv.Itoa(i); c.NodeFor(key) == node {
			return key
		}
	}
}

func TestSharedClusterIsOneAndWhole(t *testing.T) {
	c := redistest.SharedCluster(t)
	if again := redistest.SharedCluster(t); again != c {
		t.Error("SharedCluster gave two clusters")
	}
	rdb := c.Client(t)
	for _, node := range c.Nodes() {
		key := keyOn(c, node, node.Prefix(t))
		if err := rdb.Set(ctx, key, "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
		wantValue(t, node, key, "v")
		f := new(fakeTB)
		if out := f.run(func() { node.Kill(f) }); !f.failed || !strings.Contains(out, "StartCluster") {
			t.Errorf("Kill was allowed: %s", out)
		}
	}
}

func TestClusterClientIsQuiet(t *testing.T) {
	c := redistest.SharedCluster(t)
	rdb := c.Client(t, func(o *redis.ClusterOptions) { o.PoolSize = 1 })
	if got := rdb.Options().PoolSize; got != 1 {
		t.Errorf("option not used: pool of %d", got)
	}
	node := c.Nodes()[2]
	key := keyOn(c, node, node.Prefix(t))
	if err := rdb.Set(ctx, key, "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	got := node.Commands(t, func() { rdb.Get(ctx, key) })
	delete(got, "cluster") // the client may look at the nodes at any time
	if !maps.Equal(got, map[string]int{"get": 1}) {
		t.Errorf("the node got %v", got)
	}
}

func TestNodeForAgreesWithTheServer(t *testing.T) {
	c := redistest.SharedCluster(t)
	shards, err := c.Nodes()[0].Admin().ClusterShards(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(shards) != 3 {
		t.Fatalf("%d shards", len(shards))
	}
	for _, key := range []string{
		"", "a", "{", "}{", "{}", "{a}", "x{}y", "{}{z}", "{{z}}", "a{b}c{d}", "a}{b}", "ü{ß}", `{"json":{}}`, "\x00\xff",
		strings.Repeat("long", 256),
	} {
		slot, err := c.Nodes()[0].Admin().ClusterKeySlot(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(c.NodeFor(key).Addr())
		for _, shard := range shards {
			holds := shard.Slots[0].Start <= slot && slot <= shard.Slots[0].End
			if is := strconv.FormatInt(shard.Nodes[0].Port, 10) == port; is != holds {
				t.Errorf("key %q, slot %d: NodeFor gives port %s", key, slot, port)
			}
		}
	}
}

func TestClusterWithADeadNode(t *testing.T) {
	t.Parallel()
	t.Run("full coverage required", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		alive, dead := c.Nodes()[0], c.Nodes()[1]
		key, lost := keyOn(c, alive, "k"), keyOn(c, dead, "k")
		rdb := c.Client(t, func(o *redis.ClusterOptions) { o.DialerRetries, o.MaxRedirects = 1, 1 })
		mustSet(t, alive, key, "v")
		mustSet(t, dead, lost, "v")

		dead.Kill(t)
		c.AwaitDead(t, dead)
		if err := rdb.Get(ctx, key).Err(); !redis.HasErrorPrefix(err, "CLUSTERDOWN") {
			t.Errorf("GET from a living node: %v", err)
		}
		dead.StartAgain(t)
		c.AwaitOK(t)
		wantValue(t, alive, key, "v")
		wantAbsent(t, dead, lost) // but its slots are its own again
		eventually(t, "the client at the node that is back", func() bool { return rdb.Set(ctx, lost, "new", 0).Err() == nil })
		wantValue(t, dead, lost, "new")
	})
	t.Run("not required", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
		alive, dead := c.Nodes()[0], c.Nodes()[1]
		key, lost := keyOn(c, alive, "k"), keyOn(c, dead, "k")
		rdb := c.Client(t, func(o *redis.ClusterOptions) { o.ReadTimeout, o.MaxRedirects = 200*time.Millisecond, 1 })
		mustSet(t, alive, key, "v")
		mustSet(t, dead, lost, "v")

		dead.Pause(t)
		c.AwaitDead(t, dead)
		if err := rdb.Get(ctx, lost).Err(); err == nil {
			t.Error("the dead node answered")
		}
		eventually(t, "an answer of a living node", func() bool { return rdb.Get(ctx, key).Val() == "v" })
		dead.Resume(t)
		c.AwaitOK(t)
		wantValue(t, dead, lost, "v")
	})
}

func TestClusterFailsClearly(t *testing.T) {
	c := redistest.SharedCluster(t)
	restore := redistest.ShortenPatience(20 * time.Millisecond)
	f := new(fakeTB)
	out := f.run(func() { c.AwaitDead(f, c.Nodes()[0]) })
	restore()
	if !f.failed || !strings.Contains(out, "the death of "+c.Nodes()[0].Addr()) {
		t.Errorf("failed %v with %q", f.failed, out)
	}

	t.Setenv("PATH", t.TempDir())
	for name, start := range map[string]func(testing.TB){
		"StartCluster":  func(t testing.TB) { redistest.StartCluster(t) },
		"StartSentinel": func(t testing.TB) { redistest.StartSentinel(t) },
		"Replica":       func(t testing.TB) { c.Nodes()[0].Replica(t) },
	} {
		f := new(fakeTB)
		if out := f.run(func() { start(f) }); !f.failed || !strings.Contains(out, "apt-get install redis-server") {
			t.Errorf("%s: failed %v with %q", name, f.failed, out)
		}
	}
	f = new(fakeTB)
	if out := f.run(func() { redistest.StartCluster(f, "--no-such-setting", "1") }); !f.failed {
		t.Errorf("a cluster without servers: %q", out)
	}
}
