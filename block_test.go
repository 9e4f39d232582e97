package bourse_test

// Goal: a publish to a full queue of Overflow Block waits, neither too short nor for ever, in its order, and nothing of
// what its caller may take back is touched. Method: in a synctest bubble all goroutines of the broker are blocked when a
// publisher is, so a test knows that it waits and not only that it has not ended yet.

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// blocking runs test in a bubble, with a broker that has a queue of two messages, which is full.
func blocking(t *testing.T, test func(t *testing.T, b *bourse.Broker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", MaxMessages: 2, Overflow: bourse.Block}, bourse.Queue{Name: "other"},
			bourse.Exchange{Name: "e", Kind: bourse.Fanout, Alternate: "spare"}, bourse.Binding{Exchange: "e", Queue: "q"}))
		send(t, b, "q", "a", "b")
		test(t, b)
	})
}

// waits starts a call and checks that it does not return. The channel has its error when it does.
func waits(t *testing.T, b *bourse.Broker, waiting int, call func() error) chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }() // ends with call
	synctest.Wait()
	require.Empty(t, done, "it does not wait")
	require.Equal(t, waiting, stats(t, b, "q").Waiting)
	return done
}

func requireDone(t *testing.T, done chan error) error {
	t.Helper()
	synctest.Wait()
	require.Len(t, done, 1, "it still waits")
	return <-done
}

func getAndAck(t *testing.T, b *bourse.Broker, queue string) string {
	t.Helper()
	d, err := b.Get(ctx, queue)
	require.NoError(t, err)
	require.NoError(t, d.Ack())
	return string(d.Body)
}

func TestBlockPublish(t *testing.T) {
	blocking(t, func(t *testing.T, b *bourse.Broker) {
		c := waits(t, b, 1, func() error { return publish(b, "q", "c") })
		d := waits(t, b, 2, func() error { return publish(b, "q", "d") })
		require.NoError(t, publish(b, "other", "x"), "other queues go on")
		require.Equal(t, "a", getAndAck(t, b, "q"))
		require.NoError(t, requireDone(t, c))
		require.Empty(t, d)
		require.EqualValues(t, 2, stats(t, b, "q").Length)
		n, err := b.Purge(ctx, "q") // also makes room
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.NoError(t, requireDone(t, d))
		st := stats(t, b, "q")
		require.Equal(t, []int{1, 0, 0}, []int{st.Ready, st.Waiting, int(st.Rejected)})
		require.NoError(t, publish(b, "q", "e"), "nobody waits any more")
		require.Equal(t, []string{"d", "e"}, drain(t, b, "q"))
	})
}

// A consumer makes room by what it is lent.
func TestBlockUntilLent(t *testing.T) {
	blocking(t, func(t *testing.T, b *bourse.Broker) {
		done := waits(t, b, 1, func() error { return publish(b, "q", "c") })
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
		require.NoError(t, err)
		require.NoError(t, requireDone(t, done))
		require.NoError(t, s.Close())
		synctest.Wait()
		require.EqualValues(t, 3, stats(t, b, "q").Length, "a requeue may exceed the limit")
		late := waits(t, b, 1, func() error { return publish(b, "q", "d") })
		require.Equal(t, "a", getAndAck(t, b, "q"))
		synctest.Wait()
		require.Empty(t, late, "two are there still")
		require.Equal(t, "b", getAndAck(t, b, "q"))
		require.NoError(t, requireDone(t, late))
	})
}

// Who stops waiting is told that nothing is stored, and has his message back.
func TestBlockGivesUp(t *testing.T) {
	blocking(t, func(t *testing.T, b *bourse.Broker) {
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		body := []byte("given up")
		c := waits(t, b, 1, func() error {
			err := b.Publish(bounded, bourse.Message{RoutingKey: "q", Body: body})
			clear(body) // the race detector sees who still reads it
			return err
		})
		d := waits(t, b, 2, func() error { return publish(b, "q", "d") })
		batch := waits(t, b, 3, func() error {
			return b.PublishBatch(bounded, []bourse.Message{{RoutingKey: "other"}, {RoutingKey: "q"}})
		})
		<-time.After(time.Minute)
		err := requireDone(t, c)
		requireFull(t, err, 0, "q")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, bourse.ErrUnknownOutcome)
		err = requireDone(t, batch)
		var failed *bourse.BatchError
		require.ErrorAs(t, err, &failed)
		require.NoError(t, failed.Errs[0])
		requireFull(t, failed.Errs[1], 0, "q")
		require.Equal(t, 1, stats(t, b, "q").Waiting)
		require.Equal(t, 1, b.Stats().Pending)
		require.Empty(t, d)
		require.Equal(t, "a", getAndAck(t, b, "q"))
		require.NoError(t, requireDone(t, d), "the one behind is not forgotten")
		require.Equal(t, []string{"b", "d"}, drain(t, b, "q"))
		require.NoError(t, publish(b, "q", "e"))
		require.EqualValues(t, 1, b.Stats().Storage.References-int64(stats(t, b, "other").Ready), "nothing else is kept")
	})
}

