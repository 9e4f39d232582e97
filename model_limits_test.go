package bourse_test

// Goal: full queues, and publishes that wait for room, among all other calls of TestModelAPI. Method: the reference adds up what
// waits whenever it is asked, and keeps those who wait in a slice for each queue. It knows of sizes only the bodies, so the model
// draws limits between which and what fits no header counts.

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/boursemq/bourse"
)

// The bodies and limits of the model: two large bodies and a few small ones fit, three do not, and a huge one never does.
const (
	largeBody = 3000
	hugeBody  = 9000
	someBytes = 8000
)

// refPublication is a publish, which may have to wait for room.
type refPublication struct {
	m           *refMessage
	left, taken int   // queues that have not answered; that took it
	refused     error // by one of them at least
	known       bool
	err         error // once known
}

type refWait struct {
	p    *refPublication
	turn uint64
}

func (q *refQueue) evicts() bool {
	return q.Overflow == bourse.DropHead || q.Overflow == bourse.DeadLetterHead
}

func (q *refQueue) limited() bool { return q.MaxMessages > 0 || q.MaxBytes > 0 }

// length is what counts against the limits, between two operations: nothing is on the way to another queue then.
func (q *refQueue) length() (n, bytes int64) {
	for _, e := range slices.Concat(q.ready, q.delayed) {
		n++
		bytes += int64(len(e.m.Body))
	}
	return n, bytes
}

// exceeds reports whether so much would be too much.
func (q *refQueue) exceeds(n, bytes int64) bool {
	return q.MaxMessages > 0 && n > q.MaxMessages || q.MaxBytes > 0 && bytes > q.MaxBytes
}

func (q *refQueue) fits(m *refMessage) bool {
	n, bytes := q.length()
	return !q.exceeds(n+1, bytes+int64(len(m.Body)))
}

func (q *refQueue) tooLarge(m *refMessage) bool { return q.exceeds(1, int64(len(m.Body))) }

// takesAgain reports whether a queue has room for a message that died in it.
func (q *refQueue) takesAgain(m *refMessage) bool {
	n, _ := q.length()
	return n == 0 || q.evicts() && !q.tooLarge(m) || !q.evicts() && q.fits(m)
}

// goTo brings a publication to the queues that it is routed to.
func (r *reference) goTo(p *refPublication, routed []*refQueue, err error) {
	if err == nil && len(routed) == 0 && p.m.Mandatory {
		err = bourse.ErrUnroutable
	}
	if err != nil || len(routed) == 0 {
		p.known, p.err = true, err
		return
	}
	p.left = 1
	for _, q := range routed {
		switch {
		case q.knows(p.m, r.clock.Now()) >= 0 || !q.limited():
		case q.tooLarge(p.m):
			p.refused = bourse.ErrInvalid
			q.count.Rejected++
			continue
		case q.Overflow == bourse.RejectPublish && !q.fits(p.m):
			p.refused = bourse.ErrQueueFull
			q.count.Rejected++
			continue
		case q.Overflow == bourse.Block && (q.over < q.given || !q.fits(p.m)):
			q.line = append(q.line, refWait{p, q.given})
			q.given++
			p.left++
			continue
		}
		r.admit(p.m, q)
		p.taken++
	}
	r.partDone(p)
}

// partDone says that one queue has answered.
func (r *reference) partDone(p *refPublication) {
	p.left--
	switch {
	case p.left > 0:
	case p.refused != nil || p.taken > 0:
		p.known, p.err = true, p.refused
	default: // its queues are gone
		routed, err := r.route(p.m.Exchange, p.m.RoutingKey, p.m.Headers)
		r.goTo(p, routed, err)
	}
}

// letIn lets those in who wait and for whom there is room, and reports whether there was anybody.
func (r *reference) letIn() (any bool) {
	for _, q := range r.queues {
		for len(q.line) > 0 && (q.evicts() || q.fits(q.line[0].p.m)) {
			w := q.line[0]
			q.line, q.over, any = q.line[1:], w.turn+1, true
			r.admit(w.p.m, q)
			w.p.taken++
			r.partDone(w.p)
		}
	}
	return any
}

