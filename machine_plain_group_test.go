package bourse

// Groups in the naive model of machine_plain_test.go: who is next is found by looking at every message, each time.

// counted is how many messages of a group are lent, or rest after a loan.
func (q *plainQueue) counted(group string) int {
	n := 0
	for _, m := range q.messages {
		atWork := m.state == plainLent || m.state == plainInHand && m.engaged || m.state == plainDelayed && m.deliveries > 0
		if m.group == group && atWork {
			n++
		}
	}
	return n
}

// ready makes m ready. A group that was not there takes the last place in the order of turns.
func (q *plainQueue) ready(m *plainMessage) {
	m.state = plainReady
	if m.group != "" && q.turns[m.group] == 0 {
		if q.turns == nil {
			q.turns, q.loose = map[string]uint64{}, map[int]uint64{}
		}
		q.groupTurn++
		q.turns[m.group] = q.groupTurn
	}
}

// endGroups drops the groups that are not there any more.
func (q *plainQueue) endGroups() {
	for group := range q.turns {
		here := q.counted(group) > 0
		for _, m := range q.messages {
			here = here || m.group == group && m.state == plainReady
		}
		if !here {
			delete(q.turns, group)
		}
	}
	if len(q.turns) == 0 {
		q.groupTurn, q.turns, q.loose = 0, nil, nil
	}
}

// mergeTurns makes the turns of levels that are gone those of the highest one that there is: the latest counts.
func (q *plainQueue) mergeTurns() {
	top := q.def.Priorities - 1
	for level, turn := range q.loose {
		if level > top {
			q.loose[top] = max(q.loose[top], turn)
			delete(q.loose, level)
		}
	}
}
