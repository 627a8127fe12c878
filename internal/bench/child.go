package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// job is what a child is told to do: one turn of one subject.
type job struct {
	Row, Subject string
	Seconds      float64
	At           place
}

// keys returns how many keys to use: fewer in turns of less than a second.
func (j job) keys(most int) int { return max(min(most, 1000), int(float64(most)*min(1, j.Seconds))) }

// measured is what a child answers.
type measured struct {
	Cost   float64 `json:"cost"`   // in the unit of the row: as a rule seconds per operation
	CPU    float64 `json:"cpu"`    // seconds of CPU per operation, user and system, of the child alone; 0 if there are no operations
	Allocs float64 `json:"allocs"` // per operation
	Extra  float64 `json:"extra"`  // see row.extra
}

// turn runs a child and returns what it measured.
func turn(r row, s subject, seconds float64, at place) (m measured, err error) {
	self, err := os.Executable()
	if err != nil {
		return m, err
	}
	text, err := json.Marshal(job{r.name, s.name, seconds, at})
	if err != nil {
		return m, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, self, "child", string(text))
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	if err == nil && !(m.Cost > 0) {
		err = fmt.Errorf("it measured nothing: %+v", m)
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w\n%s", s.name, err, said.Bytes())
	}
	return m, nil
}

// runChild does the job that turn gave to this process, or reports that there is none.
func runChild() bool {
	if len(os.Args) != 3 || os.Args[1] != "child" {
		return false
	}
	var j job
	err := json.Unmarshal([]byte(os.Args[2]), &j)
	if err == nil {
		err = j.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func (j job) run() error {
	for _, r := range rows() {
		for _, s := range append(r.subjects, r.reference) {
			if r.name != j.Row || s.name != j.Subject {
				continue
			}
			m, err := s.measure(j)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(m)
		}
	}
	return fmt.Errorf("no row %s with %s", j.Row, j.Subject)
}

// worker is a subject that is ready. Only op is needed.
type worker struct {
	op     func(r *rand.Rand) error // one operation, with a look at its answer
	settle func() error             // waits for what runs behind the answers: it belongs to their cost
	count  func() uint64            // counts what row.extra names
	close  func()
}

// driven measures callers that work in a loop, after a warm-up.
func driven(callers int, open func(job) (worker, error)) func(job) (measured, error) {
	return func(j job) (m measured, err error) {
		w, err := open(j)
		if err != nil {
			return m, err
		}
		if w.close != nil {
			defer w.close()
		}
		length := time.Duration(j.Seconds * float64(time.Second))
		if _, err := w.drive(callers, length/5); err != nil {
			return m, err
		}
		runtime.GC()
		before := w.now()
		ops, err := w.drive(callers, length)
		if err != nil {
			return m, err
		}
		after, n := w.now(), float64(ops)
		return measured{
			Cost:   after.at.Sub(before.at).Seconds() / n,
			CPU:    (after.cpu - before.cpu).Seconds() / n,
			Allocs: float64(after.mallocs-before.mallocs) / n,
			Extra:  float64(after.count-before.count) / n,
		}, nil
	}
}

// drive runs the callers for some time and returns how many operations they did; each does one at least.
func (w worker) drive(callers int, length time.Duration) (int, error) {
	var (
		stop  atomic.Bool
		done  atomic.Int64
		mu    sync.Mutex // guards first
		first error
		wg    sync.WaitGroup
	)
	timer := time.AfterFunc(length, func() { stop.Store(true) })
	defer timer.Stop()
	for range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
			n := 0
			for n == 0 || !stop.Load() {
				if err := w.op(r); err != nil {
					stop.Store(true)
					mu.Lock()
					first = err
					mu.Unlock()
					return
				}
				n++
			}
			done.Add(int64(n))
		})
	}
	wg.Wait()
	if first == nil && w.settle != nil {
		first = w.settle()
	}
	return int(done.Load()), first
}

// reading is what the clocks and counters of this process say.
type reading struct {
	at             time.Time
	cpu            time.Duration
	mallocs, count uint64
}

func (w worker) now() (r reading) {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	r.mallocs = mem.Mallocs
	if w.count != nil {
		r.count = w.count()
	}
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err) // it takes no argument that could be wrong
	}
	r.cpu = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	r.at = time.Now()
	return r
}
