package bourse

import (
	"context"
	"fmt"
	"time"
)

// InboxMemory is how long a queue remembers the messages that were ended by Inbox.Done. The zero value is no inbox.
type InboxMemory struct {
	// Window is how long an ID is remembered, from the first Done with it. At most MaxDedupWindow.
	Window time.Duration
	// MaxIDs is as in Dedup: default DefaultDedupIDs, at most MaxDedupIDs; beyond it the oldest is forgotten and counted in
	// QueueStats.Forgotten.
	MaxIDs int
}

// Inbox lets the consumers of a queue recognise a message that they have done before, by Message.ID, which stays the same over
// redelivery, dead-lettering and replay, and over publishes of the same message. A consumer asks Seen, does its work, and says Done; Handle
// does that around a Handler.
//
//	seen, err := inbox.Seen(ctx, d) // if so, it only has to be acked
//	err = charge(d.Body)
//	err = inbox.Done(ctx, d)
//
// Done records the ID and acks the message in one commit, durably: both have happened, or none. Once it returned nil, Seen is true for
// each later delivery of a message with this ID in this queue, for InboxMemory.Window, whatever crashes.
//
// What it cannot do: the work itself is outside the broker. If the process dies between the work and Done, or Done returns an error, the
// message comes back and Seen is false. Work that must not happen twice even then has to be made so, for example by a transaction
// that keeps the ID too. Nor does Seen know of work that goes on: of two messages with one ID that are handed out at
// the same time, both are new. A Dedup with UntilDone keeps the second one out of the queue.
//
// Each queue has an inbox of its own, which all its consumers share. The methods may be called at once.
type Inbox struct {
	b     *Broker
	queue queueDef
}

// Inbox returns the inbox of a queue: ErrNotFound without such a queue, an *InvalidError if its Queue.Inbox is not set.
func (b *Broker) Inbox(queue string) (*Inbox, error) {
	def, err := b.queue(queue)
	switch {
	case err != nil:
		return nil, fmt.Errorf("broker: inbox of %q: %w", queue, err)
	case def.Inbox.Window == 0:
		return nil, fmt.Errorf("broker: inbox of %q: %w", queue, errNoInbox)
	}
	return &Inbox{b: b, queue: def}, nil
}

// errNoInbox is the refusal of a queue that remembers nothing.
var errNoInbox = invalid("Queue.Inbox", "is not set")

// Seen reports whether a message with the ID of d was ended by Done before. It returns an error if ctx has ended, or if d is not a
// delivery of this queue. It reads memory and does not wait.
func (i *Inbox) Seen(ctx context.Context, d *Delivery) (bool, error) {
	if err := i.check(ctx, d); err != nil {
		return false, d.describe("look up", err)
	}
	shard := d.loan.sub.shard
	shard.mu.Lock()
	defer shard.mu.Unlock()
	q := shard.m.queues[i.queue.id]
	if q == nil {
		return false, d.describe("look up", ErrQueueGone)
	}
	id, ok := q.inbox.find(keyOf([]byte(d.ID)))
	return ok && id.until > max(shard.m.now, i.b.now()), nil
}

// Done says done, as AckSync does, and that Seen is true from now on. It returns when both are durable. After ErrStaleDelivery nothing is
// recorded: the message is with another consumer by now, or dead, and will be worked on again. If ctx ends first the error
// matches ErrUnknownOutcome.
func (i *Inbox) Done(ctx context.Context, d *Delivery) error {
	if err := i.check(ctx, d); err != nil {
		return d.describe("end", err)
	}
	return d.settleSync(ctx, "end", verdictDone, d.ID)
}

// check reports why d cannot be looked up or ended here.
func (i *Inbox) check(ctx context.Context, d *Delivery) error {
	switch {
	case d.loan.sub == nil:
		return ErrUnknownDelivery
	case d.loan.sub.queue.id == i.queue.id:
		if def, ok := i.b.topology.Load().queueByID(i.queue.id); ok && def.Inbox.Window == 0 {
			return errNoInbox // it was taken away by Update
		}
		if d.loan.sub.shard.base != nil {
			// It came before Update gave the queue an inbox, and the record of a Done would go with it.
			return invalid("Delivery", "is of a transient message in a durable queue")
		}
		return ctx.Err()
	case d.Queue == i.queue.Name:
		return ErrQueueGone // of that name there is another now
	}
	return invalid("Delivery", "is of queue %q, the inbox is of %q", d.Queue, i.queue.Name)
}

// Handle returns a Handler for Work that acks what was seen, gives the rest to h, and ends with Done what h returns nil for.
func (i *Inbox) Handle(h Handler) Handler {
	return func(ctx context.Context, d *Delivery) error {
		seen, err := i.Seen(ctx, d)
		if err != nil || seen {
			return err
		}
		if err := h(ctx, d); err != nil {
			return err
		}
		return i.Done(ctx, d)
	}
}
