package invalidation_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
	"github.com/go-nearside/nearside/invalidation"
)

// listener keeps what a bus told it.
type listener struct {
	mu     sync.Mutex
	keys   []string
	gaps   []string
	change chan struct{}
}

func listen(t *testing.T, bus *invalidation.Bus, name string) *listener {
	t.Helper()
	l := &listener{change: make(chan struct{}, 1)}
	note := func(f func()) {
		l.mu.Lock()
		f()
		l.mu.Unlock()
		select {
		case l.change <- struct{}{}:
		default:
		}
	}
	stop := bus.Subscribe(name, invalidation.Handler{
		Keys: func(keys []string) { note(func() { l.keys = append(l.keys, slices.Clone(keys)...) }) },
		Gap:  func(cause string) { note(func() { l.gaps = append(l.gaps, cause) }) },
	})
	t.Cleanup(stop)
	return l
}

// await returns when what was told satisfies ok.
func (l *listener) await(t *testing.T, what string, ok func(keys, gaps []string) bool) {
	t.Helper()
	deadline := time.After(15 * time.Second)
	again := time.NewTicker(5 * time.Millisecond) // what ok looks at beside may change without a word to the handler
	defer again.Stop()
	for {
		l.mu.Lock()
		satisfied := ok(l.keys, l.gaps)
		keys, gaps := slices.Clone(l.keys), slices.Clone(l.gaps)
		l.mu.Unlock()
		if satisfied {
			return
		}
		select {
		case <-l.change:
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s did not happen: keys %v, gaps %v", what, keys, gaps)
		}
	}
}

func openBus(t *testing.T, rdb redis.UniversalClient, namespace string) *invalidation.Bus {
	t.Helper()
	bus, err := invalidation.Open(rdb, invalidation.Config{Namespace: namespace, Heartbeat: 30 * time.Millisecond, Silence: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bus.Close(); err != nil {
			t.Error(err)
		}
	})
	return bus
}

func TestPublishReachesTheOthersAndNotOneself(t *testing.T) {
	server := redistest.Shared(t)
	namespace := server.Prefix(t)
	a, b := openBus(t, server.Client(t), namespace), openBus(t, server.Client(t), namespace)
	la, lb := listen(t, a, "user"), listen(t, b, "user")
	other := listen(t, b, "order")
	subscribed := func(_, gaps []string) bool { return slices.Contains(gaps, invalidation.CauseSubscribed) }
	la.await(t, "the subscription of a", subscribed)
	lb.await(t, "the subscription of b", subscribed)
	if err := a.Publish(context.Background(), "user", "1", "", "\x00"); err != nil {
		t.Fatal(err)
	}
	lb.await(t, "the message", func(keys, _ []string) bool { return slices.Equal(keys, []string{"1", "", "\x00"}) })
	if err := b.Publish(context.Background(), "user", "2"); err != nil {
		t.Fatal(err)
	}
	la.await(t, "the answer, and nothing of one's own", func(keys, _ []string) bool { return slices.Equal(keys, []string{"2"}) })
	if len(other.keys) > 0 {
		t.Errorf("another name got %v", other.keys)
	}
}

func TestAGapIsKnownWithinTheSilence(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Only("subscribe")
	bus := openBus(t, server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), "gap")
	l := listen(t, bus, "user")
	lives := 0
	live := func(_, gaps []string) bool {
		n := 0
		for _, cause := range gaps {
			if cause == invalidation.CauseSubscribed {
				n++
			}
		}
		return n > lives && bus.Live()
	}
	for _, fault := range []struct {
		name  string
		cause string
		begin func()
		end   func()
	}{
		{"killed by the server", "error", func() { server.KillClients(t, "pubsub") }, func() {}},
		{"cut on the way", "error", func() { proxy.Cut() }, func() {}},
		{"a black hole", "silence", proxy.BlackHole, func() { proxy.Heal() }},
		{"frozen", "silence", func() { proxy.Freeze(redistest.ToClient) }, proxy.Thaw},
		{"a stopped server", "silence", func() { server.Pause(t) }, func() { server.Resume(t) }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			l.await(t, "a live subscription", live)
			l.mu.Lock()
			before := len(l.gaps)
			lives = 0
			for _, cause := range l.gaps {
				if cause == invalidation.CauseSubscribed {
					lives++
				}
			}
			l.mu.Unlock()
			began := time.Now()
			fault.begin()
			l.await(t, "a gap", func(_, gaps []string) bool { return slices.Contains(gaps[before:], fault.cause) })
			t.Logf("known after %v", time.Since(began))
			fault.end()
			l.await(t, "a new subscription", live)
		})
	}
}

