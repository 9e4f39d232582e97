package storage

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
)

// Group commit and rotation: from Append to the Commit callback.

// Payload is what a record carries.
type Payload interface {
	// AppendTo appends the encoded payload to dst and returns the longer slice. It is
	// called once, inside Append and under the log's lock: it must not call the log, nor
	// block.
	AppendTo(dst []byte) []byte
}

// Freer is a Payload that may say that it gives space back, such as the removal of what an earlier record brought. On a
// full disk it still goes in, even if it asks for a sync.
type Freer interface {
	Payload
	// Frees reports whether the record gives space back.
	Frees() bool
}

// Sealer is a Payload that is filled in as late as can be: AppendTo gives its size, and Seal its content, when its batch is about to
// be written. So what comes meanwhile finds room in a record that has its place in the log already.
type Sealer interface {
	Payload
	// Seal fills data, which is what AppendTo appended. It is called once for each record that was appended, in log order, on
	// the log's writer and under no lock, also if the log has failed meanwhile. It must not call the log, nor block.
	Seal(data []byte)
}

// Committed is one record on its way out of the log, in log order.
type Committed struct {
	Stream   uint64
	Sequence uint64 // increases from record to record, over all streams, not always by one
	Pos      Position
	Data     []byte  // the payload, valid during the callback
	Owner    Payload // what was passed to Append; nil in Replay
}

// Options configures a Log. The zero value is ready for use.
type Options struct {
	// FS is where the directory lives. Default: the operating system's.
	FS FS
	// SegmentBytes is the size of a segment file, at least 512. Default 16 MiB. It may
	// change from one Open to the next.
	SegmentBytes int
	// CacheBytes is the memory for recent records, read back without the disk. Default
	// 32 MiB; negative: as little as possible.
	CacheBytes int
	// AheadBytes is the most memory for what is read ahead from the files, where records are read in their order. Default
	// 4 MiB; negative: none.
	AheadBytes int
	// Spare is the number of segments kept prepared for use, at least 2, the default. The
	// last one is the reserve for when the disk is full.
	Spare int
	// MinFree is how many bytes of the disk are to stay free: with less, what adds is refused with a *LowDiskError until
	// there is more, see watermark.go. 0: none. Without effect where FS cannot tell.
	MinFree int64
	// Logger is told what an operator should know. Default: nobody is.
	Logger *slog.Logger
	// Commit is called with each batch, in log order, on one goroutine of the log, after
	// the batch has been written and, if any record in it asked for it, synced. The slice
	// and Data are valid during the call. An error means that the batch could not be made
	// durable and that its outcome is not known; it matches ErrFailed, and every later
	// batch reports the same. Commit must call neither Append, which may wait for it, nor
	// Close. After Poke the batch may be empty.
	Commit func(batch []Committed, err error)
}

// DefaultSegmentBytes is the size of a segment unless Options say otherwise.
const DefaultSegmentBytes = 16 << 20

const (
	chunkBytes     = 256 << 10
	maxPending     = 64 << 20 // bytes appended and not reported; Append waits above
	maxScratch     = 1 << 20
	mostKept       = 1 << 16 // records of a batch whose memory is used again
	commitAhead    = 2       // batches that wait for a sync, and as many for the callback
	directMargin   = 8 << 10
	recentSegments = 8 // found without a lock: those that are written, delivered and acked
)

