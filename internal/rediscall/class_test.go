package rediscall_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/redistest"
)

// failure brings about one error of one class.
type failure struct {
	name  string
	class rediscall.Class
	own   []string // arguments of a server of its own; nil: the shared one does
	make  func(t *testing.T, s *redistest.Server) error
}

var (
	shared []string
	alone  = []string{}
)

var failures = []failure{
	{"no error", rediscall.OK, shared, one("ping")},
	{"no key", rediscall.Nil, shared, one("get", "nothing")},
	{"a script that returns nothing", rediscall.Nil, shared, script("return false")},
	{"an unknown command", rediscall.Reply, shared, one("nonsense")},
	{"an error of a script", rediscall.Reply, shared, script("return redis.error_reply('ODD thing')")},
	{"WRONGTYPE", rediscall.WrongType, shared, wrongType(one("lpush", "wrong", "y"))},
	{"WRONGTYPE in a script", rediscall.WrongType, shared, wrongType(script("return redis.call('LPUSH', 'wrong', 'y')"))},
	{"OOM", rediscall.OOM, shared, set("maxmemory", "1", one("set", "k", "v"))},
	{"OOM in a script", rediscall.OOM, shared, set("maxmemory", "1", script("return redis.call('SET', KEYS[1], 'v')"))},
	{"READONLY", rediscall.ReadOnly, shared, replica(one("set", "k", "v"))},
	{"READONLY in a script", rediscall.ReadOnly, shared, replica(script("return redis.call('SET', KEYS[1], 'v')"))},
	{"MASTERDOWN", rediscall.MasterDown, shared, set("replica-serve-stale-data", "no", replica(one("get", "k")))},
	{"MASTERDOWN for a script", rediscall.MasterDown, shared, set("replica-serve-stale-data", "no", replica(script("return 1")))},
	{"NOREPLICAS", rediscall.MasterDown, shared, set("min-replicas-to-write", "1", one("set", "k", "v"))},
	{"NOREPLICAS in a script", rediscall.MasterDown, shared, set("min-replicas-to-write", "1", script("return redis.call('SET', KEYS[1], 'v')"))},
	{"CLUSTERDOWN", rediscall.ClusterDown, []string{"--cluster-enabled", "yes"}, one("get", "k")},
	{"NOPERM for a command", rediscall.Denied, shared, denied("-get", "get", "allowed")},
	{"NOPERM for a key", rediscall.Denied, shared, denied("+get", "get", "forbidden")},
	{"NOPERM for a script", rediscall.Denied, shared, denied("-evalsha", "evalsha", "x", "0")},
	{"no right to a command in a script", rediscall.Denied, shared, deniedInScript},
	{"NOAUTH", rediscall.Denied, alone, noAuth},
	{"WRONGPASS", rediscall.Denied, shared, with(func(o *redis.Options) { o.Username, o.Password = "nobody", "x" })},
	{"LOADING", rediscall.Loading, alone, loading},
	{"BUSY", rediscall.Busy, shared, set("busy-reply-threshold", "1", busy)},
	{"BUSYGROUP", rediscall.Reply, shared, said("BUSYGROUP Consumer Group name already exists")},
	{"a server that is away", rediscall.Transport, alone, stopped},
	{"a connection that is cut", rediscall.Transport, shared, cut},
	{"a connection that is refused", rediscall.Transport, shared, reset},
	{"a full server", rediscall.Transport, alone, full}, // go-redis drops the reply, which comes before the handshake
	{"a budget", rediscall.Timeout, shared, held(short, ample)},
	{"a read time-out", rediscall.Timeout, shared, held(ample, short)},
	{"a dial time-out", rediscall.Timeout, shared, dialTimeout},
	{"a full pool", rediscall.Pool, shared, fullPool},
	{"a closed client", rediscall.Closed, shared, closedClient},
	{"a closed runner", rediscall.Closed, shared, closedRunner},
	{"a cancelled caller", rediscall.Caller, shared, cancelled},
	{"a deadline of the caller", rediscall.Caller, shared, expired},

	// What takes more than one server to bring about, word for word.
	{"TRYAGAIN", rediscall.ClusterDown, shared, said("TRYAGAIN Multiple keys request during rehashing of slot")},
	{"too many clients", rediscall.MaxClients, shared, said("ERR max number of clients reached")},
	{"MISCONF", rediscall.Reply, shared, said("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.")},
	{"an open breaker", rediscall.BreakerOpen, shared, func(*testing.T, *redistest.Server) error { return rediscall.ErrBreakerOpen }},
	{"none of them", rediscall.Other, shared, func(*testing.T, *redistest.Server) error { return errors.New("odd") }},
}

