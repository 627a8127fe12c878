package collect

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// nodes are the queues of a cluster, one for each master.
type nodes struct {
	cluster  *redis.ClusterClient // nil: there is one node
	every    *queue               // of what has no node of its own
	breakers *breakers
	known    atomic.Bool // whether the client knows its nodes: until then it asks for them, which can hang

	mu     sync.RWMutex
	queues map[*redis.Client]*queue // guarded by mu
	closed bool                     // guarded by mu
}

// maxNodes bounds the queues, when nodes come and go.
const maxNodes = 1000

// part is what of a call goes to one node.
type part struct {
	queue *queue
	at    []int // where it stands in the call
	err   error // of the whole part
}

// each does something with all parts of a call of some keys at once, and returns an error if all failed. Each is bounded by ctx and the
// budget.
func (n *nodes) each(ctx context.Context, keys int, key func(i int) string, do func(*part) error) error {
	var parts []*part
	for i := range keys {
		q := n.queue(ctx, key(i))
		at := slices.IndexFunc(parts, func(p *part) bool { return p.queue == q })
		if at < 0 {
			at = len(parts)
			parts = append(parts, &part{queue: q})
		}
		parts[at].at = append(parts[at].at, i)
	}
	var all sync.WaitGroup
	for _, p := range parts[1:] {
		all.Go(func() { p.err = do(p) })
	}
	parts[0].err = do(parts[0])
	all.Wait()
	err := parts[0].err
	for _, p := range parts {
		if p.err == nil {
			return nil
		}
		if rediscall.Unknown(p.err) {
			err = p.err // something may have been done
		}
	}
	return err
}

// do sends each command to the node of its key, and waits for all. What goes to a node that does not answer holds that error; the
// others hold their replies.
func (n *nodes) do(ctx context.Context, cmds []*rediscall.Command, insist bool) error {
	if !n.known.Load() {
		err := n.every.direct(ctx, cmds, insist)
		n.known.CompareAndSwap(false, err == nil)
		return err
	}
	return n.each(ctx, len(cmds), func(i int) string { return cmds[i].Key() }, func(p *part) error {
		if len(p.at) == len(cmds) {
			return n.send(ctx, p.queue, cmds, insist)
		}
		own := make([]*rediscall.Command, len(p.at)) // copies, since those of a part that was given up belong to its trip
		for i, at := range p.at {
			own[i] = cmds[at].Copy(ctx)
		}
		err := n.send(ctx, p.queue, own, insist)
		for i, at := range p.at {
			if err != nil {
				cmds[at].SetErr(err)
			} else {
				cmds[at].SetVal(own[i].Val())
				cmds[at].SetErr(own[i].Err())
			}
		}
		return err
	})
}

// getMany reads each key from its node. The keys of a node that does not answer hold that error.
func (n *nodes) getMany(ctx context.Context, keys []string, reads []Read) error {
	if !n.known.Load() {
		return n.follow(ctx, keys, reads)
	}
	return n.each(ctx, len(keys), func(i int) string { return keys[i] }, func(p *part) error {
		own, answers := make([]string, len(p.at)), make([]Read, len(p.at))
		for i, at := range p.at {
			own[i] = keys[at]
		}
		began := time.Now()
		err := p.queue.getMany(ctx, own, answers)
		n.doubt(ctx, err)
		var gone []string
		var goneAt []int
		for i, at := range p.at {
			if err != nil {
				reads[at].Err = err
				continue
			}
			reads[at] = answers[i]
			n.doubt(ctx, answers[i].Err)
			if moved(answers[i].Err) {
				gone, goneAt = append(gone, own[i]), append(goneAt, at)
			}
		}
		if len(gone) == 0 || time.Since(began) > n.every.budget/2 {
			return err
		}
		again := make([]Read, len(gone))
		if err := n.follow(ctx, gone, again); err != nil {
			return nil // the others have their answers
		}
		for i, at := range goneAt {
			reads[at] = again[i]
		}
		return nil
	})
}

// follow reads keys by the client, which finds their nodes, and knows how to follow where a key has moved.
func (n *nodes) follow(ctx context.Context, keys []string, reads []Read) error {
	cmds := make([]*rediscall.Command, len(keys))
	for i, key := range keys {
		cmds[i] = rediscall.NewCommand(ctx, "get", key)
	}
	err := n.every.direct(ctx, cmds, false)
	n.known.CompareAndSwap(false, err == nil)
	if err != nil {
		return err
	}
	for i, cmd := range cmds {
		reads[i].Value, reads[i].Err = cmd.Text()
	}
	return nil
}

// get reads one key from its node.
func (n *nodes) get(ctx context.Context, key string) (string, error) {
	if n.known.Load() {
		began := time.Now()
		value, err := n.queue(ctx, key).get(ctx, key)
		n.doubt(ctx, err)
		if !moved(err) || time.Since(began) > n.every.budget/2 {
			return value, err
		}
	}
	var read [1]Read
	if err := n.follow(ctx, []string{key}, read[:]); err != nil {
		return "", err
	}
	return read[0].Value, read[0].Err
}

// queue returns the queue of the node that has a key.
func (n *nodes) queue(ctx context.Context, key string) *queue {
	client, err := n.cluster.MasterForKey(ctx, key)
	if err != nil {
		return n.every
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
		return n.every
	}
	if n.queues == nil {
		n.queues = map[*redis.Client]*queue{}
	}
	q = newQueue(client, n.every.budget, n.breakers.of(client), false)
	q.failed = func(err error) { n.doubt(context.Background(), err) }
	n.queues[client] = q
	return q
}

// send makes the call to one node. What the node says is elsewhere goes once more, by the client, which knows how to follow.
func (n *nodes) send(ctx context.Context, q *queue, cmds []*rediscall.Command, insist bool) error {
	began := time.Now()
	if err := q.do(ctx, cmds, insist); err != nil {
		n.doubt(ctx, err)
		return err
	}
	var gone, again []*rediscall.Command
	for _, cmd := range cmds {
		n.doubt(ctx, cmd.Err())
		if moved(cmd.Err()) {
			gone, again = append(gone, cmd), append(again, cmd.Copy(ctx))
		}
	}
	if len(again) == 0 || time.Since(began) > n.every.budget/2 {
		return nil
	}
	if err := n.every.direct(ctx, again, insist); err != nil {
		for _, cmd := range gone {
			cmd.SetErr(err)
		}
		return nil // the others have their replies
	}
	for i, cmd := range gone {
		cmd.SetVal(again[i].Val())
		cmd.SetErr(again[i].Err())
	}
	return nil
}

// moved tells whether a node has answered that a key is on another.
func moved(err error) bool {
	return err != nil && err != redis.Nil && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK"))
}

// doubt lets the client look for its nodes anew, if an error says that it may know them badly.
func (n *nodes) doubt(ctx context.Context, err error) {
	if rediscall.Unknown(err) || rediscall.Classify(err) == rediscall.ReadOnly {
		n.cluster.ReloadState(ctx)
	}
}
