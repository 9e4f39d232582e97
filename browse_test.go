package bourse

// Goal: the crash suites see everything that a broker holds, without taking any of it. Method: the state of the
// machine is read under the lock of its shard, and the messages from the log.

import (
	"errors"
	"fmt"
	"slices"
)

// Held is a message in a queue.
type Held struct {
	State                string // ready, unacked, delayed or dying
	Seq                  uint64
	Level                uint8
	Deliveries, Failures uint32
	Message              Message
	Deaths               []Death
}

// Browse returns what a queue holds: what is ready in the order in which it would be delivered, then the rest. It
// walks the invariants, too.
func Browse(b *Broker, queue string) ([]Held, error) {
	s := b.placement.first
	var held []Held
	var refs []entry
	add := func(state string, e entry) {
		held = append(held, Held{State: state, Seq: e.seq, Level: e.level, Deliveries: e.deliveries, Failures: e.failures})
		refs = append(refs, e)
	}
	s.mu.Lock()
	s.m.check()
	def, ok := s.m.topology.queue(queue)
	if ok {
		q := s.m.queues[def.id]
		ready := make([]entry, 0, q.ready.n)
		q.ready.each(func(e entry) bool { ready = append(ready, e); return true })
		slices.SortStableFunc(ready, func(a, b entry) int { return int(b.level) - int(a.level) })
		for _, e := range ready {
			add("ready", e)
		}
		for i := range q.ledger.slots {
			if q.ledger.slots[i].holder != nil {
				add("unacked", q.ledger.slots[i].entry)
			}
		}
		if q.delayed != nil {
			q.delayed.Ascend(func(d delayed) bool { add("delayed", d.entry); return true })
		}
		if q.dying != nil {
			q.dying.Ascend(func(d dying) bool { add("dying", d.entry); return true })
		}
	}
	s.mu.Unlock()
	if !ok {
		return nil, ErrNotFound
	}
	for i, e := range refs {
		var d Delivery
		if err := s.read(nil, e.ref, e.part, e.size, &d); err != nil {
			return nil, fmt.Errorf("message %d of %q: %w", e.seq, queue, err)
		}
		held[i].Message, held[i].Deaths = d.Message, d.Deaths
	}
	return held, nil
}

// References returns an error unless the log counts exactly the references that the queues hold.
func References(b *Broker) error {
	b.placement.first.mu.Lock()
	held := int64(0)
	for _, q := range b.placement.first.m.order {
		held += int64(q.size())
	}
	b.placement.first.mu.Unlock()
	if e, ok := b.engine.(*localEngine); ok {
		if live := e.store.Stats().Live; live != held {
			return fmt.Errorf("the log counts %d references, the queues hold %d messages", live, held)
		}
		return nil
	}
	return errors.New("not a local engine")
}
