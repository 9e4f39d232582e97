package bourse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/storage"
)

// LocalOptions are the settings of a local engine.
type LocalOptions struct {
	// FS is where the directory is: nil for the operating system.
	FS storage.FS
	// ReadOnly opens a directory that exists as it is now, and keeps every change in memory: what is on disk is read and never
	// written. It is ErrDirInUse while another process has it open to write, and the other way round.
	ReadOnly bool
	Logger   *slog.Logger // nil: discard
	// SegmentBytes is the size of a file of the log. Default 16 MiB, 1 MiB in memory.
	SegmentBytes int
	// Preallocate is how much log is kept prepared, see Options.Preallocate. Default: two segments.
	Preallocate int64
	// MinFreeDisk is how much of the disk stays free, see Options.MinFreeDisk. Default 64 MiB, none in memory; negative: none.
	MinFreeDisk int64
	// CacheBytes is the memory for recent messages, which are read without the disk, and an eighth of it more is for reading ahead.
	// Default 32 MiB; negative: as little as possible. Without effect in memory.
	CacheBytes int
	// CheckpointBytes is how much log is written, at least, from one checkpoint to the next, and so about how much an open
	// must replay; with a large state it is eight times the size of the last checkpoint. Default 64 MiB or a quarter of
	// Preallocate, whichever is more; 4 MiB in memory.
	CheckpointBytes int64
}

const (
	defaultCheckpointBytes = 64 << 20
	defaultMinFree         = 64 << 20
	memorySegmentBytes     = 1 << 20
	memoryCheckpointBytes  = 4 << 20
)

// NewLocalEngine opens the engine of a single process: one write-ahead log in dir for all shards. Without dir
// everything is in memory. Errors: ErrDirInUse, ErrForeignDir, ErrDiskFull, ErrStorage,
// *storage.CorruptError. A broker makes one by itself from Options.Dir.
func NewLocalEngine(dir string, opts LocalOptions) (Engine, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.ReadOnly {
		if opts.FS != nil || dir == "" {
			return nil, invalid("LocalOptions.ReadOnly", "is set without a directory of the operating system")
		}
		opts.FS = storage.Shadow()
		opts.MinFreeDisk = -1 // it takes nothing
	}
	cache, ahead := opts.CacheBytes, -1
	if cache >= 0 {
		ahead = cache / (aheadShare / cacheShare)
	}
	if dir == "" && opts.FS == nil {
		dir, opts.FS = "memory", &storage.MemFS{Volatile: true}
		cache, ahead = -1, -1 // the files are in memory already
		opts.MinFreeDisk = -1
		if opts.SegmentBytes == 0 {
			opts.SegmentBytes = memorySegmentBytes
		}
		if opts.CheckpointBytes == 0 {
			opts.CheckpointBytes = memoryCheckpointBytes
		}
	}
	if opts.MinFreeDisk == 0 {
		opts.MinFreeDisk = defaultMinFree
	}
	if opts.CheckpointBytes == 0 {
		opts.CheckpointBytes = max(defaultCheckpointBytes, opts.Preallocate/4)
	}
	spare := 0 // the log's default
	if opts.Preallocate > 0 {
		size := int64(opts.SegmentBytes)
		if size == 0 {
			size = storage.DefaultSegmentBytes
		}
		spare = int((opts.Preallocate + size - 1) / size)
	}
	e := &localEngine{log: opts.Logger, every: opts.CheckpointBytes, shards: make(map[uint64]*localShard)}
	log, err := storage.Open(dir, storage.Options{
		FS: opts.FS, SegmentBytes: opts.SegmentBytes, Spare: spare, CacheBytes: cache, AheadBytes: ahead, MinFree: opts.MinFreeDisk,
		Logger: opts.Logger, Commit: e.commit,
	})
	if err != nil {
		return nil, storageError(err)
	}
	e.store, e.bodies.store = log, log
	if err := e.load(); err != nil {
		return nil, errors.Join(storageError(err), log.Close())
	}
	return e, nil
}

// localEngine orders all shards in one storage.Log. A record's stream is its shard.
type localEngine struct {
	store *storage.Log // fixed after NewLocalEngine, as all above mu
	log   *slog.Logger
	every int64 // bytes of log between checkpoints, at least

	mu       sync.Mutex             // guards below, but not the atomics
	shards   map[uint64]*localShard // that are open; changed by Open and Close of logs, read for each batch
	unopened map[uint64]*recovered  // what the directory holds for shards that were not opened yet
	running  bool                   // the log has been replayed
	closed   bool
	saving   sync.WaitGroup // the checkpoint that is being written
	busy     atomic.Bool    // there is one
	saved    atomic.Uint64  // checkpoints written
	size     atomic.Int64   // of the last one, so that the next is worth its cost
	pins     pins           // backups that wait for the next batch

	entries []Entry // owned by commit, kept for its memory
	bodies  bodies  // likewise
}

