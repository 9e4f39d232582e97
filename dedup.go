package bourse

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/google/btree"

	"github.com/boursemq/bourse/internal/wire"
)

// Limits of a Dedup.
const (
	MaxDedupWindow  = 7 * 24 * time.Hour
	MaxDedupIDs     = 1 << 24 // of Dedup.MaxIDs
	DefaultDedupIDs = 1 << 20
)

// Dedup says which publishes a queue takes for repetitions: those with a Message.ID that it remembers. A message without an ID is
// never one. The zero value remembers nothing.
//
// A duplicate is a success for its publisher, since the queue has, or had, the message. It takes no room and is counted in
// QueueStats.Duplicates. Each queue that a publish is routed to decides by itself. An ID is remembered with the message, in the same
// commit: a publish that a queue refused leaves nothing behind, and what it remembers is the same after a restart and on every replica.
// A dead letter, and what comes back from where it died, is neither compared nor remembered: what died is never lost to a
// repetition. IDs are compared by the first 128 bits of their SHA-256.
type Dedup struct {
	// Window is how long an ID is remembered, counted from when the queue took the message; duplicates do not prolong it. What
	// becomes of the message does not matter: it may be acked, dead or purged. At most MaxDedupWindow.
	Window time.Duration
	// UntilDone remembers an ID as long as its message is in the queue and alive: while it is ready, delayed or on loan, and
	// however often it comes back. When it is acked, dies, expires, is purged or is removed in another way, the next one with
	// this ID is new. Not together with Window.
	UntilDone bool
	// OnDuplicate is what a duplicate does to the message that it repeats, while that waits: ready or delayed. Once it
	// is on loan, nothing: its consumer may have read it.
	OnDuplicate DuplicateAction
	// MaxIDs bounds what is remembered, at about 150 bytes of memory each: default DefaultDedupIDs, at most MaxDedupIDs. At the bound the
	// oldest is forgotten early, since it is the one that is least likely to be sent again, and to refuse what is new would
	// stop a queue for a whole Window because it is busy. QueueStats.Forgotten counts these.
	MaxIDs int
}

// DuplicateAction is what a duplicate does to the message that waits.
type DuplicateAction uint8

const (
	IgnoreDuplicate DuplicateAction = iota // nothing
	// ReplaceWaiting puts the duplicate in its stead: what a consumer will see is the later publish, with its body, headers and
	// keys. Its place is the old one: the level, the arrival, the TTL, the delay and the counts stay.
	ReplaceWaiting
	// BumpWaiting raises it to the level of the duplicate, if that is higher. Its place there follows from its arrival. What a
	// consumer will see is the first publish.
	BumpWaiting
)

func (a DuplicateAction) String() string {
	switch a {
	case IgnoreDuplicate:
		return "ignore"
	case ReplaceWaiting:
		return "replace"
	case BumpWaiting:
		return "bump"
	}
	return "action " + strconv.Itoa(int(a))
}

// on reports whether anything is remembered.
func (d *Dedup) on() bool { return d.Window != 0 || d.UntilDone }

func (d Dedup) validate() *InvalidError {
	switch {
	case d.Window < 0 || d.Window > MaxDedupWindow:
		return invalid("Queue.Dedup.Window", "is %v, want 0 to %v", d.Window, MaxDedupWindow)
	case d.UntilDone && d.Window != 0:
		return invalid("Queue.Dedup.UntilDone", "is set together with Window")
	case d.OnDuplicate > BumpWaiting:
		return invalid("Queue.Dedup.OnDuplicate", "is %d, which is no action", d.OnDuplicate)
	case d.OnDuplicate != IgnoreDuplicate && !d.on():
		return invalid("Queue.Dedup.OnDuplicate", "is set without Window or UntilDone")
	case d.MaxIDs < 0 || d.MaxIDs > MaxDedupIDs:
		return invalid("Queue.Dedup.MaxIDs", "is %d, want 0 to %d", d.MaxIDs, MaxDedupIDs)
	case d.MaxIDs != 0 && !d.on():
		return invalid("Queue.Dedup.MaxIDs", "is set without Window or UntilDone")
	}
	return nil
}

func (d Dedup) withDefaults() Dedup {
	if d.MaxIDs == 0 && d.on() {
		d.MaxIDs = DefaultDedupIDs
	}
	return d
}

