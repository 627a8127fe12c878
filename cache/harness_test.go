package cache_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// What the rows of a source hold: long enough not to turn up by chance in the random parts of a frame.
const (
	v0 = "value-zero"
	v1 = "value-one"
	v2 = "value-two"
	v3 = "value-three"
)

// patience is how long a test waits for what must happen. Budgets that are not what a test is about are as long, so that a busy
// machine does not look like a sick Redis.
const patience = 15 * time.Second

// world is one Redis, one source and the name under which instances find one another.
type world struct {
	*source
	server    *redistest.Server
	namespace string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, redistest.Shared(t))
}

func newWorldOn(t testing.TB, server *redistest.Server) *world {
	return &world{source: &source{rows: map[string]string{}}, server: server, namespace: server.Prefix(t)}
}

// instance is a client with one cache, as one process has it.
type instance struct {
	*cache.Cache[string, string]
	client *cache.Client
	rdb    *redis.Client
	valve  *valve // of a valved instance
}

// setup is what an instance is made of.
type setup struct {
	redis  redis.Options // what stands here is put into the options of its Redis client: Addr, Dialer, DialerRetries, ClientName
	config cache.Config
	policy cache.Policy
	loader cache.Loader[string, string]
	valved bool
	once   bool // what Redis does not confirm is not tried again
}

// instance makes an instance with a Redis client of its own. Its budgets are long, its local tier keeps for a minute.
func (w *world) instance(t testing.TB, change ...func(*setup)) *instance {
	t.Helper()
	s := setup{
		config: cache.Config{Namespace: w.namespace, ReadBudget: patience, WriteBudget: patience},
		policy: cache.Policy{TTL: 10 * time.Minute},
		loader: w.load,
	}
	for _, c := range change {
		c(&s)
	}
	rdb := w.server.Client(t, func(o *redis.Options) {
		o.Dialer, o.DialerRetries, o.ClientName, o.ReadTimeout = s.redis.Dialer, s.redis.DialerRetries, s.redis.ClientName, patience
		if s.redis.Addr != "" {
			o.Addr = s.redis.Addr
		}
	})
	i := openInstance(t, rdb, s)
	t.Cleanup(func() {
		if err := i.client.Close(); err != nil && !errors.Is(err, cache.ErrUnconfirmed) && i.Stats().UnconfirmedKeys == 0 && !t.Failed() {
			t.Errorf("close: %v", err)
		}
	})
	return i
}

// openInstance makes an instance on a Redis client. The caller closes it. It has no bus, unless its setup says how often it beats.
func openInstance(t testing.TB, rdb *redis.Client, s setup) *instance {
	t.Helper()
	if s.config.Logger == nil {
		s.config.Logger = slog.New(slog.DiscardHandler)
	}
	if s.config.Heartbeat == 0 {
		s.config.Heartbeat = cache.Off
	}
	i := &instance{rdb: rdb}
	var universal redis.UniversalClient = rdb
	if s.valved {
		i.valve = &valve{}
		t.Cleanup(i.valve.releaseAll)
		rdb.AddHook(i.valve)
		// The clones that a cache makes of a *redis.Client have no hooks: hide what it is.
		universal = struct{ redis.UniversalClient }{rdb}
	}
	var err error
	if i.client, err = cache.Open(universal, s.config); err != nil {
		t.Fatal(err)
	}
	if s.once {
		i.client.RetryEvery(time.Hour)
	}
	if i.Cache, err = cache.New(i.client, "users", s.loader, s.policy); err != nil {
		i.client.Close()
		t.Fatal(err)
	}
	return i
}

// localTTL bounds how long an instance may serve what another one invalidated.
func localTTL(d time.Duration) func(*setup) { return func(s *setup) { s.policy.LocalTTL = d } }

// valved gives an instance a valve.
func valved(s *setup) { s.valved = true }

// forgetful makes an instance keep nothing of what it loads without Redis.
func forgetful(s *setup) { s.config.DegradedTTL = time.Millisecond }

// once lets an instance try a delete once.
func once(s *setup) { s.once = true }

