package main

import (
	"fmt"
	"io"
)

const columns = "  %-22s %-24s %-24s %-10s %-10s %-26s %s\n"

// print writes the row's part of the table, with verdicts if it judges.
func (r row) print(out io.Writer, lines []line, judges bool) {
	fmt.Fprintf(out, "%s: %s\n", r.name, r.about)
	if r.reference.measure != nil {
		fmt.Fprintf(out, "  reference: %s, %s\n", r.reference.name, r.absolute(lines[0].reference, lines[0].refCPU))
	}
	fmt.Fprintf(out, columns, "subject", r.figure(), "CPU per op ratio", "allocs/op", r.extra, "to reach", "verdict")
	for _, l := range lines {
		want, said := "-", "-"
		if !l.subject.peer {
			want = r.bar.text(r.extra)
			if judges {
				said = r.bar.verdict(l).String()
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
		fmt.Fprintf(out, columns, l.subject.name, l.ratio, l.cpu, allocs, more, want, said)
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
