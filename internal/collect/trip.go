package collect

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// Read is what came of one key: redis.Nil where nothing stands.
type Read struct {
	Value string
	Err   error
}

// call is what waits for a trip, or is on one: some commands, or some keys to read.
type call struct {
	ctx   context.Context
	cmds  []*rediscall.Command
	keys  []string
	reads []Read        // one for each key
	until time.Duration // guarded by the queue's mu; the end of its budget
	err   error         // of the whole trip

	done  chan struct{} // holds one; err is written before, and reads too, unless err is set: then its trip may still write them
	taken atomic.Bool   // on a trip, or given up
	over  atomic.Bool   // has ended, by its trip or its budget, whichever came first

	// Of a call for one key.
	key  [1]string
	read [1]Read
	get  *rediscall.Command // reads key; made at the first use
}

func (c *call) size() int { return len(c.cmds) + len(c.keys) }

// end lets who waits for a call go on. Only the first time counts.
func (c *call) end(err error) {
	if c.over.CompareAndSwap(false, true) {
		c.err = err
		c.done <- struct{}{}
	}
}

// newCall returns a call. Calls are used again, but for those that were given up. Each queue has its own, since a channel must not
// leave the bubble (testing/synctest) in which it was made.
func (q *queue) newCall() *call {
	if c, ok := q.calls.Get().(*call); ok {
		return c
	}
	return &call{done: make(chan struct{}, 1)}
}

// free gives back a call whose trip has ended.
func (q *queue) free(c *call) {
	c.ctx, c.cmds, c.keys, c.reads, c.err = nil, nil, nil, nil, nil
	c.key, c.read = [1]string{}, [1]Read{}
	if c.get != nil {
		c.get.SetVal(nil)
	}
	c.taken.Store(false)
	q.calls.Put(c)
}

// trip makes the trip of some calls. It also returns what that says about Redis.
func (q *queue) trip(runner *rediscall.Runner, calls []*call) (err, found error) {
	var cmds []*rediscall.Command
	keys := 0
	for _, c := range calls {
		keys += len(c.keys)
		cmds = append(cmds, c.cmds...)
	}
	gets := q.gets(calls, keys)
	ctx := context.Background()
	if len(calls) == 1 {
		ctx = context.WithoutCancel(calls[0].ctx) // hooks of the client may look at its values
	}
	cmds = append(cmds, gets...)
	if err := runner.Send(ctx, cmds); err != nil {
		return err, outcome(err, nil)
	}
	if keys > 0 {
		q.answer(calls, keys, gets)
	}
	return nil, outcome(nil, cmds)
}

// gets makes the commands that read n keys: one MGET, where the keys are of one node. Keys are given by reference, which spares each
// an allocation.
func (q *queue) gets(calls []*call, n int) (cmds []*rediscall.Command) {
	ctx := context.Background()
	if n > 1 && q.mget.Load() {
		args := append(make([]any, 0, 1+n), "mget")
		for _, c := range calls {
			for i := range c.keys {
				args = append(args, &c.keys[i])
			}
		}
		return append(cmds, rediscall.NewCommand(ctx, args...))
	}
	for _, c := range calls {
		if len(c.keys) == 1 && &c.keys[0] == &c.key[0] { // a call of get, which holds its key itself
			cmds = append(cmds, q.readOne(c))
			continue
		}
		for i := range c.keys {
			cmds = append(cmds, rediscall.NewCommand(ctx, "get", &c.keys[i]))
		}
	}
	return cmds
}

// readOne returns the command of a call for one key, which goes with the call from use to use. Where hooks of the client see it, who
// keeps it must find it unchanged: then each use has its own.
func (q *queue) readOne(c *call) *rediscall.Command {
	if c.get == nil || q.straight == nil {
		c.get = rediscall.NewCommand(context.Background(), "get", &c.key[0])
	}
	c.get.SetVal(nil)
	c.get.SetErr(nil)
	return c.get
}

// answer gives each of n keys what its command found. What is no string is nil in the reply to MGET, as if nothing stood there.
func (q *queue) answer(calls []*call, n int, cmds []*rediscall.Command) {
	var values []any
	var err error
	if len(cmds) < n {
		values, err = cmds[0].Slice()
		if err == nil && len(values) != n {
			err = errors.New("MGET answered with another number of values")
		}
		if rediscall.Classify(err) == rediscall.Denied {
			q.mget.Store(false) // the user may GET, and not MGET
		}
	}
	i := 0
	for _, c := range calls {
		for j := range c.keys {
			switch read := &c.reads[j]; {
			case err != nil:
				read.Err = err
			case values == nil:
				read.Value, read.Err = cmds[i].Text()
			case values[i] == nil:
				read.Err = redis.Nil
			default:
				var ok bool
				if read.Value, ok = values[i].(string); !ok {
					read.Err = errors.New("MGET answered with something else than a string")
				}
			}
			i++
		}
	}
}
