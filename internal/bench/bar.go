package main

import (
	"fmt"
	"slices"
	"strings"
)

// bar is what nearside is to reach in a row. A field that is 0 asks for nothing.
type bar struct {
	Most   float64 `json:"most,omitempty"`   // of the ratio
	Least  float64 `json:"least,omitempty"`  // of the ratio
	CPU    float64 `json:"cpu,omitempty"`    // the most of the CPU ratio
	Allocs float64 `json:"allocs,omitempty"` // the most allocations per operation
	Extra  float64 `json:"extra,omitempty"`  // the most of the row's extra figure
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
	say(b.Most, "<= %.3g")
	say(b.Least, ">= %.3g")
	say(b.CPU, "CPU <= %.3g")
	say(b.Allocs, "allocs <= %.3g")
	say(b.Extra, extra+" <= %.3g")
	return strings.Join(parts, ", ")
}

// verdict is the worst one of all that the bar asks for.
type verdict int

const (
	met     verdict = iota // by every turn
	unclear                // by some turns
	missed                 // by every turn
)

func (v verdict) String() string { return [...]string{"meets", "unclear", "misses"}[v] }

func (b bar) verdict(l line) verdict {
	least := met
	if b.Least != 0 {
		least = judge(l.ratio, func(ratio float64) bool { return ratio >= b.Least })
	}
	return max(least, atMost(b.Most, l.ratio), atMost(b.CPU, l.cpu), atMost(b.Allocs, l.allocs), atMost(b.Extra, l.extra))
}

func atMost(limit float64, f figures) verdict {
	if limit == 0 {
		return met
	}
	return judge(f, func(v float64) bool { return v <= limit })
}

// judge looks at the least and the most of the figures: if the bar is between them, or there are none, nothing is clear.
func judge(f figures, good func(float64) bool) verdict {
	if len(f) == 0 || good(slices.Min(f)) != good(slices.Max(f)) {
		return unclear
	}
	if good(f[0]) {
		return met
	}
	return missed
}
