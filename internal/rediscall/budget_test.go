package rediscall_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/redistest"
)

// Whatever the client waits for, be it a dial, a handshake, a connection, a reply or the next attempt, the caller waits for no
// longer than the budget.
func TestDoEndsWithItsBudget(t *testing.T) {
	server := redistest.Start(t)
	t.Run("paused", func(t *testing.T) {
		overrun(t, server, func(*redistest.Proxy) func() {
			server.Pause(t)
			return func() { server.Resume(t) }
		})
	})
	t.Run("black hole", func(t *testing.T) {
		overrun(t, server, func(proxy *redistest.Proxy) func() {
			proxy.BlackHole()
			return func() { proxy.Heal() }
		})
	})
}

// overrun sends in many ways, all at once, while a fault is on.
func overrun(t *testing.T, server *redistest.Server, fault func(*redistest.Proxy) (mend func())) {
	proxy, via := through(t, server)
	script := counter("budget")
	var attempts []*attempt
	for name, option := range map[string]func(*redis.Options){
		"defaults":   func(*redis.Options) {},
		"retries":    func(o *redis.Options) { o.MaxRetries, o.MinRetryBackoff = 3, time.Minute },
		"contexts":   func(o *redis.Options) { o.MaxRetries, o.ContextTimeoutEnabled = 3, true },
		"no ends":    func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = -1, -1, time.Hour },
		"impatience": func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = short/6, 3 },
	} {
		for _, clone := range []bool{true, false} {
			for _, warm := range []bool{true, false} {
				for _, shape := range shapes {
					var rdb redis.UniversalClient = server.Client(t, via, option)
					if !clone {
						rdb = opaque{rdb}
					}
					if warm {
						warmUp := newRunner(t, rdb, ample)
						eventually(t, "a warm client", func() bool { // the impatient one may need to try twice
							return warmUp.Do(background, calls(script, shape.keys("warm"))...) == nil
						})
					}
					a := &attempt{
						name:   strings.Join([]string{name, pick(clone, "clone", "no clone"), pick(warm, "warm", "cold"), shape.name}, ", "),
						runner: newRunner(t, rdb, short), commands: calls(script, shape.keys("k")), least: short,
					}
					if name == "impatience" {
						a.least = 0
					}
					attempts = append(attempts, a)
				}
			}
		}
	}
	mend := fault(proxy)
	var wg sync.WaitGroup
	for _, a := range attempts {
		wg.Go(func() {
			began := time.Now()
			a.err = a.runner.Do(background, a.commands...)
			a.took = time.Since(began)
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(short + 2*room):
		t.Error("some calls have no end")
	}
	mend()
	<-ended
	for _, a := range attempts {
		if rediscall.Classify(a.err) != rediscall.Timeout || !rediscall.Unknown(a.err) {
			t.Errorf("%s: got %v, want a time-out, and unknown", a.name, a.err)
		}
		within(t, a.name+": Do returned", a.took, a.least, short+room)
		noneStuck(t, a.runner)
	}
}

// attempt is one call that runs out of its budget.
type attempt struct {
	name     string
	runner   *rediscall.Runner
	commands []*rediscall.Command
	least    time.Duration
	err      error
	took     time.Duration
}

func pick(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}

// What a caller left is counted while it is stuck, and not longer; it is sent, and runs when the server goes on.
func TestAbandonedCallsAreCounted(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.PoolSize, o.ReadTimeout = 3, time.Minute })
	redistest.ExhaustPool(t, rdb)()
	r := newRunner(t, opaque{rdb}, short)
	server.Pause(t)
	for i := range 3 {
		isClass(t, r.Do(background, rediscall.NewCommand(background, "incr", "n")), rediscall.Timeout)
		if n := r.Abandoned(); n != i+1 {
			t.Fatalf("%d calls are stuck, want %d", n, i+1)
		}
	}
	server.Resume(t)
	noneStuck(t, r)
	holds(t, server, "3", "n")
	eventually(t, "a reply", func() bool { return r.Do(background, rediscall.NewCommand(background, "ping")) == nil })
}

// A redis.Client gives a clone with time-outs of its own: there nothing stays stuck, however patient the client is.
func TestSocketsEndWithTheBudget(t *testing.T) {
	server := redistest.Start(t)
	patient := func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = time.Hour, time.Hour }
	for _, warm := range []bool{true, false} {
		for _, shape := range shapes {
			t.Run(pick(warm, "warm", "cold")+"/"+shape.name, func(t *testing.T) {
				rdb, other := server.Client(t, patient), server.Client(t, patient)
				opaqueRunner, r := newRunner(t, opaque{other}, short), newRunner(t, rdb, short)
				redistest.ExhaustPool(t, other)()
				if warm {
					redistest.ExhaustPool(t, rdb)()
				}
				server.Pause(t)
				script := counter(t.Name())
				isClass(t, opaqueRunner.Do(background, calls(script, shape.keys("k"))...), rediscall.Timeout)
				isClass(t, r.Do(background, calls(script, shape.keys("k"))...), rediscall.Timeout)
				noneStuck(t, r)
				if left := r.Close(ample); left != 0 {
					t.Errorf("%d calls are left", left)
				}
				if n := opaqueRunner.Abandoned(); n != 1 {
					t.Errorf("%d calls are stuck where there is no clone, want 1: was the server not paused?", n)
				}
				server.Resume(t)
			})
		}
	}
}

