package bourse

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/google/btree"

	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/internal/wire"
)

// machine is the state of one shard: the topology and the queues in it. It changes only in apply, by
// one command of the log at a time, and is deterministic as its queues are.
//
// Invariants, tested by check:
//  1. order holds the queues of the topology, by ascending id, or none in a catalogue; queues finds each by its id.
//  2. A queue with something due has a timer no later than that.
//  3. Every consumer belongs to the session of the last open.
//  4. Each queue weighs what it did when it was weighed last, or is listed to be, once.
type machine struct {
	role     role
	now      instant
	session  uint32
	topology *topology
	revision uint64             // of roleQueue: the last change of the queue that has come here
	queues   map[queueID]*queue // lookup only, never walked
	last     *queue             // the one that was found last, or nil: the next command is often for the same
	order    []*queue
	timers   *btree.BTreeG[timer]
	woken    instant // what the last wake effect asked for
	agenda   agenda
	scale    scale
}

// timer is when a queue must be looked at; it may be earlier than needed.
type timer struct {
	at    instant
	queue queueID
}

func byTimer(a, b timer) bool { return a.at < b.at || a.at == b.at && a.queue < b.queue }

// role says what a machine holds.
type role byte

const (
	roleAll       role = iota // the topology and all queues: the one shard of OneShard
	roleCatalogue             // the topology alone: shard 1 of ShardPerQueue
	roleQueue                 // one queue: each of its other shards
)

// newMachine returns a machine without a history. topology is what it starts with: a new one, or for
// roleQueue that of the one queue.
func newMachine(role role, topology *topology) *machine {
	m := &machine{role: role, topology: topology, queues: make(map[queueID]*queue), timers: btree.NewG(16, byTimer)}
	m.populate()
	return m
}

// populate makes the queues of the topology, empty.
func (m *machine) populate() {
	if m.role == roleCatalogue {
		return
	}
	for def := range m.topology.queues {
		if m.holds(def) {
			m.add(newQueue(def))
		}
	}
}

// holds reports whether what is in a queue is this machine's affair.
func (m *machine) holds(def queueDef) bool {
	return m.role == roleQueue || m.role == roleAll && !def.Transient
}

func (m *machine) add(q *queue) {
	m.queues[q.def.id] = q
	m.order = append(m.order, q)
	slices.SortFunc(m.order, func(a, b *queue) int { return cmp.Compare(a.def.id, b.def.id) })
}

// applied is what came of one command: the answer, and how many references to the command the queues took.
type applied struct {
	answer Answer
	kept   int
}

