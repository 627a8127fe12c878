package cache

import (
	"context"
	"errors"
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
	return r.read.now + (r.frame.expires-r.read.latest)*int64(time.Microsecond)
}

// standIn returns the last value of a key in the place of an answer that cannot be had, and keeps it for RetryAfter.
func (c *Cache[K, V]) standIn(a *attempt[K, V], why Why) (stale answer[V], ok bool) {
	if c.policy.StaleTTL == Off || a.why == whyRefresh || a.stamp != c.client.stamps.now(a.hash) {
		return stale, false
	}
	now, size := c.client.clock.now(), 0
	var end int64
	e := new(entry[K, V])
	if a.last != nil && a.epoch == c.client.epoch.Load() {
		f, at := &a.last.frame, a.last.read
		value, err := c.decode(f.flags, f.payload)
		if end = c.redisEnd(a.last); err == nil && end > now {
			e.value, e.loaded, size = value, at.now-max(0, (at.earliest+at.latest)/2-f.loadedAt)*1000, len(f.payload)
			stale = answer[V]{value: value, tier: TierRedis, why: why, stale: true, loaded: e.loaded}
			ok = true
		}
	}
	if !ok && c.local != nil {
		last := c.local.last(a.hash, a.key, c.policy.Fallback == FallbackStale && c.client.deaf())
		if last == nil {
			return stale, false
		}
		e.value, e.loaded, end = last.value, last.loaded, last.end()
		stale = answer[V]{value: last.value, tier: TierLocal, why: why, stale: true, loaded: last.loaded}
		ok = true
	}
	if !ok {
		return stale, false
	}
	c.stats.stale.Add(1)
	for i, reason := range standInWhys {
		if reason == why {
			e.standIn = uint8(i)
		}
	}
	if why != WhySlow { // whose load goes on
		c.keep(a.flight, e, a.stamp, now, min(c.policy.RetryAfter, time.Duration(end-now)), end, size)
	}
	return stale, true
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
