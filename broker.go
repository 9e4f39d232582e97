package bourse

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
)

// Options are the settings of a broker. The zero value is a broker in memory.
type Options struct {
	// Dir is the data directory; it is made if it does not exist. Empty: in memory only.
	Dir string
	// Engine orders and stores the commands. Nil: a local log in Dir. Not together with Dir. The
	// broker closes it.
	Engine Engine

	// Preallocate is how many bytes of log are kept prepared on disk: written with zeros, in the background, and used again
	// when their messages are gone. Writing to prepared space costs about half of growing into new space, so it pays
	// where bursts must be confirmed fast. Checkpoints are made less often, too: an open may have to replay a quarter of
	// this. Default 32 MiB; at most 64 GiB. Without effect in memory or with an Engine.
	Preallocate int64

	// MinFreeDisk is how many bytes of the disk stay free, besides those for a checkpoint like the last one. While there are fewer,
	// whatever took them, publishes and declarations get ErrDiskFull, as a *storage.LowDiskError with the figures, while deliveries,
	// acks and deletions go on. So what is needed to drain a broker is always there, and other programs are not starved. It is looked
	// at once for each file of the log, of 16 MiB, and at each refusal: nothing need be done when there is space again. Default
	// 64 MiB, the most that acks alone write between two checkpoints of a small state. Negative: none; publishes are refused when
	// the disk is full, and then it may need space from elsewhere to be drained. Without effect in memory, with an Engine, and on
	// systems that do not tell.
	MinFreeDisk int64

	// Compression says which bodies are kept compressed. Without effect in memory.
	Compression Compression

	// MemoryLimit is how many bytes of memory the broker uses for what grows with messages: what it caches of the log, publishes on
	// their way, what it knows of each message that waits, the bodies of transient messages, and the ids that it remembers. Of a durable
	// message that waits about 50 bytes stay in memory at most, and in a deep queue about ten, wherever its body is; so the default,
	// 512 MiB, is for ten million of them in any order, beside a cache of 32 MiB. At least 8 MiB.
	//
	// Once it is used but for about a seventh publishers wait, until their context ends or consumers have freed an eighth; they come in
	// by order. The error is ErrMemoryFull then. Acks, deliveries, dead-lettering and all else that frees memory goes on, and so do
	// AckAndPublish, schedules and replays: what these bring may exceed the limit. A handler that publishes waits as others do, with the
	// delivery that it holds: it frees that first, or uses AckAndPublish. See Stats.Memory.
	//
	// The log of a broker without Dir is not counted, since it is in place of a disk. With an Engine the limit is that of this
	// broker alone, and caches are the engine's affair.
	MemoryLimit int64

	Clock  Clock        // nil: the system's
	Logger *slog.Logger // nil: discard

	// Limits. 0 is the default, which is also the maximum unless said.
	MaxPending      int   // publishes not yet confirmed, then callers wait; default 10,000, at most 1,000,000
	MaxPendingBytes int64 // of bodies, likewise; default 64 MiB, at most 1 GiB; one message always fits
	MaxBodyBytes    int   // of one message; default DefaultBodyBytes, at most MaxBodyBytes
	MaxQueues       int   // default 10,000
	MaxBindings     int   // default 100,000
	MaxSchedules    int   // default 1,000
}

const (
	defaultPending      = 10_000
	maxPending          = 1_000_000
	defaultPendingBytes = 64 << 20
	maxPendingBytes     = 1 << 30
	maxPreallocate      = 64 << 30
)

