package bourse_test

// Goal: transient messages in durable queues. They never come to the log; consumers see them with the durable ones as one queue, under
// one prefetch; every operation on the queue reaches them; they are gone with the broker. Method: what the log has written is counted, the
// order of deliveries is compared with that of a sort, and many publishers and consumers run at once under one account of who holds what.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

var inMemory = bourse.Message{Transient: true}

func TestTransientMessageWritesNothing(t *testing.T) {
	b := open(t, bourse.Options{Dir: t.TempDir()}, bourse.Queue{Name: "q", MaxRetries: 2})
	s := consume(t, b, "q", 10)
	barrier(t, b, nil)
	before := b.Stats().Storage
	for i := range 100 {
		sendWith(t, b, "q", strconv.Itoa(i), inMemory)
		d := next(t, s)
		require.Equal(t, strconv.Itoa(i), string(d.Body))
		require.True(t, d.Transient)
		require.Equal(t, uint64(d.Deliveries), uint64(1))
		switch i % 4 {
		case 0:
			require.NoError(t, d.Nack())
			d = next(t, s)
			require.Equal(t, []int{2, 1}, []int{d.Deliveries, d.Failures})
			require.NoError(t, d.AckSync(ctx))
			require.ErrorIs(t, d.Ack(), bourse.ErrUnknownDelivery)
		case 1:
			require.NoError(t, s.AckUpTo(d.Tag))
			require.ErrorIs(t, d.Ack(), bourse.ErrUnknownDelivery)
		case 2:
			require.NoError(t, d.Extend(time.Hour))
			require.NoError(t, d.Ack())
		default:
			require.NoError(t, d.Release(0))
			require.NoError(t, next(t, s).Ack())
		}
	}
	after := b.Stats().Storage
	require.Equal(t, []uint64{before.Records, before.Syncs}, []uint64{after.Records, after.Syncs})
	q := stats(t, b, "q")
	require.Equal(t, []uint64{100, 150, 100, 25, 25}, []uint64{q.Enqueued, q.Delivered, q.Acked, q.Failed, q.Released})
	require.Zero(t, q.Transient)
}

// After a restart and after a crash the transient are gone, and the durable are there.
func TestTransientMessageIsGone(t *testing.T) {
	for _, how := range []string{"closed", "crashed"} {
		t.Run(how, func(t *testing.T) {
			fs := &storage.MemFS{}
			b := open(t, bourse.Options{Engine: onFS(t, fs)}, bourse.Queue{Name: "q"})
			sendWith(t, b, "q", "memory", inMemory)
			send(t, b, "q", "log")
			q := stats(t, b, "q")
			require.Equal(t, []int{2, 1}, []int{q.Ready, q.Transient})
			if how == "closed" {
				require.NoError(t, b.Close())
			} else {
				fs = crashed(fs)
			}
			b = open(t, bourse.Options{Engine: onFS(t, fs)})
			q = stats(t, b, "q")
			require.Equal(t, []int{1, 0}, []int{q.Ready, q.Transient})
			require.Equal(t, []string{"log"}, drain(t, b, "q"))
		})
	}
}

// Both kinds come in the order of level and arrival, whatever the prefetch, and never more of them than that are out.
func TestTransientMessageMerged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := newHandClock()
		b, err := bourse.NewBroker(ctx, bourse.Options{Clock: clock})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", Priorities: 3}))
		prefetch := rapid.IntRange(1, 4).Draw(t, "prefetch")
		type sent struct{ priority, number int }
		var want []sent
		publish := func(n int) {
			for range n {
				m := sent{rapid.IntRange(0, 2).Draw(t, "priority"), len(want)}
				want = append(want, m)
				clock.step(clock.Now().Add(time.Millisecond))
				sendWith(t, b, "q", strconv.Itoa(m.number),
					bourse.Message{Transient: rapid.Bool().Draw(t, "transient"), Priority: uint8(m.priority)})
			}
		}
		early := rapid.Bool().Draw(t, "subscribes first")
		var s *bourse.Subscription
		subscribe := func() {
			s, err = b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: prefetch})
			require.NoError(t, err)
		}
		if early {
			require.NoError(t, b.Pause(ctx, "q"))
			subscribe()
		}
		publish(rapid.IntRange(1, 12).Draw(t, "messages"))
		if early {
			require.NoError(t, b.Resume(ctx, "q"))
		} else {
			subscribe()
		}
		slices.SortStableFunc(want, func(a, b sent) int { return cmp.Compare(b.priority, a.priority) })
		var held []*bourse.Delivery
		last := uint64(0)
		for i := 0; i < len(want) || len(held) > 0; {
			if i < len(want) && len(held) < prefetch && (len(held) == 0 || rapid.Bool().Draw(t, "take")) {
				d := next(t, s)
				require.Equal(t, strconv.Itoa(want[i].number), string(d.Body), "delivery %d of %v", i, want)
				require.Greater(t, d.Tag, last)
				last = d.Tag
				held = append(held, d)
				i++
				continue
			}
			if len(held) == prefetch {
				nothing(t, b, clock, s)
			}
			if rapid.Bool().Draw(t, "ack all") {
				require.NoError(t, s.AckUpTo(last))
				held = nil
			} else {
				n := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				require.NoError(t, held[n].Ack())
				held = slices.Delete(held, n, n+1)
			}
			barrier(t, b, clock)
		}
		nothing(t, b, clock, s)
		q := stats(t, b, "q")
		require.Equal(t, []int{0, 0}, []int{q.Ready, q.Unacked})
	})
}

