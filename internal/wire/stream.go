package wire

import "io"

// streamWindow is how much a Reader over a stream reads at a time, at least.
const streamWindow = 64 << 10

// stream is what a Reader has not taken from its source yet.
type stream struct {
	from io.Reader
	left int // bytes
	err  error
}

// NewStreamReader returns a Reader over the next size bytes of from, of which it holds a piece at a time. It trusts size as it trusts
// the length of a slice: a length that it reads is checked against it, and memory is allocated by it. What the methods
// return as a part of the input stays as it is. An error of from, or that it ends too early, is the error of
// [Reader.Err] and [Reader.Done] in place of ErrMalformed.
func NewStreamReader(from io.Reader, size int) Reader {
	return Reader{stream: &stream{from: from, left: max(size, 0)}}
}

// fill makes sure that the next n bytes are in rest. It reports whether it could, and fails if not.
func (r *Reader) fill(n int) bool {
	if !r.reach(n) {
		r.Fail()
		return false
	}
	return true
}

// reach is fill, but leaves it to the caller to fail.
func (r *Reader) reach(n int) bool {
	s := r.stream
	have := len(r.rest)
	if n <= have {
		return true
	}
	if s == nil || s.left < n-have {
		return false
	}
	// A new window each time, since parts of the one before may be in use.
	window := make([]byte, min(max(n, streamWindow), have+s.left))
	copy(window, r.rest)
	if _, err := io.ReadFull(s.from, window[have:]); err != nil {
		s.err = err
		if err == io.EOF {
			s.err = io.ErrUnexpectedEOF
		}
		return false
	}
	s.left -= len(window) - have
	r.rest = window
	return true
}

// more brings more of a varint that rest ends in, and reports whether there was more.
func (r *Reader) more() bool {
	return r.stream != nil && r.stream.left > 0 && r.reach(len(r.rest)+min(r.stream.left, 10))
}

// unread is the number of bytes that are not in rest.
func (r *Reader) unread() int {
	if r.stream == nil {
		return 0
	}
	return r.stream.left
}
