package collect

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/go-nearside/nearside/internal/rediscall"
)

const (
	// tripAfter is how many trips in a row must fail to open a breaker: more than break at once with a connection or two.
	tripAfter = 5
	// openFor is how long a breaker stays open before Redis is tried again.
	openFor = time.Second
)

// breaker knows whether it is worth to ask a node. It opens after some trips in a row that broke, took longer than the budget, or were
// answered with an error that says that the node serves nobody now. While it is open, calls are refused, but for those that must be
// tried whatever happens. Then the key of the next call that is refused is read once, behind its caller's back: if Redis answers, the
// breaker closes. So nobody waits for a Redis that is known to be sick, and a client that asks nothing tries nothing.
type breaker struct {
	circuit *gobreaker.TwoStepCircuitBreaker[any]
	open    atomic.Bool // or half-open
}

func newBreaker() *breaker {
	b := new(breaker)
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Timeout:       openFor,
		ReadyToTrip:   func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= tripAfter },
		OnStateChange: func(_ string, _, to gobreaker.State) { b.open.Store(to != gobreaker.StateClosed) },
		IsExcluded:    func(err error) bool { return err == errNoEvidence },
	})
	return b
}

// errNoEvidence is the outcome of a trip that says nothing about Redis.
var errNoEvidence = errors.New("no evidence")

// watched is a trip that the breaker watches, nil if it does not.
type watched func(outcome error)

// watch must be called before a trip, and what it returns after it.
func (b *breaker) watch() watched {
	done, err := b.circuit.Allow()
	if err != nil {
		return nil
	}
	return done
}

// end says what came of a trip. Only the first time counts.
func (w *watched) end(outcome error) {
	if *w != nil {
		(*w)(outcome)
		*w = nil
	}
}

// outcome is what a trip says about Redis: the error of all of it, or else those of its commands.
func outcome(err error, cmds []*rediscall.Command) error {
	if err != nil {
		return evidence(err)
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && err != redis.Nil {
			if err := evidence(err); err != nil && err != errNoEvidence {
				return err
			}
		}
	}
	return nil
}

// evidence returns an error that says that Redis serves nobody now, errNoEvidence for one that says nothing of it, and nil for another,
// since that is an answer.
func evidence(err error) error {
	switch rediscall.Classify(err) {
	case rediscall.ClusterDown, rediscall.MasterDown:
		// These speak of some slots, or of writes.
		if redis.IsTryAgainError(err) || redis.IsNoReplicasError(err) || redis.HasErrorPrefix(err, "CLUSTERDOWN Hash slot") {
			return nil
		}
		return err
	case rediscall.Timeout, rediscall.Transport, rediscall.Pool, rediscall.Loading, rediscall.Busy, rediscall.MaxClients, rediscall.Other:
		return err
	case rediscall.Caller, rediscall.Closed, rediscall.BreakerOpen:
		return errNoEvidence
	}
	return nil
}

// refuses tells whether a call is not to be sent. When a trial is due it starts probe, which ends the watch.
func (b *breaker) refuses(probe func(watched) bool) bool {
	if !b.open.Load() {
		return false
	}
	if watch := b.watch(); watch != nil && !probe(watch) {
		watch.end(errNoEvidence)
	}
	return true
}

// breakers are the breakers of a client's nodes. Collectors with different budgets share them.
type breakers struct {
	mu     sync.Mutex
	byNode map[*redis.Client]*breaker // guarded by mu; nil stands for what has no node of its own
}

func (s *breakers) of(node *redis.Client) *breaker {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.byNode[node]
	if b == nil {
		if s.byNode == nil {
			s.byNode = make(map[*redis.Client]*breaker)
		}
		b = newBreaker()
		s.byNode[node] = b
	}
	return b
}

// sick returns how many nodes failed when they were last tried. If nodes come and go, only those count that are tried now, or were asked
// for within openFor.
func (s *breakers) sick(comeAndGo bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.byNode {
		counts := b.circuit.Counts()
		tried := b.circuit.State() == gobreaker.StateOpen || counts.Requests > counts.TotalExclusions
		if b.open.Load() && (tried || !comeAndGo) {
			n++
		}
	}
	return n
}
