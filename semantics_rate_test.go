package bourse_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Goal: a queue with a rate hands out as much as it says, to whoever asks, and only holds back. Method: a broker in memory with a
// clock that is moved by hand. rate_test.go has the arithmetic, testdata/machine/rate*.txt the rules command by command.

// perSecond is a broker with one queue q of that rate.
func perSecond(t *testing.T, clock *handClock, r bourse.Rate, change ...func(*bourse.Queue)) *bourse.Broker {
	q := bourse.Queue{Name: "q", Rate: r}
	for _, c := range change {
		c(&q)
	}
	return open(t, bourse.Options{Clock: clock}, q)
}

// handedOut is how many deliveries the queue has made.
func handedOut(t *testing.T, b *bourse.Broker, clock *handClock) int {
	barrier(t, b, clock)
	return int(stats(t, b, "q").Delivered)
}

// Whatever makes a delivery counts, and is held back.
func TestSemanticsRateCounts(t *testing.T) {
	fill := func(t *testing.T, b *bourse.Broker, n int) {
		for i := range n {
			send(t, b, "q", fmt.Sprint(i))
		}
	}
	one := bourse.Rate{Deliveries: 1, Burst: 2}
	for name, run := range map[string]func(t *testing.T, b *bourse.Broker, clock *handClock){
		"one subscription": func(t *testing.T, b *bourse.Broker, _ *handClock) { consume(t, b, "q", 50); fill(t, b, 9) },
		"several subscriptions": func(t *testing.T, b *bourse.Broker, _ *handClock) {
			fill(t, b, 9)
			consume(t, b, "q", 2)
			consume(t, b, "q", 2)
			consume(t, b, "q", 2)
		},
		"get": func(t *testing.T, b *bourse.Broker, _ *handClock) {
			fill(t, b, 9)
			consume(t, b, "q", 1)
			_, err := b.Get(ctx, "q")
			require.NoError(t, err)
			_, err = b.Get(ctx, "q")
			require.ErrorIs(t, err, bourse.ErrHeldBack)
		},
		"redelivery": func(t *testing.T, b *bourse.Broker, clock *handClock) {
			s := consume(t, b, "q", 1)
			fill(t, b, 1)
			require.NoError(t, next(t, s).Nack())
			require.NoError(t, next(t, s).Release(0))
			nothing(t, b, clock, s)
			require.Equal(t, 1, stats(t, b, "q").Ready)
		},
		"auto ack": func(t *testing.T, b *bourse.Broker, _ *handClock) {
			fill(t, b, 9)
			s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1, AutoAck: true})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			next(t, s)
			next(t, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newHandClock()
			b := perSecond(t, clock, one)
			run(t, b, clock)
			require.Equal(t, 2, handedOut(t, b, clock))
			until := clock.Now().Add(time.Second)
			require.True(t, stats(t, b, "q").HeldUntil.Equal(until))
			clock.advance(t, b, time.Second-1)
			require.Equal(t, 2, handedOut(t, b, clock))
			if name == "get" {
				_, err := b.Get(ctx, "q")
				require.ErrorIs(t, err, bourse.ErrHeldBack)
			}
			clock.advance(t, b, 1)
			if name == "get" {
				require.Zero(t, stats(t, b, "q").HeldUntil)
				_, err := b.Get(ctx, "q")
				require.NoError(t, err)
			}
			require.Equal(t, 3, handedOut(t, b, clock))
			require.True(t, stats(t, b, "q").HeldUntil.Equal(until.Add(time.Second)))
		})
	}
}

