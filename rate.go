package bourse

import (
	"math/bits"
	"strconv"
	"time"

	"github.com/boursemq/bourse/internal/wire"
)

// MaxRate is the limit of Rate.Deliveries and Rate.Burst.
const MaxRate = 1_000_000_000

// Rate bounds how fast a queue hands out messages, over all subscriptions and Get together. The zero value is no bound. In any w, which
// are whole nanoseconds, there are at most
//
//	Burst + w*Deliveries/Per
//
// deliveries, rounded down, and a queue that always has messages and consumers with room comes to that number. What could not be
// made in its time, since there were none, is made up for by up to Burst. What is redelivered counts again, since it is handed out
// again. With prefetch, messages are handed out to the subscription before they are asked for.
//
// A rate only holds back: which message goes next, and to whom, is as without it. Get returns ErrHeldBack meanwhile, and a message with
// the TTL NoWait expires. Nothing is lost over a restart. A wall clock that is set back between two runs adds no delivery, and holds
// back what waits for that much longer.
type Rate struct {
	Deliveries int           // 1 to MaxRate; 0: no bound
	Per        time.Duration // 1ns to MaxDelay. Default a second
	// Burst is how many can go at once after a time without deliveries: 1 to MaxRate, and not more than Per and Deliveries allow within
	// MaxDelay. Default Deliveries; 1 spaces them evenly.
	Burst int
}

func (r Rate) validate() *InvalidError {
	switch {
	case r.Deliveries < 0 || r.Deliveries > MaxRate:
		return invalid("Queue.Rate.Deliveries", "is %d, want 0 to %d", r.Deliveries, MaxRate)
	case r.Per < 0 || r.Per > MaxDelay:
		return invalid("Queue.Rate.Per", "is %v, want 0 to %v", r.Per, time.Duration(MaxDelay))
	case r.Burst < 0 || r.Burst > MaxRate:
		return invalid("Queue.Rate.Burst", "is %d, want 0 to %d", r.Burst, MaxRate)
	case r.Deliveries == 0 && r.Per != 0:
		return invalid("Queue.Rate.Per", "is set, but there are no Deliveries")
	case r.Deliveries == 0 && r.Burst != 0:
		return invalid("Queue.Rate.Burst", "is set, but there are no Deliveries")
	case r.Deliveries == 0:
		return nil
	}
	r = r.withDefaults()
	high, low := bits.Mul64(uint64(r.Burst), uint64(r.Per))
	if n := uint64(r.Deliveries); high >= n || quotient(high, low, n) > uint64(MaxDelay) {
		return invalid("Queue.Rate.Burst", "is %d, which takes more than %v to be allowed again", r.Burst, time.Duration(MaxDelay))
	}
	return nil
}

func (r Rate) withDefaults() Rate {
	if r.Deliveries == 0 {
		return r
	}
	if r.Per == 0 {
		r.Per = time.Second
	}
	if r.Burst == 0 {
		r.Burst = r.Deliveries
	}
	return r
}

// compare adds the fields in which have is not as r; both have their defaults.
func (r Rate) compare(have Rate, f *fieldDiffs) {
	f.add("Rate.Deliveries", strconv.Itoa(have.Deliveries), strconv.Itoa(r.Deliveries))
	f.add("Rate.Per", have.Per.String(), r.Per.String())
	f.add("Rate.Burst", strconv.Itoa(have.Burst), strconv.Itoa(r.Burst))
}

func (r Rate) appendTo(dst []byte) []byte {
	dst = wire.AppendVarint(dst, int64(r.Deliveries))
	dst = wire.AppendVarint(dst, int64(r.Per))
	return wire.AppendVarint(dst, int64(r.Burst))
}

func decodeRate(r *wire.Reader) Rate {
	return Rate{Deliveries: decodeInt(r), Per: time.Duration(r.Varint()), Burst: decodeInt(r)}
}

// bucket is what is left of a rate: when it is full again, exactly, if nothing is delivered until then. The time is full, and
// part/Deliveries of a nanosecond. One that has passed is a full bucket, whenever that was; so is the zero value.
type bucket struct {
	full instant
	part uint32
}

// span is how long n deliveries take, at most Burst: in nanoseconds, and part/Deliveries of one.
func (r Rate) span(n int) (whole instant, part uint32) {
	high, low := bits.Mul64(uint64(n), uint64(r.Per))
	q, rest := bits.Div64(high, low, uint64(r.Deliveries))
	return instant(q), uint32(rest)
}

func quotient(high, low, by uint64) uint64 {
	q, _ := bits.Div64(high, low, by)
	return q
}

// opens is the first time at which b allows a delivery.
func (r Rate) opens(b bucket) instant {
	whole, part := r.span(r.Burst - 1)
	at := b.full - whole
	if b.part > part {
		at++
	}
	return at
}

// spent is b after a delivery at now, which it allowed. Now is a whole nanosecond, so a bucket that was full within the last one is
// not late, and keeps what it has above that: else a rate that is no whole number of them would fall behind.
func (r Rate) spent(b bucket, now instant) bucket {
	if b.full < now-1 || b.full == now-1 && b.part == 0 {
		b = bucket{full: now}
	}
	whole, part := r.span(1)
	b.full += whole
	if b.part += part; b.part >= uint32(r.Deliveries) {
		b.part -= uint32(r.Deliveries)
		b.full++
	}
	return b
}

// holds is how many deliveries b allows at once.
func (r Rate) holds(b bucket, now instant) int {
	if b.full < now {
		return r.Burst
	}
	high, low := bits.Mul64(uint64(b.full-now), uint64(r.Deliveries))
	low, carry := bits.Add64(low, uint64(b.part)+uint64(r.Per)-1, 0)
	return r.Burst - int(quotient(high+carry, low, uint64(r.Per)))
}

// holding is a bucket that allows n deliveries at once, or as many as r does.
func (r Rate) holding(n int, now instant) bucket {
	if n >= r.Burst {
		return bucket{}
	}
	whole, part := r.span(r.Burst - n)
	return bucket{now + whole, part}
}

// spend takes note of a delivery.
func (q *queue) spend() {
	if q.def.Rate.Deliveries != 0 {
		q.valve.bucket = q.def.Rate.spent(q.valve.bucket, q.now)
	}
}

// rerate takes over what the bucket of another rate allows, in whole deliveries and up to the new Burst. Without one before, it is all.
func (q *queue) rerate(had Rate) {
	now, v := q.def.Rate, &q.valve
	switch {
	case now == had:
	case now.Deliveries == 0 || had.Deliveries == 0:
		v.bucket = bucket{}
	default:
		v.bucket = now.holding(had.holds(v.bucket, q.now), q.now)
	}
}

// refills is when the rate allows the next delivery, if that is all that a message waits for; 0 otherwise.
func (q *queue) refills() instant {
	if q.def.Rate.Deliveries == 0 || q.valve.paused || !q.servable() || q.roster.next() == nil {
		return 0
	}
	return q.def.Rate.opens(q.valve.bucket)
}

// heldUntil is until when the rate allows no delivery, or 0 if it does now.
func (q *queue) heldUntil(now instant) instant {
	if q.def.Rate.Deliveries == 0 {
		return 0
	}
	if at := q.def.Rate.opens(q.valve.bucket); at > now {
		return at
	}
	return 0
}
