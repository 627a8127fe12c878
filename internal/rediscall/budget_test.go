package rediscall_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
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
