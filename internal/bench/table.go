package main

import (
	"fmt"
	"io"
	"strings"
)

// bar is what nearside is to reach in a row. A field that is 0 asks for nothing.
type bar struct {
	most, least float64 // of the ratio
	cpu         float64 // the most of the CPU ratio
	allocs      float64 // the most allocations per operation
	extra       float64 // the most of the row's extra figure
}

// noAllocs allows for what is allocated beside the calls: ristretto renews its buffer of reads once in 64, and the bus beats.
const noAllocs = 0.05

// text names the extra figure as the row does.
func (b bar) text(extra string) string {
	var parts []string
	say := func(limit float64, format string) {
		if limit != 0 {
			parts = append(parts, fmt.Sprintf(format, limit))
		}
	}
	say(b.most, "<= %.3g")
	say(b.least, ">= %.3g")
	say(b.cpu, "CPU <= %.3g")
	say(b.allocs, "allocs <= %.3g")
	say(b.extra, extra+" <= %.3g")
	return strings.Join(parts, ", ")
}

func (b bar) met(l line) bool {
	below := func(limit float64, f figures) bool { return limit == 0 || f.median() <= limit }
	return below(b.most, l.ratio) && l.ratio.median() >= b.least && below(b.cpu, l.cpu) && below(b.allocs, l.allocs) &&
		below(b.extra, l.extra)
}

const columns = "  %-22s %-24s %-24s %-10s %-10s %-26s %s\n"

// print writes the row's part of the table.
func (r row) print(out io.Writer, lines []line) {
	fmt.Fprintf(out, "%s: %s\n", r.name, r.about)
	if r.reference.measure != nil {
		fmt.Fprintf(out, "  reference: %s, %s\n", r.reference.name, r.absolute(lines[0].reference, lines[0].refCPU))
	}
	fmt.Fprintf(out, columns, "subject", r.figure(), "CPU per op ratio", "allocs/op", r.extra, "to reach", "met")
	for _, l := range lines {
		want, met := "-", "-"
		if !l.subject.peer {
			want, met = r.bar.text(r.extra), "NO"
			if r.bar.met(l) {
				met = "yes"
			}
		}
		allocs := fmt.Sprintf("%.2f", l.allocs.median())
		if l.cpuOfSubject.median() == 0 {
			allocs = "-" // not a row of operations
		}
		more := "-"
		if r.extra != "" && !l.subject.peer {
			more = fmt.Sprintf("%.3g", l.extra.median())
		}
		fmt.Fprintf(out, columns, l.subject.name, l.ratio, l.cpu, allocs, more, want, met)
	}
	fmt.Fprintln(out)
}

// figure names the column of the ratio.
func (r row) figure() string {
	switch {
	case r.reference.measure == nil:
		return r.unit
	case r.throughput:
		return "throughput ratio"
	}
	return r.unit + " ratio"
}

func (r row) absolute(costs, cpu figures) string {
	if c := cpu.median(); c > 0 {
		return fmt.Sprintf("%.3g µs and %.3g µs of CPU per op", 1e6*costs.median(), 1e6*c)
	}
	return fmt.Sprintf("%.4g %s", costs.median(), r.unit)
}
