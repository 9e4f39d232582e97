package bourse

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/btree"

	"github.com/boursemq/bourse/internal/wire"
)

// A snapshot of a machine:
//
//	version   1 byte
//	role      1 byte
//	now       varint
//	session   uvarint
//	topology  length and bytes, see topology.appendTo; for roleQueue the id, the Queue and its revision
//	agenda    see agenda.appendTo; not for roleQueue
//	queues    for each by ascending id:
//	          nextSeq, counters, turn, valve, turns of publishers that wait, lease,
//	          extras    count, then by seq: seq, ttl, start, group, first
//	          groups    see groups.head; then by seat: turn, name
//	          ids       count, then by seq: key, seq, until
//	          inbox     likewise
//	          ready     count of levels, then by level: level, count, then by seq a chain, see appendLink
//	          delayed   count, then by time: at, entry
//	          dying     count, then by seq: entry, at, reason, note
//	          consumers count, then by attachment: id, prefetch, priority, pull, lastTag, turn
//	          active    with Queue.SingleActiveConsumer: activations, place of the active consumer from 1 or 0
//	          slots     length, count of loans in the order of their deadlines, those in the
//	                    list first: slot, consumer's place, tag, deadline, extended, entry
//	          free      slots, the top of the stack last
//
// Timers, sums and lists by consumer follow from this. Equal states give equal bytes, and what is not in the one
// order that a machine writes does not decode.
const snapshotVersion = 1

func appendEntry(dst []byte, e *entry) []byte {
	dst = wire.AppendUvarint(dst, e.seq)
	dst = wire.AppendUvarint(dst, uint64(e.ref))
	dst = wire.AppendVarint(dst, int64(e.arrived))
	dst = wire.AppendUvarint(dst, uint64(e.size))
	dst = wire.AppendUvarint(dst, uint64(e.deliveries)<<2|bit(e.part != 0)<<1|bit(e.extra))
	if e.part != 0 {
		dst = wire.AppendUvarint(dst, uint64(e.part))
	}
	dst = wire.AppendUvarint(dst, uint64(e.failures))
	return append(dst, e.level)
}

func bit(set bool) uint64 {
	if set {
		return 1
	}
	return 0
}

func decodeEntry(r *wire.Reader, levels int) entry {
	e := entry{seq: r.Uvarint(), ref: Ref(r.Uvarint()), arrived: instant(r.Varint()), size: decodeUint32(r)}
	deliveries := r.Uvarint()
	if deliveries>>2 > math.MaxUint32 {
		r.Fail()
	}
	e.deliveries, e.extra = uint32(deliveries>>2), deliveries&1 != 0
	if deliveries&2 != 0 {
		part := r.Uvarint()
		if part == 0 || part > maxParts {
			r.Fail()
		}
		e.part = uint8(part)
	}
	e.failures, e.level = decodeUint32(r), r.Byte()
	if int(e.level) >= levels {
		r.Fail()
		e.level = 0
	}
	return e
}

func decodeUint32(r *wire.Reader) uint32 {
	v := r.Uvarint()
	if v > math.MaxUint32 {
		r.Fail()
		return 0
	}
	return uint32(v)
}

// view is the state of a machine at one moment, which can be written out while the machine goes on. To take one costs time by the
// number of queues, consumers, loans and blocks of the ready sets, not by the number of messages that wait: their
// blocks and trees are shared with the machine, which from then on leaves alone what the view refers to.
type view struct {
	head   []byte
	queues []queueView
}

// queueView is the part of a view for one queue, in the order in which it is written.
type queueView struct {
	head    []byte
	extras  *btree.BTreeG[extra]
	ids     [2]*btree.BTreeG[remembered] // of Dedup, of the inbox
	groups  *btree.BTreeG[seat]
	order   []byte // of the groups
	ready   readyView
	delayed *btree.BTreeG[delayed]
	dying   *btree.BTreeG[dying]
	tail    []byte
}

