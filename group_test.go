package bourse

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/invariant"
	"pgregory.net/rapid"
)

// Goal: what random walks (TestMachineModel) and scripts cannot say of groups: that their number and what waits behind them costs
// nothing at a dispatch, that a ready set with groups is the list that it stands for, and that a snapshot which no machine wrote is
// refused. Method: a machine with 100,000 groups, all but one held; a sorted slice in lock-step; a spoilt machine.

func (s *single) send(m Message) applied {
	cmd := appendTargets(appendHeader(nil, cmdEnqueue, s.now), []queueID{s.q.def.id})
	return s.apply(appendMessage(cmd, &m, messageID{}, nil))
}

// settleAll gives a verdict on every loan of the effects.
func (s *single) settleLoans(lent []effect, v verdict, pause time.Duration) {
	for _, e := range lent {
		s.apply(settle{e.queue, e.consumer, e.tag, e.slot, v, pause, "", idKey{}}.appendTo(nil, s.now))
	}
}

// manyGroups is a machine with n groups that are held, each by a message on loan or resting, with another one behind it, and one
// group that is not.
func manyGroups(t testing.TB, n int) *single {
	s := newSingle(t, Queue{AckDeadline: time.Hour})
	s.attach(1, min(n, MaxPrefetch))
	s.attach(2, min(n, MaxPrefetch))
	var lent []effect
	for i := range 2 * n {
		s.send(Message{GroupID: fmt.Sprint("group ", i%n)})
		lent = append(lent, s.effects(effectDeliver)...)
	}
	require.Len(t, lent, n)
	require.Equal(t, n, s.q.ready.n)
	s.attach(1, 0)
	s.attach(2, 0)
	s.settleLoans(lent[:n/2], verdictRelease, time.Hour)
	s.attach(3, 1)
	return s
}

// One message in, and one out, of a group that is not held, while others are.
func BenchmarkGroups(b *testing.B) {
	for _, n := range []int{1, 1_000, 100_000} {
		b.Run(fmt.Sprintf("held=%d", n), func(b *testing.B) {
			s := manyGroups(b, n)
			b.ReportAllocs()
			for b.Loop() {
				s.send(Message{GroupID: "free"})
				s.settleLoans(s.effects(effectDeliver), verdictAck, 0)
			}
		})
	}
}

// What a dispatch looks at does not grow with what it may not take: seats of groups that are held stand before all others, and
// the first of a level is found from above. So the next one is right with any number of groups, and the cost is that of a tree.
func TestGroupsHeldAreNotScanned(t *testing.T) {
	n := 100_000
	switch {
	case invariant.Costly: // which looks at all of them after each command
		n = 1_000
	case testing.Short():
		n = 10_000
	}
	s := manyGroups(t, n)
	s.m.check()
	level, g := s.q.next(s.now)
	require.Equal(t, held, level)
	require.Nil(t, g)
	s.attach(3, 0)
	for range 3 {
		s.send(Message{GroupID: "free"})
	}
	allocs := testing.AllocsPerRun(100, func() {
		if !s.q.servable() {
			t.Fatal("nothing to serve")
		}
		if level, g := s.q.next(s.now); level != 0 || g.name != "free" {
			t.Fatalf("next is %d %+v", level, g)
		}
	})
	require.LessOrEqual(t, allocs, 2.0)
	// The whole goes through a snapshot.
	b := s.m.appendTo(nil)
	m, err := decodeMachine(b, func(Ref) {})
	require.NoError(t, err)
	m.check()
	require.True(t, slices.Equal(b, m.appendTo(nil)))
}

// A queue without groups has no structure for them, and one whose groups are gone begins anew.
func TestGroupsCostNothingWithout(t *testing.T) {
	s := newSingle(t, Queue{})
	s.attach(1, 1)
	s.enqueue(0)
	require.Nil(t, s.q.groups)
	require.Nil(t, s.q.ready.grouped)
	require.Nil(t, s.q.extras)
	require.Equal(t, uintptr(40), unsafe.Sizeof(entry{}))
	s.settleLoans(s.effects(effectDeliver), verdictAck, 0)
	before := s.m.appendTo(nil)
	s.send(Message{GroupID: "g"})
	s.settleLoans(s.effects(effectDeliver), verdictAck, 0)
	again := newSingle(t, Queue{})
	again.attach(1, 1)
	for range 2 {
		again.enqueue(0)
		again.settleLoans(again.effects(effectDeliver), verdictAck, 0)
	}
	again.q.count, s.q.count = counters{}, counters{}
	require.Equal(t, again.m.appendTo(nil), s.m.appendTo(nil), "a group that is gone leaves something behind")
	require.NotEqual(t, before, s.m.appendTo(nil))
}

