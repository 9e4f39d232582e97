package bourse

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Delivery is a message on loan to a consumer. The first verdict wins; later ones return
// ErrUnknownDelivery, or ErrStaleDelivery if the loan was taken back, because its deadline passed. All but
// AckSync return without waiting: the verdict is in the log with the next commit, and a crash before that
// brings the message back.
type Delivery struct {
	// Headers, Body and the rest are the receiver's to keep and to change. Bodies up to 4 KiB, and the deliveries
	// that they come in, share memory with their neighbours, about 300 KiB: copy what is to be kept for long.
	Message

	Queue      string
	Tag        uint64    // its number on this subscription: 1, 2, 3, ...
	Deliveries int       // times it was handed out, from 1
	Failures   int       // times it went wrong before
	EnqueuedAt time.Time // when it arrived in this queue
	Deaths     []Death   // its history in dead-letter paths, newest first

	loan settlement
}

// States of a loan, as the consumer's side sees it.
const (
	loanOpen uint32 = iota
	loanSettled
	loanAuto
)

// settlement is the consumer's side of a loan, and the proposal of its verdict.
type settlement struct {
	sub      *Subscription
	tag      uint64
	deadline atomic.Int64 // an instant
	slot     slotID
	state    atomic.Uint32
	limit    *timeLimit // of the handler that works on it; nil: none. Set before the handler runs

	// The verdict, written by the one who took state from open to settled; Extend, which leaves it
	// open, has a proposal of its own.
	verdict verdict
	at      instant // of the command, see publication.at
	pause   time.Duration
	note    string       // for verdictDone the id of the message
	answer  chan settled // AckSync only; capacity 1, sent by Done
}

type settled struct {
	code uint64
	err  error
}

// AppendTo implements Proposal.
func (l *settlement) AppendTo(dst []byte) []byte {
	s := l.sub
	c := settle{
		queue: s.queue.id, consumer: s.id, tag: l.tag, slot: l.slot, verdict: l.verdict, pause: l.pause, note: l.note,
	}
	if c.verdict == verdictDone {
		c.key = keyOf([]byte(c.note))
	}
	return c.appendTo(dst, l.at)
}

// Durable implements Proposal.
func (l *settlement) Durable() bool { return l.answer != nil }

// Frees implements storage.Freer.
func (l *settlement) Frees() bool { return true }

// Done implements Proposal.
func (l *settlement) Done(a Answer, err error) {
	l.sub.returned(l.tag)
	if l.answer != nil {
		l.answer <- settled{a.Code, err}
	}
}

// propose sends the verdict into the log; the state must be taken.
func (l *settlement) propose(v verdict, pause time.Duration, note string, answer chan settled) error {
	if v == verdictAck && answer == nil {
		if log, ok := l.sub.shard.log.(*localShard); ok {
			return l.sub.ackLate(log, l.tag, l.slot)
		}
	}
	l.verdict, l.pause, l.note, l.answer = v, pause, clipNote(note), answer
	l.at = l.sub.b.now()
	return l.sub.shard.log.Propose(l)
}

// known reports why no verdict can be given any more, as far as that is known here.
func (l *settlement) known() error {
	if l.sub == nil {
		return ErrUnknownDelivery
	}
	switch l.state.Load() {
	case loanSettled:
		return ErrUnknownDelivery
	case loanAuto:
		return ErrAutoAck
	}
	s := l.sub
	if s.outer == nil && !s.marked.Load() {
		return nil
	}
	var ended error
	if s.outer != nil { // the part may learn of it later
		s.outer.mu.Lock()
		ended = s.outer.ended
		s.outer.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended == nil {
		ended = s.ended
	}
	switch {
	case errors.Is(ended, ErrClosed):
		return ErrUnknownDelivery
	case ended != nil:
		return ended
	case l.tag <= s.ackedTo:
		return ErrUnknownDelivery
	}
	if _, ok := s.stale[l.tag]; ok {
		return ErrStaleDelivery
	}
	return nil
}

// settle gives the one verdict.
func (d *Delivery) settle(op string, v verdict, pause time.Duration, note string, answer chan settled) error {
	l := &d.loan
	err := l.known()
	if err == nil && !l.state.CompareAndSwap(loanOpen, loanSettled) {
		err = ErrUnknownDelivery
	}
	if err == nil {
		err = l.propose(v, pause, note, answer)
		if err != nil {
			l.state.Store(loanOpen) // nothing was said
		}
	}
	if err != nil {
		return d.describe(op, err)
	}
	return nil
}

func (d *Delivery) describe(op string, err error) error {
	return fmt.Errorf("broker: %s delivery %d of %q: %w", op, d.Tag, d.Queue, err)
}

// Redelivered reports whether the message was handed out before, here or to another consumer.
func (d *Delivery) Redelivered() bool { return d.Deliveries > 1 }

// Deadline is when the loan ends unless it is settled or extended, on the broker's clock.
func (d *Delivery) Deadline() time.Time { return time.Unix(0, d.loan.deadline.Load()) }

// Epoch is a fencing token for what the consumer does outside of the broker, where Queue.SingleActiveConsumer is set; else it is 0.
// All deliveries of a subscription have the same, and those of one that became active later have a higher one, also after a crash,
// a restart, or the queue's deletion and new declaration. So a resource that keeps the highest epoch which it has seen, and refuses
// what comes with a lower one, is safe from a consumer that has been replaced and does not know yet. The
// broker does the same: what such a consumer says of its deliveries is ErrStaleDelivery or ErrUnknownDelivery, and changes nothing.
func (d *Delivery) Epoch() uint64 {
	if d.loan.sub == nil {
		return 0
	}
	return d.loan.sub.epoch.Load()
}

// Ack says done: the message is removed.
func (d *Delivery) Ack() error { return d.settle("ack", verdictAck, 0, "", nil) }

// AckSync says done, and returns when that is durable: the message will not come back, whatever crashes. It also
// tells for certain if the loan had been taken back before, with ErrStaleDelivery. If ctx ends first the
// error matches ErrUnknownOutcome; if it had ended before the call, nothing is said and the loan goes on.
func (d *Delivery) AckSync(ctx context.Context) error {
	return d.settleSync(ctx, "ack", verdictAck, "")
}

// settleSync gives a verdict and waits until it is durable.
func (d *Delivery) settleSync(ctx context.Context, op string, v verdict, note string) error {
	if err := ctx.Err(); err != nil {
		return d.describe(op, err)
	}
	answer := make(chan settled, 1)
	if err := d.settle(op, v, 0, note, answer); err != nil {
		return err
	}
	a, known := await(ctx, answer)
	if !known {
		return d.describe(op, fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err()))
	}
	return d.outcome(op, a)
}

