package sim

// Queues with a single active consumer: I26.

// serves reports whether v has messages for the consumer.
func (v *view) serves(id uint64) bool { return !v.spec.Single || v.active == id }

// activated judges that a consumer becomes the active one.
func (o *observer) activated(e *Effect) {
	v := o.queue(e.Queue)
	if v == nil {
		fail("I23", "queue %d, which is gone, has an active consumer", e.Queue)
	}
	c := v.member(e.Consumer)
	switch {
	case !v.spec.Single || !v.touched:
		fail("I26", "queue %d says that consumer %x is active", v.id, e.Consumer)
	case c == nil || c.pull || c.prefetch == 0:
		fail("I26", "queue %d: consumer %x becomes active, and is gone or wants nothing", v.id, e.Consumer)
	case v.active != 0:
		fail("I26", "queue %d: consumer %x becomes active while %x is", v.id, c.id, v.active)
	}
	for i := range v.copies {
		if m := &v.copies[i]; m.state == lent {
			fail("I26", "queue %d: consumer %x becomes active while %x holds message %d", v.id, c.id, m.consumer, m.number)
		}
	}
	v.active = c.id
	if best := v.candidate(); best != c {
		fail("I26", "queue %d: consumer %x becomes active, and %x was before it", v.id, c.id, best.id)
	}
}

// candidate is who should be active: the highest rank of those that want messages, and of these the first that came.
func (v *view) candidate() (best *member) {
	for i := range v.consumers {
		if c := &v.consumers[i]; !c.pull && c.prefetch > 0 && (best == nil || c.rank > best.rank) {
			best = c
		}
	}
	return best
}

// elected asks, after a command, that somebody is active if anybody can be.
func (v *view) elected() {
	if v.spec.Single && v.active == 0 && v.candidate() != nil {
		fail("I26", "queue %d: nobody is active, and consumer %x waits for messages", v.id, v.candidate().id)
	}
}

// hear is told of an epoch, as the world outside is: by then it must last, so no crash takes it back.
func (w *Runner) hear(e *Effect) {
	name := w.obs.queue(e.Queue).spec.Name
	if before := w.epochs[name]; e.Seq <= before {
		fail("I26", "queue %d, %q: epoch %x after %x", e.Queue, name, e.Seq, before)
	}
	w.epochs[name] = e.Seq
}

// lasting reports whether who comes to that queue or leaves it waits until that is durable, since it may change who is active.
func (w *Runner) lasting(queue uint64) bool {
	v := w.obs.queue(queue)
	return v != nil && v.spec.Single
}
