package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/go-nearside/nearside/cache"
)

// near is nearside on a Redis, in front of a source that makes its rows up.
type near[V any] struct {
	rdb    redis.UniversalClient // closed with the rest
	client *cache.Client
	rows   *cache.Cache[string, V]
	row    func(i int) V
	calls  atomic.Int64 // of the source
	sealed atomic.Bool  // the source answers no more: what is measured are hits
}

var errSealed = errors.New("a hit was expected, and the source was asked")

// openNear returns when the bus is live. The source takes the given time for a call. What earlier turns of the row left in Redis
// is there.
func openNear[V any](
	j job, d dialer, row func(i int) V, takes time.Duration, p cache.Policy, hooks ...cache.Hooks[string, V],
) (*near[V], error) {
	n := &near[V]{rdb: d.dial(j.At), row: row}
	// On a busy machine too, a slow answer of Redis is to be waited for, or another work would be measured.
	client, err := cache.Open(n.rdb, cache.Config{ReadBudget: 5 * time.Second, WriteBudget: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	n.client = client
	if n.rows, err = cache.New(client, j.Row, n.load(takes), p, hooks...); err == nil {
		err = await(func() error {
			if !client.Bus().Live() {
				return errors.New("the bus is not live")
			}
			return nil
		})
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *near[V]) load(takes time.Duration) cache.Loader[string, V] {
	return func(_ context.Context, keys []string) (map[string]V, error) {
		n.calls.Add(1)
		if n.sealed.Load() {
			return nil, errSealed
		}
		time.Sleep(takes)
		rows := make(map[string]V, len(keys))
		for _, key := range keys {
			i, err := index(key)
			if err != nil {
				return nil, err
			}
			rows[key] = n.row(i)
		}
		return rows, nil
	}
}

// fill asks for the first keys, which puts them into both tiers, and seals the source.
func (n *near[V]) fill(count int) error {
	const batch = 500
	var calls errgroup.Group
	calls.SetLimit(4)
	for from := 0; from < count; from += batch {
		calls.Go(func() error {
			var some []string
			for i := from; i < min(from+batch, count); i++ {
				some = append(some, key(i))
			}
			got, err := n.rows.GetMany(context.Background(), some)
			if err == nil && len(got) != len(some) {
				err = fmt.Errorf("%d of %d keys", len(got), len(some))
			}
			return err
		})
	}
	err := calls.Wait()
	if err == nil {
		err = n.settle()
	}
	n.sealed.Store(true)
	return err
}

// settle waits until all that was loaded stands in Redis: answers do not wait for that.
func (n *near[V]) settle() error {
	return await(func() error {
		s := n.rows.Stats()
		failed := s.FillsRefused + s.FillErrors
		if s.Fills+failed < s.Loads || s.InFlight > 0 || failed > s.Loads/100 {
			return fmt.Errorf("fills of Redis are missing: %+v", s)
		}
		return nil
	})
}

// local counts how many of the first keys the local tier holds. What it did not hold, it may hold after that.
func (n *near[V]) local(count int) (held int, err error) {
	for i := range count {
		r, err := n.rows.GetResult(context.Background(), key(i))
		if err != nil {
			return 0, err
		}
		if r.Tier == cache.TierLocal {
			held++
		}
	}
	return held, nil
}

// fillLocal fills, and returns when the local tier holds all.
func (n *near[V]) fillLocal(count int) error {
	if err := n.fill(count); err != nil {
		return err
	}
	return await(func() error {
		held, err := n.local(count)
		if err == nil && held < count {
			err = fmt.Errorf("only %d of %d keys are in the local tier", held, count)
		}
		return err
	})
}

func (n *near[V]) trips() uint64 { return n.client.Stats().RoundTrips }

func (n *near[V]) close() {
	n.client.Close()
	n.rdb.Close()
}
