package cache_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/cache"
)

// User is a row.
type User struct {
	ID   int64
	Name string
}

// table stands for the database.
var table = map[int64]User{42: {42, "Ada"}, 43: {43, "Grace"}}

// loadUsers reads rows from the source: SELECT ... WHERE id IN (...).
func loadUsers(ctx context.Context, ids []int64) (map[int64]User, error) {
	rows := map[int64]User{}
	for _, id := range ids {
		if u, ok := table[id]; ok {
			rows[id] = u
		}
	}
	return rows, nil
}

func Example() {
	ctx := context.Background()
	server := miniredis.NewMiniRedis() // in a service: your Redis
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	// README: begin
	client, err := cache.Open(rdb, cache.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	users, err := cache.New(client, "user", loadUsers, cache.Policy{TTL: 5 * time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}

	u, err := users.Get(ctx, 42) // the loader, once for all callers of all processes
	fmt.Println(u.Name, err)
	u, err = users.Get(ctx, 42) // this process
	fmt.Println(u.Name, err)

	_, err = users.Get(ctx, 404)
	fmt.Println(errors.Is(err, cache.ErrNotFound))

	many, err := users.GetMany(ctx, []int64{42, 43, 404}) // one round trip, one call of the loader
	fmt.Println(len(many), err)

	table[42] = User{42, "Ada Lovelace"}   // commit, then
	fmt.Println(users.Invalidate(ctx, 42)) // drop it everywhere
	u, err = users.Get(ctx, 42)
	fmt.Println(u.Name, err)
	// README: end

	// Output:
	// Ada <nil>
	// Ada <nil>
	// true
	// 2 <nil>
	// <nil>
	// Ada Lovelace <nil>
}

func ExampleCache_Update() {
	users, done := exampleUsers()
	defer done()
	ctx := context.Background()

	u, err := users.Update(ctx, 42, func(ctx context.Context) (User, error) {
		u := User{42, "Ada King"}
		table[42] = u // begin, write, commit
		return u, nil
	})
	fmt.Println(u.Name, err)
	r, err := users.GetResult(ctx, 42)
	fmt.Println(r.Value.Name, r.Tier != cache.TierLoader, err)
	// Output:
	// Ada King <nil>
	// Ada King true <nil>
}

func ExampleSingle() {
	client, done := exampleClient()
	defer done()
	load := func(ctx context.Context, name string) (int, error) { // a query for one row
		if name == "" || name[0] > 'm' {
			return 0, fmt.Errorf("no rows: %w", cache.ErrNotFound)
		}
		return len(name), nil
	}
	lengths, err := cache.New(client, "length", cache.Single(load), cache.Policy{TTL: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	n, err := lengths.Get(context.Background(), "abc")
	fmt.Println(n, err)
	// Output: 3 <nil>
}

func ExampleHooks() {
	client, done := exampleClient()
	defer done()
	type place struct{ country, town string }
	load := func(ctx context.Context, places []place) (map[place][]byte, error) {
		return map[place][]byte{{"nl", "Delft"}: []byte("blue")}, nil
	}
	colours, err := cache.New(client, "colour", load, cache.Policy{TTL: time.Minute}, cache.Hooks[place, []byte]{
		// Two places never give the same bytes: a country has two letters.
		Key: func(dst []byte, p place) ([]byte, error) { return fmt.Append(dst, p.country, p.town), nil },
		// Every caller may change what it gets.
		Clone: func(b []byte) []byte { return append([]byte{}, b...) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	colour, err := colours.Get(context.Background(), place{"nl", "Delft"})
	fmt.Println(string(colour), err)
	// Output: blue <nil>
}

func exampleClient() (*cache.Client, func()) {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	client, err := cache.Open(rdb, cache.Config{})
	if err != nil {
		panic(err)
	}
	return client, func() {
		_ = client.Close()
		_ = rdb.Close()
		server.Close()
	}
}

func exampleUsers() (*cache.Cache[int64, User], func()) {
	client, done := exampleClient()
	users, err := cache.New(client, "user", loadUsers, cache.Policy{TTL: time.Minute})
	if err != nil {
		panic(err)
	}
	return users, done
}