// If all who waited have given up, the queue does not wait for them.
func TestBlockAllGiveUp(t *testing.T) {
	blocking(t, func(t *testing.T, b *bourse.Broker) {
		bounded, cancel := context.WithCancel(ctx)
		c := waits(t, b, 1, func() error { return b.Publish(bounded, bourse.Message{RoutingKey: "q"}) })
		cancel()
		require.ErrorIs(t, requireDone(t, c), context.Canceled)
		require.Equal(t, []string{"a", "b"}, drain(t, b, "q"))
		send(t, b, "q", "d", "e")
		waits(t, b, 1, func() error { return publish(b, "q", "f") })
	})
}

// The first that waits may be too large for what is free, if only by its name and id. When it gives up, the next is let in.
func TestBlockLargeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", MaxBytes: 1000, Overflow: bourse.Block}))
		send(t, b, "q", string(make([]byte, 300)), string(make([]byte, 500)))
		bounded, cancel := context.WithCancel(ctx)
		large := waits(t, b, 1, func() error { return b.Publish(bounded, bourse.Message{RoutingKey: "q", Body: make([]byte, 440)}) })
		small := waits(t, b, 2, func() error { return publish(b, "q", "small") })
		require.Len(t, getAndAck(t, b, "q"), 300)
		synctest.Wait()
		require.Empty(t, small, "it does not overtake")
		records := b.Stats().Storage.Records
		for range 10 {
			require.NoError(t, b.Declare(ctx)) // the queue is looked at, and nothing is tried in vain
			synctest.Wait()
		}
		require.EqualValues(t, 10, b.Stats().Storage.Records-records)
		cancel()
		requireFull(t, requireDone(t, large), 0, "q")
		require.NoError(t, requireDone(t, small))
		large = waits(t, b, 1, func() error { return b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: make([]byte, 900)}) })
		drain(t, b, "q")
		require.NoError(t, requireDone(t, large))
		require.NoError(t, b.Close())
	})
}

// The publishes of one goroutine come in in its order, also if some of them meet room by chance.
func TestBlockKeepsOrder(t *testing.T) {
	blocking(t, func(t *testing.T, b *bourse.Broker) {
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
		require.NoError(t, err)
		var confirms []*bourse.Confirm
		want := []string{"a", "b"}
		for i := range 2000 {
			body := fmt.Sprint(i)
			want = append(want, body)
			confirms = append(confirms, b.PublishAsync(ctx, bourse.Message{RoutingKey: "q", Body: []byte(body)}))
			if i%7 == 0 {
				d := next(t, s)
				require.Equal(t, want[0], string(d.Body))
				want = want[1:]
				require.NoError(t, d.Ack())
			}
		}
		confirmed := 0
		for len(want) > 0 {
			d := next(t, s)
			require.Equal(t, want[0], string(d.Body))
			want = want[1:]
			require.NoError(t, d.Ack())
			synctest.Wait()
			for confirmed < len(confirms) && isDone(confirms[confirmed]) {
				require.NoError(t, confirms[confirmed].Err())
				confirmed++
			}
			for _, c := range confirms[confirmed:] {
				require.False(t, isDone(c), "confirms come in order")
			}
		}
		require.Equal(t, len(confirms), confirmed)
		require.NoError(t, s.Close())
	})
}

func isDone(c *bourse.Confirm) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

func TestBlockAsync(t *testing.T) {
	blocking(t, func(t *testing.T, b *bourse.Broker) {
		body := []byte("c")
		c := b.PublishAsync(ctx, bourse.Message{RoutingKey: "q", Body: body})
		synctest.Wait()
		require.False(t, isDone(c))
		bounded, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, c.Wait(bounded), bourse.ErrUnknownOutcome, "who waits for a confirm does not end it")
		require.Equal(t, "a", getAndAck(t, b, "q"))
		require.NoError(t, c.Wait(ctx))
		clear(body)
		require.Equal(t, []string{"b", "c"}, drain(t, b, "q"))
	})
}

// A publish to several queues is in those that have room, and waits for the others.
func TestBlockOneOfSeveral(t *testing.T) {
	blocking(t, func(t *testing.T, b *bourse.Broker) {
		require.NoError(t, b.Declare(ctx, bourse.Binding{Exchange: "e", Queue: "other"},
			bourse.Queue{Name: "third", MaxMessages: 1, Overflow: bourse.Block}, bourse.Binding{Exchange: "e", Queue: "third"},
			bourse.Queue{Name: "fourth", MaxMessages: 1}, bourse.Binding{Exchange: "e", Queue: "fourth"}))
		send(t, b, "third", "x")
		send(t, b, "fourth", "x")
		m := bourse.Message{Exchange: "e", Body: []byte("c")}
		done := waits(t, b, 1, func() error { return b.Publish(ctx, m) })
		bounded, cancel := context.WithCancel(ctx)
		given := waits(t, b, 2, func() error { return b.Publish(bounded, m) })
		require.Equal(t, []string{"c", "c"}, drain(t, b, "other"))
		require.Equal(t, "x", getAndAck(t, b, "third"))
		synctest.Wait()
		require.Empty(t, done)
		cancel()
		requireFull(t, requireDone(t, given), 1, "fourth", "q", "third")
		require.Equal(t, "a", getAndAck(t, b, "q"))
		requireFull(t, requireDone(t, done), 3, "fourth")
		require.Equal(t, []string{"b", "c"}, drain(t, b, "q"))
		require.Equal(t, []string{"c"}, drain(t, b, "third"))
		require.Zero(t, b.Stats().Pending)
	})
}

