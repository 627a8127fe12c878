package invalidation

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestMessageRoundTrip(t *testing.T) {
	from := newPublisher()
	for _, want := range []message{
		{kind: keysMessage, from: from, number: 1<<64 - 1, name: "user", keys: []string{"a", "", "\x00\xff", strings.Repeat("x", 1000)}},
		{kind: keysMessage, from: from, number: 7},
		{kind: lastMessage, from: from, number: 9, first: 3},
		{kind: beatMessage, from: from, number: 5},
	} {
		if got, err := parseMessage(string(want.append(nil))); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestStrangeMessages(t *testing.T) {
	m := message{kind: keysMessage, name: "user", keys: []string{"a"}}
	good := string(m.append(nil))
	for payload, want := range map[string]error{
		"":                         errNotAMessage,
		"hello":                    errNotAMessage,
		good[:3]:                   errNotAMessage,
		good[:3] + "2" + good[4:]:  errNewerMessage,
		good[:4] + "?" + good[5:]:  errNewerMessage,
		good[:10]:                  errBrokenMessage,
		good[:len(good)-1]:         errBrokenMessage,
		good + "x":                 errBrokenMessage,
		good + "\xff\xff\xff\xffa": errBrokenMessage,
	} {
		if m, err := parseMessage(payload); err != want {
			t.Errorf("%q: %+v, %v; want %v", payload, m, err, want)
		}
	}
}

// FuzzParseMessage: the parser never panics, and what it takes is written back as the same bytes.
func FuzzParseMessage(f *testing.F) {
	m := message{kind: keysMessage, name: "user", keys: []string{"a", "b"}}
	f.Add(string(m.append(nil)))
	m = message{kind: lastMessage, number: 3, first: 1}
	f.Add(string(m.append(nil)))
	f.Fuzz(func(t *testing.T, payload string) {
		m, err := parseMessage(payload)
		if err == nil && string(m.append(nil)) != payload {
			t.Fatalf("%q was read as %+v", payload, m)
		}
	})
}

// TestNumbers: what one outbox tells, an inbox finds missing or not, whatever the order in which messages come.
func TestNumbers(t *testing.T) {
	now := time.Now()
	from := newPublisher()
	keys := func(n uint64) *message { return &message{kind: keysMessage, from: from, number: n} }
	last := func(n, first uint64) *message {
		return &message{kind: lastMessage, from: from, number: n, first: first}
	}
	for _, test := range []struct {
		name string
		came []uint64
		last *message
		want bool
	}{
		{"all in order", []uint64{1, 2, 3}, last(3, 1), false},
		{"all out of order", []uint64{3, 1, 2}, last(3, 1), false},
		{"more than was told", []uint64{1, 2, 3, 4}, last(3, 1), false},
		{"one missing in the middle", []uint64{1, 3}, last(3, 1), true},
		{"the first missing", []uint64{2, 3}, last(3, 1), true},
		{"the last missing", []uint64{1, 2}, last(3, 1), true},
		{"all missing", nil, last(3, 1), true},
		{"a burst that began later", []uint64{8, 9}, last(9, 8), false},
	} {
		in := newInbox()
		for _, n := range test.came {
			in.came(keys(n), now)
		}
		if got := in.lacks(test.last, now); got != test.want {
			t.Errorf("%s: missing is %v, want %v", test.name, got, test.want)
		}
		if in.lacks(test.last, now) {
			t.Errorf("%s: what was reported once is reported again", test.name)
		}
	}
}

func TestAnOutboxTellsOfWhatIsDoneAndOnceMore(t *testing.T) {
	o := newOutbox()
	tell := func(want uint64, wantFirst uint64) {
		t.Helper()
		last, first, ok := o.tell()
		if ok != (want > 0) || ok && (last != want || first != wantFirst) {
			t.Errorf("tells %d from %d (%v), want %d from %d", last, first, ok, want, wantFirst)
		}
	}
	tell(0, 0) // silent while there is nothing
	a, b := o.next(), o.next()
	o.done(b)
	tell(0, 0) // a is on its way
	o.done(a)
	tell(0, 0) // a heartbeat for both to arrive
	tell(2, 1)
	tell(2, 1) // once more
	tell(0, 0)
	c := o.next()
	o.done(c)
	tell(0, 0)
	tell(3, 3)
	tell(3, 3)
	tell(0, 0)
}
