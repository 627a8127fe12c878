// Package invalidation tells the processes that share a Redis what they must forget, and tells each of them when it may have
// missed something.
//
//	bus, err := invalidation.Open(rdb, invalidation.Config{})
//	stop := bus.Subscribe("prices", invalidation.Handler{Keys: forget, Gap: forgetAll})
//	err = bus.Publish(ctx, "prices", "a", "b")
//
// It stands alone: it knows of keys, and of nothing that is done with them.
//
// # How it works
//
//	delete and publish in one script -> pub/sub -> receive loop -> handlers
//	heartbeat: command path -> own channel -> the same subscription -> "I still hear"
//
// Redis pub/sub promises nothing: a connection that breaks, or is open and dead, or is too slow, loses messages, and neither
// Redis nor the client says so. So each bus publishes a heartbeat to a channel of its own, by the way that commands go, and
// expects it on the subscription that carries the invalidations. If it stays out for Config.Silence, if the connection breaks,
// if Redis ends the subscription, if the server behind the commands is another one than before, or if a number of another
// publisher's messages is missing, the bus calls Handler.Gap: anything may have been missed. It calls it again when a
// subscription is confirmed, since between the two nothing was heard.
//
// Each publisher numbers its messages. While it publishes, and once after, it tells its last number on the common channel: who
// lacks one has a gap. On a cluster messages travel between the nodes, where they can be lost, and those of different nodes can
// overtake one another. A publisher that has nothing to say is silent there, so the cost of a quiet bus grows with the number
// of processes and not with its square.
//
// # What is promised
//
// While Live reports true, what another process published is handed to Keys, in the time that Health.Lag shows. What was lost
// is known, by a call of Gap, within Config.Silence of its loss at the latest; or, if a single message was lost between the nodes of a
// cluster, within two heartbeats and a call's budget. A process's own messages are not handed to it: it
// forgets by itself what it changes. While Live reports false nothing is promised: keep nothing then, or for a short time. What was
// read before a call of Keys or Gap may be old by then: do not keep it afterwards. The example shows both.
//
// # Cost
//
// A quiet bus makes one connection for its subscription, and one call a Heartbeat, in which Redis publishes one message to one
// receiver. Each invalidation is one message to each process; one that publishes adds two more for a burst.
//
// # Rights
//
// A Redis user with an access list needs the channels &<namespace>:b:* and, since a script names its channel as a key, the keys
// ~<namespace>:b:*; and the commands eval, evalsha, publish, subscribe and time; info and cluster|info too, or it is not noticed when
// another server has taken over; client|info where the client is not a *redis.Client.
//
// # Concurrency
//
// All methods may be called at any time from any goroutine. Handlers are called one at a time, from one goroutine of the bus:
// a handler must not block, and must not call Close.
package invalidation