// A subscription that holds durable messages when the first transient one comes counts them.
func TestTransientMessageJoins(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	s := consume(t, b, "q", 3)
	send(t, b, "q", "a", "b", "c", "d")
	a, second := next(t, s), next(t, s)
	require.NoError(t, a.Ack()) // may be on its way still
	sendWith(t, b, "q", "m", inMemory)
	barrier(t, b, nil)
	c, d := next(t, s), next(t, s)
	require.Equal(t, []string{"c", "d"}, bodies([]*bourse.Delivery{c, d}))
	nothing(t, b, nil, s)
	require.Less(t, second.Tag, c.Tag)
	require.Less(t, c.Tag, d.Tag)
	require.NoError(t, second.Reject("no"))
	m := next(t, s)
	require.Equal(t, "m", string(m.Body))
	nothing(t, b, nil, s)
	require.NoError(t, s.AckUpTo(m.Tag))
	barrier(t, b, nil)
	require.Zero(t, stats(t, b, "q").Unacked)
	require.ErrorIs(t, m.Ack(), bourse.ErrUnknownDelivery)
	require.ErrorIs(t, d.Ack(), bourse.ErrUnknownDelivery)
	require.ErrorIs(t, s.AckUpTo(m.Tag+1), bourse.ErrUnknownDelivery)
	require.Equal(t, []string{"b"}, drain(t, b, bourse.ParkingQueue))
}

// A transient message does not wait behind a consumer that is busy with a durable one while another is free.
func TestTransientMessageGoesToWhoIsFree(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	sendWith(t, b, "q", "first", inMemory) // the annex is there
	require.Equal(t, []string{"first"}, drain(t, b, "q"))
	busy := consume(t, b, "q", 1)
	send(t, b, "q", "job")
	job := next(t, busy)
	free := consume(t, b, "q", 1)
	for i := range 10 {
		sendWith(t, b, "q", strconv.Itoa(i), inMemory)
	}
	for i := range 10 {
		d := next(t, free)
		require.Equal(t, strconv.Itoa(i), string(d.Body))
		require.Equal(t, 0, d.Failures)
		require.NoError(t, d.AckSync(ctx))
	}
	require.NoError(t, job.Ack())
	sendWith(t, b, "q", "x", inMemory)
	sendWith(t, b, "q", "y", inMemory)
	require.ElementsMatch(t, []string{"x", "y"}, bodies([]*bourse.Delivery{next(t, busy), next(t, free)}))
}

// One that has come to a consumer already is given back as soon as that takes a durable one.
func TestTransientMessageIsGivenBack(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	busy := consume(t, b, "q", 1)
	send(t, b, "q", "job")
	sendWith(t, b, "q", "m", inMemory)
	require.Equal(t, 2, stats(t, b, "q").Unacked)
	require.Equal(t, "job", string(next(t, busy).Body))
	require.Equal(t, "m", string(next(t, consume(t, b, "q", 1)).Body))
}

