package bourse_test

// Goal: looking at messages and acting on them where they are, for model_test.go. Method: the reference searches its slices
// from end to end; Browse is compared with all that they hold.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/boursemq/bourse"
)

// refSeen is a message as Browse should give it.
type refSeen struct {
	*refEntry
	state bourse.State
	loan  *refLoan
}

// browse is all messages of q in the order of Browse; the unacked are by number.
func (q *refQueue) browse() (all []refSeen) {
	for _, e := range q.ready {
		all = append(all, refSeen{e, bourse.StateReady, nil})
	}
	for _, e := range q.delayed {
		all = append(all, refSeen{e, bourse.StateDelayed, nil})
	}
	for _, l := range q.loans {
		all = append(all, refSeen{l.refEntry, bourse.StateUnacked, l})
	}
	slices.SortFunc(all, func(a, b refSeen) int {
		order := cmp.Compare(a.state, b.state)
		if order == 0 && a.state == bourse.StateReady {
			order = cmp.Compare(b.level, a.level)
		}
		if order == 0 && a.state == bourse.StateDelayed {
			order = a.readyAt.Compare(b.readyAt)
		}
		if order == 0 && a.state == bourse.StateUnacked {
			order = cmp.Compare(a.number, b.number)
		}
		return cmp.Or(order, cmp.Compare(a.seq, b.seq))
	})
	return all
}

func (q *refQueue) find(seq uint64) *refSeen {
	for _, s := range q.browse() {
		if s.number == seq {
			return &s
		}
	}
	return nil
}

func (q *refQueue) takeOut(e *refEntry) {
	same := func(o *refEntry) bool { return o == e }
	q.ready, q.delayed = slices.DeleteFunc(q.ready, same), slices.DeleteFunc(q.delayed, same)
}

// withdraw ends a loan without asking its consumer.
func (q *refQueue) withdraw(l *refLoan) {
	q.back(l)
	if c := l.consumer; l.tag > c.handed {
		c.buffer = slices.DeleteFunc(c.buffer, func(o *refLoan) bool { return o == l })
	} else {
		c.stale[l.tag] = true
	}
}

func (r *reference) cancel(q *refQueue, seq uint64) error {
	s := q.find(seq)
	if s == nil {
		return bourse.ErrNotFound
	}
	if s.loan != nil {
		q.withdraw(s.loan)
	}
	q.takeOut(s.refEntry)
	q.count.Cancelled++
	r.dispatch(q)
	return nil
}

// change does what act says to a message that waits.
func (r *reference) change(q *refQueue, seq uint64, act func(e *refEntry)) error {
	s := q.find(seq)
	switch {
	case s == nil:
		return bourse.ErrNotFound
	case s.loan != nil:
		return bourse.ErrNotWaiting
	}
	act(s.refEntry)
	r.dispatch(q)
	return nil
}

func (r *reference) replay(q *refQueue, limit int, ids []string) (done bourse.Replayed) {
	missing := slices.Clone(ids)
	for _, s := range q.browse() {
		if limit > 0 && done.Moved == limit {
			return done
		}
		if s.loan != nil || len(ids) > 0 && !slices.Contains(ids, s.m.ID) {
			continue
		}
		missing = slices.DeleteFunc(missing, func(id string) bool { return id == s.m.ID })
		if len(s.m.deaths) == 0 {
			done.Skipped++
			continue
		}
		target := r.queue(s.m.deaths[0].Queue)
		if target == nil {
			done.Failed++
			continue
		}
		ready, delayed := slices.Clone(q.ready), slices.Clone(q.delayed)
		q.takeOut(s.refEntry)
		if !target.takesAgain(s.m) {
			q.ready, q.delayed = ready, delayed
			done.Failed++
			continue
		}
		q.count.Replayed++
		m := *s.m
		m.Exchange, m.RoutingKey = m.deaths[0].Exchange, m.deaths[0].RoutingKey
		m.DeliverAt = time.Time{}
		q.inHand = s.refEntry
		r.enqueue(&m, []*refQueue{target})
		q.inHand = nil
		done.Moved++
	}
	if limit == 0 || done.Moved < limit {
		done.Failed += len(missing)
	}
	return done
}

// find looks for a message by its id. Of several on loan any may come.
func (s *sequence) find(q *refQueue) {
	id := one(s.t, "id", []string{"x", "y", "z"})
	got, err := s.b.Find(ctx, q.Name, id)
	all := q.browse()
	i := slices.IndexFunc(all, func(m refSeen) bool { return m.m.ID == id })
	if i < 0 {
		require.ErrorIs(s.t, err, bourse.ErrNotFound)
		return
	}
	require.NoError(s.t, err)
	require.Equal(s.t, id, got.ID)
	require.Equal(s.t, all[i].state, got.State)
	require.True(s.t, got.Seq == all[i].number || all[i].loan != nil)
}

