package invalidation

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
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

// Bus carries invalidations between the processes that share a Redis. See the package comment.
type Bus struct {
	config  Config
	id      publisher
	channel string // of all
	own     string // of this bus
	rights  string // the pattern of all channels, as access lists need it
	calls   *rediscall.Runner
	loop    *subscribe.Loop
	out     *outbox
	work    group.Group
	opened  time.Time
	stop    chan struct{}
	kick    chan struct{} // asks for a heartbeat now; holds one
	closing sync.Once

	live  atomic.Bool
	wrong atomic.Bool // the channel is that of another database

	mu       sync.Mutex
	handlers []*named // guarded by mu; in the order of Subscribe; replaced, not changed
	health   Health   // guarded by mu
	server   string   // guarded by mu; the server that answered the last beat
	warned   bool     // guarded by mu; a problem was logged since the last heartbeat came back
	in       *inbox   // of the receiving goroutine
	unread   string   // of the receiving goroutine; why something came that could not be read since the last heartbeat
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
	// In a cluster the hash tag puts both channels on one node.
	namespace := strings.NewReplacer("%", "%25", ":", "%3A").Replace(config.Namespace)
	channel := fmt.Sprintf("%s:b:{%[1]s:%d}", namespace, number)
	b := &Bus{
		config: config, id: id, channel: channel, own: channel + ":" + id.String(), rights: namespace + ":b:*",
		calls: rediscall.NewRunner(rdb, config.Budget),
		out:   newOutbox(), in: newInbox(config.Heartbeat), opened: time.Now(), stop: make(chan struct{}), kick: make(chan struct{}, 1),
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
// and a second, and may be called at any time and more than once, but not from a handler. A nil Bus is closed.
func (b *Bus) Close() error {
	if b == nil {
		return nil
	}
	first := false
	b.closing.Do(func() {
		first = true
		close(b.stop)
	})
	deadline := time.Now().Add(b.config.Budget + time.Second)
	left := b.work.Close(time.Until(deadline))
	left += b.loop.Close(time.Until(deadline)) + b.calls.Close(time.Until(deadline))
	b.setLive(false)
	if first {
		b.gap(CauseClosed)
	}
	if left > 0 {
		return fmt.Errorf("invalidation: close: %d calls to Redis still hang", left)
	}
	return nil
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

// beat sends the heartbeats, and tells the others of the last number.
func (b *Bus) beat(database int, sure bool) {
	ticker := time.NewTicker(b.config.Heartbeat)
	defer ticker.Stop()
	for {
		tell := b.out.tell
		select {
		case <-ticker.C:
		case <-b.kick:
			tell = nil // it is due once a heartbeat
		case <-b.stop:
			b.tell(b.out.tellAll())
			return
		}
		sure = sure || b.checkDatabase(database)
		b.sendBeat()
		if tell != nil {
			b.tell(tell())
		}
	}
}

// tell tells the others which numbers this bus has used, and first which of these mean nothing. What fails is told at the next
// heartbeat.
func (b *Bus) tell(l last) {
	for _, number := range l.void {
		if _, err := b.send(b.channel, message{kind: keysMessage, from: b.id, number: number}); err != nil {
			return
		}
	}
	if l.number == 0 {
		return
	}
	if _, err := b.send(b.channel, message{kind: lastMessage, from: b.id, number: l.number, first: l.first}); err == nil {
		b.out.told(l)
	}
}

// sendBeat publishes a heartbeat by the way that commands go. Its reply names the server.
func (b *Bus) sendBeat() {
	server, err := b.send(b.own, message{kind: beatMessage, from: b.id, first: uint64(time.Since(b.opened))})
	if err != nil {
		b.problem(err)
	}
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
	c := beatScript.Command(ctx, channel, m.text())
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
