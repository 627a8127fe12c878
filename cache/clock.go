package cache

import (
	"sync/atomic"
	"time"
)

// tick is the resolution of the coarse clock.
const tick = 10 * time.Millisecond

// clock is the time of one client: its own, in nanoseconds since it opened, and an estimate of the Redis server's.
type clock struct {
	start  time.Time
	coarse atomic.Int64
	server atomic.Pointer[estimate]
}

// newClock starts at 1: 0 is no time.
func newClock() *clock { return &clock{start: time.Now().Add(-1)} }

// run keeps the coarse clock going until stop is closed.
func (c *clock) run(stop <-chan struct{}) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.coarse.Store(c.now())
		case <-stop:
			return
		}
	}
}

// now is the exact time.
func (c *clock) now() int64 { return int64(time.Since(c.start)) }

// at is a time on this clock.
func (c *clock) at(t time.Time) int64 { return int64(t.Sub(c.start)) }

// estimate is what is known of the server's clock: at our time at, what the server's clock shows less ours lies between lower
// and upper. All in nanoseconds.
type estimate struct {
	at, lower, upper int64
}

// drift is how far two clocks may go apart, as a part of the time that passes: 200 ppm, twice what a poor crystal does.
const drift = 5000

func (e estimate) aged(now int64) estimate {
	slack := max(0, now-e.at) / drift
	return estimate{at: now, lower: e.lower - slack, upper: e.upper + slack}
}

// observe learns from a reply that carried the server's time, in microseconds, and that was asked for and received at the
// given times of ours. What it says is combined with what is known; if they contradict, a clock was set or the server is
// another one, and the newer word counts.
func (c *clock) observe(server, sent, received int64) {
	// The server may have answered at once, and the clocks gone apart while its word was on the way.
	seen := estimate{at: received, lower: server*1000 - received, upper: (server+1)*1000 - sent + (received-sent)/drift + 1}
	known := c.server.Load()
	if known != nil {
		old := known.aged(received)
		both := estimate{at: received, lower: max(old.lower, seen.lower), upper: min(old.upper, seen.upper)}
		if both.lower <= both.upper {
			seen = both
		}
	}
	c.server.CompareAndSwap(known, &seen) // who lost the race learned as much
}

// doubt forgets what is known of the server's clock, since something contradicts it.
func (c *clock) doubt() { c.server.Store(nil) }

// moment is one time on both clocks.
type moment struct {
	now              int64 // on ours
	known            bool  // whether anything is known of the server's
	earliest, latest int64 // what the server's can show, in microseconds
}

func (c *clock) moment() moment {
	m := moment{now: c.now()}
	if known := c.server.Load(); known != nil {
		e := known.aged(m.now)
		m.known, m.earliest, m.latest = true, (m.now+e.lower)/1000, (m.now+e.upper)/1000+1
	}
	return m
}
