package cache

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/cespare/xxhash/v2"
)

// MaxKeyBytes is the longest key, encoded, that is accepted.
const MaxKeyBytes = 16 << 10

// keys turns the keys of one cache into physical keys and hashes.
//
// A physical key is "<namespace>:c:<name>:<key>". Namespace and name are escaped so that they hold no colon: no two different
// (name, encoded key) pairs give the same physical key, whatever bytes they hold. The hash depends on the physical key alone, so it is
// the same in every process.
type keys[K comparable] struct {
	prefix string
	seed   uint64
	encode func(dst []byte, key K) ([]byte, error)
	sum    func(key K) uint64 // xxhash of the encoded key, without allocation; nil if K has no such shortcut
}

func newKeys[K comparable](namespace, name string, hook func([]byte, K) ([]byte, error)) (*keys[K], error) {
	k := &keys[K]{prefix: escape(namespace) + ":c:" + escape(name) + ":", encode: hook}
	k.seed = xxhash.Sum64String(k.prefix)
	t := reflect.TypeFor[K]()
	switch kind := t.Kind(); {
	case kind == reflect.Interface:
		return nil, &ConfigError{"the key type", t, "use a concrete type, not an interface"}
	case hook != nil:
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		k.encode = appendText[K]
	case kind == reflect.String:
		k.encode = func(dst []byte, key K) ([]byte, error) { return append(dst, asString(key)...), nil }
		k.sum = func(key K) uint64 { return xxhash.Sum64String(asString(key)) }
	case kind >= reflect.Int && kind <= reflect.Int64:
		k.encode = func(dst []byte, key K) ([]byte, error) { return strconv.AppendInt(dst, asInt(key), 10), nil }
		k.sum = func(key K) uint64 {
			var digits [20]byte
			return xxhash.Sum64(strconv.AppendInt(digits[:0], asInt(key), 10))
		}
	case kind >= reflect.Uint && kind <= reflect.Uint64:
		k.encode = func(dst []byte, key K) ([]byte, error) { return strconv.AppendUint(dst, asUint(key), 10), nil }
		k.sum = func(key K) uint64 {
			var digits [20]byte
			return xxhash.Sum64(strconv.AppendUint(digits[:0], asUint(key), 10))
		}
	default:
		return nil, &ConfigError{"the key type", t, "give Hooks.Key, or use a string, an integer or an encoding.TextMarshaler"}
	}
	return k, nil
}

// hash returns the hash of a key. A key that cannot be encoded has none: physical says why.
func (k *keys[K]) hash(key K) (uint64, bool) {
	if k.sum != nil {
		return k.mix(k.sum(key)), true
	}
	buffer := keyBuffers.Get().(*[]byte)
	defer keyBuffers.Put(buffer)
	encoded, err := k.encode((*buffer)[:0], key)
	return k.mix(xxhash.Sum64(encoded)), err == nil
}

var keyBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 128); return &b }}

// hashEncoded returns the hash of a key from its encoded form.
func (k *keys[K]) hashEncoded(encoded string) uint64 { return k.mix(xxhash.Sum64String(encoded)) }

// mix spreads a sum so that the keys of two caches, and the bits of one hash, have nothing in common.
func (k *keys[K]) mix(sum uint64) uint64 {
	h := (sum ^ k.seed) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// physical returns the key under which Redis holds an entry, and the key's hash.
func (k *keys[K]) physical(key K) (physical string, hash uint64, err error) {
	buffer := keyBuffers.Get().(*[]byte)
	defer keyBuffers.Put(buffer)
	long, hash, err := k.appendPhysical((*buffer)[:0], key)
	return string(long), hash, err
}

// appendPhysical appends what physical returns. After an error it appends nothing.
func (k *keys[K]) appendPhysical(dst []byte, key K) (longer []byte, hash uint64, err error) {
	if key != key {
		return dst, 0, fmt.Errorf("%w: it is not equal to itself: it holds a NaN", ErrBadKey)
	}
	buffer := keyBuffers.Get().(*[]byte)
	defer keyBuffers.Put(buffer)
	encoded, err := k.encode((*buffer)[:0], key) // not behind the prefix, which is none of a hook's business
	switch n := len(encoded); {
	case err != nil:
		return dst, 0, fmt.Errorf("%w: %w", ErrBadKey, err)
	case n == 0:
		return dst, 0, fmt.Errorf("%w: it is empty: check for that before asking the cache", ErrBadKey)
	case n > MaxKeyBytes:
		return dst, 0, fmt.Errorf("%w: it has %d bytes, at most %d are possible: use a hash of it", ErrBadKey, n, MaxKeyBytes)
	}
	return append(append(dst, k.prefix...), encoded...), k.mix(xxhash.Sum64(encoded)), nil
}

var errNilKey = errors.New("it is nil")

func appendText[K comparable](dst []byte, key K) ([]byte, error) {
	if v := reflect.ValueOf(key); v.Kind() == reflect.Pointer && v.IsNil() {
		return dst, errNilKey
	}
	text, err := any(key).(encoding.TextMarshaler).MarshalText()
	return append(dst, text...), err
}

// escape writes a name without the colon that ends it in a physical key, and without the braces that would give all its keys
// one cluster slot.
func escape(name string) string {
	return strings.NewReplacer("%", "%25", ":", "%3A", "{", "%7B", "}", "%7D").Replace(name)
}

// The three views below read a key whose kind was checked by newKeys, without the allocation of reflect or of an interface.

func asString[K comparable](key K) string { return *(*string)(unsafe.Pointer(&key)) }

func asInt[K comparable](key K) int64 {
	switch unsafe.Sizeof(key) {
	case 1:
		return int64(*(*int8)(unsafe.Pointer(&key)))
	case 2:
		return int64(*(*int16)(unsafe.Pointer(&key)))
	case 4:
		return int64(*(*int32)(unsafe.Pointer(&key)))
	}
	return *(*int64)(unsafe.Pointer(&key))
}

func asUint[K comparable](key K) uint64 {
	switch unsafe.Sizeof(key) {
	case 1:
		return uint64(*(*uint8)(unsafe.Pointer(&key)))
	case 2:
		return uint64(*(*uint16)(unsafe.Pointer(&key)))
	case 4:
		return uint64(*(*uint32)(unsafe.Pointer(&key)))
	}
	return *(*uint64)(unsafe.Pointer(&key))
}
