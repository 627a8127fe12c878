package cache_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// valve is a hook of go-redis that holds commands back: before they are sent, or when their reply has come and nobody has seen
// it yet. So the order of what happens in Redis and in the process is the test's.
type valve struct {
	mu    sync.Mutex
	holds []*holdup // guarded by mu
}

// holdup is a gate for the first command that matches.
type holdup struct {
	*gate
	after bool
	match func(ctx context.Context, cmd redis.Cmder) bool
}

// before holds the first matching command to come before it is sent.
func (v *valve) before(t testing.TB, match func(context.Context, redis.Cmder) bool) *holdup {
	return v.add(&holdup{gate: newGate(t), match: match})
}

// after holds the first matching command to come when it has its reply.
func (v *valve) after(t testing.TB, match func(context.Context, redis.Cmder) bool) *holdup {
	return v.add(&holdup{gate: newGate(t), match: match, after: true})
}

func (v *valve) add(h *holdup) *holdup {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.holds = append(v.holds, h)
	return h
}

func (v *valve) releaseAll() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, h := range v.holds {
		h.open()
	}
	v.holds = nil
}

// pass stops the commands of one round trip at the first hold-up that is meant for them.
func (v *valve) pass(ctx context.Context, after bool, cmds ...redis.Cmder) {
	v.mu.Lock()
	at := slices.IndexFunc(v.holds, func(h *holdup) bool {
		return h.after == after && slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool {
			return h.match(ctx, cmd) && !(after && redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT"))
		})
	})
	if at < 0 {
		v.mu.Unlock()
		return
	}
	h := v.holds[at]
	v.holds = slices.Delete(v.holds, at, at+1)
	v.mu.Unlock()
	_ = h.pass(context.WithoutCancel(ctx))
}

// DialHook does nothing.
func (v *valve) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook holds single commands.
func (v *valve) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		v.pass(ctx, false, cmd)
		err := next(ctx, cmd)
		v.pass(ctx, true, cmd)
		return err
	}
}

// ProcessPipelineHook holds pipelines.
func (v *valve) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		v.pass(ctx, false, cmds...)
		err := next(ctx, cmds)
		v.pass(ctx, true, cmds...)
		return err
	}
}

// aRead matches reads of values.
func aRead(_ context.Context, cmd redis.Cmder) bool {
	return cmd.Name() == "get" || cmd.Name() == "mget"
}

// aScript matches what is no read: leases, fills and deletes.
func aScript(_ context.Context, cmd redis.Cmder) bool {
	return cmd.Name() == "evalsha" || cmd.Name() == "eval" || cmd.Name() == "set"
}

// holds tells whether a text is among the arguments of a command, where it can stand by reference too.
func holds(cmd redis.Cmder, text string) bool {
	return slices.ContainsFunc(cmd.Args(), func(arg any) bool {
		if at, ok := arg.(*string); ok {
			return *at == text
		}
		return arg == text
	})
}

type markKey struct{}

// mark returns a context, and what matches the commands that are sent for a call with it.
func mark(ctx context.Context) (context.Context, func(context.Context, redis.Cmder) bool) {
	own := new(int)
	return context.WithValue(ctx, markKey{}, own), func(ctx context.Context, _ redis.Cmder) bool { return ctx.Value(markKey{}) == own }
}
