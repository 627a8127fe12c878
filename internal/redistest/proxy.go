package redistest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Direction is one of the two ways through a [Proxy].
type Direction int

const (
	ToServer Direction = iota // requests
	ToClient                  // replies and pushes
)

// Proxy stands between clients and one server, passes bytes on, and has faults that are switched on and off while connections
// live. A fault holds for all connections, those to come too, unless [Proxy.Only] narrows it. Within a connection the order of
// bytes never changes: what is delayed or held delays and holds what comes behind it, the end of the connection too.
//
// It knows bytes, not commands: a request that "contains" something has these bytes anywhere in it, upper and lower case being
// different (go-redis sends command names in lower case).
type Proxy struct {
	upstream string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex // guards the rest
	closed  bool
	links   map[*link]struct{}
	stats   Stats
	changed *sync.Cond    // on mu: stats have changed
	turned  chan struct{} // closed and replaced when a fault has changed

	only      string
	refuse    bool
	blackHole bool
	frozen    [2]bool
	delay     [2]time.Duration
	slow      map[string]time.Duration // requests by what they contain
	drop      drop
}

// Stats is what a [Proxy] has seen so far. The arrays are indexed by Direction and count bytes.
type Stats struct {
	Accepted int      // connections taken
	Refused  int      // connections closed at once
	Live     int      // connections taken and not closed yet
	Dropped  int      // replies swallowed by DropReply
	Passed   [2]int64 // handed on
	Held     [2]int64 // received and waiting for a delay or a freeze to end
	Lost     [2]int64 // swallowed, or held on a connection that was closed
}

// NewProxy starts a proxy on a loopback port of its own. It ends with the test, and its connections with it.
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("redistest: proxy: %v", err)
	}
	p := &Proxy{
		upstream: upstream,
		listener: listener,
		links:    make(map[*link]struct{}),
		turned:   make(chan struct{}),
		slow:     make(map[string]time.Duration),
	}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns host and port for the clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Stats returns the figures of this moment.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Await returns when the figures satisfy ok, which must not call the proxy. It fails the test when that does not happen.
func (p *Proxy) Await(t testing.TB, what string, ok func(Stats) bool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	late := false
	timer := time.AfterFunc(patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		late = true
		p.changed.Broadcast()
	})
	defer timer.Stop()
	for !ok(p.stats) {
		if late {
			t.Fatalf("redistest: proxy: not seen within %v: %s; %+v", patience, what, p.stats)
		}
		p.changed.Wait()
	}
}

// accept takes connections until the listener is closed.
func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.admit(client)
	}
}

// admit makes a link for a new connection and starts it, or refuses it.
func (p *Proxy) admit(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.closed {
		p.stats.Refused++
		p.changed.Broadcast()
		client.(*net.TCPConn).SetLinger(0) // a reset, not an orderly end
		client.Close()
		return
	}
	l, ctx := newLink(p, client)
	p.links[l] = struct{}{}
	p.stats.Accepted++
	p.stats.Live++
	p.changed.Broadcast()
	p.wg.Go(func() { l.run(ctx) })
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.closeLinksLocked(func(*link) bool { return true })
	p.mu.Unlock()
	p.listener.Close()
	p.wg.Wait()
}

// closeLinksLocked closes the chosen connections and returns how many they were.
func (p *Proxy) closeLinksLocked(which func(*link) bool) int {
	n := 0
	for l := range p.links {
		if which(l) {
			l.closeLocked()
			n++
		}
	}
	return n
}
