package bourse

// The rules of SEMANTICS 4, 9 and 10 about full queues, for the naive model of machine_plain_test.go.

func (q *plainQueue) bounded() bool { return q.def.MaxMessages != 0 || q.def.MaxBytes != 0 }

func (q *plainQueue) drops() bool {
	return q.def.Overflow == DropHead || q.def.Overflow == DeadLetterHead
}

// room reports whether n messages of so many bytes are within the limits.
func (q *plainQueue) room(n, bytes int64) bool {
	return (q.def.MaxMessages == 0 || n <= q.def.MaxMessages) && (q.def.MaxBytes == 0 || bytes <= q.def.MaxBytes)
}

// waits counts what is ready or delayed, and the dying but for leaving, unless they made room by dying.
func (q *plainQueue) waits(leaving *plainMessage) (n, bytes int64) {
	for _, m := range q.messages {
		if m.state == plainReady || m.state == plainDelayed || m.state == plainDying && m != leaving && !q.drops() {
			n++
			bytes += int64(m.size)
		}
	}
	return n, bytes
}

// refuses says why a message may not come in. A dead letter does not wait; it may be as large as it likes if it finds
// nothing.
func (q *plainQueue) refuses(size uint32, dead bool, leaving *plainMessage) refusal {
	no := refusal{queue: q.id, size: size}
	n, bytes := q.waits(leaving)
	switch {
	case dead && (q.drops() && q.room(1, int64(size)) || n == 0):
	case !dead && !q.room(1, int64(size)):
		no.why = refusedLarge
	case q.drops() && !dead:
	case !dead && q.def.Overflow == Block && len(q.waiting) > 0:
		no.why = refusedWaits
	case !q.drops() && q.room(n+1, bytes+int64(size)):
	case !dead && q.def.Overflow == Block:
		no.why = refusedWaits
	default:
		no.why = refusedFull
	}
	return no
}

// takeIn accepts a message, hands it out if it can, and else makes room for it.
func (q *plainQueue) takeIn(ref Ref, size uint32, msg Message, died bool, r *report) bool {
	first := q.nextSeq
	kept := q.accept(ref, size, msg, died, r)
	q.settled(r)
	q.makeRoom(first, r)
	return kept
}

// makeRoom evicts for the messages from number first on.
func (q *plainQueue) makeRoom(first uint64, r *report) {
	n, bytes := q.waits(nil)
	left := 0
	for _, m := range q.messages {
		if m.number >= first && (m.state == plainReady || m.state == plainDelayed) {
			left++
		}
	}
	for q.drops() && first < q.nextSeq && left > 0 && n > 1 && !q.room(n, bytes) {
		victim := q.first()
		if victim.number >= first {
			left--
		}
		q.count.Evicted++
		q.die(victim, ReasonMaxLength, "", r)
		n, bytes = q.waits(nil)
	}
}

// knows reports whether a message is a repetition, which needs no room.
func (q *plainQueue) knows(msg Message, died bool) bool {
	if msg.ID == "" || died || q.def.Dedup.MaxIDs == 0 {
		return false
	}
	return q.remembers(msg.ID)
}

// first is the oldest of the lowest level that is ready, else the delayed one that comes last.
func (q *plainQueue) first() (lowest *plainMessage) {
	for _, m := range q.messages {
		if m.state == plainReady && (lowest == nil || m.level < lowest.level) {
			lowest = m
		}
	}
	if lowest != nil {
		return lowest
	}
	for _, m := range q.messages {
		if m.state == plainDelayed && (lowest == nil || m.at >= lowest.at) {
			lowest = m
		}
	}
	return lowest
}

// enqueue returns the answer and how many references the queues took. died says that the message is a dead letter.
func (p *plainMachine) enqueue(ref Ref, size uint32, msg Message, died bool, targets []queueID, r *report) (uint64, int) {
	kept, code := 0, answerGone
	for _, id := range targets {
		q := p.queue(id)
		if q == nil {
			continue
		}
		code = answerOK
		if q.bounded() {
			q.settled(r)
		}
		no := refusal{}
		if q.bounded() && !q.knows(msg, died) {
			no = q.refuses(size, died, nil)
		}
		if no.why == 0 {
			if q.takeIn(ref, size, msg, died, r) {
				kept++
			}
			r.stored++
			continue
		}
		if no.why == refusedWaits {
			no.turn = q.given
			q.waiting = append(q.waiting, q.given)
			q.given++
		} else if !died {
			q.count.Rejected++
		}
		r.refused = append(r.refused, no)
	}
	if len(r.refused) > 0 {
		return answerFull, kept
	}
	return code, kept
}

