package cache_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestC65_CancellingABatchHarmsNoOtherCaller(t *testing.T) {
	const n, at = 700, 650 // the key that another caller wants is in the second round trip
	keys := batchNames(1, n)
	for name, hold := range map[string]func(t *testing.T, w *world, i *instance) *gate{
		"in the load":       func(t *testing.T, w *world, _ *instance) *gate { return w.source.hold(t) },
		"in the first trip": func(t *testing.T, _ *world, i *instance) *gate { return i.valve.after(t, aRead).gate },
		"between the trips of the read": func(t *testing.T, _ *world, i *instance) *gate {
			return i.valve.before(t, func(_ context.Context, cmd redis.Cmder) bool {
				return aRead(context.Background(), cmd) && holds(cmd, i.PhysicalKey(t, keys[at]))
			}).gate
		},
		"between the trips of the leases": func(t *testing.T, _ *world, i *instance) *gate {
			return i.valve.before(t, func(_ context.Context, cmd redis.Cmder) bool {
				return aScript(context.Background(), cmd) && holds(cmd, i.PhysicalKey(t, keys[at]))
			}).gate
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			i := w.instance(t, valved)
			w.warmUp(t, i)
			for _, key := range keys {
				w.put(key, v1)
			}
			before := i.Stats()
			gate := hold(t, w, i)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			batch := caseGo(func() (map[string]string, error) { return i.GetMany(ctx, keys) })
			gate.await(t, "the batch")
			one := i.startGet(t.Context(), keys[at])
			batchJoined(t, i.Cache, before.Joined+1)
			cancel()
			if a := caseTake(t, batch); !errors.Is(a.err, context.Canceled) { // while all is held
				t.Errorf("the caller that was cancelled got %d rows, %v", len(a.value), a.err)
			}
			gate.open()
			receive(t, "the caller that was not", one).must(t, v1)
			i.client.Idle(t)
			s := i.Stats()
			if loads := s.Loads - before.Loads; loads != n {
				t.Errorf("%d loads for %d keys", loads, n)
			}
			if fills := s.Fills - before.Fills; fills != n {
				t.Errorf("%d of %d keys that were loaded are kept", fills, n)
			}
		})
	}
	t.Run("between the calls of Single", func(t *testing.T) {
		in, source := caseOpen(t, caseNamespace(t)), caseRows(keys...)
		rows := caseNew(t, in, cache.Single(func(ctx context.Context, key string) (caseRow, error) {
			all, err := source.load(ctx, []string{key})
			return all[key], err
		}), cache.Policy{TTL: time.Minute})
		open := source.hold(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		batch := caseGo(func() (map[string]caseRow, error) { return rows.GetMany(ctx, keys[:40]) })
		caseUntil(t, "16 calls are under way", func() bool { return source.calls() == 16 })
		one := caseGo(func() (caseRow, error) { return rows.Get(t.Context(), keys[39]) })
		batchJoined(t, rows, 1)
		cancel()
		if a := caseTake(t, batch); !errors.Is(a.err, context.Canceled) {
			t.Errorf("the caller that was cancelled got %d rows, %v", len(a.value), a.err)
		}
		open()
		if a := caseTake(t, one); a.err != nil || a.value != (caseRow{keys[39], 1}) {
			t.Errorf("the caller that was not got %v", a)
		}
		in.Idle(t)
		if asked := source.asked(); !slices.Equal(asked, keys[:40]) {
			t.Errorf("the source was asked for %q, want each key once", asked)
		}
	})
}

