// Package group owns goroutines: it starts them, refuses new ones once closed, and waits for them.
//
// It differs from sync.WaitGroup and errgroup in that Go may race with Close, and in that Close is bounded: it reports how
// many goroutines were still running when its time was up.
package group

import (
	"sync"
	"sync/atomic"
	"time"
)

// Group is a set of goroutines with one owner. The zero value is ready to use.
//
// Concurrency: all methods may be called at any time from any goroutine, also from inside the group. Enter and Leave take no lock
// unless somebody waits.
type Group struct {
	running atomic.Int64
	closed  atomic.Bool
	waited  atomic.Bool // somebody has waited: the last to leave must look at idle

	mu   sync.Mutex
	idle chan struct{} // guarded by mu; made by who waits, closed when running falls to 0
}

// Go runs f in a goroutine of its own. It reports false, and runs nothing, once the group is closed.
func (g *Group) Go(f func()) bool {
	if !g.Enter() {
		return false
	}
	go func() {
		defer g.Leave()
		f()
	}()
	return true
}

// Enter counts the calling goroutine as one of the group until Leave. It reports false once the group is closed.
func (g *Group) Enter() bool {
	g.running.Add(1)
	if g.closed.Load() {
		g.Leave()
		return false
	}
	return true
}

// Leave ends what a successful Enter began.
func (g *Group) Leave() {
	if g.running.Add(-1) > 0 || !g.waited.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle != nil && g.running.Load() == 0 {
		close(g.idle)
		g.idle = nil
	}
}

// Wait waits until no goroutine of the group runs, at most for d, and returns how many were left.
func (g *Group) Wait(d time.Duration) (left int) {
	g.waited.Store(true) // before running is looked at: who leaves after that sees it
	g.mu.Lock()
	if g.running.Load() == 0 {
		g.mu.Unlock()
		return 0
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()

	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-idle:
		return 0
	case <-timer.C:
		return int(g.running.Load())
	}
}

// Close refuses further goroutines, then waits as Wait does. It may be called more than once.
func (g *Group) Close(d time.Duration) (left int) {
	g.closed.Store(true)
	return g.Wait(d)
}
