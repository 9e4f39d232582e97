package sim

// command is the direct part of a command: what it changes by itself, and the answer that it must have. It marks the
// queues that the command brings to the present.
func (o *observer) command(ref uint64, c *Command, out *Outcome) {
	v := o.queue(c.Queue)
	switch c.Kind {
	case Publish:
		o.publish(ref, c, out)
		return
	case Move:
		o.move(ref, c, out)
		return
	case Tick, Open:
		o.everywhere(c, out)
		return
	case Declare:
		o.declare(c, out)
		return
	case Delete:
		o.delete(c, out)
		return
	case Attach, Detach, Settle, AckUpTo, Take, Purge, Amend:
	}
	if v == nil {
		want := Gone
		if c.Kind == Detach {
			want = OK
		}
		answered(c, out, want)
		return
	}
	v.touched = true
	if c.Kind == Amend {
		return // amended comes when what is due has happened
	}
	// The others have returned.
	//exhaustive:ignore
	switch c.Kind {
	case Attach:
		o.attach(v, c, out)
	case Detach:
		answered(c, out, OK)
		o.detach(v, c.Consumer, c.Lost)
	case Settle:
		o.settle(v, c, out)
	case AckUpTo:
		o.ackUpTo(v, c, out)
	case Take:
		o.take(v, c, out)
	case Purge:
		o.purge(v, c, out)
	}
}

func answered(c *Command, out *Outcome, want Code) {
	if out.Code != want {
		fail("I13", "%v of queue %d, consumer %x, tag %d: answer %d, want %d", c.Kind, c.Queue, c.Consumer, c.Tag, out.Code, want)
	}
}

func counted(c *Command, out *Outcome, want uint64) {
	answered(c, out, Number)
	if out.Number != want {
		fail("I13", "%v of queue %d: %d, want %d", c.Kind, c.Queue, out.Number, want)
	}
}

// publish puts the message into all queues of its route, or, if none of them exists any more, into none.
func (o *observer) publish(ref uint64, c *Command, out *Outcome) {
	kept, taken := 0, 0
	for _, id := range c.Targets {
		v := o.queue(id)
		if v == nil {
			continue
		}
		taken++
		v.touched = true
		if v.repeats(c.Message.Key, o.now) {
			v.count.Duplicates++
			continue
		}
		o.arrive(v, ref, &c.Message, 0)
		kept++
	}
	o.kept(c, out, kept, taken)
}

// kept asks that a message is in that many queues, of those that took it or had it before.
func (o *observer) kept(c *Command, out *Outcome, want, taken int) {
	if out.Kept != want {
		fail("I22", "%v of message %d: kept in %d queues of %d", c.Kind, c.Message.Number, out.Kept, want)
	}
	if taken == 0 {
		answered(c, out, Gone)
		return
	}
	answered(c, out, OK)
}

// move ends a dead message in its queue when it is in the others; if it was moved before, nothing happens.
func (o *observer) move(ref uint64, c *Command, out *Outcome) {
	source := o.queue(c.Queue)
	var dead *message
	if source != nil {
		for i := range source.copies {
			if m := &source.copies[i]; m.state == dying && m.seq == c.Seq {
				dead = m
			}
		}
	}
	if dead == nil {
		if out.Kept != 0 {
			fail("I10", "a message of queue %d was moved twice", c.Queue)
		}
		answered(c, out, Stale)
		return
	}
	kept := 0
	msg := Message{Number: dead.number, Priority: dead.priority}
	circle, at := dead.circle, -1
	for i := range source.copies {
		if &source.copies[i] == dead {
			at = i
		}
	}
	for _, id := range c.Targets {
		if v := o.queue(id); v != nil {
			o.arrive(v, ref, &msg, circle)
			v.touched = true
			kept++
		}
	}
	o.kept(c, out, kept, kept)
	if kept > 0 {
		source.count.Moved++
		source.count.Dying--
		o.end(source, &source.copies[at]) // it may have been moved in memory, if the queue is a target
	}
}

// everywhere is a tick, or the start of a session.
func (o *observer) everywhere(c *Command, out *Outcome) {
	if c.Kind == Open {
		o.session++
		counted(c, out, o.session)
	} else {
		answered(c, out, OK)
	}
	for _, v := range o.order {
		v.touched = true
		for c.Kind == Open && len(v.consumers) > 0 {
			o.detach(v, v.consumers[0].id, c.Lost)
		}
	}
}

func (o *observer) attach(v *view, c *Command, out *Outcome) {
	if c.Consumer>>32 != o.session {
		answered(c, out, Stale)
		v.touched = false
		return
	}
	answered(c, out, OK)
	if have := v.member(c.Consumer); have != nil {
		have.prefetch = c.Prefetch
		return
	}
	v.consumers = append(v.consumers, member{id: c.Consumer, prefetch: c.Prefetch, pull: c.Prefetch == 0, rank: c.Rank})
}

