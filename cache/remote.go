package cache

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/go-nearside/nearside/internal/rediscall"
)

//go:embed lua/prelude.lua
var preludeLua string

//go:embed lua/lease.lua
var leaseLua string

//go:embed lua/fill.lua
var fillLua string

//go:embed lua/renew.lua
var renewLua string

//go:embed lua/release.lua
var releaseLua string

var (
	leaseScript   = rediscall.NewScript(preludeLua + leaseLua)
	fillScript    = rediscall.NewScript(preludeLua + fillLua)
	renewScript   = rediscall.NewScript(preludeLua + renewLua)
	releaseScript = rediscall.NewScript(preludeLua + releaseLua)
)

// redisTier reads and writes the frames of one cache in Redis. It knows bytes, leases and the server's clock, and nothing of
// values, loaders or the local tier.
type redisTier struct {
	client   *Client
	schema   uint16
	leaseTTL time.Duration
	stats    *counters
}

// state is what Redis knows of a key.
type state uint8

const (
	stateUnknown state = iota // Redis gave no answer: weather
	stateMiss                 // nothing that can be used stands there
	stateFound                // a value, or "not found", that is fresh
	stateLeased               // somebody else is loading it
	stateNewer                // it belongs to a newer schema: leave it alone
	stateGranted              // the lease is ours
)

// reading is what Redis said of one key.
type reading struct {
	state  state
	frame  frame  // of stateFound
	raw    string // of stateFound: the frame's bytes
	at     int64  // of stateGranted: when, on the server's clock
	lease  token  // of stateGranted
	reject string // of stateMiss: the digest of bytes that stand there and cannot be used
}

// read asks for some keys in one round trip.
func (r *redisTier) read(ctx context.Context, physical []string) []reading {
	commands := make([]*rediscall.Command, len(physical))
	for i, key := range physical {
		commands[i] = rediscall.NewCommand(ctx, "get", key)
	}
	readings := make([]reading, len(physical))
	if err := r.client.read.Do(ctx, commands...); err != nil {
		r.client.weather(err)
		return readings
	}
	for i, c := range commands {
		switch err := c.Err(); rediscall.Classify(err) {
		case rediscall.OK:
			raw, _ := c.Val().(string)
			if readings[i] = r.interpret(raw, physical[i]); readings[i].state == stateFound && !r.fresh(&readings[i].frame) {
				readings[i] = reading{state: stateMiss} // perhaps: the script that takes the lease knows for certain
			}
		case rediscall.Nil:
			readings[i].state = stateMiss
		case rediscall.WrongType:
			readings[i].state = stateMiss // taking the lease removes what stands there
		default:
			r.client.weather(err)
		}
	}
	return readings
}

// interpret says what the bytes at a key mean.
func (r *redisTier) interpret(raw, physical string) reading {
	f, err := parseFrame(raw)
	switch {
	case err != nil:
		r.stats.badFrames.Add(1)
		return reading{state: stateMiss, reject: digest(raw)}
	case f.key != physical:
		r.stats.foreignFrames.Add(1)
		return reading{state: stateMiss, reject: digest(raw)}
	case f.schema > r.schema:
		r.stats.newerSchema.Add(1)
		return reading{state: stateNewer}
	case f.schema < r.schema:
		return reading{state: stateMiss}
	case f.kind == kindLease:
		return reading{state: stateLeased}
	}
	return reading{state: stateFound, frame: f, raw: raw}
}

// fresh tells whether a frame is certainly fresh. The server keeps a frame longer than that only while somebody has a lease on
// it, so as long as the server's clock is not known, the lease tells.
func (r *redisTier) fresh(f *frame) bool {
	_, latest, ok := r.client.clock.serverNow()
	return ok && latest < f.freshUntil || !ok && f.lease == (token{})
}

// digest names bytes that cannot be used, so that the script can tell whether they still stand there.
func digest(raw string) string {
	sum := sha1.Sum([]byte(raw))
	return hex.EncodeToString(sum[:])
}

// leaseMode says who asks for a lease.
type leaseMode string

const (
	leaseToRead  leaseMode = "read"  // who misses: gets the value instead if there is one by now
	leaseToWrite leaseMode = "write" // who is about to write the source: voids every other lease
)

// lease takes the leases of some keys in one round trip. rejects holds a digest per key, or is nil. A call whose outcome is
// unknown is made once more, with a new token and naming the old one: if the first call did run, the second takes over what
// it got; and if the first still runs later, nobody fills under its token, so it can do no harm.
func (r *redisTier) lease(ctx context.Context, mode leaseMode, physical, rejects []string) []reading {
	readings := make([]reading, len(physical))
	earlier := make([]token, len(physical))
	pending := make([]int, len(physical))
	for i := range pending {
		pending[i] = i
	}
	for attempt := 1; attempt <= 2 && len(pending) > 0; attempt++ {
		commands := make([]*rediscall.Command, len(pending))
		tokens := make([]token, len(pending))
		for n, i := range pending {
			tokens[n] = newToken()
			var reject string
			if rejects != nil {
				reject = rejects[i]
			}
			commands[n] = r.leaseCommand(ctx, mode, physical[i], reject, tokens[n], earlier[i])
		}
		sent := r.client.clock.now()
		err := r.client.read.Do(ctx, commands...)
		var unknown []int
		for n, i := range pending {
			if err == nil {
				readings[i] = r.leaseReply(commands[n], physical[i], tokens[n], sent)
			}
			if err != nil || rediscall.Unknown(commands[n].Err()) {
				unknown = append(unknown, i)
				r.abandonLease(ctx, physical[i], earlier[i])
				earlier[i] = tokens[n]
			}
		}
		if err != nil {
			r.client.weather(err)
		}
		pending = unknown
	}
	for _, i := range pending {
		r.abandonLease(ctx, physical[i], earlier[i])
	}
	return readings
}

