package bourse_test

import (
	"math/big"
	"time"

	"github.com/boursemq/bourse"
)

// Goal and method as in model_reference_test.go: Queue.Rate. What may still go is a fraction, which time adds to.

type refCredit struct {
	left *big.Rat // deliveries that were allowed at that time
	at   time.Time
}

func wholes(n int) *big.Rat { return big.NewRat(int64(n), 1) }

// allowed is what may go at a time, fractions of a delivery included.
func (q *refQueue) allowed(now time.Time) *big.Rat {
	sum := new(big.Rat).Mul(big.NewRat(int64(now.Sub(q.lent.at)), int64(q.Rate.Per)), wholes(q.Rate.Deliveries))
	nanosecond := big.NewRat(int64(q.Rate.Deliveries), int64(q.Rate.Per)) // what it adds is not cut off
	if sum.Add(sum, q.lent.left); sum.Cmp(nanosecond.Add(nanosecond, wholes(q.Rate.Burst))) >= 0 {
		return wholes(q.Rate.Burst)
	}
	return sum
}

func (q *refQueue) spend(now time.Time) {
	if q.Rate.Deliveries > 0 {
		q.lent = refCredit{new(big.Rat).Sub(q.allowed(now), wholes(1)), now}
	}
}

// opens is the first instant at which one may go.
func (q *refQueue) opens() time.Time {
	need := new(big.Rat).Sub(wholes(1), q.lent.left)
	if need.Sign() <= 0 {
		return q.lent.at
	}
	need.Mul(need, big.NewRat(int64(q.Rate.Per), int64(q.Rate.Deliveries)))
	up := new(big.Int).Add(need.Num(), new(big.Int).Sub(need.Denom(), big.NewInt(1)))
	return q.lent.at.Add(time.Duration(up.Div(up, need.Denom()).Int64()))
}

func (q *refQueue) heldUntil(now time.Time) time.Time {
	if q.Rate.Deliveries == 0 || !q.opens().After(now) {
		return time.Time{}
	}
	return time.Unix(0, q.opens().UnixNano())
}

// rerate goes on with what may go now, in whole deliveries and up to the new Burst.
func (q *refQueue) rerate(was bourse.Rate, now time.Time) {
	is := q.Rate
	if is == was {
		return
	}
	n := is.Burst
	if was.Deliveries > 0 {
		q.Rate = was
		have := q.allowed(now)
		n = min(n, was.Burst, int(new(big.Int).Div(have.Num(), have.Denom()).Int64()))
		q.Rate = is
	}
	q.lent = refCredit{wholes(n), now}
}
