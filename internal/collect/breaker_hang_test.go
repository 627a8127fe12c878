package collect_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-nearside/nearside/internal/collect"
	"github.com/go-nearside/nearside/internal/rediscall"
)

// TestTripsThatHangCount when their budget has ended, those too for which all workers were busy, and who called has left.
func TestTripsThatHangCount(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
				defer p.hang()()
				for n := range 5 {
					isSick(t, c, 0, "too early")
					began := time.Now()
					if err := way(c); rediscall.Classify(err) != rediscall.Timeout {
						t.Errorf("call %d: %v after %v", n, err, time.Since(began))
					}
					time.Sleep(time.Second) // the trips that follow one that hangs begin late
					synctest.Wait()
				}
				isSick(t, c, 1, "after five trips that hang")
			})
		})
	}
}

// TestAProbeThatHangsIsNotTheLast: also one that waited for a worker, and is never given back by go-redis.
func TestAProbeThatHangsIsNotTheLast(t *testing.T) {
	play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
		release := p.hang()
		defer release()
		var hung sync.WaitGroup
		for range 2 { // as many as need not wait
			hung.Go(func() { _ = insisting(c) })
			synctest.Wait()
		}
		hung.Wait()
		p.wake()
		fail(t, c, p, insist, 5)
		defer p.hang()()
		time.Sleep(time.Second + 1)
		before, _ := p.trips()
		for range 29 { // not longer than its budget and the second after it
			_ = get(c)
			time.Sleep(100 * time.Millisecond)
		}
		if after, _ := p.trips(); after != before+1 {
			t.Errorf("%d probes", after-before)
		}
		p.wake()
		p.say(nil)
		time.Sleep(2 * time.Second)
		_ = get(c) // probes again
		time.Sleep(time.Second)
		if err := get(c); err != nil {
			t.Errorf("after Redis has come back: %v", err)
		}
	})
}

// TestACallersEndSaysNothing: many leave before a slow Redis answers.
func TestACallersEndSaysNothing(t *testing.T) {
	play(t, func(t *testing.T, c *collect.Collector, p *puppet) { leave(t, c, p.hang()) })
	synctest.Test(t, func(t *testing.T) { // a cluster that is not known yet
		p := new(puppet)
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
		rdb.AddHook(p)
		defer rdb.Close()
		c := collect.New(rdb, 2*time.Second)
		p.say(io.EOF)
		leave(t, c, p.hang())
		fail(t, c, p, get, 5)
		isSick(t, c, 1, "after five failures of a cluster that is not known")
		refused(t, c, p)
		fail(t, c, p, insist, 5)
		if left := c.Close(time.Minute); left != 0 {
			t.Errorf("%d trips are still under way", left)
		}
	})
}

func leave(t *testing.T, c *collect.Collector, release func()) {
	t.Helper()
	var calls sync.WaitGroup
	for n := range 50 {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			if n%2 == 0 {
				time.AfterFunc(5*time.Millisecond, cancel)
			}
			if _, err := c.Get(ctx, "k"); !errors.Is(err, ctx.Err()) || err == nil {
				t.Errorf("call %d: %v", n, err)
			}
		})
	}
	calls.Wait()
	release()
	synctest.Wait()
	isSick(t, c, 0, "after the ends of many callers")
}

// slow is a dialer of nodes that answer each command with "v" after a while, or not at all if that is zero.
func slow(takes time.Duration) dialer {
	return func(context.Context, string, string) (net.Conn, error) {
		client, node := net.Pipe()
		go func() {
			defer node.Close()
			for command := make([]byte, 1024); ; {
				n, err := node.Read(command)
				switch {
				case err != nil:
					return
				case bytes.Contains(command[:n], []byte("hello")):
					_, _ = io.WriteString(node, "-ERR unknown command\r\n")
				case takes > 0:
					time.Sleep(takes)
					_, _ = io.WriteString(node, "$1\r\nv\r\n")
				}
			}
		}()
		return client, nil
	}
}

type dialer func(context.Context, string, string) (net.Conn, error)

