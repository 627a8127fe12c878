package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// line is what became of the requests of one side in one phase.
type line struct {
	phase phase
	side  string
	took  time.Duration
	figures
}

// failed counts what was not sent too.
func (l *line) failed() int { return l.refused + l.shed + l.late + l.otherwise + l.dropped }

// quantile returns the time within which a part of the requests ended, errors included: their clients waited too.
func (l *line) quantile(part float64) time.Duration {
	if len(l.times) == 0 {
		return 0
	}
	slices.Sort(l.times)
	return l.times[int(part*float64(len(l.times)-1))]
}

func printHead(out io.Writer, rate int) {
	fmt.Fprintf(out, `%d reads and %d writes a second for each side, on %d instances; 9 reads of 10 ask for %d of %d rows.
A load takes %d ms; a database bears %d at once, and nearside's MaxLoads is %d for each instance. A line tells
what came back in that phase: in time (ok), or an error of the database (db), ErrOverloaded (shed), later than
%v (late), another or not sent (else); p50 and p99 count both. loads: all, most at once, and those refused.
old: answers older than what that instance had invalidated before they were asked for.

%-25s| -------- errors -------    ms     |      loads        | answers from (%%)   |
%-16s%-9s|  ok/s   db shed  late else   p50  p99|  all most refused | local redis loader | old
`, rate, rate/writeEvery, instances, hotRows, rows, loadTime.Milliseconds(), bears, bears/instances, deadline, "", "redis", "side")
}

func printPhase(out io.Writer, lines []line) {
	for i, l := range lines {
		name := l.phase.name
		if i > 0 {
			name = ""
		}
		fmt.Fprintf(out, "%-16s%-9s|%6.0f %4d %4d %5d %4d %5s %4s| %4d %4d %7d | %5s %5s %6s | %3d\n", name, l.side,
			float64(l.answers)/l.took.Seconds(), l.refused, l.shed, l.late, l.otherwise+l.dropped,
			l.wait(.5), l.wait(.99), l.loads.total, l.loads.most, l.loads.refused,
			l.share(cache.TierLocal), l.share(cache.TierRedis), l.share(cache.TierLoader), l.old)
	}
}

// share is the part of the answers that came from a tier, in percent.
func (l *line) share(tier cache.Tier) string {
	if l.answers == 0 || tier == cache.TierLocal && l.side == handName {
		return "-"
	}
	return fmt.Sprint(percent(l.from[tier], l.answers))
}

// wait is a quantile as the table shows it.
func (l *line) wait(part float64) string {
	if len(l.times) == 0 {
		return "-"
	}
	return millis(l.quantile(part))
}

func millis(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.0f", d.Seconds()*1000)
}

// percent is rounded down, so that 100 means all.
func percent(part, all int) int { return part * 100 / max(1, all) }

// sum is what a side's lines say together.
type sum struct {
	answers, all   [2]int // in good phases, and in sick ones; all counts what was not sent too
	failed         int
	slowest, worst *line // by p99, and by what failed
	most, refused  int
	shed, old      int
	writes, lost   int
}

func sumUp(lines []line, side string) (s sum) {
	for i := range lines {
		l := &lines[i]
		if l.side != side {
			continue
		}
		sick := 0
		if l.phase.sick {
			sick = 1
		}
		s.answers[sick] += l.answers
		s.all[sick] += l.answers + l.failed()
		s.failed += l.failed()
		if s.slowest == nil || l.quantile(.99) > s.slowest.quantile(.99) {
			s.slowest = l
		}
		if s.worst == nil || l.failed() > s.worst.failed() {
			s.worst = l
		}
		s.most, s.refused = max(s.most, l.loads.most), s.refused+l.loads.refused
		s.shed, s.old = s.shed+l.shed, s.old+l.old
		s.writes, s.lost = s.writes+l.writes, s.lost+l.unconfirmed
	}
	return s
}

// printConclusion claims nothing that the figures do not say.
func printConclusion(out io.Writer, lines []line) {
	n, h := sumUp(lines, nearName), sumUp(lines, handName)
	say := func(format string, a ...any) { fmt.Fprintf(out, format+"\n", a...) }
	say("\nWhile Redis was sick, nearside answered %d %% and the wrapper by hand %d %%; else it was %d %% and %d %%.",
		percent(n.answers[1], n.all[1]), percent(h.answers[1], h.all[1]), percent(n.answers[0], n.all[0]), percent(h.answers[0], h.all[0]))
	say("The highest p99 of a phase was %s ms with nearside (%s), and %s ms by hand (%s).",
		millis(n.slowest.quantile(.99)), n.slowest.phase.name, millis(h.slowest.quantile(.99)), h.slowest.phase.name)
	say("Of its database nearside wanted at most %d loads at once, and by hand it was %d; refused were %d and %d.",
		n.most, h.most, n.refused, h.refused)
	say("Redis did not confirm %d of %d invalidations of nearside, %d of %d by hand; old answers were %d and %d.",
		n.lost, n.writes, h.lost, h.writes, n.old, h.old)
	if n.failed == 0 {
		say("No request to nearside failed; by hand %d did.", h.failed)
	} else {
		say("Of the requests to nearside %d failed (%d shed), %d of them in %q; by hand %d did.",
			n.failed, n.shed, n.worst.failed(), n.worst.phase.name, h.failed)
	}
}