// refusing reports whether one of the queues has no room for what is to be in all of them.
func (p *plainMachine) refusing(leaving *plainMessage, size uint32, targets []queueID, r *report) bool {
	for _, id := range targets {
		if q := p.queue(id); q != nil && q.bounded() {
			q.settled(r)
			if no := q.refuses(size, true, leaving); no.why != 0 {
				r.refused = append(r.refused, no)
			}
		}
	}
	return len(r.refused) > 0
}

// bring takes a message in wherever it is to go.
func (p *plainMachine) bring(ref Ref, size uint32, msg Message, died bool, targets []queueID, r *report) (uint64, int) {
	code, kept := answerGone, 0
	for _, id := range targets {
		if q := p.queue(id); q != nil {
			code = answerOK
			if q.takeIn(ref, size, msg, died, r) {
				kept++
			}
		}
	}
	return code, kept
}

func (p *plainMachine) move(ref Ref, size uint32, msg Message, source queueID, seq uint64, targets []queueID, r *report) (uint64, int) {
	from := p.queue(source)
	if from == nil {
		return answerStale, 0
	}
	dead := from.message(seq)
	if dead == nil || dead.state != plainDying {
		return answerStale, 0
	}
	if p.refusing(dead, size, targets, r) {
		return answerFull, 0
	}
	code, kept := p.bring(ref, size, msg, true, targets, r)
	if kept > 0 {
		from.count.Moved++
		from.remove(dead, r)
	}
	return code, kept
}

// enter is a publish that was told to wait and comes again.
func (p *plainMachine) enter(ref Ref, size uint32, msg Message, turn uint64, first bool, id queueID, r *report) (uint64, int) {
	q := p.queue(id)
	if q == nil {
		return answerGone, 0
	}
	q.settled(r)
	if first {
		q.stalled = false
	}
	no := refusal{queue: id, size: size, turn: turn}
	n, bytes := q.waits(nil)
	switch {
	case q.knows(msg, false):
	case !q.room(1, int64(size)):
		no.why = refusedLarge
		q.count.Rejected++
	case q.drops():
	case q.stalled:
		no.why = refusedWaits
	case !q.room(n+1, bytes+int64(size)):
		no.why = refusedWaits
		q.stalled = q.given > 0
	}
	if no.why != 0 {
		r.refused = append(r.refused, no)
		return answerFull, 0
	}
	for turn < q.given && len(q.waiting) > 0 && q.waiting[0] <= turn {
		q.waiting = q.waiting[1:]
	}
	if q.takeIn(ref, size, msg, false, r) {
		return answerOK, 1
	}
	return answerOK, 0
}

// bundleRefused says what of a bundle does not fit, counting what comes before it.
func (p *plainMachine) bundleRefused(ack *settle, parts []plainPart, r *report) bool {
	rested := map[queueID]bool{}
	more, moreBytes := map[queueID]int64{}, map[queueID]int64{}
	for i, part := range parts {
		for _, id := range part.targets {
			q := p.queue(id)
			if q == nil || !q.bounded() {
				continue
			}
			if !rested[id] && (ack == nil || ack.queue != id) {
				q.settled(r)
			}
			rested[id] = true
			if more[id] == 0 && (ack == nil || ack.queue != id) && q.knows(part.msg, false) {
				continue
			}
			more[id]++
			moreBytes[id] += int64(part.size)
			n, bytes := q.waits(nil)
			no := refusal{queue: id, size: part.size, turn: uint64(i)}
			switch {
			case !q.room(1, int64(part.size)):
				no.why = refusedLarge
			case q.drops():
			case !q.room(n+more[id], bytes+moreBytes[id]):
				no.why = refusedFull
			}
			if no.why != 0 {
				q.count.Rejected++
				r.refused = append(r.refused, no)
				return true
			}
		}
	}
	return false
}
