// Package wire encodes and decodes the primitive values that commands,
// messages, checkpoints and records are made of.
//
// Encoding appends to a slice that the caller owns. Decoding reads from a
// [Reader] that never reads past its input, never allocates by a length that it
// has not checked against what is left, and remembers its first error, so that
// a decoder is written straight through and checked once at the end.
package wire

import (
	"encoding/binary"
	"errors"
	"math"
)

// ErrMalformed reports input that does not decode: too short, a length past its
// end, a varint of more than 64 bits, or bytes left over.
var ErrMalformed = errors.New("malformed encoding")

// AppendUint32 appends v in four bytes, little endian.
func AppendUint32(dst []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(dst, v) }

// AppendUint64 appends v in eight bytes, little endian.
func AppendUint64(dst []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(dst, v) }

// AppendUvarint appends v in one to ten bytes.
func AppendUvarint(dst []byte, v uint64) []byte { return binary.AppendUvarint(dst, v) }

// AppendVarint appends v in one to ten bytes, small magnitudes shortest.
func AppendVarint(dst []byte, v int64) []byte { return binary.AppendVarint(dst, v) }

// AppendFloat64 appends the bits of v in eight bytes.
func AppendFloat64(dst []byte, v float64) []byte { return AppendUint64(dst, math.Float64bits(v)) }

// AppendString appends the length of s and its bytes.
func AppendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// AppendBytes appends the length of b and its bytes.
func AppendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// AppendBool appends one byte, 0 or 1.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// UvarintLen is the number of bytes that [AppendUvarint] appends for v.
func UvarintLen(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

// Reader decodes from a slice, or from a stream of known length. After the first failure every method returns the
// zero value, and [Reader.Err] and [Reader.Done] return [ErrMalformed]. The zero
// Reader is an empty input. Not safe for concurrent use.
type Reader struct {
	rest   []byte
	failed bool
	stream *stream // what comes behind rest; nil: nothing
}

// NewReader returns a Reader over b, which it reads and never changes.
func NewReader(b []byte) Reader { return Reader{rest: b} }

// Err returns ErrMalformed if anything read so far did not decode.
func (r *Reader) Err() error {
	switch {
	case !r.failed:
		return nil
	case r.stream != nil && r.stream.err != nil:
		return r.stream.err
	}
	return ErrMalformed
}

// Done returns ErrMalformed if anything did not decode or input is left over.
func (r *Reader) Done() error {
	if !r.failed && r.Len() > 0 {
		return ErrMalformed
	}
	return r.Err()
}

// Len is the number of bytes not read yet; 0 after a failure.
func (r *Reader) Len() int { return len(r.rest) + r.unread() }

// Rest returns what has not been read yet, as a part of the input, and reads it.
func (r *Reader) Rest() []byte {
	r.fill(r.Len())
	b := r.rest
	r.rest = nil
	return b
}

// Fail makes the Reader fail, for a value that decodes but is out of its range.
func (r *Reader) Fail() {
	r.failed = true
	r.rest = nil
	if r.stream != nil {
		r.stream.left = 0
	}
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if len(r.rest) < 1 && !r.fill(1) {
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

// Bool reads one byte that must be 0 or 1.
func (r *Reader) Bool() bool {
	b := r.Byte()
	if b > 1 {
		r.Fail()
	}
	return b == 1
}

// Uint32 reads what AppendUint32 wrote.
func (r *Reader) Uint32() uint32 {
	if len(r.rest) < 4 && !r.fill(4) {
		return 0
	}
	v := binary.LittleEndian.Uint32(r.rest)
	r.rest = r.rest[4:]
	return v
}

// Uint64 reads what AppendUint64 wrote.
func (r *Reader) Uint64() uint64 {
	if len(r.rest) < 8 && !r.fill(8) {
		return 0
	}
	v := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return v
}

// Float64 reads what AppendFloat64 wrote.
func (r *Reader) Float64() float64 { return math.Float64frombits(r.Uint64()) }

// Uvarint reads what AppendUvarint wrote.
func (r *Reader) Uvarint() uint64 {
	if len(r.rest) > 0 && r.rest[0] < 0x80 { // most are
		v := r.rest[0]
		r.rest = r.rest[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(r.rest)
	if n == 0 && r.more() {
		v, n = binary.Uvarint(r.rest)
	}
	if n <= 0 {
		r.Fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// Varint reads what AppendVarint wrote.
func (r *Reader) Varint() int64 {
	v, n := binary.Varint(r.rest)
	if n == 0 && r.more() {
		v, n = binary.Varint(r.rest)
	}
	if n <= 0 {
		r.Fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// Count reads the number of elements that follow, each of at least size bytes,
// and fails if so many cannot be left: a count is then safe to allocate by.
func (r *Reader) Count(size int) int {
	v := r.Uvarint()
	if v > uint64(r.Len()/max(size, 1)) {
		r.Fail()
		return 0
	}
	return int(v)
}

// Bytes reads what AppendBytes wrote, as a part of the input: no copy.
func (r *Reader) Bytes() []byte {
	n := r.Count(1)
	if r.failed || n > len(r.rest) && !r.fill(n) {
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// Fixed reads n bytes as a part of the input: no copy.
func (r *Reader) Fixed(n int) []byte {
	if n < 0 {
		r.Fail()
		return nil
	}
	if n > len(r.rest) && !r.fill(n) {
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// String reads what AppendString wrote, copied.
func (r *Reader) String() string { return string(r.Bytes()) }
