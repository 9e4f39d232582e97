package bourse_test

// Goal: SEMANTICS 11, delayed retry: a failed message is ready again at the very instant that its queue's policy says, and
// at none before. Method: a clock moved by hand to one nanosecond before each instant, and to it.

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

func TestSemanticsRetry(t *testing.T) {
	const s = time.Second
	nack := func(d *bourse.Delivery) error { return d.Nack() }
	for _, row := range []struct {
		name string
		q    bourse.Queue
		fail func(d *bourse.Delivery) error
		want []time.Duration // pauses after the failures, one after the other
	}{
		{"no policy", bourse.Queue{}, nack, []time.Duration{0, 0, 0}},
		{"constant", bourse.Queue{Retry: bourse.Backoff{Min: s}}, nack, []time.Duration{s, s, s}},
		{"doubles by default", bourse.Queue{Retry: bourse.Backoff{Min: s, Max: 5 * s}}, nack, []time.Duration{s, 2 * s, 4 * s, 5 * s, 5 * s}},
		{"grows by its factor", bourse.Queue{Retry: bourse.Backoff{Min: 2 * s, Max: 10 * s, Factor: 1.5}}, nack,
			[]time.Duration{2 * s, 3 * s, 4500 * time.Millisecond, 6750 * time.Millisecond, 10 * s, 10 * s}},
		{"factor one", bourse.Queue{Retry: bourse.Backoff{Min: s, Max: 10 * s, Factor: 1}}, nack, []time.Duration{s, s, s}},
		{"a list, its last repeats", bourse.Queue{Retry: bourse.Backoff{Pauses: []time.Duration{5 * s, 0, 3 * s}}}, nack,
			[]time.Duration{5 * s, 0, 3 * s, 3 * s, 3 * s}},
		{"per call", bourse.Queue{Retry: bourse.Backoff{Min: s, Jitter: 1}}, func(d *bourse.Delivery) error { return d.NackAfter(7 * s) },
			[]time.Duration{7 * s, 7 * s}},
		{"per call, now and then", bourse.Queue{Retry: bourse.Backoff{Min: s, Max: 9 * s}}, func(d *bourse.Delivery) error {
			if d.Failures == 1 {
				return d.NackAfter(0)
			}
			return d.Nack()
		}, []time.Duration{s, 0, 4 * s}},
	} {
		t.Run(row.name, func(t *testing.T) {
			clock := newHandClock()
			row.q.Name, row.q.MaxRetries = "q", bourse.NoLimit
			b := open(t, bourse.Options{Clock: clock}, row.q)
			send(t, b, "q", "a")
			c := consume(t, b, "q", 1)
			for i, pause := range row.want {
				d := next(t, c)
				require.Equal(t, i, d.Failures)
				require.NoError(t, row.fail(d))
				if pause > 0 {
					clock.advance(t, b, pause-1)
					nothing(t, b, clock, c)
					require.Equal(t, 1, stats(t, b, "q").Delayed)
					clock.advance(t, b, 1)
				}
			}
			next(t, c)
		})
	}
}

// A missed deadline rests as a nack does; what comes back without a failure does not.
func TestSemanticsRetryByCause(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", AckDeadline: time.Minute,
		Retry: bourse.Backoff{Pauses: []time.Duration{time.Hour}}})
	send(t, b, "q", "a")
	c := consume(t, b, "q", 1)
	require.NoError(t, next(t, c).Release(0))
	next(t, c)
	clock.advance(t, b, time.Minute)
	require.Equal(t, 1, stats(t, b, "q").Delayed)
	clock.advance(t, b, time.Hour-1)
	nothing(t, b, clock, c)
	clock.advance(t, b, 1)
	require.Equal(t, 1, next(t, c).Failures)
}

// Messages that failed together come back apart, each within its range, and alike in every broker that does the same.
func TestSemanticsRetryJitter(t *testing.T) {
	const n = 200
	run := func() (at [n]time.Duration) {
		clock := newHandClock()
		b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q",
			Retry: bourse.Backoff{Min: 10 * time.Second, Max: time.Minute, Jitter: 0.3}})
		for range n {
			send(t, b, "q", "a")
		}
		c := consume(t, b, "q", n)
		start := clock.Now()
		for range n {
			require.NoError(t, next(t, c).Nack())
		}
		barrier(t, b, clock)
		for i := range n {
			require.True(t, clock.step(start.Add(time.Minute)))
			barrier(t, b, clock)
			at[i] = clock.Now().Sub(start)
			require.NoError(t, next(t, c).Ack())
		}
		require.Zero(t, stats(t, b, "q").Delayed)
		return at
	}
	first := run()
	require.Equal(t, first, run())
	var sum time.Duration
	for i, d := range first {
		require.GreaterOrEqual(t, d, 7*time.Second)
		require.LessOrEqual(t, d, 13*time.Second)
		require.True(t, i == 0 || d > first[i-1], "two at once")
		sum += d
	}
	require.InDelta(t, 10, (sum / n).Seconds(), 0.5)
	require.Less(t, first[0], 8*time.Second)
	require.Greater(t, first[n-1], 12*time.Second)
}

// A message that rests uses no prefetch and no deadline, and goes on resting over a restart.
func TestSemanticsRetryRests(t *testing.T) {
	clock, dir := newHandClock(), t.TempDir()
	q := bourse.Queue{Name: "q", AckDeadline: time.Second, Retry: bourse.Backoff{Pauses: []time.Duration{time.Hour}}}
	b := open(t, bourse.Options{Clock: clock, Dir: dir}, q)
	send(t, b, "q", "a", "b")
	c := consume(t, b, "q", 1)
	require.NoError(t, next(t, c).Nack())
	require.NoError(t, next(t, c).AckSync(ctx))
	clock.advance(t, b, time.Minute)
	require.Zero(t, stats(t, b, "q").TimedOut)
	require.NoError(t, b.Close())
	clock.step(clock.Now().Add(30 * time.Minute))
	b = open(t, bourse.Options{Clock: clock, Dir: dir}, q)
	clock.advance(t, b, 29*time.Minute-1)
	require.Equal(t, 1, stats(t, b, "q").Delayed)
	clock.advance(t, b, 1)
	require.Equal(t, []string{"a"}, drain(t, b, "q"))
}

// A handler's error rests by the policy, RetryAfter by its own pause.
func TestSemanticsRetryOfAHandler(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q",
		Retry: bourse.Backoff{Pauses: []time.Duration{time.Minute, time.Hour}}})
	send(t, b, "q", "a")
	handled, worked := make(chan int), make(chan error, 1)
	stop, end := context.WithCancel(ctx)
	go func() {
		worked <- b.Work(stop, "q", func(_ context.Context, d *bourse.Delivery) error {
			handled <- d.Failures
			if d.Failures == 1 {
				return bourse.RetryAfter(errors.New("busy"), time.Second)
			}
			return errors.New("broken")
		}, bourse.WorkOptions{})
	}()
	for i, pause := range []time.Duration{time.Minute, time.Second, time.Hour} {
		require.Equal(t, i, <-handled)
		for stats(t, b, "q").Delayed == 0 {
			barrier(t, b, clock)
		}
		clock.advance(t, b, pause-1)
		require.Equal(t, 1, stats(t, b, "q").Delayed)
		clock.advance(t, b, 1)
	}
	require.Equal(t, 3, <-handled)
	end()
	require.NoError(t, <-worked)
}
