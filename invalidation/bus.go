package invalidation

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/group"
	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/subscribe"
)

// Config configures a Bus. Its zero value works.
type Config struct {
	// Namespace keeps the buses of different services on one Redis apart. Default: "nearside".
	Namespace string

	// Heartbeat is how often the bus checks that it still hears. Default: 500 ms. At least 10 ms.
	Heartbeat time.Duration

	// Silence is how long the heartbeat may stay out before the bus declares a gap. Default: three heartbeats. At least two.
	Silence time.Duration

	// Budget bounds each call to Redis. Default: 250 ms.
	Budget time.Duration

	// Logger gets a warning when the bus cannot work as Redis is set up. Default: slog.Default().
	Logger *slog.Logger

	// ServerTime, if it is given, is told what each heartbeat says of the server's clock, and when the heartbeat was sent and
	// answered. It must not block.
	ServerTime func(server, sent, answered time.Time)
}

// Handler is told what to forget. It must not block. A nil field is not called.
type Handler struct {
	// Keys were invalidated by another process.
	Keys func(keys []string)
	// Wake says that it is time to look again at keys that somebody waits for. It may be lost without a gap.
	Wake func(keys []string)
	// Gap says that anything may have been missed, since the last time that all was heard: forget all, or check it.
	Gap func(cause string)
}

// The causes of a gap, beside those of the subscription: error, silence, unconfirmed, unsubscribed.
const (
	CauseSubscribed = "subscribed" // the bus hears from now on; what came before was not heard
	CauseHole       = "hole"       // a message of another publisher is missing
	CauseNewServer  = "new server" // the server behind the commands changed: a failover or a restart
	CauseNewer      = "newer"      // a message of a newer release, which this one cannot read
	CauseBroken     = "broken"     // a message that cannot be read
	CauseDatabase   = "database"   // the client uses another database than it seemed: nothing will be heard
	CauseOverflow   = "overflow"   // more publishers, or more out of order, than can be followed
)

// Bus carries invalidations between the processes that share a Redis. See the package comment.
type Bus struct {
	config  Config
	id      publisher
	channel string // of all
	own     string // of this bus
	calls   *rediscall.Runner
	loop    *subscribe.Loop
	out     *outbox
	work    group.Group
	stop    chan struct{}
	kick    chan struct{} // asks for a heartbeat now; holds one
	closing sync.Once

	live  atomic.Bool
	wrong atomic.Bool // the channel is that of another database

	mu       sync.Mutex
	handlers []*named  // guarded by mu; in the order of Subscribe; replaced, not changed
	health   Health    // guarded by mu
	server   string    // guarded by mu; the server that answered the last beat
	beats    uint64    // guarded by mu; the number of the last beat sent
	sent     time.Time // guarded by mu; when it was sent
	warned   bool      // guarded by mu; a problem was logged since the last heartbeat came back
	in       *inbox    // of the receiving goroutine
}

// Health is how a bus is doing.
type Health struct {
	Live  bool      // a heartbeat has come back over the subscription, and the next is not overdue
	Since time.Time // when Live last changed
	// LastBeat is when a heartbeat last came back, and Lag how long it took, from the command to the subscription: what a
	// message takes to come here, as a measure and not as a bound.
	LastBeat time.Time
	Lag      time.Duration
	Gaps     map[string]uint64 // by cause
	Failed   uint64            // subscriptions that were given up before they were confirmed
	Received uint64            // messages of other processes
	Strange  uint64            // payloads on the channel that are not a message
	Problem  error             // why the last heartbeat or subscription failed; nil when it did not
}

// ErrClosed says that the bus was closed.
var ErrClosed = errors.New("invalidation: the bus is closed")

var errNoBus = errors.New("invalidation: there is no bus")

//go:embed beat.lua
var beatLua string

var beatScript = rediscall.NewScript(beatLua)

// Open makes a bus on a Redis client, which stays the caller's. It does not wait for Redis: see Live. Any
// redis.UniversalClient will do but a Ring.
func Open(rdb redis.UniversalClient, config Config) (*Bus, error) {
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("invalidation: the Redis client is nil: give a *redis.Client or *redis.ClusterClient")
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return nil, errors.New("invalidation: a *redis.Ring has no common pub/sub: give a *redis.Client or *redis.ClusterClient")
	}
	if config.Namespace == "" {
		config.Namespace = "nearside"
	}
	if config.Heartbeat == 0 {
		config.Heartbeat = 500 * time.Millisecond
	}
	if config.Silence == 0 {
		config.Silence = 3 * config.Heartbeat
	}
	if config.Budget == 0 {
		config.Budget = 250 * time.Millisecond
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	switch {
	case config.Heartbeat < 10*time.Millisecond:
		return nil, fmt.Errorf("invalidation: Config.Heartbeat is %v: give at least 10ms, or 0 for the default", config.Heartbeat)
	case config.Silence < 2*config.Heartbeat:
		return nil, fmt.Errorf("invalidation: Config.Silence is %v: give at least two heartbeats (%v), or 0 for the default", config.Silence, 2*config.Heartbeat)
	case config.Budget < time.Millisecond:
		return nil, fmt.Errorf("invalidation: Config.Budget is %v: give at least 1ms, or 0 for the default", config.Budget)
	}
	id := newPublisher()
	number, sure := database(rdb)
	channel := fmt.Sprintf("%s:b:%d", strings.NewReplacer("%", "%25", ":", "%3A").Replace(config.Namespace), number)
	b := &Bus{
		config: config, id: id, channel: channel, own: channel + ":" + id.String(),
		calls: rediscall.NewRunner(rdb, config.Budget),
		out:   newOutbox(), in: newInbox(), stop: make(chan struct{}), kick: make(chan struct{}, 1),
		health: Health{Gaps: map[string]uint64{}, Since: time.Now()},
	}
	b.loop = subscribe.Start(rdb, subscribe.Config{
		Channels: []string{b.channel, b.own}, Silence: config.Silence,
		Live: b.subscribed, Lost: b.lost, Message: b.received,
	})
	b.work.Go(func() { b.beat(number, sure) })
	return b, nil
}

