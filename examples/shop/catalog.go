package main

import (
	"context"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// catalog is the table of products behind the cache. To cache another table, write the like of this file: what reads rows by
// their keys becomes the loader, what writes them calls Invalidate after its commit.
type catalog struct {
	store *store
	cache *cache.Cache[int64, Product]
}

// putTimeout bounds a commit.
const putTimeout = 5 * time.Second

func newCatalog(client *cache.Client, store *store) (*catalog, error) {
	products, err := cache.New(client, "product", store.findProducts, cache.Policy{
		TTL:         10 * time.Minute,
		LoadTimeout: 5 * time.Second,
	})
	return &catalog{store, products}, err
}

// get returns a product, or cache.ErrNotFound.
func (c *catalog) get(ctx context.Context, id int64) (Product, error) { return c.cache.Get(ctx, id) }

// find returns some products. Those that do not exist are not in the map. If some cannot be read, the error says which, and the map
// holds the others.
func (c *catalog) find(ctx context.Context, ids []int64) (map[int64]Product, error) {
	return c.cache.GetMany(ctx, ids)
}

// put writes a product: commit first, then Invalidate. The second result says that the write stands, and that Redis did not confirm
// the invalidation: this instance answers with the new row all the same, others once the delete, which is tried again,
// is confirmed.
func (c *catalog) put(ctx context.Context, p Product) (written Product, late, err error) {
	ctx = context.WithoutCancel(ctx) // the request's end must not come between the two
	commit, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	written, err = c.store.putProduct(commit, p)
	late = c.cache.Invalidate(ctx, p.ID) // also after an error: the commit may have happened
	return written, late, err
}
