package main

import (
	"fmt"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// row is one line of work that all its subjects do.
type row struct {
	name, about string
	unit        string // of what a turn costs
	throughput  bool   // the ratio is of operations per second, not of cost
	scale       bool   // a row of the table "scale", without a bar
	times       int    // turns, if not the default
	extra       string // the name of the extra figure, if there is one
	reference   subject
	subjects    []subject
	bar         bar
}

// subject is one way to do the work of a row.
type subject struct {
	name    string
	peer    bool // measured only when asked for
	measure func(job) (measured, error)
}

func peer(name string, measure func(job) (measured, error)) subject {
	return subject{name: name, peer: true, measure: measure}
}

const (
	trips = "trips/op" // round trips to Redis; several callers can share one
	loads = "loads/key"
)

func rows() []row {
	var all []row
	for callers, b := range pairs(1, bar{Most: 0.85, Allocs: noAllocs}, 16, bar{Most: 0.75, Allocs: noAllocs}) {
		all = append(all, row{
			name: fmt.Sprint("local-", callers), about: fmt.Sprintf("local hit of a struct, TTL checked, callers: %d", callers),
			unit: "time/op", extra: trips, bar: b,
			reference: subject{name: "ristretto Get", measure: driven(callers, ristrettoHit)},
			subjects: []subject{
				{name: "nearside", measure: driven(callers, nearHit)},
				peer("otter Get", driven(callers, otterHit)),
				peer("sturdyc GetOrFetch", driven(callers, sturdycHit)),
			},
		})
	}
	for callers, b := range pairs(64, bar{Least: 5.5, CPU: 0.2}, 256, bar{Least: 9, CPU: 0.2}) {
		all = append(all, redisHit("redis", callers, 0, single, b))
	}
	for callers, b := range pairs(64, bar{Least: 2.8}, 256, bar{Least: 6}) {
		all = append(all, redisHit("cluster", callers, 0, cluster, b))
	}
	all = append(all,
		redisHit("redis", 1, 15, single, bar{Least: 0.9, CPU: 1.3}),
		row{
			name: "many-8", about: "GetMany of 100 keys, all in Redis, structs in JSON, callers: 8",
			unit: "time/op", throughput: true, extra: trips, bar: bar{Least: 0.95, Extra: 1.01},
			reference: subject{name: "MGET and the same codec", measure: driven(8, mget)},
			subjects:  []subject{{name: "nearside", measure: driven(8, nearMany)}},
		},
		row{
			name: "miss-64", about: "each key once, loader of 1 ms, callers: 64",
			unit: "time/op", extra: trips, bar: bar{Most: 0.9, CPU: 0.55},
			reference: subject{name: "GET, load, SET", measure: driven(64, missByHand)},
			subjects: []subject{
				{name: "nearside", measure: driven(64, nearMiss)},
				peer("go-redis/cache Once", driven(64, goRedisCacheMiss)),
			},
		},
		row{
			name: "stampede", about: "8 clients x 64 callers on one cold key, again and again, loader of 50 ms",
			unit: "p99 wait / loader", extra: loads, bar: bar{Most: 1.1, Extra: 1},
			subjects: []subject{{name: "nearside", measure: stampede}},
		},
		row{
			name: "memory", times: 3, about: "heap per local entry, a million of them, keys of 12 bytes, values of 16",
			unit: "bytes/entry", bar: bar{Most: 1.15},
			reference: subject{name: "ristretto with TTL", measure: ristrettoMemory},
			subjects: []subject{
				{name: "nearside", measure: nearMemory},
				peer("otter", otterMemory),
			},
		},
		row{
			name: "warm", times: 3, about: "100 000 keys into an empty local tier: the part that it answers then",
			unit: "part kept", bar: bar{Least: 0.99},
			subjects: []subject{
				{name: "nearside Get, load", measure: warmer{put: byGet}.measure},
				{name: "nearside Get, Redis", measure: warmer{put: byGet, stored: true}.measure},
				{name: "nearside Set", measure: warmer{put: bySet}.measure},
				peer("ristretto Set", ristrettoWarm),
			},
		},
	)
	return append(all, scaleRows()...)
}

// redisHit is a row of hits in Redis with no local tier in front.
func redisHit(where string, callers, times int, dial dialer, b bar) row {
	return row{
		name:  fmt.Sprintf("%s-%d", where, callers),
		about: fmt.Sprintf("hit in Redis (%s), no local tier, 100 bytes, callers: %d", dial.what, callers),
		unit:  "time/op", throughput: true, times: times, extra: trips, bar: b,
		reference: subject{name: "go-redis GET", measure: driven(callers, dial.get)},
		subjects: []subject{
			{name: "nearside", measure: driven(callers, dial.nearGet)},
			peer("go-redis AutoPipeline", driven(callers, dial.autoPipelineGet)),
			peer("rueidis, 1 connection", driven(callers, dial.rueidisGet)),
		},
	}
}

// pairs gives two numbers of callers, each with its bar.
func pairs(few int, ofFew bar, many int, ofMany bar) func(yield func(int, bar) bool) {
	return func(yield func(int, bar) bool) {
		_ = yield(few, ofFew) && yield(many, ofMany)
	}
}

// longLived is the policy of rows in which nothing may expire. A local tier has room for twice the keys: what is evicted, and
// when, is no row's question.
func longLived(keys int) cache.Policy {
	return cache.Policy{TTL: time.Hour, LocalTTL: time.Hour, LocalEntries: int64(2 * keys), LocalBytes: int64(keys) << 10}
}

var noLocal = cache.Policy{TTL: time.Hour, LocalTTL: cache.Off}
