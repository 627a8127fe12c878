package cache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// awaitSettled returns when nothing is owed to Redis.
func (i *instance) awaitSettled(t testing.TB) {
	t.Helper()
	eventually(t, "Redis has confirmed all deletes", func() bool { return i.Stats().UnconfirmedKeys == 0 })
}

// isUnconfirmed ends the test unless Redis did not confirm a delete.
func isUnconfirmed(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, cache.ErrUnconfirmed) {
		t.Fatalf("%s: %v; want ErrUnconfirmed", what, err)
	}
}

// retries counts the goroutines that try again.
func retries() (n int) {
	stacks := make([]byte, 4<<20)
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(stack, "]).retry(") {
			n++
		}
	}
	return n
}

// awaitRetries returns when so many goroutines try again.
func awaitRetries(t testing.TB, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d goroutines that try again", want), func() bool { return retries() == want })
}

// deleteOf matches the deletes of a key.
func (i *instance) deleteOf(t testing.TB, key string) func(context.Context, redis.Cmder) bool {
	physical := i.PhysicalKey(t, key)
	return func(ctx context.Context, cmd redis.Cmder) bool { return aScript(ctx, cmd) && holds(cmd, physical) }
}

// cutOff makes an instance behind a proxy, and what takes Redis away from it.
func (w *world) cutOff(t testing.TB, change ...func(*setup)) (i *instance, proxy *redistest.Proxy, away func()) {
	t.Helper()
	proxy = redistest.NewProxy(t, w.server.Addr())
	return w.instance(t, append(change, through(proxy))...), proxy, func() { proxy.Refuse(true); proxy.Cut() }
}

func TestC49_ADeleteThatRedisMissedIsDoneWhenItIsBack(t *testing.T) {
	w := newWorldOn(t, redistest.Start(t))
	quick := func(s *setup) { s.redis.DialerRetries = 1; hasty(s) }
	a, b := w.instance(t, beating(soonBeat), quick), w.instance(t, beating(soonBeat), quick)
	w.put("k", v1)
	for _, i := range []*instance{a, b} {
		i.awaitLive(t)
		i.awaitLocal(t, "k", v1)
	}
	a.client.Idle(t)
	w.holds(t, a, "k", v1)
	mustDo(t, w.server.Admin().Save(t.Context()).Err())
	w.server.Kill(t)
	b.awaitDeaf(t)

	w.put("k", v2)
	isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "k"))
	for range 3 {
		a.mustGet(t, "k", v2)
	}
	if n := a.Stats().UnconfirmedKeys; n != 1 {
		t.Errorf("%d keys are owed, want 1", n)
	}
	w.server.StartAgain(t)
	c := w.instance(t, beating(soonBeat), quick)
	_, _ = b.Get(t.Context(), "k") // either value: nobody has told b and c yet
	_, _ = c.Get(t.Context(), "k")
	eventually(t, "Redis has confirmed the delete", func() bool {
		a.mustGet(t, "k", v2)
		return a.Stats().UnconfirmedKeys == 0
	})
	for _, i := range []*instance{a, b, c} {
		i.awaitValue(t, "k", v2)
	}
	w.lacks(t, a, "k", v1)
	for _, i := range []*instance{a, b, c} {
		i.awaitLive(t)
		i.mustGet(t, "k", v2)
	}
	if s := a.Stats(); s.Retried != 1 || s.Unconfirmed != 1 {
		t.Errorf("%d deletes were retried of %d, want 1 of 1", s.Retried, s.Unconfirmed)
	}
}

