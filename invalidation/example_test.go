package invalidation_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/invalidation"
)

// prices is near data of one's own: a map before something slow, which other processes change too.
type prices struct {
	bus *invalidation.Bus

	mu     sync.Mutex
	near   map[string]int
	change int // how often anything was forgotten
}

// get returns a price, and keeps it if nothing was forgotten while it was read, and if the bus hears.
func (p *prices) get(key string, read func(string) int) int {
	p.mu.Lock()
	price, ok := p.near[key]
	change := p.change
	p.mu.Unlock()
	if ok {
		return price
	}
	price = read(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if change == p.change && p.bus.Live() {
		p.near[key] = price
	}
	return price
}

// forget drops some prices.
func (p *prices) forget(keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change++
	for _, key := range keys {
		delete(p.near, key)
	}
}

// forgetAll drops all.
func (p *prices) forgetAll(string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change++
	clear(p.near)
}

// changed is called after a price was changed: this process forgets it by itself, the others are told.
func (p *prices) changed(ctx context.Context, key string) error {
	p.forget([]string{key})
	return p.bus.Publish(ctx, "prices", key)
}

func Example() {
	server, err := miniredis.Run() // yours is a real one
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	bus, err := invalidation.Open(rdb, invalidation.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bus.Close()
	p := &prices{bus: bus, near: map[string]int{}}
	defer bus.Subscribe("prices", invalidation.Handler{Keys: p.forget, Gap: p.forgetAll})()

	fmt.Println(p.get("bread", func(string) int { return 3 }))
	fmt.Println(p.changed(context.Background(), "bread"))
	fmt.Println(p.get("bread", func(string) int { return 4 }))
	// Output:
	// 3
	// <nil>
	// 4
}
