package cache

import (
	"context"
	"time"
)

// The flow of a read through the tiers: run takes flights from Redis to the loader; fill.go puts what came of it into the tiers. The flow
// of a write stands in write.go. No other file knows more than one tier, but for stale.go and refresh.go, which are parts of this flow.

// attempt is a flight on its way through the tiers.
type attempt[K comparable, V any] struct {
	*flight[K, V]
	reading reading
	why     Why      // why the loader will be called
	last    *reading // a value in Redis that may stand in, if there was one
	alarm   alarm    // rings when it is worth to look at Redis again
}

// run takes flights that neither the local tier nor a first look at Redis has answered through Redis and the loader.
func (c *Cache[K, V]) run(l *load, started []*attempt[K, V], loader Loader[K, V]) {
	var unasked, asked, toLoad []*attempt[K, V]
	for _, a := range started {
		switch {
		case a.why == WhyBypassed:
			toLoad = append(toLoad, a)
		case a.reading.state == stateUnasked:
			unasked = append(unasked, a)
		default:
			asked = append(asked, a)
		}
	}
	rest := append(c.look(l.ctx, unasked), c.sort(l.ctx, asked)...)
	var wait []*attempt[K, V]
	for _, a := range rest {
		if a.reading.state == stateLeased && c.policy.LeaseWait != Off && !c.client.gate.holds(l.ctx) {
			wait = append(wait, a)
		} else {
			toLoad = append(toLoad, a)
		}
	}
	if len(wait) > 0 {
		c.stats.leaseWaits.Add(uint64(len(wait)))
		c.start(flightsOf(wait), func() { c.await(l, wait, loader) })
	}
	if len(toLoad) > 0 {
		c.load(l, toLoad, loader)
	}
}

func flightsOf[K comparable, V any](attempts []*attempt[K, V]) []*flight[K, V] {
	flights := make([]*flight[K, V], len(attempts))
	for i, a := range attempts {
		flights[i] = a.flight
	}
	return flights
}

// look reads Redis, and does with what it says as sort does.
func (c *Cache[K, V]) look(ctx context.Context, asked []*attempt[K, V]) (rest []*attempt[K, V]) {
	if len(asked) == 0 {
		return nil
	}
	for _, a := range asked {
		a.reading = reading{}
	}
	c.redis.read(ctx, physicalKeys(flightsOf(asked)), func(i int, found *reading) { asked[i].reading = *found })
	return c.sort(ctx, asked)
}

// sort lands the flights that Redis has answered, and asks for the leases of those that miss, or that should be woken. It returns
// the flights that have not landed, each with what Redis last said of it.
func (c *Cache[K, V]) sort(ctx context.Context, asked []*attempt[K, V]) (rest []*attempt[K, V]) {
	var toLease []*attempt[K, V]
	for _, a := range asked {
		if a.reading.stale {
			last := a.reading
			a.last = &last
		} else if a.reading.state == stateMiss && a.reading.empty {
			a.last = nil // it was deleted meanwhile
		}
		switch {
		case c.landFound(a):
		case a.reading.state == stateMiss:
			if a.alarm.bell == nil { // else it waits, and was counted
				c.stats.misses.Add(1)
			}
			toLease = append(toLease, a)
		case c.redis.wantsWaking(a.reading):
			toLease = append(toLease, a)
		default:
			rest = append(rest, a)
		}
	}
	if len(toLease) == 0 {
		return rest
	}
	wanted := make([]wantedLease, len(toLease))
	for i, a := range toLease {
		wanted[i] = wantedLease{key: a.physical, reject: a.reading.reject, plain: a.reading.empty, reading: &a.reading}
	}
	c.redis.lease(ctx, leaseToRead, wanted)
	for _, a := range toLease {
		if !c.landFound(a) {
			rest = append(rest, a)
		}
	}
	return rest
}

func physicalKeys[K comparable, V any](flights []*flight[K, V]) []string {
	keys := make([]string, len(flights))
	for i, f := range flights {
		keys[i] = f.physical
	}
	return keys
}

