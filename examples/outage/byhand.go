package main

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
)

const handName = "by hand"

// byHand is an instance with the wrapper that many services have: GET, else load and SET, and DEL after a commit. A Redis that fails is
// not to fail a request, so its errors count as a miss. The client is as it comes.
type byHand struct {
	rdb *redis.Client
	db  *database
}

func openByHand(addr string, db *database) (instance, error) {
	return &byHand{redis.NewClient(&redis.Options{Addr: addr}), db}, nil
}

func (h *byHand) get(ctx context.Context, id int64) (r row, from cache.Tier, err error) {
	if raw, err := h.rdb.Get(ctx, handKey(id)).Bytes(); err == nil && json.Unmarshal(raw, &r) == nil {
		return r, cache.TierRedis, nil
	}
	if r, err = h.db.load(ctx, id); err != nil {
		return r, 0, err
	}
	if raw, err := json.Marshal(r); err == nil {
		h.rdb.Set(ctx, handKey(id), raw, ttl)
	}
	return r, cache.TierLoader, nil
}

func (h *byHand) invalidate(ctx context.Context, id int64) error {
	return h.rdb.Del(ctx, handKey(id)).Err()
}

func (h *byHand) close() error { return h.rdb.Close() }

func handKey(id int64) string { return "by-hand:" + strconv.FormatInt(id, 10) }