func (d *Delivery) outcome(op string, a settled) error {
	switch {
	case a.err != nil:
		return d.describe(op, a.err)
	case a.code == answerStale:
		return d.describe(op, ErrStaleDelivery)
	case a.code == answerGone:
		return d.describe(op, ErrQueueGone)
	}
	return nil
}

// Nack says failed: the message is ready again after the pause of Queue.Retry, at its old place or behind all others (see
// Backoff.AtTail), or dead if that was one failure more than Queue.MaxRetries.
func (d *Delivery) Nack() error { return d.settle("nack", verdictNack, -1, "", nil) }

// NackAfter is Nack with a pause of its own, at most MaxDelay.
func (d *Delivery) NackAfter(pause time.Duration) error {
	if err := checkPause("pause", pause); err != nil {
		return d.describe("nack", err)
	}
	return d.settle("nack", verdictNack, pause, "", nil)
}

// Reject says never again: the message is dead, and goes where Queue.DeadLetter says. The reason is kept in its
// history, up to 255 bytes.
func (d *Delivery) Reject(reason string) error {
	return d.settle("reject", verdictReject, 0, reason, nil)
}

// Release gives the message back without a failure: ready at its old place, now or after a while, at most
// MaxDelay.
func (d *Delivery) Release(after time.Duration) error {
	if err := checkPause("after", after); err != nil {
		return d.describe("release", err)
	}
	return d.settle("release", verdictRelease, after, "", nil)
}

// Extend says still working: the loan ends by from now, at most MaxAckDeadline, and so does the ctx of the Handler that
// works on it, unless WorkOptions.Timeout ends that before. It may be called any number of times until the loan is settled.
func (d *Delivery) Extend(by time.Duration) error {
	if by <= 0 || by > MaxAckDeadline {
		return d.describe("extend", &InvalidError{"by", fmt.Sprintf("%v, must be more than 0 and at most %v", by, MaxAckDeadline)})
	}
	if err := d.extend(by); err != nil {
		return d.describe("extend", err)
	}
	return nil
}

// extend reads none of the fields that belong to the receiver, who may write to them meanwhile.
func (d *Delivery) extend(by time.Duration) error {
	if err := d.loan.known(); err != nil {
		return err
	}
	e := &extending{loan: &d.loan, by: by}
	if err := d.loan.sub.shard.log.Propose(e); err != nil {
		return err
	}
	d.loan.deadline.Store(int64(e.until))
	d.loan.limit.move(d.Deadline())
	return nil
}

// extending is the proposal of an Extend.
type extending struct {
	loan  *settlement
	by    time.Duration
	until instant // set by AppendTo
}

// AppendTo implements Proposal.
func (e *extending) AppendTo(dst []byte) []byte {
	l, now := e.loan, e.loan.sub.b.now()
	e.until = now + instant(e.by)
	return settle{
		queue: l.sub.queue.id, consumer: l.sub.id, tag: l.tag, slot: l.slot, verdict: verdictExtend, pause: e.by,
	}.appendTo(dst, now)
}

// Durable implements Proposal.
func (e *extending) Durable() bool { return false }

// Done implements Proposal. If the loan ended first, so does the handler's ctx, which Extend has prolonged already: else
// its old end might have come before this.
func (e *extending) Done(a Answer, err error) {
	if err != nil || a.Code != answerOK {
		e.loan.limit.end(context.DeadlineExceeded)
	}
}

func checkPause(field string, d time.Duration) error {
	if d < 0 || d > MaxDelay {
		return &InvalidError{field, fmt.Sprintf("%v, must be 0 to %v", d, time.Duration(MaxDelay))}
	}
	return nil
}