// giveUp takes a publication away from where it waits.
func (r *reference) giveUp(p *refPublication) {
	for _, q := range r.queues {
		i := slices.IndexFunc(q.line, func(w refWait) bool { return w.p == p })
		if i >= 0 {
			q.line = slices.Delete(slices.Clone(q.line), i, i+1)
			p.refused = bourse.ErrQueueFull
			r.partDone(p)
		}
	}
}

// admit takes a message in, hands it out if it can, and else makes room for it.
func (r *reference) admit(m *refMessage, q *refQueue) {
	from := q.seq + 1
	r.put(m, q)
	r.dispatch(q)
	r.evict(q, from)
}

// evict makes room for the messages from seq from on, as long as one of them waits.
func (r *reference) evict(q *refQueue, from uint64) {
	if !q.evicts() {
		return
	}
	for {
		n, bytes := q.length()
		isNew := func(e *refEntry) bool { return e.number >= from }
		if n < 2 || !q.exceeds(n, bytes) || !slices.ContainsFunc(q.ready, isNew) && !slices.ContainsFunc(q.delayed, isNew) {
			return
		}
		e := q.victim()
		q.takeOut(e)
		q.count.Evicted++
		r.kill(q, e, bourse.ReasonMaxLength)
	}
}

// victim is the oldest of the lowest level, or if nothing is ready, what would be ready last.
func (q *refQueue) victim() (v *refEntry) {
	for _, e := range q.ready {
		if v == nil || e.level < v.level || e.level == v.level && e.seq < v.seq {
			v = e
		}
	}
	if v != nil {
		return v
	}
	for _, e := range q.delayed {
		if v == nil || e.readyAt.After(v.readyAt) || e.readyAt.Equal(v.readyAt) && e.seq > v.seq {
			v = e
		}
	}
	return v
}

// refusesBundle says why there is no room for all of ms, while a loan of the queue acked may be over with them.
func (r *reference) refusesBundle(ms []bourse.Message, routes [][]*refQueue, acked *refQueue) error {
	more, moreBytes := map[*refQueue]int64{}, map[*refQueue]int64{}
	for i := range ms {
		m := &refMessage{Message: ms[i]}
		for _, q := range routes[i] {
			if !q.limited() || more[q] == 0 && q != acked && q.knows(m, r.clock.Now()) >= 0 {
				continue
			}
			more[q]++
			moreBytes[q] += int64(len(m.Body))
			n, bytes := q.length()
			var err error
			switch {
			case q.tooLarge(m):
				err = bourse.ErrInvalid
			case q.evicts():
			case q.exceeds(n+more[q], bytes+moreBytes[q]):
				err = bourse.ErrQueueFull
			}
			if err != nil {
				q.count.Rejected++
				return err
			}
		}
	}
	return nil
}

// limit draws limits for a queue. Only the queue "full" refuses and lets wait: no dead letter goes there, which would be tried again
// after pauses that the reference does not know.
func (s *sequence) limit(q *bourse.Queue) {
	if rapid.Bool().Draw(s.t, "unlimited") {
		return
	}
	q.MaxMessages = one(s.t, "max messages", []int64{1, 2, 4})
	q.MaxBytes = one(s.t, "max bytes", []int64{0, someBytes})
	policies := []bourse.Overflow{bourse.DropHead}
	if q.DeadLetter.Exchange != "" {
		policies = append(policies, bourse.DeadLetterHead)
	}
	if q.Name == "full" {
		policies = append(policies, bourse.RejectPublish, bourse.Block, bourse.Block, bourse.Block)
	}
	q.Overflow = one(s.t, "overflow", policies)
	if q.Overflow == bourse.RejectPublish || q.Overflow == bourse.Block {
		q.DeadLetter.Exchange, q.DeadLetter.RoutingKey = "", "" // what expires on its way out would count while others come
	}
}

// pending is a publish that waits.
type pending struct {
	ref     *refPublication
	cancel  context.CancelFunc // nil: it cannot be
	outcome chan error         // capacity 1
	confirm *bourse.Confirm    // nil: a Publish
}