func TestACallersContextEndsItsWait(t *testing.T) {
	server := redistest.Shared(t)
	proxy, via := through(t, server)
	rdb := server.Client(t, via)
	r := newRunner(t, rdb, ample)
	prefix := server.Prefix(t)
	script := counter(prefix)
	do(t, r, script.Command(background, prefix+"warm"))

	t.Run("ended before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(background)
		cancel()
		var err error
		if n := trips(r, func() { err = r.Do(ctx, script.Command(ctx, prefix+"before")) }); n != 0 {
			t.Errorf("%d round trips for a caller that had gone", n)
		}
		left(t, err, context.Canceled)
	})
	proxy.Freeze(redistest.ToClient)
	t.Run("cancelled", func(t *testing.T) {
		for _, shape := range shapes {
			t.Run(shape.name, func(t *testing.T) {
				ctx, cancel := context.WithCancel(background)
				held := proxy.Stats().Held[redistest.ToClient]
				c := start(ctx, r, calls(script, shape.keys(prefix+shape.name))...)
				proxy.Await(t, "a reply", func(s redistest.Stats) bool { return s.Held[redistest.ToClient] > held })
				began := time.Now()
				cancel()
				left(t, c.wait(t), context.Canceled)
				within(t, "Do returned", time.Since(began), 0, room)
			})
		}
	})
	t.Run("deadline", func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(background, short)
		defer cancel()
		left(t, r.Do(ctx, script.Command(ctx, prefix+"deadline")), context.DeadlineExceeded)
		within(t, "Do returned", time.Since(began), short, short+room)
	})
	t.Run("deadline behind the budget", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(background, ample)
		defer cancel()
		err := newRunner(t, rdb, short).Do(ctx, script.Command(ctx, prefix+"late"))
		isClass(t, err, rediscall.Timeout)
	})
	if n := r.Abandoned(); n != 3 {
		t.Errorf("%d calls are stuck, want 3", n)
	}
	proxy.Thaw()
	noneStuck(t, r)
	holds(t, server, "1", append(shapes[1].keys(prefix+shapes[1].name), prefix+"deadline", prefix+shapes[0].name+"k0")...)
	if n := server.Admin().Exists(background, prefix+"before").Val(); n != 0 {
		t.Error("the command of a caller that had gone was sent")
	}
}

// left checks the error of a call whose caller left.
func left(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	isClass(t, err, rediscall.Caller)
	if !rediscall.Unknown(err) {
		t.Errorf("%v: not unknown", err)
	}
}

func TestAnExhaustedPool(t *testing.T) {
	server := redistest.Shared(t)
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			rdb := server.Client(t, func(o *redis.Options) {
				o.PoolSize, o.PoolTimeout, o.PipelinePoolSize = 2, short, 1
			})
			prefix := server.Prefix(t)
			script := counter(prefix)
			commands := calls(script, shape.keys(prefix))
			patient, hasty := newRunner(t, rdb, ample), newRunner(t, rdb, short/6)
			release := redistest.ExhaustPool(t, rdb)

			began := time.Now()
			isClass(t, patient.Do(background, commands...), rediscall.Pool)
			within(t, "a full pool was told", time.Since(began), 0, short+room)
			isClass(t, hasty.Do(background, calls(script, shape.keys(prefix))...), rediscall.Timeout)
			noneStuck(t, hasty)
			if n := server.Admin().Exists(background, shape.keys(prefix)...).Val(); n != 0 {
				t.Errorf("%d scripts ran without a connection", n)
			}

			release()
			do(t, patient, calls(script, shape.keys(prefix))...)
			holds(t, server, "1", shape.keys(prefix)...)
		})
	}
}

func TestAClosedClient(t *testing.T) {
	server := redistest.Shared(t)
	for _, clone := range []bool{true, false} {
		for _, shape := range shapes {
			t.Run(pick(clone, "clone", "no clone")+"/"+shape.name, func(t *testing.T) {
				client := server.Client(t)
				var rdb redis.UniversalClient = client
				if !clone {
					rdb = opaque{client}
				}
				r := newRunner(t, rdb, ample)
				if err := client.Close(); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				isClass(t, r.Do(background, calls(counter("closed"), shape.keys("k"))...), rediscall.Closed)
				within(t, "a closed client was told", time.Since(began), 0, room)
			})
		}
	}
}

// deaf is a client that answers when it is told to.
type deaf struct {
	redis.UniversalClient
	asked  chan context.Context
	answer chan error
}

func newDeaf() deaf {
	return deaf{asked: make(chan context.Context, 2*maxAbandoned), answer: make(chan error)}
}

func (d deaf) Process(ctx context.Context, cmd redis.Cmder) error {
	d.asked <- ctx
	err := <-d.answer
	cmd.SetErr(err)
	return err
}

