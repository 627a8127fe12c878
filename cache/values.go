package cache

import (
	"fmt"
	"math"
	"time"
	"unsafe"
)

// encoded is a value as it goes into the tiers.
type encoded[V any] struct {
	value   V // what the codec reads back: this is what callers get, at the first call as at every later one
	payload []byte
	flags   byte
}

// encode runs the codec in both directions. A panic of the codec is a *PanicError; any other failure wraps ErrCodec.
func (c *Cache[K, V]) encode(v V) (encoded[V], error) {
	var out encoded[V]
	var err error
	guard(func() (err error) {
		if raw, ok := any(v).([]byte); ok && raw == nil && c.hooks.Codec == nil {
			out.flags = flagNil
			return nil
		}
		if out.payload, err = c.codec.Append(nil, v); err != nil {
			return fmt.Errorf("%w: encode: %w", ErrCodec, err)
		}
		if out.value, err = c.codec.Decode(out.payload); err != nil {
			return fmt.Errorf("%w: read back: %w", ErrCodec, err)
		}
		return nil
	}, func(e error) { err = e })
	if err != nil {
		c.stats.encodeErrors.Add(1)
	}
	return out, err
}

// decode reads the payload of a frame.
func (c *Cache[K, V]) decode(flags byte, payload string) (v V, err error) {
	if flags&flagNil != 0 {
		return v, nil
	}
	guard(func() (err error) {
		// The codec gets the bytes of the string: it may not change or keep them.
		v, err = c.codec.Decode(unsafe.Slice(unsafe.StringData(payload), len(payload)))
		return err
	}, func(e error) { err = e })
	return v, err
}

// cost is what an entry takes of the local tier. A Cost hook that panics makes it too large to keep.
func (c *Cache[K, V]) cost(e *entry[K, V], size int) int64 {
	if c.hooks.Cost == nil || e.negative {
		return int64(size)
	}
	cost := int64(math.MaxInt64)
	guard(func() error { cost = c.hooks.Cost(e.value); return nil }, func(error) {})
	return cost
}

// warnCodec logs a failure of the codec, once a minute at most: the counters have them all.
func (c *Cache[K, V]) warnCodec(message string, err error) {
	now, last := c.client.clock.now(), c.warned.Load()
	if (last == 0 || now-last > int64(time.Minute)) && c.warned.CompareAndSwap(last, now) {
		c.client.log.Warn("nearside: "+message, "cache", c.name, "error", err)
	}
}
