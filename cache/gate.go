package cache

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// queuePerPlace is how many loads may wait for each place: so a wait takes about as many times as long as a load.
const queuePerPlace = 4

// gate bounds the loads of a client, so that what befalls Redis does not befall the source. Places are given in the order of asking.
type gate struct {
	places      *semaphore.Weighted
	mostWaiting int64
	running     atomic.Int64
	waiting     atomic.Int64
	refused     atomic.Uint64
}

func newGate(places int) *gate {
	return &gate{places: semaphore.NewWeighted(int64(places)), mostWaiting: queuePerPlace * int64(places)}
}

// heldPlace is the key under which the context of a load carries its load under a gate: of each gate the innermost.
type heldPlace struct{ gate *gate }

// innermost is the key under which the context of a load carries its gate.
type innermost struct{}

// holds tells whether a context is that of a load under the gate that has not ended.
func (g *gate) holds(ctx context.Context) bool {
	ended, _ := ctx.Value(heldPlace{g}).(*atomic.Bool)
	return ended != nil && !ended.Load()
}

// under returns a context that says so until end is called.
func (g *gate) under(ctx context.Context) (held context.Context, end func()) {
	ended := new(atomic.Bool)
	return context.WithValue(context.WithValue(ctx, heldPlace{g}, ended), innermost{}, g), func() { ended.Store(true) }
}

// enter waits for a place for a load while ctx lives, if the queue has room, and reports whether there is one to leave. A load that a load
// asks for, or waits for, needs none: it goes under the place of the other, or each could keep the other from going on.
func (g *gate) enter(ctx context.Context, l *load) (placed bool, err error) {
	if g.holds(ctx) {
		return false, nil
	}
	if g.tryEnter() {
		return true, nil
	}
	urgent, _ := l.urgency()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(urgent, cancel)()
	defer g.waiting.Add(-1)
	if g.waiting.Add(1) > g.mostWaiting && urgent.Err() == nil {
		g.refused.Add(1)
		return false, fmt.Errorf("%w: %d wait already", ErrOverloaded, g.mostWaiting)
	}
	switch err = g.places.Acquire(waiting, 1); {
	case err == nil:
		g.running.Add(1)
		return true, nil
	case urgent.Err() != nil && ctx.Err() == nil:
		return false, nil
	case ctx.Err() == context.DeadlineExceeded: // else nobody waits for it any more
		g.refused.Add(1)
	}
	return false, fmt.Errorf("%w: no place in time: %w", ErrOverloaded, err)
}

// tryEnter takes a place if one is free now. Without a gate there always is.
func (g *gate) tryEnter() bool {
	if g == nil {
		return true
	}
	if !g.places.TryAcquire(1) {
		return false
	}
	g.running.Add(1)
	return true
}

// leave gives a place back.
func (g *gate) leave() {
	if g != nil {
		g.running.Add(-1)
		g.places.Release(1)
	}
}
