package bourse

import "github.com/boursemq/bourse/internal/invariant"

// This file walks the structures and panics where an invariant does not hold. The tests call it after
// every command; a build with the tag invariants does so everywhere.

func (m *machine) check() {
	want := m.topology.queueNames.Len()
	if m.role == roleAll {
		want -= m.topology.transients.Len()
	}
	if m.role == roleCatalogue {
		want = 0
	}
	invariant.Check(len(m.order) == want, "machine 1: %d queues, %d in the topology", len(m.order), want)
	invariant.Check(len(m.order) == len(m.queues), "machine 1: %d queues in order, %d by id", len(m.order), len(m.queues))
	m.agenda.check(m.topology)
	for i, q := range m.order {
		invariant.Check(m.queues[q.def.id] == q, "machine 1: queue %d is not found by its id", q.def.id)
		invariant.Check(i == 0 || m.order[i-1].def.id < q.def.id, "machine 1: queue %d is out of order", q.def.id)
		_, known := m.topology.queueByID(q.def.id)
		invariant.Check(known, "machine 1: queue %d is not in the topology", q.def.id)
		due := q.due()
		invariant.Check(due == 0 || q.timer != 0 && q.timer <= due, "machine 2: queue %d due at %d, timer %d", q.def.id, due, q.timer)
		invariant.Check(q.timer == 0 || m.timers.Has(timer{q.timer, q.def.id}), "machine 2: timer of queue %d is not set", q.def.id)
		for _, c := range q.roster.all {
			invariant.Check(c.id.session() == m.session, "machine 3: consumer %x in session %d", c.id, m.session)
		}
		m.checkWeight(q)
		invariant.Check(q.now <= m.now, "queue 4: queue %d is ahead of its shard", q.def.id)
		q.check(m.updatedHere(q))
		q.checkRate(m.now)
		q.checkLease(m.role == roleQueue, m.now)
	}
}

func (m *machine) checkWeight(q *queue) {
	listed := 0
	for _, o := range m.scale.due {
		if o == q {
			listed++
		}
	}
	invariant.Check(listed == 1 == q.scaled.due && listed <= 1, "machine 4: queue %d is listed %d times", q.def.id, listed)
	if w := q.weight(); !q.scaled.due {
		invariant.Check(q.scaled.weight == w, "machine 4: queue %d weighs %+v, not %+v", q.def.id, w, q.scaled.weight)
	}
}

func (g *agenda) check(t *topology) {
	invariant.Check(len(g.all) == t.scheduleNames.Len(), "agenda 1: %d schedules, %d in the topology", len(g.all), t.scheduleNames.Len())
	next := instant(0)
	for i, a := range g.all {
		s, ok := t.schedule(a.Name)
		invariant.Check(ok && s.id == a.id, "agenda 1: schedule %d is not in the topology", a.id)
		invariant.Check(i == 0 || g.all[i-1].id < a.id, "agenda 1: schedule %d is out of order", a.id)
		if !a.asked && a.due != never && (next == 0 || a.due < next) {
			next = a.due
		}
		invariant.Check(a.due != 0 || a.asked && a.last == 0, "agenda 3: schedule %d is forgotten", a.id)
		invariant.Check(a.due == 0 || a.last < a.due, "agenda 4: schedule %d fired at %d, is due at %d", a.id, a.last, a.due)
	}
	invariant.Check(g.next == next, "agenda 2: next is %d, should be %d", g.next, next)
}

func (q *queue) checkRate(now instant) {
	r, b := q.def.Rate, q.valve.bucket
	if r.Deliveries == 0 {
		invariant.Check(b == bucket{}, "queue 15: a bucket without a rate: %+v", b)
		return
	}
	whole, part := r.span(1)
	if part > 0 {
		whole++
	}
	invariant.Check(int(b.part) < r.Deliveries, "queue 15: %d parts of a nanosecond, want less than %d", b.part, r.Deliveries)
	invariant.Check(r.opens(b) <= now+whole, "queue 15: held back until %d, now is %d, a delivery takes %d", r.opens(b), now, whole)
}

