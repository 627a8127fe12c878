package collect_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/collect"
	"github.com/go-nearside/nearside/internal/rediscall"
)

// puppet is a hook whose client is answered as it says.
type puppet struct {
	mu   sync.Mutex
	err  error         // guarded by mu; the answer, "v" if it is nil
	last bool          // guarded by mu; only the last command of a trip gets err
	hold chan struct{} // guarded by mu; if it is there, what is sent now comes back when it is closed
	sent []string      // guarded by mu; a line for each trip
}

func (*puppet) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *puppet) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return p.answer(cmd) }
}

func (p *puppet) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error { return p.answer(cmds...) }
}

func (p *puppet) answer(cmds ...redis.Cmder) error {
	p.mu.Lock()
	err, last, hold := p.err, p.last, p.hold
	p.sent = append(p.sent, fmt.Sprint(len(cmds), cmds[0].Args()))
	p.mu.Unlock()
	if hold != nil {
		<-hold
	}
	for i, cmd := range cmds {
		if err == nil || last && i < len(cmds)-1 {
			cmd.(interface{ SetVal(any) }).SetVal("v")
		} else {
			cmd.SetErr(err)
		}
	}
	return err
}

func (p *puppet) say(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// hang keeps what is sent from now on until it is released. What is sent after wake is not kept.
func (p *puppet) hang() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hold := make(chan struct{})
	p.hold = hold
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.hold == hold {
			p.hold = nil
		}
		close(hold)
	}
}

func (p *puppet) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = nil
}

// trips returns how many there were, and the last.
func (p *puppet) trips() (n int, last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent), append([]string{""}, p.sent...)[len(p.sent)]
}

// play runs a test in fake time, with a client of which no clone can be made, and a budget of two seconds.
func play(t *testing.T, f func(t *testing.T, c *collect.Collector, p *puppet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := new(puppet)
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		rdb.AddHook(p)
		defer rdb.Close()
		c := collect.New(struct{ redis.UniversalClient }{rdb}, 2*time.Second)
		f(t, c, p)
		if left := c.Close(time.Minute); left != 0 {
			t.Errorf("%d trips are still under way", left)
		}
	})
}

// ways are those in which a collector is called, but for Insist. They return after the breaker has heard of it.
var ways = map[string]func(c *collect.Collector) error{"Do": do, "Get": get, "GetMany": getMany}

func do(c *collect.Collector) error {
	defer synctest.Wait()
	cmds := []*rediscall.Command{rediscall.NewCommand(context.Background(), "set", "k", "v"), rediscall.NewCommand(context.Background(), "get", "k")}
	if err := c.Do(context.Background(), cmds...); err != nil {
		return err
	}
	return cmds[0].Err()
}

func get(c *collect.Collector) error {
	defer synctest.Wait()
	_, err := c.Get(context.Background(), "k")
	return err
}

func getMany(c *collect.Collector) error {
	defer synctest.Wait()
	reads := make([]collect.Read, 2)
	if err := c.GetMany(context.Background(), []string{"a", "b"}, reads); err != nil {
		return err
	}
	return reads[0].Err
}

func insist(c *collect.Collector) error {
	defer synctest.Wait()
	return insisting(c)
}

func insisting(c *collect.Collector) error {
	return c.Insist(context.Background(), rediscall.NewCommand(context.Background(), "del", "k"))
}
