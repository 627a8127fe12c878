// Package cache puts two tiers before a database: an in-process tier, then Redis.
//
//	client, err := cache.Open(rdb, cache.Config{})
//	users, err := cache.New(client, "user", loadUsers, cache.Policy{TTL: 5 * time.Minute})
//	u, err := users.Get(ctx, 42)     // errors.Is(err, cache.ErrNotFound)
//	err = users.Invalidate(ctx, 42)  // after the commit
//
// # How a Get runs
//
//	local tier -> flight -> Redis tier -> lease -> loader -> fill Redis -> fill local
//
// The local tier answers without a lock, an allocation or a call to Redis. What it does not hold goes through a flight: one
// per key and process, which all callers of that key share. The flight reads Redis once, in a round trip that it shares with
// whatever else this process asks of Redis then. If Redis has the value, that is the answer. If it has not, the flight asks Redis
// for a lease: the right to fill that key. The lease is a random token that stands at the key itself, so that any delete of the
// key (by us, by another program, by FLUSHDB) voids it. Who holds the lease calls the loader, answers its callers, and then fills
// Redis by a script that writes only while the token stands.
// So one loader runs for all processes, and a slow one can never put back what was invalidated while it ran. Who finds
// another's lease waits for its value, as long as that lease lives: the bus wakes it, and a timer too.
//
// Redis is not in the way: whatever it answers but a value or redis.Nil, or if it answers nothing inside the read budget, the
// loader answers instead, and Redis is not filled. What that means when it lasts stands below.
//
// # Stale on purpose, fresh ahead of time
//
// With Policy.StaleTTL a value stands in, for so long after its TTL, for what the loader does not answer: Redis keeps it, and a
// lease is put on it instead of in its place. An answer that stands in is marked (Result.Stale, with the reason in Why), is
// served for RetryAfter before the loader is tried again, and ends when it ends, however often it was served. With SoftTimeout
// nobody waits longer than that where a value can stand in; the load goes on behind. What this process invalidated, or heard
// that others did, never stands in, and "not found" neither: that is an answer.
//
// With Policy.RefreshAfter the first reader of a value that has reached that part of its TTL starts a load behind its back,
// under a lease on the standing value: one for all processes, and nobody waits. Others ask again after RetryAfter, and find what
// is new.
//
// # How an Invalidate runs
//
//	local generation -> delete in Redis, with the message to the others inside -> local generation
//
// Local entries and flights carry the stamp that stood for their key before Redis was read. There are 262 144 stamps, found by a hash
// of the key: one that shares its stamp with another key is dropped with it, and read from Redis again. Invalidate moves the stamp, before
// the delete and after it, so entries, fills on their way and flights of that key all become void at once. A flight that was
// overtaken still answers those who waited for it, since they came before, but is kept nowhere; who comes later starts anew.
//
// # How the others learn of it
//
//	delete and publish in one script -> pub/sub -> the key's stamp in each process
//	a beat that comes back late, a connection that breaks, a message that is missing -> the epoch of all stamps
//
// The script that deletes (or the one that fills, for Update and Set) publishes the key, and each process that hears it moves the
// key's stamp, as its own Invalidate would. Pub/sub loses messages without a word, so the bus of package invalidation looks for
// the loss: within three heartbeats it knows that it may have missed something. Then all entries, flights and fills on their way
// become void at once, and again when the new subscription stands; Redis or the loader answers. What the local tier takes in
// meanwhile lives for Config.DegradedTTL at most. Client.Bus tells how it is.
//
// # When Redis is sick
//
// Nothing waits for the time-outs of the Redis client. A Get waits for Redis for three read budgets at most: one for what it
// holds, two for the lease where it holds nothing. (On a cluster a key that has moved costs half as long again, and who waits
// for another process' load looks again within LeaseWait.) A delete takes one write budget for each 500 keys, Update and Set two
// of each kind at most beside the writer. A deadline of the caller's that comes first wins.
//
// After five round trips in a row that fail or outlast their budget a breaker opens: no read and no fill waits for Redis then,
// and the loader is asked at once. Once a second one read, which no caller waits for, tries whether Redis is back; after many
// failed dials go-redis itself dials once a second, which can double that. On a cluster each node has its breaker. Deletes are
// sent whatever the breaker says, and wait for a write budget at most; only their later tries heed it.
//
// The database must not fall sick of it. One load for each key and process runs at a time, Config.MaxLoads bound all loads of
// the client, and what was loaded without Redis is kept in this process for Config.DegradedTTL. Where the source cannot bear
// even that, Policy.Fallback gives the callers ErrUnavailable instead. A load has its lease before it has its place, so other
// processes wait for a queue of this one as for a slow load; a load that another load asks for on its context waits for neither.
//
// Invalidate, Update and Set return ErrUnconfirmed if Redis may still hold the old value. This process does without Redis for
// the key then, and tries the delete again twice a second, for as many as 100 000 keys of a cache; beyond that it does without
// Redis for the whole cache for TTL and LoadTimeout. Other processes may serve the old value until the delete is confirmed, also
// after they served the new one while Redis was away: as a rule one second after its return, and if this process dies, for TTL.
//
// What each call gets, as tested on a standalone Redis, with Sentinel and on a cluster; "writes" are Update and Invalidate,
// "counted as" speaks of ClientStats.RedisErrors. Once the fault is over, all that was not confirmed is deleted, and Redis
// answers again.
//
//	what befalls Redis                             Get      writes          counted as                             breaker
//	stopped (SIGSTOP)                              loader   ErrUnconfirmed  timeout                                opens
//	killed                                         loader   ErrUnconfirmed  transport / timeout                    opens
//	restarted empty                                loader   nil             nothing / transport                    -
//	black hole                                     loader   ErrUnconfirmed  timeout                                opens
//	300 ms slow                                    loader   ErrUnconfirmed  timeout                                opens
//	connections refused                            loader   ErrUnconfirmed  transport / timeout                    opens
//	out of memory                                  Redis    nil             oom                                    -
//	read-only                                      Redis    ErrUnconfirmed  read_only                              -
//	too few replicas                               Redis    ErrUnconfirmed  master_down                            -
//	loading its data                               loader   ErrUnconfirmed  loading                                opens
//	a script that does not end                     loader   ErrUnconfirmed  busy                                   opens
//	no connection free                             loader   ErrUnconfirmed  pool / timeout                         opens
//	rights withdrawn                               loader   ErrUnconfirmed  denied                                 -
//	a master is dead: its keys                     loader   ErrUnconfirmed  transport / timeout / cluster_down     opens
//	a master is dead: the other keys               Redis    nil             nothing                                -
//	a master is dead, full coverage is required    loader   ErrUnconfirmed  cluster_down                           opens
//	after a failover                               Redis    nil             nothing / transport / timeout          -
//
// Out of memory, and where scripts are refused, Redis goes on to answer what it holds; what it does not hold is loaded without
// it.
//
// When Redis is back, reads use it, writes are confirmed, owed deletes are made and the bus hears within a second as a rule, and
// within two after many refused dials.
//
// # What to watch
//
//	Client.Stats   SickNodes > 0         Redis is sick, the source bears the load
//	               LoadsWaiting > 0      the source is at its bound; Overloaded rises: requests are refused
//	               StuckCalls            calls that go-redis does not give back
//	Cache.Stats    UnconfirmedKeys > 0   others may serve what was invalidated; Bypassed: too many to remember
//	Client.Bus     Health().Live, Gaps   whether this process hears what others invalidate
//
// # What is promised
//
// After Invalidate returned nil or an error, a Get that begins in this process returns at least the state that the database
// had when Invalidate was called. If it returned an error, Redis may still hold the old value: this process then does not read
// that key from Redis until the delete, which is tried again, succeeds or TTL has passed. After it returned nil, nothing that Redis can
// serve is older than that state, whatever was in flight anywhere.
//
// Then the same holds in each other process, for every Get that begins after it handled the message. If its bus lost the message,
// it holds three heartbeats after the loss at the latest, but for what the local tier took in since: that lives for DegradedTTL.
// Without a bus (Config.Heartbeat is Off) it holds after LocalTTL.
//
// Not promised: what happens when a process dies between the commit and Invalidate (TTL ends it); the order of two
// concurrent writers of the database; a loader that reads a lagging replica: the old row it read stays until TTL ends, so call
// Invalidate again when the replica has caught up, or read the primary after a miss; a Redis failover that rolls writes back
// (TTL, though local tiers are void); Set beside other writers; a DEL or FLUSHDB by another program, which sends no message
// (LocalTTL ends it,
// and where the loader fails StaleTTL).
//
// # Rights
//
// A Redis user with an access list needs this, with the namespace that Config names, and pttl, pexpire and so on for the scripts:
//
//	ACL SETUSER app on >secret resetchannels ~nearside:c:* ~nearside:b:* &nearside:b:* -@all
//	  +get +mget +set +unlink +getrange +setrange +pexpire +pttl +eval +evalsha +publish +subscribe +time +info +cluster|info +client|info
//
// # Beside go-redis' client-side cache
//
// That one keeps replies, on a standalone Redis. Experimental in 9.23, it gave clients their own overwritten values, and old ones
// behind a half-open connection for ever. It loads nothing, and no slow load is kept from putting old rows back.
//
// # Values are shared
//
// A value from the local tier is the same for every caller: treat it as read-only, or give Hooks.Clone. What Get returns is
// what the codec read back, also right after a load: the loader's own object is not shared, and what a codec drops or changes
// shows at the first call and not after the first restart. Only a value that the codec cannot write at all is passed through;
// it is kept nowhere, and counted (Stats.EncodeErrors).
//
// # Concurrency
//
// All methods of Client and Cache may be called from any number of goroutines, also beside and after Close. A load runs on a
// context of its own, which carries the values of the context of the caller that started it and not its end: each caller waits
// for as long as its own context allows, and when the last one has left, the load is cancelled. Loaders, codecs and hooks are
// called with no lock held.
package cache
