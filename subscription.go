package bourse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MaxConsumerPriority is the highest SubscribeOptions.Priority; the lowest is as far below zero.
const MaxConsumerPriority = 1000

// SubscribeOptions are the choices of a consumer.
type SubscribeOptions struct {
	// Prefetch bounds the unacked deliveries of the subscription, those not yet taken by
	// Next included. Default and maximum: MaxPrefetch.
	Prefetch int
	// Priority goes before load: while a subscription of a higher one has room below its prefetch, those of lower ones get
	// nothing. From -MaxConsumerPriority to MaxConsumerPriority; default 0.
	Priority int
	// AutoAck settles each delivery when Next hands it over: who then fails, or crashes, has lost it. Not quite at most once:
	// the ack is in the log with the next commit, and a crash, or a Close at that moment, may come before it. Then the
	// message comes again, counted by a crash as a failure.
	AutoAck bool
}

// Subscription is a consumer of one queue. Its methods may be called concurrently.
type Subscription struct {
	b     *Broker // fixed after Subscribe, as all above once
	shard *shard  // of its queue
	queue queueDef
	id    consumerID
	auto  bool
	// prefetch and priority are those of the consumer; 0 and 0 behind Get.
	prefetch, priority int32

	acks acks // under way

	outer *Subscription // of which this is the part in the annex; nil: it is none
	once  sync.Once     // of Close
	err   error         // of that Close; written by once

	handed  atomic.Uint64         // highest tag that Next has returned
	epoch   atomic.Uint64         // see Active; set once, before the first loan
	joining sync.Mutex            // held by join
	joined  atomic.Pointer[joint] // nil: there is no annex
	halted  atomic.Bool           // by pause
	marked  atomic.Bool           // set with ackedTo, stale and ended: before, no loan is known to be over

	mu      sync.Mutex // guards below; taken under shard.mu, never around a proposal
	buffer  []lent     // what the machine has lent and Next has not taken, by tag: buffer[first:]
	first   int
	ackedTo uint64              // highest tag that AckUpTo has settled
	stale   map[uint64]struct{} // tags that were taken back when they were not in buffer; nil until there is one
	ended   error               // why nothing comes any more
	signal  chan struct{}       // capacity 1: something has changed; sent by wake, received by Next

	_        [64]byte // Next is busy in the cache line before
	incoming []lent   // guarded by shard.mu: lent in this Apply and not in buffer yet; while not empty, s is in shard.touched
}

// lent is a loan on its way to the consumer.
type lent struct {
	tag        uint64
	seq        uint64
	ref        Ref
	deadline   instant
	arrived    instant
	slot       slotID
	size       uint32
	deliveries uint32
	failures   uint32
	part       uint8
	level      uint8
	annex      bool // of the annex of the queue
}

func (l lent) compareTag(tag uint64) int { return cmp.Compare(l.tag, tag) }

func (e *effect) lent() lent {
	return lent{
		tag: e.tag, seq: e.seq, ref: e.ref, deadline: e.at, arrived: e.arrived, slot: e.slot, size: e.size,
		deliveries: e.deliveries, failures: e.failures, part: e.part, level: e.level,
	}
}

// Subscribe attaches a consumer to queue until the Subscription is closed. Messages that are ready come at
// once, up to the prefetch. Errors: ErrNotFound, ErrTooMany (consumers of that queue), an *InvalidError, ErrClosed.
func (b *Broker) Subscribe(ctx context.Context, queue string, opts SubscribeOptions) (*Subscription, error) {
	if opts.Prefetch < 0 || opts.Prefetch > MaxPrefetch {
		return nil, fmt.Errorf("broker: subscribe to %q: %w", queue,
			&InvalidError{"SubscribeOptions.Prefetch", fmt.Sprintf("%d, must be 0 to %d", opts.Prefetch, MaxPrefetch)})
	}
	if opts.Priority < -MaxConsumerPriority || opts.Priority > MaxConsumerPriority {
		return nil, fmt.Errorf("broker: subscribe to %q: %w", queue, invalid("SubscribeOptions.Priority",
			"%d, must be %d to %d", opts.Priority, -MaxConsumerPriority, MaxConsumerPriority))
	}
	if opts.Prefetch == 0 {
		opts.Prefetch = MaxPrefetch
	}
	def, shard, err := b.find(queue, 0)
	var s *Subscription
	if err == nil {
		s, err = b.attach(ctx, def, shard, int32(opts.Prefetch), int32(opts.Priority))
	}
	if err != nil {
		return nil, fmt.Errorf("broker: subscribe to %q: %w", queue, err)
	}
	s.auto = opts.AutoAck
	if annex := b.placement.annex(s.queue.id); annex != nil {
		s.join(annex)
	}
	return s, nil
}

