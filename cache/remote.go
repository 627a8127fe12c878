package cache

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/go-nearside/nearside/internal/collect"
	"github.com/go-nearside/nearside/internal/rediscall"
)

//go:embed lua/prelude.lua
var preludeLua string

//go:embed lua/lease.lua
var leaseLua string

//go:embed lua/fill.lua
var fillLua string

//go:embed lua/delete.lua
var deleteLua string

//go:embed lua/renew.lua
var renewLua string

//go:embed lua/release.lua
var releaseLua string

var (
	leaseScript   = rediscall.NewScript(preludeLua + leaseLua)
	fillScript    = rediscall.NewScript(preludeLua + fillLua)
	deleteScript  = rediscall.NewScript(preludeLua + deleteLua)
	renewScript   = rediscall.NewScript(preludeLua + renewLua)
	releaseScript = rediscall.NewScript(preludeLua + releaseLua)
)

// redisTier reads and writes the frames of one cache in Redis. It knows bytes, leases and the server's clock, and nothing of
// values, loaders or the local tier.
type redisTier struct {
	client   *Client
	name     string // of the cache
	prefix   int    // how much of a physical key comes before the encoded key
	wakes    bool   // tells the holders of leases that it waits
	schema   uint16
	leaseTTL time.Duration
	staleTTL time.Duration // 0 if nothing stands in
	dueAge   string        // how old a value is that is refreshed, as the script gets it
	stats    *counters

	schemaText, leaseMillis string // as the scripts get them
}

// state is what Redis knows of a key.
type state uint8

const (
	stateUnknown state = iota // Redis gave no answer: weather
	stateMiss                 // nothing that can be used stands there
	stateFound                // a value, or "not found", that is fresh
	stateLeased               // somebody else is loading it
	stateWriting              // somebody is writing it to the source
	stateNewer                // it belongs to a newer schema: leave it alone
	stateGranted              // the lease is ours
	stateUnasked              // nobody has asked yet
)

// reading is what Redis said of one key.
type reading struct {
	state  state
	read   moment // when it was read, of stateFound
	frame  frame  // of stateFound, and of stateLeased where it was read; of others it means nothing
	raw    string // of stateFound: the frame's bytes
	at     int64  // of stateGranted: when, on the server's clock, and surely not later; it becomes the frame's loadedAt
	lease  token  // of stateGranted
	reject string // of stateMiss: the digest of bytes that stand there and cannot be used
	empty  bool   // of stateMiss: nothing stands there, or, in a reply to MGET, no string
	stale  bool   // of stateMiss and stateLeased: frame is a value that is not fresh any more and may stand in; read tells when it was read
}

// maxTrip is the most commands that go in one round trip. Each trip has a budget of its own, so that a large batch is not taken
// for a slow Redis.
const maxTrip = 500

// trips calls do for one part of n commands after another, until it fails.
func trips(n int, do func(from, to int) error) {
	for from := 0; from < n; from += maxTrip {
		if do(from, min(from+maxTrip, n)) != nil {
			return
		}
	}
}

// readReply says what an answer to GET means.
func (r *redisTier) readReply(out *reading, raw string, err error, physical string) {
	switch rediscall.Classify(err) {
	case rediscall.OK:
		r.interpret(out, raw, physical)
		if out.state == stateFound && !out.fresh() {
			r.notFresh(out)
		}
	case rediscall.Nil: // or, in a reply to MGET, something that is no string
		*out = reading{state: stateMiss, empty: true}
	case rediscall.WrongType: // taking the lease removes it
		*out = readingMiss
	default:
		*out = reading{}
		r.client.weather(err)
	}
}

var readingMiss = reading{state: stateMiss}

// notFresh says what an entry means that is not fresh: a miss, perhaps; the script that takes the lease knows for certain. What may stand
// in stays with the reading.
func (r *redisTier) notFresh(out *reading) {
	f := &out.frame
	if f.kind != kindValue || !out.read.known || out.read.latest >= f.expires {
		*out = readingMiss
		return
	}
	out.state, out.stale = stateMiss, true
	switch {
	case f.lease == (token{}) || out.read.earliest > f.leaseExpiry:
	case f.lease.writers():
		*out = reading{state: stateWriting}
	default:
		out.state = stateLeased
	}
}

// readOne asks for one key.
func (r *redisTier) readOne(ctx context.Context, physical string, out *reading) {
	raw, err := r.client.read.Get(ctx, physical)
	r.readReply(out, raw, err, physical)
}

// read asks for some keys, as many at once as go in a round trip, and gives what was found to got after each; found is lent. It returns
// how many were answered: after a trip that failed the rest is not asked for.
func (r *redisTier) read(ctx context.Context, physical []string, got func(i int, found *reading)) (answered int) {
	var found reading
	trips(len(physical), func(from, to int) error {
		reads, err := r.readTrip(ctx, physical[from:to])
		if err != nil {
			r.client.weather(err)
			return err
		}
		for i, read := range reads {
			r.readReply(&found, read.Value, read.Err, physical[from+i])
			got(from+i, &found)
		}
		answered = to
		return nil
	})
	return answered
}

func (r *redisTier) readTrip(ctx context.Context, physical []string) ([]collect.Read, error) {
	reads := make([]collect.Read, len(physical))
	err := r.client.read.GetMany(ctx, physical, reads)
	if len(physical) > 1 && rediscall.Classify(err) == rediscall.Transport {
		// The connection broke, and with it the whole reply. Another one may well bring it, and the source is spared the batch.
		r.client.weather(err)
		reads = make([]collect.Read, len(physical))
		err = r.client.read.GetMany(ctx, physical, reads)
	}
	return reads, err
}

// interpret says what the bytes at a key mean.
func (r *redisTier) interpret(out *reading, raw, physical string) {
	*out = reading{}
	f := &out.frame
	err := f.parse(raw)
	switch {
	case err != nil:
		r.stats.badFrames.Add(1)
		*out = reading{state: stateMiss, reject: digest(raw)}
	case f.key != physical:
		r.stats.foreignFrames.Add(1)
		*out = reading{state: stateMiss, reject: digest(raw)}
	case f.schema > r.schema:
		r.stats.newerSchema.Add(1)
		out.state = stateNewer
	case f.schema < r.schema:
		out.state = stateMiss
	case f.kind == kindLease && f.lease.writers():
		out.state = stateWriting
	case f.kind == kindLease:
		out.state = stateLeased
		if at := r.client.clock.moment(); at.known && at.earliest > f.leaseExpiry {
			out.state = stateMiss
		}
	default:
		out.state, out.read, out.raw = stateFound, r.client.clock.moment(), raw
	}
}

// wantsWaking tells whether the holder of a lease does not know yet that somebody waits. The script that takes leases tells it.
func (r *redisTier) wantsWaking(reading reading) bool {
	return r.wakes && reading.state == stateLeased && reading.frame.flags&flagAwaited == 0
}

// fresh tells whether a frame is certainly fresh. The server keeps a frame longer than that only while somebody has a lease on
// it, so as long as the server's clock is not known, the lease tells.
func (r *reading) fresh() bool {
	if r.read.known {
		return r.read.latest < r.frame.freshUntil
	}
	return r.frame.lease == (token{})
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

	leaseToRefresh leaseMode = "refresh" // who loads anew what is fresh: gets what is newer instead, if there is that
)

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

// millis is a duration in milliseconds, rounded up, as Redis takes it.
func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
