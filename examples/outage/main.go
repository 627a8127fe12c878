// Outage shows what becomes of a service when its Redis gets sick: nearside beside a wrapper written by hand, under the same load.
//
//	go run -C examples ./outage             # with a redis-server of its own, found on PATH
//	go run -C examples ./outage -embedded   # nothing to install; this Redis cannot hang
//
// How it runs:
//
//	one stream of requests --+--> nearside, 2 instances --+--> Redis
//	                         |                            +--> a database of its own
//	                         +--> by hand,  2 instances --+--> the same Redis
//	                                                      +--> a database of its own
//
// Both sides are warmed up. Then Redis goes from one phase to the next, while requests keep coming at the same rate whatever becomes of
// those before them. Each phase has a line for each side, with what came back during the phase, whenever it was sent. The sentences
// at the end are made of these figures. -rate 2000 is twice what a database bears without a cache.
//
// Where to look: server.go and embedded.go are Redis, and what befalls it; database.go refuses more loads than it bears; near.go and
// byhand.go are the two ways to use a cache; load.go makes the requests and counts; table.go prints.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/go-nearside/nearside/cache"
)

func main() {
	var o options
	flag.BoolVar(&o.embedded, "embedded", false, "use an embedded Redis instead of redis-server")
	flag.DurationVar(&o.phase, "phase", 2*time.Second, "how long each phase takes")
	flag.IntVar(&o.rate, "rate", 500, "reads a second for each side")
	flag.Parse()
	logging.Disable() // go-redis would log each failed connection, and the wrapper has many
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "outage:", err)
		os.Exit(1)
	}
}

type options struct {
	embedded bool
	phase    time.Duration
	rate     int
}

// backend is a Redis that things befall.
type backend interface {
	addr() string
	phases() []phase
	answer() // ends a hang, so that nobody waits for it any more
	close()
}

// phase is something that befalls Redis, and lasts until the next one begins.
type phase struct {
	name string
	sick bool         // Redis serves nobody
	act  func() error // nil: nothing happens
}

// run takes Redis through its phases and returns the lines of the table. What is opened first is closed last.
func run(ctx context.Context, o options, out io.Writer) (lines []line, err error) {
	if o.phase < 50*time.Millisecond || o.phase > time.Minute {
		return nil, fmt.Errorf("-phase is %v: give 50ms to 1m", o.phase)
	}
	if o.rate < 1 || o.rate > 9999 {
		return nil, fmt.Errorf("-rate is %d: give 1 to 9999", o.rate)
	}
	start := startServer
	if o.embedded {
		start = startEmbedded
	}
	server, err := start()
	if err != nil {
		return nil, err
	}
	defer server.close()

	sides, err := openSides(server.addr())
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range sides {
			if e := s.close(); !errors.Is(e, cache.ErrUnconfirmed) { // what was not deleted ends with this Redis
				err = errors.Join(err, e)
			}
		}
	}()
	warmUp(ctx, sides)

	printHead(out, o.rate)
	for _, s := range sides {
		s.cut() // the warm-up does not count
	}
	stream := startStream(ctx, sides, o.rate)
	defer func() {
		server.answer()
		stream.stop()
	}()
	for _, p := range server.phases() {
		began := time.Now()
		if p.act != nil {
			if err := p.act(); err != nil {
				return lines, fmt.Errorf("%s: %w", p.name, err)
			}
		}
		select {
		case <-time.After(time.Until(began.Add(o.phase))):
		case <-ctx.Done():
			fmt.Fprintln(out, "stopped early")
			return lines, nil
		}
		took := time.Since(began)
		for _, s := range sides {
			lines = append(lines, line{p, s.name, took, s.cut()})
		}
		printPhase(out, lines[len(lines)-len(sides):])
	}
	printConclusion(out, lines)
	return lines, nil
}

// openSides makes the two instances of each side, as if each were a process.
func openSides(addr string) (sides []*side, err error) {
	for _, kind := range []struct {
		name string
		open func(addr string, db *database) (instance, error)
	}{{nearName, openNear}, {handName, openByHand}} {
		s := newSide(kind.name)
		sides = append(sides, s)
		for at := range s.instances {
			if s.instances[at], err = kind.open(addr, s.db); err != nil {
				for _, s := range sides {
					err = errors.Join(err, s.close())
				}
				return nil, err
			}
		}
	}
	return sides, nil
}
