package redistest

import (
	"bytes"
	"slices"
)

// DropReply swallows the replies to the next n requests that contain match: the server has executed them, and the client never
// hears. When the reply has come, the connection is closed, or with keepOpen left open and silent until the client speaks again.
// It is meant for connections with one request, or one pipeline, at a time. A new call replaces the last; zero ends it.
func (p *Proxy) DropReply(n int, match string, keepOpen bool) {
	p.turn(func() { p.drop = drop{left: n, match: match, keepOpen: keepOpen} })
}

// drop says which replies are to be swallowed.
type drop struct {
	left     int
	match    string
	keepOpen bool
}

// awaited says what becomes of replies on a link.
type awaited int

const (
	pass    awaited = iota
	swallow         // the reply has not come yet
	silent          // it came and was swallowed; so is what follows it until the client speaks
)

// watchRequestLocked notes, before the server can answer, whether the reply to a request is to be swallowed.
func (l *link) watchRequestLocked(request []byte) {
	p := l.proxy
	if l.reply == silent {
		l.reply = pass
	}
	if p.drop.left > 0 && l.contains(request, p.drop.match) {
		p.drop.left--
		l.reply, l.cutNext = swallow, !p.drop.keepOpen
	}
	const most = 256
	l.tail = append(l.tail, request[max(0, len(request)-most):]...)
	l.tail = slices.Clone(l.tail[max(0, len(l.tail)-most):])
}

// dropReplyLocked reports whether bytes from the server are to be swallowed.
func (l *link) dropReplyLocked() bool {
	switch l.reply {
	case swallow:
		l.reply = silent
		l.proxy.stats.Dropped++
		if l.cutNext {
			l.closeLocked()
		}
		return true
	case silent:
		return true
	}
	return false
}

// contains reports whether match ends in these request bytes; it may begin in those before them.
func (l *link) contains(request []byte, match string) bool {
	before := l.tail[max(0, len(l.tail)-max(0, len(match)-1)):]
	return bytes.Contains(slices.Concat(before, request), []byte(match))
}
