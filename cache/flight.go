package cache

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// load is the context that the flights of one call share, and the count of those who wait for any of them.
type load struct {
	ctx     context.Context    // nil until begin
	cancel  context.CancelFunc // nil until begin
	waiters atomic.Int64

	mu     sync.Mutex
	urgent context.Context    // guarded by mu; done once the load needs no place of its own at the gate
	rush   context.CancelFunc // guarded by mu; ends urgent
}

// urgency returns a context that is done once rush was called: the load then waits for no place at the gate.
func (l *load) urgency() (urgent context.Context, rush context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.urgent == nil {
		l.urgent, l.rush = context.WithCancel(context.Background())
	}
	return l.urgent, l.rush
}

// joinedFrom takes in that somebody waits for the load. If that is a load that holds a place, which this one may be waiting for, neither
// must wait for the other.
func (l *load) joinedFrom(ctx context.Context, g *gate) {
	if g.holds(ctx) {
		_, rush := l.urgency()
		rush()
	}
}

// open gives a new load its first waiter: the caller.
func (l *load) open() *load {
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
	next     *flight[K, V] // guarded by the shard's mu; another flight of the shard
	physical string
	stamp    uint32 // the key's stamp before Redis is read: if it moves, the flight was overtaken
	epoch    uint32
	load     *load
	alone    load // the load of a flight that is read alone
	due      bool // Redis had its value, which the caller is to refresh

	landing atomic.Bool   // the first answer counts
	landed  atomic.Bool   // the answer stands
	answer  answer[V]     // written before landed
	done    chan struct{} // guarded by the shard's mu; nil while nobody waits, closed once landed
	shared  bool          // guarded by the shard's mu; somebody else than its caller knows it
}

// newFlight makes a flight of a key, with the generations of now: nothing was read yet. Its physical key and its load are the
// caller's to set.
func (c *Cache[K, V]) newFlight(key K, hash uint64) *flight[K, V] {
	f, ok := c.spare.Get().(*flight[K, V])
	if !ok {
		f = new(flight[K, V])
	}
	f.key, f.hash = key, hash
	f.stamp, f.epoch = c.client.stamps.now(hash), c.client.epoch.Load()
	return f
}

// reuse gives back a flight that its caller made and is done with, if nobody else knows it.
func (c *Cache[K, V]) reuse(f *flight[K, V]) {
	// Without the lock: a flight that has no channel by now can be found no more, since goOn makes one for each that goes on.
	if f.done == nil && !f.shared {
		*f = flight[K, V]{}
		c.spare.Put(f)
	}
}

// answer is what a flight found out.
type answer[V any] struct {
	value  V
	err    error // ErrNotFound included
	tier   Tier
	why    Why
	stale  bool  // it stands in
	end    int64 // of what stands in: until when, on the client's clock
	loaded int64 // when the load of the value began, on the client's clock; 0 if that is not known
}

// flights are the flights of one cache that can be joined.
//
// An invalidation disowns a flight by moving its key's stamp: nobody joins it any more, the next caller puts a new one in its
// place, and when it ends it takes only itself out. A flight whose answer is being filled stays here until that is done, so
// that who comes meanwhile gets the answer; one that failed is taken out before its waiters hear of it.
type flights[K comparable, V any] struct {
	shards [flightShards]flightShard[K, V]
}

// flightShard is a list: most have one flight or none.
type flightShard[K comparable, V any] struct {
	mu    sync.Mutex
	first *flight[K, V] // guarded by mu
}

// flightShards is a power of two, and so many that a list has one flight or none: 32 KB for each cache.
const flightShards = 2048

func (t *flights[K, V]) shard(hash uint64) *flightShard[K, V] { return &t.shards[hash%flightShards] }