func (m *machine) view() *view {
	v := &view{head: append([]byte(nil), snapshotVersion, byte(m.role)), queues: make([]queueView, 0, len(m.order))}
	v.head = wire.AppendVarint(v.head, int64(m.now))
	v.head = wire.AppendUvarint(v.head, uint64(m.session))
	if m.role == roleQueue {
		def := m.order[0].def
		v.head = wire.AppendBytes(v.head, wire.AppendUvarint(def.Queue.appendTo(wire.AppendUvarint(nil, uint64(def.id))), m.revision))
	} else {
		v.head = m.agenda.appendTo(wire.AppendBytes(v.head, m.topology.appendTo(nil)))
	}
	for _, q := range m.order {
		v.queues = append(v.queues, q.view())
	}
	return v
}

func (q *queue) view() queueView {
	v := queueView{ready: q.ready.view()}
	v.head = wire.AppendUvarint(v.head, q.nextSeq)
	for _, n := range q.count.list() {
		v.head = wire.AppendUvarint(v.head, *n)
	}
	v.head = wire.AppendUvarint(v.head, q.roster.turn)
	v.head = q.valve.appendTo(v.head, q.def.Rate)
	v.head = q.lease.appendTo(q.turns.appendTo(v.head))
	if q.extras != nil {
		v.extras = q.extras.Clone()
	}
	v.ids = [...]*btree.BTreeG[remembered]{q.ids.view(), q.inbox.view()}
	v.order = q.groups.head(nil)
	if !q.groups.isEmpty() {
		v.groups = q.groups.seats.Clone()
	}
	if q.delayed != nil {
		v.delayed = q.delayed.Clone()
	}
	if q.dying != nil {
		v.dying = q.dying.Clone()
	}
	v.tail = wire.AppendUvarint(v.tail, uint64(len(q.roster.all)))
	for _, c := range q.roster.all {
		v.tail = wire.AppendUvarint(v.tail, uint64(c.id))
		v.tail = wire.AppendUvarint(v.tail, uint64(c.prefetch))
		v.tail = wire.AppendVarint(v.tail, int64(c.priority))
		v.tail = wire.AppendBool(v.tail, c.pull)
		v.tail = wire.AppendUvarint(v.tail, c.lastTag)
		v.tail = wire.AppendUvarint(v.tail, c.turn)
	}
	v.tail = q.appendActivations(v.tail)
	v.tail = q.appendLoans(v.tail)
	return v
}

// appendTo is the whole snapshot.
func (m *machine) appendTo(dst []byte) []byte {
	_ = m.view().write(func(piece []byte) error {
		dst = append(dst, piece...)
		return nil
	})
	return dst
}

// pieceBytes is about how much write gives to emit at a time.
const pieceBytes = 64 << 10

