package sim

import (
	"errors"
	"testing"
	"time"
)

// Goal: the observer takes a good history, and finds each kind of bad one by its own invariant. Method: a short good history by
// hand (two queues, two consumers, some messages), and for each case one more command whose outcome cannot be.

// history feeds an observer by hand.
type history struct {
	t    *testing.T
	o    observer
	ref  uint64
	at   int64
	tags map[uint64]uint64
}

// do is one command and what came of it. It returns its place in the log.
func (h *history) do(c Command, out Outcome) uint64 {
	h.ref++
	c.At = h.at
	h.o.see(h.ref, &c, &out)
	return h.ref
}

const (
	anna  = 1<<32 | 1 // of queue 2, which has two levels, prefetch 2
	berta = 1<<32 | 2 // of queue 3, takes only
)

func newHistory(t *testing.T) *history {
	h := &history{t: t, at: 1000, tags: map[uint64]uint64{}}
	h.o.reset()
	h.do(Command{Kind: Open}, Outcome{Code: Number, Number: 1})
	h.do(Command{Kind: Declare, Spec: Spec{
		Name: "a", Levels: 2, Retries: 1, Deadline: time.Second, Dead: DeadDirect, DeadTo: "b",
		Retry: Retry{Min: time.Second, Max: time.Second, Percent: 100},
	}}, Outcome{Number: 2})
	h.do(Command{Kind: Declare, Spec: Spec{Name: "b", Levels: 1, Retries: Unlimited, Deadline: time.Second}}, Outcome{Number: 3})
	h.do(Command{Kind: Attach, Queue: 2, Consumer: anna, Prefetch: 2}, Outcome{})
	h.do(Command{Kind: Attach, Queue: 3, Consumer: berta}, Outcome{})
	return h
}

// loan is the effect of a first delivery under the consumer's next tag.
func (h *history) loan(queue, consumer, ref uint64) Effect {
	h.tags[consumer]++
	return Effect{
		Kind: Deliver, Queue: queue, Consumer: consumer, Tag: h.tags[consumer], Slot: int32(h.tags[consumer]), Ref: ref,
		Deliveries: 1, At: h.at + int64(time.Second), Arrived: h.at,
	}
}

// publish puts message number, of some priority, into queue. Deliveries follow.
func (h *history) publish(number uint64, priority uint8, queue uint64, effects ...Effect) uint64 {
	return h.do(Command{Kind: Publish, Targets: []uint64{queue}, Message: Message{Number: number, Priority: priority}},
		Outcome{Kept: 1, Effects: effects})
}

// next is the place in the log of the next command.
func (h *history) next() uint64 { return h.ref + 1 }

func (h *history) settle(v Verdict, consumer, tag uint64, out Outcome) {
	queue := uint64(2)
	if consumer == berta {
		queue = 3
	}
	h.do(Command{Kind: Settle, Queue: queue, Consumer: consumer, Tag: tag, Slot: int32(tag), Verdict: v, Pause: -1}, out)
}

// lent publishes a message to anna and returns its place.
func (h *history) lent() uint64 {
	h.publish(7, 0, 2, h.loan(2, anna, h.next()))
	return h.ref
}

// dead has a message die in queue 2, with the order to move it.
func (h *history) dead() uint64 {
	ref := h.lent()
	h.settle(Reject, anna, h.tags[anna], Outcome{Effects: []Effect{
		{Kind: Forward, Queue: 2, Seq: 1, Ref: ref, Reason: Rejected, Failures: 1, At: h.at},
	}})
	return ref
}

