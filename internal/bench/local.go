package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/maypok86/otter/v2"
	"github.com/viccon/sturdyc"
)

// hits reads popular keys of a table that is in memory as a whole.
func hits(count int, get func(key string) (user, error)) worker {
	all, draws := keys(count), newPopular(count)
	return worker{op: func(r *rand.Rand) error {
		i := draws.pick(r)
		u, err := get(all[i])
		return checkUser(i, u, err)
	}}
}

const tableSize = 100_000

func nearHit(j job) (worker, error) {
	count := j.keys(tableSize)
	n, err := openNear(j, single, userOf, 0, longLived(count))
	if err != nil {
		return worker{}, err
	}
	ctx := context.Background()
	w := hits(count, func(key string) (user, error) { return n.rows.Get(ctx, key) })
	w.count, w.close = n.trips, n.close
	if err := n.fillLocal(count); err != nil {
		n.close()
		return worker{}, err
	}
	return w, nil
}

func ristrettoHit(j job) (worker, error) {
	count := j.keys(tableSize)
	c, err := newRistretto[user](count)
	if err != nil {
		return worker{}, err
	}
	w := hits(count, func(key string) (user, error) {
		u, ok := c.Get(key)
		if !ok {
			return u, fmt.Errorf("no %s", key)
		}
		return u, nil
	})
	w.close = c.Close
	return w, fillRistretto(c, count, userOf)
}

func otterHit(j job) (worker, error) {
	count := j.keys(tableSize)
	c, err := newOtter(count, userOf)
	if err != nil {
		return worker{}, err
	}
	ctx := context.Background()
	none := otter.LoaderFunc[string, user](func(_ context.Context, key string) (user, error) {
		return user{}, fmt.Errorf("no %s", key)
	})
	return hits(count, func(key string) (user, error) { return c.Get(ctx, key, none) }), nil
}

func sturdycHit(j job) (worker, error) {
	count := j.keys(tableSize)
	c := sturdyc.New[user](2*count, 10, time.Hour, 10)
	for i := range count {
		c.Set(key(i), userOf(i))
	}
	ctx := context.Background()
	return hits(count, func(key string) (user, error) {
		return c.GetOrFetch(ctx, key, func(context.Context) (user, error) { return user{}, fmt.Errorf("no %s", key) })
	}), nil
}

// newRistretto has room for twice the entries, like longLived.
func newRistretto[V any](count int) (*ristretto.Cache[string, V], error) {
	return ristretto.NewCache(&ristretto.Config[string, V]{
		NumCounters: 20 * int64(count), MaxCost: 2 * int64(count), BufferItems: 64, IgnoreInternalCost: true,
	})
}

// fillRistretto sets what is missing until nothing is: ristretto drops Sets when they come fast.
func fillRistretto[V any](c *ristretto.Cache[string, V], count int, value func(int) V) error {
	return await(func() error {
		dropped := 0
		for i := range count {
			if _, ok := c.Get(key(i)); !ok && !c.SetWithTTL(key(i), value(i), 1, time.Hour) {
				dropped++
			}
			if i%1000 == 0 {
				c.Wait()
			}
		}
		c.Wait()
		if dropped > 0 {
			return fmt.Errorf("ristretto dropped %d of %d", dropped, count)
		}
		return nil
	})
}

func newOtter[V any](count int, value func(int) V) (*otter.Cache[string, V], error) {
	c, err := otter.New(&otter.Options[string, V]{
		MaximumSize:      2 * count,
		ExpiryCalculator: otter.ExpiryWriting[string, V](time.Hour),
	})
	if err != nil {
		return nil, err
	}
	for i := range count {
		c.Set(key(i), value(i))
	}
	return c, nil
}