func TestWhatComesOverTheChannel(t *testing.T) {
	server := redistest.Shared(t)
	bus := openBus(t, server.Client(t), server.Prefix(t))
	l := listen(t, bus, "user")
	l.await(t, "a live subscription", func(_, _ []string) bool { return bus.Live() })
	publish := func(payload string) {
		t.Helper()
		if err := server.Admin().Publish(t.Context(), bus.Channel(), payload).Err(); err != nil {
			t.Fatal(err)
		}
	}
	publish("what is this?")
	l.await(t, "a strange message that is counted", func(_, gaps []string) bool { return bus.Health().Malformed == 1 })
	publish("\x9fNB2 from the next release")
	l.await(t, "a message of a newer release is a gap", func(_, gaps []string) bool { return slices.Contains(gaps, invalidation.CauseNewer) })
	first := bus.Health().LastBeat // in the first heartbeat of a subscription, numbers are of before
	l.await(t, "another heartbeat", func(_, _ []string) bool { return bus.Health().LastBeat.Sub(first) > 100*time.Millisecond })
	publish(invalidation.Forge())
	l.await(t, "a missing number is a gap", func(_, gaps []string) bool { return slices.Contains(gaps, invalidation.CauseMissing) })
	h := bus.Health()
	if !h.Live || h.Gaps[invalidation.CauseMissing] != 1 || h.Gaps[invalidation.CauseSubscribed] != 1 || h.Problem != nil {
		t.Errorf("%+v; the connection itself was never in doubt", h)
	}
	l.await(t, "a heartbeat", func(_, _ []string) bool { return !bus.Health().LastBeat.IsZero() && bus.Health().Lag > 0 })
}

func TestARestartedServerIsAGap(t *testing.T) {
	server := redistest.Start(t)
	bus := openBus(t, server.Client(t), "restart")
	l := listen(t, bus, "user")
	l.await(t, "a live subscription", func(_, _ []string) bool { return bus.Live() })
	server.Kill(t)
	l.await(t, "a gap", func(_, gaps []string) bool { return len(gaps) > 1 && !bus.Live() })
	server.StartAgain(t)
	l.await(t, "a live subscription", func(_, _ []string) bool { return bus.Live() })
}

func TestMissingRightsAreSaid(t *testing.T) {
	server := redistest.Start(t)
	if err := server.Admin().Do(t.Context(), "acl", "setuser", "deaf", "on", ">x", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	var mu sync.Mutex
	bus, err := invalidation.Open(server.Client(t, func(o *redis.Options) { o.Username, o.Password = "deaf", "x" }), invalidation.Config{
		Heartbeat: 30 * time.Millisecond,
		Logger:    slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	l := listen(t, bus, "user")
	l.await(t, "a warning that names the channels", func(_, _ []string) bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), "&nearside:b:* ~nearside:b:*") && bus.Health().Problem != nil
	})
	if bus.Live() {
		t.Error("a bus without rights says that it hears")
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestOpenRefuses(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	var none *redis.Client
	if _, err := invalidation.Open(none, invalidation.Config{}); err == nil {
		t.Error("a nil client was taken")
	}
	for _, config := range []invalidation.Config{
		{Heartbeat: time.Millisecond}, {Heartbeat: -1}, {Silence: time.Millisecond}, {Budget: -1},
	} {
		if _, err := invalidation.Open(rdb, config); err == nil || !strings.Contains(err.Error(), "give at least") {
			t.Errorf("%+v: %v", config, err)
		}
	}
	bus := openBus(t, rdb, redistest.Shared(t).Prefix(t))
	if err := bus.Publish(t.Context(), "user", strings.Repeat("x", 64<<10)); err == nil {
		t.Error("a key that fits into no message was taken")
	}
}

// TestAQuietBusCostsByTheNumberOfProcesses: the heartbeats of n buses are n messages to n receivers, not n times n.
func TestAQuietBusCostsByTheNumberOfProcesses(t *testing.T) {
	const n = 10
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.PoolSize = 2 * n })
	var buses []*invalidation.Bus
	for range n {
		buses = append(buses, openBus(t, rdb, "quiet"))
	}
	l := listen(t, buses[0], "user")
	all := func(_, _ []string) bool {
		return !slices.ContainsFunc(buses, func(b *invalidation.Bus) bool { return !b.Live() || b.Health().LastBeat.IsZero() })
	}
	l.await(t, "all are live", all)
	receivers, err := server.Admin().PubSubNumSub(t.Context(), buses[0].Channel()).Result()
	if err != nil || receivers[buses[0].Channel()] != n {
		t.Fatalf("%v receivers, %v; want %d", receivers, err, n)
	}
	own, err := server.Admin().PubSubChannels(t.Context(), buses[0].Channel()+":*").Result()
	if err != nil || len(own) != n {
		t.Fatalf("%d channels for heartbeats, %v; want %d, each with one receiver", len(own), err, n)
	}
	for _, b := range buses {
		if h := b.Health(); h.Received != 0 || h.Malformed != 0 {
			t.Errorf("a quiet bus received %+v", h)
		}
	}
}

