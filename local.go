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

	"github.com/boursemq/bourse/internal/wire"
	"github.com/boursemq/bourse/storage"
)

// LocalOptions are the settings of a local engine.
type LocalOptions struct {
	// FS is where the directory is: nil for the operating system.
	FS     storage.FS
	Logger *slog.Logger // nil: discard
	// SegmentBytes is the size of a file of the log. Default 32 MiB, 1 MiB in memory.
	SegmentBytes int
	// CheckpointBytes is how much log is written, at least, from one checkpoint to the next, and so about how
	// much an open must replay. Default 64 MiB, 4 MiB in memory.
	CheckpointBytes int64
}

const (
	defaultCheckpointBytes = 64 << 20
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
	if opts.CheckpointBytes == 0 {
		opts.CheckpointBytes = defaultCheckpointBytes
	}
	cache := 0
	if dir == "" {
		dir = "memory"
		if opts.FS == nil {
			opts.FS = &storage.MemFS{Volatile: true}
			opts.CheckpointBytes = memoryCheckpointBytes
			cache = -1 // the files are in memory already
		}
		if opts.SegmentBytes == 0 {
			opts.SegmentBytes = memorySegmentBytes
		}
	}
	e := &localEngine{log: opts.Logger, every: opts.CheckpointBytes, shards: make(map[uint64]*localShard)}
	log, err := storage.Open(dir, storage.Options{
		FS: opts.FS, SegmentBytes: opts.SegmentBytes, CacheBytes: cache, Logger: opts.Logger, Commit: e.commit,
	})
	if err != nil {
		return nil, storageError(err)
	}
	e.store = log
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

	// ready is closed over by commit: shards that are open. Guarded by mu; the map is changed by Open
	// and Close of logs, read for each batch.
	mu       sync.Mutex
	shards   map[uint64]*localShard
	unopened map[uint64]*recovered // what the directory holds for shards that were not opened yet
	running  bool                  // the log has been replayed
	closed   bool
	saving   sync.WaitGroup // the checkpoint that is being written
	busy     atomic.Bool    // there is one
	saved    atomic.Uint64  // checkpoints written

	entries []Entry // owned by commit, kept for its memory
	size    int64   // owned by commit: of the last checkpoint, so that the next one is worth its cost
}

// recovered is what the directory holds for a shard.
type recovered struct {
	snapshot []byte
	entries  []Entry // after the snapshot
}

// localShard is the Log of one shard.
type localShard struct {
	e      *localEngine
	shard  uint64
	m      Machine
	closed atomic.Bool
	inside atomic.Int64  // proposals that are not done
	empty  chan struct{} // capacity 1: closed and nothing inside; sent by left, received by Close
}

// A checkpoint holds every shard: version, count, then id, length and snapshot of each.
const checkpointVersion = 1

// load reads the checkpoint. The log is replayed when the first shard is opened, so that its entries need not
// be kept.
func (e *localEngine) load() error {
	e.unopened = make(map[uint64]*recovered)
	r, found, err := e.store.Checkpoint()
	if err != nil || !found {
		return err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	d := wire.NewReader(b)
	if v := d.Byte(); v != checkpointVersion {
		return fmt.Errorf("%w: checkpoint of version %d, this binary reads %d", ErrForeignDir, v, checkpointVersion)
	}
	for range d.Count(2) {
		shard := d.Uvarint()
		e.unopened[shard] = &recovered{snapshot: d.Bytes()}
	}
	if err := d.Done(); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
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
		if had.snapshot != nil {
			if err := m.Restore(bodies{e.store}, bytes.NewReader(had.snapshot)); err != nil {
				return nil, err
			}
		}
		if len(had.entries) > 0 {
			m.Apply(bodies{e.store}, had.entries)
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
			m.Apply(bodies{e.store}, e.entries)
		}
		return nil
	})
}

// commit feeds a batch to the machines, in runs of one shard, and tells the proposals. It runs on the log's
// commit goroutine.
func (e *localEngine) commit(batch []storage.Committed, err error) {
	if err != nil {
		e.fail(batch, err)
		return
	}
	for len(batch) > 0 {
		n := 1
		for n < len(batch) && batch[n].Stream == batch[0].Stream {
			n++
		}
		e.apply(batch[:n])
		batch = batch[n:]
	}
	if e.store.SinceCheckpoint() >= max(e.every, 2*e.size) {
		e.checkpoint()
	}
}

