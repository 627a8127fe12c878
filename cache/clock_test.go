package cache

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

const clockMilli = int64(time.Millisecond)

// clockKnows checks what a clock knows of the server. Each bound may be a little wider: for the drift during a trip.
func clockKnows(t *testing.T, c *clock, at, lower, upper int64) {
	t.Helper()
	const little = 20_000
	e := c.server.Load()
	if e == nil || e.at != at || e.lower > lower || e.lower < lower-little || e.upper < upper || e.upper > upper+little {
		t.Errorf("the estimate is %+v, want %+v", e, estimate{at, lower, upper})
	}
}

func TestClockKnowsNothingBeforeTheFirstWord(t *testing.T) {
	if earliest, latest, ok := newClock().serverNow(); ok || earliest != 0 || latest != 0 {
		t.Errorf("a new clock says %d, %d, %v", earliest, latest, ok)
	}
}

// The server's word was true at some moment between the sending and the receiving.
func TestClockTakesAWordForTheWholeTrip(t *testing.T) {
	c := newClock()
	c.observe(1_000_000, 10*clockMilli, 30*clockMilli)
	clockKnows(t, c, 30*clockMilli, 1_000_000_000-30*clockMilli, 1_000_001_000-10*clockMilli)
}

// Words that agree narrow the estimate from both sides; a word that says less takes nothing away.
func TestClockNarrows(t *testing.T) {
	const server, offset = 1_000_000, 1_000_000_000
	c := newClock()
	c.observe(server, -20*clockMilli, 30*clockMilli)
	c.observe(server, -5*clockMilli, 30*clockMilli) // less before
	clockKnows(t, c, 30*clockMilli, offset-30*clockMilli, offset+1000+5*clockMilli)
	c.observe(server+30_000, -5*clockMilli, 32*clockMilli) // less behind
	lower, upper := offset-2*clockMilli, offset+1000+5*clockMilli+2*clockMilli/drift
	clockKnows(t, c, 32*clockMilli, lower, upper)
	c.observe(server, -time.Hour.Nanoseconds(), time.Hour.Nanoseconds())
	aged := (time.Hour.Nanoseconds() - 32*clockMilli) / drift
	clockKnows(t, c, time.Hour.Nanoseconds(), lower-aged, upper+aged)
}

// What is known ages by the drift of two clocks, on both sides, and not backwards.
func TestClockAges(t *testing.T) {
	e := estimate{at: 100 * clockMilli, lower: -7, upper: 9}
	for later, slack := range map[int64]int64{0: 0, drift: 1, time.Second.Nanoseconds(): 200_000, time.Hour.Nanoseconds(): 720 * clockMilli} {
		now := e.at + later
		if got, want := e.aged(now), (estimate{now, -7 - slack, 9 + slack}); got != want {
			t.Errorf("%v later: %+v, want %+v", time.Duration(later), got, want)
		}
	}
	if got, want := e.aged(0), (estimate{0, -7, 9}); got != want {
		t.Errorf("earlier: %+v, want %+v", got, want)
	}

	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		c.observe(5_000_000, 0, 0)
		for _, wait := range []time.Duration{0, time.Second, time.Hour} {
			time.Sleep(wait)
			now := c.now()
			earliest, latest, ok := c.serverNow()
			if slack := now / drift / 1000; !ok || earliest != 5_000_000+now/1000-slack || latest != 5_000_002+now/1000+slack {
				t.Errorf("after %v: %d to %d, %v", time.Duration(now), earliest, latest, ok)
			}
		}
	})
}

// If a word contradicts what is known, however little, a clock was set or the server is another one: the newer word counts.
func TestClockBelievesTheNewerOfTwoContradictions(t *testing.T) {
	const sent, received = 40 * clockMilli, 41 * clockMilli
	for name, server := range map[string]int64{"before": 998_998, "behind": 1_001_002, "long before": 1, "long behind": 1 << 50} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			c.observe(1_000_000, sent, received)
			c.observe(server, sent, received)
			clockKnows(t, c, received, server*1000-received, (server+1)*1000-sent)
		})
	}
	for name, server := range map[string]int64{"just not before": 998_999, "just not behind": 1_001_001} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			c.observe(1_000_000, sent, received)
			c.observe(server, sent, received)
			lower, upper := max(server, 1_000_000)*1000-received, (min(server, 1_000_000)+1)*1000-sent
			clockKnows(t, c, received, lower, upper)
		})
	}
}

// clockServer is the clock of a server that goes wrong by at most 100 ppm, in a bubble. All in nanoseconds of ours.
type clockServer struct {
	ours  *clock
	base  int64 // what it shows when ours is at since
	since int64
	tempo int64 // ppm
}

// now is what the server's clock shows, in microseconds.
func (s *clockServer) now() int64 {
	passed := s.ours.now() - s.since
	return (s.base + passed + passed*s.tempo/1_000_000) / 1000
}

// clockTrip is a question to the server: how long each way takes, and how long nobody asks after it.
type clockTrip struct{ there, back, pause time.Duration }