func TestClassify(t *testing.T) {
	seen := map[rediscall.Class]bool{}
	for _, f := range failures {
		seen[f.class] = true
		t.Run(f.name, func(t *testing.T) {
			server := redistest.Shared(t)
			if f.own != nil {
				server = redistest.Start(t, f.own...)
			}
			err := f.make(t, server)
			if (err == nil) != (f.class == rediscall.OK) {
				t.Fatalf("got the error %v", err)
			}
			isClass(t, err, f.class)
			if err == nil {
				return
			}
			for how, wrapped := range map[string]error{
				"once":   fmt.Errorf("cache: get: %w", err),
				"twice":  fmt.Errorf("more: %w", fmt.Errorf("cache: get: %w", err)),
				"joined": errors.Join(errors.New("another"), err),
				"double": fmt.Errorf("%w: %w", errors.New("cache: delete not confirmed"), err),
			} {
				if got := rediscall.Classify(wrapped); got != f.class {
					t.Errorf("wrapped %s: %v is of the class %v, want %v", how, wrapped, got, f.class)
				}
				if rediscall.Unknown(wrapped) != rediscall.Unknown(err) {
					t.Errorf("wrapped %s: %v is unknown, or not, unlike what it wraps", how, wrapped)
				}
			}
		})
	}
	for class := range rediscall.NumClasses {
		if !seen[class] {
			t.Errorf("no test brings about the class %v", class)
		}
	}
}

func TestClassesHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for class := range rediscall.NumClasses {
		name := class.String()
		if name == "" || seen[name] {
			t.Errorf("class %d is called %q", class, name)
		}
		seen[name] = true
	}
}

// one sends one command.
func one(args ...any) func(*testing.T, *redistest.Server) error {
	return func(t *testing.T, s *redistest.Server) error {
		return outcome(newRunner(t, s.Client(t), ample), rediscall.NewCommand(background, args...))
	}
}

// script calls a script.
func script(source string) func(*testing.T, *redistest.Server) error {
	return func(t *testing.T, s *redistest.Server) error {
		return outcome(newRunner(t, s.Client(t), ample), rediscall.NewScript(source).Command(background, "k"))
	}
}

// set changes a setting of the server for the time of one test.
func set(setting, value string, next func(*testing.T, *redistest.Server) error) func(*testing.T, *redistest.Server) error {
	return func(t *testing.T, s *redistest.Server) error {
		s.Config(t, setting, value)
		return next(t, s)
	}
}

// replica makes the server, for the time of one test, a replica of a master that is away.
func replica(next func(*testing.T, *redistest.Server) error) func(*testing.T, *redistest.Server) error {
	return func(t *testing.T, s *redistest.Server) error {
		admin(t, s, "replicaof", "127.0.0.1", "1")
		defer admin(t, s, "replicaof", "no", "one")
		return next(t, s)
	}
}

func wrongType(next func(*testing.T, *redistest.Server) error) func(*testing.T, *redistest.Server) error {
	return func(t *testing.T, s *redistest.Server) error {
		admin(t, s, "set", "wrong", "x")
		return next(t, s)
	}
}

func admin(t testing.TB, s *redistest.Server, args ...any) {
	t.Helper()
	if err := s.Admin().Do(background, args...).Err(); err != nil {
		t.Fatal(err)
	}
}

// with sends a command by a client with an option.
func with(option func(*redis.Options)) func(*testing.T, *redistest.Server) error {
	return func(t *testing.T, s *redistest.Server) error {
		return outcome(newRunner(t, s.Client(t, option), ample), rediscall.NewCommand(background, "get", "k"))
	}
}

// denied sends a command as a user who may do all but one thing, with one key.
func denied(rule string, args ...any) func(*testing.T, *redistest.Server) error {
	return func(t *testing.T, s *redistest.Server) error {
		const user, password = "restricted", "secret"
		admin(t, s, "acl", "setuser", user, "reset", "on", ">"+password, "~allowed", "+@all", rule)
		defer admin(t, s, "acl", "deluser", user)
		rdb := s.Client(t, func(o *redis.Options) { o.Username, o.Password = user, password })
		return outcome(newRunner(t, rdb, ample), rediscall.NewCommand(background, args...))
	}
}

func deniedInScript(t *testing.T, s *redistest.Server) error {
	source := "return redis.call('GET', 'forbidden')"
	return denied("+get", "eval", source, 1, "allowed")(t, s)
}