// recovered is the state of a shard that is not open: what the directory holds for it, or what its machine was
// when its log was closed.
type recovered struct {
	saved   bool        // it is in the checkpoint
	bytes   int64       // of it there
	entries []Entry     // after it
	closed  io.WriterTo // in place of all, of a shard that was open: the log counts its references already
}

// counted ignores references that were counted before.
type counted struct{}

func (counted) Keep(Ref, int) {}
func (counted) Free(Ref)      {}

// localShard is the Log of one shard.
type localShard struct {
	e      *localEngine
	shard  uint64
	m      Machine
	closed atomic.Bool
	empty  chan struct{} // capacity 1: closed and nothing inside; sent by left, received by Close

	_      [64]byte     // the rest is read by all, and this changed by all
	inside atomic.Int64 // proposals that are not done
}

// load goes over the checkpoint, which verifies it. The shards read their parts when they are opened. The log is replayed when the
// first of them is, so that its entries need not be kept.
func (e *localEngine) load() error {
	e.unopened = make(map[uint64]*recovered)
	_, err := e.checkpointed(func(shard uint64, state io.Reader) error {
		n, err := io.Copy(io.Discard, state)
		e.unopened[shard] = &recovered{saved: true, bytes: n}
		return err
	})
	return err
}

// checkpointed is scanCheckpoint over the newest checkpoint, if there is one.
func (e *localEngine) checkpointed(fn func(shard uint64, state io.Reader) error) (found bool, err error) {
	r, found, err := e.store.Checkpoint()
	if err != nil || !found {
		return false, err
	}
	defer func() { _ = r.Close() }() // it was only read
	return true, scanCheckpoint(r, fn)
}

// restore gives m its part of the checkpoint, of so many bytes.
func (e *localEngine) restore(shard uint64, m Machine, bytes int64) error {
	done := errors.New("restored")
	_, err := e.checkpointed(func(id uint64, state io.Reader) error {
		if id != shard {
			return nil
		}
		refs := bodies{store: e.store}
		if err := m.Restore(&refs, &measured{state, int(bytes)}); err != nil {
			return err
		}
		refs.flush()
		return done
	})
	if err == nil {
		err = fmt.Errorf("shard %d is not in the checkpoint any more", shard)
	} else if errors.Is(err, done) {
		return nil
	}
	if errors.Is(err, ErrForeignDir) || errors.Is(err, ErrStorage) {
		return err
	}
	return storageError(err)
}

// Placement implements Engine.
func (e *localEngine) Placement() Placement { return OneShard }

// Open implements Engine. The first Open replays the log; what it holds for other shards waits in memory for
// theirs.
func (e *localEngine) Open(ctx context.Context, shard uint64, m Machine) (Log, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	if e.shards[shard] != nil {
		return nil, fmt.Errorf("shard %d is open", shard)
	}
	if had := e.unopened[shard]; had != nil {
		if had.closed != nil {
			var b bytes.Buffer
			if _, err := had.closed.WriteTo(&b); err != nil {
				return nil, err
			}
			if err := m.Restore(counted{}, &b); err != nil {
				return nil, err
			}
		}
		if had.saved {
			if err := e.restore(shard, m, had.bytes); err != nil {
				return nil, err
			}
		}
		if len(had.entries) > 0 {
			if err := replayed(m, &bodies{store: e.store}, had.entries); err != nil {
				return nil, err
			}
		}
	}
	if !e.running {
		if err := e.replay(ctx, shard, m); err != nil {
			return nil, storageError(err)
		}
		e.running = true
	}
	delete(e.unopened, shard)
	s := &localShard{e: e, shard: shard, m: m, empty: make(chan struct{}, 1)}
	e.shards[shard] = s
	m.Lead(true)
	return s, nil
}

func (e *localEngine) replay(ctx context.Context, shard uint64, m Machine) error {
	return e.store.Replay(func(batch []storage.Committed) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		e.entries = e.entries[:0]
		for i := range batch {
			c := &batch[i]
			entry := Entry{Index: c.Sequence, Ref: Ref(c.Pos), Cmd: c.Data}
			if c.Stream == shard {
				e.entries = append(e.entries, entry)
				continue
			}
			entry.Cmd = bytes.Clone(c.Data)
			other := e.unopened[c.Stream]
			if other == nil {
				other = &recovered{}
				e.unopened[c.Stream] = other
			}
			other.entries = append(other.entries, entry)
		}
		if len(e.entries) > 0 {
			return replayed(m, &e.bodies, e.entries)
		}
		return nil
	})
}

