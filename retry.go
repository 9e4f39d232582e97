package bourse

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/boursemq/bourse/internal/wire"
)

// Limits of a Backoff.
const (
	MaxBackoffFactor = 10
	MaxPauses        = 64 // of Backoff.Pauses
)

// Backoff is the pause after a failure. The zero value is no pause. The n-th failure of a message is followed by
//
//	min(Min * Factor^(n-1), Max) * (1 ± Jitter)
//
// or, with Pauses, by the n-th of them and from then on by the last. It is at most MaxDelay. NackAfter and RetryAfter give
// one failure a pause of its own, without jitter. A message that rests uses no prefetch and no deadline.
type Backoff struct {
	Min time.Duration
	Max time.Duration // default Min: a constant pause
	// Factor is by how much the pause grows with each failure: 1 to MaxBackoffFactor, to a hundredth. Default 2.
	Factor float64
	// Pauses lists them instead of Min, Max and Factor: at most MaxPauses, each 0 to MaxDelay.
	Pauses []time.Duration
	// Jitter is the share by which a pause varies, 0 (default) to 1, to a hundredth: what failed together does not come
	// back together. How much a pause varies follows from the queue, the message and the number of failures, so it is the
	// same on every replica and after a restart.
	Jitter float64
	// AtTail lets a message whose pause is over join the end of its level, instead of its place by arrival: after Nack, NackAfter,
	// RetryAfter, a missed deadline, or Release with a time. What comes back without a pause goes to its old place as ever; a
	// nanosecond is a pause. A message with a GroupID keeps its place, since its group goes in order. Arrival, TTL, counts and
	// the number in its Locator stay. Default: its place by arrival, so it goes before what came later.
	AtTail bool
}

func (b Backoff) validate() *InvalidError {
	switch {
	case b.Min < 0:
		return invalid("Queue.Retry.Min", "is %v, which is negative", b.Min)
	case b.Max < 0:
		return invalid("Queue.Retry.Max", "is %v, which is negative", b.Max)
	case b.Min > MaxDelay:
		return invalid("Queue.Retry.Min", "is %v, the limit is %v", b.Min, MaxDelay)
	case b.Max > MaxDelay:
		return invalid("Queue.Retry.Max", "is %v, the limit is %v", b.Max, MaxDelay)
	case b.Min == 0 && b.Max > 0:
		return invalid("Queue.Retry.Max", "is %v, but there is no Min to start from", b.Max)
	case b.Max > 0 && b.Min > b.Max:
		return invalid("Queue.Retry.Min", "is %v, more than Max, %v", b.Min, b.Max)
	case b.Factor != 0 && !(b.Factor >= 1 && b.Factor <= MaxBackoffFactor): // so written, it refuses NaN
		return invalid("Queue.Retry.Factor", "is %v, want 1 to %d", b.Factor, MaxBackoffFactor)
	case b.Factor != 0 && b.Max == 0:
		return invalid("Queue.Retry.Factor", "is %v, but there is no Max to grow to", b.Factor)
	case !(b.Jitter >= 0 && b.Jitter <= 1):
		return invalid("Queue.Retry.Jitter", "is %v, want 0 to 1", b.Jitter)
	case b.Jitter != 0 && b.Min == 0 && len(b.Pauses) == 0:
		return invalid("Queue.Retry.Jitter", "is %v, but there is no pause to vary", b.Jitter)
	case len(b.Pauses) > MaxPauses:
		return invalid("Queue.Retry.Pauses", "has %d pauses, the limit is %d", len(b.Pauses), MaxPauses)
	case len(b.Pauses) > 0 && b.Min != 0:
		return invalid("Queue.Retry.Pauses", "is set together with Min")
	}
	for i, d := range b.Pauses {
		if d < 0 || d > MaxDelay {
			return invalid("Queue.Retry.Pauses", "has %v at %d, want 0 to %v", d, i, MaxDelay)
		}
	}
	return nil
}

func (b Backoff) withDefaults() Backoff {
	if b.Max == 0 {
		b.Max = b.Min
	}
	if b.Factor == 0 && b.Min > 0 {
		b.Factor = 2
	}
	b.Factor, b.Jitter = float64(hundredths(b.Factor))/100, float64(hundredths(b.Jitter))/100
	if len(b.Pauses) == 0 {
		b.Pauses = nil
	}
	return b
}

