package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-nearside/nearside/cache"
)

const (
	instances  = 2 // of each side
	ttl        = time.Minute
	writeEvery = 100 // reads to one write
	hotRows    = 100 // get nine reads of ten
	deadline   = time.Second
	mostOpen   = 2000 // requests of a side under way
)

// instance is one process of a service, as far as its cache goes.
type instance interface {
	get(ctx context.Context, id int64) (row, cache.Tier, error)
	invalidate(ctx context.Context, id int64) error
	close() error
}

// side is the instances of one kind, their database, and the requests that they have got.
type side struct {
	name      string
	db        *database
	instances [instances]instance
	// floors holds, for each instance, the version of each row that was committed before an invalidation there has returned, with or
	// without an error: what begins later on that instance is to be no older.
	floors [instances][rows]atomic.Int64

	open    atomic.Int64   // requests under way
	ended   sync.WaitGroup // requests
	mu      sync.Mutex
	figures figures // guarded by mu
}

// figures is what became of the requests that ended in some time.
type figures struct {
	answers                        int                       // in time
	from                           [cache.TierLoader + 1]int // of these, by tier
	old                            int                       // of these, older than what was invalidated on the instance before
	refused, shed, late, otherwise int                       // errors: of the database, ErrOverloaded, time-outs, any other
	dropped                        int                       // not sent: too many were open
	times                          []time.Duration
	writes, unconfirmed            int
	loads                          loads
}

func newSide(name string) *side { return &side{name: name, db: new(database)} }

func (s *side) close() (err error) {
	for _, i := range s.instances {
		if i != nil {
			err = errors.Join(err, i.close())
		}
	}
	return err
}

// cut returns the figures, and begins new ones.
func (s *side) cut() figures {
	s.mu.Lock()
	defer s.mu.Unlock()
	cut := s.figures
	cut.loads = s.db.cut()
	s.figures = figures{}
	return cut
}

// count changes the figures.
func (s *side) count(change func(f *figures)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.figures)
}

// request runs in a goroutine of its own, like the request of a client who does not wait for others.
func (s *side) request(ctx context.Context, run func(ctx context.Context)) {
	if s.open.Add(1) > mostOpen {
		s.open.Add(-1)
		s.count(func(f *figures) { f.dropped++ })
		return
	}
	s.ended.Go(func() {
		defer s.open.Add(-1)
		ctx, cancel := context.WithTimeout(ctx, deadline)
		defer cancel()
		run(ctx)
	})
}

func (s *side) read(ctx context.Context, at int, id int64) {
	began := time.Now() // and not when the goroutine has got the processor
	s.request(ctx, func(ctx context.Context) {
		floor := s.floors[at][id].Load()
		r, tier, err := s.instances[at].get(ctx, id)
		took := time.Since(began)
		s.count(func(f *figures) {
			f.times = append(f.times, took)
			switch {
			case errors.Is(err, errTooMany):
				f.refused++
			case errors.Is(err, cache.ErrOverloaded):
				f.shed++
			case took >= deadline, errors.Is(err, context.DeadlineExceeded): // the client has left
				f.late++
			case err != nil:
				f.otherwise++
			default:
				f.answers++
				f.from[tier]++
				if r.Version < floor {
					f.old++
				}
			}
		})
	})
}

func (s *side) write(ctx context.Context, at int, id int64) {
	s.request(ctx, func(ctx context.Context) {
		version := s.db.commit(id)
		err := s.instances[at].invalidate(ctx, id)
		for floor := &s.floors[at][id]; ; {
			was := floor.Load()
			if was >= version || floor.CompareAndSwap(was, version) {
				break
			}
		}
		s.count(func(f *figures) {
			f.writes++
			if err != nil {
				f.unconfirmed++
			}
		})
	})
}

// warmUp reads all rows on all instances, with no more loads at once than the database bears.
func warmUp(ctx context.Context, sides []*side) {
	const readers = bears / instances
	var all sync.WaitGroup
	for _, s := range sides {
		for at, i := range s.instances {
			for reader := range readers {
				all.Go(func() {
					for n := reader; n < rows && ctx.Err() == nil; n += readers {
						i.get(ctx, int64(n+at*rows/instances)%rows) // each instance loads its half, and then finds that of the other
					}
				})
			}
		}
	}
	all.Wait()
}

// stream sends the same requests to all sides.
type stream struct {
	sides []*side
	rate  int // reads a second
	halt  context.CancelFunc
	ended chan struct{}
}

// startStream starts a stream that ends with stop, or with ctx, which ends the requests too.
func startStream(ctx context.Context, sides []*side, rate int) *stream {
	running, halt := context.WithCancel(ctx)
	s := &stream{sides: sides, rate: rate, halt: halt, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		s.run(running, ctx)
	}()
	return s
}

// run sends requests while running lasts; they themselves live as long as ctx.
func (s *stream) run(running, ctx context.Context) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	draw := rand.New(rand.NewPCG(1, 2)) // each run has the same keys
	for began, sent := time.Now(), 0; ; {
		select {
		case <-tick.C:
		case <-running.Done():
			return
		}
		for ; sent < int(time.Since(began).Seconds()*float64(s.rate)); sent++ {
			at, id := draw.IntN(instances), pick(draw)
			for _, side := range s.sides {
				side.read(ctx, at, id)
			}
			if sent%writeEvery == 0 {
				at, id = draw.IntN(instances), pick(draw)
				for _, side := range s.sides {
					side.write(ctx, at, id)
				}
			}
		}
	}
}

// pick draws a row.
func pick(draw *rand.Rand) int64 {
	if draw.IntN(10) == 0 {
		return hotRows + draw.Int64N(rows-hotRows)
	}
	return draw.Int64N(hotRows)
}

// stop ends the stream and waits for the requests under way: each has a deadline, and Redis must not hang.
func (s *stream) stop() {
	s.halt()
	<-s.ended
	for _, side := range s.sides {
		side.ended.Wait()
	}
}
