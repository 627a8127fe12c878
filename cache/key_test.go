package cache

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

func keysOf[K comparable](t interface{ Fatal(...any) }, namespace, name string) *keys[K] {
	k, err := newKeys[K](namespace, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// keyPlace is all that a physical key is made of.
type keyPlace struct{ namespace, name, key string }

func (p keyPlace) physical(t *rapid.T) string {
	physical, _, err := keysOf[string](t, p.namespace, p.name).physical(p.key)
	if err != nil {
		t.Fatal(err)
	}
	return physical
}

// keyParts draws strings of any bytes, and often of those that mean something in a physical key.
var keyParts = rapid.OneOf(
	rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{
		":", "::", ":c:", "c", "%", "%%", "%3A", "%3a", "%25", "%253A", "{", "}", "{}", "%7B", "%7D", "a", "user", "42", "\x00", "\xff", "é", " ",
	}), 0, 5), func(parts []string) string { return strings.Join(parts, "") }),
	rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 12), func(b []byte) string { return string(b) }),
	rapid.String(),
)

// keyAliasOf draws a string that is often s, or what some escaping makes of s, or what some unescaping does.
func keyAliasOf(t *rapid.T, s string) string {
	switch rapid.IntRange(0, 4).Draw(t, "alias") {
	case 0:
		return strings.NewReplacer("%", "%25", ":", "%3A", "{", "%7B", "}", "%7D").Replace(s)
	case 1:
		return strings.NewReplacer(":", "%3A", "{", "%7B", "}", "%7D").Replace(s)
	case 2:
		return strings.NewReplacer("%25", "%", "%3A", ":", "%7B", "{", "%7D", "}").Replace(s)
	case 3:
		return keyParts.Draw(t, "fresh")
	}
	return s
}

// keyRecutOf draws another reading of the text that the three parts of a place give when they are put together.
func keyRecutOf(t *rapid.T, p keyPlace) keyPlace {
	text := p.namespace + ":c:" + p.name + ":" + p.key
	var readings []keyPlace
	for i := range text {
		namespace, rest, ok := strings.Cut(text[i:], ":c:")
		namespace = text[:i] + namespace
		for j := 0; ok && j < len(rest); j++ {
			if rest[j] == ':' && j+1 < len(rest) {
				readings = append(readings, keyPlace{namespace, rest[:j], rest[j+1:]})
			}
		}
	}
	if len(readings) == 0 {
		return p
	}
	return rapid.SampledFrom(readings).Draw(t, "reading")
}

func TestPhysicalKeysNeverCollide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := keyPlace{keyParts.Draw(t, "namespace"), keyParts.Draw(t, "name"), keyParts.Draw(t, "key")}
		var b keyPlace
		if rapid.Bool().Draw(t, "recut") {
			b = keyRecutOf(t, a)
		} else {
			b = keyPlace{keyAliasOf(t, a.namespace), keyAliasOf(t, a.name), keyAliasOf(t, a.key)}
		}
		if a.key == "" || b.key == "" {
			return // refused
		}
		if got := a.physical(t) == b.physical(t); got != (a == b) {
			t.Fatalf("%q gives %q\n%q gives %q", a, a.physical(t), b, b.physical(t))
		}
		hash := func(p keyPlace) uint64 {
			h, ok := keysOf[string](t, p.namespace, p.name).hash(p.key)
			if !ok {
				t.Fatalf("%q has no hash", p)
			}
			return h
		}
		if got := hash(a) == hash(b); got != (a == b) {
			t.Fatalf("%q and %q have the hashes %x and %x", a, b, hash(a), hash(b))
		}
	})
}

func TestANameGivesNoHashTag(t *testing.T) {
	k := keysOf[string](t, "{n}", "{u:s}er%")
	if physical, _, err := k.physical("k"); physical != "%7Bn%7D:c:%7Bu%3As%7Der%25:k" || err != nil {
		t.Errorf("got %q, %v", physical, err)
	}
}

type (
	keyInt    int
	keyInt8   int8
	keyUint16 uint16
	keyUint64 uint64
	keyString string
	keyMoney  int64  // its text is not its number
	keyUpper  string // its text is not its bytes
	keyBroken string
	keyStamp  struct{ at int64 }
)