// write gives the snapshot to emit, in pieces that are valid during the call. It stops at the first error of emit, which it
// returns.
func (v *view) write(emit func(piece []byte) error) error {
	buf := append(make([]byte, 0, pieceBytes+1024), v.head...)
	var failed error
	room := func() bool { // after each element
		if len(buf) >= pieceBytes && failed == nil {
			failed = emit(buf)
			buf = buf[:0]
		}
		return failed == nil
	}
	for i := range v.queues {
		q := &v.queues[i]
		buf = append(buf, q.head...)
		buf = wire.AppendUvarint(buf, uint64(treeLen(q.extras)))
		if q.extras != nil {
			q.extras.Ascend(func(x extra) bool {
				buf = wire.AppendUvarint(buf, x.seq)
				buf = wire.AppendVarint(buf, int64(x.ttl))
				buf = wire.AppendVarint(buf, int64(x.start))
				buf = wire.AppendUvarint(wire.AppendString(buf, x.group), x.first)
				return room()
			})
		}
		buf = append(buf, q.order...)
		if q.groups != nil {
			q.groups.Ascend(func(s seat) bool {
				buf = wire.AppendString(wire.AppendUvarint(buf, s.turn), s.group.name)
				return room()
			})
		}
		for _, ids := range q.ids {
			buf = wire.AppendUvarint(buf, uint64(treeLen(ids)))
			if ids != nil {
				ids.Ascend(func(id remembered) bool {
					buf = id.appendTo(buf)
					return room()
				})
			}
		}
		buf = q.ready.write(buf, func(b []byte) ([]byte, bool) {
			buf = b
			more := room()
			return buf, more
		})
		buf = wire.AppendUvarint(buf, uint64(treeLen(q.delayed)))
		if q.delayed != nil {
			q.delayed.Ascend(func(d delayed) bool {
				buf = wire.AppendVarint(buf, int64(d.at))
				buf = appendEntry(buf, &d.entry)
				return room()
			})
		}
		buf = wire.AppendUvarint(buf, uint64(treeLen(q.dying)))
		if q.dying != nil {
			q.dying.Ascend(func(d dying) bool {
				buf = appendEntry(buf, &d.entry)
				buf = wire.AppendVarint(buf, int64(d.at))
				buf = append(buf, byte(d.reason))
				buf = wire.AppendString(buf, d.note)
				return room()
			})
		}
		buf = append(buf, q.tail...)
		if !room() {
			return failed
		}
	}
	if failed == nil && len(buf) > 0 {
		failed = emit(buf)
	}
	return failed
}

func treeLen[T any](t *btree.BTreeG[T]) int {
	if t == nil {
		return 0
	}
	return t.Len()
}

func (q *queue) appendLoans(dst []byte) []byte {
	l := &q.ledger
	place := make(map[consumerID]int, len(q.roster.all))
	for i, c := range q.roster.all {
		place[c.id] = i
	}
	one := func(s slotID) {
		ln := &l.slots[s]
		dst = wire.AppendUvarint(dst, uint64(s))
		dst = wire.AppendUvarint(dst, uint64(place[ln.holder.id]))
		dst = wire.AppendUvarint(dst, ln.tag)
		dst = wire.AppendVarint(dst, int64(ln.deadline))
		dst = wire.AppendBool(dst, ln.extended)
		dst = appendEntry(dst, &ln.entry)
	}
	dst = wire.AppendUvarint(dst, uint64(len(l.slots)))
	dst = wire.AppendUvarint(dst, uint64(l.n))
	for s := l.oldest; s != noSlot; s = l.slots[s].newer {
		one(s)
	}
	if l.extended != nil {
		l.extended.Ascend(func(x extension) bool { one(x.slot); return true })
	}
	for _, s := range l.free {
		dst = wire.AppendUvarint(dst, uint64(s))
	}
	return dst
}

// list is the counters in the order in which snapshots hold them.
func (c *counters) list() []*uint64 {
	return []*uint64{
		&c.Enqueued, &c.Delivered, &c.Acked, &c.Failed, &c.Released, &c.TimedOut, &c.Dead, &c.Expired, &c.Discarded,
		&c.Moved, &c.Purged, &c.Cancelled, &c.Replayed, &c.Rejected, &c.Evicted, &c.Duplicates, &c.Forgotten, &c.Done,
		&c.bytesIn, &c.bytesGone,
	}
}

// decodeMachine reads what appendTo wrote. keep is told every reference.
func decodeMachine(b []byte, keep func(Ref)) (*machine, error) {
	return readMachine(wire.NewReader(b), keep)
}

