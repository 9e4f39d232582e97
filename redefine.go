package bourse

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/google/btree"

	"github.com/boursemq/bourse/internal/wire"
)

// Changing a queue that is in use. The catalogue has the last word on what a queue is; where queues have shards of their own, it
// numbers the changes, and the shard of the queue takes each by a redefine command. A shard starts with the queue as it was first
// declared, whenever a replica opens it, and changes only by its own log, so that all replicas see each message under
// the same rules.

// mutable are the fields that Broker.Update changes. What is not here is fixed when a queue is declared: its name, Transient, and
// SingleActiveConsumer, since several consumers might hold messages when it began to count.
var mutable = []func(q *Queue, to *Queue){
	func(q, to *Queue) { q.Priorities = to.Priorities },
	func(q, to *Queue) { q.Fairness, q.BumpOnRedelivery = to.Fairness, to.BumpOnRedelivery },
	func(q, to *Queue) { q.MaxMessages, q.MaxBytes, q.Overflow = to.MaxMessages, to.MaxBytes, to.Overflow },
	func(q, to *Queue) { q.MaxRetries = to.MaxRetries },
	func(q, to *Queue) { q.Retry = to.Retry },
	func(q, to *Queue) { q.AckDeadline = to.AckDeadline },
	func(q, to *Queue) { q.TTL = to.TTL },
	func(q, to *Queue) { q.GroupConcurrency = to.GroupConcurrency },
	func(q, to *Queue) { q.Rate = to.Rate },
	func(q, to *Queue) { q.DeadLetter = to.DeadLetter },
	func(q, to *Queue) { q.Dedup = to.Dedup },
	func(q, to *Queue) { q.Inbox = to.Inbox },
	func(q, to *Queue) { q.Expires = to.Expires },
}

// updated is a queue that is not as it was first declared.
type updated struct {
	id       queueID
	revision uint64 // how often it was changed
	declared Queue
}

func byUpdated(a, b updated) bool { return a.id < b.id }

// update makes the queue of d's name be as d says, in its mutable fields; the others must be so already. It returns t itself if
// nothing changes. Errors: an *InvalidError; ErrNotFound; a *PreconditionError with every field that cannot be changed.
func (t *topology) update(d Queue) (*topology, queueDef, error) {
	if err := d.validate(); err != nil {
		return t, queueDef{}, err
	}
	have, ok := t.queue(d.Name)
	if !ok {
		return t, queueDef{}, fmt.Errorf("queue %q: %w", d.Name, ErrNotFound)
	}
	d = d.withDefaults()
	to := have.Queue
	for _, set := range mutable {
		set(&to, &d)
	}
	if err := d.compare(to); err != nil {
		return t, queueDef{}, err
	}
	if to.equal(have.Queue) {
		return t, have, nil
	}
	next := t.clone()
	change := updated{have.id, t.revision(have.id) + 1, t.declared(have)}
	have.Queue = to
	next.putUpdated(&have, change)
	return next, have, nil
}

// putUpdated puts a queue that was changed.
func (t *topology) putUpdated(def *queueDef, change updated) {
	t.putQueue(def)
	t.updated.ReplaceOrInsert(change)
}

// revision is how often the queue was changed.
func (t *topology) revision(id queueID) uint64 {
	change, _ := t.updated.Get(updated{id: id})
	return change.revision
}

// declared is def as it was first declared.
func (t *topology) declared(def queueDef) Queue {
	if change, ok := t.updated.Get(updated{id: def.id}); ok {
		return change.declared
	}
	return def.Queue
}

// appendRevision appends what there is about changes of the queue: their number, and if there is one, the first definition.
func (t *topology) appendRevision(dst []byte, id queueID) []byte {
	change, ok := t.updated.Get(updated{id: id})
	dst = wire.AppendUvarint(dst, change.revision)
	if ok {
		dst = change.declared.appendTo(dst)
	}
	return dst
}

// decodeRevision reads what appendRevision wrote of def, and puts it; false if the queue was never changed.
func (t *topology) decodeRevision(r *wire.Reader, def *queueDef) bool {
	change := updated{id: def.id, revision: r.Uvarint()}
	if change.revision == 0 {
		return false
	}
	change.declared = decodeQueue(r)
	q := change.declared
	if r.Err() != nil || q.Name != def.Name || !q.equal(q.withDefaults()) || q.validate() != nil {
		r.Fail()
		return false
	}
	t.updated.ReplaceOrInsert(change)
	return true
}

