package cache_test

import (
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

const (
	// soonBeat makes a bus notice within a tenth of a second that it does not hear.
	soonBeat = 30 * time.Millisecond
	// rareBeat leaves a bus to what its connection says: no test takes that long.
	rareBeat = time.Minute
)

// beating gives an instance a bus. What it keeps lives longer than any test, so that nothing but the bus can void it.
func beating(every time.Duration) func(*setup) {
	return func(s *setup) {
		s.config.Heartbeat, s.config.DegradedTTL = every, time.Hour
		s.policy.TTL, s.policy.LocalTTL = time.Hour, time.Hour
	}
}

// awaitDeaf returns when the bus of an instance has noticed that it does not hear.
func (i *instance) awaitDeaf(t testing.TB) {
	t.Helper()
	eventually(t, "the bus knows that it does not hear", func() bool { return !i.client.Bus().Live() })
}

// awaitLocal returns when the local tier of an instance holds a value.
func (i *instance) awaitLocal(t testing.TB, key, want string) {
	t.Helper()
	eventually(t, "the local tier holds "+want, func() bool {
		r, err := i.GetResult(t.Context(), key)
		return r.Value == want && r.Tier == cache.TierLocal && err == nil
	})
}

// awaitValue returns when an instance serves a value, and checks that it goes on with it.
func (i *instance) awaitValue(t testing.TB, key, want string) {
	t.Helper()
	last := ""
	if !within(10*time.Second, func() bool { last, _ = i.Get(t.Context(), key); return last == want }) {
		t.Fatalf("%q is %s after 10 s, want %s: %+v", key, last, want, i.client.Bus().Health())
	}
	for range 3 {
		i.mustGet(t, key, want)
	}
}

// change writes a row and invalidates it through an instance.
func (w *world) change(t testing.TB, by *instance, key, value string) {
	t.Helper()
	w.put(key, value)
	mustDo(t, by.Invalidate(t.Context(), key))
}

// awaitLive waits until the bus of an instance hears.
func (i *instance) awaitLive(t testing.TB) {
	t.Helper()
	eventually(t, "the bus hears", i.client.Bus().Live)
}

// awaitBeats waits until some heartbeats have come back. After a few of those of a publisher, its last number is told for the last
// time: who lacks a message and has not found out by then will not find out by that.
func (i *instance) awaitBeats(t testing.TB, n int) {
	t.Helper()
	for range n {
		last := i.client.Bus().Health().LastBeat
		eventually(t, "a heartbeat", func() bool { return i.client.Bus().Health().LastBeat.After(last) })
	}
}
