// Quickstart runs two instances of a service, and shows in small steps what the cache does for them:
//
//	go run -C examples ./quickstart
//
// Redis and the database are embedded. With REDIS_URL=redis://host:6379 the instances use that Redis.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	_ "modernc.org/sqlite"

	"github.com/go-nearside/nearside/cache"
)

// service is one instance; usually each is a process of its own.
type service struct {
	rdb      *redis.Client
	client   *cache.Client
	products *cache.Cache[int64, Product]
}

// newService is all the wiring. Instances that share a cache use the same namespace, name and policy.
func newService(options *redis.Options, config cache.Config, load cache.Loader[int64, Product]) (*service, error) {
	rdb := redis.NewClient(options)
	client, err := cache.Open(rdb, config)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	products, err := cache.New(client, "product", load, cache.Policy{TTL: time.Minute})
	if err != nil {
		return nil, errors.Join(err, client.Close(), rdb.Close())
	}
	return &service{rdb, client, products}, nil
}

// close ends the cache, then the Redis client that it used.
func (s *service) close() error { return errors.Join(s.client.Close(), s.rdb.Close()) }

// Product is a row of the database.
type Product struct {
	ID    int64
	Name  string
	Cents int64
}

// loadProducts reads rows with one query. The cache calls it with the keys that no tier has; a key without a row is left out.
func loadProducts(ctx context.Context, db *sql.DB, ids []int64) (map[int64]Product, error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	marks := strings.Repeat(",?", len(ids))[1:]
	rows, err := db.QueryContext(ctx, "SELECT id, name, cents FROM product WHERE id IN ("+marks+")", args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[int64]Product, len(ids))
	for rows.Next() {
		var p Product
		if err := rows.Scan(&p.ID, &p.Name, &p.Cents); err != nil {
			return nil, err
		}
		found[p.ID] = p
	}
	return found, rows.Err()
}

// setPrice commits a new price and returns the row.
func setPrice(ctx context.Context, db *sql.DB, id, cents int64) (p Product, err error) {
	row := db.QueryRowContext(ctx, "UPDATE product SET cents = ? WHERE id = ? RETURNING id, name, cents", cents, id)
	return p, row.Scan(&p.ID, &p.Name, &p.Cents)
}

const schema = `
	CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT NOT NULL, cents INTEGER NOT NULL);
	WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 20)
	INSERT INTO product SELECT id, 'product ' || id, id * 100 FROM n`

func main() {
	logging.Disable() // the last step takes Redis away: go-redis would log each failed connection
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// readBudget is three times the default, since here Redis shares the processor with all the rest.
var readBudget = 300 * time.Millisecond

// run starts the two instances and what they need, takes the steps, and ends everything.
func run(ctx context.Context, out io.Writer) (err error) {
	end := func(close func() error) { err = errors.Join(err, close()) }

	url, kind := os.Getenv("REDIS_URL"), "the Redis at REDIS_URL"
	if url == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		server.ClockTTL(true) // keys expire by the clock, as in a real Redis
		url, kind = "redis://"+server.Addr(), "an embedded Redis"
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return fmt.Errorf("REDIS_URL: %w", err)
	}

	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return err
	}
	defer end(db.Close)
	db.SetMaxOpenConns(1) // each connection to :memory: is a database of its own
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return err
	}

	t := &tour{db: db}
	connect := redis.NewDialer(options)
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := connect(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return cable{conn, &t.pulled}, nil
	}
	namespace := fmt.Sprintf("quickstart-%d", time.Now().UnixNano()) // no run finds what another left in Redis
	config := cache.Config{Namespace: namespace, ReadBudget: readBudget, WriteBudget: 2 * readBudget}
	if t.a, err = newService(options, config, t.load); err != nil {
		return err
	}
	defer end(t.a.close)
	if t.b, err = newService(options, config, t.load); err != nil {
		return err
	}
	defer end(t.b.close)
	// A service need not wait for this: until then its local tier starts anew once.
	t.until("a hears what b invalidates", func() any { return t.a.client.Bus().Live() }, true)
	t.until("b hears what a invalidates", func() any { return t.b.client.Bus().Live() }, true)

	fmt.Fprintf(out, "Two instances of a service, a and b, share %s and a database.\n", kind)
	return t.run(ctx, out)
}
