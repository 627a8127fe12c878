package rediscall_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/redistest"
)

// clients are ways to build a client that would send a command again if it were not told otherwise.
var clients = map[string]func(testing.TB, *redistest.Server, func(*redis.Options)) redis.UniversalClient{
	"defaults": func(t testing.TB, s *redistest.Server, via func(*redis.Options)) redis.UniversalClient {
		return s.Client(t, via)
	},
	"eager": func(t testing.TB, s *redistest.Server, via func(*redis.Options)) redis.UniversalClient {
		return s.Client(t, via, func(o *redis.Options) {
			o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 5, -1, -1
			o.ContextTimeoutEnabled = true
		})
	},
	"no clone": func(t testing.TB, s *redistest.Server, via func(*redis.Options)) redis.UniversalClient {
		return opaque{s.Client(t, via, func(o *redis.Options) {
			o.ReadTimeout, o.MinRetryBackoff, o.MaxRetryBackoff = 8*short, -1, -1
		})}
	},
}

// A script whose reply was lost did run. It must not run again, whatever the client is set to.
func TestALostReplyRunsTheScriptOnce(t *testing.T) {
	server := redistest.Shared(t)
	for name, client := range clients {
		for _, shape := range shapes {
			t.Run(name+"/"+shape.name+"/cut", func(t *testing.T) {
				proxy, via := through(t, server)
				lose(t, server, proxy, client(t, server, via), ample, shape, false, rediscall.Transport)
			})
			t.Run(name+"/"+shape.name+"/silent", func(t *testing.T) {
				proxy, via := through(t, server)
				budget := 4 * short
				if name == "no clone" {
					budget = ample // its own time-out ends the read, with time left to send again
				}
				lose(t, server, proxy, client(t, server, via), budget, shape, true, rediscall.Timeout)
			})
		}
	}
}

// A ClusterClient repeats what fails by a loop of its own.
func TestALostReplyOfAClusterRunsTheScriptOnce(t *testing.T) {
	server := startCluster(t)
	proxy, _ := through(t, server)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		DisableIdentity: true,
		// The cluster would name its own address, and the way there does not lead through the proxy.
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: proxy.Addr()}}}}, nil
		},
	})
	defer client.Close()
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			lose(t, server, proxy, client, ample, shape, false, rediscall.Transport)
		})
	}
	t.Run("CROSSSLOT", func(t *testing.T) {
		isClass(t, one("mget", "a", "b")(t, server), rediscall.Reply)
	})
}

// startCluster returns a cluster of one, which serves all slots.
func startCluster(t testing.TB) *redistest.Server {
	t.Helper()
	server := redistest.Start(t, "--cluster-enabled", "yes")
	admin(t, server, "cluster", "addslotsrange", 0, 16383)
	eventually(t, "a cluster that serves", func() bool {
		return server.Admin().Set(background, "x", "", 0).Err() == nil
	})
	return server
}

// lose sends scripts whose replies are lost.
func lose(
	t *testing.T, server *redistest.Server, proxy *redistest.Proxy, rdb redis.UniversalClient, budget time.Duration,
	shape shape, silent bool, class rediscall.Class,
) {
	prefix := server.Prefix(t) + "{slot}"
	script := counter(prefix)
	patient, r := newRunner(t, rdb, ample), newRunner(t, rdb, budget)
	do(t, patient, calls(script, shape.keys(prefix+"warm"))...)
	dropped := proxy.Stats().Dropped

	keys := shape.keys(prefix)
	proxy.DropReply(1, "evalsha", silent)
	commands := calls(script, keys)
	err := r.Do(background, commands...)
	isClass(t, err, class)
	if !rediscall.Unknown(err) {
		t.Errorf("%v: not unknown, yet the scripts ran", err)
	}
	noneStuck(t, r) // whoever sends again has done so
	if n := proxy.Stats().Dropped - dropped; n != 1 {
		t.Fatalf("%d replies were lost, want 1", n)
	}
	holds(t, server, "1", keys...)

	do(t, patient, calls(script, keys)...)
	holds(t, server, "2", keys...)
}

// Of a pipeline that was cut in the middle nothing is sent again, and nothing passes for an answer that is none.
func TestAPipelineThatIsCutInTheMiddle(t *testing.T) {
	server := redistest.Shared(t)
	r := newRunner(t, server.Client(t), ample)
	prefix := server.Prefix(t)
	script := counter(prefix)
	do(t, r, script.Command(background, prefix+"warm"))

	before := script.Command(background, prefix+"before")
	wrong := rediscall.NewCommand(background, "lpush", prefix+"before", "x")
	after := script.Command(background, prefix+"after")
	do(t, r, before, wrong, rediscall.NewCommand(background, "quit"), after)
	isClass(t, wrong.Err(), rediscall.WrongType)
	if rediscall.Unknown(wrong.Err()) {
		t.Errorf("%v has a reply and is unknown", wrong)
	}
	isClass(t, after.Err(), rediscall.Transport)
	if !rediscall.Unknown(after.Err()) {
		t.Errorf("%v has no reply and is not unknown", after)
	}
	// go-redis gives the error of the cut to those, too, that were answered without an error.
	if n, err := before.Int(); err == nil && n != 1 || err != nil && !rediscall.Unknown(before.Err()) {
		t.Errorf("the command before the cut: %v, %v; want 1, or unknown", n, err)
	}
	holds(t, server, "1", prefix+"before")
	if n := server.Admin().Exists(background, prefix+"after").Val(); n != 0 {
		t.Error("the command after the cut was sent again")
	}
}

func TestUnknown(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	if rediscall.Unknown(nil) {
		t.Error("what has no error is unknown")
	}
	if err := rdb.Get(background, server.Prefix(t)).Err(); err == nil || rediscall.Unknown(err) {
		t.Errorf("%v: an answer is unknown", err)
	}
	if err := rdb.Do(background, "no such command").Err(); err == nil || rediscall.Unknown(err) {
		t.Errorf("%v: an error reply is unknown", err)
	}
	ended, cancel := context.WithTimeout(background, time.Nanosecond)
	defer cancel()
	<-ended.Done()
	for _, err := range []error{ended.Err(), context.Canceled} {
		if !rediscall.Unknown(err) {
			t.Errorf("%v: not unknown", err)
		}
	}
}