// What is next, and for whom, is as without a rate; pauses, deadlines and expiry go on.
func TestSemanticsRateOnlyHoldsBack(t *testing.T) {
	single := bourse.Rate{Deliveries: 1, Burst: 1}
	bodies := func(t *testing.T, b *bourse.Broker, clock *handClock, n int) (got []string) {
		s := consume(t, b, "q", 1)
		for range n {
			d := next(t, s)
			got = append(got, string(d.Body))
			require.NoError(t, d.Ack())
			barrier(t, b, clock)
			clock.advance(t, b, time.Second)
		}
		return got
	}
	t.Run("priority and fairness", func(t *testing.T) {
		clock := newHandClock()
		b := perSecond(t, clock, single, func(q *bourse.Queue) { q.Priorities, q.Fairness.LowerOneIn = 3, 3 })
		for _, p := range []uint8{0, 0, 1, 2, 2, 2} {
			publishAt(t, b, "q", fmt.Sprint(p), p)
		}
		require.Equal(t, []string{"2", "2", "1", "2", "0", "0"}, bodies(t, b, clock, 6))
	})
	t.Run("groups", func(t *testing.T) {
		clock := newHandClock()
		b := perSecond(t, clock, single)
		for _, m := range []string{"a1", "a2", "b1", "a3"} {
			require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: []byte(m), GroupID: m[:1]}))
		}
		require.Equal(t, []string{"a1", "b1", "a2", "a3"}, bodies(t, b, clock, 4))
	})
	t.Run("consumer priority", func(t *testing.T) {
		clock := newHandClock()
		b := perSecond(t, clock, single)
		low := consume(t, b, "q", 5)
		send(t, b, "q", "first", "second")
		next(t, low)
		high, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 5, Priority: 1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, high.Close()) })
		clock.advance(t, b, time.Second)
		nothing(t, b, clock, low)
		require.Equal(t, "second", string(next(t, high).Body))
	})
	t.Run("pause", func(t *testing.T) {
		clock := newHandClock()
		b := perSecond(t, clock, single)
		s := consume(t, b, "q", 5)
		send(t, b, "q", "first", "second")
		next(t, s)
		require.NoError(t, b.Pause(ctx, "q"))
		clock.advance(t, b, 10*time.Minute)
		nothing(t, b, clock, s)
		send(t, b, "q", "third")
		require.NoError(t, b.Resume(ctx, "q"))
		require.Equal(t, "second", string(next(t, s).Body))
		nothing(t, b, clock, s) // ten minutes are no more than Burst
		clock.advance(t, b, time.Second)
		require.Equal(t, "third", string(next(t, s).Body))
	})
	t.Run("expiry", func(t *testing.T) {
		clock := newHandClock()
		b := perSecond(t, clock, single)
		s := consume(t, b, "q", 5)
		for _, ttl := range []time.Duration{bourse.NoWait, bourse.NoWait, time.Second - 1, time.Second} {
			require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", TTL: ttl}))
		}
		next(t, s)
		require.EqualValues(t, 1, stats(t, b, "q").Expired, "one that may not wait")
		clock.advance(t, b, time.Second)
		require.EqualValues(t, 3, stats(t, b, "q").Expired, "due and allowed at one instant is too late")
		nothing(t, b, clock, s)
	})
	t.Run("deadline", func(t *testing.T) {
		clock := newHandClock()
		hourly := bourse.Rate{Deliveries: 1, Per: time.Hour, Burst: 1}
		b := perSecond(t, clock, hourly, func(q *bourse.Queue) { q.AckDeadline = time.Minute })
		s := consume(t, b, "q", 5)
		send(t, b, "q", "m")
		d := next(t, s)
		clock.advance(t, b, time.Minute)
		require.EqualValues(t, 1, stats(t, b, "q").TimedOut)
		require.ErrorIs(t, d.Ack(), bourse.ErrStaleDelivery)
		nothing(t, b, clock, s)
		clock.advance(t, b, 59*time.Minute)
		require.Equal(t, 2, next(t, s).Deliveries)
	})
}

// A queue that holds nothing, or has nobody to give it to, sets no timer for its rate.
func TestSemanticsRateWakesNobody(t *testing.T) {
	clock := newHandClock()
	b := perSecond(t, clock, bourse.Rate{Deliveries: 1, Burst: 1})
	send(t, b, "q", "a", "b")
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, d.AckSync(ctx))
	clock.advance(t, b, 31*time.Minute) // the deadline of the loan that is over
	require.Zero(t, clock.pending(), "one is ready, but nobody is there")
	s := consume(t, b, "q", 1)
	d = next(t, s)
	require.NoError(t, d.AckSync(ctx))
	clock.advance(t, b, 31*time.Minute)
	require.Zero(t, clock.pending(), "a consumer is there, and nothing is ready")
	require.Zero(t, stats(t, b, "q").HeldUntil)
}