func (q *queue) checkExpiry(once map[uint64]bool, extras int) {
	invariant.Check(len(q.lapsing) == 0, "queue 8: %d messages that must not wait do", len(q.lapsing))
	invariant.Check(treeLen(q.extras) == extras, "queue 6: %d extras, %d messages have one", treeLen(q.extras), extras)
	tailed := 0
	if q.extras != nil {
		q.extras.Ascend(func(x extra) bool {
			invariant.Check(once[x.seq], "queue 6: an extra of message %d, which is gone", x.seq)
			if x.first != 0 {
				tailed++
				invariant.Check(x.first < x.seq && !once[x.first], "queue 18: message %d has the number %d", x.seq, x.first)
				once[x.first] = true
				id, ok := q.ids.at(x.first)
				invariant.Check(!ok || q.def.Dedup.OnDuplicate == IgnoreDuplicate || id.now == x.seq,
					"queue 18: message %d is at %d for its id", x.seq, id.now)
			}
			return true
		})
	}
	invariant.Check(tailed == q.tailed, "queue 18: %d messages have another number, counted %d", tailed, q.tailed)
	listed := 0
	list := func(e entry) bool {
		if x := (expiring{q.expiry(e), e.seq, e.level}); x.at != 0 {
			listed++
			invariant.Check(q.expiring != nil && q.expiring.Has(x), "queue 7: message %d is not listed", e.seq)
		}
		return true
	}
	for i := range q.ready.lines {
		if l := &q.ready.lines[i]; l.returned != nil {
			l.returned.Ascend(list)
		}
	}
	if q.ready.grouped != nil {
		q.ready.grouped.Ascend(list)
	}
	invariant.Check(listed == treeLen(q.expiring), "queue 7: %d listed, %d expire", treeLen(q.expiring), listed)
	if next, _, ok := q.nextExpiry(); ok && next.at <= q.now {
		invariant.Check(q.timer != 0 && q.timer <= q.now, "queue 8: message %d expired at %d, now is %d", next.seq, next.at, q.now)
	}
}

// checkGroups counts anew what the groups say of themselves.
func (q *queue) checkGroups(updated bool) {
	type tally struct{ ready, counted, lent int }
	want := make(map[string]tally)
	members := 0
	if q.ready.grouped != nil {
		q.ready.grouped.Ascend(func(e entry) bool {
			name := q.extraOf(e).group
			c := want[name]
			c.ready++
			want[name] = c
			members++
			g := q.groupOf(e)
			invariant.Check(name != "" && g != nil && !e.counted, "groups 1: message %d is ready in %q", e.seq, name)
			invariant.Check(q.groups.members.Has(member{g.number, e.seq, e.level}), "groups 2: message %d is no member", e.seq)
			return true
		})
	}
	count := func(e entry, lent int) {
		name := q.extraOf(e).group
		invariant.Check(e.counted == (name != ""), "groups 1: message %d counts in %q: %v", e.seq, name, e.counted)
		if c := want[name]; name != "" {
			want[name] = tally{c.ready, c.counted + 1, c.lent + lent}
		}
	}
	for i := range q.ledger.slots {
		if q.ledger.slots[i].holder != nil {
			count(q.ledger.slots[i].entry, 1)
		}
	}
	if q.delayed != nil {
		q.delayed.Ascend(func(d delayed) bool {
			if d.deliveries > 0 {
				count(d.entry, 0)
			} else {
				invariant.Check(!d.counted, "groups 1: message %d counts before it was ready", d.seq)
			}
			return true
		})
	}
	if q.groups.isEmpty() {
		s := q.groups
		invariant.Check(len(want) == 0, "groups 1: %d groups, none known", len(want))
		invariant.Check(s == nil || len(s.byName) == 0 && s.members.Len() == 0 && s.turn == 0, "groups 3: something is left of no groups")
		return
	}
	s := q.groups
	invariant.Check(len(s.loose) == q.def.Priorities, "groups 3: %d levels of turns", len(s.loose))
	invariant.Check(s.members.Len() == members, "groups 2: %d members, %d ready", s.members.Len(), members)
	invariant.Check(len(s.byName) == len(want) && s.seats.Len() == len(want), "groups 1: %d, %d seats, %d known",
		len(want), s.seats.Len(), len(s.byName))
	turns := make(map[uint64]bool)
	for _, turn := range s.loose {
		invariant.Check(turn == 0 || !turns[turn] && turn <= s.turn, "groups 3: turn %d of no group", turn)
		turns[turn] = true
	}
	s.seats.Ascend(func(at seat) bool {
		g := at.group
		c := want[g.name]
		invariant.Check(s.byName[g.name] == g, "groups 1: group %q is another", g.name)
		invariant.Check(c.ready == g.ready && c.counted == g.counted, "groups 1: group %q has %d ready and %d counted, not %d and %d",
			g.name, c.ready, c.counted, g.ready, g.counted)
		invariant.Check(c.lent <= q.groupLimit() || updated, "groups 4: group %q has %d on loan", g.name, c.lent)
		level := held
		if g.ready > 0 && g.counted < q.groupLimit() {
			level = int(s.first(g).level)
		}
		invariant.Check(at.level == level && g.level == level && at.turn == g.turn, "groups 3: group %q at level %d, want %d",
			g.name, at.level, level)
		invariant.Check(g.turn > 0 && g.turn <= s.turn && !turns[g.turn], "groups 3: turn %d of group %q", g.turn, g.name)
		turns[g.turn] = true
		return true
	})
}

