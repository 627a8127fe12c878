package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	gocache "github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
)

// byDefault has a local tier, as users have it: filling it is a part of a miss.
var byDefault = cache.Policy{TTL: time.Hour}

const loadTime = time.Millisecond

// misses reads each key once. Redis is empty before.
func misses(rdb redis.UniversalClient, get func(key string, i int) ([]byte, error)) (worker, error) {
	var next atomic.Int64
	return worker{op: func(*rand.Rand) error {
		i := int(next.Add(1))
		k := key(i)
		b, err := get(k, i)
		return checkBytes(k, b, err)
	}}, rdb.FlushAll(context.Background()).Err()
}

func missByHand(j job) (worker, error) {
	rdb, ctx := single.dial(j.At), context.Background()
	w, err := misses(rdb, func(key string, i int) ([]byte, error) {
		b, err := rdb.Get(ctx, key).Bytes()
		if !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("%s: %q, %w", key, b, err)
		}
		time.Sleep(loadTime)
		b = bytesOf(i)
		return b, rdb.Set(ctx, key, b, time.Hour).Err()
	})
	w.close = func() { rdb.Close() }
	return w, err
}

func nearMiss(j job) (worker, error) {
	n, err := openNear(j, single, bytesOf, loadTime, byDefault)
	if err != nil {
		return worker{}, err
	}
	ctx := context.Background()
	w, err := misses(n.rdb, func(key string, _ int) ([]byte, error) { return n.rows.Get(ctx, key) })
	w.settle, w.count, w.close = n.settle, n.trips, n.close
	return w, err
}

func goRedisCacheMiss(j job) (worker, error) {
	rdb, ctx := single.dial(j.At), context.Background()
	c := gocache.New(&gocache.Options{Redis: rdb, LocalCache: gocache.NewTinyLFU(tableSize, time.Minute)})
	w, err := misses(rdb, func(key string, i int) (b []byte, err error) {
		err = c.Once(&gocache.Item{Ctx: ctx, Key: key, Value: &b, TTL: time.Hour, Do: func(*gocache.Item) (any, error) {
			time.Sleep(loadTime)
			return bytesOf(i), nil
		}})
		return b, err
	})
	w.close = func() { rdb.Close() }
	return w, err
}

// stampede lets all callers of all clients ask for a key that nobody has, at once, and then for the next. Its cost is the 99th
// percentile of the waits, in lengths of a load; the extra figure is the number of loads for a key.
func stampede(j job) (m measured, err error) {
	const (
		clients, callers = 8, 64
		takes            = 50 * time.Millisecond
	)
	var all []*near[[]byte]
	defer func() {
		for _, n := range all {
			n.close()
		}
	}()
	for range clients {
		n, err := openNear(j, single, bytesOf, takes, byDefault)
		if err != nil {
			return m, err
		}
		all = append(all, n)
	}
	ctx := context.Background()
	if err := all[0].rdb.FlushAll(ctx).Err(); err != nil {
		return m, err
	}
	var waits []time.Duration
	count := 0
	for began := time.Now(); count == 0 || time.Since(began).Seconds() < j.Seconds; count++ {
		k := key(count)
		start := make(chan struct{})
		took := make(chan time.Duration, clients*callers)
		done := make(chan error, 1)
		go func() {
			var next atomic.Int64
			done <- parallel(clients*callers, func() error {
				n := all[next.Add(1)%clients]
				<-start
				asked := time.Now()
				b, err := n.rows.Get(ctx, k)
				took <- time.Since(asked)
				return checkBytes(k, b, err)
			})
		}()
		time.Sleep(10 * time.Millisecond) // all stand at the start
		close(start)
		if err := <-done; err != nil {
			return m, err
		}
		for range clients * callers {
			waits = append(waits, <-took)
		}
	}
	for _, n := range all {
		m.Extra += float64(n.calls.Load()) / float64(count)
	}
	slices.Sort(waits)
	m.Cost = float64(waits[len(waits)*99/100]) / float64(takes)
	return m, nil
}