// Log is an open log. Methods may be called concurrently, except as stated.
//
// Five goroutines run between Replay and Close, and end with Close: the writer takes
// the open batch and writes it; the syncer syncs it if any record asked; the committer
// reports it; the preparer keeps spare segments ready; the compactor copies what is left in segments that are mostly garbage
// (move.go). So one batch fills while another
// is written, the one before is synced and the one before that reported: the disk does
// not wait for a checksum, nor a checksum for the disk. One sync serves all that was
// written when it began. No timer is involved: a log at rest writes at once, a busy one
// forms larger batches.
//
// Invariants:
//  1. Sequences, and positions, increase in the order of Append.
//  2. A segment gets its first record only after the one before it was synced, whole.
//  3. A record says synced s only after everything up to s was synced.
//  4. Nothing is written behind a tear, nor after a failed write, nor once a failed sync
//     is known; what a sync was to cover, and all after it, is never reported durable.
//  5. A file is used again only after a durable checkpoint no longer needs it.
//
// Lock order: ckptMu or syncMu, then mu or rollMu, then segMu, cacheMu or runs.mu, which are leaves.
type Log struct {
	// Fixed after Open.
	dir      string
	opts     Options
	fs       FS
	lock     io.Closer
	base     base           // where replay starts
	chain    chain          // what Open found; nil after Replay
	kick     chan struct{}  // sent by wake calls, received by the preparer; capacity 1
	thin     chan struct{}  // likewise, by the compactor
	squeezes chan *squeeze  // taken by the compactor
	trim     atomic.Bool    // Close leaves nothing that is only prepared
	quit     chan struct{}  // closed by Close
	wrote    chan *batch    // sent and closed by the writer, received by the syncer
	done     chan *batch    // sent and closed by the syncer, received by the committer
	closed   chan struct{}  // closed when Close is done
	memory   int            // size of a chunk
	wg       sync.WaitGroup // writer, syncer and committer
	prep     sync.WaitGroup // preparer and compactor

	mu       sync.Mutex
	work     sync.Cond // the writer waits: the open batch has records, or closing
	room     sync.Cond // appenders wait: pending shrank, a spare came, or an end
	running  bool      // Replay has returned without an error
	replayed bool      // Replay was called
	closing  bool
	poked    bool  // Commit is to be called, with whatever there is
	failed   error // sticky; matches ErrFailed
	full     error // why no spare could be prepared; matches ErrDiskFull; nil after one was
	low      error // less than MinFree is free; a *LowDiskError; set by watch
	tight    bool  // another segment would make it so
	seq      uint64
	pending  int
	open     *batch
	idle     []*batch // for reuse
	chunk    *chunk   // the end of the log
	current  *segment
	offset   int // of the next record in current
	records  int // in current
	appends  int64
	scratch  []byte
	spares   []*segment // in order of their numbers
	free     []*segment // files to use again or to remove
	number   uint32     // last number given to a file
	chunks   []*chunk   // for reuse

	segMu    sync.RWMutex
	segments map[uint32]*segment                     // with records, or current; by number
	recent   [recentSegments]atomic.Pointer[segment] // some of them, by number: found without the lock

	rollMu         sync.Mutex
	rolls          map[uint32]*roll             // by number of the home
	lastRoll       [recentSegments]numberedRoll // some of them
	many           map[Position]int             // references of records with refsMany or more
	refs           int64                        // all references
	told           []Committed                  // what is being reported
	toldAt         int                          // place in told of the last record that was kept
	missing        error                        // what Keep found to be missing
	checkpointRefs int64                        // refs at the mark of the newest checkpoint
	churn          int64                        // bytes written, and bytes that lost their last reference, since it was weighed last
	emptied        bool                         // a segment lost its last reference since then

	_         [64]byte // readers are busy in one cache line, and who reports in those before and behind
	cacheMu   sync.RWMutex
	cacheHits atomic.Int64
	cache     ring
	_         [64]byte

	runs runs

	reported reported // changed by the committer, and by Replay before it starts; guarded by rollMu

	ckptMu     sync.Mutex
	checkpoint string // name of the newest; empty if none
	saved      uint64 // where replay from it starts
	tabled     bool   // its table has been read; owned by Checkpoint and Replay
	reserve    atomic.Bool
	logged     atomic.Int64 // bytes of log replayed and reported so far
	sinceBase  atomic.Int64 // logged at the last checkpoint

	checkpointBytes atomic.Int64  // size of the newest checkpoint
	due             atomic.Int64  // segments that a checkpoint would free, if that is worth one
	settled         atomic.Uint32 // the segment that was reported into last: all before it are known
	busy            atomic.Bool   // much was written, or lost its references, since the log was found at rest
	stirred         atomic.Bool   // something was, since the compactor was asked to look whether it is

	looked struct{ syncs, written int64 } // owned by the preparer: counts when bulk looked last
	ample  bool                           // owned by the preparer: there were as many spares as wanted
	blind  bool                           // owned by the preparer: FS cannot tell how much is free

	file    *segment      // owned by the writer: what it writes to
	syncMu  sync.Mutex    // held for each sync: who shares a file with a failed one must learn of it
	syncErr error         // guarded by syncMu: a sync failed; matches ErrFailed
	written atomic.Uint64 // last sequence that was written; by the writer
	synced  atomic.Uint64 // everything up to it is durable; changed under syncMu

	counts struct {
		batches, written, syncs, diskReads, moved atomic.Int64
	}
}

