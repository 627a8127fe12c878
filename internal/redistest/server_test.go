package redistest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
)

var ctx = context.Background()

func mustSet(t *testing.T, server *redistest.Server, key, value string) {
	t.Helper()
	if err := server.Admin().Set(ctx, key, value, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func wantValue(t *testing.T, server *redistest.Server, key, want string) {
	t.Helper()
	got, err := server.Admin().Get(ctx, key).Result()
	if err != nil || got != want {
		t.Fatalf("GET %s = %q, %v; want %q", key, got, err, want)
	}
}

func wantAbsent(t *testing.T, server *redistest.Server, key string) {
	t.Helper()
	if got, err := server.Admin().Get(ctx, key).Result(); !errors.Is(err, redis.Nil) {
		t.Fatalf("GET %s = %q, %v; want none", key, got, err)
	}
}

// refuses reports whether nobody listens; a stopped server whose queue is full does not count.
func refuses(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func TestSharedIsOneAndStartAnother(t *testing.T) {
	shared := redistest.Shared(t)
	if again := redistest.Shared(t); again != shared {
		t.Error("Shared gave two servers")
	}
	own := redistest.Start(t, "--maxmemory", "7mb")
	if own.Addr() == shared.Addr() {
		t.Error("Start gave the shared server")
	}
	got, err := own.Client(t).ConfigGet(ctx, "maxmemory").Result()
	if err != nil || got["maxmemory"] != strconv.Itoa(7<<20) {
		t.Errorf("argument not used: %v, %v", got, err)
	}
	if err := shared.Client(t).Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
}

func TestSharedRefusesToBeEnded(t *testing.T) {
	server := redistest.Shared(t)
	for name, end := range map[string]func(testing.TB){
		"Kill": server.Kill, "Stop": server.Stop, "RestartEmpty": server.RestartEmpty, "StartAgain": server.StartAgain,
		"Loading": func(t testing.TB) { server.Loading(t) },
	} {
		f := new(fakeTB)
		if out := f.run(func() { end(f) }); !f.failed || !strings.Contains(out, "Start") {
			t.Errorf("%s was allowed: %s", name, out)
		}
	}
	if err := server.Admin().Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
}

func TestPrefix(t *testing.T) {
	server := redistest.Shared(t)
	t.Run("odd {name} ü", func(t *testing.T) {
		a, b := server.Prefix(t), server.Prefix(t)
		if a == b {
			t.Errorf("twice %q", a)
		}
		if !regexp.MustCompile(`^TestPrefix_odd_+name_+-\d+:$`).MatchString(a) {
			t.Errorf("prefix %q", a)
		}
	})
}

func TestKillStopAndStartAgain(t *testing.T) {
	server := redistest.Start(t)
	addr := server.Addr()
	for name, end := range map[string]func(testing.TB){"kill": server.Kill, "stop": server.Stop} {
		mustSet(t, server, "unsaved", name)
		end(t)
		if !refuses(addr) {
			t.Fatalf("%s: the server still answers", name)
		}
		server.StartAgain(t)
		if server.Addr() != addr {
			t.Fatalf("%s: the address moved", name)
		}
		wantAbsent(t, server, "unsaved")
	}

	mustSet(t, server, "saved", "v")
	if err := server.Admin().Save(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	server.Kill(t)
	server.StartAgain(t)
	wantValue(t, server, "saved", "v")
	server.RestartEmpty(t)
	wantAbsent(t, server, "saved")
}

func TestPauseHoldsCommandsAndResumeRunsThem(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 50*time.Millisecond, -1 })
	if err := rdb.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	server.Pause(t) // no second stop to wait for
	var timeout net.Error
	if err := rdb.Incr(ctx, "n").Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("a paused server answered: %v", err)
	}
	server.Resume(t)
	eventually(t, "the command that was sent meanwhile", func() bool {
		return server.Admin().Get(ctx, "n").Val() == "1"
	})
	server.Pause(t)
	server.Kill(t) // ends a paused one too
	server.StartAgain(t)
	wantAbsent(t, server, "n")
}

func TestPauseEndsWithTheTest(t *testing.T) {
	server := redistest.Shared(t)
	t.Run("paused", func(t *testing.T) { server.Pause(t) })
	if err := server.Admin().Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestConfigEndsWithTheTest(t *testing.T) {
	server := redistest.Shared(t)
	key := server.Prefix(t) + "k"
	t.Run("full", func(t *testing.T) {
		server.Config(t, "maxmemory", "1")
		if err := server.Admin().Set(ctx, key, "v", 0).Err(); !redis.HasErrorPrefix(err, "OOM") {
			t.Errorf("SET on a full server: %v", err)
		}
	})
	mustSet(t, server, key, "v")
}

func TestKillClients(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	sub := rdb.Subscribe(ctx, server.Prefix(t)+"c")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	if n := server.KillClients(t, "pubsub"); n != 1 {
		t.Errorf("%d killed, want 1", n)
	}
	if msg, err := sub.Receive(ctx); err == nil {
		t.Errorf("the subscription lives: %v", msg)
	}

	// Clients of the test find out before they use a killed connection, even without retries.
	once := server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
	for range 20 {
		redistest.ExhaustPool(t, once)()
		if n := server.KillClients(t, "normal"); n < 20 {
			t.Errorf("%d killed, want the pool", n)
		}
		if err := errors.Join(once.Ping(ctx).Err(), server.Admin().Ping(ctx).Err()); err != nil {
			t.Error(err)
		}
	}
}

// The dial breaker of go-redis must not keep the Admin client from a server that is back.
func TestAdminSurvivesManyFailedDials(t *testing.T) {
	server := redistest.Start(t)
	server.Kill(t)
	for range 200 {
		if err := server.Admin().Ping(ctx).Err(); err == nil {
			t.Fatal("a dead server answered")
		}
	}
	server.StartAgain(t)
	if err := server.Admin().Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
}

func TestLoading(t *testing.T) {
	server := redistest.Start(t)
	mustSet(t, server, "k", "v")
	finish := server.Loading(t)
	// It goes on for longer than the data needs by itself.
	for began := time.Now(); time.Since(began) < 500*time.Millisecond; {
		if err := server.Admin().Get(ctx, "k").Err(); !redis.HasErrorPrefix(err, "LOADING") {
			t.Fatalf("GET while loading: %v", err)
		}
	}
	finish()
	finish() // does nothing
	wantValue(t, server, "k", "v")
	if n, err := server.Client(t, func(o *redis.Options) { o.DB = 15 }).DBSize(ctx).Result(); n != 0 || err != nil {
		t.Errorf("ballast left: %d, %v", n, err)
	}
}

func TestExhaustPool(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t, func(o *redis.Options) {
		o.PoolSize, o.PipelinePoolSize, o.PoolTimeout, o.MaxRetries = 3, 2, 10*time.Millisecond, -1
	})
	release := redistest.ExhaustPool(t, rdb)
	if err := rdb.Ping(ctx).Err(); !errors.Is(err, redis.ErrPoolTimeout) {
		t.Errorf("a command found a connection: %v", err)
	}
	pipeline := func() error {
		_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error { return p.Ping(ctx).Err() })
		return err
	}
	if err := pipeline(); !errors.Is(err, redis.ErrPoolTimeout) {
		t.Errorf("a pipeline found a connection: %v", err)
	}
	release()
	release() // does nothing
	if err := errors.Join(rdb.Ping(ctx).Err(), pipeline()); err != nil {
		t.Error(err)
	}
	if idle := rdb.PoolStats().IdleConns; idle != 3 {
		t.Errorf("%d idle connections, want a warm pool of 3", idle)
	}
}

