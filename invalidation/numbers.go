package invalidation

import (
	"sync"
	"time"
)

// outbox numbers the messages of this bus, and knows which numbers it may tell of.
type outbox struct {
	mu    sync.Mutex
	last  uint64              // the last number given out; all fields are guarded by mu
	open  map[uint64]struct{} // given out, and perhaps still on its way to Redis
	ripe  uint64              // what could be told of one heartbeat ago: messages told of had that long to arrive
	told  uint64
	first uint64 // the first number since this bus was last silent
	again bool   // told is to be told once more
}

func newOutbox() *outbox { return &outbox{open: map[uint64]struct{}{}, first: 1} }

// next gives out a number.
func (o *outbox) next() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	o.open[o.last] = struct{}{}
	return o.last
}

// done says that a message was published, or that it never will be, or that nobody knows: in the last two cases those who
// lack it have a gap.
func (o *outbox) done(number uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.open, number)
}

// tell is called once a heartbeat, and says what to tell the others, if anything.
func (o *outbox) tell() (last, first uint64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	complete := o.last
	for number := range o.open {
		complete = min(complete, number-1)
	}
	last, o.ripe = o.ripe, complete
	switch {
	case last > o.told:
		o.told, o.again = last, true
	case o.again:
		o.again = false
	default:
		if o.told == o.last {
			o.first = o.last + 1
		}
		return 0, 0, false
	}
	return o.told, o.first, true
}

// tellAll is called when the bus ends, and says what was not told yet.
func (o *outbox) tellAll() (last, first uint64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last, o.first, o.last > o.told || o.again
}

// inbox knows which numbers of the other publishers came. It belongs to the goroutine that receives.
type inbox struct {
	from map[publisher]*heard
}

// heard is what came from one publisher.
type heard struct {
	known bool                // whether base is known yet
	base  uint64              // all up to this came, or its lack was reported
	above map[uint64]struct{} // what came above base
	when  time.Time
}

const (
	maxPublishers = 4096
	maxAbove      = 1 << 16
	idlePublisher = 10 * time.Minute
)

func newInbox() *inbox { return &inbox{from: map[publisher]*heard{}} }

// of returns what came from a publisher, or nil if there are too many to follow.
func (i *inbox) of(p publisher, now time.Time) *heard {
	h := i.from[p]
	if h == nil {
		if len(i.from) >= maxPublishers {
			for q, old := range i.from {
				if now.Sub(old.when) > idlePublisher {
					delete(i.from, q)
				}
			}
		}
		if len(i.from) >= maxPublishers {
			return nil
		}
		h = &heard{above: map[uint64]struct{}{}}
		i.from[p] = h
	}
	h.when = now
	return h
}

// came takes in a numbered message. It reports false if that cannot be followed any more.
func (i *inbox) came(m *message, now time.Time) bool {
	h := i.of(m.from, now)
	if h == nil || len(h.above) >= maxAbove {
		return false
	}
	switch {
	case h.known && m.number == h.base+1:
		h.base++
	case !h.known || m.number > h.base:
		h.above[m.number] = struct{}{}
	}
	return true
}

// lacks takes in the last number of a publisher, and reports whether one up to it is missing.
func (i *inbox) lacks(m *message, now time.Time) bool {
	h := i.of(m.from, now)
	if h == nil {
		return true
	}
	if !h.known {
		h.known, h.base = true, max(m.first, 1)-1
	}
	missing := false
	for ; h.base < m.number; h.base++ {
		if _, ok := h.above[h.base+1]; !ok {
			h.base, missing = m.number, true
			break
		}
		delete(h.above, h.base+1)
	}
	if missing {
		for number := range h.above {
			if number <= h.base {
				delete(h.above, number)
			}
		}
	}
	return missing
}