// apply takes the machine forward by the command that the log holds at ref, and appends to out what must be done
// outside. A command that does not decode is a bug or a newer version's: the process must stop rather
// than guess, so it panics.
func (m *machine) apply(ref Ref, cmd []byte, out []effect) (applied, []effect) {
	r := wire.NewReader(cmd)
	kind := commandKind(r.Byte())
	m.now = max(m.now, instant(r.Uint64()))
	var res applied
	switch kind {
	case cmdEnqueue:
		res, out = m.enqueue(ref, len(cmd), &r, arrivesNew, out)
	case cmdSettle:
		c := decodeSettle(&r)
		mustDecode(kind, r.Done())
		if q := m.at(c.queue); q != nil {
			res.answer.Code, out = q.settle(c, out)
			out = m.touch(q, out)
		} else {
			res.answer.Code = answerGone
		}
	case cmdAckUpTo:
		c := decodeAckUpTo(&r)
		mustDecode(kind, r.Done())
		if q := m.at(c.queue); q != nil {
			var n uint64
			n, out = q.ackUpTo(c.consumer, c.tag, out)
			res.answer.Code = answerNumber + n
			out = m.touch(q, out)
		} else {
			res.answer.Code = answerGone
		}
	case cmdAcks:
		l := decodeAcks(&r)
		mustDecode(kind, r.Done())
		if q := m.at(l.queue); q != nil {
			for tag, slot := range l.all {
				_, out = q.settle(settle{consumer: l.consumer, tag: tag, slot: slot, verdict: verdictAck}, out)
			}
			out = m.touch(q, out)
		} else {
			res.answer.Code = answerGone
		}
	case cmdAttach:
		c := decodeAttach(&r)
		mustDecode(kind, r.Done())
		res.answer.Code, out = m.attach(c, out)
	case cmdDetach:
		c := decodeDetach(&r)
		mustDecode(kind, r.Done())
		if q := m.at(c.queue); q != nil {
			_, out = q.detach(c.consumer, c.failed, out)
			out = m.touch(q, out)
		}
	case cmdTake:
		c := decodeTake(&r)
		mustDecode(kind, r.Done())
		res.answer, out = m.take(c, out)
	case cmdTick:
		mustDecode(kind, r.Done())
		out = m.tick(out)
	case cmdOpen:
		lost := r.Bool()
		mustDecode(kind, r.Done())
		out = m.open(lost, out)
		res.answer.Code = answerNumber + uint64(m.session)
	case cmdDeclare:
		limits, session := decodeLimits(&r), sessionID(r.Uint64())
		ds := decodeDeclarations(&r)
		mustDecode(kind, r.Done())
		res.answer, out = m.declare(session, limits, ds, out)
	case cmdRemove:
		only, session := removeOnly(r.Byte()), sessionID(r.Uint64())
		ds := decodeDeclarations(&r)
		mustDecode(kind, r.Done())
		res.answer, out = m.remove(session, only, ds, out)
	case cmdMove:
		res, out = m.move(ref, len(cmd), &r, out)
	case cmdEnter:
		res, out = m.enter(ref, len(cmd), &r, out)
	case cmdForwarded:
		id, seq := queueID(r.Uvarint()), r.Uvarint()
		mustDecode(kind, r.Done())
		if q := m.at(id); q != nil {
			_, out = q.moved(seq, out)
		}
	case cmdAmend:
		res, out = m.amend(ref, len(cmd), &r, out)
	case cmdPause:
		res.answer, out = m.pause(&r, out)
	case cmdPurge:
		id := queueID(r.Uvarint())
		mustDecode(kind, r.Done())
		if q := m.at(id); q != nil {
			var n uint64
			n, out = q.purge(out)
			res.answer.Code = answerNumber + n
			out = m.touch(q, out)
		} else {
			res.answer.Code = answerGone
		}
	case cmdBundle:
		g := decodeBundle(&r)
		mustDecode(kind, r.Done())
		res, out = m.bundle(ref, &g, out)
	case cmdUpdate:
		session, d := sessionID(r.Uint64()), decodeOneQueue(&r)
		mustDecode(kind, r.Done())
		res.answer, out = m.update(session, d, out)
	case cmdRedefine:
		id, revision, d := queueID(r.Uvarint()), r.Uvarint(), decodeOneQueue(&r)
		mustDecode(kind, r.Done())
		res.answer, out = m.redefine(id, revision, d, out)
	case cmdRetire:
		res.answer, out = m.retireNamed(&r, out)
	case cmdFire:
		res, out = m.fire(ref, len(cmd), &r, out)
	default:
		panic(newerCommand(kind))
	}
	out = m.wake(out)
	if invariant.Costly {
		m.check()
	}
	return res, out
}

// newerCommand is the panic of a machine at a command that it does not know.
type newerCommand commandKind

func (k newerCommand) Error() string {
	return fmt.Sprintf("bourse: command of unknown kind %d: the log was written by a newer version", byte(k))
}

func mustDecode(kind commandKind, err error) {
	if err != nil {
		panic(fmt.Sprintf("bourse: command of kind %d does not decode: %v", kind, err))
	}
}

// at returns the queue with that id, brought to the present, or nil if it is gone.
func (m *machine) at(id queueID) *queue {
	q := m.last
	if q == nil || q.def.id != id {
		if q = m.queues[id]; q == nil {
			return nil
		}
		m.last = q
	}
	q.now = m.now
	m.weighLater(q)
	return q
}

// touch finishes a command on q: what is due happens, a consumer becomes active if one must, what is ready goes to who has room,
// and the timer is set.
func (m *machine) touch(q *queue, out []effect) []effect {
	out = q.lapse(q.dispatch(q.elect(q.expire(out))))
	m.arm(q)
	return out
}

// arm sets q's timer to when something is due there. A timer that is too early stays: to move it with
// every ack would cost more than the one tick that it may waste.
func (m *machine) arm(q *queue) {
	due := q.due()
	if due == 0 || q.timer != 0 && q.timer <= due {
		return
	}
	if q.timer != 0 {
		m.timers.Delete(timer{q.timer, q.def.id})
	}
	q.timer = due
	m.timers.ReplaceOrInsert(timer{due, q.def.id})
}

// wake tells the outside when to propose the next tick, if that has changed.
func (m *machine) wake(out []effect) []effect {
	at := instant(0)
	if first, ok := m.timers.Min(); ok {
		at = first.at
	}
	if next := m.agenda.next; next != 0 && (at == 0 || next < at) {
		at = next
	}
	if at == m.woken {
		return out
	}
	m.woken = at
	return append(out, effect{kind: effectWake, at: at})
}

