package bourse

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/internal/wire"
)

// This file is what a queue does at its limits: whether a message may come in, who has to go for it, and who waits.

// Overflow says what happens at a limit of a queue, Queue.MaxMessages or Queue.MaxBytes.
type Overflow uint8

const (
	// RejectPublish refuses the new message: ErrQueueFull.
	RejectPublish Overflow = iota
	// DropHead makes room: the oldest message of the lowest level dies with ReasonMaxLength, then the next, until the new one
	// fits. That may be the new one itself, if it is alone in the lowest level.
	DropHead
	// DeadLetterHead is DropHead for a queue that has a DeadLetter.Exchange, and is refused for one that has not: what is
	// evicted is never dropped.
	DeadLetterHead
	// Block lets publishers wait for room, each until its context ends. Those who wait come in in the order in which they came.
	Block
)

func (o Overflow) String() string {
	switch o {
	case RejectPublish:
		return "RejectPublish"
	case DropHead:
		return "DropHead"
	case DeadLetterHead:
		return "DeadLetterHead"
	case Block:
		return "Block"
	}
	return "overflow " + strconv.Itoa(int(o))
}

// validateLimits checks the fields of a queue that limit its length.
func (d Queue) validateLimits() *InvalidError {
	switch {
	case d.MaxMessages < 0:
		return invalid("Queue.MaxMessages", "is %d, which is negative", d.MaxMessages)
	case d.MaxBytes < 0:
		return invalid("Queue.MaxBytes", "is %d, which is negative", d.MaxBytes)
	case d.Overflow > Block:
		return invalid("Queue.Overflow", "is %d, which is none", d.Overflow)
	case d.Overflow != RejectPublish && d.MaxMessages == 0 && d.MaxBytes == 0:
		return invalid("Queue.Overflow", "is %v, but there is no MaxMessages or MaxBytes", d.Overflow)
	case d.Overflow == DeadLetterHead && d.DeadLetter.Exchange == "":
		return invalid("Queue.Overflow", "is DeadLetterHead, but there is no DeadLetter.Exchange")
	}
	return nil
}

// compareLimits is the part of Queue.compare for these fields.
func (d Queue) compareLimits(have Queue, f *fieldDiffs) {
	f.add("MaxMessages", strconv.FormatInt(have.MaxMessages, 10), strconv.FormatInt(d.MaxMessages, 10))
	f.add("MaxBytes", strconv.FormatInt(have.MaxBytes, 10), strconv.FormatInt(d.MaxBytes, 10))
	f.add("Overflow", have.Overflow.String(), d.Overflow.String())
}

// turns is the order in which publishes come in that were told to wait: each has the next turn, from 0. Those who gave up
// in between are not known here; their turns are over when a later one comes in.
type turns struct {
	given   uint64 // turns given
	over    uint64 // turns below are over; at most given
	stalled bool   // one did not fit; those proposed together with it wait too
}

// end says that a turn is over, if it was given, and so are those before it.
func (t *turns) end(turn uint64) {
	if turn < t.given {
		t.over = max(t.over, turn+1)
	}
}

// limited reports whether the queue has a limit.
func (d *Queue) limited() bool { return d.MaxMessages > 0 || d.MaxBytes > 0 }

// evicts reports whether the queue makes room for new messages.
func (d *Queue) evicts() bool { return d.Overflow == DropHead || d.Overflow == DeadLetterHead }

// length is what counts against the limits: what is ready or delayed, and what died here and is not in its dead-letter
// queues yet. Where messages are evicted the dead do not count, since to evict would make no room then.
func (q *queue) length() (messages, bytes int64) {
	messages, bytes = int64(q.ready.n+q.delayedLen()), q.ready.bytes+q.delayedBytes
	if !q.def.evicts() {
		messages += int64(q.dyingLen())
		bytes += q.dyingBytes
	}
	return messages, bytes
}

// exceeds reports whether a length is more than the limits allow.
func (d *Queue) exceeds(messages, bytes int64) bool {
	return d.MaxMessages > 0 && messages > d.MaxMessages || d.MaxBytes > 0 && bytes > d.MaxBytes
}

// fits reports whether there is room for one message more.
func (q *queue) fits(size uint32) bool {
	messages, bytes := q.length()
	return !q.def.exceeds(messages+1, bytes+int64(size))
}

