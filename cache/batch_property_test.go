package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// batchRows is a source that remembers what it held: of each row, by version, whether it was there.
type batchRows struct {
	mu     sync.Mutex
	states map[string][]bool // guarded by mu
	floors map[string]int    // guarded by mu; the version that the last acknowledged Invalidate promises
}

// The keys look alike, so that one which is made of others would be found.
var batchKeys = []string{"a", "b", "a b", "ab", "a,b", "b a", "never there"}

func batchText(key string, version int) string { return fmt.Sprintf("%q of version %d", key, version) }

// commit writes a new version of each row, some of which are deletes, and returns the versions.
func (r *batchRows) commit(keys []string) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	versions := map[string]int{}
	for _, key := range keys {
		there := key != batchKeys[6] && (len(r.states[key])+len(key))%3 != 0
		r.states[key] = append(r.states[key], there)
		versions[key] = len(r.states[key]) - 1
	}
	return versions
}

// acknowledge says that an Invalidate has returned, which was called when the rows had some versions.
func (r *batchRows) acknowledge(versions map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, version := range versions {
		r.floors[key] = max(r.floors[key], version)
	}
}

func (r *batchRows) promised() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.floors)
}

func (r *batchRows) load(_ context.Context, keys []string) (map[string]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rows := map[string]string{}
	for _, key := range keys {
		if last := len(r.states[key]) - 1; r.states[key][last] {
			rows[key] = batchText(key, last)
		}
	}
	return rows, nil
}

