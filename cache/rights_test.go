package cache_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

// TestTheRightsInTheDocAreEnough: a Redis user as the package comment makes one is never refused anything.
func TestTheRightsInTheDocAreEnough(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	mustDo(t, err)
	_, rest, found := strings.Cut(string(doc), "//	ACL SETUSER app ")
	text, _, ends := strings.Cut(rest, "//\n")
	if !found || !ends {
		t.Fatal("the package comment has no ACL SETUSER any more")
	}
	args := []any{"acl", "setuser", "app"}
	for _, word := range strings.Fields(strings.ReplaceAll(text, "//", "")) {
		args = append(args, word)
	}
	server := redistest.Start(t)
	ctx := t.Context()
	mustDo(t, server.Admin().Do(ctx, args...).Err())
	a, b := rightsClient(t, server), rightsClient(t, server)
	rowsA := mustNew(t, a, "row", loadText[int], cache.Policy{TTL: time.Hour, LeaseTTL: 100 * time.Millisecond})
	slow := func(ctx context.Context, keys []int) (map[int]string, error) {
		time.Sleep(200 * time.Millisecond) // long enough for its lease to be renewed
		return loadText(ctx, keys)
	}
	rowsB := mustNew(t, b, "row", slow, cache.Policy{TTL: time.Hour, LeaseTTL: 100 * time.Millisecond})
	for _, c := range []*cache.Client{a, b} {
		eventually(t, "the bus hears", c.Bus().Live)
	}
	_, err = rowsB.Get(ctx, 1)
	mustDo(t, err)
	_, err = rowsA.GetMany(ctx, []int{1, 2, 3})
	mustDo(t, err)
	a.Idle(t)
	_, err = rowsA.Update(ctx, 1, func(context.Context) (string, error) { return "new", nil })
	mustDo(t, err)
	mustDo(t, rowsA.Set(ctx, 2, "new"))
	mustDo(t, rowsA.Invalidate(ctx, 1, 2, 3))
	failing := mustNew(t, a, "failing", func(context.Context, []int) (map[int]string, error) { return nil, os.ErrClosed }, cache.Policy{TTL: time.Hour})
	if _, err := failing.Get(ctx, 1); err == nil {
		t.Error("a loader that failed gave a value")
	}
	a.Idle(t)
	refused, err := server.Admin().ACLLog(ctx, 100).Result()
	mustDo(t, err)
	for _, r := range refused {
		t.Errorf("Redis refused: %s %s", r.Reason, r.Object)
	}
	if s := a.Stats(); len(s.RedisErrors) > 0 {
		t.Errorf("%v", s.RedisErrors)
	}
}

func rightsClient(t *testing.T, server *redistest.Server) *cache.Client {
	t.Helper()
	rdb := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "app", "secret" })
	return open(t, rdb, cache.Config{Heartbeat: 30 * time.Millisecond, ReadBudget: patience, WriteBudget: patience})
}