// readMachine is decodeMachine for what r has.
func readMachine(r wire.Reader, keep func(Ref)) (*machine, error) {
	if v := r.Byte(); r.Err() != nil {
		return nil, fmt.Errorf("snapshot: %w", r.Err())
	} else if v != snapshotVersion {
		return nil, fmt.Errorf("%w: snapshot of version %d, this binary reads %d", ErrForeignDir, v, snapshotVersion)
	}
	m := &machine{role: role(r.Byte()), queues: make(map[queueID]*queue), timers: btree.NewG(16, byTimer)}
	if m.role > roleQueue {
		return nil, fmt.Errorf("snapshot: %w", wire.ErrMalformed)
	}
	m.now = instant(r.Varint())
	m.session = decodeUint32(&r)
	tr := wire.NewReader(r.Bytes())
	if m.role == roleQueue {
		def := queueDef{id: queueID(tr.Uvarint()), Queue: decodeQueue(&tr)}
		m.revision = tr.Uvarint()
		if tr.Done() != nil || def.id == 0 || !def.Queue.equal(def.Queue.withDefaults()) || def.validateSettings() != nil {
			return nil, fmt.Errorf("snapshot: queue: %w", wire.ErrMalformed)
		}
		m.topology = topologyOf(def)
	} else {
		topology, err := decodeTopology(&tr, topologyLimits{})
		if err != nil {
			return nil, fmt.Errorf("snapshot: topology: %w", err)
		}
		m.topology = topology
		m.agenda = decodeAgenda(&r, topology)
	}
	m.populate()
	for _, q := range m.order {
		q.decode(&r, m.role == roleQueue, keep)
		if r.Err() != nil {
			return nil, fmt.Errorf("snapshot: queue %q: %w", q.def.Name, r.Err())
		}
		m.arm(q)
		m.weighLater(q)
	}
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return m, nil
}

// smallestEntry is a lower bound of the bytes of an entry in a snapshot.
const smallestEntry = 7

func (q *queue) decode(r *wire.Reader, own bool, keep func(Ref)) {
	q.nextSeq = r.Uvarint()
	for _, n := range q.count.list() {
		*n = r.Uvarint()
	}
	q.roster.turn = r.Uvarint()
	q.decodeValve(r)
	q.turns = decodeTurns(r)
	q.decodeLease(r, own)
	q.decodeExtras(r)
	seated := q.decodeGroups(r)
	q.decodeIDs(r)
	q.nameAll()
	extras, ids := 0, 0
	taken := func(e entry) entry {
		if q.def.Dedup.UntilDone && q.ids.has(q.number(e)) {
			ids++
		}
		if e.extra {
			if extras++; q.extras == nil || !q.extras.Has(extra{seq: e.seq}) {
				r.Fail()
				e.extra = false
			}
		}
		if r.Err() == nil {
			keep(e.ref)
		}
		return e
	}
	take := func() entry { return taken(decodeEntry(r, q.def.Priorities)) }
	q.decodeReady(r, taken)
	if r.Err() != nil {
		return
	}
	if n := r.Count(smallestEntry); n > 0 {
		q.delayed = btree.NewG(16, byTime)
		last := delayed{}
		for i := range n {
			d := delayed{at: instant(r.Varint()), entry: take()}
			if i > 0 && !byTime(last, d) || d.deliveries > 0 && !q.charge(&d.entry) {
				r.Fail()
				return
			}
			q.delayed.ReplaceOrInsert(d)
			q.delayedBytes += int64(d.size)
			q.rests(&d.entry, d.at)
			last = d
		}
	}
	if n := r.Count(smallestEntry); n > 0 {
		q.dying = btree.NewG(16, bySeqDying)
		last := dying{}
		for i := range n {
			d := dying{entry: take(), at: instant(r.Varint()), reason: deathReason(r.Byte()), note: r.String()}
			if i > 0 && !bySeqDying(last, d) || d.reason < deadRejected || d.reason > deadLast ||
				q.def.Dedup.UntilDone && q.ids.has(q.number(d.entry)) {
				r.Fail()
				return
			}
			q.dying.ReplaceOrInsert(d)
			q.dyingBytes += int64(d.size)
			last = d
		}
	}
	consumers := r.Count(6)
	if consumers > maxConsumers {
		r.Fail()
		return
	}
	for range consumers {
		c := &consumer{id: consumerID(r.Uvarint())}
		prefetch := decodeUint32(r)
		c.priority = decodeConsumerPriority(r)
		c.pull, c.lastTag, c.turn = r.Bool(), r.Uvarint(), r.Uvarint()
		if prefetch > MaxPrefetch || q.roster.find(c.id) != nil {
			r.Fail()
			return
		}
		c.prefetch = int32(prefetch)
		c.place, c.oldest, c.newest = -1, noSlot, noSlot
		q.roster.all = append(q.roster.all, c)
	}
	q.decodeActivations(r)
	q.decodeLoans(r, take)
	if extras != treeLen(q.extras) || q.def.Dedup.UntilDone && ids != q.ids.len() || !q.reseat(seated) || !q.onlyActiveHolds() {
		r.Fail()
	}
	for _, c := range q.roster.all {
		q.roster.fix(c)
	}
}

