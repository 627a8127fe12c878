package collect

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// Collector sends commands through one client with one budget.
type Collector struct {
	rdb      redis.UniversalClient
	breakers *breakers
	every    *queue // what has no node of its own
	nodes    nodes  // of a cluster
}

// New makes a collector. The client stays the caller's.
func New(rdb redis.UniversalClient, budget time.Duration) *Collector {
	return newCollector(rdb, budget, new(breakers))
}

// With makes a collector of the same client with another budget. What one learns of the health of a node, both know.
func (c *Collector) With(budget time.Duration) *Collector {
	return newCollector(c.rdb, budget, c.breakers)
}

func newCollector(rdb redis.UniversalClient, budget time.Duration, b *breakers) *Collector {
	_, one := rdb.(*redis.Client)
	c := &Collector{rdb: rdb, breakers: b, every: newQueue(rdb, budget, b.of(nil), one)}
	c.nodes.cluster, _ = rdb.(*redis.ClusterClient)
	c.nodes.breakers, c.nodes.every = b, c.every
	return c
}

// Do sends the commands and waits for their replies, at most for the budget and while ctx lives. A nil return means that Redis was
// asked: each command then holds its own reply or error. Otherwise nothing is known about any of them, and they must not be looked
// at. All commands of a call travel together, but for those of a cluster, which go to each node by themselves. What would go to a node
// that is known to be sick is not sent, and fails at once with rediscall.ErrBreakerOpen.
func (c *Collector) Do(ctx context.Context, cmds ...*rediscall.Command) error {
	return c.do(ctx, cmds, false)
}

// Insist is Do, whatever the breakers say.
func (c *Collector) Insist(ctx context.Context, cmds ...*rediscall.Command) error {
	return c.do(ctx, cmds, true)
}

func (c *Collector) do(ctx context.Context, cmds []*rediscall.Command, insist bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(cmds) == 0 {
		return nil
	}
	if c.nodes.cluster == nil {
		return c.every.do(ctx, cmds, insist)
	}
	return c.nodes.do(ctx, cmds, insist)
}

// Get reads one key. It is Do for the most frequent command, for less: the error is redis.Nil where nothing stands.
func (c *Collector) Get(ctx context.Context, key string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if c.nodes.cluster == nil {
		return c.every.get(ctx, key)
	}
	return c.nodes.get(ctx, key)
}

// GetMany reads some keys, at most as many as go in a trip, into reads, which has one for each. After an error reads must not be
// looked at, nor used again.
func (c *Collector) GetMany(ctx context.Context, keys []string, reads []Read) error {
	if err := ctx.Err(); err != nil || len(keys) == 0 {
		return err
	}
	if c.nodes.cluster == nil {
		return c.every.getMany(ctx, keys, reads)
	}
	return c.nodes.getMany(ctx, keys, reads)
}

// queues returns all queues.
func (c *Collector) queues() []*queue {
	all := []*queue{c.every}
	c.nodes.mu.RLock()
	defer c.nodes.mu.RUnlock()
	for _, q := range c.nodes.queues {
		all = append(all, q)
	}
	return all
}

// Trips tells how many round trips were made.
func (c *Collector) Trips() (n uint64) {
	for _, q := range c.queues() {
		n += q.tripsMade()
	}
	return n
}

// Sick tells for how many nodes the breaker is open. A node of a cluster that nobody has asked for a second does not count: it may have
// left.
func (c *Collector) Sick() int { return c.breakers.sick(c.nodes.cluster != nil) }

// Stuck tells how many trips go-redis has not given back after their budget.
func (c *Collector) Stuck() (n int) {
	for _, q := range c.queues() {
		n += q.stuck()
	}
	return n
}

// Close refuses further calls and waits for those under way, at most for d. It returns how many were left.
func (c *Collector) Close(d time.Duration) (left int) {
	c.nodes.mu.Lock()
	c.nodes.closed = true
	c.nodes.mu.Unlock()
	deadline := time.Now().Add(d)
	for _, q := range c.queues() {
		left += q.close(time.Until(deadline))
	}
	return left
}