// through points an instance at a proxy.
func through(p *redistest.Proxy) func(*setup) { return func(s *setup) { s.redis.Addr = p.Addr() } }

// warmUp makes Redis know the scripts, and the client the server's clock.
func (w *world) warmUp(t testing.TB, i *instance) {
	t.Helper()
	const key = "warm-up"
	mustDo(t, i.Set(t.Context(), key, v0))
	mustDo(t, i.Invalidate(t.Context(), key))
	if _, err := i.Get(t.Context(), key); !errors.Is(err, cache.ErrNotFound) {
		t.Fatalf("warm-up: %v", err)
	}
	i.client.Idle(t)
	mustDo(t, i.Invalidate(t.Context(), key))
}

// raw returns the bytes that Redis holds for a key, "" if there are none.
func (w *world) raw(t testing.TB, i *instance, key string) string {
	t.Helper()
	raw, err := w.server.Admin().Get(context.Background(), i.PhysicalKey(t, key)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return raw
}

// holds checks that Redis holds a value for a key.
func (w *world) holds(t testing.TB, i *instance, key, value string) {
	t.Helper()
	if raw := w.raw(t, i, key); !strings.HasSuffix(raw, value) {
		t.Errorf("Redis holds %q for %q, want %s", raw, key, value)
	}
}

// lacks checks that Redis does not hold a value for a key.
func (w *world) lacks(t testing.TB, i *instance, key, value string) {
	t.Helper()
	if raw := w.raw(t, i, key); strings.Contains(raw, value) {
		t.Errorf("Redis holds %s for %q: %q", value, key, raw)
	}
}

// mustGet checks that a Get that begins now returns a value.
func (i *instance) mustGet(t testing.TB, key, want string) {
	t.Helper()
	if v, err := i.Get(t.Context(), key); v != want || err != nil {
		t.Errorf("Get(%q) = %q, %v; want %s", key, v, err, want)
	}
}

// mustGetFrom checks the value and the tier of a Get that begins now.
func (i *instance) mustGetFrom(t testing.TB, key, want string, tier cache.Tier) {
	t.Helper()
	r, err := i.GetResult(t.Context(), key)
	if r.Value != want || r.Tier != tier || err != nil {
		t.Errorf("GetResult(%q) = %q from %v (%s), %v; want %s from %v", key, r.Value, r.Tier, r.Why, err, want, tier)
	}
}

// redisErrors is the number of errors of Redis that the client has counted.
func (i *instance) redisErrors() (n uint64) {
	for _, count := range i.client.Stats().RedisErrors {
		n += count
	}
	return n
}

// answer is what a call that ran beside the test returned.
type answer struct {
	value string
	err   error
}

func (a answer) must(t testing.TB, want string) {
	t.Helper()
	if a.value != want || a.err != nil {
		t.Errorf("a Get returned %q, %v; want %s", a.value, a.err, want)
	}
}

// oneOf checks that the answer is one of some values: never an error, and never an empty value.
func (a answer) oneOf(t testing.TB, values ...string) {
	t.Helper()
	if a.err != nil || !slices.Contains(values, a.value) {
		t.Errorf("a Get returned %q, %v; want one of %v", a.value, a.err, values)
	}
}

// start calls f beside the test.
func start(f func() (string, error)) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		v, err := f()
		out <- answer{v, err}
	}()
	return out
}

// startGet begins a Get beside the test.
func (i *instance) startGet(ctx context.Context, key string) <-chan answer {
	return start(func() (string, error) { return i.Get(ctx, key) })
}

// startInvalidate begins an Invalidate beside the test.
func (i *instance) startInvalidate(ctx context.Context, key string) <-chan answer {
	return start(func() (string, error) { return "", i.Invalidate(ctx, key) })
}

// receive waits for what must come.
func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		panic("not reached")
	}
}

// eventually waits for a state that can be observed and not be heard of.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !within(patience, ok) {
		t.Fatalf("not within %v: %s", patience, what)
	}
}

// within tells whether a state is reached in time.
func within(d time.Duration, ok func() bool) bool {
	for deadline := time.Now().Add(d); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
