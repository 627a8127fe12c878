package cache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// bulk makes some keys.
func bulk(name string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint(name, "-", i))
	}
	return keys
}

// startGetMany begins a batch beside the test; its answer has v1 if all keys have.
func (i *instance) startGetMany(ctx context.Context, keys []string) <-chan answer {
	return start(func() (string, error) {
		values, err := i.GetMany(ctx, keys)
		for _, key := range keys {
			if values[key] != v1 {
				return key + " lacks its value", err
			}
		}
		return v1, err
	})
}

func TestABatchOfSingleTakesOnePlaceForEachKey(t *testing.T) {
	for places, most := range map[int]int{1: 1, 3: 3, 256: 16} {
		t.Run(fmt.Sprint(places), func(t *testing.T) {
			w, loads := newWorld(t), newCrowd(t)
			a := w.instance(t, loads.bounded(places))
			first := a.startGetMany(t.Context(), bulk("first", 100))
			loads.await(t, most)
			a.awaitLoads(t, most, 0)
			for range 50 {
				loads.letOneGo(t)
			}
			loads.await(t, most+50)
			if n := a.client.Stats().LoadsRunning; n != most {
				t.Errorf("%d loads run, want %d", n, most)
			}
			loads.open()
			receive(t, "the batch", first).must(t, v1)
			if n := loads.peak(); n != most {
				t.Errorf("%d loads ran at once, want %d", n, most)
			}
			a.awaitLoads(t, 0, 0)
		})
		t.Run(fmt.Sprint(places, " and two batches"), func(t *testing.T) {
			w, loads := newWorld(t), newCrowd(t)
			a := w.instance(t, loads.bounded(places))
			first := a.startGetMany(t.Context(), bulk("first", 100))
			loads.await(t, most)
			second := a.startGetMany(t.Context(), bulk("second", 100))
			if places < 16 {
				a.awaitLoads(t, most, 1)
			} else {
				loads.await(t, 2*most)
			}
			loads.open()
			receive(t, "the first batch", first).must(t, v1)
			receive(t, "the second batch", second).must(t, v1)
			if n := loads.peak(); n > min(places, 2*most) {
				t.Errorf("%d loads ran at once for %d places", n, places)
			}
			a.awaitLoads(t, 0, 0)
		})
	}
}

func TestAFullClientAnswersWhatItHas(t *testing.T) {
	w, loads := newWorld(t), newCrowd(t)
	a := w.instance(t, loads.bounded(1))
	mustDo(t, a.Set(t.Context(), "here", v0))
	mustDo(t, w.instance(t).Set(t.Context(), "in Redis", v2))
	answers := a.crowdIn(t)
	values, err := a.GetMany(t.Context(), []string{"here", "x", "in Redis", "y"})
	var failed *cache.KeyErrors[string]
	if !errors.As(err, &failed) || len(failed.ByKey) != 2 {
		t.Fatalf("GetMany: %v; want the errors of two keys", err)
	}
	isOverloaded(t, "x", failed.ByKey["x"])
	isOverloaded(t, "y", failed.ByKey["y"])
	if len(values) != 2 || values["here"] != v0 || values["in Redis"] != v2 {
		t.Errorf("GetMany = %v; want what the tiers hold", values)
	}
	_, err = a.Fetch(t.Context(), "z", func(context.Context) (string, error) {
		t.Error("a loader of Fetch was called without a place")
		return v1, nil
	})
	isOverloaded(t, "Fetch", err)
	if s := a.client.Stats(); s.Overloaded != 2 || s.LoadsRunning != 1 || s.LoadsWaiting != 4 {
		t.Errorf("%+v; want two refused calls, and the others as they were", s)
	}
	if n := a.Stats().LoadErrors; n != 3 {
		t.Errorf("%d keys failed, want 3", n)
	}
	loads.open()
	for _, got := range answers {
		receive(t, "the crowd", got).must(t, v1)
	}
	a.mustGet(t, "z", v1)
}

func TestALoaderOfFetchTakesAPlace(t *testing.T) {
	w, loads := newWorld(t), newCrowd(t)
	a := w.instance(t, loads.bounded(1))
	gate := newGate(t)
	fetched := start(func() (string, error) {
		return a.Fetch(t.Context(), "k", func(ctx context.Context) (string, error) { return v2, gate.pass(ctx) })
	})
	gate.await(t, "the load")
	got := a.startGet(t.Context(), "other")
	a.awaitLoads(t, 1, 1)
	gate.open()
	receive(t, "Fetch", fetched).must(t, v2)
	loads.letOneGo(t)
	receive(t, "the other", got).must(t, v1)
}

// A place comes back when the loader has really returned, and however it does.
func TestALoaderThatIgnoresItsContextKeepsItsPlace(t *testing.T) {
	w, gate := newWorld(t), newGate(t)
	a := w.instance(t, func(s *setup) {
		s.config.MaxLoads, s.policy.LoadTimeout = 1, 100*time.Millisecond
		s.loader = cache.Single(func(_ context.Context, key string) (string, error) {
			if key != "hung" {
				return v1, nil
			}
			return v1, gate.pass(context.Background())
		})
	})
	if _, err := a.Get(t.Context(), "hung"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, cache.ErrOverloaded) {
		t.Errorf("a load that hangs: %v", err)
	}
	gate.await(t, "the load")
	for range 3 {
		_, err := a.Get(t.Context(), "other")
		isOverloaded(t, "beside a load that hangs", err)
	}
	a.awaitLoads(t, 1, 0)
	gate.open()
	a.awaitLoads(t, 0, 0)
	a.mustGet(t, "other", v1)
}

func TestALoaderThatBreaksOffGivesItsPlaceBack(t *testing.T) {
	loader := cache.Single(func(_ context.Context, key string) (string, error) {
		switch key[0] {
		case 'p':
			panic("of the loader")
		case 'e':
			runtime.Goexit()
		}
		return v1, nil
	})
	for _, places := range []int{1, 3} {
		w := newWorld(t)
		a := w.instance(t, func(s *setup) { s.config.MaxLoads, s.loader = places, loader })
		var panicked *cache.PanicError
		for n := range 4 { // more than there are places
			for _, key := range []string{"panic", "exit"} {
				if _, err := a.Get(t.Context(), key); !errors.As(err, &panicked) {
					t.Errorf("round %d, %s: %v; want a PanicError", n, key, err)
				}
			}
			keys := append(append(bulk("panic", 3), bulk("exit", 3)...), bulk(fmt.Sprint("good-", n), 3)...)
			values, err := a.GetMany(t.Context(), keys)
			var failed *cache.KeyErrors[string]
			if !errors.As(err, &failed) || len(failed.ByKey) != 6 || len(values) != 3 {
				t.Errorf("round %d: %v, %v; want three values, and a PanicError for each other key", n, values, err)
			}
			a.mustGet(t, fmt.Sprint("single-", n), v1)
		}
		a.awaitLoads(t, 0, 0)
	}
}