// Messages with and without a group stand in one order for all but who is next.
func TestReadySetGrouped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newReadySet(3)
		var want []entry
		var frozen readyView
		var then []entry
		for seq := range rapid.Uint64Range(1, 600).Draw(t, "messages") {
			e := entry{seq: seq, level: uint8(mix64(seq) % 3), size: uint32(seq)}
			if rapid.Bool().Draw(t, "grouped") {
				e.extra = true
				r.insertGrouped(e)
			} else {
				r.push(e)
			}
			want = append(want, e)
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				i := rapid.IntRange(0, len(want)-1).Draw(t, "which")
				requireRemove(t, &r, want[i])
				want = slices.Delete(want, i, i+1)
			}
			if rapid.IntRange(0, 99).Draw(t, "look") == 0 {
				frozen, then = r.view(), nil
				frozen.each(func(e entry) bool { then = append(then, e); return true })
			}
		}
		slices.SortFunc(want, func(a, b entry) int { return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(a.seq, b.seq)) })
		r.check(func(entry, bool) {})
		var got, still []entry
		r.each(func(e entry) bool { got = append(got, e); return true })
		require.True(t, slices.Equal(want, got), "got %v\nwant %v", got, want)
		frozen.each(func(e entry) bool { still = append(still, e); return true })
		require.True(t, slices.Equal(then, still), "a view has changed")
		if len(want) > 1 {
			got = nil
			r.each(func(e entry) bool { got = append(got, e); return len(got) < len(want)/2 })
			require.True(t, slices.Equal(want[:max(1, len(want)/2)], got), "each goes on")
		}
	})
}

func TestSnapshotOfGroupsSpoilt(t *testing.T) {
	made := func(t *testing.T) *single {
		s := newSingle(t, Queue{Priorities: 2})
		s.attach(1, 3)
		for i, group := range []string{"a", "b", "a", "", "c", "b", "c"} {
			s.send(Message{GroupID: group, Priority: uint8(i % 2)})
		}
		s.attach(1, 1)
		require.Equal(t, 3, s.q.ledger.n)
		s.settleLoans(s.m.lentEffects(s.q)[:1], verdictRelease, time.Second)
		s.m.check()
		return s
	}
	rename := func(q *queue, seq uint64, group string) {
		x, ok := q.extras.Get(extra{seq: seq})
		require.True(t, ok)
		x.group = group
		q.extras.ReplaceOrInsert(x)
	}
	good := made(t)
	m, err := decodeMachine(good.m.appendTo(nil), func(Ref) {})
	require.NoError(t, err)
	m.check()
	b := good.m.appendTo(nil)
	for n := range b {
		_, err := decodeMachine(b[:n], func(Ref) {})
		require.Error(t, err, "cut after %d of %d bytes", n, len(b))
	}
	for name, spoil := range map[string]func(q *queue){
		"a turn not taken yet":            func(q *queue) { q.groups.turn = 1 },
		"a turn of zero":                  func(q *queue) { spoilSeat(q, func(at *seat) { at.turn = 0 }) },
		"a turn twice":                    func(q *queue) { q.groups.loose[0] = q.groups.byName["a"].turn },
		"a turn of a level not taken yet": func(q *queue) { q.groups.loose[1] = q.groups.turn + 1 },
		"a name twice":                    func(q *queue) { q.groups.byName["a"].name = "b" },
		"no name":                         func(q *queue) { q.groups.byName["a"].name = "" },
		"a group that is not there":       func(q *queue) { q.groups.byName["a"].name = "z" },
		"no groups":                       func(q *queue) { q.groups.seats.Clear(false) },
		"a group too many": func(q *queue) {
			q.groups.turn++
			q.groups.seats.ReplaceOrInsert(seat{1, q.groups.turn, &group{name: "z"}})
		},
		"seats out of order":              func(q *queue) { spoilSeat(q, func(at *seat) { at.level = 7 }) },
		"a loan of a group not listed":    func(q *queue) { rename(q, 2, "z") },
		"a ready message of one":          func(q *queue) { rename(q, 3, "z") },
		"a resting message of one":        func(q *queue) { rename(q, 1, "z") },
		"a name longer than names may be": func(q *queue) { rename(q, 3, string(make([]byte, MaxNameBytes+1))) },
	} {
		t.Run(name, func(t *testing.T) {
			s := made(t)
			spoil(s.q)
			_, err := decodeMachine(s.m.appendTo(nil), func(Ref) {})
			require.Error(t, err)
		})
	}
}

// spoilSeat changes the first seat.
func spoilSeat(q *queue, change func(*seat)) {
	at, _ := q.groups.seats.DeleteMin()
	change(&at)
	q.groups.seats.ReplaceOrInsert(at)
}

// lentEffects are the deliveries that made the loans of q, by slot.
func (m *machine) lentEffects(q *queue) (out []effect) {
	for s := range q.ledger.slots {
		if q.ledger.slots[s].holder != nil {
			out = append(out, q.deliverEffect(slotID(s)))
		}
	}
	return out
}
