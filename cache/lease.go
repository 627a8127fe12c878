package cache

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

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

// wantedLease is a lease that is asked for, and what came of it.
type wantedLease struct {
	key    string
	reject string // the digest of bytes at the key that cannot be used, or ""
	plain  bool   // by SET NX: nothing stands there, as far as is known. Never a writer's, which voids what stands

	reading *reading // where to say it
	token   token    // of the last attempt
	earlier token    // of the attempt before, whose outcome is unknown
}

// lease takes the leases of some keys, as many at once as go in a round trip. Where nothing stands a plain SET NX does, in a fraction of
// the script's time; what it finds there is the script's business.
//
// A call whose outcome is unknown is made once more, with a new token and naming the old one: if the first call did run, the second
// takes over what it got; and if the first still runs later, nobody fills under its token, so it can do no harm.
func (r *redisTier) lease(ctx context.Context, mode leaseMode, wanted []wantedLease) {
	for i := range wanted {
		*wanted[i].reading = reading{}
	}
	var lost []heldLease
	trips(len(wanted), func(from, to int) error {
		all := make([]*wantedLease, to-from)
		for i := range all {
			all[i] = &wanted[from+i]
		}
		unknown, occupied := r.leaseTrip(ctx, mode, all)
		for _, w := range unknown {
			lost = append(lost, heldLease{w.key, w.token})
			w.earlier = w.token
		}
		unknown, _ = r.leaseTrip(ctx, mode, append(unknown, occupied...))
		for _, w := range unknown {
			lost = append(lost, heldLease{w.key, w.token})
		}
		if len(unknown) > 0 {
			return errLeaseUnknown
		}
		return nil
	})
	r.abandonLeases(ctx, lost)
}

var errLeaseUnknown = errors.New("a lease may or may not have been taken")

// leaseTrip asks once, and returns those whose outcome is unknown, and those where something stands after all.
func (r *redisTier) leaseTrip(ctx context.Context, mode leaseMode, wanted []*wantedLease) (unknown, occupied []*wantedLease) {
	commands := make([]*rediscall.Command, len(wanted))
	at := r.client.clock.moment()
	for i, w := range wanted {
		w.token = newToken(mode)
		if w.plain = w.plain && at.known; w.plain {
			commands[i] = r.plainLease(ctx, w)
		} else {
			commands[i] = r.leaseCommand(ctx, mode, w)
		}
	}
	sent := r.client.clock.now()
	err := r.client.read.Do(ctx, commands...)
	if err != nil {
		r.client.weather(err)
	}
	for i, w := range wanted {
		c := commands[i]
		switch {
		case err != nil:
		case !w.plain:
			r.leaseReply(w, c, sent)
		case c.Err() == nil:
			*w.reading = reading{state: stateGranted, lease: w.token, at: at.earliest}
		case c.Err() == redis.Nil:
			occupied = append(occupied, w)
		default:
			r.client.weather(c.Err())
		}
		w.plain = false
		outcome := err
		if err == nil {
			outcome = c.Err()
		}
		if rediscall.Unknown(outcome) {
			unknown = append(unknown, w)
		}
	}
	return unknown, occupied
}

// plainLease takes a lease where nothing stands. It ends with the key: by its TTL, and not by what its frame says.
func (r *redisTier) plainLease(ctx context.Context, w *wantedLease) *rediscall.Command {
	f := frame{kind: kindLease, schema: r.schema, lease: w.token, leaseExpiry: farFuture, key: w.key}
	return rediscall.NewCommand(ctx, "set", w.key, f.text(), "nx", "px", r.leaseMillis)
}

func (r *redisTier) leaseCommand(ctx context.Context, mode leaseMode, w *wantedLease) *rediscall.Command {
	f := frame{kind: kindLease, schema: r.schema, lease: w.token, key: w.key}
	text := f.text()
	flags := "\x00"
	if r.wakes && mode == leaseToRead {
		flags = string([]byte{flagAwaited})
	}
	return leaseScript.Command(ctx, w.key, leaseOf(text), w.earlier.text(), r.leaseMillis, r.schemaText, string(mode),
		w.reject, text[:offLease], text[offKeyLen:], flags, r.dueAge)
}

