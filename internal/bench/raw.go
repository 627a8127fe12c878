package main

import (
	"cmp"
	"encoding/json"
	"io"
	"runtime"
	"time"
)

// record is one turn as -json writes it: a line for each, so that a run that was cut short leaves its figures too. The ratio of a
// turn is its cost by that of its reference, or the inverse if Throughput; its CPU ratio is the same of the CPU figures.
type record struct {
	Row        string    `json:"row"`
	About      string    `json:"about"`
	Subject    string    `json:"subject"`
	Peer       bool      `json:"peer"`
	Turn       int       `json:"turn"`  // from 1
	Ended      time.Time `json:"ended"` // its reference is measured first
	Seconds    float64   `json:"seconds"`
	Unit       string    `json:"unit"` // of cost; a time is in seconds
	Throughput bool      `json:"throughput"`
	Extra      string    `json:"extra,omitempty"` // what the extra figure counts
	Bar        *bar      `json:"bar,omitempty"`
	Against    string    `json:"against,omitempty"` // the name of the reference
	Reference  *measured `json:"reference,omitempty"`
	Measured   measured  `json:"measured"`
}

// machine is the first line.
type machine struct {
	Began time.Time `json:"began"`
	Go    string    `json:"go"`
	OS    string    `json:"os"`
	Arch  string    `json:"arch"`
	CPUs  int       `json:"cpus"`
	Peers bool      `json:"peers"`
	Short bool      `json:"short"`
}

func (o options) writeMachine() error {
	return writeLine(o.raw, machine{
		time.Now().UTC().Truncate(time.Second), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0),
		o.peers, o.short,
	})
}

func (o options) writeTurn(r row, s subject, turn int, reference, m measured) error {
	rec := record{
		Row: r.name, About: r.about, Subject: s.name, Peer: s.peer, Turn: turn, Ended: time.Now().UTC(), Seconds: o.seconds,
		Unit: r.unit, Throughput: r.throughput, Extra: r.extra, Against: r.reference.name, Measured: m,
	}
	if r.reference.measure != nil {
		rec.Reference = &reference
	}
	if r.bar != (bar{}) && !s.peer {
		rec.Bar = &r.bar
	}
	return writeLine(o.raw, rec)
}

// writeLine writes nothing if no file was asked for.
func writeLine(to io.Writer, v any) error {
	return json.NewEncoder(cmp.Or(to, io.Discard)).Encode(v)
}
