package bourse_test

// Goal: with AutoExtend a handler may run as long as Timeout says, whatever the deadline, and not longer; one that is fast
// costs nothing. Method: handlers that run for hours of a bubble's or of a hand clock's time, and the counters of queue and log.

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// inBubble works on "q", with a deadline of three minutes, in a bubble. The handler ends the Work by calling end.
func inBubble(t *testing.T, opts bourse.WorkOptions, bodies []string, h func(t *testing.T, b *bourse.Broker, ctx context.Context,
	d *bourse.Delivery, end func()) error) (after bourse.QueueStats) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", AckDeadline: 3 * time.Minute}))
		send(t, b, "q", bodies...)
		stop, end := context.WithCancel(ctx)
		opts.AutoExtend = true
		require.NoError(t, b.Work(stop, "q", func(ctx context.Context, d *bourse.Delivery) error { return h(t, b, ctx, d, end) }, opts))
		after = stats(t, b, "q")
		require.NoError(t, b.Close())
	})
	return after
}

func TestAutoExtendKeepsTheLoan(t *testing.T) {
	q := inBubble(t, bourse.WorkOptions{}, []string{"a"}, func(t *testing.T, _ *bourse.Broker, ctx context.Context, d *bourse.Delivery,
		end func()) error {
		start := time.Now()
		for range 5 * 60 * 4 { // looked at every quarter of a minute
			left := time.Until(d.Deadline())
			assert.Greater(t, left, 90*time.Second-1, "after %v", time.Since(start))
			assert.LessOrEqual(t, left, 3*time.Minute)
			assert.NoError(t, ctx.Err())
			<-time.After(15 * time.Second)
			synctest.Wait()
		}
		end()
		return nil
	})
	require.Equal(t, []uint64{1, 1, 0}, []uint64{q.Acked, q.Delivered, q.TimedOut})
}

func TestAutoExtendEndsWithTimeout(t *testing.T) {
	var handled []int
	q := inBubble(t, bourse.WorkOptions{Timeout: time.Hour}, []string{"a"}, func(t *testing.T, _ *bourse.Broker, ctx context.Context,
		d *bourse.Delivery, end func()) error {
		start := time.Now()
		handled = append(handled, d.Failures)
		if d.Failures == 2 {
			end()
			return nil
		}
		<-ctx.Done()
		assert.Equal(t, time.Hour, time.Since(start))
		assert.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
		if d.Failures == 1 {
			<-time.After(time.Hour) // it does not listen
			assert.ErrorIs(t, d.Ack(), bourse.ErrStaleDelivery)
		}
		return ctx.Err() // the first result counts
	})
	require.Equal(t, []int{0, 1, 2}, handled)
	require.Equal(t, []uint64{1, 2, 1}, []uint64{q.Acked, q.Failed, q.TimedOut})
}

// The loan of a handler that does not end with its ctx is over within one deadline.
func TestAutoExtendLosesTheDeaf(t *testing.T) {
	inBubble(t, bourse.WorkOptions{Timeout: time.Hour}, []string{"a"}, func(t *testing.T, b *bourse.Broker, ctx context.Context,
		d *bourse.Delivery, end func()) error {
		if d.Deliveries > 1 {
			end()
			return nil
		}
		<-ctx.Done()
		lost := time.Until(d.Deadline())
		assert.LessOrEqual(t, lost, 3*time.Minute)
		<-time.After(lost - 1)
		synctest.Wait()
		assert.Zero(t, stats(t, b, "q").TimedOut)
		<-time.After(1)
		synctest.Wait()
		assert.EqualValues(t, 1, stats(t, b, "q").TimedOut)
		return nil
	})
}

// Unless Timeout says otherwise, a handler may run for a day.
func TestAutoExtendDefault(t *testing.T) {
	inBubble(t, bourse.WorkOptions{}, []string{"a"}, func(t *testing.T, _ *bourse.Broker, ctx context.Context, _ *bourse.Delivery,
		end func()) error {
		start := time.Now()
		<-ctx.Done()
		assert.Equal(t, 24*time.Hour, time.Since(start))
		end()
		return nil
	})
}

// What the handler extends itself is not cut, and goes on from there.
func TestAutoExtendAfterExtend(t *testing.T) {
	q := inBubble(t, bourse.WorkOptions{}, []string{"a"}, func(t *testing.T, _ *bourse.Broker, _ context.Context, d *bourse.Delivery,
		end func()) error {
		assert.NoError(t, d.Extend(time.Hour))
		until := d.Deadline()
		<-time.After(57*time.Minute + 59*time.Second)
		assert.Equal(t, until, d.Deadline())
		<-time.After(2 * time.Second)
		synctest.Wait()
		assert.Equal(t, until.Add(time.Minute), d.Deadline())
		<-time.After(time.Hour)
		end()
		return nil
	})
	require.Equal(t, []uint64{1, 0}, []uint64{q.Acked, q.TimedOut})
}

