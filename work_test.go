package bourse_test

// Goal: a handler's result becomes the verdict that is documented, whatever it does, and a Work ends as it
// says: drained, in time, or late. Method: handlers that do the worst, in synctest bubbles where time matters.

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// work runs h on what is in queue until it is empty of ready and unacked messages.
func work(t *testing.T, b *bourse.Broker, queue string, opts bourse.WorkOptions, h bourse.Handler) {
	t.Helper()
	stop, end := context.WithCancel(ctx)
	worked := make(chan error, 1)
	go func() { worked <- b.Work(stop, queue, h, opts) }()
	for q := stats(t, b, queue); q.Consumers == 0 || q.Ready+q.Unacked > 0; q = stats(t, b, queue) {
		barrier(t, b, nil)
	}
	end()
	require.NoError(t, <-worked)
	barrier(t, b, nil)
}

func TestHandlerResults(t *testing.T) {
	failure := errors.New("failure")
	for name, c := range map[string]struct {
		h    bourse.Handler
		want bourse.QueueStats // Acked, Failed, Released, Dead, Delayed
		note string            // in the parking queue
	}{
		"nil acks": {h: acks, want: bourse.QueueStats{Acked: 1}},
		"an error nacks": {h: func(context.Context, *bourse.Delivery) error { return failure }, want: bourse.QueueStats{Failed: 3,
			Dead: 1}, note: "failure"},
		"a panic nacks": {h: func(context.Context, *bourse.Delivery) error { panic("boom") }, want: bourse.QueueStats{Failed: 3,
			Dead: 1}, note: "panic: boom"},
		"a panic with an error": {h: func(context.Context, *bourse.Delivery) error { panic(failure) }, want: bourse.QueueStats{Failed: 3,
			Dead: 1}, note: "panic: failure"},
		"Goexit nacks": {h: func(context.Context, *bourse.Delivery) error { runtime.Goexit(); return nil },
			want: bourse.QueueStats{Failed: 3, Dead: 1}, note: "the handler called runtime.Goexit"},
		"Goexit after a verdict": {h: func(_ context.Context, d *bourse.Delivery) error { _ = d.Ack(); runtime.Goexit(); return nil },
			want: bourse.QueueStats{Acked: 1}},
		"Reject": {h: func(context.Context, *bourse.Delivery) error { return bourse.Reject(failure) },
			want: bourse.QueueStats{Failed: 1, Dead: 1}, note: "failure"},
		"Reject, wrapped": {h: func(context.Context, *bourse.Delivery) error { return fmt.Errorf("job: %w", bourse.Reject(failure)) },
			want: bourse.QueueStats{Failed: 1, Dead: 1}, note: "job: failure"},
		"Reject without an error": {h: func(context.Context, *bourse.Delivery) error { return bourse.Reject(nil) },
			want: bourse.QueueStats{Failed: 1, Dead: 1}, note: "rejected"},
		"Reject with a long reason": {h: func(context.Context, *bourse.Delivery) error { return bourse.Reject(errors.New(long(1000))) },
			want: bourse.QueueStats{Failed: 1, Dead: 1}, note: long(255)},
		"RetryAfter": {h: func(context.Context, *bourse.Delivery) error { return bourse.RetryAfter(failure, time.Hour) },
			want: bourse.QueueStats{Failed: 1, Delayed: 1}},
		"RetryAfter at once": {h: func(context.Context, *bourse.Delivery) error { return bourse.RetryAfter(nil, -time.Hour) },
			want: bourse.QueueStats{Failed: 3, Dead: 1}, note: "retry"},
		"a verdict of its own": {h: func(_ context.Context, d *bourse.Delivery) error { return errors.Join(d.Ack(), failure) },
			want: bourse.QueueStats{Acked: 1}},
		"released, then an error": {h: func(_ context.Context, d *bourse.Delivery) error {
			return errors.Join(d.Release(time.Hour),
				failure)
		},
			want: bourse.QueueStats{Released: 1, Delayed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, bourse.Reject(failure), failure)
			require.ErrorIs(t, bourse.RetryAfter(failure, 0), failure)
			b := open(t, bourse.Options{}, bourse.Queue{Name: "q", MaxRetries: 2})
			send(t, b, "q", "a")
			work(t, b, "q", bourse.WorkOptions{}, c.h)
			q := stats(t, b, "q")
			require.Equal(t, c.want, bourse.QueueStats{Acked: q.Acked, Failed: q.Failed, Released: q.Released, Dead: q.Dead,
				Delayed: q.Delayed})
			if c.note != "" {
				d, err := b.Get(ctx, bourse.ParkingQueue)
				require.NoError(t, err)
				require.Equal(t, c.note, d.Deaths[0].Note)
			}
		})
	}
}