// submittedContext tells when a Publish has proposed its message: it then asks for Done.
type submittedContext struct {
	context.Context
	asked chan struct{} // capacity 1
}

func (c submittedContext) Done() <-chan struct{} {
	select {
	case c.asked <- struct{}{}:
	default:
	}
	return c.Context.Done()
}

// send publishes m, of which the reference says p.
func (s *sequence) send(m bourse.Message, p *refPublication) {
	s.ref.rests()
	if p.known {
		if rapid.Bool().Draw(s.t, "later") {
			s.same(s.b.PublishAsync(ctx, m).Wait(ctx), p.err, "publish and wait %+v", m)
		} else {
			s.same(s.b.Publish(ctx, m), p.err, "publish %+v", m)
		}
		return
	}
	w := &pending{ref: p}
	if rapid.Bool().Draw(s.t, "later") {
		w.confirm = s.b.PublishAsync(ctx, m)
	} else {
		var c submittedContext
		c.Context, w.cancel = context.WithCancel(ctx)
		c.asked, w.outcome = make(chan struct{}, 1), make(chan error, 1)
		go func() { w.outcome <- s.b.Publish(c, m) }() // ends with its outcome, which Close brings at the latest
		<-c.asked
	}
	s.waiting = append(s.waiting, w)
}

// crowd sends several where they may have to wait.
func (s *sequence) crowd() {
	for range rapid.IntRange(1, 4).Draw(s.t, "crowd") {
		m := s.message()
		m.Exchange, m.RoutingKey = "", "full"
		if len(m.Body) > largeBody+9 {
			m.Body = m.Body[:9]
		}
		routed, want := s.ref.route(m.Exchange, m.RoutingKey, m.Headers)
		s.send(m, s.ref.publish(m, routed, want))
		barrier(s.t, s.b, s.clock)
	}
}

// end waits for the outcome.
func (w *pending) end(t require.TestingT) error {
	if w.confirm != nil {
		bounded, cancel := context.WithTimeout(ctx, testTimeout)
		defer cancel()
		return w.confirm.Wait(bounded)
	}
	defer w.cancel()
	select {
	case err := <-w.outcome:
		return err
	case <-time.After(testTimeout):
		require.Fail(t, "a publish that has its outcome does not return")
		return nil
	}
}

// heard compares the publishes that waited, and checks that the others wait still. One whose queue was deleted has been routed
// anew, behind what the caller has waited for.
func (s *sequence) heard() {
	defer barrier(s.t, s.b, s.clock)
	s.waiting = slices.DeleteFunc(s.waiting, func(w *pending) bool {
		if w.ref.known {
			s.same(w.end(s.t), w.ref.err, "a publish that waited")
			return true
		}
		if w.confirm != nil {
			select {
			case <-w.confirm.Done():
				require.Fail(s.t, "the outcome is there", "%v", w.confirm.Err())
			default:
			}
		} else {
			require.Empty(s.t, w.outcome)
		}
		return false
	})
}

// giveUp cancels a publish that waits.
func (s *sequence) giveUp() {
	var those []*pending
	for _, w := range s.waiting {
		if w.cancel != nil {
			those = append(those, w)
		}
	}
	if len(those) == 0 {
		return
	}
	w := one(s.t, "who waits", those)
	w.cancel()
	s.ref.giveUp(w.ref)
	err := w.end(s.t)
	require.ErrorIs(s.t, err, bourse.ErrQueueFull)
	require.ErrorIs(s.t, err, context.Canceled)
	s.waiting = slices.DeleteFunc(s.waiting, func(o *pending) bool { return o == w })
	barrier(s.t, s.b, s.clock)
	s.ref.rests()
}

// closed compares what becomes of those who wait when the broker is closed.
func (s *sequence) closed() {
	for _, w := range s.waiting {
		err := w.end(s.t)
		if w.ref.taken > 0 {
			require.ErrorIs(s.t, err, bourse.ErrUnknownOutcome)
		} else {
			require.True(s.t, errors.Is(err, bourse.ErrClosed), "%v", err)
		}
	}
	s.waiting = nil
}
