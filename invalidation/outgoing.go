package invalidation

import (
	"context"
	"fmt"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// Publish tells the other processes to forget some keys of a name, after what they stand for has changed. It returns an error
// if Redis did not take it; the others may have heard it all the same. Keys of more than 64 KiB together go in several
// messages; a single one of that size is refused.
func (b *Bus) Publish(ctx context.Context, name string, keys ...string) error {
	select {
	case <-b.stop:
		return fmt.Errorf("invalidation: publish %q: %w", name, ErrClosed)
	default:
	}
	for len(keys) > 0 {
		n, size := 0, headerBytes+4+len(name)
		for n < len(keys) && size+4+len(keys[n]) <= maxMessageBytes {
			size += 4 + len(keys[n])
			n++
		}
		if n == 0 {
			return fmt.Errorf("invalidation: publish %q: a key of %d bytes: at most %d fit into a message", name, len(keys[0]), maxMessageBytes-size-4)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("invalidation: publish %q: %w", name, err)
		}
		out := b.Prepare(name, keys[:n]...)
		c := rediscall.NewCommand(ctx, "publish", out.Channel, out.Payload)
		err := b.calls.Do(ctx, c)
		out.Done()
		if err == nil {
			err = c.Err()
		}
		if err != nil {
			return fmt.Errorf("invalidation: publish %q: %w", name, err)
		}
		keys = keys[n:]
	}
	return nil
}

// Outgoing is a message for somebody else to publish, in a script that changes what it speaks of.
type Outgoing struct {
	Channel, Payload string
	done             func(void bool)
}

// Prepare numbers a message. Done or Void must be called in the end: until then the bus does not tell its number, nor any later
// one, so the others would not miss them.
func (b *Bus) Prepare(name string, keys ...string) Outgoing {
	m := message{kind: keysMessage, from: b.id, number: b.out.next(), name: name, keys: keys}
	return Outgoing{b.channel, m.text(), func(void bool) { b.out.done(m.number, void) }}
}

// PrepareWake makes a message for Handler.Wake. It has no number: it may be published or not, and nobody finds out.
func (b *Bus) PrepareWake(name string, keys ...string) Outgoing {
	m := message{kind: wakeMessage, from: b.id, name: name, keys: keys}
	return Outgoing{Channel: b.channel, Payload: m.text()}
}

// Done says that the message was published, or perhaps: if it was not, the others find out, and have a gap.
func (o Outgoing) Done() {
	if o.done != nil {
		o.done(false)
	}
}

// Void says that the message was certainly not published, and has not to be: the others are told that its number means nothing.
func (o Outgoing) Void() {
	if o.done != nil {
		o.done(true)
	}
}
