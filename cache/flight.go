package cache

import (
	"context"
	"sync"
	"sync/atomic"
)

// load is the context that the flights of one call share, and the count of those who wait for any of them.
type load struct {
	ctx     context.Context    // nil until begin
	cancel  context.CancelFunc // nil until begin
	waiters atomic.Int64
}

// newLoad makes a load with one waiter: the caller.
func newLoad() *load {
	l := &load{}
	l.waiters.Store(1)
	return l
}

// begin gives the load a context, with the values of the caller's and without its end. The first waiter calls it, before it
// leaves, if something goes on without it.
func (l *load) begin(ctx context.Context) {
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
}

// join adds a waiter. It reports false if the last one has left already: then the load is cancelled.
func (l *load) join() bool {
	for {
		n := l.waiters.Load()
		if n == 0 {
			return false
		}
		if l.waiters.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave takes a waiter away. When the last one leaves, the load is cancelled.
func (l *load) leave() {
	if l.waiters.Add(-1) == 0 && l.cancel != nil {
		l.cancel()
	}
}

// flight is one read of one key through Redis and the loader, shared by all who ask for the key meanwhile.
type flight[K comparable, V any] struct {
	key      K
	hash     uint64
	physical string
	stamp    uint32 // the key's stamp before Redis is read: if it moves, the flight was overtaken
	epoch    uint64
	load     *load

	landing atomic.Bool   // the first answer counts
	landed  atomic.Bool   // the answer stands
	answer  answer[V]     // written before landed
	done    chan struct{} // guarded by the shard's mu; nil while nobody waits, closed once landed
}

// answer is what a flight found out.
type answer[V any] struct {
	value  V
	err    error // ErrNotFound included
	tier   Tier
	why    Why
	loaded int64 // when the load of the value began, on the client's clock; 0 if that is not known
}

// flights are the flights of one cache that can be joined.
//
// An invalidation disowns a flight by moving its key's stamp: nobody joins it any more, the next caller puts a new one in its
// place, and when it ends it takes only itself out. A flight whose answer is being filled stays here until that is done, so
// that who comes meanwhile gets the answer; one that failed is taken out before its waiters hear of it.
type flights[K comparable, V any] struct {
	shards [flightShards]struct {
		mu    sync.Mutex
		byKey map[K]*flight[K, V] // guarded by mu
	}
}

const flightShards = 64 // a power of two

func newFlights[K comparable, V any]() *flights[K, V] {
	t := &flights[K, V]{}
	for i := range t.shards {
		t.shards[i].byKey = make(map[K]*flight[K, V])
	}
	return t
}

// join returns the flight of a key that is not older than mine, or makes mine the flight of the key. It reports whether the
// flight is another's; the caller is then a waiter of that flight's load, unless the flight was done already.
func (t *flights[K, V]) join(mine *flight[K, V]) (f *flight[K, V], others, waiting bool) {
	shard := &t.shards[mine.hash%flightShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f := shard.byKey[mine.key]; f != nil && f.epoch == mine.epoch && int32(f.stamp-mine.stamp) >= 0 {
		if f.landed.Load() {
			return f, true, false
		}
		if f.load.join() {
			f.expect()
			return f, true, true
		}
	}
	shard.byKey[mine.key] = mine
	return mine, false, false
}

// expect makes the channel on which to wait for the flight, if it has none. The shard's mu is held, or nobody knows the flight.
func (f *flight[K, V]) expect() {
	if f.done == nil {
		f.done = make(chan struct{})
	}
}

// expect lets the one who leads a flight wait for it as the others do.
func (t *flights[K, V]) expect(f *flight[K, V]) {
	shard := &t.shards[f.hash%flightShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f.expect()
}

// land wakes those who wait for a flight that has landed. If it ends with that, it is taken out too.
func (t *flights[K, V]) land(f *flight[K, V], ends bool) {
	shard := &t.shards[f.hash%flightShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f.done != nil {
		close(f.done)
	}
	if ends && shard.byKey[f.key] == f {
		delete(shard.byKey, f.key)
	}
}

// remove takes a flight out, if it still is the flight of its key.
func (t *flights[K, V]) remove(f *flight[K, V]) {
	shard := &t.shards[f.hash%flightShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.byKey[f.key] == f {
		delete(shard.byKey, f.key)
	}
}

// len returns the number of flights that can be joined.
func (t *flights[K, V]) len() (n int) {
	for i := range t.shards {
		shard := &t.shards[i]
		shard.mu.Lock()
		n += len(shard.byKey)
		shard.mu.Unlock()
	}
	return n
}

// fly makes sure that each of some distinct keys has a flight, starts those that are new, and returns all, in order, with what
// must be called when the caller waits no longer.
func (c *Cache[K, V]) fly(ctx context.Context, wanted []*flight[K, V], loader Loader[K, V]) (all []*flight[K, V], leave func()) {
	own := newLoad()
	waits := []*load{own}
	all = make([]*flight[K, V], 0, len(wanted))
	var started []*flight[K, V]
	for _, mine := range wanted {
		mine.load = own
		f, others, waiting := c.flights.join(mine)
		all = append(all, f)
		switch {
		case !others:
			started = append(started, f)
		case waiting:
			waits = append(waits, f.load)
			fallthrough
		default:
			c.stats.joined.Add(1)
		}
	}
	if len(started) > 0 {
		c.lead(ctx, own, started, loader)
	}
	return all, func() {
		for _, l := range waits {
			l.leave()
		}
	}
}

// lead takes flights that their caller has begun to Redis, in the caller's own goroutine. What Redis does not answer, or the caller
// does not wait for, goes on in another one.
func (c *Cache[K, V]) lead(ctx context.Context, l *load, started []*flight[K, V], loader Loader[K, V]) {
	if !c.client.work.Enter() {
		c.failAll(started, ErrClosed)
		return
	}
	defer c.client.work.Leave()
	ask, rest := started, []*attempt[K, V](nil)
	if c.unconfirmed.any() {
		ask = nil
		for _, f := range started {
			if c.unconfirmed.has(f.physical) {
				rest = append(rest, &attempt[K, V]{flight: f, why: WhyBypassed})
			} else {
				ask = append(ask, f)
			}
		}
	}
	readings := c.redis.read(ctx, physicalKeys(ask))
	gone := ctx.Err() != nil // then what was not read was not asked
	for i, f := range ask {
		r := &readings[i]
		if r.state == stateFound {
			if c.landFrame(f, r) {
				continue
			}
			*r = reading{state: stateMiss, reject: digest(r.raw)}
		}
		a := &attempt[K, V]{flight: f, reading: *r}
		if gone {
			a.reading.state = stateUnasked
		}
		rest = append(rest, a)
	}
	if len(rest) == 0 {
		return
	}
	left := flightsOf(rest)
	for _, f := range left {
		c.flights.expect(f)
	}
	l.begin(ctx)
	c.start(left, func() { c.run(l, rest, loader) })
}

// start runs a part of the flow for some flights in a goroutine of its own. Should it panic, in a hook or by a fault of ours,
// its flights land with that error.
func (c *Cache[K, V]) start(flights []*flight[K, V], run func()) {
	started := c.client.work.Go(func() {
		guard(func() error { run(); return nil }, func(err error) {
			if err != nil {
				c.failAll(flights, err)
			}
		})
	})
	if !started {
		c.failAll(flights, ErrClosed)
	}
}

// wait waits for a flight while ctx lives.
func (c *Cache[K, V]) wait(ctx context.Context, f *flight[K, V]) answer[V] {
	if f.landed.Load() { // an answer that is there counts, whatever else has ended
		return f.answer
	}
	select {
	case <-f.done:
		return f.answer
	case <-ctx.Done():
		return answer[V]{err: ctx.Err()}
	case <-c.client.closing:
		return answer[V]{err: ErrClosed}
	}
}

// land answers a flight's waiters; only the first answer counts. Unless it ends with that, the flight can still be joined, until it
// is removed.
func (c *Cache[K, V]) land(f *flight[K, V], a answer[V], ends bool) {
	if f.landing.CompareAndSwap(false, true) {
		f.answer = a
		f.landed.Store(true)
		c.flights.land(f, ends)
	}
}

// fail answers a flight's waiters with an error, which nobody who comes later gets.
func (c *Cache[K, V]) fail(f *flight[K, V], err error) {
	c.flights.remove(f)
	c.land(f, answer[V]{err: err}, false)
}

func (c *Cache[K, V]) failAll(flights []*flight[K, V], err error) {
	for _, f := range flights {
		c.fail(f, err)
	}
}
