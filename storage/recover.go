package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What opening does, in order.
//
//	Open    1. look at the directory: ours, empty, or foreign; lock it
//	        2. if new: first segment, then FORMAT; each durable before the next
//	        3. make the names that are there durable; remove our temporary files
//	        4. read the header of the newest checkpoint; remove older ones
//	        5. sort the segment files: live, to be replayed, prepared, free
//	Replay  6. sync what the last owner may have left unsynced
//	        7. follow the segments from the checkpoint, by sequence, to the end, and
//	           write the last records again
//	        8. decide what the end is: untouched, a tear, or damage
//	        9. seal a tear; go on in a new segment; start the goroutines
//
// A crash in any step leaves a directory for which all steps work again: 2 starts over
// as long as there is no FORMAT, 3 to 5 remove only what does not count, and 9 first makes
// the next segment, then overwrites bytes that did not count with the end record that
// names it.

const (
	formatName    = "FORMAT"
	lockName      = "LOCK"
	reserveName   = "reserve"
	tempSuffix    = ".tmp"
	segmentSuffix = ".log"
	checkSuffix   = ".ckpt"
	formatPrefix  = "bourse log, format "
)

func (l *Log) path(name string) string { return filepath.Join(l.dir, name) }

func (l *Log) segmentName(n uint32) string { return l.path(fmt.Sprintf("%016d%s", n, segmentSuffix)) }

func (l *Log) checkpointName(seq uint64) string {
	return l.path(fmt.Sprintf("%016d%s", seq, checkSuffix))
}

// numbered returns the number in a name of the given suffix, if it is one that the log
// would give.
func numbered(name, suffix string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) < 16 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil && name == fmt.Sprintf("%016d%s", n, suffix)
}

// chain is what Replay has to follow: the segment files from the checkpoint on, used
// and prepared ones, by number.
type chain map[uint32]*segment

