package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
)

const nearName = "nearside"

// near is an instance with nearside.
type near struct {
	rdb    *redis.Client
	client *cache.Client
	rows   *cache.Cache[int64, row]
}

// openNear makes an instance. All is as it comes but MaxLoads: only who knows the database knows its share.
func openNear(addr string, db *database) (instance, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client, err := cache.Open(rdb, cache.Config{MaxLoads: bears / instances})
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	rows, err := cache.New(client, "row", cache.Single(db.load), cache.Policy{TTL: ttl})
	if err != nil {
		return nil, errors.Join(err, client.Close(), rdb.Close())
	}
	// A service need not wait for this. Here the first phase is to show the usual, and not the start.
	for end := time.Now().Add(2 * time.Second); !client.Bus().Live() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return &near{rdb, client, rows}, nil
}

func (n *near) get(ctx context.Context, id int64) (row, cache.Tier, error) {
	r, err := n.rows.GetResult(ctx, id)
	return r.Value, r.Tier, err
}

func (n *near) invalidate(ctx context.Context, id int64) error { return n.rows.Invalidate(ctx, id) }

func (n *near) close() error { return errors.Join(n.client.Close(), n.rdb.Close()) }
