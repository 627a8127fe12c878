package history

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// checker knows what each instance may answer.
type checker struct {
	t     testing.TB
	bound time.Duration // after it everybody must have learned of an invalidation that Redis confirmed
	rows  map[string]*row

	mu     sync.Mutex
	stale  []time.Duration // guarded by mu; of each answer that was not the newest
	checks int             // guarded by mu
	wrong  int             // guarded by mu
	era    int             // guarded by mu; odd while Redis may lose what it has confirmed
}

// row is a row of the database.
type row struct {
	commit sync.Mutex // held while a version is committed

	mu        sync.Mutex
	committed []time.Time    // guarded by mu; when version i+1 was
	floors    map[string]int // guarded by mu; by instance
	confirmed []confirmation // guarded by mu; what Redis confirmed
}

// confirmation says that a version was invalidated, or written through, and that Redis confirmed it.
type confirmation struct {
	at      time.Time
	version int
}

func newChecker(t testing.TB, bound time.Duration, keys []string) *checker {
	c := &checker{t: t, bound: bound, rows: map[string]*row{}}
	for _, key := range keys {
		c.rows[key] = &row{floors: map[string]int{}}
	}
	return c
}

// version is the newest one that was committed.
func (r *row) version() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.committed)
}

// now is the era. What began in another one than it ended in proves nothing.
func (c *checker) now() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.era
}

// forget is called when Redis begins, and when it ceases, to be allowed to lose what it has confirmed: a failover.
func (c *checker) forget() {
	c.mu.Lock()
	c.era++
	c.mu.Unlock()
	for _, r := range c.rows {
		r.mu.Lock()
		clear(r.floors)
		r.confirmed = nil
		r.mu.Unlock()
	}
}

// raise says that an instance must not answer with less than a version of a key from now on.
func (c *checker) raise(era int, instance, key string, version int) {
	r := c.rows[key]
	r.mu.Lock()
	defer r.mu.Unlock()
	if era == c.now() && era%2 == 0 {
		r.floors[instance] = max(r.floors[instance], version)
	}
}

// confirm says that Redis has confirmed an invalidation of a key, made when it had a version.
func (c *checker) confirm(era int, key string, version int) {
	r := c.rows[key]
	r.mu.Lock()
	defer r.mu.Unlock()
	if era != c.now() || era%2 == 1 {
		return
	}
	now := time.Now()
	// Of what is older than the bound only the newest version counts.
	old := 0
	for old+1 < len(r.confirmed) && now.Sub(r.confirmed[old+1].at) > c.bound {
		r.confirmed[old+1].version = max(r.confirmed[old].version, r.confirmed[old+1].version)
		old++
	}
	r.confirmed = append(slices.Delete(r.confirmed, 0, old), confirmation{now, version})
}

// gap says that an instance has declared all void that it had heard and kept.
func (c *checker) gap(instance string) {
	era := c.now()
	for key, r := range c.rows {
		c.raise(era, instance, key, r.inRedis(time.Now()))
	}
}

// inRedis is the least version that Redis may serve after a moment.
func (r *row) inRedis(at time.Time) (version int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.confirmed {
		if !c.at.After(at) {
			version = max(version, c.version)
		}
	}
	return version
}

// question is one read that is under way.
type question struct {
	era      int
	instance string
	key      string
	begun    time.Time
	floor    int // the least version that may be answered
	why      string
}

// ask begins a read of an instance.
func (c *checker) ask(instance, key string) question {
	q := question{era: c.now(), instance: instance, key: key, begun: time.Now()}
	r := c.rows[key]
	r.mu.Lock()
	q.floor, q.why = r.floors[instance], "it had invalidated that, had been told, or had a gap since"
	r.mu.Unlock()
	if v := r.inRedis(q.begun.Add(-c.bound)); v > q.floor {
		q.floor, q.why = v, fmt.Sprintf("that was invalidated more than %v ago", c.bound)
	}
	return q
}

// askRedis begins a look into Redis itself.
func (c *checker) askRedis(key string) question {
	q := question{era: c.now(), instance: "Redis", key: key, begun: time.Now(), why: "Redis had confirmed that"}
	q.floor = c.rows[key].inRedis(q.begun)
	return q
}

// answer checks what a read returned.
func (c *checker) answer(q question, value string) {
	key, text, _ := strings.Cut(value, "/")
	version, err := strconv.Atoi(text)
	r := c.rows[q.key]
	r.mu.Lock()
	newest, superseded := len(r.committed), time.Time{}
	if err == nil && 0 < version && version < newest {
		superseded = r.committed[version]
	}
	r.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks++
	switch {
	case key != q.key || err != nil:
		c.report(q, "a value of another key, or none: %q", value)
	case version > newest:
		c.report(q, "version %d, which was never committed: there are %d", version, newest)
	case c.era == q.era && q.era%2 == 0 && version < q.floor:
		c.report(q, "version %d of %q, and not %d or a newer one: %s", version, q.key, q.floor, q.why)
	}
	if age := q.begun.Sub(superseded); !superseded.IsZero() && age > 0 && c.era == q.era && q.era%2 == 0 {
		c.stale = append(c.stale, age)
	}
}

// failed takes in that a read returned an error, which is one too many: the database never fails.
func (c *checker) failed(q question, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report(q, "an error for %q: %v", q.key, err)
}

// count is the number of answers that were checked.
func (c *checker) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.checks
}

// report fails the test; c.mu is held.
func (c *checker) report(q question, format string, args ...any) {
	if c.wrong++; c.wrong <= 10 {
		c.t.Errorf("%s answered %s", q.instance, fmt.Sprintf(format, args...))
	}
}

// figures describes the answers: how many, and how old those were that were not the newest.
func (c *checker) figures() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := slices.Sorted(slices.Values(c.stale))
	// All answers count, most of them with a staleness of 0.
	at := func(part float64) time.Duration {
		if i := int(part*float64(c.checks)) - (c.checks - len(s)); i >= 0 && i < len(s) {
			return s[i].Round(10 * time.Microsecond)
		}
		return 0
	}
	var worst time.Duration
	if len(s) > 0 {
		worst = s[len(s)-1].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("%d checked answers; staleness p50 %v, p99 %v, p99.9 %v, max %v", c.checks, at(0.5), at(0.99), at(0.999), worst)
}
