package bourse_test

// Goal: everything that waits for time waits on the broker's clock and happens at the very instant that is
// promised, no earlier and no later. Method: the same promises twice. In a synctest bubble the system clock is
// virtual, so sleeping to one nanosecond before an instant, and to the instant, is exact and costs nothing; that
// the bubble's time moves at all shows that every goroutine of the broker is blocked for good and none polls. With
// a clock moved by hand the bubble is not needed, and a broker whose clock stands still does nothing.

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// passing moves the time of a broker and lets everything happen that is due by then.
type passing func(d time.Duration)

// bothClocks runs test with the system's clock in a bubble and with one moved by hand.
func bothClocks(t *testing.T, q bourse.Queue, test func(t *testing.T, b *bourse.Broker, clock *handClock, pass passing)) {
	t.Run("system", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b, err := bourse.NewBroker(ctx, bourse.Options{})
			require.NoError(t, err)
			require.NoError(t, b.Declare(ctx, q))
			test(t, b, nil, func(d time.Duration) {
				<-time.After(d)
				synctest.Wait()
			})
			require.NoError(t, b.Close())
		})
	})
	t.Run("by hand", func(t *testing.T) {
		clock := newHandClock()
		b := open(t, bourse.Options{Clock: clock}, q)
		test(t, b, clock, func(d time.Duration) { clock.advance(t, b, d) })
		require.NoError(t, b.Close())
		require.Zero(t, clock.pending(), "timers that outlive the broker")
	})
}

func TestTimeDeadline(t *testing.T) {
	bothClocks(t, bourse.Queue{Name: "q", AckDeadline: time.Minute, MaxRetries: 1}, func(t *testing.T, b *bourse.Broker,
		_ *handClock, pass passing) {
		send(t, b, "q", "a", "b")
		s := consume(t, b, "q", 2)
		a, c := next(t, s), next(t, s)
		require.Equal(t, time.Minute, a.Deadline().Sub(a.EnqueuedAt))
		pass(time.Minute - 1)
		require.Zero(t, stats(t, b, "q").TimedOut)
		require.NoError(t, c.Ack()) // at the last moment
		pass(1)
		require.EqualValues(t, 1, stats(t, b, "q").TimedOut)
		require.ErrorIs(t, a.Ack(), bourse.ErrStaleDelivery)
		a = next(t, s)
		require.Equal(t, []int{2, 1}, []int{a.Deliveries, a.Failures})
		pass(time.Minute) // once more than MaxRetries: dead
		d, err := b.Get(ctx, bourse.ParkingQueue)
		require.NoError(t, err)
		require.Equal(t, bourse.ReasonDeliveryLimit, d.Deaths[0].Reason)
		require.Contains(t, d.Deaths[0].Note, "deadline")
		require.Zero(t, stats(t, b, "q").Unacked)
	})
}

func TestTimeExtend(t *testing.T) {
	bothClocks(t, bourse.Queue{Name: "q", AckDeadline: time.Minute}, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
		send(t, b, "q", "a", "b")
		s := consume(t, b, "q", 2)
		a, c := next(t, s), next(t, s)
		require.NoError(t, a.Extend(time.Hour)) // later
		require.NoError(t, c.Extend(time.Second))
		pass(time.Second - 1)
		require.Zero(t, stats(t, b, "q").TimedOut)
		pass(1) // sooner
		require.EqualValues(t, 1, stats(t, b, "q").TimedOut)
		require.ErrorIs(t, c.Extend(time.Second), bourse.ErrStaleDelivery)
		c = next(t, s)
		require.Equal(t, "b", string(c.Body))
		require.NoError(t, c.Ack())
		for range 3 {
			pass(time.Hour - time.Second - 1)
			require.NoError(t, a.Extend(time.Hour))
		}
		pass(time.Hour - 1)
		require.EqualValues(t, 1, stats(t, b, "q").TimedOut)
		pass(1)
		require.EqualValues(t, 2, stats(t, b, "q").TimedOut)
	})
}