// Open opens the log in dir, which it creates if needed, and locks it. It finds the
// newest checkpoint, but replays nothing: call Checkpoint, then Replay, then Append.
// Errors: ErrLocked, ErrForeign, ErrDiskFull, *CorruptError, or a fault of the disk.
func Open(dir string, opts Options) (*Log, error) {
	if opts.FS == nil {
		opts.FS = OS
	}
	if opts.SegmentBytes == 0 {
		opts.SegmentBytes = DefaultSegmentBytes
	}
	opts.SegmentBytes = min(max(opts.SegmentBytes, 512), maxPayload) &^ (chunkAlign - 1)
	if opts.CacheBytes == 0 {
		opts.CacheBytes = 32 << 20
	}
	if opts.AheadBytes == 0 {
		opts.AheadBytes = defaultAheadBytes
	}
	opts.Spare = max(opts.Spare, 2)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{
		dir: dir, opts: opts, fs: opts.FS, chain: chain{}, segments: map[uint32]*segment{},
		rolls: map[uint32]*roll{}, kick: make(chan struct{}, 1), thin: make(chan struct{}, 1), squeezes: make(chan *squeeze),
		quit: make(chan struct{}), closed: make(chan struct{}),
		wrote: make(chan *batch, commitAhead), done: make(chan *batch, commitAhead), open: &batch{},
		memory: min(chunkBytes, opts.SegmentBytes+headerBytes+endBytes),
	}
	l.runs.budget, l.runs.usual = max(opts.AheadBytes, 0), runUsual
	l.work.L, l.room.L = &l.mu, &l.mu
	if err := l.openDir(); err != nil {
		l.closeFiles()
		if isFull(err) && !errors.Is(err, ErrDiskFull) {
			err = fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return nil, fmt.Errorf("open log in %s: %w", dir, err)
	}
	return l, nil
}

func (l *Log) openDir() error {
	if err := makeDir(l.fs, l.dir); err != nil {
		return err
	}
	if _, err := l.look(); err != nil { // before anything is put into it
		return err
	}
	lock, err := l.fs.Lock(l.path(lockName))
	if err != nil {
		return err
	}
	l.lock = lock
	names, err := l.look()
	if err != nil {
		return err
	}
	if !slices.Contains(names, formatName) {
		if err := l.createDir(names); err != nil {
			return err
		}
		if names, err = l.fs.ReadDir(l.dir); err != nil {
			return err
		}
	} else if err := l.checkFormat(); err != nil {
		return err
	}
	// What we see may be in memory only, if the last process was killed.
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	if err := l.removeTemp(names); err != nil {
		return err
	}
	live, err := l.findCheckpoint(names)
	if err != nil {
		return err
	}
	return l.findSegments(names, live)
}

// look lists the directory and refuses one that has something in it and is not ours.
func (l *Log) look() ([]string, error) {
	names, err := l.fs.ReadDir(l.dir)
	if err != nil || slices.Contains(names, formatName) {
		return names, err
	}
	for _, n := range names {
		// These are there if creating the log was cut off.
		if n != lockName && n != formatName+tempSuffix && n != filepath.Base(l.segmentName(1)) {
			return nil, fmt.Errorf("%w: it has no file %s, but %q", ErrForeign, formatName, n)
		}
	}
	return names, nil
}

// createDir makes a new log. FORMAT comes last, so a directory with FORMAT has, or
// had, a first segment: that it is gone is damage. Its own name is durable before that.
func (l *Log) createDir(names []string) error {
	if first := l.segmentName(1); slices.Contains(names, filepath.Base(first)) {
		s, err := l.openSegment(1)
		if err != nil {
			return err
		}
		s.file.Close()
		if s.header {
			return fmt.Errorf("%w: it has no file %s, but a segment with records", ErrForeign, formatName)
		}
	}
	s, err := l.createSegment(1, int64(l.opts.SegmentBytes), false)
	if err != nil {
		return err
	}
	s.file.Close()
	temp := l.path(formatName + tempSuffix)
	text := fmt.Sprintf("%s%d\n", formatPrefix, formatVersion)
	err = l.writeFile(temp, func(f File) error {
		_, err := f.WriteAt([]byte(text), 0)
		return err
	})
	if err != nil {
		return err
	}
	if err := l.fs.SyncDir(filepath.Dir(filepath.Clean(l.dir))); err != nil {
		return err
	}
	if err := l.fs.Rename(temp, l.path(formatName)); err != nil {
		return err
	}
	return l.fs.SyncDir(l.dir)
}

func (l *Log) checkFormat() error {
	f, err := l.fs.Open(l.path(formatName))
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 64)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	text, ours := strings.CutPrefix(string(b[:n]), formatPrefix)
	text, whole := strings.CutSuffix(text, "\n")
	v, err := strconv.Atoi(text)
	switch {
	case !ours || !whole || err != nil || v < 1:
		return fmt.Errorf("%w: %s says %q", ErrForeign, l.path(formatName), b[:n])
	case v > formatVersion:
		return fmt.Errorf("%w: %s says format %d, this release reads up to %d", ErrForeign,
			l.path(formatName), v, formatVersion)
	}
	return nil
}

// removeTemp removes the temporary files that the log itself makes, and no others.
func (l *Log) removeTemp(names []string) error {
	for _, n := range names {
		stem, ok := strings.CutSuffix(n, tempSuffix)
		_, check := numbered(stem, checkSuffix)
		if ok && (check || stem == formatName || stem == reserveName) {
			if err := l.fs.Remove(l.path(n)); err != nil {
				return err
			}
		}
	}
	l.reserve.Store(slices.Contains(names, reserveName))
	return nil
}

