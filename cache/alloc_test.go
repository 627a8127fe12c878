//go:build !race

package cache_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// The race detector makes a sync.Pool forget on purpose, so allocations are counted without it; make test runs both.

// TestLocalHitAllocatesNothing: a hit in this process costs no allocation and no command, whatever the key's type.
func TestLocalHitAllocatesNothing(t *testing.T) {
	server := redistest.Shared(t)
	client := open(t, server.Client(t), cache.Config{Namespace: server.Prefix(t)})
	ints := mustNew(t, client, "int", loadText[int], cache.Policy{TTL: time.Hour})
	strings := mustNew(t, client, "string", loadText[string], cache.Policy{TTL: time.Hour})
	structs := mustNew(t, client, "struct", loadText[structKey], cache.Policy{TTL: time.Hour}, cache.Hooks[structKey, string]{
		Key: func(dst []byte, k structKey) ([]byte, error) { return append(dst, byte(k.Tenant), byte(k.ID)), nil },
	})
	resilient := mustNew(t, client, "resilient", loadText[int], cache.Resilient(time.Hour))
	negative := mustNew(t, client, "negative", func(context.Context, []int) (map[int]string, error) { return nil, nil },
		cache.Policy{TTL: time.Hour})

	ctx := context.Background()
	gets := map[string]func(){
		"int":       func() { _, _ = ints.Get(ctx, 123456) },
		"string":    func() { _, _ = strings.Get(ctx, "a key of some length") },
		"struct":    func() { _, _ = structs.Get(ctx, structKey{1, 2}) },
		"not found": func() { _, _ = negative.Get(ctx, 1) },
		"resilient": func() { _, _ = resilient.Get(ctx, 1) },
		"result":    func() { _, _ = ints.GetResult(ctx, 123456) },
	}
	for _, get := range gets {
		get()
	}
	client.Idle(t)
	trips, before := client.Stats().RoundTrips, ints.Stats().LocalHits
	for name, get := range gets {
		if n := testing.AllocsPerRun(1000, get); n != 0 {
			t.Errorf("%s: %v allocations a hit", name, n)
		}
	}
	if hits := ints.Stats().LocalHits - before; hits != 2*1001 {
		t.Errorf("%d local hits were counted, want %d", hits, 2*1001)
	}
	if n := client.Stats().RoundTrips - trips; n != 0 {
		t.Errorf("local hits made %d round trips to Redis", n)
	}
}
