package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Client returns a client of the server, closed when the test ends. It has the defaults of go-redis, time-outs and retries
// included, but for a handshake of one command (HELLO); the options may change everything, the address too.
func (s *Server) Client(t testing.TB, options ...func(*redis.Options)) *redis.Client {
	t.Helper()
	opt := s.quiet()
	for _, set := range options {
		set(opt)
	}
	client := redis.NewClient(opt)
	t.Cleanup(func() { client.Close() })
	return client
}

// Admin returns the client for a test's own commands: no retries, time-outs of three seconds that contexts can shorten. It lives
// as long as the server and over its restarts, and is not to be closed.
func (s *Server) Admin() *redis.Client { return s.admin }

func (s *Server) newAdmin(db int) *redis.Client {
	opt := s.quiet()
	opt.DB = db
	opt.MaxRetries = -1
	opt.DialerRetries = 1
	opt.PoolSize = 1000 // so many failed dials make go-redis stop dialling for a second
	opt.DialTimeout = 3 * time.Second
	opt.ReadTimeout = 3 * time.Second
	opt.WriteTimeout = 3 * time.Second
	opt.ContextTimeoutEnabled = true
	return redis.NewClient(opt)
}

// quiet leaves out the part of the handshake that Redis 7.0 answers with errors.
func (s *Server) quiet() *redis.Options {
	return &redis.Options{
		Addr:                     s.addr,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

var prefixes atomic.Int64

// Prefix returns a beginning for the keys, channels and names of one test, another at each call. It is made of the test's name,
// holds no braces (so it sets no hash tag), and ends with a colon.
func (s *Server) Prefix(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-':
			return r
		}
		return '_'
	}, t.Name())
	return fmt.Sprintf("%s-%d:", name, prefixes.Add(1))
}

// ExhaustPool takes every connection of the client, those of its second pool for pipelines included, so that the next command
// meets a full pool. Release gives them back; the end of the test does too. Released at once, it is a way to warm a pool. The
// commands that it sends (PING and ECHO) pass the client's hooks.
func ExhaustPool(t testing.TB, client *redis.Client) (release func()) {
	t.Helper()
	ctx := context.Background()
	var conns []*redis.Conn
	var pipelines sync.WaitGroup
	open := make(chan struct{})
	release = sync.OnceFunc(func() {
		close(open)
		pipelines.Wait()
		for _, conn := range conns {
			conn.Close()
		}
	})
	t.Cleanup(release)

	for range pipelinePoolSize(client.Options()) {
		argument := stuck{reached: make(chan struct{}, 1), open: open}
		failed := make(chan error, 1)
		pipelines.Go(func() {
			_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
				return p.Do(ctx, "echo", argument).Err()
			})
			failed <- err
		})
		select {
		case <-argument.reached:
		case err := <-failed:
			t.Fatalf("redistest: exhaust the pool for pipelines: %v", err)
		case <-time.After(patience):
			t.Fatalf("redistest: exhaust the pool for pipelines: no connection within %v", patience)
		}
	}
	for range client.Options().PoolSize {
		conn := client.Conn()
		conns = append(conns, conn)
		err := conn.Ping(ctx).Err()
		if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
			return release // others hold the rest
		}
		if err != nil {
			t.Fatalf("redistest: exhaust the pool: %v", err)
		}
	}
	return release
}

func pipelinePoolSize(opt *redis.Options) int {
	if opt.PipelinePoolSize == 0 {
		return redis.DefaultPipelinePoolSize
	}
	return max(0, opt.PipelinePoolSize)
}

// stuck is an argument that is not ready to be written until open is closed: a pipeline has no Conn that could be held instead.
type stuck struct {
	reached, open chan struct{}
}

// MarshalBinary is called by go-redis when it has taken a connection and writes to it.
func (s stuck) MarshalBinary() ([]byte, error) {
	select {
	case s.reached <- struct{}{}:
	default: // written again, by a retry
	}
	<-s.open
	return []byte("released"), nil
}