// compare adds the fields in which have is not as d; both have their defaults.
func (d Dedup) compare(have Dedup, f *fieldDiffs) {
	f.add("Dedup.Window", have.Window.String(), d.Window.String())
	f.add("Dedup.UntilDone", strconv.FormatBool(have.UntilDone), strconv.FormatBool(d.UntilDone))
	f.add("Dedup.OnDuplicate", have.OnDuplicate.String(), d.OnDuplicate.String())
	f.add("Dedup.MaxIDs", strconv.Itoa(have.MaxIDs), strconv.Itoa(d.MaxIDs))
}

func (d Dedup) appendTo(dst []byte) []byte {
	dst = wire.AppendVarint(dst, int64(d.Window))
	dst = wire.AppendBool(dst, d.UntilDone)
	dst = append(dst, byte(d.OnDuplicate))
	return wire.AppendVarint(dst, int64(d.MaxIDs))
}

func decodeDedup(r *wire.Reader) Dedup {
	return Dedup{
		Window: time.Duration(r.Varint()), UntilDone: r.Bool(), OnDuplicate: DuplicateAction(r.Byte()), MaxIDs: decodeInt(r),
	}
}

func (d InboxMemory) validate() *InvalidError {
	switch {
	case d.Window < 0 || d.Window > MaxDedupWindow:
		return invalid("Queue.Inbox.Window", "is %v, want 0 to %v", d.Window, MaxDedupWindow)
	case d.MaxIDs < 0 || d.MaxIDs > MaxDedupIDs:
		return invalid("Queue.Inbox.MaxIDs", "is %d, want 0 to %d", d.MaxIDs, MaxDedupIDs)
	case d.MaxIDs != 0 && d.Window == 0:
		return invalid("Queue.Inbox.MaxIDs", "is set without Window")
	}
	return nil
}

func (d InboxMemory) withDefaults() InboxMemory {
	if d.MaxIDs == 0 && d.Window != 0 {
		d.MaxIDs = DefaultDedupIDs
	}
	return d
}

// compare adds the fields in which have is not as d; both have their defaults.
func (d InboxMemory) compare(have InboxMemory, f *fieldDiffs) {
	f.add("Inbox.Window", have.Window.String(), d.Window.String())
	f.add("Inbox.MaxIDs", strconv.Itoa(have.MaxIDs), strconv.Itoa(d.MaxIDs))
}

func (d InboxMemory) appendTo(dst []byte) []byte {
	return wire.AppendVarint(wire.AppendVarint(dst, int64(d.Window)), int64(d.MaxIDs))
}

func decodeInboxMemory(r *wire.Reader) InboxMemory {
	return InboxMemory{Window: time.Duration(r.Varint()), MaxIDs: decodeInt(r)}
}

// idKey stands for a message id: the first 128 bits of its SHA-256. Publishers choose ids, so it must be hard to find two with the
// same key.
type idKey struct{ high, low uint64 }

func keyOf(id []byte) idKey {
	sum := sha256.Sum256(id)
	return idKey{binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])}
}

func (k idKey) appendTo(dst []byte) []byte {
	return wire.AppendUint64(wire.AppendUint64(dst, k.high), k.low)
}

func decodeKey(r *wire.Reader) idKey { return idKey{r.Uint64(), r.Uint64()} }

// readKey returns the key of the message that has the attributes a, of which r is behind: zero for one that has no id of its own, or
// that has died before.
func (a *attributes) readKey(r wire.Reader) (key idKey) {
	if a.flags&flagGivenID != 0 && a.flags&flagDeaths == 0 {
		key = keyOf(r.Bytes())
		mustDecode(cmdEnqueue, r.Err())
	}
	return key
}

// idIndex is a set of ids, in the order in which they came: each has a number that is higher than all before it. Its trees hold values
// that are never changed in place, so that a snapshot shares them.
//
// Invariants, tested by check:
//  1. byKey and inOrder hold the same ids.
//  2. In the order of their numbers, no id expires before the one before it.
type idIndex struct {
	byKey   *btree.BTreeG[keyed] // nil, as inOrder is, until there is an id
	inOrder *btree.BTreeG[remembered]
}

type keyed struct {
	key idKey
	seq uint64
}

// remembered is an id in its place.
type remembered struct {
	key   idKey
	seq   uint64  // in a Dedup the number of its message
	until instant // 0: until its message is done
	rests instant // when its message is ready, if it is delayed and that matters
	now   uint64  // the seq of its message, if that is another than its number and that matters
}

