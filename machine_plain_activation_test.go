package bourse

import "slices"

// Goal and method as in machine_plain_test.go: which consumer is the active one.

// plainActive says that a consumer has become the active one of its queue.
type plainActive struct {
	plainTag
	epoch uint64
}

// elect lets a consumer become active where there must be one: of those that want messages the first of the highest priority.
func (q *plainQueue) elect(r *report) {
	if !q.def.SingleActiveConsumer || slices.Contains(q.consumers, q.active) {
		return
	}
	q.active = nil
	for _, c := range q.consumers {
		if c.prefetch > 0 && !c.pull && (q.active == nil || c.priority > q.active.priority) {
			q.active = c
		}
	}
	if q.active != nil {
		q.activations++
		r.activated = append(r.activated, plainActive{plainTag{q.id, q.active.id, 0}, uint64(q.id)<<32 + q.activations})
	}
}

// mayHave reports whether the queue gives messages to c at all.
func (q *plainQueue) mayHave(c *plainConsumer) bool {
	return !q.def.SingleActiveConsumer || q.active == c
}

// activations compares who is active, and asks that no epoch came before.
func (w *walker) activations(q *queue, p *plainQueue) {
	w.t.Helper()
	active := (*plainConsumer)(nil)
	if slices.Contains(p.consumers, p.active) {
		active = p.active
	}
	w.same("activations", uint64(q.activations.count), p.activations)
	if a := q.activations.active; (a == nil) != (active == nil) || a != nil && a.id != active.id {
		w.t.Fatalf("consumer %+v is active, want %+v", a, active)
	}
}

// epochs asks that the epochs of a queue rise for as long as there is one of its name.
func (w *walker) epochs() {
	w.t.Helper()
	for _, a := range w.got.activated {
		q := w.p.queue(a.queue)
		if q == nil || a.epoch <= w.lastEpoch[q.def.Name] {
			w.t.Fatalf("epoch %d after %d", a.epoch, w.lastEpoch[q.def.Name])
		}
		w.lastEpoch[q.def.Name] = a.epoch
		w.count.activations++
		if a.epoch&(1<<32-1) > 1 {
			w.count.successions++
		}
	}
}