var badHistories = []struct {
	rule, name string
	run        func(h *history)
}{
	{"I5", "a message comes back after its ack", func(h *history) {
		ref := h.lent()
		h.settle(Ack, anna, 1, Outcome{Effects: []Effect{{Kind: Free, Ref: ref}}})
		h.do(Command{Kind: Attach, Queue: 2, Consumer: anna, Prefetch: 3}, Outcome{Effects: []Effect{h.loan(2, anna, ref)}})
	}},
	{"I16", "an acked message is kept", func(h *history) {
		h.lent()
		h.settle(Ack, anna, 1, Outcome{})
	}},
	{"I16", "a message on loan is freed", func(h *history) {
		ref := h.lent()
		h.do(Command{Kind: Tick}, Outcome{Effects: []Effect{{Kind: Free, Ref: ref}}})
	}},
	{"I22", "a message is in one queue of two", func(h *history) {
		h.do(Command{Kind: Publish, Targets: []uint64{1, 3}, Message: Message{Number: 1}}, Outcome{Kept: 1})
	}},
	{"I13", "a late verdict counts", func(h *history) {
		ref := h.lent()
		h.settle(Ack, anna, 1, Outcome{Effects: []Effect{{Kind: Free, Ref: ref}}})
		h.settle(Nack, anna, 1, Outcome{})
	}},
	{"I13", "another's tag counts", func(h *history) {
		h.lent()
		h.do(Command{Kind: Settle, Queue: 2, Consumer: berta, Tag: 1, Slot: 1}, Outcome{})
	}},
	{"I13", "a tag is left out", func(h *history) {
		e := h.loan(2, anna, h.next())
		e.Tag++
		h.publish(1, 0, 2, e)
	}},
	{"I6", "a message is lent twice", func(h *history) {
		ref := h.lent()
		h.do(Command{Kind: Attach, Queue: 2, Consumer: 1<<32 | 3, Prefetch: 3}, Outcome{Effects: []Effect{h.loan(2, 1<<32|3, ref)}})
	}},
	{"I6", "a consumer that left is sent a message", func(h *history) {
		h.do(Command{Kind: Detach, Queue: 2, Consumer: anna}, Outcome{})
		h.publish(1, 0, 2, h.loan(2, anna, h.next()))
	}},
	{"I7", "a second delivery says that it is the first", func(h *history) {
		ref := h.lent()
		h.do(Command{Kind: Settle, Queue: 2, Consumer: anna, Tag: 1, Slot: 1, Verdict: Release},
			Outcome{Effects: []Effect{h.loan(2, anna, ref)}})
	}},
	{"I8", "a later message goes first", func(h *history) {
		h.publish(1, 0, 3)
		ref := h.publish(2, 0, 3)
		h.do(Command{Kind: Take, Queue: 3, Consumer: berta}, Outcome{Lent: h.loan(3, berta, ref)})
	}},
	{"I9", "a lower level goes first", func(h *history) {
		h.do(Command{Kind: Detach, Queue: 2, Consumer: anna}, Outcome{})
		low := h.publish(1, 0, 2)
		h.publish(2, 1, 2)
		h.do(Command{Kind: Attach, Queue: 2, Consumer: 1<<32 | 3, Prefetch: 1}, Outcome{Effects: []Effect{h.loan(2, 1<<32|3, low)}})
	}},
	{"I10", "nobody moves a dead message", func(h *history) {
		h.lent()
		h.settle(Reject, anna, 1, Outcome{})
	}},
	{"I10", "a dead message has another reason", func(h *history) {
		ref := h.lent()
		h.settle(Reject, anna, 1, Outcome{Effects: []Effect{
			{Kind: Forward, Queue: 2, Seq: 1, Ref: ref, Reason: Limit, Failures: 1, At: h.at},
		}})
	}},
	{"I10", "a dead message is moved twice", func(h *history) {
		ref := h.dead()
		move := Command{Kind: Move, Queue: 2, Seq: 1, Targets: []uint64{3}}
		h.do(move, Outcome{Kept: 1, Effects: []Effect{{Kind: Free, Ref: ref}}})
		h.do(move, Outcome{Kept: 1})
	}},
	{"I11", "a consumer is sent more than its prefetch", func(h *history) {
		for n := range uint64(3) {
			h.publish(n, 0, 2, h.loan(2, anna, h.next()))
		}
	}},
	{"I11", "a busy consumer is served while another waits", func(h *history) {
		h.do(Command{Kind: Attach, Queue: 2, Consumer: 1<<32 | 3, Prefetch: 2}, Outcome{})
		h.lent()
		h.publish(8, 0, 2, h.loan(2, anna, h.next()))
	}},
	{"I12", "a delayed message goes out early", func(h *history) {
		h.do(Command{Kind: Publish, Targets: []uint64{2}, Message: Message{Number: 1, ReadyAt: h.at + 1}},
			Outcome{Kept: 1, Effects: []Effect{h.loan(2, anna, h.next())}})
	}},
	{"I12", "a deadline has passed", func(h *history) {
		h.lent()
		h.at += int64(time.Second)
		h.do(Command{Kind: Tick}, Outcome{})
	}},
	{"I12", "a loan is taken back early", func(h *history) {
		h.lent()
		h.do(Command{Kind: Tick}, Outcome{Effects: []Effect{{Kind: Withdraw, Queue: 2, Consumer: anna, Tag: 1}}})
	}},
	{"I5", "a message goes out after its TTL", func(h *history) {
		ref := h.do(Command{Kind: Publish, Targets: []uint64{3}, Message: Message{Number: 1, TTL: 5}}, Outcome{Kept: 1})
		h.at += 5
		h.do(Command{Kind: Take, Queue: 3, Consumer: berta}, Outcome{Lent: h.loan(3, berta, ref)})
	}},
	{"I21", "a message waits while a consumer has room", func(h *history) { h.publish(1, 0, 2) }},
	{"I21", "who asks gets nothing", func(h *history) {
		h.publish(1, 0, 3)
		h.do(Command{Kind: Take, Queue: 3, Consumer: berta}, Outcome{Code: Empty})
	}},
	{"I23", "a deleted queue delivers", func(h *history) {
		ref := h.publish(1, 0, 3)
		h.do(Command{Kind: Delete, Spec: Spec{Name: "b"}}, Outcome{Effects: []Effect{
			{Kind: QueueGone, Queue: 3, Consumer: berta}, {Kind: Free, Ref: ref},
		}})
		h.do(Command{Kind: Tick}, Outcome{Effects: []Effect{h.loan(3, berta, ref)}})
	}},
	{"I23", "a new queue has an old id", func(h *history) {
		h.do(Command{Kind: Delete, Spec: Spec{Name: "b"}}, Outcome{Effects: []Effect{{Kind: QueueGone, Queue: 3, Consumer: berta}}})
		h.do(Command{Kind: Declare, Spec: Spec{Name: "b", Levels: 1}}, Outcome{Number: 3})
	}},
	{"I23", "a consumer is not told that its queue is gone", func(h *history) {
		h.do(Command{Kind: Delete, Spec: Spec{Name: "b"}}, Outcome{})
	}},
	{"I12", "the timer is not set for a deadline", func(h *history) {
		h.lent()
		h.o.timed(0)
	}},
	{"I12", "the timer is set too late", func(h *history) {
		h.lent()
		h.o.timed(h.at + int64(time.Second) + 1)
	}},
	{"I10", "a new leader does not know of a dead message", func(h *history) {
		h.dead()
		h.o.ordered(&Outcome{})
	}},
	{"I22", "a repetition is taken", func(h *history) {
		h.do(Command{Kind: Declare, Spec: Spec{Name: "c", Levels: 1, Window: time.Second}}, Outcome{Number: 4})
		c := Command{Kind: Publish, Targets: []uint64{4}, Message: Message{Number: 1, Key: 5}}
		h.do(c, Outcome{Kept: 1})
		h.do(c, Outcome{Kept: 1})
	}},
	{"I6", "a consumer is not told of a cancelled message", func(h *history) {
		ref := h.lent()
		h.do(Command{Kind: Amend, Amend: Cancel, Queue: 2, Seq: 1}, Outcome{Effects: []Effect{{Kind: Free, Ref: ref}}})
	}},
	{"I21", "a message is left at the end", func(h *history) {
		h.lent()
		h.o.empty()
	}},
}

