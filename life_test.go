package bourse_test

// Goal: the life cycle of brokers, subscriptions and workers has no moment in which a caller waits for ever, an
// outcome is left to chance, or a message is counted wrong. Method: each test is one that failed once. Where it
// takes two goroutines to meet, the meeting is repeated in a synctest bubble, in which a lost wake-up is a
// deadlock that the bubble reports, or is forced by a file system whose syncs are held.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Close of a subscription waited for a detach that the broker's Close had done in its place.
func TestSubscriptionCloseAfterBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		require.NoError(t, err)
		worked := make(chan error, 1)
		go func() { worked <- b.Work(ctx, "q", acks, bourse.WorkOptions{}) }()
		synctest.Wait()
		require.NoError(t, b.Close())
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		<-worked
	})
}

func acks(context.Context, *bourse.Delivery) error { return nil }

// An attach that came into the log behind the detach of Close left a consumer that nobody ended: what it held counted
// as failed when the broker was opened again.
func TestSubscribeWhileClosing(t *testing.T) {
	fs := new(storage.MemFS)
	synctest.Test(t, func(t *testing.T) {
		var held chan struct{} // not nil: the next proposal waits for it
		subscribed := make(chan error, 1)
		gone := make(chan struct{})
		e := &hookedEngine{Engine: onFS(t, fs), closing: func() { <-gone }}
		e.propose = func() {
			if c := held; c != nil {
				held = nil
				<-c
			}
		}
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: e})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		send(t, b, "q", "a", "b")
		release := make(chan struct{})
		held = release
		go func() {
			defer close(gone)
			s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
			for err == nil {
				_, err = s.Next(ctx)
			}
			subscribed <- err
		}()
		synctest.Wait() // its attach is held
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		synctest.Wait() // Close is as far as it gets
		close(release)
		require.NoError(t, <-closed)
		require.ErrorIs(t, <-subscribed, bourse.ErrClosed)
		_, err = b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		require.ErrorIs(t, err, bourse.ErrClosed)
	})
	b := open(t, bourse.Options{Engine: onFS(t, fs)})
	q := stats(t, b, "q")
	require.Equal(t, 2, q.Ready)
	require.Zero(t, q.Failed)
	require.Equal(t, q.Delivered, q.Released)
}

// One step makes at most 4096 messages due. What it left was not woken for, since the wake had the same time as the
// one before, and stayed until something else touched the queue.
func TestManyDueAtOnce(t *testing.T) {
	const n = 9000
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock},
		bourse.Queue{Name: "q", MaxRetries: bourse.NoLimit, AckDeadline: time.Second, Retry: bourse.Backoff{Min: time.Second}})
	ms := make([]bourse.Message, n)
	for i := range ms {
		ms[i].RoutingKey = "q"
	}
	require.NoError(t, b.PublishBatch(ctx, ms))
	consume(t, b, "q", 0)
	require.Equal(t, n, stats(t, b, "q").Unacked)
	clock.advance(t, b, time.Second)
	require.EqualValues(t, n, stats(t, b, "q").TimedOut)
	require.Equal(t, n, stats(t, b, "q").Delayed)
	clock.advance(t, b, time.Second)
	require.Equal(t, n, stats(t, b, "q").Unacked)
}

// With an outcome and an ended context at hand the answer was drawn by lot: a batch of which nothing was proposed
// said half of the time that its outcome was unknown.
func TestKnownOutcomeWins(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for range 64 {
		err := b.PublishBatch(ended, []bourse.Message{{RoutingKey: "q"}, {RoutingKey: "q"}})
		require.NotErrorIs(t, err, bourse.ErrUnknownOutcome)
		var batch *bourse.BatchError
		require.ErrorAs(t, err, &batch)
		require.Len(t, batch.Errs, 2)
		require.ErrorIs(t, batch.Errs[1], context.Canceled)

		c := b.PublishAsync(ctx, bourse.Message{RoutingKey: "q"})
		<-c.Done()
		require.NoError(t, c.Wait(ended))
	}
	require.Equal(t, 64, stats(t, b, "q").Ready)
	s := consume(t, b, "q", 1)
	d := next(t, s)
	for range 64 {
		err := d.AckSync(ended)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, bourse.ErrUnknownOutcome)
	}
	require.NoError(t, d.AckSync(ctx)) // nothing was said before
}

