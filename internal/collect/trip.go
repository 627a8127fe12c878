package collect

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// call is what waits for a trip, or is on one: some commands, or one key to read.
type call struct {
	ctx   context.Context
	cmds  []*rediscall.Command // nil: read key
	key   string
	value string
	err   error // redis.Nil where nothing stands at the key

	done  chan struct{} // holds one; what was found is written before
	taken atomic.Bool   // on a trip, or given up
	timer *time.Timer
}

// newCall returns a call. Calls are used again, but for those that were given up. Each queue has its own, since a timer and a channel
// must not leave the bubble (testing/synctest) in which they were made.
func (q *queue) newCall() *call {
	if c, ok := q.calls.Get().(*call); ok {
		return c
	}
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &call{done: make(chan struct{}, 1), timer: timer}
}

// free gives back a call whose trip has ended.
func (q *queue) free(c *call) {
	c.ctx, c.cmds, c.key, c.value, c.err = nil, nil, "", "", nil
	c.taken.Store(false)
	q.calls.Put(c)
}

// send makes the trip of some calls.
func (q *queue) send(calls []*call) error {
	var cmds []*rediscall.Command
	reads := 0
	for _, c := range calls {
		if c.cmds == nil {
			reads++
		}
		cmds = append(cmds, c.cmds...)
	}
	read := q.readsOf(calls, reads)
	ctx := context.Background()
	if len(calls) == 1 {
		ctx = context.WithoutCancel(calls[0].ctx) // hooks of the client may look at its values
	}
	if err := q.runner.Send(ctx, append(cmds, read...)); err != nil {
		return err
	}
	if reads > 0 {
		q.answer(calls, reads, read)
	}
	return nil
}

// readsOf makes the commands that read the keys among some calls: one MGET, where the keys are of one node.
func (q *queue) readsOf(calls []*call, n int) (cmds []*rediscall.Command) {
	ctx := context.Background()
	mget := n > 1 && q.mget.Load()
	var args []any
	if mget {
		args = append(make([]any, 0, 1+n), "mget")
	}
	for _, c := range calls {
		switch {
		case c.cmds != nil:
		case mget:
			args = append(args, c.key)
		default:
			cmds = append(cmds, rediscall.NewCommand(ctx, "get", c.key))
		}
	}
	if mget {
		cmds = append(cmds, rediscall.NewCommand(ctx, args...))
	}
	return cmds
}

// answer gives each of n reads what its command found. What is no string is nil in the reply to MGET, as if nothing stood there.
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
		if c.cmds != nil {
			continue
		}
		switch {
		case err != nil:
			c.err = err
		case values == nil:
			c.value, c.err = cmds[i].Text()
		case values[i] == nil:
			c.err = redis.Nil
		default:
			var ok bool
			if c.value, ok = values[i].(string); !ok {
				c.err = errors.New("MGET answered with something else than a string")
			}
		}
		i++
	}
}