// What a consumer holds comes back when it goes: to its place, without a failure.
func TestTransientMessageComesBack(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", AckDeadline: time.Minute, MaxRetries: 1})
	for _, body := range []string{"a", "b", "c"} {
		sendWith(t, b, "q", body, inMemory)
	}
	s := consume(t, b, "q", 2)
	a, c := next(t, s), next(t, s)
	require.NoError(t, s.Close())
	require.ErrorIs(t, a.Ack(), bourse.ErrUnknownDelivery)
	require.ErrorIs(t, c.Ack(), bourse.ErrUnknownDelivery)
	s = consume(t, b, "q", 1)
	a = next(t, s)
	require.Equal(t, []any{"a", 2, 0}, []any{string(a.Body), a.Deliveries, a.Failures})
	nothing(t, b, clock, s)
	clock.advance(t, b, time.Minute)
	require.ErrorIs(t, a.Ack(), bourse.ErrStaleDelivery)
	a = next(t, s)
	require.Equal(t, []any{"a", 3, 1}, []any{string(a.Body), a.Deliveries, a.Failures})
	require.NoError(t, a.Nack())
	require.Equal(t, "b", string(next(t, s).Body))
	barrier(t, b, clock)
	require.Equal(t, []string{"a"}, drain(t, b, bourse.ParkingQueue), "what dies is stored")
	require.Equal(t, uint64(1), stats(t, b, "q").TimedOut)
}

// Time passes for them as for others.
func TestTransientMessageTimes(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "dead"}, bourse.Queue{Name: "q"},
		bourse.Exchange{Name: "dlx", Kind: bourse.Fanout}, bourse.Binding{Exchange: "dlx", Queue: "dead"})
	require.NoError(t, b.Update(ctx, bourse.Queue{Name: "q", TTL: time.Hour, DeadLetter: bourse.DeadLetter{Exchange: "dlx"}}))
	sendWith(t, b, "q", "short", bourse.Message{Transient: true, TTL: time.Second})
	sendWith(t, b, "q", "long", inMemory)
	sendWith(t, b, "q", "late", bourse.Message{Transient: true, Delay: 2 * time.Hour})
	q := stats(t, b, "q")
	require.Equal(t, []int{2, 1, 3}, []int{q.Ready, q.Delayed, q.Transient})
	clock.advance(t, b, time.Second)
	require.Equal(t, 1, stats(t, b, "q").Ready)
	clock.advance(t, b, time.Hour)
	require.Equal(t, []string{"short", "long"}, drain(t, b, "dead"))
	clock.advance(t, b, time.Hour)
	require.Equal(t, []string{"late"}, drain(t, b, "q"))
}

func TestTransientMessageGet(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", Priorities: 3})
	for i, m := range []bourse.Message{
		{Priority: 1}, {Transient: true, Priority: 1}, {Transient: true, Priority: 2}, {Priority: 2}, {Transient: true},
	} {
		clock.step(clock.Now().Add(1))
		sendWith(t, b, "q", strconv.Itoa(i), m)
	}
	require.Equal(t, []string{"2", "3", "0", "1", "4"}, drain(t, b, "q"))
}

func TestTransientMessageBrowse(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", Priorities: 3})
	sendWith(t, b, "q", "d", bourse.Message{ID: "d"})
	sendWith(t, b, "q", "m", bourse.Message{ID: "m", Transient: true})
	sendWith(t, b, "q", "w", bourse.Message{ID: "w", Transient: true, Delay: time.Hour})
	seen := func(opts bourse.BrowseOptions) (ids []string, last bourse.Locator) {
		for m, err := range b.Browse(ctx, "q", opts) {
			require.NoError(t, err)
			require.Equal(t, m.ID != "d", m.Transient)
			ids, last = append(ids, fmt.Sprintf("%s %v %d", m.Body, m.State, m.Level)), m.Locator
		}
		return ids, last
	}
	all, _ := seen(bourse.BrowseOptions{})
	require.Equal(t, []string{"d ready 0", "m ready 0", "w delayed 0"}, all)
	first, at := seen(bourse.BrowseOptions{Limit: 1})
	second, at := seen(bourse.BrowseOptions{Limit: 1, After: at})
	third, at := seen(bourse.BrowseOptions{After: at})
	require.Equal(t, all, slices.Concat(first, second, third))
	none, _ := seen(bourse.BrowseOptions{After: at})
	require.Empty(t, none)
	m, err := b.Find(ctx, "q", "m")
	require.NoError(t, err)
	w, err := b.Find(ctx, "q", "w")
	require.NoError(t, err)
	require.NoError(t, b.SetPriority(ctx, m.Locator, 2))
	require.NoError(t, b.Promote(ctx, w.Locator))
	require.NoError(t, b.Edit(ctx, w.Locator, func(m *bourse.Message) error { m.Body = []byte("edited"); return nil }))
	all, _ = seen(bourse.BrowseOptions{})
	require.Equal(t, []string{"d ready 0", "m ready 2", "edited ready 0"}, all)
	require.NoError(t, b.Cancel(ctx, m.Locator))
	require.ErrorIs(t, b.Cancel(ctx, m.Locator), bourse.ErrNotFound)
	n, err := b.Purge(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	q := stats(t, b, "q")
	require.Equal(t, []uint64{2, 1}, []uint64{q.Purged, q.Cancelled})
}

func TestTransientMessagePause(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprint("annex before ", early), func(t *testing.T) {
			b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
			if early {
				sendWith(t, b, "q", "x", inMemory)
				require.Equal(t, []string{"x"}, drain(t, b, "q"))
			}
			require.NoError(t, b.Pause(ctx, "q"))
			sendWith(t, b, "q", "m", inMemory)
			_, err := b.Get(ctx, "q")
			require.ErrorIs(t, err, bourse.ErrHeldBack)
			s := consume(t, b, "q", 1)
			nothing(t, b, nil, s)
			require.NoError(t, b.Resume(ctx, "q"))
			require.Equal(t, "m", string(next(t, s).Body))
		})
	}
}

