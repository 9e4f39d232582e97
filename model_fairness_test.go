package bourse_test

import (
	"cmp"
	"slices"
	"time"
)

// Goal and method as in model_reference_test.go: which message is next.

func (q *refQueue) pop(now time.Time) *refEntry {
	heads := q.heads() // the next of each level, the next to serve first
	slices.SortStableFunc(heads, func(a, b *refEntry) int { return cmp.Compare(q.risen(b, now), q.risen(a, now)) })
	e := heads[0]
	if n := q.Fairness.LowerOneIn; n > 0 && int(q.turn+1)%n == 0 {
		for _, lower := range heads {
			if q.risen(lower, now) < q.risen(e, now) {
				e = lower
				break
			}
		}
	}
	q.served(e)
	q.ready = slices.DeleteFunc(q.ready, func(o *refEntry) bool { return o == e })
	return e
}

func (q *refQueue) risen(e *refEntry, now time.Time) int {
	if q.Fairness.Aging == 0 {
		return e.level
	}
	return min(e.level+int(now.Sub(e.arrived)/q.Fairness.Aging), q.Priorities-1)
}