func (q *queue) check(updated bool) {
	held := uint64(q.size())
	gone := q.count.Acked + q.count.Discarded + q.count.Moved + q.count.Purged + q.count.Cancelled + q.count.Replayed
	invariant.Check(q.count.Enqueued == held+gone, "queue 1: %d arrived, %d held, %d gone", q.count.Enqueued, held, gone)
	bytes := q.ready.bytes + q.ledger.bytes + q.delayedBytes + q.dyingBytes
	invariant.Check(q.count.bytesIn == uint64(bytes)+q.count.bytesGone, "queue 1: %d bytes arrived, %d held, %d gone",
		q.count.bytesIn, bytes, q.count.bytesGone)
	invariant.Check(q.count.Dead == q.count.Discarded+q.count.Moved+uint64(q.dyingLen()), "queue 1: the dead do not add up")
	waits := q.def.Rate.Deliveries != 0 && q.timer != 0 && q.timer <= q.now // the rate has opened the valve since the last command
	invariant.Check(!q.servable() || q.shut() || q.roster.next() == nil || waits, "queue 3: %d ready while a consumer has room", q.ready.n)

	seen := make(map[uint64]bool, q.size())
	extras := 0
	alive := make(map[uint64]bool)
	fresh, freshBytes := int64(0), int64(0)
	once := func(e entry, dead bool) {
		alive[q.number(e)] = !dead
		if e.extra {
			extras++
		}
		if e.deliveries == 0 && !dead {
			fresh++
			freshBytes += int64(e.size)
		}
		invariant.Check(!seen[e.seq], "queue 1: message %d is in two accounts", e.seq)
		seen[e.seq] = true
		invariant.Check(e.seq < q.nextSeq, "queue 1: message %d never arrived", e.seq)
		invariant.Check(e.failures <= e.deliveries, "queue 5: message %d failed %d times in %d deliveries", e.seq, e.failures, e.deliveries)
		if limit := q.def.MaxRetries; !dead && limit != NoLimit && !updated {
			invariant.Check(e.failures <= uint32(max(limit, 0)), "queue 5: message %d lives after %d failures", e.seq, e.failures)
		}
	}
	q.ready.check(once)
	q.ledger.check(&q.roster, once)
	q.roster.check()
	if q.delayed != nil {
		bytes := int64(0)
		q.delayed.Ascend(func(d delayed) bool { once(d.entry, false); bytes += int64(d.size); return true })
		invariant.Check(bytes == q.delayedBytes, "queue 1: delayed bytes")
	}
	if q.dying != nil {
		bytes := int64(0)
		q.dying.Ascend(func(d dying) bool { once(d.entry, true); bytes += int64(d.size); return true })
		invariant.Check(bytes == q.dyingBytes, "queue 1: dying bytes")
	}
	q.checkExpiry(seen, extras)
	q.checkIDs(alive)
	q.checkGroups(updated)
	q.checkLimits(fresh, freshBytes, updated)
	q.checkActivations()
}

