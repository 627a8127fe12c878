package codec_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-nearside/nearside/internal/codec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	text   string
	raw    []byte
	nested struct {
		Name  string
		Inner *nested `json:",omitempty"`
		Notes map[string]any
		Any   any
	}
	loose struct {
		nested
		List  []any
		Array [2]any
		Deep  map[string][]*struct{ Value any }
	}
	tree struct {
		Value    int
		Children []*tree
		ByName   map[string]tree
	}
	looseTree struct {
		Children []looseTree
		Value    any
	}
	cycleA struct{ B *cycleB }
	cycleB struct {
		A []cycleA
		V any
	}
	plain struct {
		ID    uint64
		Ratio float64
		Tags  []string
		At    time.Time
		Blob  []byte
		skip  int
	}
)

// roundTrip encodes behind bytes that stand there already, and decodes from bytes that are overwritten afterwards.
func roundTrip[V any](t *testing.T, v V) (V, string) {
	t.Helper()
	c := codec.Default[V]()
	out, err := c.Append([]byte("before"), v)
	if err != nil || !strings.HasPrefix(string(out), "before") {
		t.Fatalf("%#v is encoded as %q, %v", v, out, err)
	}
	encoded := out[len("before"):]
	text := string(encoded)
	got, err := c.Decode(encoded)
	if err != nil {
		t.Fatalf("%q is not decoded: %v", text, err)
	}
	for i := range encoded {
		encoded[i] = 'x'
	}
	return got, text
}

// same checks that a value comes back as it was, as the given text if there is one.
func same[V any](t *testing.T, v V, text string) {
	t.Helper()
	got, encoded := roundTrip(t, v)
	if !reflect.DeepEqual(got, v) {
		t.Errorf("%#v came back as %#v", v, got)
	}
	if text != "" && encoded != text {
		t.Errorf("%#v is encoded as %s, want %s", v, encoded, text)
	}
}

func TestValuesComeBack(t *testing.T) {
	const bytes = "a\x00\xff\"\\\ufffd"
	same(t, []byte(bytes), bytes)
	same(t, bytes, bytes)
	same(t, []byte{}, "")
	same(t, "", "")
	same(t, `"5"`, `"5"`)

	// What only looks like []byte or string is JSON: its type may have methods that say how.
	same(t, text("a"), `"a"`)
	same(t, raw("a"), `"YQ=="`)
	same(t, json.RawMessage(`{"a":[1]}`), `{"a":[1]}`)

	same(t, 42, "42")
	same(t, int64(math.MinInt64), "-9223372036854775808")
	same(t, uint64(math.MaxUint64), "18446744073709551615")
	same(t, 0.1, "0.1")
	same(t, true, "true")
	same(t, [2]int{1, 2}, "[1,2]")
	same(t, map[int]string{1: "a"}, `{"1":"a"}`)
	same(t, time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), `"2026-01-02T03:04:05.000000006Z"`)
	same(t, plain{ID: math.MaxUint64, Ratio: 1e-9, Tags: []string{"<&>"}, At: time.Unix(1, 2).UTC(), Blob: []byte(bytes)}, "")
	same(t, &plain{ID: 1, Tags: []string{}}, "")
	if got, _ := roundTrip(t, plain{skip: 1}); got.skip != 0 {
		t.Error("a field without a name in JSON came back")
	}
}

// Nothing and nothing in it are two values. Only a nil []byte does not come back: its encoding is that of an empty one.
func TestNilAndEmptyAreToldApart(t *testing.T) {
	same[[]int](t, nil, "null")
	same(t, []int{}, "[]")
	same[map[string]int](t, nil, "null")
	same(t, map[string]int{}, "{}")
	same[raw](t, nil, "null")
	same(t, raw{}, `""`)
	same[*plain](t, nil, "null")
	same[any](t, nil, "null")
	same(t, nested{}, `{"Name":"","Notes":null,"Any":null}`)
	same(t, nested{Notes: map[string]any{}, Any: []any{}, Inner: &nested{}}, "")
	if got, encoded := roundTrip[[]byte](t, nil); got == nil || len(got) > 0 || encoded != "" {
		t.Errorf("a nil []byte is encoded as %q and comes back as %#v", encoded, got)
	}
}

// big are numbers that a float64 cannot hold.
var big = []json.Number{"4244637855813302974", "18446744073709551615", "-9223372036854775807", "9007199254740993", "0.10000000000000000001"}

func TestNumbersKeepTheirDigitsAtAnyDepth(t *testing.T) {
	for _, n := range big {
		same[any](t, n, n.String())
		same(t, []any{n, []any{n}}, "")
		same(t, map[string]any{"a": n, "b": map[string]any{"c": []any{n}}}, "")
		same(t, map[string]map[string]any{"a": {"b": n}}, "")
		same(t, struct{ V any }{n}, "")
		same(t, &struct{ V *any }{new(any(n))}, "")
		same(t, nested{Any: n, Notes: map[string]any{"n": n}, Inner: &nested{Any: map[string]any{"n": n}}}, "")
		same(t, [1]map[int][]struct{ P **any }{{7: {{P: new(new(any(n)))}}}}, "")
		same(t, loose{
			nested: nested{Any: n}, List: []any{n}, Array: [2]any{n, "x"},
			Deep: map[string][]*struct{ Value any }{"a": {{n}, nil}},
		}, "")
		same(t, looseTree{Value: n, Children: []looseTree{{Value: n, Children: []looseTree{}}}}, "")
		same(t, cycleA{&cycleB{A: []cycleA{{&cycleB{V: n}}}}}, "")
	}
	// Typed numbers in an interface: the digits come back, the type cannot.
	for v, want := range map[any]json.Number{
		int64(4244637855813302974): "4244637855813302974", uint64(math.MaxUint64): "18446744073709551615", int8(-1): "-1",
	} {
		if got, _ := roundTrip[any](t, v); got != want {
			t.Errorf("%T %v came back as %T %v", v, v, got, got)
		}
		if got, _ := roundTrip(t, map[string]any{"id": v}); got["id"] != want {
			t.Errorf("%T %v came back as %T %v", v, v, got["id"], got["id"])
		}
	}
}