// Extend prolongs, or shortens, the ctx of the handler with the loan. WorkOptions.Timeout ends it all the same, and so does a
// loan that was over before Extend came into the log.
func TestExtendMovesTheHandlersContext(t *testing.T) {
	for name, c := range map[string]struct {
		timeout, after, by time.Duration // Extend(by) after a while, once
		want               time.Duration // until ctx ends
	}{
		"not at all":         {after: time.Hour, want: 10 * time.Second},
		"longer":             {after: 9 * time.Second, by: time.Minute, want: 69 * time.Second},
		"shorter":            {after: time.Second, by: time.Second, want: 2 * time.Second},
		"up to Timeout":      {timeout: 30 * time.Second, after: 9 * time.Second, by: time.Minute, want: 30 * time.Second},
		"Timeout was enough": {timeout: 5 * time.Second, after: 4 * time.Second, by: time.Minute, want: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, err := bourse.NewBroker(ctx, bourse.Options{})
				require.NoError(t, err)
				require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", AckDeadline: 10 * time.Second}))
				send(t, b, "q", "a")
				stop, end := context.WithCancel(ctx)
				require.NoError(t, b.Work(stop, "q", func(ctx context.Context, d *bourse.Delivery) error {
					start := time.Now()
					defer time.AfterFunc(c.after, func() {
						assert.NoError(t, d.Extend(c.by))
						assert.Equal(t, start.Add(c.after+c.by), d.Deadline().In(start.Location()))
					}).Stop()
					<-ctx.Done()
					assert.Equal(t, c.want, time.Since(start))
					assert.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
					end()
					return nil
				}, bourse.WorkOptions{Timeout: c.timeout}))
				require.NoError(t, b.Close())
			})
		})
	}
}

// The loan ended in the log before Extend came there. Extend cannot say so, but the ctx ends.
func TestExtendTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newHeldFS()
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", AckDeadline: 10 * time.Second}))
		send(t, b, "q", "a")
		require.ErrorIs(t, b.Work(ctx, "q", func(ctx context.Context, d *bourse.Delivery) error {
			start := time.Now()
			fs.hold(true)
			deleted := make(chan error)
			go func() { deleted <- b.Delete(context.WithoutCancel(ctx), bourse.Queue{Name: "q"}) }()
			synctest.Wait() // it is in the log, and its sync is held
			assert.NoError(t, d.Extend(time.Minute))
			assert.NoError(t, ctx.Err())
			fs.hold(false)
			assert.NoError(t, <-deleted)
			<-ctx.Done()
			assert.Zero(t, time.Since(start))
			return nil
		}, bourse.WorkOptions{}), bourse.ErrQueueGone)
		require.NoError(t, b.Close())
	})
}

