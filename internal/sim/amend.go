package sim

// amend does something to one message of a queue, by hand as it were: mostly one that is there.
func (w *Runner) amend() {
	v := w.queue()
	c := Command{Kind: Amend, At: w.at(), Queue: v.id, Amend: Amendment(w.rng.IntN(5)), Seq: uint64(w.rng.IntN(30))}
	if n := len(v.copies); n > 0 && !w.one(10) {
		if m := &v.copies[w.rng.IntN(n)]; m.state != ended {
			c.Seq, c.Ref = m.seq, m.ref
		}
	}
	if w.one(30) {
		c.Queue = w.queueID()
	}
	switch c.Amend {
	case Cancel, Promote:
	case Reprioritize:
		c.Message.Priority = uint8(w.rng.IntN(12))
	case Edit:
		w.message++
		c.Message.Number = w.message
	case Replay:
		if c.Ref == 0 {
			return // there is nothing to read
		}
		ids := [1]uint64{w.queueID()}
		c.Targets = ids[:]
		w.body(c.Ref)
		from, s := len(w.log), &w.steps[c.Ref-1]
		w.log = w.sys.Resend(w.log, &c, w.log[s.from:s.to])
		w.submitted(&c, from)
		return
	}
	w.submit(&c)
}

// amended judges an amendment. What is due in its queue happens before it, and what it makes room for after it.
func (o *observer) amended(ref uint64, c *Command, out *Outcome) {
	v := o.queue(c.Queue)
	if v == nil {
		return // command has judged the answer
	}
	i := 0
	for i < len(out.Effects) && o.wasDue(v, &out.Effects[i]) {
		o.effect(&out.Effects[i])
		i++
	}
	at := -1
	for j := range v.copies {
		if x := &v.copies[j]; x.seq == c.Seq && x.state != ended {
			at = j
		}
	}
	if at < 0 {
		answered(c, out, Absent)
	} else if o.amendOne(ref, v, at, c, out) {
		m := &v.copies[at]
		var e Effect
		if i < len(out.Effects) {
			e = out.Effects[i]
		}
		if e.Kind != Withdraw || e.Queue != v.id || e.Consumer != m.consumer || e.Tag != m.tag {
			fail("I6", "queue %d: message %d is cancelled, and consumer %x is not told", v.id, m.number, m.consumer)
		}
		i++
	}
	for ; i < len(out.Effects); i++ {
		o.effect(&out.Effects[i])
	}
}

// amendOne judges an amendment of v.copies[at], and reports whether a consumer must be told.
func (o *observer) amendOne(ref uint64, v *view, at int, c *Command, out *Outcome) (told bool) {
	m := &v.copies[at]
	switch {
	case c.Amend == Cancel:
		answered(c, out, OK)
		told = m.state == lent
		if m.state == dying {
			v.count.Discarded++
		} else {
			v.count.Cancelled++
		}
		o.end(v, m)
	case m.state != waiting:
		answered(c, out, Busy)
	case c.Amend == Promote:
		answered(c, out, OK)
		o.promote(v, m)
	case c.Amend == Reprioritize:
		answered(c, out, OK)
		m.level = uint8(min(int(c.Message.Priority), v.spec.Levels-1))
	case m.ref != c.Ref:
		answered(c, out, Stale)
	case c.Amend == Edit:
		answered(c, out, OK)
		o.reference(m.ref).live--
		r := o.reference(ref)
		r.live++
		r.number = c.Message.Number
		m.ref, m.number, m.priority, m.circle = ref, c.Message.Number, 0, 0
	case c.Amend == Replay:
		o.replay(ref, v, at, c, out)
	}
	return told
}

// wasDue reports whether e is of what came due in v before anything else: a loan past its deadline, a message that died by it or of its
// age, a body that is not needed any more.
func (o *observer) wasDue(v *view, e *Effect) bool {
	switch {
	case e.Kind == Free:
		return true
	case e.Queue != v.id:
		return false
	case e.Kind == Withdraw:
		m := v.loan(e.Consumer, e.Tag)
		return m != nil && m.deadline <= o.now
	case e.Kind == Forward:
		m := v.copyOf(e.Ref)
		return m != nil && m.state == dying && !m.ordered
	}
	return false
}

// promote ends the delay of m. Its TTL, which would have counted from then, counts from now.
func (o *observer) promote(v *view, m *message) {
	if m.hi <= v.now {
		return
	}
	if m.start > v.now || m.deliveries == 0 && m.start > m.arrived && v.life(m) == NoWait {
		m.start = v.now
	}
	m.lo, m.hi = v.now, v.now
	o.expireDue(v, m)
}

// replay puts the message at v.copies[at] to the end of another queue, or leaves it if there is none.
func (o *observer) replay(ref uint64, v *view, at int, c *Command, out *Outcome) {
	target := o.queue(c.Targets[0])
	if target == nil {
		o.kept(c, out, 0, 0)
		return
	}
	m := &v.copies[at]
	msg := Message{Number: m.number, Priority: m.priority}
	v.count.Replayed++
	o.end(v, m)
	target.touched, target.now = true, o.now
	o.pass(target)
	o.arrive(target, ref, &msg, 0)
	o.kept(c, out, 1, 1)
}
