package bourse

import (
	"encoding/hex"
	"time"
	"unsafe"

	"github.com/boursemq/bourse/internal/wire"
)

// A message as a command holds it, behind the queue ids:
//
//	flags        uvarint   which of the optional parts are there
//	priority     1 byte
//	ttl          uvarint, nanoseconds; 0: NoWait     if hasTTL
//	ready at     varint, an instant                  if hasReadyAt
//	group        length and bytes                    if hasGroup
//	saved        uvarint, by what the body is shorter if hasCompressed
//	id           16 bytes if the broker made it, else length and bytes
//	exchange     length and bytes
//	routing key  length and bytes
//	timestamp    varint, nanoseconds                 if hasTimestamp
//	headers      length and bytes, see appendHeaders if hasHeaders
//	deaths       length and bytes, see appendDeaths  if hasDeaths
//	body         the rest; with saved one block of S2, see compress.go
const (
	flagGivenID uint64 = 1 << iota
	flagTimestamp
	flagHeaders
	flagDeaths
	flagTTL
	flagReadyAt
	flagGroup
	flagCompressed
	flagsKnown = 1<<iota - 1
)

// attributes are the parts of a message that a queue acts on. They come first, so that the rest need not be decoded.
type attributes struct {
	flags    uint64
	priority uint8
	ttl      time.Duration
	readyAt  instant // 0: at once
	part     uint8   // of a bundle, else 0; not decoded
	key      idKey   // set only where a queue remembers ids; the id comes behind these
	group    []byte  // a part of the command
	saved    int     // by how much the body was longer before it was compressed; 0: it is not
}

func decodeAttributes(r *wire.Reader) (a attributes) {
	a.flags = r.Uvarint()
	if a.flags&^flagsKnown != 0 {
		r.Fail()
	}
	a.priority = r.Byte()
	if a.flags&flagTTL != 0 {
		ttl := r.Uvarint()
		if ttl > uint64(MaxDelay) {
			r.Fail()
		}
		if a.ttl = time.Duration(ttl); ttl == 0 {
			a.ttl = NoWait
		}
	}
	if a.flags&flagReadyAt != 0 {
		if a.readyAt = instant(r.Varint()); a.readyAt == 0 {
			r.Fail()
		}
	}
	if a.flags&flagGroup != 0 {
		if a.group = r.Bytes(); len(a.group) == 0 || len(a.group) > MaxNameBytes {
			r.Fail()
		}
	}
	if a.flags&flagCompressed != 0 {
		if a.saved = int(min(r.Uvarint(), MaxBodyBytes+1)); a.saved > MaxBodyBytes || a.saved <= a.compressedCost() {
			r.Fail()
			a.saved = 0
		}
	}
	return a
}

// compressedCost is by how much the attributes are longer since the body is compressed.
func (a *attributes) compressedCost() int {
	return wire.UvarintLen(a.flags) - wire.UvarintLen(a.flags&^flagCompressed) + wire.UvarintLen(uint64(a.saved))
}

// plain is what the size of a message with these attributes would be if its body were not compressed. That is what queues count.
func (a *attributes) plain(size int) uint32 {
	if a.flags&flagCompressed == 0 {
		return uint32(size)
	}
	return uint32(size + a.saved - a.compressedCost())
}

// messageID is an id that the broker made: its instance, drawn at random when it was opened, and a
// number.
type messageID struct{ instance, number uint64 }

const madeIDBytes = 16

func appendMessage(dst []byte, m *Message, made messageID, deaths []Death) []byte {
	return appendCompressed(dst, m, nil, made, deaths)
}

// appendCompressed is appendMessage for a message whose body is in c; nil: it is in m, as it was published.
func appendCompressed(dst []byte, m *Message, c *compressed, made messageID, deaths []Death) []byte {
	flags := uint64(0)
	if c != nil {
		flags |= flagCompressed
	}
	if m.ID != "" {
		flags |= flagGivenID
	}
	if !m.Timestamp.IsZero() {
		flags |= flagTimestamp
	}
	if len(m.Headers) > 0 {
		flags |= flagHeaders
	}
	if len(deaths) > 0 {
		flags |= flagDeaths
	}
	readyAt := instant(0)
	if !m.DeliverAt.IsZero() {
		readyAt = instant(m.DeliverAt.UnixNano())
	}
	if readyAt != 0 {
		flags |= flagReadyAt
	}
	if m.TTL != 0 {
		flags |= flagTTL
	}
	if m.GroupID != "" {
		flags |= flagGroup
	}
	dst = append(wire.AppendUvarint(dst, flags), m.Priority)
	if m.TTL != 0 {
		dst = wire.AppendUvarint(dst, uint64(max(m.TTL, 0)))
	}
	if readyAt != 0 {
		dst = wire.AppendVarint(dst, int64(readyAt))
	}
	if m.GroupID != "" {
		dst = wire.AppendString(dst, m.GroupID)
	}
	if c != nil {
		dst = wire.AppendUvarint(dst, uint64(c.saved))
	}
	if m.ID != "" {
		dst = wire.AppendString(dst, m.ID)
	} else {
		dst = wire.AppendUint64(dst, made.instance)
		dst = wire.AppendUint64(dst, made.number)
	}
	dst = wire.AppendString(dst, m.Exchange)
	dst = wire.AppendString(dst, m.RoutingKey)
	if flags&flagTimestamp != 0 {
		dst = wire.AppendVarint(dst, m.Timestamp.UnixNano())
	}
	if flags&flagHeaders != 0 {
		dst = wire.AppendBytes(dst, appendHeaders(nil, m.Headers))
	}
	if flags&flagDeaths != 0 {
		dst = wire.AppendBytes(dst, appendDeaths(nil, deaths))
	}
	if c != nil {
		return append(dst, c.block...)
	}
	return append(dst, m.Body...)
}