func TestTypedHandler(t *testing.T) {
	type job struct {
		Name string
		N    int
	}
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	codec := bourse.JSON[job]()
	body, err := codec.Encode(job{"x", 7})
	require.NoError(t, err)
	send(t, b, "q", string(body), "{broken", `{"N": "no number"}`)
	var got []job
	work(t, b, "q", bourse.WorkOptions{}, bourse.Handle(codec, func(_ context.Context, j job, d *bourse.Delivery) error {
		got = append(got, j)
		require.Equal(t, body, d.Body)
		return nil
	}))
	require.Equal(t, []job{{"x", 7}}, got)
	for range 2 {
		d, err := b.Get(ctx, bourse.ParkingQueue)
		require.NoError(t, err)
		require.Equal(t, []string{"q/rejected/1"}, deaths(d))
		require.True(t, strings.HasPrefix(d.Deaths[0].Note, "decode the body: "), d.Deaths[0].Note)
	}
}

func TestWorkConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		for i := range 100 {
			send(t, b, "q", fmt.Sprint(i))
		}
		var running, most, handled atomic.Int64
		stop, end := context.WithCancel(ctx)
		start := time.Now()
		require.NoError(t, b.Work(stop, "q", func(context.Context, *bourse.Delivery) error {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			if n := stats(t, b, "q").Unacked; n > 7 {
				t.Errorf("%d on loan", n)
			}
			<-time.After(time.Second)
			running.Add(-1)
			if handled.Add(1) == 100 {
				end()
			}
			return nil
		}, bourse.WorkOptions{Concurrency: 5, Prefetch: 7}))
		require.EqualValues(t, 5, most.Load())
		require.Equal(t, 20*time.Second, time.Since(start))
		require.EqualValues(t, 100, stats(t, b, "q").Acked)
		require.NoError(t, b.Close())
	})
}

// Shutdown lets handlers that run finish, takes nothing more, and gives back what waited.
func TestShutdownDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		send(t, b, "q", "1", "2", "3", "4", "5")
		var started []string
		worked := make(chan error, 1)
		go func() {
			worked <- b.Work(ctx, "q", func(_ context.Context, d *bourse.Delivery) error {
				started = append(started, string(d.Body))
				<-time.After(5 * time.Second)
				return nil
			}, bourse.WorkOptions{Prefetch: 3})
		}()
		<-time.After(6 * time.Second) // the second is running
		start := time.Now()
		require.NoError(t, b.Shutdown(ctx))
		require.Equal(t, 4*time.Second, time.Since(start))
		require.NoError(t, <-worked)
		require.Equal(t, []string{"1", "2"}, started)
		require.NoError(t, b.Shutdown(ctx))

		b, err = bourse.NewBroker(ctx, bourse.Options{Dir: dir})
		require.NoError(t, err)
		q := stats(t, b, "q")
		require.Equal(t, []int{3, 2, 0}, []int{q.Ready, int(q.Acked), int(q.Failed)})
		require.NoError(t, b.Close())
	})
}

func TestShutdownGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		send(t, b, "q", "1")
		worked := make(chan error, 1)
		go func() {
			worked <- b.Work(ctx, "q", func(ctx context.Context, _ *bourse.Delivery) error {
				<-ctx.Done()
				return nil
			}, bourse.WorkOptions{Grace: time.Hour})
		}()
		synctest.Wait()
		late, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		start := time.Now()
		err = b.Shutdown(late)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "handlers still run")
		require.Equal(t, time.Minute, time.Since(start))
		require.Error(t, <-worked)
	})
}

func TestWorkEndsWithItsQueue(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	worked := make(chan error, 1)
	go func() { worked <- b.Work(ctx, "q", acks, bourse.WorkOptions{Concurrency: 4}) }()
	for stats(t, b, "q").Consumers == 0 {
		barrier(t, b, nil)
	}
	require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
	require.ErrorIs(t, <-worked, bourse.ErrQueueGone)
}