// tooLarge reports whether a message does not fit even if nothing else is there.
func (q *queue) tooLarge(size uint32) bool { return q.def.exceeds(1, int64(size)) }

// refusal says that a queue did not take a publish.
type refusal struct {
	queue queueID
	why   refusalReason
	size  uint32 // of the command, with which the queue decided
	turn  uint64 // waits: comes in when those before it are in
}

type refusalReason byte

const (
	refusedFull  refusalReason = iota + 1 // no room
	refusedLarge                          // more than the queue holds at most
	refusedWaits                          // no room, or others wait: to be proposed again when there is
)

// arrival is where a message comes from.
type arrival byte

const (
	arrivesNew     arrival = iota // it was published
	arrivesAgain                  // it was in another queue: it died there, or is replayed
	arrivesDecided                // there is room in all its queues
)

// acceptLimited is queue.accept and touch for a queue with limits. What is due happens first: it may make room, or take it. A
// duplicate needs none. If the message is not taken, the refusal has a reason. What arrives again is not a publish: it neither waits
// nor is counted as rejected.
func (m *machine) acceptLimited(q *queue, ref Ref, size uint32, a attributes, r wire.Reader, how arrival, out []effect) (
	kept int, no refusal, _ []effect) {
	out = m.touch(q, out)
	if q.knows(a, r) || how == arrivesDecided {
		kept, out = m.admit(q, ref, size, a, r, out)
		return kept, no, out
	}
	no = refusal{queue: q.def.id, size: size}
	switch {
	case how == arrivesAgain:
		if !q.takesDead(size, 0, 0) {
			no.why = refusedFull
		}
	case q.tooLarge(size):
		no.why = refusedLarge
		q.count.Rejected++
	case q.def.Overflow == RejectPublish && !q.fits(size):
		no.why = refusedFull
		q.count.Rejected++
	case q.def.Overflow == Block && (q.turns.over < q.turns.given || !q.fits(size)):
		no.why, no.turn = refusedWaits, q.turns.given
		q.turns.given++
	}
	if no.why == 0 {
		kept, out = m.admit(q, ref, size, a, r, out)
	}
	return kept, no, out
}

// knows reports whether the message of whose attributes r is behind is a duplicate.
func (q *queue) knows(a attributes, r wire.Reader) bool {
	if !q.def.Dedup.on() {
		return false
	}
	key := a.readKey(r)
	id, ok := q.ids.find(key)
	return ok && key != (idKey{}) && (id.until == 0 || id.until > q.now)
}

// takesDead reports whether a dead letter may come in. less is what leaves the queue in the same step. One that is larger than
// the queue may be comes in when nothing else is there: it has to be somewhere.
func (q *queue) takesDead(size uint32, lessMessages, lessBytes int64) bool {
	messages, bytes := q.length()
	messages, bytes = messages-lessMessages, bytes-lessBytes
	switch {
	case messages == 0:
		return true
	case q.def.evicts():
		return !q.tooLarge(size)
	}
	return !q.def.exceeds(messages+1, bytes+int64(size))
}

// fitsEdited reports whether e may become a message of that size, where it waits.
func (q *queue) fitsEdited(e entry, size uint32) bool {
	messages, bytes := q.length()
	return size <= e.size || !q.def.exceeds(min(messages, q.def.MaxMessages), bytes-int64(e.size)+int64(size))
}

// refusing returns who of the targets of a move does not take the dying message, or of a fire, without a source: none is to
// have it before all can.
func (m *machine) refusing(source *queue, d dying, length int, ids wire.Reader, out []effect) ([]refusal, []effect) {
	message := ids
	for range message.Count(1) {
		message.Uvarint()
	}
	a := decodeAttributes(&message)
	size := a.plain(length)
	var refused []refusal
	for range ids.Count(1) {
		q := m.at(queueID(ids.Uvarint()))
		if q == nil || !q.def.limited() {
			continue
		}
		out = m.touch(q, out)
		lessMessages, lessBytes := int64(0), int64(0)
		if q == source && !q.def.evicts() {
			lessMessages, lessBytes = 1, int64(d.size)
		}
		if !q.takesDead(size, lessMessages, lessBytes) {
			refused = append(refused, refusal{queue: q.def.id, why: refusedFull, size: size})
		}
	}
	return refused, out
}