func byKey(a, b keyed) bool {
	return a.key.high < b.key.high || a.key.high == b.key.high && a.key.low < b.key.low
}

func inOrder(a, b remembered) bool { return a.seq < b.seq }

func (x *idIndex) len() int { return treeLen(x.inOrder) }

// find returns the id of key, expired or not.
func (x *idIndex) find(key idKey) (remembered, bool) {
	if x.byKey == nil {
		return remembered{}, false
	}
	k, ok := x.byKey.Get(keyed{key: key})
	if !ok {
		return remembered{}, false
	}
	return x.at(k.seq)
}

// at returns the id with a number.
func (x *idIndex) at(seq uint64) (remembered, bool) {
	if x.inOrder == nil {
		return remembered{}, false
	}
	return x.inOrder.Get(remembered{seq: seq})
}

// add puts in an id that is not there, with a number higher than all others. If there are limit already, the oldest has to go: add
// returns how many did. limit is not 0.
func (x *idIndex) add(id remembered, limit int) (forgotten uint64) {
	if x.byKey == nil {
		x.byKey, x.inOrder = btree.NewG(16, byKey), btree.NewG(16, inOrder)
	}
	forgotten = x.trim(limit - 1)
	x.byKey.ReplaceOrInsert(keyed{id.key, id.seq})
	x.inOrder.ReplaceOrInsert(id)
	return forgotten
}

// remove takes out the id with a number, if it is there.
func (x *idIndex) remove(seq uint64) {
	if id, ok := x.at(seq); ok {
		x.inOrder.Delete(id)
		x.byKey.Delete(keyed{key: id.key})
	}
}

func (x *idIndex) has(seq uint64) bool {
	_, ok := x.at(seq)
	return ok
}

// oldest is the id that came first.
func (x *idIndex) oldest() (remembered, bool) {
	if x.inOrder == nil {
		return remembered{}, false
	}
	return x.inOrder.Min()
}

// expire takes out ids whose time has come, at most stepLimit. Until it does they count for nothing, since who finds one looks at
// its time.
func (x *idIndex) expire(now instant) {
	for range stepLimit {
		id, ok := x.oldest()
		if !ok || id.until > now {
			return
		}
		x.remove(id.seq)
	}
}

// due is when expire should be called at the latest, or 0 for never. Any command of the queue does it too, and there is only memory to
// win, so it is a good while later: a tick for each id would be a log entry for each message.
func (x *idIndex) due(window time.Duration) instant {
	id, ok := x.oldest()
	if !ok {
		return 0
	}
	return id.until + instant(max(window/16, time.Second))
}

// repeated reports whether the message at ref, of whose attributes r is behind, is a duplicate here, and does what OnDuplicate says. kept
// is how many references it took. What is due happens first: an id must not be held by a message that is dead by now.
func (q *queue) repeated(ref Ref, size uint32, a *attributes, r wire.Reader, out []effect) (again bool, kept int, _ []effect) {
	out = q.expire(out)
	a.key = a.readKey(r)
	if a.key == (idKey{}) {
		return false, 0, out
	}
	id, ok := q.ids.find(a.key)
	if !ok || id.until != 0 && id.until <= q.now {
		return false, 0, out
	}
	q.count.Duplicates++
	if q.def.Dedup.OnDuplicate == IgnoreDuplicate {
		return true, 0, out
	}
	at, e, waits := q.waiting(id)
	switch {
	case !waits:
	case q.def.Dedup.OnDuplicate == ReplaceWaiting:
		return true, 1, q.edit(at, ref, a.part, size, out)
	default:
		if level := uint8(min(int(a.priority), q.def.Priorities-1)); level > e.level {
			q.move(at, level)
		}
	}
	return true, 0, out
}

// waiting is the message of id, if it is ready or delayed.
func (q *queue) waiting(id remembered) (at place, e entry, ok bool) {
	seq := id.seq
	if id.now != 0 {
		seq = id.now
	}
	if id.rests != 0 {
		at = place{seq: seq, state: StateDelayed, at: id.rests}
		if e, ok = q.entryAt(at); ok {
			return at, e, true
		}
	}
	for l := q.ready.occupiedFrom(len(q.ready.lines) - 1); l >= 0; l = q.ready.occupiedFrom(l - 1) {
		at = place{seq: seq, state: StateReady, level: uint8(l)}
		if e, ok = q.entryAt(at); ok {
			return at, e, true
		}
	}
	return place{}, entry{}, false
}

