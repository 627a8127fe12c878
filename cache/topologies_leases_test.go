package cache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

func behaviourOvertaken(t *testing.T, on *topology, m mode) {
	for _, change := range []struct {
		name  string
		call  func(context.Context, *instance) error
		loads int
	}{
		{"Invalidate", func(ctx context.Context, i *instance) error { return i.Invalidate(ctx, "k") }, 2},
		{"Set", func(ctx context.Context, i *instance) error { return i.Set(ctx, "k", v1) }, 1},
		{"Update", func(ctx context.Context, i *instance) error {
			_, err := i.Update(ctx, "k", func(context.Context) (string, error) { return v1, nil })
			return err
		}, 1},
	} {
		t.Run(change.name, func(t *testing.T) {
			p := newPair(t, on, m, m.meeting)
			p.put("k", v0)
			g := p.hold(t)
			slow := p.a.startGet(t.Context(), "k")
			g.await(t, "the slow load")
			p.put("k", v1)
			mustDo(t, change.call(t.Context(), p.b))
			p.b.says(t, "k", v1)
			p.b.client.Idle(t)
			if p.bus { // who comes after the message does not share the slow load
				eventually(t, "the message", func() bool { return p.a.Stats().Received > 0 })
				p.a.says(t, "k", v1)
			}
			g.open()
			receive(t, "the slow Get", slow).oneOf(t, v0, v1)
			p.a.client.Idle(t)
			if s := p.a.Stats(); s.Fills != 0 {
				t.Errorf("the overtaken load has filled Redis: %+v", s)
			}
			p.b.says(t, "k", v1)
			p.a.says(t, "k", v1)
			p.settles(t, p.a, "k", v1)
			p.loaded(t, change.loads)
		})
	}
}

func behaviourOneLoad(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m)
	p.put("k", v0)
	g := p.hold(t)
	first := p.a.startGet(t.Context(), "k")
	g.await(t, "the load")
	second := p.b.startGet(t.Context(), "k")
	eventually(t, "a wait for the other's load", func() bool { return p.b.Stats().LeaseWaits == 1 })
	g.open()
	receive(t, "the Get that loads", first).must(t, v0)
	receive(t, "the Get that waits", second).must(t, v0)
	p.loaded(t, 1)
}

// patientLeases makes a lease whose holder does not give it back a failure.
func patientLeases(s *setup) { s.policy.LeaseTTL = time.Minute }

func behaviourHolderFails(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m, patientLeases)
	p.put("k", v0)
	failure := errors.New("the source is away")
	g := newGate(t)
	holder := p.open(t, new(door), 0, func(s *setup) {
		s.loader = func(ctx context.Context, _ []string) (map[string]string, error) {
			return nil, errors.Join(failure, g.pass(ctx))
		}
	})
	first := holder.startGet(t.Context(), "k")
	g.await(t, "the load that will fail")
	second := p.b.startGet(t.Context(), "k")
	eventually(t, "a wait for the other's load", func() bool { return p.b.Stats().LeaseWaits == 1 })
	g.open()
	if a := receive(t, "the Get that fails", first); !errors.Is(a.err, failure) {
		t.Errorf("the Get returned %q, %v; want the loader's error", a.value, a.err)
	}
	receive(t, "the Get that waits", second).must(t, v0)
	p.tookOver(t)
}

func behaviourHolderCloses(t *testing.T, on *topology, m mode) {
	p := newPair(t, on, m, patientLeases)
	p.put("k", v0)
	g := p.hold(t)
	first := p.a.startGet(t.Context(), "k")
	g.await(t, "the load")
	second := p.b.startGet(t.Context(), "k")
	eventually(t, "a wait for the other's load", func() bool { return p.b.Stats().LeaseWaits == 1 })
	mustDo(t, p.a.client.Close())
	if a := receive(t, "the Get of the closed client", first); !errors.Is(a.err, cache.ErrClosed) && !errors.Is(a.err, context.Canceled) {
		t.Errorf("the Get of the closed client returned %q, %v", a.value, a.err)
	}
	receive(t, "the Get that waits", second).must(t, v0)
	p.tookOver(t)
}

// tookOver checks that b has loaded under the lease of another.
func (p *pair) tookOver(t *testing.T) {
	t.Helper()
	p.b.client.Idle(t)
	if s := p.b.Stats(); s.LeaseTimeouts != 0 || s.Loads != 1 || s.Fills != 1 {
		t.Errorf("the one that took over counts %+v, want a load and a fill", s)
	}
	p.settles(t, p.b, "k", v0)
}
