package bourse

// Goal: bundles, by the rule "all or nothing, and all at once", for machine_plain_test.go. Method: what each message needs is
// looked for first; then the messages go in one by one, and the queues come to rest at the end.

// plainPart is a message of a bundle.
type plainPart struct {
	msg     Message
	targets []queueID
	size    uint32
}

func (p *plainMachine) bundle(ref Ref, ack *settle, parts []plainPart, r *report) (code uint64, kept int) {
	var loan *plainMessage
	if ack != nil {
		q := p.queue(ack.queue)
		if q == nil {
			return answerGone, 0
		}
		if loan = q.loan(ack.consumer, ack.tag); loan == nil || loan.slot != ack.slot {
			return answerStale, 0
		}
	}
	for _, part := range parts {
		found := false
		for _, id := range part.targets {
			found = found || p.queue(id) != nil
		}
		if !found {
			return answerTargetGone, 0
		}
	}
	if p.bundleRefused(ack, parts, r) {
		return answerFull, 0
	}
	first := map[queueID]uint64{}
	for _, q := range p.queues {
		first[q.id] = q.nextSeq
	}
	if ack != nil {
		q := p.queue(ack.queue)
		q.count.Acked++
		q.remove(loan, r)
	}
	for i, part := range parts {
		for _, id := range part.targets {
			if q := p.queue(id); q != nil {
				q.part = uint8(i + 1)
				if q.accept(ref, part.size, part.msg, false, r) {
					kept++
				}
				q.part = 0
			}
		}
	}
	for _, q := range p.queues { // in others nothing is due that a bundle makes happen
		if ack != nil && ack.queue == q.id || plainTargets(parts, q.id) {
			q.settled(r)
			q.makeRoom(first[q.id], r)
		}
	}
	return answerOK, kept
}

func plainTargets(parts []plainPart, id queueID) bool {
	for _, part := range parts {
		for _, t := range part.targets {
			if t == id {
				return true
			}
		}
	}
	return false
}

// accept takes a message unless it is a duplicate, and reports whether it has a reference to it now.
func (q *plainQueue) accept(ref Ref, size uint32, msg Message, died bool, r *report) bool {
	dedup := msg.ID != "" && !died && q.def.Dedup.MaxIDs > 0
	if q.def.Dedup.MaxIDs > 0 {
		q.due(r)
	}
	if dedup {
		if again, replaced := q.repeats(ref, size, msg, r); again {
			return replaced
		}
	}
	q.enqueue(ref, size, msg)
	if dedup {
		q.remember(msg.ID)
	}
	return true
}

// bundle proposes several messages in one command, mostly with the ack of a loan.
func (w *walker) bundle() {
	var ack *settle
	if w.one(2) {
		c := w.loan()
		ack = &c
	}
	var parts []plainPart
	var encoded [][]byte
	for range w.rng.IntN(5) {
		p := plainPart{msg: w.message(), targets: w.targets()}
		b, size := w.append(appendTargets(nil, p.targets), p.msg, nil)
		p.size = size
		parts, encoded = append(parts, p), append(encoded, b)
	}
	at := w.at()
	res := w.propose(at, appendBundle(appendHeader(nil, cmdBundle, at), ack, encoded))
	code, kept := w.p.bundle(w.ref, ack, parts, &w.want)
	w.same("kept", res.kept, kept)
	switch {
	case code == answerOK && ack != nil:
		w.count.bundleAcks++
		fallthrough
	case code == answerOK:
		w.count.bundles++
	default:
		w.count.bundlesRefused++
	}
	w.agree(res.answer.Code, code)
}
