package cache_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

func TestC01_NewerSetReplacesAFillThatIsStillQueued(t *testing.T) {
	for flooded, rounds := range map[bool]int{false: 400, true: 100} {
		t.Run(fmt.Sprintf("flooded=%v", flooded), func(t *testing.T) {
			in, source := caseOpen(t, caseNamespace(t)), caseRows()
			rows := caseNew(t, in, source.load, cache.Policy{TTL: 10 * time.Minute, LocalTTL: 10 * time.Minute, LocalEntries: 100_000})
			if flooded {
				defer caseFlood(t, rows)()
			}

			key := func(round int) string { return fmt.Sprintf("k%d", round) }
			local := 0
			check := func(round int, when string) {
				t.Helper()
				r, err := rows.GetResult(t.Context(), key(round))
				if err != nil || r.Value.Version != 2 {
					t.Fatalf("round %d, %s: got %+v, %v; the old version was replaced", round, when, r, err)
				}
				if r.Tier == cache.TierLocal {
					local++
				}
			}
			for round := range rounds {
				k := key(round)
				source.write(k, 1)
				if row, err := rows.Get(t.Context(), k); err != nil || row.Version != 1 {
					t.Fatalf("round %d: got %v, %v", round, row, err)
				}
				// The fill is on its way now. A third of the writes comes at once, the others when it has just been done.
				if round%3 > 0 {
					for end := time.Now().Add(casePatience); ; {
						if r, _ := rows.GetResult(t.Context(), k); r.Tier == cache.TierLocal || time.Now().After(end) {
							break
						}
					}
				}
				var err error
				if round%2 == 0 {
					source.write(k, 2)
					err = rows.Set(t.Context(), k, caseRow{k, 2})
				} else {
					_, err = rows.Update(t.Context(), k, func(context.Context) (caseRow, error) {
						source.write(k, 2)
						return caseRow{k, 2}, nil
					})
				}
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				check(round, "at once")
			}
			if local < rounds*95/100 {
				t.Errorf("after %d of %d writes the new value was in the local tier: writes get lost there", local, rounds)
			}
			local = 0
			for round := range rounds {
				check(round, "at last")
			}
			if local < rounds*95/100 {
				t.Errorf("%d of %d new values are in the local tier at last: writes get lost there", local, rounds)
			}
		})
	}
}

// caseFlood puts values into the local tier from eight goroutines until stop is called.
func caseFlood(t *testing.T, rows *cache.Cache[string, caseRow]) (stop func()) {
	var over atomic.Bool
	var flood sync.WaitGroup
	for g := range 8 {
		flood.Go(func() {
			for i := 0; !over.Load(); i++ {
				key := fmt.Sprintf("flood-%d-%d", g, i%500)
				if err := rows.Set(t.Context(), key, caseRow{key, 1}); err != nil {
					t.Errorf("flood: %v", err)
					return
				}
			}
		})
	}
	return func() {
		over.Store(true)
		flood.Wait()
	}
}

func TestC02_NoGetAfterInvalidateReturnedServesWhatItDropped(t *testing.T) {
	const workers, keysEach, rounds = 4, 25, 400
	in, source := caseOpen(t, caseNamespace(t)), caseRows()
	rows := caseNew(t, in, source.load, cache.Policy{TTL: 10 * time.Minute})

	// Beside the workers, each of which owns its keys, readers keep flights and fills of the same keys under way.
	key := func(worker, i int) string { return fmt.Sprintf("k%d-%d", worker, i%keysEach) }
	stop, cancel := context.WithCancel(t.Context())
	var readers, writers sync.WaitGroup
	for reader := range 2 {
		readers.Go(func() {
			for i := reader; stop.Err() == nil; i++ {
				_, _ = rows.Get(stop, key(i%workers, i))
			}
		})
	}
	var old, after atomic.Int64
	for w := range workers {
		writers.Go(func() {
			for round := range rounds {
				k, version := key(w, round), round+1
				// What is filled here, or by a reader, is older than what comes now.
				if _, err := rows.Get(t.Context(), k); err != nil && round >= keysEach {
					t.Errorf("%s: %v", k, err)
					return
				}
				source.write(k, version)
				if err := rows.Invalidate(t.Context(), k); err != nil {
					t.Errorf("%s: %v", k, err)
					return
				}
				for range 3 {
					row, err := rows.Get(t.Context(), k)
					if err != nil {
						t.Errorf("%s: %v", k, err)
						return
					}
					if after.Add(1); row.Version < version {
						old.Add(1)
					}
				}
			}
		})
	}
	writers.Wait()
	cancel()
	readers.Wait()
	if n := old.Load(); n > 0 {
		t.Errorf("%d of %d reads after Invalidate had returned got what it dropped", n, after.Load())
	}
	if s := rows.Stats(); s.LocalHits < workers*rounds/2 {
		t.Errorf("only %d hits in the local tier: this proves nothing. %+v", s.LocalHits, s)
	}
}
