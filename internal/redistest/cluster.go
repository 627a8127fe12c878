package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	slots        = 16384
	clusterNodes = 3
)

// Cluster is a Redis Cluster of three masters and no replicas, each with a third of the slots. Stop, kill or pause one of its Nodes,
// and nobody takes over.
type Cluster struct {
	nodes []*Server
}

// StartCluster gives the test a cluster of its own, ended when the test ends. The arguments are added to the command line of each
// node, as in [Start]: with "--cluster-require-full-coverage", "no" the other nodes go on when one is dead. A node that is silent
// for a second counts as dead.
//
// It takes more than two seconds: so long no node trusts a cluster that it has just joined. A test that ends or moves nothing can
// use [SharedCluster].
//
// What the methods of a Server do in another database than 0 (Loading) does not work on a node.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c, err := newCluster(append([]string{"--cluster-node-timeout", "1000"}, args...))
	if err != nil {
		t.Fatalf("redistest: cluster: %v", err)
	}
	for _, node := range c.nodes {
		node.endWith(t)
	}
	return c
}

func newCluster(args []string) (*Cluster, error) {
	c := new(Cluster)
	errs := make([]error, clusterNodes)
	var wg sync.WaitGroup
	for i := range clusterNodes {
		node := &Server{args: slices.Concat([]string{"--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"}, args)}
		c.nodes = append(c.nodes, node)
		wg.Go(func() { errs[i] = node.start() })
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err == nil {
		err = c.join()
	}
	if err == nil {
		err = c.awaitOK()
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// join gives out the slots and makes each node known to each other.
func (c *Cluster) join() error {
	ctx := context.Background()
	for i, node := range c.nodes {
		// Epochs that differ from the start spare the nodes a quarrel about them.
		if err := node.admin.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return err
		}
		if err := node.admin.ClusterAddSlotsRange(ctx, firstSlot(i), firstSlot(i+1)-1).Err(); err != nil {
			return err
		}
	}
	for i, node := range c.nodes {
		for _, other := range c.nodes[:i] {
			host, port, _ := net.SplitHostPort(other.addr)
			if err := node.admin.ClusterMeet(ctx, host, port).Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

func firstSlot(node int) int { return (node*slots + clusterNodes - 1) / clusterNodes }

// AwaitOK returns when every node is up and sees every slot served. It is for after [Server.StartAgain] and [Server.Resume], after
// which a cluster needs some seconds.
func (c *Cluster) AwaitOK(t testing.TB) {
	t.Helper()
	if err := c.awaitOK(); err != nil {
		t.Fatalf("redistest: cluster: %v", err)
	}
}

func (c *Cluster) awaitOK() error {
	return await("every slot served", func() error {
		for _, node := range c.nodes {
			info, err := node.clusterInfo()
			if err != nil {
				return err
			}
			if info["cluster_state"] != "ok" || info["cluster_slots_ok"] != strconv.Itoa(slots) ||
				info["cluster_known_nodes"] != strconv.Itoa(clusterNodes) {
				return fmt.Errorf("node %s says %v", node.addr, info)
			}
		}
		return nil
	})
}

// AwaitDead returns when the other nodes have declared this one dead, which takes a second or two after it was killed or paused.
// Unless full coverage is not required, they then answer everything with CLUSTERDOWN.
func (c *Cluster) AwaitDead(t testing.TB, dead *Server) {
	t.Helper()
	err := await("the death of "+dead.addr, func() error {
		for _, node := range c.nodes {
			if node == dead {
				continue
			}
			known, err := node.admin.ClusterNodes(context.Background()).Result()
			if err == nil && !saysDead(known, dead.addr) {
				err = fmt.Errorf("node %s says:\n%s", node.addr, known)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("redistest: cluster: %v", err)
	}
}

// saysDead looks into the answer to CLUSTER NODES: a line for each, with id, address@port, and flags.
func saysDead(known, addr string) bool {
	for line := range strings.Lines(known) {
		if field := strings.Fields(line); len(field) > 2 && strings.HasPrefix(field[1], addr+"@") {
			return slices.Contains(strings.Split(field[2], ","), "fail")
		}
	}
	return false
}

func (s *Server) clusterInfo() (map[string]string, error) {
	text, err := s.admin.ClusterInfo(context.Background()).Result()
	return parseInfo(text), err
}

// Nodes returns the three servers, in the order of their slots.
func (c *Cluster) Nodes() []*Server { return slices.Clone(c.nodes) }

// NodeFor returns the server that was given the key's slot at the start: tests that move slots have to keep track themselves.
func (c *Cluster) NodeFor(key string) *Server {
	slot := slotOf(key)
	for i, node := range c.nodes {
		if slot < firstSlot(i+1) {
			return node
		}
	}
	panic("no such slot")
}

// slotOf is defined in https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/: CRC16 (XMODEM) of the key, or
// of what stands between its first { and the next }, if that is anything.
func slotOf(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return int(crc) % slots
}

// Client returns a client of the cluster, closed when the test ends. It has the defaults of go-redis but for a handshake of one
// command, as in [Server.Client]; the options may change everything.
func (c *Cluster) Client(t testing.TB, options ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	quiet := c.nodes[0].quiet()
	opt := &redis.ClusterOptions{
		DisableIdentity:          quiet.DisableIdentity,
		MaintNotificationsConfig: quiet.MaintNotificationsConfig,
	}
	for _, node := range c.nodes {
		opt.Addrs = append(opt.Addrs, node.addr)
	}
	for _, set := range options {
		set(opt)
	}
	client := redis.NewClusterClient(opt)
	t.Cleanup(func() { client.Close() })
	return client
}

func (c *Cluster) close() {
	for _, node := range c.nodes {
		node.close()
	}
}
