package invalidation

import (
	"errors"
	"time"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// lost, subscribed and received are called by the loop, one at a time.

func (b *Bus) lost(cause string, err error) {
	if rediscall.Classify(err) == rediscall.Denied {
		b.problem(err)
	}
	if b.setLive(false) { // else nobody was told since the last gap that anything would be heard
		b.gap(cause)
	}
}

func (b *Bus) subscribed() {
	b.in = newInbox(b.config.Heartbeat)
	select {
	case b.kick <- struct{}{}: // the first heartbeat will tell whether anything comes
	default:
	}
}

func (b *Bus) received(channel, payload string) {
	m, err := parseMessage(payload)
	switch {
	case errors.Is(err, errNewerMessage):
		b.unread = CauseNewer
		return
	case errors.Is(err, errBrokenMessage):
		b.unread = CauseBroken
		return
	case err != nil:
		b.mu.Lock()
		b.health.Malformed++
		b.mu.Unlock()
		return
	case m.kind == wakeMessage: // also one's own: who waits may be another goroutine of this process
		for _, h := range b.subscribers() {
			if h.name == m.name && h.Wake != nil {
				h.Wake(m.keys)
			}
		}
		return
	case m.from == b.id:
		if m.kind == beatMessage && channel == b.own {
			b.heardBeat(b.opened.Add(time.Duration(m.first)))
		}
		return
	case channel != b.channel:
		return
	}
	now := time.Now()
	switch m.kind {
	case keysMessage:
		b.mu.Lock()
		b.health.Received++
		b.mu.Unlock()
		for _, h := range b.subscribers() {
			if h.name == m.name && h.Keys != nil {
				h.Keys(m.keys)
			}
		}
		if !b.in.came(&m, now) {
			b.in = newInbox(b.config.Heartbeat)
			b.gap(CauseOverflow)
		}
	case lastMessage:
		if b.in.lacks(&m, now) {
			b.gap(CauseMissing)
		}
	}
}

// heardBeat takes in that a heartbeat has come back. It says what was heard until it was sent, and nothing of later.
func (b *Bus) heardBeat(sent time.Time) {
	b.loop.Beat(sent)
	now := time.Now()
	if lag := now.Sub(sent); lag < b.config.Silence && !b.live.Load() && !b.wrong.Load() {
		b.gap(CauseSubscribed)
		b.setLive(true)
	}
	if b.unread != "" { // one gap a heartbeat, however many messages could not be read
		b.gap(b.unread)
		b.unread = ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.warned = false
	b.health.Problem = nil
	b.health.LastBeat, b.health.Lag = now, now.Sub(sent)
}