// abandonLeases gives leases back behind the caller's back. What Redis does not confirm is tried again while the leases live: others
// would wait for them.
func (r *redisTier) abandonLeases(ctx context.Context, held []heldLease) {
	if len(held) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	end := time.Now().Add(r.leaseTTL)
	r.client.deletes.Go(func() {
		if left := r.release(ctx, held); len(left) > 0 {
			r.client.retries.Go(func() { r.releaseUntil(ctx, end, left) })
		}
	})
}

// releaseUntil tries again, ten times in the life of a lease.
func (r *redisTier) releaseUntil(ctx context.Context, end time.Time, held []heldLease) {
	ticker := time.NewTicker(r.leaseTTL / 10)
	defer ticker.Stop()
	for len(held) > 0 && time.Now().Before(end) {
		select {
		case <-ticker.C:
			held = r.release(ctx, held)
		case <-r.client.closing:
			return
		}
	}
}

// release gives leases back, and returns those whose end Redis did not confirm.
func (r *redisTier) release(ctx context.Context, held []heldLease) (left []heldLease) {
	answered := 0
	trips(len(held), func(from, to int) error {
		commands := make([]*rediscall.Command, 0, to-from)
		for _, h := range held[from:to] {
			m := r.message(toWake, h.key)
			commands = append(commands, releaseScript.Command(ctx, h.key, h.lease.text(), m.Channel, m.Payload))
		}
		err := r.leaseCalls(ctx, commands)
		if err != nil {
			return err
		}
		answered = to
		for i, c := range commands {
			if class := rediscall.Classify(c.Err()); class != rediscall.OK && class != rediscall.Denied { // rights do not come back so soon
				left = append(left, held[from+i])
			}
		}
		return nil
	})
	return append(left, held[answered:]...)
}

// The outcomes of the lease script.
const (
	leaseGranted = iota + 1
	leaseValue
	leaseBusy
	leaseNewer
	leaseWriting
)

// leaseReply notes what the script said of a lease.
func (r *redisTier) leaseReply(w *wantedLease, c *rediscall.Command, sent int64) {
	reply, err := r.reply(c, sent, 3)
	if err != nil {
		return
	}
	r.stats.wrongTypes.Add(uint64(reply[2].(int64)))
	switch outcome := reply[0].(int64); {
	case outcome == leaseGranted:
		w.reading.state, w.reading.lease, w.reading.at = stateGranted, w.token, reply[1].(int64)
	case outcome == leaseNewer:
		w.reading.state = stateNewer
	case outcome == leaseWriting:
		w.reading.state = stateWriting
	case outcome == leaseBusy:
		w.reading.state = stateLeased
	case outcome == leaseValue && len(reply) == 4:
		raw, _ := reply[3].(string)
		r.interpret(w.reading, raw, w.key)
	}
}

// renewal renews leases, every third of their TTL, until it is stopped. Most loads end before the first time, so it takes a goroutine
// only then.
type renewal struct {
	tier *redisTier
	ctx  context.Context
	held []heldLease

	mu    sync.Mutex
	timer *time.Timer // guarded by mu; nil once stopped, or if there is nothing to renew
}

// keepRenewed begins to renew leases.
func (r *redisTier) keepRenewed(ctx context.Context, held []heldLease) *renewal {
	n := &renewal{tier: r, ctx: ctx, held: held}
	if len(held) > 0 {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.timer = time.AfterFunc(r.leaseTTL/3, n.due)
	}
	return n
}

// stop ends the renewals. It may be called more than once.
func (n *renewal) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.timer != nil {
		n.timer.Stop()
		n.timer = nil
	}
}

// due renews once, and sees to the next time.
func (n *renewal) due() {
	n.tier.client.deletes.Go(func() { // which outlives the writes under way
		next := time.Now().Add(n.tier.leaseTTL / 3)
		if n.stopped() {
			return
		}
		n.tier.renew(context.WithoutCancel(n.ctx), n.held)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.timer != nil {
			n.timer.Reset(time.Until(next))
		}
	})
}

func (n *renewal) stopped() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.timer == nil
}

// renew prolongs leases. What was lost meanwhile shows when the fill is refused.
func (r *redisTier) renew(ctx context.Context, held []heldLease) {
	trips(len(held), func(from, to int) error {
		commands := make([]*rediscall.Command, 0, to-from)
		for _, h := range held[from:to] {
			commands = append(commands, renewScript.Command(ctx, h.key, h.lease.text(), r.leaseMillis))
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
