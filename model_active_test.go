package bourse_test

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// Goal and method as in model_test.go: who is the single active consumer.

// elect lets a consumer of q become active, if q is of that kind and the one that was has gone.
func (q *refQueue) elect() {
	if !q.SingleActiveConsumer || slices.Contains(q.attached, q.active) {
		return
	}
	q.active = nil
	for _, c := range q.attached {
		if q.active == nil || c.priority > q.active.priority {
			q.active = c
		}
	}
}

// serves reports whether q has messages for c at all.
func (q *refQueue) serves(c *refConsumer) bool { return !q.SingleActiveConsumer || c == q.active }

// activity compares who is active. Epochs are not predicted: each must be higher than those before it under the queue's name.
func (s *sequence) activity() {
	for n, sub := range s.subs {
		c := s.ref.consumers[n]
		epoch, active := sub.Active()
		require.Equal(s.t, c.ended == nil && c.q.serves(c), active, "consumer %d is active", n)
		require.Equal(s.t, active && c.q.SingleActiveConsumer, epoch != 0, "consumer %d has an epoch", n)
		if epoch == 0 {
			continue
		}
		if c.epoch == 0 {
			require.Greater(s.t, epoch, s.epochs[c.q.Name], "epoch of %s", c.q.Name)
			c.epoch, s.epochs[c.q.Name] = epoch, epoch
		}
		require.Equal(s.t, c.epoch, epoch, "a consumer has one epoch")
	}
}

// keepKind makes q be, most of the time, of the kind that the queue of its name is, since that is fixed.
func (s *sequence) keepKind(q *bourse.Queue) {
	if have := s.ref.queue(q.Name); have != nil && s.sent%8 != 0 {
		q.SingleActiveConsumer = have.SingleActiveConsumer
	}
}

// epochOf asks that the epoch in st is that of the active consumer, and takes it out.
func (s *sequence) epochOf(st *bourse.QueueStats) {
	want := uint64(0)
	if q := s.ref.queue(st.Name); q.SingleActiveConsumer && slices.Contains(q.attached, q.active) {
		want = q.active.epoch
	}
	require.Equal(s.t, want, st.Epoch, "epoch of %s", st.Name)
	st.Epoch = 0
}