func TestCloseTriesOnceMore(t *testing.T) {
	t.Run("Redis is back, from its dump", func(t *testing.T) {
		w := newWorldOn(t, redistest.Start(t))
		a := w.instance(t, once, hasty, func(s *setup) { s.redis.DialerRetries = 1 })
		mustDo(t, a.Set(t.Context(), "k", v1))
		mustDo(t, w.server.Admin().Save(t.Context()).Err())
		w.server.Kill(t)
		isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "k"))
		w.server.StartAgain(t)
		w.holds(t, a, "k", v1) // what no other cure has removed
		if err := a.client.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		w.lacks(t, a, "k", v1)
		if s := a.Stats(); s.UnconfirmedKeys != 0 || s.Retried != 1 {
			t.Errorf("%d keys are owed after Close, %d deletes were retried; want none and 1", s.UnconfirmedKeys, s.Retried)
		}
	})
	t.Run("of all caches of the client", func(t *testing.T) {
		w := newWorld(t)
		a, proxy, away := w.cutOff(t, once)
		more := mustNew(t, a.client, "more", w.load, cache.Policy{TTL: time.Hour})
		mustDo(t, a.Set(t.Context(), "k", v1))
		mustDo(t, more.Set(t.Context(), "k", v1))
		away()
		isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "k"))
		isUnconfirmed(t, "Invalidate", more.Invalidate(t.Context(), "k"))
		proxy.Refuse(false)
		if err := a.client.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if n := caseExists(t, a.PhysicalKey(t, "k"), more.PhysicalKey(t, "k")); n != 0 {
			t.Errorf("Redis holds %d keys after Close", n)
		}
	})
	t.Run("Redis stays away", func(t *testing.T) {
		for _, change := range []func(*setup){once, func(*setup) {}} {
			w := newWorld(t)
			a, _, away := w.cutOff(t, change)
			mustDo(t, a.Set(t.Context(), "k", v1))
			away()
			isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), "k", "l", "m"))
			err := a.client.Close()
			if isUnconfirmed(t, "Close", err); !strings.Contains(err.Error(), " 3 keys") {
				t.Errorf("Close says %q of 3 keys", err)
			}
			if again := a.client.Close(); again == nil || again.Error() != err.Error() {
				t.Errorf("Close once more: %v", again)
			}
			w.holds(t, a, "k", v1)
			awaitRetries(t, 0)
		}
	})
}

func TestADeleteOfManyKeysIsTriedAgainInPartsUntilAllAreConfirmed(t *testing.T) {
	w := newWorld(t)
	a, proxy, away := w.cutOff(t)
	keys, rows, physical := bulk("key", 1200), map[string]string{}, []string(nil)
	for _, key := range keys {
		rows[key] = v1
		physical = append(physical, a.PhysicalKey(t, key))
	}
	mustDo(t, a.SetMany(t.Context(), rows))
	away()
	isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), keys...))
	if s := a.Stats(); s.UnconfirmedKeys != len(keys) || int(s.Unconfirmed) != len(keys) || s.Retried != 0 {
		t.Errorf("%d keys are owed, %d were counted, %d retried; want %d, and none retried", s.UnconfirmedKeys, s.Unconfirmed, s.Retried, len(keys))
	}
	if n := caseExists(t, physical...); n != len(keys) {
		t.Fatalf("Redis holds %d keys, want all", n)
	}
	before := a.client.Stats().RoundTrips
	proxy.Refuse(false)
	a.awaitSettled(t)
	if n := caseExists(t, physical...); n != 0 {
		t.Errorf("Redis still holds %d keys", n)
	}
	if s := a.Stats(); int(s.Retried) != len(keys) || s.Overflowed != 0 {
		t.Errorf("%d deletes were retried, %d found no room; want %d and none", s.Retried, s.Overflowed, len(keys))
	}
	if n := a.client.Stats().RoundTrips - before; n < 3 {
		t.Errorf("%d keys were deleted in %d round trips", len(keys), n)
	}
}

func TestOnlyWhoOwesTriesAgain(t *testing.T) {
	w := newWorld(t)
	a, proxy, away := w.cutOff(t)
	awaitRetries(t, 0)
	mustDo(t, a.Invalidate(t.Context(), "k"))
	if n := retries(); n != 0 {
		t.Errorf("%d goroutines try again what was confirmed", n)
	}
	for round := range 2 {
		away()
		for _, key := range []string{"k", "l", "k", "m"} {
			isUnconfirmed(t, "Invalidate", a.Invalidate(t.Context(), key))
		}
		if n := retries(); n != 1 {
			t.Errorf("round %d: %d goroutines try again, want 1", round, n)
		}
		proxy.Refuse(false)
		a.awaitSettled(t)
		awaitRetries(t, 0)
		if n := a.Stats().Retried; int(n) != 3*(round+1) {
			t.Errorf("round %d: %d deletes were retried, want 3 each time", round, n)
		}
	}
}
