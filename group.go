package bourse

import (
	"math"

	"github.com/google/btree"

	"github.com/boursemq/bourse/internal/wire"
)

// MaxGroupConcurrency is the most that Queue.GroupConcurrency can say, apart from NoLimit.
const MaxGroupConcurrency = MaxPrefetch

// groups is what a queue knows of the messages with a GroupID that are ready, on loan or resting. It says which message is next,
// so that no group has more at work than the limit, each goes in the order of arrival, and those that
// can go on take turns.
//
// A group has a seat. It is held if nothing of the group is ready or if the limit is reached, else it is at the level of
// the group's first ready message. The next message comes from the highest level, there from the one whose turn was least
// recently: one of the groups seated there, or the messages without a group, which at each level take turns as one group does,
// but have no limit. So a held group is never looked at, and each choice costs the logarithm of the number of groups.
//
// A group exists while it has messages here. A new one takes the last place in the order of turns; the numbers of turns begin
// anew when there is no group any more.
//
// Invariants, tested by check:
//  1. The groups are those of the messages that are ready, and of those that are counted: on loan, or resting after one. ready
//     and counted are how many.
//  2. members lists the ready ones; they are those in readySet.grouped.
//  3. Each group has one seat, at its place, and no turn is taken twice.
//  4. Not more of a group is on loan than the limit, unless that was lowered.
type groups struct {
	byName  map[string]*group // lookup only
	seats   *btree.BTreeG[seat]
	members *btree.BTreeG[member]
	turn    uint64   // the last one taken
	loose   []uint64 // by level: when a message without a group was served last
	number  uint64   // of the group that was made last
}

type group struct {
	name    string
	number  uint64 // its own while it lives; follows from nothing, and nothing from it
	turn    uint64 // when it was served last, or else came
	level   int    // of its seat
	ready   int
	counted int
}

// held is the level of a group that may not be served.
const held = -1

// seat is the place of a group in the order of service.
type seat struct {
	level int
	turn  uint64
	group *group
}

func bySeat(a, b seat) bool { return a.level < b.level || a.level == b.level && a.turn < b.turn }

// member is a ready message of a group.
type member struct {
	group uint64
	seq   uint64
	level uint8
}

func byMember(a, b member) bool { return a.group < b.group || a.group == b.group && a.seq < b.seq }

func newGroups(levels int) *groups {
	return &groups{
		byName: make(map[string]*group), seats: btree.NewG(16, bySeat), members: btree.NewG(16, byMember),
		loose: make([]uint64, levels),
	}
}

// isEmpty reports whether there is no group, so that the lines alone say what is next.
func (s *groups) isEmpty() bool { return s == nil || s.seats.Len() == 0 }

// nameOf is b as the name of a group: that of the group itself, if there is one, so that its messages share it.
func (q *queue) groupName(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if q.groups != nil {
		if g := q.groups.byName[string(b)]; g != nil {
			return g.name
		}
	}
	return string(b)
}

// groupOf is the group of e; nil: it has none.
func (q *queue) groupOf(e entry) *group {
	if !e.extra || q.groups == nil {
		return nil
	}
	return q.groups.byName[q.extraOf(e).group]
}

// limit is how many messages of a group may be at work.
func (q *queue) groupLimit() int {
	if q.def.GroupConcurrency == NoLimit {
		return maxInt
	}
	return q.def.GroupConcurrency
}

const maxInt = int(^uint(0) >> 1)

// insertGrouped adds a message with a group to the ready ones.
func (q *queue) insertGrouped(e entry, name string) {
	if q.groups == nil {
		q.groups = newGroups(q.def.Priorities)
	}
	s := q.groups
	g := s.byName[name]
	if g == nil {
		s.turn++
		g = s.add(name, s.turn)
	} else {
		s.seats.Delete(seat{level: g.level, turn: g.turn})
	}
	if e.counted {
		e.counted = false
		g.counted--
	}
	g.ready++
	s.members.ReplaceOrInsert(member{g.number, e.seq, e.level})
	q.ready.insertGrouped(e)
	q.sit(g)
}

