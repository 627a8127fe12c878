package cache

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// No TTL is lengthened, none is shortened by more than its part, and none falls below what Redis can count.
func TestJitterStaysInItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{Jitter: rapid.Float64Range(1e-9, 0.5).Draw(t, "jitter")}
		ttl := time.Duration(rapid.OneOf(
			rapid.Int64Range(int64(minTTL), 10*int64(minTTL)), rapid.Int64Range(int64(minTTL), int64(time.Hour)), rapid.Int64Range(int64(minTTL), int64(maxTTL)),
		).Draw(t, "TTL"))
		least := max(minTTL, ttl-time.Duration(p.Jitter*float64(ttl))-1)
		for range 20 {
			if got := p.jittered(ttl); got > ttl || got < least {
				t.Fatalf("%v became %v, want %v to %v", ttl, got, least, ttl)
			}
		}
	})
}

func TestJitterNeverShortensBelowAMillisecond(t *testing.T) {
	p := Policy{Jitter: 0.5}
	for range 100 {
		if got := p.jittered(minTTL); got != minTTL {
			t.Fatalf("a millisecond became %v", got)
		}
	}
}

func TestJitterOff(t *testing.T) {
	p, err := Policy{TTL: time.Hour, Jitter: Off}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if got := p.jittered(p.TTL); got != p.TTL {
			t.Fatalf("without jitter, %v became %v", p.TTL, got)
		}
	}
}

// What was filled together expires spread over the whole part, evenly.
func TestJitterSpreads(t *testing.T) {
	p, err := Policy{TTL: time.Hour}.withDefaults() // a tenth: 6 minutes
	if err != nil {
		t.Fatal(err)
	}
	const draws, parts = 10_000, 10
	var counts [parts]int
	for range draws {
		short := p.TTL - p.jittered(p.TTL)
		counts[min(parts-1, int(short*parts/(6*time.Minute)))]++
	}
	for i, n := range counts {
		if n < draws/parts*7/10 || n > draws/parts*13/10 { // ten standard deviations
			t.Errorf("of %d TTLs %d lie in part %d of %d: %v", draws, n, i, parts, counts)
		}
	}
}
