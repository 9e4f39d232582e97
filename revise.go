package bourse

import (
	"context"
	"fmt"
	"reflect"
)

// Cancel removes one message, in whatever state it is; it is counted, and not dead-lettered. It returns when that is durable. If
// the message is on loan, the consumer's verdict will be ErrStaleDelivery; a handler that works on it is not stopped. If it is
// dying, it is discarded, unless it has arrived in a dead-letter queue. Errors: ErrNotFound if there is no such message (any
// more), ErrQueueGone, ErrClosed, ErrStorage, ErrNotLeader; ErrUnknownOutcome if ctx ends first.
func (b *Broker) Cancel(ctx context.Context, l Locator) error {
	return b.amend(ctx, "cancel", l, freeing, amend{what: amendCancel})
}

// Promote makes a delayed message ready now, at the place that its arrival gives it; one that is ready already stays. It returns
// when that is durable. Its TTL counts as if its delay had ended. Errors as Cancel, and ErrNotWaiting.
func (b *Broker) Promote(ctx context.Context, l Locator) error {
	return b.amend(ctx, "promote", l, durably, amend{what: amendPromote})
}

// SetPriority makes a message that is ready or delayed one of another priority, in this queue: it waits at the level of that, at the
// place that its arrival gives it. What a delivery says in Message.Priority, and what counts in other queues, stays. It returns
// when that is durable. Errors as Cancel, and ErrNotWaiting.
func (b *Broker) SetPriority(ctx context.Context, l Locator, priority uint8) error {
	return b.amend(ctx, "set the priority of", l, durably, amend{what: amendPriority, priority: priority})
}

// Edit lets change alter Body, Headers and Timestamp of a message that is ready or delayed, and puts the result in its place: the
// message keeps its id, place, level, times and counts. It returns when that is durable. If somebody else has changed the
// message meanwhile, change is called again with what it is then. Errors as Cancel, and ErrNotWaiting; an *InvalidError if
// the result breaks a limit or another field has changed; ErrQueueFull if it grows beyond Queue.MaxBytes; ErrDiskFull; and
// what change returns, after which nothing is changed.
func (b *Broker) Edit(ctx context.Context, l Locator, change func(m *Message) error) error {
	if err := b.edit(ctx, l, change); err != nil {
		return l.describe("edit", err)
	}
	return nil
}

func (l Locator) describe(op string, err error) error {
	return fmt.Errorf("broker: %s message %d of %q: %w", op, l.Seq, l.Queue, err)
}

// at is where to look for the message first.
func (l Locator) at() place {
	if l.place.number() != l.Seq {
		return place{seq: l.Seq}
	}
	return l.place
}

// amend proposes c for the message of l and waits for the outcome.
func (b *Broker) amend(ctx context.Context, op string, l Locator, how durability, c amend) error {
	def, shard, err := b.findMessage(l)
	if err == nil {
		c.queue, c.place = def.id, l.at()
		var a Answer
		a, err = shard.call(ctx, how, func(dst []byte, at instant) []byte { return c.appendTo(dst, at) })
		if err == nil {
			err = amended(a)
		}
	}
	if err != nil {
		return l.describe(op, err)
	}
	return nil
}

// amended is the answer to an amend as an error. ErrStaleDelivery says that the message is not the one that was read; callers
// do not see it.
func amended(a Answer) error {
	switch a.Code {
	case answerGone:
		return ErrQueueGone
	case answerAbsent:
		return ErrNotFound
	case answerNotWaiting:
		return ErrNotWaiting
	case answerStale:
		return ErrStaleDelivery
	case answerFull:
		return ErrQueueFull
	}
	return nil
}

func (b *Broker) edit(ctx context.Context, l Locator, change func(m *Message) error) error {
	def, shard, err := b.findMessage(l)
	if err != nil {
		return err
	}
	for {
		now, err := shard.see(def.id, l.at())
		if err != nil {
			return err
		}
		if now.place.state != StateReady && now.place.state != StateDelayed {
			return ErrNotWaiting
		}
		var d Delivery
		if err := shard.read(nil, now.entry.ref, now.entry.part, now.entry.size, &d); err != nil {
			if again, gone := shard.see(def.id, now.place); gone != nil || again.entry.ref != now.entry.ref {
				continue // it was not there any more
			}
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}
		before := d.Message
		if err := change(&d.Message); err != nil {
			return err
		}
		if err := checkEdit(&before, &d.Message); err != nil {
			return err
		}
		if err := b.checkMessage(&d.Message); err != nil {
			return err
		}
		c := amend{queue: def.id, place: now.place, what: amendEdit, ref: now.entry.ref}
		body := shard.compress(d.Body)
		a, err := shard.call(ctx, durably, func(dst []byte, at instant) []byte {
			return appendCompressed(appendTargets(c.appendTo(dst, at), nil), &d.Message, body, messageID{}, d.Deaths)
		})
		body.release()
		if err != nil {
			return err
		}
		if a.Code != answerStale {
			return amended(a)
		}
	}
}

// checkEdit refuses an edit of fields that a queue acts on, or that name the message.
func checkEdit(before, after *Message) error {
	was, is := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	for i := range was.NumField() {
		switch name := was.Type().Field(i).Name; name {
		case "Body", "Headers", "Timestamp":
		default:
			if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
				return invalid("Message."+name, "cannot be edited: it was %v, and is %v", was.Field(i), is.Field(i))
			}
		}
	}
	return nil
}