// TestC67_NoBatchIsSentTwice: the client of go-redis gives up before our budget ends, and would send again by its own defaults.
func TestC67_NoBatchIsSentTwice(t *testing.T) {
	server, ctx, keys := redistest.Start(t), t.Context(), batchNames(1, 10)
	rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout = 200 * time.Millisecond })
	hidden := struct{ redis.UniversalClient }{rdb} // no clone with time-outs and retries of its own can be made of it
	client := open(t, hidden, cache.Config{Namespace: server.Prefix(t), ReadBudget: patience, WriteBudget: patience, Logger: slog.New(slog.DiscardHandler)})
	rows := mustNew(t, client, "row", loadText[string], cache.Policy{TTL: time.Minute, LeaseTTL: time.Minute})
	mustDo(t, rows.SetMany(ctx, map[string]string{"a": "1", "b": "2"})) // teaches the scripts
	mustDo(t, rows.Invalidate(ctx, "a", "b"))

	before := calls(t, server, "evalsha")
	server.Pause(t)
	err := rows.Invalidate(ctx, keys...)
	server.Resume(t)
	var failed *cache.KeyErrors[string]
	if !errors.Is(err, cache.ErrUnconfirmed) || !errors.As(err, &failed) || len(failed.ByKey) != len(keys) {
		t.Errorf("%v; want that nothing is known of any key", err)
	}
	eventually(t, "the server runs what it got", func() bool { return calls(t, server, "evalsha") >= before+len(keys) })
	// What was sent again would be at the server too by now, and runs before what is sent after it.
	mustDo(t, rows.Invalidate(ctx, keys...))
	if n := calls(t, server, "evalsha") - before; n != 2*len(keys) {
		t.Errorf("%d scripts ran for two Invalidates of %d keys", n, len(keys))
	}
	if n := rows.Stats().UnconfirmedKeys; n != 0 {
		t.Errorf("%d keys are unconfirmed after the second", n)
	}
}

// scissors cut the connections of one client after they have received some bytes.
type scissors struct {
	mu    sync.Mutex
	armed bool // guarded by mu
	left  int  // guarded by mu
}

func (s *scissors) arm(after int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed, s.left = true, after
}

func (s *scissors) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &cutConn{conn, s}, err
}

type cutConn struct {
	net.Conn
	scissors *scissors
}

// Read receives at most what is left, and cuts once nothing is. The next connection is left alone.
func (c *cutConn) Read(b []byte) (int, error) {
	s := c.scissors
	s.mu.Lock()
	armed, left := s.armed, s.left
	if armed && left == 0 {
		s.armed = false
		s.mu.Unlock()
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	s.mu.Unlock()
	if !armed {
		return c.Conn.Read(b)
	}
	n, err := c.Conn.Read(b[:min(len(b), left)])
	s.mu.Lock()
	s.left -= n
	s.mu.Unlock()
	return n, err
}

func TestC68_ACutBatchKeepsTheRepliesItHas(t *testing.T) {
	const size, part = 10 << 10, 500 // keys in a round trip
	namespace, ctx, keys := caseNamespace(t), t.Context(), batchNames(1, 1000)
	text := func(key string) string { return strings.Repeat(key, size/len(key)) }
	values := map[string]string{}
	for _, key := range keys {
		values[key] = text(key)
	}
	var asked []string
	loader := func(_ context.Context, keys []string) (map[string]string, error) {
		rows := map[string]string{}
		for _, key := range keys {
			rows[key] = text(key)
		}
		asked = append(asked, keys...)
		return rows, nil
	}
	server, cut := redistest.Shared(t), &scissors{}
	rdb := server.Client(t, func(o *redis.Options) { o.Dialer, o.DialerRetries, o.MaxRetries = cut.dial, 1, -1 })
	client := open(t, rdb, cache.Config{Namespace: namespace, ReadBudget: patience, WriteBudget: patience})
	rows := mustNew(t, client, "case", loader, cache.Policy{TTL: time.Hour, LocalTTL: cache.Off})
	mustDo(t, rows.SetMany(ctx, values))
	raw, err := server.Admin().Get(ctx, rows.PhysicalKey(t, keys[0])).Result()
	mustDo(t, err)
	reply := len(fmt.Sprintf("$%d\r\n\r\n", len(raw))) + len(raw)
	const slack = 16 // what may come before the first reply

	random := rand.New(rand.NewPCG(6, 8))
	for round := range 100 {
		after := random.IntN(len(keys) * reply)
		asked = nil
		cut.arm(after)
		got, err := rows.GetMany(ctx, keys)
		cut.arm(1 << 40)
		client.Idle(t)
		if err != nil || len(got) != len(keys) {
			t.Fatalf("round %d, cut after %d bytes: %d rows, %v", round, after, len(got), err)
		}
		for key, value := range got {
			if value != values[key] {
				t.Fatalf("round %d, cut after %d bytes: %s is %d bytes: %.100q", round, after, key, len(value), value)
			}
		}
		if lost := len(keys) - max(0, after-2*slack)/reply; len(asked) > lost {
			t.Errorf("round %d, cut after %d bytes: the loader was asked for %d keys; at most %d replies were not read", round, after, len(asked), lost)
		}
		if after > reply+slack && len(asked) > part {
			t.Errorf("round %d, cut after %d bytes: the loader was asked for %d keys, more than one round trip has", round, after, len(asked))
		}
	}
}