// check says what is wrong with an answer: each key must be as the source had it at some time since the promised version.
func (r *batchRows) check(keys []string, got map[string]string, err error, promised map[string]int) error {
	if err != nil {
		return fmt.Errorf("an error, though the source is well: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := map[string]bool{}
	for _, key := range keys {
		asked[key] = true
		value, found := got[key]
		ok := false
		for version := promised[key]; version < len(r.states[key]); version++ {
			there := r.states[key][version]
			ok = ok || there == found && (!found || value == batchText(key, version))
		}
		if !ok {
			return fmt.Errorf("%q is %q, %v; promised is version %d or later of %v", key, value, found, promised[key], r.states[key])
		}
	}
	for key := range got {
		if !asked[key] {
			return fmt.Errorf("nobody asked for %q", key)
		}
	}
	return nil
}

// batchAction is a thing that happens in a history, to some keys, with repetitions.
type batchAction struct {
	what string
	keys []string
}

// batchActions do something with two processes on one Redis, of which here is the one that a proxy stands before. They return
// what is wrong with an answer.
var batchActions = map[string]func(ctx context.Context, w *batchWorld, keys []string) error{
	"get many":      func(ctx context.Context, w *batchWorld, keys []string) error { return w.getMany(ctx, w.here, keys) },
	"get many more": func(ctx context.Context, w *batchWorld, keys []string) error { return w.getMany(ctx, w.here, keys) },
	"get each": func(ctx context.Context, w *batchWorld, keys []string) error {
		for _, key := range keys {
			promised, got := w.promised(), map[string]string{}
			r, err := w.here.GetResult(ctx, key)
			if err == nil {
				got[key] = r.Value
			} else if errors.Is(err, cache.ErrNotFound) {
				err = nil
			}
			if err := w.check([]string{key}, got, err, promised); err != nil {
				return err
			}
		}
		return nil
	},
	"leave in Redis": func(ctx context.Context, w *batchWorld, keys []string) error {
		_, err := w.there.GetMany(ctx, keys)
		return err
	},
	"commit": func(_ context.Context, w *batchWorld, keys []string) error { w.commit(keys); return nil },
	"commit and invalidate": func(ctx context.Context, w *batchWorld, keys []string) error {
		versions := w.commit(keys)
		_ = w.here.Invalidate(ctx, keys...) // the promise holds with an error too
		w.acknowledge(versions)
		return nil
	},
	"commit and invalidate in haste": func(ctx context.Context, w *batchWorld, keys []string) error {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		versions := w.commit(keys)
		_ = w.here.Invalidate(ctx, keys...)
		w.acknowledge(versions)
		return nil
	},
	"commit and invalidate elsewhere": func(ctx context.Context, w *batchWorld, keys []string) error {
		w.commit(keys)
		return w.there.Invalidate(ctx, keys...)
	},
	"forget": func(_ context.Context, w *batchWorld, _ []string) error { w.clients[0].DropLocal(); return nil },
	"cut":    func(_ context.Context, w *batchWorld, _ []string) error { w.proxy.Cut(); return nil },
	"freeze replies": func(_ context.Context, w *batchWorld, _ []string) error {
		w.proxy.Freeze(redistest.ToClient)
		return nil
	},
	"freeze requests": func(_ context.Context, w *batchWorld, _ []string) error {
		w.proxy.Freeze(redistest.ToServer)
		return nil
	},
	"thaw":           func(_ context.Context, w *batchWorld, _ []string) error { w.proxy.Thaw(); return nil },
	"thaw once more": func(_ context.Context, w *batchWorld, _ []string) error { w.proxy.Thaw(); return nil },
}

// batchWorld is one source and one Redis with two processes.
type batchWorld struct {
	*batchRows
	proxy       *redistest.Proxy
	clients     []*cache.Client // of here and there
	here, there *cache.Cache[string, string]
}

func (w *batchWorld) getMany(ctx context.Context, rows *cache.Cache[string, string], keys []string) error {
	promised := w.promised()
	got, err := rows.GetMany(ctx, keys)
	return w.check(keys, got, err, promised)
}

// newBatchWorld opens two processes. What waits for a Redis that is frozen waits for 20 ms.
func newBatchWorld(namespace string, proxy *redistest.Proxy, here, there redis.UniversalClient) (w *batchWorld, closeAll func() error, err error) {
	w = &batchWorld{batchRows: &batchRows{states: map[string][]bool{}, floors: map[string]int{}}, proxy: proxy}
	w.commit(batchKeys)
	const soon = 20 * time.Millisecond
	policy := cache.Policy{
		TTL: time.Hour, LocalTTL: time.Hour, NegativeTTL: time.Hour, LeaseTTL: 100 * time.Millisecond, LeaseWait: 50 * time.Millisecond, LocalEntries: 100,
	}
	closeAll = func() (err error) {
		for _, client := range w.clients {
			if e := client.Close(); e != nil {
				err = e
			}
		}
		return err
	}
	for i, rdb := range []redis.UniversalClient{here, there} {
		budget := []time.Duration{soon, caseBudget}[i]
		client, err := cache.Open(rdb, cache.Config{
			Namespace: namespace, ReadBudget: budget, WriteBudget: budget, Heartbeat: cache.Off, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return nil, closeAll, err
		}
		w.clients = append(w.clients, client)
		rows, err := cache.New(client, "row", w.load, policy)
		if err != nil {
			return nil, closeAll, err
		}
		if i == 0 {
			w.here = rows
		} else {
			w.there = rows
		}
	}
	return w, closeAll, nil
}

// settle ends the faults, has all keys deleted, and checks that from then on nobody reads anything old, from no tier.
func (w *batchWorld) settle(ctx context.Context) error {
	w.proxy.Thaw()
	versions := w.commit(batchKeys)
	var err error
	if !within(patience, func() bool { err = w.here.Invalidate(ctx, batchKeys...); return err == nil }) {
		return fmt.Errorf("no delete is confirmed, though Redis is well: %w", err)
	}
	w.acknowledge(versions)
	w.clients[1].DropLocal() // without a bus it was told nothing
	for _, rows := range []*cache.Cache[string, string]{w.there, w.here, w.there} {
		if err := w.getMany(ctx, rows, batchKeys); err != nil {
			return fmt.Errorf("in the end: %w", err)
		}
	}
	return nil
}

// TestAnyBatchIsWhatSingleGetsCouldHaveReturned: whatever tiers hold its keys, whatever is invalidated and breaks beside it.
func TestAnyBatchIsWhatSingleGetsCouldHaveReturned(t *testing.T) {
	server := redistest.Shared(t)
	proxy := redistest.NewProxy(t, server.Addr())
	here := server.Client(t, func(o *redis.Options) { o.Addr, o.DialerRetries = proxy.Addr(), 1 })
	there, prefix, histories := server.Client(t), server.Prefix(t), 0

	names := slices.Sorted(maps.Keys(batchActions))
	action := rapid.Custom(func(t *rapid.T) batchAction {
		return batchAction{
			rapid.SampledFrom(names).Draw(t, "what"),
			rapid.SliceOfN(rapid.SampledFrom(batchKeys), 0, 12).Draw(t, "keys"),
		}
	})
	// A history is steps, and what stands in one step happens at once.
	history := rapid.SliceOfN(rapid.SliceOfN(action, 1, 4), 1, 12)
	rapid.Check(t, func(check *rapid.T) {
		steps := history.Draw(check, "history")
		histories++
		w, closeAll, err := newBatchWorld(fmt.Sprintf("%s%d", prefix, histories), proxy, here, there)
		defer func() {
			proxy.Thaw()
			if err := closeAll(); err != nil {
				check.Errorf("close: %v", err)
			}
		}()
		if err != nil {
			check.Fatal(err)
		}
		for n, step := range steps {
			errs := make([]error, len(step))
			var all sync.WaitGroup
			for i, a := range step {
				all.Go(func() { errs[i] = batchActions[a.what](t.Context(), w, a.keys) })
			}
			all.Wait()
			for i, err := range errs {
				if err != nil {
					check.Fatalf("step %d, %s %q: %v", n, step[i].what, step[i].keys, err)
				}
			}
		}
		if err := w.settle(t.Context()); err != nil {
			check.Fatal(err)
		}
	})
}