// remember keeps the id of a message that the queue has just taken.
func (q *queue) remember(e *entry, key idKey) {
	if key == (idKey{}) || !q.def.Dedup.on() {
		return
	}
	if old, ok := q.ids.find(key); ok {
		q.ids.remove(old.seq) // it has expired
	}
	id := remembered{key: key, seq: e.seq}
	if q.def.Dedup.Window != 0 {
		id.until = q.now + instant(q.def.Dedup.Window)
	}
	q.count.Forgotten += q.ids.add(id, q.def.Dedup.MaxIDs)
}

// record keeps the id of a message that its consumer has done, from the first time on.
func (q *queue) record(key idKey) {
	q.count.Done++
	memory := &q.def.Inbox
	if memory.Window == 0 {
		return
	}
	if old, ok := q.inbox.find(key); ok {
		if old.until > q.now {
			return
		}
		q.inbox.remove(old.seq)
	}
	id := remembered{key: key, seq: q.count.Done, until: q.now + instant(memory.Window)}
	q.count.Forgotten += q.inbox.add(id, memory.MaxIDs)
}

// expireIDs takes out the ids whose time has come.
func (q *queue) expireIDs() {
	if q.def.Dedup.Window != 0 {
		q.ids.expire(q.now)
	}
	if q.def.Inbox.Window != 0 {
		q.inbox.expire(q.now)
	}
}

// idsDue is when expireIDs should be called at the latest, if that is before at; 0 for never.
func (q *queue) idsDue(at instant) instant {
	if q.def.Dedup.Window != 0 {
		if due := q.ids.due(q.def.Dedup.Window); due != 0 && (at == 0 || due < at) {
			at = due
		}
	}
	if q.def.Inbox.Window != 0 {
		if due := q.inbox.due(q.def.Inbox.Window); due != 0 && (at == 0 || due < at) {
			at = due
		}
	}
	return at
}

// rests takes note of when a delayed message is ready: that is how it is found.
func (q *queue) rests(e *entry, at instant) {
	if q.def.Dedup.OnDuplicate == IgnoreDuplicate {
		return
	}
	if id, ok := q.ids.at(q.number(*e)); ok {
		id.rests = at
		q.ids.inOrder.ReplaceOrInsert(id)
	}
}

// done says that a message has left the queue, or is dead.
func (q *queue) done(e *entry) {
	if q.def.Dedup.UntilDone {
		q.ids.remove(q.number(*e))
	}
}

// view is the ids as they are now, whatever happens to them later; nil if there never were any.
func (x *idIndex) view() *btree.BTreeG[remembered] {
	if x.inOrder == nil {
		return nil
	}
	return x.inOrder.Clone()
}

// appendTo encodes an id for a snapshot. When its message is ready, and what seq that has, is said there with the message.
func (id remembered) appendTo(dst []byte) []byte {
	dst = wire.AppendUvarint(id.key.appendTo(dst), id.seq)
	return wire.AppendVarint(dst, int64(id.until))
}

// smallestID is a lower bound of the bytes of an id in a snapshot.
const smallestID = 18

// decodeIDs reads the ids of Dedup and of the inbox.
func (q *queue) decodeIDs(r *wire.Reader) {
	q.ids.decode(r, q.nextSeq, q.def.Dedup.MaxIDs, q.def.Dedup.Window != 0)
	q.inbox.decode(r, q.count.Done+1, q.def.Inbox.MaxIDs, true)
}

// decode reads at most limit ids with numbers below next, which expire or do not.
func (x *idIndex) decode(r *wire.Reader, next uint64, limit int, expires bool) {
	last := remembered{}
	n := r.Count(smallestID)
	if n > limit {
		r.Fail()
	}
	for range n {
		id := remembered{key: decodeKey(r), seq: r.Uvarint(), until: instant(r.Varint())}
		_, twice := x.find(id.key)
		if twice || id.seq <= last.seq || id.seq >= next || id.key == (idKey{}) || id.until < last.until || (id.until > 0) != expires {
			r.Fail()
		}
		if r.Err() != nil {
			return
		}
		x.add(id, limit)
		last = id
	}
}