// batch is a run of records that is written, synced and reported together.
type batch struct {
	records  []appended
	pieces   []piece
	last     uint64   // sequence of its last record
	end      Position // behind its last record
	file     *segment // that its last record is in; set when it is written
	bytes    int
	sync     bool
	poked    bool // to be reported even if it is empty
	inner    bool // there are records of the log's own in it
	moves    []Committed
	unsealed []unsealed
	err      error
}

// appended is a record of a batch. It is half as long as what the committer makes of it, since each goes from the processor of
// an Append to that of the committer, and back to be used again.
type appended struct {
	owner Payload
	chunk *chunk // pinned by the batch
	from  uint32 // where in it the record is
	size  uint32 // of the payload
}

// committed is the record as it is reported.
func (a *appended) committed() Committed {
	c := a.chunk
	r := c.mem[a.from:]
	return Committed{
		Stream: streamOf(r), Sequence: sequenceOf(r), Pos: at(c.segment, c.base+a.from),
		Data: r[recordBytes : recordBytes+a.size : recordBytes+a.size], Owner: a.owner,
	}
}

// unsealed is a record whose payload is to be filled in.
type unsealed struct {
	sealer Sealer
	data   []byte
}

// piece is a part of a chunk, in whole records (and the segment header at the start).
type piece struct {
	chunk    *chunk
	from, to int
}

// Append adds a record to the log. It returns before the record is written: Commit
// tells the rest, if and only if Append returns nil. With sync the record is durable
// when it is reported; without, it is written then, and durable with the next record
// that asks for it, or when its segment is full or the log is closed.
//
// An error means that nothing was appended: ErrClosed, ErrFailed, ErrDiskFull or
// ErrTooLarge. Append waits while 64 MiB are not reported yet, or until a segment is
// ready, never for a sync of its own. Records of one goroutine keep their order.
func (l *Log) Append(stream uint64, sync bool, p Payload) error {
	f, ok := p.(Freer)
	_, err := l.append(kindData, stream, sync, sync && !(ok && f.Frees()), p)
	return err
}

// append adds a record and returns where it will be. adds: it brings in something that is to last.
func (l *Log) append(k kind, stream uint64, sync, adds bool, p Payload) (Position, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if err := l.admitLocked(adds); err != nil {
			return 0, err
		}
		if l.low != nil && adds && !moves(p) {
			l.wakePreparer()
			return 0, l.low
		}
		if l.pending < maxPending {
			break
		}
		l.room.Wait()
	}

	// The payload is encoded into its place if there is some room, else into scratch.
	c := l.chunk
	var body []byte
	if free := c.limit - c.used - recordBytes; free >= directMargin {
		from := c.used + recordBytes
		body = p.AppendTo(c.mem[from:from:c.limit])
		if len(body) <= free && (len(body) == 0 || &body[0] == &c.mem[from]) {
			return l.addLocked(c, k, stream, sync, len(body), p), nil
		}
	} else {
		body = p.AppendTo(l.scratch[:0])
	}
	if len(body) > maxPayload || k == kindData && len(body) > maxPayload-homeBytes {
		return 0, fmt.Errorf("%w: payload of %d bytes", ErrTooLarge, len(body))
	}
	l.scratch = nil // the body is in it, and placeLocked may let others in
	c, err := l.placeLocked(recordSize(len(body)), adds)
	if err != nil {
		return 0, err
	}
	copy(c.mem[c.used+recordBytes:], body)
	pos := l.addLocked(c, k, stream, sync, len(body), p)
	if cap(body) <= maxScratch {
		l.scratch = body[:0]
	}
	return pos, nil
}

// admitLocked says whether a record may come in now. adds: it brings in something that is to last.
func (l *Log) admitLocked(adds bool) error {
	switch {
	case l.closing:
		return ErrClosed
	case l.failed != nil:
		return l.failed
	case !l.running:
		return errOrder
	case l.full != nil && adds && len(l.spares) <= 1:
		l.wakePreparer() // no clock: each refusal asks again
		return l.full
	}
	return nil
}

// placeLocked makes room for a record of size at the end of the log and returns the
// chunk with the room: the present one, a new one, or the first of the next segment,
// for which it may wait, and let others in meanwhile.
func (l *Log) placeLocked(size int, adds bool) (*chunk, error) {
	for {
		if l.chunk.limit-l.chunk.used >= size {
			return l.chunk, nil
		}
		if l.offset+size+endBytes <= int(l.current.size) {
			if l.chunk.used > l.chunk.queued {
				l.takeLocked(l.chunk, 0) // the segment header, alone
			}
			return l.newChunkLocked(size), nil
		}
		if n := len(l.spares); n > 1 || n == 1 && !adds { // the last one is the reserve
			if err := l.rotateLocked(size); err != nil {
				return nil, err
			}
			continue
		}
		if l.full != nil {
			l.wakePreparer()
			return nil, l.full
		}
		l.wakePreparer()
		l.room.Wait()
		if err := l.admitLocked(adds); err != nil {
			return nil, err
		}
	}
}

