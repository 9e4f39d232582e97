package bourse

import "github.com/boursemq/bourse/internal/wire"

// amendment is what somebody who is no consumer does to one message of a queue.
type amendment byte

const (
	amendCancel   amendment = iota + 1 // remove it, in whatever state it is
	amendPromote                       // it is ready now, if it was delayed
	amendPriority                      // it waits at another level
	amendReplayed                      // remove it, since the queue that it died in has it again, in another shard
	amendEdit                          // the message behind this stands for it from now on
	amendReplay                        // the message behind this goes to the target behind this, and it is removed
)

// amend names a message and what to do with it. It is looked for at place first.
type amend struct {
	queue    queueID
	place    place
	what     amendment
	priority uint8 // for amendPriority
	ref      Ref   // for amendEdit and amendReplay: what was read; if it is something else by now, nothing is done
}

// hasMessage reports whether targets and a message follow, as in an enqueue.
func (a amendment) hasMessage() bool { return a == amendEdit || a == amendReplay }

func (c amend) appendTo(dst []byte, at instant) []byte {
	dst = append(appendHeader(dst, cmdAmend, at), byte(c.what))
	dst = wire.AppendUvarint(dst, uint64(c.queue))
	dst = wire.AppendUvarint(dst, c.place.seq)
	dst = wire.AppendUvarint(dst, c.place.first)
	dst = append(dst, byte(c.place.state), c.place.level)
	dst = wire.AppendVarint(dst, int64(c.place.at))
	dst = wire.AppendUvarint(dst, uint64(uint32(c.place.slot)))
	dst = append(dst, c.priority)
	return wire.AppendUvarint(dst, uint64(c.ref))
}

func decodeAmend(r *wire.Reader) (c amend) {
	c.what = amendment(r.Byte())
	c.queue = queueID(r.Uvarint())
	c.place.seq, c.place.first = r.Uvarint(), r.Uvarint()
	c.place.state, c.place.level = State(r.Byte()), r.Byte()
	c.place.at = instant(r.Varint())
	slot := r.Uvarint()
	c.place.slot = slotID(slot)
	c.priority = r.Byte()
	c.ref = Ref(r.Uvarint())
	if c.what < amendCancel || c.what > amendReplay || c.place.state > StateDying || slot > 1<<31-1 {
		r.Fail()
		return amend{}
	}
	return c
}

// amend carries out the command at ref. What is due happens first.
func (m *machine) amend(ref Ref, size int, r *wire.Reader, out []effect) (res applied, _ []effect) {
	c := decodeAmend(r)
	plain := uint32(size)
	switch {
	case !c.what.hasMessage():
		mustDecode(cmdAmend, r.Done())
	case c.what == amendEdit:
		if r.Count(1) > 0 { // it has no targets
			r.Fail()
		}
		a := decodeAttributes(r)
		plain = a.plain(size)
	}
	mustDecode(cmdAmend, r.Err())
	q := m.at(c.queue)
	if q == nil {
		res.answer.Code = answerGone
		return res, out
	}
	out = q.expire(out)
	p, e, ok := q.locate(c.place)
	waits := p.state == StateReady || p.state == StateDelayed
	switch {
	case !ok:
		res.answer.Code = answerAbsent
	case c.what == amendCancel:
		out = q.cancel(p, out)
	case c.what == amendReplayed && p.state != StateDying:
		e, out = q.withdraw(p, out)
		out = q.replayed(e, out)
	case !waits:
		res.answer.Code = answerNotWaiting
	case c.what == amendPromote:
		q.promote(p)
	case c.what == amendPriority:
		q.move(p, min(c.priority, uint8(q.def.Priorities-1)))
	case c.ref != e.ref:
		res.answer.Code = answerStale
	case c.what == amendEdit && !q.fitsEdited(e, plain):
		res.answer = refusedAnswer(0, []refusal{{queue: c.queue, why: refusedFull, size: plain}})
	case c.what == amendEdit:
		res.kept = 1
		out = q.edit(p, ref, 0, plain, out)
	case c.what == amendReplay:
		res, out = m.replay(q, p, ref, size, r, out)
	}
	return res, m.touch(q, out)
}

// replay moves the message at p, which waits in q, to the end of another queue, as the message of the command at ref.
func (m *machine) replay(q *queue, p place, ref Ref, size int, r *wire.Reader, out []effect) (applied, []effect) {
	// It leaves q first: q may be the target, where it must not be lent.
	e := q.takeOut(p)
	res, out := m.enqueue(ref, size, r, arrivesAgain, out)
	if res.kept == 0 {
		q.putBack(p, e)
		return res, out
	}
	return res, q.replayed(e, out)
}

func (q *queue) replayed(e entry, out []effect) []effect {
	q.count.Replayed++
	return q.gone(e, out)
}

// takeOut removes the message at p, which waits there.
func (q *queue) takeOut(p place) entry {
	if p.state == StateDelayed {
		d, _ := q.delayed.Delete(delayed{p.at, entry{seq: p.seq}})
		q.delayedBytes -= int64(d.size)
		return d.entry
	}
	e, _ := q.takeReady(p.level, p.seq)
	return e
}

// putBack is the reverse of takeOut; what is between may have changed the message.
func (q *queue) putBack(p place, e entry) {
	if p.state == StateDelayed {
		q.delay(e, p.at)
		return
	}
	q.insertReady(e)
}

// withdraw removes the message at p, which waits there or is on loan; its holder is told.
func (q *queue) withdraw(p place, out []effect) (entry, []effect) {
	if p.state != StateUnacked {
		return q.takeOut(p), out
	}
	ln := &q.ledger.slots[p.slot]
	holder := ln.holder
	out = append(out, effect{kind: effectWithdraw, queue: q.def.id, consumer: holder.id, tag: ln.tag})
	e := q.ledger.end(p.slot)
	q.roster.fix(holder)
	return e, out
}

// cancel removes the message at p. One that is dying is discarded.
func (q *queue) cancel(p place, out []effect) []effect {
	if p.state == StateDying {
		d, _ := q.dying.Delete(dying{entry: entry{seq: p.seq}})
		q.dyingBytes -= int64(d.size)
		q.count.Discarded++
		return q.gone(d.entry, out)
	}
	e, out := q.withdraw(p, out)
	q.count.Cancelled++
	return q.gone(e, out)
}

// promote makes the message at p ready. Its TTL, which would have counted from the end of its delay, counts from now.
func (q *queue) promote(p place) {
	if p.state != StateDelayed {
		return
	}
	e := q.takeOut(p)
	if x := q.extraOf(e); x.start > q.now {
		x.start = q.now
		q.setExtra(x)
	}
	q.rested(e)
}

// move gives the message at p another level, in which its place is by seq as ever.
func (q *queue) move(p place, level uint8) {
	e := q.takeOut(p)
	e.level = level
	q.putBack(p, e)
}

// edit makes the message at p that of the command at ref, or of a part of it.
func (q *queue) edit(p place, ref Ref, part uint8, size uint32, out []effect) []effect {
	e := q.takeOut(p)
	out = append(out, effect{kind: effectFree, ref: e.ref})
	q.count.bytesGone += uint64(e.size)
	q.count.bytesIn += uint64(size)
	e.ref, e.size, e.part = ref, size, part
	q.putBack(p, e)
	return out
}
