package bourse

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: the promise of Rate, for any rate and any demand: no stretch of time sees more deliveries than it says, and a queue that always
// has something to hand out comes to exactly that. Method: a thousand random rates; what is handed out is compared with the formula, in
// big numbers, for every stretch from one delivery to another. Now and then the machine goes through a snapshot, or its clock lags.

// anyRate is of any size that is allowed.
func anyRate(rng *rand.Rand) Rate {
	size := func(most int64) int64 { // every order of magnitude is as likely
		n := int64(1)
		for n < most && rng.IntN(4) > 0 {
			n = n*10 + rng.Int64N(10)
		}
		return min(n, most)
	}
	for {
		r := Rate{Deliveries: int(size(MaxRate)), Per: time.Duration(size(int64(MaxDelay))), Burst: int(size(MaxRate))}
		if rng.IntN(2) == 0 {
			r.Burst = 1 + rng.IntN(20)
		}
		if r.validate() == nil {
			return r
		}
	}
}

// most is what may be handed out in so many nanoseconds.
func (r Rate) most(w instant) *big.Int {
	n := new(big.Int).Mul(big.NewInt(int64(w)), big.NewInt(int64(r.Deliveries)))
	return n.Add(n.Div(n, big.NewInt(int64(r.Per))), big.NewInt(int64(r.Burst)))
}

// nth is the earliest time, from the first delivery, of a number of deliveries. ok is false if that is centuries.
func (r Rate) nth(n int) (at instant, ok bool) {
	more := new(big.Int).Mul(big.NewInt(int64(n-r.Burst)), big.NewInt(int64(r.Per)))
	more.Add(more, big.NewInt(int64(r.Deliveries-1)))
	more.Div(more, big.NewInt(int64(r.Deliveries)))
	return instant(max(0, more.Int64())), more.Cmp(big.NewInt(20*int64(MaxDelay))) < 0
}

func TestRateInEveryStretch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	total, held := 0, 0
	for range 1000 {
		r := anyRate(rng)
		s := newSingle(t, Queue{Rate: r, MaxRetries: NoLimit, AckDeadline: MaxAckDeadline})
		s.attach(1, 0)
		s.attach(2, 1+rng.IntN(5))
		var times []instant
		step := max(1, int64(r.Per)/int64(r.Deliveries)) // how much time passes, about
		for range 100 {
			for range rng.IntN(3) {
				s.enqueue(0)
				times = handed(s, times)
			}
			switch rng.IntN(5) {
			case 0:
				s.now += instant(rng.Int64N(2 * step))
			case 1:
				s.now += instant(min(rng.Int64N(30)*step, int64(MaxDelay)/200))
			case 2:
				if at := s.q.heldUntil(s.now); at != 0 {
					s.now = at
				}
			case 3:
				s.now -= instant(rng.Int64N(int64(time.Hour)))
			}
			switch rng.IntN(5) {
			case 0:
				res := s.apply(take{s.q.def.id, s.consumer(1)}.appendTo(nil, s.now))
				if res.answer.Code == answerOK {
					times = append(times, s.m.now)
				} else if res.answer.Code == answerHeld {
					held++
				}
			case 1:
				s.apply(ackUpTo{s.q.def.id, s.consumer(2), 1 << 60}.appendTo(nil, s.now))
			case 2:
				m, err := decodeMachine(s.m.appendTo(nil), func(Ref) {})
				require.NoError(t, err)
				s.m, s.q, s.out = m, m.order[1], nil
			default:
				s.apply(appendTick(nil, s.now))
			}
			times = handed(s, times)
		}
		s.m.check()
		for i := range times {
			for j := i; j < len(times); j++ {
				if most := r.most(times[j] - times[i] + 1); most.Cmp(big.NewInt(int64(j-i+1))) < 0 {
					require.Fail(t, "too many", "%+v: %d in %d ns, at most %d", r, j-i+1, times[j]-times[i]+1, most)
				}
			}
		}
		total += len(times)
	}
	require.Greater(t, total, 10_000)
	require.Greater(t, held, 1000)
}

