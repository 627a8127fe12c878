package cache_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// onceCodec is a codec that does something at its first Decode.
type onceCodec struct {
	times atomic.Int32
	do    func()
}

func (*onceCodec) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }

func (c *onceCodec) Decode(data []byte) (string, error) {
	if c.times.Add(1) == 1 {
		c.do()
	}
	return string(data), nil
}

// TestWhoBreaksOffLeavesNobodyWaiting: the goroutine that reads Redis for others too is its caller's own, and can end there.
func TestWhoBreaksOffLeavesNobodyWaiting(t *testing.T) {
	reads := map[string]func(t *testing.T, rows *cache.Cache[string, string]){
		"Get":     func(t *testing.T, rows *cache.Cache[string, string]) { _, _ = rows.Get(t.Context(), "k") },
		"GetMany": func(t *testing.T, rows *cache.Cache[string, string]) { _, _ = rows.GetMany(t.Context(), []string{"k"}) },
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put("k", v1)
			mustDo(t, w.instance(t).Set(t.Context(), "k", v1))
			client := open(t, w.server.Client(t), cache.Config{Namespace: w.namespace, ReadBudget: patience, WriteBudget: patience})
			rows, err := cache.New(client, "users", w.load, cache.Policy{TTL: time.Minute, LocalTTL: cache.Off},
				cache.Hooks[string, string]{Codec: &onceCodec{do: runtime.Goexit}})
			mustDo(t, err)
			ended := make(chan any)
			go func() {
				defer close(ended)
				read(t, rows)
				t.Error("the codec did not end the goroutine")
			}()
			receive(t, "the end of the first", ended)
			receive(t, "the next caller", start(func() (string, error) { return rows.Get(t.Context(), "k") })).must(t, v1)
		})
	}
	t.Run("and those who share the flight learn of it", func(t *testing.T) {
		w := newWorld(t)
		gate := newGate(t)
		rows, err := cache.New(w.instance(t).client, "others", w.load, cache.Policy{TTL: time.Minute, LocalTTL: cache.Off},
			cache.Hooks[string, string]{Codec: &onceCodec{do: func() {}}})
		mustDo(t, err)
		mustDo(t, rows.Set(t.Context(), "k", v1)) // decodes once, to read back
		other, err := cache.New(open(t, w.server.Client(t), cache.Config{Namespace: w.namespace, ReadBudget: patience}), "others", w.load,
			cache.Policy{TTL: time.Minute, LocalTTL: cache.Off}, cache.Hooks[string, string]{Codec: &onceCodec{do: func() {
				_ = gate.pass(t.Context())
				runtime.Goexit()
			}}})
		mustDo(t, err)
		go func() { _, _ = other.Get(t.Context(), "k") }()
		gate.await(t, "the codec")
		joined := start(func() (string, error) { return other.Get(t.Context(), "k") })
		caseUntil(t, "the second caller joined", func() bool { return other.Stats().Joined == 1 })
		gate.open()
		var panicked *cache.PanicError
		if a := receive(t, "the one who joined", joined); !errors.As(a.err, &panicked) {
			t.Errorf("%+v; want a PanicError", a)
		}
	})
}
