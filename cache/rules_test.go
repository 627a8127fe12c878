package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
)

// The rules of the flows, by their numbers. Rule 5 is tested by what is about the bus, rule 8 by what is about overload.

func TestRule1_RedisFirstLocalLastAndTheGenerationMovesBeforeAndAfter(t *testing.T) {
	for name, commands := range map[string]int{"Invalidate": 1, "Update": 2, "Set": 2} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.instance(t, valved)
			w.put("k", v1)
			mustDo(t, a.Set(t.Context(), "k", v1))
			a.mustGetFrom(t, "k", v1, cache.TierLocal)
			ctx, ours := mark(t.Context())
			first := a.valve.before(t, ours)
			last := first
			if commands > 1 {
				last = a.valve.before(t, ours)
			}
			written := start(func() (string, error) { return "", changes[name](ctx, w, a, "k", v2) })
			first.await(t, "the first command of the write")
			a.mustGetFrom(t, "k", v1, cache.TierRedis) // before: what was local is void already
			if last != first {
				first.open()
				last.await(t, "the last command of the write")
			}
			a.mustGet(t, "k", v1) // and again what Redis holds
			select {
			case got := <-written:
				t.Fatalf("the write returned %v before Redis had it", got.err)
			default:
			}
			last.open()
			mustDo(t, receive(t, "the write", written).err)
			a.mustGet(t, "k", v2) // after: what was read meanwhile is void too
		})
	}
	t.Run("nothing is local that Redis has not", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, valved)
		w.warmUp(t, a)
		w.put("k", v1)
		before := a.Stats().LocalFills
		gate := w.hold(t)
		reader := a.startGet(t.Context(), "k")
		gate.await(t, "the load")
		request := a.valve.before(t, aScript)
		gate.open()
		request.await(t, "the fill")
		receive(t, "the reader", reader).must(t, v1)
		if n := a.Stats().LocalFills; n != before {
			t.Errorf("%d local fills before the one of Redis", n-before)
		}
		request.open()
		a.client.Idle(t)
		w.holds(t, a, "k", v1)
		a.mustGetFrom(t, "k", v1, cache.TierLocal)
	})
}

func TestRule2_GenerationIsTakenBeforeRedisIsRead(t *testing.T) {
	held := map[string]func(t *testing.T, w *world, a *instance) (hold *holdup, reader <-chan answer){
		"a Redis hit": func(t *testing.T, w *world, a *instance) (*holdup, <-chan answer) {
			mustDo(t, w.instance(t).Set(t.Context(), "k", v1))
			hold := a.valve.after(t, aRead)
			return hold, a.startGet(t.Context(), "k")
		},
		"a batch": func(t *testing.T, w *world, a *instance) (*holdup, <-chan answer) {
			mustDo(t, w.instance(t).Set(t.Context(), "k", v1))
			hold := a.valve.after(t, aRead)
			return hold, start(func() (string, error) { return readers["GetMany"](t.Context(), a, "k") })
		},
		"a value that the lease script found": func(t *testing.T, w *world, a *instance) (*holdup, <-chan answer) {
			request, hold := a.valve.before(t, aScript), a.valve.after(t, func(_ context.Context, cmd redis.Cmder) bool { return cmd.Name() == evalsha })
			reader := a.startGet(t.Context(), "k")
			request.await(t, "the acquire")
			mustDo(t, w.instance(t).Set(t.Context(), "k", v1))
			request.open()
			return hold, reader
		},
		"the late end of a load": func(t *testing.T, w *world, a *instance) (*holdup, <-chan answer) {
			gate := w.hold(t)
			reader := a.startGet(t.Context(), "k")
			gate.await(t, "the load")
			hold := a.valve.after(t, aScript)
			gate.open()
			return hold, reader
		},
	}
	for name, stop := range held {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.instance(t, valved)
			w.warmUp(t, a)
			w.put("k", v1)
			hold, reader := stop(t, w, a)
			hold.await(t, "the reply of Redis")
			w.holds(t, a, "k", v1)
			w.put("k", v2)
			mustDo(t, a.Invalidate(t.Context(), "k"))
			hold.open()
			receive(t, "the reader", reader).oneOf(t, v1, v2)
			a.client.Idle(t)
			if n := a.Stats().LocalOvertaken; n != 1 {
				t.Errorf("%d local fills were overtaken, want 1", n)
			}
			a.mustGet(t, "k", v2)
		})
	}
	t.Run("and nothing is lost without an invalidation", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t)
		w.put("k", v1)
		a.mustGet(t, "k", v1)
		a.client.Idle(t)
		a.mustGetFrom(t, "k", v1, cache.TierLocal)
		mustDo(t, a.Invalidate(t.Context(), "other"))
		a.mustGetFrom(t, "k", v1, cache.TierLocal)
	})
}

func TestRule4_InvalidateDisownsTheFlight(t *testing.T) {
	t.Run("later callers start a new one", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t)
		gates := []*gate{w.hold(t), w.hold(t), w.hold(t)}
		var callers []<-chan answer
		for n, gate := range gates {
			w.put("k", fmt.Sprintf("row %d", n))
			callers = append(callers, a.startGet(t.Context(), "k"))
			gate.await(t, "a load of its own")
			mustDo(t, a.Invalidate(t.Context(), "k"))
		}
		w.put("k", v2)
		a.mustGet(t, "k", v2)
		for n, gate := range gates {
			gate.open()
			receive(t, "a caller", callers[n]).oneOf(t, fmt.Sprintf("row %d", n), v2)
		}
		a.client.Idle(t)
		w.holds(t, a, "k", v2)
		a.mustGetFrom(t, "k", v2, cache.TierLocal)
		if n := a.Stats().FillsRefused; n != 3 {
			t.Errorf("%d fills were refused, want 3", n)
		}
	})
	t.Run("a key under constant writes answers", func(t *testing.T) {
		w := newWorld(t)
		var a *instance
		overtaken := func(ctx context.Context, keys []string) (map[string]string, error) {
			rows, err := w.load(ctx, keys)
			return rows, errors.Join(err, a.Invalidate(ctx, keys...)) // each load is overtaken
		}
		a = w.instance(t, func(s *setup) { s.loader = overtaken })
		w.put("k", v1)
		for n := 1; n <= 5; n++ {
			a.mustGet(t, "k", v1)
			a.client.Idle(t)
			w.lacks(t, a, "k", v1) // and keeps it nowhere
			if loads := w.loads(); loads < n || loads > 2*n {
				t.Errorf("%d loads for %d Gets: each is repeated at most once", loads, n)
			}
		}
		if s := a.Stats(); s.LocalHits != 0 || s.Fills != 0 {
			t.Errorf("%d local hits and %d fills of overtaken loads", s.LocalHits, s.Fills)
		}
	})
	t.Run("of that key alone", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t)
		w.put("k", v1)
		gate := w.hold(t)
		first := a.startGet(t.Context(), "k")
		gate.await(t, "the load")
		mustDo(t, a.Invalidate(t.Context(), "other"))
		second := a.startGet(t.Context(), "k")
		eventually(t, "the second caller joins", func() bool { return a.Stats().Joined == 1 })
		gate.open()
		receive(t, "the first caller", first).must(t, v1)
		receive(t, "the second caller", second).must(t, v1)
		a.client.Idle(t)
		a.mustGetFrom(t, "k", v1, cache.TierLocal)
	})
}
