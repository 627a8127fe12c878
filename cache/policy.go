package cache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Off switches a part of a Policy off, where its field says so. A zero field means the default.
const Off = -1

const (
	minTTL = time.Millisecond
	maxTTL = 10 * 365 * 24 * time.Hour
)

// Policy says how long things live and how much is kept. Its zero value works but for TTL. It is a plain value: share it,
// compare it, print it. Cache.Policy returns it with its defaults filled in.
type Policy struct {
	// TTL is how long Redis keeps a value, counted from its fill and shortened by Jitter. Required; 1 ms to 10 years. It is
	// the backstop of all invalidation.
	TTL time.Duration

	// LocalTTL is how long this process keeps a value, never longer than Redis does. Without a bus it is also how long this
	// process may go on serving what another process invalidated. Default: TTL, at most 1 minute. Off: no local tier.
	LocalTTL time.Duration

	// NegativeTTL is how long "not found" is kept. Default: TTL, at most 30 seconds. Off: it is not kept at all.
	NegativeTTL time.Duration

	// Jitter shortens each TTL by a random part of at most this fraction, so that what was filled together does not expire
	// together. Default: 0.1. At most 0.5. Off: no jitter.
	Jitter float64

	// LoadTimeout ends a call of the loader: its context, and the wait of its callers, the wait for a place (Config.MaxLoads) included.
	// Default: 10 seconds.
	LoadTimeout time.Duration

	// LeaseTTL is how long a process that died can make others wait for its load. A lease is renewed while its load runs, so
	// this need not be longer than a load. Default: 3 seconds. At least 100 ms.
	LeaseTTL time.Duration

	// LeaseWait is how long to wait for a value that another process is loading, before loading it here too. Default and
	// maximum: LoadTimeout. Off: do not wait.
	LeaseWait time.Duration

	// Fallback says who answers when Redis does not: FallbackLoader, the default, or FallbackError for a source that cannot bear
	// the load, whatever Config.MaxLoads is. With a bus, Redis is away for the local tier too: what it holds is void as soon as the
	// subscription breaks. A key whose delete is not confirmed is loaded while Redis answers others.
	Fallback Fallback

	// StaleTTL is how long a value may stand in, after its TTL, for what the loader does not answer: because it fails, takes longer
	// than LoadTimeout, or gets no place. Serving it does not prolong it, and what was invalidated never stands in. Result.Stale tells.
	// Without a bus, or while it does not hear, what stands in comes from Redis alone, unless Fallback is FallbackStale.
	// "Not found" is an answer, and never stands in. Default: Off.
	StaleTTL time.Duration

	// RetryAfter is how long this process serves a value that stands in before it tries again, at most LocalTTL; without a local tier
	// each Get tries. Default: 1 second.
	RetryAfter time.Duration

	// SoftTimeout is how long to wait for a load if a value can stand in: then that is the answer, and the load goes on behind. Needs
	// StaleTTL. Default: Off.
	SoftTimeout time.Duration

	// RefreshAfter is the part of TTL after which the next reader starts a load behind its back, one for all processes, so that nobody
	// waits for what is read all the time. One that fails keeps what there is, and is tried again after RetryAfter or sooner. Its context
	// has no values, and it takes a place (Config.MaxLoads) only where one is free. It needs a local tier.
	// A fraction, such as 0.8. Default: Off.
	RefreshAfter float64

	// LocalBytes and LocalEntries bound the local tier; the one reached first counts. Sizes are those of the encoded values,
	// or those that Hooks.Cost gives. Defaults: 64 MiB and 100 000.
	LocalBytes   int64
	LocalEntries int64

	// Schema is the number of the value's shape. Raise it when the type V changes so that older bytes cannot be read any
	// more: entries with a lower number are replaced; those with a higher one, of a newer release, are left alone and not
	// used, so two releases can run side by side.
	Schema uint16
}

// Fallback says who answers when Redis does not.
type Fallback string

// The fallbacks.
const (
	FallbackLoader Fallback = "loader" // the loader; the answer is kept in this process for Config.DegradedTTL at most
	FallbackError  Fallback = "error"  // nobody, or a value that may stand in (StaleTTL): else Get returns ErrUnavailable
	// FallbackStale is a value that may stand in, also one that this process cannot trust since its bus does not hear: then it may have been
	// invalidated elsewhere. Where there is none, the loader answers. Needs StaleTTL.
	FallbackStale Fallback = "stale"
)

