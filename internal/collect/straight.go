package collect

import (
	"context"
	"time"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// depart tells whether a read may take the straight way: in the caller's own goroutine, which nobody can call back from there. So
// it is taken by a single command only, while nothing else is under way, nobody came along on the last trip, and Redis answers at
// once. What departs must arrive.
func (q *queue) depart(ctx context.Context, c *call, now time.Duration) bool {
	if q.busy.Load() || q.straight == nil || len(c.keys) > 1 && !q.mget.Load() {
		return false
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < leash {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.going || len(q.waiting) > 0 || q.idle < len(q.workers) || now < q.clear || !q.group.Enter() {
		return false
	}
	q.going = true
	return true
}

// goStraight makes the trip of a call that has departed.
func (q *queue) goStraight(c *call, began time.Duration) error {
	defer q.arrive(began)
	watch := q.breaker.watch()
	err, found := q.trip(q.straight, []*call{c})
	if rediscall.Classify(err) == rediscall.Timeout && q.budget > leash {
		found = errNoEvidence // the leash is no budget
	}
	watch.end(found)
	return err
}

// arrive ends what depart began.
func (q *queue) arrive(began time.Duration) {
	defer q.group.Leave()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.going = false
	if now := q.now(); now-began >= min(leash, q.budget) {
		q.clear = now + detour
	}
}