// addLocked makes the payload of n bytes that is in its place behind the end of c a
// record, puts it into the open batch, and returns its position.
func (l *Log) addLocked(c *chunk, k kind, stream uint64, sync bool, n int, p Payload) Position {
	l.seq++
	var flags byte
	if sync {
		flags = flagSync
	}
	from := c.used
	putRecord(c.mem[from:], n, l.seq, c.segment, k, flags, stream)
	pos, added := at(c.segment, c.base+uint32(from)), appended{p, c, uint32(from), uint32(n)}
	switch k {
	case kindData:
		l.open.records = append(l.open.records, added)
		if s, ok := p.(Sealer); ok {
			body := from + recordBytes
			l.open.unsealed = append(l.open.unsealed, unsealed{s, c.mem[body : body+n : body+n]})
		}
	case kindCopy:
		l.open.inner = true
		l.current.live.Add(1) // until its kindMove is applied: a checkpoint in between must not free it
	case kindMove, kindEnd:
		l.open.inner = true
		l.open.moves = append(l.open.moves, added.committed())
	}
	l.open.sync = l.open.sync || sync
	l.records++
	l.takeLocked(c, recordSize(n))
	l.appends++
	return pos
}

// takeLocked moves the end of the log behind the next size bytes of c and puts all of
// c that is in no batch yet into the open one.
func (l *Log) takeLocked(c *chunk, size int) {
	b := l.open
	c.used += size
	l.offset = int(c.base) + c.used
	l.pending += size
	b.bytes += size
	b.last, b.end = l.seq, at(c.segment, uint32(l.offset))
	if n := len(b.pieces); n > 0 && b.pieces[n-1].chunk == c {
		b.pieces[n-1].to = c.used
	} else {
		b.pieces = append(b.pieces, piece{c, c.queued, c.used})
		c.pins++
	}
	c.queued = c.used
	l.work.Signal()
}

// rotateLocked ends the current segment and goes on in the first spare, which is
// made longer if a record of size does not fit into it.
func (l *Log) rotateLocked(size int) error {
	next := l.spares[0]
	if need := int64(headerBytes + size + endBytes); need > next.size {
		if err := next.file.Allocate(need); err != nil {
			if isFull(err) {
				return fmt.Errorf("%w: %w", ErrDiskFull, err)
			}
			l.failLocked(err)
			return l.failed
		}
		next.size = need
	}
	l.spares = l.spares[1:]
	l.endLocked(next.number)
	l.startLocked(next, l.seq+1, false)
	l.wakePreparer()
	return nil
}

// endLocked appends the end record of the current segment, for which every chunk has
// room to spare.
func (l *Log) endLocked(next uint32) {
	c := l.chunk
	l.seq++
	putEnd(c.mem[c.used:], l.seq, c.segment, next, l.seq+1)
	l.takeLocked(c, endBytes)
}

// startLocked makes s the current segment, empty. Its header goes into the first
// chunk, and so to disk with the first records, unless it is there.
func (l *Log) startLocked(s *segment, first uint64, hasHeader bool) {
	l.segMu.Lock()
	l.segments[s.number] = s
	l.segMu.Unlock()
	l.current, l.records = s, 0
	if hasHeader {
		l.offset = headerBytes
		l.newChunkLocked(0)
		return
	}
	l.offset = 0
	c := l.newChunkLocked(0)
	putSegmentHeader(c.mem, s.number, first)
	c.used, l.offset = headerBytes, headerBytes
}

func (l *Log) newBatchLocked() *batch {
	if n := len(l.idle); n > 0 {
		b := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return b
	}
	return &batch{}
}

func (l *Log) failLocked(cause error) {
	if l.failed == nil {
		l.failed = fmt.Errorf("%w: %w", ErrFailed, cause)
		l.opts.Logger.Error("the log failed and accepts nothing more", "dir", l.dir, "err", cause)
	}
	l.room.Broadcast()
	l.work.Signal()
}

func (l *Log) fail(cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failLocked(cause)
	return l.failed
}

