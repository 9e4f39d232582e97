package bourse_test

// Goal: PublishAtomic and AckAndPublish do what a naive reading says, among all other calls of TestModelAPI. Method: the reference
// looks for a refusal first, and lets the messages in one by one before it hands anything out.

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/boursemq/bourse"
)

// bundle draws messages, and says what the first refusal among them is, before any queue is asked, and where they go. A loan from
// the queue of may be acked with them.
func (s *sequence) bundle(of *refQueue) (ms []bourse.Message, routes [][]*refQueue, refused error) {
	for range rapid.IntRange(1, 4).Draw(s.t, "bundle") {
		m := s.message()
		if m.Exchange == "hash" {
			m.Exchange = "" // several at once do not tell its choice
		}
		routed, err := s.ref.route(m.Exchange, m.RoutingKey, m.Headers)
		if err == nil && len(routed) == 0 && m.Mandatory {
			err = bourse.ErrUnroutable
		}
		for _, q := range routed {
			if of == nil {
				of = q
			}
			if q != of && (q.Transient || of.Transient) && err == nil {
				err = bourse.ErrNotAtomic
			}
		}
		if refused == nil {
			refused = err
		}
		ms, routes = append(ms, m), append(routes, routed)
	}
	return ms, routes, refused
}

// enqueueAll is enqueue for several messages, and for a queue that a loan has come back to.
func (r *reference) enqueueAll(ms []bourse.Message, routes [][]*refQueue, also ...*refQueue) {
	first := map[*refQueue]uint64{}
	for i, m := range ms {
		if m.Delay > 0 {
			m.DeliverAt, m.Delay = r.clock.Now().Add(m.Delay), 0
		}
		for _, q := range routes[i] {
			if _, ok := first[q]; !ok {
				first[q] = q.seq + 1
			}
			r.put(&refMessage{Message: m}, q)
			if !slices.Contains(also, q) {
				also = append(also, q)
			}
		}
	}
	for _, q := range also {
		r.dispatch(q)
		if from, ok := first[q]; ok {
			r.evict(q, from)
		}
	}
}

func (s *sequence) publishAtomic() {
	ms, routes, want := s.bundle(nil)
	if want == nil {
		want = s.ref.refusesBundle(ms, routes, nil)
	}
	if want == nil {
		s.ref.enqueueAll(ms, routes)
	}
	s.same(s.b.PublishAtomic(ctx, ms), want, "publish atomically %+v", ms)
}

func (s *sequence) ackAndPublish() {
	if len(s.loans) == 0 {
		return
	}
	d := one(s.t, "loan", s.loans)
	q := d.consumer.q
	ms, routes, want := s.bundle(q)
	err := d.consumer.refuses(d.Tag)
	if err == nil && want == nil {
		want = s.ref.refusesBundle(ms, routes, q)
	}
	if err == nil && want == nil {
		d.consumer.ack(d.Tag)
		s.ref.enqueueAll(ms, routes, q)
	}
	if err == nil {
		err = want
	}
	s.same(d.AckAndPublish(ctx, ms...), err, "ack %d of %s and publish %+v", d.Tag, d.Queue, ms)
}

// put takes a message without handing it out.
func (r *reference) put(m *refMessage, q *refQueue) {
	now := r.clock.Now()
	if q.repeats(m, now) {
		return
	}
	q.seq++
	q.count.Enqueued++
	e := &refEntry{m: m, seq: q.seq, number: q.seq, level: min(int(m.Priority), q.Priorities-1), arrived: now, group: m.GroupID,
		ttl: m.TTL, start: now}
	if m.DeliverAt.After(now) {
		e.start, e.readyAt = m.DeliverAt, m.DeliverAt
		q.delayed = append(q.delayed, e)
	} else {
		q.listed++
		e.listed = q.listed
		q.join(e.group)
		q.ready = append(q.ready, e)
	}
	q.remember(e, now)
}

// refuses says why a verdict on a delivery does not count; nil: it does.
func (c *refConsumer) refuses(tag uint64) error {
	switch {
	case c.settled[tag]:
		return bourse.ErrUnknownDelivery
	case c.auto:
		return bourse.ErrAutoAck
	case c.ended != nil:
		return c.ended
	case tag <= c.ackedTo:
		return bourse.ErrUnknownDelivery
	case c.stale[tag]:
		return bourse.ErrStaleDelivery
	}
	return nil
}

// ack ends a loan, without handing anything out.
func (c *refConsumer) ack(tag uint64) {
	c.settled[tag] = true
	c.q.back(c.q.loans[slices.IndexFunc(c.q.loans, func(l *refLoan) bool { return l.consumer == c && l.tag == tag })])
	c.q.count.Acked++
}