func dialTimeout(t *testing.T, s *redistest.Server) error {
	conn, err := (&net.Dialer{Timeout: time.Nanosecond}).Dial("tcp", s.Addr())
	if err == nil {
		conn.Close()
	}
	return err
}

func noAuth(t *testing.T, s *redistest.Server) error {
	admin(t, s, "acl", "setuser", "default", "off")
	return one("get", "k")(t, s)
}

func loading(t *testing.T, s *redistest.Server) error {
	finish := s.Loading(t)
	defer finish()
	return one("get", "k")(t, s)
}

func busy(t *testing.T, s *redistest.Server) error {
	endless := make(chan error, 1)
	rdb := s.Client(t, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = -1, -1 })
	go func() { endless <- rdb.Eval(background, "while true do end", nil).Err() }()
	r := newRunner(t, s.Client(t), ample)
	var err error
	eventually(t, "a server that is busy", func() bool {
		err = outcome(r, rediscall.NewCommand(background, "get", "k"))
		return redis.HasErrorPrefix(err, "BUSY")
	})
	admin(t, s, "script", "kill")
	<-endless
	return err
}

func stopped(t *testing.T, s *redistest.Server) error {
	s.Stop(t)
	return with(func(o *redis.Options) { o.DialerRetries = 1 })(t, s)
}

func cut(t *testing.T, s *redistest.Server) error {
	proxy, via := through(t, s)
	proxy.DropReply(1, "nothing", false)
	return outcome(newRunner(t, s.Client(t, via), ample), rediscall.NewCommand(background, "get", "nothing"))
}

func reset(t *testing.T, s *redistest.Server) error {
	proxy, via := through(t, s)
	proxy.Refuse(true)
	return with(via)(t, s)
}

func full(t *testing.T, s *redistest.Server) error {
	s.Config(t, "maxclients", "1")
	return one("get", "k")(t, s)
}

// held sends a command whose reply does not come, on a client whose reads end.
func held(budget, readTimeout time.Duration) func(*testing.T, *redistest.Server) error {
	return func(t *testing.T, s *redistest.Server) error {
		proxy, via := through(t, s)
		rdb := opaque{s.Client(t, via, func(o *redis.Options) { o.ReadTimeout = readTimeout })}
		r := newRunner(t, rdb, budget)
		proxy.Freeze(redistest.ToClient)
		defer proxy.Thaw()
		return outcome(r, rediscall.NewCommand(background, "get", "k"))
	}
}

func fullPool(t *testing.T, s *redistest.Server) error {
	rdb := s.Client(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, short })
	defer redistest.ExhaustPool(t, rdb)()
	return outcome(newRunner(t, rdb, ample), rediscall.NewCommand(background, "get", "k"))
}

func closedClient(t *testing.T, s *redistest.Server) error {
	rdb := s.Client(t)
	rdb.Close()
	return outcome(newRunner(t, rdb, ample), rediscall.NewCommand(background, "get", "k"))
}

func closedRunner(t *testing.T, s *redistest.Server) error {
	r := newRunner(t, s.Client(t), ample)
	r.Close(0)
	return outcome(r, rediscall.NewCommand(background, "get", "k"))
}

func cancelled(t *testing.T, s *redistest.Server) error {
	ctx, cancel := context.WithCancel(background)
	cancel()
	return newRunner(t, s.Client(t), ample).Do(ctx, rediscall.NewCommand(ctx, "get", "k"))
}

func expired(t *testing.T, s *redistest.Server) error {
	ctx, cancel := context.WithTimeout(background, time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	return newRunner(t, s.Client(t), ample).Do(ctx, rediscall.NewCommand(ctx, "get", "k"))
}

// said sends a command to a server that answers everything with one error.
func said(reply string) func(*testing.T, *redistest.Server) error {
	return func(t *testing.T, s *redistest.Server) error {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			for r := bufio.NewReader(conn); ; {
				if err := skipCommand(r); err != nil {
					return
				}
				fmt.Fprintf(conn, "-%s\r\n", reply)
			}
		}()
		rdb := s.Client(t, func(o *redis.Options) { o.Addr = listener.Addr().String() })
		defer func() {
			rdb.Close()
			listener.Close()
			<-ended
		}()
		return outcome(newRunner(t, rdb, ample), rediscall.NewCommand(background, "get", "k"))
	}
}

// skipCommand reads one command.
func skipCommand(r *bufio.Reader) error {
	var n int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
		return err
	}
	for range n {
		var size int64
		if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, r, size+2); err != nil {
			return err
		}
	}
	return nil
}
