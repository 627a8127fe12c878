package collect

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/group"
	"github.com/go-nearside/nearside/internal/rediscall"
)

const (
	minTrips   = 2       // under way at once, in good weather
	maxTrips   = 16      // under way at once, while some hang
	maxWaiting = 100_000 // calls
	maxTrip    = 500     // commands in a trip; one call may have as many

	// leash is the longest that a read on the straight way can make a caller wait who wants to leave.
	leash = 10 * time.Millisecond
	// detour is how long the straight way is not taken after it took the whole leash: a Redis that hangs holds up one caller in that
	// time.
	detour = 100 * time.Millisecond
)

// errFull says that too many calls wait already.
var errFull = errors.New("too many calls to Redis wait: not sent")

// queue is the calls to one node, and the workers that make its trips.
type queue struct {
	began    time.Time // times are since then
	runner   *rediscall.Runner
	straight *rediscall.Runner // with the leash as its budget; nil where there is no straight way
	budget   time.Duration
	breaker  *breaker
	failed   func(error) // hears what came of a probe; may be nil
	mget     atomic.Bool // whether all keys are the node's, so that GETs can travel as one MGET
	group    group.Group // the workers, and who is on the straight way
	calls    sync.Pool   // of *call
	wake     chan struct{}
	busy     atomic.Bool // the last trip took several calls: the straight way is not taken

	mu      sync.Mutex
	waiting []*call       // guarded by mu
	workers []*worker     // guarded by mu
	idle    int           // guarded by mu; workers that wait to be woken
	closed  bool          // guarded by mu
	going   bool          // guarded by mu; somebody is on the straight way
	clear   time.Duration // guarded by mu; until then the straight way is not taken
	alarm   *time.Timer   // guarded by mu; runs expire
	armed   bool          // guarded by mu
}

// worker makes trips in a goroutine of its own.
type worker struct {
	began time.Time // guarded by the queue's mu; when its present trip began, zero if it makes none
	calls []*call   // guarded by the queue's mu for writing; those of its present trip
	watch watched   // guarded by the queue's mu; of its present trip
}

// newQueue makes the queue of a node. If all keys are the node's, reads can travel as one MGET.
func newQueue(rdb redis.UniversalClient, budget time.Duration, b *breaker, all bool) *queue {
	q := &queue{
		began: time.Now(), runner: rediscall.NewRunner(rdb, budget), budget: budget, breaker: b, wake: make(chan struct{}, maxTrips),
	}
	if _, node := rdb.(*redis.Client); node {
		q.straight = rediscall.NewRunner(rdb, min(leash, budget))
	}
	q.mget.Store(all)
	return q
}

// do makes a call of some commands.
func (q *queue) do(ctx context.Context, cmds []*rediscall.Command, insist bool) error {
	if !insist && q.refuses(cmds[0].Key()) {
		return rediscall.ErrBreakerOpen
	}
	c := q.newCall()
	c.ctx, c.cmds = ctx, cmds
	if err := q.wait(ctx, c, q.now()+q.budget); err != nil {
		return err
	}
	q.free(c)
	return nil
}

// get reads one key.
func (q *queue) get(ctx context.Context, key string) (string, error) {
	if q.refuses(key) {
		return "", rediscall.ErrBreakerOpen
	}
	c := q.newCall()
	c.ctx, c.key[0] = ctx, key
	c.keys, c.reads = c.key[:], c.read[:]
	if err := q.read(ctx, c); err != nil {
		return "", err
	}
	read := c.read[0]
	q.free(c)
	return read.Value, read.Err
}

// getMany reads some keys. After an error reads may still be written to.
func (q *queue) getMany(ctx context.Context, keys []string, reads []Read) error {
	if q.refuses(keys[0]) {
		return rediscall.ErrBreakerOpen
	}
	c := q.newCall()
	c.ctx, c.keys, c.reads = ctx, keys, reads
	if err := q.read(ctx, c); err != nil {
		return err
	}
	q.free(c)
	return nil
}

// read makes a call that reads, on the straight way if that is clear.
func (q *queue) read(ctx context.Context, c *call) error {
	began := q.now()
	until := began + q.budget
	if q.depart(ctx, c, began) {
		if err := q.goStraight(c, began); rediscall.Classify(err) != rediscall.Timeout || q.now() >= until {
			return err
		}
	}
	return q.wait(ctx, c, until)
}

// direct makes a call past the queue, by a client that finds the nodes itself.
func (q *queue) direct(ctx context.Context, cmds []*rediscall.Command, insist bool) error {
	if !insist && q.refuses(cmds[0].Key()) {
		return rediscall.ErrBreakerOpen
	}
	watch := q.breaker.watch()
	err := q.runner.Do(ctx, cmds...)
	watch.end(outcome(err, cmds))
	return err
}

// refuses tells whether a call need not be made, since the node is known to be sick. key is what the node may be asked for to see
// whether it still is.
func (q *queue) refuses(key string) bool {
	return q.breaker.refuses(func(watch watched) bool {
		return q.group.Go(func() {
			ctx := context.Background()
			cmds := []*rediscall.Command{rediscall.NewCommand(ctx, "get", key)}
			err := q.do(ctx, cmds, true)
			watch.end(outcome(err, cmds))
			if q.failed != nil {
				if err == nil {
					err = cmds[0].Err()
				}
				q.failed(err)
			}
		})
	})
}

