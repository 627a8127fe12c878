package cache

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// maxUnconfirmed bounds the keys of a cache that are remembered one by one.
const maxUnconfirmed = 100_000

// unconfirmed remembers the keys whose delete Redis did not confirm. Redis is not read for them, until a later delete or fill is
// confirmed, or what may stand there has expired: also what a load of before the delete, anywhere, may fill after it.
type unconfirmed struct {
	clock *clock
	keep  time.Duration // how long a key is remembered
	most  int           // keys that are remembered; past it the whole name bypasses Redis

	sequence  atomic.Uint64
	some      atomic.Bool   // whether there is anything to look for; guarded by mu for writing
	overflows atomic.Uint64 // keys that found no room

	mu    sync.Mutex
	keys  map[string]debt // guarded by mu
	until int64           // guarded by mu; the end of the whole name's bypass
	lost  int             // guarded by mu; the keys that found no room since that began
	over  struct {        // guarded by mu; the last write of which keys found no room
		sequence uint64
		keys     int
	}
	tries bool // guarded by mu; a goroutine tries again
}

// debt is a delete that is owed to Redis.
type debt struct {
	sequence uint64 // of the write that was not confirmed
	until    int64
}

// next returns the number of a write about to be sent. A confirmation settles the debts of its own number and older ones.
func (u *unconfirmed) next() uint64 { return u.sequence.Add(1) }

// owe remembers keys. It reports whether the caller has to begin to try again, and whether there was no room for all.
func (u *unconfirmed) owe(sequence uint64, physical ...string) (begin, overflow bool) {
	if len(physical) == 0 {
		return false, false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.now()
	until := now + int64(u.keep)
	u.some.Store(true)
	swept, without := false, 0
	for _, key := range physical {
		if _, known := u.keys[key]; !known && len(u.keys) >= u.most && !swept && u.until <= now {
			u.sweep(now)
			swept = true
		}
		if _, known := u.keys[key]; !known && len(u.keys) >= u.most {
			without++
			continue
		}
		if u.keys == nil {
			u.keys = make(map[string]debt)
		}
		u.keys[key] = debt{sequence: max(sequence, u.keys[key].sequence), until: until}
	}
	if without > 0 {
		if overflow = u.until <= now; overflow {
			u.lost = 0
		}
		u.until = until
		if sequence != u.over.sequence { // a write whose caller has left is owed twice
			u.over.sequence, u.over.keys = sequence, without
			u.lost += without
			u.overflows.Add(uint64(without))
		}
	}
	begin, u.tries = !u.tries, true
	return begin, overflow
}

// retract takes back that keys of a write found no room, since Redis has confirmed all of them after all.
func (u *unconfirmed) retract(sequence uint64) {
	if !u.some.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over.sequence == sequence && u.over.keys == u.lost {
		u.until, u.lost = 0, 0
		u.some.Store(len(u.keys) > 0)
	}
}

// goOn tells who tries again whether there is anything left to try. If not, the next debt begins anew.
func (u *unconfirmed) goOn() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tries = len(u.keys) > 0
	return u.tries
}

// sweep takes out what has expired. u.mu is held.
func (u *unconfirmed) sweep(now int64) {
	for key, d := range u.keys {
		if d.until <= now {
			delete(u.keys, key)
		}
	}
}

// settle forgets a key, if nothing newer is owed.
func (u *unconfirmed) settle(physical string, sequence uint64) {
	if !u.some.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if d, ok := u.keys[physical]; ok && d.sequence <= sequence {
		delete(u.keys, physical)
		u.some.Store(len(u.keys) > 0 || u.until > u.clock.now())
	}
}

// any tells whether there may be a key for which has is true.
func (u *unconfirmed) any() bool { return u.some.Load() }

// has tells whether Redis must not be used for a key.
func (u *unconfirmed) has(physical string) bool {
	if !u.some.Load() {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.now()
	d, ok := u.keys[physical]
	if ok && d.until <= now {
		delete(u.keys, physical)
		ok = false
	}
	u.some.Store(len(u.keys) > 0 || u.until > now)
	return ok || u.until > now
}

// owed returns the keys that are remembered now, each with the number of its last write.
func (u *unconfirmed) owed() (keys []string, sequences []uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sweep(u.clock.now())
	for key, d := range u.keys {
		keys, sequences = append(keys, key), append(sequences, d.sequence)
	}
	u.some.Store(len(u.keys) > 0 || u.until > u.clock.now())
	return keys, sequences
}

// overflowing returns how many keys found no room, while the whole name bypasses Redis for them.
func (u *unconfirmed) overflowing() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.until <= u.clock.now() {
		return 0
	}
	return u.lost
}

// len returns how many keys are remembered.
func (u *unconfirmed) len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.keys)
}

// retryEvery is the time between two tries of what Redis did not confirm.
const retryEvery = 500 * time.Millisecond

// owe remembers deletes that Redis did not confirm, and has them tried again until it does.
func (c *Cache[K, V]) owe(sequence uint64, physical ...string) {
	begin, overflow := c.unconfirmed.owe(sequence, physical...)
	if begin {
		c.client.retries.Go(c.retry) // not once the client closes, which tries for the last time
	}
	if overflow {
		c.client.log.Warn("nearside: more deletes are not confirmed by Redis than can be remembered; the whole cache does without Redis for a while",
			"cache", c.name, "remembered", c.unconfirmed.most, "for", c.unconfirmed.keep)
	}
}

// retry tries again until nothing is owed, or the client closes.
func (c *Cache[K, V]) retry() {
	ticker := time.NewTicker(c.client.retryEvery)
	defer ticker.Stop()
	for c.unconfirmed.goOn() {
		select {
		case <-ticker.C:
			// Not while the breaker is open: dials that fail make go-redis slow to come back.
			c.settleOwed(context.Background(), c.client.write.Do)
		case <-c.client.closing:
			return
		}
	}
}

// settleOwed tries the deletes that are owed once more, and returns how many of them are left. After a round trip in which Redis confirmed
// none it tries no more. A confirmation settles what was owed when it was sent, and nothing newer.
func (c *Cache[K, V]) settleOwed(ctx context.Context, do sender) (left int) {
	keys, sequences := c.unconfirmed.owed()
	left = len(keys)
	trips(len(keys), func(from, to int) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		before := left
		for i, err := range c.redis.remove(ctx, do, keys[from:to]) {
			if err == nil || errors.Is(err, ErrUnpublished) {
				c.stats.retried.Add(1)
				c.unconfirmed.settle(keys[from+i], sequences[from+i])
				left--
			}
		}
		if left == before {
			return ErrUnconfirmed
		}
		return nil
	})
	return left
}

func (c *Cache[K, V]) overflowing() int { return c.unconfirmed.overflowing() }
