package rediscall_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
)

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
