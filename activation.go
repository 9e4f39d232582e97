package bourse

import (
	"math"

	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/internal/wire"
)

// activations say which consumer of a queue with SingleActiveConsumer is served, and with which epoch. The active one is so until
// it is detached; then elect finds the next, after what the old one held is back and before anything is lent. All others stand
// by, and are not eligible.
//
// Epochs rise with each activation for as long as there is a queue of that name, over restarts and new declarations: the id of
// the queue is the upper half, which rises with each declaration and is never used again, the count of activations the lower.
// An epoch that was seen outside must not come again after a crash, so commands that may activate a consumer, an
// attach or a detach, are durable before they are applied, see queueDef.attachment. When the count is used up nobody is active any
// more.
type activations struct {
	active *consumer // nil: none
	count  uint32    // since the queue was declared
}

// lastEpochs is the last queue whose epochs fit.
const lastEpochs queueID = math.MaxUint32

// epoch is that of the active consumer; 0: there is none.
func (q *queue) epoch() uint64 {
	if q.activations.active == nil {
		return 0
	}
	return uint64(q.def.id)<<32 | uint64(q.activations.count)
}

// elect makes a consumer active if the queue asks for one and has none.
func (q *queue) elect(out []effect) []effect {
	if !q.def.SingleActiveConsumer || q.activations.active != nil {
		return out
	}
	c := q.candidate()
	if c == nil {
		return out
	}
	q.activations.count++
	q.activations.active = c
	c.standby = false
	q.roster.fix(c)
	return append(out, effect{kind: effectActive, queue: q.def.id, consumer: c.id, seq: q.epoch()})
}

// candidate is who would become active: of those that want messages the one of the highest priority, among equals the one that
// was attached first.
func (q *queue) candidate() (best *consumer) {
	if q.activations.count == math.MaxUint32 {
		return nil
	}
	for _, c := range q.roster.all {
		if !c.pull && c.prefetch > 0 && (best == nil || c.priority > best.priority) {
			best = c
		}
	}
	return best
}

// retire is told of a consumer that is detached and holds nothing any more.
func (q *queue) retire(c *consumer) {
	if q.activations.active == c {
		q.activations.active = nil
	}
}

// onlyActiveHolds reports whether nobody has a loan who stands by.
func (q *queue) onlyActiveHolds() bool {
	for _, c := range q.roster.all {
		if c.standby && c.outstanding > 0 {
			return false
		}
	}
	return true
}

func (q *queue) checkActivations() {
	a := &q.activations
	if !q.def.SingleActiveConsumer {
		invariant.Check(*a == activations{}, "queue 14: %d activations", a.count)
		return
	}
	active := 0
	for _, c := range q.roster.all {
		invariant.Check(c.standby == (c != a.active), "queue 14: consumer %x stands by: %v", c.id, c.standby)
		if c == a.active {
			active++
		}
	}
	invariant.Check(q.onlyActiveHolds(), "queue 14: one who stands by has a loan")
	if a.active == nil {
		invariant.Check(q.candidate() == nil, "queue 14: nobody is active, and there is a candidate")
		return
	}
	invariant.Check(active == 1 && !a.active.pull && a.count > 0, "queue 14: consumer %x is active, activation %d", a.active.id, a.count)
}

// appendActivations appends the count, and the place of the active consumer among all, from 1; 0: none.
func (q *queue) appendActivations(dst []byte) []byte {
	if !q.def.SingleActiveConsumer {
		return dst
	}
	place := 0
	for i, c := range q.roster.all {
		if c == q.activations.active {
			place = i + 1
		}
	}
	return wire.AppendUvarint(wire.AppendUvarint(dst, uint64(q.activations.count)), uint64(place))
}

// decodeActivations reads what appendActivations wrote, behind the consumers.
func (q *queue) decodeActivations(r *wire.Reader) {
	if !q.def.SingleActiveConsumer {
		return
	}
	a := &q.activations
	a.count = decodeUint32(r)
	place := r.Uvarint()
	for _, c := range q.roster.all {
		c.standby = true
	}
	if place == 0 {
		if q.candidate() != nil {
			r.Fail()
		}
		return
	}
	if place > uint64(len(q.roster.all)) || a.count == 0 || q.roster.all[place-1].pull {
		r.Fail()
		return
	}
	a.active = q.roster.all[place-1]
	a.active.standby = false
}
