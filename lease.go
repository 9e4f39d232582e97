package bourse

import (
	"cmp"
	"slices"

	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/internal/wire"
)

// The end of a queue that nobody uses. A queue with Expires has a lease from its last use; one with AutoDelete goes with its last
// consumer. Where the catalogue is in the same
// shard, the queue goes in the step that finds the lease over. A queue with a shard of its own cannot leave the catalogue by
// itself: it is ending, lets no consumer in any more, and orders the outside to propose a retire to the catalogue. There the
// order of the log decides between that and a redeclare, by the number of changes that the queue has heard of: a redeclare is
// one, so a retire that comes behind it does nothing, and the change, when it comes to the queue, gives it another lease. The end of a
// queue whose last consumer has left cannot be undone; who redeclares it meanwhile waits for that, and makes another.

// lease says whether a queue has been used of late. The zero value is that of a queue that does not expire.
type lease struct {
	begun  bool    // false: it does not expire, or has a shard of its own that no session was opened in yet
	since  instant // of the last use, if it has begun; of no account while there are consumers
	ending ending
}

// ending is why a queue with a shard of its own is about to go.
type ending byte

const (
	endsNot    ending = iota
	endsUnused        // its lease is over
	endsLeft          // its last consumer has left, see Queue.AutoDelete
	endsLast   = endsLeft
)

// renew starts the lease of q anew.
func (q *queue) renew() {
	q.lease = lease{}
	if q.def.Expires != 0 {
		q.lease = lease{begun: true, since: q.now}
	}
}

// use is renew for a use by who cannot bring back what is ending.
func (q *queue) use() {
	if q.lease.begun {
		q.lease.since = q.now
	}
}

// begin starts the lease of a queue with a shard of its own.
func (q *queue) begin() {
	if !q.lease.begun && q.lease.ending == endsNot {
		q.renew()
	}
}

// left says that a consumer which was sent messages is gone.
func (q *queue) left(out []effect) []effect {
	q.use()
	if !q.def.AutoDelete || q.lease.ending != endsNot || q.attended() {
		return out
	}
	q.lease.ending = endsLeft
	return append(out, q.retireEffect())
}

// attended reports whether q has consumers that are sent messages.
func (q *queue) attended() bool {
	return slices.ContainsFunc(q.roster.all, func(c *consumer) bool { return !c.pull })
}

// leaseEnd is when the lease of q is over, or 0 if it is not running.
func (q *queue) leaseEnd() instant {
	if !q.lease.begun || q.lease.ending != endsNot || q.attended() {
		return 0
	}
	return q.lease.since + instant(q.def.Expires)
}

// leaseDue is at, or the end of the lease if that comes first; 0 is never.
func (q *queue) leaseDue(at instant) instant {
	if end := q.leaseEnd(); end != 0 && (at == 0 || end < at) {
		return end
	}
	return at
}

// sweep ends the queues whose lease is over. A queue whose time has come is gone for each command that begins with a sweep,
// whether the tick was in time or not.
func (m *machine) sweep(out []effect) []effect {
	if first, ok := m.timers.Min(); !ok || first.at > m.now {
		return out
	}
	var over []*queue
	m.timers.Ascend(func(t timer) bool {
		if t.at > m.now {
			return false
		}
		if q := m.queues[t.queue]; q.lease.begun {
			if end := q.leaseEnd(); end != 0 && end <= m.now {
				over = append(over, q)
			}
		}
		return true
	})
	slices.SortFunc(over, func(a, b *queue) int { return cmp.Compare(a.def.id, b.def.id) }) // timers may differ between replicas
	for _, q := range over {
		if m.role != roleQueue {
			out = m.dismiss(q.def, out)
			continue
		}
		q.lease.ending = endsUnused
		out = append(out, q.retireEffect())
	}
	return out
}

func (q *queue) retireEffect() effect { return effect{kind: effectRetire, queue: q.def.id} }

