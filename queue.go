package bourse

import (
	"time"

	"github.com/google/btree"
)

// instant is nanoseconds since 1970 on the proposer's clock. It enters by command only.
type instant int64

// queue is the state of one queue. It changes only by its methods, which the machine calls
// for each command in the log's order; they read no clock, do no I/O and draw no random
// number, so that equal commands give equal states on every replica and after every
// restart. What must happen outside is appended to out as effects.
//
// Invariants, tested by check:
//  1. Each message that was accepted is in exactly one account: ready, on loan, delayed,
//     dying or gone; the accounts add up, in messages and in bytes.
//  2. A consumer has at most its prefetch on loan.
//  3. After a command, no message is ready while a consumer has room and may be served, unless its group is held, or the valve is
//     shut or the time when it opens has come.
//  4. now never decreases.
//  5. A message's failures are at most its deliveries, and at most the retry limit unless it is dying or the
//     queue was updated.
//  6. extras holds exactly those of the messages that say so.
//  7. expiring lists exactly those of the ready that expire and have an extra or came back.
//  8. After a command, no message is ready that should have expired, but for what stepLimit left.
//  9. There are at most Dedup.MaxIDs ids, and Inbox.MaxIDs in the inbox.
//  10. If ids last until their messages are done, each is that of a message which is ready, on loan or delayed.
//  11. If duplicates change what waits, the id of each delayed message says when that is ready.
//  12. What waits and was never handed out is within the limits, but for a dead letter that is too large even alone, for
//     duplicates that took the place of smaller ones, and for limits that were changed.
//  13. Turns are over only if they were given.
//  14. With a single active consumer, only that one has loans and may be served; it is attached, did not come to take, and has an
//     epoch. Nobody is active only if nobody could be. Without, nothing is known of activations.
//  15. The rate holds back for at most the time of one delivery; without one the bucket is the zero value.
//  16. A queue has a lease if it expires, but for one with a shard of its own before its first session.
//  17. Only a queue with a shard of its own is ending, and has no consumers then but those of Get.
//  18. No message has the number of another or its seq, and a number that is not the seq is lower; tailed counts those.
type queue struct {
	def     queueDef
	now     instant
	nextSeq uint64 // of the next message that arrives; from 1

	ready    readySet
	ledger   ledger
	roster   roster
	valve    valve
	delayed  *btree.BTreeG[delayed]  // nil until a message waits for a time
	dying    *btree.BTreeG[dying]    // nil until a message dies
	extras   *btree.BTreeG[extra]    // nil until a message has one
	tailed   int                     // of extras, how many have a first
	expiring *btree.BTreeG[expiring] // of the ready; nil until one must be listed
	groups   *groups                 // nil until a message has a group
	lapsing  []expiring              // came with this command and must not wait; empty between commands

	delayedBytes, dyingBytes int64
	ids                      idIndex // that Dedup remembers
	inbox                    idIndex // of what consumers have done
	timer                    instant // when the machine looks at this queue; 0: not set
	turns                    turns
	activations              activations
	lease                    lease
	count                    counters
	scaled                   scaled
}

// counters are totals since the queue was declared. They are part of the state.
type counters struct {
	Enqueued  uint64 // messages that arrived
	Delivered uint64 // loans made
	Acked     uint64 // messages done
	Failed    uint64 // loans that went wrong: nack, reject, deadline, lost consumer
	Released  uint64 // loans that came back without a failure
	TimedOut  uint64 // those of Failed whose deadline passed
	Dead      uint64 // messages that died
	Expired   uint64 // those of Dead that waited too long
	Discarded uint64 // those of Dead that were dropped: see DeadLetter.Discard and Cancel, and expired or evicted without an exchange
	Moved     uint64 // those of Dead that are in their dead-letter queues
	Purged    uint64 // messages removed by Purge
	Cancelled uint64 // messages removed by Cancel, but for the dying
	Replayed  uint64 // messages that went back to the queue they had died in
	Rejected  uint64 // publishes refused at a limit
	Evicted   uint64 // those of Dead that had to go at a limit

	Duplicates uint64 // publishes that repeated one
	Forgotten  uint64 // ids forgotten early
	Done       uint64 // those of Acked that went into the inbox

	bytesIn   uint64 // of Enqueued
	bytesGone uint64 // of all messages that are gone
}

// delayed is a message that is not ready before at.
type delayed struct {
	at instant
	entry
}

func byTime(a, b delayed) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// dying is a dead message that stays here until its dead-letter queues hold it.
type dying struct {
	entry
	at     instant
	reason deathReason
	note   string
}