// handed adds the time of each delivery of the last command.
func handed(s *single, times []instant) []instant {
	for range s.effects(effectDeliver) {
		times = append(times, s.m.now)
	}
	s.out = s.out[:0]
	return times
}

// A queue that always has messages, and a consumer that takes them, makes each delivery at the very first moment that is allowed, without
// a drift however long, and is woken for nothing else.
func TestRateIsReached(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	rates := []Rate{
		{3, time.Second, 1}, {7, time.Second, 7}, {1, time.Hour, 2}, {MaxRate, time.Second, 5}, {999_983, 999_999_937, 1},
		{MaxRate, MaxDelay, 1}, {MaxRate, 1, MaxRate}, {1, 1, 1}, {MaxRate - 1, MaxDelay - 1, 9}, {1, MaxDelay, 1},
	}
	for range 90 {
		rates = append(rates, anyRate(rng))
	}
	for _, r := range rates {
		s := newSingle(t, Queue{Rate: r, AckDeadline: MaxAckDeadline})
		s.attach(1, 1)
		start, tag, wake := s.now, uint64(0), instant(0)
		var slot slotID
		s.enqueue(0)
		wake, tag, slot = told(s, wake, tag, slot)
		for n := 1; n < 1000; n++ {
			after, ok := r.nth(n)
			if !ok {
				break
			}
			want := start + after
			for s.m.now < want { // the deadline of the loan that is acked below may ring before
				require.Equal(t, tag, uint64(n-1))
				require.NotZero(t, wake)
				require.LessOrEqual(t, wake, want, "%+v: nobody is woken for delivery %d", r, n)
				s.now = wake
				s.apply(appendTick(nil, s.now))
				wake, tag, slot = told(s, wake, tag, slot)
			}
			require.Equal(t, uint64(n), tag, "%+v: delivery %d is late", r, n)
			s.enqueue(0)
			wake, tag, slot = told(s, wake, tag, slot)
			s.apply(settle{queue: s.q.def.id, consumer: s.consumer(1), tag: uint64(n), slot: slot}.appendTo(nil, s.now))
			wake, tag, slot = told(s, wake, tag, slot)
			if rng.IntN(50) == 0 {
				m, err := decodeMachine(s.m.appendTo(nil), func(Ref) {})
				require.NoError(t, err)
				s.m, s.q, s.out = m, m.order[1], m.lead(nil)
				wake, tag, slot = told(s, wake, tag, slot)
			}
		}
	}
}

// told is when to wake the machine next, and the last loan.
func told(s *single, wake instant, tag uint64, slot slotID) (instant, uint64, slotID) {
	for _, e := range s.out {
		switch e.kind {
		case effectWake:
			wake = e.at
		case effectDeliver:
			tag, slot = e.tag, e.slot
		}
	}
	s.out = s.out[:0]
	return wake, tag, slot
}

// The arithmetic at the limits, where products have more than 64 bits.
func TestRateArithmetic(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 5000 {
		r, now := anyRate(rng), instant(rng.Int64N(1<<61))
		for _, n := range []int{0, 1, r.Burst / 2, r.Burst - 1, r.Burst} {
			b := r.holding(n, now)
			require.Equal(t, n, r.holds(b, now), "%+v", r)
			if n > 0 && n < r.Burst {
				require.Less(t, r.holds(b, now-1), n, "%+v: a nanosecond before", r)
			}
			opens := r.opens(b)
			require.Equal(t, n > 0, opens <= now, "%+v with %d", r, n)
			if n == 0 {
				require.Zero(t, r.holds(b, opens-1))
				require.Positive(t, r.holds(b, opens))
			} else {
				require.Equal(t, n-1, r.holds(r.spent(b, now), now), "%+v", r)
				require.Equal(t, r.Burst-1, r.holds(r.spent(b, b.full+2), b.full+2), "%+v, full for a nanosecond", r)
			}
		}
	}
}
