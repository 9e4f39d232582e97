package bourse

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"
)

// Locator names one message of a queue. Browse gives it; one made of a name and a number alone works too, at the cost of a walk
// over what is delayed and unacked there, and over what has more attributes than most if Backoff.AtTail moves messages. It stays
// good when the message changes its state, and is never that of another message.
type Locator struct {
	Queue string
	Seq   uint64 // the message's number in the queue, by arrival; the first is 1, or 1<<62 + 1 among the transient

	id    queueID // of the queue that had the name; 0: not known
	place place   // where the message was seen
}

// Browsed is a message as Browse found it in a queue.
type Browsed struct {
	Message
	Locator

	State      State
	Level      int       // of Queue.Priorities, at which it waits; not that of Message.Priority after SetPriority
	EnqueuedAt time.Time // when it arrived in this queue
	ReadyAt    time.Time // StateDelayed: when it is ready
	ExpiresAt  time.Time // StateReady, StateDelayed: when its TTL ends; zero: never
	Deliveries int       // times it was handed out
	Failures   int       // times it went wrong
	Deaths     []Death   // its history in dead-letter paths, newest first

	Holder   string    // StateUnacked: who has it, see Subscription.ID
	Tag      uint64    // StateUnacked: its Delivery.Tag there
	Deadline time.Time // StateUnacked: when the loan ends

	DiedAt time.Time // StateDying, as the next two
	Reason string    // such as ReasonRejected
	Note   string    // what the consumer said

	ref  Ref
	size uint32
}

// BrowseOptions say what Browse gives. The zero value is all.
type BrowseOptions struct {
	States []State // only messages in these; none: in any
	Limit  int     // at most so many; 0: all
	// After goes on behind the message that an earlier Browse of the same queue ended with, wherever that is by now.
	After Locator
}

// browsePage is how many messages are looked at under the lock of their shard at a time.
const browsePage = 64

// Browse iterates over the messages of queue and takes none. It gives those in StateReady first, by level from the highest
// and in the order in which they go, then those in StateDelayed by ReadyAt, in StateUnacked in no particular order, and in
// StateDying in the order of arrival; then those that are transient, in the same way. Messages that
// arrive after the first are left out. The queue goes on meanwhile: Browse looks
// at 64 messages at a time, whose bodies it then reads from the log one by one, and what it costs the queue does not depend on how
// much that holds. What has happened to a message since it was looked at does not show, but one that cannot be read any
// more is left out. A message that changes its state may be given in both or in none; all others are given once.
//
// A message that cannot be read is given with an error that matches ErrStorage, without its Message and Deaths, and the
// iteration goes on. Any other error comes with nil and ends it: ErrNotFound, ErrQueueGone, ErrClosed, an *InvalidError, ctx.Err().
// With an Engine of several nodes it shows what this node knows.
func (b *Broker) Browse(ctx context.Context, queue string, opts BrowseOptions) iter.Seq2[*Browsed, error] {
	return func(yield func(*Browsed, error) bool) {
		for m, err := range b.browse(ctx, queue, opts) {
			if err != nil {
				err = fmt.Errorf("broker: browse %q: %w", queue, err)
			}
			if !yield(m, err) {
				return
			}
		}
	}
}

