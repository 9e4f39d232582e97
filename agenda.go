package bourse

import (
	"cmp"
	"math"
	"slices"

	"github.com/boursemq/bourse/internal/wire"
)

// never is the time of the next fire of a schedule that has none.
const never instant = math.MaxInt64

// agenda is what the schedules of a topology do when. The machine knows no calendar: at the time of a fire it asks the
// outside, which answers with a fire command that holds what to publish and when to ask again. So what was due is decided once,
// by the proposer's parser and time zones, and every replica does the same. An answer about a time that is not due
// any more does nothing: neither a repetition nor a second node can fire twice.
//
// Invariants, tested by check:
//  1. all holds the schedules of the topology, by ascending id.
//  2. next is the earliest due of those that the outside was not asked about, 0 if there is none.
//  3. A schedule whose due is not known has been asked about, and has not fired.
//  4. last < due, if due is known.
type agenda struct {
	all  []*appointment
	next instant
}

// appointment is the state of one schedule.
type appointment struct {
	*scheduleDef
	since instant // when it was declared
	due   instant // of the next fire; 0: not known yet
	asked bool    // the outside was asked what to do at due
	last  instant // the fire before; 0: none

	fired, skipped, unroutable uint64
}

// outcome is what a fire command does with the fire that is due.
type outcome byte

const (
	outcomeNone       outcome = iota // nothing happens: the first command of a schedule, or what was missed is passed over
	outcomeHere                      // the message is in the command, with its queues
	outcomeElsewhere                 // its queues, in other shards, have it already
	outcomeUnroutable                // it was routed to no queue
)

// fire: schedule, due, outcome, fire, next, skipped; then as enqueue if the message is here. fire is the time that happens,
// which is later than due if some were passed over.
type fire struct {
	schedule scheduleID
	due      instant
	outcome  outcome
	fire     instant
	next     instant
	skipped  uint64
}

func (c fire) appendTo(dst []byte, at instant) []byte {
	dst = appendHeader(dst, cmdFire, at)
	dst = wire.AppendUvarint(dst, uint64(c.schedule))
	dst = wire.AppendVarint(dst, int64(c.due))
	dst = append(dst, byte(c.outcome))
	dst = wire.AppendVarint(dst, int64(c.fire))
	dst = wire.AppendVarint(dst, int64(c.next))
	return wire.AppendUvarint(dst, c.skipped)
}

func decodeFire(r *wire.Reader) fire {
	c := fire{
		schedule: scheduleID(r.Uvarint()), due: instant(r.Varint()), outcome: outcome(r.Byte()),
		fire: instant(r.Varint()), next: instant(r.Varint()), skipped: r.Uvarint(),
	}
	happens := c.outcome != outcomeNone
	if c.outcome > outcomeUnroutable || c.next <= c.due || happens != (c.fire != 0) || happens && c.due == 0 ||
		happens && (c.fire < c.due || c.fire >= c.next) {
		r.Fail()
	}
	return c
}

func (g *agenda) find(id scheduleID) *appointment {
	i, ok := slices.BinarySearchFunc(g.all, id, func(a *appointment, id scheduleID) int { return cmp.Compare(a.id, id) })
	if !ok {
		return nil
	}
	return g.all[i]
}

// follow makes the agenda that of t. A schedule that is new begins now.
func (g *agenda) follow(t *topology, now instant, out []effect) []effect {
	known := agenda{all: g.all}
	g.all = nil
	t.schedules(func(s *scheduleDef) bool {
		if a := known.find(s.id); a != nil {
			g.all = append(g.all, a)
			return true
		}
		a := &appointment{scheduleDef: s, since: now, asked: true}
		g.all = append(g.all, a)
		out = append(out, a.effect())
		return true
	})
	slices.SortFunc(g.all, func(a, b *appointment) int { return cmp.Compare(a.id, b.id) })
	g.look()
	return out
}

// effect asks what to do at due.
func (a *appointment) effect() effect {
	return effect{kind: effectFire, seq: uint64(a.id), at: a.due}
}

// ask asks about all that is due.
func (g *agenda) ask(now instant, out []effect) []effect {
	if g.next == 0 || g.next > now {
		return out
	}
	for _, a := range g.all {
		if !a.asked && a.due <= now {
			a.asked = true
			out = append(out, a.effect())
		}
	}
	g.look()
	return out
}

// look finds next.
func (g *agenda) look() {
	g.next = 0
	for _, a := range g.all {
		if !a.asked && a.due != never && (g.next == 0 || a.due < g.next) {
			g.next = a.due
		}
	}
}

// lead appends what was asked and not answered.
func (g *agenda) lead(out []effect) []effect {
	for _, a := range g.all {
		if a.asked {
			out = append(out, a.effect())
		}
	}
	return out
}

// fire carries out what the outside has found to do for a schedule. It does nothing if that was for another time than
// is due, or came before its time.
func (m *machine) fire(ref Ref, size int, r *wire.Reader, out []effect) (applied, []effect) {
	c := decodeFire(r)
	if c.outcome == outcomeHere {
		mustDecode(cmdFire, r.Err())
	} else {
		mustDecode(cmdFire, r.Done())
	}
	a := m.agenda.find(c.schedule)
	if a == nil || a.due != c.due || max(c.due, c.fire) > m.now {
		return applied{answer: Answer{Code: answerStale}}, out
	}
	var res applied
	if c.outcome == outcomeHere {
		var refused []refusal
		if refused, out = m.refusing(nil, dying{}, size, *r, out); len(refused) > 0 {
			return applied{answer: refusedAnswer(0, refused)}, out
		}
		res, out = m.enqueue(ref, size, r, arrivesDecided, out)
		if res.answer.Code != answerOK {
			return res, out
		}
	}
	a.skipped += c.skipped
	switch c.outcome {
	case outcomeNone:
	case outcomeHere, outcomeElsewhere:
		a.fired++
	case outcomeUnroutable:
		a.unroutable++
	}
	if c.fire != 0 {
		a.last = c.fire
	}
	a.due, a.asked = c.next, false
	m.agenda.look()
	return res, m.agenda.ask(m.now, out)
}

// The agenda in a snapshot, behind the topology: for each schedule by ascending id since, due, asked, last, fired, skipped,
// unroutable.
func (g *agenda) appendTo(dst []byte) []byte {
	for _, a := range g.all {
		dst = wire.AppendVarint(dst, int64(a.since))
		dst = wire.AppendVarint(dst, int64(a.due))
		dst = wire.AppendBool(dst, a.asked)
		dst = wire.AppendVarint(dst, int64(a.last))
		dst = wire.AppendUvarint(dst, a.fired)
		dst = wire.AppendUvarint(dst, a.skipped)
		dst = wire.AppendUvarint(dst, a.unroutable)
	}
	return dst
}

func decodeAgenda(r *wire.Reader, t *topology) (g agenda) {
	g.follow(t, 0, nil)
	for _, a := range g.all {
		a.since, a.due, a.asked, a.last = instant(r.Varint()), instant(r.Varint()), r.Bool(), instant(r.Varint())
		a.fired, a.skipped, a.unroutable = r.Uvarint(), r.Uvarint(), r.Uvarint()
		if a.due == 0 && (!a.asked || a.last != 0) || a.due != 0 && a.last >= a.due {
			r.Fail()
		}
	}
	g.look()
	return g
}