func TestTimeBackoff(t *testing.T) {
	q := bourse.Queue{Name: "q", MaxRetries: 5, Retry: bourse.Backoff{Min: time.Second, Max: 5 * time.Second}}
	bothClocks(t, q, func(t *testing.T, b *bourse.Broker, clock *handClock, pass passing) {
		send(t, b, "q", "a")
		s := consume(t, b, "q", 1)
		for i, pause := range []time.Duration{1, 2, 4, 5, 5} {
			d := next(t, s)
			require.Equal(t, i, d.Failures)
			require.NoError(t, d.Nack())
			pass(pause*time.Second - 1)
			require.Equal(t, 1, stats(t, b, "q").Delayed)
			pass(1)
			require.Equal(t, 1, stats(t, b, "q").Unacked)
		}
		require.NoError(t, next(t, s).Nack())
		nothing(t, b, clock, s)
		require.EqualValues(t, 1, stats(t, b, "q").Dead)
	})
}

func TestTimeDelays(t *testing.T) {
	q := bourse.Queue{Name: "q", Retry: bourse.Backoff{Min: time.Hour}}
	bothClocks(t, q, func(t *testing.T, b *bourse.Broker, clock *handClock, pass passing) {
		send(t, b, "q", "a", "b", "c", "d")
		s := consume(t, b, "q", 4)
		a, c, d, e := next(t, s), next(t, s), next(t, s), next(t, s)
		require.NoError(t, a.NackAfter(3*time.Second))
		require.NoError(t, c.Release(2*time.Second))
		require.NoError(t, d.NackAfter(0)) // at once, whatever Retry says
		require.NoError(t, e.Nack())       // after Retry
		got := func(body string, failures int) {
			t.Helper()
			d := next(t, s)
			require.Equal(t, []any{body, failures, 2}, []any{string(d.Body), d.Failures, d.Deliveries})
			require.NoError(t, d.Ack())
			nothing(t, b, clock, s)
		}
		got("c", 1)
		pass(2*time.Second - 1)
		nothing(t, b, clock, s)
		pass(1)
		got("b", 0)
		pass(time.Second - 1)
		nothing(t, b, clock, s)
		pass(1)
		got("a", 1)
		pass(time.Hour)
		got("d", 1)
	})
}

// What comes back from a delay stands at its old place.
func TestTimeDelayedAreEarly(t *testing.T) {
	bothClocks(t, bourse.Queue{Name: "q", Priorities: 2}, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
		send(t, b, "q", "1", "2", "3")
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Priority: 1, Body: []byte("high")}))
		for _, after := range []time.Duration{3, 2, 1} { // high, 1 and 2
			d, err := b.Get(ctx, "q")
			require.NoError(t, err)
			require.NoError(t, d.Release(after*time.Second))
		}
		pass(time.Second)
		require.Equal(t, 2, stats(t, b, "q").Ready)
		pass(2 * time.Second)
		send(t, b, "q", "4")
		require.Equal(t, []string{"high", "1", "2", "3", "4"}, drain(t, b, "q"))
	})
}

func TestTimeWorkTimeout(t *testing.T) {
	bothClocks(t, bourse.Queue{Name: "q", AckDeadline: time.Hour, MaxRetries: bourse.NoRetry},
		func(t *testing.T, b *bourse.Broker, clock *handClock, pass passing) {
			send(t, b, "q", "a")
			started, causes, worked := make(chan struct{}), make(chan error, 1), make(chan error, 1)
			stop, end := context.WithCancel(ctx)
			go func() {
				worked <- b.Work(stop, "q", func(ctx context.Context, _ *bourse.Delivery) error {
					close(started)
					<-ctx.Done()
					causes <- context.Cause(ctx)
					return ctx.Err()
				}, bourse.WorkOptions{Timeout: time.Minute})
			}()
			<-started
			pass(time.Minute - 1)
			require.Empty(t, causes)
			pass(1)
			require.ErrorIs(t, <-causes, context.DeadlineExceeded)
			end()
			require.NoError(t, <-worked)
			barrier(t, b, clock)
			require.EqualValues(t, 1, stats(t, b, bourse.ParkingQueue).Enqueued, "the error counts as a failure")
		})
}