// Two wait, a message comes, and the one that receives the signal leaves since its context has ended: the other slept
// on beside a full buffer.
func TestLeavingWakesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		require.NoError(t, err)
		got := make(chan error, 2)
		go func() { _, err := s.Next(&endsAfterWait{Context: ctx}); got <- err }()
		synctest.Wait() // it stands first in line
		go func() { _, err := s.Next(ctx); got <- err }()
		synctest.Wait()
		start := time.Now()
		send(t, b, "q", "a")
		left, served := <-got, <-got // either may be heard first
		if left == nil {
			left, served = served, left
		}
		require.ErrorIs(t, left, context.Canceled)
		require.NoError(t, served)
		require.Zero(t, time.Since(start), "the message came by its deadline only")
		require.NoError(t, b.Close())
	})
}

// endsAfterWait is a context that ends in the moment in which its owner is woken by something else.
type endsAfterWait struct {
	context.Context
	asked bool
}

func (c *endsAfterWait) Err() error {
	if c.asked {
		return context.Canceled
	}
	c.asked = true
	return nil
}

// Brokers shared a pool of channels. One that was made in a synctest bubble came out of it elsewhere, which is fatal.
func TestBubblesShareNothing(t *testing.T) {
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			b, err := bourse.NewBroker(ctx, bourse.Options{})
			require.NoError(t, err)
			require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
			send(t, b, "q", "a", "b", "c")
			require.NoError(t, b.Close())
		})
	}
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	send(t, b, "q", "a")
}

// Close detached the consumers one after the other, and what one gave back was lent to the next: each loan more
// made a message look redelivered.
func TestCloseLendsNothing(t *testing.T) {
	fs := new(storage.MemFS)
	b := open(t, bourse.Options{Engine: onFS(t, fs)}, bourse.Queue{Name: "q"})
	for _, body := range []string{"1", "2", "3", "4"} {
		send(t, b, "q", body)
	}
	for range 3 {
		consume(t, b, "q", 2)
	}
	require.NoError(t, b.Close())
	b = open(t, bourse.Options{Engine: onFS(t, fs)})
	require.EqualValues(t, 4, stats(t, b, "q").Delivered)
	s := consume(t, b, "q", 4)
	for range 4 {
		require.Equal(t, 2, next(t, s).Deliveries)
	}
}

// A local engine that was passed in Options.Engine counted no failure for what was on loan at a crash.
func TestCrashCountsWithOwnEngine(t *testing.T) {
	fs := new(storage.MemFS)
	b := open(t, bourse.Options{Engine: onFS(t, fs)}, bourse.Queue{Name: "q"})
	send(t, b, "q", "lent", "waiting")
	next(t, consume(t, b, "q", 1))

	b = open(t, bourse.Options{Engine: onFS(t, crashed(fs))})
	require.EqualValues(t, 1, stats(t, b, "q").Failed)
	s := consume(t, b, "q", 2)
	d := next(t, s)
	require.Equal(t, "lent", string(d.Body))
	require.Equal(t, []int{2, 1}, []int{d.Deliveries, d.Failures})
	require.True(t, d.Redelivered())
	d = next(t, s)
	require.Equal(t, "waiting", string(d.Body))
	require.Equal(t, []int{1, 0}, []int{d.Deliveries, d.Failures})
}

// A timestamp that nanoseconds in 64 bits do not hold was accepted, and came back as another.
func TestTimestampOutOfRange(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	for _, year := range []int{1600, 1678, 1969, 2261, 2262, 3000} {
		at := time.Date(year, 12, 31, 23, 59, 59, 999, time.UTC)
		err := b.Publish(ctx, bourse.Message{RoutingKey: "q", Timestamp: at})
		if year < 1678 || year > 2261 {
			var invalid *bourse.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, "Message.Timestamp", invalid.Field)
			continue
		}
		require.NoError(t, err)
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.True(t, at.Equal(d.Timestamp), "%v came back as %v", at, d.Timestamp)
		require.NoError(t, d.Ack())
	}
}