// dial runs a test in fake time, with a client of which clones can be made.
func dial(t *testing.T, d dialer, budget time.Duration, f func(*testing.T, *collect.Collector)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", Dialer: d, DialerRetries: 1, PoolSize: 100, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		c := collect.New(rdb, budget)
		f(t, c)
		if left := c.Close(time.Minute); left != 0 {
			t.Errorf("%d trips are still under way", left)
		}
		rdb.Close()
		time.Sleep(time.Minute) // until its connections are gone
	})
}

// TestTheStraightWayCounts: reads on it that fail.
func TestTheStraightWayCounts(t *testing.T) {
	refuse := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	dial(t, refuse, ample, func(t *testing.T, c *collect.Collector) {
		for range 5 {
			isSick(t, c, 0, "too early")
			if err := get(c); rediscall.Classify(err) != rediscall.Transport {
				t.Error(err)
			}
		}
		isSick(t, c, 1, "after five")
		if n := c.Trips(); n != 5 || c.Busy() != 0 {
			t.Errorf("%d trips, and not all on the straight way", n)
		}
	})
}

// TestTheLeashIsNoBudget: that a read has ended on the straight way says nothing of Redis, only what came of it after that.
func TestTheLeashIsNoBudget(t *testing.T) {
	const budget = 200 * time.Millisecond
	read := func(t *testing.T, c *collect.Collector, class rediscall.Class, times int) {
		t.Helper()
		for range times {
			before := c.Trips()
			_, err := c.Get(context.Background(), "k")
			if got := rediscall.Classify(err); got != class {
				t.Errorf("%v, want %v", err, class)
			}
			time.Sleep(budget) // so that the next one goes straight too
			if n := c.Trips() - before; n != 2 {
				t.Errorf("%d trips, want one on the straight way and one by a worker", n)
			}
		}
	}
	dial(t, slow(30*time.Millisecond), budget, func(t *testing.T, c *collect.Collector) {
		read(t, c, rediscall.OK, 100)
		isSick(t, c, 0, "a slow Redis")
	})
	dial(t, slow(0), budget, func(t *testing.T, c *collect.Collector) {
		read(t, c, rediscall.Timeout, 4)
		isSick(t, c, 0, "after four reads without an answer")
		read(t, c, rediscall.Timeout, 1)
		isSick(t, c, 1, "after five")
	})
}

func TestCloseBesideAProbe(t *testing.T) {
	play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
		fail(t, c, p, get, 5)
		time.Sleep(time.Second + 1)
		release := p.hang()
		_ = get(c)
		if left := c.Close(time.Millisecond); left == 0 {
			t.Error("Close left nothing, and a probe is under way")
		}
		release()
		if left := c.Close(time.Second); left != 0 {
			t.Errorf("%d are left", left)
		}
		time.Sleep(time.Second + 1)
		before, _ := p.trips()
		_ = get(c)
		if after, _ := p.trips(); after != before {
			t.Error("a closed collector probes")
		}
	})
	for range 100 { // at any time
		play(t, func(t *testing.T, c *collect.Collector, p *puppet) {
			fail(t, c, p, get, 5)
			time.Sleep(time.Second + 1)
			var calls sync.WaitGroup
			for range 4 {
				calls.Go(func() {
					if _, err := c.Get(context.Background(), "k"); err == nil {
						t.Error("no error")
					}
				})
			}
			if left := c.Close(time.Second); left != 0 {
				t.Errorf("%d are left", left)
			}
			calls.Wait()
		})
	}
}

// TestTheBreakerHearsOfATripFirst: who was told of the fifth failure is refused.
func TestTheBreakerHearsOfATripFirst(t *testing.T) {
	p := new(puppet)
	p.say(io.EOF)
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	rdb.AddHook(p)
	late := 0
	for range 1000 {
		c := collect.New(struct{ redis.UniversalClient }{rdb}, ample)
		for range 5 {
			_, _ = c.Get(context.Background(), "k")
		}
		if _, err := c.Get(context.Background(), "k"); !errors.Is(err, rediscall.ErrBreakerOpen) {
			late++
		}
		c.Close(ample)
	}
	if late > 0 {
		t.Errorf("%d of 1000 calls were sent after five failures", late)
	}
}
