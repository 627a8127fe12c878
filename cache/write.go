package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The flow of a write through the tiers: Redis first, local last, and the local generation moves before and after.

// target is a key that is written or dropped.
type target[K comparable] struct {
	key      K
	hash     uint64
	physical string
}

func (c *Cache[K, V]) target(key K) (target[K], error) {
	physical, err := c.keys.physical(key)
	if err != nil {
		return target[K]{}, err
	}
	hash, _ := c.keys.hash(key)
	return target[K]{key, hash, physical}, nil
}

// drop deletes keys in Redis and voids what this process has of them. It returns the errors of those that Redis did not
// confirm; for these, this process does without Redis from now on. If ctx ends first, the delete goes on behind.
func (c *Cache[K, V]) drop(ctx context.Context, targets []target[K]) map[K]error {
	if len(targets) == 0 {
		return nil
	}
	c.stats.invalidated.Add(uint64(len(targets)))
	c.moveAll(targets)
	sequence := c.unconfirmed.next()

	var mu sync.Mutex
	ended := false // guarded by mu
	done := make(chan map[K]error, 1)
	started := c.client.deletes.Go(func() {
		physical := make([]string, len(targets))
		for i, t := range targets {
			physical[i] = t.physical
		}
		errs := c.redis.remove(context.WithoutCancel(ctx), physical)
		mu.Lock()
		defer mu.Unlock()
		ended = true
		failed := map[K]error{}
		for i, t := range targets {
			if errs[i] != nil {
				c.stats.unconfirmed.Add(1)
				c.unconfirmed.owe(t.physical, sequence)
				failed[t.key] = fmt.Errorf("%w: %w", ErrUnconfirmed, errs[i])
			}
			c.client.stamps.move(t.hash)
			if errs[i] == nil {
				c.unconfirmed.settle(t.physical, sequence)
			}
		}
		done <- failed
	})

	cause := ErrClosed
	if started {
		select {
		case failed := <-done:
			return failed
		case <-ctx.Done():
			cause = ctx.Err()
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if ended {
		return <-done
	}
	failed := map[K]error{}
	for _, t := range targets {
		c.unconfirmed.owe(t.physical, sequence)
		failed[t.key] = fmt.Errorf("%w: %w", ErrUnconfirmed, cause)
	}
	c.moveAll(targets)
	return failed
}

func (c *Cache[K, V]) moveAll(targets []target[K]) {
	for _, t := range targets {
		c.client.stamps.move(t.hash)
	}
}

// write runs the writer between taking the right to fill and filling. A writer that fails, or whose lease was voided, leaves
// the key deleted.
func (c *Cache[K, V]) write(ctx context.Context, key K, writer func(context.Context) (V, error)) (V, error) {
	var zero V
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	if !c.client.work.Enter() {
		return zero, ErrClosed
	}
	defer c.client.work.Leave()
	t, err := c.target(key)
	if err != nil {
		return zero, err
	}
	c.client.stamps.move(t.hash)
	lease := c.redis.lease(ctx, leaseToWrite, []string{t.physical}, nil)[0]
	stop := func() {}
	if lease.state == stateGranted {
		stop = c.redis.keep(ctx, []string{t.physical}, []token{lease.lease})
	}
	returned := false
	defer func() {
		if !returned { // a panic or a Goexit: what the source holds now is not known
			stop()
			c.drop(ctx, []target[K]{t})
		}
	}()
	began := c.client.clock.now()
	value, err := writer(ctx)
	stop()
	returned = true
	if err != nil {
		return zero, errors.Join(err, c.drop(ctx, []target[K]{t})[key])
	}

	enc, err := c.encode(value)
	if err != nil {
		return value, errors.Join(err, c.drop(ctx, []target[K]{t})[key])
	}
	if lease.state == stateGranted && c.fillWritten(ctx, t, lease, enc, began) {
		return enc.value, nil
	}
	return enc.value, c.drop(ctx, []target[K]{t})[key]
}

// fillWritten puts a written value into Redis and then into the local tier. It reports whether Redis has it.
func (c *Cache[K, V]) fillWritten(ctx context.Context, t target[K], lease reading, enc encoded[V], began int64) bool {
	sequence := c.unconfirmed.next()
	ttl := c.policy.jittered(c.policy.TTL)
	f := frame{
		kind: kindValue, flags: enc.flags, loadedAt: lease.at, fill: lease.lease, lease: lease.lease,
		key: t.physical, payload: string(enc.payload),
	}
	epoch := c.client.epoch.Load()
	before := c.client.stamps.move(t.hash)
	now := c.client.clock.now()
	if !c.redis.fill(ctx, []frame{f}, []time.Duration{ttl})[0] {
		return false
	}
	// Whoever read Redis before the fill holds an older stamp than this one. If it is not the next after before, somebody else
	// wrote or invalidated the key meanwhile: then the value stays out of the local tier.
	after := c.client.stamps.move(t.hash)
	c.unconfirmed.settle(t.physical, sequence)
	if after == before+1 {
		e := &entry[K, V]{value: enc.value, fill: lease.lease, loaded: began}
		c.keep(&flight[K, V]{key: t.key, hash: t.hash, epoch: epoch}, e, after, now, ttl, len(enc.payload))
	}
	return true
}
