package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/ristretto/v2"
)

// entry is what the local tier holds of a key. It is never changed once it is kept.
type entry[K comparable, V any] struct {
	// What a hit looks at stands together.
	expires  int64  // on the client's clock
	epoch    uint32 // the epoch of the local tier before Redis was read
	stamp    uint32 // the key's stamp before Redis was read
	spare    uint32 // for how long after expires it may stand in, in ticks
	negative bool   // the source has no such row
	standIn  uint8  // not 0: it stands in already; the place of the reason in standInWhys
	key      K
	value    V
	loaded   int64 // when its load began, on the client's clock; 0 if that is not known
}

// localTier keeps entries in this process. It hides what ristretto does not promise: here an entry can be read as soon as put
// has returned true, a later one always replaces an earlier one, what cannot be kept is refused and not lost, and close may
// run beside everything.
//
// Concurrency: ristretto applies the first Set of a key later, in a goroutine of its own, and until then a second Set of the
// key is lost. So put holds a lock per shard of the keys until its Set was applied. get takes no lock. ristretto's Get must
// not run beside its Close, so readers are counted in and out; the same counters are the statistics of the tier.
type localTier[K comparable, V any] struct {
	store  *ristretto.Cache[uint64, *entry[K, V]]
	stamps *stamps
	epoch  *atomic.Uint32
	clock  *clock

	maxCost, minCost int64

	closed  atomic.Bool
	writers [localShards]sync.Mutex
	readers [localShards]lookups
}

const localShards = 64 // a power of two

// lookups counts the reads of one shard: begun = hits + misses when none is under way.
type lookups struct {
	begun, hits, misses atomic.Uint64
	_                   [64 - 24]byte // a cache line each
}

func newLocalTier[K comparable, V any](p Policy, c *Client) (*localTier[K, V], error) {
	store, err := ristretto.NewCache(&ristretto.Config[uint64, *entry[K, V]]{
		NumCounters:        10 * p.LocalEntries,
		MaxCost:            p.LocalBytes,
		BufferItems:        64,
		IgnoreInternalCost: true,
	})
	if err != nil {
		return nil, err
	}
	return &localTier[K, V]{
		store: store, stamps: c.stamps, epoch: &c.epoch, clock: c.clock,
		maxCost: p.LocalBytes,
		minCost: (p.LocalBytes + p.LocalEntries - 1) / p.LocalEntries,
	}, nil
}

// get returns the entry of a key if it may be served.
func (l *localTier[K, V]) get(hash uint64, key K) *entry[K, V] {
	count := &l.readers[hash%localShards]
	count.begun.Add(1)
	if !l.closed.Load() {
		if e, ok := l.store.Get(hash); ok && l.serves(e, hash, key) {
			count.hits.Add(1)
			return e
		}
	}
	count.misses.Add(1)
	return nil
}

// serves tells whether an entry is the key's, was not dropped since it was read, and has not expired.
func (l *localTier[K, V]) serves(e *entry[K, V], hash uint64, key K) bool {
	return e.stamp == l.stamps.now(hash) && e.epoch == l.epoch.Load() && e.expires > l.clock.coarse.Load() && e.key == key
}

// last returns the entry of a key that may stand in: it was not dropped since it was read, and holds a value. Suspect is whether one may
// that this process cannot trust, since its bus may have missed something.
func (l *localTier[K, V]) last(hash uint64, key K, suspect bool) *entry[K, V] {
	count := &l.readers[hash%localShards]
	count.begun.Add(1)
	defer count.misses.Add(1)
	if l.closed.Load() {
		return nil
	}
	e, ok := l.store.Get(hash)
	if !ok || e.key != key || e.negative || e.stamp != l.stamps.now(hash) || !suspect && e.epoch != l.epoch.Load() {
		return nil
	}
	if e.end() <= l.clock.now() {
		return nil
	}
	return e
}

// end is when an entry may not stand in any more.
func (e *entry[K, V]) end() int64 { return e.expires + int64(e.spare)*int64(tick) }

// put keeps an entry, and reports whether it was kept. One whose stamp or epoch has passed may be kept, and is not served.
func (l *localTier[K, V]) put(hash uint64, e *entry[K, V], cost int64) bool {
	cost = max(cost, l.minCost)
	shard := &l.writers[hash%localShards]
	shard.Lock()
	defer shard.Unlock()
	if cost > l.maxCost || l.closed.Load() || !l.store.Set(hash, e, cost) {
		return false
	}
	// The key is in the store, or in the queue of new ones: a Set of a stored key takes effect at once.
	if kept, ok := l.store.Get(hash); ok && kept == e {
		return true
	}
	l.store.Wait()
	kept, ok := l.store.Get(hash)
	return ok && kept == e
}

// close drops everything and joins ristretto's goroutines. Call it once.
func (l *localTier[K, V]) close() {
	l.closed.Store(true)
	for i := range l.writers {
		l.writers[i].Lock() // a put that comes later sees closed
		defer l.writers[i].Unlock()
	}
	// Readers that saw the tier open are about to leave: a read takes well below a microsecond and waits for nothing.
	for i := range l.readers {
		for r := &l.readers[i]; r.begun.Load() != r.hits.Load()+r.misses.Load(); {
			time.Sleep(50 * time.Microsecond)
		}
	}
	l.store.Close()
}

// hits returns how many reads were answered.
func (l *localTier[K, V]) hits() (n uint64) {
	for i := range l.readers {
		n += l.readers[i].hits.Load()
	}
	return n
}

// err is how a caller learns that there is no such row.
func (e *entry[K, V]) err() error {
	if e.negative {
		return ErrNotFound
	}
	return nil
}
