package cache

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// debtScene runs a scene with debts that last a minute, in a bubble: its time stands still but for time.Sleep.
func debtScene(t *testing.T, scene func(t *testing.T, u *unconfirmed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { scene(t, &unconfirmed{clock: newClock(), keep: time.Minute, most: maxUnconfirmed}) })
}

// areOwed checks what is remembered of some keys.
func areOwed(t *testing.T, u *unconfirmed, want bool, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if got := u.has(key); got != want {
			t.Errorf("%s is owed: %v, want %v", key, got, want)
		}
	}
}

func areRemembered(t *testing.T, u *unconfirmed, want int) {
	t.Helper()
	if got := u.len(); got != want {
		t.Errorf("%d keys are remembered, want %d", got, want)
	}
}

func TestNothingIsOwedAtFirst(t *testing.T) {
	debtScene(t, func(t *testing.T, u *unconfirmed) {
		u.settle("a", u.next())
		areOwed(t, u, false, "a", "")
		areRemembered(t, u, 0)
	})
}

// A confirmation clears only what was sent before it, and of no other key.
func TestDebtsAreSettledByTheirOwnOrALaterWrite(t *testing.T) {
	debtScene(t, func(t *testing.T, u *unconfirmed) {
		earlier, own, later := u.next(), u.next(), u.next()
		u.owe(own, "own")
		u.owe(own, "later")
		u.owe(own, "earlier")
		areOwed(t, u, true, "own", "later", "earlier")
		areOwed(t, u, false, "other")
		u.settle("other", later)
		u.settle("earlier", earlier)
		u.settle("own", own)
		u.settle("later", later)
		areOwed(t, u, true, "earlier")
		areOwed(t, u, false, "own", "later", "other")
		areRemembered(t, u, 1)
	})
}

// Of two writes of one key that were not confirmed the newer one counts, in whatever order they are told.
func TestTheNewerDebtCounts(t *testing.T) {
	debtScene(t, func(t *testing.T, u *unconfirmed) {
		older, middle, newer := u.next(), u.next(), u.next()
		u.owe(older, "rising")
		u.owe(newer, "rising")
		u.owe(newer, "falling")
		u.owe(older, "falling")
		areRemembered(t, u, 2)
		for _, key := range []string{"rising", "falling"} {
			u.settle(key, middle)
			areOwed(t, u, true, key)
			u.settle(key, newer)
			areOwed(t, u, false, key)
		}
	})
}

func TestDebtsExpire(t *testing.T) {
	debtScene(t, func(t *testing.T, u *unconfirmed) {
		u.owe(u.next(), "a")
		time.Sleep(30 * time.Second)
		u.owe(u.next(), "b")
		u.owe(u.next(), "again")
		time.Sleep(30*time.Second - 1)
		areOwed(t, u, true, "a", "b", "again")
		u.owe(u.next(), "again")
		time.Sleep(time.Nanosecond)
		areOwed(t, u, false, "a")
		areOwed(t, u, true, "b", "again")
		time.Sleep(30 * time.Second)
		areOwed(t, u, false, "b")
		areOwed(t, u, true, "again")
		time.Sleep(time.Minute)
		areOwed(t, u, false, "again")
		areRemembered(t, u, 0)
		if u.some.Load() {
			t.Error("with nothing owed, each read still takes the lock")
		}
	})
}

// oweAllThatIsRemembered owes as many keys as are remembered.
func oweAllThatIsRemembered(t *testing.T, u *unconfirmed) (keys []string) {
	t.Helper()
	for i := range maxUnconfirmed {
		keys = append(keys, strconv.Itoa(i))
		u.owe(u.next(), keys[i])
	}
	areRemembered(t, u, maxUnconfirmed)
	areOwed(t, u, true, keys...)
	areOwed(t, u, false, "other")
	return keys
}

// What is too much to be remembered is owed for the whole name, until nothing of that time can stand in Redis any more.
func TestTooManyDebtsAreOwedForTheWholeName(t *testing.T) {
	debtScene(t, func(t *testing.T, u *unconfirmed) {
		keys := oweAllThatIsRemembered(t, u)
		time.Sleep(time.Second)
		u.owe(u.next(), keys[0]) // known: no overflow
		areOwed(t, u, false, "other")
		areRemembered(t, u, maxUnconfirmed)

		u.owe(u.next(), "one more")
		areRemembered(t, u, maxUnconfirmed)
		areOwed(t, u, true, "one more", "other")
		for _, key := range append(keys, "one more", "other") {
			u.settle(key, u.next())
		}
		areRemembered(t, u, 0)
		areOwed(t, u, true, "one more", "other", keys[0])

		time.Sleep(30 * time.Second)
		for _, key := range keys {
			u.owe(u.next(), key)
		}
		u.owe(u.next(), "later") // it begins anew
		time.Sleep(time.Minute - 1)
		areOwed(t, u, true, "one more", "other", "later")
		time.Sleep(time.Nanosecond)
		areOwed(t, u, false, "one more", "other", "later", keys[0])
	})
}