// database returns the number of the client's database: pub/sub does not know of it, so the channel carries it. A client that does
// not tell is taken to use 0, and checked later.
func database(rdb redis.UniversalClient) (number int, sure bool) {
	if c, ok := rdb.(interface{ Options() *redis.Options }); ok {
		return c.Options().DB, true
	}
	return 0, false
}

var errHiddenDatabase = errors.New("invalidation: the Redis client hides that it uses another database than 0: give a *redis.Client, or use 0")

// checkDatabase asks Redis which database the client uses. On the channel of another one nothing is heard, so the bus does not
// claim to hear then.
func (b *Bus) checkDatabase(number int) (checked bool) {
	ctx := context.Background()
	c := rediscall.NewCommand(ctx, "client", "info")
	if err := b.calls.Do(ctx, c); err != nil {
		return false
	}
	info, err := c.Text()
	if err != nil {
		return rediscall.Classify(err) == rediscall.Denied || rediscall.Classify(err) == rediscall.Reply // it may not be asked
	}
	_, rest, found := strings.Cut(info, " db=")
	text, _, _ := strings.Cut(rest, " ")
	if uses, err := strconv.Atoi(text); found && err == nil && uses != number {
		b.wrong.Store(true)
		b.loop.Doubt(CauseDatabase, errHiddenDatabase)
		b.config.Logger.Warn("nearside: the bus does not work: local tiers keep entries for a short time only", "error", errHiddenDatabase, "database", uses)
	}
	return true
}

// Close ends the bus, and tells the others its last number: no handler is called after it returned. It is bounded by the budget
// and a second, and may be called at any time and more than once, but not from a handler.
func (b *Bus) Close() error {
	b.closing.Do(func() { close(b.stop) })
	deadline := time.Now().Add(b.config.Budget + time.Second)
	left := b.work.Close(time.Until(deadline))
	left += b.loop.Close(time.Until(deadline)) + b.calls.Close(time.Until(deadline))
	b.setLive(false)
	if left > 0 {
		return fmt.Errorf("invalidation: close: %d calls to Redis still hang", left)
	}
	return nil
}

// Live tells whether the bus hears: a heartbeat has come back over its subscription, and the next is not overdue. A nil Bus hears
// nothing.
func (b *Bus) Live() bool { return b != nil && b.live.Load() }

// Health tells how the bus is doing. A nil Bus has the problem that it is none.
func (b *Bus) Health() Health {
	if b == nil {
		return Health{Problem: errNoBus}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.health
	h.Live, h.Gaps = b.live.Load(), maps.Clone(h.Gaps)
	if b.wrong.Load() {
		h.Problem = errHiddenDatabase
	}
	return h
}

// named is a handler and the name whose messages it gets.
type named struct {
	name string
	Handler
}

// Subscribe hands the messages of a name to a handler until stop is called, which does not wait for a call of the handler that
// is under way. Handlers are called in the order in which they were subscribed.
func (b *Bus) Subscribe(name string, handler Handler) (stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := &named{name, handler}
	b.handlers = append(slices.Clip(b.handlers), n)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.handlers = slices.DeleteFunc(slices.Clone(b.handlers), func(other *named) bool { return other == n })
	}
}

func (b *Bus) subscribers() []*named {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.handlers
}

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
	done             func()
}

// Prepare numbers a message. Done must be called when it was published, or will not be.
func (b *Bus) Prepare(name string, keys ...string) Outgoing {
	m := message{kind: keysMessage, from: b.id, number: b.out.next(), name: name, keys: keys}
	return Outgoing{b.channel, string(m.append(nil)), func() { b.out.done(m.number) }}
}

// PrepareWake makes a message for Handler.Wake. It has no number: it may be published or not, and nobody finds out.
func (b *Bus) PrepareWake(name string, keys ...string) Outgoing {
	m := message{kind: wakeMessage, from: b.id, name: name, keys: keys}
	return Outgoing{Channel: b.channel, Payload: string(m.append(nil))}
}