// admit takes a message in and evicts what it must.
func (m *machine) admit(q *queue, ref Ref, size uint32, a attributes, r wire.Reader, out []effect) (kept int, _ []effect) {
	before, _ := q.length()
	first := q.nextSeq
	kept, out = q.accept(ref, size, a, r, out)
	out = m.touch(q, out)
	if q.def.evicts() && first < q.nextSeq {
		out = q.evict(before, first, out)
	}
	return kept, out
}

// evict makes room for the new messages, from number first on, that wait here: before is how many did when they came. It ends when they
// fit or none of them is left: what a consumer took at once needs no room. One message that does not fit even alone stays.
func (q *queue) evict(before int64, first uint64, out []effect) []effect {
	messages, bytes := q.length()
	for left := messages - before; left > 0 && messages > 1 && q.def.exceeds(messages, bytes); messages, bytes = q.length() {
		e := q.victim()
		if q.number(e) >= first {
			left--
		}
		q.count.Evicted++
		out = q.kill(e, deadLength, "", out)
	}
	return out
}

// waitingFrom counts the messages that wait here, from number first on. It goes over all that waits: what came due with a bundle, or
// went to a consumer whom its ack gave room, hides how many of the new ones are left.
func (q *queue) waitingFrom(first uint64) int64 {
	n := int64(0)
	count := func(e entry) {
		if q.number(e) >= first {
			n++
		}
	}
	q.ready.each(func(e entry) bool { count(e); return true })
	if q.delayed != nil {
		q.delayed.Ascend(func(d delayed) bool { count(d.entry); return true })
	}
	return n
}

// bundleRefused returns why a bundle does not fit: it is taken as a whole or not at all, and does not wait. The turn in a
// refusal is the number of the first message that does not fit.
func (m *machine) bundleRefused(x *bundle, out []effect) ([]refusal, []effect) {
	type sum struct {
		q               *queue
		messages, bytes int64
	}
	var sums []sum
	var refused []refusal
	for i := range x.parts {
		p := &x.parts[i]
		m.each(p, func(q *queue) {
			if !q.def.limited() || len(refused) > 0 {
				return
			}
			at := slices.IndexFunc(sums, func(s sum) bool { return s.q == q })
			if at < 0 {
				if !x.ack || x.loan.queue != q.def.id { // else the loan could be over before its ack
					out = m.touch(q, out)
				}
				at = len(sums)
				sums = append(sums, sum{q: q})
			}
			s := &sums[at]
			// A duplicate needs no room, unless the ack of this bundle or a message before it may make the queue forget its id.
			if s.messages == 0 && !(x.ack && x.loan.queue == q.def.id) && q.knows(p.attributes, p.rest) {
				return
			}
			s.messages, s.bytes = s.messages+1, s.bytes+int64(p.size)
			messages, bytes := q.length()
			switch {
			case q.tooLarge(p.size):
				refused = append(refused, refusal{queue: q.def.id, why: refusedLarge, size: p.size, turn: uint64(i)})
			case !q.def.evicts() && q.def.exceeds(messages+s.messages, bytes+s.bytes):
				refused = append(refused, refusal{queue: q.def.id, why: refusedFull, size: p.size, turn: uint64(i)})
			}
			if len(refused) > 0 {
				q.count.Rejected++
			}
		})
	}
	return refused, out
}

// victim takes out the message that has to go: the oldest of the lowest level of those that are ready, and if none is, the
// delayed one that is due last, whatever its level, since it would be served last of all.
func (q *queue) victim() entry {
	if q.ready.n > 0 {
		e := q.ready.lowest()
		return q.takeOut(place{state: StateReady, level: e.level, seq: e.seq})
	}
	d, _ := q.delayed.DeleteMax()
	q.delayedBytes -= int64(d.size)
	return d.entry
}