// envelope is a message taken apart, in place: its slices are parts of the command.
type envelope struct {
	attributes
	id        []byte
	exchange  []byte
	key       []byte
	timestamp int64
	headers   []byte
	deaths    []byte
	body      []byte
}

func decodeEnvelope(r *wire.Reader) (m envelope) {
	m.attributes = decodeAttributes(r)
	if m.flags&flagGivenID != 0 {
		m.id = r.Bytes()
	} else {
		m.id = r.Fixed(madeIDBytes)
	}
	m.exchange = r.Bytes()
	m.key = r.Bytes()
	if m.flags&flagTimestamp != 0 {
		m.timestamp = r.Varint()
	}
	if m.flags&flagHeaders != 0 {
		m.headers = r.Bytes()
	}
	if m.flags&flagDeaths != 0 {
		m.deaths = r.Bytes()
	}
	m.body = r.Rest()
	return m
}

// envelopeOf finds the message in a command that holds one: an enqueue, an enter, a move, an edit, a replay or a fire.
func envelopeOf(cmd []byte) (envelope, error) {
	r := wire.NewReader(cmd)
	kind := commandKind(r.Byte())
	r.Uint64()
	// The others hold no message.
	//exhaustive:ignore
	switch kind {
	case cmdMove:
		r.Uvarint()
		r.Uvarint()
	case cmdAmend:
		if c := decodeAmend(&r); !c.what.hasMessage() {
			r.Fail()
		}
	case cmdFire:
		if decodeFire(&r).outcome != outcomeHere {
			r.Fail()
		}
	case cmdEnter:
		r.Uvarint()
		r.Bool()
	case cmdEnqueue:
	default:
		r.Fail()
	}
	return decodeAddressed(r)
}

// envelopeIn is envelopeOf for a part of a bundle.
func envelopeIn(part []byte) (envelope, error) { return decodeAddressed(wire.NewReader(part)) }

// decodeAddressed reads targets and a message.
func decodeAddressed(r wire.Reader) (envelope, error) {
	for range r.Count(1) {
		r.Uvarint()
	}
	m := decodeEnvelope(&r)
	return m, r.Err()
}

// messageRoom is what to leave free behind a command for message, and for what a log may read along with it.
const messageRoom = 48

// An id that the broker made fits into the room, with the attributes of a compressed body, which do not count.
const _ = uint(messageRoom - 2*madeIDBytes - 8)

// message makes a Message of the envelope, without copying it: the strings and the body are parts of cmd, the command
// that the envelope was found in, which belongs to the message from now on. Nothing ever writes to the strings
// again, and the receiver owns the body, which cannot grow into what lies behind it. An id that the broker made is
// written out behind the command, into the room that the caller has left there if possible.
func (m *envelope) message(cmd []byte, out *Message) error {
	if m.flags&flagGivenID == 0 {
		out.ID = text(hex.AppendEncode(cmd, m.id)[len(cmd):])
	} else {
		out.ID = text(m.id)
	}
	out.Exchange = text(m.exchange)
	out.RoutingKey = text(m.key)
	out.Body = m.body[:len(m.body):len(m.body)]
	out.Priority = m.priority
	out.TTL = m.ttl
	out.GroupID = text(m.group)
	if m.readyAt != 0 {
		out.DeliverAt = time.Unix(0, int64(m.readyAt))
	}
	if m.flags&flagTimestamp != 0 {
		out.Timestamp = time.Unix(0, m.timestamp)
	}
	if m.flags&flagHeaders != 0 {
		h, err := decodeHeaders(m.headers)
		if err != nil {
			return err
		}
		out.Headers = h
	}
	return nil
}

// text is b as a string without a copy: nobody may write to b any more.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
