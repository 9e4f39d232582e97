package bourse_test

// Goal: what two callers do in the same moment ends as the log orders it. Method: an engine that holds one proposal
// back while something else overtakes it, so that the moment is met every time.

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// overtaking opens a broker of which hold holds the proposal after the next skip ones, until release.
func overtaking(t *testing.T, clock bourse.Clock, ds ...bourse.Declaration) (b *bourse.Broker, hold func(skip int) (release func())) {
	t.Helper()
	var mu sync.Mutex
	var gate chan struct{}
	skipped := 0
	e := &hookedEngine{Engine: onFS(t, new(storage.MemFS)), closing: func() {}}
	e.propose = func() {
		mu.Lock()
		wait := gate
		if wait != nil && skipped > 0 {
			skipped--
			wait = nil
		} else {
			gate = nil
		}
		mu.Unlock()
		if wait != nil {
			<-wait
		}
	}
	b, err := bourse.NewBroker(ctx, bourse.Options{Engine: e, Clock: clock})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, ds...))
	return b, func(skip int) func() {
		mu.Lock()
		defer mu.Unlock()
		c := make(chan struct{})
		gate, skipped = c, skip
		return func() { close(c) }
	}
}

// A queue that is deleted between routing and the log is routed around.
func TestDeletedUnderPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, hold := overtaking(t, nil, bourse.Exchange{Name: "e", Kind: bourse.Fanout, Alternate: "spare"},
			bourse.Exchange{Name: "spare", Kind: bourse.Fanout}, bourse.Queue{Name: "q"}, bourse.Queue{Name: "other"},
			bourse.Queue{Name: "last"}, bourse.Binding{Exchange: "e", Queue: "q"}, bourse.Binding{Exchange: "spare", Queue: "last"})
		publish := func(m bourse.Message, remove string) error {
			release := hold(0)
			published := make(chan error, 1)
			go func() { published <- b.Publish(ctx, m) }()
			synctest.Wait()
			require.NoError(t, b.Delete(ctx, bourse.Queue{Name: remove}))
			release()
			return <-published
		}
		require.ErrorIs(t, publish(bourse.Message{RoutingKey: "other", Mandatory: true}, "other"), bourse.ErrUnroutable)
		require.NoError(t, publish(bourse.Message{Exchange: "e", Body: []byte("a")}, "q"))
		require.Equal(t, []string{"a"}, drain(t, b, "last"), "over the alternate exchange")
		require.NoError(t, publish(bourse.Message{Exchange: "e"}, "last"))
		require.EqualValues(t, 1, b.Stats().Unroutable)
		require.Zero(t, b.Stats().Pending)
		require.NoError(t, b.Close())
	})
}

// So is the queue of a dead-letter exchange.
func TestDeletedUnderMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, hold := overtaking(t, nil, bourse.Exchange{Name: "dlx", Kind: bourse.Fanout}, bourse.Queue{Name: "grave"},
			bourse.Queue{Name: "q", DeadLetter: bourse.DeadLetter{Exchange: "dlx"}}, bourse.Binding{Exchange: "dlx", Queue: "grave"})
		send(t, b, "q", "a")
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		release := hold(1) // the move, not the reject
		require.NoError(t, d.Reject("no"))
		synctest.Wait()
		require.Equal(t, 1, stats(t, b, "q").Dying)
		require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "grave"}))
		release()
		synctest.Wait()
		require.Zero(t, stats(t, b, "q").Dying)
		d, err = b.Get(ctx, bourse.ParkingQueue)
		require.NoError(t, err)
		require.Equal(t, []string{"q/unroutable/1", "q/rejected/1"}, deaths(d))
		require.NoError(t, b.Close())
	})
}

// An ack that the deadline overtakes is told so if it waits, and does no harm to the next loan.
func TestDeadlineOvertakesAck(t *testing.T) {
	for _, sync := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, hold := overtaking(t, nil, bourse.Queue{Name: "q", AckDeadline: time.Minute})
			send(t, b, "q", "a")
			s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
			require.NoError(t, err)
			d := next(t, s)
			release := hold(0)
			acked := make(chan error, 1)
			go func() {
				if sync {
					acked <- d.AckSync(ctx)
				} else {
					acked <- d.Ack()
				}
			}()
			<-time.After(time.Minute)
			synctest.Wait()
			require.EqualValues(t, 1, stats(t, b, "q").TimedOut)
			release()
			if sync {
				require.ErrorIs(t, <-acked, bourse.ErrStaleDelivery)
			} else {
				require.NoError(t, <-acked)
			}
			synctest.Wait()
			require.Equal(t, 1, stats(t, b, "q").Unacked)
			require.NoError(t, next(t, s).AckSync(ctx))
			require.EqualValues(t, 1, stats(t, b, "q").Acked)
			require.NoError(t, b.Close())
		})
	}
}

// What is due counts as ready for the next command, although the tick has not come yet.
func TestDueBeforeTick(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"})
	send(t, b, "q", "a")
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, d.Release(time.Minute))
	barrier(t, b, clock)
	clock.mu.Lock()
	clock.now = clock.now.Add(time.Minute)
	clock.mu.Unlock()
	require.Equal(t, []string{"a"}, drain(t, b, "q"))
}