// withDefaults returns the policy with its defaults filled in, or says what cannot be used.
func (p Policy) withDefaults() (Policy, error) {
	if err := fillDuration("Policy.TTL", &p.TTL, 0, duration{min: minTTL, max: maxTTL}); err != nil {
		return p, err
	}
	err := errors.Join(
		fillDuration("Policy.LocalTTL", &p.LocalTTL, min(p.TTL, time.Minute), duration{min: minTTL, max: p.TTL, off: true}),
		fillDuration("Policy.NegativeTTL", &p.NegativeTTL, min(p.TTL, 30*time.Second), duration{min: minTTL, max: maxTTL, off: true}),
		fillDuration("Policy.LoadTimeout", &p.LoadTimeout, 10*time.Second, duration{min: minTTL, max: maxTTL}),
		fillDuration("Policy.LeaseTTL", &p.LeaseTTL, 3*time.Second, duration{min: 100 * time.Millisecond, max: time.Hour}),
		fillDuration("Policy.LeaseWait", &p.LeaseWait, p.LoadTimeout, duration{min: minTTL, max: p.LoadTimeout, off: true}),
		fillCount("Policy.LocalBytes", &p.LocalBytes, 64<<20, 1<<40),
		fillCount("Policy.LocalEntries", &p.LocalEntries, 100_000, 100_000_000),
	)
	for _, off := range []*time.Duration{&p.StaleTTL, &p.SoftTimeout} {
		if *off == 0 {
			*off = Off
		}
	}
	err = errors.Join(err,
		fillDuration("Policy.StaleTTL", &p.StaleTTL, 0, duration{min: minTTL, max: maxTTL, off: true}),
		fillDuration("Policy.RetryAfter", &p.RetryAfter, time.Second, duration{min: minTTL, max: maxTTL}),
		fillDuration("Policy.SoftTimeout", &p.SoftTimeout, 0, duration{min: minTTL, max: p.LoadTimeout, off: true}),
	)
	if p.SoftTimeout != Off && p.StaleTTL == Off {
		err = errors.Join(err, &ConfigError{"Policy.SoftTimeout", p.SoftTimeout, "give Policy.StaleTTL too"})
	}
	switch {
	case p.Jitter == 0:
		p.Jitter = 0.1
	case p.Jitter != Off && !(p.Jitter > 0 && p.Jitter <= 0.5):
		err = errors.Join(err, &ConfigError{"Policy.Jitter", p.Jitter, "give a fraction up to 0.5, 0 for the default, or cache.Off"})
	}
	switch {
	case p.RefreshAfter == 0:
		p.RefreshAfter = Off
	case p.RefreshAfter != Off && !(p.RefreshAfter > 0 && p.RefreshAfter < 1):
		err = errors.Join(err, &ConfigError{"Policy.RefreshAfter", p.RefreshAfter, "give a fraction between 0 and 1, or cache.Off"})
	case p.RefreshAfter != Off && p.LocalTTL == Off:
		err = errors.Join(err, &ConfigError{"Policy.RefreshAfter", p.RefreshAfter, "give Policy.LocalTTL too"})
	}
	switch p.Fallback {
	case "":
		p.Fallback = FallbackLoader
	case FallbackLoader, FallbackError:
	case FallbackStale:
		if p.StaleTTL == Off {
			err = errors.Join(err, &ConfigError{"Policy.Fallback", p.Fallback, "give Policy.StaleTTL too"})
		}
	default:
		err = errors.Join(err, &ConfigError{"Policy.Fallback", fmt.Sprintf("%q", p.Fallback), "give cache.FallbackLoader, cache.FallbackError, cache.FallbackStale, or nothing for the default"})
	}
	return p, err
}

// duration says which durations a field takes.
type duration struct {
	min, max time.Duration
	off      bool
}

// fillDuration puts the fallback, if there is one, in place of 0, and checks the rest.
func fillDuration(field string, d *time.Duration, fallback time.Duration, takes duration) error {
	switch {
	case *d == 0 && fallback > 0:
		*d = fallback
	case *d == Off && takes.off:
	case *d < takes.min, *d > takes.max:
		remedy := fmt.Sprintf("give %v to %v", takes.min, takes.max)
		if fallback > 0 {
			remedy += ", 0 for the default"
		}
		if takes.off {
			remedy += ", or cache.Off"
		}
		return &ConfigError{field, *d, remedy}
	}
	return nil
}

func fillCount[N int | int64](field string, n *N, fallback, most N) error {
	switch {
	case *n == 0:
		*n = fallback
	case *n < 0, *n > most:
		return &ConfigError{field, *n, fmt.Sprintf("give 1 to %d, or 0 for the default", most)}
	}
	return nil
}

// jittered shortens a TTL by a random part.
func (p Policy) jittered(ttl time.Duration) time.Duration {
	if p.Jitter == Off {
		return ttl
	}
	return max(minTTL, ttl-time.Duration(rand.Float64()*p.Jitter*float64(ttl)))
}

// Resilient is a policy for values that had better be old than missing, and are read all the time: refreshed ahead, served for ten times
// the TTL if the loader fails, and after 300 ms if it is slow. Change what does not fit.
func Resilient(ttl time.Duration) Policy {
	return Policy{TTL: ttl, RefreshAfter: 0.8, StaleTTL: 10 * ttl, SoftTimeout: 300 * time.Millisecond}
}