func (q *queue) decodeExtras(r *wire.Reader) {
	last := uint64(0)
	names := map[string]string{} // so that the messages of a group share its name
	for range r.Count(5) {
		x := extra{seq: r.Uvarint(), ttl: time.Duration(r.Varint()), start: instant(r.Varint())}
		if name := r.Bytes(); len(name) > 0 {
			if _, ok := names[string(name)]; !ok {
				names[string(name)] = string(name)
			}
			x.group = names[string(name)]
		}
		x.first = r.Uvarint()
		if len(x.group) > MaxNameBytes || x.seq <= last || x.first >= x.seq || x.ttl < NoWait || x.ttl > MaxDelay ||
			x == (extra{seq: x.seq}) {
			r.Fail()
			return
		}
		q.setExtra(x)
		if x.first != 0 {
			q.tailed++
		}
		last = x.seq
	}
}

func (q *queue) decodeLoans(r *wire.Reader, take func() entry) {
	l := &q.ledger
	slots := r.Uvarint()
	loans := r.Count(smallestEntry)
	// Slots that hold no loan are listed as free, a byte at least each.
	if slots > uint64(loans+r.Len()) {
		r.Fail()
		return
	}
	l.slots = make([]loan, slots)
	type held struct {
		extension
		extended bool
	}
	var inOrder []held
	for range loans {
		s, place := r.Uvarint(), r.Uvarint()
		tag, deadline, extended := r.Uvarint(), instant(r.Varint()), r.Bool()
		e := take()
		if s >= slots || !q.charge(&e) || place >= uint64(len(q.roster.all)) || r.Err() != nil || l.slots[s].holder != nil {
			r.Fail()
			return
		}
		next := held{extension{deadline, slotID(s)}, extended}
		if n := len(inOrder); n > 0 {
			before := inOrder[n-1]
			if before.extended && (!extended || !byDeadline(before.extension, next.extension)) ||
				!before.extended && !extended && deadline < before.deadline {
				r.Fail()
				return
			}
		}
		l.slots[s] = loan{entry: e, holder: q.roster.all[place], tag: tag, deadline: deadline, extended: extended}
		inOrder = append(inOrder, next)
	}
	taken := make([]bool, slots)
	for range int(slots) - loans {
		s := r.Uvarint()
		if s >= slots || taken[s] || l.slots[s].holder != nil {
			r.Fail()
			return
		}
		taken[s] = true
		l.free = append(l.free, slotID(s))
	}
	// First the deadlines in the order written, then every holder's list by tag.
	for _, h := range inOrder {
		if h.extended {
			if l.extended == nil {
				l.extended = btree.NewG(16, byDeadline)
			}
			l.slots[h.slot].older, l.slots[h.slot].newer = noSlot, noSlot
			l.extended.ReplaceOrInsert(h.extension)
			continue
		}
		l.append(h.slot)
	}
	slices.SortFunc(inOrder, func(a, b held) int { return cmp.Compare(l.slots[a.slot].tag, l.slots[b.slot].tag) })
	for _, h := range inOrder {
		ln := &l.slots[h.slot]
		newest := ln.holder.newest
		if ln.tag == 0 || ln.tag > ln.holder.lastTag || newest != noSlot && l.slots[newest].tag == ln.tag {
			r.Fail()
			return
		}
		l.linkToHolder(h.slot)
	}
}