// replayed feeds m with what an earlier process wrote. If that was of a newer version the error is ErrForeignDir.
func replayed(m Machine, refs *bodies, entries []Entry) (err error) {
	defer func() {
		switch bad := recover().(type) {
		case nil:
		case newerCommand:
			err = fmt.Errorf("%w: %w", ErrForeignDir, bad)
		default:
			panic(bad)
		}
	}()
	m.Apply(refs, entries)
	refs.flush()
	return nil
}

// commit feeds a batch to the machines, in runs of one shard, and tells the proposals. It runs on the log's
// commit goroutine.
func (e *localEngine) commit(batch []storage.Committed, err error) {
	if err != nil {
		e.fail(batch, err)
		e.endPins(storageError(err))
		return
	}
	for len(batch) > 0 {
		n := 1
		for n < min(len(batch), applyAtOnce) && batch[n].Stream == batch[0].Stream {
			n++
		}
		e.apply(batch[:n])
		batch = batch[n:]
	}
	// On a full disk a checkpoint is what makes space.
	if e.pins.waiting.Load() > 0 {
		e.takePins()
	}
	if e.store.SinceCheckpoint() >= max(e.every, 8*e.size.Load()) || e.store.Reclaimable() > 0 {
		e.checkpoint()
	}
}

// proposalOf is the proposal of a record. The log gives back what Propose gave it.
func proposalOf(c *storage.Committed) Proposal {
	p, ok := c.Owner.(Proposal)
	invariant.Check(ok, "a record of a stranger in the log")
	return p
}

// applyAtOnce is how many commands are applied before their proposals are told: so few that publishers and consumers
// go on beside the rest of a large batch.
const applyAtOnce = 64

// opened is the shard of a proposal.
func (e *localEngine) opened(shard uint64) *localShard {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.shards[shard]
}

func (e *localEngine) apply(batch []storage.Committed) {
	s := e.opened(batch[0].Stream)
	e.entries = e.entries[:0]
	for i := range batch {
		c := &batch[i]
		e.entries = append(e.entries, Entry{Index: c.Sequence, Ref: Ref(c.Pos), Cmd: c.Data})
	}
	s.m.Apply(&e.bodies, e.entries)
	e.bodies.flush()
	for i := range batch {
		proposalOf(&batch[i]).Done(e.entries[i].Answer, nil)
	}
	s.left(int64(len(batch)))
}

// fail tells the proposals of a batch that the log has failed: whether they are on disk is not known.
func (e *localEngine) fail(batch []storage.Committed, err error) {
	err = fmt.Errorf("%w: %w", ErrUnknownOutcome, storageError(err))
	for i := range batch {
		s := e.opened(batch[i].Stream)
		s.m.Lead(false)
		proposalOf(&batch[i]).Done(Answer{}, err)
		s.left(1)
	}
}

// checkpoint saves the machines as they are now, unless one is being saved. They are captured here, between two
// batches, and written beside the log.
func (e *localEngine) checkpoint() {
	if !e.busy.CompareAndSwap(false, true) {
		return
	}
	state, err := e.capture()
	if state == nil {
		e.busy.Store(false)
		if err != nil {
			e.log.Error("the state cannot be captured for a checkpoint", "err", err)
		}
		return
	}
	mark := e.store.Mark()
	go func() { // ends by itself; Close waits for it
		defer e.saving.Done()
		err := e.store.WriteCheckpoint(mark, state)
		if err == nil {
			e.size.Store(state.bytes)
			e.saved.Add(1)
		}
		e.busy.Store(false)
		if err != nil {
			e.log.Warn("no checkpoint was written", "err", err)
		} else if e.store.Reclaimable() > 0 {
			e.store.Poke() // what came meanwhile, and was passed over since busy was set
		}
	}()
}

