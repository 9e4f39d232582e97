package bourse

import "github.com/google/btree"

// consumerID names a consumer: the session that attached it in the upper 32 bits, its number in
// that session in the lower. The broker gives them; the machine only compares.
type consumerID uint64

func (c consumerID) session() uint32 { return uint32(c >> 32) }

// loan is a message that a consumer holds.
type loan struct {
	entry
	holder   *consumer // nil: the slot is free
	tag      uint64    // the holder's name for it
	deadline instant
	extended bool // in ledger.extended instead of the list by deadline

	olderOf, newerOf int32 // neighbours among the holder's loans, by tag; none: noSlot
	older, newer     int32 // neighbours among all loans that were not extended, by deadline
}

// slotID is a place in the ledger. A consumer gives it back with its verdict, so that finding the
// loan needs no search; the tag tells whether it still is the same loan.
type slotID = int32

const noSlot slotID = -1

// ledger records who has which message since when. Grant, find and settle cost the same
// whatever the number of loans; only a loan that was extended costs a search in a tree.
//
// Invariants, tested by check:
//  1. A slot is either free and listed once in free, or holds a loan that is in its
//     holder's list, and either in the list by deadline or, if extended, in the tree.
//  2. A holder's list is in ascending order of tag; its length is holder.outstanding.
//  3. The list by deadline is in ascending order of deadline.
//  4. n and bytes are the sums over all loans.
type ledger struct {
	slots    []loan
	free     []slotID // a stack
	n        int
	bytes    int64
	oldest   slotID // ends of the list by deadline
	newest   slotID
	extended *btree.BTreeG[extension] // nil until a loan is extended
}

type extension struct {
	deadline instant
	slot     slotID
}

func byDeadline(a, b extension) bool {
	return a.deadline < b.deadline || a.deadline == b.deadline && a.slot < b.slot
}

func newLedger() ledger { return ledger{oldest: noSlot, newest: noSlot} }

// grant lends e to c until deadline, under the next tag of c. The caller keeps to c's
// prefetch.
func (l *ledger) grant(e entry, c *consumer, deadline instant) slotID {
	var s slotID
	if n := len(l.free); n > 0 {
		s = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		s = slotID(len(l.slots))
		l.slots = append(l.slots, loan{})
	}
	c.lastTag++
	l.slots[s] = loan{entry: e, holder: c, tag: c.lastTag, deadline: deadline}
	l.link(s)
	return s
}

// link puts the loan in slot s at the end of its holder's list and among the deadlines, and counts it.
func (l *ledger) link(s slotID) {
	l.linkToHolder(s)
	if ln := &l.slots[s]; l.newest != noSlot && l.slots[l.newest].deadline > ln.deadline {
		l.file(s, ln.deadline)
	} else {
		l.append(s)
	}
}

func (l *ledger) linkToHolder(s slotID) {
	ln := &l.slots[s]
	c := ln.holder
	ln.olderOf, ln.newerOf = c.newest, noSlot
	if c.newest == noSlot {
		c.oldest = s
	} else {
		l.slots[c.newest].newerOf = s
	}
	c.newest = s
	c.outstanding++
	l.n++
	l.bytes += int64(ln.size)
}

// append puts the loan in s, whose deadline is not before any in the list, at the end of the list.
func (l *ledger) append(s slotID) {
	ln := &l.slots[s]
	ln.extended = false
	ln.older, ln.newer = l.newest, noSlot
	if l.newest == noSlot {
		l.oldest = s
	} else {
		l.slots[l.newest].newer = s
	}
	l.newest = s
}

// file puts the loan in s into the tree, under deadline.
func (l *ledger) file(s slotID, deadline instant) {
	if l.extended == nil {
		l.extended = btree.NewG(16, byDeadline)
	}
	ln := &l.slots[s]
	ln.deadline, ln.extended = deadline, true
	ln.older, ln.newer = noSlot, noSlot
	l.extended.ReplaceOrInsert(extension{deadline, s})
}

func (l *ledger) clearDeadline(s slotID) {
	ln := &l.slots[s]
	if ln.extended {
		l.extended.Delete(extension{ln.deadline, s})
		return
	}
	if ln.older == noSlot {
		l.oldest = ln.newer
	} else {
		l.slots[ln.older].newer = ln.newer
	}
	if ln.newer == noSlot {
		l.newest = ln.older
	} else {
		l.slots[ln.newer].older = ln.older
	}
}

// extend gives the loan in s another deadline. It is filed in the tree, since the end of the list must stay
// open for new loans, whose deadlines are usually earlier.
func (l *ledger) extend(s slotID, deadline instant) {
	l.clearDeadline(s)
	l.file(s, deadline)
}

// find returns the slot of the loan that c knows by tag and that should be in slot s, or
// noSlot if there is no such loan any more.
func (l *ledger) find(id consumerID, tag uint64, s slotID) slotID {
	if s < 0 || int(s) >= len(l.slots) {
		return noSlot
	}
	if ln := &l.slots[s]; ln.holder == nil || ln.holder.id != id || ln.tag != tag {
		return noSlot
	}
	return s
}

