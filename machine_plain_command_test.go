package bourse

import "slices"

// The commands of the plain machine: what each does to it as a whole, and its answer. What they do to a queue is in
// machine_plain_test.go.

func (p *plainMachine) forwarded(source queueID, seq uint64, r *report) {
	if q := p.queue(source); q != nil {
		if m := q.message(seq); m != nil && m.state == plainDying {
			q.count.Moved++
			q.remove(m, r)
		}
	}
}

func (p *plainMachine) attach(c attach, r *report) uint64 {
	p.endUnused(r)
	q := p.queue(c.queue)
	if q == nil {
		return answerGone
	}
	if c.consumer.session() != p.session {
		return answerStale
	}
	have := q.consumer(c.consumer)
	if have == nil && len(q.consumers) >= 1000 {
		return answerTooMany
	}
	if have == nil {
		have = &plainConsumer{id: c.consumer, priority: int(c.priority), pull: c.prefetch == 0}
		q.consumers = append(q.consumers, have)
	}
	have.prefetch = int(c.prefetch)
	q.used = p.now
	q.settled(r)
	return answerOK
}

func (p *plainMachine) detach(c detach, r *report) {
	q := p.queue(c.queue)
	if q == nil {
		return
	}
	if have := q.consumer(c.consumer); have != nil {
		q.leave(have, c.failed, r)
	}
	q.settled(r)
}

func (p *plainMachine) open(lost bool, r *report) uint64 {
	p.session++
	for _, q := range p.queues {
		q.now = p.now
		for len(q.consumers) > 0 {
			q.leave(q.consumers[0], lost, r)
		}
		q.settled(r)
	}
	p.endUnused(r)
	return answerNumber + uint64(p.session)
}

func (p *plainMachine) settle(c settle, r *report) uint64 {
	q := p.queue(c.queue)
	if q == nil {
		return answerGone
	}
	code := answerOK
	m := q.loan(c.consumer, c.tag)
	switch {
	case m == nil || m.slot != c.slot:
		code = answerStale
	case c.verdict == verdictAck:
		q.count.Acked++
		q.remove(m, r)
	case c.verdict == verdictDone:
		q.count.Acked++
		q.remove(m, r)
		q.record(c.key)
	case c.verdict == verdictNack:
		pause := c.pause
		if pause < 0 {
			pause = q.pause(m)
		}
		q.fail(m, pause, c.note, r)
	case c.verdict == verdictReject:
		m.failures++
		q.count.Failed++
		q.die(m, ReasonRejected, c.note, r)
	case c.verdict == verdictRelease:
		q.count.Released++
		q.rest(m, c.pause)
	case c.verdict == verdictExtend:
		m.at, m.extended = q.now+instant(min(c.pause, MaxAckDeadline)), true
	}
	q.settled(r)
	return code
}

func (p *plainMachine) acks(l ackList, r *report) uint64 {
	q := p.queue(l.queue)
	if q == nil {
		return answerGone
	}
	for tag, slot := range l.all {
		if m := q.loan(l.consumer, tag); m != nil && m.slot == slot {
			q.count.Acked++
			q.remove(m, r)
		}
	}
	q.settled(r)
	return answerOK
}

func (p *plainMachine) ackUpTo(c ackUpTo, r *report) uint64 {
	q := p.queue(c.queue)
	if q == nil {
		return answerGone
	}
	n := uint64(0)
	if have := q.consumer(c.consumer); have != nil {
		for _, m := range q.loans(have) {
			if m.tag <= c.tag {
				q.count.Acked++
				q.remove(m, r)
				n++
			}
		}
	}
	q.settled(r)
	return answerNumber + n
}

// take returns the loan, if the answer is OK.
func (p *plainMachine) take(c take, r *report) (uint64, plainLoan) {
	p.endUnused(r)
	q := p.queue(c.queue)
	if q == nil {
		return answerGone, plainLoan{}
	}
	q.due(r)
	have := q.consumer(c.consumer)
	if have != nil {
		q.used = p.now
	}
	m := q.next()
	code, lent := answerOK, plainLoan{}
	switch {
	case have == nil:
		code = answerStale
	case q.paused || q.def.SingleActiveConsumer || q.heldUntil() != 0:
		code = answerHeld
	case m == nil:
		code = answerEmpty
	default:
		lent = q.lend(m, have)
	}
	q.settled(r)
	return code, lent
}

func (p *plainMachine) tick(r *report) {
	p.endUnused(r)
	for _, q := range p.queues {
		q.now = p.now
		q.settled(r)
	}
	p.ask(r)
}