// What waits for a handler is extended too, however long.
func TestAutoExtendOfWhatWaits(t *testing.T) {
	var started []string
	q := inBubble(t, bourse.WorkOptions{Prefetch: 3}, []string{"a", "b", "c"}, func(t *testing.T, b *bourse.Broker, _ context.Context,
		d *bourse.Delivery, end func()) error {
		started = append(started, string(d.Body))
		assert.Greater(t, time.Until(d.Deadline()), 90*time.Second-1)
		<-time.After(time.Hour)
		assert.Equal(t, 4-len(started), stats(t, b, "q").Unacked)
		if len(started) == 3 {
			end()
		}
		return nil
	})
	require.Equal(t, []string{"a", "b", "c"}, started)
	require.Equal(t, []uint64{3, 3, 0}, []uint64{q.Acked, q.Delivered, q.TimedOut})
}

// All handlers of a Work share one timer, and one that returns within a third of the deadline leaves nothing in the log.
func TestAutoExtendIsCheap(t *testing.T) {
	const n = 8
	run := func(t *testing.T, auto bool) (timers int, records uint64) {
		clock := newHandClock()
		b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", AckDeadline: time.Minute})
		for range n {
			send(t, b, "q", "a")
		}
		before := b.Stats().Storage.Records
		started, ended, worked := make(chan struct{}, n), make(chan struct{}), make(chan error, 1)
		stop, end := context.WithCancel(ctx)
		go func() {
			worked <- b.Work(stop, "q", func(context.Context, *bourse.Delivery) error {
				started <- struct{}{}
				<-ended
				return nil
			}, bourse.WorkOptions{Concurrency: n, Prefetch: n, Timeout: time.Hour, AutoExtend: auto})
		}()
		for range n {
			<-started
		}
		for limit := clock.Now().Add(20*time.Second - 1); clock.step(limit); {
			clock.rest()
		}
		timers = clock.pending()
		records = b.Stats().Storage.Records - before // the acks may share some
		close(ended)
		for stats(t, b, "q").Acked < n {
			barrierless(t, b)
		}
		end()
		require.NoError(t, <-worked)
		require.Equal(t, 1, clock.pending(), "but for the queue's")
		return timers, records
	}
	timers, records := run(t, false)
	more, same := run(t, true)
	require.Equal(t, timers, more, "a Work has one timer, whatever it does with it")
	require.Equal(t, records, same)
}

// barrierless lets others run, without a command in the log.
func barrierless(t *testing.T, b *bourse.Broker) {
	t.Helper()
	require.NoError(t, b.Check())
	runtime.Gosched()
}

// crammedLog has no room for what does not give some back.
type crammedLog struct {
	bourse.Log
	full *atomic.Bool
}

func (l crammedLog) Propose(p bourse.Proposal) error {
	if frees, ok := p.(interface{ Frees() bool }); l.full.Load() && (!ok || !frees.Frees()) {
		return bourse.ErrDiskFull
	}
	return l.Log.Propose(p)
}

type crammedEngine struct {
	bourse.Engine
	full atomic.Bool
}

func (e *crammedEngine) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	log, err := e.Engine.Open(ctx, shard, m)
	return crammedLog{log, &e.full}, err
}

// An extension that finds the disk full is tried again before the loan ends.
func TestAutoExtendOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local, err := bourse.NewLocalEngine("", bourse.LocalOptions{})
		require.NoError(t, err)
		e := &crammedEngine{Engine: local}
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: e})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", AckDeadline: 3 * time.Minute}))
		send(t, b, "q", "a")
		stop, end := context.WithCancel(ctx)
		require.NoError(t, b.Work(stop, "q", func(ctx context.Context, d *bourse.Delivery) error {
			<-time.After(30 * time.Second)
			e.full.Store(true)
			<-time.After(115 * time.Second)
			assert.Equal(t, 35*time.Second, time.Until(d.Deadline()))
			e.full.Store(false)
			<-time.After(25 * time.Second)
			synctest.Wait()
			assert.Greater(t, time.Until(d.Deadline()), 2*time.Minute)
			assert.NoError(t, ctx.Err())
			end()
			return nil
		}, bourse.WorkOptions{AutoExtend: true}))
		require.EqualValues(t, 1, stats(t, b, "q").Acked)
		require.NoError(t, b.Close())
	})
}

// A Work that stops goes on extending what still runs, until its grace is over.
func TestAutoExtendInTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", AckDeadline: time.Minute}))
		send(t, b, "q", "a")
		worked := make(chan error, 1)
		go func() {
			worked <- b.Work(ctx, "q", func(context.Context, *bourse.Delivery) error {
				<-time.After(time.Hour)
				return nil
			}, bourse.WorkOptions{AutoExtend: true, Grace: 2 * time.Hour})
		}()
		<-time.After(time.Second)
		require.NoError(t, b.Shutdown(ctx))
		require.NoError(t, <-worked)
	})
}