// withDefaults returns the options completed, or an *InvalidError.
func (o Options) withDefaults() (Options, error) {
	if o.Dir != "" && o.Engine != nil {
		return o, &InvalidError{"Options.Engine", "set together with Dir"}
	}
	limit := func(field string, v *int, def, most int) error {
		if *v < 0 || *v > most {
			return &InvalidError{field, fmt.Sprintf("%d, must be 0 to %d", *v, most)}
		}
		if *v == 0 {
			*v = def
		}
		return nil
	}
	if o.Preallocate < 0 || o.Preallocate > maxPreallocate {
		return o, invalid("Options.Preallocate", "%d, must be 0 to %d", o.Preallocate, int64(maxPreallocate))
	}
	if o.Compression > CompressOff {
		return o, invalid("Options.Compression", "is %d, want CompressAuto or CompressOff", o.Compression)
	}
	if o.Dir == "" && o.Engine == nil {
		o.Compression = CompressOff
	}
	if o.MemoryLimit == 0 {
		o.MemoryLimit = defaultMemory
	}
	if o.MemoryLimit < leastMemory {
		return o, invalid("Options.MemoryLimit", "%d, must be at least %d, or 0", o.MemoryLimit, int64(leastMemory))
	}
	pendingBytes := int(min(o.MaxPendingBytes, maxPendingBytes+1))
	err := errors.Join(
		limit("Options.MaxPending", &o.MaxPending, defaultPending, maxPending),
		limit("Options.MaxPendingBytes", &pendingBytes, defaultPendingBytes, maxPendingBytes),
		limit("Options.MaxBodyBytes", &o.MaxBodyBytes, DefaultBodyBytes, MaxBodyBytes),
		limit("Options.MaxQueues", &o.MaxQueues, MaxQueues, MaxQueues),
		limit("Options.MaxBindings", &o.MaxBindings, MaxBindings, MaxBindings),
		limit("Options.MaxSchedules", &o.MaxSchedules, MaxSchedules, MaxSchedules),
	)
	o.MaxPendingBytes = int64(pendingBytes)
	if o.Clock == nil {
		o.Clock = newSystemClock()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, err
}

// Broker routes messages into queues and lends them to consumers. All methods may be called
// concurrently.
//
// Lock order: shard.mu, then Subscription.mu, mover.mu, scheduler.mu, janitor.mu or placement.mu; the others are leaves. None is
// held while a command is proposed or user code runs.
type Broker struct {
	opts      Options // fixed after NewBroker, as all above mu
	clock     Clock
	log       *slog.Logger
	engine    Engine
	placement *placement
	mover     *mover
	scheduler *scheduler
	janitor   *janitor
	gate      gate
	instance  uint64        // drawn at random: the first half of the ids that this broker makes
	lostLog   error         // what subscriptions end with when the log is lost
	draining  chan struct{} // closed when Work must stop

	topology   atomic.Pointer[topology] // stored by placement, loaded by everybody
	waitings   sync.Pool                // of *waiting. Not shared by brokers: a channel made in a synctest bubble must stay in it
	made       atomic.Uint64            // ids made; by publishers
	_          [64]byte                 // so that these do not meet in a cache line
	published  atomic.Uint64            // by the log
	unroutable atomic.Uint64
	closing    atomic.Bool

	mu      sync.Mutex // guards below; leaf lock
	pullers map[pulled]*Subscription
	works   int           // calls of Work that run
	idle    chan struct{} // closed when works is 0; nil: nobody waits
	drained bool          // draining is closed
	closed  chan struct{} // closed when Close has finished; nil before the first Close
	err     error         // of that Close
}

// NewBroker opens a broker and recovers what opts.Dir holds. ctx bounds the recovery, not the broker's life.
// Errors: an *InvalidError, ErrDirInUse, ErrForeignDir, ErrDiskFull, or a fault: ErrStorage, and for damaged
// data a *storage.CorruptError with file and offset.
func NewBroker(ctx context.Context, opts Options) (*Broker, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("broker: open: %w", err)
	}
	b := &Broker{
		opts: opts, clock: opts.Clock, log: opts.Logger, engine: opts.Engine, lostLog: ErrNotLeader,
		draining: make(chan struct{}), pullers: make(map[pulled]*Subscription),
		gate: gate{maxCount: int64(opts.MaxPending), maxBytes: opts.MaxPendingBytes},
	}
	b.gate.memory.open(opts.MemoryLimit)
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, fmt.Errorf("broker: open: %w", err)
	}
	b.instance = binary.LittleEndian.Uint64(seed[:])
	b.waitings.New = newWaiting
	b.mover = newMover(b)
	b.scheduler = newScheduler(b)
	b.janitor = newJanitor(b)
	if b.engine == nil {
		if b.engine, err = NewLocalEngine(opts.Dir, LocalOptions{
			Logger: opts.Logger, Preallocate: opts.Preallocate, MinFreeDisk: opts.MinFreeDisk, CacheBytes: cacheOf(opts.MemoryLimit),
		}); err != nil {
			return nil, fmt.Errorf("broker: open: %w", err)
		}
	}
	if _, local := b.engine.(*localEngine); local {
		b.lostLog = ErrStorage
	}
	kind := b.engine.Placement()
	if kind != OneShard && kind != ShardPerQueue {
		err := invalid("Options.Engine", "its placement is %d, which is neither OneShard nor ShardPerQueue", kind)
		return nil, fmt.Errorf("broker: open: %w", errors.Join(err, b.engine.Close()))
	}
	b.placement = newPlacement(b, kind)
	if err := b.placement.start(ctx); err != nil {
		return nil, fmt.Errorf("broker: open: %w", errors.Join(err, b.engine.Close()))
	}
	go b.mover.run()     // ends by mover.stop in Close, which waits for it
	go b.scheduler.run() // ends by scheduler.stop, likewise
	go b.janitor.run()   // ends by janitor.stop, likewise
	return b, nil
}

