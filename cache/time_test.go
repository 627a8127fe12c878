package cache_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
)

// inFakeTime runs a test in a bubble where time passes as soon as everybody waits, with a Redis whose TTLs follow that time.
func inFakeTime(t *testing.T, test func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client)) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		t.Cleanup(server.Close)
		test(t, server, func() *cache.Client {
			return open(t, dialFake(t, server), cache.Config{})
		})
	})
}

// dialFake makes a Redis client inside the bubble.
func dialFake(t *testing.T, server *miniredis.Miniredis) *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr:   "127.0.0.1:1", // never dialled; a name would be looked up outside of the bubble
		Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// TestLeaseIsRenewedWhileItsLoadRuns: a load that takes three times as long as the lease still runs once for two processes.
func TestLeaseIsRenewedWhileItsLoadRuns(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		policy := cache.Policy{TTL: time.Hour, LeaseTTL: 3 * time.Second, LoadTimeout: 20 * time.Second}
		slow := func(ctx context.Context, keys []int) (map[int]string, error) {
			time.Sleep(9 * time.Second)
			return loadText(ctx, keys)
		}
		a := mustNew(t, dial(), "user", slow, policy)
		b := mustNew(t, dial(), "user", slow, policy)
		began := time.Now()
		done := make(chan cache.Result[string], 2)
		for _, c := range []*cache.Cache[int, string]{a, b} {
			go func() {
				r, err := c.GetResult(t.Context(), 1)
				if err != nil {
					t.Error(err)
				}
				done <- r
			}()
		}
		tiers := map[cache.Tier]int{(<-done).Tier: 1}
		tiers[(<-done).Tier]++
		if loads := a.Stats().Loads + b.Stats().Loads; loads != 1 || tiers[cache.TierRedis] != 1 {
			t.Errorf("%d loads, answers from %v; want one load and one answer from Redis", loads, tiers)
		}
		if took := time.Since(began); took > 9*time.Second+200*time.Millisecond {
			t.Errorf("the wait for a load of 9 s took %v", took)
		}
	})
}

// TestAWriteKeepsItsLeaseBesideClose: the writer's lease is renewed while the write goes on.
func TestAWriteKeepsItsLeaseBesideClose(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client) {
		client := dial()
		rows := mustNew(t, client, "user", loadText[int], cache.Policy{TTL: time.Hour, LeaseTTL: 300 * time.Millisecond})
		_, _ = rows.Update(t.Context(), 1, func(context.Context) (string, error) {
			go func() { _ = client.Close() }()
			synctest.Wait()
			for passed := time.Duration(0); passed < time.Second; passed += 50 * time.Millisecond {
				if !server.Exists(rows.PhysicalKey(t, 1)) {
					t.Errorf("the lease is gone after %v", passed)
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			return "new", nil
		})
	})
}

// TestLeaseOfADeadHolderEnds: the holder is gone without a word; the next one loads when its lease is over, and fills.
func TestLeaseOfADeadHolderEnds(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client) {
		policy := cache.Policy{TTL: time.Hour, LeaseTTL: 3 * time.Second}
		ctx, cancel := context.WithCancel(t.Context())
		client := dial()
		gone := mustNew(t, client, "user", func(context.Context, []int) (map[int]string, error) {
			server.SetError("ERR this process hears nothing any more") // so that the holder cannot give its lease back
			cancel()
			return nil, context.Canceled
		}, policy)
		if _, err := gone.Get(ctx, 1); err == nil {
			t.Fatal("the dead process answers")
		}
		_ = client.Close() // it tries no more
		server.SetError("")

		next := mustNew(t, dial(), "user", loadText[int], policy)
		began := time.Now()
		r, err := next.GetResult(t.Context(), 1)
		if took := time.Since(began); err != nil || r.Why != cache.WhyMiss || took < 2*time.Second || took > 4*time.Second {
			t.Errorf("%+v, %v after %v; want a load under a lease of its own after about 3 s", r, err, took)
		}
	})
}

