package bourse

import (
	"context"
	"errors"
	"fmt"
)

// Get takes one message from queue, at once and without a subscription: ErrEmpty if none is ready, ErrHeldBack if the queue hands out
// nothing now, since it is paused or by its Rate (QueueStats.HeldUntil says for how long), an *InvalidError if it is one with a
// SingleActiveConsumer. The delivery is settled like any other; what is not is given back when the broker is closed. It suits
// tests and tools; each Get costs a round trip through the log, which a Subscription does not.
func (b *Broker) Get(ctx context.Context, queue string) (*Delivery, error) {
	d, err := b.get(ctx, queue)
	if errors.Is(err, ErrQueueGone) {
		err = ErrNotFound // it went meanwhile
	}
	if err != nil {
		return nil, fmt.Errorf("broker: get from %q: %w", queue, err)
	}
	return d, nil
}

func (b *Broker) get(ctx context.Context, queue string) (*Delivery, error) {
	def, shard, err := b.find(queue, 0)
	if err != nil {
		return nil, err
	}
	annex := b.placement.annex(def.id)
	if annex == nil {
		return b.getFrom(ctx, def, shard)
	}
	first, second := shard, annex
	if def.Expires == 0 && annex.foremost(def.id).before(shard.foremost(def.id)) { // a Get is a use of the queue
		first, second = annex, shard
	}
	d, err := b.getFrom(ctx, def, first)
	if errors.Is(err, ErrEmpty) {
		d, err = b.getFrom(ctx, def, second)
	}
	return d, err
}

// foremost is what a queue would lend next, with its level and arrival; a level below all others if there is nothing.
func (s *shard) foremost(id queueID) *lent {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.m.queues[id]; q != nil && q.ready.n > 0 {
		e := q.foremost(max(s.m.now, q.now))
		return &lent{level: e.level, arrived: e.arrived}
	}
	return &lent{arrived: never}
}

// getFrom is Get from a queue or from its annex.
func (b *Broker) getFrom(ctx context.Context, def queueDef, shard *shard) (*Delivery, error) {
	s, err := b.puller(ctx, def, shard)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := &taking{sub: s, done: make(chan struct{})}
	if err := s.shard.propose(t); err != nil {
		return nil, err
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		// It may still be lent: then it goes back at once.
		go func() {
			<-t.done
			if d, err := t.delivery(); err == nil {
				_ = d.Release(0)
			}
		}()
		return nil, ctx.Err()
	}
	return t.delivery()
}

// taking is the proposal of a take.
type taking struct {
	sub  *Subscription
	loan effect
	err  error
	done chan struct{} // closed by Done
}

func (t *taking) AppendTo(dst []byte) []byte {
	return take{queue: t.sub.queue.id, consumer: t.sub.id}.appendTo(dst, t.sub.b.now())
}

func (t *taking) Durable() bool { return false }

func (t *taking) Done(a Answer, err error) {
	switch {
	case err != nil:
		t.err = err
	case a.Code == answerOK:
		t.loan, t.err = decodeLoanEffect(a.Data)
	case a.Code == answerEmpty:
		t.err = ErrEmpty
	case a.Code == answerHeld:
		t.err = ErrHeldBack
	case a.Code == answerGone:
		t.err = ErrNotFound
	default:
		t.err = ErrClosed
	}
	close(t.done)
}

func (t *taking) delivery() (*Delivery, error) {
	if t.err != nil {
		return nil, t.sub.shard.orGone(t.err)
	}
	l := t.loan.lent()
	in := borrowSpace()
	d, err := t.sub.deliver(in, &l)
	in.giveBack()
	if err == nil && d == nil {
		err = ErrStaleDelivery
	}
	return d, err
}

// pulled names a puller.
type pulled struct {
	shard *shard
	queue queueID
}

// puller is the consumer behind Get: one for each queue and each annex, attached at the first Get, until it ends.
func (b *Broker) puller(ctx context.Context, def queueDef, shard *shard) (*Subscription, error) {
	if def.SingleActiveConsumer {
		return nil, invalid("Queue.SingleActiveConsumer", "is set, so only a subscription can have messages")
	}
	key := pulled{shard, def.id}
	b.mu.Lock()
	s := b.pullers[key]
	b.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, err := b.attach(ctx, def, shard, 0, 0)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	other := b.pullers[key]
	if other == nil {
		b.pullers[key] = s
	}
	b.mu.Unlock()
	if other != nil {
		// Two at once: this one is not needed. It holds nothing, so nothing waits for its end.
		go func() { _ = s.Close() }()
		return other, nil
	}
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended != nil {
		b.forgetPuller(s) // it ended before it was known as one
		return nil, ended
	}
	return s, nil
}

// forgetPuller says that a puller has ended: with its queue, or with the session. The next Get attaches another.
func (b *Broker) forgetPuller(s *Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if key := (pulled{s.shard, s.queue.id}); b.pullers[key] == s {
		delete(b.pullers, key)
	}
}