func (k keyMoney) MarshalText() ([]byte, error) {
	return []byte(fmt.Sprintf("%d.%02d", k/100, k%100)), nil
}
func (k keyUpper) MarshalText() ([]byte, error) { return []byte(strings.ToUpper(string(k))), nil }
func (k keyStamp) MarshalText() ([]byte, error) { return []byte(strconv.FormatInt(k.at, 36)), nil }

var errKeyBroken = errors.New("broken")

func (k keyBroken) MarshalText() ([]byte, error) { return []byte("half"), errKeyBroken }

// keyEncodes checks that a key is encoded as the text, and that its hash is that of the text.
func keyEncodes[K comparable](t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, key K, text string) {
	k := keysOf[K](t, "ns", "name")
	if physical, _, err := k.physical(key); physical != "ns:c:name:"+text || err != nil {
		t.Fatalf("%T %v: the physical key is %q, %v; want one that ends in %q", key, key, physical, err, text)
	}
	want := k.mix(xxhash.Sum64String(text))
	for range 2 { // the second has a buffer that was used
		if got, ok := k.hash(key); !ok || got != want {
			t.Fatalf("%T %v: the hash is %x, %v; want %x", key, key, got, ok, want)
		}
	}
}

func keyIntegersEncode[K interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}](t *testing.T, edges ...K) {
	t.Helper()
	for _, key := range append(edges, 0, 1, 9, 10, 99, 100) {
		keyEncodes(t, key, fmt.Sprintf("%d", key))
	}
	rapid.Check(t, func(t *rapid.T) {
		key := K(rapid.Uint64().Draw(t, "key")) // cut to its width
		keyEncodes(t, key, fmt.Sprintf("%d", key))
	})
}

func TestIntegersOfAllWidthsAndSigns(t *testing.T) {
	keyIntegersEncode[int](t, math.MinInt, -1, math.MaxInt)
	keyIntegersEncode[int8](t, math.MinInt8, -1, math.MaxInt8)
	keyIntegersEncode[int16](t, math.MinInt16, -1, math.MaxInt16)
	keyIntegersEncode[int32](t, math.MinInt32, -1, math.MaxInt32)
	keyIntegersEncode[int64](t, math.MinInt64, -1, math.MaxInt64)
	keyIntegersEncode[uint](t, math.MaxUint)
	keyIntegersEncode[uint8](t, math.MaxUint8)
	keyIntegersEncode[uint16](t, math.MaxUint16)
	keyIntegersEncode[uint32](t, math.MaxUint32)
	keyIntegersEncode[uint64](t, math.MaxUint64, 1<<63, 1<<53+1)
	keyIntegersEncode[keyInt](t, math.MinInt, -1)
	keyIntegersEncode[keyInt8](t, math.MinInt8, -1)
	keyIntegersEncode[keyUint16](t, math.MaxUint16)
	keyIntegersEncode[keyUint64](t, math.MaxUint64)
}

func TestStringsAreTheirBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := keyParts.Filter(func(s string) bool { return s != "" }).Draw(t, "key")
		keyEncodes(t, key, key)
		keyEncodes(t, keyString(key), key)
	})
}

func TestTextMarshalersAreTheirText(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	keyEncodes(t, at, "2026-01-02T03:04:05.000000006+01:00")
	keyEncodes(t, &at, "2026-01-02T03:04:05.000000006+01:00")
	keyEncodes(t, netip.MustParseAddr("::ffff:192.0.2.1"), "::ffff:192.0.2.1")
	keyEncodes(t, netip.MustParsePrefix("2001:db8::/32"), "2001:db8::/32")
	keyEncodes(t, keyMoney(12345), "123.45")
	keyEncodes(t, keyUpper("aé{"), "AÉ{")
	keyEncodes(t, keyStamp{35}, "z")
	keyEncodes(t, new(keyMoney(5)), "0.05")
}

