// Package codec turns values into bytes and back.
package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
)

// Codec turns values of one type into bytes and back. Both methods are called from many goroutines at once.
type Codec[V any] interface {
	// Append appends the bytes of v to dst and returns the extended slice.
	Append(dst []byte, v V) ([]byte, error)
	// Decode reads a value. The bytes are lent for the time of the call: what the value needs of them it must copy.
	Decode(data []byte) (V, error)
}

// Default is the codec of values for which no other is given: []byte and string stand as they are, all else is JSON.
func Default[V any]() Codec[V] {
	switch any((*V)(nil)).(type) {
	case *[]byte:
		return any(Bytes{}).(Codec[V])
	case *string:
		return any(Text{}).(Codec[V])
	}
	return JSON[V]{loose: holdsInterface(reflect.TypeFor[V](), nil)}
}

// Bytes stores a []byte as it is.
type Bytes struct{}

// Append appends v.
func (Bytes) Append(dst, v []byte) ([]byte, error) { return append(dst, v...), nil }

// Decode returns a copy of data that is never nil.
func (Bytes) Decode(data []byte) ([]byte, error) { return append([]byte{}, data...), nil }

// Text stores a string as it is.
type Text struct{}

// Append appends v.
func (Text) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }

// Decode returns data as a string.
func (Text) Decode(data []byte) (string, error) { return string(data), nil }

// JSON stores a value as encoding/json does, with two differences, both so that a value is never changed in silence: numbers
// that land in an interface are json.Number, not float64 (which rounds ids above 2^53), and a string that is not valid UTF-8
// is refused, not repaired.
type JSON[V any] struct {
	loose bool // V can hold interfaces
}

var errInvalidUTF8 = errors.New("a string is not valid UTF-8, which JSON cannot hold: use another codec")

// Append appends the JSON of v.
func (JSON[V]) Append(dst []byte, v V) ([]byte, error) {
	out, err := json.Marshal(v)
	if err != nil {
		return dst, err
	}
	if replacedUTF8(out) {
		return dst, errInvalidUTF8
	}
	return append(dst, out...), nil
}

// Decode reads JSON.
func (j JSON[V]) Decode(data []byte) (V, error) {
	var v V
	if !j.loose {
		err := json.Unmarshal(data, &v)
		return v, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return v, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return v, errors.New("bytes after the JSON value")
	}
	return v, nil
}

// replacedUTF8 tells whether encoding/json put a replacement character in place of invalid bytes: it writes that as the
// escape \ufffd, while a replacement character of the input stands in the output as itself.
func replacedUTF8(out []byte) bool {
	for {
		i := bytes.Index(out, []byte(`\ufffd`))
		if i < 0 {
			return false
		}
		backslashes := 1
		for i-backslashes >= 0 && out[i-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 1 {
			return true
		}
		out = out[i+1:]
	}
}

// holdsInterface tells whether a value of type t may hold an interface, in which numbers would lose their type.
func holdsInterface(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	if seen == nil {
		seen = map[reflect.Type]bool{}
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return holdsInterface(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsInterface(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}
