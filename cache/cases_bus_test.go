package cache_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// In these tests B holds entries, A invalidates them, and something is wrong with B's subscription. On a busy machine a beat may
// be late and void what B holds: so the tests wait until B holds an entry, and then for the new value.

// deafenable makes an instance with a bus whose subscription goes through a proxy of its own.
func (w *world) deafenable(t testing.TB, beat time.Duration, change ...func(*setup)) (*instance, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.NewProxy(t, w.server.Addr())
	proxy.Only("subscribe")
	return w.instance(t, append([]func(*setup){through(proxy), beating(beat)}, change...)...), proxy
}

func TestC38_WhatWasInvalidatedDuringAReconnectIsNotServed(t *testing.T) {
	w := newWorldOn(t, redistest.Start(t))
	a, b := w.instance(t, beating(soonBeat)), w.instance(t, beating(soonBeat))
	value := func(n int) string { return fmt.Sprintf("value-%d", n) }
	const rounds = 20
	w.put("k", value(0))
	before := b.gaps()
	for n := range rounds {
		b.awaitLive(t)
		b.awaitLocal(t, "k", value(n))
		w.server.KillClients(t, "pubsub")
		w.change(t, a, "k", value(n+1))
		b.awaitValue(t, "k", value(n+1))
	}
	if n := b.gaps() - before; n < rounds {
		t.Errorf("%d gaps are counted in %d losses", n, rounds)
	}
	t.Run("the server is down meanwhile", func(t *testing.T) {
		b.awaitLive(t)
		b.awaitLocal(t, "k", value(rounds))
		w.server.Kill(t)
		w.put("k", v2)
		b.awaitDeaf(t)
		w.server.StartAgain(t)
		b.awaitValue(t, "k", v2)
		b.awaitLive(t)
		b.mustGet(t, "k", v2)
	})
}

func TestC39_AConnectionThatIsOpenAndDeadIsReplaced(t *testing.T) {
	w := newWorld(t)
	a := w.instance(t, beating(soonBeat))
	b, proxy := w.deafenable(t, soonBeat)
	w.put("k", v1)
	b.awaitLive(t)
	b.awaitLocal(t, "k", v1)
	proxy.BlackHole()
	w.change(t, a, "k", v2)
	b.awaitValue(t, "k", v2)
	b.awaitDeaf(t)
	if h := b.client.Bus().Health(); h.Live || h.Gaps["silence"] == 0 {
		t.Errorf("%+v; want a silence that was noticed", h)
	}
	proxy.Heal()
	b.awaitLive(t)
	b.awaitLocal(t, "k", v2)
	w.change(t, a, "k", v3)
	b.awaitValue(t, "k", v3)
}

func TestP7_WhatWasInvalidatedInAGapIsNotServed(t *testing.T) {
	w := newWorld(t)
	a := w.instance(t, beating(soonBeat))
	b, proxy := w.deafenable(t, soonBeat)
	w.put("k", v1)
	b.awaitLive(t)
	b.awaitLocal(t, "k", v1)
	proxy.BlackHole() // for the subscriptions to come
	proxy.Cut()
	b.awaitDeaf(t)
	w.change(t, a, "k", v2)
	b.awaitValue(t, "k", v2) // what was kept before the loss is void with it

	b.awaitLocal(t, "k", v2)
	w.change(t, a, "k", v3)
	a.awaitBeats(t, 7)
	b.mustGetFrom(t, "k", v2, cache.TierLocal) // nobody could tell
	proxy.Heal()
	b.awaitValue(t, "k", v3) // what was kept during the loss is void with the new subscription
	b.awaitLive(t)
}

func TestP8_AHalfOpenSubscriptionServesNothingOldForLong(t *testing.T) {
	t.Run("the beat that stays out ends it", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, beating(soonBeat))
		b, proxy := w.deafenable(t, soonBeat)
		w.put("k", v1)
		b.awaitLive(t)
		b.awaitLocal(t, "k", v1)
		proxy.Freeze(redistest.ToClient) // Redis hears B, and B does not hear Redis
		w.change(t, a, "k", v2)
		b.awaitValue(t, "k", v2)
		proxy.Thaw()
		b.awaitLive(t)
		b.mustGet(t, "k", v2) // whatever was held on the way
	})
	t.Run("LocalTTL ends it, if no beat is due", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, beating(soonBeat))
		b, proxy := w.deafenable(t, rareBeat, localTTL(300*time.Millisecond))
		w.put("k", v1)
		b.awaitLive(t)
		b.awaitLocal(t, "k", v1)
		proxy.BlackHole()
		w.change(t, a, "k", v2)
		b.awaitValue(t, "k", v2)
		if !b.client.Bus().Live() {
			t.Error("the bus has noticed: this was not about LocalTTL")
		}
		proxy.Heal()
	})
}

func TestC42_WhatWasReadBeforeTheSubscriptionIsNotServedAfterIt(t *testing.T) {
	t.Run("kept before it was confirmed", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, beating(soonBeat))
		proxy := redistest.NewProxy(t, w.server.Addr())
		proxy.DelayMatching("subscribe", time.Hour)
		b := w.instance(t, through(proxy), beating(rareBeat))
		w.put("k", v1)
		b.awaitLocal(t, "k", v1)
		w.change(t, a, "k", v2)
		a.awaitBeats(t, 7)
		if b.client.Bus().Live() {
			t.Fatal("the subscription was confirmed too early")
		}
		proxy.DelayMatching("subscribe", 0)
		b.awaitValue(t, "k", v2)
		b.awaitLive(t)
	})
	t.Run("read before it was confirmed and kept after", func(t *testing.T) {
		w := newWorld(t)
		a := w.instance(t, beating(soonBeat))
		proxy := redistest.NewProxy(t, w.server.Addr())
		proxy.DelayMatching("subscribe", time.Hour)
		b := w.instance(t, through(proxy), beating(rareBeat), valved)
		mustDo(t, a.Set(t.Context(), "k", v1))
		reply := b.valve.after(t, aRead)
		first := b.startGet(t.Context(), "k")
		reply.await(t, "the reply of Redis")
		w.change(t, a, "k", v2)
		proxy.DelayMatching("subscribe", 0)
		b.awaitLive(t)
		reply.open()
		receive(t, "the first caller", first).oneOf(t, v1, v2)
		b.client.Idle(t)
		b.mustGet(t, "k", v2)
	})
	t.Run("Redis is down at the start", func(t *testing.T) {
		w := newWorldOn(t, redistest.Start(t))
		w.server.Kill(t)
		quick := func(s *setup) {
			s.redis.DialerRetries, s.config.ReadBudget, s.config.WriteBudget = 1, 250*time.Millisecond, 250*time.Millisecond
		}
		w.put("k", v1)
		b := w.instance(t, beating(soonBeat), quick)
		b.mustGet(t, "k", v1)
		w.put("k", v2)
		w.server.StartAgain(t)
		b.awaitValue(t, "k", v2)
		b.awaitLive(t)
		a := w.instance(t, beating(soonBeat))
		b.awaitLocal(t, "k", v2)
		w.change(t, a, "k", v3)
		b.awaitValue(t, "k", v3)
	})
}