// If the queue is deleted, the message is routed anew.
func TestBlockQueueDeleted(t *testing.T) {
	blocking(t, func(t *testing.T, b *bourse.Broker) {
		require.NoError(t, b.Declare(ctx, bourse.Exchange{Name: "spare", Kind: bourse.Fanout},
			bourse.Binding{Exchange: "spare", Queue: "other"}))
		body := []byte("c")
		spare := waits(t, b, 1, func() error { return b.Publish(ctx, bourse.Message{Exchange: "e", Body: body}) })
		lost := waits(t, b, 2, func() error { return b.Publish(ctx, bourse.Message{RoutingKey: "q", Mandatory: true}) })
		require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
		require.NoError(t, requireDone(t, spare))
		require.ErrorIs(t, requireDone(t, lost), bourse.ErrUnroutable)
		require.Equal(t, []string{"c"}, drain(t, b, "other"))
	})
}

func TestBlockClose(t *testing.T) {
	blocking(t, func(t *testing.T, b *bourse.Broker) {
		c := waits(t, b, 1, func() error { return publish(b, "q", "c") })
		async := b.PublishAsync(ctx, bourse.Message{RoutingKey: "q"})
		require.NoError(t, b.Close())
		err := requireDone(t, c)
		require.ErrorIs(t, err, bourse.ErrClosed)
		require.NotErrorIs(t, err, bourse.ErrUnknownOutcome)
		require.ErrorIs(t, async.Wait(ctx), bourse.ErrClosed)
	})
}

// Turns that a crash took away do not hold up those who come later.
func TestBlockAfterCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := new(storage.MemFS)
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", MaxMessages: 2, Overflow: bourse.Block}))
		send(t, b, "q", "a", "b")
		waits(t, b, 1, func() error { return publish(b, "q", "lost") })
		after := crashed(fs)
		require.NoError(t, b.Close())
		b, err = bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, after)})
		require.NoError(t, err)
		require.Equal(t, "a", getAndAck(t, b, "q"))
		send(t, b, "q", "c")
		late := waits(t, b, 1, func() error { return publish(b, "q", "d") })
		require.Equal(t, "b", getAndAck(t, b, "q"))
		require.NoError(t, requireDone(t, late))
		require.Equal(t, []string{"c", "d"}, drain(t, b, "q"))
		require.NoError(t, b.Close())
	})
}

// Publishers that come, wait, and give up at any moment lose nothing that was confirmed, and are not lost themselves.
func TestBlockStorm(t *testing.T) {
	const publishers, each = 20, 100
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", MaxMessages: 3, MaxBytes: 600, Overflow: bourse.Block})
	s := consume(t, b, "q", 2)
	var mu sync.Mutex
	outcome := map[string]error{}
	var group sync.WaitGroup
	for p := range publishers {
		group.Go(func() {
			for i := range each {
				bounded, cancel := context.WithTimeout(ctx, time.Duration(p%5)*200*time.Microsecond)
				if p%5 == 4 {
					bounded, cancel = context.WithCancel(ctx)
				}
				id := fmt.Sprintf("%d-%d", p, i)
				body := bytes.Repeat([]byte("x"), 10*(i%20))
				err := b.Publish(bounded, bourse.Message{RoutingKey: "q", ID: id, Body: body})
				clear(body)
				cancel()
				mu.Lock()
				outcome[id] = err
				mu.Unlock()
			}
		})
	}
	published := make(chan struct{})
	go func() { group.Wait(); close(published) }() // ends with the publishers
	got := map[string]bool{}
	for {
		d, err := s.Next(&lookContext{Context: ctx})
		if err != nil {
			select {
			case <-published:
				barrier(t, b, nil)
				if d, err = s.Next(&lookContext{Context: ctx}); err != nil {
					goto done
				}
			default:
				continue
			}
		}
		require.False(t, got[d.ID], "twice")
		got[d.ID] = true
		for _, x := range d.Body {
			require.Equal(t, byte('x'), x)
		}
		require.NoError(t, d.Ack())
	}
done:
	for id, err := range outcome {
		if err == nil {
			require.True(t, got[id], "confirmed and lost")
		} else if got[id] {
			require.ErrorIs(t, err, bourse.ErrUnknownOutcome)
		}
	}
	require.Zero(t, b.Stats().Pending)
	require.Zero(t, stats(t, b, "q").Waiting)
	require.Zero(t, b.Stats().Storage.References)
}
