package invalidation

import (
	"maps"
	"time"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// The causes of a gap, beside those of the subscription: error, silence, unconfirmed, unsubscribed.
const (
	CauseSubscribed = "subscribed" // the bus hears from now on; what came before was not heard
	CauseMissing    = "missing"    // a message of another publisher is missing, perhaps from just before the subscription
	CauseNewServer  = "new server" // the server behind the commands changed: a failover or a restart
	CauseNewer      = "newer"      // a message of a newer release, which this one cannot read
	CauseBroken     = "broken"     // a message that cannot be read
	CauseClosed     = "closed"     // the bus was closed: nothing will be heard
	CauseDatabase   = "database"   // the client uses another database than it seemed: nothing will be heard
	CauseOverflow   = "overflow"   // more publishers, or more out of order, than can be followed
)

// Health is how a bus is doing.
type Health struct {
	Live  bool      // a heartbeat has come back over the subscription, and the next is not overdue
	Since time.Time // when Live last changed
	// LastBeat is when a heartbeat last came back, and Lag how long it took, from the command to the subscription: what a
	// message takes to come here, as a measure and not as a bound.
	LastBeat time.Time
	Lag      time.Duration
	Gaps     map[string]uint64 // by cause
	Received uint64            // messages of other processes
	// Malformed counts payloads on the channel that are not a message.
	Malformed uint64
	Problem   error // why a heartbeat or subscription failed last; nil once a heartbeat has come back since
}

// Live tells whether the bus hears: a heartbeat has come back over its subscription, and the next is not overdue. A nil Bus hears
// nothing.
func (b *Bus) Live() bool { return b != nil && b.live.Load() }

// Health tells how the bus is doing. A nil Bus has the problem that it is none.
func (b *Bus) Health() Health {
	if b == nil {
		return Health{Problem: errNoBus}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.health
	h.Live, h.Gaps = b.live.Load(), maps.Clone(h.Gaps)
	if b.wrong.Load() {
		h.Problem = errHiddenDatabase
	}
	return h
}

// problem notes why the bus cannot work until a heartbeat comes back, and logs what only a person can mend.
func (b *Bus) problem(err error) {
	b.mu.Lock()
	b.health.Problem = err
	say := rediscall.Classify(err) == rediscall.Denied && !b.warned
	b.warned = b.warned || say
	b.mu.Unlock()
	if say {
		b.config.Logger.Warn("nearside: the bus does not work, and local tiers keep entries for a short time only: grant the Redis user "+
			"what the documentation of package invalidation lists, among it &"+b.rights+" ~"+b.rights,
			"error", err)
	}
}

func (b *Bus) setLive(live bool) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live.Swap(live) == live {
		return false
	}
	b.health.Since = time.Now()
	return true
}

// gap tells all handlers.
func (b *Bus) gap(cause string) {
	b.mu.Lock()
	b.health.Gaps[cause]++
	b.mu.Unlock()
	for _, h := range b.subscribers() {
		if h.Gap != nil {
			h.Gap(cause)
		}
	}
}
