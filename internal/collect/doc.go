// Package collect lets concurrent calls to Redis share round trips.
//
//	read -> the straight way, in the caller's own goroutine, while it is alone
//	call -> queue -> a worker takes along all that waits on its next trip
//
// Nothing is delayed to wait for company: a call that finds less than minTrips trips under way goes at once. Otherwise it waits for
// one of them to end, and then goes together with all that wait. So the busier a node is, the more calls share a round trip. While
// trips hang, up to maxTrips may be under way, so that dead connections stop nobody else: one more begins each eighth of the budget for
// which the first that waits has found none.
//
// Each node has a breaker (breaker.go): after five failed trips in a row, calls to it fail at once, but for those that insist, and one
// read a second tries whether it is back.
//
// Each node of a cluster has a queue of its own: a node that is silent holds up its own keys only.
//
// # Concurrency
//
// A Collector may be used by any number of goroutines. Each call waits with its own context and for the budget at most; a call that
// is given up before its trip starts is not sent. Workers and trials are goroutines of the queues, which Close waits for.
package collect
