package bourse

// A message has a number, by arrival, which names it to the outside and in the ids that the queue remembers, and a seq, which orders it.
// Both are the same until Backoff.AtTail gives it a new seq, as if it had just come; then extra.first is the number. Seqs and numbers
// are taken from one row, so that a number is never the seq of another message.

// toTail gives e, whose pause is over, the place behind all that are here, if the queue says so. One that has not been handed out
// yet waits for its time of delivery, and has its place from its arrival; so has one of a group, which goes in order.
func (q *queue) toTail(e entry) entry {
	if !q.def.Retry.AtTail || e.deliveries == 0 || e.counted {
		return e
	}
	x := q.extraOf(e)
	q.forget(e)
	if x.first == 0 {
		x.first = e.seq
	}
	e.seq, e.extra = q.nextSeq, true
	x.seq = e.seq
	q.nextSeq++
	q.tailed++
	q.setExtra(x)
	q.names(x)
	return e
}

// number is the number of e.
func (q *queue) number(e entry) uint64 {
	if q.tailed == 0 {
		return e.seq
	}
	if x := q.extraOf(e); x.first != 0 {
		return x.first
	}
	return e.seq
}

// seqOf is the seq of the message with a number, if there is one. It may cost a walk over the extras.
func (q *queue) seqOf(number uint64) uint64 {
	seq := number
	if q.tailed > 0 {
		q.extras.Ascend(func(x extra) bool {
			if x.first == number {
				seq = x.seq
			}
			return seq == number
		})
	}
	return seq
}

// nameAll is names for all messages.
func (q *queue) nameAll() {
	if q.tailed == 0 {
		return
	}
	q.extras.Ascend(func(x extra) bool {
		q.names(x)
		return true
	})
}

// names takes note, with the id of a message, of the seq that it has now: that is how it is found.
func (q *queue) names(x extra) {
	if x.first == 0 || q.def.Dedup.OnDuplicate == IgnoreDuplicate {
		return
	}
	if id, ok := q.ids.at(x.first); ok {
		id.now = x.seq
		q.ids.inOrder.ReplaceOrInsert(id)
	}
}