// end takes the loan in s out of the ledger and returns its entry.
func (l *ledger) end(s slotID) entry {
	l.clearDeadline(s)
	ln := &l.slots[s]
	c := ln.holder
	if ln.olderOf == noSlot {
		c.oldest = ln.newerOf
	} else {
		l.slots[ln.olderOf].newerOf = ln.newerOf
	}
	if ln.newerOf == noSlot {
		c.newest = ln.olderOf
	} else {
		l.slots[ln.newerOf].olderOf = ln.olderOf
	}
	c.outstanding--
	l.n--
	l.bytes -= int64(ln.size)
	e := ln.entry
	*ln = loan{}
	l.free = append(l.free, s)
	return e
}

// nextDeadline is the slot of the loan that is due first, or noSlot.
func (l *ledger) nextDeadline() slotID {
	first := l.oldest
	if l.extended != nil && l.extended.Len() > 0 {
		if x, _ := l.extended.Min(); first == noSlot || x.deadline < l.slots[first].deadline {
			return x.slot
		}
	}
	return first
}

// consumer is one that takes messages from a queue.
type consumer struct {
	id          consumerID
	prefetch    int32  // 0: takes only when it asks
	outstanding int32  // loans it holds
	lastTag     uint64 // tags go from 1, by 1, and are never used again
	turn        uint64 // when it was served last: the queue's count of dispatches
	oldest      slotID // ends of the list of its loans
	newest      slotID
	priority    int32 // the higher is served first
	pull        bool  // attached without a prefetch
	standby     bool  // another consumer is active, see activations
	place       int   // in roster.eligible; -1: not eligible
}

// roster is the consumers of a queue. next is, of those with room, the one of the highest priority; among
// equals the one that has least on loan, and then the one that was served longest ago.
//
// Invariants, tested by check:
//  1. outstanding <= prefetch, except after the prefetch was lowered and for consumers
//     without one.
//  2. A consumer is in eligible if and only if outstanding < prefetch and it does not stand by.
//  3. eligible is a heap: no element comes before its parent.
type roster struct {
	all      []*consumer // in order of attachment
	eligible []*consumer
	turn     uint64
}

func (r *roster) find(id consumerID) *consumer {
	for _, c := range r.all {
		if c.id == id {
			return c
		}
	}
	return nil
}

func (r *roster) attach(c *consumer) {
	c.place, c.oldest, c.newest = -1, noSlot, noSlot
	r.all = append(r.all, c)
	r.fix(c)
}

func (r *roster) detach(c *consumer) {
	c.prefetch = 0
	r.fix(c)
	for i := range r.all {
		if r.all[i] == c {
			r.all = append(r.all[:i], r.all[i+1:]...)
			return
		}
	}
}

// next is the consumer to serve, or nil if none has room.
func (r *roster) next() *consumer {
	if len(r.eligible) == 0 {
		return nil
	}
	return r.eligible[0]
}

func (r *roster) before(i, j int) bool {
	a, b := r.eligible[i], r.eligible[j]
	if a.priority != b.priority {
		return a.priority > b.priority
	}
	if a.outstanding != b.outstanding {
		return a.outstanding < b.outstanding
	}
	if a.turn != b.turn {
		return a.turn < b.turn
	}
	return a.id < b.id
}

// fix restores the invariants after c.outstanding, c.prefetch, c.turn or c.standby changed.
func (r *roster) fix(c *consumer) {
	room := c.outstanding < c.prefetch && !c.standby
	switch {
	case room && c.place < 0:
		c.place = len(r.eligible)
		r.eligible = append(r.eligible, c)
		r.up(c.place)
	case room:
		if !r.down(c.place) {
			r.up(c.place)
		}
	case c.place >= 0:
		i, last := c.place, len(r.eligible)-1
		r.swap(i, last)
		r.eligible[last] = nil
		r.eligible = r.eligible[:last]
		c.place = -1
		if i < last && !r.down(i) {
			r.up(i)
		}
	}
}

func (r *roster) swap(i, j int) {
	r.eligible[i], r.eligible[j] = r.eligible[j], r.eligible[i]
	r.eligible[i].place, r.eligible[j].place = i, j
}

func (r *roster) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !r.before(i, parent) {
			return
		}
		r.swap(i, parent)
		i = parent
	}
}

// down moves the element at i towards the leaves and reports whether it moved.
func (r *roster) down(i int) bool {
	start := i
	for {
		child := 2*i + 1
		if child >= len(r.eligible) {
			break
		}
		if child+1 < len(r.eligible) && r.before(child+1, child) {
			child++
		}
		if !r.before(child, i) {
			break
		}
		r.swap(i, child)
		i = child
	}
	return i > start
}
