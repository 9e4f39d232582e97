package bourse_test

import (
	"cmp"
	"slices"

	"github.com/boursemq/bourse"
)

// Goal and method as in model_reference_test.go: groups. Who has a turn is found by looking at everything in the queue.

// atWork is how many messages of a group are on loan, or rest after a loan.
func (q *refQueue) atWork(group string) (n int) {
	count := func(e *refEntry) {
		if e.group == group {
			n++
		}
	}
	for _, l := range q.loans {
		count(l.refEntry)
	}
	for _, e := range q.delayed {
		if e.deliveries > 0 { // else its publisher delayed it
			count(e)
		}
	}
	if q.inHand != nil {
		count(q.inHand)
	}
	return n
}

// prune drops the groups that are not there any more.
func (q *refQueue) prune() {
	for group := range q.turns {
		if q.atWork(group) == 0 && !slices.ContainsFunc(q.ready, func(e *refEntry) bool { return e.group == group }) {
			delete(q.turns, group)
		}
	}
	if len(q.turns) == 0 {
		q.groupTurn, q.turns, q.looseTurns = 0, map[string]uint64{}, map[int]uint64{}
	}
}

// join gives a group that was not there the last turn.
func (q *refQueue) join(group string) {
	q.prune()
	if group != "" && q.turns[group] == 0 {
		q.groupTurn++
		q.turns[group] = q.groupTurn
	}
}

// served takes a turn for e.
func (q *refQueue) served(e *refEntry) {
	if len(q.turns) == 0 {
		return
	}
	q.groupTurn++
	if e.group == "" {
		q.looseTurns[e.level] = q.groupTurn
	} else {
		q.turns[e.group] = q.groupTurn
	}
}

// heads are the messages that may be served, one of each level: that of a group, or without one, which was served longest ago.
func (q *refQueue) heads() (heads []*refEntry) {
	q.prune()
	slices.SortFunc(q.ready, func(a, b *refEntry) int { return cmp.Compare(a.seq, b.seq) })
	firsts := map[string]bool{}
	loose := map[int]bool{}
	turns := map[*refEntry]uint64{}
	for _, e := range q.ready {
		turn := q.looseTurns[e.level]
		if e.group == "" && loose[e.level] || e.group != "" && firsts[e.group] {
			continue
		}
		if e.group == "" {
			loose[e.level] = true
		} else {
			firsts[e.group], turn = true, q.turns[e.group]
			if limit := q.GroupConcurrency; limit != bourse.NoLimit && q.atWork(e.group) >= limit {
				continue
			}
		}
		turns[e] = turn
		i := slices.IndexFunc(heads, func(o *refEntry) bool { return o.level == e.level })
		switch {
		case i < 0:
			heads = append(heads, e)
		case turn < turns[heads[i]]:
			heads[i] = e
		}
	}
	slices.SortFunc(heads, func(a, b *refEntry) int { return cmp.Compare(a.seq, b.seq) })
	return heads
}

// mergeTurns makes the turns of levels that are gone those of the highest one that there is.
func (q *refQueue) mergeTurns() {
	q.prune()
	top := q.Priorities - 1
	for level, turn := range q.looseTurns {
		if level > top {
			q.looseTurns[top] = max(q.looseTurns[top], turn)
			delete(q.looseTurns, level)
		}
	}
}
