package cache

import (
	"strings"
	"testing"
)

func sampleFrame() frame {
	return frame{
		kind: kindValue, schema: 513,
		loadedAt: 1, freshUntil: 1<<52 + 3, expires: 1<<52 + 4,
		fill: token{1, 2, 3}, version: 1<<64 - 1, least: 7, epoch: 8,
		lease: token{15: 9}, leaseExpiry: 1<<52 + 5,
		key: "nearside:c:user:42", payload: "the payload",
	}
}

func TestFrameRoundTrip(t *testing.T) {
	for _, change := range []func(*frame){
		func(f *frame) {},
		func(f *frame) { f.payload = "" },
		func(f *frame) { f.payload, f.flags = "", flagNil },
		func(f *frame) { f.kind, f.payload = kindNegative, "" },
		func(f *frame) { f.kind, f.payload, f.key = kindLease, "", "" },
		func(f *frame) { f.payload = strings.Repeat("\x00", 1<<16) },
	} {
		want := sampleFrame()
		change(&want)
		raw := string(want.appendTo(nil))
		if len(raw) != headerBytes+len(want.key)+len(want.payload) {
			t.Fatalf("a frame of %d bytes", len(raw))
		}
		var got frame
		err := got.parse(raw)
		if err != nil || got != want {
			t.Fatalf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestFrameRefusesForeignBytes(t *testing.T) {
	f := sampleFrame()
	good := string(f.appendTo(nil))
	change := func(at int, b byte) string { return good[:at] + string([]byte{b}) + good[at+1:] }
	for name, raw := range map[string]string{
		"empty":                 "",
		"text":                  "garbage",
		"zeros":                 strings.Repeat("\x00", 1<<20),
		"only a header":         good[:headerBytes],
		"cut":                   good[:len(good)-1],
		"longer":                good + "x",
		"another magic":         change(0, 'x'),
		"another format":        change(3, '2'),
		"another kind":          change(offKind, 'x'),
		"an unknown flag":       change(offFlags, 0x80),
		"nil with a payload":    change(offFlags, flagNil),
		"a lease with a value":  change(offKind, kindLease),
		"a huge key length":     change(offKeyLen, 0xff),
		"a huge payload length": change(offBodyLen, 0xff),
	} {
		var f frame
		if f.parse(raw) == nil {
			t.Errorf("%s: taken for %+v", name, f)
		}
	}
}

// FuzzParseFrame holds the parser to this: it never panics, and what it takes for a frame is written back as the same bytes.
func FuzzParseFrame(f *testing.F) {
	sample := sampleFrame()
	good := string(sample.appendTo(nil))
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(good[:headerBytes])
	f.Add("")
	f.Fuzz(func(t *testing.T, raw string) {
		var parsed frame
		err := parsed.parse(raw)
		if err != nil {
			return
		}
		if again := string(parsed.appendTo(nil)); again != raw {
			t.Fatalf("%q was read as %+v, which is written as %q", raw, parsed, again)
		}
	})
}
