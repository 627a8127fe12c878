package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"
)

// dialer makes clients of one of the two servers, and the subjects that read from it.
type dialer struct {
	what    string
	dial    func(place) redis.UniversalClient
	rueidis func(place) rueidis.ClientOption
}

var (
	single = dialer{
		"one node",
		func(at place) redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: at.Redis}) },
		func(at place) rueidis.ClientOption {
			return rueidis.ClientOption{InitAddress: []string{at.Redis}, ForceSingleClient: true}
		},
	}
	cluster = dialer{
		"cluster of three",
		func(at place) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: at.Cluster})
		},
		func(at place) rueidis.ClientOption { return rueidis.ClientOption{InitAddress: at.Cluster} },
	}
)

const remoteKeys = 10_000

// reads reads keys of which none is more popular than another.
func reads(j job, get func(key string) ([]byte, error)) worker {
	all := keys(j.keys(remoteKeys))
	return worker{op: func(r *rand.Rand) error {
		k := all[r.IntN(len(all))]
		b, err := get(k)
		return checkBytes(k, b, err)
	}}
}

// store puts the values of all keys straight into Redis.
func store(j job, rdb redis.UniversalClient, value func(i int) ([]byte, error)) error {
	const batch = 100
	for from := 0; from < j.keys(remoteKeys); from += batch {
		_, err := rdb.Pipelined(context.Background(), func(p redis.Pipeliner) error {
			for i := from; i < from+batch; i++ {
				b, err := value(i)
				if err != nil {
					return err
				}
				p.Set(context.Background(), key(i), b, time.Hour)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func storeBytes(j job, rdb redis.UniversalClient) error {
	return store(j, rdb, func(i int) ([]byte, error) { return bytesOf(i), nil })
}

func (d dialer) get(j job) (worker, error) {
	rdb := d.dial(j.At)
	ctx := context.Background()
	w := reads(j, func(key string) ([]byte, error) { return rdb.Get(ctx, key).Bytes() })
	w.close = func() { rdb.Close() }
	return w, storeBytes(j, rdb)
}

func (d dialer) nearGet(j job) (worker, error) {
	n, err := openNear(j, d, bytesOf, 0, noLocal)
	if err != nil {
		return worker{}, err
	}
	ctx := context.Background()
	w := reads(j, func(key string) ([]byte, error) { return n.rows.Get(ctx, key) })
	w.count, w.close = n.trips, n.close
	return w, n.fill(j.keys(remoteKeys))
}

func (d dialer) autoPipelineGet(j job) (worker, error) {
	rdb := d.dial(j.At)
	auto, err := rdb.(interface {
		AutoPipeline() (*redis.AutoPipeliner, error)
	}).AutoPipeline()
	if err != nil {
		return worker{}, err
	}
	ctx := context.Background()
	w := reads(j, func(key string) ([]byte, error) { return auto.Get(ctx, key).Bytes() })
	w.close = func() { rdb.Close() }
	return w, storeBytes(j, rdb)
}

func (d dialer) rueidisGet(j job) (worker, error) {
	rdb := d.dial(j.At)
	defer rdb.Close()
	if err := storeBytes(j, rdb); err != nil {
		return worker{}, err
	}
	option := d.rueidis(j.At)
	// One connection, and a short wait for others to join: with these it is at its best here.
	option.DisableCache, option.PipelineMultiplex, option.MaxFlushDelay = true, -1, 20*time.Microsecond
	client, err := rueidis.NewClient(option)
	if err != nil {
		return worker{}, err
	}
	ctx := context.Background()
	w := reads(j, func(key string) ([]byte, error) {
		return client.Do(ctx, client.B().Get().Key(key).Build()).AsBytes()
	})
	w.close = client.Close
	return w, nil
}

const batchSize = 100

// batches reads keys that follow one another, from any first key.
func batches(j job, get func(keys []string) (map[string]user, error)) worker {
	all := keys(j.keys(remoteKeys))
	return worker{op: func(r *rand.Rand) error {
		from := r.IntN(len(all) - batchSize)
		got, err := get(all[from : from+batchSize])
		if err == nil && len(got) != batchSize {
			err = fmt.Errorf("%d of %d keys", len(got), batchSize)
		}
		last := from + batchSize - 1
		return checkUser(last, got[all[last]], err)
	}}
}

func mget(j job) (worker, error) {
	rdb, ctx := single.dial(j.At), context.Background()
	w := batches(j, func(keys []string) (map[string]user, error) {
		replies, err := rdb.MGet(ctx, keys...).Result()
		if err != nil {
			return nil, err
		}
		got := make(map[string]user, len(keys))
		for i, reply := range replies {
			text, ok := reply.(string)
			if !ok {
				continue
			}
			if got[keys[i]], err = (jsonCodec{}).Decode([]byte(text)); err != nil {
				return nil, err
			}
		}
		return got, nil
	})
	w.close = func() { rdb.Close() }
	return w, store(j, rdb, func(i int) ([]byte, error) { return jsonCodec{}.Append(nil, userOf(i)) })
}

func nearMany(j job) (worker, error) {
	n, err := openNear(j, single, userOf, 0, noLocal, withJSON)
	if err != nil {
		return worker{}, err
	}
	ctx := context.Background()
	w := batches(j, func(keys []string) (map[string]user, error) { return n.rows.GetMany(ctx, keys) })
	w.count, w.close = n.trips, n.close
	return w, n.fill(j.keys(remoteKeys))
}

// parallel runs the same by several callers and returns the first error.
func parallel(callers int, do func() error) error {
	var all errgroup.Group
	for range callers {
		all.Go(do)
	}
	return all.Wait()
}
