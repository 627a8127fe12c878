package rediscall

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/group"
)

// maxAbandoned bounds the calls that are still stuck in go-redis after their budget. Past it, calls fail at once.
const maxAbandoned = 256

// Runner sends commands through one client with one budget.
type Runner struct {
	rdb    redis.UniversalClient
	hooked bool // hooks of the client may look at the commands
	budget time.Duration

	calls     group.Group
	abandoned atomic.Int64
	trips     atomic.Uint64
}

// NewRunner makes a runner. Where the client can give a clone with time-outs of its own (redis.Client), the sockets too end
// at the budget; elsewhere an abandoned call ends by the client's ReadTimeout. The client stays the caller's. A clone does not
// inherit the client's hooks, and there is no way to give it them.
func NewRunner(rdb redis.UniversalClient, budget time.Duration) *Runner {
	single, ok := rdb.(*redis.Client)
	if ok {
		rdb = single.WithTimeout(budget)
	}
	return &Runner{rdb: rdb, hooked: !ok, budget: budget}
}

// Do sends the commands in one round trip (two, if the server does not know a script) and waits for their replies, at most
// for the budget and while ctx lives. A nil return means that the round trip was made: each command then holds its own reply
// or error. Otherwise nothing is known about any of them, and they must not be looked at.
func (r *Runner) Do(ctx context.Context, cmds ...*Command) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(cmds) == 0 {
		return nil
	}
	if r.abandoned.Load() >= maxAbandoned {
		return errAbandoned
	}
	call := &call{done: make(chan error, 1)}
	if !r.calls.Go(func() { r.run(context.WithoutCancel(ctx), call, cmds) }) {
		return redis.ErrClosed
	}
	timer := time.NewTimer(r.budget)
	defer timer.Stop()
	select {
	case err := <-call.done:
		return err
	case <-timer.C:
		r.abandon(call)
		return ErrBudget
	case <-ctx.Done():
		r.abandon(call)
		return ctx.Err()
	}
}

// call is one Do under way.
type call struct {
	done  chan error
	state atomic.Int32
}

// The states of a call: it leaves running once, by whichever comes first.
const (
	running = iota
	finished
	abandoned
)

func (r *Runner) abandon(c *call) {
	if c.state.CompareAndSwap(running, abandoned) {
		r.abandoned.Add(1)
	}
}

// Send is Do in the calling goroutine, for who waits elsewhere: where the client gives no clone with time-outs of its own, it may
// take longer than the budget. ctx should have no deadline.
func (r *Runner) Send(ctx context.Context, cmds []*Command) error {
	ctx, cancel := context.WithTimeout(ctx, r.budget)
	defer cancel()
	err := r.send(ctx, cmds)
	if errors.Is(err, context.DeadlineExceeded) {
		err = ErrBudget // ctx has no deadline but ours
	}
	return err
}

func (r *Runner) run(ctx context.Context, c *call, cmds []*Command) {
	err := r.Send(ctx, cmds)
	if !c.state.CompareAndSwap(running, finished) {
		r.abandoned.Add(-1)
	}
	c.done <- err
}

// Abandoned tells how many calls are still stuck after their budget or their caller ended.
func (r *Runner) Abandoned() int { return int(r.abandoned.Load()) }

// Trips tells how many round trips were made.
func (r *Runner) Trips() uint64 { return r.trips.Load() }

// Close refuses further calls and waits for those under way, at most for d. It returns how many were left.
func (r *Runner) Close(d time.Duration) (left int) { return r.calls.Close(d) }

// send makes the round trip, and repairs scripts that the server did not know, which have not run: the first call of each goes
// again with its source, which teaches it, and the others after it by their digest. On a cluster that teaches one node only:
// what is unknown after that goes with its source.
func (r *Runner) send(ctx context.Context, cmds []*Command) error {
	if err := r.trip(ctx, cmds); err != nil {
		return err
	}
	for repair := 1; repair <= 2; repair++ {
		var unknown, again []*Command
		taught := map[*Script]bool{}
		for _, c := range cmds {
			if !c.unknownScript() {
				continue
			}
			unknown = append(unknown, c)
			if repair == 1 && taught[c.script] {
				again = append(again, c.Copy(ctx))
			} else {
				again = append(again, c.eval(ctx))
			}
			taught[c.script] = true
		}
		if len(again) == 0 {
			return nil
		}
		if err := r.trip(ctx, again); err != nil {
			return err
		}
		for i, c := range unknown {
			c.SetVal(again[i].Val())
			c.SetErr(again[i].Err())
		}
	}
	return nil
}

// trip makes one round trip. It returns an error only where no command has a reply of its own.
func (r *Runner) trip(ctx context.Context, cmds []*Command) error {
	r.trips.Add(1)
	if r.hooked {
		for _, c := range cmds {
			c.spellOut()
		}
	}
	if len(cmds) == 1 {
		err := r.rdb.Process(ctx, cmds[0])
		return onlyTransport(err)
	}
	pipe := r.rdb.Pipeline()
	for _, c := range cmds {
		// A queued command is not sent yet: Process on a pipeline never fails.
		_ = pipe.Process(ctx, c)
	}
	_, err := pipe.Exec(ctx)
	for _, c := range cmds {
		// Where Redis refused the connection itself, at its handshake, go-redis leaves the commands without any answer.
		if c.Err() == nil && c.Val() == nil {
			c.SetErr(cmp.Or(err, errNoReply))
		}
	}
	answered := false
	for _, c := range cmds {
		// Of a pipeline that broke, go-redis gives the error to the commands too whose replies it had read.
		if onlyTransport(c.Err()) != nil && c.Val() != nil {
			c.SetErr(nil)
		}
		answered = answered || onlyTransport(c.Err()) == nil
	}
	if answered {
		return nil
	}
	return cmds[0].Err()
}

// onlyTransport drops the errors that are a reply of Redis: those belong to their command.
func onlyTransport(err error) error {
	if err == nil || err == redis.Nil {
		return nil // without the allocation below
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		return nil
	}
	return err
}
