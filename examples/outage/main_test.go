package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/go-nearside/nearside/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable()
	redistest.Run(m)
}

func TestOutline(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { outline(t, true, (&embedded{}).phases()) })
	t.Run("server", func(t *testing.T) { outline(t, false, (&server{}).phases()) })
}

func outline(t *testing.T, embedded bool, phases []phase) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	lines, err := run(ctx, options{embedded: embedded, phase: 300 * time.Millisecond, rate: 500}, &out)
	if err != nil {
		t.Fatalf("%v\nafter:\n%s", err, &out)
	}
	t.Logf("\n%s", &out)
	text := strings.Split(out.String(), "\n")
	if len(text) > 45 {
		t.Errorf("%d lines do not fit the screen", len(text))
	}
	for _, l := range text {
		if len(l) > 110 {
			t.Errorf("%d columns do not fit the screen: %s", len(l), l)
		}
	}
	if len(lines) != 2*len(phases) {
		t.Fatalf("%d lines for %d phases", len(lines), len(phases))
	}
	ended := map[string]int{}
	for i, l := range lines {
		if want := phases[i/2].name; l.phase.name != want || !strings.Contains(out.String(), "\n"+want+" ") {
			t.Errorf("line %d is that of %q, want %q, in the table too", i, l.phase.name, want)
		}
		ended[l.side] += len(l.times)
		if l.side != nearName {
			continue
		}
		if l.loads.most > bears || l.loads.refused > 0 || l.refused > 0 {
			t.Errorf("%s: nearside wanted %d loads at once of a database that bears %d; %d refused", l.phase.name, l.loads.most, bears, l.loads.refused)
		}
		if l.old > 0 {
			t.Errorf("%s: nearside gave %d old answers", l.phase.name, l.old)
		}
	}
	if ended[nearName] == 0 || ended[handName] == 0 {
		t.Errorf("requests that ended: %v", ended)
	}
	nothingLeft(t)
}

// TestEndsEarly, also while Redis hangs or is away.
func TestEndsEarly(t *testing.T) {
	for _, after := range []string{"healthy", "goes on"} {
		t.Run("after "+after, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &watcher{word: "\n" + after, seen: cancel}
			if _, err := run(ctx, options{phase: 100 * time.Millisecond, rate: 500}, out); err != nil {
				t.Error(err)
			}
			if !strings.HasSuffix(out.String(), "stopped early\n") {
				t.Errorf("was not stopped:\n%s", out)
			}
			nothingLeft(t)
		})
	}
}

// watcher tells when a word has been written.
type watcher struct {
	bytes.Buffer
	word string
	seen func()
}

func (w *watcher) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.word) {
		w.seen()
	}
	return n, err
}

func nothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("the temporary directory holds %v, %v", left, err)
	}
}

func TestAMissingServerIsExplained(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := run(t.Context(), options{phase: time.Second, rate: 1}, t.Output())
	if err == nil || !strings.Contains(err.Error(), "install") || !strings.Contains(err.Error(), "-embedded") {
		t.Errorf("without redis-server: %v", err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, o := range []options{{phase: time.Millisecond, rate: 1}, {phase: time.Hour, rate: 1}, {phase: time.Second}, {phase: time.Second, rate: 1e6}} {
		if _, err := run(t.Context(), o, t.Output()); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
