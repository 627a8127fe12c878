package cache_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

type structKey struct{ Tenant, ID int }

// refused checks that an error is a ConfigError that names the field and says what to do.
func refused(t *testing.T, err error, field string) {
	t.Helper()
	var config *cache.ConfigError
	if !errors.As(err, &config) {
		t.Fatalf("got %v, want a *ConfigError about %s", err, field)
	}
	if config.Field != field || config.Remedy == "" || !strings.HasPrefix(err.Error(), "cache: ") {
		t.Fatalf("got %q about the field %q, want one about %s with a remedy", err, config.Field, field)
	}
}

func TestOpenRefuses(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	var none *redis.Client
	for name, test := range map[string]struct {
		rdb    redis.UniversalClient
		config cache.Config
		field  string
	}{
		"no client":       {nil, cache.Config{}, "the Redis client"},
		"a nil client":    {none, cache.Config{}, "the Redis client"},
		"a ring":          {ring, cache.Config{}, "the Redis client"},
		"a negative read": {rdb, cache.Config{ReadBudget: -1}, "Config.ReadBudget"},
		"an hour":         {rdb, cache.Config{WriteBudget: time.Hour}, "Config.WriteBudget"},
		"no loads":        {rdb, cache.Config{MaxLoads: -1}, "Config.MaxLoads"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := cache.Open(test.rdb, test.config)
			refused(t, err, test.field)
		})
	}
}

func TestNewRefuses(t *testing.T) {
	client := open(t, redistest.Shared(t).Client(t), cache.Config{})
	minute := cache.Policy{TTL: time.Minute}
	try := func(client *cache.Client, name string, loader cache.Loader[int, string], policy cache.Policy, hooks ...cache.Hooks[int, string]) error {
		_, err := cache.New(client, name, loader, policy, hooks...)
		return err
	}
	refused(t, try(nil, "user", loadText, minute), "the client")
	refused(t, try(client, "", loadText, minute), "the name")
	refused(t, try(client, strings.Repeat("x", 201), loadText, minute), "the name")
	refused(t, try(client, "user", nil, minute), "the loader")
	refused(t, try(client, "user", cache.Single[int, string](nil), minute), "the loader")
	refused(t, try(client, "user", loadText, minute, cache.Hooks[int, string]{}, cache.Hooks[int, string]{}), "hooks")

	mustNew(t, client, "taken", loadText[int], minute)
	refused(t, try(client, "taken", loadText, minute), "the name")

	_, err := cache.New(client, "float", loadText[float64], minute)
	refused(t, err, "the key type")
	_, err = cache.New(client, "struct", loadText[structKey], minute)
	refused(t, err, "the key type")

	for name, test := range map[string]struct {
		policy cache.Policy
		field  string
	}{
		"no TTL":                     {cache.Policy{}, "Policy.TTL"},
		"a negative TTL":             {cache.Policy{TTL: -2}, "Policy.TTL"},
		"TTL off":                    {cache.Policy{TTL: cache.Off}, "Policy.TTL"},
		"a TTL below a millisecond":  {cache.Policy{TTL: 999 * time.Microsecond}, "Policy.TTL"},
		"a TTL without end":          {cache.Policy{TTL: math.MaxInt64}, "Policy.TTL"},
		"a local TTL above the TTL":  {cache.Policy{TTL: time.Minute, LocalTTL: time.Hour}, "Policy.LocalTTL"},
		"a negative local TTL":       {cache.Policy{TTL: time.Minute, LocalTTL: -time.Second}, "Policy.LocalTTL"},
		"a negative negative TTL":    {cache.Policy{TTL: time.Minute, NegativeTTL: -time.Second}, "Policy.NegativeTTL"},
		"too much jitter":            {cache.Policy{TTL: time.Minute, Jitter: 0.6}, "Policy.Jitter"},
		"negative jitter":            {cache.Policy{TTL: time.Minute, Jitter: -0.1}, "Policy.Jitter"},
		"jitter that is no number":   {cache.Policy{TTL: time.Minute, Jitter: math.NaN()}, "Policy.Jitter"},
		"a negative load time-out":   {cache.Policy{TTL: time.Minute, LoadTimeout: -time.Second}, "Policy.LoadTimeout"},
		"a short lease":              {cache.Policy{TTL: time.Minute, LeaseTTL: time.Millisecond}, "Policy.LeaseTTL"},
		"a wait longer than a load":  {cache.Policy{TTL: time.Minute, LoadTimeout: time.Second, LeaseWait: 2 * time.Second}, "Policy.LeaseWait"},
		"negative bytes":             {cache.Policy{TTL: time.Minute, LocalBytes: -1}, "Policy.LocalBytes"},
		"a soft time-out alone":      {cache.Policy{TTL: time.Minute, SoftTimeout: time.Second}, "Policy.SoftTimeout"},
		"a soft one after the hard":  {cache.Policy{TTL: time.Minute, StaleTTL: time.Minute, LoadTimeout: time.Second, SoftTimeout: time.Minute}, "Policy.SoftTimeout"},
		"stale answers of none":      {cache.Policy{TTL: time.Minute, Fallback: cache.FallbackStale}, "Policy.Fallback"},
		"a refresh of what is over":  {cache.Policy{TTL: time.Minute, RefreshAfter: 1}, "Policy.RefreshAfter"},
		"a refresh of NaN":           {cache.Policy{TTL: time.Minute, RefreshAfter: math.NaN()}, "Policy.RefreshAfter"},
		"a refresh of nothing local": {cache.Policy{TTL: time.Minute, RefreshAfter: 0.5, LocalTTL: cache.Off}, "Policy.RefreshAfter"},
		"a negative stale TTL":       {cache.Policy{TTL: time.Minute, StaleTTL: -2}, "Policy.StaleTTL"},
		"an unknown fallback":        {cache.Policy{TTL: time.Minute, Fallback: "none"}, "Policy.Fallback"},
		"more entries than can be":   {cache.Policy{TTL: time.Minute, LocalEntries: math.MaxInt64}, "Policy.LocalEntries"},
		"a second mistake after one": {cache.Policy{TTL: time.Minute, LocalBytes: -1, Jitter: 7}, "Policy.LocalBytes"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, try(client, "policy", loadText, test.policy), test.field) })
	}
}

