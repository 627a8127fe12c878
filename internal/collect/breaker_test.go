package collect_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/collect"
	"github.com/go-nearside/nearside/internal/rediscall"
)

// fail makes trips that fail, which is told by none of them being refused.
func fail(t *testing.T, c *collect.Collector, p *puppet, way func(*collect.Collector) error, times int) {
	t.Helper()
	p.say(io.EOF)
	for n := range times {
		if err := way(c); err == nil || errors.Is(err, rediscall.ErrBreakerOpen) {
			t.Errorf("failure %d of %d: %v", n+1, times, err)
		}
	}
}

func isSick(t *testing.T, c *collect.Collector, want int, when string) {
	t.Helper()
	if got := c.Sick(); got != want {
		t.Errorf("%s: %d breakers are open, want %d", when, got, want)
	}
}

// refused checks that nothing is sent, whichever way is taken, and that nobody waits to hear it.
func refused(t *testing.T, c *collect.Collector, p *puppet) {
	t.Helper()
	before, _ := p.trips()
	for name, way := range ways {
		began := time.Now()
		if err := way(c); !errors.Is(err, rediscall.ErrBreakerOpen) || time.Since(began) != 0 {
			t.Errorf("%s: %v after %v", name, err, time.Since(began))
		}
	}
	if after, last := p.trips(); after != before {
		t.Errorf("%d trips were made, the last with %s", after-before, last)
	}
}

func TestABreakerOpensAfterFiveFailuresInARow(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
				for range 3 {
					fail(t, c, p, way, 4)
					p.say(nil)
					if err := way(c); err != nil {
						t.Error(err)
					}
				}
				fail(t, c, p, way, 4)
				isSick(t, c, 0, "after four failures")
				fail(t, c, p, way, 1)
				isSick(t, c, 1, "after five")
				refused(t, c, p)
			})
		})
	}
}

func TestWhoInsistsIsSentAlways(t *testing.T) {
	play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
		fail(t, c, p, insist, 5)
		isSick(t, c, 1, "after five")
		for n := range 20 {
			before, _ := p.trips()
			if err := insist(c); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			if after, _ := p.trips(); after != before+1 {
				t.Errorf("time %d: %d trips", n, after-before)
			}
			isSick(t, c, 1, "with an Insist that failed")
			time.Sleep(300 * time.Millisecond) // before and after it is time to try Redis again
		}
		p.say(nil)
		if err := insist(c); err != nil {
			t.Error(err)
		}
	})
}

