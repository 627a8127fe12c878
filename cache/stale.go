package cache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Values that stand in: what was the answer until its TTL ended serves on, for StaleTTL at most, where the loader gives none. It is
// looked for in Redis, which keeps it for that long, and in the local tier, which forgets it only when it needs the room.
//
// What was invalidated never stands in: Redis has deleted it, and here the key's stamp has moved.

// standInWhys are the reasons of entries, by their places.
var standInWhys = [...]Why{WhyHit, WhyFailed, WhyTimeout, WhyOverloaded, WhySlow, WhyRedis}

// whyFailed says why the loader gave no answer.
func whyFailed(err error) Why {
	switch {
	case errors.Is(err, ErrOverloaded):
		return WhyOverloaded
	case errors.Is(err, context.DeadlineExceeded):
		return WhyTimeout
	}
	return WhyFailed
}

// staleEnd is when what is filled now may not stand in any more; 0 if nothing ever may.
func (c *Cache[K, V]) staleEnd(now int64, ttl time.Duration) int64 {
	if c.policy.StaleTTL == Off {
		return 0
	}
	return now + int64(ttl+c.policy.StaleTTL)
}

// redisEnd is when what was read may not stand in any more, on the client's clock; 0 if that is not known.
func (c *Cache[K, V]) redisEnd(r *reading) int64 {
	if c.policy.StaleTTL == Off || !r.read.known {
		return 0
	}
	expires := min(r.frame.expires, r.frame.freshUntil+c.policy.StaleTTL.Microseconds()) // whoever wrote it may keep it longer
	return r.read.now + (expires-r.read.latest)*int64(time.Microsecond)
}

// standIn returns the last value of a key in the place of an answer that cannot be had, and keeps it for RetryAfter.
func (c *Cache[K, V]) standIn(a *attempt[K, V], why Why) (stale answer[V], ok bool) {
	if c.policy.StaleTTL == Off || a.why == whyRefresh || a.stamp != c.client.stamps.now(a.hash) {
		return stale, false
	}
	now, size, suspect := c.client.clock.now(), 0, false
	if a.last != nil && a.epoch == c.client.epoch.Load() {
		if stale, ok = c.lastInRedis(a.last, now); ok {
			size = len(a.last.frame.payload)
		}
	}
	if c.local != nil {
		last := c.local.last(a.hash, a.key, c.policy.Fallback == FallbackStale && c.client.deaf())
		if last != nil && (!ok || last.loaded > stale.loaded) {
			stale = answer[V]{value: last.value, tier: TierLocal, loaded: last.loaded, end: last.end()}
			ok, suspect = true, last.epoch != c.client.epoch.Load()
		}
	}
	if !ok {
		return stale, false
	}
	stale.why, stale.stale = why, true
	if !a.landed.Load() {
		c.stats.stale.Add(1)
	}
	if why != WhySlow && !suspect { // a slow load goes on; what is suspect is not to be trusted the more for having been served
		e := &entry[K, V]{value: stale.value, loaded: stale.loaded, standIn: uint8(slices.Index(standInWhys[:], why))}
		c.keep(a.flight, e, a.stamp, now, min(c.policy.RetryAfter, time.Duration(stale.end-now)), stale.end, size)
	}
	return stale, true
}

// lastInRedis returns a value that Redis holds past its TTL.
func (c *Cache[K, V]) lastInRedis(r *reading, now int64) (last answer[V], ok bool) {
	f, at := &r.frame, r.read
	last = answer[V]{tier: TierRedis, loaded: at.now - max(0, (at.earliest+at.latest)/2-f.loadedAt)*1000, end: c.redisEnd(r)}
	if last.end <= now {
		return last, false
	}
	var err error
	if last.value, err = c.decode(f.flags, f.payload); err != nil {
		c.stats.decodeErrors.Add(1)
		return last, false
	}
	return last, true
}

// landSlow lets flights that wait for a load go on with the values that can stand in for them.
func (c *Cache[K, V]) landSlow(attempts []*attempt[K, V]) {
	for _, a := range attempts {
		if a.landed.Load() {
			continue
		}
		if stale, ok := c.standIn(a, WhySlow); ok {
			c.land(a.flight, stale, false)
		}
	}
}

// soften calls landSlow after SoftTimeout, beside a loader that runs. The load goes on then whoever leaves, until stop is called.
func (c *Cache[K, V]) soften(l *load, attempts []*attempt[K, V]) (stop func()) {
	if c.policy.SoftTimeout == Off {
		return func() {}
	}
	var mu sync.Mutex
	stopped, joined := false, false // guarded by mu
	timer := time.AfterFunc(c.policy.SoftTimeout, func() {
		c.client.work.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			if joined = !stopped && l.join(); joined {
				c.landSlow(attempts)
			}
		})
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		if stopped = true; joined {
			l.leave()
		}
	}
}
