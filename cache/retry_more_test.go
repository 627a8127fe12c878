package cache_test

import (
	"context"
	"errors"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestARetryClearsNoNewerDebt(t *testing.T) {
	w := newWorld(t)
	a := w.instance(t, valved, forgetful)
	w.warmUp(t, a)
	mustDo(t, a.Set(t.Context(), "k", v1))
	w.put("k", v2)
	first := a.unconfirmed(t, "k")
	retry := a.valve.before(t, a.deleteOf(t, "k"))
	retry.await(t, "the retry")
	second := a.unconfirmed(t, "k")
	next := a.valve.before(t, a.deleteOf(t, "k"))
	retry.open()
	eventually(t, "the retry is confirmed", func() bool { return a.Stats().Retried == 1 })
	mustDo(t, w.instance(t).Set(t.Context(), "k", v1)) // what the second delete has to remove
	if n := a.Stats().UnconfirmedKeys; n != 1 {
		t.Errorf("%d keys are owed, want 1", n)
	}
	for range 3 {
		a.mustGetFrom(t, "k", v2, cache.TierLoader)
	}
	next.await(t, "the next retry")
	next.open()
	a.awaitSettled(t)
	w.lacks(t, a, "k", v1)
	a.mustGet(t, "k", v2)
	first.open()
	second.open()
	a.client.Idle(t)
	a.mustGet(t, "k", v2)
	awaitRetries(t, 0)
}

func TestARetryBesideAConfirmedSet(t *testing.T) {
	w := newWorld(t)
	a, b := w.instance(t, valved), w.instance(t)
	w.warmUp(t, a)
	mustDo(t, a.Set(t.Context(), "k", v1))
	w.put("k", v2)
	first := a.unconfirmed(t, "k")
	retry := a.valve.before(t, a.deleteOf(t, "k"))
	retry.await(t, "the retry")
	w.put("k", v3)
	mustDo(t, a.Set(t.Context(), "k", v3))
	if n := a.Stats().UnconfirmedKeys; n != 0 {
		t.Errorf("%d keys are owed after a confirmed Set", n)
	}
	a.mustGetFrom(t, "k", v3, cache.TierLocal)
	b.mustGetFrom(t, "k", v3, cache.TierRedis)
	retry.open()
	first.open()
	awaitRetries(t, 0)
	a.client.Idle(t)
	a.mustGet(t, "k", v3)
	a.client.DropLocal()
	b.client.DropLocal()
	a.mustGet(t, "k", v3)
	b.mustGet(t, "k", v3)
	if n := a.Stats().UnconfirmedKeys; n != 0 {
		t.Errorf("%d keys are owed in the end", n)
	}
	w.lacks(t, a, "k", v1)
}

// What is too much to be remembered is not tried again: the whole cache does without Redis.
func TestTooManyLostDeletes(t *testing.T) {
	w := newWorld(t)
	a, proxy, away := w.cutOff(t)
	const remembered = 1200
	a.Remember(remembered)
	b := w.instance(t)
	mustDo(t, b.Set(t.Context(), "other", v1))
	w.put("other", v2)
	a.mustGetFrom(t, "other", v1, cache.TierRedis)
	away()
	isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), bulk("key", remembered+3)...))
	if s := a.Stats(); s.UnconfirmedKeys != remembered || s.Overflowed != 3 || s.Unconfirmed != remembered+3 || !s.Bypassed {
		t.Errorf("%d keys are owed, %d found no room, of %d, bypassed: %v; want 3 too many, and that it is", s.UnconfirmedKeys, s.Overflowed, s.Unconfirmed, s.Bypassed)
	}
	proxy.Refuse(false)
	a.awaitSettled(t)
	awaitRetries(t, 0)
	if n := a.Stats().Retried; n != remembered {
		t.Errorf("%d deletes were retried, want %d", n, remembered)
	}
	a.client.DropLocal()
	if r, err := a.GetResult(t.Context(), "other"); r.Value != v2 || r.Why != cache.WhyBypassed || err != nil {
		t.Errorf("%+v, %v; want %s, past Redis", r, err, v2)
	}
	b.client.DropLocal()
	b.mustGetFrom(t, "other", v1, cache.TierRedis)
}

