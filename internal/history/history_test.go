package history

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
	"github.com/go-nearside/nearside/invalidation"
)

var (
	seed   = flag.Uint64("history.seed", 0, "what the workers and the faults choose follows from it; 0: of the clock")
	ops    = flag.Int("history.ops", 40_000, "the least number of checked answers for each topology")
	faults = flag.Int("history.faults", 20, "the least number of times that each fault happens")
)

// world is one history: a Redis, a database, and instances.
type world struct {
	topology  *topology
	source    database
	namespace string
	check     *checker
	proxies   []*redistest.Proxy
	member    *member
	random    *rand.Rand // of the faults
	keys      []string   // everybody's
	lastFault atomic.Int64
}

func TestHistory(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Run("standalone", func(t *testing.T) { history(t, standalone) })
	t.Run("Sentinel", func(t *testing.T) { history(t, sentinel) })
	t.Run("cluster", func(t *testing.T) { history(t, cluster) })
}

// TestGoodWeatherHasNoGaps: whatever many writers do to one another, nobody loses its local tier for it.
func TestGoodWeatherHasNoGaps(t *testing.T) {
	w := &world{topology: standalone(t), namespace: "good", source: database{redistest.Shared(t).Client(t)}}
	for i := range 4 { // so few that writers meet
		w.keys = append(w.keys, fmt.Sprintf("good-%d", i))
	}
	w.check = newChecker(t, bound, w.keys)
	for _, key := range w.keys {
		w.commit(t.Context(), key)
	}
	var instances []*local
	for i := range 3 {
		instances = append(instances, w.openLocal(t, strconv.Itoa(i), w.topology.client(t), true))
	}
	for _, in := range instances {
		eventually(t, "the bus hears", in.client.Bus().Live)
	}
	var working sync.WaitGroup
	for i := range len(instances) * workersOf {
		in, random := instances[i/workersOf], rand.New(rand.NewPCG(*seed, uint64(i)))
		working.Go(func() {
			for range 300 {
				if key := w.keys[random.IntN(len(w.keys))]; random.IntN(2) == 0 {
					w.update(t.Context(), in, key)
				} else {
					w.get(t.Context(), in, key)
				}
			}
		})
	}
	working.Wait()
	for _, in := range instances {
		from := in.client.Bus().Health().LastBeat // what was published last is told within some heartbeats
		eventually(t, "some heartbeats", func() bool { return in.client.Bus().Health().LastBeat.Sub(from) > 5*heartbeat })
		gaps, refused := in.client.Bus().Health().Gaps, in.rows.Stats().FillsRefused
		if gaps[invalidation.CauseMissing] > 0 || gaps[invalidation.CauseOverflow] > 0 || refused == 0 {
			t.Errorf("%s: gaps %v; %d fills were refused", in.label, gaps, refused)
		}
	}
}

const (
	sharedKeys = 24
	calmKeys   = 6
	seedKeys   = 3 // for Set: each has one writer
	workersOf  = 2 // per instance
)

func history(t *testing.T, start func(testing.TB) *topology) {
	t.Logf("seed %d", *seed)
	w := &world{
		topology: start(t), namespace: "history", random: rand.New(rand.NewPCG(*seed, 0)),
		source: database{redistest.Shared(t).Client(t)},
	}
	kind, _, _ := strings.Cut(w.topology.where, " ") // they share the database
	var seeds []string
	for i := range sharedKeys {
		w.keys = append(w.keys, fmt.Sprintf("%s-%d", kind, i))
	}
	for i := range seedKeys {
		seeds = append(seeds, fmt.Sprintf("%s-seed-%d", kind, i))
	}
	var calm []string
	for i := range calmKeys {
		calm = append(calm, fmt.Sprintf("%s-calm-%d", kind, i))
	}
	all := slices.Concat(w.keys, calm, seeds)
	w.check = newChecker(t, bound, all)
	for _, key := range all {
		w.commit(t.Context(), key)
	}
	instances := w.openAll(t)

	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for i, in := range instances {
		for n := range workersOf {
			random := rand.New(rand.NewPCG(*seed, uint64(1+i*workersOf+n)))
			working.Go(func() { w.work(ctx, in, random) })
		}
	}
	for i, key := range seeds {
		working.Go(func() { w.seed(ctx, instances[i].(*local), key) })
	}
	working.Go(func() { w.calm(ctx, instances[2], calm) })
	for i, in := range instances {
		working.Go(func() { w.watch(ctx, in, calm, rand.New(rand.NewPCG(*seed, uint64(100+i)))) })
	}
	working.Go(func() { w.look(ctx, slices.Concat(w.keys, calm)) })
	began := time.Now()
	seen := w.weather(t, *faults, *ops)
	stop()
	working.Wait()
	t.Logf("%v: faults %v", time.Since(began).Round(time.Second), seen)
	t.Log(w.check.figures())
	for _, in := range instances {
		if l, ok := in.(*local); ok {
			t.Logf("%s: gaps %v, %+v", l.label, l.client.Bus().Health().Gaps, l.rows.Stats())
		}
	}
	w.agree(t, instances, all)
}

