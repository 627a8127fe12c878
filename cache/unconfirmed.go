package cache

import (
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

	sequence atomic.Uint64
	some     atomic.Bool // whether there is anything to look for; guarded by mu for writing

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
			return
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

// len returns how many keys are remembered.
func (u *unconfirmed) len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.keys)
}
