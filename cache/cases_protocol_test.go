package cache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// changes are the ways in which a writer makes a new value known, after the commit or around it.
var changes = map[string]func(context.Context, *world, *instance, string, string) error{
	"Invalidate": func(ctx context.Context, w *world, i *instance, key, value string) error {
		w.put(key, value)
		return i.Invalidate(ctx, key)
	},
	"Update": func(ctx context.Context, w *world, i *instance, key, value string) error {
		_, err := i.Update(ctx, key, func(context.Context) (string, error) {
			w.put(key, value)
			return value, nil
		})
		return err
	},
	"Set": func(ctx context.Context, w *world, i *instance, key, value string) error {
		w.put(key, value)
		return i.Set(ctx, key, value)
	},
	"a failed Update that committed": func(ctx context.Context, w *world, i *instance, key, value string) error {
		failure := errors.New("no answer from the database")
		_, err := i.Update(ctx, key, func(context.Context) (string, error) {
			w.put(key, value)
			return "", failure
		})
		if !errors.Is(err, failure) {
			return errors.Join(errors.New("Update lost the error of its writer"), err)
		}
		return nil
	},
}

func TestP1_FillOfAnOvertakenLoadIsRefusedByRedis(t *testing.T) {
	overtake := func(t *testing.T, w *world, change func(writer *instance)) {
		r, writer := w.instance(t), w.instance(t)
		w.put("k", v1)
		gate := w.hold(t)
		first := r.startGet(t.Context(), "k")
		gate.await(t, "the load of the reader")
		change(writer)
		gate.open()
		receive(t, "the reader", first).oneOf(t, v1, v2)
		r.client.Idle(t)
		w.lacks(t, r, "k", v1)
		if s := r.Stats(); s.Fills != 0 || s.FillsRefused != 1 {
			t.Errorf("%d fills and %d refused, want 0 and 1", s.Fills, s.FillsRefused)
		}
		r.mustGet(t, "k", v2)
		writer.mustGet(t, "k", v2)
		r.client.Idle(t)
		w.holds(t, r, "k", v2)
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			overtake(t, w, func(writer *instance) { mustDo(t, change(t.Context(), w, writer, "k", v2)) })
		})
	}
	t.Run("a foreign DEL", func(t *testing.T) {
		w := newWorld(t)
		overtake(t, w, func(writer *instance) {
			w.put("k", v2)
			mustDo(t, w.server.Admin().Del(t.Context(), writer.PhysicalKey(t, "k")).Err())
		})
	})
}

func TestP2_LeasesOfOneProcessAreNotTakenForOneAnother(t *testing.T) {
	// Two loads of one key, in one process or in one cache, each under a lease of its own. The first ends first.
	check := func(t *testing.T, w *world, a, b *instance, forget func()) {
		w.put("k", v1)
		gate1, gate2 := w.hold(t), w.hold(t)
		first := a.startGet(t.Context(), "k")
		gate1.await(t, "the first load")
		w.put("k", v2)
		forget()
		second := b.startGet(t.Context(), "k")
		gate2.await(t, "the second load")
		gate1.open()
		receive(t, "the first caller", first).oneOf(t, v1, v2)
		eventually(t, "the first fill is refused, and counted", func() bool { return a.Stats().FillsRefused == 1 })
		w.lacks(t, a, "k", v1)
		gate2.open()
		receive(t, "the second caller", second).must(t, v2)
		b.client.Idle(t)
		w.holds(t, b, "k", v2)
		if s := b.Stats(); s.Fills != 1 {
			t.Errorf("%d fills, want the second one", s.Fills)
		}
		a.mustGet(t, "k", v2)
		b.mustGet(t, "k", v2)
	}
	t.Run("one cache", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t)
		check(t, w, a, a, func() { mustDo(t, a.Invalidate(t.Context(), "k")) })
	})
	t.Run("two clients of one process", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.instance(t), w.instance(t)
		check(t, w, a, b, func() { mustDo(t, w.server.Admin().Del(t.Context(), a.PhysicalKey(t, "k")).Err()) })
	})
}

func TestP3_NothingReadBeforeAnInvalidationIsKeptAfterIt(t *testing.T) {
	// What is on its way to the local tier when its key is changed, by the command whose reply is still out.
	for name, change := range changes {
		t.Run(name+" beside a read", func(t *testing.T) {
			w := newWorld(t)
			a, b := w.instance(t), w.instance(t, valved)
			w.put("k", v1)
			mustDo(t, a.Set(t.Context(), "k", v1))
			reply := b.valve.after(t, aRead)
			first := b.startGet(t.Context(), "k")
			reply.await(t, "the reply with the old value")
			mustDo(t, change(t.Context(), w, b, "k", v2))
			reply.open()
			receive(t, "the first caller", first).oneOf(t, v1, v2)
			b.client.Idle(t)
			b.mustGet(t, "k", v2)
		})
		t.Run(name+" beside a fill", func(t *testing.T) {
			w := newWorld(t)
			b := w.instance(t, valved)
			w.warmUp(t, b)
			w.put("k", v1)
			gate := w.hold(t)
			first := b.startGet(t.Context(), "k")
			gate.await(t, "the load")
			reply := b.valve.after(t, aScript)
			gate.open()
			reply.await(t, "the reply to the fill")
			w.holds(t, b, "k", v1) // Redis took it: the old value is on its way to the local tier alone
			receive(t, "the first caller", first).must(t, v1)
			mustDo(t, change(t.Context(), w, b, "k", v2))
			b.mustGet(t, "k", v2)
			reply.open()
			b.client.Idle(t)
			b.mustGet(t, "k", v2)
			w.lacks(t, b, "k", v1)
		})
	}
}

