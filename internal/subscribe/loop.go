// Package subscribe keeps one pub/sub subscription going, and says each time when it may have missed something.
//
// go-redis reconnects in silence, notices a half-open connection never, and can hang for seconds while it reconnects or
// closes. So a Loop receives in a goroutine of its own per connection, and at the first doubt throws the whole PubSub away:
// a new one is built at once, while the old one ends behind.
//
// # Concurrency
//
// The callbacks of a Loop are called one at a time, and never after Close returned 0. They must not block: while one runs,
// nothing is received. They may call Beat and Doubt.
package subscribe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/group"
)

// The causes for which a Loop gives a connection up.
const (
	CauseError       = "error"        // the connection broke, or what came over it could not be read
	CauseSilence     = "silence"      // the heartbeat stayed out
	CauseUnconfirmed = "unconfirmed"  // Redis did not confirm the subscription in time
	CauseUnsubscribe = "unsubscribed" // Redis ended the subscription unasked
)

// Client is what a Loop needs of a Redis client.
type Client interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Config says what to subscribe to and whom to tell.
type Config struct {
	Channels []string
	// Silence is how long a subscription may go without Beat before it is given up. It also bounds the wait for a
	// confirmation.
	Silence time.Duration

	Live    func()                        // all channels are confirmed
	Lost    func(cause string, err error) // the subscription was given up, whether it was confirmed or not
	Message func(channel, payload string) // a message came
}

// Loop is a subscription that goes on until Close.
type Loop struct {
	rdb    Client
	config Config
	ctx    context.Context
	cancel context.CancelFunc
	work   group.Group

	// telling is held while a callback runs and while current changes, so that a connection that was given up calls nobody.
	telling sync.Mutex

	mu      sync.Mutex  // never held together with a callback
	current *connection // guarded by mu; what is received on another one is ignored
}

// connection is one PubSub.
type connection struct {
	ended chan ending // buffered: the first cause counts

	// All guarded by the loop's mu.
	pubsub  *redis.PubSub // nil while it dials
	missing map[string]bool
	beat    time.Time // when the newest Beat was sent, or the connection was begun or confirmed
	heard   bool      // there was a Beat
}

type ending struct {
	cause string
	err   error
}

// The pause before the next connection grows from the one to the other while no heartbeat comes over any.
const (
	minPause = 20 * time.Millisecond
	maxPause = time.Second
	// maxLeft bounds the connections that were given up and have not ended yet.
	maxLeft = 4
)

// Start begins a subscription. It does not wait for Redis. Where the client can give a clone with time-outs of its own
// (redis.Client), a handshake too ends within Silence and a second; elsewhere one that hangs ends by the client's ReadTimeout.
func Start(rdb Client, config Config) *Loop {
	if single, ok := rdb.(*redis.Client); ok {
		rdb = single.WithTimeout(min(config.Silence, time.Second))
	}
	l := &Loop{rdb: rdb, config: config}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.work.Go(l.run)
	return l
}

// Close ends the subscription and waits for its goroutines, at most for d. It returns how many were left.
func (l *Loop) Close(d time.Duration) (left int) {
	l.cancel()
	return l.work.Close(d)
}

// Beat says that a heartbeat of the owner, sent at a time, came through.
func (l *Loop) Beat(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.current; c != nil {
		c.heard = true
		if sent.After(c.beat) {
			c.beat = sent
		}
	}
}

// Doubt gives the present connection up, for a reason that only the owner can see.
func (l *Loop) Doubt(cause string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil {
		l.current.end(cause, err)
	}
}

func (c *connection) end(cause string, err error) {
	select {
	case c.ended <- ending{cause, err}:
	default:
	}
}

