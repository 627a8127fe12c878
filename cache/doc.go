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
// per key and process, which all callers of that key share. The flight reads Redis once. If Redis has the value, that is the
// answer. If it has not, the flight asks Redis for a lease: the right to fill that key. The lease is a random token that
// stands at the key itself, so that any delete of the key (by us, by another program, by FLUSHDB) voids it. Who holds the
// lease calls the loader, answers its callers, and then fills Redis by a script that writes only while the token stands.
// So one loader runs for all processes, and a slow one can never put back what was invalidated while it ran. Who finds
// another's lease waits for its value, as long as that lease lives.
//
// Redis is never in the way: whatever it answers but a value or redis.Nil, or if it answers nothing inside the read budget,
// the loader answers instead, and nothing is filled.
//
// # How an Invalidate runs
//
//	local generation -> delete in Redis -> local generation
//
// Local entries and flights carry the stamp that stood for their key before Redis was read. Invalidate moves the stamp, before
// the delete and after it, so entries, fills on their way and flights of that key all become void at once. A flight that was
// overtaken still answers those who waited for it, since they came before, but is kept nowhere; who comes later starts anew.
//
// # What is promised
//
// After Invalidate returned nil or an error, a Get that begins in this process returns at least the state that the database
// had when Invalidate was called. If it returned an error, Redis may still hold the old value: this process then does not read
// that key from Redis until a later delete of it succeeds or TTL has passed. After it returned nil, nothing that Redis can
// serve is older than that state, whatever was in flight anywhere.
//
// Other processes may serve what their local tier holds, for LocalTTL at most, and what they were loading when Invalidate was
// called, to those who share that load.
//
// Not promised: what happens when a process dies between the commit and Invalidate (TTL ends it); the order of two
// concurrent writers of the database; a loader that reads a lagging replica; a Redis failover that rolls writes back; Set
// beside other writers.
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
