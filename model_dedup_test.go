package bourse_test

// Goal: say which publishes are repetitions, for model_test.go. Method: one list of ids for each queue, searched from end to end.

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// refID is an id that a queue remembers.
type refID struct {
	id    string
	e     *refEntry
	until time.Time
}

// repeats reports whether q has m already, and does to the waiting message what duplicates do.
func (q *refQueue) repeats(m *refMessage, now time.Time) bool {
	i := q.knows(m, now)
	if i < 0 {
		return false
	}
	q.count.Duplicates++
	if e := q.known[i].e; slices.Contains(q.ready, e) || slices.Contains(q.delayed, e) {
		switch q.Dedup.OnDuplicate {
		case bourse.ReplaceWaiting:
			e.m = m
		case bourse.BumpWaiting:
			e.level = max(e.level, min(int(m.Priority), q.Priorities-1))
		}
	}
	return true
}

// knows is which of the known ids m has; less than 0: none.
func (q *refQueue) knows(m *refMessage, now time.Time) int {
	if len(m.deaths) > 0 {
		return -1
	}
	return slices.IndexFunc(q.known, func(k refID) bool { return k.id == m.ID && q.remembers(k, now) })
}

func (q *refQueue) remembers(k refID, now time.Time) bool {
	if q.Dedup.Window > 0 {
		return now.Before(k.until)
	}
	lent := slices.ContainsFunc(q.loans, func(l *refLoan) bool { return l.refEntry == k.e })
	return lent || slices.Contains(q.ready, k.e) || slices.Contains(q.delayed, k.e)
}

// remember keeps the id of the message of e, which has just come.
func (q *refQueue) remember(e *refEntry, now time.Time) {
	m := e.m
	if m.ID == "" || len(m.deaths) > 0 || q.Dedup == (bourse.Dedup{}) {
		return
	}
	q.known = slices.DeleteFunc(q.known, func(k refID) bool { return !q.remembers(k, now) })
	if len(q.known) == q.Dedup.MaxIDs {
		q.known = q.known[1:]
		q.count.Forgotten++
	}
	q.known = append(q.known, refID{m.ID, e, now.Add(q.Dedup.Window)})
}

// rememberAnew makes what is remembered follow an update: ids stay while the way to remember is the same, for the new window from
// when their messages came.
func (q *refQueue) rememberAnew(was bourse.Dedup, now time.Time) {
	to := q.Dedup
	q.Dedup = was
	q.known = slices.DeleteFunc(q.known, func(k refID) bool { return !q.remembers(k, now) })
	q.Dedup = to
	if (was.Window > 0) != (to.Window > 0) || was.UntilDone != to.UntilDone {
		q.known = nil
	}
	for i := range q.known {
		q.known[i].until = q.known[i].until.Add(to.Window - was.Window)
	}
	q.known = slices.DeleteFunc(q.known, func(k refID) bool { return !q.remembers(k, now) })
	for len(q.known) > to.MaxIDs {
		q.known = q.known[1:]
		q.count.Forgotten++
	}
}

// record keeps the id of a message that was done, if q has an inbox.
func (q *refQueue) record(id string, now time.Time) {
	if q.Inbox.Window == 0 {
		return
	}
	q.count.Done++
	q.done = slices.DeleteFunc(q.done, func(k refID) bool { return !now.Before(k.until) })
	if q.seen(id, now) {
		return
	}
	if len(q.done) == q.Inbox.MaxIDs {
		q.done = q.done[1:]
		q.count.Forgotten++
	}
	q.done = append(q.done, refID{id: id, until: now.Add(q.Inbox.Window)})
}

func (q *refQueue) seen(id string, now time.Time) bool {
	return slices.ContainsFunc(q.done, func(k refID) bool { return k.id == id && now.Before(k.until) })
}

// done ends d in the inbox of its queue. Without one, an ack is as good.
func (s *sequence) done(d held) error {
	inbox, err := s.b.Inbox(d.consumer.q.Name)
	if d.consumer.q != s.ref.queue(d.Queue) || d.consumer.q.Inbox.Window == 0 {
		return d.AckSync(ctx)
	}
	require.NoError(s.t, err)
	return inbox.Done(ctx, d.Delivery)
}

// seen compares what the inbox says of d.
func (s *sequence) seen(d *bourse.Delivery, q *refQueue) {
	inbox, err := s.b.Inbox(q.Name)
	if q.Inbox.Window == 0 {
		require.ErrorIs(s.t, err, bourse.ErrInvalid)
		return
	}
	require.NoError(s.t, err)
	seen, err := inbox.Seen(ctx, d)
	if q != s.ref.queue(q.Name) {
		require.ErrorIs(s.t, err, bourse.ErrQueueGone)
		return
	}
	require.NoError(s.t, err)
	require.Equal(s.t, q.seen(d.ID, s.clock.Now()), seen)
}

// redefinedInbox gives what is in the inbox the window that q has now, from when it was done.
func (q *refQueue) redefinedInbox(was bourse.InboxMemory, now time.Time) {
	over := func(k refID) bool { return q.Inbox.Window == 0 || !now.Before(k.until) }
	q.done = slices.DeleteFunc(q.done, over)
	for i := range q.done {
		q.done[i].until = q.done[i].until.Add(q.Inbox.Window - was.Window)
	}
	q.done = slices.DeleteFunc(q.done, over)
	for len(q.done) > q.Inbox.MaxIDs {
		q.done = q.done[1:]
		q.count.Forgotten++
	}
}