// session is the owner of the exclusive queues that this broker declares.
func (b *Broker) session() sessionID { return sessionID(b.instance | 1) }

// queue is the queue of that name, if others have not locked it.
func (b *Broker) queue(name string) (queueDef, error) {
	t := b.topology.Load()
	def, ok := t.queue(name)
	switch {
	case !ok:
		return def, ErrNotFound
	case def.Exclusive && t.lockedFor(b.session(), def) != nil:
		return def, ErrLocked
	}
	return def, nil
}

// now is the broker's clock as an instant.
func (b *Broker) now() instant { return instantOf(b.clock) }

// open returns ErrClosed once the broker is being closed.
func (b *Broker) open() error {
	if b.closing.Load() {
		return ErrClosed
	}
	return nil
}

// Declare makes the declarations hold, all or none: what is missing is made, what exists must match. It
// returns when that is durable. Errors: an *InvalidError or *PreconditionError names the fields; ErrNotFound and
// ErrNoExchange the end of a binding that does not exist; ErrTooMany the limit.
func (b *Broker) Declare(ctx context.Context, ds ...Declaration) error {
	if err := validateDeclarations(ds); err != nil {
		return fmt.Errorf("broker: declare: %w", err)
	}
	if err := b.open(); err != nil {
		return fmt.Errorf("broker: declare: %w", err)
	}
	if b.placement.kind != OneShard {
		for _, d := range ds {
			if q, ok := d.(Queue); ok && q.Transient {
				return fmt.Errorf("broker: declare: %w", invalid("Queue.Transient", "is set, but the engine spreads queues over instances"))
			}
		}
	}
	if err := b.checkSchedules(ds); err != nil {
		return fmt.Errorf("broker: declare: %w", err)
	}
	limits := topologyLimits{queues: b.opts.MaxQueues, bindings: b.opts.MaxBindings, schedules: b.opts.MaxSchedules}
	for again := true; again; {
		had := b.topology.Load()
		err := b.change(ctx, durably, func(dst []byte, at instant) []byte { return appendDeclare(dst, at, b.session(), limits, ds) })
		if err == nil {
			again, err = b.placement.renew(ctx, had, ds)
		}
		if err != nil {
			return fmt.Errorf("broker: declare: %w", err)
		}
	}
	return nil
}

// Check reports whether the declarations hold, and changes nothing: nil if all do. Else the error is that of the first
// that does not: ErrNotFound or ErrNoExchange if it is absent, a *PreconditionError if it differs.
func (b *Broker) Check(ds ...Declaration) error {
	err := validateDeclarations(ds)
	if err == nil {
		err = b.open()
	}
	if err == nil {
		t := b.topology.Load()
		if err = t.anyLockedFor(b.session(), ds); err == nil {
			err = t.missing(ds)
		}
	}
	if err != nil {
		return fmt.Errorf("broker: check: %w", err)
	}
	return nil
}

// change proposes a change of the topology and waits until the broker routes by it.
func (b *Broker) change(ctx context.Context, how durability, encode func([]byte, instant) []byte) error {
	a, err := b.placement.first.call(ctx, how, encode)
	if err == nil && a.Code == answerError {
		err = decodeError(a.Data)
	}
	if err != nil {
		return err
	}
	return b.placement.settled(ctx)
}

// DeleteOnly is a condition of DeleteIf.
type DeleteOnly struct {
	// IfUnused: no queue among them has consumers, no exchange bindings; else ErrInUse.
	IfUnused bool
	// IfEmpty: no queue among them holds a message, in whatever state; else ErrNotEmpty. Transient messages are looked for just before.
	IfEmpty bool
}

// Delete undoes declarations, all or none, and returns when that is durable; what is absent is no error. Only
// names count, and for a Binding all its fields. A queue goes with its messages, which are not dead-lettered, its
// bindings and its subscriptions, which end with ErrQueueGone; an exchange goes with its bindings.
//
// To dead-letter what waits first, Update the queue to a TTL of a nanosecond, and then use DeleteIf with IfEmpty until it is.
func (b *Broker) Delete(ctx context.Context, ds ...Declaration) error {
	return b.DeleteIf(ctx, DeleteOnly{}, ds...)
}

