package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
)

// The flow of a write through the tiers: Redis first, local last, and the local generation moves before and after.

// target is a key that is written or dropped.
type target[K comparable] struct {
	key      K
	hash     uint64
	physical string
}

func (c *Cache[K, V]) target(key K) (target[K], error) {
	physical, hash, err := c.keys.physical(key)
	return target[K]{key, hash, physical}, err
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
		errs := c.redis.remove(context.WithoutCancel(ctx), c.client.write.Insist, physicalOf(targets))
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
		c.owe(sequence, owed...)
		c.moveAll(targets)
		for _, t := range settled {
			c.unconfirmed.settle(t.physical, sequence)
		}
		if len(owed) == 0 {
			c.unconfirmed.retract(sequence)
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
	c.owe(sequence, physicalOf(targets)...)
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

// written is a write under way, with what was taken before it began.
type written[K comparable, V any] struct {
	target[K]
	lease    reading
	first    uint32 // the key's stamp
	sequence uint64 // settles only what was owed before
	began    int64

	value  encoded[V] // once it has committed
	filled bool       // Redis has it
	untold error      // Redis has it, and the others do not know
}

// beginWrites takes the right to fill some keys, which voids that of all others.
func (c *Cache[K, V]) beginWrites(ctx context.Context, targets []target[K]) []*written[K, V] {
	writes := make([]*written[K, V], len(targets))
	for i, t := range targets {
		writes[i] = &written[K, V]{
			target: t, first: c.client.stamps.move(t.hash), sequence: c.unconfirmed.next(), began: c.client.clock.now(),
		}
	}
	wanted := make([]wantedLease, len(targets))
	for i, w := range writes {
		wanted[i] = wantedLease{key: w.physical, reading: &w.lease}
	}
	c.redis.lease(ctx, leaseToWrite, wanted)
	return writes
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
	w := c.beginWrites(ctx, []target[K]{t})[0]
	var held []heldLease
	if w.lease.state == stateGranted {
		held = []heldLease{{t.physical, w.lease.lease}}
	}
	renewal := c.redis.keepRenewed(ctx, held)
	defer func() {
		renewal.stop()
		if !w.filled {
			err = errors.Join(err, c.drop(ctx, []target[K]{t})[key])
		}
	}()

	if value, err = writer(ctx); err != nil {
		var zero V
		return zero, err
	}
	if w.value, err = c.encode(value); err != nil {
		return value, err
	}
	renewal.stop()
	c.fillWritten(ctx, []*written[K, V]{w})
	return w.value.value, w.untold
}

// fillWritten puts written values into Redis and then into the local tier, and notes which of them Redis has.
func (c *Cache[K, V]) fillWritten(ctx context.Context, writes []*written[K, V]) {
	var granted []*written[K, V]
	var fills []*filling
	for _, w := range writes {
		if w.lease.state != stateGranted {
			continue
		}
		granted = append(granted, w)
		fills = append(fills, &filling{ttl: c.policy.jittered(c.policy.TTL), frame: frame{
			kind: kindValue, flags: w.value.flags, loadedAt: w.lease.at, fill: w.lease.lease, lease: w.lease.lease,
			key: w.physical, payload: string(w.value.payload),
		}})
	}
	if len(granted) == 0 {
		return
	}
	epoch := c.client.epoch.Load()
	for _, w := range granted {
		c.client.stamps.move(w.hash)
	}
	now := c.client.clock.now()
	c.redis.fill(ctx, fills, toTell)
	for i, f := range fills {
		w := granted[i]
		if f.err != nil && !errors.Is(f.err, ErrUnpublished) {
			continue
		}
		w.filled, w.untold = true, f.err
		// Whoever read Redis before the fill holds an older stamp than this one. If it is not the second after the first, somebody
		// else wrote or invalidated the key meanwhile: then the value stays out of the local tier.
		after := c.client.stamps.move(w.hash)
		c.unconfirmed.settle(w.physical, w.sequence)
		if after == w.first+2 {
			e := &entry[K, V]{value: w.value.value, loaded: w.began}
			c.keep(&flight[K, V]{key: w.key, hash: w.hash, epoch: epoch}, e, after, now, f.ttl, c.staleEnd(now, f.ttl), len(w.value.payload))
		}
	}
}

// set puts values into both tiers, and deletes what it cannot put there. It returns the errors of single keys.
func (c *Cache[K, V]) set(ctx context.Context, values map[K]V) map[K]error {
	failed := map[K]error{}
	if err := c.usable(ctx); err != nil || !c.client.work.Enter() {
		for key := range values {
			failed[key] = cmp.Or(err, ErrClosed)
		}
		return failed
	}
	defer c.client.work.Leave()
	var targets []target[K]
	for key := range values {
		t, err := c.target(key)
		if err != nil {
			failed[key] = err
			continue
		}
		targets = append(targets, t)
	}
	writes := c.beginWrites(ctx, targets)
	var encoded []*written[K, V]
	for _, w := range writes {
		var err error
		if w.value, err = c.encode(values[w.key]); err != nil {
			failed[w.key] = err
		} else {
			encoded = append(encoded, w)
		}
	}
	c.fillWritten(ctx, encoded)
	var drops []target[K]
	for _, w := range writes {
		if w.untold != nil {
			failed[w.key] = w.untold
		}
		if !w.filled {
			drops = append(drops, w.target)
		}
	}
	unconfirmed := c.drop(ctx, drops)
	for _, t := range drops {
		if err := errors.Join(failed[t.key], unconfirmed[t.key]); err != nil {
			failed[t.key] = err
		} else {
			failed[t.key] = ErrNotKept
		}
	}
	return failed
}