// add makes a group without a seat.
func (s *groups) add(name string, turn uint64) *group {
	s.number++
	g := &group{name: name, number: s.number, turn: turn, level: held}
	s.byName[name] = g
	return g
}

// sit gives g, which has no seat, the one that it deserves, or ends it.
func (q *queue) sit(g *group) {
	s := q.groups
	if g.ready+g.counted == 0 {
		delete(s.byName, g.name)
		if s.seats.Len() == 0 {
			s.turn = 0
			clear(s.loose)
		}
		return
	}
	g.level = held
	if g.ready > 0 && g.counted < q.groupLimit() {
		g.level = int(s.first(g).level)
	}
	s.seats.ReplaceOrInsert(seat{g.level, g.turn, g})
}

// first is the first ready message of g. There must be one.
func (s *groups) first(g *group) (m member) {
	s.members.AscendGreaterOrEqual(member{group: g.number}, func(least member) bool {
		m = least
		return false
	})
	return m
}

// next is the level to serve at a time, and the group whose turn it is, or nil for what has none. Level held: nothing can be served.
func (q *queue) next(at instant) (level int, g *group) {
	if q.def.Fairness == (Fairness{}) {
		return q.nextFrom(MaxPriorities - 1)
	}
	return q.fairNext(at)
}

// nextFrom is next by strict priority, among the levels from one downwards.
func (q *queue) nextFrom(from int) (level int, g *group) {
	level = q.ready.lineFrom(from)
	if q.groups.isEmpty() {
		return level, nil
	}
	s := q.groups
	top := seat{level: held}
	s.seats.DescendLessOrEqual(seat{level: from, turn: math.MaxUint64}, func(last seat) bool {
		top = last
		return false
	})
	if top.level < level || top.level == held {
		return level, nil
	}
	loose := top.level == level
	level = top.level
	s.seats.AscendGreaterOrEqual(seat{level: level}, func(first seat) bool {
		if !loose || first.turn < s.loose[level] {
			g = first.group
		}
		return false
	})
	return level, g
}

// servable reports whether popReady has something to take: it has not if all that is ready belongs to groups that are held.
func (q *queue) servable() bool {
	if q.ready.n == 0 || q.groups.isEmpty() {
		return q.ready.n > 0
	}
	top, _ := q.groups.seats.Max()
	return top.level != held || q.ready.loose() > 0
}

// popNext takes the next message to serve while there are groups. One that has a group is then counted in it.
func (q *queue) popNext() entry {
	level, g := q.next(q.now)
	s := q.groups
	s.turn++
	if g == nil {
		s.loose[level] = s.turn
		return q.ready.popOf(level)
	}
	m := s.first(g)
	e, _ := q.ready.removeGrouped(m.level, m.seq)
	s.seats.Delete(seat{level: g.level, turn: g.turn})
	g.turn = s.turn
	q.engage(g, &e)
	return e
}

// engage counts a message of g, which has no seat, against it, since it is not ready any more, and gives g its seat.
func (q *queue) engage(g *group, e *entry) {
	q.groups.members.Delete(member{group: g.number, seq: e.seq})
	g.ready--
	g.counted++
	e.counted = true
	q.sit(g)
}

// foremost is the message that is served next at a time, or would be if its group were not held. There must be one that is ready.
func (q *queue) foremost(at instant) entry {
	level, g := q.next(at)
	switch {
	case g != nil:
		m := q.groups.first(g)
		e, _ := q.ready.find(m.level, m.seq)
		return e
	case level == held:
		e, _ := q.ready.grouped.Max()
		q.ready.grouped.AscendGreaterOrEqual(entry{level: e.level}, func(first entry) bool { e = first; return false })
		return e
	}
	return q.ready.firstOf(level)
}

