package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// scarce is a database that bears so many loads at once, and refuses more.
type scarce struct {
	bears int64
	takes time.Duration // a load

	running, most, refused atomic.Int64

	mu    sync.Mutex
	byKey map[string]int // guarded by mu; loads of each key that run
	twice int            // guarded by mu; loads of a key beside another of that key
}

var errTooMany = errors.New("too many connections")

func (s *scarce) load(ctx context.Context, key string) (string, error) {
	defer s.running.Add(-1)
	n := s.running.Add(1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	if n > s.bears {
		s.refused.Add(1)
		return "", errTooMany
	}
	s.enter(key, 1)
	defer s.enter(key, -1)
	select {
	case <-time.After(s.takes):
		return "row of " + key, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (s *scarce) enter(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[string]int{}
	}
	if s.byKey[key] += n; n > 0 && s.byKey[key] > 1 {
		s.twice++
	}
}

// twins returns how many loads of a key ran beside another of that key since it was last asked.
func (s *scarce) twins() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, s.twice = s.twice, 0
	return n
}

// traffic asks instances for keys, so many times a second, whether they answer or not.
type traffic struct {
	asked, failed atomic.Int64
	first         atomic.Pointer[error]
	stop          func()
}

func startTraffic(rate int, instances []*instance, key func() string) *traffic {
	tr := new(traffic)
	end := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		ticker := time.NewTicker(time.Second / time.Duration(rate))
		defer ticker.Stop()
		for n := 0; ; n++ {
			select {
			case <-end:
				return
			case <-ticker.C:
			}
			all.Go(func() {
				k := key()
				tr.asked.Add(1)
				v, err := instances[n%len(instances)].Get(context.Background(), k)
				if err == nil && v != "row of "+k {
					err = fmt.Errorf("%s is %q", k, v)
				}
				if err != nil {
					tr.failed.Add(1)
					tr.first.CompareAndSwap(nil, &err)
				}
			})
		}
	})
	tr.stop = sync.OnceFunc(func() { close(end); all.Wait() })
	return tr
}

// hotKey is one of a hundred hot keys in nine of ten cases, and else one of nine hundred others.
func hotKey() string {
	if rand.N(10) > 0 {
		return fmt.Sprint("hot-", rand.N(100))
	}
	return fmt.Sprint("cold-", rand.N(900))
}

// spared checks that the database was never asked for more than it bears.
func (s *scarce) spared(t *testing.T) {
	t.Helper()
	if s.most.Load() > s.bears || s.refused.Load() > 0 {
		t.Errorf("%d loads at once, %d refused; the database bears %d", s.most.Load(), s.refused.Load(), s.bears)
	}
}

// TestAnOutageOfTenSeconds at 500 requests a second, with a database that bears 20 loads of 20 ms at once.
func TestAnOutageOfTenSeconds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	db := &scarce{bears: 20, takes: 20 * time.Millisecond}
	i := openScarce(t, server.Client(t), db, 20, time.Second/2) // so that Redis is asked for more than once
	tr := startTraffic(500, []*instance{i}, hotKey)
	defer tr.stop()
	redisHits := func(since uint64) bool { return i.Stats().RedisHits > since+20 }
	eventually(t, "hits in Redis", func() bool { return redisHits(0) && i.Stats().LocalHits > 100 })

	server.Kill(t)
	<-time.After(10 * time.Second) // what the test is about
	during := i.Stats()
	if during.Degraded == 0 {
		t.Error("nothing was loaded without Redis")
	}
	server.StartAgain(t) // empty
	back := time.Now()
	hits := i.Stats().RedisHits
	eventually(t, "hits in Redis again", func() bool { return redisHits(hits) && i.client.Stats().SickNodes == 0 })
	t.Logf("hits in Redis %v after its return; %d answers, %d loads without Redis in 10 s, %d loads at once at most",
		time.Since(back).Round(time.Millisecond), tr.asked.Load(), during.Degraded, db.most.Load())
	tr.stop()
	db.spared(t)
	if n := tr.failed.Load(); n > 0 {
		t.Errorf("%d of %d Gets failed, first: %v", n, tr.asked.Load(), *tr.first.Load())
	}
}

// openScarce opens an instance on a scarce database, with default budgets. localTTL 0 is the default too.
func openScarce(t testing.TB, rdb redis.UniversalClient, db *scarce, loads int, localTTL time.Duration) *instance {
	t.Helper()
	client, err := cache.Open(rdb, cache.Config{Namespace: "scarce", MaxLoads: loads, Logger: slog.New(slog.DiscardHandler)})
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, client.Close()) })
	i := &instance{client: client}
	i.Cache, err = cache.New(client, "rows", cache.Single(db.load), cache.Policy{TTL: time.Hour, LocalTTL: localTTL, LocalEntries: 10_000})
	mustDo(t, err)
	eventually(t, "a bus that hears", i.live)
	return i
}

// TestC18: ten instances lose all they have at once. The bound of each is its share of what the database bears.
func TestC18_AnEmptyRedisBringsNoHerd(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	db := &scarce{bears: 20, takes: 200 * time.Millisecond}
	var instances []*instance
	for range 10 {
		instances = append(instances, openScarce(t, server.Client(t), db, 2, 0))
	}
	key := func() string { return fmt.Sprint("hot-", rand.N(200)) }
	ratio := func() float64 { // of the Gets of one tenth of a second that cost no load
		loads := func() (n uint64) {
			for _, i := range instances {
				n += i.Stats().Loads
			}
			return n
		}
		before := loads()
		<-time.After(100 * time.Millisecond)
		return 1 - float64(loads()-before)/50
	}
	for _, what := range []string{"at first", "empty"} {
		if what == "empty" {
			server.RestartEmpty(t)
			for _, i := range instances {
				eventually(t, "a bus that hears", func() bool { return i.live() && i.client.Stats().SickNodes == 0 })
				i.client.DropLocal()
			}
		}
		db.twins()
		tr := startTraffic(500, instances, key)
		defer tr.stop()
		eventually(t, "hits again", func() bool { return ratio() > 0.95 })
		tr.stop()
		db.spared(t)
		if first := tr.first.Load(); first != nil && !errors.Is(*first, cache.ErrOverloaded) {
			t.Errorf("%s: %d of %d Gets failed, first: %v", what, tr.failed.Load(), tr.asked.Load(), *first)
		}
		var degraded uint64 // by a busy machine: these have no lease
		for _, i := range instances {
			degraded += i.Stats().Degraded
		}
		if n := db.twins(); uint64(n) > degraded {
			t.Errorf("%s: %d loads of a key ran beside another of it, %d had no lease", what, n, degraded)
		}
	}
}
