package bourse

import (
	"cmp"
	"slices"
)

// Goal and method as in machine_plain_test.go: which message is next, and for whom.

// next is the message to serve. Of each level one stands for it: of the first ones of all groups that are below the limit, and the
// first without a group, that of who was served longest ago. Among these the one that is highest, or has risen highest, is next, and
// of several the one that came first. Every so many deliveries it is the best of those that are lower than that.
func (q *plainQueue) next() *plainMessage {
	type stands struct {
		m    *plainMessage
		turn uint64
	}
	of := map[int]stands{}
	seen := map[string]bool{}
	for _, m := range q.messages {
		who := m.group
		if who == "" {
			who = string(rune(m.level)) + "\x00" // no group has such a name
		}
		if m.state != plainReady || seen[who] {
			continue
		}
		seen[who] = true
		turn := q.loose[m.level]
		if m.group != "" {
			if limit := q.def.GroupConcurrency; limit != NoLimit && q.counted(m.group) >= limit {
				continue
			}
			turn = q.turns[m.group]
		}
		if have, ok := of[m.level]; !ok || turn < have.turn {
			of[m.level] = stands{m, turn}
		}
	}
	var all []*plainMessage
	for _, s := range of {
		all = append(all, s.m)
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *plainMessage) int {
		return cmp.Or(cmp.Compare(q.risen(b), q.risen(a)), cmp.Compare(a.seq, b.seq))
	})
	if n := uint64(q.def.Fairness.LowerOneIn); n != 0 && (q.turn+1)%n == 0 {
		for _, lower := range all {
			if q.risen(lower) < q.risen(all[0]) {
				return lower
			}
		}
	}
	return all[0]
}

// risen is the level of m with one more for each period of aging that it is here.
func (q *plainQueue) risen(m *plainMessage) int {
	level := m.level
	if aging := instant(q.def.Fairness.Aging); aging > 0 {
		for at := m.arrived + aging; at <= q.now && level < q.def.Priorities-1; at += aging {
			level++
		}
	}
	return level
}

// pause stops or starts deliveries.
func (p *plainMachine) pause(id queueID, paused bool, r *report) uint64 {
	q := p.queue(id)
	if q == nil {
		return answerGone
	}
	q.paused = paused
	q.settled(r)
	return answerOK
}

// eligible is the consumer to serve: of those with room the one of the highest priority, then the one with least on loan,
// then the one served longest ago, then the one that came first.
func (q *plainQueue) eligible() *plainConsumer {
	var best *plainConsumer
	load := 0
	for _, c := range q.consumers {
		n := q.outstanding(c)
		if n >= c.prefetch || !q.mayHave(c) {
			continue
		}
		if best != nil && best.priority > c.priority {
			continue
		}
		if best == nil || c.priority > best.priority ||
			n < load || n == load && (c.turn < best.turn || c.turn == best.turn && c.id < best.id) {
			best, load = c, n
		}
	}
	return best
}
