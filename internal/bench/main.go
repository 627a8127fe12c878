// Command bench measures nearside beside what people would use or write without it:
//
//	go run . [-rows regexp] [-times n] [-seconds s] [-peers]
//
// It starts redis-server itself, one node and a cluster of three. A figure is a ratio to a reference that was measured just
// before, so it says something on a busy machine too; absolute figures are printed for orientation only. Each turn is a new
// process: reference, subject, reference, subject, and so on. Of the ratios the median counts, with the least and the most.
//
// How soon an invalidation reaches another process is measured elsewhere: BenchmarkLag in internal/history.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
)

func main() {
	if runChild() {
		return
	}
	var o options
	flag.StringVar(&o.rows, "rows", "", "measure only the rows whose name matches")
	flag.IntVar(&o.times, "times", 0, "turns of each subject (default 5, and 15 for redis-1)")
	flag.Float64Var(&o.seconds, "seconds", 1, "length of a turn; below 1, tables of keys are smaller too")
	flag.BoolVar(&o.peers, "peers", false, "measure other libraries too")
	flag.Parse()
	if _, err := run(os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type options struct {
	rows    string
	times   int
	seconds float64
	peers   bool
}

// run measures the chosen rows, and prints each as soon as it is done.
func run(out io.Writer, o options) ([]line, error) {
	chosen, err := regexp.Compile(o.rows)
	if err != nil {
		return nil, err
	}
	at, stop, err := startServers()
	if err != nil {
		return nil, err
	}
	defer stop()
	var all []line
	for _, r := range rows() {
		if !chosen.MatchString(r.name) {
			continue
		}
		lines, err := r.run(o, at)
		if err != nil {
			return all, fmt.Errorf("%s: %w", r.name, err)
		}
		r.print(out, lines)
		all = append(all, lines...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no row matches %q", o.rows)
	}
	return all, nil
}

// run lets the subjects of a row take turns with its reference.
func (r row) run(o options, at place) ([]line, error) {
	var lines []line
	for _, s := range r.subjects {
		if !s.peer || o.peers {
			lines = append(lines, line{subject: s})
		}
	}
	for range cmp.Or(o.times, r.times, 5) {
		for i := range lines {
			l := &lines[i]
			var reference measured
			var err error
			if r.reference.measure != nil {
				if reference, err = turn(r, r.reference, o.seconds, at); err != nil {
					return nil, err
				}
			}
			m, err := turn(r, l.subject, o.seconds, at)
			if err != nil {
				return nil, err
			}
			l.add(r, reference, m)
		}
	}
	return lines, nil
}

// line is what was measured of a subject, a figure for each turn.
type line struct {
	subject subject

	ratio, cpu           figures // to the reference, or plain if there is none
	allocs, extra        figures
	reference, costs     figures // what a turn cost, in the row's unit
	refCPU, cpuOfSubject figures
}

func (l *line) add(r row, reference, m measured) {
	switch {
	case r.reference.measure == nil:
		l.ratio = append(l.ratio, m.Cost)
	case r.throughput:
		l.ratio = append(l.ratio, reference.Cost/m.Cost)
	default:
		l.ratio = append(l.ratio, m.Cost/reference.Cost)
	}
	if reference.CPU > 0 {
		l.cpu = append(l.cpu, m.CPU/reference.CPU)
	}
	l.reference, l.refCPU = append(l.reference, reference.Cost), append(l.refCPU, reference.CPU)
	l.costs, l.cpuOfSubject = append(l.costs, m.Cost), append(l.cpuOfSubject, m.CPU)
	l.allocs, l.extra = append(l.allocs, m.Allocs), append(l.extra, m.Extra)
}

// figures are the values of one measure over all turns.
type figures []float64

func (f figures) median() float64 {
	if len(f) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(f))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

func (f figures) String() string {
	if len(f) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g [%.3g %.3g]", f.median(), slices.Min(f), slices.Max(f))
}
