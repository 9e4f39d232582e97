package bourse

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boursemq/bourse/internal/invariant"
)

// Limits of a PublishAtomic and of an AckAndPublish. To read one of the messages the log reads all, as one record.
const (
	MaxAtomicMessages = 255
	MaxAtomicBytes    = 4 << 20 // of all messages together, as they are stored, unless there is only one
)

const _ = uint(maxParts - MaxAtomicMessages) // what entry.part can number

// PublishAtomic publishes all of ms or none, in one commit: they are durable together, are visible to consumers together, and
// after any crash all are there or none is. Within each queue they are in the order of ms. Where PublishBatch has an outcome for
// each message, this has one for all. An *AtomicError says which message was refused, and matches why: an *InvalidError,
// ErrUnroutable, ErrNoExchange, or ErrQueueFull. The latter also where Queue.Overflow is Block: a bundle does not wait, and takes
// what room there is, also before publishes that do. Other refusals are of all together: an *InvalidError if they exceed
// MaxAtomicMessages or MaxAtomicBytes; ErrNotAtomic if their queues are in several logs: with an engine that gives each its own, or
// if some are transient; and those of Publish. A message that is not mandatory and not routed is dropped and counted, as by
// Publish. ErrUnknownOutcome says that all may be stored, or none: retry with the same Message.IDs.
func (b *Broker) PublishAtomic(ctx context.Context, ms []Message) error {
	err := b.publishAtomic(ctx, ms, nil)
	if err != nil {
		return fmt.Errorf("broker: publish %d messages atomically: %w", len(ms), err)
	}
	return nil
}

// AckAndPublish acks the message and publishes ms, in one commit: consume here, produce there, never half. It returns when that is
// durable. If the loan was taken back before, the error is ErrStaleDelivery and nothing is published; if a message is refused, see
// PublishAtomic, nothing is acked and the loan goes on, for another try or another verdict. ErrNotAtomic also
// says that the messages go to another log than that of the queue which this one came from, or that this one is in
// memory and they are not. ErrUnknownOutcome says that both have
// happened, or neither: then the message comes again.
func (d *Delivery) AckAndPublish(ctx context.Context, ms ...Message) error {
	l := &d.loan
	err := l.known()
	if err == nil && !l.state.CompareAndSwap(loanOpen, loanSettled) {
		err = ErrUnknownDelivery
	}
	if err != nil {
		return d.describe("ack and publish", err)
	}
	if err = l.sub.b.publishAtomic(ctx, ms, l); err == nil {
		l.sub.returned(l.tag)
		return nil
	}
	var refused *AtomicError
	over := errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrStaleDelivery) || errors.Is(err, ErrQueueGone)
	if errors.As(err, &refused) || !over {
		l.state.Store(loanOpen) // nothing was said
	}
	return d.describe("ack and publish", err)
}