func (r *readySet) check(once func(entry, bool)) {
	n, bytes := 0, int64(0)
	last := entry{}
	var per [MaxPriorities]int
	r.each(func(e entry) bool {
		inOrder := e.level > last.level || e.level == last.level && (n == 0 || e.seq > last.seq)
		invariant.Check(inOrder, "ready 1: message %d after %d", e.seq, last.seq)
		once(e, false)
		per[e.level]++
		n++
		bytes += int64(e.size)
		last = e
		return true
	})
	if r.grouped != nil {
		var grouped [MaxPriorities]int
		r.grouped.Ascend(func(e entry) bool { per[e.level]--; grouped[e.level]++; return true })
		for l, k := range grouped {
			invariant.Check(r.perLevel[l] == k, "ready 5: %d grouped at level %d, counted %d", k, l, r.perLevel[l])
		}
	}
	for l, k := range per {
		set := r.occupied[l/64]&(1<<(l%64)) != 0
		invariant.Check(set == (k > 0), "ready 2: level %d holds %d", l, k)
	}
	blocks := make(map[*block]bool)
	for i := range r.lines {
		l := &r.lines[i]
		if l.cold != nil {
			l.cold.check()
			invariant.Check(!blocks[l.cold.front] && l.cold.front != r.spare, "ready 4: a block at level %d is used twice", i)
			blocks[l.cold.front] = true
		}
		for _, b := range l.row[l.head:] {
			invariant.Check(b.first < b.last, "ready 4: an empty block at level %d", i)
			invariant.Check(!blocks[b] && b != r.spare, "ready 4: a block at level %d is used twice", i)
			blocks[b] = true
		}
	}
	for l := range r.lines {
		invariant.Check(r.lines[l].n == per[l], "ready 5: level %d holds %d, counted %d", l, per[l], r.lines[l].n)
	}
	saved := savedIn(r.lines)
	invariant.Check(saved == r.saved, "ready 6: %d bytes are saved, counted %d", saved, r.saved)
	invariant.Check(n == r.n && bytes == r.bytes, "ready 3: %d messages of %d bytes, counted %d and %d", n, bytes, r.n, r.bytes)
}

func (c *cold) check() {
	invariant.Check(c.front.first < c.front.last, "cold 1: nothing is at the front")
	for _, p := range c.row[c.head:] {
		invariant.Check(p.n > 0 && p.n <= blockEntries, "cold 1: %d packed", p.n)
		var room [blockEntries]entry
		entries := p.unpack(room[:])
		invariant.Check(entries[0] == p.first && entries[p.n-1] == p.last, "cold 2: from %d to %d are %d to %d", p.first.seq, p.last.seq,
			entries[0].seq, entries[p.n-1].seq)
	}
	for _, p := range c.row[:c.head] {
		invariant.Check(p == nil, "cold 3: a block before the head is kept")
	}
}

