package storage

import "slices"

// chunk is a piece of memory that mirrors a part of one segment: records are encoded
// into it, written from it, reported from it, and read from it as long as the cache
// has room. It is never moved or grown.
type chunk struct {
	mem     []byte // limit bytes for records, and room for an end record
	segment uint32
	base    uint32 // offset of mem[0] in the segment

	// Guarded by Log.mu.
	limit  int
	used   int // bytes that are records
	queued int // bytes that are in a batch
	pins   int // batches that are not reported yet
}

// ring holds the newest chunks in the order of their positions. Guarded by
// Log.cacheMu.
type ring struct {
	starts []Position // starts[i] is what chunks[i] begins with: those who search stay out of the chunk that is being filled
	chunks []*chunk
	bytes  int
}

// find returns the chunk that mirrors pos, or nil.
func (r *ring) find(pos Position) *chunk {
	i, found := slices.BinarySearch(r.starts, pos)
	if !found {
		i--
	}
	if i < 0 {
		return nil
	}
	c := r.chunks[i]
	if c.segment != pos.segment() || int(pos.offset()-c.base) > len(c.mem)-recordBytes {
		return nil
	}
	return c
}

// newChunkLocked continues the log in a new chunk with room for a record of size, and
// lets the oldest ones go as far as the cache is full. A chunk that is not reported
// yet stays.
func (l *Log) newChunkLocked(size int) *chunk {
	l.cacheMu.Lock()
	defer l.cacheMu.Unlock()
	r := &l.cache
	gone := 0
	for gone < len(r.chunks) && r.bytes > l.opts.CacheBytes && r.chunks[gone].pins == 0 &&
		r.chunks[gone] != l.chunk {
		c := r.chunks[gone]
		r.bytes -= len(c.mem)
		if len(c.mem) == l.memory && len(l.chunks) < 8 {
			l.chunks = append(l.chunks, c)
		}
		gone++
	}
	if gone > 0 {
		n := copy(r.chunks, r.chunks[gone:])
		clear(r.chunks[n:])
		r.chunks = r.chunks[:n]
		r.starts = r.starts[:copy(r.starts, r.starts[gone:])]
	}

	c := &chunk{}
	if need := size + headerBytes + endBytes; need > l.memory {
		c.mem = make([]byte, need)
	} else if n := len(l.chunks); n > 0 {
		c = l.chunks[n-1]
		l.chunks = l.chunks[:n-1]
	} else {
		c.mem = make([]byte, l.memory)
	}
	limit := min(len(c.mem), int(l.current.size)-l.offset) - endBytes
	*c = chunk{mem: c.mem, segment: l.current.number, base: uint32(l.offset), limit: max(limit, 0) &^ 7}
	r.chunks = append(r.chunks, c)
	r.starts = append(r.starts, at(c.segment, c.base))
	r.bytes += len(c.mem)
	l.chunk = c
	return c
}