// landFound lands a flight if what Redis said of it is an answer; else it notes why the loader would be called.
func (c *Cache[K, V]) landFound(a *attempt[K, V]) (landed bool) {
	if c.landRead(a.flight, &a.reading) {
		return true
	}
	switch a.reading.state {
	case stateGranted:
		a.why = WhyMiss
	case stateNewer:
		a.why = WhySchema
	case stateWriting:
		a.why = WhyWriting
	case stateLeased:
		a.why = WhyWait
	default:
		a.why = WhyRedis
	}
	return false
}

// landFrame answers a flight from a frame, and keeps the answer in the local tier. It reports false if the codec cannot read
// the frame.
func (c *Cache[K, V]) landFrame(flight *flight[K, V], r *reading) bool {
	f := &r.frame
	a := answer[V]{tier: TierRedis, why: WhyHit}
	if f.kind == kindNegative {
		a.err = ErrNotFound
	} else {
		var err error
		if a.value, err = c.decode(f.flags, f.payload); err != nil {
			c.stats.decodeErrors.Add(1)
			c.warnCodec("the codec cannot read an entry of Redis; it will be replaced", err)
			return false
		}
	}
	ttl := time.Second // as long as the server's clock is not known
	switch {
	case r.read.known && f.loadedAt > r.read.latest: // the server's clock was set forward, or the server is another one
		c.client.clock.doubt()
	case r.read.known:
		ttl = time.Duration(f.freshUntil-r.read.latest) * time.Microsecond
		a.loaded = r.read.now - max(0, (r.read.earliest+r.read.latest)/2-f.loadedAt)*1000
	}
	c.stats.redisHits.Add(1)
	if c.local != nil {
		e := &entry[K, V]{value: a.value, negative: f.kind == kindNegative, loaded: a.loaded}
		c.keep(flight, e, flight.stamp, r.read.now, ttl, c.redisEnd(r), len(f.payload))
		flight.due = c.refreshes.due(flight.hash, e.since(), c.client.clock)
	}
	c.land(flight, a, true)
	return true
}

// A waiter for another process' load is woken by the bus. Since what the bus says can be lost, it looks again by itself after a
// tenth of the time it has waited, inside these bounds: it learns of the value at most a tenth late, and the number of looks
// grows with the logarithm of the wait.
const (
	minPoll = 2 * time.Millisecond
	maxPoll = 100 * time.Millisecond
)

// await waits for the values that other processes are loading. Keys whose lease ends without a value are loaded here, under
// their next lease. What is left when LeaseWait ends is loaded here without a lease, and not filled.
func (c *Cache[K, V]) await(l *load, waiting []*attempt[K, V], loader Loader[K, V]) {
	bell := make(chan struct{}, 1)
	for _, a := range waiting {
		a.alarm.bell = bell
		defer c.alarms.set(c.redis.encoded(a.physical), &a.alarm)()
	}
	began := time.Now()
	timeout := time.NewTimer(c.policy.LeaseWait)
	defer timeout.Stop()
	poll := time.NewTimer(minPoll)
	defer poll.Stop()
	urgent, _ := l.urgency()
	var soft <-chan time.Time
	if c.policy.SoftTimeout != Off {
		timer := time.NewTimer(c.policy.SoftTimeout)
		defer timer.Stop()
		soft = timer.C
	}
	softened := false
	for len(waiting) > 0 {
		var again, still, toLoad []*attempt[K, V]
		select {
		case <-bell:
			for _, a := range waiting {
				if a.alarm.rung.Swap(false) {
					again = append(again, a)
				} else {
					still = append(still, a)
				}
			}
		case <-poll.C:
			again = waiting
			poll.Reset(max(minPoll, min(maxPoll, time.Since(began)/10)))
		case <-urgent.Done(): // whoever has the lease may wait for the place of who waits here
			c.load(l, waiting, loader)
			return
		case <-soft:
			if !l.join() {
				continue // all have left: its context has ended
			}
			defer l.leave()
			softened = true
			c.landSlow(waiting)
			continue
		case <-timeout.C:
			c.stats.leaseTimeouts.Add(uint64(len(waiting)))
			c.load(l, waiting, loader)
			return
		case <-l.ctx.Done():
			c.failAll(flightsOf(waiting), l.ctx.Err())
			return
		case <-c.client.closing:
			c.failAll(flightsOf(waiting), ErrClosed)
			return
		}
		for _, a := range c.look(l.ctx, again) {
			if a.reading.state == stateLeased {
				still = append(still, a)
			} else {
				toLoad = append(toLoad, a)
			}
		}
		if waiting = still; len(toLoad) > 0 {
			goesOn := softened && l.join() // whoever leaves
			c.start(flightsOf(toLoad), func() {
				if goesOn {
					defer l.leave()
				}
				c.load(l, toLoad, loader)
			})
		}
	}
}

