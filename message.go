package bourse

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Message is one unit of work.
type Message struct {
	// Exchange to publish to. The default exchange, "", routes to the queue that RoutingKey names.
	Exchange   string
	RoutingKey string // at most MaxNameBytes
	// Mandatory makes an unroutable message an error, ErrUnroutable. Else it is confirmed,
	// dropped and counted in Stats.Unroutable.
	Mandatory bool
	// ID names the message for ever: it stays the same over redelivery and dead-lettering, so that
	// consumers can recognise a repetition, and so can a queue with a Dedup. The broker makes one if it is empty.
	ID       string
	Priority uint8 // see Queue.Priorities
	// Transient says that a copy in memory will do: in a durable queue the message never comes to the log, so it costs no sync,
	// and is confirmed at once. It is gone when the broker is closed or crashes, or its queue gets another leader. It waits
	// beside the durable messages of the queue, and consumers get the higher level of both first, then what came first; a
	// dead one is stored durably where it goes. MaxBodyBytes bounds one, nothing all of them.
	//
	// A queue stores it as it does others where something must hold for all its messages together: if the message has a GroupID, or
	// the queue MaxMessages, MaxBytes, Dedup, Inbox, Fairness, Rate, Expires or SingleActiveConsumer. So does
	// PublishAtomic. In a delivery, and in
	// Browsed, it says that the message is in memory only.
	Transient bool
	// GroupID is a key, such as a customer or a document, whose messages must not be worked on at the same time: at most
	// MaxNameBytes, "" for none. In each queue at most one message of a group is on loan (see Queue.GroupConcurrency), in the
	// order of their arrival there whatever their priorities. One that failed, or was released for later, holds its group back
	// while it rests; once it is acked or dead, the next may go. Other groups, and messages without one, pass. A message that its
	// publisher delayed takes its place when it is ready, and holds nobody back before. One that replaces another, see Dedup, keeps
	// the group of the first.
	//
	// Groups take turns, so that many messages of one do not hold up the others: the next delivery is from the highest level
	// at which a group, by its first message, or a message without a group waits, and there from the one that was served
	// longest ago; the messages without a group take turns as one group would. The group stays with a message that dies.
	GroupID string
	// TTL is how long the message may wait in a queue, counted from its arrival there, or from when it became ready if it was
	// delayed; at most MaxDelay. Then it is dead, with ReasonExpired. 0: for ever; NoWait: it goes to a consumer that has room
	// when it arrives, or is dead. Of Queue.TTL and this the shorter one counts. A message on loan does not expire; if it comes back
	// later than that, it does at once.
	TTL time.Duration
	// Delay holds the message back: it is in its queues, but not ready before so much time has passed; at most MaxDelay.
	// It uses no consumer's prefetch and no deadline meanwhile, and no TTL. A delivery says DeliverAt instead.
	Delay time.Duration
	// DeliverAt is Delay until a time, in place of it. A time that has passed is no delay.
	DeliverAt time.Time
	Headers   map[string]any // values: string, bool, integers, floats, time.Time, []byte
	Timestamp time.Time      // the publisher's; carried, not interpreted; in the years 1678 to 2261
	// Body is neither changed nor kept after Publish has returned or the Confirm is done; nor are Headers.
	Body []byte
}

// Confirm is the outcome of a PublishAsync, now or later.
//
// It takes no lock. Nobody waits beside an outcome: who waits hangs up wait and then looks at done, published sets done and then
// looks at wait, so one of both sees the other.
type Confirm struct {
	pub publication

	done atomic.Bool // err is written, once
	err  error
	wait atomic.Pointer[waitRoom] // made when first asked for
}

// waitRoom is where somebody waits for a Confirm.
type waitRoom struct{ done chan struct{} } // closed by published

// Confirms are made in blocks, since an allocation for each costs more than all else that its publisher does for it. Who keeps one
// keeps its block.
const blockConfirms = 21

var confirmBlocks = sync.Pool{New: func() any { return new(confirmBlock) }}

type confirmBlock struct{ rest []Confirm }

func newConfirm() *Confirm {
	b, _ := confirmBlocks.Get().(*confirmBlock) // the pool holds nothing else
	if len(b.rest) == 0 {
		b.rest = make([]Confirm, blockConfirms)
	}
	c := &b.rest[0]
	b.rest = b.rest[1:]
	confirmBlocks.Put(b)
	return c
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done returns a channel that is closed once the outcome is known.
func (c *Confirm) Done() <-chan struct{} {
	if c.done.Load() {
		return closedChannel
	}
	w := c.wait.Load()
	if w == nil {
		if w = (&waitRoom{make(chan struct{})}); !c.wait.CompareAndSwap(nil, w) {
			w = c.wait.Load()
		}
	}
	if c.done.Load() {
		return closedChannel
	}
	return w.done
}

// Err is the outcome: nil if the message is stored durably in every queue it was routed to, or was
// not mandatory and not routed. Before Done it is nil as well.
func (c *Confirm) Err() error {
	if !c.done.Load() {
		return nil
	}
	return c.err
}

// Wait blocks until the outcome is known and returns it as Err does, or until ctx ends; the error
// then matches ErrUnknownOutcome and ctx.Err().
func (c *Confirm) Wait(ctx context.Context) error {
	if c.done.Load() {
		return c.err
	}
	if _, known := await(ctx, c.Done()); !known {
		return fmt.Errorf("broker: wait for a confirm: %w: %w", ErrUnknownOutcome, ctx.Err())
	}
	return c.Err()
}

// published implements publisher.
func (c *Confirm) published(p *publication, err error) {
	c.err = err
	c.done.Store(true)
	if w := c.wait.Load(); w != nil {
		close(w.done)
	}
}
