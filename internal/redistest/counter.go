package redistest

import (
	"context"
	"maps"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Counter is a go-redis hook that counts what a client was asked to do: commands by name, and round trips. The zero value is
// ready; hand its address to AddHook before the first command.
//
// The handshake of new connections (HELLO, AUTH, SELECT, CLIENT, READONLY) is not counted, since it depends on the pool. Retries
// inside go-redis are not seen, and of a ClusterClient's pipeline only the whole: where the server's view matters, use
// [Server.Commands].
type Counter struct {
	mu       sync.Mutex // guards the rest
	commands map[string]int
	trips    int
}

// Counts is what a [Counter] has counted.
type Counts struct {
	Commands map[string]int // by name in lower case; those of a transaction include multi and exec
	Trips    int            // single commands, pipelines and transactions: one each
}

// Snapshot returns the counts so far; the map is the caller's.
func (c *Counter) Snapshot() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := Counts{Commands: maps.Clone(c.commands), Trips: c.trips}
	if counts.Commands == nil {
		counts.Commands = map[string]int{}
	}
	return counts
}

// Reset begins again at zero.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commands, c.trips = nil, 0
}

func (c *Counter) trip(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counted := false
	for _, cmd := range cmds {
		if isHandshake(cmd.Name()) {
			continue
		}
		if c.commands == nil {
			c.commands = make(map[string]int)
		}
		c.commands[cmd.Name()]++
		counted = true
	}
	if counted {
		c.trips++
	}
}

// DialHook counts nothing.
func (c *Counter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook counts one command and one trip, before the command runs.
func (c *Counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.trip(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook counts each command and one trip, before the pipeline runs.
func (c *Counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.trip(cmds...)
		return next(ctx, cmds)
	}
}

func isHandshake(name string) bool {
	switch name {
	case "hello", "auth", "select", "client", "readonly":
		return true
	}
	return false
}