// The context of a handler ended AckDeadline after the handler started, not at the deadline, which runs while the
// message waits for a handler.
func TestHandlerEndsAtDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", AckDeadline: 10 * time.Second}))
		send(t, b, "q", "first", "second")
		var waited []time.Duration
		stop, end := context.WithCancel(ctx)
		err = b.Work(stop, "q", func(ctx context.Context, d *bourse.Delivery) error {
			if string(d.Body) == "first" {
				<-time.After(4 * time.Second) // virtual: the other waits in the buffer of the subscription
				return nil
			}
			start := time.Now()
			<-ctx.Done()
			waited = append(waited, time.Since(start))
			require.True(t, time.Now().Equal(d.Deadline()))
			end()
			return nil
		}, bourse.WorkOptions{Concurrency: 1, Prefetch: 2})
		require.NoError(t, err)
		require.Equal(t, []time.Duration{6 * time.Second}, waited)
		require.NoError(t, b.Close())
	})
}

// A publish that gave up waiting for room left those behind it waiting that would have fitted.
func TestGivingUpLetsOthersIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newHeldFS()
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs), MaxPendingBytes: 100})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		fs.hold(true)
		first := b.PublishAsync(ctx, bourse.Message{RoutingKey: "q", Body: make([]byte, 60)})
		giving, up := context.WithCancel(ctx)
		confirms := make(chan *bourse.Confirm, 2)
		go func() { confirms <- b.PublishAsync(giving, bourse.Message{RoutingKey: "q", Body: make([]byte, 60)}) }()
		synctest.Wait()
		go func() { confirms <- b.PublishAsync(ctx, bourse.Message{RoutingKey: "q", Body: make([]byte, 40)}) }()
		synctest.Wait()
		require.Empty(t, confirms, "both wait")
		up()
		synctest.Wait()
		require.Len(t, confirms, 2, "one gave up, and the other fits")
		gaveUp, letIn := <-confirms, <-confirms
		if gaveUp.Err() == nil { // they came in either order
			gaveUp, letIn = letIn, gaveUp
		}
		require.ErrorIs(t, gaveUp.Err(), context.Canceled)
		fs.hold(false)
		require.NoError(t, letIn.Wait(ctx))
		require.NoError(t, first.Wait(ctx))
		require.NoError(t, b.Close())
	})
}

// Work on a broker that was closed under it returned nil or ErrClosed, as it happened.
func TestWorkTellsCloseFromShutdown(t *testing.T) {
	for i := range 100 {
		synctest.Test(t, func(t *testing.T) {
			b, err := bourse.NewBroker(ctx, bourse.Options{})
			require.NoError(t, err)
			require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
			worked := make(chan error, 1)
			go func() { worked <- b.Work(ctx, "q", acks, bourse.WorkOptions{Concurrency: 3}) }()
			synctest.Wait()
			if i%2 == 0 {
				require.NoError(t, b.Close())
				require.ErrorIs(t, <-worked, bourse.ErrClosed)
			} else {
				require.NoError(t, b.Shutdown(ctx))
				require.NoError(t, <-worked)
			}
			require.ErrorIs(t, b.Work(ctx, "q", acks, bourse.WorkOptions{}), bourse.ErrClosed)
		})
	}
}

var _ = []any{errors.Is, fmt.Sprint, new(sync.Mutex), synctest.Wait, time.Second, context.Background, storage.OS, require.Equal}

// A message that cannot be read was the end of its batch: what NextBatch had taken behind it stayed on loan, unseen, until
// its deadline, and AckUpTo settled it.
func TestNextBatchAfterReadError(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Engine: unreadableEngine{onFS(t, new(storage.MemFS))}, Clock: clock}, bourse.Queue{Name: "q"})
	send(t, b, "q", "1", "2", "unreadable", "4", "5", "6")
	s := consume(t, b, "q", 6)
	barrier(t, b, nil)
	batch, err := s.NextBatch(ctx, 5)
	require.ErrorIs(t, err, bourse.ErrStorage)
	require.Equal(t, []string{"1", "2"}, bodies(batch))
	require.ErrorIs(t, s.AckUpTo(4), bourse.ErrUnknownDelivery) // not handed over
	require.NoError(t, s.AckUpTo(0))
	barrier(t, b, nil)
	require.Equal(t, 4, stats(t, b, "q").Unacked)
	batch, err = s.NextBatch(ctx, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"4", "5"}, bodies(batch))
	clock.advance(t, b, bourse.DefaultDeadline) // takes back what was returned, what waits and what cannot be read
	require.ErrorIs(t, batch[0].Ack(), bourse.ErrStaleDelivery)
	for _, want := range []string{"", "4", "5", "6"} {
		d, err := s.Next(ctx)
		if want == "" {
			require.ErrorIs(t, err, bourse.ErrStorage)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []any{want, 2, 1}, []any{string(d.Body), d.Deliveries, d.Failures})
		require.NoError(t, d.Ack())
	}
	barrier(t, b, clock)
	require.Equal(t, 1, stats(t, b, "q").Unacked)
}

