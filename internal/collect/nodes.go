package collect

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// nodes are the queues of a cluster, one for each master.
type nodes struct {
	cluster *redis.ClusterClient // nil: there is one node
	known   atomic.Bool          // whether the client knows its nodes: until then it asks for them, which can hang

	mu     sync.RWMutex
	queues map[*redis.Client]*queue // guarded by mu
	closed bool                     // guarded by mu
}

// maxNodes bounds the queues, when nodes come and go.
const maxNodes = 1000

// part is the commands of a call that go to one node.
type part struct {
	queue    *queue
	at       []int // where they stand in the call
	commands []*rediscall.Command
}

// do sends each command to the node of its key, and waits for all. What goes to a node that does not answer holds that error; the
// others hold their replies.
func (n *nodes) do(ctx context.Context, cmds []*rediscall.Command, every *queue) error {
	if !n.known.Load() {
		err := every.runner.Do(ctx, cmds...)
		n.known.CompareAndSwap(false, err == nil)
		return err
	}
	var parts []*part
	for i, cmd := range cmds {
		q := n.queue(ctx, cmd.Key(), every)
		var p *part
		for _, other := range parts {
			if other.queue == q {
				p = other
			}
		}
		if p == nil {
			p = &part{queue: q}
			parts = append(parts, p)
		}
		p.at, p.commands = append(p.at, i), append(p.commands, cmd)
	}
	if len(parts) == 1 {
		return n.send(ctx, parts[0].queue, cmds, every)
	}
	// Copies, since those of a part that was given up belong to its trip.
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, p := range parts {
		for j, cmd := range p.commands {
			p.commands[j] = cmd.Copy(ctx)
		}
		all.Go(func() { errs[i] = n.send(ctx, p.queue, p.commands, every) })
	}
	all.Wait() // each is bounded by ctx and the budget
	failed := 0
	for i, p := range parts {
		if errs[i] != nil {
			failed++
		}
		for j, at := range p.at {
			if errs[i] != nil {
				cmds[at].SetErr(errs[i])
			} else {
				cmds[at].SetVal(p.commands[j].Val())
				cmds[at].SetErr(p.commands[j].Err())
			}
		}
	}
	if failed == len(parts) {
		return errs[0]
	}
	return nil
}

// queue returns the queue of the node that has a key.
func (n *nodes) queue(ctx context.Context, key string, every *queue) *queue {
	client, err := n.cluster.MasterForKey(ctx, key)
	if err != nil {
		return every
	}
	n.mu.RLock()
	q := n.queues[client]
	n.mu.RUnlock()
	if q != nil {
		return q
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if q = n.queues[client]; q != nil {
		return q
	}
	if n.closed || len(n.queues) >= maxNodes {
		return every
	}
	if n.queues == nil {
		n.queues = map[*redis.Client]*queue{}
	}
	q = newQueue(client, every.budget, false)
	n.queues[client] = q
	return q
}

// send makes the call to one node. What the node says is elsewhere goes once more, by the client, which knows how to follow.
func (n *nodes) send(ctx context.Context, q *queue, cmds []*rediscall.Command, every *queue) error {
	began := time.Now()
	err := q.do(ctx, cmds)
	if err != nil {
		n.cluster.ReloadState(ctx)
		return err
	}
	var moved, again []*rediscall.Command
	for _, cmd := range cmds {
		switch err := cmd.Err(); {
		case redis.HasErrorPrefix(err, "MOVED"), redis.HasErrorPrefix(err, "ASK"):
			moved, again = append(moved, cmd), append(again, cmd.Copy(ctx))
		case rediscall.Classify(err) == rediscall.ReadOnly, rediscall.Classify(err) == rediscall.Closed, rediscall.Classify(err) == rediscall.Transport:
			n.cluster.ReloadState(ctx)
		}
	}
	if len(again) == 0 || time.Since(began) > every.budget/2 {
		return nil
	}
	if err := every.runner.Do(ctx, again...); err != nil {
		return err
	}
	for i, cmd := range moved {
		cmd.SetVal(again[i].Val())
		cmd.SetErr(again[i].Err())
	}
	return nil
}