// openAll opens the instances: two with a local tier and one without, and one in another process.
func (w *world) openAll(t testing.TB) (instances []instance) {
	for label, near := range []bool{true, true, false} {
		rdb := w.topology.client
		if w.topology.through != nil && label < 2 {
			p := redistest.NewProxy(t, w.topology.server.Addr())
			w.proxies = append(w.proxies, p)
			rdb = func(t testing.TB) redis.UniversalClient { return w.topology.through(t, p) }
		}
		instances = append(instances, w.openLocal(t, "instance "+strconv.Itoa(label), rdb(t), near))
	}
	w.member = w.startMember(t, "member")
	return append(instances, w.member)
}

// found is how long it takes to find out that a message was lost between two nodes, on a busy machine.
const found = 2*heartbeat + 2*writeBudget

// told takes in that an instance has heard a mark.
func (w *world) told(instance, mark string) {
	key, text, _ := strings.Cut(mark, "/")
	version, err := strconv.Atoi(text)
	if err != nil {
		w.check.t.Errorf("a mark says %q", mark)
		return
	}
	// Between the nodes of a cluster a message can be lost and the mark behind it not; then the publisher tells soon.
	if w.topology.cluster && time.Now().UnixNano() < w.lastFault.Load()+int64(found) {
		return
	}
	w.check.raise(w.check.now(), instance, key, version)
}

// commit writes the next version of a row to the database.
func (w *world) commit(ctx context.Context, key string) (value string, version int, err error) {
	r := w.check.rows[key]
	r.commit.Lock()
	defer r.commit.Unlock()
	version = r.version() + 1
	value = fmt.Sprintf("%s/%d", key, version)
	r.mu.Lock()
	r.committed = append(r.committed, time.Now()) // before, so that nobody reads what is not known yet
	r.mu.Unlock()
	err = w.source.rdb.Set(context.WithoutCancel(ctx), key, value, 0).Err()
	return value, version, err
}

// work does one thing after another with an instance.
func (w *world) work(ctx context.Context, in instance, random *rand.Rand) {
	for ctx.Err() == nil {
		key := w.keys[random.IntN(len(w.keys))]
		switch n := random.IntN(100); {
		case n < 70:
			w.get(ctx, in, key)
		case n < 78:
			var keys []string
			for _, i := range random.Perm(len(w.keys))[:6] {
				keys = append(keys, w.keys[i])
			}
			w.getMany(ctx, in, keys)
		case n < 89:
			w.invalidate(ctx, in, key)
		default:
			w.update(ctx, in, key)
		}
		time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond) // leave some of the machine to the others
	}
}

func (w *world) get(ctx context.Context, in instance, key string) {
	q := w.check.ask(in.name(), key)
	if v, err := in.get(ctx, key); err == nil {
		w.check.answer(q, v)
	} else if ctx.Err() == nil {
		w.check.failed(q, err)
	}
}

func (w *world) getMany(ctx context.Context, in instance, keys []string) {
	questions := map[string]question{}
	for _, key := range keys {
		questions[key] = w.check.ask(in.name(), key)
	}
	values, err := in.getMany(ctx, keys)
	for _, key := range keys {
		if v, ok := values[key]; ok {
			w.check.answer(questions[key], v)
		} else if ctx.Err() == nil { // the database has a row for each
			w.check.failed(questions[key], err)
		}
	}
}