// attachment is how durable the coming and going of a consumer is. With a single active consumer it is let in on a full disk as it
// would be without: a consumer is what gives space back.
func (d queueDef) attachment() durability {
	if d.SingleActiveConsumer {
		return freeing
	}
	return lazily
}

// attach makes a subscription known here, then in the log: deliveries may come before the answer.
func (b *Broker) attach(ctx context.Context, def queueDef, shard *shard, prefetch, priority int32) (*Subscription, error) {
	if err := shard.serves(ctx); errors.Is(err, ErrQueueGone) {
		return nil, ErrNotFound
	} else if err != nil {
		return nil, err
	}
	s := &Subscription{
		b: b, shard: shard, queue: def, id: shard.newConsumer(), signal: make(chan struct{}, 1),
		prefetch: prefetch, priority: priority,
	}
	shard.register(s)
	answer, err := shard.call(ctx, def.attachment(), func(dst []byte, at instant) []byte {
		return attach{queue: def.id, consumer: s.id, prefetch: prefetch, priority: priority}.appendTo(dst, at)
	})
	if err == nil {
		switch answer.Code {
		case answerOK:
			return s, nil
		case answerGone:
			err = ErrNotFound
		case answerTooMany:
			err = fmt.Errorf("%w consumers, limit %d", ErrTooMany, maxConsumers)
		default:
			err = ErrClosed
		}
	}
	if errors.Is(err, ErrUnknownOutcome) {
		// It may be attached, or come to be: take it off again, whenever that is.
		go func() { _ = s.Close() }()
		return nil, err
	}
	shard.unregister(s)
	if err = shard.orGone(err); errors.Is(err, ErrQueueGone) {
		err = ErrNotFound
	}
	return nil, err
}

// push moves what the shard has lent to where Next finds it. The shard calls it, under its lock, once for all that a few
// commands have brought, and wakes the subscription afterwards.
func (s *Subscription) push() {
	if len(s.incoming) == 0 {
		return
	}
	s.mu.Lock()
	if s.ended == nil && s.first == len(s.buffer) {
		s.buffer, s.incoming, s.first = s.incoming, s.buffer, 0
	} else if s.ended == nil {
		if s.first > 0 && len(s.buffer)+len(s.incoming) > cap(s.buffer) {
			s.buffer = s.buffer[:copy(s.buffer, s.buffer[s.first:])]
			s.first = 0
		}
		s.buffer = append(s.buffer, s.incoming...)
	}
	s.mu.Unlock()
	s.incoming = s.incoming[:0]
}

// withdraw says that a loan was taken back.
func (s *Subscription) withdraw(tag uint64) {
	if !s.withdrawn(tag) {
		s.returned(tag)
	}
}

// withdrawn reports whether Next had not taken the loan.
func (s *Subscription) withdrawn(tag uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, found := slices.BinarySearchFunc(s.buffer[s.first:], tag, lent.compareTag); found {
		s.buffer = slices.Delete(s.buffer, s.first+i, s.first+i+1)
		return true
	}
	s.marked.Store(true)
	if s.stale == nil {
		s.stale = make(map[uint64]struct{})
	}
	s.stale[tag] = struct{}{}
	return false
}

// end makes Next return err from now on and forgets what it has not taken.
func (s *Subscription) end(err error) {
	s.mu.Lock()
	s.marked.Store(true)
	if s.ended == nil {
		s.ended = err
		s.buffer, s.first = nil, 0
	}
	s.mu.Unlock()
	s.b.forgetPuller(s)
	s.wake()
}

func (s *Subscription) wake() {
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// passOn wakes another who waits, if there is something to wake for. One who leaves because its ctx ended may have
// received the signal just before: 1. A and B wait, 2. a message comes and A receives the signal, 3. A sees its ctx
// ended and leaves, 4. B sleeps beside a full buffer.
func (s *Subscription) passOn() {
	s.mu.Lock()
	more := s.first < len(s.buffer) || s.ended != nil || s.joined.Load() != nil
	s.mu.Unlock()
	if more {
		s.wake()
	}
}

// pop takes up to limit loans, appended to dst.
func (s *Subscription) pop(dst []lent, limit int) ([]lent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		s.wake() // for the next who waits
		return dst, s.ended
	}
	if j := s.joined.Load(); j != nil {
		return s.popJoined(j, dst, limit), nil
	}
	n := min(limit, len(s.buffer)-s.first)
	dst = append(dst, s.buffer[s.first:s.first+n]...)
	s.first += n
	if s.first == len(s.buffer) {
		s.buffer, s.first = s.buffer[:0], 0
	} else {
		s.wake() // there is more, for another goroutine
	}
	return dst, nil
}

