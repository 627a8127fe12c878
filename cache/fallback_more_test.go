package cache_test

import (
	"testing"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// What is kept without Redis is void by what voids any local entry.

func TestAnInvalidateVoidsWhatWasLoadedWithoutRedis(t *testing.T) {
	t.Run("kept before", func(t *testing.T) {
		for name, change := range changes {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				a, _, away := w.cutOff(t, keeping, once)
				w.put("k", v1)
				away()
				a.mustGetFrom(t, "k", v1, cache.TierLoader)
				a.mustGetFrom(t, "k", v1, cache.TierLocal)
				if err := change(t.Context(), w, a, "k", v2); name != "a failed Update that committed" {
					isUnconfirmed(t, name, err)
				}
				r, err := a.GetResult(t.Context(), "k")
				if r.Value != v2 || r.Tier != cache.TierLoader || r.Why != cache.WhyBypassed || err != nil {
					t.Errorf("%+v, %v; want %s from the loader", r, err, v2)
				}
				a.mustGetFrom(t, "k", v2, cache.TierLocal)
			})
		}
	})
	t.Run("loaded meanwhile", func(t *testing.T) {
		w := newWorld(t)
		a, _, away := w.cutOff(t, keeping, once)
		w.put("k", v1)
		away()
		gate := w.hold(t)
		reader := a.startGet(t.Context(), "k")
		gate.await(t, "the load")
		w.put("k", v2)
		isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "k"))
		gate.open()
		receive(t, "who came before", reader).oneOf(t, v1, v2)
		a.client.Idle(t)
		a.mustGetFrom(t, "k", v2, cache.TierLoader)
		a.mustGetFrom(t, "k", v2, cache.TierLocal)
		if n := a.Stats().LocalOvertaken; n != 1 {
			t.Errorf("%d entries were overtaken, want 1", n)
		}
	})
	t.Run("a row that was absent", func(t *testing.T) {
		w := newWorld(t)
		a, _, away := w.cutOff(t, keeping, once)
		away()
		for range 2 {
			_, _ = a.Get(t.Context(), "k")
		}
		w.put("k", v1)
		isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "k"))
		a.mustGet(t, "k", v1)
	})
}

// readless makes an instance whose reads of Redis fail, and whose bus hears all the same.
func (w *world) readless(t testing.TB) *instance {
	t.Helper()
	proxy := redistest.NewProxy(t, w.server.Addr())
	i := w.instance(t, through(proxy), beating(rareBeat))
	i.awaitLive(t)
	proxy.DropReply(1<<30, "get\r\n", false)
	return i
}

func TestTheBusVoidsWhatWasLoadedWithoutRedis(t *testing.T) {
	t.Run("kept before", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.instance(t, beating(rareBeat)), w.readless(t)
		w.put("k", v1)
		b.mustGetFrom(t, "k", v1, cache.TierLoader)
		for range 20 {
			b.mustGetFrom(t, "k", v1, cache.TierLocal)
		}
		w.change(t, a, "k", v2)
		b.awaitValue(t, "k", v2)
		b.mustGetFrom(t, "k", v2, cache.TierLocal)
		if s := b.Stats(); s.Degraded != 2 || s.RedisHits+s.Misses != 0 {
			t.Errorf("%+v; want two loads without Redis", s)
		}
	})
	t.Run("loaded meanwhile", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.instance(t, beating(rareBeat)), w.readless(t)
		w.put("k", v1)
		gate := w.hold(t)
		reader := b.startGet(t.Context(), "k")
		gate.await(t, "the load")
		w.change(t, a, "k", v2)
		eventually(t, "the message", func() bool { return b.Stats().Received == 1 })
		gate.open()
		receive(t, "who came before", reader).oneOf(t, v1, v2)
		b.client.Idle(t)
		b.mustGetFrom(t, "k", v2, cache.TierLoader)
		b.mustGetFrom(t, "k", v2, cache.TierLocal)
	})
	t.Run("by a gap", func(t *testing.T) {
		w := newWorld(t)
		b := w.readless(t)
		w.put("k", v1)
		b.mustGetFrom(t, "k", v1, cache.TierLoader)
		b.mustGetFrom(t, "k", v1, cache.TierLocal)
		w.put("k", v2)
		before := b.gaps()
		w.server.KillClients(t, "pubsub")
		eventually(t, "a gap", func() bool { return b.gaps() > before })
		b.awaitValue(t, "k", v2)
	})
}
