package cache

import (
	"context"
	"errors"
	"math"
	"time"
)

// What a load found out goes into the tiers: Redis first, under the lease, then the local tier.

// keep puts an entry into the local tier for at most ttl from now on, unless an invalidation came in between. Until end it may stand in.
func (c *Cache[K, V]) keep(f *flight[K, V], e *entry[K, V], stamp uint32, now int64, ttl time.Duration, end int64, size int) {
	// The coarse clock lags by a tick: an entry ends early by that much, so that it never outlives Redis'.
	ttl = min(ttl, c.policy.LocalTTL)
	if c.client.deaf() {
		ttl = min(ttl, c.client.config.DegradedTTL)
	}
	if (c.client.bus == nil || c.client.deaf()) && c.policy.Fallback != FallbackStale {
		end = 0 // nobody tells what others invalidate, so nothing local stands in
	}
	if ttl -= tick; c.local == nil || ttl <= 0 {
		return
	}
	if stamp != c.client.stamps.now(f.hash) || f.epoch != c.client.epoch.Load() {
		c.stats.localOvertaken.Add(1)
		return
	}
	e.key, e.stamp, e.epoch, e.expires = f.key, stamp, f.epoch, now+int64(ttl)
	e.spare = uint32(min(math.MaxUint32, max(0, end-e.expires)/int64(tick)))
	if c.local.put(f.hash, e, c.cost(e, size)) {
		c.stats.localFills.Add(1)
	} else {
		c.stats.localRejected.Add(1)
	}
}

// fill is a loaded value, or the absence of one, on its way into the tiers.
type fill[K comparable, V any] struct {
	filling
	flight *flight[K, V]
	entry  *entry[K, V]
}

// keepWithoutRedis keeps what Redis did not take, or was not given, in this process alone and for a short time. That spares the source,
// and needs no lease: each invalidation that this process learns of voids it as it does any local entry.
func (c *Cache[K, V]) keepWithoutRedis(f *fill[K, V]) {
	now := c.client.clock.now()
	c.keep(f.flight, f.entry, f.flight.stamp, now, min(f.ttl, c.client.config.DegradedTTL), c.staleEnd(now, f.ttl), len(f.frame.payload))
}

// toFill makes of a loaded answer what goes into the tiers, if anything does: the lease must be ours, or Redis away, and the answer a
// value that the codec can hold, or "not found". It puts into the answer the value that the codec read back.
func (c *Cache[K, V]) toFill(a *attempt[K, V], ans *answer[V]) *fill[K, V] {
	granted := a.reading.state == stateGranted
	if granted && a.stamp != c.client.stamps.now(a.hash) {
		// Overtaken: kept nowhere. Redis would refuse it too, unless the delete was lost.
		c.stats.fillsRefused.Add(1)
		granted = false
	}
	granted = granted || a.withoutRedis()
	var enc encoded[V]
	kind, ttl := kindValue, c.policy.TTL
	switch {
	case absent(ans.err):
		ans.err = ErrNotFound
		kind, ttl = kindNegative, c.policy.NegativeTTL
		if ttl == Off && (c.policy.StaleTTL != Off || a.why == whyRefresh) {
			ttl = minTTL // it takes the place of what could stand in
			if c.local != nil && c.local.last(a.hash, a.key, true) != nil {
				c.client.stamps.move(a.hash)
			}
		}
		granted = granted && ttl != Off
	case ans.err != nil:
		c.stats.loadErrors.Add(1)
		if stale, ok := c.standIn(a, whyFailed(ans.err)); ok {
			*ans = stale
			return nil
		}
		var zero V
		ans.value = zero
		return nil
	default:
		var err error
		if enc, err = c.encode(ans.value); err != nil {
			c.notEncoded(ans, err)
			return nil
		}
		ans.value = enc.value
	}
	if !granted {
		return nil
	}
	return &fill[K, V]{
		flight: a.flight,
		entry:  &entry[K, V]{value: enc.value, negative: kind == kindNegative, loaded: ans.loaded},
		filling: filling{ttl: c.policy.jittered(ttl), frame: frame{
			kind: kind, flags: enc.flags, loadedAt: a.reading.at, fill: a.reading.lease, lease: a.reading.lease,
			key: a.physical, payload: string(enc.payload),
		}},
	}
}

// notEncoded takes in that the codec failed: the value is served and not kept, unless the codec panicked.
func (c *Cache[K, V]) notEncoded(ans *answer[V], err error) {
	var panicked *PanicError
	if errors.As(err, &panicked) {
		var zero V
		ans.value, ans.err = zero, err
		return
	}
	c.warnCodec("the codec cannot write a value; it is served and not kept", err)
}

// fill writes to Redis under the leases, then to the local tier what Redis took, and lets the flights go.
func (c *Cache[K, V]) fill(ctx context.Context, fills []*fill[K, V]) {
	if len(fills) == 0 {
		return
	}
	all := make([]*filling, len(fills))
	for i, f := range fills {
		all[i] = &f.filling
	}
	now := c.client.clock.now() // before Redis counts the TTL
	c.redis.fill(context.WithoutCancel(ctx), all, toWake)
	var left []heldLease // stand until their end, if the fill was lost
	for _, f := range fills {
		switch f.err {
		case nil:
			c.keep(f.flight, f.entry, f.flight.stamp, now, f.ttl, c.staleEnd(now, f.ttl), len(f.frame.payload))
		case errLeaseVoid: // somebody wrote or invalidated it: this speaks against the value, and no lease stands
		default:
			c.keepWithoutRedis(f)
			left = append(left, heldLease{f.frame.key, f.frame.lease})
		}
		c.flights.remove(f.flight)
	}
	c.redis.abandonLeases(ctx, left)
}
