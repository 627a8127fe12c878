package cache

import (
	"context"
	"time"
)

// keepLeases renews the leases that some flights were granted, every third of their TTL, until stop is called.
func (c *Cache[K, V]) keepLeases(ctx context.Context, attempts []*attempt[K, V]) (stop func()) {
	var keys []string
	var leases []token
	for _, a := range attempts {
		if a.reading.state == stateGranted {
			keys, leases = append(keys, a.physical), append(leases, a.reading.lease)
		}
	}
	return c.redis.keep(ctx, keys, leases)
}

// keep renews leases until stop is called.
func (r *redisTier) keep(ctx context.Context, physical []string, leases []token) (stop func()) {
	if len(physical) == 0 {
		return func() {}
	}
	done := make(chan struct{})
	r.client.work.Go(func() {
		ticker := time.NewTicker(r.leaseTTL / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				r.renew(context.WithoutCancel(ctx), physical, leases)
			case <-done:
				return
			}
		}
	})
	return func() { close(done) }
}
