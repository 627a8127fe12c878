package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// The children are this test binary.
func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // else each child sleeps for a second at its end
	os.Exit(m.Run())
}

// TestEveryRow measures each row with each subject, far too shortly to mean anything.
func TestEveryRow(t *testing.T) {
	var out, raw bytes.Buffer
	lines, err := run(&out, options{times: 1, seconds: 0.01, peers: true, raw: &raw})
	t.Log("\n" + out.String())
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, r := range rows() {
		want += len(r.subjects)
		head := "\n" + r.name + ": "
		if r.scale {
			head = "\n  " + r.name + " "
		}
		if !strings.Contains("\n"+out.String(), head) {
			t.Errorf("%s is not in the table", r.name)
		}
	}
	if len(lines) != want {
		t.Errorf("%d lines of %d", len(lines), want)
	}
	for _, l := range lines {
		for _, ratio := range slices.Concat(l.ratio, l.cpu) {
			if !(ratio > 0) || math.IsInf(ratio, 0) {
				t.Errorf("%s: a ratio of %v", l.subject.name, ratio)
			}
		}
	}
	for _, verdict := range []verdict{met, unclear, missed} {
		if strings.Contains(out.String(), verdict.String()) {
			t.Errorf("turns of 0.01 seconds give a verdict: %v", verdict)
		}
	}
	checkRaw(t, &raw, lines)
}

// checkRaw wants the machine first, and then a turn for each line, in their order.
func checkRaw(t *testing.T, raw *bytes.Buffer, lines []line) {
	t.Helper()
	all := json.NewDecoder(raw)
	all.DisallowUnknownFields()
	var m machine
	if err := all.Decode(&m); err != nil || m.CPUs == 0 {
		t.Errorf("the first line: %+v, %v", m, err)
	}
	for _, l := range lines {
		var r record
		if err := all.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Subject != l.subject.name || r.Turn != 1 || r.Measured.Cost != l.costs[0] {
			t.Errorf("%s: the raw turn is %+v", l.subject.name, r)
		}
		if (r.Reference != nil) != (l.reference[0] > 0) {
			t.Errorf("%s: the raw reference is %+v", l.subject.name, r.Reference)
		}
	}
	if all.More() {
		t.Error("there are more turns than lines")
	}
}

func TestVerdict(t *testing.T) {
	b := bar{Most: 0.85, CPU: 0.5, Extra: 1}
	for name, c := range map[string]struct {
		bar  bar
		line line
		want verdict
	}{
		"all good":        {b, line{ratio: figures{0.85, 0.7}, cpu: figures{0.5}, extra: figures{1}}, met},
		"ratio":           {b, line{ratio: figures{0.9, 2}, cpu: figures{0.5}, extra: figures{1}}, missed},
		"ratio, partly":   {b, line{ratio: figures{2, 0.8, 0.7}, cpu: figures{0.5}, extra: figures{1}}, unclear},
		"CPU":             {b, line{ratio: figures{0.8}, cpu: figures{0.6}, extra: figures{1}}, missed},
		"CPU, no figures": {b, line{ratio: figures{0.8}, extra: figures{1}}, unclear},
		"extra":           {b, line{ratio: figures{0.8}, cpu: figures{0.5}, extra: figures{1.1}}, missed},
		"allocs":          {bar{Allocs: 1}, line{allocs: figures{2}}, missed},
		"least":           {bar{Least: 0.95}, line{ratio: figures{0.95, 1}}, met},
		"least, partly":   {bar{Least: 0.95}, line{ratio: figures{1, 0.94}}, unclear},
		"least, missed":   {bar{Least: 0.95}, line{ratio: figures{0.9, 0.94}}, missed},
		"one worse":       {b, line{ratio: figures{0.8, 0.9}, cpu: figures{0.6}, extra: figures{1}}, missed},
	} {
		if got := c.bar.verdict(c.line); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