// ask makes a trip, without the pause.
func (s *clockServer) ask(trip clockTrip) {
	sent := s.ours.now()
	time.Sleep(trip.there)
	word := s.now()
	time.Sleep(trip.back)
	s.ours.observe(word, sent, s.ours.now())
}

// set makes the server's clock show something else.
func (s *clockServer) set(step time.Duration) {
	s.base, s.since = s.now()*1000+int64(step), s.ours.now()
}

// bracket returns the time that the clock knows the server's by, and an error if the truth does not lie there.
func (s *clockServer) bracket() (width time.Duration, err error) {
	earliest, latest, ok := s.ours.serverNow()
	if truth := s.now(); !ok || truth < earliest || truth > latest {
		return 0, fmt.Errorf("at %v the server's clock shows %d, said was %d to %d, %v", time.Duration(s.ours.now()), truth, earliest, latest, ok)
	}
	return time.Duration(latest-earliest) * time.Microsecond, nil
}

func clockDurations(most ...time.Duration) *rapid.Generator[time.Duration] {
	var ranges []*rapid.Generator[time.Duration]
	for _, d := range most {
		ranges = append(ranges, rapid.Map(rapid.Int64Range(0, int64(d)), func(n int64) time.Duration { return time.Duration(n) }))
	}
	return rapid.OneOf(ranges...)
}

var (
	clockDelays = clockDurations(time.Microsecond, 200*time.Microsecond, 250*time.Millisecond)
	clockPauses = clockDurations(time.Millisecond, time.Minute, 24*time.Hour)
	clockTrips  = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) clockTrip {
		return clockTrip{clockDelays.Draw(t, "there"), clockDelays.Draw(t, "back"), clockPauses.Draw(t, "pause")}
	}), 1, 20)
	clockTempos = rapid.Int64Range(-100, 100) // ppm
)

// clockBubble runs a scene where time is as it says, and fails the check with its error.
func clockBubble(t *testing.T, check *rapid.T, scene func() error) {
	var err error
	synctest.Test(t, func(*testing.T) { err = scene() })
	if err != nil {
		check.Fatal(err)
	}
}

// Whatever the offset, the drift and the delays, and however unequal the two ways are: the server's time lies in the bracket.
func TestClockBracketsTheServersTime(t *testing.T) {
	rapid.Check(t, func(check *rapid.T) {
		base := rapid.Int64Range(int64(time.Hour), 1<<61).Draw(check, "offset")
		tempo, trips := clockTempos.Draw(check, "tempo"), clockTrips.Draw(check, "trips")
		clockBubble(t, check, func() error {
			s := &clockServer{ours: newClock(), base: base, tempo: tempo}
			for _, trip := range trips {
				s.ask(trip)
				width, err := s.bracket()
				if err != nil {
					return err
				}
				if took := trip.there + trip.back; width > took+took/1000+3*time.Microsecond {
					return fmt.Errorf("right after a trip of %v the bracket is %v wide", took, width)
				}
				time.Sleep(trip.pause)
				if _, err := s.bracket(); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// A server whose clock was set, or another server, is believed at its next word, if the step can be told from the delays.
func TestClockBelievesAStepAtTheNextWord(t *testing.T) {
	rapid.Check(t, func(check *rapid.T) {
		tempo, trips := clockTempos.Draw(check, "tempo"), clockTrips.Draw(check, "trips")
		next := clockTrip{there: clockDelays.Draw(check, "there"), back: clockDelays.Draw(check, "back")}
		step := rapid.Int64Range(0, int64(1000*time.Hour)).Draw(check, "step")
		backInTime := rapid.Bool().Draw(check, "back in time")
		clockBubble(t, check, func() error {
			s := &clockServer{ours: newClock(), base: 1 << 60, tempo: tempo}
			for _, trip := range trips {
				s.ask(trip)
				time.Sleep(trip.pause)
			}
			width, err := s.bracket()
			if err != nil {
				return err
			}
			trip := next.there + next.back
			step := time.Duration(step) + width + trip + trip/1000 + 10*time.Microsecond
			if backInTime {
				step = -step
			}
			s.set(step)
			if _, err := s.bracket(); err == nil {
				return fmt.Errorf("a step of %v stays in the bracket", step)
			}
			s.ask(next)
			_, err = s.bracket()
			return err
		})
	})
}

// Words that come in together, and in any order, leave the clock with the truth.
func TestClockBesideItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &clockServer{ours: newClock(), base: int64(time.Hour), tempo: 100}
		done := make(chan struct{})
		const callers = 8
		for i := range callers {
			go func() {
				for range 200 {
					s.ask(clockTrip{there: time.Duration(i*50) * time.Microsecond, back: time.Duration(callers-i) * 100 * time.Microsecond})
				}
				done <- struct{}{}
			}()
		}
		for range callers {
			<-done
			if _, err := s.bracket(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestCoarseClockFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			c.run(stop)
		}()
		for range 50 {
			time.Sleep(7 * time.Millisecond)
			synctest.Wait()
			if behind := c.now() - c.coarse.Load(); behind < 0 || behind >= int64(tick) {
				t.Fatalf("the coarse clock is %v behind", time.Duration(behind))
			}
		}
		close(stop)
		<-ended
	})
}