// A changed definition holds for them too.
func TestTransientMessageUpdate(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", MaxRetries: 5, AckDeadline: time.Hour})
	sendWith(t, b, "q", "m", inMemory)
	require.NoError(t, b.Update(ctx, bourse.Queue{Name: "q", MaxRetries: bourse.NoRetry, AckDeadline: time.Minute, MaxMessages: 10}))
	s := consume(t, b, "q", 1)
	d := next(t, s)
	require.Equal(t, time.Minute, d.Deadline().Sub(clock.Now()))
	require.NoError(t, d.Nack())
	barrier(t, b, clock)
	require.Equal(t, []string{"m"}, drain(t, b, bourse.ParkingQueue))
	before := b.Stats().Storage.Records
	sendWith(t, b, "q", "n", inMemory)
	require.Less(t, before, b.Stats().Storage.Records, "there is a limit now: it is stored")
	require.False(t, next(t, s).Transient)
}

// An inbox that a queue got later does not know what is in memory, and says so.
func TestTransientMessageInbox(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	sendWith(t, b, "q", "m", inMemory)
	require.NoError(t, b.Update(ctx, bourse.Queue{Name: "q", Inbox: bourse.InboxMemory{Window: time.Hour}}))
	inbox, err := b.Inbox("q")
	require.NoError(t, err)
	d := next(t, consume(t, b, "q", 1))
	var refused *bourse.InvalidError
	require.ErrorAs(t, inbox.Done(ctx, d), &refused)
	require.NoError(t, d.Ack())
}

