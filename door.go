package bourse

import (
	"container/list"
	"errors"
	"fmt"

	"github.com/boursemq/bourse/internal/invariant"
)

// door is where publishes wait for room in one queue, in the order of their turns. It is guarded by shard.mu. There is no
// wake-up that could be lost: after each Apply, and after each change at the door, the shard looks whether the first fits into
// the queue as it is then. Those that do are proposed together, and the next look is when the last of them has its answer.
type door struct {
	queue   queueID
	waiters list.List // of *waiter
	flying  int       // of waiters: were proposed together and have no answer yet
}

// atOnce is how many at a door are proposed together at most.
const atOnce = 256

// waiter is a publish that waits for room in one queue. As a proposal it comes in if there is room, and else waits on.
type waiter struct {
	p     *publication // fixed, as all above first
	of    *parts
	shard *shard
	queue queueID
	turn  uint64
	first bool        // of those proposed together; written and read inside the propose that takes it
	body  *compressed // likewise; as in publication

	size   uint32        // of its command, as far as it is known; guarded by shard.mu, as all below
	place  *list.Element // at the door; nil: not there
	flying bool
}

// AppendTo implements Proposal. The caller holds p.mu.
func (w *waiter) AppendTo(dst []byte) []byte {
	dst = appendEnter(dst, w.p.b.now(), w.turn, w.first)
	dst = appendTargets(dst, []queueID{w.queue})
	return appendCompressed(dst, &w.p.message, w.body, w.p.id(), nil)
}

// Durable implements Proposal.
func (w *waiter) Durable() bool { return true }

// errGaveUp says that the caller does not wait any more.
var errGaveUp = errors.New("nobody waits for it")

// Done implements Proposal.
func (w *waiter) Done(a Answer, err error) {
	s := w.shard
	var no refusal
	if err == nil && a.Code == answerFull {
		_, refused, bad := decodeRefused(a.Data)
		invariant.Check(bad == nil && len(refused) == 1, "a publish that waited was refused by %d queues", len(refused))
		no = refused[0]
	}
	s.mu.Lock()
	d := s.doors[w.queue]
	d.flying--
	w.flying = false
	stays := false
	if no.why == refusedWaits {
		w.size = no.size
		err = s.closedToWaitersLocked(w)
		stays = err == nil
	}
	if !stays {
		s.leaveLocked(d, w)
	}
	s.letInLocked(d)
	s.mu.Unlock()
	switch {
	case stays:
	case err != nil:
		w.end(err)
	case no.why != 0:
		w.p.partDone(w.of, func() { w.of.refused = append(w.of.refused, w.p.refusal(no)) })
	case a.Code == answerOK:
		w.p.partDone(w.of, func() { w.of.taken++ })
	default: // the queue is gone
		w.p.partDone(w.of, func() {})
	}
}

// end ends the wait without an answer of the queue.
func (w *waiter) end(why error) {
	name := w.p.b.queueName(w.queue)
	w.p.partDone(w.of, func() {
		switch {
		case errors.Is(why, ErrQueueGone):
		case errors.Is(why, ErrQueueFull):
			w.of.refused = append(w.of.refused, Refusal{Queue: name, Err: why})
		default:
			w.of.failed = errors.Join(w.of.failed, fmt.Errorf("queue %q: %w", name, why))
		}
	})
}

// wait puts w at the end of those who wait at its queue.
func (s *shard) wait(w *waiter) {
	s.mu.Lock()
	err := s.closedToWaitersLocked(w)
	if err == nil {
		d := s.doors[w.queue]
		if d == nil {
			d = &door{queue: w.queue}
			s.doors[w.queue] = d
		}
		w.place = d.waiters.PushBack(w)
		s.letInLocked(d)
	}
	s.mu.Unlock()
	if err != nil {
		w.end(err)
	}
}

// closedToWaitersLocked is why w must not wait here, or nil.
func (s *shard) closedToWaitersLocked(w *waiter) error {
	switch {
	case s.over:
		return s.serving
	case !s.leading:
		return s.b.lostLog
	case w.p.abandoned.Load():
		return fmt.Errorf("%w: %w", ErrQueueFull, errGaveUp)
	}
	return nil
}

// leave takes w away from the door, because its caller waits no more, unless it is proposed at this moment.
func (s *shard) leave(w *waiter, why error) {
	s.mu.Lock()
	leaves := w.place != nil && !w.flying
	if leaves {
		d := s.doors[w.queue]
		s.leaveLocked(d, w)
		s.letInLocked(d) // the next may be smaller
	}
	s.mu.Unlock()
	if leaves {
		w.end(why)
	}
}

func (s *shard) leaveLocked(d *door, w *waiter) {
	d.waiters.Remove(w.place)
	w.place = nil
	if d.waiters.Len() == 0 {
		delete(s.doors, d.queue)
	}
}

// letAllInLocked looks at all doors.
func (s *shard) letAllInLocked() {
	for _, d := range s.doors {
		s.letInLocked(d)
	}
}

// letInLocked proposes the first of those who wait, as many as there is room for. If the queue is gone, that is all of them.
func (s *shard) letInLocked(d *door) {
	if d.flying > 0 || s.over || !s.leading {
		return
	}
	q := s.m.queues[d.queue]
	var messages, bytes int64
	if q != nil {
		messages, bytes = q.length()
	}
	var batch []*waiter
	for e := d.waiters.Front(); e != nil && len(batch) < atOnce; e = e.Next() {
		w, _ := e.Value.(*waiter) // it holds nothing else
		messages, bytes = messages+1, bytes+int64(w.size)
		if q != nil && !q.def.evicts() && q.def.exceeds(messages, bytes) {
			break
		}
		w.flying = true
		batch = append(batch, w)
	}
	if len(batch) == 0 {
		return
	}
	d.flying = len(batch)
	// It ends when it has proposed them, which a closed log refuses; close waits for it.
	s.starts.Go(func() { s.proposeTogether(batch) })
}

// proposeTogether proposes waiters in their order. The caller of a publication may take its message back at any time, so
// p.mu is held meanwhile: nothing that a log waits for takes it.
func (s *shard) proposeTogether(batch []*waiter) {
	first := true
	for _, w := range batch {
		w.p.mu.Lock()
		err := fmt.Errorf("%w: %w", ErrQueueFull, errGaveUp)
		if !w.p.abandoned.Load() {
			w.first, w.body = first, s.compress(w.p.message.Body)
			c := w.body
			err = s.log.Propose(w)
			c.release() // w may be proposed again by now
		}
		w.p.mu.Unlock()
		if err != nil {
			w.Done(Answer{}, err)
			continue
		}
		first = false
	}
}

// endWaits ends all waits but those that are proposed at this moment, which end with their answers.
func (s *shard) endWaits(why error) {
	s.mu.Lock()
	var ended []*waiter
	for _, d := range s.doors {
		for e := d.waiters.Front(); e != nil; {
			w, _ := e.Value.(*waiter)
			e = e.Next()
			if !w.flying {
				s.leaveLocked(d, w)
				ended = append(ended, w)
			}
		}
	}
	s.mu.Unlock()
	for _, w := range ended {
		w.end(why)
	}
}

// waitersLocked is how many publishes wait for room in a queue.
func (s *shard) waitersLocked(queue queueID) int {
	if d := s.doors[queue]; d != nil {
		return d.waiters.Len()
	}
	return 0
}
