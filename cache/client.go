package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/collect"
	"github.com/go-nearside/nearside/internal/group"
	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/invalidation"
)

// Config configures a Client. Its zero value works.
type Config struct {
	// Namespace begins every key in Redis: services that share a Redis and not their caches need different ones.
	// Default: "nearside".
	Namespace string

	// ReadBudget bounds each wait for a read of Redis; after it the loader answers. Default: 100 ms.
	ReadBudget time.Duration

	// WriteBudget bounds each wait for a fill or a delete. Default: 250 ms.
	WriteBudget time.Duration

	// MaxLoads bounds the loads of all caches of the client that run at once: give what this process' share of the database can bear.
	// Up to four times as many wait for a place, in order; what comes after that, or finds no place before LoadTimeout ends, gets
	// ErrOverloaded. A call of a loader is one load; of one made by Single each key is. A load that a loader asks for on its own context
	// goes under the place of that one. Default: 256. At most 1 000 000.
	MaxLoads int

	// Heartbeat is how often the bus checks that this process hears what others invalidate; after three without an echo all that
	// the local tiers hold is void. Default: 500 ms. At least 10 ms. Off: there is no bus, and other processes serve from their
	// local tiers what this one invalidated, for LocalTTL at most.
	Heartbeat time.Duration

	// DegradedTTL is how long the local tier keeps, at most, what was put there while the bus did not hear, or what was loaded because
	// Redis did not answer. Default: 5 s. At least 1 ms.
	DegradedTTL time.Duration

	// Logger gets warnings of what a person has to mend: a Redis client that reads from replicas, a codec that fails. What
	// passes, such as a Redis that is away, is counted in Stats and not logged; go-redis logs its failed dials by itself, unless you call
	// redis.SetLogger. Default: slog.Default().
	Logger *slog.Logger
}

// Client is what the caches of one process share: the Redis client, budgets, clock and generations.
type Client struct {
	config Config
	log    *slog.Logger

	read, write *collect.Collector
	gate        *gate
	errors      [rediscall.NumClasses]atomic.Uint64

	bus    *invalidation.Bus // nil if it is off
	clock  *clock
	stamps *stamps
	epoch  atomic.Uint32 // the generation of everything local

	retryEvery time.Duration // tests change it, before the first cache is made

	closed  atomic.Bool
	closing chan struct{} // closed when Close begins
	work    group.Group   // flights, fills, writes
	deletes group.Group   // outlives work, so that a write under way can still delete
	loaders group.Group   // calls of loaders
	retries group.Group   // what tries again what Redis did not confirm
	ticking group.Group   // the clock

	mu       sync.Mutex
	caches   map[string]member // guarded by mu
	closeErr error             // guarded by mu
	ended    chan struct{}     // closed when Close has ended
}

// member is a cache without its types.
type member interface {
	listener() invalidation.Handler
	settleOwed(ctx context.Context, do sender) (left int)
	overflowing() int
	close()
}

// Open makes a Client on a Redis client, which stays the caller's: it is not changed, and not closed. Open does not wait for
// Redis, and does not fail because Redis is away. Any redis.UniversalClient will do but a Ring, which gives no promise about
// where a key lives. Of a *redis.Client it uses clones that share its connections and have time-outs of their own: hooks of
// the client do not see the commands of the cache, since go-redis does not hand them on to a clone.
func Open(rdb redis.UniversalClient, config Config) (*Client, error) {
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, &ConfigError{"the Redis client", "nil", "give a *redis.Client or *redis.ClusterClient"}
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return nil, &ConfigError{"the Redis client", "a *redis.Ring", "a ring moves keys when a shard fails, so deletes would be lost: give a *redis.Client or *redis.ClusterClient"}
	}
	if config.Namespace == "" {
		config.Namespace = "nearside"
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	budget := duration{min: time.Millisecond, max: time.Minute}
	if err := fillDuration("Config.ReadBudget", &config.ReadBudget, 100*time.Millisecond, budget); err != nil {
		return nil, err
	}
	if err := fillDuration("Config.WriteBudget", &config.WriteBudget, 250*time.Millisecond, budget); err != nil {
		return nil, err
	}
	if err := fillDuration("Config.Heartbeat", &config.Heartbeat, 500*time.Millisecond, duration{min: 10 * time.Millisecond, max: time.Minute, off: true}); err != nil {
		return nil, err
	}
	if err := fillDuration("Config.DegradedTTL", &config.DegradedTTL, 5*time.Second, duration{min: minTTL, max: maxTTL}); err != nil {
		return nil, err
	}
	if err := fillCount("Config.MaxLoads", &config.MaxLoads, 256, 1_000_000); err != nil {
		return nil, err
	}
	c := &Client{
		config: config,
		gate:   newGate(config.MaxLoads),
		log:    config.Logger,
		read:   collect.New(rdb, config.ReadBudget),
		clock:  newClock(),
		stamps: new(stamps),

		retryEvery: retryEvery,
		closing:    make(chan struct{}),
		ended:      make(chan struct{}),
		caches:     make(map[string]member),
	}
	c.write = c.read.With(config.WriteBudget)
	if config.Heartbeat != Off {
		var err error
		c.bus, err = invalidation.Open(rdb, invalidation.Config{
			Namespace: config.Namespace, Heartbeat: config.Heartbeat, Budget: config.WriteBudget, Logger: config.Logger,
			ServerTime: func(server, sent, answered time.Time) {
				c.clock.observe(server.UnixMicro(), c.clock.at(sent), c.clock.at(answered))
			},
		})
		if err != nil {
			return nil, err
		}
		c.bus.Subscribe("", invalidation.Handler{Gap: func(string) { c.epoch.Add(1) }}) // no cache has this name
	}
	c.ticking.Go(func() { c.clock.run(c.closing) })
	c.work.Go(func() { c.look(rdb) })
	return c, nil
}

