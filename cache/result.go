package cache

import "time"

// Tier is where an answer came from.
type Tier uint8

// The tiers.
const (
	TierLocal  Tier = iota + 1 // this process
	TierRedis                  // Redis
	TierLoader                 // the loader
)

func (t Tier) String() string {
	switch t {
	case TierLocal:
		return "local"
	case TierRedis:
		return "redis"
	case TierLoader:
		return "loader"
	}
	return "none"
}

// Why says why an answer came from its tier.
type Why string

// The reasons.
const (
	WhyHit      Why = "hit"      // the tier held it
	WhyMiss     Why = "miss"     // no tier held it, and the loader ran under a lease
	WhyRedis    Why = "redis"    // Redis gave no usable answer in time: the loader ran without a lease, DegradedTTL bounds what is kept
	WhyBypassed Why = "bypassed" // a delete of this key is not confirmed by Redis: the same
	WhyWait     Why = "wait"     // the wait for another process' load ended without a value: the loader ran without a lease, nothing is kept
	WhyWriting  Why = "writing"  // an Update of the key is under way: the same
	WhySchema   Why = "schema"   // a newer release owns the entry in Redis: the same

	// Of a value that stands in (Result.Stale), or WhyRedis.
	WhyFailed     Why = "failed"     // the loader failed
	WhyTimeout    Why = "timeout"    // it took longer than LoadTimeout
	WhyOverloaded Why = "overloaded" // it got no place
	WhySlow       Why = "slow"       // it took longer than SoftTimeout, and goes on
)

// Result is an answer with its origin.
type Result[V any] struct {
	Value V
	Tier  Tier
	// Age is the time since the load that made the value began; 0 when it is not known.
	Age time.Duration
	Why Why
	// Stale says that the value stands in for one that could not be had: see Policy.StaleTTL.
	Stale bool
}
