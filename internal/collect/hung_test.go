package collect_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/collect"
	"github.com/go-nearside/nearside/internal/rediscall"
)

// hung is a hook whose client answers nothing until it is closed.
type hung chan struct{}

func (hung) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hung) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { <-h; return net.ErrClosed }
}

func (h hung) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { <-h; return net.ErrClosed }
}

// newHung makes a client of which no clone with time-outs can be made, and whose commands do not come back.
func newHung() (redis.UniversalClient, hung) {
	h := make(hung)
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	rdb.AddHook(h)
	return struct{ redis.UniversalClient }{rdb}, h
}

// TestABudgetIsExact, for who is on a trip that hangs and for who waits behind it, also once the collector is closed.
func TestABudgetIsExact(t *testing.T) {
	for _, budget := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, 7 * time.Second} {
		for _, closing := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				rdb, h := newHung()
				c := collect.New(rdb, budget)
				var calls sync.WaitGroup
				for n := range 40 {
					calls.Go(func() {
						time.Sleep(time.Duration(n) * budget / 20) // the last ones come when the first have ended
						began := time.Now()
						err := c.Insist(context.Background(), rediscall.NewCommand(context.Background(), "get", "k")) // its breaker opens
						closed := closing && time.Since(began) == 0
						if took := time.Since(began); !closed && (took != budget || rediscall.Classify(err) != rediscall.Timeout) {
							t.Errorf("budget %v: call %d took %v: %v", budget, n, took, err)
						}
					})
				}
				if closing {
					time.Sleep(budget / 2)
					if left := c.Close(0); left == 0 {
						t.Error("Close left nothing, and trips hang")
					}
				}
				calls.Wait()
				close(h)
				if left := c.Close(time.Second); left != 0 {
					t.Errorf("%d are left", left)
				}
				rdb.Close()
			})
		}
	}
}
