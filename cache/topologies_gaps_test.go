package cache_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-nearside/nearside/cache"
)

func behaviourOwnMessage(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m)
	eventually(t, "a time without gaps", func() bool {
		before := p.a.gaps()
		p.changes(t, p.a, "k", v1)
		p.a.says(t, "k", v1)
		p.a.client.Idle(t)
		p.a.awaitBeats(t, 2) // by then the message of the Invalidate has come back
		r, _ := p.a.GetResult(t.Context(), "k")
		if p.a.gaps() != before {
			return false
		}
		if r.Tier != p.nearest() {
			t.Errorf("the value that was filled after the Invalidate came from %v (%s), want from %v", r.Tier, r.Why, p.nearest())
		}
		return true
	})
	if s := p.a.Stats(); s.Received != 0 {
		t.Errorf("the instance was told %d keys by itself", s.Received)
	}
}

// What was invalidated while an instance did not hear is not served: not in the gap, and not after it.
func behaviourGap(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m)
	p.both(t, "k", v0)
	p.both(t, "other", v0)
	p.toB.shut.Store(true)
	p.killSubscriptions(t)
	p.b.awaitDeaf(t)
	p.changes(t, p.a, "k", v1)
	p.b.says(t, "k", v1)
	p.b.client.Idle(t)
	p.changes(t, p.a, "k", v2)
	p.changes(t, p.a, "other", v2)
	p.toB.shut.Store(false)
	p.b.awaitLive(t)
	p.b.says(t, "k", v2)
	p.b.says(t, "other", v2)
	p.changes(t, p.a, "k", v3)
	p.b.comes(t, "k", v3)
}

// A load that a gap overtook is shared with nobody who comes later, and not kept.
func behaviourGapInLoad(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m)
	p.put("k", v0)
	g := p.hold(t)
	slow := p.b.startGet(t.Context(), "k")
	g.await(t, "the slow load")
	p.toB.shut.Store(true)
	p.killSubscriptions(t)
	p.b.awaitDeaf(t)
	p.changes(t, p.a, "k", v1)
	p.b.says(t, "k", v1)
	g.open()
	receive(t, "the slow Get", slow).oneOf(t, v0, v1)
	p.b.client.Idle(t)
	p.b.says(t, "k", v1)
	p.toB.shut.Store(false)
	p.b.awaitLive(t)
	p.b.says(t, "k", v1)
}

// The same where the connection is back at once.
func behaviourReconnection(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m)
	for n := range 3 {
		before, key := p.b.gaps(), fmt.Sprint("k", n)
		p.both(t, key, v0)
		p.killSubscriptions(t)
		p.changes(t, p.a, key, v1)
		p.a.says(t, key, v1)
		p.b.comes(t, key, v1)
		eventually(t, "two gaps and a bus that hears", func() bool { return p.b.gaps() >= before+2 && p.b.live() && p.a.live() })
	}
}

func behaviourTwoCaches(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m, m.meeting)
	orders := &source{rows: map[string]string{"k": v1}}
	of := func(i *instance) *instance {
		c, err := cache.New(i.client, "orders", orders.load, i.Policy())
		mustDo(t, err)
		return &instance{Cache: c, client: i.client}
	}
	ordersA, ordersB := of(p.a), of(p.b)
	p.both(t, "k", v0)
	ordersA.says(t, "k", v1)
	ordersA.client.Idle(t)
	ordersB.says(t, "k", v1)

	orders.put("k", v3) // nobody says so yet
	p.changes(t, p.a, "k", v2)
	p.a.says(t, "k", v2)
	p.b.comes(t, "k", v2)
	ordersA.says(t, "k", v1)
	ordersB.says(t, "k", v1)
	if told := ordersB.Stats().Received; told != 0 {
		t.Errorf("the other cache was told %d keys", told)
	}
	mustDo(t, ordersB.Invalidate(t.Context(), "k"))
	ordersB.says(t, "k", v3)
	ordersA.comes(t, "k", v3)
	p.loaded(t, 2)
}

func behaviourTwoNamespaces(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m)
	strangers(t, p, p.open(t, new(door), 0, func(s *setup) { s.config.Namespace = strings.TrimSuffix(p.namespace, ":") }))
}

func behaviourTwoDatabases(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m)
	strangers(t, p, p.open(t, new(door), 1))
}

// strangers checks that an instance and a pair do not hear one another.
func strangers(t *testing.T, p *pair, other *instance) {
	t.Helper()
	p.both(t, "k", v0)
	other.says(t, "k", v0)
	other.client.Idle(t)
	p.loaded(t, 2)

	p.changes(t, p.a, "k", v1)
	p.a.says(t, "k", v1)
	if p.bus {
		p.b.comes(t, "k", v1)
		other.awaitBeats(t, 2) // it would have heard by now too
	}
	other.says(t, "k", v0)
	p.changes(t, other, "k", v2)
	other.says(t, "k", v2)
	if p.bus {
		p.a.awaitBeats(t, 2)
	}
	p.a.says(t, "k", v1)
	if s, o := p.a.Stats(), other.Stats(); s.Received != 0 || o.Received != 0 {
		t.Errorf("told of %d and %d keys of the other, want none", s.Received, o.Received)
	}
}
