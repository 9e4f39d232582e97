package bourse

import (
	"flag"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/invariant"
)

// Goal: priorities, TTL, groups and the rest cost a queue that does not use them nothing. Method: the cycle of one message through
// the machine (publish, dispatch, ack; newCycle) on a plain queue, and in turn with it, in short rounds, on one where a feature is
// there but idle: declared and not used by any message, or used by the other queues of the same machine only. The figure is the
// median of the ratios of each pair of rounds; the first case compares two plain queues, and says what the machine's noise is.
// -unused.most makes the benchmark fail above a ratio. What is not timed is a test: allocations, and bytes for each that waits.

var unusedMost = flag.Float64("unused.most", 0,
	"fail if a message costs more than this times what it costs without a feature that is not used; 0: never")

// used is what each other queue declares, and what its messages ask for, in the case "in another queue".
var used = Queue{
	Name: "used", Priorities: 256, TTL: time.Hour, GroupConcurrency: 2, Fairness: Fairness{LowerOneIn: 10, Aging: time.Hour},
	BumpOnRedelivery: true, Dedup: Dedup{Window: time.Hour}, MaxMessages: 100_000, Retry: Backoff{Min: time.Second, Jitter: 0.5},
}

// unused are the features, idle. Where a queue declares what concerns each of its messages it is not idle: more is what that may
// cost, beyond the bound.
var unused = []struct {
	name      string
	def       Queue
	elsewhere bool // the others of the machine use them all
	more      float64
}{
	{"nothing", Queue{}, false, 0},
	{"in another queue", Queue{}, true, 0},
	{"256 priorities, one used", Queue{Priorities: 256}, false, 0},
	{"groups, no GroupID", Queue{GroupConcurrency: 10}, false, 0},
	{"retries with a pause", Queue{Priorities: 10, Retry: Backoff{Min: time.Second, Jitter: 0.5}, BumpOnRedelivery: true}, false, 0},
	{"a dead-letter exchange", Queue{DeadLetter: DeadLetter{Exchange: "dead"}}, false, 0},
	{"fairness, one level used", Queue{Priorities: 256, Fairness: Fairness{LowerOneIn: 10}}, false, 0.1},
	{"an inbox, no Done", Queue{Inbox: InboxMemory{Window: time.Hour}}, false, 0.1},
	{"a TTL, nothing expires", Queue{TTL: 24 * time.Hour}, false, 0.3},
	{"a limit, not reached", Queue{MaxMessages: 1_000_000}, false, 0.3},
}

// newUnused is a cycle on a queue of def in which so many messages wait.
func newUnused(t testing.TB, def Queue, elsewhere bool, waiting int) *cycle {
	c := &cycle{single: newSingle(t, def), body: make([]byte, 100)}
	c.q.ready.shape = largeShape
	if elsewhere {
		c.useAll()
	}
	for range waiting {
		c.enqueue(0)
	}
	c.attach(1, 1)
	return c
}

// useAll declares another queue and fills it with messages of every kind.
func (c *cycle) useAll() {
	res := c.apply(appendDeclare(nil, c.now, 0, topologyLimits{}, []Declaration{used}))
	require.Equal(c.t, answerOK, res.answer.Code)
	for _, q := range c.m.order {
		if q.def.Name != used.Name {
			continue
		}
		c.apply(attach{queue: q.def.id, consumer: c.consumer(2), prefetch: 100}.appendTo(nil, c.now))
		for i := range 10_000 {
			m := Message{
				ID: string(rune('a' + i)), Priority: uint8(i), TTL: time.Duration(i+1) * time.Minute, GroupID: string(rune('a' + i%100)),
			}
			if i%10 == 0 {
				m.DeliverAt = time.Unix(0, int64(c.now)).Add(time.Hour)
			}
			cmd := appendTargets(appendHeader(nil, cmdEnqueue, c.now), []queueID{q.def.id})
			require.Equal(c.t, answerOK, c.apply(appendMessage(cmd, &m, messageID{}, nil)).answer.Code)
		}
	}
}

func BenchmarkUnused(b *testing.B) {
	for _, u := range unused {
		b.Run(u.name, func(b *testing.B) {
			const round, waiting = 2000, 1000
			plain, idle := newUnused(b, Queue{}, false, waiting), newUnused(b, u.def, u.elsewhere, waiting)
			var times [2][]time.Duration
			var ratios []float64
			for i := 0; b.Loop(); i++ {
				var took [2]time.Duration
				for _, which := range []int{i % 2, 1 - i%2} {
					c := []*cycle{plain, idle}[which]
					start := time.Now()
					for range round {
						c.run()
					}
					took[which] = time.Since(start)
					times[which] = append(times[which], took[which])
				}
				ratios = append(ratios, float64(took[1])/float64(took[0]))
			}
			slices.Sort(ratios)
			for i, name := range []string{"ns/op-plain", "ns/op-idle"} {
				slices.Sort(times[i])
				b.ReportMetric(float64(times[i][len(times[i])/2].Nanoseconds())/round, name)
			}
			ratio := ratios[len(ratios)/2]
			b.ReportMetric(ratio, "ratio")
			b.ReportMetric(0, "ns/op")
			if most := *unusedMost + u.more; *unusedMost > 0 && ratio > most {
				b.Errorf("a message costs %.3f times what it costs without, at most %.3f", ratio, most)
			}
		})
	}
}

func TestUnusedAllocatesNothing(t *testing.T) {
	if invariant.Costly {
		t.Skip("the costly checks allocate")
	}
	for _, u := range unused {
		t.Run(u.name, func(t *testing.T) {
			c := newUnused(t, u.def, u.elsewhere, 1000)
			require.Zero(t, testing.AllocsPerRun(5000, c.run))
		})
	}
}

// What waits takes some bytes of a packed block. (Its ref and its time are those of the message before.)
func TestUnusedTakesNoMemory(t *testing.T) {
	if invariant.Costly {
		t.Skip("tens of thousands of messages, walked after each command")
	}
	const waiting, most = 200_000, 6
	for _, u := range unused {
		t.Run(u.name, func(t *testing.T) {
			c := newUnused(t, u.def, u.elsewhere, 0)
			c.apply(detach{queue: c.q.def.id, consumer: c.consumer(1)}.appendTo(nil, c.now))
			c.cmd = appendTargets(appendHeader(nil, cmdEnqueue, c.now), []queueID{c.q.def.id})
			c.cmd = append(c.cmd, 0, 0)
			before := heap()
			for range waiting {
				c.apply(c.cmd)
			}
			each := float64(heap()-before) / waiting
			require.Equal(t, waiting, c.q.ready.n)
			t.Logf("%.1f bytes for each message that waits", each)
			require.LessOrEqual(t, each, float64(most))
		})
	}
}

// heap is the bytes in use once all is collected that can be.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
