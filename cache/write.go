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
		errs := c.redis.remove(context.WithoutCancel(ctx), physicalOf(targets))
		mu.Lock()
		defer mu.Unlock()
		ended = true
		failed := map[K]error{}
		var owed []string
		var settled []target[K]
		for i, t := range targets {
			switch err := errs[i]; {
			case err == nil:
				settled = append(settled, t)
			case errors.Is(err, ErrUnpublished):
				settled = append(settled, t)
				failed[t.key] = err
			default:
				owed = append(owed, t.physical)
				failed[t.key] = fmt.Errorf("%w: %w", ErrUnconfirmed, err)
			}
		}
		c.stats.unconfirmed.Add(uint64(len(owed)))
		c.unconfirmed.owe(sequence, owed...)
		c.moveAll(targets)
		for _, t := range settled {
			c.unconfirmed.settle(t.physical, sequence)
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
		failed[t.key] = fmt.Errorf("%w: %w", ErrUnconfirmed, cause)
	}
	c.unconfirmed.owe(sequence, physicalOf(targets)...)
	c.moveAll(targets)
	return failed
}

func physicalOf[K comparable](targets []target[K]) []string {
	keys := make([]string, len(targets))
	for i, t := range targets {
		keys[i] = t.physical
	}
	return keys
}

func (c *Cache[K, V]) moveAll(targets []target[K]) {
	for _, t := range targets {
		c.client.stamps.move(t.hash)
	}
}

// write runs the writer between taking the right to fill and filling. However it ends, if the value is not in Redis then, the key
// is deleted: also when the writer failed, panicked or called Goexit, since what the source holds is not known then.
func (c *Cache[K, V]) write(ctx context.Context, key K, writer func(context.Context) (V, error)) (value V, err error) {
	if err := ctx.Err(); err != nil {
		return value, err
	}
	if !c.client.work.Enter() {
		return value, ErrClosed
	}
	defer c.client.work.Leave()
	t, err := c.target(key)
	if err != nil {
		return value, err
	}
	w := written[K]{target: t, first: c.client.stamps.move(t.hash), sequence: c.unconfirmed.next(), began: c.client.clock.now()}
	w.lease = c.redis.lease(ctx, leaseToWrite, []string{t.physical}, []string{""})[0]
	granted := w.lease.state == stateGranted
	var held []heldLease
	if granted {
		held = []heldLease{{t.physical, w.lease.lease}}
	}
	stop := c.redis.keepRenewed(ctx, held)
	filled := false
	defer func() {
		stop()
		if !filled {
			err = errors.Join(err, c.drop(ctx, []target[K]{t})[key])
		}
	}()

	if value, err = writer(ctx); err != nil {
		var zero V
		return zero, err
	}
	enc, err := c.encode(value)
	if err != nil {
		return value, err
	}
	stop()
	if granted {
		filled, err = c.fillWritten(ctx, w, enc)
	}
	return enc.value, err
}

// written is a write under way, with what was taken before it began.
type written[K comparable] struct {
	target[K]
	lease    reading
	first    uint32 // the key's stamp
	sequence uint64 // settles only what was owed before
	began    int64
}

// fillWritten puts a written value into Redis and then into the local tier. It reports whether Redis has it; the error says that
// the others do not know.
func (c *Cache[K, V]) fillWritten(ctx context.Context, w written[K], enc encoded[V]) (filled bool, err error) {
	ttl := c.policy.jittered(c.policy.TTL)
	f := frame{
		kind: kindValue, flags: enc.flags, loadedAt: w.lease.at, fill: w.lease.lease, lease: w.lease.lease,
		key: w.physical, payload: string(enc.payload),
	}
	epoch := c.client.epoch.Load()
	c.client.stamps.move(w.hash)
	now := c.client.clock.now()
	if err = c.redis.fill(ctx, []frame{f}, []time.Duration{ttl}, toTell)[0]; err != nil && !errors.Is(err, ErrUnpublished) {
		return false, nil
	}
	// Whoever read Redis before the fill holds an older stamp than this one. If it is not the second after the first, somebody
	// else wrote or invalidated the key meanwhile: then the value stays out of the local tier.
	after := c.client.stamps.move(w.hash)
	c.unconfirmed.settle(w.physical, w.sequence)
	if after == w.first+2 {
		e := &entry[K, V]{value: enc.value, loaded: w.began}
		c.keep(&flight[K, V]{key: w.key, hash: w.hash, epoch: epoch}, e, after, now, ttl, len(enc.payload))
	}
	return true, err
}
