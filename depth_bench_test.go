package bourse

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

// Goal: what is done to one message costs the same with a million waiting in ten levels as with a thousand. Method: for each
// operation two machines, one of each depth, in turn in short rounds, so that a noisy machine hurts both; the figure is the
// median of the ratios of each pair of rounds. -depth.most makes the benchmark fail above a ratio.

var depthMost = flag.Float64("depth.most", 0, "fail if a million waiting messages cost more than this times what a thousand do; 0: never")

// deep is a machine in which so many messages wait in ten levels, all the same afterwards.
type deep struct {
	*single
	priority uint8
	last     effect // the loan that is out
	cmd      []byte
	page     []sight
	pages    int
	after    place // where the next page begins
}

const deepTTL = time.Hour

func newDeep(b *testing.B, waiting int, def Queue) *deep {
	def.Priorities, def.MaxRetries = 10, NoLimit
	d := &deep{single: newSingle(b, def)}
	for range waiting {
		d.now += instant(deepTTL) / instant(waiting+1)
		d.publish()
	}
	return d
}

func (d *deep) publish() {
	d.priority = (d.priority + 1) % 10
	d.cmd = appendTargets(appendHeader(d.cmd[:0], cmdEnqueue, d.now), []queueID{d.q.def.id})
	d.cmd = append(d.cmd, 0, d.priority)
	d.apply(d.cmd)
}

// lend has the queue hand out one message more.
func (d *deep) lend() {
	for i := range d.out {
		if d.out[i].kind == effectDeliver {
			d.last = d.out[i]
		}
	}
}

func (d *deep) verdict(v verdict) {
	c := settle{queue: d.q.def.id, consumer: d.consumer(1), tag: d.last.tag, slot: d.last.slot, verdict: v}
	d.cmd = c.appendTo(d.cmd[:0], d.now)
	d.apply(d.cmd)
	d.lend()
}

// browse looks at a page of what is ready: four of them, one after the other, from the middle.
func (d *deep) browse() {
	if d.pages++; d.pages%4 == 1 {
		d.after = place{seq: d.q.nextSeq / 2, state: StateReady, level: 5}
	}
	d.page, d.after = d.q.look(d.after, 1<<StateReady, browsePage, d.page[:0])
	if len(d.page) != browsePage {
		panic("the page is not full")
	}
}

// depthOperations keep the depth: what goes in comes out.
var depthOperations = []struct {
	name string
	def  Queue
	run  func(d *deep)
}{
	{"publish, dispatch and ack", Queue{}, func(d *deep) { d.publish(); d.verdict(verdictAck) }},
	{"dispatch and nack", Queue{}, func(d *deep) { d.verdict(verdictNack) }},
	{"browse a page", Queue{}, (*deep).browse},
	{"publish and expire", Queue{TTL: deepTTL}, func(d *deep) {
		d.now += instant(deepTTL) / instant(d.q.ready.n+1)
		d.publish()
	}},
}

func BenchmarkDepth(b *testing.B) {
	for _, op := range depthOperations {
		b.Run(op.name, func(b *testing.B) {
			var machines []*deep
			for _, waiting := range waitingCounts {
				d := newDeep(b, waiting, op.def)
				if op.def.TTL == 0 {
					d.attach(1, 1)
					d.lend()
				}
				machines = append(machines, d)
			}
			const round = 2000
			var times [2][]time.Duration
			var ratios []float64
			for b.Loop() {
				var took [2]time.Duration
				for i, d := range machines {
					start := time.Now()
					for range round {
						op.run(d)
					}
					took[i] = time.Since(start)
					times[i] = append(times[i], took[i])
				}
				ratios = append(ratios, float64(took[1])/float64(took[0]))
			}
			slices.Sort(ratios)
			for i := range times {
				slices.Sort(times[i])
				median := times[i][len(times[i])/2]
				b.ReportMetric(float64(median.Nanoseconds())/round, fmt.Sprintf("ns/op-at-%d", waitingCounts[i]))
			}
			ratio := ratios[len(ratios)/2]
			b.ReportMetric(ratio, "ratio")
			b.ReportMetric(0, "ns/op")
			if most := *depthMost; most > 0 && ratio > most {
				b.Errorf("a million waiting cost %.2f times a thousand, at most %.2f", ratio, most)
			}
		})
	}
}
