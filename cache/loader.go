package cache

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Loader reads rows from the source. A key that is missing from the answer has no row. To fail for some keys only, it returns
// a *KeyErrors beside the values of the others; any other error fails all keys and its values are ignored. An error that
// wraps ErrNotFound says that none of the keys has a row; callers then get ErrNotFound itself. Translate the word of your
// driver (sql.ErrNoRows): to the cache it is an error like any other, and not kept. A nil pointer is a value like any other too.
//
// The keys are distinct, and belong to the cache: a loader must not change the slice. Its context ends after
// Policy.LoadTimeout, when nobody waits for its result any more, and when the client closes; a loader that goes on after that
// is not waited for, and its result is dropped.
type Loader[K comparable, V any] func(ctx context.Context, keys []K) (map[K]V, error)

// singleConcurrency bounds the calls that Single runs at once for one batch.
const singleConcurrency = 16

// Single makes a Loader of a function that reads one row and returns ErrNotFound, wrapped or not, where there is none (not a
// nil pointer: that would be cached as a value). A batch runs it for up to 16 keys at once.
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
		var (
			mu     sync.Mutex
			values = make(map[K]V, len(keys))
			failed = map[K]error{}
			calls  errgroup.Group
		)
		calls.SetLimit(singleConcurrency)
		for _, key := range keys {
			calls.Go(func() error {
				var v V
				guard(func() (err error) { v, err = load(ctx, key); return err }, func(err error) {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil:
						values[key] = v
					case !errors.Is(err, ErrNotFound):
						failed[key] = err
					}
				})
				return nil
			})
		}
		_ = calls.Wait()
		if len(failed) > 0 {
			return values, &KeyErrors[K]{ByKey: failed}
		}
		return values, nil
	}
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

// callLoader calls a loader in a goroutine of its own, and waits for it while ctx lives, at most for LoadTimeout. It returns
// the values, the errors of single keys, and the error of all.
func (c *Cache[K, V]) callLoader(ctx context.Context, keys []K, loader Loader[K, V]) (map[K]V, map[K]error, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err // nobody waits any more
	}
	ctx, cancel := context.WithTimeout(ctx, c.policy.LoadTimeout)
	defer cancel()
	type outcome struct {
		values map[K]V
		err    error
	}
	done := make(chan outcome, 1)
	c.stats.loaderCalls.Add(1)
	c.stats.loads.Add(uint64(len(keys)))
	started := c.client.loaders.Go(func() {
		var out outcome
		guard(
			func() (err error) { out.values, err = loader(ctx, keys); return err },
			func(err error) { out.err = err; done <- out },
		)
	})
	if !started {
		return nil, nil, ErrClosed
	}
	select {
	case out := <-done:
		values, failed, err := splitKeyErrors(out.values, out.err)
		c.countForeign(keys, values)
		return values, failed, err
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("the loader did not answer within %v: %w", c.policy.LoadTimeout, ctx.Err())
	case <-c.client.closing:
		return nil, nil, ErrClosed
	}
}

// splitKeyErrors takes apart what a loader returned: a *KeyErrors speaks of single keys, any other error of all.
func splitKeyErrors[K comparable, V any](values map[K]V, err error) (map[K]V, map[K]error, error) {
	var byKey *KeyErrors[K]
	switch {
	case err == nil:
		return values, nil, nil
	case errors.As(err, &byKey) && len(byKey.ByKey) > 0:
		return values, byKey.ByKey, nil
	}
	return nil, nil, err
}

// countForeign counts the rows that nobody asked for.
func (c *Cache[K, V]) countForeign(keys []K, values map[K]V) {
	foreign := len(values)
	for _, key := range keys {
		if _, ok := values[key]; ok {
			foreign--
		}
	}
	c.stats.foreignRows.Add(uint64(foreign))
}
