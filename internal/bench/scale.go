package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// fewKeys is the batch that the others are compared with.
const fewKeys = 100

// scaleRows show how the cost grows with the size of the work.
func scaleRows() []row {
	many := row{name: "scale-many", about: "GetMany, all in Redis, no local tier, values of 100 bytes, callers: 1"}
	drop := row{name: "scale-invalidate", about: "Invalidate of keys that both tiers hold, callers: 1"}
	many.reference = subject{name: sizeText(fewKeys), measure: manyOf(fewKeys)}
	drop.reference = subject{name: sizeText(fewKeys), measure: invalidateOf(fewKeys)}
	for _, n := range []int{10, fewKeys, 1000, 10_000} {
		many.subjects = append(many.subjects, subject{name: sizeText(n), measure: manyOf(n)})
		drop.subjects = append(drop.subjects, subject{name: sizeText(n), measure: invalidateOf(n)})
	}
	many.unit, drop.unit = "time/key", "time/key"
	all := []row{many, drop}
	for _, callers := range []int{1, 4, 16, 64, 256, 1024} {
		r := redisHit("scale-redis", callers, 0, single, bar{})
		r.subjects = r.subjects[:1]
		r.subjects[0].name = fmt.Sprintf("callers: %d", callers)
		all = append(all, r)
	}
	for _, n := range []int{1000, 100_000, million} {
		all = append(all, row{
			name: fmt.Sprintf("scale-local-%d", n), about: "local hit, any entry as often as another, callers: 1", unit: "time/op",
			reference: subject{name: "ristretto Get", measure: driven(1, ristrettoOf(n))},
			subjects:  []subject{{name: fmt.Sprintf("entries: %d", n), measure: driven(1, localOf(n))}},
		})
	}
	for i := range all {
		all[i].scale, all[i].times = true, 3
	}
	return all
}

func sizeText(n int) string { return fmt.Sprintf("keys: %d", n) }

// size returns how much to do at once: less in turns of less than a tenth of a second, which only tests have.
func (j job) size(most int) int { return max(min(most, 100), int(float64(most)*min(1, 10*j.Seconds))) }

// manyOf measures GetMany of n keys that follow one another, from any first key. All figures are per key.
func manyOf(most int) func(job) (measured, error) {
	perCall := driven(1, func(j job) (worker, error) {
		n := j.size(most)
		c, err := openNear(j, single, bytesOf, 0, noLocal)
		if err != nil {
			return worker{}, err
		}
		ctx, all := context.Background(), keys(max(j.keys(remoteKeys), 2*n))
		return worker{count: c.trips, close: c.close, op: func(r *rand.Rand) error {
			from := r.IntN(len(all) - n)
			got, err := c.rows.GetMany(ctx, all[from:from+n])
			if err == nil && len(got) != n {
				err = fmt.Errorf("%d of %d keys", len(got), n)
			}
			last := all[from+n-1]
			return checkBytes(last, got[last], err)
		}}, c.fill(len(all))
	})
	return func(j job) (measured, error) {
		m, err := perCall(j)
		per := float64(j.size(most))
		return measured{Cost: m.Cost / per, CPU: m.CPU / per, Allocs: m.Allocs / per, Extra: m.Extra / per}, err
	}
}

// invalidateOf measures Invalidate of n keys. Before each call the keys are set again, which does not count.
func invalidateOf(most int) func(job) (measured, error) {
	return func(j job) (m measured, err error) {
		n := j.size(most)
		c, err := openNear(j, single, bytesOf, 0, longLived(max(n, 1000)))
		if err != nil {
			return m, err
		}
		defer c.close()
		ctx, all, values := context.Background(), keys(n), map[string][]byte{}
		for i, k := range all {
			values[k] = bytesOf(i)
		}
		var took time.Duration
		calls := -1 // the first one is a warm-up
		for began := time.Now(); calls < 1 || time.Since(began).Seconds() < j.Seconds; calls++ {
			if err := c.rows.SetMany(ctx, values); err != nil {
				return m, err
			}
			start := time.Now()
			if err := c.rows.Invalidate(ctx, all...); err != nil {
				return m, err
			}
			if calls >= 0 {
				took += time.Since(start)
			}
		}
		return measured{Cost: took.Seconds() / float64(calls*n)}, nil
	}
}

// localOf reads from a local tier of so many entries. Unlike in the local rows none is popular: the more there are, the less
// the processor's caches help.
func localOf(entries int) func(job) (worker, error) {
	return func(j job) (worker, error) {
		count := j.keys(entries)
		n, err := openNear(j, single, smallOf, 0, longLived(count))
		if err != nil {
			return worker{}, err
		}
		ctx := context.Background()
		w := anyHit(count, func(key string) (small, error) { return n.rows.Get(ctx, key) })
		w.count, w.close = n.trips, n.close
		return w, n.fillLocal(count)
	}
}

// ristrettoOf is localOf of ristretto alone.
func ristrettoOf(entries int) func(job) (worker, error) {
	return func(j job) (worker, error) {
		count := j.keys(entries)
		c, err := newRistretto[small](count)
		if err != nil {
			return worker{}, err
		}
		w := anyHit(count, func(key string) (small, error) {
			v, ok := c.Get(key)
			if !ok {
				return v, fmt.Errorf("no %s", key)
			}
			return v, nil
		})
		w.close = c.Close
		return w, fillRistretto(c, count, smallOf)
	}
}

// anyHit reads any of some keys, each as often as another.
func anyHit(count int, get func(string) (small, error)) worker {
	all := keys(count)
	return worker{op: func(r *rand.Rand) error {
		i := r.IntN(count)
		v, err := get(all[i])
		if err == nil && v != smallOf(i) {
			err = fmt.Errorf("%s: got %v", all[i], v)
		}
		return err
	}}
}

const scaleColumns = "  %-18s %-16s %-24s %-24s %s\n"

func printScaleHead(out io.Writer) {
	fmt.Fprintf(out, "scale: how the cost grows; no bars\n"+scaleColumns, "row", "size", "ns per op or key", "ratio", "ratio of")
}

// printScale writes the row's part of the table "scale".
func (r row) printScale(out io.Writer, lines []line) {
	for _, l := range lines {
		ns := fmt.Sprintf("%.0f [%.0f %.0f]", 1e9*l.costs.median(), 1e9*slices.Min(l.costs), 1e9*slices.Max(l.costs))
		ratio, of := "-", "-"
		if r.reference.measure != nil {
			ratio, of = l.ratio.String(), r.figure()+" to "+r.reference.name
		}
		fmt.Fprintf(out, scaleColumns, r.name, l.subject.name, ns, ratio, of)
	}
}