// TestAHiddenDatabase: the channel carries the number of the database; a client that hides it must not seem to hear.
func TestAHiddenDatabase(t *testing.T) {
	server := redistest.Shared(t)
	for number, hears := range map[int]bool{0: true, 1: false} {
		rdb := server.Client(t, func(o *redis.Options) { o.DB = number })
		bus := openBus(t, struct{ redis.UniversalClient }{rdb}, server.Prefix(t))
		l := listen(t, bus, "user")
		l.await(t, "it has looked, and subscribed", func(_, gaps []string) bool {
			h := bus.Health()
			return !h.LastBeat.IsZero() && bus.Live() == hears && (h.Problem == nil) == hears
		})
	}
}

func TestCloseIsAGap(t *testing.T) {
	server := redistest.Shared(t)
	bus := openBus(t, server.Client(t), server.Prefix(t))
	l := listen(t, bus, "user")
	l.await(t, "a live subscription", func(_, _ []string) bool { return bus.Live() })
	for range 2 {
		if err := bus.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := len(l.gaps); n == 0 || l.gaps[n-1] != invalidation.CauseClosed || bus.Health().Gaps[invalidation.CauseClosed] != 1 {
		t.Errorf("gaps %v; want the last one, once, for the close", l.gaps)
	}
	if h := bus.Health(); h.Live || bus.Live() || time.Since(h.Since) > time.Minute {
		t.Errorf("%+v after Close", h)
	}
	if err := bus.Publish(t.Context(), "user", "1"); !errors.Is(err, invalidation.ErrClosed) {
		t.Errorf("Publish after Close: %v", err)
	}
}

func TestANilBusHearsNothing(t *testing.T) {
	var bus *invalidation.Bus
	if err := bus.Close(); bus.Live() || bus.Health().Live || bus.Health().Problem == nil || err != nil {
		t.Errorf("%+v, %v", bus.Health(), err)
	}
}

// TestAPublishThatIsNotSentCostsNobodyAGap: its context has ended, so it takes no number.
func TestAPublishThatIsNotSentCostsNobodyAGap(t *testing.T) {
	server := redistest.Shared(t)
	namespace := server.Prefix(t)
	a, b := openBus(t, server.Client(t), namespace), openBus(t, server.Client(t), namespace)
	l := listen(t, b, "user")
	l.await(t, "both hear", func(_, _ []string) bool { return a.Live() && b.Live() })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Publish(ended, "user", "1"); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if err := a.Publish(t.Context(), "user", "2"); err != nil {
		t.Fatal(err)
	}
	from := b.Health().LastBeat
	l.await(t, "the other message, and time for a to tell its number", func(keys, _ []string) bool {
		return slices.Equal(keys, []string{"2"}) && b.Health().LastBeat.Sub(from) > 200*time.Millisecond
	})
	if n := b.Health().Gaps[invalidation.CauseMissing]; n != 0 {
		t.Errorf("%d messages are missing", n)
	}
}