func bySeqDying(a, b dying) bool { return a.seq < b.seq }

// deathReason is a Death.Reason inside the machine.
type deathReason uint8

const (
	deadRejected deathReason = iota + 1
	deadLimit
	deadExpired
	deadLength
	deadLast = deadLength
)

func (r deathReason) String() string {
	switch r {
	case deadRejected:
		return ReasonRejected
	case deadLimit:
		return ReasonDeliveryLimit
	case deadExpired:
		return ReasonExpired
	case deadLength:
		return ReasonMaxLength
	}
	return "unknown"
}

// drops reports whether who dies of it is dropped if there is no dead-letter exchange.
func (r deathReason) drops() bool { return r == deadExpired || r == deadLength }

// stepLimit bounds what one command makes due at once; what is left asks to be woken at once.
const stepLimit = 4096

func newQueue(def queueDef) *queue {
	return &queue{def: def, nextSeq: 1, ready: newReadySet(def.Priorities), ledger: newLedger()}
}

// enqueue accepts a message that is stored at ref. It is ready at once, or when its delay is over.
func (q *queue) enqueue(ref Ref, size uint32, a attributes) {
	e := entry{
		seq: q.nextSeq, ref: ref, arrived: q.now, size: size, part: a.part,
		level: q.level(a.priority),
	}
	q.nextSeq++
	q.count.Enqueued++
	q.count.bytesIn += uint64(size)
	q.remember(&e, a.key)
	x := extra{seq: e.seq, ttl: a.ttl, group: q.groupName(a.group)}
	if a.readyAt > q.now {
		x.start = min(a.readyAt, q.now+instant(MaxDelay))
	}
	if e.extra = x != (extra{seq: e.seq}); e.extra {
		q.setExtra(x)
	}
	if x.start != 0 {
		q.delay(e, x.start)
		return
	}
	q.pushReady(e)
}

// level is where a message of that priority waits.
func (q *queue) level(priority uint8) uint8 { return uint8(min(int(priority), q.def.Priorities-1)) }

// dispatch lends ready messages to consumers until one of both has run out, or the valve shuts.
func (q *queue) dispatch(out []effect) []effect {
	for !q.shut() && q.servable() {
		c := q.roster.next()
		if c == nil {
			break
		}
		out = q.lend(c, out)
	}
	return out
}

// lend gives the next ready message to c, whose prefetch the caller has looked at.
func (q *queue) lend(c *consumer, out []effect) []effect {
	e := q.popReady()
	e.deliveries++
	s := q.ledger.grant(e, c, q.now+instant(q.def.AckDeadline))
	q.count.Delivered++
	q.spend()
	q.roster.turn++
	c.turn = q.roster.turn
	q.roster.fix(c)
	return append(out, q.deliverEffect(s))
}

func (q *queue) deliverEffect(s slotID) effect {
	ln := &q.ledger.slots[s]
	return effect{
		kind: effectDeliver, queue: q.def.id, consumer: ln.holder.id, tag: ln.tag, slot: s, seq: ln.seq,
		ref: ln.ref, part: ln.part, level: ln.level, size: ln.size, deliveries: ln.deliveries, failures: ln.failures,
		at: ln.deadline, arrived: ln.arrived,
	}
}

// attach adds a consumer. Attaching one that is there already changes its prefetch, and nothing else.
// One without a prefetch only takes.
func (q *queue) attach(id consumerID, prefetch, priority int32) {
	if c := q.roster.find(id); c != nil {
		c.prefetch = prefetch
		q.roster.fix(c)
		return
	}
	q.roster.attach(&consumer{
		id: id, prefetch: prefetch, priority: priority, pull: prefetch == 0, standby: q.def.SingleActiveConsumer,
	})
}

// detach removes a consumer. Its loans come back to their old places: without a failure if it left
// in good order, else with one each. It reports whether the consumer was there.
func (q *queue) detach(id consumerID, failed bool, out []effect) (bool, []effect) {
	c := q.roster.find(id)
	if c == nil {
		return false, out
	}
	// The consumer takes nothing more while its loans come back.
	c.prefetch = 0
	q.roster.fix(c)
	for c.oldest != noSlot {
		e := q.ledger.end(c.oldest)
		if failed {
			out = q.fail(e, 0, "", out)
		} else {
			q.count.Released++
			q.insertReady(e)
		}
	}
	q.roster.detach(c)
	q.retire(c)
	if !c.pull {
		out = q.left(out)
	}
	return true, out
}