// update: session, one Queue.
func appendUpdate(dst []byte, at instant, session sessionID, d Queue) []byte {
	return appendDeclarations(wire.AppendUint64(appendHeader(dst, cmdUpdate, at), uint64(session)), []Declaration{d})
}

// redefine: queue id, number of the change, one Queue.
func appendRedefine(dst []byte, at instant, def queueDef, revision uint64) []byte {
	dst = appendHeader(dst, cmdRedefine, at)
	dst = wire.AppendUvarint(dst, uint64(def.id))
	dst = wire.AppendUvarint(dst, revision)
	return appendDeclarations(dst, []Declaration{def.Queue})
}

func decodeOneQueue(r *wire.Reader) (d Queue) {
	ds := decodeDeclarations(r)
	if len(ds) == 1 {
		if d, ok := ds[0].(Queue); ok {
			return d
		}
	}
	r.Fail()
	return d
}

// update changes a queue as the catalogue knows it, and the queue itself if it is here.
func (m *machine) update(session sessionID, d Queue, out []effect) (Answer, []effect) {
	out = m.sweep(out)
	if err := m.topology.anyLockedFor(session, []Declaration{d}); err != nil {
		return Answer{Code: answerError, Data: appendError(nil, err)}, out
	}
	next, def, err := m.topology.update(d)
	if err != nil {
		return Answer{Code: answerError, Data: appendError(nil, err)}, out
	}
	if next == m.topology {
		return Answer{Code: answerOK}, out
	}
	m.topology = next
	if q := m.at(def.id); q != nil {
		q.redefine(def.Queue)
		out = m.touch(q, out)
	}
	return Answer{Code: answerOK}, append(out, effect{kind: effectTopology})
}

// redefine brings a change of the catalogue into the shard of the queue. One that has come already, or is older, changes nothing.
func (m *machine) redefine(id queueID, revision uint64, d Queue, out []effect) (Answer, []effect) {
	q := m.at(id)
	if q == nil || q.lease.ending == endsLeft {
		return Answer{Code: answerGone}, out
	}
	if m.role != roleQueue || revision <= m.revision {
		return Answer{Code: answerStale}, out
	}
	if err := d.validate(); err != nil || d.Name != q.def.Name {
		return Answer{Code: answerError, Data: appendError(nil, invalid("Queue", "is not %q: %v", q.def.Name, err))}, out
	}
	m.revision = revision
	q.redefine(d.withDefaults())
	m.topology = topologyOf(q.def)
	return Answer{Code: answerOK}, m.touch(q, out)
}

// updatedHere reports whether q is not as it was declared.
func (m *machine) updatedHere(q *queue) bool {
	return m.revision > 0 || m.topology.revision(q.def.id) > 0
}

// redefine makes q be as d, which has its defaults. Every message stays where it is:
//
//   - a TTL holds from the arrival of each message that waits, as if it had been so from the beginning; what has waited too
//     long is found by expire,
//   - with fewer priorities, what is above the highest level joins it, in order of arrival; with more of them, what is here
//     keeps its level,
//   - a group that has more at work than a lower limit of GroupConcurrency goes on when it has less,
//   - loans keep the deadline that they have, and pauses their end,
//   - a rate goes on with what the one before it allowed at once, in whole deliveries and up to its Burst; without one before, it allows
//     all of that,
//   - the retry limit is looked at when a message fails the next time,
//   - an id is remembered for the new window from when its message came; those above a lower limit are forgotten, and
//     all are if Window takes the place of UntilDone or the other way round; the inbox is likewise, from when a message was done,
//   - the lease begins anew.
//
// It costs time in the number of ready messages if fewer priorities are left or the TTL becomes NoWait; if the TTL changes,
// in that of those that came back or have an extra; if the limit of groups changes, in that of the groups.
func (q *queue) redefine(d Queue) {
	had := q.def.Queue
	q.def.Queue = d
	q.renew()
	switch top := d.Priorities - 1; {
	case d.TTL == NoWait && had.TTL != NoWait:
		q.refill(0)
	case top < had.Priorities-1:
		q.refill(top)
	}
	if more := d.Priorities - len(q.ready.lines); more > 0 {
		q.ready.lines = append(q.ready.lines, make([]line, more)...)
	}
	if d.Priorities < had.Priorities {
		q.clampOthers()
	}
	if d.GroupConcurrency != had.GroupConcurrency || d.Priorities != had.Priorities {
		q.regroup()
	}
	if d.TTL != had.TTL || d.Priorities < had.Priorities {
		q.relist()
	}
	q.rerate(had.Rate)
	if d.Dedup != had.Dedup {
		q.redefineDedup(&had.Dedup)
	}
	if d.Inbox != had.Inbox {
		q.redefineInbox(&had.Inbox)
	}
}