// calm writes a few keys, one after the other, that nobody else writes: what is missed here is not made good by the next write.
func (w *world) calm(ctx context.Context, in instance, keys []string) {
	for i := 0; ctx.Err() == nil; i++ {
		w.invalidate(ctx, in, keys[i%len(keys)])
		select {
		case <-time.After(bound / time.Duration(len(keys)-1)):
		case <-ctx.Done():
		}
	}
}

// watch reads the calm keys.
func (w *world) watch(ctx context.Context, in instance, keys []string, random *rand.Rand) {
	for ctx.Err() == nil {
		w.get(ctx, in, keys[random.IntN(len(keys))])
		time.Sleep(time.Millisecond)
	}
}

func (w *world) invalidate(ctx context.Context, in instance, key string) {
	_, version, err := w.commit(ctx, key)
	if err != nil {
		w.check.t.Error(err)
		return
	}
	era := w.check.now()
	err = in.invalidate(context.WithoutCancel(ctx), key, version)
	w.wrote(era, in, key, version, err)
}

func (w *world) update(ctx context.Context, in instance, key string) {
	era := w.check.now()
	version, err := in.update(context.WithoutCancel(ctx), key, func() (string, int, error) { return w.commit(ctx, key) })
	if version > 0 {
		w.wrote(era, in, key, version, err)
	}
}

// wrote takes in that a write has returned: from now on this instance answers with what it wrote, and so does Redis if it
// returned nil.
func (w *world) wrote(era int, in instance, key string, version int, err error) {
	w.check.raise(era, in.name(), key, version)
	if err == nil {
		w.check.confirm(era, key, version)
	}
}

// seed writes one key by Set, of which nothing is promised but that it is the key's.
func (w *world) seed(ctx context.Context, in *local, key string) {
	for ctx.Err() == nil {
		value, _, err := w.commit(ctx, key)
		if err != nil {
			w.check.t.Error(err)
			return
		}
		_ = in.rows.Set(context.WithoutCancel(ctx), key, value)
		w.get(ctx, in, key)
		time.Sleep(5 * time.Millisecond)
	}
}

// look reads what Redis itself holds.
func (w *world) look(ctx context.Context, keys []string) {
	rdb := w.topology.client(w.check.t)
	random := rand.New(rand.NewPCG(*seed, 1000))
	for ctx.Err() == nil {
		key := keys[random.IntN(len(keys))]
		q := w.check.askRedis(key)
		physicalKey := physical(w.namespace, key)
		raw, err := rdb.Get(ctx, physicalKey).Result()
		if err == nil && len(raw) > headerBytes+len(physicalKey) && raw[kindAt] == 'v' {
			w.check.answer(q, raw[headerBytes+len(physicalKey):])
		}
		time.Sleep(time.Millisecond)
	}
}

// Of a frame: its length before the key, and where its kind stands.
const (
	headerBytes = 104
	kindAt      = 4
)

// agree checks that in good weather all instances soon answer with what the database holds, and go on so. A key whose last delete
// was not confirmed may be old until its TTL ends, so each is deleted once more.
func (w *world) agree(t *testing.T, instances []instance, keys []string) {
	for _, key := range keys {
		eventually(t, "an Invalidate is confirmed", func() bool { return instances[0].invalidate(t.Context(), key, w.check.rows[key].version()) == nil })
	}
	for _, in := range instances {
		for _, key := range keys {
			want := fmt.Sprintf("%s/%d", key, w.check.rows[key].version())
			var got string
			var err error
			ok := within(bound, func() bool {
				got, err = in.get(t.Context(), key)
				return got == want
			})
			if !ok {
				t.Errorf("after quiet %s answers %q, %v; the database holds %s", in.name(), got, err, want)
			}
		}
	}
	for _, in := range instances {
		for _, key := range keys {
			want := fmt.Sprintf("%s/%d", key, w.check.rows[key].version())
			if got, err := in.get(t.Context(), key); got != want {
				t.Errorf("later %s answers %q, %v; the database holds %s", in.name(), got, err, want)
			}
		}
	}
}

func within(d time.Duration, ok func() bool) bool {
	for deadline := time.Now().Add(d); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !within(15*time.Second, ok) {
		t.Errorf("this did not happen: %s", what)
	}
}