// The default is one second, and all of it at once.
func TestSemanticsRateDefaults(t *testing.T) {
	clock := newHandClock()
	b := perSecond(t, clock, bourse.Rate{Deliveries: 3})
	send(t, b, "q", "1", "2", "3", "4", "5", "6", "7", "8")
	consume(t, b, "q", 50)
	require.Equal(t, 3, handedOut(t, b, clock))
	clock.advance(t, b, time.Second)
	require.Equal(t, 6, handedOut(t, b, clock))
}

// A restart and a crash keep what is left, and a wall clock that was set back in between gives nothing more.
func TestSemanticsRateOverARestart(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprint("crash ", crash), func(t *testing.T) {
			noLeaks(t)
			clock, fs := newHandClock(), new(storage.MemFS)
			start := func() *bourse.Broker {
				b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs), Clock: clock})
				require.NoError(t, err)
				return b
			}
			b := start()
			require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", Rate: bourse.Rate{Deliveries: 1, Per: 10 * time.Second, Burst: 2}}))
			send(t, b, "q", "1", "2", "3", "4")
			begin := clock.Now()
			takeOne(t, b, "q")
			takeOne(t, b, "q")
			barrier(t, b, clock)
			for i, at := range []time.Duration{0, -time.Hour, 10*time.Second - 1, 10 * time.Second} {
				left := fs
				if crash {
					left = crashed(fs)
				}
				require.NoError(t, b.Close())
				fs = left
				clock = newHandClock()
				clock.step(begin.Add(at))
				b = start()
				d, err := b.Get(ctx, "q")
				if i < 3 {
					require.ErrorIs(t, err, bourse.ErrHeldBack, "at %v", at)
					require.True(t, stats(t, b, "q").HeldUntil.Equal(begin.Add(10*time.Second)))
					continue
				}
				require.NoError(t, err)
				require.Equal(t, "3", string(d.Body))
			}
			require.NoError(t, b.Close())
		})
	}
}

// A changed rate goes on with what was left, in whole deliveries; one that is new begins full.
func TestSemanticsRateUpdate(t *testing.T) {
	clock := newHandClock()
	q := bourse.Queue{Name: "q"}
	b := open(t, bourse.Options{Clock: clock}, q)
	send(t, b, "q", make([]string, 60)...)
	// left is how many can be had at once.
	left := func() (n int) {
		for ; ; n++ {
			d, err := b.Get(ctx, "q")
			if err != nil {
				require.ErrorIs(t, err, bourse.ErrHeldBack)
				return n
			}
			require.NoError(t, d.Ack())
		}
	}
	change := func(r bourse.Rate) {
		q.Rate = r
		require.NoError(t, b.Update(ctx, q))
	}
	change(bourse.Rate{Deliveries: 5, Per: time.Second})
	require.Equal(t, 5, left(), "new, so full")
	clock.advance(t, b, 500*time.Millisecond) // two and a half
	change(bourse.Rate{Deliveries: 1, Per: time.Minute, Burst: 9})
	require.Equal(t, 2, left())
	clock.advance(t, b, time.Minute-1)
	require.Zero(t, left(), "the half is gone")
	change(bourse.Rate{Deliveries: 1, Per: time.Second, Burst: 9})
	require.Zero(t, left())
	clock.advance(t, b, 7*time.Second)
	q.MaxMessages = 100
	require.NoError(t, b.Update(ctx, q), "another field")
	change(bourse.Rate{Deliveries: 1, Per: time.Second, Burst: 3})
	require.Equal(t, 3, left(), "seven do not fit")
	change(bourse.Rate{})
	require.Zero(t, stats(t, b, "q").HeldUntil)
	for range 10 {
		takeOne(t, b, "q")
	}
	change(bourse.Rate{Deliveries: 2, Per: time.Hour})
	require.Equal(t, 2, left())

	// Who waits is served when the new rate allows it.
	s := consume(t, b, "q", 1)
	nothing(t, b, clock, s)
	change(bourse.Rate{Deliveries: 1})
	clock.advance(t, b, time.Second)
	next(t, s)
}