// putBack returns what was popped and not delivered to its place. Another goroutine may have done so as well, so it need
// not be before all that is there.
func (s *Subscription) putBack(rest []lent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.joined.Load(); j != nil {
		rest = s.putBackJoined(j, rest)
	}
	rest = slices.DeleteFunc(rest, func(l lent) bool { return s.overLocked(l.tag) })
	if s.ended != nil || len(rest) == 0 {
		return
	}
	s.buffer, s.first = slices.Concat(rest, s.buffer[s.first:]), 0
	slices.SortFunc(s.buffer, func(a, b lent) int { return a.compareTag(b.tag) })
	s.wake()
}

// handOver says that deliveries up to tag are the caller's from now on.
func (s *Subscription) handOver(tag uint64) {
	for {
		before := s.handed.Load()
		if tag <= before || s.handed.CompareAndSwap(before, tag) {
			return
		}
	}
}

// overLocked reports whether a loan that was popped is over: taken back, or acked by AckUpTo.
func (s *Subscription) overLocked(tag uint64) bool {
	_, stale := s.stale[tag]
	return stale || tag <= s.ackedTo
}

// wait takes between 1 and limit loans, appended to dst; it blocks until there is one, ctx ends or
// the subscription does.
func (s *Subscription) wait(ctx context.Context, dst []lent, limit int) ([]lent, error) {
	for {
		if err := ctx.Err(); err != nil {
			s.passOn()
			return dst, err
		}
		j := s.joined.Load()
		if j != nil {
			s.balance(j)
		}
		got, err := s.pop(dst, limit)
		if j != nil {
			s.balance(j)
		}
		if err != nil || len(got) > len(dst) {
			return got, err
		}
		select {
		case <-s.signal:
		case <-ctx.Done():
		}
	}
}

// Next returns the next delivery and blocks until there is one. Errors: ctx.Err(), ErrClosed after Close,
// ErrQueueGone if the queue was deleted, ErrStorage if the message cannot be read; it then stays on loan.
func (s *Subscription) Next(ctx context.Context) (*Delivery, error) {
	for {
		var one [1]lent
		got, err := s.wait(ctx, one[:0], 1)
		if err != nil {
			return nil, s.describe("next", err)
		}
		in := borrowSpace()
		d, err := s.deliver(in, &got[0])
		in.giveBack()
		if err != nil {
			return nil, s.describe("next", err)
		}
		if d != nil {
			s.handOver(d.Tag)
			return d, nil
		}
	}
}

// NextBatch returns between 1 and limit deliveries, as many as are there, and blocks until there is one.
// Errors as Next; deliveries may come together with an error, and what lay behind the error comes with the next call.
func (s *Subscription) NextBatch(ctx context.Context, limit int) ([]*Delivery, error) {
	if limit < 1 {
		return nil, s.describe("next", &InvalidError{"limit", fmt.Sprintf("%d, must be at least 1", limit)})
	}
	for {
		got, err := s.wait(ctx, make([]lent, 0, min(limit, 64)), min(limit, 4096))
		if err != nil {
			return nil, s.describe("next", err)
		}
		batch := make([]*Delivery, 0, len(got))
		in := borrowSpace()
		for i := range got {
			d, failed := s.deliver(in, &got[i])
			if failed != nil {
				err = s.describe("next", failed)
				s.putBack(got[i+1:])
				break
			}
			if d != nil {
				batch = append(batch, d)
			}
		}
		in.giveBack()
		if n := len(batch); n > 0 {
			s.handOver(batch[n-1].Tag)
		}
		if len(batch) > 0 || err != nil {
			return batch, err
		}
	}
}