func (p *plainMachine) purge(id queueID, r *report) uint64 {
	q := p.queue(id)
	if q == nil {
		return answerGone
	}
	n := uint64(0)
	for _, m := range slices.Clone(q.messages) {
		if m.state == plainReady || m.state == plainDelayed {
			q.count.Purged++
			q.remove(m, r)
			n++
		}
	}
	q.settled(r)
	return answerNumber + n
}

func (p *plainMachine) amend(c amend, ref Ref, size uint32, msg Message, targets []queueID, r *report) (uint64, int) {
	q := p.queue(c.queue)
	if q == nil {
		return answerGone, 0
	}
	q.due(r)
	code, kept := q.amend(p, c, ref, size, msg, targets, r)
	q.settled(r)
	return code, kept
}

func (q *plainQueue) amend(p *plainMachine, c amend, ref Ref, size uint32, msg Message, targets []queueID, r *report) (uint64, int) {
	m := q.numbered(c.place.number())
	if m == nil {
		return answerAbsent, 0
	}
	if c.what == amendCancel || c.what == amendReplayed && m.state != plainDying {
		switch {
		case c.what == amendReplayed:
			q.count.Replayed++
		case m.state == plainDying:
			q.count.Discarded++
		default:
			q.count.Cancelled++
		}
		if m.state == plainLent {
			r.withdrawn = append(r.withdrawn, plainTag{q.id, m.holder.id, m.tag})
		}
		q.remove(m, r)
		return answerOK, 0
	}
	if m.state == plainLent || m.state == plainDying {
		return answerNotWaiting, 0
	}
	if (c.what == amendEdit || c.what == amendReplay) && c.ref != m.ref {
		return answerStale, 0
	}
	switch c.what {
	case amendPromote:
		if m.state == plainDelayed {
			q.ready(m)
			if life, mortal := q.life(m); m.since > q.now || mortal && life == 0 && m.deliveries == 0 && m.since > m.arrived {
				m.since = q.now
			}
		}
	case amendPriority:
		m.level = min(int(c.priority), q.def.Priorities-1)
	case amendEdit:
		if _, bytes := q.waits(nil); size > m.size && !q.room(0, bytes-int64(m.size)+int64(size)) {
			r.refused = append(r.refused, refusal{queue: q.id, why: refusedFull, size: size})
			return answerFull, 0
		}
		r.freed = append(r.freed, m.ref)
		m.ref, m.part, m.size = ref, 0, size
		return answerOK, 1
	case amendReplay:
		// It leaves first; nobody can be served meanwhile.
		state := m.state
		m.state, m.engaged = plainInHand, state == plainReady || m.deliveries > 0
		code, kept := p.enqueue(ref, size, msg, true, targets, r)
		if kept == 0 {
			m.state = state
			return code, 0
		}
		q.count.Replayed++
		q.remove(m, r)
		return code, kept
	}
	return answerOK, 0
}

// declare returns the error that it must match, nil if it is accepted. def has its defaults.
func (p *plainMachine) declare(def Queue, r *report) error {
	p.endUnused(r)
	if have := p.named(def.Name); have != nil {
		if !have.def.equal(def) {
			return ErrPrecondition
		}
		have.used = p.now
		return nil
	}
	q := &plainQueue{id: p.nextID, def: def, nextSeq: 1, used: p.now}
	q.credit.number.SetInt64(int64(def.Rate.Burst))
	p.queues = append(p.queues, q)
	p.nextID++
	r.topology = true
	return nil
}

// update returns the error that it must match, nil if it is accepted. def has its defaults.
func (p *plainMachine) update(def Queue, r *report) error {
	p.endUnused(r)
	q := p.named(def.Name)
	switch {
	case q == nil:
		return ErrNotFound
	case q.id == parkingID:
		return ErrInvalid
	case q.def.equal(def):
		return nil
	case q.def.SingleActiveConsumer != def.SingleActiveConsumer:
		return ErrPrecondition
	}
	q.now = p.now
	q.forget()
	was := q.def
	q.def, q.updated, q.used = def, true, p.now
	q.rerate(was.Rate)
	q.redefineIDs(was.Dedup)
	q.redefineInbox(was.Inbox)
	for _, m := range q.messages {
		m.level = min(m.level, def.Priorities-1)
	}
	q.mergeTurns()
	q.settled(r)
	r.topology = true
	return nil
}

func (p *plainMachine) delete(name string, only removeOnly, r *report) error {
	p.endUnused(r)
	q := p.named(name)
	if q == nil {
		return nil
	}
	pushed := 0
	for _, c := range q.consumers {
		if !c.pull {
			pushed++
		}
	}
	if only&onlyUnused != 0 && pushed > 0 {
		return ErrInUse
	}
	if only&onlyEmpty != 0 && len(q.messages) > 0 {
		return ErrNotEmpty
	}
	p.drop(q, r)
	return nil
}
