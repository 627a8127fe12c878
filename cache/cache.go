package cache

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-nearside/nearside/internal/codec"
	"github.com/go-nearside/nearside/invalidation"
)

// Cache is a typed cache in two tiers before one loader.
type Cache[K comparable, V any] struct {
	client *Client
	name   string
	policy Policy
	hooks  Hooks[K, V]
	loader Loader[K, V]

	keys        *keys[K]
	codec       Codec[V]
	local       *localTier[K, V] // nil if it is off
	redis       *redisTier
	flights     *flights[K, V]
	spare       sync.Pool // of *flight[K, V]
	alarms      alarms
	unconfirmed *unconfirmed
	refreshes   *refreshes // nil if they are off
	stats       counters
	warned      atomic.Int64 // when the codec's failure was last logged
}

// New makes a cache. The name is part of its keys in Redis: the caches of a client have different ones, and processes that
// share a cache use the same name, types, codec and policy. K and V follow from the loader; adapt one that reads a single row
// by Single. At most one Hooks may be given, with its types: cache.Hooks[int64, User]{...}.
func New[K comparable, V any](client *Client, name string, loader Loader[K, V], policy Policy, hooks ...Hooks[K, V]) (*Cache[K, V], error) {
	switch {
	case client == nil:
		return nil, &ConfigError{"the client", "nil", "give what cache.Open returned"}
	case name == "":
		return nil, &ConfigError{"the name", `""`, "give each cache a name of its own"}
	case len(name) > maxNameBytes:
		return nil, &ConfigError{"the name", fmt.Sprintf("%d bytes long", len(name)), fmt.Sprintf("give at most %d bytes", maxNameBytes)}
	case loader == nil:
		return nil, &ConfigError{"the loader", "nil", "give a function that reads rows from the source"}
	case len(hooks) > 1:
		return nil, &ConfigError{"hooks", fmt.Sprintf("%d values", len(hooks)), "give at most one Hooks"}
	}
	policy, err := policy.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Cache[K, V]{client: client, name: name, policy: policy, loader: loader, flights: new(flights[K, V])}
	if len(hooks) == 1 {
		c.hooks = hooks[0]
	}
	if c.keys, err = newKeys(client.config.Namespace, name, c.hooks.Key); err != nil {
		return nil, err
	}
	if c.codec = c.hooks.Codec; c.codec == nil {
		c.codec = codec.Default[V]()
	}
	c.redis = &redisTier{
		client: client, name: name, prefix: len(c.keys.prefix), schema: policy.Schema, leaseTTL: policy.LeaseTTL,
		wakes: policy.LeaseWait != Off && client.bus != nil, stats: &c.stats,
		staleTTL: max(0, policy.StaleTTL), dueAge: "0", schemaText: strconv.Itoa(int(policy.Schema)), leaseMillis: millis(policy.LeaseTTL),
	}
	c.unconfirmed = &unconfirmed{
		clock: client.clock, most: maxUnconfirmed,
		keep: max(policy.TTL, policy.NegativeTTL) + max(0, policy.StaleTTL) + policy.LoadTimeout + client.config.WriteBudget,
	}
	if policy.RefreshAfter != Off {
		c.refreshes = newRefreshes(policy)
		c.redis.dueAge = strconv.FormatInt(c.refreshes.age.Microseconds(), 10)
	}
	if policy.LocalTTL != Off {
		if c.local, err = newLocalTier[K, V](policy, client); err != nil {
			return nil, fmt.Errorf("cache: local tier: %w", err)
		}
	}
	if err := client.register(name, c); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

const maxNameBytes = 200

// listener takes in what the bus says of this cache's keys.
func (c *Cache[K, V]) listener() invalidation.Handler {
	return invalidation.Handler{
		Keys: func(encoded []string) {
			for _, key := range encoded {
				c.client.stamps.move(c.keys.hashEncoded(key))
				c.alarms.ring(key)
			}
			c.stats.received.Add(uint64(len(encoded)))
		},
		Wake: func(encoded []string) {
			for _, key := range encoded {
				c.alarms.ring(key)
			}
		},
	}
}

// close ends the local tier, after all else has ended.
func (c *Cache[K, V]) close() {
	if c.local != nil {
		c.local.close()
	}
}

// Name returns the cache's name.
func (c *Cache[K, V]) Name() string { return c.name }

// Policy returns the policy with its defaults filled in.
func (c *Cache[K, V]) Policy() Policy { return c.policy }

// Get returns the value of a key: from this process, from Redis, or from the loader. It returns ErrNotFound if the source has
// no such row, ctx's error if ctx ends first, and otherwise what the loader returned: a Redis that fails is not an error, unless
// Policy.Fallback says so (ErrUnavailable). ErrOverloaded says that too many loads run, and ErrBadKey, ErrClosed and a *PanicError are
// possible too. It returns when the load has ended, and the tiers are filled behind it; who asks meanwhile shares the answer. A value that
// the codec cannot write is served and not kept.
func (c *Cache[K, V]) Get(ctx context.Context, key K) (V, error) {
	if e := c.near(key); e != nil {
		if c.hooks.Clone == nil {
			return e.value, e.err() // not by own, which copies the value: a local hit takes a tenth longer then
		}
		return c.own(e.value, e.err())
	}
	a := c.get(ctx, "get", key, c.loader)
	return c.own(a.value, a.err)
}

// GetResult is Get with the origin of the answer, which is given beside ErrNotFound too.
func (c *Cache[K, V]) GetResult(ctx context.Context, key K) (Result[V], error) {
	var a answer[V]
	if e := c.near(key); e != nil {
		a = answer[V]{value: e.value, err: e.err(), tier: TierLocal, why: standInWhys[e.standIn], stale: e.standIn > 0, loaded: e.loaded}
	} else {
		a = c.get(ctx, "get", key, c.loader)
	}
	r := Result[V]{Tier: a.tier, Why: a.why, Stale: a.stale}
	if a.loaded != 0 {
		r.Age = time.Duration(max(0, c.client.clock.now()-a.loaded))
	}
	var err error
	r.Value, err = c.own(a.value, a.err)
	return r, err
}

// Fetch is Get with a loader of this call's own. It is meant for a migration step by step: the load is shared with callers
// that gave other loaders, and may run on after this call returned, so a loader must not depend on the request it came from.
func (c *Cache[K, V]) Fetch(ctx context.Context, key K, load func(context.Context) (V, error)) (V, error) {
	if load == nil {
		var zero V
		return zero, opError("fetch", c.name, key, &ConfigError{"the loader", "nil", "give a function that reads the row"})
	}
	if e := c.near(key); e != nil {
		return c.own(e.value, e.err())
	}
	a := c.get(ctx, "fetch", key, Single(func(ctx context.Context, _ K) (V, error) { return load(ctx) }))
	return c.own(a.value, a.err)
}

// near returns what the local tier may serve of a key, and starts its refresh if that is due.
func (c *Cache[K, V]) near(key K) *entry[K, V] {
	if c.local == nil {
		return nil
	}
	hash, ok := c.keys.hash(key)
	if !ok {
		return nil
	}
	e := c.local.get(hash, key)
	if e != nil && c.refreshes.due(hash, e.since(), c.client.clock) {
		c.refresh([]K{key})
	}
	return e
}

// get answers a key that the local tier does not hold.
func (c *Cache[K, V]) get(ctx context.Context, op string, key K, loader Loader[K, V]) answer[V] {
	physical, hash, err := c.keys.physical(key)
	if err == nil {
		err = c.usable(ctx)
	}
	if err != nil {
		return answer[V]{err: opError(op, c.name, key, err)}
	}
	mine := c.newFlight(key, hash)
	mine.physical, mine.load = physical, mine.alone.open()
	f, others, waiting := c.flights.join(mine, c.client.clock)
	switch {
	case !others:
		if c.leadOne(ctx, f, loader) {
			// Nothing goes on, so there is no load to leave; and Redis answers with a value or ErrNotFound, which is not wrapped.
			a := f.answer
			c.reuse(f)
			return a
		}
		defer f.load.leave()
	case waiting:
		defer f.load.leave()
		f.load.joinedFrom(ctx, c.client.gate)
		fallthrough
	default:
		c.reuse(mine)
		c.stats.joined.Add(1)
	}
	a := c.wait(ctx, f)
	if a.err != nil && a.err != ErrNotFound {
		a.err = opError(op, c.name, key, a.err)
	}
	return a
}

// GetMany returns the values of some keys; one that is given twice counts once. Keys that the source has no row for are absent from
// the map. If some keys fail, the error wraps a *KeyErrors[K] that names them (errors.As), and the map holds the others. What Redis is
// asked for goes in one round trip for each 500 keys, and what Redis does not have in one call of the loader, however many keys that
// are: a loader whose query has a limit divides them. As with Get, the tiers are filled behind the answer.
func (c *Cache[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	values := make(map[K]V, len(keys))
	failed := map[K]error{}
	wanted, due := c.nearMany(keys, values, failed)
	c.refresh(due)
	if len(wanted) > 0 {
		if err := c.usable(ctx); err != nil {
			for _, f := range wanted {
				failed[f.key] = err
			}
			return values, c.batchError("get many", failed)
		}
		b := c.board(wanted)
		defer c.end(b)
		for _, l := range b.loads[1:] {
			l.joinedFrom(ctx, c.client.gate)
		}
		c.lead(ctx, b.own, b.started, c.loader)
		for _, f := range b.all {
			switch a := c.wait(ctx, f); {
			case a.err == nil:
				values[f.key], _ = c.own(a.value, nil)
			case a.err != ErrNotFound:
				failed[f.key] = a.err
				if ctx.Err() != nil {
					b.leave() // at once: what goes on behind would begin one trip after another until the last key is told
				}
			}
		}
	}
	return values, c.batchError("get many", failed)
}

// batchError wraps the errors of single keys, if there are any.
func (c *Cache[K, V]) batchError(op string, failed map[K]error) error {
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("cache: %s %s: %w", op, c.name, &KeyErrors[K]{ByKey: failed})
}

// usable tells whether a call that needs more than the local tier may go on.
func (c *Cache[K, V]) usable(ctx context.Context) error {
	if c.client.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// own returns a value that the caller may have, if there is one.
func (c *Cache[K, V]) own(v V, err error) (V, error) {
	if err == nil && c.hooks.Clone != nil {
		return c.hooks.Clone(v), nil
	}
	return v, err
}

// Invalidate drops keys from Redis, from this process, and by the bus from all others. Call it after the commit of what changed
// them. When it returns nil, no reader anywhere gets an older value from Redis, and none in this process from anywhere; another
// process learns of it with the message, or three heartbeats after that was lost. Many keys go in several round trips.
//
// If some keys fail, the error wraps a *KeyErrors[K] that names them; the others are dropped. ErrUnconfirmed: Redis did not confirm
// the delete; what is promised for this process holds all the same. ErrUnpublished: it did, and could not tell the others. ErrBadKey:
// the key cannot be encoded, so nothing stands under it. If ctx ends early, the delete goes on behind, unconfirmed: after a commit,
// context.WithoutCancel is the better context. After Close, nothing is deleted, and the error is ErrClosed too. A delete waits a write
// budget at most, for each 500 keys, and those that follow one that failed are tried behind.
func (c *Cache[K, V]) Invalidate(ctx context.Context, keys ...K) error {
	failed := map[K]error{}
	var drops []target[K]
	seen := make(map[K]struct{}, len(keys))
	for _, key := range keys {
		if _, again := seen[key]; again {
			continue
		}
		seen[key] = struct{}{}
		t, err := c.target(key)
		if err != nil {
			failed[key] = err
			continue
		}
		drops = append(drops, t)
	}
	for key, err := range c.drop(ctx, drops) {
		failed[key] = err
	}
	return c.batchError("invalidate", failed)
}

// Update writes through: it runs write, which commits a new value to the source and returns it, and then puts that value into
// both tiers. Loads that began before write, in any process, are not kept. If write fails, its error is returned, and the key
// is invalidated, since the source may have changed all the same. write runs in the calling goroutine, on ctx; if it panics,
// the key is invalidated and the panic goes on. write does not run if ctx has ended, the key is bad or the client closed. To
// delete a row, delete it and call Invalidate. Beside write, Redis is waited for two read budgets and two write budgets at most.
//
// An error that wraps ErrUnconfirmed, ErrUnpublished or ErrCodec comes beside the value: write has committed, and the cache could
// not be brought up to date (see Invalidate), or was, and the others were not told, or cannot hold the value.
func (c *Cache[K, V]) Update(ctx context.Context, key K, write func(context.Context) (V, error)) (V, error) {
	var zero V
	if write == nil {
		return zero, opError("update", c.name, key, &ConfigError{"write", "nil", "give a function that commits and returns the value"})
	}
	v, err := c.write(ctx, key, write)
	if err == nil || errors.Is(err, ErrUnpublished) {
		v, _ = c.own(v, nil) // the local tier may hold it
	}
	if err != nil {
		return v, opError("update", c.name, key, err)
	}
	return v, nil
}

// Set puts a value into both tiers, to seed or warm them. The value was made before the call: if the source changes meanwhile,
// an old value may stay until its TTL ends. After a write to the source use Invalidate or Update. An error says that the value
// was not kept (ErrNotKept, ErrCodec); what was there before is gone from this process, and from Redis too unless it is ErrUnconfirmed:
// then this process does without Redis for the key until the delete of what stands there is confirmed. Only beside ErrUnpublished the
// value is kept, and the others were not told. Redis is waited for two read budgets and two write budgets at most.
//
// A key that shares its stamp (see the package comment) with one that is written later is read from Redis once more.
func (c *Cache[K, V]) Set(ctx context.Context, key K, value V) error {
	if err := c.set(ctx, map[K]V{key: value})[key]; err != nil {
		return opError("set", c.name, key, err)
	}
	return nil
}

// SetMany is Set for many keys, in few round trips. If some keys fail, the error wraps a *KeyErrors[K] that names them; the others
// are set.
func (c *Cache[K, V]) SetMany(ctx context.Context, values map[K]V) error {
	return c.batchError("set many", c.set(ctx, values))
}
