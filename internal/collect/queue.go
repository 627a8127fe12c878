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

	// ticks is the number of parts of the budget that are counted. A call ends in the first tick behind its budget.
	ticks    = 16
	patience = ticks / 8 // after which who waits for a trip starts one
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
	busy     atomic.Bool // the last trip took several calls: the straight way is not taken

	mu      sync.Mutex
	waiting []*call     // guarded by mu
	workers []*worker   // guarded by mu
	idle    int         // guarded by mu; workers that wait to be woken
	closed  bool        // guarded by mu
	going   bool        // guarded by mu; somebody is on the straight way
	clear   time.Time   // guarded by mu; until then the straight way is not taken
	ticker  *time.Timer // guarded by mu; runs tick
	ticking bool        // guarded by mu; while there are calls
	now     int         // guarded by mu; counts ticks
}

// worker makes trips in a goroutine of its own.
type worker struct {
	began time.Time // guarded by the queue's mu; when its present trip began, zero if it makes none
	calls []*call   // guarded by the queue's mu; those of its present trip, nil where the budget of one has ended
	trip  []*call   // its own copy of calls
}

// newQueue makes the queue of a node. If all keys are the node's, reads can travel as one MGET.
func newQueue(rdb redis.UniversalClient, budget time.Duration, all bool) *queue {
	q := &queue{runner: rediscall.NewRunner(rdb, budget), budget: budget, wake: make(chan struct{}, maxTrips)}
	if _, node := rdb.(*redis.Client); node {
		q.straight = rediscall.NewRunner(rdb, min(leash, budget))
	}
	q.mget.Store(all)
	return q
}

// do makes a call of some commands.
func (q *queue) do(ctx context.Context, cmds []*rediscall.Command) error {
	c := q.newCall()
	c.ctx, c.cmds = ctx, cmds
	if err := q.wait(ctx, c, ticks); err != nil {
		return err
	}
	q.free(c)
	return nil
}

// get reads one key.
func (q *queue) get(ctx context.Context, key string) (string, error) {
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
	budget := ticks
	if began, ok := q.depart(ctx); ok {
		err := q.trip(q.straight, []*call{c})
		took := q.arrive(began)
		if rediscall.Classify(err) != rediscall.Timeout {
			return err
		}
		budget -= int(took*ticks/q.budget) + 1
	}
	return q.wait(ctx, c, budget)
}

// depart tells whether a read may take the straight way: in the caller's own goroutine, which nobody can call back from there. So
// it is taken only while nothing else is under way, nobody came along on the last trip, and Redis answers at once.
func (q *queue) depart(ctx context.Context) (began time.Time, ok bool) {
	if q.busy.Load() || q.straight == nil {
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

// wait puts a call into the queue and waits for the end of its trip, for a budget in ticks. After an error the call may still be
// somebody else's.
func (q *queue) wait(ctx context.Context, c *call, budget int) error {
	if err := q.enter(c, budget); err != nil {
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
func (q *queue) enter(c *call, budget int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return redis.ErrClosed
	case len(q.waiting) >= maxWaiting:
		return errFull
	}
	c.last = q.now + budget
	q.waiting = append(q.waiting, c)
	switch {
	case q.idle > 0:
		q.idle--
		q.wake <- struct{}{}
	case len(q.workers) < minTrips:
		q.employ()
	}
	if !q.ticking {
		q.tickOn()
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
		err := q.trip(q.runner, w.trip)
		q.mu.Lock()
		answered := w.calls
		w.calls = w.trip[:0]
		q.mu.Unlock()
		for _, c := range answered {
			if c != nil {
				c.end(err)
			}
		}
		clear(answered)
		w.trip = answered[:0]
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
		for ; n < len(q.waiting) && (commands == 0 || commands+q.waiting[n].size() <= maxTrip); n++ {
			if c := q.waiting[n]; c.taken.CompareAndSwap(false, true) {
				w.calls = append(w.calls, c)
				commands += c.size()
			}
		}
		q.waiting = slices.Delete(q.waiting, 0, n)
		if len(w.calls) > 0 {
			w.trip = append(w.trip, w.calls...)
			w.began = time.Now()
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

// tickOn lets the next tick come. q.mu is held.
func (q *queue) tickOn() {
	q.ticking = true
	if q.ticker == nil {
		q.ticker = time.AfterFunc(q.budget/ticks, q.tick)
	} else {
		q.ticker.Reset(q.budget / ticks)
	}
}

// tick ends the calls whose budget has ended. The calls of a queue share it: a timer for each would cost more than all else that a
// call waits with. If somebody has waited for long, the trips under way may all hang: then it adds a worker.
func (q *queue) tick() {
	if !q.group.Enter() {
		return
	}
	defer q.group.Leave()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.now++
	pending := false
	ended := func(c *call) bool {
		if q.now <= c.last {
			pending = true
			return false
		}
		c.end(rediscall.ErrBudget)
		return true
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(c *call) bool { return c.taken.Load() || ended(c) })
	for _, w := range q.workers {
		for i, c := range w.calls {
			if c != nil && ended(c) {
				w.calls[i] = nil
			}
		}
	}
	if len(q.waiting) > 0 && q.waiting[0].last-q.now <= ticks-patience && q.idle == 0 && len(q.workers) < maxTrips && !q.closed {
		q.employ()
	}
	if q.ticking = pending; pending {
		q.tickOn()
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
