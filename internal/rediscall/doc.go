// Package rediscall sends commands to Redis once, inside a budget of time, and says what kind of failure came back.
//
// Three habits of go-redis make it necessary. It retries: one lost reply runs a script twice, so each command here answers
// NoRetry. It does not interrupt I/O when a context ends, and by default not at a deadline either, so each wait here ends by
// a timer of our own. And a pipelined EVALSHA never falls back on EVAL, so scripts unknown to the server are sent again here,
// command by command.
//
// # Concurrency
//
// A Runner may be used by any number of goroutines. A call that outlives its budget goes on in a goroutine that the Runner
// counts (Abandoned), bounds (maxAbandoned) and, in Close, waits for. The commands of an abandoned call belong to that
// goroutine: the caller must not look at them.
package rediscall
