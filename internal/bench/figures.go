package main

import (
	"fmt"
	"slices"
)

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
