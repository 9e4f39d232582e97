package bourse

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/wire"
)

// Goal: a snapshot says everything that a machine is, and what no machine wrote is refused. Method: a machine
// with something in every account is taken apart and together again; then one thing in it is spoilt at a time.
// Random states are the business of TestMachineModel.

// everyAccount is a machine whose queue has ready, lent, extended, delayed and dying messages, and free slots.
func everyAccount(t testing.TB) *single {
	s := newSingle(t, Queue{Priorities: 3, AckDeadline: time.Minute})
	var lent []effect
	s.attach(1, 8)
	s.attach(2, 2)
	s.attach(3, 0)
	for i := range 14 {
		s.enqueue(uint8(i))
		lent = append(lent, s.effects(effectDeliver)...)
		s.now++
	}
	require.Len(t, lent, 10)
	s.attach(1, 1)
	s.attach(2, 1)
	for i, v := range []verdict{verdictAck, verdictRelease, verdictRelease, verdictReject, verdictNack, verdictExtend, verdictReject} {
		e := lent[i]
		c := settle{e.queue, e.consumer, e.tag, e.slot, v, time.Duration(i) * time.Second, "note", keyOf([]byte{byte(i)})}
		s.apply(c.appendTo(nil, s.now))
	}
	q := s.q
	require.Positive(t, q.ready.n)
	require.Equal(t, []int{3, 2}, []int{q.delayedLen(), q.dyingLen()})
	require.Equal(t, 1, q.ledger.extended.Len())
	require.GreaterOrEqual(t, len(q.ledger.free), 2)
	s.m.check()
	return s
}

func TestSnapshotIsComplete(t *testing.T) {
	s := everyAccount(t)
	b := s.m.appendTo(nil)
	m, err := decodeMachine(b, func(Ref) {})
	require.NoError(t, err)
	m.check()
	require.True(t, bytes.Equal(b, m.appendTo(nil)))
	q, again := s.q, m.order[1]
	require.Equal(t, q.def, again.def)
	require.Equal(t, q.count, again.count)
	require.Equal(t, q.nextSeq, again.nextSeq)
	require.Equal(t, q.roster.turn, again.roster.turn)
	require.Equal(t, q.due(), again.due())
	require.Equal(t, []int64{q.ready.bytes, q.ledger.bytes, q.delayedBytes, q.dyingBytes},
		[]int64{again.ready.bytes, again.ledger.bytes, again.delayedBytes, again.dyingBytes})
	// Both go on alike: the next command finds the same slot, consumer and message.
	for range 20 {
		s.now += instant(5 * time.Second)
		_, one := s.m.apply(99, appendTick(nil, s.now), nil)
		_, two := m.apply(99, appendTick(nil, s.now), nil)
		require.Equal(t, withoutWakeEffects(one), withoutWakeEffects(two))
	}
	require.True(t, bytes.Equal(s.m.appendTo(nil), m.appendTo(nil)))
}

func withoutWakeEffects(all []effect) (rest []effect) {
	for _, e := range all {
		if e.kind != effectWake {
			rest = append(rest, e)
		}
	}
	return rest
}

func TestSnapshotCut(t *testing.T) {
	good := everyAccount(t).m.appendTo(nil)
	for n := range good {
		_, err := decodeMachine(good[:n], func(Ref) {})
		require.Error(t, err, "cut after %d of %d bytes", n, len(good))
	}
	_, err := decodeMachine(append(good[:len(good):len(good)], 0), func(Ref) {})
	require.Error(t, err, "with more behind it")
	good[0]++
	_, err = decodeMachine(good, func(Ref) {})
	require.ErrorContains(t, err, "version 2")
}

// A snapshot that is read as it comes, in pieces, makes the same machine; one that ends early, or whose source fails, makes none.
func TestSnapshotStreamed(t *testing.T) {
	good := everyAccount(t).m.appendTo(nil)
	refs := func(all *[]Ref) func(Ref) { return func(r Ref) { *all = append(*all, r) } }
	var want, got []Ref
	_, err := decodeMachine(good, refs(&want))
	require.NoError(t, err)
	m, err := readMachine(wire.NewStreamReader(iotest.OneByteReader(bytes.NewReader(good)), len(good)), refs(&got))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.True(t, bytes.Equal(good, m.appendTo(nil)))
	for n := range good {
		_, err := readMachine(wire.NewStreamReader(bytes.NewReader(good), n), func(Ref) {})
		require.ErrorIs(t, err, wire.ErrMalformed, "cut after %d of %d bytes", n, len(good))
		_, err = readMachine(wire.NewStreamReader(bytes.NewReader(good[:n]), len(good)), func(Ref) {})
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d of %d bytes are there", n, len(good))
	}
	broken := errors.New("broken")
	_, err = readMachine(wire.NewStreamReader(iotest.ErrReader(broken), len(good)), func(Ref) {})
	require.ErrorIs(t, err, broken)
}

func TestSnapshotSpoilt(t *testing.T) {
	held := func(q *queue, i int) *loan {
		s := q.ledger.oldest
		for range i {
			s = q.ledger.slots[s].newer
		}
		return &q.ledger.slots[s]
	}
	block := func(q *queue) []entry {
		for i := range q.ready.lines {
			l := &q.ready.lines[i]
			open := l.row[l.head:]
			if l.cold != nil {
				open = append([]*block{l.cold.front}, open...)
			}
			for _, b := range open {
				if b.len() > 1 {
					return b.entries[b.first:b.last]
				}
			}
		}
		return nil
	}
	cases := map[string]func(q *queue){
		"a slot free twice":       func(q *queue) { q.ledger.free[0] = q.ledger.free[1] },
		"a held slot free":        func(q *queue) { q.ledger.free[0] = q.ledger.oldest },
		"a slot beyond the table": func(q *queue) { q.ledger.free[0] = slotID(len(q.ledger.slots)) },
		"a tag twice":             func(q *queue) { held(q, 0).tag = held(q, 1).tag; held(q, 0).holder = held(q, 1).holder },
		"a tag never given":       func(q *queue) { held(q, 0).tag = held(q, 0).holder.lastTag + 1 },
		"a tag of zero":           func(q *queue) { held(q, 0).tag = 0 },
		"deadlines out of order":  func(q *queue) { held(q, 0).deadline = held(q, 1).deadline + 1 },
		"a consumer twice":        func(q *queue) { q.roster.all[0].id = q.roster.all[1].id },
		"a prefetch too high":     func(q *queue) { q.roster.all[0].prefetch = MaxPrefetch + 1 },
		"a level too high":        func(q *queue) { held(q, 0).level = 3 },
		"ready out of order":      func(q *queue) { e := block(q); e[0], e[1] = e[1], e[0] },
		"a death without reason": func(q *queue) {
			d, _ := q.dying.Min()
			d.reason = 0
			q.dying.ReplaceOrInsert(d)
		},
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			s := everyAccount(t)
			spoil(s.q)
			_, err := decodeMachine(s.m.appendTo(nil), func(Ref) {})
			require.Error(t, err)
		})
	}
}
