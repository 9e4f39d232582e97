package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// One frame of a segment: how it is written, and whether what is read is one.

// Position is the address of a record: the number of its segment in the upper 32
// bits, the offset of its header in the lower. Zero is nowhere: segments number
// from 1.
type Position uint64

func at(segment, offset uint32) Position { return Position(segment)<<32 | Position(offset) }

func (p Position) segment() uint32 { return uint32(p >> 32) }
func (p Position) offset() uint32  { return uint32(p) }

// A record is a header, the payload, and zeros up to a multiple of 8. Numbers are
// little endian.
//
//	 0      4        8          16        20    21     22     24      32      40
//	┌──────┬────────┬──────────┬─────────┬─────┬──────┬──────┬───────┬───────┬─────────
//	│ crc  │ length │ sequence │ segment │kind │flags │ zero │stream │synced │ payload…
//	└──────┴────────┴──────────┴─────────┴─────┴──────┴──────┴───────┴───────┴─────────
//	        └────────────────────────── covered by crc ──────────────────────────────┘
//
// crc is CRC32C, started with the offset of the record in the file. So a record is
// whole only in the segment and at the place it was written for: neither what a
// recycled file still holds nor a record image inside a payload is ever taken for
// one, unless it was made for that very place.
//
// synced is the last sequence that was known to be durable when the record was
// written. A bad record that a later one calls durable is damage, not a tear.
const (
	recordBytes = 40
	maxPayload  = 1 << 30
	chunkAlign  = 8
)

type kind uint8

const (
	kindData kind = 1
	// kindEnd closes a segment. Its payload is the number of the next segment (4 bytes;
	// zero: none was ready), 4 bytes of zero, and the first sequence there (8 bytes).
	// Every segment but the newest has one.
	kindEnd kind = 2
	// kindCopy is a record that was written before: its payload is the position of the first, its home (8 bytes), and the
	// payload of that. It counts if a kindMove behind it says so.
	kindCopy kind = 3
	// kindMove says where records are from here on: its payload is pairs of a home and the position of a copy (8 bytes each).
	kindMove kind = 4
)

const (
	homeBytes = 8
	moveBytes = 16
)

const flagSync = 1 // the record asked for a sync

const endBytes = recordBytes + 16

// A segment starts with this header; records follow.
//
//	 0        8         12        16      24     60    64
//	┌────────┬─────────┬─────────┬───────┬──────┬─────┬──────────
//	│ magic  │ version │ segment │ first │ zero │ crc │ records…
//	└────────┴─────────┴─────────┴───────┴──────┴─────┴──────────
//
// first is the sequence of the first record. crc is CRC32C of all before it. A file
// whose header does not carry the number of its name is prepared for use and holds
// no records.
const (
	headerBytes   = 64
	segmentMagic  = "bourseg1"
	formatVersion = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func recordSize(payload int) int { return (recordBytes + payload + chunkAlign - 1) &^ (chunkAlign - 1) }

// putRecord writes a header for a payload of n bytes at b[recordBytes:]; synced and
// crc are left to sealRecord. It clears the padding.
func putRecord(b []byte, n int, seq uint64, segment uint32, k kind, flags byte, stream uint64) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], uint32(n))
	le.PutUint64(b[8:], seq)
	le.PutUint32(b[16:], segment)
	b[20], b[21], b[22], b[23] = byte(k), flags, 0, 0
	le.PutUint64(b[24:], stream)
	clear(b[recordBytes+n : recordSize(n)])
}

// putEnd writes an end record, all but synced and crc.
func putEnd(b []byte, seq uint64, segment, next uint32, first uint64) {
	binary.LittleEndian.PutUint32(b[recordBytes:], next)
	binary.LittleEndian.PutUint32(b[recordBytes+4:], 0)
	binary.LittleEndian.PutUint64(b[recordBytes+8:], first)
	putRecord(b, endBytes-recordBytes, seq, segment, kindEnd, 0, 0)
}

// sealRecord completes the record at the start of b, to be written at offset, and
// returns its size.
func sealRecord(b []byte, offset uint32, synced uint64) int {
	le := binary.LittleEndian
	n := int(le.Uint32(b[4:]))
	le.PutUint64(b[32:], synced)
	le.PutUint32(b, crc32.Update(offset, castagnoli, b[4:recordBytes+n]))
	return recordSize(n)
}

// record is one that was read. payload is a part of what it was read from.
type record struct {
	sequence, stream, synced uint64
	kind                     kind
	flags                    byte
	payload                  []byte
	size                     int // with header and padding

	next  uint32 // kindEnd only
	first uint64
}

