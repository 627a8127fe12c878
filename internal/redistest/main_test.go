package redistest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-nearside/nearside/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Run(m) }

// eventually polls for what sends no signal of its own.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("never seen: %s", what)
		}
	}
}

// fakeTB stands for a test that fails. What it does not override is not to be called.
type fakeTB struct {
	testing.TB
	failed   bool
	output   bytes.Buffer
	cleanups []func()
}

func (f *fakeTB) Helper()                    {}
func (f *fakeTB) Name() string               { return "Fake" }
func (f *fakeTB) Failed() bool               { return f.failed }
func (f *fakeTB) Cleanup(c func())           { f.cleanups = append(f.cleanups, c) }
func (f *fakeTB) Logf(s string, args ...any) { fmt.Fprintf(&f.output, s+"\n", args...) }
func (f *fakeTB) Fatalf(s string, args ...any) {
	f.failed = true
	f.Logf(s, args...)
	runtime.Goexit()
}

// run plays a test and returns what it printed.
func (f *fakeTB) run(test func()) string {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(f.cleanups) - 1; i >= 0; i-- {
				f.cleanups[i]()
			}
		}()
		test()
	}()
	<-done
	return f.output.String()
}

// child names, in the environment, the part that this binary plays when a test runs it again.
const child = "REDISTEST_CHILD"

func runChild(t *testing.T, part string) (output string, err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), child+"="+part)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestChild(t *testing.T) {
	switch os.Getenv(child) {
	case "":
		t.Skip("a part of other tests, which run it in a process of its own")
	case "leaks":
		go func() { select {} }()
	case "dies":
		server := redistest.Start(t)
		server.Pause(t)
		fmt.Printf("address=%s\n", server.Addr())
		os.Exit(3) // no Cleanup, no Run
	case "uses":
		redistest.Shared(t).Admin()
	}
}

func TestRunPassesAndStopsTheSharedServer(t *testing.T) {
	if out, err := runChild(t, "uses"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestRunFailsOnALeak(t *testing.T) {
	t.Parallel()
	out, err := runChild(t, "leaks")
	if err == nil || !strings.Contains(out, "goroutines left behind") {
		t.Fatalf("the leak passed: %v\n%s", err, out)
	}
}