func TestMissingAndOldServersFail(t *testing.T) {
	old := t.TempDir()
	script := "#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64 build=0'\n"
	if err := os.WriteFile(filepath.Join(old, "redis-server"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{t.TempDir(), "apt-get install redis-server"},
		{old, "version 6.2, but 7.0"},
	} {
		t.Setenv("PATH", c.path)
		f := new(fakeTB)
		if out := f.run(func() { redistest.Start(f) }); !f.failed || !strings.Contains(out, c.want) {
			t.Errorf("failed %v with %q; want %q", f.failed, out, c.want)
		}
	}
}

func TestOutputIsShownWhenTheTestFailed(t *testing.T) {
	f := new(fakeTB)
	if out := f.run(func() { redistest.Start(f) }); out != "" {
		t.Errorf("a passed test printed %q", out)
	}
	f = new(fakeTB)
	out := f.run(func() {
		redistest.Start(f)
		f.Fatalf("on purpose")
	})
	if !strings.Contains(out, "Ready to accept connections") {
		t.Errorf("printed %q", out)
	}
	f = new(fakeTB)
	if out := f.run(func() { redistest.Start(f, "--no-such-setting", "1") }); !f.failed || !strings.Contains(out, "no-such-setting") {
		t.Errorf("a wrong argument: %v, %q", f.failed, out)
	}
}

func TestTakenPortsAreNotUsed(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	shared := redistest.Shared(t)
	_, port, _ := net.SplitHostPort(shared.Addr())
	foreign, _ := strconv.Atoi(port)

	defer redistest.OfferPorts(silent.Addr().(*net.TCPAddr).Port, foreign)()
	server := redistest.Start(t)
	if server.Addr() == shared.Addr() || server.Addr() == silent.Addr().String() {
		t.Errorf("took the taken port %s", server.Addr())
	}
	if err := server.Admin().Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
}

func TestServerDiesWithItsTestProcess(t *testing.T) {
	out, _ := runChild(t, "dies")
	address := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(out)
	if address == nil {
		t.Fatalf("no server started:\n%s", out)
	}
	eventually(t, "the end of the orphan", func() bool { return refuses(address[1]) })
}