// fail takes back a message that went wrong: dying if that was one failure too many, else
// ready again after pause.
func (q *queue) fail(e entry, pause time.Duration, note string, out []effect) []effect {
	e.failures++
	q.count.Failed++
	if limit := q.def.MaxRetries; limit != NoLimit && (limit == NoRetry || e.failures > uint32(limit)) {
		return q.kill(e, deadLimit, note, out)
	}
	q.bump(&e)
	q.rest(e, pause)
	return out
}

// rest makes e ready after pause, at its old place.
func (q *queue) rest(e entry, pause time.Duration) {
	if pause <= 0 {
		q.insertReady(e)
		return
	}
	q.delay(e, q.now+instant(pause))
}

// delay makes e ready at a time, at its place.
func (q *queue) delay(e entry, at instant) {
	if q.delayed == nil {
		q.delayed = btree.NewG(16, byTime)
	}
	q.delayed.ReplaceOrInsert(delayed{at, e})
	q.delayedBytes += int64(e.size)
	q.rests(&e, at)
}

// rested makes ready what was delayed. A message that may not wait gets its chance now, also if the tick comes late.
func (q *queue) rested(e entry) {
	if x := q.extraOf(e); e.deliveries == 0 && x.start != 0 && q.noWait(e) {
		x.start = q.now
		q.setExtra(x)
	}
	q.insertReady(e)
}

// kill ends the life of e in this queue. Unless the dead are dropped it stays as dying until moved.
func (q *queue) kill(e entry, reason deathReason, note string, out []effect) []effect {
	q.uncount(&e)
	q.count.Dead++
	q.done(&e)
	if q.def.DeadLetter.Discard || reason.drops() && q.def.DeadLetter.Exchange == "" {
		q.count.Discarded++
		return q.gone(e, out)
	}
	if q.dying == nil {
		q.dying = btree.NewG(16, bySeqDying)
	}
	d := dying{entry: e, at: q.now, reason: reason, note: note}
	q.dying.ReplaceOrInsert(d)
	q.dyingBytes += int64(e.size)
	return append(out, q.forwardEffect(d))
}

func (q *queue) forwardEffect(d dying) effect {
	return effect{
		kind: effectForward, queue: q.def.id, seq: d.seq, ref: d.ref, part: d.part, size: d.size,
		failures: d.failures, reason: d.reason, note: d.note, at: d.at,
	}
}

// moved ends a dying message, since its dead-letter queues hold it. It reports whether the message was
// still dying: an effect may repeat, its command counts once.
func (q *queue) moved(seq uint64, out []effect) (bool, []effect) {
	if q.dying == nil {
		return false, out
	}
	d, ok := q.dying.Delete(dying{entry: entry{seq: seq}})
	if !ok {
		return false, out
	}
	q.dyingBytes -= int64(d.size)
	q.count.Moved++
	return true, q.gone(d.entry, out)
}

// isDying reports whether the message seq died and is not moved yet.
func (q *queue) isDying(seq uint64) bool {
	_, dies := q.dyingMessage(seq)
	return dies
}

func (q *queue) dyingMessage(seq uint64) (dying, bool) {
	if q == nil || q.dying == nil {
		return dying{}, false
	}
	return q.dying.Get(dying{entry: entry{seq: seq}})
}

// gone says that nothing in this queue refers to e any more.
func (q *queue) gone(e entry, out []effect) []effect {
	q.uncount(&e)
	q.count.bytesGone += uint64(e.size)
	q.done(&e)
	q.forget(e)
	return append(out, effect{kind: effectFree, ref: e.ref})
}

// settle carries out a consumer's verdict on one loan.
func (q *queue) settle(c settle, out []effect) (uint64, []effect) {
	s := q.ledger.find(c.consumer, c.tag, c.slot)
	if s == noSlot {
		return answerStale, out
	}
	if c.verdict == verdictExtend {
		by := min(c.pause, MaxAckDeadline)
		q.ledger.extend(s, q.now+instant(by))
		return answerOK, out
	}
	holder := q.ledger.slots[s].holder
	e := q.ledger.end(s)
	q.roster.fix(holder)
	switch c.verdict {
	case verdictAck:
		q.count.Acked++
		out = q.gone(e, out)
	case verdictDone:
		q.count.Acked++
		q.record(c.key)
		out = q.gone(e, out)
	case verdictNack:
		pause := c.pause
		if pause < 0 {
			pause = q.retryPause(&e)
		}
		out = q.fail(e, pause, c.note, out)
	case verdictReject:
		e.failures++
		q.count.Failed++
		out = q.kill(e, deadRejected, c.note, out)
	case verdictRelease:
		q.count.Released++
		q.rest(e, c.pause)
	case verdictExtend: // above
	}
	return answerOK, out
}

