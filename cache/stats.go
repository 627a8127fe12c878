package cache

import (
	"sync/atomic"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// Stats are the counters of one cache since it was made, and two gauges. All count keys, unless they say otherwise. Each key that a
// call asks for, once or more often, is a LocalHit, a RedisHit, Joined, was loaded, or failed.
type Stats struct {
	LocalHits uint64 // answered by this process, "not found" included
	RedisHits uint64 // answered by Redis, "not found" included
	Misses    uint64 // Redis was asked, and nothing that could be used stood there
	Joined    uint64 // callers that shared the flight of another

	LoaderCalls   uint64 // calls of the loader
	Loads         uint64 // keys asked of the loader
	LoadErrors    uint64 // keys it failed for, or that found no place to be loaded
	Degraded      uint64 // keys that the loader was to answer without Redis, which gave no answer, or had not confirmed a delete
	Stale         uint64 // keys for which a value stood in; further hits of it in this process are LocalHits
	Unavailable   uint64 // keys that nobody answered: Redis did not, and Policy.Fallback is FallbackError
	ForeignRows   uint64 // keys it answered, be it by an error, without being asked
	Refreshes     uint64 // of Loads, those ahead of time
	LeaseWaits    uint64 // waits for the load of another process
	LeaseTimeouts uint64 // of these, those that LeaseWait ended

	Fills          uint64 // written to Redis
	FillsRefused   uint64 // not written: the lease was void, so an invalidation or a writer came in between
	FillErrors     uint64 // not written, or perhaps not: Redis failed
	LocalFills     uint64 // kept by this process
	LocalRejected  uint64 // not kept: no room, or too large
	LocalOvertaken uint64 // not kept: invalidated meanwhile

	BadFrames     uint64 // bytes in Redis that are not an entry
	ForeignFrames uint64 // entries in Redis that belong to another key
	WrongTypes    uint64 // something else than a string stood in Redis, and was removed
	NewerSchema   uint64 // entries of a newer release, left alone
	DecodeErrors  uint64 // values that the codec could not read
	EncodeErrors  uint64 // values that the codec could not write

	Invalidated uint64 // deletes: the distinct keys of Invalidate, and of writes that Redis did not take
	Unconfirmed uint64 // of these, those that Redis did not confirm at once, also where the caller of Invalidate left before
	Retried     uint64 // deletes that a later try behind confirmed
	Overflowed  uint64 // deletes that found no room to be tried again: see Bypassed
	Unpublished uint64 // messages that Redis refused to publish
	Received    uint64 // keys that other processes invalidated or wrote, as the bus told

	InFlight        int // flights now
	UnconfirmedKeys int // keys whose deletes are tried again; this process does not use Redis for them now
	// Bypassed says that this process does not use Redis for any key now, since more deletes were lost than are remembered (100 000). It
	// lasts for TTL and LoadTimeout from the last of them.
	Bypassed bool
}

// ClientStats are the counters of a client since it was opened, and gauges.
type ClientStats struct {
	// RedisErrors counts what went wrong with Redis by kind: timeout, transport, pool, closed, loading, cluster_down,
	// master_down, busy, max_clients, read_only, oom, wrong_type, denied, reply, breaker_open, other. redis.Nil is not among them. A Redis
	// that refuses connections may count as timeout: go-redis goes on dialling until the budget ends.
	RedisErrors map[string]uint64
	// RoundTrips is the number of times that something was sent to Redis and a reply awaited.
	RoundTrips uint64
	// SickNodes is the number of Redis nodes whose breaker is open: nothing is read there until a trial, once a second, succeeds. Refused
	// round trips count as breaker_open. A node of a cluster that nobody has asked for a second is not counted.
	SickNodes int
	// LoadsRunning and LoadsWaiting are the loads that have a place, and those that wait for one (Config.MaxLoads).
	LoadsRunning, LoadsWaiting int
	// Overloaded is the number of loads that got ErrOverloaded.
	Overloaded uint64
	// StuckCalls is the number of calls that go-redis has not given back yet after our budget or their caller ended.
	StuckCalls int
}

// counters are the counters that are not kept elsewhere.
type counters struct {
	redisHits, misses, joined                            atomic.Uint64
	loaderCalls, loads, loadErrors, foreignRows          atomic.Uint64
	leaseWaits, leaseTimeouts                            atomic.Uint64
	fills, fillsRefused, fillErrors                      atomic.Uint64
	localFills, localRejected, localOvertaken            atomic.Uint64
	badFrames, foreignFrames, wrongTypes, newerSchema    atomic.Uint64
	decodeErrors, encodeErrors, invalidated, unconfirmed atomic.Uint64
	unpublished, received, retried                       atomic.Uint64
	degraded, unavailable, stale, refreshes              atomic.Uint64
}

// Stats returns the counters of the cache.
func (c *Cache[K, V]) Stats() Stats {
	s := &c.stats
	out := Stats{
		RedisHits: s.redisHits.Load(), Misses: s.misses.Load(), Joined: s.joined.Load(),
		LoaderCalls: s.loaderCalls.Load(), Loads: s.loads.Load(), LoadErrors: s.loadErrors.Load(),
		Degraded: s.degraded.Load(), Unavailable: s.unavailable.Load(), Stale: s.stale.Load(), Refreshes: s.refreshes.Load(), ForeignRows: s.foreignRows.Load(),
		LeaseWaits: s.leaseWaits.Load(), LeaseTimeouts: s.leaseTimeouts.Load(),
		Fills: s.fills.Load(), FillsRefused: s.fillsRefused.Load(), FillErrors: s.fillErrors.Load(),
		LocalFills: s.localFills.Load(), LocalRejected: s.localRejected.Load(), LocalOvertaken: s.localOvertaken.Load(),
		BadFrames: s.badFrames.Load(), ForeignFrames: s.foreignFrames.Load(), WrongTypes: s.wrongTypes.Load(),
		NewerSchema: s.newerSchema.Load(), DecodeErrors: s.decodeErrors.Load(), EncodeErrors: s.encodeErrors.Load(),
		Invalidated: s.invalidated.Load(), Unconfirmed: s.unconfirmed.Load(), Unpublished: s.unpublished.Load(),
		Retried: s.retried.Load(), Overflowed: c.unconfirmed.overflows.Load(), Received: s.received.Load(),
		InFlight: c.flights.len(), UnconfirmedKeys: c.unconfirmed.len(),
		Bypassed: c.unconfirmed.overflowing() > 0,
	}
	if c.local != nil {
		out.LocalHits = c.local.hits()
	}
	return out
}

// Stats returns the counters of the client.
func (c *Client) Stats() ClientStats {
	out := ClientStats{
		RedisErrors:  map[string]uint64{},
		RoundTrips:   c.read.Trips() + c.write.Trips(),
		SickNodes:    c.read.Sick(),
		LoadsRunning: int(c.gate.running.Load()), LoadsWaiting: int(c.gate.waiting.Load()),
		Overloaded: c.gate.refused.Load(),
		StuckCalls: c.read.Stuck() + c.write.Stuck(),
	}
	for class := range c.errors {
		if n := c.errors[class].Load(); n > 0 {
			out.RedisErrors[rediscall.Class(class).String()] = n
		}
	}
	return out
}