// tick looks at every queue whose timer has come.
func (m *machine) tick(out []effect) []effect {
	if m.woken <= m.now {
		m.woken = 0 // that wake has rung: what stepLimit leaves due needs another, for the same time
	}
	out = m.sweep(out)
	var due []timer
	m.timers.Ascend(func(t timer) bool {
		if t.at <= m.now {
			due = append(due, t)
			return true
		}
		return false
	})
	for _, t := range due {
		m.timers.Delete(t)
		q := m.at(t.queue)
		q.timer = 0
		if at := q.due(); at == 0 || at > m.now {
			m.arm(q) // It was early, as it is on some replicas only: there nothing may happen that does not on the others.
			continue
		}
		out = m.touch(q, out)
	}
	return m.agenda.ask(m.now, out)
}

// enqueue brings a message to the queues that the command names.
func (m *machine) enqueue(ref Ref, size int, r *wire.Reader, how arrival, out []effect) (applied, []effect) {
	// The ids come first and the attributes behind them, so the ids are read twice.
	ids := *r
	n := r.Count(1)
	for range n {
		r.Uvarint()
	}
	a := decodeAttributes(r)
	mustDecode(cmdEnqueue, r.Err())
	plain := a.plain(size)
	if how == arrivesNew && a.flags&flagDeaths != 0 {
		how = arrivesAgain
	}
	var res applied
	taken := 0 // by queues that have it, or had it before
	var refused []refusal
	for range ids.Count(1) {
		q := m.at(queueID(ids.Uvarint()))
		if q == nil {
			continue
		}
		if q.def.limited() {
			var no refusal
			var kept int
			if kept, no, out = m.acceptLimited(q, ref, plain, a, *r, how, out); no.why != 0 {
				refused = append(refused, no)
				continue
			}
			taken++
			res.kept += kept
			continue
		}
		taken++
		var kept int
		kept, out = q.accept(ref, plain, a, *r, out)
		res.kept += kept
		out = m.touch(q, out)
	}
	switch {
	case len(refused) > 0:
		res.answer = refusedAnswer(taken, refused)
	case taken > 0:
		res.answer.Code = answerOK
	default:
		res.answer.Code = answerGone
	}
	return res, out
}

// move is an enqueue that also takes the message out of the queue where it died, in one step. If it
// is not dying there any more, an earlier move has done it and this one does nothing. If a target has no room it stays.
func (m *machine) move(ref Ref, size int, r *wire.Reader, out []effect) (applied, []effect) {
	source, seq := m.at(queueID(r.Uvarint())), r.Uvarint()
	mustDecode(cmdMove, r.Err())
	d, dies := source.dyingMessage(seq)
	if !dies {
		return applied{answer: Answer{Code: answerStale}}, out
	}
	var refused []refusal
	if refused, out = m.refusing(source, d, size, *r, out); len(refused) > 0 {
		return applied{answer: refusedAnswer(0, refused)}, out
	}
	res, out := m.enqueue(ref, size, r, arrivesDecided, out)
	if res.kept > 0 {
		_, out = source.moved(seq, out)
	}
	return res, out
}

func (m *machine) attach(c attach, out []effect) (uint64, []effect) {
	out = m.sweep(out)
	q := m.at(c.queue)
	switch {
	case q == nil || q.lease.ending != endsNot:
		return answerGone, out
	case c.consumer.session() != m.session:
		return answerStale, out
	case len(q.roster.all) >= maxConsumers && q.roster.find(c.consumer) == nil:
		return answerTooMany, out
	}
	q.attach(c.consumer, c.prefetch, c.priority)
	q.use()
	return answerOK, m.touch(q, out)
}

// maxConsumers bounds the consumers of a queue. It is part of the machine, the same on every replica.
const maxConsumers = 1000

// take lends one message to a consumer, whatever its prefetch. The loan is the answer.
func (m *machine) take(c take, out []effect) (Answer, []effect) {
	out = m.sweep(out)
	q := m.at(c.queue)
	if q == nil || q.lease.ending != endsNot {
		return Answer{Code: answerGone}, out
	}
	out = q.expire(out)
	holder := q.roster.find(c.consumer)
	if holder == nil {
		return Answer{Code: answerStale}, m.touch(q, out) // what came due above goes to the others
	}
	q.use()
	if q.shut() || q.def.SingleActiveConsumer {
		return Answer{Code: answerHeld}, m.touch(q, out)
	}
	if !q.servable() {
		return Answer{Code: answerEmpty}, m.touch(q, out)
	}
	out = q.lend(holder, out)
	e := out[len(out)-1] // the loan goes into the answer instead
	out = m.touch(q, out[:len(out)-1])
	return Answer{Code: answerOK, Data: e.appendTo(nil)}, out
}

