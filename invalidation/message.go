package invalidation

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
)

// publisher names one bus, for as long as it is open.
type publisher [8]byte

func newPublisher() (p publisher) {
	binary.LittleEndian.PutUint64(p[:], rand.Uint64())
	return p
}

func (p publisher) String() string { return hex.EncodeToString(p[:]) }

// A message is a header of fixed size and a body. Numbers are big-endian.
//
//	0  3  magic
//	3  1  format
//	4  1  kind
//	5  8  publisher
//	13 8  number: of keysMessage its own, of lastMessage the publisher's last one
//	21 8  first: of lastMessage the first number that the publisher has told of since it was silent, of beatMessage when it was
//	      sent, in nanoseconds since its bus was opened
//	29    of keysMessage and wakeMessage: the name and the keys, each after its length in four bytes
const (
	messageMagic  = "\x9fNB"
	messageFormat = '1'
	headerBytes   = 29
)

// The kinds of a message.
const (
	keysMessage byte = 'k' // keys to forget
	wakeMessage byte = 'w' // keys that somebody waits for; it has no number, and may be lost
	lastMessage byte = 'l' // the numbers that a publisher has used
	beatMessage byte = 'b' // a heartbeat, on the channel of its own bus
)

// maxMessageBytes bounds a message. Publish makes several of what is longer.
const maxMessageBytes = 64 << 10

type message struct {
	kind          byte
	from          publisher
	number, first uint64
	name          string
	keys          []string
}

// text writes the message.
func (m *message) text() string {
	var few [256]byte
	return string(m.append(few[:0]))
}

func (m *message) append(dst []byte) []byte {
	dst = append(dst, messageMagic...)
	dst = append(dst, messageFormat, m.kind)
	dst = append(dst, m.from[:]...)
	dst = binary.BigEndian.AppendUint64(dst, m.number)
	dst = binary.BigEndian.AppendUint64(dst, m.first)
	if m.kind == keysMessage || m.kind == wakeMessage {
		dst = appendText(dst, m.name)
		for _, key := range m.keys {
			dst = appendText(dst, key)
		}
	}
	return dst
}

func appendText(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(s))), s...)
}

var (
	errNotAMessage   = errors.New("invalidation: the bytes are not a message")
	errNewerMessage  = errors.New("invalidation: the message is of a newer release")
	errBrokenMessage = errors.New("invalidation: the message is broken")
)

// parseMessage reads a message. Its texts are views into the payload.
func parseMessage(payload string) (message, error) {
	if len(payload) < len(messageMagic)+1 || payload[:len(messageMagic)] != messageMagic {
		return message{}, errNotAMessage
	}
	if payload[len(messageMagic)] != messageFormat {
		return message{}, errNewerMessage
	}
	if len(payload) < headerBytes {
		return message{}, errBrokenMessage
	}
	m := message{kind: payload[4]}
	copy(m.from[:], payload[5:])
	m.number = binary.BigEndian.Uint64([]byte(payload[13:21]))
	m.first = binary.BigEndian.Uint64([]byte(payload[21:29]))
	rest := payload[headerBytes:]
	switch m.kind {
	case lastMessage, beatMessage:
		if rest != "" {
			return message{}, errBrokenMessage
		}
		return m, nil
	case keysMessage, wakeMessage:
	default:
		return message{}, errNewerMessage
	}
	var ok bool
	if m.name, rest, ok = cutText(rest); !ok {
		return message{}, errBrokenMessage
	}
	for rest != "" {
		var key string
		if key, rest, ok = cutText(rest); !ok {
			return message{}, errBrokenMessage
		}
		m.keys = append(m.keys, key)
	}
	return m, nil
}

func cutText(s string) (text, rest string, ok bool) {
	if len(s) < 4 {
		return "", "", false
	}
	n := uint64(s[0])<<24 | uint64(s[1])<<16 | uint64(s[2])<<8 | uint64(s[3])
	if s = s[4:]; n > uint64(len(s)) {
		return "", "", false
	}
	return s[:n], s[n:], true
}