// Done says that the message was published or will not be. If it was lost, the others find out.
func (o Outgoing) Done() {
	if o.done != nil {
		o.done()
	}
}

// beat sends the heartbeats, and tells the others of the last number.
func (b *Bus) beat(database int, sure bool) {
	ticker := time.NewTicker(b.config.Heartbeat)
	defer ticker.Stop()
	for due := true; ; {
		sure = sure || b.checkDatabase(database)
		b.sendBeat()
		if due {
			b.tell()
		}
		select {
		case <-ticker.C:
			due = true
		case <-b.kick:
			due = false
		case <-b.stop:
			if last, first, ok := b.out.tellAll(); ok {
				b.sendLast(last, first)
			}
			return
		}
	}
}

// tell is due once a heartbeat.
func (b *Bus) tell() {
	if last, first, ok := b.out.tell(); ok {
		b.sendLast(last, first)
	}
}

// sendLast tells the others the last number of this bus, and the first since it was silent. If that fails, the next may not.
func (b *Bus) sendLast(last, first uint64) {
	_, _ = b.send(b.channel, message{kind: lastMessage, from: b.id, number: last, first: first})
}

// sendBeat publishes a heartbeat by the way that commands go. Its reply names the server.
func (b *Bus) sendBeat() {
	b.mu.Lock()
	b.beats++
	b.sent = time.Now()
	m := message{kind: beatMessage, from: b.id, number: b.beats}
	b.mu.Unlock()
	server, err := b.send(b.own, m)
	b.problem(err)
	if err != nil || server == "" {
		return
	}
	b.mu.Lock()
	changed := b.server != "" && b.server != server
	b.server = server
	b.mu.Unlock()
	if changed {
		b.loop.Doubt(CauseNewServer, errors.New("invalidation: another server answers"))
	}
}

func (b *Bus) send(channel string, m message) (server string, err error) {
	ctx := context.Background()
	c := beatScript.Command(ctx, channel, m.append(nil))
	sent := time.Now()
	if err := b.calls.Do(ctx, c); err != nil {
		return "", err
	}
	reply, err := c.StringSlice()
	if err != nil || len(reply) != 3 {
		return "", err
	}
	seconds, err1 := strconv.ParseInt(reply[1], 10, 64)
	micros, err2 := strconv.ParseInt(reply[2], 10, 64)
	if err1 == nil && err2 == nil && b.config.ServerTime != nil {
		b.config.ServerTime(time.Unix(seconds, micros*1000), sent, time.Now())
	}
	return reply[0], nil
}

// problem notes why the bus cannot work, and logs what only a person can mend.
func (b *Bus) problem(err error) {
	b.mu.Lock()
	b.health.Problem = err
	say := err != nil && rediscall.Classify(err) == rediscall.Denied && !b.warned
	b.warned = b.warned || say
	b.mu.Unlock()
	if say {
		b.config.Logger.Warn("nearside: the bus does not work, and local tiers keep entries for a short time only: grant the Redis user "+
			"what the documentation of package invalidation lists, among it the channels and the keys of the bus: &"+b.channel+"* ~"+b.channel+"*",
			"error", err)
	}
}

// lost, subscribed and received are called by the loop, one at a time.

func (b *Bus) lost(cause string, err error) {
	if rediscall.Classify(err) == rediscall.Denied {
		b.problem(err)
	}
	if b.setLive(false) {
		b.gap(cause)
		return
	}
	// Since the last gap nobody was told that anything would be heard.
	b.mu.Lock()
	defer b.mu.Unlock()
	b.health.Failed++
}

func (b *Bus) subscribed() {
	b.in = newInbox()
	select {
	case b.kick <- struct{}{}: // the first heartbeat will tell whether anything comes
	default:
	}
}

func (b *Bus) setLive(live bool) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live.Swap(live) == live {
		return false
	}
	b.health.Since = time.Now()
	return true
}

// gap tells all handlers.
func (b *Bus) gap(cause string) {
	b.mu.Lock()
	b.health.Gaps[cause]++
	b.mu.Unlock()
	for _, h := range b.subscribers() {
		if h.Gap != nil {
			h.Gap(cause)
		}
	}
}

func (b *Bus) received(channel, payload string) {
	m, err := parseMessage(payload)
	switch {
	case errors.Is(err, errNewerMessage):
		b.gap(CauseNewer)
		return
	case errors.Is(err, errBrokenMessage):
		b.gap(CauseBroken)
		return
	case err != nil:
		b.mu.Lock()
		b.health.Strange++
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
			b.heardBeat(m.number)
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
			b.in = newInbox()
			b.gap(CauseOverflow)
		}
	case lastMessage:
		if b.in.lacks(&m, now) {
			b.gap(CauseHole)
		}
	}
}

func (b *Bus) heardBeat(number uint64) {
	b.loop.Beat()
	if !b.live.Load() && !b.wrong.Load() {
		b.gap(CauseSubscribed)
		b.setLive(true)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.warned = false
	b.health.LastBeat = time.Now()
	if number == b.beats {
		b.health.Lag = time.Since(b.sent)
	}
}
