package codec_test

import (
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/go-nearside/nearside/internal/codec"
)

// FuzzDecode holds the decoders to this: they never panic, and what they read is written and read again as the same value.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "null", "5", "18446744073709551615", "1e999", `"\ud800"`, `{"Name":"a","Any":{"b":[1.0]}}`, `{"Children":[{"Value":1}]}`, "{} {}", "\xff",
		`{"Any":"\ufffd"}`, `[{},[[]]]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		again[any](t, data)
		again[nested](t, data)
		again[looseTree](t, data)
		again[map[string]tree](t, data)
		again[plain](t, data)
		again[[]string](t, data)
		again[raw](t, data)
		again[[]byte](t, data)
		again[string](t, data)
	})
}

func again[V any](t *testing.T, data []byte) {
	c := codec.Default[V]()
	v, err := c.Decode(data)
	if err != nil {
		return
	}
	written, err := c.Append(nil, v)
	if err != nil {
		t.Fatalf("%q is decoded as %#v, which is refused: %v", data, v, err)
	}
	if got, err := c.Decode(written); err != nil || !reflect.DeepEqual(got, v) {
		t.Fatalf("%q is decoded as %#v, which comes back as %#v, %v", data, v, got, err)
	}
}

// FuzzUTF8 holds the JSON codec to this: it takes a string, wherever it stands, exactly if it is UTF-8, and gives it back.
func FuzzUTF8(f *testing.F) {
	for _, seed := range []string{"", "a", "\xff", "\ufffd", `\ufffd`, `\\ufffd`, `\` + "\xff", "\ufffd\xff", `"\ufffd"`, "\xed\xa0\x80", "\u2028<"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		takes(t, s, text(s))
		takes[any](t, s, s)
		takes(t, s, []string{"a", s, s})
		takes(t, s, map[string]string{s: s})
		takes(t, s, nested{Name: s, Any: s})
	})
}

func takes[V any](t *testing.T, s string, v V) {
	c := codec.Default[V]()
	written, err := c.Append(nil, v)
	if (err == nil) != utf8.ValidString(s) {
		t.Fatalf("%q is UTF-8: %v, and is encoded as %q, %v", s, utf8.ValidString(s), written, err)
	}
	if err != nil {
		return
	}
	if got, err := c.Decode(written); err != nil || !reflect.DeepEqual(got, v) {
		t.Fatalf("%#v came back as %#v, %v", v, got, err)
	}
}