// TestAnOpenBreakerProbes one key in a second, and only if somebody calls, who does not wait for it.
func TestAnOpenBreakerProbes(t *testing.T) {
	play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
		fail(t, c, p, do, 5)
		crowd := func(key, probe string) {
			t.Helper()
			before, _ := p.trips()
			began := time.Now()
			var calls sync.WaitGroup
			for range 50 {
				calls.Go(func() {
					if _, err := c.Get(context.Background(), key); !errors.Is(err, rediscall.ErrBreakerOpen) || time.Since(began) != 0 {
						t.Errorf("%v after %v", err, time.Since(began))
					}
				})
			}
			synctest.Wait()
			calls.Wait()
			if after, last := p.trips(); probe == "" && after != before || probe != "" && (after != before+1 || last != probe) {
				t.Errorf("%d trips after %v, the last with %s", after-before, time.Since(began), last)
			}
		}
		const nearly, rest = 999 * time.Millisecond, 2 * time.Millisecond
		for range 3 { // a probe that fails
			time.Sleep(nearly)
			crowd("early", "")
			time.Sleep(rest)
			crowd("late", "1 [get late]")
			isSick(t, c, 1, "after a probe that failed")
		}
		before, _ := p.trips()
		time.Sleep(time.Hour)
		if after, _ := p.trips(); after != before {
			t.Errorf("%d trips, and nobody called", after-before)
		}
		release := p.hang()
		crowd("slow", "1 [get slow]")
		time.Sleep(nearly)
		crowd("slow", "") // it is under way still
		time.Sleep(nearly + 2*rest)
		isSick(t, c, 1, "after a probe that took the whole budget")
		crowd("slow", "")
		release()
		time.Sleep(time.Second)
		p.say(nil)
		release = p.hang()
		crowd("well", "1 [get well]")
		isSick(t, c, 1, "before the answer to a probe")
		release()
		synctest.Wait()
		isSick(t, c, 0, "after a probe that succeeded")
		for name, way := range ways {
			if err := way(c); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// reply is what Redis answers when it refuses.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// What a trip can say of Redis.
const (
	sick    = "sick"
	well    = "well"
	nothing = "nothing"
)

func TestWhatAnErrorSays(t *testing.T) {
	for err, says := range map[error]string{
		reply("LOADING Redis is loading the dataset in memory"):                                         sick,
		reply("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."): sick,
		reply("CLUSTERDOWN The cluster is down"):                                                        sick,
		reply("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."):       sick,
		reply("ERR max number of clients reached"):                                                      sick,
		redis.ErrPoolTimeout:      sick,
		redis.ErrPoolExhausted:    sick,
		io.EOF:                    sick,
		io.ErrUnexpectedEOF:       sick,
		os.ErrDeadlineExceeded:    sick, // a read's
		context.DeadlineExceeded:  sick, // the budget's
		errors.New("a new thing"): sick,
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}: sick,
		redis.Nil: well,
		reply("WRONGTYPE Operation against a key holding the wrong kind of value"):   well,
		reply("OOM command not allowed when used memory > 'maxmemory'."):             well,
		reply("NOPERM User plain has no permissions to run the 'get' command"):       well,
		reply("NOAUTH Authentication required."):                                     well,
		reply("READONLY You can't write against a read only replica."):               well,
		reply("NOREPLICAS Not enough good replicas to write."):                       well,
		reply("TRYAGAIN Multiple keys request during rehashing of slot"):             well,
		reply("CLUSTERDOWN Hash slot not served"):                                    well,
		reply("MOVED 1 127.0.0.1:1"):                                                 well,
		reply("BUSYGROUP Consumer Group name already exists"):                        well,
		reply("MISCONF Redis is configured to save RDB snapshots, but it is unable"): well,
		redis.ErrClosed: nothing,
	} {
		for name, way := range ways {
			t.Run(strings.Fields(err.Error())[0]+"/"+name, func(t *testing.T) {
				play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
					for range 10 {
						p.say(err)
						if got := way(c); got == nil {
							t.Fatal("no error")
						}
					}
					if says == sick {
						isSick(t, c, 1, err.Error())
						return
					}
					isSick(t, c, 0, err.Error())
					fail(t, c, p, way, 4)
					p.say(err)
					_ = way(c) // an answer begins the count anew, what says nothing leaves it
					fail(t, c, p, way, 1)
					isSick(t, c, map[string]int{well: 0, nothing: 1}[says], "four failures, "+err.Error()+", a failure")
				})
			})
		}
	}
}

// TestASickReplyBesideAnswersCounts: one command of a trip is enough.
func TestASickReplyBesideAnswersCounts(t *testing.T) {
	play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
		p.say(reply("LOADING Redis is loading the dataset in memory"))
		p.last = true
		for range 5 {
			isSick(t, c, 0, "too early")
			if err := do(c); err != nil {
				t.Errorf("the first of two commands: %v", err)
			}
		}
		isSick(t, c, 1, "after five trips whose last command met LOADING")
	})
}

func TestCollectorsOfAClientShareABreaker(t *testing.T) {
	play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
		other := c.With(time.Second)
		defer other.Close(time.Minute)
		fail(t, c, p, get, 3)
		fail(t, other, p, get, 2)
		isSick(t, c, 1, "after three failures of one and two of the other")
		refused(t, c, p)
		refused(t, other, p)
		time.Sleep(time.Second + 1)
		p.say(nil)
		if err := get(other); !errors.Is(err, rediscall.ErrBreakerOpen) {
			t.Error(err)
		}
		if err := get(c); err != nil {
			t.Errorf("after a probe of the other: %v", err)
		}
	})
}

// TestATripFromBeforeDoesNotCount: it began before the breaker opened and closed again.
func TestATripFromBeforeDoesNotCount(t *testing.T) {
	play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
		p.say(io.EOF)
		release := p.hang()
		var late sync.WaitGroup
		late.Go(func() { _ = insisting(c) })
		synctest.Wait()
		p.wake()
		fail(t, c, p, get, 5)
		time.Sleep(time.Second + 1)
		p.say(nil)
		_ = get(c) // refused, and probes
		isSick(t, c, 0, "after a probe")
		fail(t, c, p, get, 4)
		release()
		late.Wait()
		synctest.Wait()
		isSick(t, c, 0, "after four failures and one from before")
		fail(t, c, p, get, 1)
		isSick(t, c, 1, "after five")
	})
}
