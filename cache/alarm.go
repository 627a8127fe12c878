package cache

import (
	"slices"
	"sync"
	"sync/atomic"
)

// alarms are the waits for keys that another process is loading, by encoded key. The zero value is ready to use.
type alarms struct {
	mu    sync.Mutex
	byKey map[string][]*alarm // guarded by mu
}

// alarm is one wait for one key.
type alarm struct {
	rung atomic.Bool
	bell chan<- struct{} // shared by the alarms of one goroutine; holds one
}

// set lets ring find an alarm until unset is called.
func (s *alarms) set(encoded string, a *alarm) (unset func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = make(map[string][]*alarm)
	}
	s.byKey[encoded] = append(s.byKey[encoded], a)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := slices.DeleteFunc(s.byKey[encoded], func(other *alarm) bool { return other == a })
		if s.byKey[encoded] = left; len(left) == 0 {
			delete(s.byKey, encoded)
		}
	}
}

// ring wakes those who wait for a key.
func (s *alarms) ring(encoded string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.byKey[encoded] {
		a.rung.Store(true)
		select {
		case a.bell <- struct{}{}:
		default:
		}
	}
}