func TestTimeWorkGrace(t *testing.T) {
	bothClocks(t, bourse.Queue{Name: "q"}, func(t *testing.T, b *bourse.Broker, clock *handClock, pass passing) {
		send(t, b, "q", "a", "b", "c")
		started, ended, worked := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		stop, end := context.WithCancel(ctx)
		go func() {
			worked <- b.Work(stop, "q", func(ctx context.Context, _ *bourse.Delivery) error {
				close(started)
				<-ctx.Done()
				close(ended)
				return errors.New("too late to count")
			}, bourse.WorkOptions{Grace: time.Minute, Prefetch: 2})
		}()
		<-started
		end()
		if clock != nil {
			for clock.pending() < 4 { // wake, timeout, the look at what waits, and now grace: Work has seen the end
				barrier(t, b, clock)
			}
		}
		pass(time.Minute - 1)
		require.Empty(t, worked)
		require.Equal(t, 2, stats(t, b, "q").Unacked)
		pass(1)
		require.ErrorContains(t, <-worked, "grace of 1m0s")
		<-ended
		barrier(t, b, clock)
		q := stats(t, b, "q")
		require.Equal(t, []int{3, 0, 0}, []int{q.Ready, q.Unacked, int(q.Failed)}, "%+v", q)
		require.EqualValues(t, 2, q.Released)
	})
}

// A broker whose clock stands still neither polls nor sets timers one after the other.
func TestTimeStandsStill(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", AckDeadline: time.Minute})
	require.Zero(t, clock.pending())
	send(t, b, "q", "a", "b")
	require.Zero(t, clock.pending(), "ready messages wait for no time")
	s := consume(t, b, "q", 2)
	require.Equal(t, 1, clock.pending(), "one timer, however many loans")
	require.NoError(t, next(t, s).AckSync(ctx))
	require.NoError(t, next(t, s).AckSync(ctx))
	records := b.Stats().Storage.Records
	clock.advance(t, b, time.Hour)
	require.Zero(t, clock.pending(), "nothing is due any more")
	require.LessOrEqual(t, b.Stats().Storage.Records-records, uint64(4), "one tick, and what the test asks itself")
}

// A clock that is set back makes nothing early, and does not stop the broker.
func TestTimeSetBack(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"})
	send(t, b, "q", "a")
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, d.Release(time.Minute))
	barrier(t, b, clock)
	clock.mu.Lock()
	clock.now = clock.now.Add(-time.Hour)
	clock.mu.Unlock()
	send(t, b, "q", "b")
	require.Equal(t, []string{"b"}, drain(t, b, "q"))
	clock.advance(t, b, time.Hour+time.Minute-1)
	_, err = b.Get(ctx, "q")
	require.ErrorIs(t, err, bourse.ErrEmpty)
	clock.advance(t, b, 1)
	require.Equal(t, []string{"a"}, drain(t, b, "q"))
}

// Delays go on over a restart by the time that has passed meanwhile.
func TestTimeOverRestart(t *testing.T) {
	clock, dir := newHandClock(), t.TempDir()
	b := open(t, bourse.Options{Clock: clock, Dir: dir}, bourse.Queue{Name: "q"})
	send(t, b, "q", "a", "b")
	for _, after := range []time.Duration{time.Minute, time.Hour} {
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.NoError(t, d.Release(after))
	}
	require.NoError(t, b.Close())
	clock.step(clock.Now().Add(2 * time.Minute))
	b = open(t, bourse.Options{Clock: clock, Dir: dir})
	require.Equal(t, []int{1, 1}, []int{stats(t, b, "q").Ready, stats(t, b, "q").Delayed}, "one was due while nobody looked")
	clock.advance(t, b, 58*time.Minute-1)
	require.Equal(t, 1, stats(t, b, "q").Delayed)
	clock.advance(t, b, 1)
	require.Equal(t, []string{"a", "b"}, drain(t, b, "q"))
}