// open starts a new session: all consumers are gone, and what they held comes back, with a failure
// each if they were lost.
func (m *machine) open(lost bool, out []effect) []effect {
	m.session++
	if durable := m.topology.durable(); m.role != roleQueue && durable != m.topology {
		m.topology = durable
		out = append(out, effect{kind: effectTopology})
	}
	for _, q := range m.order {
		q.now = m.now
		m.weighLater(q)
		for len(q.roster.all) > 0 {
			_, out = q.detach(q.roster.all[0].id, lost, out)
		}
		q.begin()
		out = m.touch(q, out)
	}
	return m.sweep(out)
}

func (m *machine) declare(session sessionID, limits topologyLimits, ds []Declaration, out []effect) (Answer, []effect) {
	out = m.sweep(out)
	had := m.topology.within(limits)
	if err := had.anyLockedFor(session, ds); err != nil {
		return Answer{Code: answerError, Data: appendError(nil, err)}, out
	}
	next, created, err := had.declare(ds)
	if err != nil {
		return Answer{Code: answerError, Data: appendError(nil, err)}, out
	}
	next.own(session, created)
	next, out = m.renewed(ds, had, next, out)
	if next == had {
		return Answer{Code: answerOK}, out
	}
	out = m.adopt(next, out)
	for _, def := range created {
		if !m.holds(def) {
			continue // it opens a shard of its own
		}
		q := newQueue(def)
		q.now = m.now
		q.renew()
		m.add(q)
		m.arm(q)
	}
	return Answer{Code: answerOK}, append(out, effect{kind: effectTopology})
}

// adopt makes next the topology, and the agenda that of its schedules.
func (m *machine) adopt(next *topology, out []effect) []effect {
	changed := next.scheduleNames != m.topology.scheduleNames
	m.topology = next
	if changed {
		out = m.agenda.follow(next, m.now, out)
	}
	return out
}

func (m *machine) remove(session sessionID, only removeOnly, ds []Declaration, out []effect) (Answer, []effect) {
	out = m.sweep(out)
	err := m.topology.anyLockedFor(session, ds)
	if err == nil {
		err = m.removable(only, ds)
	}
	if err != nil {
		return Answer{Code: answerError, Data: appendError(nil, err)}, out
	}
	next, removed, err := m.topology.remove(ds)
	if err != nil {
		return Answer{Code: answerError, Data: appendError(nil, err)}, out
	}
	if next == m.topology {
		return Answer{Code: answerOK}, out
	}
	out = m.dropAll(removed, m.adopt(next, out))
	return Answer{Code: answerOK}, append(out, effect{kind: effectTopology})
}

// dropAll drops the queues that were removed from the topology, as far as they are here.
func (m *machine) dropAll(removed []queueDef, out []effect) []effect {
	for _, def := range removed {
		q := m.queues[def.id]
		if q == nil {
			continue // in a shard of its own
		}
		out = q.drop(out)
		if q.timer != 0 {
			m.timers.Delete(timer{q.timer, def.id})
		}
		m.weighNoMore(q)
		delete(m.queues, def.id)
		m.last = nil
		m.order = slices.DeleteFunc(m.order, func(o *queue) bool { return o == q })
	}
	return out
}

// removable reports why ds may not be removed under the conditions of only.
func (m *machine) removable(only removeOnly, ds []Declaration) error {
	for _, d := range ds {
		switch d := d.(type) {
		case Queue:
			def, ok := m.topology.queue(d.Name)
			if !ok {
				continue
			}
			q := m.queues[def.id]
			if q == nil && only != 0 && def.Transient {
				return invalid("DeleteOnly", "is set, but queue %q is transient", d.Name)
			}
			if q == nil {
				continue
			}
			if only&onlyUnused != 0 && q.consumers() > 0 {
				return fmt.Errorf("queue %q has %d consumers: %w", d.Name, q.consumers(), ErrInUse)
			}
			if only&onlyEmpty != 0 && q.size() > 0 {
				return fmt.Errorf("queue %q holds %d messages: %w", d.Name, q.size(), ErrNotEmpty)
			}
		case Exchange:
			if n := m.topology.bindingsOf(d.Name); only&onlyUnused != 0 && n > 0 {
				return fmt.Errorf("exchange %q has %d bindings: %w", d.Name, n, ErrInUse)
			}
		}
	}
	return nil
}

// lead appends what the outside must be told anew when it starts to act for this shard.
func (m *machine) lead(out []effect) []effect {
	for _, q := range m.order {
		out = q.lead(out)
	}
	m.woken = 0
	out = m.agenda.lead(out)
	if m.role != roleQueue {
		out = append(out, effect{kind: effectTopology})
	}
	return m.wake(out)
}
