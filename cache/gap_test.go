package cache_test

import (
	"testing"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// makeGap makes the instance lose its subscription and get a new one.
func (w *world) makeGap(t testing.TB, i *instance) {
	t.Helper()
	before := i.client.Bus().Health().Gaps["subscribed"]
	w.server.KillClients(t, "pubsub")
	eventually(t, "a new subscription", func() bool { return i.client.Bus().Health().Gaps["subscribed"] > before })
	i.awaitLive(t)
}

// loadAcrossAGap makes an instance that is loading a value when its bus loses its subscription and gets a new one. The load waits at
// the gate.
func loadAcrossAGap(t *testing.T) (a *instance, load *gate, answer <-chan answer) {
	t.Helper()
	w := newWorldOn(t, redistest.Start(t))
	a = w.instance(t, beating(soonBeat))
	a.awaitLive(t)
	w.put("k", v1)
	load = w.hold(t)
	answer = a.startGet(t.Context(), "k")
	load.await(t, "the load")
	w.makeGap(t, a)
	return a, load, answer
}

func TestAGapDisownsFlights(t *testing.T) {
	a, load, first := loadAcrossAGap(t)
	second := a.startGet(t.Context(), "k")
	eventually(t, "the second caller has a flight of its own, which waits for the lease of the first",
		func() bool { s := a.Stats(); return s.LeaseWaits == 1 && s.Joined == 0 })
	load.open()
	receive(t, "the first answer", first).must(t, v1)
	receive(t, "the second answer", second).must(t, v1)
}

func TestAGapVoidsWhatIsBeingRead(t *testing.T) {
	a, load, first := loadAcrossAGap(t)
	load.open()
	receive(t, "the answer", first).must(t, v1)
	a.client.Idle(t)
	a.mustGetFrom(t, "k", v1, cache.TierRedis) // Redis took it; this process could not know whether it still held
	a.mustGetFrom(t, "k", v1, cache.TierLocal)
}