// Where something holds for all messages together they are stored as durable ones.
func TestTransientMessageStored(t *testing.T) {
	for name, c := range map[string]struct {
		queue bourse.Queue
		m     bourse.Message
	}{
		"group":       {m: bourse.Message{GroupID: "g"}},
		"MaxMessages": {queue: bourse.Queue{MaxMessages: 2}},
		"MaxBytes":    {queue: bourse.Queue{MaxBytes: 1000}},
		"Dedup":       {queue: bourse.Queue{Dedup: bourse.Dedup{Window: time.Hour}}},
		"Inbox":       {queue: bourse.Queue{Inbox: bourse.InboxMemory{Window: time.Hour}}},
		"single":      {queue: bourse.Queue{SingleActiveConsumer: true}},
		"Rate":        {queue: bourse.Queue{Rate: bourse.Rate{Deliveries: 5, Per: time.Second}}},
		"Expires":     {queue: bourse.Queue{Expires: time.Hour}},
		"Fairness":    {queue: bourse.Queue{Priorities: 2, Fairness: bourse.Fairness{LowerOneIn: 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			c.queue.Name, c.m.Transient = "q", true
			b := open(t, bourse.Options{}, c.queue)
			sendWith(t, b, "q", "m", c.m)
			require.Zero(t, stats(t, b, "q").Transient)
			require.False(t, next(t, consume(t, b, "q", 1)).Transient)
		})
	}
	t.Run("atomic", func(t *testing.T) {
		b := open(t, bourse.Options{}, bourse.Queue{Name: "q"}, bourse.Queue{Name: "t", Transient: true})
		require.NoError(t, b.PublishAtomic(ctx, []bourse.Message{{RoutingKey: "q", Transient: true}}))
		require.Zero(t, stats(t, b, "q").Transient)
		sendWith(t, b, "q", "m", inMemory)
		require.Equal(t, 1, stats(t, b, "q").Transient)
		_, err := b.Get(ctx, "q")
		require.NoError(t, err)
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.ErrorIs(t, d.AckAndPublish(ctx, bourse.Message{RoutingKey: "q"}), bourse.ErrNotAtomic)
		require.NoError(t, d.AckAndPublish(ctx), "an ack alone")
	})
}

func TestTransientMessageDelete(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	sendWith(t, b, "q", "m", inMemory)
	sendWith(t, b, "q", "n", inMemory)
	require.ErrorIs(t, b.DeleteIf(ctx, bourse.DeleteOnly{IfEmpty: true}, bourse.Queue{Name: "q"}), bourse.ErrNotEmpty)
	s := consume(t, b, "q", 1)
	d := next(t, s)
	require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
	require.ErrorIs(t, d.Ack(), bourse.ErrQueueGone)
	_, err := s.Next(ctx)
	require.ErrorIs(t, err, bourse.ErrQueueGone)
	require.Zero(t, b.Annexes())
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	require.Zero(t, stats(t, b, "q").Ready)
	sendWith(t, b, "q", "again", inMemory)
	require.Equal(t, []string{"again"}, drain(t, b, "q"))
	require.Equal(t, 1, b.Annexes())
}

// A message that ended together with a publish makes room as any other does.
func TestTransientMessageAckAndPublish(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"}, bourse.Queue{Name: "to"})
	s := consume(t, b, "q", 1)
	sendWith(t, b, "q", "m", inMemory)
	require.NoError(t, next(t, s).AckSync(ctx))
	send(t, b, "q", "a", "b")
	for _, body := range []string{"a", "b"} {
		d := next(t, s)
		require.Equal(t, body, string(d.Body))
		require.NoError(t, d.AckAndPublish(ctx, bourse.Message{RoutingKey: "to", Body: d.Body}))
	}
	require.Equal(t, []string{"a", "b"}, drain(t, b, "to"))
}

// What waits for a handler for most of its deadline goes back, of both kinds.
func TestTransientMessageWaits(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", AckDeadline: time.Minute})
	sendWith(t, b, "q", "a", inMemory)
	sendWith(t, b, "q", "b", inMemory)
	begun, end, worked := make(chan struct{}, 3), make(chan struct{}), make(chan error, 1)
	stop, cancel := context.WithCancel(ctx)
	go func() {
		worked <- b.Work(stop, "q", func(context.Context, *bourse.Delivery) error {
			begun <- struct{}{}
			<-end
			return nil
		}, bourse.WorkOptions{Prefetch: 2, Concurrency: 1})
	}()
	<-begun
	clock.advance(t, b, 30*time.Second)
	require.Equal(t, 2, stats(t, b, "q").Unacked)
	clock.advance(t, b, 20*time.Second)
	q := stats(t, b, "q")
	require.LessOrEqual(t, uint64(1), q.Released)
	require.Zero(t, q.TimedOut)
	cancel()
	close(end)
	require.NoError(t, <-worked)
}

// Work extends both kinds while a handler runs.
func TestTransientMessageWork(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", AckDeadline: time.Minute})
	sendWith(t, b, "q", "a", inMemory)
	sendWith(t, b, "q", "b", inMemory)
	begun, end := make(chan string), make(chan struct{})
	worked := make(chan error, 1)
	go func() {
		worked <- b.Work(ctx, "q", func(_ context.Context, d *bourse.Delivery) error {
			begun <- string(d.Body)
			<-end
			return nil
		}, bourse.WorkOptions{Prefetch: 2, Concurrency: 1, AutoExtend: true})
	}()
	require.Equal(t, "a", <-begun)
	clock.advance(t, b, 5*time.Minute)
	q := stats(t, b, "q")
	require.Equal(t, []int{2, 0}, []int{q.Unacked, int(q.TimedOut)})
	sendWith(t, b, "q", "c", inMemory)
	shut := make(chan error, 1)
	go func() { shut <- b.Shutdown(ctx) }()
	for done := false; !done; {
		select {
		case end <- struct{}{}:
		case <-begun:
		case err := <-worked:
			require.NoError(t, err)
			done = true
		}
	}
	require.NoError(t, <-shut)
}

// One message to a durable queue, to its neighbour with a limit, and to a transient queue.
func TestTransientMessageFanOut(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Exchange{Name: "e", Kind: bourse.Fanout},
		bourse.Queue{Name: "d"}, bourse.Queue{Name: "l", MaxMessages: 1}, bourse.Queue{Name: "t", Transient: true},
		bourse.Binding{Exchange: "e", Queue: "d"}, bourse.Binding{Exchange: "e", Queue: "l"}, bourse.Binding{Exchange: "e", Queue: "t"})
	require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e", Transient: true}))
	var refused *bourse.RejectedError
	require.ErrorAs(t, b.Publish(ctx, bourse.Message{Exchange: "e", Transient: true}), &refused)
	require.Equal(t, 2, refused.Stored)
	require.Equal(t, []int{2, 1, 2}, []int{stats(t, b, "d").Transient, stats(t, b, "l").Ready, stats(t, b, "t").Ready})
}

