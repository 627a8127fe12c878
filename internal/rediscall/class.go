package rediscall

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/redis/go-redis/v9"
)

// Class is the kind of a Redis failure. Its text is the label under which the failure is counted.
type Class uint8

// The classes. OK and Nil are answers; Caller is the end of the caller's own context; the others are weather.
const (
	OK          Class = iota // no error
	Nil                      // redis.Nil: the key is not there
	Caller                   // the caller's context ended
	Timeout                  // no answer inside the budget, or an I/O time-out
	Transport                // connection refused, reset, closed
	Pool                     // no connection free in the client's pool
	Closed                   // the client was closed by its owner
	Loading                  // LOADING
	ClusterDown              // CLUSTERDOWN, TRYAGAIN: the slot has no owner now
	MasterDown               // MASTERDOWN, NOREPLICAS
	Busy                     // BUSY: a script holds the server
	MaxClients               // the server has no connection free
	ReadOnly                 // READONLY: a replica, or a demoted master
	OOM                      // OOM: maxmemory is reached, writes are refused
	WrongType                // WRONGTYPE: something else stands at the key
	Denied                   // NOPERM, NOAUTH, WRONGPASS
	Reply                    // any other error reply
	BreakerOpen              // not sent: the breaker is open
	Other                    // none of the above
	NumClasses
)

var classNames = [NumClasses]string{
	"ok", "nil", "caller", "timeout", "transport", "pool", "closed", "loading", "cluster_down", "master_down", "busy",
	"max_clients", "read_only", "oom", "wrong_type", "denied", "reply", "breaker_open",
	"other",
}

func (c Class) String() string { return classNames[c] }

// ErrBudget is the cause of a call that our own timer ended.
var ErrBudget = errors.New("no answer from Redis within the budget")

// ErrBreakerOpen is the cause of a call that was not sent, because Redis has just failed several times in a row.
var ErrBreakerOpen = errors.New("not sent to Redis: it is sick, the breaker is open")

// errAbandoned is the cause of a call that was not sent, because too many are still stuck.
var errAbandoned = errors.New("too many calls to Redis are stuck: not sent")

// errNoReply is the error of a command that came back without one, and without a reply.
var errNoReply = errors.New("no reply from Redis")

// Classify tells the class of an error that go-redis or a Runner returned.
func Classify(err error) Class {
	switch err { // without the allocations below
	case nil:
		return OK
	case redis.Nil:
		return Nil
	case ErrBreakerOpen:
		return BreakerOpen
	}
	var reply redis.Error
	var dial *net.OpError
	switch {
	case errors.Is(err, redis.Nil):
		return Nil
	case errors.Is(err, ErrBreakerOpen):
		return BreakerOpen
	case errors.Is(err, ErrBudget), errors.Is(err, errAbandoned):
		return Timeout
	case errors.As(err, &dial) && dial.Op == "dial" && dial.Timeout(): // which calls itself a context's deadline, too
		return Timeout
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Caller
	case errors.Is(err, redis.ErrClosed):
		return Closed
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return Pool
	case errors.As(err, &reply):
		return classifyReply(err)
	}
	var netErr net.Error
	switch {
	case errors.As(err, &netErr) && netErr.Timeout():
		return Timeout
	case errors.As(err, &netErr), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return Transport
	}
	return Other
}

// Unknown tells whether a command with this error may have run all the same: no reply of its own came back. Only of ErrBreakerOpen is it
// certain that it was not sent.
func Unknown(err error) bool { return onlyTransport(err) != nil && !errors.Is(err, ErrBreakerOpen) }

func classifyReply(err error) Class {
	switch {
	case redis.IsLoadingError(err):
		return Loading
	case redis.IsClusterDownError(err), redis.IsTryAgainError(err):
		return ClusterDown
	case redis.IsMasterDownError(err), redis.IsNoReplicasError(err):
		return MasterDown
	case redis.HasErrorPrefix(err, "BUSY "):
		return Busy
	case redis.IsMaxClientsError(err):
		return MaxClients
	case redis.IsReadOnlyError(err):
		return ReadOnly
	case redis.IsOOMError(err):
		return OOM
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return WrongType
	case redis.IsPermissionError(err), redis.IsAuthError(err),
		redis.HasErrorPrefix(err, "The user executing the script can't"): // how Redis 7.0 says NOPERM inside of one
		return Denied
	}
	return Reply
}
