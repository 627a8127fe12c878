package redistest

import "time"

// turn changes faults under the lock and lets what is held look at them again.
func (p *Proxy) turn(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.turned)
	p.turned = make(chan struct{})
}

// Only narrows Delay, Freeze, BlackHole and Cut to connections that send bytes containing match from now on: with "subscribe" a
// subscription goes deaf while commands pass. The faults hold from that request on. Set it before the clients connect. An empty
// match, the default, means all connections.
func (p *Proxy) Only(match string) {
	p.turn(func() {
		p.only = match
		for l := range p.links {
			l.chosen = false
		}
	})
}

// Refuse closes new connections at once with a reset, until it is called with false. Live ones stay. Clients see their dial
// succeed and the first command fail; for a refused dial stop the server.
func (p *Proxy) Refuse(on bool) {
	p.turn(func() { p.refuse = on })
}

// Cut closes the live connections, on both sides, and returns how many. What they held is lost.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closeLinksLocked(p.hitsLocked)
}

// Delay makes everything that goes in a direction arrive later by d. Zero ends it, for what is waiting too.
func (p *Proxy) Delay(dir Direction, d time.Duration) {
	p.turn(func() { p.delay[dir] = d })
}

// DelayMatching makes requests that contain match arrive later by d, beside other delays, and what follows them on the same
// connection waits behind them. Zero ends it, for what is waiting too. Several matches may be set; the longest delay counts.
func (p *Proxy) DelayMatching(match string, d time.Duration) {
	p.turn(func() { p.slow[match] = d })
}

// Freeze holds the bytes of a direction, with sockets open, until [Proxy.Thaw] lets them go on. Bytes that were received before
// may still pass.
func (p *Proxy) Freeze(dir Direction) {
	p.turn(func() { p.frozen[dir] = true })
}

// Thaw ends the freeze of both directions; what was held goes on in its order.
func (p *Proxy) Thaw() {
	p.turn(func() { p.frozen = [2]bool{} })
}

// BlackHole swallows the bytes of both directions, with sockets open, until [Proxy.Heal]. The end of a connection is swallowed
// too: the other side does not hear of it. New connections are taken, and nothing is answered on them.
func (p *Proxy) BlackHole() {
	p.turn(func() { p.blackHole = true })
}

// Heal ends the black hole and closes the connections that lost bytes in it: they cannot be trusted any more. It returns how many
// they were. The others go on.
func (p *Proxy) Heal() int {
	n := 0
	p.turn(func() {
		p.blackHole = false
		n = p.closeLinksLocked(func(l *link) bool { return l.holed })
	})
	return n
}

// hitsLocked reports whether the faults concern a connection.
func (p *Proxy) hitsLocked(l *link) bool { return p.only == "" || l.chosen }
