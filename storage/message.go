package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
)

// Records that something still refers to: read, kept, freed. And what is counted.

// segment is one file of the log.
type segment struct {
	number uint32
	file   File
	size   int64 // allocated, or once sealed, the length

	live   atomic.Int64          // records in it that somebody refers to
	bytes  atomic.Int64          // their size, nearly
	copies []Position            // homes of records that were copied to it; guarded by Log.rollMu
	stuck  atomic.Pointer[error] // why it cannot be read, so it is not moved
	pins   int                   // backups that read it; guarded by Log.segMu

	// What Open found; fixed.
	header bool   // it has a header of its own
	first  uint64 // its first sequence, if so
}

func sequenceOf(b []byte) uint64 { return binary.LittleEndian.Uint64(b[8:]) }
func streamOf(b []byte) uint64   { return binary.LittleEndian.Uint64(b[24:]) }

func (l *Log) segment(number uint32) *segment {
	place := &l.recent[number%recentSegments]
	if s := place.Load(); s != nil && s.number == number {
		return s
	}
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	s := l.segments[number]
	if s != nil {
		place.Store(s) // under segMu, so not one that is being freed
	}
	return s
}

// Read appends the payload of the record at pos to dst and returns the longer slice;
// the checksum of what comes from the disk is verified. size is the length of the payload, or an upper bound, if
// the caller knows it, else 0: it saves a second read. Only a record that was reported
// and that Keep holds can be read. ErrGone means that nobody holds it any more, a
// *CorruptError that the file is damaged. Any goroutine may call Read, until Close.
func (l *Log) Read(pos Position, size int, dst []byte) ([]byte, error) {
	for at := pos; ; {
		if out, ok := l.readCache(at, pos, dst); ok {
			l.cacheHits.Add(1)
			return out, nil
		}
		if s := l.segment(at.segment()); s != nil {
			if out, ok := l.runs.read(s, at, pos, size, dst); ok {
				return out, nil
			}
			l.counts.diskReads.Add(1)
			out, err := l.readFile(s, at, pos, size, dst)
			if err == nil || l.segment(at.segment()) == s {
				return out, err
			}
		}
		// It has been moved, or was freed, and may be again while it is read.
		now, ok := l.locate(pos)
		if !ok || now == at {
			return dst, fmt.Errorf("read record %x: %w", uint64(pos), ErrGone)
		}
		at = now
	}
}

// readCache reads the record with that home which is at pos, if that is in memory.
func (l *Log) readCache(pos, home Position, dst []byte) ([]byte, bool) {
	l.cacheMu.RLock()
	defer l.cacheMu.RUnlock()
	c := l.cache.find(pos)
	if c == nil {
		return dst, false
	}
	payload, ok := payloadIn(c.mem[pos.offset()-c.base:], c.segment, pos, home)
	if !ok {
		return dst, false // let the file say what is wrong
	}
	return append(dst, payload...), true
}

// readFile reads the record with that home which is at pos, in s.
func (l *Log) readFile(s *segment, pos, home Position, size int, dst []byte) ([]byte, error) {
	n, offset := len(dst), pos.offset()
	want := recordSize(min(max(size+homeBytes, 256), maxPayload))
	for {
		want = int(min(int64(want), max(s.size-int64(offset), 0)))
		dst = slices.Grow(dst[:n], want)
		b := dst[n : n+want]
		got, err := s.file.ReadAt(b, int64(offset))
		if err != nil && !errors.Is(err, io.EOF) {
			return dst[:n], fmt.Errorf("read %s: %w", l.segmentName(s.number), err)
		}
		b = b[:got]
		if len(b) >= recordBytes && binary.LittleEndian.Uint32(b[16:]) == s.number {
			if length := binary.LittleEndian.Uint32(b[4:]); length <= maxPayload {
				if need := recordSize(int(length)); need > want && int64(offset)+int64(need) <= s.size {
					want = need
					continue
				}
			}
		}
		r, bad := decodeRecord(b, s.number, offset)
		body, ok := r.body(pos, home)
		if bad == "" && !ok {
			bad = "a record of another kind, or of another place"
		}
		if bad != "" {
			return dst[:n], l.corrupt(s.number, int64(offset), "a record", bad)
		}
		return dst[:n+copy(dst[n:n+want], body)], nil
	}
}

func (l *Log) corrupt(number uint32, offset int64, wanted, found string) error {
	return &CorruptError{File: l.segmentName(number), Offset: offset, Wanted: wanted, Found: found}
}

// Stats is a view of a log, of one instant as far as that is cheap.
type Stats struct {
	Segments  int    // files with records
	Dead      int    // of them, without references: the next checkpoint frees them
	Spares    int    // files prepared for use
	Bytes     int64  // size of these files
	Live      int64  // references
	LiveBytes int64  // size of the records that they are to, to a sixteenth
	Moved     int64  // records that were copied to where the log ends, since Open
	Sequence  uint64 // last one given to a record
	Pending   int    // bytes appended and not reported
	Appends   int64  // records, since Open
	Batches   int64
	Syncs     int64
	Written   int64 // bytes of records
	CacheHits int64 // reads from memory
	DiskReads int64 // reads of one record from its file
	AheadHits int64 // reads from what was read ahead
	AheadRuns int64 // times that something was read ahead
	AheadRead int64 // bytes that were
	Cached    int64 // bytes of memory with recent records
	Ahead     int64 // bytes of memory with what was read ahead
	Full      bool  // no space for another segment: write a checkpoint once any is Dead
	Low       bool  // less than Options.MinFree was free when it was last looked at: likewise
	Free      int64 // bytes free in the file system now; -1: it cannot tell
	Failed    bool
}

// Stats returns what can be counted. It takes the locks for a moment.
func (l *Log) Stats() Stats {
	free, err := l.fs.Free(l.dir)
	if err != nil {
		free = -1
	}
	l.mu.Lock()
	st := Stats{
		Spares: len(l.spares), Sequence: l.seq, Pending: l.pending, Appends: l.appends, Free: free,
		Full: l.full != nil, Low: l.low != nil, Failed: l.failed != nil,
	}
	for _, s := range l.spares {
		st.Bytes += s.size
	}
	for _, s := range l.free {
		st.Bytes += s.size
	}
	l.segMu.RLock()
	for _, s := range l.segments {
		st.Bytes += s.size
		st.LiveBytes += s.bytes.Load()
		if s.live.Load() == 0 && s != l.current {
			st.Dead++
		}
	}
	st.Segments = len(l.segments)
	l.segMu.RUnlock()
	l.mu.Unlock()
	l.memoryStats(&st)
	l.rollMu.Lock()
	st.Live = l.refs
	l.rollMu.Unlock()
	st.Moved = l.counts.moved.Load()
	st.Batches = l.counts.batches.Load()
	st.Syncs, st.Written = l.counts.syncs.Load(), l.counts.written.Load()
	st.CacheHits, st.DiskReads = l.cacheHits.Load(), l.counts.diskReads.Load()
	return st
}