func TestSubscriptionAll(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	send(t, b, "q", "1", "2", "3", "4")
	s := consume(t, b, "q", 10)
	var got []string
	for d, err := range s.All(ctx) {
		require.NoError(t, err)
		got = append(got, string(d.Body))
		require.NoError(t, d.Ack())
		if len(got) == 2 {
			break // and go on later
		}
	}
	for d, err := range s.All(ctx) {
		require.NoError(t, err)
		got = append(got, string(d.Body))
		if len(got) == 4 {
			require.NoError(t, s.Close()) // ends the loop without an error
		}
	}
	require.Equal(t, []string{"1", "2", "3", "4"}, got)
	require.Equal(t, 2, stats(t, b, "q").Ready)

	s = consume(t, b, "q", 1)
	for d, err := range s.All(ctx) {
		if err != nil { // exactly once, at the end
			require.Nil(t, d)
			require.ErrorIs(t, err, bourse.ErrQueueGone)
			got = nil
			continue
		}
		require.NotNil(t, got)
		require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
	}
	require.Nil(t, got)
}

func TestNextBatch(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	var want []string
	for i := range 25 {
		want = append(want, fmt.Sprint(i))
	}
	send(t, b, "q", want...)
	s := consume(t, b, "q", 12)
	var got []string
	for _, n := range []int{10, 2, 10, 2, 1} { // what the prefetch lets come
		batch, err := s.NextBatch(ctx, 10)
		require.NoError(t, err)
		require.Len(t, batch, n)
		for _, d := range batch {
			got = append(got, string(d.Body))
		}
		if last := batch[n-1].Tag; last%12 == 0 || last == 25 {
			require.NoError(t, s.AckUpTo(last))
			barrier(t, b, nil)
		}
	}
	require.Equal(t, want, got)
	q := stats(t, b, "q")
	require.Equal(t, []int{0, 25}, []int{q.Ready + q.Unacked, int(q.Acked)})
}

// AckUpTo settles exactly what was handed over up to its tag, whatever was settled in between.
func TestAckUpToIsExact(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	send(t, b, "q", "1", "2", "3", "4", "5", "6")
	s := consume(t, b, "q", 6)
	var ds []*bourse.Delivery
	for range 5 {
		ds = append(ds, next(t, s))
	}
	require.NoError(t, ds[1].Reject("2"))
	require.NoError(t, s.AckUpTo(2)) // 2 is settled already: 1 only
	barrier(t, b, nil)
	require.Equal(t, []uint64{1, 1}, []uint64{stats(t, b, "q").Acked, stats(t, b, "q").Dead})
	require.ErrorIs(t, ds[0].Ack(), bourse.ErrUnknownDelivery)
	require.NoError(t, ds[3].Ack())
	require.NoError(t, s.AckUpTo(0)) // 3 and 5; 6 is in the buffer and was not handed over
	barrier(t, b, nil)
	q := stats(t, b, "q")
	require.Equal(t, []int{4, 1}, []int{int(q.Acked), q.Unacked})
	require.NoError(t, next(t, s).Nack())
	require.Equal(t, "6", string(next(t, s).Body))
}

// What is lent goes to the one with the least, and round among equals.
func TestDispatchIsFair(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	var subs []*bourse.Subscription
	for _, prefetch := range []int{1, 3, 5} {
		subs = append(subs, consume(t, b, "q", prefetch))
	}
	var want []string
	for i := range 12 {
		want = append(want, fmt.Sprint(i))
	}
	send(t, b, "q", want...)
	var got [][]string
	for i, n := range []int{1, 3, 5} {
		batch, err := subs[i].NextBatch(ctx, 10)
		require.NoError(t, err)
		require.Len(t, batch, n)
		var bodies []string
		for _, d := range batch {
			bodies = append(bodies, string(d.Body))
		}
		got = append(got, bodies)
	}
	require.Equal(t, [][]string{{"0"}, {"1", "3", "5"}, {"2", "4", "6", "7", "8"}}, got)
	for _, s := range subs {
		require.NoError(t, s.Close())
	}
	rest := drain(t, b, "q")
	require.True(t, slices.Equal(want, rest), "%v", rest)
}
