package cache

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"unsafe"
)

// What stands at a key in Redis is a frame: a header of fixed size, the physical key, and the payload. Numbers are big-endian,
// times are microseconds of the Redis server's clock. The scripts in lua/ know the offsets of what they touch.
//
//	 0  3  magic            48  8  row version
//	 3  1  format           56  8  least version allowed
//	 4  1  kind             64  8  epoch of the name
//	 5  1  flags            72 16  lease token
//	 6  2  schema           88  8  lease expiry
//	 8  8  loaded at        96  4  length of the key
//	16  8  fresh until     100  4  length of the payload
//	24  8  expires: until then it may stand in, not fresh; 104: key, payload
//	32 16  fill id
const (
	frameMagic  = "\x9fNS1" // three bytes and the format
	headerBytes = 104

	offKind    = 4
	offFlags   = 5
	offSchema  = 6
	offLoaded  = 8
	offFresh   = 16
	offExpires = 24
	offFill    = 32
	offVersion = 48
	offLeast   = 56
	offEpoch   = 64
	offLease   = 72
	offLeaseAt = 88
	offKeyLen  = 96
	offBodyLen = 100
)

// The kinds of a frame.
const (
	kindValue    byte = 'v'
	kindNegative byte = 'n' // the source has no such row
	kindLease    byte = 'l' // nothing yet: somebody is loading
)

// The flags of a frame.
const (
	flagNil     byte = 1 // of a value: a nil []byte, which has the same payload as an empty one
	flagAwaited byte = 2 // of a lease, alone or on a value: somebody wants to be woken when it ends
)

// farFuture is the latest time that Lua holds exactly.
const farFuture = 1<<53 - 1

// token names one attempt to fill one key. It is random, so two attempts are never taken for one another. Its first bit says
// whether the attempt is a writer's: nobody waits for a write, which may take as long as a transaction does.
type token [16]byte

func newToken(mode leaseMode) (t token) {
	binary.LittleEndian.PutUint64(t[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(t[8:], rand.Uint64())
	if t[0] &^= 0x80; mode == leaseToWrite {
		t[0] |= 0x80
	}
	return t
}

// text returns the bytes of a token, without an allocation where there is none.
func (t token) text() string {
	if t == (token{}) {
		return noToken
	}
	return string(t[:])
}

const noToken = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func (t token) writers() bool { return t[0]&0x80 != 0 }

// frame is a frame's content. Key and payload are views into what it was parsed from.
type frame struct {
	kind, flags byte
	schema      uint16

	loadedAt, freshUntil, expires int64

	fill                  token
	version, least, epoch uint64
	lease                 token
	leaseExpiry           int64
	key, payload          string
}

var errNotAFrame = errors.New("the bytes are not a frame of this format")

// parse reads a frame. Whether it belongs to the key and the schema asked for is the caller's to check. After an error nothing is
// known of f.
func (f *frame) parse(raw string) error {
	if len(raw) < headerBytes || raw[:len(frameMagic)] != frameMagic {
		return errNotAFrame
	}
	u64 := func(at int) uint64 { return binary.BigEndian.Uint64([]byte(raw[at : at+8])) }
	*f = frame{
		kind:        raw[offKind],
		flags:       raw[offFlags],
		schema:      uint16(raw[offSchema])<<8 | uint16(raw[offSchema+1]),
		loadedAt:    int64(u64(offLoaded)),
		freshUntil:  int64(u64(offFresh)),
		expires:     int64(u64(offExpires)),
		version:     u64(offVersion),
		least:       u64(offLeast),
		epoch:       u64(offEpoch),
		leaseExpiry: int64(u64(offLeaseAt)),
	}
	copy(f.fill[:], raw[offFill:])
	copy(f.lease[:], raw[offLease:])
	keyLen, bodyLen := int64(u64(offKeyLen)>>32), int64(u64(offKeyLen)&0xffffffff)
	if headerBytes+keyLen+bodyLen != int64(len(raw)) {
		return errNotAFrame
	}
	var possible byte // flags
	switch f.kind {
	case kindValue:
		possible = flagAwaited
		if bodyLen == 0 {
			possible |= flagNil
		}
	case kindNegative, kindLease:
		if bodyLen != 0 {
			return errNotAFrame
		}
		if f.kind == kindLease {
			possible = flagAwaited
		}
	default:
		return errNotAFrame
	}
	if f.flags&^possible != 0 {
		return errNotAFrame
	}
	f.key, f.payload = raw[headerBytes:headerBytes+keyLen], raw[headerBytes+keyLen:]
	return nil
}

// text writes the frame.
func (f *frame) text() string {
	raw := f.appendTo(make([]byte, 0, headerBytes+len(f.key)+len(f.payload)))
	return unsafe.String(unsafe.SliceData(raw), len(raw)) // nobody else has the bytes
}

// leaseOf returns the part of a frame's text that is its lease's token.
func leaseOf(text string) string { return text[offLease : offLease+len(token{})] }

func (f *frame) appendTo(dst []byte) []byte {
	dst = append(dst, frameMagic...)
	dst = append(dst, f.kind, f.flags)
	dst = binary.BigEndian.AppendUint16(dst, f.schema)
	for _, t := range [...]int64{f.loadedAt, f.freshUntil, f.expires} {
		dst = binary.BigEndian.AppendUint64(dst, uint64(t))
	}
	dst = append(dst, f.fill[:]...)
	for _, n := range [...]uint64{f.version, f.least, f.epoch} {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	dst = append(dst, f.lease[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(f.leaseExpiry))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(f.key)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(f.payload)))
	dst = append(dst, f.key...)
	return append(dst, f.payload...)
}