func (e *localEngine) apply(batch []storage.Committed) {
	s := batch[0].Owner.(*ticket).s
	e.entries = e.entries[:0]
	for i := range batch {
		c := &batch[i]
		e.entries = append(e.entries, Entry{Index: c.Sequence, Ref: Ref(c.Pos), Cmd: c.Data})
	}
	s.m.Apply(bodies{e.store}, e.entries)
	for i := range batch {
		t := batch[i].Owner.(*ticket)
		t.p.Done(e.entries[i].Answer, nil)
		t.release()
	}
	s.left(int64(len(batch)))
}

// fail tells the proposals of a batch that the log has failed: whether they are on disk is not known.
func (e *localEngine) fail(batch []storage.Committed, err error) {
	err = fmt.Errorf("%w: %w", ErrUnknownOutcome, storageError(err))
	for i := range batch {
		t := batch[i].Owner.(*ticket)
		t.s.m.Lead(false)
		t.p.Done(Answer{}, err)
		t.s.left(1)
		t.release()
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
	e.size = int64(len(state))
	mark := e.store.Mark()
	e.saving.Go(func() { // ends by itself; Close waits for it
		defer e.busy.Store(false)
		if err := e.store.WriteCheckpoint(mark, state); err != nil {
			if !errors.Is(err, storage.ErrClosed) {
				e.log.Warn("no checkpoint was written", "err", err)
			}
			return
		}
		e.saved.Add(1)
	})
}

// capture encodes the state of all shards; nil if there is one that was not opened, whose messages only its
// machine could name.
func (e *localEngine) capture() (snapshot, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.unopened) > 0 {
		return nil, nil
	}
	ids := make([]uint64, 0, len(e.shards))
	for id := range e.shards {
		ids = append(ids, id)
	}
	b := append([]byte(nil), checkpointVersion)
	b = wire.AppendUvarint(b, uint64(len(ids)))
	for _, id := range ids {
		w, err := e.shards[id].m.Snapshot()
		if err != nil {
			return nil, err
		}
		var one bytes.Buffer
		if _, err := w.WriteTo(&one); err != nil {
			return nil, err
		}
		b = wire.AppendUvarint(b, id)
		b = wire.AppendBytes(b, one.Bytes())
	}
	return snapshot(b), nil
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
	// In this order: the log's last commits run until it is closed, and may start a checkpoint.
	err := e.store.Close()
	e.saving.Wait()
	return storageError(err)
}

func (e *localEngine) stats() StorageStats {
	s := e.store.Stats()
	return StorageStats{
		Segments: s.Segments, Spares: s.Spares, Bytes: s.Bytes, References: s.Live, Records: uint64(s.Appends),
		Syncs: uint64(s.Syncs), Written: uint64(s.Written), Checkpoints: e.saved.Load(),
		Tail: e.store.SinceCheckpoint(), DiskFull: s.Full,
	}
}

// ticket is a proposal in the log, with its shard.
type ticket struct {
	s *localShard
	p Proposal
}

var tickets = sync.Pool{New: func() any { return new(ticket) }}

// AppendTo implements storage.Payload.
func (t *ticket) AppendTo(dst []byte) []byte { return t.p.AppendTo(dst) }

func (t *ticket) release() {
	*t = ticket{}
	tickets.Put(t)
}

// Propose implements Log.
func (s *localShard) Propose(p Proposal) error {
	// In this order: Close sets closed first and then looks inside, so one of both sees the other.
	s.inside.Add(1)
	if s.closed.Load() {
		s.left(1)
		return ErrClosed
	}
	t := tickets.Get().(*ticket)
	t.s, t.p = s, p
	if err := s.e.store.Append(s.shard, p.Durable(), t); err != nil {
		t.release()
		s.left(1)
		return storageError(err)
	}
	return nil
}

// Read implements Log.
func (s *localShard) Read(ref Ref, size int, dst []byte) ([]byte, error) {
	return s.e.store.Read(storage.Position(ref), size, dst)
}

// Close implements Log. The shard can be opened again after the engine was.
func (s *localShard) Close() error {
	s.closed.Store(true)
	for s.inside.Load() > 0 {
		<-s.empty
	}
	s.left(0) // for another Close
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

// bodies is the log's account of references.
type bodies struct{ store *storage.Log }

func (b bodies) Keep(ref Ref, n int) { b.store.Keep(storage.Position(ref), n) }
func (b bodies) Free(ref Ref)        { b.store.Free(storage.Position(ref)) }

// storageError makes an error of the log one of the broker's.
func storageError(err error) error {
	if err == nil {
		return nil
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
