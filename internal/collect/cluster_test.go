package collect_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/collect"
	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/redistest"
)

// TestALargeBatchOfAClusterHasItsWholeBudget: its replies take longer than a lone read may on the straight way.
func TestALargeBatchOfAClusterHasItsWholeBudget(t *testing.T) {
	rdb := redistest.StartCluster(t).Client(t)
	c := open(t, rdb, ample)
	ctx, value := context.Background(), strings.Repeat("x", 300_000)
	keys := make([]string, 100)
	for n := range keys {
		keys[n] = fmt.Sprint("k", n)
		if err := rdb.Set(ctx, keys[n], value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the client does not know its nodes before the first
		reads := make([]collect.Read, len(keys))
		if err := c.GetMany(ctx, keys, reads); err != nil {
			t.Fatal(err)
		}
		for i, r := range reads {
			if r.Err != nil || len(r.Value) != len(value) {
				t.Fatalf("%s: %d bytes, %v", keys[i], len(r.Value), r.Err)
			}
		}
	}
}

// TestKeysOnTheirWayToAnotherNodeAreFound, while the slot moves (ASK) and after it has (MOVED).
func TestKeysOnTheirWayToAnotherNodeAreFound(t *testing.T) {
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	c := open(t, rdb, ample)
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const moving, staying = "{tag}a", "{tag}b" // of one slot
	from := cluster.NodeFor(moving)
	var to *redistest.Server
	for _, n := range cluster.Nodes() {
		if n != from {
			to = n
		}
	}
	must(rdb.Set(ctx, staying, "b", 0).Err())
	if v, err := c.Get(ctx, staying); v != "b" {
		t.Fatal(v, err)
	}
	fromID, toID := from.Admin().ClusterMyID(ctx).Val(), to.Admin().ClusterMyID(ctx).Val()
	slot := from.Admin().ClusterKeySlot(ctx, moving).Val()
	must(to.Admin().Do(ctx, "cluster", "setslot", slot, "importing", fromID).Err())
	must(from.Admin().Do(ctx, "cluster", "setslot", slot, "migrating", toID).Err())
	asking := to.Admin().Pipeline()
	asking.Do(ctx, "asking")
	asking.Do(ctx, "set", moving, "a")
	_, err := asking.Exec(ctx)
	must(err)
	look := func(when string) {
		t.Helper()
		if v, err := c.Get(ctx, moving); v != "a" {
			t.Errorf("%s: Get: %q, %v", when, v, err)
		}
		reads := make([]collect.Read, 3)
		err := c.GetMany(ctx, []string{moving, "elsewhere", staying}, reads)
		if err != nil || reads[0].Value != "a" || reads[1].Err != redis.Nil || reads[2].Value != "b" {
			t.Errorf("%s: GetMany: %v, %v", when, reads, err)
		}
		cmds := []*rediscall.Command{
			rediscall.NewCommand(ctx, "get", moving), rediscall.NewCommand(ctx, "set", moving, "x", "nx", "px", "1000"), rediscall.NewCommand(ctx, "get", "elsewhere"),
		}
		if err := c.Do(ctx, cmds...); err != nil || cmds[0].Val() != "a" || cmds[1].Err() != redis.Nil {
			t.Errorf("%s: Do: %v, %v", when, cmds, err)
		}
	}
	look("while it moves")
	host, port, err := net.SplitHostPort(to.Addr())
	must(err)
	must(from.Admin().Do(ctx, "migrate", host, port, staying, 0, 1000).Err())
	must(to.Admin().Do(ctx, "cluster", "setslot", slot, "node", toID).Err())
	for _, n := range cluster.Nodes() {
		must(n.Admin().Do(ctx, "cluster", "setslot", slot, "node", toID).Err())
	}
	look("once it has moved")
	look("once that is known")
}
