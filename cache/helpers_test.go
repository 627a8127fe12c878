package cache_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// casePatience bounds the wait for what must happen.
const casePatience = 15 * time.Second

// caseBudget is for tests that are not about a slow Redis: a busy machine must not look like one.
const caseBudget = 4 * time.Second

// caseInstance is a client of its own, as another process would have it, without a bus.
type caseInstance struct {
	*cache.Client
	server *redistest.Server
}

// caseNamespace returns a namespace that nobody else uses.
func caseNamespace(t testing.TB) string {
	t.Helper()
	return redistest.Shared(t).Prefix(t)
}

// caseOpen opens an instance on the shared server. Those of one namespace share what stands in Redis.
func caseOpen(t testing.TB, namespace string) *caseInstance {
	t.Helper()
	return caseOpenOn(t, redistest.Shared(t), namespace)
}

func caseOpenOn(t testing.TB, server *redistest.Server, namespace string) *caseInstance {
	t.Helper()
	in := &caseInstance{server: server}
	rdb := server.Client(t)
	var err error
	in.Client, err = cache.Open(rdb, cache.Config{
		Namespace: namespace, ReadBudget: caseBudget, WriteBudget: caseBudget, Heartbeat: cache.Off, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// sent tells what the server saw and how many round trips the instance made while f ran. The server must be the instance's own.
func (in *caseInstance) sent(t testing.TB, f func()) (commands map[string]int, trips int) {
	t.Helper()
	in.Idle(t)
	before := in.Stats().RoundTrips
	commands = in.server.Commands(t, func() { f(); in.Idle(t) })
	return commands, int(in.Stats().RoundTrips - before)
}

// caseNew makes the one cache that most cases need of an instance. Its local tier is small, since that is quickly made, and its
// leases outlive any pause of the machine.
func caseNew[K comparable, V any](
	t testing.TB, in *caseInstance, loader cache.Loader[K, V], policy cache.Policy, hooks ...cache.Hooks[K, V],
) *cache.Cache[K, V] {
	t.Helper()
	if policy.LocalEntries == 0 {
		policy.LocalEntries = 1000
	}
	if policy.LeaseTTL == 0 {
		policy.LeaseTTL = 30 * time.Second
	}
	c, err := cache.New(in.Client, "case", loader, policy, hooks...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// caseRow is a row of a caseSource.
type caseRow struct {
	Key     string
	Version int
}

// caseSource is a database of rows with versions. It counts how it is asked, and can be held.
type caseSource struct {
	mu       sync.Mutex
	versions map[string]int
	batches  [][]string
	gate     chan struct{} // nil: loads go through
}

// caseRows returns a source with some rows of version 1.
func caseRows(keys ...string) *caseSource {
	s := &caseSource{versions: map[string]int{}}
	for _, key := range keys {
		s.versions[key] = 1
	}
	return s
}

// write commits a version of a row; 0 deletes it.
func (s *caseSource) write(key string, version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.versions[key] = version; version == 0 {
		delete(s.versions, key)
	}
}

// hold makes each load that begins from now on wait, after it has read its rows, until open is called.
func (s *caseSource) hold(t testing.TB) (open func()) {
	gate := make(chan struct{})
	s.mu.Lock()
	s.gate = gate
	s.mu.Unlock()
	open = sync.OnceFunc(func() {
		s.mu.Lock()
		s.gate = nil
		s.mu.Unlock()
		close(gate)
	})
	t.Cleanup(open)
	return open
}

// load is the loader of the source.
func (s *caseSource) load(ctx context.Context, keys []string) (map[string]caseRow, error) {
	s.mu.Lock()
	gate, rows := s.gate, make(map[string]caseRow, len(keys))
	for _, key := range keys {
		if version := s.versions[key]; version > 0 {
			rows[key] = caseRow{key, version}
		}
	}
	s.batches = append(s.batches, slices.Clone(keys))
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return rows, nil
}

// calls tells how often the source was asked.
func (s *caseSource) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.batches)
}

// asked returns all keys that the source was asked for, sorted.
func (s *caseSource) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(slices.Concat(s.batches...)))
}

// caseUntil returns when ok holds.
func caseUntil(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(casePatience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("this did not happen within %v: %s", casePatience, what)
		}
	}
}

// caseAnswer is what a call returned.
type caseAnswer[V any] struct {
	value V
	err   error
}

func (a caseAnswer[V]) String() string { return fmt.Sprintf("%+v, %v", a.value, a.err) }

// caseGo makes a call in a goroutine of its own.
func caseGo[V any](call func() (V, error)) <-chan caseAnswer[V] {
	answers := make(chan caseAnswer[V], 1)
	go func() {
		v, err := call()
		answers <- caseAnswer[V]{v, err}
	}()
	return answers
}

// caseTake returns the answer of a call.
func caseTake[V any](t testing.TB, answers <-chan caseAnswer[V]) caseAnswer[V] {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(casePatience):
		t.Fatalf("a call did not return within %v", casePatience)
		panic("not reached")
	}
}

// caseExists tells how many of some physical keys stand in Redis.
func caseExists(t testing.TB, physical ...string) int {
	t.Helper()
	n, err := redistest.Shared(t).Admin().Exists(context.Background(), physical...).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// casePTTL returns what PTTL says, in milliseconds: -1 for a key that never ends, -2 for none.
func casePTTL(t testing.TB, physical string) int64 {
	t.Helper()
	ms, err := redistest.Shared(t).Admin().Do(context.Background(), "pttl", physical).Int64()
	if err != nil {
		t.Fatal(err)
	}
	return ms
}
