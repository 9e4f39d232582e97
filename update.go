package bourse

import (
	"context"
	"errors"
	"fmt"
)

// Update changes a queue that exists to what q says, in one step and while it is in use: no message is lost, consumers stay, and
// what is on loan stays there. It returns when that is durable. All fields count, as in Declare, so start from the declaration that
// holds. They act at once on what waits: a TTL from the arrival of each message; fewer Priorities move what is above to the
// highest level, in order of arrival, and more of them leave it where it is. MaxRetries and Retry count from the next failure,
// AckDeadline from the next delivery; Rate at once, with what the one before it allowed, in whole deliveries, or full if there was
// none; DeadLetter from the next death; MaxMessages, MaxBytes and Overflow from the next publish, so
// that lower limits evict nothing by themselves; Dedup.Window from the arrival of what is remembered, which is
// forgotten if UntilDone takes its place, or the other way round; Inbox.Window from when a message was done. An equal q changes nothing.
//
// Errors: an *InvalidError, also for ParkingQueue; ErrNotFound; a *PreconditionError with every field that differs and can
// only be chosen when the queue is declared, Transient and SingleActiveConsumer. Where queues have logs of their own, the change is
// in force in Check and Declare first, and in the queue as soon as the node that leads it learns of it; if that is this one, Update
// waits for it.
func (b *Broker) Update(ctx context.Context, q Queue) error {
	err := validateDeclarations([]Declaration{q})
	if err == nil {
		err = b.open()
	}
	if err == nil {
		err = b.change(ctx, durably, func(dst []byte, at instant) []byte { return appendUpdate(dst, at, b.session(), q) })
	}
	if err == nil && (b.placement.kind == ShardPerQueue || q.Transient) {
		_, err = b.placement.tell(ctx, q.Name)
	}
	if def, ok := b.topology.Load().queue(q.Name); ok && err == nil {
		b.placement.syncAnnex(def.id)
	}
	if err != nil {
		return fmt.Errorf("broker: update queue %q: %w", q.Name, err)
	}
	return nil
}

// tell brings what the catalogue says of a queue into its shard, if that is led here, and waits for it.
func (p *placement) tell(ctx context.Context, name string) (code uint64, err error) {
	t := p.b.topology.Load()
	def, ok := t.queue(name)
	s := p.of(def.id)
	if !ok || s == nil {
		return answerGone, nil // deleted meanwhile
	}
	a, err := s.call(ctx, durably, func(dst []byte, at instant) []byte { return appendRedefine(dst, at, def, t.revision(def.id)) })
	if errors.Is(err, ErrNotLeader) {
		return answerOK, nil // its leader follows
	}
	return a.Code, err
}

// tellAll proposes to the shards that are led here what the catalogue says and they have not heard. A crash, or a leader that
// was cut off, may have come between both. It is called whenever one of both sides has changed hands or content.
func (p *placement) tellAll(t *topology) {
	t.updated.Ascend(func(change updated) bool {
		def, _ := t.queueByID(change.id)
		if s := p.of(change.id); s != nil && s.behind(change.revision) {
			a := &redefining{p: p, def: def, revision: change.revision}
			if err := s.log.Propose(a); err != nil {
				a.Done(Answer{}, err)
			}
		}
		return true
	})
}

// behind reports whether the queue of this shard, led here, has not heard of a change.
func (s *shard) behind(revision uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leading && s.log != nil && s.m.revision < revision
}

// redefining is the proposal of a redefine that nobody waits for.
type redefining struct {
	p        *placement
	def      queueDef
	revision uint64
}

// AppendTo implements Proposal.
func (a *redefining) AppendTo(dst []byte) []byte {
	return appendRedefine(dst, a.p.b.now(), a.def, a.revision)
}

// Durable implements Proposal.
func (a *redefining) Durable() bool { return true }

// Done implements Proposal. A shard that is led elsewhere, or closed, is looked at again when it is led here.
func (a *redefining) Done(_ Answer, err error) {
	a.p.syncAnnex(a.def.id)
	if err != nil && !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrClosed) {
		a.p.b.clock.AfterFunc(retryOpen, a.p.wake)
	}
}
