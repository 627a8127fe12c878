package cache

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Loader reads rows from the source. A key that is missing from the answer has no row (nor is its absence cached if the answer
// holds keys, rows or errors of them, that were not asked for: a time.Time with another location is another key). To fail for
// some keys only, it returns a *KeyErrors, not wrapped, beside the values of the others; any other error fails all keys and its
// values are ignored. An error that wraps ErrNotFound says that none of the keys has a row; callers then get ErrNotFound itself.
// Translate the word of your driver (sql.ErrNoRows): to the cache it is an error like any other, and not kept. A nil pointer is
// a value like any other too.
//
// The keys are distinct, and belong to the cache: a loader must not change the slice. Its context ends after
// Policy.LoadTimeout, when nobody waits for its result any more, and when the client closes; a loader that goes on after that
// is not waited for, and its result is dropped.
type Loader[K comparable, V any] func(ctx context.Context, keys []K) (map[K]V, error)

// singleConcurrency bounds the calls that Single runs at once for one batch.
const singleConcurrency = 16

// Single makes a Loader of a function that reads one row and returns ErrNotFound, wrapped or not, where there is none (not a
// nil pointer: that would be cached as a value). A batch runs it for up to 16 keys at once; each counts as a load for Config.MaxLoads.
func Single[K comparable, V any](load func(ctx context.Context, key K) (V, error)) Loader[K, V] {
	if load == nil {
		return nil
	}
	return func(ctx context.Context, keys []K) (map[K]V, error) {
		if len(keys) == 1 {
			v, err := load(ctx, keys[0])
			if err != nil {
				return nil, err
			}
			return map[K]V{keys[0]: v}, nil
		}
		return loadEach(ctx, keys, load)
	}
}

// loadEach loads each key by a call of its own, up to singleConcurrency at once, and as many as get places at the gate.
func loadEach[K comparable, V any](ctx context.Context, keys []K, load func(ctx context.Context, key K) (V, error)) (map[K]V, error) {
	var (
		mu     sync.Mutex
		values = make(map[K]V, len(keys))
		failed = map[K]error{}
		calls  sync.WaitGroup
	)
	gate, _ := ctx.Value(innermost{}).(*gate)
	free := make(chan struct{}, singleConcurrency) // places that are ours and not in use
	free <- struct{}{}                             // that of the whole load
	held := 1
	for i := range keys {
		if err := ctx.Err(); err != nil { // nobody waits any more
			mu.Lock()
			for _, key := range keys[i:] {
				failed[key] = err
			}
			mu.Unlock()
			break
		}
		select {
		case <-free:
		default:
			if held < singleConcurrency && gate.tryEnter() {
				held++
			} else {
				<-free
			}
		}
		calls.Go(func() {
			defer func() { free <- struct{}{} }()
			var v V
			guard(func() (err error) { v, err = load(ctx, keys[i]); return err }, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					values[keys[i]] = v
				case !absent(err):
					failed[keys[i]] = err
				}
			})
		})
	}
	for ; held > 1; held-- { // each place as soon as nothing is left for it
		<-free
		gate.leave()
	}
	calls.Wait()
	if len(failed) > 0 {
		return values, &KeyErrors[K]{ByKey: failed}
	}
	return values, nil
}

// errGoexit is the value of the PanicError of a function that called runtime.Goexit.
var errGoexit = errors.New("runtime.Goexit was called")

// guard runs f and reports its error once, also when it panics or calls runtime.Goexit: then as a *PanicError. A panic ends
// here; a Goexit goes on to end the goroutine.
func guard(f func() error, report func(error)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover()
		if value == nil {
			value = errGoexit
		}
		report(&PanicError{Value: value, Stack: debug.Stack()})
	}()
	err := f()
	returned = true
	report(err)
}

// loaded is what a loader answered.
type loaded[K comparable, V any] struct {
	values  map[K]V
	failed  map[K]error // of single keys
	err     error       // of all keys
	foreign int         // rows, and errors of single keys, that nobody asked for
}

// of returns the answer for one key.
func (l *loaded[K, V]) of(key K) (v V, err error) {
	if l.err != nil {
		return v, l.err
	}
	if err := l.failed[key]; err != nil {
		return v, err
	}
	v, found := l.values[key]
	if !found {
		return v, ErrNotFound
	}
	return v, nil
}

// callLoader calls a loader in a goroutine of its own, once it has a place at the gate, and waits for it while ctx lives, at most for
// LoadTimeout.
func (c *Cache[K, V]) callLoader(l *load, keys []K, loader Loader[K, V]) loaded[K, V] {
	if err := l.ctx.Err(); err != nil {
		return loaded[K, V]{err: err} // nobody waits any more
	}
	ctx, cancel := context.WithTimeout(l.ctx, c.policy.LoadTimeout)
	defer cancel()
	placed, err := c.client.gate.enter(ctx, l)
	if err != nil {
		return loaded[K, V]{err: err}
	}
	held, end := c.client.gate.under(ctx)
	done := make(chan loaded[K, V], 1)
	started := !c.client.closed.Load() && c.client.loaders.Go(func() { // when the client closes, all places come free
		if placed {
			defer c.client.gate.leave()
		}
		defer end()
		c.stats.loaderCalls.Add(1)
		c.stats.loads.Add(uint64(len(keys)))
		var out loaded[K, V]
		guard(
			func() (err error) { out.values, err = loader(held, keys); return err },
			func(err error) {
				out.values, out.failed, out.err = splitKeyErrors(out.values, err)
				out.foreign = foreign(keys, out.values) + foreign(keys, out.failed)
				done <- out
			},
		)
	})
	if !started {
		if placed {
			c.client.gate.leave()
		}
		return loaded[K, V]{err: ErrClosed}
	}
	select {
	case out := <-done:
		c.stats.foreignRows.Add(uint64(out.foreign))
		return out
	case <-ctx.Done():
		return loaded[K, V]{err: fmt.Errorf("the loader did not answer within %v, the wait for a place included: %w",
			c.policy.LoadTimeout, ctx.Err())}
	case <-c.client.closing:
		return loaded[K, V]{err: ErrClosed}
	}
}

// splitKeyErrors takes apart what a loader returned: a *KeyErrors beside values speaks of single keys, any other error, one that
// wraps a *KeyErrors too, of all.
func splitKeyErrors[K comparable, V any](values map[K]V, err error) (map[K]V, map[K]error, error) {
	if err == nil {
		return values, nil, nil
	}
	switch byKey, ok := err.(*KeyErrors[K]); {
	case ok && byKey == nil: // a nil pointer that was returned as an error: no key failed
		return values, nil, nil
	case ok && values != nil:
		return values, byKey.ByKey, nil
	}
	return nil, nil, err
}

// foreign counts what nobody asked for.
func foreign[K comparable, X any](keys []K, values map[K]X) int {
	n := len(values)
	for _, key := range keys {
		if _, ok := values[key]; ok {
			n--
		}
	}
	return max(0, n)
}

// absent tells whether an error of the loader says that there is no row. A panic never does, whatever its value wraps.
func absent(err error) bool {
	if !errors.Is(err, ErrNotFound) {
		return false
	}
	var panicked *PanicError
	return !errors.As(err, &panicked)
}