// enter is an enqueue to one queue, of a publish that was told to wait there. With first it is the first of those that are
// proposed together: if one of them does not fit, those behind it must not overtake it.
func (m *machine) enter(ref Ref, size int, r *wire.Reader, out []effect) (applied, []effect) {
	turn, first := r.Uvarint(), r.Bool()
	if r.Count(1) != 1 {
		r.Fail()
	}
	id := queueID(r.Uvarint())
	a := decodeAttributes(r)
	mustDecode(cmdEnter, r.Err())
	q := m.at(id)
	if q == nil {
		return applied{answer: Answer{Code: answerGone}}, out
	}
	out = m.touch(q, out)
	no := refusal{queue: id, why: refusedWaits, size: a.plain(size), turn: turn}
	q.turns.stalled = q.turns.stalled && !first
	switch {
	case q.knows(a, *r) || q.def.evicts() && !q.tooLarge(no.size): // it evicts since it was updated
		no.why = 0
	case q.tooLarge(no.size):
		no.why = refusedLarge
		q.count.Rejected++
	case q.turns.stalled:
	case !q.fits(no.size):
		q.turns.stalled = q.turns.given > 0
	default:
		no.why = 0
	}
	if no.why == 0 {
		q.turns.end(turn)
		var res applied
		res.kept, out = m.admit(q, ref, no.size, a, *r, out)
		return res, out
	}
	return applied{answer: refusedAnswer(0, []refusal{no})}, out
}

// refusedAnswer is the answer to a publish that was not taken everywhere: how many queues took it, and for each that
// did not: queue, reason, size, turn.
func refusedAnswer(kept int, refused []refusal) Answer {
	data := wire.AppendUvarint(nil, uint64(kept))
	data = wire.AppendUvarint(data, uint64(len(refused)))
	for _, no := range refused {
		data = wire.AppendUvarint(data, uint64(no.queue))
		data = append(data, byte(no.why))
		data = wire.AppendUvarint(data, uint64(no.size))
		data = wire.AppendUvarint(data, no.turn)
	}
	return Answer{Code: answerFull, Data: data}
}

func decodeRefused(b []byte) (kept int, refused []refusal, err error) {
	r := wire.NewReader(b)
	kept = int(decodeUint32(&r))
	for range r.Count(4) {
		no := refusal{queue: queueID(r.Uvarint()), why: refusalReason(r.Byte()), size: decodeUint32(&r), turn: r.Uvarint()}
		if no.why < refusedFull || no.why > refusedWaits {
			r.Fail()
		}
		refused = append(refused, no)
	}
	if err := r.Done(); err != nil {
		return 0, nil, fmt.Errorf("decode who refused: %w", err)
	}
	return kept, refused, nil
}

// appendTo and decodeTurns are the turns in a snapshot: how many were given and, if any was, how many are over, and stalled.
func (t turns) appendTo(dst []byte) []byte {
	dst = wire.AppendUvarint(dst, t.given)
	if t.given == 0 {
		return dst
	}
	return wire.AppendBool(wire.AppendUvarint(dst, t.over), t.stalled)
}

func decodeTurns(r *wire.Reader) (t turns) {
	if t.given = r.Uvarint(); t.given > 0 {
		t.over, t.stalled = r.Uvarint(), r.Bool()
	}
	if t.over > t.given {
		r.Fail()
	}
	return t
}

// checkLimits tests invariants 12 and 13 of a queue. fresh is what waits and was never handed out.
func (q *queue) checkLimits(fresh, freshBytes int64, updated bool) {
	invariant.Check(q.count.Evicted <= q.count.Dead, "queue 12: %d evicted, %d dead", q.count.Evicted, q.count.Dead)
	invariant.Check(q.turns.over <= q.turns.given, "queue 13: turn %d is over, %d were given", q.turns.over, q.turns.given)
	invariant.Check(q.turns.given > 0 || q.turns == turns{}, "queue 13: turns %+v", q.turns)
	if updated {
		return
	}
	if q.def.Dedup.OnDuplicate == ReplaceWaiting {
		freshBytes = 0
	}
	invariant.Check(fresh <= 1 || !q.def.exceeds(fresh, freshBytes), "queue 12: %d messages of %d bytes arrived and wait, limits %d and %d",
		fresh, freshBytes, q.def.MaxMessages, q.def.MaxBytes)
	invariant.Check(fresh == 0 || q.def.MaxMessages == 0 || fresh <= q.def.MaxMessages, "queue 12: %d messages wait", fresh)
}