func (l *ledger) check(r *roster, once func(entry, bool)) {
	free := make(map[slotID]bool, len(l.free))
	for _, s := range l.free {
		invariant.Check(!free[s] && l.slots[s].holder == nil, "ledger 1: slot %d is free twice or held", s)
		free[s] = true
	}
	invariant.Check(len(l.free)+l.n == len(l.slots), "ledger 1: %d free and %d held of %d slots", len(l.free), l.n, len(l.slots))
	listed, bytes := 0, int64(0)
	last := instant(-1 << 63)
	for s := l.oldest; s != noSlot; s = l.slots[s].newer {
		invariant.Check(l.slots[s].deadline >= last && !l.slots[s].extended, "ledger 3: slot %d", s)
		last = l.slots[s].deadline
		listed++
	}
	if l.extended != nil {
		l.extended.Ascend(func(x extension) bool {
			invariant.Check(l.slots[x.slot].extended && l.slots[x.slot].deadline == x.deadline, "ledger 1: slot %d in the tree", x.slot)
			listed++
			return true
		})
	}
	invariant.Check(listed == l.n, "ledger 1: %d loans have a deadline, %d exist", listed, l.n)
	held := 0
	for _, c := range r.all {
		tag, n := uint64(0), int32(0)
		for s := c.oldest; s != noSlot; s = l.slots[s].newerOf {
			ln := &l.slots[s]
			invariant.Check(ln.holder == c && ln.tag > tag && ln.tag <= c.lastTag, "ledger 2: slot %d, tag %d", s, ln.tag)
			invariant.Check(ln.deliveries > 0, "ledger 2: slot %d was never delivered", s)
			once(ln.entry, false)
			tag = ln.tag
			bytes += int64(ln.size)
			n++
		}
		invariant.Check(n == c.outstanding, "ledger 2: consumer %x holds %d, counted %d", c.id, n, c.outstanding)
		held += int(n)
	}
	invariant.Check(held == l.n && bytes == l.bytes, "ledger 4: %d loans of %d bytes, counted %d and %d", held, bytes, l.n, l.bytes)
}

func (r *roster) check() {
	eligible := 0
	for _, c := range r.all {
		room := c.outstanding < c.prefetch && !c.standby
		invariant.Check(room == (c.place >= 0), "roster 2: consumer %x, %d of %d, place %d", c.id, c.outstanding, c.prefetch, c.place)
		if room {
			invariant.Check(r.eligible[c.place] == c, "roster 2: consumer %x is not at its place", c.id)
			eligible++
		}
	}
	invariant.Check(eligible == len(r.eligible), "roster 2: %d eligible, %d have room", len(r.eligible), eligible)
	for i := 1; i < len(r.eligible); i++ {
		invariant.Check(!r.before(i, (i-1)/2), "roster 3: element %d is before its parent", i)
	}
}

// checkIDs tests the invariants of the ids that q remembers. alive are the messages that it holds, the dying aside.
func (q *queue) checkIDs(alive map[uint64]bool) {
	q.ids.check()
	q.inbox.check()
	d := &q.def.Dedup
	invariant.Check(q.inbox.len() <= q.def.Inbox.MaxIDs, "queue 9: %d ids in the inbox, the limit is %d", q.inbox.len(),
		q.def.Inbox.MaxIDs)
	invariant.Check(q.ids.len() <= d.MaxIDs, "queue 9: %d ids, the limit is %d", q.ids.len(), d.MaxIDs)
	if d.UntilDone && q.ids.inOrder != nil {
		q.ids.inOrder.Ascend(func(id remembered) bool {
			invariant.Check(alive[id.seq], "queue 10: an id of message %d, which is done", id.seq)
			return true
		})
	}
	if d.OnDuplicate != IgnoreDuplicate && q.delayed != nil {
		q.delayed.Ascend(func(m delayed) bool {
			id, ok := q.ids.at(q.number(m.entry))
			invariant.Check(!ok || id.rests == m.at, "queue 11: message %d is ready at %d, its id says %d", m.seq, m.at, id.rests)
			return true
		})
	}
}

func (x *idIndex) check() {
	invariant.Check(treeLen(x.byKey) == treeLen(x.inOrder), "ids 1: %d by key, %d in order", treeLen(x.byKey), treeLen(x.inOrder))
	if x.inOrder == nil {
		return
	}
	last := instant(0)
	x.inOrder.Ascend(func(id remembered) bool {
		k, ok := x.byKey.Get(keyed{key: id.key})
		invariant.Check(ok && k.seq == id.seq, "ids 1: id %d is not found by its key", id.seq)
		invariant.Check(id.until >= last, "ids 2: id %d expires before the one before it", id.seq)
		last = id.until
		return true
	})
}
