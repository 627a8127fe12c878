package cache

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-nearside/nearside/internal/rediscall"
)

// heldLease is a lease that this process has, or may have.
type heldLease struct {
	key   string
	lease token
}

// granted returns the leases that some flights hold.
func granted[K comparable, V any](attempts []*attempt[K, V]) (held []heldLease) {
	for _, a := range attempts {
		if a.reading.state == stateGranted {
			held = append(held, heldLease{a.physical, a.reading.lease})
		}
	}
	return held
}

// lease takes the leases of some keys, as many at once as go in a round trip. rejects holds a digest or "" per key. A call
// whose outcome is unknown is made once more, with a new token and naming the old one: if the first call did run, the second
// takes over what it got; and if the first still runs later, nobody fills under its token, so it can do no harm.
func (r *redisTier) lease(ctx context.Context, mode leaseMode, physical, rejects []string) []reading {
	readings := make([]reading, len(physical))
	pending := make([]pendingLease, len(physical))
	for i, key := range physical {
		pending[i] = pendingLease{key: key, reject: rejects[i], reading: &readings[i]}
	}
	var lost []heldLease
	trips(len(pending), func(from, to int) error {
		unknown := r.leaseTrip(ctx, mode, pending[from:to])
		if len(unknown) > 0 {
			for _, p := range unknown {
				lost = append(lost, heldLease{p.key, p.earlier})
			}
			unknown = r.leaseTrip(ctx, mode, unknown)
		}
		for _, p := range unknown {
			lost = append(lost, heldLease{p.key, p.earlier})
		}
		if len(unknown) > 0 {
			return errLeaseUnknown
		}
		return nil
	})
	r.abandonLeases(ctx, lost)
	return readings
}

var errLeaseUnknown = errors.New("a lease may or may not have been taken")

// pendingLease is a lease that is asked for.
type pendingLease struct {
	key, reject string
	earlier     token // of an attempt whose outcome is unknown
	reading     *reading
}

// leaseTrip asks once, and returns those whose outcome is unknown.
func (r *redisTier) leaseTrip(ctx context.Context, mode leaseMode, pending []pendingLease) (unknown []pendingLease) {
	commands := make([]*rediscall.Command, len(pending))
	tokens := make([]token, len(pending))
	for i, p := range pending {
		tokens[i] = newToken(mode)
		commands[i] = r.leaseCommand(ctx, mode, p.key, p.reject, tokens[i], p.earlier)
	}
	sent := r.client.clock.now()
	err := r.client.read.Do(ctx, commands...)
	if err != nil {
		r.client.weather(err)
	}
	for i, p := range pending {
		if err == nil {
			*p.reading = r.leaseReply(commands[i], p.key, tokens[i], sent)
		}
		if err != nil || rediscall.Unknown(commands[i].Err()) {
			p.earlier = tokens[i]
			unknown = append(unknown, p)
		}
	}
	return unknown
}

func (r *redisTier) leaseCommand(ctx context.Context, mode leaseMode, physical, reject string, t, earlier token) *rediscall.Command {
	f := frame{kind: kindLease, schema: r.schema, key: physical}
	raw := f.appendTo(make([]byte, 0, headerBytes+len(physical)))
	flags := byte(0)
	if r.wakes {
		flags = flagAwaited
	}
	return leaseScript.Command(ctx, physical, t[:], earlier[:], millis(r.leaseTTL), int(r.schema), string(mode),
		reject, raw[:offLease], raw[offKeyLen:], []byte{flags})
}

// abandonLeases gives leases back behind the caller's back.
func (r *redisTier) abandonLeases(ctx context.Context, held []heldLease) {
	if len(held) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	r.client.deletes.Go(func() {
		trips(len(held), func(from, to int) error {
			commands := make([]*rediscall.Command, 0, to-from)
			for _, h := range held[from:to] {
				m := r.message(toWake, h.key)
				commands = append(commands, releaseScript.Command(ctx, h.key, h.lease[:], m.Channel, m.Payload))
			}
			return r.leaseCalls(ctx, commands)
		})
	})
}

// The outcomes of the lease script.
const (
	leaseGranted = iota + 1
	leaseValue
	leaseBusy
	leaseNewer
	leaseWriting
)

func (r *redisTier) leaseReply(c *rediscall.Command, physical string, t token, sent int64) reading {
	reply, err := r.reply(c, sent, 3)
	if err != nil {
		return reading{}
	}
	r.stats.wrongTypes.Add(uint64(reply[2].(int64)))
	switch outcome := reply[0].(int64); {
	case outcome == leaseGranted:
		return reading{state: stateGranted, lease: t, at: reply[1].(int64)}
	case outcome == leaseNewer:
		return reading{state: stateNewer}
	case outcome == leaseWriting:
		return reading{state: stateWriting}
	case outcome == leaseBusy:
		return reading{state: stateLeased}
	case outcome == leaseValue && len(reply) == 4:
		raw, _ := reply[3].(string)
		return r.interpret(raw, physical)
	}
	return reading{}
}

// keepRenewed renews leases, every third of their TTL, until stop is called, which may be done more than once. Most loads end
// before the first time, so it takes a goroutine only then.
func (r *redisTier) keepRenewed(ctx context.Context, held []heldLease) (stop func()) {
	if len(held) == 0 {
		return func() {}
	}
	stopped := make(chan struct{})
	first := time.AfterFunc(r.leaseTTL/3, func() {
		r.client.work.Go(func() { r.renewUntil(context.WithoutCancel(ctx), held, stopped) })
	})
	return sync.OnceFunc(func() {
		first.Stop()
		close(stopped)
	})
}

func (r *redisTier) renewUntil(ctx context.Context, held []heldLease, stopped <-chan struct{}) {
	ticker := time.NewTicker(r.leaseTTL / 3)
	defer ticker.Stop()
	for {
		select {
		case <-stopped:
			return
		default:
		}
		r.renew(ctx, held)
		select {
		case <-ticker.C:
		case <-stopped:
			return
		}
	}
}

// renew prolongs leases. What was lost meanwhile shows when the fill is refused.
func (r *redisTier) renew(ctx context.Context, held []heldLease) {
	trips(len(held), func(from, to int) error {
		commands := make([]*rediscall.Command, 0, to-from)
		for _, h := range held[from:to] {
			commands = append(commands, renewScript.Command(ctx, h.key, h.lease[:], millis(r.leaseTTL)))
		}
		return r.leaseCalls(ctx, commands)
	})
}

func (r *redisTier) leaseCalls(ctx context.Context, commands []*rediscall.Command) error {
	sent := r.client.clock.now()
	if err := r.client.write.Do(ctx, commands...); err != nil {
		r.client.weather(err)
		return err
	}
	for _, c := range commands {
		_, _ = r.reply(c, sent, 2) // learns the server's time, and counts errors
	}
	return nil
}
