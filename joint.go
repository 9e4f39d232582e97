package bourse

import (
	"context"
	"slices"
	"sync"
)

// joint makes one subscription of two consumers: one of the queue, and its part in the annex. Each has up to the prefetch on loan;
// Next shows at most that many of both together, the higher level first, then what came first. What waits behind a shown durable
// message is given back to the annex, where others may have it. The converse would need the log: so while a consumer works on transient
// messages, durable ones up to its prefetch may wait for it.
//
// Invariants, where Subscription.mu is free:
//  1. shown has the loans of both that are not settled and not in a buffer; it may have some that have just ended.
//  2. base counts those that are not in the annex.
//  3. Tags that Next has given are all different, and ascend.
type joint struct {
	part     *Subscription // fixed
	prefetch int

	order sync.Mutex // held while the part is opened or shut; taken before Subscription.mu

	shown  map[shownLoan]uint64 // its Delivery.Tag; guarded by Subscription.mu of the outer one, as all below
	base   int
	tag    uint64 // the last Delivery.Tag
	shut   bool   // the part takes nothing
	paused bool   // for good
}

// shownLoan names a loan by its tag in the ledger.
type shownLoan struct {
	annex bool
	tag   uint64
}

// join makes s take from the annex of its queue too. It does nothing if s has been closed, or does so already.
func (s *Subscription) join(annex *shard) {
	s.joining.Lock()
	defer s.joining.Unlock()
	if s.joined.Load() != nil || annex.serves(context.Background()) != nil {
		return
	}
	part := &Subscription{
		b: s.b, shard: annex, queue: s.queue, id: annex.newConsumer(), prefetch: s.prefetch, priority: s.priority,
		outer: s, signal: s.signal,
	}
	j := &joint{part: part, prefetch: int(s.prefetch), shown: make(map[shownLoan]uint64)}
	if !s.connect(j) {
		return
	}
	annex.register(part)
	// An error means that the annex is being closed, and the part with it.
	_, _ = annex.call(context.Background(), lazily, func(dst []byte, at instant) []byte {
		return attach{queue: s.queue.id, consumer: part.id, prefetch: s.prefetch, priority: s.priority}.appendTo(dst, at)
	})
	s.mu.Lock()
	closed := s.ended != nil
	s.mu.Unlock()
	if closed {
		_ = part.Close() // Close may have come before the part was attached
		return
	}
	if s.halted.Load() {
		s.pauseJoined()
	}
}

// connect counts what s holds, and makes j its joint from then on.
func (s *Subscription) connect(j *joint) bool {
	s.shard.mu.Lock()
	defer s.shard.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return false
	}
	if q := s.shard.m.queues[s.queue.id]; q != nil {
		if c := q.roster.find(s.id); c != nil {
			j.tag = c.lastTag
			for slot := c.oldest; slot != noSlot; slot = q.ledger.slots[slot].newerOf {
				j.shown[shownLoan{tag: q.ledger.slots[slot].tag}] = q.ledger.slots[slot].tag
			}
		}
	}
	for _, l := range slices.Concat(s.buffer[s.first:], s.incoming) {
		delete(j.shown, shownLoan{tag: l.tag})
	}
	j.base = len(j.shown)
	s.joined.Store(j)
	return true
}

// popJoined takes up to limit loans from both buffers, appended to dst. The caller holds s.mu.
func (s *Subscription) popJoined(j *joint, dst []lent, limit int) []lent {
	part := j.part
	part.mu.Lock()
	defer part.mu.Unlock()
	for range limit {
		if len(j.shown) >= j.prefetch {
			return dst
		}
		from := s
		switch own, beside := s.first < len(s.buffer), part.first < len(part.buffer); {
		case !own && !beside:
			return dst
		case !own || beside && part.buffer[part.first].before(&s.buffer[s.first]):
			from = part
		}
		l := from.buffer[from.first]
		from.first++
		if from.first == len(from.buffer) {
			from.buffer, from.first = from.buffer[:0], 0
		}
		l.annex = from == part
		j.tag++
		j.shown[shownLoan{l.annex, l.tag}] = j.tag
		if !l.annex {
			j.base++
		}
		dst = append(dst, l)
	}
	s.wake() // there may be more, for another goroutine
	return dst
}

// before reports whether l is shown before m, a loan of the queue itself.
func (l *lent) before(m *lent) bool {
	return l.level > m.level || l.level == m.level && l.arrived < m.arrived
}