// Poke has Commit called once more, with an empty batch if nothing is appended: for an owner that wants to
// take a Mark. It returns at once.
func (l *Log) Poke() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running && !l.closing {
		l.poked = true
		l.work.Signal()
	}
}

// write is the writer. It stops when the log is closing and the open batch is empty,
// seals the log, and closes wrote; Close waits for it.
func (l *Log) write() {
	defer l.wg.Done()
	defer close(l.wrote)
	for {
		l.mu.Lock()
		for len(l.open.pieces) == 0 && !l.closing && !l.poked {
			l.work.Wait()
		}
		b, err := l.open, l.failed
		b.poked, l.poked = l.poked, false
		b.sync = b.sync || l.closing
		if len(b.pieces) == 0 && !b.poked {
			l.mu.Unlock()
			l.seal(err)
			return
		}
		l.open = l.newBatchLocked()
		l.mu.Unlock()
		for _, u := range b.unsealed {
			u.sealer.Seal(u.data)
		}
		if err == nil && len(b.pieces) > 0 {
			if err = l.flush(b); err != nil {
				err = l.fail(err)
			}
		}
		b.err = err
		l.wrote <- b
	}
}

// flush writes a batch. Where a new segment starts, the one before it is synced first
// (invariant 2).
func (l *Log) flush(b *batch) error {
	for _, p := range b.pieces {
		c := p.chunk
		if c.segment != l.file.number {
			if err := l.syncTo(l.file, l.written.Load()); err != nil {
				return err
			}
			l.segMu.RLock()
			l.file = l.segments[c.segment]
			l.segMu.RUnlock()
		}
		i := p.from
		if c.base == 0 && i == 0 {
			i = headerBytes
		}
		last, synced := uint64(0), l.synced.Load()
		for i < p.to {
			last = sequenceOf(c.mem[i:])
			i += sealRecord(c.mem[i:], c.base+uint32(i), synced)
		}
		if _, err := l.file.file.WriteAt(c.mem[p.from:p.to], int64(c.base)+int64(p.from)); err != nil {
			return err
		}
		if last > 0 { // else it was the segment header, alone
			l.written.Store(last)
		}
		l.counts.written.Add(int64(p.to - p.from))
	}
	b.file = l.file
	l.counts.batches.Add(1)
	return nil
}

// sync is the syncer. It ends when the writer has closed wrote; Close waits for it.
func (l *Log) sync() {
	defer l.wg.Done()
	defer close(l.done)
	var lost error // a sync failed; nothing behind it counts
	for b := range l.wrote {
		if b.err == nil && b.sync && lost == nil && b.file != nil {
			if err := l.syncTo(b.file, b.last); err != nil {
				lost = l.fail(err)
			}
		}
		if b.err == nil {
			b.err = lost
		}
		l.done <- b
	}
}

// syncTo makes everything up to sequence durable, whose last records are in s. A failure is
// final: the caller fails the log. The operating system reports it once for each open file,
// so whoever comes behind a failed sync gets that failure, not a try of its own.
func (l *Log) syncTo(s *segment, sequence uint64) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if sequence <= l.synced.Load() {
		return nil
	}
	if l.syncErr != nil {
		return l.syncErr
	}
	covers := l.written.Load() // what is written meanwhile may be on disk too, or not
	if err := s.file.Sync(); err != nil {
		l.syncErr = l.fail(err)
		return l.syncErr
	}
	l.counts.syncs.Add(1)
	l.synced.Store(covers)
	return nil
}

// seal ends the log for good order: an end record, and behind it the header of the
// next segment, which proves the end record. Damage to either, or a segment that was
// cut short, is then damage and not a torn tail.
//
// It is done by the writer, alone. A log that has failed is left as it is.
func (l *Log) seal(err error) {
	if err != nil || l.records == 0 {
		return
	}
	l.prep.Wait() // spares and number have no other user now
	l.mu.Lock()
	full := l.full
	l.mu.Unlock()
	if len(l.spares) == 0 && full == nil { // the preparer did not get that far
		l.number++
		spare, err := l.createSegment(l.number, int64(l.opts.SegmentBytes), false)
		if err == nil {
			l.spares = append(l.spares, spare)
		} else if !isFull(err) {
			_ = l.fail(err)
			return
		}
	}
	l.mu.Lock()
	var next *segment
	var number uint32 // none: the end record is the last thing, and unproven
	if len(l.spares) > 0 {
		next, l.spares = l.spares[0], l.spares[1:]
		number = next.number
	}
	l.endLocked(number)
	b := l.open
	l.open = l.newBatchLocked()
	end, first := l.offset, l.seq+1
	l.mu.Unlock()
	if err = l.flush(b); err == nil {
		err = l.syncTo(b.file, b.last)
	}
	if next != nil {
		l.segMu.Lock()
		l.segments[number] = next // Close closes it, whatever becomes of the rest
		l.segMu.Unlock()
	}
	if err == nil && next != nil {
		var h [headerBytes]byte
		putSegmentHeader(h[:], number, first)
		if _, err = next.file.WriteAt(h[:], 0); err == nil && l.trim.Load() {
			err = next.file.Truncate(headerBytes + endBytes) // what follows goes to another one
		}
		if err == nil {
			err = next.file.Sync()
		}
		if err == nil { // give back what is not used
			if err = l.file.file.Truncate(int64(end)); err == nil {
				err = l.file.file.Sync()
			}
		}
	}
	if err != nil {
		_ = l.fail(err)
	}
}