func TestP4_RefillInTheMiddleOfAWriteDoesNotSurviveIt(t *testing.T) {
	for name, commands := range map[string]int{"Invalidate": 1, "Update": 2, "Set": 2} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			n := w.instance(t, valved)
			w.put("k", v1)
			mustDo(t, n.Set(t.Context(), "k", v1))
			n.mustGetFrom(t, "k", v1, cache.TierLocal)
			ctx, ours := mark(t.Context())
			var last *holdup
			for range commands { // the last one is held, those before it go through
				if last != nil {
					last.open()
				}
				last = n.valve.before(t, ours)
			}
			written := start(func() (string, error) { return "", changes[name](ctx, w, n, "k", v2) })
			last.await(t, "the last command of the write")
			n.mustGetFrom(t, "k", v1, cache.TierRedis) // what Redis holds until then is in the local tier again
			last.open()
			mustDo(t, receive(t, "the write", written).err)
			n.mustGet(t, "k", v2)
			n.client.Idle(t)
			n.mustGet(t, "k", v2)
			w.lacks(t, n, "k", v1)
		})
	}
}

func TestP5_ReadAfterInvalidateDoesNotJoinAnOldFlight(t *testing.T) {
	late := map[string]func(context.Context, *instance) (string, error){
		"Fetch": func(ctx context.Context, i *instance) (string, error) {
			return i.Fetch(ctx, "k", func(context.Context) (string, error) { return v2, nil })
		},
		"GetResult": func(ctx context.Context, i *instance) (string, error) {
			r, err := i.GetResult(ctx, "k")
			return r.Value, err
		},
	}
	for name, read := range readers {
		late[name] = func(ctx context.Context, i *instance) (string, error) { return read(ctx, i, "k") }
	}
	for name, read := range late {
		for change := range changes {
			t.Run(name+" after "+change, func(t *testing.T) {
				w := newWorld(t)
				a := w.instance(t)
				w.put("k", v1)
				gate := w.hold(t)
				first := a.startGet(t.Context(), "k")
				gate.await(t, "the first load")
				mustDo(t, changes[change](t.Context(), w, a, "k", v2))
				after := start(func() (string, error) { return read(t.Context(), a) })
				receive(t, "a caller after the change", after).must(t, v2) // the first load is still held
				gate.open()
				receive(t, "the first caller", first).oneOf(t, v1, v2)
				a.client.Idle(t)
				a.mustGet(t, "k", v2)
				w.lacks(t, a, "k", v1)
			})
		}
	}
}

func TestP6_NotFoundObeysTheSameRulesAsAValue(t *testing.T) {
	for name, change := range changes {
		for _, here := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " here", false: " elsewhere"}[here], func(t *testing.T) {
				w := newWorld(t)
				a, b := w.instance(t), w.instance(t)
				gate := w.hold(t)
				first := a.startGet(t.Context(), "k")
				gate.await(t, "a load that sees no row")
				writer := map[bool]*instance{true: a, false: b}[here]
				mustDo(t, change(t.Context(), w, writer, "k", v1)) // INSERT
				gate.open()
				if got := receive(t, "the first caller", first); got.err == nil && got.value != v1 || got.err != nil && !errors.Is(got.err, cache.ErrNotFound) {
					t.Errorf("the first caller got %q, %v", got.value, got.err)
				}
				a.client.Idle(t)
				a.mustGet(t, "k", v1)
				b.mustGet(t, "k", v1)
			})
		}
	}
	t.Run("and without a change it is kept", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.instance(t), w.instance(t)
		for _, i := range []*instance{a, a, b} {
			if v, err := i.Get(t.Context(), "k"); !errors.Is(err, cache.ErrNotFound) || v != "" {
				t.Errorf("%q, %v", v, err)
			}
			i.client.Idle(t)
		}
		if n := w.loads(); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
	})
}

func TestP15_PromotedValueLivesNoLongerThanInRedis(t *testing.T) {
	w := newWorld(t)
	short := func(s *setup) { s.policy.TTL, s.policy.Jitter = 600*time.Millisecond, cache.Off }
	a, b := w.instance(t, short), w.instance(t, localTTL(time.Minute))
	w.put("k", v1)
	mustDo(t, a.Set(t.Context(), "k", v1))
	b.mustGetFrom(t, "k", v1, cache.TierRedis)
	b.mustGetFrom(t, "k", v1, cache.TierLocal)
	w.put("k", v2) // and nobody is told
	w.awaitNoLease(t, a, "k")
	if !within(time.Second, func() bool { v, err := b.Get(t.Context(), "k"); return v == v2 && err == nil }) {
		t.Error("the local tier serves what Redis has dropped")
	}
}