// All iterates over the deliveries. It ends without an error when the subscription is closed, and with
// the error of Next, given with a nil delivery, otherwise.
func (s *Subscription) All(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		for {
			d, err := s.Next(ctx)
			if errors.Is(err, ErrClosed) {
				return
			}
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// errUnreadable is the ErrStorage of one message; the log goes on.
var errUnreadable = fmt.Errorf("%w: unreadable", ErrStorage)

// deliver reads what was lent, into in. Nil without an error: the loan ended meanwhile.
func (s *Subscription) deliver(in *space, l *lent) (*Delivery, error) {
	from, public := s, l.tag
	if j := s.joined.Load(); j != nil {
		from, public = s.origin(j, l)
	}
	d := in.delivery(l.size)
	d.Queue, d.Tag, d.Deliveries, d.Failures = s.queue.Name, public, int(l.deliveries), int(l.failures)
	d.EnqueuedAt = time.Unix(0, int64(l.arrived))
	d.loan.sub, d.loan.tag, d.loan.slot = from, l.tag, l.slot
	d.loan.deadline.Store(int64(l.deadline))
	if err := from.shard.read(in, l.ref, l.part, l.size, d); err != nil {
		from.mu.Lock()
		over, ended := from.overLocked(l.tag), from.ended
		from.mu.Unlock()
		switch {
		case ended != nil:
			return nil, ended
		case over:
			return nil, nil
		}
		return nil, fmt.Errorf("message %d: %w: %w", l.seq, errUnreadable, err)
	}
	if s.auto {
		d.loan.state.Store(loanAuto)
		if err := d.loan.propose(verdictAck, 0, "", nil); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// AckUpTo acks all deliveries with a tag up to and including tag that this subscription has handed over and that
// are not settled; 0 stands for all. A tag that was not handed over yet is ErrUnknownDelivery, and
// nothing is settled.
func (s *Subscription) AckUpTo(tag uint64) error {
	s.mu.Lock()
	err, beside := s.ended, (*acking)(nil)
	switch {
	case err != nil:
	case s.auto:
		err = ErrAutoAck
	case tag > s.handed.Load():
		err = ErrUnknownDelivery
	default:
		if tag == 0 {
			tag = s.handed.Load()
		}
		if j := s.joined.Load(); j != nil {
			tag, beside = s.upToJoined(j, tag)
		}
		s.ackedTo = max(s.ackedTo, tag)
		s.marked.Store(true)
	}
	s.mu.Unlock()
	if errors.Is(err, ErrClosed) {
		err = ErrUnknownDelivery
	}
	if err == nil && tag > 0 {
		err = s.shard.log.Propose(&acking{sub: s, tag: tag})
	}
	if err == nil && beside != nil {
		err = beside.sub.shard.log.Propose(beside)
	}
	if err != nil {
		return s.describe(fmt.Sprintf("ack up to %d", tag), err)
	}
	return nil
}

// Active reports whether its queue serves the subscription now: always, until it ends, unless Queue.SingleActiveConsumer is set.
// Then it does from when the subscription has become the active one, and epoch is what Delivery.Epoch says of its deliveries; else
// epoch is 0. For the first subscription that is known when Subscribe has returned, for the one that follows when the Close of the
// one before it has.
func (s *Subscription) Active() (epoch uint64, active bool) {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended != nil {
		return 0, false
	}
	epoch = s.epoch.Load()
	return epoch, epoch != 0 || !s.queue.SingleActiveConsumer
}

// acking is the proposal of an AckUpTo.
type acking struct {
	sub *Subscription
	tag uint64
}

// AppendTo implements Proposal.
func (a *acking) AppendTo(dst []byte) []byte {
	return ackUpTo{queue: a.sub.queue.id, consumer: a.sub.id, tag: a.tag}.appendTo(dst, a.sub.b.now())
}

// Durable implements Proposal.
func (a *acking) Durable() bool { return false }

// Frees implements storage.Freer.
func (a *acking) Frees() bool { return true }

// Done implements Proposal.
func (a *acking) Done(Answer, error) { a.sub.returnedUpTo(a.tag) }

// pause makes the queue send nothing more. What was sent stays.
func (s *Subscription) pause() {
	s.halted.Store(true)
	s.pauseJoined()
	// An error means that nothing is sent any more in any case.
	_ = s.shard.post(func(dst []byte, at instant) []byte {
		return attach{queue: s.queue.id, consumer: s.id}.appendTo(dst, at)
	})
}

// Close ends the subscription. What it holds, taken by Next or not, goes back to its place without a
// failure; after Close has returned nothing more is sent to it, and verdicts on its deliveries are ErrUnknownDelivery.
// Closing again returns what the first Close did.
func (s *Subscription) Close() error {
	s.once.Do(func() { s.err = s.close() })
	return s.err
}

func (s *Subscription) close() error {
	s.mu.Lock()
	before := s.ended
	s.ended = ErrClosed
	s.marked.Store(true)
	s.buffer, s.first = nil, 0
	j := s.joined.Load()
	s.mu.Unlock()
	s.wake()
	defer s.shard.unregister(s)
	if j != nil {
		defer func() { _ = j.part.Close() }() // what it holds is in memory, as it is
	}
	if before != nil {
		return nil // the consumer is gone already: with its queue, its broker or its log
	}
	_, err := s.shard.call(context.Background(), s.queue.attachment(), func(dst []byte, at instant) []byte {
		return detach{queue: s.queue.id, consumer: s.id}.appendTo(dst, at)
	})
	if err != nil && !errors.Is(err, ErrClosed) {
		return s.describe("close", err)
	}
	if s.queue.AutoDelete {
		// An error means that the janitor goes on trying.
		_ = s.b.janitor.retire(context.Background(), s.queue.id)
	}
	return nil
}

func (s *Subscription) describe(op string, err error) error {
	return fmt.Errorf("broker: subscription to %q: %s: %w", s.queue.Name, op, err)
}
