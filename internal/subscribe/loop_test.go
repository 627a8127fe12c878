package subscribe_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
	"github.com/go-nearside/nearside/internal/subscribe"
)

func TestMain(m *testing.M) { redistest.Run(m) }

// start begins a subscription that the end of the test ends. lost gets the causes for which connections were given up.
func start(t *testing.T, rdb *redis.Client, silence time.Duration, live func()) (l *subscribe.Loop, lost chan string) {
	t.Helper()
	lost = make(chan string, 10_000)
	l = subscribe.Start(rdb, subscribe.Config{
		Channels: []string{redistest.Shared(t).Prefix(t)}, Silence: silence,
		Live: live, Lost: func(cause string, _ error) { lost <- cause }, Message: func(string, string) {},
	})
	t.Cleanup(func() {
		if left := l.Close(10 * time.Second); left > 0 {
			t.Errorf("%d goroutines are left", left)
		}
	})
	return l, lost
}

// TestAHeartbeatCountsFromWhenItWasSent: heartbeats that come, and are old, do not hold off the silence.
func TestAHeartbeatCountsFromWhenItWasSent(t *testing.T) {
	live := make(chan struct{}, 100)
	l, lost := start(t, redistest.Shared(t).Client(t), 400*time.Millisecond, func() { live <- struct{}{} })
	<-live
	often := time.NewTicker(10 * time.Millisecond)
	defer often.Stop()
	deadline := time.After(15 * time.Second)
	for {
		select {
		case cause := <-lost:
			if cause != subscribe.CauseSilence {
				t.Errorf("given up for %s", cause)
			}
			return
		case <-often.C:
			l.Beat(time.Now().Add(-time.Minute))
		case <-deadline:
			t.Fatal("heartbeats of a minute ago kept the connection")
		}
	}
}

// TestAConnectionThatBringsNothingIsNotMadeAnewAtOnce: one that is confirmed and then breaks, without a heartbeat, again and again.
func TestAConnectionThatBringsNothingIsNotMadeAnewAtOnce(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Shared(t).Addr())
	var lives atomic.Int64
	began := time.Now()
	_, lost := start(t, redistest.Shared(t).Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), 10*time.Second, func() {
		lives.Add(1)
		go proxy.Cut()
	})
	for range 6 {
		select {
		case <-lost:
		case <-time.After(15 * time.Second):
			t.Fatalf("%d connections, and no other", lives.Load())
		}
	}
	// The pauses between six are 20, 40, 80, 160 and 320 ms.
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("six connections within %v", took)
	}
}
