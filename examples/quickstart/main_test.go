package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-nearside/nearside/internal/redistest"
)

func TestMain(m *testing.M) {
	readBudget = 600 * time.Millisecond // for a busy machine, and the race detector
	redistest.Run(m)
}

func TestSteps(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { steps(t, "") })
	t.Run("server", func(t *testing.T) { steps(t, "redis://"+redistest.Shared(t).Addr()) })
}

func steps(t *testing.T, url string) {
	t.Setenv("REDIS_URL", url)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, &out); err != nil {
		t.Fatalf("%v\nafter:\n%s", err, &out)
	}
	if text := out.String(); !strings.Contains(text, "all 6 steps seen") || strings.Count(text, "\n") >= 40 {
		t.Errorf("want under 40 lines that end with all 6 steps, got:\n%s", text)
	}
}

// What did not happen must not be told.
func TestAStepThatIsNotSeenFails(t *testing.T) {
	t.Setenv("REDIS_URL", "redis://127.0.0.1:1")
	err := run(t.Context(), t.Output())
	if err == nil || !strings.Contains(err.Error(), "a hears what b invalidates: expected true, saw false") {
		t.Errorf("without Redis: %v", err)
	}
}