func TestRecursiveTypes(t *testing.T) {
	type list struct {
		Next *list
		V    int
	}
	type selfSlice []selfSlice
	type selfMap map[string]selfMap
	type selfPointer *selfPointer
	same(t, list{Next: &list{V: 2}, V: 1}, "")
	same(t, selfSlice{{}, {{}}}, "[[],[[]]]")
	same(t, selfMap{"a": {"b": nil}}, "")
	same(t, tree{Value: 1, Children: []*tree{{Value: 2}, nil}, ByName: map[string]tree{"a": {Value: 3}}}, "")
	codec.Default[selfPointer]()
	codec.Default[cycleB]()
}

func TestWhatJSONCannotHoldIsRefused(t *testing.T) {
	refuse(t, math.NaN())
	refuse(t, math.Inf(-1))
	refuse[any](t, math.NaN())
	refuse(t, plain{Ratio: math.Inf(1)})
	refuse[any](t, func() {})
	refuse(t, make(chan int))
	loop := &tree{}
	loop.Children = []*tree{loop}
	refuse(t, loop)
	refuse(t, refusing{})
}

type refusing struct{}

var errRefusing = errors.New("refusing")

func (refusing) MarshalJSON() ([]byte, error) { return nil, errRefusing }

// refuse checks that a value is refused, and that what stood in the buffer is returned as it was.
func refuse[V any](t *testing.T, v V) {
	t.Helper()
	out, err := codec.Default[V]().Append([]byte("before"), v)
	if err == nil || string(out) != "before" {
		t.Errorf("%#v is encoded as %q, %v", v, out, err)
	}
}

// encoding/json would put U+FFFD in the place of what is not UTF-8, in silence.
func TestInvalidUTF8IsRefusedAndNothingElse(t *testing.T) {
	for _, bad := range []string{"\xff", "a\xc3", "\xed\xa0\x80", "\\\xff", `\\` + "\xff", `\ufffd` + "\xff", "\ufffd\xff", "\xff" + `\ufffd`} {
		refuse(t, text(bad))
		refuse[any](t, bad)
		refuse(t, []string{"good", bad})
		refuse(t, map[string]int{bad: 1})
		refuse(t, map[text]any{"k": map[string]any{bad: nil}})
		refuse(t, nested{Name: bad})
		refuse(t, nested{Inner: &nested{Any: []any{bad}}})
	}
	for _, good := range []string{"\ufffd", `\ufffd`, `\\ufffd`, `\\\ufffd`, "\\\ufffd", `\uFFFD`, "\\", "\u2028", "ufffd", "\x00\x1f\u007f", "\U0010ffff", "<&>"} {
		same(t, text(good), "")
		same[any](t, good, "")
		same(t, []string{good, good + good}, "")
		same(t, map[string]int{good: 1}, "")
		same(t, nested{Name: good, Any: good, Notes: map[string]any{good: good}}, "")
	}
}

func TestForeignBytesAreRefused(t *testing.T) {
	for _, foreign := range []string{
		"", " ", "nonsense", "{", "[1", `{"Name":"a"`, `{"Name":"a"} {}`, `{"Name":"a"}}`, `{"Name":"a"},`, "{}x", "{}\x00", "null null", "\xff", "{}\xff",
	} {
		unreadable[nested](t, foreign)
		unreadable[plain](t, foreign)
		unreadable[any](t, foreign)
		unreadable[int](t, foreign)
	}
	for _, text := range []string{"1 2", "1,", "1]", `1 "a"`, "1x", "1\x00"} {
		unreadable[any](t, text)
		unreadable[int](t, text)
	}
	unreadable[plain](t, `{"ID":-1}`)
	unreadable[plain](t, `{"ID":18446744073709551616}`)
	unreadable[plain](t, `{"Tags":{}}`)
	unreadable[int8](t, "128")
	unreadable[text](t, "5")
	unreadable[nested](t, `{"Notes":5}`)
	for _, spaced := range []string{" 5 ", "\r\n5\t\n"} {
		if v, err := codec.Default[any]().Decode([]byte(spaced)); v != json.Number("5") || err != nil {
			t.Errorf("%q is decoded as %v, %v", spaced, v, err)
		}
	}
}

func unreadable[V any](t *testing.T, text string) {
	t.Helper()
	if v, err := codec.Default[V]().Decode([]byte(text)); err == nil {
		t.Errorf("%q is decoded as %#v", text, v)
	}
}
