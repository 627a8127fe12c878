package cache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/invalidation"
)

// What is written to Redis, fillings and deletes, and the messages that travel with it.

// encoded returns the part of a physical key that the bus carries.
func (r *redisTier) encoded(physical string) string { return physical[r.prefix:] }

// message makes the message of a command on one key. Without a bus it is empty, and nothing is published.
func (r *redisTier) message(why publication, physical string) invalidation.Outgoing {
	switch bus := r.client.bus; {
	case bus == nil:
		return invalidation.Outgoing{}
	case why == toWake:
		return bus.PrepareWake(r.name, r.encoded(physical))
	default:
		return bus.Prepare(r.name, r.encoded(physical))
	}
}

// publication says why a script publishes a message.
type publication string

const (
	toTell publication = "tell" // the key has changed: always
	toWake publication = "wake" // a load has ended: only if somebody waits for it
)

// published counts a message that a script could not publish, and returns the error that says so.
func (r *redisTier) published(reply []any) error {
	if len(reply) < 3 || reply[2] == "" {
		return nil
	}
	why := fmt.Sprint(reply[2])
	r.client.weather(replyError(why))
	r.stats.unpublished.Add(1)
	return fmt.Errorf("%w: %w", ErrUnpublished, replyError(why))
}

// replyError is an error of Redis that a script caught.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

var errLeaseVoid = errors.New("the lease is void")

// filling is a frame on its way into Redis, and what came of it.
type filling struct {
	frame frame
	ttl   time.Duration
	err   error // Redis has it not, or perhaps not; if it wraps ErrUnpublished, Redis has it, and the others do not know
}

// fill writes frames under their leases, as many at once as go in a round trip.
func (r *redisTier) fill(ctx context.Context, fills []*filling, why publication) {
	trips(len(fills), func(from, to int) error {
		err := r.fillTrip(ctx, fills[from:to], why)
		if err != nil {
			r.stats.fillErrors.Add(uint64(len(fills) - from))
			for _, f := range fills[from:] {
				f.err = err
			}
		}
		return err
	})
}

// send makes one round trip of commands that publish, and says what became of their messages: who is sure that one was not
// published spares the others a gap.
func (r *redisTier) send(ctx context.Context, do sender, commands []*rediscall.Command, messages []invalidation.Outgoing) (sent int64, err error) {
	sent = r.client.clock.now()
	if err = do(ctx, commands...); err != nil {
		r.client.weather(err)
	}
	for i, m := range messages {
		failure := err
		if err == nil {
			failure = commands[i].Err()
		}
		if failure != nil && !rediscall.Unknown(failure) {
			m.Void()
		} else {
			m.Done()
		}
	}
	return sent, err
}

// sender is a way to send commands: that of a collector that heeds its breaker, or does not.
type sender func(context.Context, ...*rediscall.Command) error

func (r *redisTier) fillTrip(ctx context.Context, fills []*filling, why publication) error {
	if err := ctx.Err(); err != nil {
		return err // before a number is taken
	}
	commands := make([]*rediscall.Command, len(fills))
	messages := make([]invalidation.Outgoing, len(fills))
	for i, f := range fills {
		f.frame.schema = r.schema
		key, text := f.frame.key, f.frame.text()
		messages[i] = r.message(why, key)
		commands[i] = fillScript.Command(ctx, key, leaseOf(text), text[:offFresh], millis(f.ttl), text[offFill:offLease], text[offKeyLen:],
			messages[i].Channel, messages[i].Payload, string(why), r.staleMillis(f))
	}
	sent, err := r.send(ctx, r.client.write.Do, commands, messages)
	if err != nil {
		return err
	}
	for i, f := range fills {
		switch reply, err := r.reply(commands[i], sent, 2); {
		case err != nil:
			r.stats.fillErrors.Add(1)
			f.err = err
		case reply[0].(int64) == 1:
			r.stats.fills.Add(1)
			if err := r.published(reply); why == toTell {
				f.err = err
			}
		default:
			r.stats.fillsRefused.Add(1)
			f.err = errLeaseVoid
		}
	}
	return nil
}

// remove deletes keys, and with them whatever lease stands there, as many at once as go in a round trip, and tells the others. It
// returns an error per key; one that wraps ErrUnpublished says that the key is deleted, and the others do not know. After a trip
// that failed as a whole the rest is not tried: it would fail too, and take a budget each time.
func (r *redisTier) remove(ctx context.Context, do sender, physical []string) []error {
	errs := make([]error, len(physical))
	trips(len(physical), func(from, to int) error {
		err := r.removeTrip(ctx, do, physical[from:to], errs[from:to])
		if err != nil {
			for i := from; i < len(errs); i++ {
				errs[i] = err
			}
		}
		return err
	})
	return errs
}

func (r *redisTier) removeTrip(ctx context.Context, do sender, physical []string, errs []error) error {
	commands := make([]*rediscall.Command, len(physical))
	messages := make([]invalidation.Outgoing, len(physical))
	for i, key := range physical {
		messages[i] = r.message(toTell, key)
		commands[i] = deleteScript.Command(ctx, key, messages[i].Channel, messages[i].Payload)
	}
	sent, err := r.send(ctx, do, commands, messages)
	if err != nil {
		return err
	}
	for i, c := range commands {
		reply, err := r.reply(c, sent, 2)
		if err == nil {
			err = r.published(reply)
		}
		errs[i] = err
	}
	return nil
}

// staleMillis is for how long what is filled may stand in after its TTL: values only.
func (r *redisTier) staleMillis(f *filling) string {
	if f.frame.kind != kindValue {
		return "0"
	}
	return millis(r.staleTTL)
}
