package bourse

import "math/big"

// Queue.Rate in the naive model of machine_plain_test.go: a number of deliveries, as a fraction, that grows with time.

type plainCredit struct {
	number big.Rat // as it was at
	at     instant
}

// allowed is how many deliveries the rate allows now. What came in the last nanosecond may be above Burst.
func (q *plainQueue) allowed() *big.Rat {
	r := q.def.Rate
	burst, each := big.NewRat(int64(r.Burst), 1), big.NewRat(int64(r.Deliveries), int64(r.Per))
	grown := new(big.Rat).Mul(big.NewRat(int64(q.now-q.credit.at), 1), each)
	if grown.Add(grown, &q.credit.number).Cmp(each.Add(each, burst)) >= 0 {
		return burst
	}
	return grown
}

func (q *plainQueue) spend() {
	if q.def.Rate.Deliveries > 0 {
		q.credit.number.Sub(q.allowed(), big.NewRat(1, 1))
		q.credit.at = q.now
	}
}

// heldUntil is when a whole delivery is allowed; 0: now.
func (q *plainQueue) heldUntil() instant {
	r, one := q.def.Rate, big.NewRat(1, 1)
	if r.Deliveries == 0 || q.allowed().Cmp(one) >= 0 {
		return 0
	}
	missing := new(big.Rat).Sub(one, &q.credit.number)
	missing.Mul(missing, big.NewRat(int64(r.Per), int64(r.Deliveries)))
	wait := new(big.Int).Div(missing.Num(), missing.Denom())
	if !missing.IsInt() {
		wait.Add(wait, big.NewInt(1))
	}
	return q.credit.at + instant(wait.Int64())
}

// refills is when a message that waits for nothing else may go.
func (q *plainQueue) refills() instant {
	if q.paused || q.next() == nil || q.eligible() == nil {
		return 0
	}
	return q.heldUntil()
}

// rerate keeps the whole deliveries that were allowed.
func (q *plainQueue) rerate(was Rate) {
	r := q.def.Rate
	if r == was {
		return
	}
	left := int64(r.Burst)
	if was.Deliveries > 0 {
		q.def.Rate = was
		have := q.allowed()
		q.def.Rate = r
		left = min(left, int64(was.Burst), new(big.Int).Div(have.Num(), have.Denom()).Int64())
	}
	q.credit = plainCredit{at: q.now}
	q.credit.number.SetInt64(left)
}
