package storage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
)

// Checkpoints: what the owner of the log knew at one point of it, so that replay can
// start there.
//
// A checkpoint file is a header, blocks, and an empty block:
//
//	 0       8         12      16      24        32       36          40             (crc)
//	┌───────┬─────────┬───────┬───────┬─────────┬────────┬───────────┬──────────────┬─────┐
//	│ magic │ version │ count │ next  │ segment │ offset │  zero     │ count × live │ crc │
//	└───────┴─────────┴───────┴───────┴─────────┴────────┴───────────┴──────────────┴─────┘
//
// The blocks hold a table of where records are (table.go), and behind it what the owner wrote.
//
//	┌────────┬─────┬───────┐ ┌────────┬─────┬───────┐     ┌───┬─────┐
//	│ length │ crc │ bytes │ │ length │ crc │ bytes │ ... │ 0 │ crc │
//	└────────┴─────┴───────┘ └────────┴─────┴───────┘     └───┴─────┘
//
// next (8 bytes) is the sequence that replay starts with, at offset (4) of segment (4);
// live are the numbers of the earlier segments that hold records with references. The
// crc of the header is CRC32C of all before it. That of a block goes on from the crc
// before it, over length and bytes, so blocks cannot be lost, doubled or swapped.
//
// There is one checkpoint, for a moment two. The newest counts; if it is damaged that
// is an error, since the segments that an older one needs may be used again already.
const (
	checkpointMagic  = "boursec1"
	checkpointHeader = 36
	blockHeader      = 8
	maxBlock         = 64 << 10
)

// base is where replay starts.
type base struct {
	segment, offset uint32
	next            uint64 // sequence of the record there
}

// reported is how far the owner of the log has been told.
type reported struct {
	last uint64 // sequence
	next uint64 // the one after it
	end  Position
}

// Mark is a point of the log, with what was needed of it then. See Log.Mark.
type Mark struct {
	base   base
	live   []uint32 // segments before base.segment with references, ascending
	rolls  []rollView
	refs   int64
	logged int64
}

// Mark captures the point behind everything that was reported, and which segments
// have references now. Inside Commit, or the function passed to Replay, the batch at
// hand counts as reported, so call Mark when its Keeps and Frees are done. After Replay
// it may be called on the goroutine of Replay until the first Append; otherwise only
// inside Commit.
func (l *Log) Mark() Mark {
	l.rollMu.Lock()
	defer l.rollMu.Unlock()
	m := Mark{
		base:   base{l.reported.end.segment(), l.reported.end.offset(), l.reported.next},
		logged: l.logged.Load(),
	}
	m.rolls, m.refs = l.viewRollsLocked(), l.refs
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	for n, s := range l.segments {
		if n < m.base.segment && s.live.Load() > 0 {
			m.live = append(m.live, n)
		}
	}
	slices.Sort(m.live)
	return m
}

// SinceCheckpoint returns the bytes of log that were reported since the mark of the
// newest checkpoint: what replay would have to read.
func (l *Log) SinceCheckpoint() int64 { return l.logged.Load() - l.sinceBase.Load() }

