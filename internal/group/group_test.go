package group_test

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-nearside/nearside/internal/group"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// after checks how long something took. In a bubble, times are exact.
func after(t *testing.T, what string, began time.Time, want time.Duration) {
	t.Helper()
	if took := time.Since(began); took != want {
		t.Errorf("%s after %v, want %v", what, took, want)
	}
}

func TestWaitEndsWithTheLastGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group.Group
		began := time.Now()
		if left := g.Wait(time.Hour); left != 0 {
			t.Errorf("an empty group has %d left", left)
		}
		after(t, "Wait returned", began, 0)
		for _, d := range []time.Duration{3, 1, 2} {
			if !g.Go(func() { <-time.After(d * time.Second) }) {
				t.Error("an open group refuses a goroutine")
			}
		}
		if left := g.Wait(1500 * time.Millisecond); left != 2 {
			t.Errorf("%d are left, want 2", left)
		}
		after(t, "Wait returned", began, 1500*time.Millisecond)
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if left := g.Wait(time.Hour); left != 0 {
					t.Errorf("%d are left, want 0", left)
				}
				after(t, "Wait returned", began, 3*time.Second)
			})
		}
		both.Wait()
		if !g.Go(func() {}) {
			t.Error("Wait has closed the group")
		}
		g.Wait(time.Hour)
	})
}

func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group.Group
		began := time.Now()
		end := make(chan struct{})
		g.Go(func() { <-end })
		g.Go(func() { <-end })
		for i := range 2 { // it may be called again
			if left := g.Close(time.Second); left != 2 {
				t.Errorf("Close left %d, want 2", left)
			}
			after(t, "Close returned", began, time.Duration(i+1)*time.Second)
		}
		for _, d := range []time.Duration{0, -1} {
			if left := g.Close(d); left != 2 {
				t.Errorf("Close(%d) left %d, want 2", d, left)
			}
		}
		after(t, "Close returned", began, 2*time.Second)
		close(end)
		if left := g.Close(time.Hour); left != 0 {
			t.Errorf("Close left %d, want 0", left)
		}
		after(t, "Close returned", began, 2*time.Second)
	})
}

func TestAClosedGroupRefuses(t *testing.T) {
	var g group.Group
	if left := g.Close(0); left != 0 {
		t.Errorf("an empty group has %d left", left)
	}
	if g.Go(func() { t.Error("it ran all the same") }) {
		t.Error("a closed group took a goroutine")
	}
	if g.Enter() {
		t.Error("a closed group was entered")
	}
	if left := g.Close(0); left != 0 {
		t.Errorf("what was refused is counted: %d are left", left)
	}
}

// A group that is closing, and still has goroutines, refuses too: Close would never end else.
func TestAClosingGroupRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group.Group
		end := make(chan struct{})
		g.Go(func() {
			<-end
			if g.Go(func() {}) || g.Enter() {
				t.Error("a closing group takes more")
			}
		})
		closed := make(chan int)
		go func() { closed <- g.Close(time.Hour) }()
		synctest.Wait()
		select {
		case left := <-closed:
			t.Fatalf("Close did not wait, and left %d", left)
		default:
		}
		close(end)
		if left := <-closed; left != 0 {
			t.Errorf("Close left %d", left)
		}
	})
}

// Close from inside waits for all others, and counts the caller, which cannot end before.
func TestCloseFromInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group.Group
		began := time.Now()
		g.Go(func() {
			if left := g.Close(time.Second); left != 1 {
				t.Errorf("Close from inside left %d, want 1", left)
			}
			after(t, "Close returned inside", began, time.Second)
		})
		g.Go(func() { <-time.After(time.Millisecond) })
		synctest.Wait()
		if left := g.Close(time.Hour); left != 0 {
			t.Errorf("Close left %d", left)
		}
		after(t, "Close returned", began, time.Second)
	})
}

func TestEnterCountsTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group.Group
		for range 2 {
			if !g.Enter() {
				t.Fatal("an open group cannot be entered")
			}
		}
		g.Leave()
		if left := g.Wait(time.Second); left != 1 {
			t.Errorf("%d are left, want 1", left)
		}
		time.AfterFunc(time.Second, g.Leave)
		began := time.Now()
		if left := g.Close(time.Hour); left != 0 {
			t.Errorf("%d are left, want 0", left)
		}
		after(t, "Close returned", began, time.Second)
	})
}

func TestAGoexitLeavesTheGroup(t *testing.T) {
	var g group.Group
	g.Go(runtime.Goexit)
	if left := g.Close(time.Minute); left != 0 {
		t.Errorf("%d are left", left)
	}
}

// Whatever Go beside Close took has ended when Close returns, and has run once.
func TestGoBesideClose(t *testing.T) {
	const rounds, callers = 300, 8
	for round := range rounds {
		var g group.Group
		var taken, ran atomic.Int64
		var callersDone sync.WaitGroup
		begin := make(chan struct{})
		work := func() {
			if round%2 == 0 {
				runtime.Gosched()
			}
			ran.Add(1)
		}
		for range callers {
			callersDone.Go(func() {
				<-begin
				for i := range 50 {
					if i%3 > 0 {
						if !g.Go(work) {
							return
						}
					} else {
						if !g.Enter() {
							return
						}
						work()
						g.Leave()
					}
					taken.Add(1)
					if i%10 == 0 {
						g.Wait(time.Duration(rand.IntN(50)) * time.Microsecond)
					}
				}
			})
		}
		var closers sync.WaitGroup
		for range 2 {
			closers.Go(func() {
				<-begin
				for range rand.IntN(2000) {
					runtime.Gosched()
				}
				if left := g.Close(time.Minute); left != 0 {
					t.Errorf("Close left %d", left)
				}
				if g.Go(func() { t.Error("ran after Close") }) {
					t.Error("taken after Close")
				}
			})
		}
		close(begin)
		closers.Wait()
		ended := ran.Load()
		callersDone.Wait()
		// Callers add to taken after their goroutine was taken, so only now is it final. Nothing ran since Close returned.
		if ran.Load() != ended || taken.Load() != ended {
			t.Fatalf("round %d: %d were taken, %d had run when Close returned, %d in the end", round, taken.Load(), ended, ran.Load())
		}
	}
}
