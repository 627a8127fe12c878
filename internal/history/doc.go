// Package history is only a test: several processes with a cache each use one Redis and one database, Redis and the
// connections to it fail in every way, and each answer is held against what a correct cache could have answered.
//
//	workers (history) -> instances (play) -> cache -> Redis, through proxies and under faults (faults)
//	each answer -> check: which version may this instance return now?
//
// Versions of a row only rise, so a promise of the cache is a floor: the least version that an instance may return in a Get that
// begins after. Floors come from what the instance itself invalidated, from what another one invalidated once this one was told,
// from each gap that its bus declared, and, for all instances, from time: what was invalidated so long ago that neither message
// nor gap may still be out.
//
//	go test ./internal/history -history.ops 5000000 -history.faults 500 -history.seed 7 -v -timeout 2h
//
// runs longer; the seed makes the workers and the faults choose alike, not the scheduler.
package history