// dismiss takes a queue out of the topology, and drops it if it is here.
func (m *machine) dismiss(def queueDef, out []effect) []effect {
	next, removed, err := m.topology.remove([]Declaration{Queue{Name: def.Name}})
	invariant.Check(err == nil && len(removed) == 1, "queue %q cannot be removed: %v", def.Name, err)
	return append(m.dropAll(removed, m.adopt(next, out)), effect{kind: effectTopology})
}

// retire: queue id, why, the number of changes that the queue has heard of.
func appendRetire(dst []byte, at instant, id queueID, why ending, revision uint64) []byte {
	dst = append(wire.AppendUvarint(appendHeader(dst, cmdRetire, at), uint64(id)), byte(why))
	return wire.AppendUvarint(dst, revision)
}

// retireNamed takes a queue that is ending in its own shard out of the catalogue. If its lease is over that does nothing when the
// queue was changed, which a redeclare does, since it began to end: the change brings it back.
func (m *machine) retireNamed(r *wire.Reader, out []effect) (Answer, []effect) {
	id, why, revision := queueID(r.Uvarint()), ending(r.Byte()), r.Uvarint()
	if why == endsNot || why > endsLast {
		r.Fail()
	}
	mustDecode(cmdRetire, r.Done())
	def, ok := m.topology.queueByID(id)
	switch {
	case !ok || m.role == roleQueue:
		return Answer{Code: answerGone}, out
	case m.holds(def) || why == endsUnused && m.topology.revision(id) != revision:
		return Answer{Code: answerStale}, out
	}
	return Answer{Code: answerOK}, m.dismiss(def, out)
}

// renewed is next, in which the queues among ds that had holds already have another lease: here, or for those with shards of
// their own by a change that says nothing new.
func (m *machine) renewed(ds []Declaration, had, next *topology, out []effect) (*topology, []effect) {
	for _, d := range ds {
		d, ok := d.(Queue)
		if !ok {
			continue
		}
		def, ok := had.queue(d.Name)
		if !ok || def.Expires == 0 {
			continue
		}
		if q := m.at(def.id); q != nil {
			q.renew()
			continue
		}
		if next == had {
			next = had.clone()
		}
		next.updated.ReplaceOrInsert(updated{def.id, next.revision(def.id) + 1, next.declared(def)})
	}
	return next, out
}

// The lease in a snapshot: whether it has begun and why it ends, one byte; since, if it has begun.
func (l lease) appendTo(dst []byte) []byte {
	dst = append(dst, byte(l.ending)<<1|byte(bit(l.begun)))
	if l.begun {
		dst = wire.AppendVarint(dst, int64(l.since))
	}
	return dst
}

func (q *queue) decodeLease(r *wire.Reader, own bool) {
	b := r.Byte()
	q.lease.begun, q.lease.ending = b&1 != 0, ending(b>>1)
	if q.lease.begun {
		q.lease.since = instant(r.Varint())
	}
	l := q.lease
	if l.ending > endsLast || l.ending != endsNot && !own || l.ending == endsUnused && !l.begun ||
		l.ending == endsLeft && !q.def.AutoDelete || l.begun && q.def.Expires == 0 || !l.begun && !own && q.def.Expires != 0 {
		r.Fail()
	}
}

// checkLease tests the invariants of the lease of q, which has a shard of its own or not.
func (q *queue) checkLease(own bool, now instant) {
	l := q.lease
	invariant.Check(l.begun == (q.def.Expires != 0) || !l.begun && own, "queue 16: a lease for %v has begun: %v", q.def.Expires, l.begun)
	invariant.Check(l.begun || l.since == 0, "queue 16: a lease that has not begun is from %d", l.since)
	invariant.Check(l.since <= now, "queue 16: a lease from %d, now is %d", l.since, now)
	invariant.Check(l.ending != endsLeft || q.def.AutoDelete, "queue 17: the end of a queue with its last consumer")
	invariant.Check(l.ending == endsNot || own && !q.attended(), "queue 17: a queue is ending (%d) that may not", l.ending)
}