// hundredths is a factor or a share as the machine computes with it, and as it is stored.
func hundredths(f float64) int64 { return int64(math.Round(f * 100)) }

// compare adds the fields in which have is not as b; both have their defaults.
func (b Backoff) compare(have Backoff, f *fieldDiffs) {
	f.add("Retry.Min", have.Min.String(), b.Min.String())
	f.add("Retry.Max", have.Max.String(), b.Max.String())
	f.add("Retry.Factor", shareText(have.Factor), shareText(b.Factor))
	f.add("Retry.Pauses", pausesText(have.Pauses), pausesText(b.Pauses))
	f.add("Retry.Jitter", shareText(have.Jitter), shareText(b.Jitter))
	f.add("Retry.AtTail", strconv.FormatBool(have.AtTail), strconv.FormatBool(b.AtTail))
}

func shareText(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func pausesText(ds []time.Duration) string { return strings.TrimSuffix(fmt.Sprintln(ds), "\n") }

func (b Backoff) appendTo(dst []byte) []byte {
	dst = wire.AppendVarint(dst, int64(b.Min))
	dst = wire.AppendVarint(dst, int64(b.Max))
	dst = wire.AppendUvarint(dst, uint64(hundredths(b.Factor)))
	dst = wire.AppendUvarint(dst, uint64(hundredths(b.Jitter)))
	dst = wire.AppendUvarint(dst, uint64(len(b.Pauses)))
	for _, d := range b.Pauses {
		dst = wire.AppendVarint(dst, int64(d))
	}
	return wire.AppendBool(dst, b.AtTail)
}

func decodeBackoff(r *wire.Reader) Backoff {
	b := Backoff{Min: time.Duration(r.Varint()), Max: time.Duration(r.Varint())}
	factor, jitter := r.Uvarint(), r.Uvarint()
	if factor > MaxBackoffFactor*100 || jitter > 100 {
		r.Fail()
	}
	b.Factor, b.Jitter = float64(factor)/100, float64(jitter)/100
	n := r.Count(1)
	if n > MaxPauses {
		r.Fail()
		return b
	}
	for range n {
		b.Pauses = append(b.Pauses, time.Duration(r.Varint()))
	}
	b.AtTail = r.Bool()
	return b
}

// equal reports whether d and o say the same in every field that is stored.
func (d Queue) equal(o Queue) bool { return bytes.Equal(d.appendTo(nil), o.appendTo(nil)) }

// pause is how long a message rests after its n-th failure, before jitter. Each step is cut to a whole nanosecond.
func (b Backoff) pause(n uint32) time.Duration {
	if k := len(b.Pauses); k > 0 {
		return b.Pauses[min(int64(n), int64(k))-1]
	}
	d, factor := b.Min, time.Duration(hundredths(b.Factor))
	for i := uint32(1); i < n && d < b.Max; i++ {
		next := d/100*factor + d%100*factor/100
		if next <= d { // too short to grow, or Factor is 1
			break
		}
		d = min(next, b.Max)
	}
	return d
}

// vary moves the pause d by up to Jitter of it, by where h lies among all 64-bit numbers.
func (b Backoff) vary(d time.Duration, h uint64) time.Duration {
	share := time.Duration(hundredths(b.Jitter))
	most := d/100*share + d%100*share/100
	return min(d-most+time.Duration(h%uint64(2*most+1)), MaxDelay)
}

// retryPause is how long e rests after its next failure.
func (q *queue) retryPause(e *entry) time.Duration {
	retry := &q.def.Retry
	n := e.failures + 1
	d := retry.pause(n)
	if retry.Jitter == 0 {
		return d
	}
	return retry.vary(d, scatter(q.def.id, e.seq, n))
}

// scatter is a number that looks random and is the same for the same failure, wherever it is computed.
func scatter(id queueID, seq uint64, failures uint32) uint64 {
	return mix64(mix64(mix64(uint64(id))^seq) ^ uint64(failures))
}