// A Close that waits for a writer waits quietly, whatever is owed.
func TestCloseWaitsQuietly(t *testing.T) {
	w := newWorld(t)
	a, _, away := w.cutOff(t, once)
	gate := newGate(t)
	written := start(func() (string, error) {
		return a.Update(t.Context(), "written", func(context.Context) (string, error) { return v1, gate.pass(context.Background()) })
	})
	gate.await(t, "the writer")
	away()
	isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "k"))
	closed := start(func() (string, error) { return "", a.client.Close() })
	eventually(t, "Close has begun", func() bool {
		_, err := a.Get(t.Context(), "k")
		return errors.Is(err, cache.ErrClosed)
	})
	before := goroutinesMade()
	within(100*time.Millisecond, func() bool { return false }) // nothing happens, so there is nothing to wait for
	if n := goroutinesMade() - before; n > 100 {
		t.Errorf("%d goroutines were started meanwhile", n)
	}
	gate.open()
	receive(t, "the writer", written)
	isUnconfirmed(t, "Close", receive(t, "Close", closed).err)
}

// goroutinesMade is the number of goroutines that were ever started.
func goroutinesMade() uint64 {
	sample := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// A writer that hangs does not take from Close the time for what is owed.
func TestCloseTriesOnceMoreBesideAWriterThatHangs(t *testing.T) {
	w, gate := newWorld(t), newGate(t)
	a, proxy, away := w.cutOff(t, once, func(s *setup) {
		s.config.ReadBudget, s.config.WriteBudget = 100*time.Millisecond, 500*time.Millisecond
	})
	mustDo(t, w.instance(t).Set(t.Context(), "k", v1))
	written := start(func() (string, error) {
		return a.Update(t.Context(), "written", func(context.Context) (string, error) { return v1, gate.pass(context.Background()) })
	})
	gate.await(t, "the writer")
	away()
	isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "k"))
	proxy.Refuse(false)
	w.holds(t, a, "k", v1)
	if err := a.client.Close(); err == nil || errors.Is(err, cache.ErrUnconfirmed) {
		t.Errorf("Close: %v; want an error that speaks of the writer alone", err)
	}
	w.lacks(t, a, "k", v1)
	gate.open()
	receive(t, "the writer", written)
}

// That the others could not be told is nothing that another try would mend.
func TestARetryThatMayNotPublishIsTheLast(t *testing.T) {
	w := newWorldOn(t, redistest.Start(t))
	mustDo(t, w.server.Admin().Do(t.Context(), "acl", "setuser", "mute", "on", ">x", "~*", "+@all", "resetchannels").Err())
	s := setup{config: cache.Config{Namespace: w.namespace, ReadBudget: patience, WriteBudget: patience}, loader: w.load, valved: true}
	beating(rareBeat)(&s)
	mute := openInstance(t, w.server.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "x" }), s)
	t.Cleanup(func() { mustDo(t, mute.client.Close()) })
	w.put("k", v1)
	mute.mustGet(t, "k", v1)
	mute.client.Idle(t)
	w.holds(t, mute, "k", v1)
	w.put("k", v2)
	request := mute.unconfirmed(t, "k")
	mute.awaitSettled(t)
	w.lacks(t, mute, "k", v1)
	mute.mustGet(t, "k", v2)
	if s := mute.Stats(); s.Retried != 1 || s.Unpublished == 0 {
		t.Errorf("%d deletes were retried, %d messages refused; want 1 and some", s.Retried, s.Unpublished)
	}
	request.open()
	awaitRetries(t, 0)
}

// Reads leave a sick Redis alone. Deletes do not.
func TestNoBreakerHoldsDeletesBack(t *testing.T) {
	w := newWorld(t)
	a, proxy, away := w.cutOff(t, once, keeping)
	mustDo(t, a.Set(t.Context(), "k", v1))
	mustDo(t, a.Set(t.Context(), "owed", v1))
	away()
	isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "owed"))
	eventually(t, "an open breaker", func() bool {
		a.client.DropLocal()
		_, err := a.Get(t.Context(), "other")
		return errors.Is(err, cache.ErrNotFound) && a.client.Stats().SickNodes == 1
	})
	proxy.Refuse(false)
	if err := a.Invalidate(t.Context(), "k"); err != nil {
		t.Errorf("Invalidate while no reads are sent: %v", err)
	}
	if err := a.client.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	w.lacks(t, a, "k", v1)
	w.lacks(t, a, "owed", v1)
}