// keyIsBad checks that a key is refused, for the reason if there is one.
func keyIsBad[K comparable](t *testing.T, key K, reason error) {
	t.Helper()
	physical, _, err := keysOf[K](t, "ns", "name").physical(key)
	if !errors.Is(err, ErrBadKey) || reason != nil && !errors.Is(err, reason) {
		t.Errorf("%T %v gives %q, %v; want ErrBadKey, and %v", key, key, physical, err, reason)
	}
}

func TestKeysWithoutATextAreRefused(t *testing.T) {
	keyIsBad[*time.Time](t, nil, errNilKey)
	keyIsBad[*keyMoney](t, nil, errNilKey)
	keyIsBad(t, keyBroken("k"), errKeyBroken)
	keyIsBad(t, time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC), nil) // no RFC 3339
	keyIsBad(t, netip.Addr{}, nil)                                 // its text is empty
	keyIsBad(t, "", nil)
	keyIsBad(t, keyString(""), nil)
	keyIsBad(t, strings.Repeat("x", MaxKeyBytes+1), nil)
	keyEncodes(t, strings.Repeat("x", MaxKeyBytes), strings.Repeat("x", MaxKeyBytes))

	for name, hash := range map[string]func() (uint64, bool){
		"a nil pointer": func() (uint64, bool) { return keysOf[*time.Time](t, "ns", "name").hash(nil) },
		"a broken text": func() (uint64, bool) { return keysOf[keyBroken](t, "ns", "name").hash("k") },
	} {
		if h, ok := hash(); ok {
			t.Errorf("%s has the hash %x", name, h)
		}
	}
}

func keyTypeIsRefused[K comparable](t *testing.T) {
	t.Helper()
	var refused *ConfigError
	if _, err := newKeys[K]("ns", "name", nil); !errors.As(err, &refused) || refused.Remedy == "" {
		t.Errorf("%T: got %v, want a *ConfigError with a remedy", *new(K), err)
	}
	hook := func(dst []byte, key K) ([]byte, error) { return append(dst, "text"...), nil }
	if _, err := newKeys("ns", "name", hook); err != nil {
		t.Errorf("%T with Hooks.Key: %v", *new(K), err)
	}
}

// What has no text that is one in all processes needs a hook.
func TestKeyTypesWithoutATextAreRefused(t *testing.T) {
	keyTypeIsRefused[bool](t)
	keyTypeIsRefused[float64](t)
	keyTypeIsRefused[complex128](t)
	keyTypeIsRefused[uintptr](t)
	keyTypeIsRefused[*int](t)
	keyTypeIsRefused[[4]byte](t)
	keyTypeIsRefused[struct{ A, B int }](t)
	keyTypeIsRefused[chan int](t)
}

// An interface may hold what cannot be compared, and two of its types may have one text: no hook helps.
func TestInterfaceKeysAreRefused(t *testing.T) {
	var refused *ConfigError
	if _, err := newKeys[any]("ns", "name", func(dst []byte, _ any) ([]byte, error) { return dst, nil }); !errors.As(err, &refused) {
		t.Errorf("any: %v", err)
	}
	if _, err := newKeys[encoding.TextMarshaler]("ns", "name", nil); !errors.As(err, &refused) {
		t.Errorf("encoding.TextMarshaler: %v", err)
	}
}

// A key that is not equal to itself would be found by nobody, and fill the tiers.
func TestKeysThatHoldNaNAreRefused(t *testing.T) {
	type point struct{ X, Y float64 }
	k, err := newKeys("ns", "name", func(dst []byte, key point) ([]byte, error) { return fmt.Append(dst, key.X, " ", key.Y), nil })
	if err != nil {
		t.Fatal(err)
	}
	if physical, _, err := k.physical(point{0, math.NaN()}); !errors.Is(err, ErrBadKey) {
		t.Errorf("got %q, %v; want ErrBadKey", physical, err)
	}
	if physical, _, err := k.physical(point{0, math.Inf(1)}); physical != "ns:c:name:0 +Inf" || err != nil {
		t.Errorf("got %q, %v", physical, err)
	}
}