// decodeRecord reads the record at the start of b, which was read from offset of
// segment. bad says what is wrong with it, and is empty if it is whole.
func decodeRecord(b []byte, segment, offset uint32) (r record, bad string) {
	if len(b) < recordBytes {
		return r, "the end of the file"
	}
	le := binary.LittleEndian
	n := le.Uint32(b[4:])
	if s := le.Uint32(b[16:]); s != segment {
		return r, fmt.Sprintf("a header for segment %d", s)
	}
	if n > maxPayload || recordSize(int(n)) > len(b) {
		return r, fmt.Sprintf("a length of %d, past the end of the file", n)
	}
	if sum := crc32.Update(offset, castagnoli, b[4:recordBytes+n]); sum != le.Uint32(b) {
		return r, fmt.Sprintf("checksum %08x over bytes that give %08x", le.Uint32(b), sum)
	}
	r = record{
		sequence: le.Uint64(b[8:]), kind: kind(b[20]), flags: b[21], stream: le.Uint64(b[24:]),
		synced: le.Uint64(b[32:]), payload: b[recordBytes : recordBytes+n : recordBytes+n],
		size: recordSize(int(n)),
	}
	switch {
	case r.kind == kindData:
	case r.kind == kindCopy && n >= homeBytes:
	case r.kind == kindMove && n > 0 && n%moveBytes == 0:
	case r.kind == kindEnd && n == endBytes-recordBytes:
		r.next, r.first = le.Uint32(r.payload), le.Uint64(r.payload[8:])
	default:
		return r, fmt.Sprintf("a record of kind %d and length %d", r.kind, n)
	}
	return r, ""
}

// body returns what an owner put into the record, which was read from pos and is to have that home.
func (r *record) body(pos, home Position) ([]byte, bool) {
	switch {
	case r.kind == kindData && pos == home:
		return r.payload, true
	case r.kind == kindCopy && Position(binary.LittleEndian.Uint64(r.payload)) == home:
		return r.payload[homeBytes:], true
	}
	return nil, false
}

// payloadIn returns the body of the record at the start of b, part of the memory that the log encoded it into, at pos of
// segment, if that is its home. No checksum is verified: that memory was never anywhere else.
func payloadIn(b []byte, segment uint32, pos, home Position) (payload []byte, ok bool) {
	n := binary.LittleEndian.Uint32(b[4:])
	if binary.LittleEndian.Uint32(b[16:]) != segment || int64(n) > int64(len(b)-recordBytes) {
		return nil, false
	}
	r := record{kind: kind(b[20]), payload: b[recordBytes : recordBytes+n]}
	if r.kind == kindCopy && n < homeBytes {
		return nil, false
	}
	return r.body(pos, home)
}

// findRecord looks for a whole record of segment in b, which was read from offset
// base, at any multiple of 8 from start on. Records must have a sequence above
// after. It returns the place in b, or -1. budget bounds the bytes that are summed,
// since a payload can be full of things that look like headers; it is -1 once spent.
func findRecord(b []byte, segment, base uint32, start int, after uint64, budget *int) (int, record) {
	le := binary.LittleEndian
	for i := start; i+recordBytes <= len(b); i += chunkAlign {
		if le.Uint32(b[i+16:]) != segment || le.Uint64(b[i+8:]) <= after ||
			b[i+20] == 0 || b[i+20] > byte(kindMove) {
			continue
		}
		n := le.Uint32(b[i+4:])
		if n > maxPayload || recordSize(int(n)) > len(b)-i {
			continue
		}
		if *budget -= recordSize(int(n)); *budget < 0 {
			*budget = -1
			return -1, record{}
		}
		if r, bad := decodeRecord(b[i:], segment, base+uint32(i)); bad == "" {
			return i, r
		}
	}
	return -1, record{}
}

func putSegmentHeader(b []byte, segment uint32, first uint64) {
	clear(b[:headerBytes])
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], formatVersion)
	binary.LittleEndian.PutUint32(b[12:], segment)
	binary.LittleEndian.PutUint64(b[16:], first)
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
}

// decodeSegmentHeader reads a segment header. bad is empty if it is whole.
func decodeSegmentHeader(b []byte) (segment uint32, first uint64, bad string) {
	if len(b) < headerBytes {
		return 0, 0, "the end of the file"
	}
	le := binary.LittleEndian
	if sum := crc32.Checksum(b[:60], castagnoli); string(b[:8]) != segmentMagic || sum != le.Uint32(b[60:]) {
		return 0, 0, fmt.Sprintf("% x…", b[:16])
	}
	if v := le.Uint32(b[8:]); v != formatVersion {
		return 0, 0, fmt.Sprintf("format version %d", v)
	}
	return le.Uint32(b[12:]), le.Uint64(b[16:]), ""
}