// Config returns the configuration with its defaults filled in.
func (c *Client) Config() Config { return c.config }

// Bus returns the bus that tells this process what others invalidate, nil if it is off (Live and Health can be called all the
// same). The keys of a cache go under its name. It
// can carry near data of your own too, and ends with the client.
func (c *Client) Bus() *invalidation.Bus { return c.bus }

// deaf tells whether there is a bus that does not hear now.
func (c *Client) deaf() bool { return c.bus != nil && !c.bus.Live() }

// look warns of settings of the Redis client that break promises, and learns the server's time.
func (c *Client) look(rdb redis.UniversalClient) {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		if o := cluster.Options(); o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			c.log.Warn("nearside: the Redis client reads from replicas, which may lag: an invalidated value can be served again; " +
				"unset ReadOnly, RouteByLatency and RouteRandomly")
		}
	}
	now := rediscall.NewCommand(context.Background(), "time")
	sent := c.clock.now()
	if err := c.read.Do(context.Background(), now); err != nil {
		c.weather(err)
		return
	}
	parts, err := now.StringSlice()
	if err != nil || len(parts) != 2 {
		return
	}
	seconds, err1 := strconv.ParseInt(parts[0], 10, 64)
	micros, err2 := strconv.ParseInt(parts[1], 10, 64)
	if err1 == nil && err2 == nil {
		c.clock.observe(seconds*1e6+micros, sent, c.clock.now())
	}
}

// weather counts an error of Redis. The end of a caller's own context is none.
func (c *Client) weather(err error) {
	if class := rediscall.Classify(err); class != rediscall.Caller {
		c.errors[class].Add(1)
	}
}

// register enters a cache under its name.
func (c *Client) register(name string, cache member) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return ErrClosed
	}
	if _, taken := c.caches[name]; taken {
		return &ConfigError{"the name", fmt.Sprintf("%q, which another cache of this client has", name), "give each cache its own name"}
	}
	if c.bus != nil {
		c.bus.Subscribe(name, cache.listener())
	}
	c.caches[name] = cache
	return nil
}

// Close ends the client and its caches; call it when the last request is done. All later calls return ErrClosed, the local tiers
// included: calls under way return what they have or ErrClosed, loads are cancelled, fills and deletes on their way are waited
// for, and deletes that Redis has not confirmed are tried again for a second. It takes no longer than twice the budgets, one
// more write budget and two and a half seconds, and returns an error if something was still running then (a loader that does not
// heed its context, or a call that hangs in the Redis client) or if deletes are left, which are then lost: ErrUnconfirmed. It
// may be called at any time, also from a loader, and more than once: each call waits for the first and returns the same.
func (c *Client) Close() error {
	c.mu.Lock()
	first := c.closed.CompareAndSwap(false, true)
	c.mu.Unlock()
	if first {
		c.epoch.Add(1) // from now on no local tier answers, so none can answer with what is no longer invalidated
		close(c.closing)
		go c.end()
	}
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closeErr
}

// closeGrace is how long Close waits beyond the budgets, before the bus ends.
const closeGrace = time.Second

func (c *Client) end() {
	defer close(c.ended)
	deadline := time.Now().Add(closeGrace + 2*(c.config.ReadBudget+c.config.WriteBudget))
	early := deadline.Add(-c.config.WriteBudget) // so that what is owed has its turn, whatever hangs
	c.ticking.Close(time.Until(early))
	flights := c.work.Close(time.Until(early)) + c.deletes.Close(time.Until(early)) + c.retries.Close(time.Until(early))
	unconfirmed := c.settleLast(deadline)
	bus := make(chan error, 1)
	go func() { bus <- c.bus.Close() }()
	loaders := c.loaders.Close(time.Until(deadline))
	idle := func() time.Duration { return max(lastPause, time.Until(deadline)) } // idle workers need a moment to end
	calls := c.read.Close(idle()) + c.write.Close(idle())
	busErr := <-bus
	for _, cache := range c.members() {
		cache.close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if flights+loaders+calls > 0 {
		c.closeErr = fmt.Errorf("cache: close: still running: %d flights or writes, %d loaders, %d calls to Redis", flights, loaders, calls)
	}
	if unconfirmed > 0 {
		c.closeErr = errors.Join(c.closeErr, fmt.Errorf("cache: close: the deletes of %d keys are lost: %w", unconfirmed, ErrUnconfirmed))
	}
	c.closeErr = errors.Join(c.closeErr, busErr)
}

// settleLast tries the deletes of all caches that Redis has not confirmed, once and then for a second, and returns how many are left.
func (c *Client) settleLast(deadline time.Time) int {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	var left atomic.Int64
	var all sync.WaitGroup
	for _, cache := range c.members() {
		all.Go(func() {
			n := cache.settleOwed(ctx, c.write.Insist)
			// A Redis that has just come back may be refused by go-redis, which dials once a second then.
			for end := time.Now().Add(closeGrace); n > 0 && time.Now().Before(end) && pause(ctx, lastPause); {
				n = cache.settleOwed(ctx, c.write.Insist)
			}
			left.Add(int64(n + cache.overflowing()))
		})
	}
	all.Wait()
	return int(left.Load())
}

// lastPause is the time between two tries at the end.
const lastPause = 100 * time.Millisecond

// pause waits for d, and reports false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Client) members() []member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.caches))
}