// What a hook returns need not stand in what it was lent, and stays its own.
func TestAHookThatKeepsItsBytes(t *testing.T) {
	own := map[int][]byte{}
	for key, text := range map[int]string{1: "one", 2: "another"} {
		own[key] = append(make([]byte, 0, 128), text...) // with room that would invite others to write here
	}
	k, err := newKeys("ns", "name", func(_ []byte, key int) ([]byte, error) { return own[key], nil })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for key, text := range map[int]string{1: "one", 2: "another"} {
			if h, ok := k.hash(key); h != k.mix(xxhash.Sum64String(text)) || !ok {
				t.Errorf("%d has the hash %x, %v", key, h, ok)
			}
			if physical, _, err := k.physical(key); physical != "ns:c:name:"+text || err != nil {
				t.Errorf("%d gives %q, %v", key, physical, err)
			}
			keyEncodes(t, keyUpper("xxxxxxxx"), "XXXXXXXX") // by the same buffers
		}
	}
	if string(own[1]) != "one" || string(own[2]) != "another" {
		t.Errorf("the hook's bytes became %v", own)
	}
}

func TestAHookIsAskedForEveryKey(t *testing.T) {
	hook := func(dst []byte, key int) ([]byte, error) {
		if key < 0 {
			return dst, errKeyBroken
		}
		return strconv.AppendInt(append(dst, "id-"...), int64(key), 16), nil
	}
	k, err := newKeys("ns", "name", hook)
	if err != nil {
		t.Fatal(err)
	}
	if physical, _, err := k.physical(255); physical != "ns:c:name:id-ff" || err != nil {
		t.Errorf("got %q, %v", physical, err)
	}
	if h, ok := k.hash(255); h != k.mix(xxhash.Sum64String("id-ff")) || !ok {
		t.Errorf("got the hash %x, %v", h, ok)
	}
	if _, _, err := k.physical(-1); !errors.Is(err, ErrBadKey) || !errors.Is(err, errKeyBroken) {
		t.Errorf("got %v", err)
	}
	if _, ok := k.hash(-1); ok {
		t.Error("a key that its hook refuses has a hash")
	}
}

// The hash says where a key's stamp is, in this process and in every other: it must come from nothing but the bytes.
func TestHashesDifferByNameAndByNothingElse(t *testing.T) {
	hash := func(k *keys[int]) uint64 { h, _ := k.hash(42); return h }
	one := hash(keysOf[int](t, "ns", "user"))
	if again := hash(keysOf[int](t, "ns", "user")); again != one {
		t.Errorf("two caches of one name have the hashes %x and %x", one, again)
	}
	if h, _ := keysOf[string](t, "ns", "user").hash("42"); h != one {
		t.Errorf("one physical key has the hashes %x and %x", one, h)
	}
	for _, other := range []*keys[int]{keysOf[int](t, "ns", "users"), keysOf[int](t, "n", "user")} {
		if hash(other) == one {
			t.Errorf("%s has the hash of another name", other.prefix)
		}
	}
	slots := map[uint64]bool{}
	k := keysOf[int](t, "ns", "user")
	for key := range 4096 {
		h, _ := k.hash(key)
		slots[h>>40&(stampSlots-1)] = true
	}
	if len(slots) < 4000 { // 4064 of 4096 are to be expected
		t.Errorf("4096 keys use %d stamps", len(slots))
	}
}

// Keys are encoded in buffers that many share. Here, each waits half way for the others.
func TestHashesBesideOneAnother(t *testing.T) {
	k, err := newKeys("ns", "name", func(dst []byte, key string) ([]byte, error) {
		dst = append(dst, key[:len(key)/2]...)
		runtime.Gosched()
		return append(dst, key[len(key)/2:]...), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				key := strings.Repeat(string(rune('a'+g)), 1+i%200)
				want := k.mix(xxhash.Sum64String(key))
				if got, ok := k.hash(key); got != want || !ok {
					t.Errorf("%q: the hash is %x, %v; want %x", key, got, ok, want)
					return
				}
				if physical, _, err := k.physical(key); physical != "ns:c:name:"+key || err != nil {
					t.Errorf("%q: the physical key is %q, %v", key, physical, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