func (b *Broker) browse(ctx context.Context, queue string, opts BrowseOptions) iter.Seq2[*Browsed, error] {
	return func(yield func(*Browsed, error) bool) {
		w, err := b.lookOver(queue, opts)
		left := opts.Limit
		for err == nil && (w.after.state <= StateDying || w.moveOn()) {
			if err = ctx.Err(); err == nil {
				err = w.look()
			}
			for i := range w.page {
				if err != nil {
					break
				}
				m, failed := w.read(&w.page[i])
				if m == nil {
					continue
				}
				if !yield(m, failed) {
					return
				}
				if left--; left == 0 {
					return
				}
				err = ctx.Err()
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// browsing is a Browse under way.
type browsing struct {
	b      *Broker
	shard  *shard
	queue  queueDef
	states uint8
	after  place
	end    uint64 // the seq of the first message that came too late; 0: not known yet
	page   []sight
}

func (b *Broker) lookOver(queue string, opts BrowseOptions) (*browsing, error) {
	w := &browsing{b: b, states: 255, after: firstPlace(StateReady)}
	if opts.Limit < 0 {
		return nil, invalid("BrowseOptions.Limit", "is %d, which is negative", opts.Limit)
	}
	if len(opts.States) > 0 {
		w.states = 0
	}
	for _, s := range opts.States {
		if s < StateReady || s > StateDying {
			return nil, invalid("BrowseOptions.States", "has %d, which is no state", s)
		}
		w.states |= 1 << s
	}
	if opts.After != (Locator{}) {
		if opts.After.Queue != queue || opts.After.place.state == 0 {
			return nil, invalid("BrowseOptions.After", "is not of a message that Browse has given of %q", queue)
		}
		w.after = opts.After.place
	}
	var err error
	w.queue, w.shard, err = b.findMessage(Locator{Queue: queue, id: opts.After.id, Seq: opts.After.Seq})
	if errors.Is(err, errNoAnnex) {
		w.after.state, err = StateDying+1, nil // all behind it is gone
	}
	return w, err
}

// errNoAnnex says that a message is gone, since no message is transient in its queue any more.
var errNoAnnex = fmt.Errorf("transient: %w", ErrNotFound)

// findMessage returns the queue of a message and the shard that holds it.
func (b *Broker) findMessage(l Locator) (queueDef, *shard, error) {
	def, shard, err := b.find(l.Queue, l.id)
	if err == nil && l.Seq > annexSeq {
		if shard = b.placement.annex(def.id); shard == nil {
			err = errNoAnnex
		}
	}
	return def, shard, err
}

// moveOn goes on in the annex of the queue, if there is one and Browse has not been there.
func (w *browsing) moveOn() bool {
	annex := w.b.placement.annex(w.queue.id)
	if annex == nil || w.shard == annex || w.shard.base != nil {
		return false
	}
	w.shard, w.after, w.end = annex, firstPlace(StateReady), 0
	return true
}

// find returns a queue by name and its shard. The id says which of that name is meant; 0: whichever has it.
func (b *Broker) find(queue string, id queueID) (queueDef, *shard, error) {
	if err := b.open(); err != nil {
		return queueDef{}, nil, err
	}
	def, err := b.queue(queue)
	switch {
	case id != 0 && def.id != id:
		return queueDef{}, nil, ErrQueueGone
	case err != nil:
		return queueDef{}, nil, err
	}
	shard := b.placement.of(def.id)
	if shard == nil {
		return queueDef{}, nil, ErrNotFound
	}
	return def, shard, nil
}

// look brings the next page.
func (w *browsing) look() error {
	if err := w.b.open(); err != nil {
		return err
	}
	s := w.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.m.queues[w.queue.id]
	if q == nil {
		return ErrQueueGone
	}
	if w.end == 0 {
		w.end = q.nextSeq
	}
	w.page, w.after = q.look(w.after, w.states, browsePage, w.page[:0])
	w.page = slices.DeleteFunc(w.page, func(s sight) bool { return s.entry.seq >= w.end })
	return nil
}

// read makes a Browsed of what was seen; nil if the message is gone.
func (w *browsing) read(s *sight) (*Browsed, error) {
	m := &Browsed{
		Locator: Locator{Queue: w.queue.Name, Seq: s.place.number(), id: w.queue.id, place: s.place},
		State:   s.place.state, Level: int(s.entry.level), EnqueuedAt: timeOf(s.entry.arrived), ExpiresAt: timeOf(s.expires),
		Deliveries: int(s.entry.deliveries), Failures: int(s.entry.failures), ref: s.entry.ref, size: s.entry.size,
	}
	switch at := timeOf(s.at); s.place.state {
	case StateReady:
	case StateDelayed:
		m.ReadyAt = at
	case StateUnacked:
		m.Deadline, m.Holder, m.Tag = at, s.holder.String(), s.tag
	case StateDying:
		m.DiedAt, m.Reason, m.Note = at, s.reason.String(), s.note
	}
	var d Delivery
	err := w.shard.read(nil, s.entry.ref, s.entry.part, s.entry.size, &d)
	if err == nil {
		m.Message, m.Deaths = d.Message, d.Deaths
		return m, nil
	}
	// It may be gone, or another message by now.
	if now, err := w.shard.see(w.queue.id, s.place); err != nil || now.entry.ref != s.entry.ref {
		return nil, nil
	}
	return m, fmt.Errorf("message %d: %w: %w", m.Seq, errUnreadable, err)
}

// see is the message of a queue that was at p, as it is now.
func (s *shard) see(queue queueID, p place) (sight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.m.queues[queue]
	if q == nil {
		return sight{}, ErrQueueGone
	}
	p, e, ok := q.locate(p)
	if !ok {
		return sight{}, ErrNotFound
	}
	return sight{place: p, entry: e}, nil
}

// timeOf is an instant as a time; none is zero.
func timeOf(at instant) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(at))
}

func (c consumerID) String() string {
	return strconv.FormatUint(uint64(c.session()), 10) + "." + strconv.FormatUint(uint64(uint32(c)), 10)
}

// ID names the subscription among those of its queue, as Browsed.Holder does.
func (s *Subscription) ID() string { return s.id.String() }

// Find returns the message of queue that has that Message.ID, in whatever state it is; ErrNotFound if there is none, and the first
// that Browse gives if there are several. Only the log knows ids, so every message of the queue is read until it is found.
func (b *Broker) Find(ctx context.Context, queue, id string) (*Browsed, error) {
	var unreadable error
	for m, err := range b.browse(ctx, queue, BrowseOptions{}) {
		switch {
		case m == nil:
			return nil, fmt.Errorf("broker: find %q in %q: %w", id, queue, err)
		case err != nil:
			unreadable = err
		case m.ID == id:
			return m, nil
		}
	}
	if unreadable == nil { // else it may be that one
		unreadable = ErrNotFound
	}
	return nil, fmt.Errorf("broker: find %q in %q: %w", id, queue, unreadable)
}
