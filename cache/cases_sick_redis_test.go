package cache_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestP10_OnlyTheLoaderFailsAGet(t *testing.T) {
	// answers checks that all reads are answered as if there were no Redis, and returns the instance.
	answers := func(t *testing.T, w *world, i *instance) {
		t.Helper()
		failure := errors.New("the database is down")
		w.put("k", v1)
		for range 3 {
			i.mustGet(t, "k", v1)
		}
		if m, err := i.GetMany(t.Context(), []string{"k", "none"}); len(m) != 1 || m["k"] != v1 || err != nil {
			t.Errorf("GetMany = %v, %v", m, err)
		}
		if v, err := i.Get(t.Context(), "none"); !errors.Is(err, cache.ErrNotFound) {
			t.Errorf("Get of a row that is not there = %q, %v", v, err)
		}
		_, err := i.Fetch(t.Context(), "fails", func(context.Context) (string, error) { return "", failure })
		if !errors.Is(err, failure) {
			t.Errorf("the loader's error became %v", err)
		}
		i.client.Idle(t)
		w.put("k", v2)
		if err := i.Invalidate(t.Context(), "k"); err != nil && !errors.Is(err, cache.ErrUnconfirmed) {
			t.Errorf("Invalidate: %v", err)
		}
		i.mustGet(t, "k", v2)
	}
	sick := func(t *testing.T, class string, w *world, i *instance) {
		t.Helper()
		answers(t, w, i)
		if errs := i.client.Stats().RedisErrors; errs[class] == 0 {
			t.Errorf("errors of kind %q are not counted: %v", class, errs)
		}
	}

	// What a server of this test answers to everything.
	for reply, class := range map[string]string{
		"MOVED 1 127.0.0.1:1":                                  "reply",
		"ASK 1 127.0.0.1:1":                                    "reply",
		"CLUSTERDOWN Hash slot not served":                     "cluster_down",
		"TRYAGAIN Multiple keys request during rehashing":      "cluster_down",
		"LOADING Redis is loading the dataset in memory":       "loading",
		"MASTERDOWN Link with MASTER is down":                  "master_down",
		"BUSY Redis is busy running a script":                  "busy",
		"ERR max number of clients reached":                    "max_clients",
		"NOPERM this user has no permissions to run 'get'":     "denied",
		"OOM command not allowed when used memory > maxmemory": "oom",
		"ERR unknown command":                                  "reply",
	} {
		t.Run(reply, func(t *testing.T) {
			w := newWorld(t)
			addr := serveErrors(t, reply)
			sick(t, class, w, w.instance(t, func(s *setup) { s.redis.Addr = addr }))
		})
	}
	t.Run("READONLY", func(t *testing.T) {
		server := redistest.Start(t)
		mustDo(t, server.Admin().ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
		w := newWorldOn(t, server)
		sick(t, "read_only", w, w.instance(t))
	})
	t.Run("OOM", func(t *testing.T) {
		server := redistest.Start(t)
		server.Config(t, "maxmemory", "1")
		w := newWorldOn(t, server)
		sick(t, "oom", w, w.instance(t))
	})
	t.Run("refused", func(t *testing.T) {
		server := redistest.Start(t)
		server.Kill(t)
		w := newWorldOn(t, server)
		sick(t, "transport", w, w.instance(t, func(s *setup) { s.redis.DialerRetries = 1 }))
	})
	t.Run("reset", func(t *testing.T) {
		w := newWorld(t)
		proxy := redistest.NewProxy(t, w.server.Addr())
		proxy.Refuse(true)
		sick(t, "transport", w, w.instance(t, through(proxy)))
	})
	t.Run("closed by its owner", func(t *testing.T) {
		w := newWorld(t)
		i := w.instance(t)
		mustDo(t, i.rdb.Close())
		sick(t, "closed", w, i)
	})
	for name, damage := range map[string]func(t *testing.T, w *world, physical string){
		"WRONGTYPE": func(t *testing.T, w *world, physical string) {
			mustDo(t, w.server.Admin().LPush(t.Context(), physical, "a list").Err())
		},
		"bytes of something else": func(t *testing.T, w *world, physical string) {
			mustDo(t, w.server.Admin().Set(t.Context(), physical, "not a frame", 0).Err())
		},
		"no bytes": func(t *testing.T, w *world, physical string) {
			mustDo(t, w.server.Admin().Set(t.Context(), physical, "", 0).Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			i := w.instance(t)
			damage(t, w, i.PhysicalKey(t, "k"))
			damage(t, w, i.PhysicalKey(t, "none"))
			answers(t, w, i)
			i.client.Idle(t)
			w.holds(t, i, "k", v2) // the damage is repaired
		})
	}
}

func TestP13_LoadSurvivesWhoStartedIt(t *testing.T) {
	t.Run("its context is cancelled", func(t *testing.T) {
		w := newWorld(t)
		i := w.instance(t)
		w.put("k", v1)
		gate := w.hold(t)
		ctx, cancel := context.WithCancel(t.Context())
		leader := i.startGet(ctx, "k")
		gate.await(t, "the load")
		follower := i.startGet(t.Context(), "k")
		eventually(t, "the follower joins", func() bool { return i.Stats().Joined == 1 })
		cancel()
		if got := receive(t, "the leader", leader); !errors.Is(got.err, context.Canceled) {
			t.Errorf("the leader got %q, %v", got.value, got.err)
		}
		gate.open()
		receive(t, "the follower", follower).must(t, v1)
		i.client.Idle(t)
		w.holds(t, i, "k", v1)
		if n := w.loads(); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
	})
	t.Run("a follower's deadline ends its own wait", func(t *testing.T) {
		w := newWorld(t)
		i := w.instance(t)
		w.put("k", v1)
		gate := w.hold(t)
		leader := i.startGet(t.Context(), "k")
		gate.await(t, "the load")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := i.Get(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) { // while the load is held
			t.Errorf("the follower got %v", err)
		}
		gate.open()
		receive(t, "the leader", leader).must(t, v1)
	})
	t.Run("it panics", func(t *testing.T) {
		w := newWorld(t)
		gate := newGate(t)
		var once sync.Once
		i := w.instance(t, func(s *setup) {
			s.policy.LeaseTTL = time.Minute // nobody may have to wait for its end
			s.loader = func(ctx context.Context, keys []string) (map[string]string, error) {
				once.Do(func() {
					_ = gate.pass(ctx)
					panic("no luck")
				})
				return w.load(ctx, keys)
			}
		})
		other := w.instance(t)
		w.put("k", v1)
		leader := i.startGet(t.Context(), "k")
		gate.await(t, "the load")
		follower := i.startGet(t.Context(), "k")
		eventually(t, "the follower joins", func() bool { return i.Stats().Joined == 1 })
		gate.open()
		for _, caller := range []<-chan answer{leader, follower} {
			var panicked *cache.PanicError
			if got := receive(t, "a caller", caller); !errors.As(got.err, &panicked) || panicked.Value != "no luck" {
				t.Errorf("a caller got %q, %v", got.value, got.err)
			}
		}
		i.mustGet(t, "k", v1)
		i.client.Idle(t)
		w.holds(t, i, "k", v1) // under a lease: the first one was given back
		other.mustGetFrom(t, "k", v1, cache.TierRedis)
	})
}

// serveErrors runs a server that answers every command with one error, but for the handshake, and returns its address.
func serveErrors(t testing.TB, reply string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	mustDo(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				answerErrors(conn, reply)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for conn := range conns {
			conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return listener.Addr().String()
}

// answerErrors reads commands until the connection ends.
func answerErrors(conn io.ReadWriter, reply string) {
	in := bufio.NewReader(conn)
	number := func(prefix byte) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil || line[0] != prefix {
			return 0, errors.Join(err, io.ErrUnexpectedEOF)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	for {
		n, err := number('*')
		if err != nil {
			return
		}
		var name string
		for i := range n {
			size, err := number('$')
			if err != nil {
				return
			}
			word := make([]byte, size+2)
			if _, err := io.ReadFull(in, word); err != nil {
				return
			}
			if i == 0 {
				name = strings.ToLower(string(word[:size]))
			}
		}
		answer := reply
		if name == "hello" || name == "client" {
			answer = "ERR unknown command '" + name + "'"
		}
		if _, err := fmt.Fprintf(conn, "-%s\r\n", answer); err != nil {
			return
		}
	}
}