// join returns the flight of a key that is not older than mine, or makes mine the flight of the key. It reports whether the
// flight is another's; the caller is then a waiter of that flight's load, unless the flight was done already.
func (t *flights[K, V]) join(mine *flight[K, V], clock *clock) (f *flight[K, V], others, waiting bool) {
	shard := t.shard(mine.hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f := shard.find(mine); f != nil {
		if f.epoch == mine.epoch && int32(f.stamp-mine.stamp) >= 0 {
			if f.landed.Load() {
				if !f.answer.stale || clock.now() < f.answer.end {
					f.shared = true
					return f, true, false
				}
			} else if f.load.join() {
				f.shared = true
				f.expect()
				return f, true, true
			}
		}
		shard.remove(f)
	}
	mine.next, shard.first = shard.first, mine
	return mine, false, false
}

// find returns the flight with the key of another.
func (s *flightShard[K, V]) find(like *flight[K, V]) *flight[K, V] {
	for f := s.first; f != nil; f = f.next {
		if f.hash == like.hash && f.key == like.key {
			return f
		}
	}
	return nil
}

// remove takes a flight out, if it is there.
func (s *flightShard[K, V]) remove(f *flight[K, V]) {
	for at := &s.first; *at != nil; at = &(*at).next {
		if *at == f {
			*at, f.next = f.next, nil
			return
		}
	}
}

// expect makes the channel on which to wait for the flight, if it has none. The shard's mu is held, or nobody knows the flight.
func (f *flight[K, V]) expect() {
	if f.done == nil {
		f.done = make(chan struct{})
	}
}

// expect lets the one who leads a flight wait for it as the others do.
func (t *flights[K, V]) expect(f *flight[K, V]) {
	shard := t.shard(f.hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	f.expect()
}

// land wakes those who wait for a flight that has landed. If it ends with that, it is taken out too.
func (t *flights[K, V]) land(f *flight[K, V], ends bool) {
	shard := t.shard(f.hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f.done != nil {
		close(f.done)
	}
	if ends {
		shard.remove(f)
	}
}

// remove takes a flight out, if it still is the flight of its key.
func (t *flights[K, V]) remove(f *flight[K, V]) {
	shard := t.shard(f.hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.remove(f)
}

// len returns the number of flights that can be joined.
func (t *flights[K, V]) len() (n int) {
	for i := range t.shards {
		shard := &t.shards[i]
		shard.mu.Lock()
		for f := shard.first; f != nil; f = f.next {
			n++
		}
		shard.mu.Unlock()
	}
	return n
}

// lead takes flights that their caller has begun to Redis, in the caller's own goroutine. What Redis does not answer, or the caller
// does not wait for, goes on in another one.
func (c *Cache[K, V]) lead(ctx context.Context, l *load, started []*flight[K, V], loader Loader[K, V]) {
	if len(started) == 0 {
		return
	}
	if !c.client.work.Enter() {
		c.failAll(started, ErrClosed)
		return
	}
	defer c.client.work.Leave()
	safe := false
	defer func() {
		if !safe {
			c.failAll(started, brokenOff())
		}
	}()
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
	var due []K
	answered := c.redis.read(ctx, physicalKeys(ask), func(i int, found *reading) {
		if !c.landRead(ask[i], found) {
			rest = append(rest, &attempt[K, V]{flight: ask[i], reading: *found})
		} else if ask[i].due {
			due = append(due, ask[i].key)
		}
	})
	c.refresh(due)
	for _, f := range ask[answered:] {
		rest = append(rest, &attempt[K, V]{flight: f})
	}
	c.goOn(ctx, l, rest, loader)
	safe = true
}

// leadOne is lead for one flight, without the slices. It reports whether Redis had the answer.
func (c *Cache[K, V]) leadOne(ctx context.Context, f *flight[K, V], loader Loader[K, V]) (landed bool) {
	if !c.client.work.Enter() {
		c.fail(f, ErrClosed)
		return false
	}
	defer c.client.work.Leave()
	safe := false
	defer func() {
		if !safe {
			c.fail(f, brokenOff())
		}
	}()
	var r reading
	var why Why
	if c.unconfirmed.any() && c.unconfirmed.has(f.physical) {
		why = WhyBypassed
	} else if c.redis.readOne(ctx, f.physical, &r); c.landRead(f, &r) {
		landed = true
		if f.due {
			c.refresh([]K{f.key})
		}
	}
	if !landed {
		c.goOn(ctx, f.load, []*attempt[K, V]{{flight: f, reading: r, why: why}}, loader)
	}
	safe = true
	return landed
}

// errBrokenOff is the value of the PanicError that others get whose flight ended with the goroutine of its caller.
var errBrokenOff = errors.New("the goroutine that read for others too ended in a panic or in runtime.Goexit")

func brokenOff() error { return &PanicError{Value: errBrokenOff, Stack: debug.Stack()} }

// landRead answers a flight from what a first look at Redis has found, if that is an answer.
func (c *Cache[K, V]) landRead(f *flight[K, V], r *reading) (landed bool) {
	if r.state != stateFound {
		return false
	}
	if c.landFrame(f, r) {
		return true
	}
	*r = reading{state: stateMiss, reject: digest(r.raw)}
	return false
}

// goOn lets flights that a first look at Redis did not answer go on in a goroutine.
func (c *Cache[K, V]) goOn(ctx context.Context, l *load, rest []*attempt[K, V], loader Loader[K, V]) {
	if len(rest) == 0 {
		return
	}
	if ctx.Err() != nil { // the caller has left, perhaps before it asked: then those who share the flights ask anew
		for _, a := range rest {
			a.reading.state = stateUnasked
		}
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
	} else if ends { // it landed before, with what stood in
		c.flights.remove(f)
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
