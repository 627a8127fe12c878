package cache_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/go-nearside/nearside/cache"
)

// TestAFlightThatOthersKnowIsNotReused: flights are used again for other keys, but only those that nobody else can look at.
func TestAFlightThatOthersKnowIsNotReused(t *testing.T) {
	w := newWorld(t)
	i := w.instance(t, func(s *setup) { s.policy.LocalTTL = cache.Off })
	keys := make([]string, 8)
	for n := range keys {
		keys[n] = fmt.Sprint("k", n)
		w.put(keys[n], keys[n])
	}
	if _, err := i.GetMany(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	i.client.Idle(t)
	var callers sync.WaitGroup
	for n := range 16 {
		callers.Go(func() {
			for round := range 400 {
				key := keys[(round+n%2)%len(keys)] // half of the callers ask for the same at once
				if v, err := i.Get(t.Context(), key); v != key || err != nil {
					t.Errorf("Get(%s) = %q, %v", key, v, err)
					return
				}
				if n%4 > 0 {
					continue
				}
				batch := []string{keys[round%8], keys[(round+3)%8], keys[round%8], keys[(round+5)%8]}
				m, err := i.GetMany(t.Context(), batch)
				if len(m) != 3 || err != nil {
					t.Errorf("GetMany(%q) = %v, %v", batch, m, err)
					return
				}
				for key, v := range m {
					if v != key {
						t.Errorf("GetMany: %s is %q", key, v)
					}
				}
			}
		})
	}
	callers.Wait()
	if n := i.Stats().Joined; n == 0 {
		t.Error("nobody shared a flight: this shows nothing")
	}
}
