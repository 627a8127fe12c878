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
	// detour is how long the straight way is not taken after it took the whole leash.
	detour = 100 * time.Millisecond
)

// errFull says that too many calls wait already.
var errFull = errors.New("too many calls to Redis wait: not sent")

// queue is the calls to one node, and the workers that make its trips.
type queue struct {
	runner   *rediscall.Runner
	straight *rediscall.Runner // with the leash as its budget; nil where there is no straight way
	budget   time.Duration
	mget     atomic.Bool // whether all keys are the node's, so that GETs can travel as one MGET
	group    group.Group // the workers, and who is on the straight way
	calls    sync.Pool   // of *call
	wake     chan struct{}

	mu      sync.Mutex
	waiting []*call   // guarded by mu
	workers []*worker // guarded by mu
	idle    int       // guarded by mu; workers that wait to be woken
	closed  bool      // guarded by mu
	going   bool      // guarded by mu; somebody is on the straight way
	clear   time.Time // guarded by mu; until then the straight way is not taken
}

// worker makes trips in a goroutine of its own.
type worker struct {
	began time.Time // guarded by the queue's mu; when its present trip began, zero if it makes none
	calls []*call   // of its present trip
}

// newQueue makes the queue of a node. If it is the only one, reads have a straight way to it, and can travel as one MGET.
func newQueue(rdb redis.UniversalClient, budget time.Duration, only bool) *queue {
	q := &queue{runner: rediscall.NewRunner(rdb, budget), budget: budget, wake: make(chan struct{}, maxTrips)}
	if only {
		q.straight = rediscall.NewRunner(rdb, min(leash, budget))
		q.mget.Store(true)
	}
	return q
}

// do makes a call of some commands.
func (q *queue) do(ctx context.Context, cmds []*rediscall.Command) error {
	c := q.newCall()
	c.ctx, c.cmds = ctx, cmds
	if err := q.wait(ctx, c, q.budget); err != nil {
		return err
	}
	err := c.err
	q.free(c)
	return err
}

// get reads one key.
func (q *queue) get(ctx context.Context, key string) (string, error) {
	c := q.newCall()
	c.ctx, c.key[0] = ctx, key
	c.keys, c.reads = c.key[:], c.read[:]
	if err := q.read(ctx, c); err != nil {
		return "", err
	}
	read, err := c.read[0], c.err
	q.free(c)
	if err != nil {
		return "", err
	}
	return read.Value, read.Err
}

// getMany reads some keys. After an error reads may still be written to.
func (q *queue) getMany(ctx context.Context, keys []string, reads []Read) error {
	c := q.newCall()
	c.ctx, c.keys, c.reads = ctx, keys, reads
	if err := q.read(ctx, c); err != nil {
		return err
	}
	err := c.err
	q.free(c)
	return err
}

// read makes a call that reads, on the straight way if that is clear.
func (q *queue) read(ctx context.Context, c *call) error {
	budget := q.budget
	if began, ok := q.depart(ctx); ok {
		c.err = q.trip(q.straight, []*call{c})
		took := q.arrive(began)
		if rediscall.Classify(c.err) != rediscall.Timeout {
			return nil
		}
		c.err = nil
		budget -= took
	}
	return q.wait(ctx, c, budget)
}

// depart tells whether a read may take the straight way: in the caller's own goroutine, which nobody can call back from there. So
// it is taken only while nothing else is under way and Redis answers at once.
func (q *queue) depart(ctx context.Context) (began time.Time, ok bool) {
	if q.straight == nil {
		return began, false
	}
	began = time.Now()
	if deadline, ok := ctx.Deadline(); ok && deadline.Sub(began) < leash {
		return began, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.going || len(q.waiting) > 0 || q.idle < len(q.workers) || began.Before(q.clear) || !q.group.Enter() {
		return began, false
	}
	q.going = true
	return began, true
}

// arrive ends what depart began.
func (q *queue) arrive(began time.Time) (took time.Duration) {
	defer q.group.Leave()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.going = false
	now := time.Now()
	if took = now.Sub(began); took >= leash {
		q.clear = now.Add(detour)
	}
	return took
}

// wait puts a call into the queue and waits for the end of its trip. After an error the call may still be somebody else's.
func (q *queue) wait(ctx context.Context, c *call, budget time.Duration) error {
	if err := q.enter(c); err != nil {
		return err
	}
	patience := budget / 8
	c.timer.Reset(patience)
	for {
		select {
		case <-c.done:
			c.timer.Stop()
			return nil
		case <-c.timer.C:
			if patience < budget {
				q.relieve()
				c.timer.Reset(budget - patience)
				patience = budget
				continue
			}
			c.taken.Store(true) // not to be sent any more
			return rediscall.ErrBudget
		case <-ctx.Done():
			c.timer.Stop()
			c.taken.Store(true)
			return ctx.Err()
		}
	}
}

// relieve is called by who has waited for long: the trips under way may all hang.
func (q *queue) relieve() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 && q.idle == 0 && len(q.workers) < maxTrips && !q.closed {
		q.employ()
	}
}

// employ adds a worker. q.mu is held.
func (q *queue) employ() {
	w := &worker{}
	if q.group.Go(func() { q.work(w) }) {
		q.workers = append(q.workers, w)
	}
}

// enter puts a call into the queue, and sees to it that a worker looks there.
func (q *queue) enter(c *call) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return redis.ErrClosed
	case len(q.waiting) >= maxWaiting:
		return errFull
	}
	q.waiting = append(q.waiting, c)
	switch {
	case q.idle > 0:
		q.idle--
		q.wake <- struct{}{}
	case len(q.workers) < minTrips:
		q.employ()
	}
	return nil
}

// work makes one trip after another. The workers beyond minTrips end when nobody waits.
func (q *queue) work(w *worker) {
	for q.take(w) {
		err := q.trip(q.runner, w.calls)
		for i, c := range w.calls {
			if err != nil {
				c.err = err
			}
			c.done <- struct{}{}
			w.calls[i] = nil
		}
		w.calls = w.calls[:0]
		runtime.Gosched() // who was just answered may ask again: the next trip takes them along
	}
}

// take waits for calls and gives a worker those of its next trip. It reports false when the worker is to end.
func (q *queue) take(w *worker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		w.began = time.Time{}
		n, commands := 0, 0
		for n < len(q.waiting) && (commands == 0 || commands+q.waiting[n].size() <= maxTrip) {
			if c := q.waiting[n]; c.taken.CompareAndSwap(false, true) {
				w.calls = append(w.calls, c)
				commands += c.size()
			}
			n++
		}
		q.waiting = slices.Delete(q.waiting, 0, n)
		if len(w.calls) > 0 {
			w.began = time.Now()
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
	return q.group.Close(d)
}