func bodies(ds []*bourse.Delivery) (texts []string) {
	for _, d := range ds {
		texts = append(texts, string(d.Body))
	}
	return texts
}

// unreadableEngine cannot read commands that end with the word.
type unreadableEngine struct{ bourse.Engine }

func (e unreadableEngine) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	log, err := e.Engine.Open(ctx, shard, m)
	return unreadableLog{log}, err
}

type unreadableLog struct{ bourse.Log }

func (l unreadableLog) Read(ref bourse.Ref, size int, dst []byte) ([]byte, error) {
	cmd, err := l.Log.Read(ref, size, dst)
	if err == nil && bytes.HasSuffix(cmd, []byte("unreadable")) {
		err = errors.New("bad sector")
	}
	return cmd, err
}

// The consumers behind Get outlived their queues, one for each that was ever asked; and after a change of the leader Get
// went on with one that the new session did not know, and found the broker closed for ever.
func TestGetForgets(t *testing.T) {
	e := &leadEngine{Engine: onFS(t, new(storage.MemFS))}
	b := open(t, bourse.Options{Engine: e})
	for range 3 {
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		send(t, b, "q", "a")
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.Equal(t, 1, b.Pullers())
		require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
		require.Zero(t, b.Pullers())
		require.ErrorIs(t, d.Ack(), bourse.ErrQueueGone)
		_, err = b.Get(ctx, "q")
		require.ErrorIs(t, err, bourse.ErrNotFound)
	}
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	send(t, b, "q", "a")
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	e.machine.Lead(false)
	require.Zero(t, b.Pullers())
	_, err = b.Get(ctx, "q")
	require.ErrorIs(t, err, bourse.ErrNotLeader)
	e.machine.Lead(true)
	again, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, d.ID, again.ID)
	require.ErrorIs(t, d.Ack(), bourse.ErrNotLeader)
	require.NoError(t, again.AckSync(ctx))
}

// leadEngine lets a test tell the machine of the one shard who leads.
type leadEngine struct {
	bourse.Engine
	machine bourse.Machine
}

func (e *leadEngine) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	e.machine = m
	return e.Engine.Open(ctx, shard, m)
}

// A tick that was refused on a full disk was never proposed again: what was due then waited until something else happened.
func TestTickOnFullDisk(t *testing.T) {
	clock := newHandClock()
	e := &fullEngine{Engine: onFS(t, new(storage.MemFS))}
	b := open(t, bourse.Options{Engine: e, Clock: clock}, bourse.Queue{Name: "q"})
	send(t, b, "q", "a")
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, d.NackAfter(time.Minute))
	barrier(t, b, clock)
	e.full.Store(true)
	clock.step(clock.Now().Add(time.Minute))
	clock.rest()
	e.full.Store(false)
	require.Equal(t, 1, stats(t, b, "q").Delayed)
	clock.advance(t, b, time.Second)
	require.Equal(t, 1, stats(t, b, "q").Ready)
}

// fullEngine refuses every proposal while it is full.
type fullEngine struct {
	bourse.Engine
	full atomic.Bool
}

func (e *fullEngine) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	log, err := e.Engine.Open(ctx, shard, m)
	return fullLog{log, e}, err
}

type fullLog struct {
	bourse.Log
	e *fullEngine
}

func (l fullLog) Propose(p bourse.Proposal) error {
	if l.e.full.Load() {
		return bourse.ErrDiskFull
	}
	return l.Log.Propose(p)
}