// findCheckpoint sets base and returns the segments that the checkpoint needs.
func (l *Log) findCheckpoint(names []string) (live []uint32, err error) {
	var all []uint64
	for _, n := range names {
		if seq, ok := numbered(n, checkSuffix); ok {
			all = append(all, seq)
		}
	}
	l.base = base{segment: 1, offset: headerBytes, next: 1}
	if len(all) > 0 {
		slices.Sort(all)
		l.checkpoint = l.checkpointName(all[len(all)-1])
		f, err := l.fs.Open(l.checkpoint)
		if err != nil {
			return nil, err
		}
		m, _, _, err := readCheckpointHeader(l.checkpoint, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		if m.base.next-1 != all[len(all)-1] {
			return nil, &CorruptError{File: l.checkpoint, Offset: 16, Found: strconv.FormatUint(m.base.next, 10),
				Wanted: fmt.Sprintf("sequence %d, as the name says", all[len(all)-1]+1)}
		}
		for _, seq := range all[:len(all)-1] {
			l.remove(l.checkpointName(seq))
		}
		l.base, live, l.saved = m.base, m.live, m.base.next
	}
	l.reported = reported{l.base.next - 1, l.base.next, at(l.base.segment, l.base.offset)}
	return live, nil
}

// openSegment opens a segment file and reads its header.
func (l *Log) openSegment(number uint32) (*segment, error) {
	f, err := l.fs.Open(l.segmentName(number))
	if err != nil {
		return nil, err
	}
	s := &segment{number: number, file: f}
	b := make([]byte, headerBytes)
	n, err := f.ReadAt(b, 0)
	if err == nil || errors.Is(err, io.EOF) {
		s.size, err = f.Size()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	if err := l.checkVersion(number, b[:n]); err != nil {
		f.Close()
		return nil, err
	}
	own, first, bad := decodeSegmentHeader(b[:n])
	if bad != "" {
		return s, nil
	}
	s.header, s.first = own == number, first
	if !s.header {
		s.first = uint64(own)
	}
	return s, nil
}

// findSegments sorts the segment files.
func (l *Log) findSegments(names []string, live []uint32) error {
	for _, name := range names {
		n, ok := numbered(name, segmentSuffix)
		if !ok || n == 0 || n >= 1<<32-1 {
			continue
		}
		number := uint32(n)
		s, err := l.openSegment(number)
		if err != nil {
			return err
		}
		l.number = max(l.number, number)
		needed := slices.Contains(live, number)
		switch {
		case number < l.base.segment && !needed:
			l.free = append(l.free, s)
			continue
		case s.header:
			l.segments[number] = s // Keep will ask for it
		}
		if number >= l.base.segment {
			l.chain[number] = s
		} else if !s.header {
			s.file.Close()
			return l.corrupt(number, 0, "the header of a segment with live records", "none")
		}
		if other := uint32(s.first); !s.header && other != 0 {
			// The file was another segment before. It was used again after that one was freed.
			if other > number || other >= l.base.segment || slices.Contains(live, other) {
				return l.corrupt(number, 0, fmt.Sprintf("segment %d", number),
					fmt.Sprintf("segment %d, which is not free", other))
			}
		}
	}
	l.number = max(l.number, l.base.segment)
	for _, n := range live {
		if l.segments[n] == nil {
			return l.corrupt(n, 0, "a segment with live records", "no such file")
		}
	}
	return nil
}

// Replay calls fn with the records behind the checkpoint, in log order and in batches,
// and then opens the log for Append. The slice and Data are valid during the call. It
// must be called exactly once, and after everything that the checkpoint refers to was
// kept. It returns the error of fn, a *CorruptError, ErrDiskFull if there is no space to
// go on, or a fault; the log can only be closed then.
//
// A torn tail, records that were never known to be durable, is cut off and logged.
func (l *Log) Replay(fn func(batch []Committed) error) error {
	l.mu.Lock()
	if l.closing || l.replayed {
		defer l.mu.Unlock()
		if l.closing {
			return ErrClosed
		}
		return errOrder
	}
	l.replayed = true
	l.mu.Unlock()
	if err := l.findTable(); err != nil {
		return err
	}
	if err := l.missed(); err != nil {
		return err
	}
	l.checkpointRefs = l.refs // as restored
	t, err := l.replay(fn)
	if err == nil {
		err = l.missed()
	}
	if err == nil {
		err = l.goOn(t)
	}
	if err != nil {
		if isFull(err) && !errors.Is(err, ErrDiskFull) {
			err = fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return fmt.Errorf("replay log in %s: %w", l.dir, err)
	}
	l.watch() // before anything is let in
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return ErrClosed
	}
	l.chain = nil
	l.running = true
	l.wg.Add(3)
	l.prep.Add(2)
	go l.write()
	go l.sync()
	go l.report()
	go l.prepare()
	go l.compact()
	l.wakePreparer()
	l.wakeCompactor()
	return nil
}

// tail is where the records that count end.
type tail struct {
	segment *segment
	offset  uint32
	seq     uint64 // the sequence that is expected there
	touched bool   // something is there, or was before: not to be written over
}

// replay follows the chain to the tail.
func (l *Log) replay(fn func([]Committed) error) (tail, error) {
	newest := l.base.segment
	for n, s := range l.chain {
		if s.header {
			newest = max(newest, n)
		}
	}
	// Only the newest segment can hold what is not synced, or the one behind it, if its
	// header is torn.
	for n, s := range l.chain {
		if n >= newest {
			if err := s.file.Sync(); err != nil {
				return tail{}, err
			}
		}
	}
	number, offset, seq := l.base.segment, l.base.offset, l.base.next
	var buf []byte
	var batch []Committed
	done := l.progressFrom(l.base)
	for {
		s := l.chain[number]
		if s == nil {
			return tail{}, l.corrupt(number, 0, fmt.Sprintf("the segment of sequence %d", seq), "no such file")
		}
		if !s.header {
			if offset > headerBytes || number < newest {
				return tail{}, l.corrupt(number, 0, "a segment header", "none")
			}
			offset = 0
		} else if offset == headerBytes && s.first != seq {
			return tail{}, l.corrupt(number, 16, fmt.Sprintf("first sequence %d", seq), strconv.FormatUint(s.first, 10))
		}
		if s.size < int64(offset) {
			return tail{}, l.corrupt(number, s.size, "records", "the end of the file")
		}
		buf = slices.Grow(buf[:0], int(s.size-int64(offset)))[:s.size-int64(offset)]
		if n, err := s.file.ReadAt(buf, int64(offset)); n < len(buf) {
			return tail{}, fmt.Errorf("read %s: %w", l.segmentName(number), cmpErr(err, io.ErrUnexpectedEOF))
		}
		var end record
		i, bad, began := 0, "", seq
		for s.header {
			var r record
			r, bad = decodeRecord(buf[i:], number, offset+uint32(i))
			if bad == "" && r.sequence != seq {
				bad = fmt.Sprintf("sequence %d", r.sequence)
			}
			if bad != "" {
				break
			}
			if r.kind == kindEnd {
				end = r
				break
			}
			if r.kind == kindData {
				batch = append(batch, Committed{Stream: r.stream, Sequence: seq, Pos: at(number, offset+uint32(i)), Data: r.payload})
			}
			seq++
			i += r.size
			l.logged.Add(int64(r.size))
			if len(batch) == 1024 || r.kind == kindMove {
				if err := l.replayBatch(fn, batch, seq, at(number, offset+uint32(i))); err != nil {
					return tail{}, err
				}
				batch = batch[:0]
			}
			if r.kind == kindMove {
				if err := l.applyMoves(r.payload); err != nil {
					return tail{}, err
				}
			}
		}
		if err := l.replayBatch(fn, batch, seq, at(number, offset+uint32(i))); err != nil {
			return tail{}, err
		}
		batch = batch[:0]
		done.read(len(buf), seq-began)
		if end.kind == kindEnd && end.next != 0 {
			if end.next <= number || end.first <= seq {
				return tail{}, l.corrupt(number, int64(offset)+int64(i), "the next segment",
					fmt.Sprintf("segment %d, sequence %d", end.next, end.first))
			}
			if number == newest { // the next one was begun, and the sync of this one before it may have failed
				if err := l.rewrite(s, offset, buf[:i+end.size]); err != nil {
					return tail{}, err
				}
			}
			number, offset, seq = end.next, headerBytes, end.first
			continue
		}
		t := tail{segment: s, offset: offset + uint32(i), seq: seq, touched: i > 0 || offset > headerBytes}
		if number == newest && s.header {
			if err := l.rewrite(s, offset, buf[:i]); err != nil {
				return tail{}, err
			}
		}
		return l.judge(t, buf[i:], number < newest, end.kind == kindEnd, bad)
	}
}

// rewrite writes the records at the end of the log, b, which was read from offset, once
// more, as far as none of them says that they were durable, and syncs. It is for this:
// 1. a sync fails, and the kernel marks the pages clean that it could not write; 2. the
// log is closed as failed and opened again; 3. the records are read from memory, and
// counted; 4. a sync returns success, having nothing to do; 5. the pages are dropped,
// and the records are gone. What is overwritten has the same content, or did not count.
func (l *Log) rewrite(s *segment, offset uint32, b []byte) error {
	durable := s.first - 1
	if offset > headerBytes {
		durable = l.base.next - 1 // the checkpoint synced what is before it
	}
	for i := 0; i < len(b); {
		r, _ := decodeRecord(b[i:], s.number, offset+uint32(i))
		durable = max(durable, r.synced)
		i += r.size
	}
	from := 0
	for from < len(b) && sequenceOf(b[from:]) <= durable {
		r, _ := decodeRecord(b[from:], s.number, offset+uint32(from))
		from += r.size
	}
	b, start := b[from:], int64(offset)+int64(from)
	if start == headerBytes { // nothing in it was durable, and so was the header not
		b = append(make([]byte, headerBytes), b...)
		putSegmentHeader(b, s.number, s.first)
		start = 0
	}
	if len(b) == 0 {
		return nil
	}
	if _, err := s.file.WriteAt(b, start); err != nil {
		return err
	}
	return s.file.Sync()
}

func cmpErr(err, otherwise error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return otherwise
	}
	return err
}

// replayBatch gives fn the records before end, where that of sequence next is expected.
func (l *Log) replayBatch(fn func([]Committed) error, batch []Committed, next uint64, end Position) error {
	l.reported = reported{next - 1, next, end}
	if len(batch) == 0 {
		return nil
	}
	l.tell(batch)
	defer l.tell(nil)
	return fn(batch)
}

// judge decides what the end of the valid records is: the place where the last owner
// stopped writing, a tear, or damage. rest is what the file holds from there on.
//
// The last owner may have lost power with any part of its last writes on disk, so a bad
// record with good ones behind it can be legal. It is damage if
//   - a later segment exists: it got its first record after this one was synced, or
//   - a record behind it says that its sequence was durable, or
//   - the header of the segment is bad, and the first record, in the same sector,
//     is good.
func (l *Log) judge(t tail, rest []byte, older, ended bool, bad string) (tail, error) {
	n := t.segment.number
	wanted := fmt.Sprintf("the record of sequence %d", t.seq)
	if !t.segment.header {
		wanted, bad = "a segment header", "none"
	}
	if older {
		return t, l.corrupt(n, int64(t.offset), wanted, bad)
	}
	if ended {
		t.touched = true
		return t, nil // closed in good order, without a next segment
	}
	budget := 16*len(rest) + 1<<20
	lost := 0
	for i := 0; ; {
		k, r := findRecord(rest, n, t.offset, i, t.seq-1, &budget)
		if budget < 0 {
			return t, l.corrupt(n, int64(t.offset), wanted, bad+", and more record headers than can be checked")
		}
		if k < 0 {
			break
		}
		if r.synced >= t.seq {
			return t, l.corrupt(n, int64(t.offset), wanted,
				fmt.Sprintf("%s; sequence %d at offset %d says it was durable", bad, r.sequence, int(t.offset)+k))
		}
		if !t.segment.header && k == headerBytes {
			return t, l.corrupt(n, 0, wanted, "none, before a good record")
		}
		i = k + r.size
		lost = i
	}
	if !t.segment.header {
		rest = rest[min(len(rest), headerBytes):]
	}
	if lost == 0 && len(rest) >= recordBytes && binary.LittleEndian.Uint32(rest[16:]) == n {
		lost = recordBytes // the start of a record
	}
	if lost > 0 {
		t.touched = true
		l.opts.Logger.Warn("the log ends in a torn write, which is cut off", "file", l.segmentName(n),
			"offset", t.offset, "bytes", lost, "sequence", t.seq)
	}
	return t, nil
}

// goOn makes the log ready for the record behind the tail: in the same segment if that
// was never written to, else in a new one.
func (l *Log) goOn(t tail) error {
	s := t.segment
	var spares []*segment
	for n, other := range l.chain {
		if n > s.number {
			spares = append(spares, other)
		} else if !other.header && n != s.number {
			l.free = append(l.free, other)
		}
	}
	slices.SortFunc(spares, func(a, b *segment) int { return int(int64(a.number) - int64(b.number)) })
	for _, other := range spares {
		if other.size == int64(l.opts.SegmentBytes) && len(l.spares) < l.opts.Spare {
			l.spares = append(l.spares, other)
		} else {
			l.removeSegments([]*segment{other})
		}
	}
	first := t.seq
	hasHeader := s.header
	if t.touched || s.size < headerBytes+endBytes {
		next, err := l.cut(t)
		if err != nil {
			return err
		}
		s, first, hasHeader = next, next.first, false
	}
	// Without a spare, whether there is space has to be known before anything is let in:
	// else each start on a full disk would use up a little more.
	if len(l.spares) == 0 {
		l.number++
		spare, err := l.createSegment(l.number, int64(l.opts.SegmentBytes), false)
		switch {
		case err == nil:
			l.spares = append(l.spares, spare)
		case isFull(err):
			l.full = fmt.Errorf("%w: %w", ErrDiskFull, err)
			l.opts.Logger.Warn("no space for another segment", "dir", l.dir, "err", err)
		default:
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq = first - 1
	l.written.Store(l.seq)
	l.synced.Store(l.seq)
	l.file = s
	l.startLocked(s, first, hasHeader)
	l.reported = reported{first - 1, first, at(s.number, headerBytes)}
	l.settled.Store(s.number)
	return nil
}

// cut seals a segment at the tail and returns the segment to go on in; its first is
// the sequence to go on with, above every one that may have been lost.
//
// The end record overwrites what did not count, and nothing is ever read behind it. So
// records behind a hole in the last writes, which may be whole, cannot come back after
// new ones have been written. Crashes on the way: before the end record is durable the
// segment ends in the same place as before, since nothing else in it changed but bytes
// that did not count; afterwards it ends in an end record whose next segment exists.
func (l *Log) cut(t tail) (*segment, error) {
	s := t.segment
	size := max(s.size, int64(l.opts.SegmentBytes))
	if end := int64(t.offset) + headerBytes + endBytes; s.size > end {
		if err := s.file.Truncate(end); err != nil { // first, since it makes space
			return nil, err
		}
		s.size = end
	}
	if len(l.spares) == 0 {
		l.number++
		next, err := l.createSegment(l.number, int64(l.opts.SegmentBytes), false)
		if err != nil && isFull(err) && l.useReserve() {
			next, err = l.createSegment(l.number, l.reserveSize()&^(chunkAlign-1), false)
		}
		if err != nil {
			return nil, err
		}
		l.spares = append(l.spares, next)
	}
	next := l.spares[0]
	next.first = t.seq + 1 + uint64(size-int64(t.offset))/recordBytes

	b := make([]byte, max(int(s.size)-int(t.offset), headerBytes+endBytes))
	i := 0
	if !s.header {
		putSegmentHeader(b, s.number, t.seq)
		i = headerBytes
	}
	putEnd(b[i:], t.seq, s.number, next.number, next.first)
	sealRecord(b[i:], t.offset+uint32(i), t.seq-1)
	if _, err := s.file.WriteAt(b, int64(t.offset)); err != nil {
		return nil, err
	}
	if err := s.file.Sync(); err != nil {
		return nil, err
	}
	l.segments[s.number] = s
	l.spares = l.spares[1:]
	l.chain[next.number] = next // to be closed if the rest fails
	return next, nil
}
