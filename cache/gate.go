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
	places  *semaphore.Weighted
	queue   int64
	running atomic.Int64
	waiting atomic.Int64
	refused atomic.Uint64
}

func newGate(places int) *gate {
	return &gate{places: semaphore.NewWeighted(int64(places)), queue: queuePerPlace * int64(places)}
}

// heldPlace is the key under which the context of a load carries the gate whose place it holds.
type heldPlace struct{}

// enter waits for a place while ctx lives, if the queue has room, and returns a context that says that a place is held. A load that a
// load asks for goes under the place of that one, which waits for it: else loads could wait for one another. So if the context is ctx
// itself, there is no place to leave.
func (g *gate) enter(ctx context.Context) (context.Context, error) {
	if ctx.Value(heldPlace{}) == g {
		return ctx, nil
	}
	if !g.more() {
		defer g.waiting.Add(-1)
		if g.waiting.Add(1) > g.queue {
			g.refused.Add(1)
			return nil, fmt.Errorf("%w: %d wait already", ErrOverloaded, g.queue)
		}
		if err := g.places.Acquire(ctx, 1); err != nil {
			g.refused.Add(1)
			return nil, fmt.Errorf("%w: no place in time: %w", ErrOverloaded, err)
		}
		g.running.Add(1)
	}
	return context.WithValue(ctx, heldPlace{}, g), nil
}

// more takes a place if one is free now. Without a gate there always is.
func (g *gate) more() bool {
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
