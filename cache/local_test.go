package cache

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// newTestTier makes a local tier that belongs to no client's Redis.
func newTestTier(t testing.TB, p Policy) (*localTier[int, int], *Client) {
	t.Helper()
	p.TTL = time.Hour
	p, err := p.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{clock: newClock(), stamps: new(stamps)}
	l, err := newLocalTier[int, int](p, c)
	if err != nil {
		t.Fatal(err)
	}
	return l, c
}

func testHash(key int) uint64 { return uint64(key+1) * 0x9e3779b97f4a7c15 }

func (l *localTier[K, V]) testEntry(hash uint64, key K, value V) *entry[K, V] {
	return &entry[K, V]{key: key, value: value, stamp: l.stamps.now(hash), epoch: l.epoch.Load(), expires: int64(time.Hour)}
}

func TestLocalFillIsVisibleAndTheLaterOneWins(t *testing.T) {
	l, _ := newTestTier(t, Policy{})
	defer l.close()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				key := w*2000 + i
				h := testHash(key)
				for value := 1; value <= 3; value++ {
					if !l.put(h, l.testEntry(h, key, value), 1) {
						t.Errorf("key %d: a fill with room was refused", key)
					}
					if e := l.get(h, key); e == nil || e.value != value {
						t.Errorf("key %d: after the fill of %d the tier gives %+v", key, value, e)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestLocalWarmUpKeepsAllThatFits(t *testing.T) {
	const n = 100_000
	l, _ := newTestTier(t, Policy{LocalEntries: 2 * n})
	defer l.close()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for key := w; key < n; key += 4 {
				l.put(testHash(key), l.testEntry(testHash(key), key, key), 100)
			}
		})
	}
	wg.Wait()
	kept := 0
	for key := range n {
		if e := l.get(testHash(key), key); e != nil && e.value == key {
			kept++
		}
	}
	if kept < n*99/100 {
		t.Fatalf("%d of %d entries were kept", kept, n)
	}
}

func TestLocalDropIsOneIncrement(t *testing.T) {
	l, c := newTestTier(t, Policy{})
	defer l.close()
	h := testHash(1)
	before := l.testEntry(h, 1, 1)
	l.put(h, before, 1)
	c.stamps.move(h)
	if e := l.get(h, 1); e != nil {
		t.Fatalf("an invalidated key answers %+v", e)
	}
	if l.put(h, before, 1); l.get(h, 1) != nil {
		t.Fatal("a fill from before the invalidation is served after it")
	}
	l.put(h, l.testEntry(h, 1, 2), 1)
	if e := l.get(h, 1); e == nil || e.value != 2 {
		t.Fatalf("a fill from after the invalidation is not served: %+v", e)
	}
}

func TestLocalMakesAllSuspectAtOnce(t *testing.T) {
	l, c := newTestTier(t, Policy{})
	defer l.close()
	for key := range 1000 {
		l.put(testHash(key), l.testEntry(testHash(key), key, key), 1)
	}
	c.epoch.Add(1)
	for key := range 1000 {
		if l.get(testHash(key), key) != nil {
			t.Fatalf("key %d is served after the epoch moved", key)
		}
	}
}

func TestLocalChecksTheKeyItself(t *testing.T) {
	l, _ := newTestTier(t, Policy{})
	defer l.close()
	h := testHash(1)
	l.put(h, l.testEntry(h, 1, 1), 1)
	if e := l.get(h, 2); e != nil {
		t.Fatalf("key 2 of the same hash gets the entry of key 1: %+v", e)
	}
}

func TestLocalExpires(t *testing.T) {
	l, c := newTestTier(t, Policy{})
	defer l.close()
	h := testHash(1)
	e := l.testEntry(h, 1, 1)
	e.expires = int64(time.Second)
	l.put(h, e, 1)
	c.clock.coarse.Store(int64(time.Second) - 1)
	if l.get(h, 1) == nil {
		t.Fatal("gone before its time")
	}
	c.clock.coarse.Store(int64(time.Second))
	if l.get(h, 1) != nil {
		t.Fatal("served when its time was over")
	}
}

func TestLocalIsBounded(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy Policy
		cost   int64
		most   int
	}{
		{"in entries", Policy{LocalEntries: 100}, 1, 100},
		{"in bytes", Policy{LocalBytes: 10_000, LocalEntries: 10_000}, 1000, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, _ := newTestTier(t, test.policy)
			defer l.close()
			for key := range 1000 {
				l.put(testHash(key), l.testEntry(testHash(key), key, key), test.cost)
			}
			kept := 0
			for key := range 1000 {
				if l.get(testHash(key), key) != nil {
					kept++
				}
			}
			if kept == 0 || kept > test.most {
				t.Fatalf("%d entries are kept, at most %d may be", kept, test.most)
			}
		})
	}
	t.Run("a value larger than all", func(t *testing.T) {
		l, _ := newTestTier(t, Policy{LocalBytes: 10_000, LocalEntries: 10})
		defer l.close()
		if h := testHash(1); l.put(h, l.testEntry(h, 1, 1), 10_001) || l.get(h, 1) != nil {
			t.Fatal("it was kept")
		}
	})
}

func TestLocalCloseBesideEverything(t *testing.T) {
	for round := range 200 {
		l, c := newTestTier(t, Policy{LocalEntries: 1000})
		var wg sync.WaitGroup
		var stop atomic.Bool
		started := make(chan struct{}, 8)
		for w := range 8 {
			wg.Go(func() {
				for i := 0; !stop.Load(); i++ {
					key := i % 50
					h := testHash(key)
					switch (i + w) % 3 {
					case 0:
						l.put(h, l.testEntry(h, key, i), 1)
					case 1:
						l.get(h, key)
					case 2:
						c.stamps.move(h)
					}
					if i == round%100 {
						started <- struct{}{}
					}
				}
			})
		}
		for range 4 {
			<-started
		}
		l.close()
		if h := testHash(1); l.put(h, l.testEntry(h, 1, 1), 1) || l.get(h, 1) != nil {
			t.Fatal("a closed tier keeps entries")
		}
		stop.Store(true)
		wg.Wait()
	}
}

func BenchmarkLocalGet(b *testing.B) {
	l, _ := newTestTier(b, Policy{})
	defer l.close()
	for key := range 10_000 {
		l.put(testHash(key), l.testEntry(testHash(key), key, key), 1)
	}
	for _, callers := range []int{1, 16} {
		b.Run(fmt.Sprintf("%d callers", callers), func(b *testing.B) {
			b.SetParallelism(max(1, callers/2))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					l.get(testHash(i%10_000), i%10_000)
				}
			})
		})
	}
}
