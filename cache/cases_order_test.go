package cache_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

func TestC46_RedisForgetsBeforeAnybodyRefillsFromIt(t *testing.T) {
	for name, ttl := range map[string]time.Duration{"no local tier": cache.Off, "a short one": 20 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.instance(t, valved), w.instance(t, localTTL(ttl))
			mustDo(t, a.Set(t.Context(), "k", v1))

			type seen struct {
				began time.Time
				value string
			}
			var mu sync.Mutex
			var all []seen
			count := func() int { mu.Lock(); defer mu.Unlock(); return len(all) }
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					began := time.Now()
					v, err := b.Get(context.Background(), "k")
					if err != nil {
						t.Errorf("B: %v", err)
					}
					mu.Lock()
					all = append(all, seen{began, v})
					mu.Unlock()
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond / 2):
					}
				}
			}()
			defer func() { <-stopped }()
			defer close(stop)

			w.put("k", v2)
			ctx, ours := mark(t.Context())
			request := a.valve.before(t, ours)
			invalidated := a.startInvalidate(ctx, "k")
			request.await(t, "the delete")
			refills := b.Stats().RedisHits
			eventually(t, "B refills from Redis while the delete is on its way", func() bool { return b.Stats().RedisHits >= refills+3 })
			select {
			case <-invalidated:
				t.Fatal("Invalidate returned before Redis had deleted")
			default:
			}
			request.open()
			mustDo(t, receive(t, "Invalidate", invalidated).err)
			limit := time.Now()
			if ttl != cache.Off {
				limit = limit.Add(250 * time.Millisecond)
			}
			eventually(t, "the time is over", func() bool { return time.Now().After(limit) })
			before := count()
			eventually(t, "B reads on", func() bool { return count() >= before+100 })
			mu.Lock()
			defer mu.Unlock()
			for _, s := range all {
				if s.began.After(limit) && s.value != v2 {
					t.Fatalf("B read %q %v after the limit", s.value, s.began.Sub(limit))
				}
			}
		})
	}
}

func TestC48_SetInvalidateSetLeavesTheLastValueEverywhere(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	w := newWorld(t)
	// What B loads while Redis holds nothing of a round comes late: after its last write.
	over := map[string]chan struct{}{}
	late := func(ctx context.Context, keys []string) (map[string]string, error) {
		rows, err := w.load(ctx, keys)
		select {
		case <-over[keys[0]]:
		case <-ctx.Done():
		}
		return rows, err
	}
	a, b := w.instance(t), w.instance(t, localTTL(20*time.Millisecond), func(s *setup) { s.loader = late })
	key := func(n int) string { return fmt.Sprintf("k%d", n) }
	last := func(n int) string { return fmt.Sprintf("%s of round %d", v3, n) }

	for n := range rounds {
		w.put(key(n), v0)
		over[key(n)] = make(chan struct{})
	}

	var readers sync.WaitGroup
	next := make([]chan int, 4)
	for r := range next {
		next[r] = make(chan int, 1)
		readers.Go(func() {
			for n := range next[r] {
				for range 3 {
					if _, err := b.Get(context.Background(), key(n)); err != nil {
						t.Errorf("B: %v", err)
					}
				}
			}
		})
	}
	for n := range rounds {
		for _, to := range next {
			to <- n
		}
		mustDo(t, a.Set(t.Context(), key(n), v1))
		mustDo(t, a.Invalidate(t.Context(), key(n)))
		mustDo(t, a.Set(t.Context(), key(n), last(n)))
		close(over[key(n)])
		a.mustGet(t, key(n), last(n))
	}
	for _, to := range next {
		close(to)
	}
	readers.Wait()
	a.client.Idle(t)
	b.client.Idle(t)
	eventually(t, "B equals Redis", func() bool {
		for n := range rounds {
			if v, err := b.Get(t.Context(), key(n)); v != last(n) || err != nil {
				return false
			}
		}
		return true
	})
	for n := range rounds {
		w.holds(t, a, key(n), last(n))
		a.mustGet(t, key(n), last(n))
	}
}

func TestC54_WriterReadsItsOwnWrite(t *testing.T) {
	rounds := 4000
	if testing.Short() {
		rounds = 500
	}
	w := newWorld(t)
	a := w.instance(t)
	ask, answers := make(chan struct{}), make(chan answer)
	go func() {
		for range ask {
			v, err := a.Get(context.Background(), "k")
			answers <- answer{v, err}
		}
	}()
	defer close(ask)
	for n := range rounds {
		want := fmt.Sprintf("row %d", n)
		w.put("k", want)
		var err error
		if n%4 < 2 {
			err = a.Invalidate(t.Context(), "k")
		} else {
			err = a.Set(t.Context(), "k", want)
		}
		mustDo(t, err)
		if n%2 == 0 {
			ask <- struct{}{}
			receive(t, "the other goroutine", answers).must(t, want)
		}
		a.mustGet(t, "k", want)
		if n%2 == 1 {
			ask <- struct{}{}
			receive(t, "the other goroutine", answers).must(t, want)
		}
		if t.Failed() {
			t.Fatalf("in round %d", n)
		}
	}
}
