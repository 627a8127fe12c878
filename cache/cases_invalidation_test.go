package cache_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// The invalidations of another process reach the local tier by its LocalTTL alone: where a test needs them sooner, the instance
// that reads has a short one, or no local tier.

// readers are the calls that load through the tiers.
var readers = map[string]func(context.Context, *instance, string) (string, error){
	"Get": func(ctx context.Context, i *instance, key string) (string, error) { return i.Get(ctx, key) },
	"GetMany": func(ctx context.Context, i *instance, key string) (string, error) {
		values, err := i.GetMany(ctx, []string{key, "another"})
		return values[key], err
	},
}

func TestC34_LoadOvertakenByInvalidateIsKeptNowhere(t *testing.T) {
	for name, read := range readers {
		for _, between := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, invalidated here, read between %v", name, between), func(t *testing.T) {
				w := newWorld(t)
				a, b := w.instance(t), w.instance(t)
				w.put("k", v1)
				gate := w.hold(t)
				first := start(func() (string, error) { return read(t.Context(), a, "k") })
				gate.await(t, "the first load")
				w.put("k", v2)
				mustDo(t, a.Invalidate(t.Context(), "k"))
				if between {
					a.mustGet(t, "k", v2) // although the first load is still under way
				}
				gate.open()
				receive(t, "the first caller", first).oneOf(t, v1, v2)
				a.client.Idle(t)
				w.lacks(t, a, "k", v1)
				a.mustGet(t, "k", v2)
				b.mustGet(t, "k", v2)
				a.client.Idle(t)
				w.holds(t, a, "k", v2)
				a.mustGetFrom(t, "k", v2, cache.TierLocal)
			})
		}
		t.Run(name+", invalidated by another process", func(t *testing.T) {
			w := newWorld(t)
			a, b := w.instance(t), w.instance(t)
			w.put("k", v1)
			gate := w.hold(t)
			first := start(func() (string, error) { return read(t.Context(), a, "k") })
			gate.await(t, "the first load")
			w.put("k", v2)
			mustDo(t, b.Invalidate(t.Context(), "k"))
			gate.open()
			receive(t, "the first caller", first).oneOf(t, v1, v2)
			a.client.Idle(t)
			w.lacks(t, a, "k", v1)
			a.mustGet(t, "k", v2) // what Redis refused is not kept here either
			b.mustGet(t, "k", v2)
			a.client.Idle(t)
			w.holds(t, a, "k", v2)
		})
	}
	t.Run("Fetch, invalidated here", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t)
		w.put("k", v2)
		gate := newGate(t)
		first := start(func() (string, error) {
			return a.Fetch(t.Context(), "k", func(ctx context.Context) (string, error) { return v1, gate.pass(ctx) })
		})
		gate.await(t, "the first load")
		mustDo(t, a.Invalidate(t.Context(), "k"))
		gate.open()
		receive(t, "the first caller", first).oneOf(t, v1, v2)
		a.client.Idle(t)
		w.lacks(t, a, "k", v1)
		a.mustGet(t, "k", v2)
	})
}

func TestC35_InvalidateBetweenRedisReadAndLocalFillIsNotLost(t *testing.T) {
	t.Run("the reply is on its way", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.instance(t, valved), w.instance(t)
		mustDo(t, b.Set(t.Context(), "k", v1))
		reply := a.valve.after(t, aRead)
		first := a.startGet(t.Context(), "k")
		reply.await(t, "the reply of Redis")
		w.put("k", v2)
		mustDo(t, a.Invalidate(t.Context(), "k"))
		reply.open()
		receive(t, "the first caller", first).oneOf(t, v1, v2)
		a.client.Idle(t)
		a.mustGet(t, "k", v2)
	})
	t.Run("read while the delete is on its way", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, valved)
		mustDo(t, a.Set(t.Context(), "k", v1))
		w.put("k", v2)
		ctx, ours := mark(t.Context())
		request := a.valve.before(t, ours)
		invalidated := a.startInvalidate(ctx, "k")
		request.await(t, "the delete")
		a.mustGet(t, "k", v1) // from Redis: the write is not done yet
		request.open()
		mustDo(t, receive(t, "Invalidate", invalidated).err)
		a.mustGet(t, "k", v2)
	})
	t.Run("the reply is on its way to another process", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.instance(t), w.instance(t, valved, localTTL(100*time.Millisecond))
		mustDo(t, a.Set(t.Context(), "k", v1))
		reply := b.valve.after(t, aRead)
		first := b.startGet(t.Context(), "k")
		reply.await(t, "the reply of Redis")
		w.put("k", v2)
		mustDo(t, a.Invalidate(t.Context(), "k"))
		reply.open()
		receive(t, "the first caller", first).oneOf(t, v1, v2)
		a.mustGet(t, "k", v2)
		if !within(2*time.Second, func() bool { v, err := b.Get(t.Context(), "k"); return v == v2 && err == nil }) {
			t.Error("B serves what A invalidated far longer than its LocalTTL")
		}
		b.mustGet(t, "k", v2)
	})
}

func TestC37_CallersAfterInvalidateShareANewLoad(t *testing.T) {
	w := newWorld(t)
	a := w.instance(t)
	w.put("k", v1)
	gate1, gate2 := w.hold(t), w.hold(t)
	caller1 := a.startGet(t.Context(), "k")
	gate1.await(t, "the first load")
	w.put("k", v2)
	mustDo(t, a.Invalidate(t.Context(), "k"))

	caller2 := a.startGet(t.Context(), "k")
	gate2.await(t, "a load for those who came after Invalidate")
	caller3 := a.startGet(t.Context(), "k")
	eventually(t, "the third caller joins", func() bool { return a.Stats().Joined == 1 })

	gate1.open()
	receive(t, "the first caller", caller1).must(t, v1)
	eventually(t, "the first load has not been kept", func() bool { return a.Stats().FillsRefused == 1 })
	if n := a.Stats().InFlight; n != 1 {
		t.Errorf("%d flights, want the second one alone", n)
	}
	caller4 := a.startGet(t.Context(), "k") // the end of the first flight has not taken the second one away
	eventually(t, "the fourth caller joins", func() bool { return a.Stats().Joined == 2 })

	gate2.open()
	for _, caller := range []<-chan answer{caller2, caller3, caller4} {
		receive(t, "a caller after Invalidate", caller).must(t, v2)
	}
	a.client.Idle(t)
	w.holds(t, a, "k", v2)
	a.mustGetFrom(t, "k", v2, cache.TierLocal)
	if n := w.loads(); n != 2 {
		t.Errorf("%d loads, want 2", n)
	}
}
