package cache

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// maxUnconfirmed bounds the keys that are remembered one by one; past it the whole name bypasses Redis.
const maxUnconfirmed = 10_000

// unconfirmed remembers the keys whose delete Redis did not confirm. Redis is not read for them, until a later delete or fill is
// confirmed, or what may stand there has expired: also what a load of before the delete, anywhere, may fill after it.
type unconfirmed struct {
	clock *clock
	keep  time.Duration // how long a key is remembered

	sequence  atomic.Uint64
	some      atomic.Bool   // whether there is anything to look for; guarded by mu for writing
	overflows atomic.Uint64 // keys that found no room
	retrying  atomic.Bool   // whether a goroutine tries again

	mu    sync.Mutex
	keys  map[string]debt // guarded by mu
	until int64           // guarded by mu; the end of the whole name's bypass
}

// debt is a delete that is owed to Redis.
type debt struct {
	sequence uint64 // of the write that was not confirmed
	until    int64
}

// next returns the number of a write about to be sent. A confirmation settles the debts of its own number and older ones.
func (u *unconfirmed) next() uint64 { return u.sequence.Add(1) }

// owe remembers keys.
func (u *unconfirmed) owe(sequence uint64, physical ...string) {
	if len(physical) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.now()
	until := now + int64(u.keep)
	u.some.Store(true)
	swept := false
	for _, key := range physical {
		if _, known := u.keys[key]; !known && len(u.keys) >= maxUnconfirmed && !swept && u.until <= now {
			u.sweep(now)
			swept = true
		}
		if _, known := u.keys[key]; !known && len(u.keys) >= maxUnconfirmed {
			u.until = until
			u.overflows.Add(1)
			continue
		}
		if u.keys == nil {
			u.keys = make(map[string]debt)
		}
		u.keys[key] = debt{sequence: max(sequence, u.keys[key].sequence), until: until}
	}
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
	c.unconfirmed.owe(sequence, physical...)
	if len(physical) > 0 {
		c.retry()
	}
}

// retry starts the goroutine that tries again, unless it runs.
func (c *Cache[K, V]) retry() {
	if c.unconfirmed.retrying.CompareAndSwap(false, true) && !c.client.retries.Go(c.retryUntilSettled) {
		c.unconfirmed.retrying.Store(false) // Close tries for the last time
	}
}

func (c *Cache[K, V]) retryUntilSettled() {
	defer func() {
		c.unconfirmed.retrying.Store(false)
		if c.unconfirmed.len() > 0 && !c.client.closed.Load() { // owed meanwhile
			c.retry()
		}
	}()
	timer := time.NewTimer(c.client.retryEvery)
	defer timer.Stop()
	for c.unconfirmed.len() > 0 {
		select {
		case <-timer.C:
			// Not while the breaker is open: dials that fail make go-redis slow to come back.
			c.settleOwed(context.Background(), c.client.write.Do)
			timer.Reset(c.client.retryEvery)
		case <-c.client.closing:
			return
		}
	}
}

// settleOwed tries the deletes that are owed once more, and returns how many of them are left. A confirmation settles what was owed when
// it was sent, and nothing newer.
func (c *Cache[K, V]) settleOwed(ctx context.Context, do sender) (left int) {
	keys, sequences := c.unconfirmed.owed()
	if ctx.Err() != nil {
		return len(keys)
	}
	for i, err := range c.redis.remove(ctx, do, keys) {
		if err == nil || errors.Is(err, ErrUnpublished) {
			c.stats.retried.Add(1)
			c.unconfirmed.settle(keys[i], sequences[i])
		} else {
			left++
		}
	}
	return left
}
