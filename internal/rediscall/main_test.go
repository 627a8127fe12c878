package rediscall_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Run(m) }

const (
	// short is the budget of calls that are to run out of it.
	short = 60 * time.Millisecond

	// ample is the budget of calls that are not: a busy machine must not look like a slow Redis.
	ample = 8 * time.Second

	// room is how much later than it should something may happen on a busy machine. It is well below the five seconds that
	// go-redis waits for a reply by default, so what waits for go-redis is late.
	room = 2500 * time.Millisecond
)

var background = context.Background()

// opaque hides what a client is, as a ClusterClient is not a redis.Client either: no clone with other time-outs is made of it.
type opaque struct{ redis.UniversalClient }

// newRunner makes a runner that must have ended its calls when the test ends.
func newRunner(t testing.TB, rdb redis.UniversalClient, budget time.Duration) *rediscall.Runner {
	t.Helper()
	r := rediscall.NewRunner(rdb, budget)
	t.Cleanup(func() {
		if left := r.Close(ample); left != 0 {
			t.Errorf("%d calls are still under way at the end of the test", left)
		}
	})
	return r
}

// through returns a proxy before the server, and options that send a client there.
func through(t testing.TB, server *redistest.Server) (*redistest.Proxy, func(*redis.Options)) {
	t.Helper()
	proxy := redistest.NewProxy(t, server.Addr())
	return proxy, func(o *redis.Options) { o.Addr = proxy.Addr() }
}

// counter is a script that adds one to its key. Each has a text of its own: no server knows it before it was called.
func counter(name string) *rediscall.Script {
	return rediscall.NewScript("-- " + name + "\nreturn redis.call('INCR', KEYS[1])")
}

// do makes one call whose reply must come, if need be as an error of its own.
func do(t testing.TB, r *rediscall.Runner, commands ...*rediscall.Command) {
	t.Helper()
	if err := r.Do(background, commands...); err != nil {
		t.Fatalf("the call got no reply: %v", err)
	}
}

// outcome is the error of a call of one command, be it that of the round trip or of the command.
func outcome(r *rediscall.Runner, command *rediscall.Command) error {
	if err := r.Do(background, command); err != nil {
		return err
	}
	return command.Err()
}

// holds checks what stands at some keys of a server.
func holds(t testing.TB, server *redistest.Server, want string, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if got, err := server.Admin().Get(background, key).Result(); got != want || err != nil {
			t.Errorf("%s holds %q, %v; want %q", key, got, err, want)
		}
	}
}

// within checks how long something took.
func within(t testing.TB, what string, took, least, most time.Duration) {
	t.Helper()
	if took < least || took > most {
		t.Errorf("%s after %v, want %v to %v", what, took, least, most)
	}
}

// eventually polls for what sends no signal of its own.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(ample); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("never seen: %s", what)
		}
	}
}

// noneStuck returns when no call is stuck any more.
func noneStuck(t testing.TB, r *rediscall.Runner) {
	t.Helper()
	eventually(t, "the end of all abandoned calls", func() bool { return r.Abandoned() == 0 })
}

// call is a Do under way in a goroutine of its own.
type call struct {
	commands []*rediscall.Command
	ended    chan error
}

func start(ctx context.Context, r *rediscall.Runner, commands ...*rediscall.Command) *call {
	c := &call{commands, make(chan error, 1)}
	go func() { c.ended <- r.Do(ctx, commands...) }()
	return c
}

func (c *call) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-c.ended:
		return err
	case <-time.After(ample + room):
		t.Fatal("Do did not return")
		return nil
	}
}

// isClass checks the class of an error.
func isClass(t testing.TB, err error, want rediscall.Class) {
	t.Helper()
	if got := rediscall.Classify(err); got != want {
		t.Errorf("%v is of the class %v, want %v", err, got, want)
	}
}

// shape is a way to send: alone, or in a pipeline.
type shape struct {
	name string
	n    int
}

var shapes = []shape{{"alone", 1}, {"pipeline", 3}}

// keys returns the keys that a shape uses.
func (s shape) keys(prefix string) []string {
	keys := make([]string, s.n)
	for i := range keys {
		keys[i] = fmt.Sprint(prefix, "k", i)
	}
	return keys
}

// calls returns a call of the script on each key.
func calls(script *rediscall.Script, keys []string) []*rediscall.Command {
	commands := make([]*rediscall.Command, len(keys))
	for i, key := range keys {
		commands[i] = script.Command(background, key)
	}
	return commands
}
