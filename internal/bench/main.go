// Command bench measures nearside beside what people would use or write without it:
//
//	go run . [-rows regexp] [-times n] [-seconds s] [-peers] [-json file] [-short]
//
// It starts redis-server itself, one node and a cluster of three. A figure is a ratio to a reference that was measured just
// before, so it says something on a busy machine too; absolute figures are printed for orientation only. Each turn is a new
// process: reference, subject, reference, subject, and so on. Printed are the median of the ratios, and [the least and the most].
//
// A row with a bar meets it if each turn does, misses it if no turn does, and is unclear between the two. The rows of the table
// "scale" have no bar: they show how the cost grows. On two cores all rows take about 8 minutes, with -peers 13.
//
// How soon an invalidation reaches another process is measured elsewhere: BenchmarkLag in internal/history.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"
)

func main() {
	if runChild() {
		return
	}
	var o options
	var file string
	flag.StringVar(&o.rows, "rows", "", "measure only the rows whose name matches, somewhere in it")
	flag.IntVar(&o.times, "times", 0, "turns of each subject (default 5; 3 for memory, warm and scale; 15 for redis-1)")
	flag.Float64Var(&o.seconds, "seconds", 0, "length of a turn (default 1); below 1: smaller tables of keys, no verdicts")
	flag.BoolVar(&o.peers, "peers", false, "measure other libraries too")
	flag.BoolVar(&o.short, "short", false, "for development: 2 turns of 0.1 seconds by default, and no verdicts")
	flag.StringVar(&file, "json", "", "file for the figures of each turn, a line of JSON for each; make bench begins in internal/bench")
	flag.Parse()
	if err := o.measure(file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (o options) measure(file string) (err error) {
	if o.short {
		o.times, o.seconds = cmp.Or(o.times, 2), cmp.Or(o.seconds, 0.1)
	}
	o.seconds = cmp.Or(o.seconds, 1)
	if file != "" {
		f, failed := os.Create(file)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		o.raw = f
	}
	_, err = run(os.Stdout, o)
	return err
}

type options struct {
	rows         string
	times        int
	seconds      float64
	peers, short bool
	raw          io.Writer // gets the figures of each turn, if it is not nil
}

// judges tells whether there are verdicts: short turns say too little.
func (o options) judges() bool { return !o.short && o.seconds >= 1 }

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
	began := time.Now()
	if err := o.writeMachine(); err != nil {
		return nil, err
	}
	var all []line
	scale := false // its head is printed
	for _, r := range rows() {
		if !chosen.MatchString(r.name) {
			continue
		}
		lines, err := r.run(o, at)
		if err != nil {
			return all, fmt.Errorf("%s: %w", r.name, err)
		}
		switch {
		case !r.scale:
			r.print(out, lines, o.judges())
		case !scale:
			scale = true
			printScaleHead(out)
			fallthrough
		default:
			r.printScale(out, lines)
		}
		all = append(all, lines...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no row matches %q", o.rows)
	}
	fmt.Fprintf(out, "\ntook %v\n", time.Since(began).Round(time.Second))
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
	for n := range cmp.Or(o.times, r.times, 5) {
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
			if err := o.writeTurn(r, l.subject, n+1, reference, m); err != nil {
				return nil, err
			}
		}
	}
	return lines, nil
}