// DeleteIf is Delete under conditions, which are checked in the same step.
func (b *Broker) DeleteIf(ctx context.Context, only DeleteOnly, ds ...Declaration) error {
	if err := validateRemovals(ds); err != nil {
		return fmt.Errorf("broker: delete: %w", err)
	}
	if err := b.open(); err != nil {
		return fmt.Errorf("broker: delete: %w", err)
	}
	if only != (DeleteOnly{}) && b.placement.kind != OneShard {
		// The catalogue does not see into the queues, so the check and the delete would be two steps.
		return fmt.Errorf("broker: delete: %w", invalid("DeleteOnly", "is set, but the engine gives each queue a log of its own"))
	}
	var conditions removeOnly
	if only.IfUnused {
		conditions |= onlyUnused
	}
	if only.IfEmpty {
		conditions |= onlyEmpty
		if err := b.annexesEmpty(ds); err != nil {
			return fmt.Errorf("broker: delete: %w", err)
		}
	}
	err := b.change(ctx, freeing, func(dst []byte, at instant) []byte { return appendRemove(dst, at, b.session(), conditions, ds) })
	if err != nil {
		return fmt.Errorf("broker: delete: %w", err)
	}
	return nil
}

// Purge removes the messages of a queue that are ready or delayed, for good, and returns how many there were. What
// is on loan stays. It returns when that is durable.
func (b *Broker) Purge(ctx context.Context, queue string) (int, error) {
	if err := b.open(); err != nil {
		return 0, fmt.Errorf("broker: purge %q: %w", queue, err)
	}
	def, err := b.queue(queue)
	if err != nil {
		return 0, fmt.Errorf("broker: purge %q: %w", queue, err)
	}
	shard := b.placement.of(def.id)
	if shard == nil {
		return 0, fmt.Errorf("broker: purge %q: %w", queue, ErrNotFound)
	}
	a, err := shard.call(ctx, freeing, func(dst []byte, at instant) []byte { return appendPurge(dst, at, def.id) })
	if err == nil && a.Code == answerGone {
		err = ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("broker: purge %q: %w", queue, err)
	}
	beside, err := b.placement.purgeAnnex(ctx, def.id)
	if err != nil {
		return 0, fmt.Errorf("broker: purge %q: %w", queue, err)
	}
	return int(a.Code-answerNumber) + beside, nil
}

// Shutdown drains and closes the broker: Work takes nothing more and lets its handlers finish, each within its
// Grace, and then everything is closed as by Close. If ctx ends first, the rest is closed at once and the
// error matches ctx.Err().
func (b *Broker) Shutdown(ctx context.Context) error {
	b.drain()
	var late error
	select {
	case <-b.worksDone():
	case <-ctx.Done():
		late = fmt.Errorf("broker: shutdown: handlers still run: %w", ctx.Err())
	}
	return errors.Join(late, b.Close())
}

func (b *Broker) drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.drained {
		b.drained = true
		close(b.draining)
	}
}

// worksDone returns a channel that is closed when no Work runs.
func (b *Broker) worksDone() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.works == 0 {
		return closedChannel
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	return b.idle
}

// workStarts counts a Work in, unless the broker is draining; workEnds counts it out.
func (b *Broker) workStarts() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drained {
		return false
	}
	b.works++
	return true
}

func (b *Broker) workEnds() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.works--
	if b.works == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
}

// Close closes the broker now. Publishes that were accepted are finished first; what consumers hold goes back
// without a failure, and their subscriptions end with ErrClosed. Closing again returns what the first Close did.
func (b *Broker) Close() error {
	b.mu.Lock()
	if closed := b.closed; closed != nil {
		b.mu.Unlock()
		<-closed
		return b.err
	}
	b.closed = make(chan struct{})
	b.closing.Store(true)
	b.mu.Unlock()

	b.drain() // after closing is set, by which Work tells Close from Shutdown
	b.gate.close()
	b.placement.stop()
	b.mover.stop()
	b.scheduler.stop()
	b.janitor.stop()
	err := errors.Join(b.placement.close(), b.engine.Close())
	if err != nil {
		err = fmt.Errorf("broker: close: %w", err)
	}
	b.err = err
	close(b.closed)
	return err
}