// run makes one connection after another.
func (l *Loop) run() {
	left := make(chan struct{}, maxLeft)
	pause := minPause
	for {
		select {
		case left <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		c := &connection{ended: make(chan ending, 1), missing: map[string]bool{}, beat: time.Now()}
		for _, channel := range l.config.Channels {
			c.missing[channel] = true
		}
		l.mu.Lock()
		l.current = c
		l.mu.Unlock()
		ctx, cancel := context.WithCancel(l.ctx)
		l.work.Go(func() {
			defer func() { <-left }()
			l.receive(ctx, c)
		})

		end := l.watch(c)
		heard, pubsub := l.giveUp(c, end)
		cancel()
		if pubsub != nil {
			// Close may hang while go-redis reconnects; receive ends with it.
			end := func() { _ = pubsub.Close() }
			if !l.work.Go(end) {
				end()
			}
		}
		if l.ctx.Err() != nil {
			return
		}
		if heard {
			pause = minPause
			continue
		}
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// giveUp makes a connection one that nobody listens to, and tells the owner.
func (l *Loop) giveUp(c *connection, end ending) (heard bool, pubsub *redis.PubSub) {
	l.telling.Lock()
	defer l.telling.Unlock()
	l.mu.Lock()
	l.current = nil
	heard, pubsub = c.heard, c.pubsub
	l.mu.Unlock()
	if l.ctx.Err() == nil {
		l.config.Lost(end.cause, end.err)
	}
	return heard, pubsub
}

// watch returns when a connection must be given up.
func (l *Loop) watch(c *connection) ending {
	ticker := time.NewTicker(l.config.Silence / 8)
	defer ticker.Stop()
	for {
		select {
		case end := <-c.ended:
			return end
		case <-l.ctx.Done():
			return ending{}
		case <-ticker.C:
		}
		l.mu.Lock()
		silent, missing := time.Since(c.beat), len(c.missing)
		l.mu.Unlock()
		switch {
		case silent < l.config.Silence:
		case missing > 0:
			return ending{CauseUnconfirmed, fmt.Errorf("subscribe: %d of %d channels are not confirmed after %v", missing, len(l.config.Channels), silent)}
		default:
			return ending{CauseSilence, fmt.Errorf("subscribe: no heartbeat for %v", silent)}
		}
	}
}

// receive dials, subscribes, and takes what comes, until the connection is given up.
func (l *Loop) receive(ctx context.Context, c *connection) {
	pubsub := l.rdb.Subscribe(ctx, l.config.Channels...)
	l.mu.Lock()
	mine := l.current == c
	c.pubsub = pubsub
	l.mu.Unlock()
	if !mine {
		_ = pubsub.Close()
		return
	}
	for {
		received, err := pubsub.Receive(ctx)
		if err != nil {
			c.end(CauseError, err)
			return
		}
		if !l.take(c, received) {
			return
		}
	}
}

// take handles what was received, unless the connection was given up.
func (l *Loop) take(c *connection, received any) bool {
	l.telling.Lock()
	defer l.telling.Unlock()
	l.mu.Lock()
	mine := l.current == c
	l.mu.Unlock()
	if !mine {
		return false
	}
	switch r := received.(type) {
	case *redis.Message:
		l.config.Message(r.Channel, r.Payload)
	case *redis.Subscription:
		return l.confirm(c, r)
	}
	return true
}

// confirm takes in that Redis has confirmed a channel.
func (l *Loop) confirm(c *connection, s *redis.Subscription) bool {
	l.mu.Lock()
	asked := c.missing[s.Channel]
	delete(c.missing, s.Channel)
	all := len(c.missing) == 0
	if all {
		c.beat = time.Now()
	}
	l.mu.Unlock()
	switch {
	case s.Kind != "subscribe":
		c.end(CauseUnsubscribe, fmt.Errorf("subscribe: Redis says %s of %s", s.Kind, s.Channel))
		return false
	case !asked: // go-redis has reconnected behind our back
		c.end(CauseError, fmt.Errorf("subscribe: %s was confirmed twice", s.Channel))
		return false
	case all:
		l.config.Live()
	}
	return true
}
