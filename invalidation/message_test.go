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
		in := newInbox(-time.Hour) // not young
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
	tell := func(want, wantFirst uint64) {
		t.Helper()
		l := o.tell()
		if l.number != want || want > 0 && l.first != wantFirst {
			t.Errorf("tells %+v, want %d from %d", l, want, wantFirst)
		}
		if l.number > 0 {
			o.told(l)
		}
	}
	tell(0, 0) // silent while there is nothing
	a, b := o.next(), o.next()
	o.done(b, false)
	tell(0, 0) // a is on its way
	o.done(a, false)
	tell(0, 0) // a heartbeat for both to arrive
	tell(2, 1)
	tell(2, 1) // once more
	tell(0, 0)
	c := o.next()
	o.done(c, false)
	tell(0, 0)
	if l := o.tell(); l.number != 3 || l.first != 3 {
		t.Errorf("tells %+v", l)
	}
	tell(3, 3) // what was not told is said again
	tell(3, 3)
	tell(0, 0)
	o.done(o.next(), true)
	if l := o.tell(); len(l.void) != 1 || l.void[0] != 4 || l.number != 0 {
		t.Errorf("tells %+v, want that 4 is void", l)
	}
	if l := o.tellAll(); l.number != 4 || len(l.void) != 1 {
		t.Errorf("tells %+v in the end", l)
	}
	tell(4, 4)
	if l := o.tell(); len(l.void) != 0 {
		t.Errorf("tells %+v again", l)
	}
}

// TestAYoungInbox: what a busy publisher tells in the first heartbeat is of before the subscription.
func TestAYoungInbox(t *testing.T) {
	now := time.Now()
	from := newPublisher()
	in := newInbox(time.Hour)
	in.came(&message{kind: keysMessage, from: from, number: 9}, now)
	if in.lacks(&message{kind: lastMessage, from: from, number: 7, first: 1}, now) {
		t.Error("what was published before the subscription is missing")
	}
	if in.lacks(&message{kind: lastMessage, from: from, number: 8, first: 1}, now) == false {
		t.Error("8 is not missing")
	}
	if in.lacks(&message{kind: lastMessage, from: from, number: 9, first: 1}, now) {
		t.Error("9 came")
	}
}
