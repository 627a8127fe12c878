package cache

import (
	"context"
	"sync/atomic"
	"time"
)

// Refresh ahead: the first reader of a value that is old enough starts its load behind its back, while all go on with what there is.
//
//	hit, old enough -> claim, one in RetryAfter -> lease on the standing value, one for all processes -> loader -> fill
//
// A refresh is a flight that nobody can join: who misses has one of its own, and who hits does not wait. It takes a place at the gate only
// where one is free, and its context has no values of anybody's.

const (
	// claimSlots is how many keys can have claims of their own; two that share one are refreshed one after the other.
	claimSlots = 1024
	// maxRefreshes bounds the refreshes of a cache that run at once, a batch counting as one. What finds no room is refreshed on a later read.
	maxRefreshes = 32
)

// whyRefresh marks the attempts of refreshes.
const whyRefresh Why = "refresh"

// refreshes says what is to be refreshed.
type refreshes struct {
	age     time.Duration            // how old a value is that is refreshed
	pause   time.Duration            // between two tries of a key
	claims  [claimSlots]atomic.Int64 // when the next try may begin, on the client's clock
	running atomic.Int64
}

// newRefreshes makes sure that even the shortest TTL, after jitter, leaves time for a refresh.
func newRefreshes(p Policy) *refreshes {
	shortest := (1 - max(0, p.Jitter)) * float64(p.TTL)
	age := time.Duration(p.RefreshAfter * shortest)
	left := time.Duration(shortest) - age
	return &refreshes{age: age, pause: min(p.RetryAfter, max(tick, left/4))} // so that there is time for some tries
}

// since is when the value of an entry was loaded that may be refreshed, else 0.
func (e *entry[K, V]) since() int64 {
	if e.negative || e.standIn > 0 {
		return 0
	}
	return e.loaded
}

// due reports whether the caller is to refresh a value, and claims that: nobody else does soon.
func (r *refreshes) due(hash uint64, since int64, clock *clock) bool {
	if r == nil || since == 0 {
		return false
	}
	now := clock.coarse.Load()
	if now-since < int64(r.age) {
		return false
	}
	claim := &r.claims[hash%claimSlots]
	next := claim.Load()
	return now >= next && r.running.Load() < maxRefreshes && claim.CompareAndSwap(next, now+int64(r.pause))
}

// refresh loads some keys anew, behind the caller's back, where nobody else does.
func (c *Cache[K, V]) refresh(keys []K) {
	if len(keys) == 0 {
		return
	}
	c.refreshes.running.Add(1)
	if !c.client.work.Go(func() {
		defer c.refreshes.running.Add(-1)
		guard(func() error { c.loadAnew(keys); return nil }, func(err error) {
			if err != nil {
				c.client.log.Warn("nearside: a refresh broke off", "cache", c.name, "error", err)
			}
		})
	}) {
		c.refreshes.running.Add(-1)
	}
}

// loadAnew takes the leases of some keys, and loads those that it gets.
func (c *Cache[K, V]) loadAnew(keys []K) {
	if !c.client.gate.tryEnter() {
		return // those who wait for an answer come first
	}
	defer c.client.gate.leave()
	ctx, end := c.client.gate.under(context.Background())
	defer end()
	l := new(load).open()
	l.begin(ctx)
	defer l.leave()
	attempts := make([]*attempt[K, V], 0, len(keys))
	wanted := make([]wantedLease, 0, len(keys))
	for _, key := range keys {
		physical, hash, err := c.keys.physical(key)
		if err != nil || c.unconfirmed.has(physical) {
			continue
		}
		f := c.newFlight(key, hash)
		f.physical, f.load = physical, l
		a := &attempt[K, V]{flight: f, why: whyRefresh}
		attempts = append(attempts, a)
		wanted = append(wanted, wantedLease{key: physical, reading: &a.reading})
	}
	c.redis.lease(l.ctx, leaseToRefresh, wanted)
	var ours []*attempt[K, V]
	for _, a := range attempts {
		switch a.reading.state {
		case stateGranted:
			ours = append(ours, a)
		case stateFound: // another process has refreshed it
			c.landFrame(a.flight, &a.reading)
		}
	}
	if len(ours) > 0 {
		c.stats.refreshes.Add(uint64(len(ours)))
		c.load(l, ours, c.loader)
	}
}
