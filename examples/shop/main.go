// Command shop is a small HTTP service to copy from: products in a database, cached by nearside.
//
//	go run -C examples ./shop                 # embedded Redis and SQLite, on localhost:8080
//	REDIS_URL=redis://... DATABASE_URL=postgres://... go run -C examples ./shop
//
//	GET /products/{id}         one product
//	GET /products?ids=1,2,3    some, in one batch
//	PUT /products/{id}         {"name": "...", "cents": 100}
//	GET /healthz               whether this instance can answer, and what it thinks of Redis and of its bus
//
// What goes where: this file opens and closes everything, in order; store.go is the database; catalog.go is the cached table, and
// the place to look at first; server.go is HTTP; health.go is /healthz.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "where to listen")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	config := config{addr: *addr, redisURL: os.Getenv("REDIS_URL"), databaseURL: os.Getenv("DATABASE_URL"), log: log}
	if err := run(ctx, config, func(net.Addr, *catalog) {}); err != nil {
		log.Error("shop", "error", err)
		os.Exit(1)
	}
}

type config struct {
	addr                  string
	redisURL, databaseURL string // empty: embedded ones
	log                   *slog.Logger
}

// drainTime is how long requests under way may take when the service is told to stop: longer than any of them, so that no write
// comes between its commit and its invalidation.
const drainTime = readTimeout + putTimeout + 2*time.Second

const readTimeout = 5 * time.Second // for a whole request

// run serves until ctx ends, and tells ready where it listens and what it serves. What is opened first is closed last: the requests end before the cache, and the
// cache before what it uses.
func run(ctx context.Context, config config, ready func(net.Addr, *catalog)) (err error) {
	end := func(close func() error) { err = errors.Join(err, close()) }

	db, err := openStore(ctx, config.databaseURL)
	if err != nil {
		return err
	}
	defer end(db.close)

	if config.redisURL == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer embedded.Close()
		embedded.ClockTTL(true) // keys expire by the clock, as in a real Redis
		config.redisURL = "redis://" + embedded.Addr()
	}
	options, err := redis.ParseURL(config.redisURL)
	if err != nil {
		return fmt.Errorf("REDIS_URL: %w", err)
	}
	rdb := redis.NewClient(options)
	defer end(rdb.Close)

	client, err := cache.Open(rdb, cache.Config{
		Namespace: "shop", Logger: config.log,
		MaxLoads: maxConnections, // a load takes one: more at once would wait for one another
	})
	if err != nil {
		return err
	}
	defer end(client.Close)
	products, err := newCatalog(client, db)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", config.addr)
	if err != nil {
		return err
	}
	s := newServer(products, &health{client: client, db: db}, config.log)
	server := &http.Server{
		Handler:     s,
		ReadTimeout: readTimeout, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(config.log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	config.log.Info("listening", "addr", listener.Addr().String())
	ready(listener.Addr(), products)

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	config.log.Info("stopping")
	drained, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err = server.Shutdown(drained); err != nil {
		err = errors.Join(err, server.Close())
	}
	if closed := <-served; !errors.Is(closed, http.ErrServerClosed) {
		err = errors.Join(err, closed)
	}
	return err
}