// publishAtomic publishes ms, and acks ack if that is not nil.
func (b *Broker) publishAtomic(ctx context.Context, ms []Message, ack *settlement) error {
	a := &atomically{b: b, ack: ack, pubs: make([]publication, min(len(ms), MaxAtomicMessages))}
	bytes, err := a.check(ms)
	if err == nil {
		err = b.open()
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = b.gate.acquire(ctx, bytes, ack != nil)
	}
	if err != nil {
		return err
	}
	defer b.gate.release(bytes)
	for {
		a.complete()
		again, err := a.try(ctx)
		switch {
		case err != nil:
			return err
		case !again:
			b.published.Add(uint64(len(ms)))
			b.unroutable.Add(uint64(len(ms) - len(a.parts)))
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// atomically is a bundle on its way into a log.
type atomically struct {
	b      *Broker
	ack    *settlement // nil: none
	pubs   []publication
	parts  [][]byte // encoded, of those that are routed
	places []int    // of parts, in pubs
	shard  *shard   // of all queues; nil: none is needed
}

// check checks ms one by one and together, and returns the bytes of their bodies.
func (a *atomically) check(ms []Message) (bytes int64, err error) {
	if len(ms) > MaxAtomicMessages {
		return 0, invalid("Messages", "has %d messages, the limit is %d", len(ms), MaxAtomicMessages)
	}
	for i := range ms {
		p := &a.pubs[i]
		p.b, p.message = a.b, ms[i]
		if err := a.b.checkMessage(&p.message); err != nil {
			return 0, refusedBy(i, p, err)
		}
		bytes += p.cost()
	}
	return bytes, a.fits(bytes)
}

// refusedBy is the refusal of one message.
func refusedBy(i int, p *publication, err error) error {
	return &AtomicError{i, fmt.Errorf("exchange %q, key %q: %w", p.message.Exchange, p.message.RoutingKey, err)}
}

// fits refuses more bytes than a bundle may have.
func (a *atomically) fits(bytes int64) error {
	if len(a.pubs) > 1 && bytes > MaxAtomicBytes {
		return invalid("Messages", "has %d bytes together, the limit is %d", bytes, MaxAtomicBytes)
	}
	return nil
}

// complete gives the messages what they get only once, and after all checks.
func (a *atomically) complete() {
	for i := range a.pubs {
		m := &a.pubs[i].message
		if m.Delay > 0 {
			m.DeliverAt, m.Delay = time.Unix(0, int64(a.b.now())).Add(m.Delay), 0
		}
		if m.ID == "" && a.pubs[i].made == 0 {
			a.pubs[i].made = a.b.made.Add(1)
		}
	}
}

// try routes the messages and proposes the bundle. again: queues were deleted between both, so that it must be routed anew.
func (a *atomically) try(ctx context.Context) (again bool, err error) {
	var loan *settle
	if a.shard, a.parts, a.places = nil, a.parts[:0], a.places[:0]; a.ack != nil {
		a.shard = a.ack.sub.shard
		loan = &settle{queue: a.ack.sub.queue.id, consumer: a.ack.sub.id, tag: a.ack.tag, slot: a.ack.slot}
	}
	total := int64(0)
	for i := range a.pubs {
		p := &a.pubs[i]
		part, err := a.encode(p)
		if err != nil {
			return false, refusedBy(i, p, err)
		}
		if part != nil {
			a.parts, a.places = append(a.parts, part), append(a.places, i)
			total += int64(len(part))
		}
	}
	if err := a.fits(total); err != nil {
		return false, err
	}
	if a.shard == nil {
		return false, nil
	}
	answer, err := a.shard.call(ctx, durably, func(dst []byte, at instant) []byte {
		return appendBundle(appendHeader(dst, cmdBundle, at), loan, a.parts)
	})
	switch {
	case err != nil:
		return false, err
	case answer.Code == answerTargetGone:
		return true, nil
	case answer.Code == answerFull:
		return false, a.refused(answer)
	case answer.Code == answerStale:
		return false, ErrStaleDelivery
	case answer.Code == answerGone:
		return false, ErrQueueGone
	}
	return false, nil
}

// refused is the refusal of a queue that has no room.
func (a *atomically) refused(answer Answer) error {
	_, refused, err := decodeRefused(answer.Data)
	invariant.Check(err == nil && len(refused) == 1, "who refused a bundle: %v", err)
	i := a.places[refused[0].turn]
	p := &a.pubs[i]
	return refusedBy(i, p, &RejectedError{Refusals: []Refusal{p.refusal(refused[0])}})
}

// encode routes a message and encodes it, with its targets; nil if it goes nowhere and need not.
func (a *atomically) encode(p *publication) ([]byte, error) {
	m := &p.message
	targets, err := a.b.topology.Load().route(m.Exchange, m.RoutingKey, m.Headers, p.few[:0])
	switch {
	case err != nil:
		return nil, err
	case len(targets) == 0 && m.Mandatory:
		return nil, ErrUnroutable
	case len(targets) == 0:
		return nil, nil
	}
	for _, id := range targets {
		s := a.b.placement.of(id)
		switch {
		case s == nil:
			return nil, ErrQueueGone
		case a.shard == nil:
			a.shard = s
		case a.shard != s:
			return nil, ErrNotAtomic
		}
	}
	c := a.shard.compress(m.Body)
	defer c.release()
	return appendCompressed(appendTargets(nil, targets), m, c, p.id(), nil), nil
}
