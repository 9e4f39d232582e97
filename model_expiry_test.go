package bourse_test

// Goal: what waits for a time, and what waits too long, in the reference of TestModelAPI. Method: the time of each message is
// computed whenever somebody asks.

import (
	"cmp"
	"slices"
	"time"

	"github.com/boursemq/bourse"
)

func (q *refQueue) lifetime(e *refEntry) time.Duration {
	if e.ttl != 0 && (q.TTL == 0 || e.ttl < q.TTL) { // NoWait is less than all
		return e.ttl
	}
	return q.TTL
}

// expiry is when e, which is ready, expires; zero for never. What may not wait has the instant in which it arrived.
func (q *refQueue) expiry(e *refEntry) time.Time {
	switch ttl := q.lifetime(e); {
	case ttl == 0:
		return time.Time{}
	case ttl > 0:
		return e.start.Add(ttl)
	case e.deliveries == 0:
		return e.start.Add(1)
	}
	return e.start
}

// awake makes a delayed message ready.
func (q *refQueue) awake(e *refEntry, now time.Time) {
	q.takeOut(e)
	if e.deliveries == 0 { // its publisher delayed it: else its group has been there all the time
		if e.start.After(now) || q.lifetime(e) == bourse.NoWait {
			e.start = now
		}
		q.join(e.group)
	}
	q.listed++
	e.listed = q.listed
	q.ready = append(q.ready, e)
}

// expireReady ends what has waited too long.
func (r *reference) expireReady(q *refQueue) {
	var over []*refEntry
	for _, e := range q.ready {
		if at := q.expiry(e); !at.IsZero() && !at.After(r.clock.Now()) {
			over = append(over, e)
		}
	}
	slices.SortFunc(over, func(a, b *refEntry) int { return cmp.Or(q.expiry(a).Compare(q.expiry(b)), cmp.Compare(a.seq, b.seq)) })
	r.expireAll(q, over)
}

// lapse ends what could not be handed out when it came, and may not wait.
func (r *reference) lapse(q *refQueue) {
	var over []*refEntry
	for _, e := range q.ready {
		if q.lifetime(e) == bourse.NoWait {
			over = append(over, e)
		}
	}
	slices.SortFunc(over, func(a, b *refEntry) int { return cmp.Compare(a.listed, b.listed) })
	r.expireAll(q, over)
}

func (r *reference) expireAll(q *refQueue, over []*refEntry) {
	for _, e := range over {
		q.takeOut(e)
		q.count.Expired++
		r.kill(q, e, bourse.ReasonExpired)
	}
}
