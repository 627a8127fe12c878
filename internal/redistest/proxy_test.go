package redistest_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
)

const slack = 10 * time.Second // far more than anything that is not held takes

// through returns a proxy before the shared server and a client that goes through it, without retries and with short reads.
func through(t *testing.T) (*redistest.Proxy, *redis.Client, *redistest.Server) {
	t.Helper()
	server := redistest.Shared(t)
	proxy := redistest.NewProxy(t, server.Addr())
	rdb := server.Client(t, func(o *redis.Options) {
		o.Addr, o.MaxRetries, o.ReadTimeout = proxy.Addr(), -1, slack
	})
	return proxy, rdb, server
}

// short is a client on the same way whose reads end soon.
func short(rdb *redis.Client) *redis.Client { return rdb.WithTimeout(60 * time.Millisecond) }

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func mustPing(t *testing.T, rdb *redis.Client) {
	t.Helper()
	if err := rdb.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestProxyPassesBytesAndCounts(t *testing.T) {
	proxy, rdb, server := through(t)
	key := server.Prefix(t) + "k"
	big := strings.Repeat("0123456789abcdef", 1<<16)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 4 {
				if err := rdb.Set(ctx, key, big, 0).Err(); err != nil {
					t.Error(err)
				}
				if got, err := rdb.Get(ctx, key).Result(); got != big || err != nil {
					t.Errorf("%d bytes came back, %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	s := proxy.Stats()
	const most = 32<<20 + 1<<20
	for _, dir := range []redistest.Direction{redistest.ToServer, redistest.ToClient} {
		if n := s.Passed[dir]; n < 32<<20 || n > most || s.Held[dir] != 0 || s.Lost[dir] != 0 {
			t.Errorf("direction %d: %+v", dir, s)
		}
	}
	if s.Live < 1 || s.Live > 8 || s.Accepted != s.Live {
		t.Errorf("connections: %+v", s)
	}
	rdb.Close()
	proxy.Await(t, "the end of all connections", func(s redistest.Stats) bool { return s.Live == 0 })
}

func TestProxyTellsBothSidesOfAnEnd(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	conn, err := net.Dial("tcp", proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	proxy.Await(t, "the connection", func(s redistest.Stats) bool { return s.Live == 1 })
	server.Kill(t)
	conn.SetReadDeadline(time.Now().Add(slack))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || isTimeout(err) || err == nil {
		t.Errorf("read %d, %v after the server's end", n, err)
	}
	// With no server behind it, a connection is taken and then ends.
	conn, err = net.Dial("tcp", proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(slack))
	if _, err := conn.Read(make([]byte, 1)); isTimeout(err) || err == nil {
		t.Errorf("read: %v without a server", err)
	}
}

func TestDelay(t *testing.T) {
	const d = 80 * time.Millisecond
	for name, dir := range map[string]redistest.Direction{"requests": redistest.ToServer, "replies": redistest.ToClient} {
		t.Run(name, func(t *testing.T) {
			proxy, rdb, server := through(t)
			mustPing(t, rdb)
			key := server.Prefix(t) + "k"
			proxy.Delay(dir, d)
			began := time.Now()
			if err := rdb.Incr(ctx, key).Err(); err != nil || time.Since(began) < d {
				t.Errorf("%v after %v, want %v", err, time.Since(began), d)
			}

			proxy.Delay(dir, time.Hour)
			done := make(chan error, 1)
			go func() { done <- rdb.Incr(ctx, key).Err() }()
			proxy.Await(t, "delayed bytes", func(s redistest.Stats) bool { return s.Held[dir] > 0 })
			want := "2" // a delayed reply is that of an executed command
			if dir == redistest.ToServer {
				want = "1"
			}
			wantValue(t, server, key, want)
			proxy.Delay(dir, 0) // lets go what is waiting
			if err := <-done; err != nil {
				t.Error(err)
			}
			wantValue(t, server, key, "2")
			mustPing(t, rdb)
		})
	}
}

// A stream arrives late by the delay as a whole, not by the delay for each of its pieces, and in order.
func TestDelayKeepsRateAndOrder(t *testing.T) {
	const d, pieces = 100 * time.Millisecond, 50
	echo := echoServer(t)
	proxy := redistest.NewProxy(t, echo)
	conn, err := net.Dial("tcp", proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	proxy.Delay(redistest.ToServer, d)
	proxy.Delay(redistest.ToClient, d)
	began := time.Now()
	var want []byte
	for i := range pieces {
		want = append(want, byte(i))
		if _, err := conn.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		// Each piece gets through alone: the next is written when the proxy has it.
		proxy.Await(t, "a piece", func(s redistest.Stats) bool {
			return s.Held[0]+s.Passed[0] == int64(i+1)
		})
	}
	got := make([]byte, pieces)
	conn.SetReadDeadline(began.Add(slack))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%v, %v", got, err)
	}
	if took := time.Since(began); took < 2*d || took > pieces*d/2 {
		t.Errorf("took %v", took)
	}
}

// echoServer sends back what it gets.
func echoServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		wg.Wait()
	})
	return listener.Addr().String()
}

func TestDelayMatching(t *testing.T) {
	proxy, rdb, server := through(t)
	mustPing(t, rdb)
	key := server.Prefix(t) + "k"
	mustSet(t, server, key, "v")
	proxy.DelayMatching("del\r\n", time.Hour)
	proxy.DelayMatching("ping", time.Hour)
	proxy.DelayMatching("ping", 0)
	done := make(chan error, 1)
	go func() { done <- rdb.Del(ctx, key).Err() }()
	proxy.Await(t, "the delayed request", func(s redistest.Stats) bool { return s.Held[redistest.ToServer] > 0 })
	if got, err := rdb.Get(ctx, key).Result(); got != "v" || err != nil { // on another connection
		t.Errorf("GET = %q, %v", got, err)
	}
	mustPing(t, rdb)
	proxy.DelayMatching("del\r\n", 0)
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantAbsent(t, server, key)
}

func TestDelayMatchingHoldsWhatFollows(t *testing.T) {
	proxy := redistest.NewProxy(t, echoServer(t))
	conn, err := net.Dial("tcp", proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(slack))
	got := make([]byte, 5)
	send := func(text string, ok func(redistest.Stats) bool) {
		t.Helper()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		proxy.Await(t, text, ok)
	}
	proxy.DelayMatching("slow", time.Hour)
	// The match lies across two pieces: the first is on its way when the second makes it one.
	send("sl", func(s redistest.Stats) bool { return s.Passed[redistest.ToServer] == 2 })
	send("ow", func(s redistest.Stats) bool { return s.Held[redistest.ToServer] == 2 })
	send("x", func(s redistest.Stats) bool { return s.Held[redistest.ToServer] == 3 })
	if _, err := io.ReadFull(conn, got[:2]); err != nil || string(got[:2]) != "sl" {
		t.Fatalf("%q, %v", got[:2], err)
	}
	if s := proxy.Stats(); s.Passed[redistest.ToServer] != 2 {
		t.Errorf("overtaken: %+v", s)
	}
	proxy.DelayMatching("slow", 0)
	if _, err := io.ReadFull(conn, got[2:]); err != nil || string(got) != "slowx" {
		t.Errorf("%q, %v", got, err)
	}
	// What has matched does not match again.
	proxy.DelayMatching("slow", time.Hour)
	send("y", func(s redistest.Stats) bool { return s.Passed[redistest.ToServer] == 6 })
}

func TestCut(t *testing.T) {
	proxy, rdb, _ := through(t)
	mustPing(t, rdb)
	proxy.Freeze(redistest.ToClient)
	done := make(chan error, 1)
	go func() { done <- rdb.Ping(ctx).Err() }()
	proxy.Await(t, "a reply on its way", func(s redistest.Stats) bool { return s.Held[redistest.ToClient] > 0 })
	if n := proxy.Cut(); n != 1 {
		t.Errorf("%d cut, want 1", n)
	}
	if err := <-done; err == nil || isTimeout(err) {
		t.Errorf("the cut connection says %v", err)
	}
	if s := proxy.Stats(); s.Live != 0 || s.Held != [2]int64{} || s.Lost[redistest.ToClient] == 0 {
		t.Errorf("after the cut: %+v", s)
	}
	proxy.Thaw()
	mustPing(t, rdb) // new ones live
	if n := proxy.Cut() + proxy.Cut(); n != 1 {
		t.Errorf("%d cut, want 1", n)
	}
}

func TestRefuse(t *testing.T) {
	proxy, rdb, server := through(t)
	mustPing(t, rdb)
	proxy.Refuse(true)
	mustPing(t, rdb) // live ones stay
	fresh := server.Client(t, func(o *redis.Options) { o.Addr, o.MaxRetries = proxy.Addr(), -1 })
	if err := fresh.Ping(ctx).Err(); err == nil || isTimeout(err) {
		t.Errorf("a new connection says %v", err)
	}
	if s := proxy.Stats(); s.Refused == 0 || s.Live != 1 {
		t.Errorf("%+v", s)
	}
	proxy.Refuse(false)
	mustPing(t, fresh)
}

func TestFreeze(t *testing.T) {
	for name, dir := range map[string]redistest.Direction{"requests": redistest.ToServer, "replies": redistest.ToClient} {
		t.Run(name, func(t *testing.T) {
			proxy, rdb, server := through(t)
			mustPing(t, rdb)
			key := server.Prefix(t) + "k"
			proxy.Freeze(dir)
			done := make(chan error, 1)
			go func() { done <- rdb.Incr(ctx, key).Err() }()
			proxy.Await(t, "held bytes", func(s redistest.Stats) bool { return s.Held[dir] > 0 })
			if dir == redistest.ToClient {
				wantValue(t, server, key, "1")
			} else {
				wantAbsent(t, server, key)
			}
			if err := short(rdb).Ping(ctx).Err(); !isTimeout(err) { // a new connection is frozen too
				t.Errorf("PING on a frozen way: %v", err)
			}
			proxy.Thaw()
			if err := <-done; err != nil {
				t.Error(err)
			}
			wantValue(t, server, key, "1")
			mustPing(t, rdb)
		})
	}
}

// The server hears of a client's end only after what the client sent before, and only when the way is free.
func TestFreezeHoldsTheEnd(t *testing.T) {
	proxy, rdb, server := through(t)
	mustPing(t, rdb)
	key := server.Prefix(t) + "k"
	proxy.Freeze(redistest.ToServer)
	if err := short(rdb).Incr(ctx, key).Err(); !isTimeout(err) {
		t.Errorf("INCR on a frozen way: %v", err)
	}
	rdb.Close()
	proxy.Await(t, "the held command", func(s redistest.Stats) bool { return s.Held[redistest.ToServer] > 0 })
	if s := proxy.Stats(); s.Live != 1 {
		t.Errorf("the end was not held: %+v", s)
	}
	wantAbsent(t, server, key)
	proxy.Thaw()
	proxy.Await(t, "the end", func(s redistest.Stats) bool { return s.Live == 0 })
	eventually(t, "the late command", func() bool { return server.Admin().Get(ctx, key).Val() == "1" })
}

func TestBlackHole(t *testing.T) {
	proxy, rdb, server := through(t)
	key := server.Prefix(t) + "k"
	idle, err := net.Dial("tcp", proxy.Addr()) // loses nothing
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	mustPing(t, rdb)
	proxy.BlackHole()
	for range 2 { // on a live connection, then on a new one
		lost := proxy.Stats().Lost[redistest.ToServer]
		if err := short(rdb).Incr(ctx, key).Err(); !isTimeout(err) {
			t.Errorf("INCR into the black hole: %v", err)
		}
		proxy.Await(t, "lost bytes", func(s redistest.Stats) bool { return s.Lost[redistest.ToServer] > lost })
	}
	if s := proxy.Stats(); s.Live != 3 { // though the client has closed two of them
		t.Errorf("in the black hole: %+v", s)
	}
	if n := proxy.Heal(); n != 2 {
		t.Errorf("%d connections cut, want the 2 that lost bytes", n)
	}
	mustPing(t, rdb)
	wantAbsent(t, server, key)
	if _, err := io.WriteString(idle, "PING\r\n"); err != nil {
		t.Error(err)
	}
	idle.SetReadDeadline(time.Now().Add(slack))
	got := make([]byte, 7)
	if _, err := io.ReadFull(idle, got); err != nil || string(got) != "+PONG\r\n" {
		t.Errorf("the connection that lost nothing: %q, %v", got, err)
	}
}

func TestBlackHoleSwallowsPushes(t *testing.T) {
	proxy, rdb, server := through(t)
	channel := server.Prefix(t) + "c"
	sub := rdb.Subscribe(ctx, channel)
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	proxy.BlackHole()
	if n := server.Admin().Publish(ctx, channel, "lost").Val(); n != 1 {
		t.Fatalf("%d subscribers", n)
	}
	proxy.Await(t, "the lost message", func(s redistest.Stats) bool { return s.Lost[redistest.ToClient] > 0 })
	proxy.Heal()
	if msg, err := sub.Receive(ctx); err == nil {
		t.Errorf("received %v", msg)
	}
}

func TestDropReply(t *testing.T) {
	for name, keepOpen := range map[string]bool{"and cut": false, "and keep open": true} {
		t.Run(name, func(t *testing.T) {
			proxy, rdb, server := through(t)
			mustPing(t, rdb)
			key := server.Prefix(t) + "k"
			proxy.DropReply(2, "incr", keepOpen)
			mustPing(t, rdb) // no match
			impatient := rdb
			if keepOpen {
				impatient = short(rdb)
			}
			for i := range 2 {
				err := impatient.Incr(ctx, key).Err()
				if err == nil || isTimeout(err) != keepOpen {
					t.Errorf("INCR %d: %v", i, err)
				}
			}
			proxy.Await(t, "two replies", func(s redistest.Stats) bool { return s.Dropped == 2 })
			wantValue(t, server, key, "2")
			if n, err := rdb.Incr(ctx, key).Result(); n != 3 || err != nil {
				t.Errorf("INCR = %d, %v; want 3", n, err)
			}
		})
	}
}

func TestDropReplyKeepOpenSwallowsAllOfIt(t *testing.T) {
	proxy, _, server := through(t)
	key := server.Prefix(t) + "k"
	const size = 4 << 20 // many pieces
	mustSet(t, server, key, strings.Repeat("x", size))
	conn, err := net.Dial("tcp", proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	proxy.DropReply(1, "GET", true)
	if _, err := io.WriteString(conn, "GET "+key+"\r\n"); err != nil {
		t.Fatal(err)
	}
	proxy.Await(t, "the whole reply", func(s redistest.Stats) bool { return s.Lost[redistest.ToClient] > size })
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(slack))
	got := make([]byte, 7)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "+PONG\r\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDropReplyCanBeTakenBack(t *testing.T) {
	proxy, rdb, _ := through(t)
	proxy.DropReply(1, "ping", false)
	proxy.DropReply(0, "", false)
	mustPing(t, rdb)
	if s := proxy.Stats(); s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
}

func TestOnlyNarrowsFaults(t *testing.T) {
	proxy, rdb, server := through(t)
	channel := server.Prefix(t) + "c"
	proxy.Only("subscribe")
	sub := rdb.Subscribe(ctx, channel)
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	mustPing(t, rdb)

	proxy.Freeze(redistest.ToClient)
	rdb.Publish(ctx, channel, "held")
	proxy.Await(t, "the held message", func(s redistest.Stats) bool { return s.Held[redistest.ToClient] > 0 })
	mustPing(t, rdb)
	proxy.Thaw()
	if msg, err := sub.ReceiveMessage(ctx); err != nil || msg.Payload != "held" {
		t.Errorf("%v, %v", msg, err)
	}

	proxy.Delay(redistest.ToClient, time.Hour)
	mustPing(t, rdb)
	proxy.Delay(redistest.ToClient, 0)
	proxy.BlackHole()
	mustPing(t, rdb)
	if n := proxy.Heal(); n != 0 {
		t.Errorf("%d cut, but nothing was lost", n)
	}
	if n := proxy.Cut(); n != 1 {
		t.Errorf("%d cut, want the subscription alone", n)
	}
	proxy.Only("")
	if n := proxy.Cut(); n == 0 {
		t.Error("none cut, want the connections for commands")
	}
}

func TestAwaitFailsInsteadOfWaitingForEver(t *testing.T) {
	defer redistest.ShortenPatience(20 * time.Millisecond)()
	proxy := redistest.NewProxy(t, "127.0.0.1:1")
	f := new(fakeTB)
	out := f.run(func() { proxy.Await(f, "a miracle", func(redistest.Stats) bool { return false }) })
	if !f.failed || !strings.Contains(out, "a miracle") {
		t.Errorf("failed %v, %q", f.failed, out)
	}
}

// All faults turned at once, beside traffic: for the race detector, and for the end of the test, which has to join it all.
func TestProxyFaultsTurnBesideTraffic(t *testing.T) {
	proxy, rdb, server := through(t)
	key := server.Prefix(t) + "k"
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					short(rdb).Incr(ctx, key)
				}
			}
		})
	}
	for range 30 {
		proxy.Freeze(redistest.ToClient)
		proxy.Delay(redistest.ToServer, time.Millisecond)
		proxy.DelayMatching("incr", time.Millisecond)
		proxy.DropReply(1, "incr", true)
		proxy.Thaw()
		passed := proxy.Stats().Passed[redistest.ToClient]
		proxy.Await(t, "traffic", func(s redistest.Stats) bool { return s.Passed[redistest.ToClient] > passed })
		proxy.BlackHole()
		proxy.Freeze(redistest.ToServer)
		proxy.Heal()
		proxy.Cut()
		proxy.Refuse(true)
		proxy.Refuse(false)
		proxy.Thaw()
	}
	close(stop)
	wg.Wait()
	mustPing(t, rdb)
	proxy.Freeze(redistest.ToClient) // the test ends with a live connection and all of it on
	proxy.BlackHole()
}