// load calls the loader once for all keys and answers their flights. Those who waited go on; the tiers are filled behind them,
// for the keys whose lease is ours.
func (c *Cache[K, V]) load(l *load, attempts []*attempt[K, V], loader Loader[K, V]) {
	if err := l.ctx.Err(); err != nil { // nobody waits any more
		c.failAll(flightsOf(attempts), err)
		c.redis.abandonLeases(l.ctx, granted(attempts))
		return
	}
	if attempts = c.mayLoad(attempts); len(attempts) == 0 {
		return
	}
	keys := make([]K, len(attempts))
	for i, a := range attempts {
		keys[i] = a.key
	}
	unused := granted(attempts)
	defer func() { c.redis.abandonLeases(l.ctx, unused) }() // also if a hook panics
	began := c.client.clock.now()
	renewal := c.redis.keepRenewed(l.ctx, unused)
	defer renewal.stop()
	defer c.soften(l, attempts)()
	out := c.callLoader(l, keys, loader)
	renewal.stop()

	var fills []*fill[K, V]
	var refused []heldLease
	for _, a := range attempts {
		ans := answer[V]{tier: TierLoader, why: a.why, loaded: began}
		ans.value, ans.err = out.of(a.key)
		f := c.toFill(a, &ans)
		if f != nil && f.entry.negative && out.foreign > 0 {
			f = nil // its row may be among those that came under another key
		}
		switch {
		case f != nil && a.withoutRedis():
			c.keepWithoutRedis(f)
			c.flights.remove(a.flight)
		case f != nil:
			fills = append(fills, f)
		default:
			if a.reading.state == stateGranted {
				refused = append(refused, heldLease{a.physical, a.reading.lease})
			}
			c.flights.remove(a.flight)
		}
		c.land(a.flight, ans, false)
	}
	unused = refused
	c.fill(l.ctx, fills)
}

// withoutRedis tells whether the loader answers in the place of a Redis that does not, or must not be asked.
func (a *attempt[K, V]) withoutRedis() bool { return a.why == WhyRedis || a.why == WhyBypassed }

// mayLoad returns the flights that the loader may answer. The others have failed.
func (c *Cache[K, V]) mayLoad(attempts []*attempt[K, V]) (allowed []*attempt[K, V]) {
	var refused []*flight[K, V]
	for _, a := range attempts {
		if c.policy.Fallback != FallbackLoader && (a.why == WhyRedis || a.why == WhyBypassed && c.client.read.Sick() > 0) {
			if stale, ok := c.standIn(a, WhyRedis); ok {
				c.flights.remove(a.flight)
				c.land(a.flight, stale, false)
				continue
			}
			if c.policy.Fallback == FallbackError {
				refused = append(refused, a.flight)
				continue
			}
		}
		if a.withoutRedis() {
			c.stats.degraded.Add(1)
		}
		allowed = append(allowed, a)
	}
	if len(refused) > 0 {
		c.stats.unavailable.Add(uint64(len(refused)))
		c.failAll(refused, ErrUnavailable)
	}
	return allowed
}
