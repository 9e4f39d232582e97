package bourse

import (
	"math/bits"
	"time"

	"github.com/google/btree"
)

// NoWait is the value of Message.TTL and Queue.TTL for messages that are delivered when they arrive, to a consumer that has room
// then, or not at all.
const NoWait time.Duration = -1

// expiring is when a ready message expires.
type expiring struct {
	at    instant
	seq   uint64
	level uint8
}

func byExpiry(a, b expiring) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// TTL. Only what is ready expires. A message with a TTL of its own, and one that came back, is in queue.expiring under the time when
// it does. All others have the TTL of the queue, so that in each level they expire in the order in which they came:
// the first of each tells, and they need no index.

// noWait reports whether e may not wait at all.
func (q *queue) noWait(e entry) bool { return q.def.TTL == NoWait || q.extraOf(e).ttl == NoWait }

// expiry is when e expires while it is ready, or 0 for never.
func (q *queue) expiry(e entry) instant {
	ttl, start := q.def.TTL, e.arrived
	if e.extra {
		x := q.extraOf(e)
		if x.ttl != 0 && (ttl == 0 || x.ttl < ttl) {
			ttl = x.ttl
		}
		if x.start != 0 {
			start = x.start
		}
	}
	switch {
	case ttl == 0:
		return 0
	case ttl > 0:
		return start + instant(ttl)
	case e.deliveries == 0:
		return start + 1 // lapse ends it before that
	}
	return start
}

// pushReady adds a message that has just arrived to the ready ones.
func (q *queue) pushReady(e entry) {
	if e.extra || q.def.TTL == NoWait {
		q.insertReady(e)
		return
	}
	q.ready.push(e)
}

// insertReady adds a message to the ready ones at the place that its seq gives it.
func (q *queue) insertReady(e entry) {
	if name := q.extraOf(e).group; name != "" {
		q.insertGrouped(e, name)
	} else {
		q.ready.insert(e)
	}
	q.list(e)
}

// list puts e, which is ready, into expiring if it expires.
func (q *queue) list(e entry) {
	if at := q.expiry(e); at != 0 {
		if q.expiring == nil {
			q.expiring = btree.NewG(16, byExpiry)
		}
		x := expiring{at, e.seq, e.level}
		q.expiring.ReplaceOrInsert(x)
		if at == q.now+1 && e.deliveries == 0 && q.noWait(e) {
			q.lapsing = append(q.lapsing, x)
		}
	}
}

// popReady takes the next message to serve. There must be one, see servable.
func (q *queue) popReady() (e entry) {
	switch {
	case !q.groups.isEmpty():
		e = q.popNext()
	case q.def.Fairness == (Fairness{}):
		e = q.ready.pop()
	default:
		level, _ := q.next(q.now)
		e = q.ready.popOf(level)
	}
	q.unlist(e)
	return e
}

// takeReady takes a ready message that is not served: it ends, or is put back. Until then it counts against its group. False: it
// is not there.
func (q *queue) takeReady(level uint8, seq uint64) (entry, bool) {
	e, ok := q.ready.remove(level, seq)
	if !ok {
		return e, false
	}
	if g := q.groupOf(e); g != nil {
		q.groups.seats.Delete(seat{level: g.level, turn: g.turn})
		q.engage(g, &e)
	}
	q.unlist(e)
	return e, true
}

// unlist removes e, which is not ready any more, from expiring.
func (q *queue) unlist(e entry) {
	if q.expiring != nil && q.expiring.Len() > 0 {
		q.expiring.Delete(expiring{q.expiry(e), e.seq, e.level})
	}
}

// nextExpiry is the message that expires first, and when; ok is false if none does. listed: it is in expiring.
func (q *queue) nextExpiry() (next expiring, listed, ok bool) {
	if q.expiring != nil {
		next, listed = q.expiring.Min()
	}
	ok = listed
	if q.def.TTL == 0 {
		return next, listed, ok
	}
	for w, set := range q.ready.occupied {
		for ; set != 0; set &= set - 1 {
			e := q.ready.lines[w*64+bits.TrailingZeros64(set)].next()
			if e == nil {
				continue
			}
			if x := (expiring{q.expiry(*e), e.seq, e.level}); !ok || byExpiry(x, next) {
				next, listed, ok = x, false, true
			}
		}
	}
	return next, listed, ok
}

// expireReady ends what has waited too long, in the order in which it expires.
func (q *queue) expireReady(out []effect) []effect {
	if q.def.TTL == 0 && (q.expiring == nil || q.expiring.Len() == 0) {
		return out
	}
	for range stepLimit {
		next, _, ok := q.nextExpiry()
		if !ok || next.at > q.now {
			break
		}
		e, _ := q.takeReady(next.level, next.seq)
		q.count.Expired++
		out = q.kill(e, deadExpired, "", out)
	}
	return out
}

// lapse ends what was to be delivered with this command or not at all, and was not.
func (q *queue) lapse(out []effect) []effect {
	for _, x := range q.lapsing {
		if !q.expiring.Has(x) {
			continue
		}
		e, ok := q.takeReady(x.level, x.seq)
		if !ok {
			continue // it stands at another level since, and in lapsing again
		}
		q.count.Expired++
		out = q.kill(e, deadExpired, "", out)
	}
	q.lapsing = q.lapsing[:0]
	return out
}
