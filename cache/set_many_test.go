package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestSetMany(t *testing.T) {
	server := redistest.Start(t)
	namespace := server.Prefix(t)
	a := open(t, server.Client(t), cache.Config{Namespace: namespace, ReadBudget: patience, WriteBudget: patience})
	b := open(t, server.Client(t), cache.Config{Namespace: namespace, ReadBudget: patience, WriteBudget: patience})
	none := func(context.Context, []string) (map[string]string, error) { return nil, nil }
	policy := cache.Policy{TTL: time.Hour}
	here, there := mustNew(t, a, "row", none, policy), mustNew(t, b, "row", none, policy)
	ctx := t.Context()
	values := map[string]string{}
	for i := range 1200 {
		values[fmt.Sprintf("k%d", i)] = fmt.Sprintf("v%d", i)
	}
	trips := a.Stats().RoundTrips
	mustDo(t, here.SetMany(ctx, values))
	if n := a.Stats().RoundTrips - trips; n > 8 { // 1200 leases and 1200 fills, 500 a trip; scripts are taught once
		t.Errorf("%d round trips", n)
	}
	got, err := there.GetMany(ctx, []string{"k0", "k7", "k1199", "absent"})
	if err != nil || len(got) != 3 || got["k7"] != "v7" || got["k1199"] != "v1199" {
		t.Errorf("%v, %v", got, err)
	}
	// A neighbour in the table of stamps, or a busy store, keeps a few out of the local tier.
	if s := here.Stats(); s.LocalFills < 1100 || s.LocalFills+s.LocalOvertaken+s.LocalRejected > 1200 {
		t.Errorf("%+v; want nearly all 1200 in the local tier", s)
	}
	if ttl := server.Admin().TTL(ctx, here.PhysicalKey(t, "k5")).Val(); ttl < 50*time.Minute || ttl > time.Hour {
		t.Errorf("k5 lives for %v", ttl)
	}

	err = here.SetMany(ctx, map[string]string{"good": "1", "": "2"})
	var failed *cache.KeyErrors[string]
	if !errors.As(err, &failed) || len(failed.ByKey) != 1 || !errors.Is(failed.ByKey[""], cache.ErrBadKey) {
		t.Errorf("a bad key among good ones: %v", err)
	}
	if v, err := there.Get(ctx, "good"); v != "1" || err != nil {
		t.Errorf("its neighbour: %q, %v", v, err)
	}
	mustDo(t, here.SetMany(ctx, nil))
	mustDo(t, a.Close())
	if err := here.SetMany(ctx, values); !errors.Is(err, cache.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestSetManyOfABrokenRedis: what Redis did not take is deleted, or owed.
func TestSetManyOfABrokenRedis(t *testing.T) {
	server := redistest.Start(t)
	client := open(t, server.Client(t), cache.Config{Namespace: "broken", ReadBudget: 200 * time.Millisecond, WriteBudget: 200 * time.Millisecond})
	rows := mustNew(t, client, "row", loadText[string], cache.Policy{TTL: time.Hour})
	server.Kill(t)
	err := rows.SetMany(t.Context(), map[string]string{"a": "1", "b": "2"})
	var failed *cache.KeyErrors[string]
	if !errors.As(err, &failed) || len(failed.ByKey) != 2 || !errors.Is(err, cache.ErrUnconfirmed) {
		t.Errorf("without Redis: %v", err)
	}
	if r, err := rows.GetResult(t.Context(), "a"); r.Value != "a row" || r.Why != cache.WhyBypassed || err != nil {
		t.Errorf("%+v, %v; want the loader's", r, err)
	}
	if err := client.Close(); !errors.Is(err, cache.ErrUnconfirmed) {
		t.Errorf("Close with deletes that are owed: %v", err)
	}
}