// Who loses the leadership of a queue loses its transient messages: another leader does not have them.
func TestTransientMessageLeader(t *testing.T) {
	e := &leadEngine{Engine: onFS(t, new(storage.MemFS))}
	b := open(t, bourse.Options{Engine: e}, bourse.Queue{Name: "q"})
	sendWith(t, b, "q", "m", inMemory)
	s := consume(t, b, "q", 1)
	d := next(t, s)
	e.machine.Lead(false)
	require.ErrorIs(t, d.Ack(), bourse.ErrNotLeader)
	require.ErrorIs(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Transient: true}), bourse.ErrNotLeader)
	_, err := s.Next(ctx)
	require.ErrorIs(t, err, bourse.ErrNotLeader)
	e.machine.Lead(true)
	require.Zero(t, stats(t, b, "q").Transient)
	sendWith(t, b, "q", "n", inMemory)
	require.Equal(t, []string{"n"}, drain(t, b, "q"))
}

// Many at once: each message is done once, and no subscription holds more than its prefetch.
func TestTransientMessageTogether(t *testing.T) {
	const publishers, each, consumers, prefetch = 4, 500, 3, 3
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", Priorities: 2, MaxRetries: bourse.NoLimit})
	bounded, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	var mu sync.Mutex
	done := map[string]int{}
	var left atomic.Int64
	left.Store(publishers * each)
	var subs []*bourse.Subscription
	var group sync.WaitGroup
	for i := range consumers {
		s := consume(t, b, "q", prefetch)
		subs = append(subs, s)
		group.Go(func() {
			var held []*bourse.Delivery
			for n := 0; ; n++ {
				// Half the time it takes as much as it may hold.
				if len(held) < prefetch && (n%2 == 0 || len(held) == 0) {
					d, err := s.Next(bounded)
					if errors.Is(err, bourse.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					held = append(held, d)
					continue
				}
				if len(held) == prefetch && n%16 == i {
					if d, err := s.Next(&lookContext{Context: ctx}); d != nil || !errors.Is(err, context.Canceled) {
						t.Errorf("got %v, %v while %d are held", d, err, prefetch)
					}
				}
				finish := held[:1]
				var err error
				switch {
				case n%7 == 0:
					err = held[0].Nack()
					finish = nil
					held = held[1:]
				case n%5 == 0:
					finish = slices.Clone(held)
					err = s.AckUpTo(held[len(held)-1].Tag)
					held = nil
				default:
					err = held[0].AckSync(bounded)
					held = held[1:]
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, d := range finish {
					done[string(d.Body)]++
				}
				mu.Unlock()
				if left.Add(-int64(len(finish))) == 0 {
					for _, s := range subs {
						go func() { _ = s.Close() }()
					}
				}
			}
		})
	}
	for p := range publishers {
		group.Go(func() {
			for i := range each {
				m := bourse.Message{RoutingKey: "q", Transient: (i+p)%3 != 0, Priority: uint8(i % 2), Body: fmt.Append(nil, p, ".", i)}
				if err := b.Publish(bounded, m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.Len(t, done, publishers*each)
	for body, n := range done {
		require.Equal(t, 1, n, body)
	}
}

// A subscription that Work has stopped takes no more, whether it had a part in the annex then or not.
func TestTransientMessageStopped(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	before := consume(t, b, "q", 5)
	before.Pause()
	sendWith(t, b, "q", "m", inMemory)
	barrier(t, b, nil)
	require.Equal(t, 1, stats(t, b, "q").Ready)
	after := consume(t, b, "q", 5)
	require.Equal(t, "m", string(next(t, after).Body))
	after.Pause()
	sendWith(t, b, "q", "n", inMemory)
	barrier(t, b, nil)
	require.Equal(t, 1, stats(t, b, "q").Ready)
}
