package bourse

import "math"

// State says where in its queue a message is.
type State uint8

const (
	StateReady   State = iota + 1 // waits for a consumer
	StateDelayed                  // waits for a time
	StateUnacked                  // is on loan
	StateDying                    // is on the way to its dead-letter queues
)

func (s State) String() string {
	switch s {
	case StateReady:
		return "ready"
	case StateDelayed:
		return "delayed"
	case StateUnacked:
		return "unacked"
	case StateDying:
		return "dying"
	}
	return "unknown"
}

// place is where a message stands in its queue. As long as it stands there it is found without a search.
type place struct {
	seq   uint64
	first uint64  // its number, if that is another; 0 otherwise
	at    instant // delayed: until when
	slot  slotID  // unacked
	state State   // 0: not known
	level uint8   // ready
}

// number is that of the message which was at p.
func (p place) number() uint64 {
	if p.first != 0 {
		return p.first
	}
	return p.seq
}

// locate finds the message with the number of p: at p, or wherever it has gone to. Away from p that costs a walk over all that is on
// loan and all that is delayed, and over the extras if messages have gone to the tail.
func (q *queue) locate(p place) (place, entry, bool) {
	number := p.number()
	if e, ok := q.entryAt(p); ok && q.number(e) == number {
		return p, e, true
	}
	p, e, ok := q.search(q.seqOf(number))
	if !ok || q.number(e) != number {
		return place{}, entry{}, false
	}
	if p.seq != number {
		p.first = number
	}
	return p, e, true
}

// search finds a message by its seq alone.
func (q *queue) search(seq uint64) (place, entry, bool) {
	for l := q.ready.occupiedFrom(len(q.ready.lines) - 1); l >= 0; l = q.ready.occupiedFrom(l - 1) {
		if e, ok := q.ready.find(uint8(l), seq); ok {
			return place{seq: seq, state: StateReady, level: uint8(l)}, e, true
		}
	}
	if e, ok := q.entryAt(place{seq: seq, state: StateDying}); ok {
		return place{seq: seq, state: StateDying}, e, true
	}
	for s := range q.ledger.slots {
		if ln := &q.ledger.slots[s]; ln.holder != nil && ln.seq == seq {
			return place{seq: seq, state: StateUnacked, slot: slotID(s)}, ln.entry, true
		}
	}
	var found delayed
	if q.delayed != nil {
		q.delayed.Ascend(func(d delayed) bool {
			if d.seq == seq {
				found = d
			}
			return found.seq == 0
		})
	}
	return place{seq: seq, state: StateDelayed, at: found.at}, found.entry, found.seq != 0
}

// entryAt is the message that stands at p, if it does.
func (q *queue) entryAt(p place) (e entry, ok bool) {
	switch p.state {
	case StateReady:
		if int(p.level) < len(q.ready.lines) {
			return q.ready.find(p.level, p.seq)
		}
	case StateDelayed:
		if q.delayed != nil {
			d, ok := q.delayed.Get(delayed{p.at, entry{seq: p.seq}})
			return d.entry, ok
		}
	case StateUnacked:
		if p.slot >= 0 && int(p.slot) < len(q.ledger.slots) {
			ln := &q.ledger.slots[p.slot]
			return ln.entry, ln.holder != nil && ln.seq == p.seq
		}
	case StateDying:
		if q.dying != nil {
			d, ok := q.dying.Get(dying{entry: entry{seq: p.seq}})
			return d.entry, ok
		}
	}
	return entry{}, false
}

// sight is a message as one who looks finds it.
type sight struct {
	place   place
	entry   entry
	at      instant // delayed: until when; unacked: the deadline; dying: since when
	expires instant // ready and delayed; 0: never
	holder  consumerID
	tag     uint64
	reason  deathReason
	note    string
}

// firstPlace is before all messages of a state.
func firstPlace(s State) place {
	return place{state: s, level: MaxPriorities - 1, at: math.MinInt64, slot: noSlot}
}

// lookSlots bounds how many places for loans one look goes over.
const lookSlots = 4096

// look appends what stands behind after to out, at most limit messages, and returns the place to go on behind. It goes by
// state in the order of the constants, leaving out those without their bit in states; within ready by level from the highest
// and by seq, within delayed by time, within unacked by slot, within dying by seq. A place is good to go on behind when
// its message is gone. The cost is that of finding the place, whatever the queue holds. At the end, the state of the place
// is beyond StateDying.
func (q *queue) look(after place, states uint8, limit int, out []sight) ([]sight, place) {
	had := len(out)
	out, after = q.lookBehind(after, states, had+limit, out)
	if q.tailed > 0 {
		for i := range out[had:] {
			if s := &out[had+i]; q.number(s.entry) != s.entry.seq {
				s.place.first = q.number(s.entry)
			}
		}
	}
	return out, after
}

func (q *queue) lookBehind(after place, states uint8, enough int, out []sight) ([]sight, place) {
	for ; after.state <= StateDying; after = firstPlace(after.state + 1) {
		if states&(1<<after.state) == 0 {
			continue
		}
		over := true
		switch after.state {
		case StateReady:
			out = q.lookReady(after, enough, out)
		case StateDelayed:
			out = q.lookDelayed(after, enough, out)
		case StateUnacked:
			if out, after.slot, over = q.ledger.look(after.slot, enough, out); !over {
				return out, after
			}
		case StateDying:
			out = q.lookDying(after, enough, out)
		}
		if len(out) == enough {
			return out, out[len(out)-1].place
		}
	}
	return out, after
}

func (q *queue) lookReady(after place, enough int, out []sight) []sight {
	r := &q.ready
	for l := r.occupiedFrom(int(after.level)); l >= 0 && len(out) < enough; l = r.occupiedFrom(l - 1) {
		from := uint64(1)
		if l == int(after.level) {
			from = after.seq + 1
		}
		r.from(l, from, func(e entry) bool {
			p := place{seq: e.seq, state: StateReady, level: e.level}
			out = append(out, sight{place: p, entry: e, expires: q.expiry(e)})
			return len(out) < enough
		})
	}
	return out
}

func (q *queue) lookDelayed(after place, enough int, out []sight) []sight {
	if q.delayed == nil {
		return out
	}
	q.delayed.AscendGreaterOrEqual(delayed{after.at, entry{seq: after.seq + 1}}, func(d delayed) bool {
		p := place{seq: d.seq, state: StateDelayed, at: d.at}
		out = append(out, sight{place: p, entry: d.entry, at: d.at, expires: q.expiry(d.entry)})
		return len(out) < enough
	})
	return out
}

// look is queue.look for loans. It returns the last slot that it has seen, and whether there are no more.
func (l *ledger) look(after slotID, enough int, out []sight) ([]sight, slotID, bool) {
	for range lookSlots {
		if after++; int(after) >= len(l.slots) {
			return out, after, true
		}
		ln := &l.slots[after]
		if ln.holder == nil {
			continue
		}
		out = append(out, sight{
			place: place{seq: ln.seq, state: StateUnacked, slot: after}, entry: ln.entry, at: ln.deadline,
			holder: ln.holder.id, tag: ln.tag,
		})
		if len(out) == enough {
			break
		}
	}
	return out, after, false
}

func (q *queue) lookDying(after place, enough int, out []sight) []sight {
	if q.dying == nil {
		return out
	}
	q.dying.AscendGreaterOrEqual(dying{entry: entry{seq: after.seq + 1}}, func(d dying) bool {
		out = append(out, sight{
			place: place{seq: d.seq, state: StateDying}, entry: d.entry, at: d.at, reason: d.reason, note: d.note,
		})
		return len(out) < enough
	})
	return out
}