// capture takes the state of all shards; nil if there is one that was not opened, whose messages only its
// machine could name, or if the engine is being closed. If it is not nil the caller must call saving.Done.
func (e *localEngine) capture() (*checkpoint, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil
	}
	c := &checkpoint{shards: make([]savedShard, 0, len(e.shards)+len(e.unopened))}
	for id, closed := range e.unopened {
		if closed.closed == nil {
			return nil, nil
		}
		c.shards = append(c.shards, savedShard{id, closed.closed})
	}
	for id, s := range e.shards {
		state, err := s.m.Snapshot()
		if err != nil {
			return nil, err
		}
		c.shards = append(c.shards, savedShard{id, state})
	}
	e.saving.Add(1) // under mu, so before Close waits
	return c, nil
}

// Close implements Engine.
func (e *localEngine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	open := make([]*localShard, 0, len(e.shards))
	for _, s := range e.shards {
		open = append(open, s)
	}
	e.mu.Unlock()
	for _, s := range open {
		_ = s.Close()
	}
	e.saving.Wait()
	err := storageError(e.store.Close())
	e.endPins(ErrClosed)
	return err
}

func (e *localEngine) stats() StorageStats {
	s := e.store.Stats()
	return StorageStats{
		Segments: s.Segments, Spares: s.Spares, Bytes: s.Bytes, References: s.Live, Records: uint64(s.Appends),
		Syncs: uint64(s.Syncs), Written: uint64(s.Written), Checkpoints: e.saved.Load(),
		Tail: e.store.SinceCheckpoint(), DiskFull: s.Full, DiskLow: s.Low, DiskFree: s.Free,
	}
}

// Propose implements Log.
func (s *localShard) Propose(p Proposal) error {
	// In this order: Close sets closed first and then looks inside, so one of both sees the other.
	s.inside.Add(1)
	if s.closed.Load() {
		s.left(1)
		return ErrClosed
	}
	if err := s.e.store.Append(s.shard, p.Durable(), p); err != nil {
		s.left(1)
		if errors.Is(err, storage.ErrDiskFull) && s.e.store.Reclaimable() > 0 {
			// The queues may have been drained while the last checkpoint was on its way, or before the broker
			// was opened. No clock: each refusal looks again.
			s.e.store.Poke()
		}
		return storageError(err)
	}
	return nil
}

// Read implements Log.
func (s *localShard) Read(ref Ref, size int, dst []byte) ([]byte, error) {
	return s.e.store.Read(storage.Position(ref), size, dst)
}

// Close implements Log. The engine keeps the state, so that the shard can be opened again.
func (s *localShard) Close() error {
	s.closed.Store(true)
	for s.inside.Load() > 0 {
		<-s.empty
	}
	s.left(0) // for another Close
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if s.e.shards[s.shard] != s {
		return nil // closed before
	}
	state, err := s.m.Snapshot()
	if err != nil {
		return fmt.Errorf("close shard %d: %w", s.shard, err)
	}
	delete(s.e.shards, s.shard)
	s.e.unopened[s.shard] = &recovered{closed: state}
	return nil
}

// left counts n proposals out.
func (s *localShard) left(n int64) {
	if s.inside.Add(-n) == 0 && s.closed.Load() {
		select {
		case s.empty <- struct{}{}:
		default:
		}
	}
}

// bodies is the log's account of references. What it is told goes there together, since each trip takes a lock: the owner must call
// flush. Meanwhile what was just applied can be read, since it is where it was written.
type bodies struct {
	store   *storage.Log
	changes []storage.Change
}

// bodiesAtOnce is how much is told together.
const bodiesAtOnce = 256

func (b *bodies) Keep(ref Ref, n int) { b.add(storage.Change{Pos: storage.Position(ref), N: n}) }
func (b *bodies) Free(ref Ref)        { b.add(storage.Change{Pos: storage.Position(ref), N: -1}) }

func (b *bodies) add(c storage.Change) {
	if b.changes = append(b.changes, c); len(b.changes) >= bodiesAtOnce {
		b.flush()
	}
}

func (b *bodies) flush() {
	if len(b.changes) > 0 {
		b.store.Refer(b.changes)
		b.changes = b.changes[:0]
	}
}

// storageError makes an error of the log one of the broker's.
func storageError(err error) error {
	if err == nil || errors.Is(err, ErrForeignDir) {
		return err
	}
	for _, m := range [...]struct{ storage, broker error }{
		{storage.ErrClosed, ErrClosed}, {storage.ErrLocked, ErrDirInUse}, {storage.ErrForeign, ErrForeignDir},
		{storage.ErrDiskFull, ErrDiskFull}, {storage.ErrTooLarge, ErrInvalid},
	} {
		if errors.Is(err, m.storage) {
			return fmt.Errorf("%w: %w", m.broker, err)
		}
	}
	return fmt.Errorf("%w: %w", ErrStorage, err)
}