// Of a batch, what is not remembered key by key is owed all the same.
func TestABatchThatIsTooMuchIsOwedForTheWholeName(t *testing.T) {
	debtScene(t, func(t *testing.T, u *unconfirmed) {
		keys := make([]string, maxUnconfirmed+2)
		for i := range keys {
			keys[i] = strconv.Itoa(i)
		}
		u.owe(u.next())
		areOwed(t, u, false, keys[0])
		u.owe(u.next(), keys[:maxUnconfirmed]...)
		areOwed(t, u, false, keys[maxUnconfirmed:]...)
		u.owe(u.next(), keys[maxUnconfirmed-1:]...)
		areOwed(t, u, true, keys...)
		areOwed(t, u, true, "other")
		areRemembered(t, u, maxUnconfirmed)
	})
}

// What has expired takes nobody's place.
func TestExpiredDebtsMakePlace(t *testing.T) {
	debtScene(t, func(t *testing.T, u *unconfirmed) {
		oweAllThatIsRemembered(t, u)
		time.Sleep(time.Minute)
		u.owe(u.next(), "one more")
		areOwed(t, u, true, "one more")
		areOwed(t, u, false, "other", "0")
		areRemembered(t, u, 1)
	})
}

// debtStep is something that happens to the debts, after some time.
type debtStep struct {
	owe      bool // or settle
	key      string
	sequence uint64
	pause    time.Duration
}

// Beside each step a table of all that is owed says the same.
func TestDebtsAgainstATable(t *testing.T) {
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) debtStep {
		return debtStep{
			owe: rapid.Bool().Draw(t, "owe"), key: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"),
			sequence: rapid.Uint64Range(1, 9).Draw(t, "sequence"),
			pause:    time.Duration(rapid.SampledFrom([]int{0, 0, 1, 20, 59, 60}).Draw(t, "pause")) * time.Second,
		}
	}), 1, 40)
	rapid.Check(t, func(check *rapid.T) {
		steps := steps.Draw(check, "steps")
		var err error
		synctest.Test(t, func(*testing.T) {
			u := &unconfirmed{clock: newClock(), keep: time.Minute, most: maxUnconfirmed}
			table := map[string]debt{}
			for i, step := range steps {
				time.Sleep(step.pause)
				now := u.clock.now()
				for key, d := range table {
					if d.until <= now {
						delete(table, key)
					}
				}
				// Until somebody asks for it, an expired debt may still lend its sequence to the next.
				u.has(step.key)
				d, owed := table[step.key]
				switch {
				case step.owe:
					u.owe(step.sequence, step.key)
					table[step.key] = debt{max(d.sequence, step.sequence), now + int64(time.Minute)}
				case owed && d.sequence <= step.sequence:
					delete(table, step.key)
					fallthrough
				default:
					u.settle(step.key, step.sequence)
				}
				for _, key := range []string{"a", "b", "c"} {
					if _, want := table[key]; u.has(key) != want {
						err = fmt.Errorf("after step %d, %+v: %s is owed: %v, want %v", i, step, key, !want, want)
						return
					}
				}
			}
		})
		if err != nil {
			check.Fatal(err)
		}
	})
}

func TestDebtsBesideOneAnother(t *testing.T) {
	u := &unconfirmed{clock: newClock(), keep: time.Hour, most: maxUnconfirmed}
	var mu sync.Mutex
	numbers := map[uint64]bool{}
	var wg sync.WaitGroup
	const callers, rounds = 8, 300
	for i := range callers {
		wg.Go(func() {
			own := fmt.Sprint("own", i)
			for range rounds {
				sequence := u.next()
				mu.Lock()
				numbers[sequence] = true
				mu.Unlock()
				u.owe(sequence, "shared")
				u.owe(sequence, own)
				if !u.has(own) {
					t.Error("what is owed is not remembered")
				}
				u.settle(own, sequence)
				if u.has(own) {
					t.Error("what was settled is remembered")
				}
				u.settle("shared", sequence)
				u.len()
			}
		})
	}
	wg.Wait()
	if len(numbers) != callers*rounds || u.next() != callers*rounds+1 {
		t.Errorf("%d writes have %d numbers", callers*rounds, len(numbers))
	}
	u.settle("shared", u.next())
	if areRemembered(t, u, 0); u.some.Load() {
		t.Error("something is owed in the end")
	}
}
