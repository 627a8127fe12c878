package cache_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
	"github.com/go-nearside/nearside/invalidation"
)

// TestTopologyFaults: what Sentinel and a cluster do when a node goes. The tests wait most of their time, so they run side by
// side; each has servers of its own.
func TestTopologyFaults(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"sentinel, a failover": func(t *testing.T) {
			failover(t, func(s *redistest.Sentinel) { s.Failover(t) })
		},
		"sentinel, a dead master": func(t *testing.T) {
			failover(t, func(s *redistest.Sentinel) { s.KillMaster(t) })
		},
		"sentinel, a master that hangs": func(t *testing.T) {
			failover(t, func(s *redistest.Sentinel) { s.Master().Pause(t); s.AwaitPromotion(t) })
		},
		"cluster, a dead node, full coverage": func(t *testing.T) { deadNode(t, "yes", true) },
		"cluster, a dead node":                func(t *testing.T) { deadNode(t, "no", false) },
		"cluster, the dead node of the bus":   func(t *testing.T) { deadNode(t, "no", true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// hasty is for tests where Redis is away: who asks must not wait for it for long. The Redis clients of these tests have a time-out
// of a second: so long a connection to a server that hangs can be in the way of the next subscription.
func hasty(s *setup) {
	s.config.ReadBudget, s.config.WriteBudget = 500*time.Millisecond, 500*time.Millisecond
}

// invalidates invalidates until Redis confirms it.
func (p *pair) invalidates(t testing.TB, i *instance, key string) {
	t.Helper()
	eventually(t, "a confirmed Invalidate of "+key, func() bool { return i.Invalidate(t.Context(), key) == nil })
}

// live waits until both instances hear.
func (p *pair) live(t testing.TB) {
	t.Helper()
	eventually(t, "a bus that hears, on both", func() bool { return p.a.live() && p.b.live() })
}

// failover checks that nothing old is served after another server has become the master.
func failover(t *testing.T, change func(*redistest.Sentinel)) {
	s := redistest.StartSentinel(t)
	p := newPair(t, sentinelOf(s, time.Second), mode{local: true, bus: true}, hasty)
	for _, key := range []string{"before", "during", "after", "last"} {
		p.both(t, key, v0)
	}
	p.changes(t, p.a, "before", v1)
	s.Replica().CatchUp(t) // what it does not have yet would be rolled back

	p.put("during", v1)
	before := map[*instance]map[string]uint64{p.a: p.a.client.Bus().Health().Gaps, p.b: p.b.client.Bus().Health().Gaps}
	change(s)
	p.invalidates(t, p.a, "during") // the clients may not know of the new master yet
	p.a.says(t, "before", v1)
	p.b.comes(t, "before", v1)
	p.a.says(t, "during", v1)
	p.b.comes(t, "during", v1)

	for i, was := range before {
		eventually(t, "a gap that says why", func() bool {
			now := i.client.Bus().Health().Gaps
			lost := uint64(0)
			for _, cause := range []string{"error", "silence", invalidation.CauseNewServer} {
				lost += now[cause] - was[cause]
			}
			return lost > 0 && now[invalidation.CauseSubscribed] > was[invalidation.CauseSubscribed]
		})
	}
	p.live(t)
	p.both(t, "after", v0)
	p.put("after", v1)
	p.invalidates(t, p.b, "after")
	p.b.says(t, "after", v1)
	p.a.comes(t, "after", v1)
	eventually(t, "a bus without a problem", func() bool { return p.b.client.Bus().Health().Problem == nil })

	// The whole way once more, on the new master alone.
	raw, err := s.Master().Admin().Exists(t.Context(), p.b.PhysicalKey(t, "last")).Result()
	if err != nil || raw != 1 {
		t.Errorf("the new master holds %d entries of a key that was there before, %v; want 1", raw, err)
	}
	p.changes(t, p.a, "last", v1)
	p.a.says(t, "last", v1)
	p.b.comes(t, "last", v1)
}

// deadNode kills a node of a cluster that requires full coverage or not, either the one with the channels of the bus or another,
// and lets it return.
func deadNode(t *testing.T, coverage string, withBus bool) {
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", coverage)
	// The braces put the common channel and those of the instances on one node, which is then known. Keys are not moved by them.
	namespace := "{" + strings.TrimSuffix(c.Nodes()[0].Prefix(t), ":") + "}"
	p := newPair(t, clusterOf(c, time.Second), mode{local: true, bus: true}, hasty, func(s *setup) {
		s.config.Namespace = namespace
		s.config.DegradedTTL = 100 * time.Millisecond
	})
	dead := c.NodeFor(namespace)
	if nodes := c.Nodes(); !withBus {
		dead = nodes[(slices.Index(nodes, dead)+1)%len(nodes)]
	}
	gone, here := p.keyOn(t, c, func(s *redistest.Server) bool { return s == dead }), p.keyOn(t, c, func(s *redistest.Server) bool { return s != dead })
	if gone == "" || here == "" {
		t.Fatal("no keys on both sides")
	}
	p.both(t, gone, v0)
	p.both(t, here, v0)
	gaps := p.b.gaps()

	dead.Kill(t)
	c.AwaitDead(t, dead)
	hears := coverage == "no" && !withBus
	eventually(t, fmt.Sprintf("a bus that hears: %v", hears), func() bool { return p.a.live() == hears && p.b.live() == hears })
	if !hears && p.b.gaps() == gaps {
		t.Error("the bus does not hear, and has no gap")
	}

	// All keys are answered, and none by what was invalidated. What is kept while the bus does not hear is kept for a short time.
	p.a.says(t, gone, v0)
	p.b.says(t, gone, v0)
	p.b.says(t, here, v0)
	p.b.client.Idle(t)
	p.put(gone, v1)
	if err := p.a.Invalidate(t.Context(), gone); err == nil {
		t.Error("a dead node confirmed a delete")
	}
	p.a.says(t, gone, v1)
	r, err := p.a.GetResult(t.Context(), gone)
	if r.Value != v1 || r.Tier == cache.TierRedis || err != nil {
		t.Errorf("a key of the dead node: %+v, %v; want %s, not from Redis", r, err, v1)
	}
	p.b.comes(t, gone, v1) // what could not be published is missing
	p.put(here, v1)
	switch err := p.a.Invalidate(t.Context(), here); {
	case coverage == "no" && err != nil:
		t.Errorf("a living node did not confirm a delete: %v", err)
	case coverage == "yes" && err == nil:
		t.Error("a cluster that is down confirmed a delete")
	}
	p.a.says(t, here, v1)
	p.b.comes(t, here, v1)
	if coverage == "no" {
		eventually(t, "a living node that is used", func() bool {
			p.a.client.DropLocal()
			r, err := p.a.GetResult(t.Context(), here)
			p.a.client.Idle(t)
			return err == nil && r.Value == v1 && r.Tier == cache.TierRedis
		})
	} else if r, err := p.b.GetResult(t.Context(), here); err != nil || r.Value != v1 || r.Tier == cache.TierRedis {
		t.Errorf("a cluster that is down answered %+v, %v", r, err)
	}

	dead.StartAgain(t)
	c.AwaitOK(t)
	p.live(t)
	p.invalidates(t, p.a, gone)
	p.invalidates(t, p.a, here)
	for n, key := range []string{gone, here} {
		old, fresh := fmt.Sprint("old ", n), fmt.Sprint("new ", n)
		p.put(key, old)
		p.invalidates(t, p.a, key)
		for _, i := range []*instance{p.a, p.b} {
			i.comes(t, key, old)
			p.settles(t, i, key, old)
		}
		p.changes(t, p.a, key, fresh)
		p.a.says(t, key, fresh)
		p.b.comes(t, key, fresh)
	}
}

// keyOn returns a key whose node is the right one, "" if a hundred are not.
func (p *pair) keyOn(t testing.TB, c *redistest.Cluster, right func(*redistest.Server) bool) string {
	for n := range 100 {
		if key := fmt.Sprintf("key-%d", n); right(c.NodeFor(p.a.PhysicalKey(t, key))) {
			return key
		}
	}
	return ""
}