func TestObserverFinds(t *testing.T) {
	for _, bad := range badHistories {
		t.Run(bad.name, func(t *testing.T) {
			h := newHistory(t)
			if found := judged(func() { bad.run(h) }); found == nil || found.Rule != bad.rule {
				t.Errorf("found %v, want %s", found, bad.rule)
			}
		})
	}
}

// judged runs f and returns what the observer found.
func judged(f func()) (found *Failure) {
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); !ok || !errors.As(err, &found) {
				panic(p)
			}
		}
	}()
	f()
	return nil
}

// TestObserverAccepts: a history of many kinds of commands, all of whose outcomes are right.
func TestObserverAccepts(t *testing.T) {
	h := newHistory(t)
	found := judged(func() {
		ref := h.dead()
		h.o.ordered(&Outcome{Effects: []Effect{{Kind: Forward, Queue: 2, Seq: 1, Ref: ref, Reason: Rejected, Failures: 1}}})
		moved := h.do(Command{Kind: Move, Queue: 2, Seq: 1, Targets: []uint64{3}},
			Outcome{Kept: 1, Effects: []Effect{{Kind: Free, Ref: ref}}})
		h.do(Command{Kind: Take, Queue: 3, Consumer: berta}, Outcome{Lent: h.loan(3, berta, moved)})
		h.o.timed(h.at + int64(time.Second))
		h.at += int64(time.Second)
		h.do(Command{Kind: Tick}, Outcome{Effects: []Effect{{Kind: Withdraw, Queue: 3, Consumer: berta, Tag: 1}}})
		h.do(Command{Kind: Settle, Queue: 3, Consumer: berta, Tag: 1, Slot: 1}, Outcome{Code: Stale})
		h.do(Command{Kind: Purge, Queue: 3}, Outcome{Code: Number, Number: 1, Effects: []Effect{{Kind: Free, Ref: moved}}})
		h.o.empty()
	})
	if found != nil {
		t.Error(found)
	}
}