// uncount is told of a message that ends: if it counted against its group, the next may go.
func (q *queue) uncount(e *entry) {
	if !e.counted {
		return
	}
	e.counted = false
	g := q.groupOf(*e)
	q.groups.seats.Delete(seat{level: g.level, turn: g.turn})
	g.counted--
	q.sit(g)
}

// regroup makes the groups fit a queue whose limit or levels have changed.
func (q *queue) regroup() {
	s, top := q.groups, q.def.Priorities-1
	if s == nil {
		return
	}
	var above []entry
	if top < MaxPriorities-1 && q.ready.grouped != nil {
		q.ready.grouped.AscendGreaterOrEqual(entry{level: uint8(top + 1)}, func(e entry) bool {
			above = append(above, e)
			return true
		})
	}
	for _, e := range above {
		q.ready.removeGrouped(e.level, e.seq)
		e.level = uint8(top)
		q.ready.insertGrouped(e)
		s.members.ReplaceOrInsert(member{q.groupOf(e).number, e.seq, e.level})
	}
	for l := len(s.loose) - 1; l > top; l-- {
		s.loose[top] = max(s.loose[top], s.loose[l])
	}
	if more := top + 1 - len(s.loose); more > 0 {
		s.loose = append(s.loose, make([]uint64, more)...)
	}
	s.loose = s.loose[:top+1]
	var all []*group
	s.seats.Ascend(func(at seat) bool {
		all = append(all, at.group)
		return true
	})
	s.seats = btree.NewG(16, bySeat)
	for _, g := range all {
		q.sit(g)
	}
}

// head appends what stands before the groups in a snapshot: their number and, if there are any, the last turn and those of the
// messages without a group, by level.
func (s *groups) head(dst []byte) []byte {
	if s.isEmpty() {
		return wire.AppendUvarint(dst, 0)
	}
	dst = wire.AppendUvarint(dst, uint64(s.seats.Len()))
	dst = wire.AppendUvarint(dst, s.turn)
	for _, turn := range s.loose {
		dst = wire.AppendUvarint(dst, turn)
	}
	return dst
}

// decodeGroups reads the groups of a snapshot and returns them in the order in which they were written. Their messages follow, and
// reseat tells whether it all fits.
func (q *queue) decodeGroups(r *wire.Reader) (seated []*group) {
	n := r.Count(2)
	if n == 0 {
		return nil
	}
	s := newGroups(q.def.Priorities)
	q.groups = s
	s.turn = r.Uvarint()
	taken := make(map[uint64]bool)
	turn := func(least uint64) uint64 {
		t := r.Uvarint()
		if t < least || t > s.turn || t > 0 && taken[t] {
			r.Fail()
		}
		taken[t] = true
		return t
	}
	for l := range s.loose {
		s.loose[l] = turn(0)
	}
	for range n {
		turn, name := turn(1), r.String()
		if name == "" || s.byName[name] != nil || r.Err() != nil {
			r.Fail()
			return nil
		}
		g := s.add(name, turn)
		s.seats.ReplaceOrInsert(seat{held, turn, g})
		seated = append(seated, g)
	}
	return seated
}

// charge counts a message that was read from a snapshot against its group, if it has one, and reports whether that exists.
func (q *queue) charge(e *entry) bool {
	if q.extraOf(*e).group == "" {
		return true
	}
	g := q.groupOf(*e)
	if g == nil {
		return false
	}
	e.counted = true
	g.counted++
	return true
}

// reseat gives the groups that were read from a snapshot their seats, and reports whether they are those of the messages, in
// the order of their seats.
func (q *queue) reseat(seated []*group) bool {
	if len(seated) == 0 {
		return q.groups.isEmpty()
	}
	s := q.groups
	if len(s.byName) != len(seated) {
		return false // a message has another group
	}
	s.seats.Clear(false)
	for _, g := range seated {
		if g.ready+g.counted == 0 {
			return false
		}
		last, ok := s.seats.Max()
		q.sit(g)
		if at := (seat{g.level, g.turn, g}); ok && !bySeat(last, at) {
			return false
		}
	}
	return s.seats.Len() == len(seated)
}
