package bourse

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/invariant"
)

// Goal: what a message costs in the machine, alone and with a million waiting, and that it allocates
// nothing. Method: benchmarks of one message in and one out, so that what waits stays the same; and
// the same under testing.AllocsPerRun, whose mean says amortised.

var waitingCounts = []int{1_000, 1_000_000}

func waitingReadySet(levels, waiting int) (readySet, uint64) {
	r, seq := newReadySet(levels), uint64(0)
	for range waiting {
		seq++
		r.push(entry{seq: seq, level: uint8(seq % uint64(levels))})
	}
	return r, seq
}

func BenchmarkReadySet(b *testing.B) {
	for _, levels := range []int{1, 10, 256} {
		for _, waiting := range waitingCounts {
			b.Run(fmt.Sprintf("levels=%d/waiting=%d", levels, waiting), func(b *testing.B) {
				r, seq := waitingReadySet(levels, waiting)
				b.ReportAllocs()
				for b.Loop() {
					seq++
					r.push(entry{seq: seq, level: uint8(seq % uint64(levels))})
					r.pop()
				}
			})
		}
	}
}

// The message that was popped comes back each time.
func BenchmarkReadySetReturn(b *testing.B) {
	for _, waiting := range waitingCounts {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			r, _ := waitingReadySet(1, waiting)
			b.ReportAllocs()
			for b.Loop() {
				r.insert(r.pop())
			}
		})
	}
}

// One message is pushed, and one from the middle of what waits is removed.
func BenchmarkReadySetRemove(b *testing.B) {
	for _, waiting := range waitingCounts {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			r, seq := waitingReadySet(1, waiting)
			next := uint64(waiting / 2)
			b.ReportAllocs()
			for b.Loop() {
				seq++
				r.push(entry{seq: seq})
				next++
				r.remove(0, next)
			}
		})
	}
}

// One loan is made and the oldest one ends, with so many outstanding.
func BenchmarkLedger(b *testing.B) {
	for _, outstanding := range waitingCounts {
		b.Run(fmt.Sprintf("outstanding=%d", outstanding), func(b *testing.B) {
			l, c := newLedger(), &consumer{id: 1, oldest: noSlot, newest: noSlot}
			seq := uint64(0)
			for range outstanding {
				seq++
				l.grant(entry{seq: seq}, c, instant(seq))
			}
			b.ReportAllocs()
			for b.Loop() {
				seq++
				l.grant(entry{seq: seq}, c, instant(seq))
				l.end(c.oldest)
			}
		})
	}
}

// cycle is one message through the machine: it is enqueued, the one lent is acked, and the next is lent.
type cycle struct {
	*single
	body []byte
	cmd  []byte
}

func newCycle(t testing.TB, waiting int) *cycle {
	c := &cycle{single: newSingle(t, Queue{}), body: make([]byte, 100)}
	c.q.ready.shape = largeShape
	for range waiting {
		c.enqueue(0)
	}
	c.attach(1, 1)
	return c
}

func (c *cycle) run() {
	c.now++
	c.cmd = appendTargets(appendHeader(c.cmd[:0], cmdEnqueue, c.now), []queueID{c.q.def.id})
	c.cmd = append(c.cmd, 0, 0)
	c.cmd = append(c.cmd, c.body...)
	c.apply(c.cmd)
	oldest := c.q.ledger.oldest
	tag := c.q.ledger.slots[oldest].tag
	c.cmd = settle{queue: c.q.def.id, consumer: c.consumer(1), tag: tag, slot: oldest}.appendTo(c.cmd[:0], c.now)
	c.apply(c.cmd)
}

func BenchmarkMachine(b *testing.B) {
	for _, waiting := range waitingCounts {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			c := newCycle(b, waiting)
			b.ReportAllocs()
			for b.Loop() {
				c.run()
			}
			b.ReportMetric(float64(c.q.count.Acked)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// A page of 64 out of the middle of a queue.
func BenchmarkLook(b *testing.B) {
	for _, waiting := range waitingCounts {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			c := newCycle(b, waiting)
			at := place{seq: uint64(waiting / 2), state: StateReady}
			page := make([]sight, 0, browsePage)
			b.ReportAllocs()
			for b.Loop() {
				page, _ = c.q.look(at, 255, browsePage, page[:0])
			}
		})
	}
}

// A snapshot, per message that waits.
func BenchmarkSnapshot(b *testing.B) {
	c := newCycle(b, 100_000)
	bytes := c.m.appendTo(nil)
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			bytes = c.m.appendTo(bytes[:0])
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/message")
		b.ReportMetric(float64(len(bytes))/100_000, "bytes/message")
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := decodeMachine(bytes, func(Ref) {}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/message")
	})
}

func TestMachineAllocatesNothing(t *testing.T) {
	if invariant.Costly {
		t.Skip("the costly checks allocate")
	}
	r, seq := waitingReadySet(10, 10_000)
	r.shape = largeShape
	require.Zero(t, testing.AllocsPerRun(5000, func() {
		seq++
		r.push(entry{seq: seq, level: uint8(seq % 10)})
		r.pop()
	}), "push and pop")
	l, holder := newLedger(), &consumer{id: 1, oldest: noSlot, newest: noSlot}
	require.Zero(t, testing.AllocsPerRun(5000, func() {
		l.grant(entry{seq: 1}, holder, 1)
		l.end(holder.oldest)
	}), "grant and end")
	c := newCycle(t, 10_000)
	require.Zero(t, testing.AllocsPerRun(5000, c.run), "enqueue, dispatch and ack")
	// Coming back costs a search in a tree, which allocates at most when it grows.
	require.LessOrEqual(t, testing.AllocsPerRun(5000, func() {
		c.now++
		oldest := c.q.ledger.oldest
		ln := &c.q.ledger.slots[oldest]
		c.cmd = settle{
			queue: c.q.def.id, consumer: ln.holder.id, tag: ln.tag, slot: oldest, verdict: verdictRelease, pause: time.Duration(0),
		}.appendTo(c.cmd[:0], c.now)
		c.apply(c.cmd)
	}), 1.0, "release and dispatch")
}