// detach ends a consumer: what it held comes back at once, with a failure each if it was lost.
func (o *observer) detach(v *view, id uint64, lost bool) {
	for i := range v.copies {
		m := &v.copies[i]
		switch {
		case m.state != lent || m.consumer != id:
		case lost:
			o.failed(v, m, 0, 0)
		default:
			v.count.Released++
			o.rest(v, m, 0, 0)
		}
	}
	if v.active == id {
		v.active = 0
	}
	for i := range v.consumers {
		if v.consumers[i].id == id {
			v.consumers = append(v.consumers[:i], v.consumers[i+1:]...)
			return
		}
	}
}

func (o *observer) settle(v *view, c *Command, out *Outcome) {
	m := v.loan(c.Consumer, c.Tag)
	if m == nil || m.slot != c.Slot {
		answered(c, out, Stale)
		return
	}
	answered(c, out, OK)
	switch c.Verdict {
	case Ack:
		v.count.Acked++
		o.end(v, m)
	case Nack:
		lo, hi := c.Pause, c.Pause
		if c.Pause < 0 {
			lo, hi = v.pause(m)
		}
		o.failed(v, m, lo, hi)
	case Reject:
		m.failures++
		v.count.Failed++
		o.die(v, m, Rejected)
	case Release:
		v.count.Released++
		o.rest(v, m, c.Pause, c.Pause)
	case Extend:
		m.deadline = o.now + int64(c.Pause)
	}
}

func (o *observer) ackUpTo(v *view, c *Command, out *Outcome) {
	n := uint64(0)
	for i := range v.copies {
		if m := &v.copies[i]; m.state == lent && m.consumer == c.Consumer && m.tag <= c.Tag {
			o.end(v, m)
			n++
		}
	}
	v.count.Acked += n
	counted(c, out, n)
}

// take asks that there is a loan if something is ready, to be judged later.
func (o *observer) take(v *view, c *Command, out *Outcome) {
	if v.member(c.Consumer) == nil {
		answered(c, out, Stale)
		return
	}
	if v.spec.Single {
		answered(c, out, Held)
		return
	}
	if out.Code != OK { // what is ready now would have to be lent; finish tells, since nothing may be left
		answered(c, out, Empty)
		v.refused(o.now)
	}
}

// refused asks that nothing of v is ready. What just comes to its time may still end before it is lent.
func (v *view) refused(now int64) {
	for i := range v.copies {
		m := &v.copies[i]
		if m.state != waiting || m.hi > now {
			continue
		}
		if life := v.life(m); life == 0 || life > 0 && m.start+int64(life) > now {
			fail("I21", "queue %d: message %d is ready, and is not given to who asks", v.id, m.number)
		}
	}
}

// purge drops what is not on loan and not dead. What is due at this moment is not looked at before.
func (o *observer) purge(v *view, c *Command, out *Outcome) {
	n := uint64(0)
	for i := range v.copies {
		if m := &v.copies[i]; m.state == waiting {
			o.end(v, m)
			n++
		}
	}
	v.count.Purged += n
	counted(c, out, n)
}

// declare is refused if the queue exists and is another.
func (o *observer) declare(c *Command, out *Outcome) {
	have := o.named(c.Spec.Name)
	same := false
	if have != nil {
		spec := c.Spec
		spec.Joined = have.spec.Joined // a binding, which another declaration may add
		same = spec == have.spec
	}
	switch {
	case have == nil:
		answered(c, out, OK)
		if out.Number <= o.lastID {
			fail("I23", "a new queue has the id %d, after %d", out.Number, o.lastID)
		}
		o.lastID = out.Number
		o.add(out.Number, c.Spec)
	case same:
		answered(c, out, OK)
		have.spec.Joined = have.spec.Joined || c.Spec.Joined
		if out.Number != have.id {
			fail("I23", "queue %d has the id %d after it was declared again", have.id, out.Number)
		}
	default:
		answered(c, out, Refused)
	}
}

// delete is refused while a condition does not hold. After it nothing of the queue is heard again but that its consumers are told.
func (o *observer) delete(c *Command, out *Outcome) {
	v := o.named(c.Spec.Name)
	if v == nil {
		answered(c, out, OK)
		return
	}
	held, users := len(v.copies)-v.ended, 0
	for i := range v.consumers {
		if !v.consumers[i].pull {
			users++
		}
	}
	if c.Unused && users > 0 || c.Emptied && held > 0 {
		answered(c, out, Refused)
		return
	}
	answered(c, out, OK)
	told := 0
	for i := range out.Effects {
		if e := &out.Effects[i]; e.Kind == QueueGone {
			if e.Queue != v.id || v.member(e.Consumer) == nil {
				fail("I23", "consumer %x of queue %d is told of the end of queue %d", e.Consumer, e.Queue, v.id)
			}
			told++
		}
	}
	if told != len(v.consumers) {
		fail("I23", "queue %d is gone: %d of %d consumers are told", v.id, told, len(v.consumers))
	}
	for i := range v.copies {
		if m := &v.copies[i]; m.state != ended {
			o.end(v, m)
		}
	}
	o.byID[v.id] = nil
	for i, x := range o.order {
		if x == v {
			o.order = append(o.order[:i], o.order[i+1:]...)
			break
		}
	}
	o.free = append(o.free, v)
}