func (r *redisTier) leaseCommand(ctx context.Context, mode leaseMode, physical, reject string, t, earlier token) *rediscall.Command {
	f := frame{kind: kindLease, schema: r.schema, key: physical}
	raw := f.appendTo(make([]byte, 0, headerBytes+len(physical)))
	before := earlier[:]
	if earlier == (token{}) {
		before = nil
	}
	return leaseScript.Command(ctx, physical, t[:], before, millis(r.leaseTTL), int(r.schema), string(mode),
		reject, raw[:offLease], raw[offKeyLen:])
}

// abandonLease frees, behind the caller's back, what an attempt may have got without hearing of it.
func (r *redisTier) abandonLease(ctx context.Context, physical string, t token) {
	if t != (token{}) {
		r.client.work.Go(func() { r.release(context.WithoutCancel(ctx), physical, t) })
	}
}

// The outcomes of the lease script.
const (
	leaseGranted = iota + 1
	leaseValue
	leaseBusy
	leaseNewer
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
	case outcome == leaseBusy:
		return reading{state: stateLeased}
	case outcome == leaseValue && len(reply) == 4:
		raw, _ := reply[3].(string)
		return r.interpret(raw, physical)
	}
	return reading{}
}

// reply reads the answer of a script, at least the first n numbers of it, the second of which is the server's time.
func (r *redisTier) reply(c *rediscall.Command, sent int64, n int) ([]any, error) {
	if err := c.Err(); err != nil {
		r.client.weather(err)
		return nil, err
	}
	reply, ok := c.Val().([]any)
	ok = ok && len(reply) >= n
	for i := 0; ok && i < n; i++ {
		_, ok = reply[i].(int64)
	}
	if !ok {
		err := fmt.Errorf("a script answered %T", c.Val())
		r.client.weather(err)
		return nil, err
	}
	r.client.clock.observe(reply[1].(int64), sent, r.client.clock.now())
	return reply, nil
}

// fill writes frames under their leases in one round trip. It reports for each whether Redis has it; a fill whose outcome is
// unknown counts as not written.
func (r *redisTier) fill(ctx context.Context, frames []frame, ttls []time.Duration) []bool {
	commands := make([]*rediscall.Command, len(frames))
	for i := range frames {
		f := &frames[i]
		f.schema = r.schema
		raw := f.appendTo(make([]byte, 0, headerBytes+len(f.key)+len(f.payload)))
		commands[i] = fillScript.Command(ctx, f.key, f.lease[:], raw[:offFresh], millis(ttls[i]), raw[offFill:offLease], raw[offKeyLen:])
	}
	written := make([]bool, len(frames))
	sent := r.client.clock.now()
	if err := r.client.write.Do(ctx, commands...); err != nil {
		r.client.weather(err)
		r.stats.fillErrors.Add(uint64(len(frames)))
		return written
	}
	for i, c := range commands {
		switch reply, err := r.reply(c, sent, 2); {
		case err != nil:
			r.stats.fillErrors.Add(1)
		case reply[0].(int64) == 1:
			r.stats.fills.Add(1)
			written[i] = true
		default:
			r.stats.fillsRefused.Add(1)
		}
	}
	return written
}

// renew prolongs leases in one round trip. What was lost meanwhile shows when the fill is refused.
func (r *redisTier) renew(ctx context.Context, physical []string, leases []token) {
	commands := make([]*rediscall.Command, len(physical))
	for i, key := range physical {
		commands[i] = renewScript.Command(ctx, key, leases[i][:], millis(r.leaseTTL))
	}
	r.leaseCalls(ctx, commands)
}

// release gives a lease back without a value.
func (r *redisTier) release(ctx context.Context, physical string, lease token) {
	r.leaseCalls(ctx, []*rediscall.Command{releaseScript.Command(ctx, physical, lease[:])})
}

func (r *redisTier) leaseCalls(ctx context.Context, commands []*rediscall.Command) {
	sent := r.client.clock.now()
	if err := r.client.write.Do(ctx, commands...); err != nil {
		r.client.weather(err)
		return
	}
	for _, c := range commands {
		_, _ = r.reply(c, sent, 2) // learns the server's time, and counts errors
	}
}

// remove deletes keys, and with them whatever lease stands there, in one round trip. It returns an error per key.
func (r *redisTier) remove(ctx context.Context, physical []string) []error {
	commands := make([]*rediscall.Command, len(physical))
	for i, key := range physical {
		commands[i] = rediscall.NewCommand(ctx, "unlink", key)
	}
	errs := make([]error, len(physical))
	err := r.client.write.Do(ctx, commands...)
	for i, c := range commands {
		if errs[i] = err; err == nil {
			errs[i] = c.Err()
		}
		if errs[i] != nil {
			r.client.weather(errs[i])
		}
	}
	return errs
}

// millis rounds up to what Redis counts in.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
