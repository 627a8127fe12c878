package main

import (
	"bytes"
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
	var out bytes.Buffer
	lines, err := run(&out, options{times: 1, seconds: 0.01, peers: true})
	t.Log("\n" + out.String())
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, r := range rows() {
		want += len(r.subjects)
		if !strings.Contains(out.String(), "\n"+r.name+": ") && !strings.HasPrefix(out.String(), r.name+": ") {
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
}

func TestBars(t *testing.T) {
	b := bar{most: 0.85, cpu: 0.5, extra: 1}
	good := line{ratio: figures{2, 0.8, 0.7}, cpu: figures{0.5}, extra: figures{1}}
	if !b.met(good) {
		t.Error("a bar that is reached counts as missed")
	}
	for name, l := range map[string]line{
		"ratio": {ratio: figures{0.9}, cpu: figures{0.5}, extra: figures{1}},
		"cpu":   {ratio: figures{0.8}, cpu: figures{0.6}, extra: figures{1}},
		"extra": {ratio: figures{0.8}, cpu: figures{0.5}, extra: figures{1.1}},
	} {
		if b.met(l) {
			t.Errorf("a missed bar of the %s counts as reached", name)
		}
	}
	if (bar{least: 0.95}).met(line{ratio: figures{0.9}}) {
		t.Error("a ratio below the least counts as reached")
	}
}