// redefineDedup makes the ids that are remembered those of the new Dedup.
func (q *queue) redefineDedup(had *Dedup) {
	d := &q.def.Dedup
	if (d.Window != 0) != (had.Window != 0) || d.UntilDone != had.UntilDone {
		q.ids = idIndex{}
		return
	}
	q.ids.shift(q.now, instant(d.Window-had.Window))
	q.count.Forgotten += q.ids.trim(d.MaxIDs)
	if q.delayed != nil {
		q.delayed.Ascend(func(m delayed) bool {
			q.rests(&m.entry, m.at)
			return true
		})
	}
	q.nameAll()
}

// redefineInbox is redefineDedup for the inbox.
func (q *queue) redefineInbox(had *InboxMemory) {
	d := &q.def.Inbox
	if d.Window == 0 {
		q.inbox = idIndex{}
		return
	}
	q.inbox.shift(q.now, instant(d.Window-had.Window))
	q.count.Forgotten += q.inbox.trim(d.MaxIDs)
}

// trim forgets the oldest until there are at most limit, and returns how many it forgot.
func (x *idIndex) trim(limit int) (forgotten uint64) {
	for x.len() > limit {
		oldest, _ := x.oldest()
		x.remove(oldest.seq)
		forgotten++
	}
	return forgotten
}

// shift forgets what has expired, makes the others expire later or sooner, and forgets what then has.
func (x *idIndex) shift(now, by instant) {
	if x.inOrder == nil {
		return
	}
	ids := make([]remembered, 0, x.inOrder.Len())
	x.inOrder.Ascend(func(id remembered) bool {
		ids = append(ids, id)
		return true
	})
	for _, id := range ids {
		switch {
		case id.until == 0: // with its message
		case id.until <= now || id.until+by <= now:
			x.remove(id.seq)
		default:
			id.until += by
			x.inOrder.ReplaceOrInsert(id)
		}
	}
}

// refill takes all messages at and above a level out of the ready set and adds them again, at levels that exist.
func (q *queue) refill(from int) {
	r := &q.ready
	upper := readySet{lines: r.lines[from:]}
	var moved []entry
	upper.each(func(e entry) bool {
		moved = append(moved, e)
		return true
	})
	r.saved -= savedIn(upper.lines)
	clear(r.lines[from:])
	for l := from; l < len(r.lines); l++ {
		r.occupied[l/64] &^= 1 << (l % 64)
	}
	r.lines = slices.Clone(r.lines[:min(len(r.lines), q.def.Priorities)])
	slices.SortFunc(moved, func(a, b entry) int { return cmp.Compare(a.seq, b.seq) })
	for _, e := range moved {
		r.n--
		r.bytes -= int64(e.size)
		e.level = q.clamped(e)
		q.pushReady(e)
	}
}

// clamped is the level of e, or the highest that there is.
func (q *queue) clamped(e entry) uint8 { return min(e.level, uint8(q.def.Priorities-1)) }

// clampOthers gives levels that exist to what is not ready.
func (q *queue) clampOthers() {
	for s := range q.ledger.slots {
		if ln := &q.ledger.slots[s]; ln.holder != nil {
			ln.level = q.clamped(ln.entry)
		}
	}
	clampTree(q, q.delayed, func(d *delayed) *entry { return &d.entry })
	clampTree(q, q.dying, func(d *dying) *entry { return &d.entry })
}

func clampTree[T any](q *queue, tree *btree.BTreeG[T], of func(*T) *entry) {
	var changed []T
	if tree == nil {
		return
	}
	tree.Ascend(func(x T) bool {
		if e := of(&x); e.level != q.clamped(*e) {
			e.level = q.clamped(*e)
			changed = append(changed, x)
		}
		return true
	})
	for _, x := range changed {
		tree.ReplaceOrInsert(x)
	}
}

// relist makes expiring anew.
func (q *queue) relist() {
	q.expiring = nil
	for i := range q.ready.lines {
		if back := q.ready.lines[i].returned; back != nil {
			back.Ascend(func(e entry) bool {
				q.list(e)
				return true
			})
		}
	}
	if q.ready.grouped != nil {
		q.ready.grouped.Ascend(func(e entry) bool {
			q.list(e)
			return true
		})
	}
}
