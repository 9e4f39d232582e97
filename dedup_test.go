package bourse

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: what walks and scripts do not reach in deduplication: more ids than one step removes, and what it costs. Method: a machine
// driven by a bench of one queue.

// give enqueues a message with an id and returns how many references it took.
func (s *single) give(id string) int {
	cmd := appendTargets(appendHeader(nil, cmdEnqueue, s.now), []queueID{s.q.def.id})
	return s.apply(appendMessage(cmd, &Message{ID: id}, messageID{}, nil)).kept
}

// More ids expire at once than one step removes. Those that are left count for nothing, and a wake is asked for until they are gone.
func TestDedupExpiresInSteps(t *testing.T) {
	const n = 2*stepLimit + 10
	s := newSingle(t, Queue{Dedup: Dedup{Window: time.Minute}})
	for i := range n {
		require.Equal(t, 1, s.give(fmt.Sprint(i)))
	}
	require.Zero(t, s.give(fmt.Sprint(n-1)))
	s.now += instant(time.Minute)
	require.Equal(t, 1, s.give(fmt.Sprint(n-1)))
	require.Zero(t, s.give(fmt.Sprint(n-1)))
	require.Less(t, s.q.ids.len(), n)
	s.m.check()
	s.now += instant(time.Minute) / 2
	for range 10 {
		s.apply(appendTick(nil, s.now))
		s.m.check()
	}
	require.Equal(t, 1, s.q.ids.len())
	require.Greater(t, s.q.due(), s.now)
}

// Ids that nobody asks for any more go by ticks, a bounded number of them for a window.
func TestDedupForgetsWhileIdle(t *testing.T) {
	s := newSingle(t, Queue{Dedup: Dedup{Window: time.Hour}})
	for i := range 1000 {
		s.give(fmt.Sprint(i))
		s.now += instant(time.Hour) / 1000
	}
	ticks := 0
	for ; s.q.ids.len() > 0; ticks++ {
		require.NotZero(t, s.m.woken)
		s.now = max(s.now, s.m.woken)
		s.apply(appendTick(nil, s.now))
		s.m.check()
	}
	require.LessOrEqual(t, ticks, 20)
	require.LessOrEqual(t, time.Duration(s.now)-time.Hour, 3*time.Hour)
}

// A view of the state is not changed by what is remembered and forgotten after it.
func TestDedupView(t *testing.T) {
	s := newSingle(t, Queue{Dedup: Dedup{UntilDone: true, OnDuplicate: ReplaceWaiting}, Inbox: InboxMemory{Window: time.Hour}})
	for i := range 1000 {
		s.give(fmt.Sprint(i))
	}
	s.attach(1, 100)
	want, v := s.m.appendTo(nil), s.m.view()
	for range 3 {
		for _, e := range s.effects(effectDeliver) {
			s.apply(settle{e.queue, e.consumer, e.tag, e.slot, verdictDone, 0, "", keyOf([]byte(fmt.Sprint(e.seq)))}.appendTo(nil, s.now))
		}
		s.give("500")
	}
	var got []byte
	require.NoError(t, v.write(func(piece []byte) error { got = append(got, piece...); return nil }))
	require.True(t, bytes.Equal(want, got))
}

// A queue without deduplication keeps no index and pays nothing, also for messages with ids.
func TestDedupCostsNothingUnused(t *testing.T) {
	s := newSingle(t, Queue{})
	for i := range 1000 {
		s.give(fmt.Sprint(i))
	}
	require.Equal(t, idIndex{}, s.q.ids)
	require.Equal(t, idIndex{}, s.q.inbox)
	cmd := appendTargets(appendHeader(nil, cmdEnqueue, s.now), []queueID{s.q.def.id})
	with := appendMessage(cmd[:len(cmd):len(cmd)], &Message{ID: "a"}, messageID{}, nil)
	without := appendMessage(cmd[:len(cmd):len(cmd)], &Message{}, messageID{}, nil)
	cost := func(cmd []byte) float64 { return testing.AllocsPerRun(1000, func() { s.apply(cmd) }) }
	require.LessOrEqual(t, cost(with), cost(without)+0.02) // a block for 128 messages now and then
}

func BenchmarkDedup(b *testing.B) {
	for name, dedup := range map[string]Dedup{"off": {}, "window": {Window: time.Hour}, "until done": {UntilDone: true}} {
		b.Run(name, func(b *testing.B) {
			s := newSingle(b, Queue{Dedup: dedup})
			cmd := appendTargets(appendHeader(nil, cmdEnqueue, s.now), []queueID{s.q.def.id})
			id := make([]byte, 0, 16)
			for i := range b.N {
				id = fmt.Appendf(id[:0], "%016d", i)
				s.apply(appendMessage(cmd[:len(cmd):len(cmd)], &Message{ID: string(id)}, messageID{}, nil))
			}
		})
	}
}
