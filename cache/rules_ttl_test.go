package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

func TestRule9_TTLIsTheBackstop(t *testing.T) {
	w := newWorld(t)
	pttl := func(i *instance, key string) time.Duration {
		d, err := w.server.Admin().PTTL(context.Background(), i.PhysicalKey(t, key)).Result()
		mustDo(t, err)
		return d
	}
	keys := make([]string, 100)
	for n := range keys {
		keys[n] = fmt.Sprintf("k%d", n)
		w.put(keys[n], v1)
	}
	const ttl, room = time.Minute, 20 * time.Second // room for a busy machine: only what is far too short shows
	t.Run("jittered downwards", func(t *testing.T) {
		for what, jitter := range map[string]float64{"the default": 0, "half": 0.5, "off": cache.Off} {
			name := "jitter " + what
			a := w.instance(t, func(s *setup) {
				s.policy = cache.Policy{TTL: ttl, Jitter: jitter}
				s.config.Namespace += name
			})
			m, err := a.GetMany(t.Context(), keys)
			if len(m) != len(keys) || err != nil {
				t.Fatal(len(m), err)
			}
			a.client.Idle(t)
			least, most := ttl, time.Duration(0)
			for _, key := range keys {
				d := pttl(a, key)
				least, most = min(least, d), max(most, d)
			}
			low := ttl - time.Duration(max(0, a.Policy().Jitter)*float64(ttl)) - room
			if most > ttl || least < low {
				t.Errorf("%s: from %v to %v, want %v to %v", name, least, most, low, ttl)
			}
			spread := most - least // over hundred keys: most of the width
			switch width := time.Duration(a.Policy().Jitter * float64(ttl)); {
			case jitter == cache.Off && spread > room/4:
				t.Errorf("%s: spread over %v", name, spread)
			case jitter != cache.Off && spread < width/2:
				t.Errorf("%s: spread over %v of %v", name, spread, width)
			}
		}
	})
	t.Run("counted from the write", func(t *testing.T) {
		a := w.instance(t, localTTL(cache.Off))
		for name, change := range changes {
			mustDo(t, change(t.Context(), w, a, name, v1))
			a.mustGet(t, name, v1)
			a.client.Idle(t)
			mustDo(t, w.server.Admin().PExpire(t.Context(), a.PhysicalKey(t, name), ttl).Err())
			for range 5 {
				a.mustGetFrom(t, name, v1, cache.TierRedis)
			}
			if d := pttl(a, name); d <= 0 || d > ttl {
				t.Errorf("%s: reads made it live for %v", name, d)
			}
		}
	})
	t.Run("not found has its own", func(t *testing.T) {
		a := w.instance(t, func(s *setup) { s.policy.NegativeTTL, s.policy.Jitter = 20*time.Second, cache.Off })
		if _, err := a.Get(t.Context(), "none"); !errors.Is(err, cache.ErrNotFound) {
			t.Error(err)
		}
		a.client.Idle(t)
		if d := pttl(a, "none"); d <= 0 || d > 20*time.Second {
			t.Errorf("it lives for %v", d)
		}
	})
	t.Run("local never outlives Redis", func(t *testing.T) {
		policy := cache.Policy{TTL: 1500 * time.Millisecond, Jitter: 0.5} // local would like to keep for the whole TTL
		filler := w.instance(t, func(s *setup) { s.policy = policy })
		reader := w.instance(t, func(s *setup) { s.policy.TTL, s.policy.LocalTTL = time.Hour, time.Hour })
		keys := keys[:20]
		for _, i := range []*instance{filler, reader} {
			if m, err := i.GetMany(t.Context(), keys); len(m) != len(keys) || err != nil {
				t.Fatal(len(m), err)
			}
			i.client.Idle(t)
		}
		for _, key := range keys {
			mustDo(t, filler.Set(t.Context(), key+" written", v1))
		}
		gone := func(key string) bool { return pttl(filler, key) < 0 }
		for left := len(keys); left > 0; {
			for n, key := range keys {
				if key == "" || !gone(key) || !gone(key+" written") {
					continue
				}
				left--
				keys[n] = ""
				for _, i := range []*instance{filler, reader} {
					if !within(300*time.Millisecond, func() bool { return !isLocal(t, i, key) }) {
						t.Errorf("%s stands in the local tier and not in Redis", key)
					}
				}
				if !within(300*time.Millisecond, func() bool { return !isLocal(t, filler, key+" written") }) {
					t.Errorf("%s stands in the local tier and not in Redis", key+" written")
				}
			}
		}
	})
}

// isLocal tells whether the local tier answers a key.
func isLocal(t *testing.T, i *instance, key string) bool {
	t.Helper()
	r, err := i.GetResult(t.Context(), key)
	if err != nil && !errors.Is(err, cache.ErrNotFound) {
		t.Fatal(err)
	}
	return r.Tier == cache.TierLocal
}