// amend draws a message, in whatever state it is or gone, and something to do with it.
func (s *sequence) amend() {
	barrier(s.t, s.b, s.clock)
	s.ref.rests()
	name := one(s.t, "queue", somewhere)
	q := s.ref.queue(name)
	if q == nil {
		s.same(s.b.Cancel(ctx, bourse.Locator{Queue: name, Seq: 1}), bourse.ErrNotFound, "cancel in %s", name)
		return
	}
	s.find(q)
	l := bourse.Locator{Queue: name, Seq: uint64(rapid.IntRange(0, int(q.seq)+1).Draw(s.t, "seq"))}
	for _, m := range s.browse(q) {
		if m.Seq == l.Seq && rapid.Bool().Draw(s.t, "found by looking") {
			l = m.Locator
		}
	}
	what := rapid.IntRange(0, 4).Draw(s.t, "what")
	if what == 1 && len(q.delayed) > 0 {
		l = bourse.Locator{Queue: name, Seq: q.delayed[rapid.IntRange(0, len(q.delayed)-1).Draw(s.t, "delayed")].number}
	}
	switch what {
	case 0:
		s.same(s.b.Cancel(ctx, l), s.ref.cancel(q, l.Seq), "cancel %+v", l)
	case 1:
		promote := func(e *refEntry) {
			if slices.Contains(q.delayed, e) {
				q.awake(e, s.clock.Now())
			}
		}
		s.same(s.b.Promote(ctx, l), s.ref.change(q, l.Seq, promote), "promote %+v", l)
	case 2:
		p := uint8(rapid.IntRange(0, 12).Draw(s.t, "priority"))
		set := func(e *refEntry) { e.level = min(int(p), q.Priorities-1) }
		s.same(s.b.SetPriority(ctx, l, p), s.ref.change(q, l.Seq, set), "set the priority of %+v", l)
	case 3:
		body := []byte(fmt.Sprint("edit ", l.Seq))
		edit := func(e *refEntry) {
			m := *e.m // its other queues keep theirs
			m.Body = body
			e.m = &m
		}
		if e := q.find(l.Seq); e != nil && q.MaxBytes > 0 && len(e.m.Body) < largeBody {
			body = e.m.Body // whether it grows would depend on more than the reference knows
		}
		err := s.b.Edit(ctx, l, func(m *bourse.Message) error { m.Body = body; return nil })
		s.same(err, s.ref.change(q, l.Seq, edit), "edit %+v", l)
	case 4:
		limit := rapid.IntRange(0, 3).Draw(s.t, "limit")
		ids := one(s.t, "ids", [][]string{nil, nil, nil, {"x"}, {"x", "y", "z"}})
		got, err := s.b.Replay(ctx, name, bourse.ReplayOptions{Limit: limit, IDs: ids})
		require.NoError(s.t, err)
		require.Len(s.t, got.Failures, got.Failed)
		got.Failures = nil
		require.Equal(s.t, s.ref.replay(q, limit, ids), got)
	}
	barrier(s.t, s.b, s.clock)
	s.ref.rests()
	if q := s.ref.queue(name); q != nil {
		s.browse(q)
	}
}

// browse compares what Browse gives with what the reference holds.
func (s *sequence) browse(q *refQueue) []*bourse.Browsed {
	got := browsed(s.t, s.b, q.Name, bourse.BrowseOptions{})
	slices.SortStableFunc(got, func(a, b *bourse.Browsed) int {
		if a.State != b.State || a.State != bourse.StateUnacked {
			return 0
		}
		return cmp.Compare(a.Seq, b.Seq)
	})
	var have, want []string
	for _, m := range got {
		have = append(have, fmt.Sprintf("%v %d %.9s at %d from %v until %v %v tag %d: %d %d %s/%s %s", m.State, m.Seq, m.Body, m.Level,
			m.EnqueuedAt.UnixNano(), m.ReadyAt.UnixNano(), m.Deadline.UnixNano(), m.Tag, m.Deliveries, m.Failures, m.Exchange, m.RoutingKey,
			(&refMessage{deaths: m.Deaths}).history()))
	}
	for _, e := range q.browse() {
		var m bourse.Browsed // for its zero times
		if e.state == bourse.StateDelayed {
			m.ReadyAt = e.readyAt
		}
		if e.loan != nil {
			m.Deadline, m.Tag = e.loan.deadline, e.loan.tag
		}
		want = append(want, fmt.Sprintf("%v %d %.9s at %d from %v until %v %v tag %d: %d %d %s/%s %s", e.state, e.number, e.m.Body, e.level,
			e.arrived.UnixNano(), m.ReadyAt.UnixNano(), m.Deadline.UnixNano(), m.Tag, e.deliveries, e.failures, e.m.Exchange,
			e.m.RoutingKey, e.m.history()))
	}
	require.Equal(s.t, want, have, "queue %s", q.Name)
	return got
}
