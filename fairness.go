package bourse

import (
	"time"

	"github.com/boursemq/bourse/internal/wire"
)

// Fairness lets the lower levels of a queue with priorities have their part. The zero value is strict priority: a level is
// served only while all above it are empty. In each level the first is the one that came first or, of groups, the one whose
// turn it is, and the rules are about these.
type Fairness struct {
	// LowerOneIn gives one delivery in so many to the next lower level that is not empty, whatever waits above it: deliveries of
	// the queue number LowerOneIn, 2*LowerOneIn and so on. 0 (default): none; else 2 to MaxLowerOneIn. Levels further down get
	// nothing by it; Aging is for them.
	LowerOneIn int
	// Aging raises a message by one level, up to the highest, for each such time since it arrived in the queue, delays included.
	// Among messages that have come to the same level so, the one that came first goes first. After (Priorities-1-level)*Aging
	// a message is at the top, and all that still goes before it is what arrived before it, and the deliveries of LowerOneIn: that is
	// the longest wait. 0 (default): none; at most MaxDelay.
	Aging time.Duration
}

// MaxLowerOneIn is the limit of Fairness.LowerOneIn.
const MaxLowerOneIn = 1_000_000

// validateFairness checks what says which message of a queue is next.
func (d Queue) validateFairness() *InvalidError {
	f := d.Fairness
	switch {
	case f.LowerOneIn < 0 || f.LowerOneIn == 1 || f.LowerOneIn > MaxLowerOneIn:
		return invalid("Queue.Fairness.LowerOneIn", "is %d, want 0, or 2 to %d", f.LowerOneIn, MaxLowerOneIn)
	case f.Aging < 0 || f.Aging > MaxDelay:
		return invalid("Queue.Fairness.Aging", "is %v, want 0 to %v", f.Aging, time.Duration(MaxDelay))
	case d.Priorities > 1:
	case f.LowerOneIn > 0:
		return invalid("Queue.Fairness.LowerOneIn", "is set, but there is only one level: set Priorities")
	case f.Aging > 0:
		return invalid("Queue.Fairness.Aging", "is set, but there is only one level: set Priorities")
	case d.BumpOnRedelivery:
		return invalid("Queue.BumpOnRedelivery", "is set, but there is only one level: set Priorities")
	}
	return nil
}

func (f Fairness) appendTo(dst []byte) []byte {
	return wire.AppendVarint(wire.AppendVarint(dst, int64(f.LowerOneIn)), int64(f.Aging))
}

func decodeFairness(r *wire.Reader) Fairness {
	return Fairness{LowerOneIn: decodeInt(r), Aging: time.Duration(r.Varint())}
}

// contender is the message that is next at a level, and the level that its age has raised it to. Level held: none.
type contender struct {
	level, raised int
	seq           uint64
	group         *group // nil: none
}

func (c contender) before(o contender) bool {
	return o.level == held || c.raised > o.raised || c.raised == o.raised && c.seq < o.seq
}

// fairNext is next under Fairness. It looks at the next message of each level: without groups that is the one that came first,
// so that what is behind it is not raised further.
func (q *queue) fairNext(at instant) (level int, g *group) {
	f := q.def.Fairness
	first, second := contender{level: held}, contender{level: held} // the best, and the best of those that are raised less
	for level, g := q.nextFrom(MaxPriorities - 1); level != held; level, g = q.nextFrom(level - 1) {
		var e entry
		if g == nil {
			e = q.ready.firstOf(level)
		} else {
			e, _ = q.ready.find(uint8(level), q.groups.first(g).seq)
		}
		c := contender{level, q.raised(&e, at), e.seq, g}
		switch {
		case first.level == held || c.raised > first.raised:
			first, second = c, first
		case c.raised == first.raised:
			if c.before(first) {
				first = c
			}
		case c.before(second):
			second = c
		}
		if f.Aging == 0 && second.level != held {
			break
		}
	}
	if n := f.LowerOneIn; n > 0 && second.level != held && (q.roster.turn+1)%uint64(n) == 0 {
		first = second
	}
	return first.level, first.group
}

// raised is the level of e with what its age adds. A clock that lags adds nothing.
func (q *queue) raised(e *entry, at instant) int {
	top, level := q.def.Priorities-1, int(e.level)
	if a := q.def.Fairness.Aging; a > 0 {
		if steps := max(0, int64(at-e.arrived)) / int64(a); steps < int64(top-level) {
			return level + int(steps)
		}
		return top
	}
	return level
}

// bump raises a message that went wrong by a level, if the queue says so.
func (q *queue) bump(e *entry) {
	if q.def.BumpOnRedelivery && int(e.level) < q.def.Priorities-1 {
		e.level++
	}
}

// LevelStats is the state of one level of a queue with priorities.
type LevelStats struct {
	Ready  int           // wait for a consumer
	Oldest time.Duration // how long the first of them has waited since it arrived; 0 if there is none
}

// levels is nil for a queue with one level.
func (q *queue) levels(now instant) []LevelStats {
	if q.def.Priorities < 2 {
		return nil
	}
	all := make([]LevelStats, q.def.Priorities)
	for i := range all {
		all[i].Ready = q.ready.at(i)
		q.ready.from(i, 0, func(e entry) bool {
			all[i].Oldest = max(0, time.Duration(now-e.arrived))
			return false
		})
	}
	return all
}
