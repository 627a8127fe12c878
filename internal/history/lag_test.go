package history

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
	"github.com/go-nearside/nearside/invalidation"
)

// BenchmarkLag measures the time from the call of Invalidate to the drop in another instance, and the same for what people write
// by hand: DEL, PUBLISH, and a ristretto cache behind PubSub.Channel. They take turns.
func BenchmarkLag(b *testing.B) {
	server := redistest.Start(b)
	arrived := make(chan time.Time, 1)

	source := database{server.Client(b)}
	here, rowsHere, err := openCache(server.Client(b), source, "lag", true)
	if err != nil {
		b.Fatal(err)
	}
	defer here.Close()
	there, _, err := openCache(server.Client(b), source, "lag", true)
	if err != nil {
		b.Fatal(err)
	}
	defer there.Close()
	there.Bus().Subscribe(cacheName, invalidation.Handler{Keys: func([]string) { arrived <- time.Now() }})
	eventually(b, "both hear", func() bool { return here.Bus().Live() && there.Bus().Live() })

	ctx := context.Background()
	hand := server.Client(b)
	near, err := ristretto.NewCache(&ristretto.Config[string, string]{NumCounters: 1000, MaxCost: 1000, BufferItems: 64})
	if err != nil {
		b.Fatal(err)
	}
	defer near.Close()
	pubsub := server.Client(b).Subscribe(ctx, "by-hand")
	defer pubsub.Close()
	if _, err := pubsub.Receive(ctx); err != nil {
		b.Fatal(err)
	}
	messages := pubsub.Channel()
	go func() {
		for m := range messages {
			near.Del(m.Payload)
			arrived <- time.Now()
		}
	}()

	ways := []struct {
		name string
		call func(key string) error
		took []time.Duration
	}{
		{name: "nearside", call: func(key string) error { return rowsHere.Invalidate(ctx, key) }},
		{name: "two-calls", call: func(key string) error {
			if err := hand.Del(ctx, key).Err(); err != nil {
				return err
			}
			return hand.Publish(ctx, "by-hand", key).Err()
		}},
		{name: "one-pipeline", call: func(key string) error {
			_, err := hand.Pipelined(ctx, func(p redis.Pipeliner) error {
				p.Del(ctx, key)
				p.Publish(ctx, "by-hand", key)
				return nil
			})
			return err
		}},
	}
	for i := range b.N {
		for w := range ways {
			began := time.Now()
			if err := ways[w].call("key-" + strconv.Itoa(i)); err != nil {
				b.Fatal(err)
			}
			ways[w].took = append(ways[w].took, (<-arrived).Sub(began))
		}
	}
	at := func(took []time.Duration, part float64) float64 {
		slices.Sort(took)
		return float64(took[int(part*float64(len(took)-1))].Nanoseconds())
	}
	for _, w := range ways {
		b.ReportMetric(at(w.took, 0.5)/1000, w.name+"-p50-µs")
		b.ReportMetric(at(w.took, 0.99)/1000, w.name+"-p99-µs")
	}
	b.ReportMetric(at(ways[0].took, 0.5)/at(ways[1].took, 0.5), "p50-ratio")
	b.ReportMetric(at(ways[0].took, 0.99)/at(ways[1].took, 0.99), "p99-ratio")
	b.ReportMetric(0, "ns/op")
}

// TestAStoppedReader: a process that stands still costs Redis a bounded buffer and nobody else anything; when it goes on, it does
// not serve what it slept through.
func TestAStoppedReader(t *testing.T) {
	top := standalone(t)
	server := top.server
	limit := 1 << 20
	server.Config(t, "client-output-buffer-limit", fmt.Sprintf("pubsub %d 0 0", limit))
	w := &world{topology: top, namespace: "stopped", source: database{redistest.Shared(t).Client(t)}}
	var keys []string
	for i := range 2000 {
		keys = append(keys, fmt.Sprintf("stopped-%d", i))
	}
	w.check = newChecker(t, bound, keys)
	writer := w.openLocal(t, "writer", top.client(t), true)
	w.member = w.startMember(t, "member")
	ctx := t.Context()
	first, _, err := w.commit(ctx, keys[0])
	if err != nil {
		t.Fatal(err)
	}
	if v, err := w.member.get(ctx, keys[0]); v != first || err != nil {
		t.Fatalf("%q, %v", v, err)
	}
	subscribers := func() (list []string) {
		for line := range strings.Lines(server.Admin().Do(ctx, "client", "list", "type", "pubsub").String()) {
			if strings.Contains(line, "omem=") {
				list = append(list, line)
			}
		}
		return list
	}
	buffered := func() (most int) {
		for _, line := range subscribers() {
			_, rest, _ := strings.Cut(line, " tot-mem=")
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			most = max(most, n)
		}
		return most
	}
	eventually(t, "two subscribers", func() bool { return len(subscribers()) == 2 && writer.client.Bus().Live() })

	if err := w.member.pause(); err != nil {
		t.Fatal(err)
	}
	second, _, err := w.commit(ctx, keys[0])
	if err != nil {
		t.Fatal(err)
	}
	sent, most := 0, 0
	for len(subscribers()) == 2 {
		if err := writer.rows.Invalidate(ctx, keys...); err != nil {
			t.Fatal(err)
		}
		sent += len(keys)
		most = max(most, buffered())
		if sent > 1_000_000 {
			t.Fatal("Redis did not close the connection")
		}
	}
	t.Logf("Redis closed the reader's connection after %d messages; it had used at most %d KiB for it", sent, most>>10)
	if most > 2*limit {
		t.Errorf("Redis used %d bytes for the reader, with a limit of %d", most, limit)
	}
	if err := w.member.resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the member answers with what was written while it stood", func() bool {
		v, err := w.member.get(ctx, keys[0])
		return v == second && err == nil
	})
}