// now is the time on the queue's clock.
func (q *queue) now() time.Duration { return time.Since(q.began) }

// wait puts a call into the queue and waits for the end of its trip, until its budget ends. After an error the call may still be
// somebody else's.
func (q *queue) wait(ctx context.Context, c *call, until time.Duration) error {
	if err := q.enter(c, until); err != nil {
		return err
	}
	if ctx.Done() == nil {
		<-c.done
		return c.err
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		c.taken.Store(true) // not to be sent any more
		return ctx.Err()
	}
}

// enter puts a call into the queue, and sees to it that a worker looks there.
func (q *queue) enter(c *call, until time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return redis.ErrClosed
	case len(q.waiting) >= maxWaiting:
		return errFull
	}
	c.until = until
	c.over.Store(false)
	q.waiting = append(q.waiting, c)
	switch {
	case q.idle > 0:
		q.idle--
		q.wake <- struct{}{}
	case len(q.workers) < minTrips:
		q.employ()
	}
	if !q.armed {
		q.arm(q.patience())
	}
	return nil
}

// employ adds a worker. q.mu is held.
func (q *queue) employ() {
	w := &worker{}
	if q.group.Go(func() { q.work(w) }) {
		q.workers = append(q.workers, w)
	}
}

// work makes one trip after another. The workers beyond minTrips end when nobody waits.
func (q *queue) work(w *worker) {
	for q.take(w) {
		err, found := q.trip(q.runner, w.calls)
		q.mu.Lock()
		w.watch.end(found) // before its callers go on
		q.mu.Unlock()
		for _, c := range w.calls {
			c.end(err)
		}
		runtime.Gosched() // who was just answered may ask again: the next trip takes them along
	}
}

// take waits for calls and gives a worker those of its next trip. It reports false when the worker is to end.
func (q *queue) take(w *worker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		clear(w.calls)
		w.began, w.calls = time.Time{}, w.calls[:0]
		n, commands := 0, 0
		for ; n < len(q.waiting) && (commands == 0 || commands+q.waiting[n].size() <= maxTrip); n++ {
			if c := q.waiting[n]; c.taken.CompareAndSwap(false, true) {
				w.calls = append(w.calls, c)
				commands += c.size()
			}
		}
		q.waiting = slices.Delete(q.waiting, 0, n)
		if len(w.calls) > 0 {
			w.began, w.watch = time.Now(), q.breaker.watch()
			q.busy.Store(len(w.calls) > 1)
			return true
		}
		if q.closed || len(q.workers) > minTrips {
			q.workers = slices.DeleteFunc(q.workers, func(other *worker) bool { return other == w })
			return false
		}
		q.idle++
		q.mu.Unlock()
		<-q.wake
		q.mu.Lock()
	}
}

// patience is how long a call waits for a trip before it starts one.
func (q *queue) patience() time.Duration { return q.budget / 8 }

// arm lets expire run in a while. q.mu is held.
func (q *queue) arm(in time.Duration) {
	q.armed = true
	if q.alarm == nil {
		q.alarm = time.AfterFunc(in, q.expire)
	} else {
		q.alarm.Reset(in)
	}
}

// expire ends the calls whose budget has ended, and runs again while there are others. The calls of a queue share this timer: one for
// each would cost more than all else that a call waits with. If somebody has waited for long, the trips under way may all hang: then
// it adds a worker.
func (q *queue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, pending := q.now(), false
	next := now + q.patience()
	ended := func(c *call) bool {
		if c.until <= now {
			c.end(rediscall.ErrBudget)
			return true
		}
		pending, next = true, min(next, c.until)
		return false
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(c *call) bool { return c.taken.Load() || ended(c) })
	for _, w := range q.workers {
		for _, c := range w.calls {
			if !c.over.Load() {
				ended(c)
			}
		}
		if w.watch == nil {
			continue
		}
		if left := q.budget - time.Since(w.began); left > 0 { // it began after its calls came
			pending, next = true, min(next, now+left)
		} else {
			w.watch.end(rediscall.ErrBudget) // it may hang for long
		}
	}
	if len(q.waiting) > 0 {
		if impatient := q.waiting[0].until - q.budget + q.patience(); impatient > now {
			next = min(next, impatient)
		} else if q.idle == 0 && len(q.workers) < maxTrips && !q.closed {
			q.employ()
		}
	}
	if q.armed = pending; pending {
		q.arm(next - now)
	}
}

// tripsMade is the number of trips so far.
func (q *queue) tripsMade() uint64 {
	n := q.runner.Trips()
	if q.straight != nil {
		n += q.straight.Trips()
	}
	return n
}

// stuck is the number of trips that have outlived their budget.
func (q *queue) stuck() int {
	n := q.runner.Abandoned() // of a cluster that is not known yet
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.workers {
		if !w.began.IsZero() && time.Since(w.began) > q.budget {
			n++
		}
	}
	return n
}

// close refuses further calls and waits for the trips under way, at most for d. It returns how many were left.
func (q *queue) close(d time.Duration) (left int) {
	q.mu.Lock()
	q.closed = true
	for ; q.idle > 0; q.idle-- {
		q.wake <- struct{}{}
	}
	q.mu.Unlock()
	left = q.group.Close(d)
	q.mu.Lock()
	defer q.mu.Unlock()
	if left == 0 && q.alarm != nil {
		q.alarm.Stop() // else it goes on until the budgets of those left have ended
	}
	return left
}
