package bourse

import "slices"

// Goal: deduplication by the rules of SEMANTICS 4, for machine_plain_test.go. Method: a list of ids, searched from end to end; whether a
// message is done is looked up each time.

// plainID is the id of a message that a queue remembers.
type plainID struct {
	id    string
	seq   uint64
	until instant // 0: until its message is done
}

// repeats reports whether msg is a duplicate, and takes its body where the duplicate replaces what waits.
func (q *plainQueue) repeats(ref Ref, size uint32, msg Message, r *report) (again, replaced bool) {
	q.forget()
	for _, k := range q.known {
		if k.id != msg.ID {
			continue
		}
		q.count.Duplicates++
		m := q.message(k.seq)
		if m == nil || m.state != plainReady && m.state != plainDelayed {
			return true, false
		}
		switch q.def.Dedup.OnDuplicate {
		case ReplaceWaiting:
			r.freed = append(r.freed, m.ref)
			m.ref, m.size = ref, size
			return true, true
		case BumpWaiting:
			m.level = max(m.level, min(int(msg.Priority), q.def.Priorities-1))
		}
		return true, false
	}
	return false, false
}

// forget drops the ids whose time is over, or whose messages are done.
func (q *plainQueue) forget() {
	q.known = slices.DeleteFunc(q.known, func(k plainID) bool {
		if !q.def.Dedup.UntilDone {
			return k.until <= q.now
		}
		m := q.message(k.seq)
		return m == nil || m.state == plainDying
	})
}

// remember keeps the id of the message that came last.
func (q *plainQueue) remember(id string) {
	q.forget()
	if len(q.known) == q.def.Dedup.MaxIDs {
		q.known = q.known[1:]
		q.count.Forgotten++
	}
	k := plainID{id: id, seq: q.nextSeq - 1}
	if q.def.Dedup.Window > 0 {
		k.until = q.now + instant(q.def.Dedup.Window)
	}
	q.known = append(q.known, k)
}

// duplicates is how many there were in all queues.
func (p *plainMachine) duplicates() (n uint64) {
	for _, q := range p.queues {
		n += q.count.Duplicates
	}
	return n
}

// known compares what is remembered and has not expired.
func (w *walker) known(q *queue, p *plainQueue) {
	w.t.Helper()
	p.now = w.p.now
	p.forget()
	var got, want []plainID
	if q.ids.inOrder != nil {
		q.ids.inOrder.Ascend(func(id remembered) bool {
			if id.until == 0 || id.until > w.m.now {
				got = append(got, plainID{seq: id.seq, until: id.until})
			}
			return true
		})
	}
	for _, k := range p.known {
		want = append(want, plainID{seq: k.seq, until: k.until})
		if id, ok := q.ids.find(keyOf([]byte(k.id))); !ok || id.seq != k.seq {
			w.t.Fatalf("queue %q does not remember %+v", p.def.Name, k)
		}
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("queue %q remembers %+v, want %+v", p.def.Name, got, want)
	}
}