// The end of a caller's context is not that of its call: what was given to the client ends with the budget, and may still do its
// work for whoever counts on it.
func TestACallOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newDeaf()
		r := rediscall.NewRunner(client, time.Second)
		type mark struct{}
		ctx, cancel := context.WithCancel(context.WithValue(background, mark{}, "a value"))
		c := start(ctx, r, rediscall.NewCommand(ctx, "ping"))
		given := <-client.asked
		cancel()
		left(t, c.wait(t), context.Canceled)
		deadline, bounded := given.Deadline()
		if err := given.Err(); err != nil || !bounded || time.Until(deadline) != time.Second {
			t.Errorf("the call's context: %v, ends %v", err, deadline)
		}
		if v := given.Value(mark{}); v != "a value" {
			t.Errorf("the call's context has the value %v", v)
		}
		client.answer <- nil
		if left := r.Close(time.Hour); left != 0 {
			t.Errorf("Close left %d calls", left)
		}
	})
}

// A call whose context ran out first, be it by a blink, has run out of the budget: that is not its caller's doing.
func TestTheBudgetsContextIsNotTheCallers(t *testing.T) {
	client := newDeaf()
	r := newRunner(t, client, ample)
	c := start(background, r, rediscall.NewCommand(background, "ping"))
	client.answer <- fmt.Errorf("dial: %w", context.DeadlineExceeded)
	err := c.wait(t)
	isClass(t, err, rediscall.Timeout)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v passes for the end of the caller's context", err)
	}
}

// In a bubble all times are exact.
func TestDoAndCloseKeepTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newDeaf()
		r := rediscall.NewRunner(client, time.Second)
		began := time.Now()
		isClass(t, r.Do(background, rediscall.NewCommand(background, "ping")), rediscall.Timeout)
		within(t, "Do returned", time.Since(began), time.Second, time.Second)

		ctx, cancel := context.WithTimeout(background, 999*time.Millisecond)
		defer cancel()
		began = time.Now()
		left(t, r.Do(ctx, rediscall.NewCommand(ctx, "ping")), context.DeadlineExceeded)
		within(t, "Do returned", time.Since(began), 999*time.Millisecond, 999*time.Millisecond)

		under := start(background, r, rediscall.NewCommand(background, "ping"))
		synctest.Wait()
		if n := r.Abandoned(); n != 2 {
			t.Errorf("%d calls are stuck, want 2: one is under way", n)
		}
		began = time.Now()
		if left := r.Close(time.Millisecond); left != 3 {
			t.Errorf("Close left %d calls, want 3", left)
		}
		within(t, "Close returned", time.Since(began), time.Millisecond, time.Millisecond)
		err := r.Do(background, rediscall.NewCommand(background, "ping"))
		isClass(t, err, rediscall.Closed)

		closed := make(chan int, 1)
		go func() { closed <- r.Close(time.Hour) }()
		for n := 3; n > 0; n-- {
			synctest.Wait()
			select {
			case left := <-closed:
				t.Fatalf("Close returned %d beside %d calls", left, n)
			default:
			}
			client.answer <- nil
		}
		if left := <-closed; left != 0 {
			t.Errorf("Close left %d calls", left)
		}
		within(t, "Close returned", time.Since(began), time.Millisecond, time.Millisecond)
		if err := under.wait(t); err != nil {
			t.Errorf("a call under way at Close got %v, want its reply", err)
		}
		if n := r.Abandoned(); n != 0 {
			t.Errorf("%d calls are stuck after all were answered", n)
		}
	})
}

// maxAbandoned is how many stuck calls a runner stands.
const maxAbandoned = 256

func TestStuckCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newDeaf()
		r := rediscall.NewRunner(client, time.Second)
		calls := make([]*call, maxAbandoned)
		for i := range calls {
			calls[i] = start(background, r, rediscall.NewCommand(background, "ping"))
		}
		for _, c := range calls {
			isClass(t, c.wait(t), rediscall.Timeout)
		}
		if n := r.Abandoned(); n != maxAbandoned {
			t.Fatalf("%d calls are stuck, want %d", n, maxAbandoned)
		}

		began := time.Now()
		var err error
		sent := trips(r, func() { err = r.Do(background, rediscall.NewCommand(background, "ping")) })
		isClass(t, err, rediscall.Timeout)
		within(t, "one more was refused", time.Since(began), 0, 0)
		if sent != 0 || r.Abandoned() != maxAbandoned {
			t.Errorf("one more made %d trips; %d are stuck", sent, r.Abandoned())
		}

		client.answer <- nil
		synctest.Wait()
		more := start(background, r, rediscall.NewCommand(background, "ping"))
		for range maxAbandoned {
			client.answer <- nil
		}
		if err := more.wait(t); err != nil {
			t.Errorf("after one was answered: %v, want a reply", err)
		}
		if left := r.Close(time.Hour); left != 0 || r.Abandoned() != 0 {
			t.Errorf("Close left %d, %d are stuck", left, r.Abandoned())
		}
	})
}
