package cache_test

import (
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
)

// TestALeaseDoesNotHangOnTheEstimateOfTheClock: the server's clock was set, or a node of a cluster has another.
func TestALeaseDoesNotHangOnTheEstimateOfTheClock(t *testing.T) {
	for _, shift := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		t.Run(shift.String(), func(t *testing.T) {
			w := newWorld(t)
			a, b := w.instance(t), w.instance(t)
			w.warmUp(t, a)
			w.warmUp(t, b)
			w.put("k", v1)
			loads := w.loads()
			a.client.ShiftServerClock(shift)
			gate := w.hold(t)
			first := a.startGet(t.Context(), "k")
			gate.await(t, "the load")
			second := b.startGet(t.Context(), "k")
			eventually(t, "the second waits", func() bool { return b.Stats().LeaseWaits == 1 })
			gate.open()
			receive(t, "the first", first).must(t, v1)
			receive(t, "the second", second).must(t, v1)
			a.client.Idle(t)
			if n := w.loads() - loads; n != 1 {
				t.Errorf("%d loads, want 1", n)
			}
			// What was filled is no value from the future: who reads it keeps it, and takes it for fresh.
			c := w.instance(t)
			w.warmUp(t, c)
			r, err := c.GetResult(t.Context(), "k")
			if r.Tier != cache.TierRedis || r.Age < 0 || err != nil {
				t.Errorf("%+v, %v", r, err)
			}
			loadedAt := int64(binary.BigEndian.Uint64([]byte(w.raw(t, a, "k")[8:16])))
			if now := w.server.Admin().Time(t.Context()).Val().UnixMicro(); loadedAt > now {
				t.Errorf("loaded at %d, and it is %d", loadedAt, now)
			}
		})
	}
}

// TestNumbersInLua: what the scripts read and write are the numbers of the frame, up to 2^53.
func TestNumbersInLua(t *testing.T) {
	w := newWorld(t)
	prelude, err := os.ReadFile("lua/prelude.lua")
	mustDo(t, err)
	script := redis.NewScript(string(prelude) + "return {write64(tonumber(ARGV[1])), string.format('%.0f', read64('x' .. ARGV[2], 2))}")
	check := func(n uint64) {
		raw := string(binary.BigEndian.AppendUint64(nil, n))
		got, err := script.Run(t.Context(), w.server.Admin(), []string{"k"}, n, raw).StringSlice()
		if err != nil || got[0] != raw || got[1] != strconv.FormatUint(n, 10) {
			t.Errorf("%d: %q, %v", n, got, err)
		}
	}
	check(0)
	for shift := range 54 {
		for _, n := range []uint64{1<<shift - 1, 1 << shift, 1<<shift + 1, 1<<shift | 0x5a5a5a5a} {
			if n <= 1<<53 {
				check(n)
			}
		}
	}
}

// keeper is a hook that keeps the commands that it has seen, as one that logs behind the calls does.
type keeper struct {
	mu   sync.Mutex
	cmds []redis.Cmder // guarded by mu
}

func (*keeper) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k *keeper) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		k.keep(cmd)
		return next(ctx, cmd)
	}
}

func (k *keeper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		k.keep(cmds...)
		return next(ctx, cmds)
	}
}

func (k *keeper) keep(cmds ...redis.Cmder) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cmds = append(k.cmds, cmds...)
}

// TestHooksSeeWhatIsSent, where the client is one whose hooks run: texts and not references, in commands that stay as they are.
func TestHooksSeeWhatIsSent(t *testing.T) {
	w := newWorld(t)
	hook := &keeper{}
	rdb := w.server.Client(t)
	rdb.AddHook(hook)
	client := open(t, struct{ redis.UniversalClient }{rdb}, cache.Config{
		Namespace: w.namespace, ReadBudget: patience, WriteBudget: patience, Logger: slog.New(slog.DiscardHandler),
	})
	rows := mustNew(t, client, "rows", w.load, cache.Policy{TTL: time.Minute, LocalTTL: cache.Off})
	keys := []string{"k1", "k2", "k3"}
	for _, key := range keys {
		w.put(key, v1)
		mustDo(t, rows.Set(t.Context(), key, v1))
		_, err := rows.Get(t.Context(), key)
		mustDo(t, err)
	}
	hook.mu.Lock()
	defer hook.mu.Unlock()
	var gets []string
	for _, cmd := range hook.cmds {
		for _, arg := range cmd.Args() {
			if _, ok := arg.(*string); ok {
				t.Errorf("a reference among the arguments of %s", cmd.Name())
			}
		}
		if cmd.Name() == "get" {
			gets = append(gets, cmd.Args()[1].(string))
		}
	}
	if len(gets) != len(keys) {
		t.Fatalf("the hook saw %q", gets)
	}
	for i, key := range keys {
		if !strings.HasSuffix(gets[i], ":"+key) {
			t.Errorf("read %d was of %s, now of %s", i, key, gets[i])
		}
	}
}
