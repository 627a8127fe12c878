package invalidation

import (
	"slices"
	"sync"
	"time"
)

// outbox numbers the messages of this bus, and knows which numbers it may tell of.
type outbox struct {
	mu     sync.Mutex
	last   uint64              // the last number given out; all fields are guarded by mu
	open   map[uint64]struct{} // given out, and perhaps still on its way to Redis
	void   []uint64            // not published, and not told of yet
	ripe   uint64              // what could be told of one heartbeat ago: messages told of had that long to arrive
	latest uint64              // the last that was told
	first  uint64              // the first number since this bus was last silent
	again  bool                // latest is to be told once more
}

// last is what to tell the others.
type last struct {
	number, first uint64 // 0: nothing
	void          []uint64
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

// done says that a message was published, or that nobody knows: then those who lack it have a gap; or that it is void.
func (o *outbox) done(number uint64, void bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.open[number]; !ok {
		return
	}
	delete(o.open, number)
	if void && len(o.void) < maxVoid { // past that they count as lost
		o.void = append(o.void, number)
	}
}

// maxVoid bounds the void numbers that wait to be told.
const maxVoid = 1000

// tell is called once a heartbeat, and says what to tell the others. It says the same again until told is called.
func (o *outbox) tell() (l last) {
	o.mu.Lock()
	defer o.mu.Unlock()
	complete := o.last
	for number := range o.open {
		complete = min(complete, number-1)
	}
	ripe := o.ripe
	o.ripe = complete
	l.void = slices.Clone(o.void)
	switch {
	case ripe > o.latest:
		l.number, l.first = ripe, o.first
	case o.again:
		l.number, l.first = o.latest, o.first
	case o.latest == o.last:
		o.first = o.last + 1
	}
	return l
}

// tellAll is called when the bus ends, and says what was not told yet.
func (o *outbox) tellAll() (l last) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last > o.latest || o.again {
		l.number, l.first = o.last, o.first
	}
	l.void = slices.Clone(o.void)
	return l
}

// told says that the others were told.
func (o *outbox) told(l last) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.again = l.number > o.latest
	o.latest = max(o.latest, l.number)
	o.void = slices.DeleteFunc(o.void, func(n uint64) bool { return slices.Contains(l.void, n) })
}

// inbox knows which numbers of the other publishers came. It belongs to the goroutine that receives.
type inbox struct {
	from  map[publisher]*heard
	young time.Time // until then, the last number of a publisher covers what came before the subscription, and no more
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

// newInbox begins with a subscription. A publisher tells of what is a heartbeat old: so in the first heartbeat it tells of what came
// before.
func newInbox(heartbeat time.Duration) *inbox {
	return &inbox{from: map[publisher]*heard{}, young: time.Now().Add(heartbeat)}
}

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
		if now.Before(i.young) {
			h.base = max(h.base, m.number)
		}
		for number := range h.above {
			if number <= h.base {
				delete(h.above, number)
			}
		}
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