// ackUpTo acks all loans of a consumer whose tag is at most tag and returns how many there were.
func (q *queue) ackUpTo(id consumerID, tag uint64, out []effect) (uint64, []effect) {
	c := q.roster.find(id)
	if c == nil {
		return 0, out
	}
	n := uint64(0)
	for c.oldest != noSlot && q.ledger.slots[c.oldest].tag <= tag {
		out = q.gone(q.ledger.end(c.oldest), out)
		n++
	}
	q.count.Acked += n
	q.roster.fix(c)
	return n, out
}

// expire does what is due: loans past their deadline come back as failures, delayed messages
// become ready, and what has waited too long dies.
func (q *queue) expire(out []effect) []effect {
	for range stepLimit {
		s := q.ledger.nextDeadline()
		if s == noSlot || q.ledger.slots[s].deadline > q.now {
			break
		}
		ln := &q.ledger.slots[s]
		holder := ln.holder
		out = append(out, effect{kind: effectWithdraw, queue: q.def.id, consumer: holder.id, tag: ln.tag})
		e := q.ledger.end(s)
		q.roster.fix(holder)
		q.count.TimedOut++
		out = q.fail(e, q.retryPause(&e), "no verdict before the deadline", out)
	}
	for n := 0; n < stepLimit && q.delayed != nil && q.delayed.Len() > 0; n++ {
		d, _ := q.delayed.Min()
		if d.at > q.now {
			break
		}
		q.delayed.DeleteMin()
		q.delayedBytes -= int64(d.size)
		q.rested(q.toTail(d.entry))
	}
	q.expireIDs()
	return q.expireReady(out)
}

// due is when expire has something to do, or 0 for never.
func (q *queue) due() instant {
	at := instant(0)
	if s := q.ledger.nextDeadline(); s != noSlot {
		at = q.ledger.slots[s].deadline
	}
	if q.delayed != nil && q.delayed.Len() > 0 {
		if d, _ := q.delayed.Min(); at == 0 || d.at < at {
			at = d.at
		}
	}
	if x, _, ok := q.nextExpiry(); ok && (at == 0 || x.at < at) {
		at = x.at
	}
	if opens := q.refills(); opens != 0 && (at == 0 || opens < at) {
		at = opens
	}
	return q.leaseDue(q.idsDue(at))
}

// purge removes what is ready or delayed and returns how much that was. What is on loan stays, and
// may come back.
func (q *queue) purge(out []effect) (uint64, []effect) {
	n := uint64(0)
	for q.ready.n > 0 {
		e := q.ready.any()
		e, _ = q.takeReady(e.level, e.seq)
		out = q.gone(e, out)
		n++
	}
	for q.delayed != nil && q.delayed.Len() > 0 {
		d, _ := q.delayed.DeleteMin()
		q.delayedBytes -= int64(d.size)
		out = q.gone(d.entry, out)
		n++
	}
	q.count.Purged += n
	return n, out
}

// drop frees everything, for a queue that is deleted. Its consumers are told.
func (q *queue) drop(out []effect) []effect {
	for _, c := range q.roster.all {
		for c.oldest != noSlot {
			out = append(out, effect{kind: effectFree, ref: q.ledger.end(c.oldest).ref})
		}
		out = append(out, effect{kind: effectGone, queue: q.def.id, consumer: c.id})
	}
	_, out = q.purge(out)
	for q.dying != nil && q.dying.Len() > 0 {
		d, _ := q.dying.DeleteMin()
		out = append(out, effect{kind: effectFree, ref: d.ref})
	}
	return out
}

// lead appends what the outside must be told anew when it starts to act for this queue.
func (q *queue) lead(out []effect) []effect {
	if q.dying != nil {
		q.dying.Ascend(func(d dying) bool {
			out = append(out, q.forwardEffect(d))
			return true
		})
	}
	if q.lease.ending != endsNot {
		out = append(out, q.retireEffect())
	}
	return out
}

// consumers is the number of consumers that are sent messages; those of Get are not.
func (q *queue) consumers() int {
	n := 0
	for _, c := range q.roster.all {
		if !c.pull {
			n++
		}
	}
	return n
}

// size is the number of messages that the queue holds, in whatever state.
func (q *queue) size() int { return q.ready.n + q.ledger.n + q.delayedLen() + q.dyingLen() }

func (q *queue) delayedLen() int {
	if q.delayed == nil {
		return 0
	}
	return q.delayed.Len()
}

func (q *queue) dyingLen() int {
	if q.dying == nil {
		return 0
	}
	return q.dying.Len()
}
