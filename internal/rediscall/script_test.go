package rediscall_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/redistest"
)

// trips counts the round trips of f.
func trips(r *rediscall.Runner, f func()) uint64 {
	before := r.Trips()
	f()
	return r.Trips() - before
}

// What a server does not know is sent again with its source: once, and only that, wherever it stands in a pipeline.
func TestUnknownScriptsAreSentAgainAndNothingElse(t *testing.T) {
	server := redistest.Shared(t)
	r := newRunner(t, server.Client(t), ample)
	prefix := server.Prefix(t)
	known, strange, other := counter(prefix+"known"), counter(prefix+"strange"), counter(prefix+"other")
	keys := []string{"strange", "plain", "known", "again", "other"}
	for i := range keys {
		keys[i] = prefix + keys[i]
	}
	mixed := func(want string) {
		t.Helper()
		commands := []*rediscall.Command{
			strange.Command(background, keys[0]),
			rediscall.NewCommand(background, "incr", keys[1]),
			known.Command(background, keys[2]),
			strange.Command(background, keys[3]),
			rediscall.NewCommand(background, "get", prefix+"nothing"),
			rediscall.NewCommand(background, "evalsha", "ffffffffffffffffffffffffffffffffffffffff", 0),
			other.Command(background, keys[4]),
			rediscall.NewCommand(background, "lpush", keys[2], "x"),
		}
		do(t, r, commands...)
		for _, i := range []int{0, 1, 2, 3, 6} {
			if n, err := commands[i].Int(); fmt.Sprint(n) != want || err != nil {
				t.Errorf("%v gives %v, %v; want %v", commands[i], n, err, want)
			}
		}
		isClass(t, commands[4].Err(), rediscall.Nil)
		isClass(t, commands[5].Err(), rediscall.Reply) // no Script: what to send instead is not known
		isClass(t, commands[7].Err(), rediscall.WrongType)
		holds(t, server, want, keys...)
	}
	counted := func(round string, want map[string]int, wantTrips uint64) {
		t.Helper()
		var n uint64
		got := server.Commands(t, func() { n = trips(r, func() { mixed(round) }) })
		want["lpush"], want["incr"] = 1, 1
		want["get"] = 1 + len(keys) // those of holds
		if !maps.Equal(got, want) || n != wantTrips {
			t.Errorf("round %s: the server saw %v in %d trips, want %v in %d", round, got, n, want, wantTrips)
		}
	}
	do(t, r, known.Command(background, prefix+"warm"))
	// Each script's source goes once; the second call of strange finds it known by then.
	counted("1", map[string]int{"eval": 2, "evalsha": 6}, 2)
	counted("2", map[string]int{"evalsha": 5}, 1)
	admin(t, server, "script", "flush")
	counted("3", map[string]int{"eval": 3, "evalsha": 6}, 2)
}

func TestAnUnknownScriptAloneIsSentAgain(t *testing.T) {
	server := redistest.Shared(t)
	r := newRunner(t, server.Client(t), ample)
	key := server.Prefix(t) + "k"
	script := counter(key)
	for round, wantTrips := range []uint64{2, 1, 2} {
		if round == 2 {
			admin(t, server, "script", "flush")
		}
		command := script.Command(background, key)
		if n := trips(r, func() { do(t, r, command) }); n != wantTrips {
			t.Errorf("round %d: %d trips, want %d", round, n, wantTrips)
		}
		if n, err := command.Int(); n != round+1 || err != nil {
			t.Errorf("round %d gives %v, %v", round, n, err)
		}
	}
	holds(t, server, "3", key)
}

// A client of several nodes teaches each of them, however the calls of one script are spread.
func TestEachNodeIsTaughtItsScripts(t *testing.T) {
	nodes := map[string]*redistest.Server{"a": redistest.Shared(t), "b": redistest.Start(t), "c": redistest.Start(t)}
	addrs := map[string]string{}
	for name, node := range nodes {
		addrs[name] = node.Addr()
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: addrs, DisableIdentity: true})
	defer ring.Close()
	r := rediscall.NewRunner(ring, ample)
	defer r.Close(ample)
	prefix := nodes["a"].Prefix(t)
	script := counter(prefix)
	var keys []string
	for i := range 32 {
		keys = append(keys, fmt.Sprint(prefix, i))
	}
	for round := 1; round <= 2; round++ {
		commands := calls(script, keys)
		do(t, r, commands...)
		for _, c := range commands {
			if n, err := c.Int(); n != round || err != nil {
				t.Errorf("round %d: %v gives %v, %v", round, c, n, err)
			}
		}
	}
	for name, node := range nodes {
		if n := node.Admin().Exists(background, keys...).Val(); n == 0 || n == int64(len(keys)) {
			t.Errorf("%d of %d keys stand on the node %s: nothing was tested", n, len(keys), name)
		}
	}
}

// The source is sent with the same key and arguments as the digest, and its reply, be it an error or nothing, is the command's.
func TestAScriptSentAgainIsTheSameCall(t *testing.T) {
	server := redistest.Shared(t)
	r := newRunner(t, server.Client(t), ample)
	key := server.Prefix(t) + "k {1} \r\n\x00\xff"
	args := []string{"", "a b\r\n", "\x00\xff", "4", "5", "6", "7", "8", "9", "10", "11"}
	want := []any{key}
	for _, arg := range args {
		want = append(want, arg)
	}
	echo := rediscall.NewScript("return {KEYS[1], unpack(ARGV)}")
	nothing := rediscall.NewScript("return false")
	wrong := rediscall.NewScript("return redis.call('LPUSH', KEYS[1], 'x')")
	admin(t, server, "set", key, "")
	admin(t, server, "script", "flush")
	for _, again := range []bool{true, false} {
		commands := []*rediscall.Command{
			echo.Command(background, key, args...), nothing.Command(background, key), wrong.Command(background, key),
		}
		if n := trips(r, func() { do(t, r, commands...) }); (n == 2) != again {
			t.Errorf("%d trips", n)
		}
		if got, err := commands[0].Slice(); !slices.Equal(got, want) || err != nil {
			t.Errorf("sent again %v: got %q, %v; want %q", again, got, err, want)
		}
		isClass(t, commands[1].Err(), rediscall.Nil)
		isClass(t, commands[2].Err(), rediscall.WrongType)
	}
}

// If the second trip is lost, nothing is known of any command, and still none ran twice.
func TestALostSecondTripRunsNothingTwice(t *testing.T) {
	server := redistest.Shared(t)
	proxy, via := through(t, server)
	r := newRunner(t, server.Client(t, via), ample)
	prefix := server.Prefix(t)
	script := counter(prefix)
	do(t, r, rediscall.NewCommand(background, "ping"))
	proxy.DropReply(1, "$4\r\neval\r\n", false)
	err := r.Do(background, rediscall.NewCommand(background, "incr", prefix+"plain"), script.Command(background, prefix+"script"))
	isClass(t, err, rediscall.Transport)
	if !rediscall.Unknown(err) {
		t.Errorf("%v: not unknown", err)
	}
	if n := proxy.Stats().Dropped; n != 1 {
		t.Errorf("%d replies were lost, want 1", n)
	}
	holds(t, server, "1", prefix+"plain", prefix+"script")
}