// report is the committer. It ends when the writer has closed done; Close waits for
// it.
func (l *Log) report() {
	defer l.wg.Done()
	var told []Committed
	for b := range l.done {
		bytes, again := 0, len(b.moves) > 0 // what the compactor writes is not churn
		if len(b.records) > 0 {
			bytes = b.bytes
			l.stirred.Store(true)
		}
		if b.err == nil && (len(b.records) > 0 || b.inner) {
			l.logged.Add(int64(b.bytes))
			l.rollMu.Lock()
			l.reported = reported{b.last, b.last + 1, b.end}
			l.rollMu.Unlock()
			again = l.settled.Swap(b.end.segment()) != b.end.segment() || again
		}
		l.reportMoves(b)
		if l.opts.Commit != nil && (len(b.records) > 0 || b.poked) {
			for i := range b.records {
				told = append(told, b.records[i].committed())
			}
			l.tell(told)
			l.opts.Commit(told, b.err)
			l.tell(nil)
			if clear(told); cap(told) > mostKept { // owners are not ours to keep alive
				told = nil
			}
			told = told[:0]
		}
		l.mu.Lock()
		for _, p := range b.pieces {
			p.chunk.pins--
		}
		l.pending -= b.bytes
		idle := l.pending == 0
		clear(b.records) // nor here
		clear(b.moves)
		clear(b.unsealed)
		clear(b.pieces)
		if cap(b.records) <= mostKept {
			*b = batch{records: b.records[:0], pieces: b.pieces[:0], moves: b.moves[:0], unsealed: b.unsealed[:0]}
			l.idle = append(l.idle, b)
		}
		l.room.Broadcast()
		l.mu.Unlock()
		l.weigh(bytes, again, idle)
	}
}

// reportMoves moves references over to the copies that a batch made count. It comes before Commit, where a Mark may be taken that
// is behind them.
func (l *Log) reportMoves(b *batch) {
	for _, c := range b.moves {
		err := b.err
		if err == nil {
			if err = l.applyMoves(c.Data); err != nil {
				err = l.fail(err)
			}
		}
		if m, ok := c.Owner.(*step); ok {
			m.done <- err
		}
	}
}

// Close waits until everything that was appended is written, synced and reported,
// marks the end of the log, and lets go of the directory. Appends that come later, or
// wait for room, get ErrClosed. It returns the failure of the log, if it has one, and
// the same again when it is called again. It must not be called from Commit.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		<-l.closed
		return l.closeErr()
	}
	l.closing = true
	running := l.running
	l.room.Broadcast()
	l.work.Signal()
	l.mu.Unlock()
	close(l.quit)
	if running {
		l.prep.Wait()
		l.wg.Wait()
	}
	l.ckptMu.Lock() // a checkpoint that is being written is waited for
	defer l.ckptMu.Unlock()
	if l.trim.Load() && l.closeErr() == nil {
		l.giveBack()
	}
	l.closeFiles()
	close(l.closed)
	return l.closeErr()
}

func (l *Log) closeErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// closeFiles closes all there is. Nothing unsynced is in them, so errors do not matter.
func (l *Log) closeFiles() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segMu.Lock()
	defer l.segMu.Unlock()
	all := append(l.spares, l.free...)
	for _, s := range l.segments {
		all = append(all, s)
	}
	for _, s := range l.chain {
		all = append(all, s)
	}
	for _, s := range all {
		if s.file != nil {
			s.file.Close()
		}
	}
	if l.lock != nil {
		_ = l.lock.Close()
	}
}