// WriteCheckpoint makes what w writes durable as the state at m. Replay will start at
// m from then on, and segments that m does not need are used again. It may run beside
// all other methods; one at a time, others wait.
//
// An error means that the checkpoint before it still counts: ErrDiskFull, ErrClosed,
// ErrSuperseded if that is one of a later mark, the error of w, or a fault; ErrFailed if the log failed, which only a sync of the log
// or of the directory can bring about here.
func (l *Log) WriteCheckpoint(m Mark, w io.WriterTo) error {
	l.ckptMu.Lock()
	defer l.ckptMu.Unlock()
	l.mu.Lock()
	failed, closing, replayed := l.failed, l.closing, l.running
	l.mu.Unlock()
	switch {
	case failed != nil:
		return failed
	case closing:
		return ErrClosed
	case !replayed:
		return errOrder
	}

	// 1. What the checkpoint builds on must not be lost: w refers to records that may be
	// written and not synced. Earlier segments are synced (invariant 2), and in this one
	// the syncer must not take a sync for good that only comes after one that failed.
	if s := l.segment(m.base.segment); s == nil || m.base.next < l.saved {
		return fmt.Errorf("write checkpoint: %w", ErrSuperseded)
	} else if err := l.syncTo(s, m.base.next-1); err != nil {
		return err
	}

	// 2. The file, complete and synced before it gets its name. In the other order:
	// rename, power cut, and the name points at nothing.
	name := l.checkpointName(m.base.next - 1)
	temp := name + tempSuffix
	err := l.writeFile(temp, func(f File) error { return l.writeCheckpoint(f, m, w) })
	if !l.reserve.Load() {
		defer l.wakePreparer()
	}
	if err == nil {
		err = l.fs.Rename(temp, name)
	}
	if err != nil {
		_ = l.fs.Remove(temp)
		if isFull(err) && !errors.Is(err, ErrDiskFull) {
			err = fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return fmt.Errorf("write checkpoint: %w", err)
	}
	if err := l.fs.SyncDir(l.dir); noDescriptor(err) {
		if name != l.checkpoint {
			_ = l.fs.Remove(name) // whole, if it stays or comes back: nothing has been freed for it
		}
		return fmt.Errorf("write checkpoint: %w: %w", ErrDiskFull, err)
	} else if err != nil {
		return l.fail(err)
	}

	// 3. Only now may anything go that the checkpoint before it needs.
	if l.checkpoint != "" && l.checkpoint != name {
		l.remove(l.checkpoint) // the newest counts, whether this is there or not
	}
	l.checkpoint, l.saved = name, m.base.next
	l.sinceBase.Store(m.logged)
	l.rollMu.Lock()
	l.checkpointRefs = m.refs
	l.rollMu.Unlock()
	l.freeSegments(m)
	return nil
}

func (l *Log) writeCheckpoint(f File, m Mark, w io.WriterTo) error {
	le := binary.LittleEndian
	b := append([]byte(checkpointMagic), make([]byte, checkpointHeader-8)...)
	le.PutUint32(b[8:], formatVersion)
	le.PutUint32(b[12:], uint32(len(m.live)))
	le.PutUint64(b[16:], m.base.next)
	le.PutUint32(b[24:], m.base.segment)
	le.PutUint32(b[28:], m.base.offset)
	for _, n := range m.live {
		b = le.AppendUint32(b, n)
	}
	crc := crc32.Checksum(b, castagnoli)
	b = le.AppendUint32(b, crc)
	f = reserveFile{f, l}
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	bw := &blockWriter{file: f, offset: int64(len(b)), crc: crc, block: make([]byte, blockHeader, maxBlock)}
	if err := writeTable(bw, m.rolls); err != nil {
		return err
	}
	if _, err := w.WriteTo(bw); err != nil {
		return err
	}
	if bw.flush(); bw.err == nil && len(bw.block) == blockHeader {
		bw.put() // the empty block
	}
	l.checkpointBytes.Store(bw.offset)
	return bw.err
}

// reserveFile gives up the reserve when there is no space for a write, and writes
// again: a temporary file, which nothing relies on.
type reserveFile struct {
	File
	log *Log
}

func (f reserveFile) WriteAt(b []byte, offset int64) (int, error) {
	n, err := f.File.WriteAt(b, offset)
	if err != nil && isFull(err) && f.log.useReserve() {
		n, err = f.File.WriteAt(b, offset)
	}
	return n, err
}

// blockWriter cuts what is written to it into blocks. Its first error stays.
type blockWriter struct {
	file   File
	offset int64
	crc    uint32
	block  []byte // with room for its header at the front
	err    error
}

func (w *blockWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 && w.err == nil {
		k := min(len(p), maxBlock-len(w.block))
		w.block = append(w.block, p[:k]...)
		p = p[k:]
		if len(w.block) == maxBlock {
			w.flush()
		}
	}
	return n - len(p), w.err
}

func (w *blockWriter) flush() {
	if len(w.block) > blockHeader && w.err == nil {
		w.put()
	}
}

func (w *blockWriter) put() {
	le := binary.LittleEndian
	le.PutUint32(w.block, uint32(len(w.block)-blockHeader))
	w.crc = blockSum(w.crc, w.block)
	le.PutUint32(w.block[4:], w.crc)
	_, w.err = w.file.WriteAt(w.block, w.offset)
	w.offset += int64(len(w.block))
	w.block = w.block[:blockHeader]
}

// blockSum is the crc of a block with its header, after a block with crc before.
func blockSum(before uint32, block []byte) uint32 {
	return crc32.Update(crc32.Update(before, castagnoli, block[:4]), castagnoli, block[blockHeader:])
}

// readCheckpointHeader returns what the header of a checkpoint says, and the length
// and crc of the header.
func readCheckpointHeader(name string, f File) (m Mark, length int64, crc uint32, err error) {
	bad := func(offset int64, wanted, found string) error {
		return &CorruptError{File: name, Offset: offset, Wanted: wanted, Found: found}
	}
	size, err := f.Size()
	if err != nil {
		return m, 0, 0, err
	}
	head := make([]byte, checkpointHeader)
	if size < checkpointHeader {
		return m, 0, 0, bad(size, "a checkpoint", "the end of the file")
	}
	if _, err := f.ReadAt(head, 0); err != nil {
		return m, 0, 0, err
	}
	le := binary.LittleEndian
	if string(head[:8]) != checkpointMagic {
		return m, 0, 0, bad(0, "a checkpoint", fmt.Sprintf("% x…", head[:8]))
	}
	count := int64(le.Uint32(head[12:]))
	length = checkpointHeader + 4*count + 4
	if length > size {
		return m, 0, 0, bad(12, "a list of segments", fmt.Sprintf("a length of %d, past the end of the file", count))
	}
	b := make([]byte, length)
	if _, err := f.ReadAt(b, 0); err != nil {
		return m, 0, 0, err
	}
	crc = crc32.Checksum(b[:length-4], castagnoli)
	if have := le.Uint32(b[length-4:]); have != crc {
		return m, 0, 0, bad(0, "a checkpoint header", fmt.Sprintf("checksum %08x over bytes that give %08x", have, crc))
	}
	if v := le.Uint32(b[8:]); v != formatVersion {
		return m, 0, 0, bad(8, fmt.Sprintf("format version %d", formatVersion), fmt.Sprintf("version %d", v))
	}
	m.base = base{segment: le.Uint32(b[24:]), offset: le.Uint32(b[28:]), next: le.Uint64(b[16:])}
	for i := range count {
		m.live = append(m.live, le.Uint32(b[checkpointHeader+4*i:]))
	}
	if m.base.offset < headerBytes || m.base.segment == 0 || m.base.next == 0 {
		return m, 0, 0, bad(16, "the start of replay", fmt.Sprintf("segment %d, offset %d", m.base.segment, m.base.offset))
	}
	return m, length, crc, nil
}

// Checkpoint returns the content of the newest checkpoint, to restore from before
// Replay; found is false if there is none. Reading verifies: a damaged file gives a
// *CorruptError in place of the damaged bytes and of io.EOF. The caller closes r.
func (l *Log) Checkpoint() (r io.ReadCloser, found bool, err error) {
	l.ckptMu.Lock()
	defer l.ckptMu.Unlock()
	if l.checkpoint == "" {
		return nil, false, nil
	}
	f, err := l.fs.Open(l.checkpoint)
	if err != nil {
		return nil, false, fmt.Errorf("read checkpoint: %w", err)
	}
	_, offset, crc, err := readCheckpointHeader(l.checkpoint, f)
	size := int64(0)
	if err == nil {
		size, err = f.Size()
	}
	if err != nil {
		f.Close()
		return nil, false, fmt.Errorf("read checkpoint: %w", err)
	}
	br := &blockReader{file: f, name: l.checkpoint, offset: offset, crc: crc}
	in := bufio.NewReaderSize(br, maxBlock)
	rolls := make(map[uint32]*roll)
	if err := readTable(in, rolls); err != nil {
		f.Close()
		if br.err == nil || errors.Is(br.err, io.EOF) { // else it is what the file said, damage or a fault
			err = &CorruptError{File: l.checkpoint, Offset: offset, Wanted: "a table of records", Found: err.Error()}
		}
		return nil, false, fmt.Errorf("read checkpoint: %w", err)
	}
	if !l.tabled {
		l.tabled, l.rolls = true, rolls
		l.checkpointBytes.Store(size)
	}
	return struct {
		io.Reader
		io.Closer
	}{in, br}, true, nil
}

// blockReader reads what a blockWriter wrote.
type blockReader struct {
	file   File
	name   string
	offset int64
	crc    uint32
	block  []byte // of the block, with its header
	rest   []byte // of block, not read yet
	err    error
}

func (r *blockReader) Close() error { return r.file.Close() }

func (r *blockReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.rest) == 0 && r.err == nil {
		r.err = r.next()
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// next reads and checks one block. It returns io.EOF at the empty one.
func (r *blockReader) next() error {
	bad := func(found string) error {
		return &CorruptError{File: r.name, Offset: r.offset, Wanted: "a block of the checkpoint", Found: found}
	}
	if r.block == nil {
		r.block = make([]byte, maxBlock)
	}
	b := r.block[:blockHeader]
	if n, err := r.file.ReadAt(b, r.offset); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			return bad("the end of the file")
		}
		return err
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxBlock-blockHeader {
		return bad(fmt.Sprintf("a block of %d bytes", n))
	}
	b = r.block[:blockHeader+n]
	if k, err := r.file.ReadAt(b, r.offset); k < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			return bad("the end of the file")
		}
		return err
	}
	sum := blockSum(r.crc, b)
	if have := binary.LittleEndian.Uint32(b[4:]); have != sum {
		return bad(fmt.Sprintf("checksum %08x over bytes that give %08x", have, sum))
	}
	r.crc = sum
	r.offset += int64(len(b))
	r.rest = b[blockHeader:]
	if n == 0 {
		return io.EOF
	}
	return nil
}
