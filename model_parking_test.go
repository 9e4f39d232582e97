package bourse_test

// Goal: the model does not ask for an order that nobody promises. What comes to the parking queue at one instant, one message directly
// and another by way of a second queue where it dies at that instant too, is in the order in which the log got their moves. Method: the
// reference takes over the order of what has just come, as long as it is the same messages.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/boursemq/bourse"
)

// align takes over the order among those that have come to the parking queue with the last operation, at one instant, and wait there.
func (s *sequence) align() {
	q := s.ref.queue(bourse.ParkingQueue)
	var fresh []*refEntry
	for _, e := range q.ready {
		if e.number > s.aligned {
			fresh = append(fresh, e)
		}
	}
	s.aligned = q.seq
	if len(fresh) < 2 {
		return
	}
	slices.SortFunc(fresh, func(a, b *refEntry) int { return cmp.Compare(a.number, b.number) })
	have := map[uint64]string{}
	for _, m := range browsed(s.t, s.b, q.Name, bourse.BrowseOptions{States: []bourse.State{bourse.StateReady}}) {
		have[m.Seq] = fmt.Sprint(m.Body, m.Exchange, m.RoutingKey, (&refMessage{deaths: m.Deaths}).history())
	}
	for i, e := range fresh {
		for _, f := range fresh[i:] {
			if f.arrived.Equal(e.arrived) && fmt.Sprint(f.m.Body, f.m.Exchange, f.m.RoutingKey, f.m.history()) == have[e.number] {
				*e, *f = *f, *e
				e.seq, f.seq = f.seq, e.seq
				e.number, f.number = f.number, e.number
				e.listed, f.listed = f.listed, e.listed
				break
			}
		}
	}
}

// straighten keeps the reference from having to say in which order messages arrive that die at one instant, some of them in several
// queues one after the other: the mover proposes their moves while others go on. So dead letters go to an exchange from one queue only, in
// which none dies when it comes.
func (s *sequence) straighten(q *bourse.Queue) {
	switch {
	case q.DeadLetter.Exchange == "":
		return
	case q.Name != "a":
		q.DeadLetter = bourse.DeadLetter{}
		if q.Overflow == bourse.DeadLetterHead {
			q.Overflow = bourse.DropHead
		}
		return
	}
	q.MaxMessages, q.MaxBytes, q.Overflow = 0, 0, bourse.RejectPublish
	if q.TTL == bourse.NoWait {
		q.TTL = time.Second
	}
}
