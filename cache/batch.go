package cache

import "unsafe"

// nearMany answers what it can of a batch from the local tier, and returns a flight for each other key, once, and the keys that are to be
// refreshed. Keys that cannot be encoded get their errors.
func (c *Cache[K, V]) nearMany(keys []K, values map[K]V, failed map[K]error) (wanted []*flight[K, V], due []K) {
	seen := newKeySet[K](len(keys))
	var physical []byte // of all keys, which are allocated together
	var ends []int
	for at, key := range keys {
		hash, ok := c.keys.hash(key)
		if ok && !seen.add(hash, key) {
			continue
		}
		if ok && c.local != nil {
			if e := c.local.get(hash, key); e != nil {
				if c.refreshes.due(hash, e.since(), c.client.clock) {
					due = append(due, key)
				}
				if !e.negative {
					values[key], _ = c.own(e.value, nil)
				}
				continue
			}
		}
		var err error
		if physical, hash, err = c.keys.appendPhysical(physical, key); err != nil {
			failed[key] = err
			continue
		}
		if wanted == nil {
			left := len(keys) - at
			wanted, ends = make([]*flight[K, V], 0, left), make([]int, 0, left)
		}
		wanted, ends = append(wanted, c.newFlight(key, hash)), append(ends, len(physical))
	}
	text, from := unsafe.String(unsafe.SliceData(physical), len(physical)), 0 // nobody changes it any more
	for i, f := range wanted {
		f.physical, from = text[from:ends[i]], ends[i]
	}
	return wanted, due
}

// batch is the flights of one call.
type batch[K comparable, V any] struct {
	all     []*flight[K, V]
	started []*flight[K, V] // those of all that are new
	own     *load           // of those that are new
	loads   []*load         // those that the call waits for
}

// board makes sure that each of some distinct keys has a flight, and returns all, in order. Those that are new are the caller's to
// lead. end must be called when the answers were read.
func (c *Cache[K, V]) board(wanted []*flight[K, V]) *batch[K, V] {
	own := new(load).open()
	b := &batch[K, V]{all: make([]*flight[K, V], 0, len(wanted)), own: own, loads: []*load{own}}
	for _, mine := range wanted {
		mine.load = own
		f, others, waiting := c.flights.join(mine, c.client.clock)
		b.all = append(b.all, f)
		switch {
		case !others:
			b.started = append(b.started, f)
		case waiting:
			b.loads = append(b.loads, f.load)
			fallthrough
		default:
			c.reuse(mine)
			c.stats.joined.Add(1)
		}
	}
	return b
}

// leave says that the call waits for nothing any more. It may be called more than once.
func (b *batch[K, V]) leave() {
	for _, l := range b.loads {
		l.leave()
	}
	b.loads = nil
}

// end gives back the flights that nobody else knows, too. After that they are not the caller's any more.
func (c *Cache[K, V]) end(b *batch[K, V]) {
	b.leave()
	for _, f := range b.started {
		c.reuse(f)
	}
}

// keySet is a set of keys whose hashes are known, cheaper than a map.
type keySet[K comparable] struct {
	keys  []K
	slots []int32 // one more than the place in keys; more than half of them are 0, so a search soon ends
}

func newKeySet[K comparable](most int) *keySet[K] {
	size := 4
	for size <= 2*most {
		size *= 2
	}
	return &keySet[K]{keys: make([]K, 0, most), slots: make([]int32, size)}
}

// add reports whether a key is new, and adds it then.
func (s *keySet[K]) add(hash uint64, key K) bool {
	mask := uint64(len(s.slots) - 1)
	for at := hash & mask; ; at = (at + 1) & mask {
		switch slot := s.slots[at]; {
		case slot == 0:
			s.keys = append(s.keys, key)
			s.slots[at] = int32(len(s.keys))
			return true
		case s.keys[slot-1] == key:
			return false
		}
	}
}
