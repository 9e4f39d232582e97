package bourse

import "slices"

// Goal: deduplication by the rules of SEMANTICS 4, for machine_plain_test.go. Method: a list of ids, searched from end to end; whether a
// message is done is looked up each time.

// plainID is the id of a message that a queue remembers.
type plainID struct {
	id    string
	key   idKey // in the inbox, instead of id
	seq   uint64
	until instant // 0: until its message is done
}

// remembers reports whether an id is known.
func (q *plainQueue) remembers(id string) bool {
	q.forget()
	return slices.ContainsFunc(q.known, func(k plainID) bool { return k.id == id })
}

// repeats reports whether msg is a duplicate, and takes its body where the duplicate replaces what waits.
func (q *plainQueue) repeats(ref Ref, size uint32, msg Message, r *report) (again, replaced bool) {
	q.forget()
	for _, k := range q.known {
		if k.id != msg.ID {
			continue
		}
		q.count.Duplicates++
		m := q.numbered(k.seq)
		if m == nil || m.state != plainReady && m.state != plainDelayed {
			return true, false
		}
		switch q.def.Dedup.OnDuplicate {
		case ReplaceWaiting:
			r.freed = append(r.freed, m.ref)
			m.ref, m.part, m.size = ref, q.part, size
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
		m := q.numbered(k.seq)
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

// record keeps the key of a message that is done, unless it is there.
func (q *plainQueue) record(key idKey) {
	q.count.Done++
	q.leaveInbox()
	if q.def.Inbox.Window == 0 || slices.ContainsFunc(q.done, func(k plainID) bool { return k.key == key }) {
		return
	}
	if len(q.done) == q.def.Inbox.MaxIDs {
		q.done = q.done[1:]
		q.count.Forgotten++
	}
	q.done = append(q.done, plainID{key: key, seq: q.count.Done, until: q.now + instant(q.def.Inbox.Window)})
}

// redefineIDs makes what is remembered follow an update. What had expired is gone.
func (q *plainQueue) redefineIDs(was Dedup) {
	def := &q.def
	if (was.Window > 0) != (def.Dedup.Window > 0) || was.UntilDone != def.Dedup.UntilDone {
		q.known = nil
	}
	for i := range q.known {
		q.known[i].until += instant(def.Dedup.Window - was.Window)
	}
	q.forget()
	for len(q.known) > def.Dedup.MaxIDs {
		q.known = q.known[1:]
		q.count.Forgotten++
	}
}

// redefineInbox gives what is in the inbox the window that the queue has now. What had expired is gone.
func (q *plainQueue) redefineInbox(was InboxMemory) {
	q.done = slices.DeleteFunc(q.done, func(k plainID) bool { return k.until <= q.now || q.def.Inbox.Window == 0 })
	for i := range q.done {
		q.done[i].until += instant(q.def.Inbox.Window - was.Window)
	}
	q.leaveInbox()
	for len(q.done) > q.def.Inbox.MaxIDs {
		q.done = q.done[1:]
		q.count.Forgotten++
	}
}

func (q *plainQueue) leaveInbox() {
	q.done = slices.DeleteFunc(q.done, func(k plainID) bool { return k.until <= q.now })
}

// known compares what is remembered and has not expired.
func (w *walker) known(q *queue, p *plainQueue) {
	w.t.Helper()
	p.now = w.p.now
	p.forget()
	p.leaveInbox()
	for _, of := range []struct {
		what string
		ids  *idIndex
		want []plainID
	}{{"duplicates", &q.ids, p.known}, {"its inbox", &q.inbox, p.done}} {
		var got, want []plainID
		if of.ids.inOrder != nil {
			of.ids.inOrder.Ascend(func(id remembered) bool {
				if id.until == 0 || id.until > w.m.now {
					got = append(got, plainID{key: id.key, seq: id.seq, until: id.until})
				}
				return true
			})
		}
		for _, k := range of.want {
			if k.id != "" {
				k.key = keyOf([]byte(k.id))
			}
			want = append(want, plainID{key: k.key, seq: k.seq, until: k.until})
			if id, ok := of.ids.find(k.key); !ok || id.seq != k.seq {
				w.t.Fatalf("queue %q does not remember %+v of %s", p.def.Name, k, of.what)
			}
		}
		if !slices.Equal(got, want) {
			w.t.Fatalf("queue %q remembers %+v of %s, want %+v", p.def.Name, got, of.what, want)
		}
	}
}