// TestALostFillHoldsUpNobody: neither its value nor its lease came to Redis' end. Here the value is kept for a while, and the lease is given
// back as soon as Redis answers again.
func TestALostFillHoldsUpNobody(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client) {
		policy := cache.Policy{TTL: time.Hour, LeaseTTL: 10 * time.Second}
		client := dial()
		holder := mustNew(t, client, "user", func(ctx context.Context, keys []int) (map[int]string, error) {
			server.SetError("ERR away")
			return loadText(ctx, keys)
		}, policy)
		_, err := holder.Get(t.Context(), 1)
		mustDo(t, err)
		client.Idle(t)
		server.SetError("")
		if r, err := holder.GetResult(t.Context(), 1); r.Tier != cache.TierLocal || err != nil {
			t.Errorf("after a lost fill: %+v, %v; want what was loaded", r, err)
		}
		other := mustNew(t, dial(), "user", loadText[int], policy)
		began := time.Now()
		if r, err := other.GetResult(t.Context(), 1); r.Why != cache.WhyMiss || err != nil {
			t.Errorf("elsewhere: %+v, %v; want a load under a lease of its own", r, err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the lease of the lost fill stood for %v", took)
		}
	})
}

// TestLeaseWaitEnds: who waited for LeaseWait loads for itself, and fills nothing.
func TestLeaseWaitEnds(t *testing.T) {
	inFakeTime(t, func(t *testing.T, _ *miniredis.Miniredis, dial func() *cache.Client) {
		hung := make(chan struct{})
		holder := mustNew(t, dial(), "user", func(ctx context.Context, keys []int) (map[int]string, error) {
			<-hung
			return loadText(ctx, keys)
		}, cache.Policy{TTL: time.Hour, LoadTimeout: time.Minute})
		go func() { _, _ = holder.Get(t.Context(), 1) }()
		synctest.Wait()
		waiter := mustNew(t, dial(), "user", loadText[int], cache.Policy{TTL: time.Hour, LeaseWait: 2 * time.Second})
		began := time.Now()
		r, err := waiter.GetResult(t.Context(), 1)
		if took := time.Since(began); err != nil || r.Why != cache.WhyWait || took < 2*time.Second || took > 2200*time.Millisecond {
			t.Errorf("%+v, %v after %v; want a load after 2 s of waiting", r, err, took)
		}
		if s := waiter.Stats(); s.LeaseTimeouts != 1 || s.Fills+s.LocalFills != 0 {
			t.Errorf("%+v; want one wait that ended, and no fill", s)
		}
		close(hung)
	})
}

// TestTimesOfAnEntry: an hour in Redis, a minute here, half a minute of "not found".
func TestTimesOfAnEntry(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis, dial func() *cache.Client) {
		began := time.Now()
		client := dial()
		users := mustNew(t, client, "user", func(ctx context.Context, keys []int) (map[int]string, error) {
			rows, err := loadText(ctx, keys)
			delete(rows, 404)
			return rows, err
		}, cache.Policy{TTL: time.Hour, Jitter: cache.Off})
		ask := func(key int, want cache.Tier) {
			t.Helper()
			r, err := users.GetResult(t.Context(), key)
			client.Idle(t)
			if r.Tier != want {
				t.Errorf("after %v: key %d comes from %v (%v), want %v", time.Since(began), key, r.Tier, err, want)
			}
		}
		ask(1, cache.TierLoader)
		ask(404, cache.TierLoader)
		if ttl := server.TTL(users.PhysicalKey(t, 404)); ttl != 30*time.Second {
			t.Errorf("Redis keeps \"not found\" for %v, want 30 s", ttl)
		}
		time.Sleep(29 * time.Second)
		ask(404, cache.TierLocal)
		time.Sleep(2 * time.Second)
		ask(404, cache.TierLoader)
		time.Sleep(28 * time.Second)
		ask(1, cache.TierLocal) // 59 s
		time.Sleep(2 * time.Second)
		ask(1, cache.TierRedis) // 61 s
		time.Sleep(58*time.Minute + 50*time.Second)
		ask(1, cache.TierRedis) // 59 min 51 s
		time.Sleep(8 * time.Second)
		ask(1, cache.TierLocal) // 59 min 59 s: for a minute, but not beyond Redis
		time.Sleep(2 * time.Second)
		ask(1, cache.TierLoader) // 1 h 1 s
	})
}
