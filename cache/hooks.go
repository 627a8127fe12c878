package cache

import "github.com/go-nearside/nearside/internal/codec"

// Codec turns values into bytes and back. Default: []byte and string stand in Redis as they are (a nil []byte stays nil), and
// anything else as encoding/json writes it, with two differences: numbers in an interface come back as json.Number, with all
// their digits, and a string that is not valid UTF-8 is refused. Unexported fields and those tagged "-" are lost, as always
// with JSON, and a time loses its monotonic clock.
type Codec[V any] = codec.Codec[V]

// Hooks replace what the cache would otherwise derive from the types K and V. A nil field means the default.
type Hooks[K comparable, V any] struct {
	// Key appends the bytes of a key to dst, which is empty. Two different keys must never give the same bytes (parts of
	// varying length need a length or quotes: fmt.Appendf(dst, "%q:%q", k.Tenant, k.ID)), and one key always the same: other
	// processes find the entry by them. Default: strings, integers and encoding.TextMarshaler.
	Key func(dst []byte, key K) ([]byte, error)

	// Codec encodes the values. Default: see Codec.
	Codec Codec[V]

	// Clone makes a private copy for each caller. Default: none, values are shared and read-only.
	Clone func(V) V

	// Cost is the size of a value in the local tier, in bytes. Default: its encoded length.
	Cost func(V) int64
}