func TestPolicyDefaultsCanBeReadBack(t *testing.T) {
	client := open(t, redistest.Shared(t).Client(t), cache.Config{})
	if got, want := client.Config().ReadBudget, 100*time.Millisecond; got != want {
		t.Errorf("read budget %v, want %v", got, want)
	}
	if got := client.Config().MaxLoads; got != 256 {
		t.Errorf("%d loads at most, want 256", got)
	}
	given := cache.Policy{TTL: time.Hour}
	got := mustNew(t, client, "user", loadText[int], given).Policy()
	want := cache.Policy{
		TTL: time.Hour, LocalTTL: time.Minute, NegativeTTL: 30 * time.Second, Jitter: 0.1, LoadTimeout: 10 * time.Second,
		LeaseTTL: 3 * time.Second, LeaseWait: 10 * time.Second, LocalBytes: 64 << 20, LocalEntries: 100_000,
		Fallback: cache.FallbackLoader, StaleTTL: cache.Off, RetryAfter: time.Second, SoftTimeout: cache.Off, RefreshAfter: cache.Off,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	short := mustNew(t, client, "short", loadText[int], cache.Policy{TTL: time.Second, LoadTimeout: time.Second}).Policy()
	if short.LocalTTL != time.Second || short.NegativeTTL != time.Second || short.LeaseWait != time.Second {
		t.Errorf("got %+v, want no default above TTL or LoadTimeout", short)
	}
}

func TestBadKeysAreRefusedByEveryCall(t *testing.T) {
	client := open(t, redistest.Shared(t).Client(t), cache.Config{Namespace: t.Name()})
	users := mustNew(t, client, "user", loadText[string], cache.Policy{TTL: time.Minute})
	ctx := context.Background()
	longest := strings.Repeat("x", cache.MaxKeyBytes)
	if v, err := users.Get(ctx, longest); v != "a row" || err != nil {
		t.Errorf("the longest key gives %q, %v", v, err)
	}
	if v, err := users.Get(ctx, strings.Repeat("y", 10<<10)); v != "a row" || err != nil {
		t.Errorf("a key of 10 KiB gives %q, %v", v, err)
	}
	for _, key := range []string{"", longest + "x"} {
		for name, call := range map[string]func() error{
			"Get":        func() error { _, err := users.Get(ctx, key); return err },
			"GetResult":  func() error { _, err := users.GetResult(ctx, key); return err },
			"Set":        func() error { return users.Set(ctx, key, "v") },
			"Invalidate": func() error { return users.Invalidate(ctx, "good", key) },
			"Fetch": func() error {
				_, err := users.Fetch(ctx, key, func(context.Context) (string, error) { return "v", nil })
				return err
			},
			"Update": func() error {
				_, err := users.Update(ctx, key, func(context.Context) (string, error) {
					t.Error("a write ran whose key cannot be cached")
					return "v", nil
				})
				return err
			},
			"GetMany": func() error {
				rows, err := users.GetMany(ctx, []string{"good", key})
				if len(rows) != 1 || rows["good"] != "a row" {
					t.Errorf("the good key of the batch gives %v", rows)
				}
				return err
			},
		} {
			err := call()
			if !errors.Is(err, cache.ErrBadKey) {
				t.Errorf("%s of a key of %d bytes: %v, want ErrBadKey", name, len(key), err)
			} else if len(err.Error()) > 500 {
				t.Errorf("%s: an error text of %d bytes", name, len(err.Error()))
			}
		}
	}
}

func TestNilFunctionsAreRefused(t *testing.T) {
	client := open(t, redistest.Shared(t).Client(t), cache.Config{Namespace: t.Name()})
	users := mustNew(t, client, "user", loadText[int], cache.Policy{TTL: time.Minute})
	_, err := users.Fetch(context.Background(), 1, nil)
	var config *cache.ConfigError
	if !errors.As(err, &config) {
		t.Errorf("Fetch without a loader: %v", err)
	}
	if _, err = users.Update(context.Background(), 1, nil); !errors.As(err, &config) {
		t.Errorf("Update without a write: %v", err)
	}
}

func TestEverythingAfterCloseIsErrClosed(t *testing.T) {
	client := open(t, redistest.Shared(t).Client(t), cache.Config{Namespace: t.Name()})
	users := mustNew(t, client, "user", loadText[int], cache.Policy{TTL: time.Minute})
	ctx := context.Background()
	if _, err := users.Get(ctx, 1); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, call := range map[string]func() error{
		"Get":        func() error { _, err := users.Get(ctx, 1); return err },
		"GetResult":  func() error { _, err := users.GetResult(ctx, 1); return err },
		"GetMany":    func() error { _, err := users.GetMany(ctx, []int{1, 2}); return err },
		"Set":        func() error { return users.Set(ctx, 1, "v") },
		"Invalidate": func() error { return users.Invalidate(ctx, 1) },
		"New": func() error {
			_, err := cache.New(client, "late", loadText[int], cache.Policy{TTL: time.Minute})
			return err
		},
		"Fetch": func() error {
			_, err := users.Fetch(ctx, 1, func(context.Context) (string, error) { return "v", nil })
			return err
		},
		"Update": func() error {
			_, err := users.Update(ctx, 1, func(context.Context) (string, error) { return "v", nil })
			return err
		},
	} {
		if err := call(); !errors.Is(err, cache.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
	if s := users.Stats(); s.Loads != 1 {
		t.Errorf("%d loads, want the one from before Close", s.Loads)
	}
}
