package bourse

import (
	"slices"
	"time"
)

// The lifetime of queues in the plain machine, by SEMANTICS 6: unused is without consumers, without a Get and without a redeclare.

// endsUnused is when q has been unused for too long, 0 for never.
func (q *plainQueue) endsUnused() instant {
	if q.def.Expires == 0 || slices.ContainsFunc(q.consumers, func(c *plainConsumer) bool { return !c.pull }) {
		return 0
	}
	return q.used + instant(q.def.Expires)
}

// endUnused deletes what has been unused for too long.
func (p *plainMachine) endUnused(r *report) {
	for _, q := range slices.Clone(p.queues) {
		if end := q.endsUnused(); end != 0 && end <= p.now {
			p.drop(q, r)
			r.ended++
		}
	}
}

// drop deletes q.
func (p *plainMachine) drop(q *plainQueue, r *report) {
	for _, m := range q.messages {
		r.freed = append(r.freed, m.ref)
	}
	for _, c := range q.consumers {
		r.gone = append(r.gone, plainTag{q.id, c.id, 0})
	}
	p.gone = append(p.gone, q.id)
	p.queues = slices.DeleteFunc(p.queues, func(o *plainQueue) bool { return o == q })
	r.topology = true
}

// expires draws how long a queue may be unused.
func (w *walker) expires() time.Duration {
	return []time.Duration{0, 0, 0, 1, 700 * time.Millisecond, 5 * time.Second, time.Minute}[w.rng.IntN(7)]
}