// origin is who holds a loan that was popped, and the Delivery.Tag of it.
func (s *Subscription) origin(j *joint, l *lent) (*Subscription, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s
	if l.annex {
		from = j.part
	}
	if tag, ok := j.shown[shownLoan{l.annex, l.tag}]; ok {
		return from, tag
	}
	j.tag++ // it was taken back meanwhile
	return from, j.tag
}

// putBackJoined puts back what is of the annex, takes the rest off the account, and returns that. The caller holds s.mu.
func (s *Subscription) putBackJoined(j *joint, rest []lent) (own []lent) {
	var beside []lent
	for _, l := range rest {
		j.drop(shownLoan{l.annex, l.tag})
		if l.annex {
			beside = append(beside, l)
		} else {
			own = append(own, l)
		}
	}
	j.part.putBack(beside)
	return own
}

// returned says that the verdict on a loan has been applied, or that it was taken back.
func (s *Subscription) returned(tag uint64) {
	o, annex := s.whole()
	j := o.joined.Load()
	if j == nil {
		return
	}
	o.mu.Lock()
	j.drop(shownLoan{annex, tag})
	o.mu.Unlock()
	o.wake()
}

// returnedUpTo is returned for all loans with a tag up to this one.
func (s *Subscription) returnedUpTo(tag uint64) {
	o, annex := s.whole()
	j := o.joined.Load()
	if j == nil {
		return
	}
	o.mu.Lock()
	for l := range j.shown {
		if l.annex == annex && l.tag <= tag {
			j.drop(l)
		}
	}
	o.mu.Unlock()
	o.wake()
}

// whole is the subscription that s is, or is the part in the annex of.
func (s *Subscription) whole() (o *Subscription, annex bool) {
	if s.outer != nil {
		return s.outer, true
	}
	return s, false
}

func (j *joint) drop(l shownLoan) {
	if _, ok := j.shown[l]; !ok {
		return
	}
	delete(j.shown, l)
	if !l.annex {
		j.base--
	}
}

// upToJoined divides an AckUpTo. The caller holds s.mu.
func (s *Subscription) upToJoined(j *joint, tag uint64) (own uint64, beside *acking) {
	beside = &acking{sub: j.part}
	for l, t := range j.shown {
		switch {
		case t > tag:
		case l.annex:
			beside.tag = max(beside.tag, l.tag)
		default:
			own = max(own, l.tag)
		}
	}
	if beside.tag == 0 {
		return own, nil
	}
	j.part.mu.Lock()
	j.part.ackedTo = max(j.part.ackedTo, beside.tag)
	j.part.marked.Store(true)
	j.part.mu.Unlock()
	return own, beside
}

// balance shuts the part while durable messages fill the prefetch, so that what is in the annex goes to others, and opens it again.
// Who takes loans calls it, before and after. No lock of a shard is held.
func (s *Subscription) balance(j *joint) {
	j.order.Lock()
	defer j.order.Unlock()
	s.mu.Lock()
	shut := j.paused || j.base >= j.prefetch
	same, paused := shut == j.shut, j.paused
	j.shut = shut
	s.mu.Unlock()
	if same {
		return
	}
	prefetch := s.prefetch
	if shut {
		prefetch = 0
	}
	// An error, here and below, means that the annex is being closed.
	_ = j.part.shard.post(func(dst []byte, at instant) []byte {
		return attach{queue: s.queue.id, consumer: j.part.id, prefetch: prefetch}.appendTo(dst, at)
	})
	if shut && !paused {
		j.part.giveBack()
	}
}

// giveBack releases what Next has not taken.
func (s *Subscription) giveBack() {
	s.mu.Lock()
	rest := slices.Clone(s.buffer[s.first:])
	s.buffer, s.first = s.buffer[:0], 0
	s.mu.Unlock()
	for i := range rest {
		c := settle{queue: s.queue.id, consumer: s.id, tag: rest[i].tag, slot: rest[i].slot, verdict: verdictRelease}
		_ = s.shard.post(c.appendTo)
	}
}

// pauseJoined shuts the part for good. What it has been sent stays.
func (s *Subscription) pauseJoined() {
	j := s.joined.Load()
	if j == nil {
		return
	}
	s.mu.Lock()
	j.paused = true
	s.mu.Unlock()
	s.balance(j)
}
