package cache_test

import (
	"context"
	"sync"
	"testing"
)

// source is a database: rows, a count of the calls that read them, and gates that hold such calls back.
type source struct {
	mu    sync.Mutex
	rows  map[string]string // guarded by mu
	calls int               // guarded by mu
	gates []*gate           // guarded by mu; for the calls to come, in order
}

// put changes a row.
func (s *source) put(key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[key] = value
}

// loads returns how often the loader was called.
func (s *source) loads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// hold makes the next call of the loader that has no gate yet wait between its read of the rows and its return.
func (s *source) hold(t testing.TB) *gate {
	g := newGate(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gates = append(s.gates, g)
	return g
}

// load is the loader of all instances of a world.
func (s *source) load(ctx context.Context, keys []string) (map[string]string, error) {
	rows, g := s.read(keys)
	if g != nil {
		if err := g.pass(ctx); err != nil {
			return nil, err
		}
	}
	return rows, ctx.Err()
}

func (s *source) read(keys []string) (map[string]string, *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	rows := map[string]string{}
	for _, key := range keys {
		if v, ok := s.rows[key]; ok {
			rows[key] = v
		}
	}
	if len(s.gates) == 0 {
		return rows, nil
	}
	g := s.gates[0]
	s.gates = s.gates[1:]
	return rows, g
}

// gate is a place where something stops until the test lets it go on.
type gate struct {
	reached, opened chan struct{}
	open            func() // may be called again
}

func newGate(t testing.TB) *gate {
	g := &gate{reached: make(chan struct{}), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	t.Cleanup(g.open)
	return g
}

// await returns when something stands at the gate.
func (g *gate) await(t testing.TB, what string) {
	t.Helper()
	receive(t, what, g.reached)
}

// pass stops at the gate.
func (g *gate) pass(ctx context.Context) error {
	close(g.reached)
	select {
	case <-g.opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
