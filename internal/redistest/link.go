package redistest

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// link is one connection through a proxy: for each direction a goroutine that receives and one that hands on, with a queue between
// them, so that a delay adds to the way and not to the rate.
type link struct {
	proxy  *Proxy
	done   <-chan struct{} // closed by cancel when the link is closed
	cancel context.CancelFunc
	client net.Conn
	queue  [2]chan chunk

	// Guarded by the proxy's mu.
	server  net.Conn // nil until dialled
	closed  bool
	held    [2]int64
	tail    []byte // the last request bytes handed on: a match may lie across two chunks
	chosen  bool   // see Proxy.Only
	holed   bool   // lost bytes in a black hole
	reply   awaited
	cutNext bool // close when the reply comes that is awaited
}

// chunk is what one read brought. No data means that the peer has closed.
type chunk struct {
	data []byte
	at   time.Time
}

// newLink returns a link and the context of its life, which is for run.
func newLink(p *Proxy, client net.Conn) (*link, context.Context) {
	ctx, cancel := context.WithCancel(context.Background())
	return &link{
		proxy:  p,
		done:   ctx.Done(),
		cancel: cancel,
		client: client,
		queue:  [2]chan chunk{make(chan chunk, 64), make(chan chunk, 64)},
	}, ctx
}

// run dials the server, carries until the link is closed, and returns when its goroutines have ended.
func (l *link) run(ctx context.Context) {
	defer l.close()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", l.proxy.upstream)
	if err != nil {
		return
	}
	l.proxy.mu.Lock()
	l.server = server
	if l.closed {
		server.Close()
	}
	l.proxy.mu.Unlock()

	var wg sync.WaitGroup
	wg.Go(func() { l.receive(ToServer, l.client) })
	wg.Go(func() { l.handOn(ToServer, server) })
	wg.Go(func() { l.receive(ToClient, server) })
	wg.Go(func() { l.handOn(ToClient, l.client) })
	wg.Wait()
}

func (l *link) close() {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.closeLocked()
}

func (l *link) closeLocked() {
	if l.closed {
		return
	}
	l.closed = true
	l.cancel()
	l.client.Close()
	if l.server != nil {
		l.server.Close()
	}
	p := l.proxy
	delete(p.links, l)
	p.stats.Live--
	for dir, n := range l.held {
		p.stats.Held[dir] -= n
		p.stats.Lost[dir] += n
	}
	l.held = [2]int64{}
	p.changed.Broadcast()
}

// receive puts what src brings into the queue.
func (l *link) receive(dir Direction, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 && !l.enqueue(dir, slices.Clone(buf[:n])) {
			return
		}
		if err != nil {
			l.enqueue(dir, nil)
			return
		}
	}
}

func (l *link) enqueue(dir Direction, data []byte) bool {
	p := l.proxy
	p.mu.Lock()
	if !l.closed {
		l.held[dir] += int64(len(data))
		p.stats.Held[dir] += int64(len(data))
		p.changed.Broadcast()
	}
	p.mu.Unlock()
	select {
	case l.queue[dir] <- chunk{data: data, at: time.Now()}:
		return true
	case <-l.done:
		return false
	}
}

// handOn writes what is in the queue to dst, when and if the faults allow.
func (l *link) handOn(dir Direction, dst net.Conn) {
	for {
		var c chunk
		select {
		case c = <-l.queue[dir]:
		case <-l.done:
			return
		}
		if dir == ToServer {
			l.choose(c.data)
		}
		if !l.wait(dir, c) {
			return
		}
		if !l.admit(dir, c.data) {
			continue
		}
		if c.data == nil {
			l.close()
			return
		}
		if _, err := dst.Write(c.data); err != nil {
			l.close()
			return
		}
	}
}

func (l *link) choose(request []byte) {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.only != "" && l.contains(request, p.only) {
		l.chosen = true
	}
}

// wait returns true when no delay and no freeze holds the chunk any more, and false when the link was closed while it waited.
func (l *link) wait(dir Direction, c chunk) bool {
	p := l.proxy
	for {
		p.mu.Lock()
		frozen := p.frozen[dir] && p.hitsLocked(l)
		rest := time.Until(c.at.Add(l.delayLocked(dir, c.data)))
		turned := p.turned
		p.mu.Unlock()
		if !frozen && rest <= 0 {
			return true
		}
		var due <-chan time.Time
		if !frozen {
			due = time.After(rest)
		}
		select {
		case <-due:
		case <-turned:
		case <-l.done:
			return false
		}
	}
}

func (l *link) delayLocked(dir Direction, data []byte) time.Duration {
	p := l.proxy
	var delay, most time.Duration
	if p.hitsLocked(l) {
		delay = p.delay[dir]
	}
	if dir == ToServer {
		for match, d := range p.slow {
			if l.contains(data, match) {
				most = max(most, d)
			}
		}
	}
	return delay + most
}

// admit accounts for a chunk that has waited enough and reports whether to hand it on.
func (l *link) admit(dir Direction, data []byte) bool {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.closed {
		return false
	}
	n := int64(len(data))
	l.held[dir] -= n
	p.stats.Held[dir] -= n
	defer p.changed.Broadcast()

	lost := p.blackHole && p.hitsLocked(l)
	l.holed = l.holed || lost
	if data != nil && !lost {
		if dir == ToServer {
			l.watchRequestLocked(data)
		} else {
			lost = l.dropReplyLocked()
		}
	}
	if lost {
		p.stats.Lost[dir] += n
		return false
	}
	p.stats.Passed[dir] += n
	return true
}
