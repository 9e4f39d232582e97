package bourse_test

// Goal: SEMANTICS 4, the consumer's side: what was done once is recognised, and the record and the ack are one commit. Method: brokers
// that die between any two steps, a clock moved by hand, and messages that come back in each way there is.

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

func inboxOf(t require.TestingT, b *bourse.Broker, queue string) *bourse.Inbox {
	inbox, err := b.Inbox(queue)
	require.NoError(t, err)
	return inbox
}

func hasSeen(t require.TestingT, inbox *bourse.Inbox, d *bourse.Delivery) bool {
	is, err := inbox.Seen(ctx, d)
	require.NoError(t, err)
	return is
}

func take(t require.TestingT, b *bourse.Broker, queue string) *bourse.Delivery {
	d, err := b.Get(ctx, queue)
	require.NoError(t, err)
	return d
}

// Only Done makes a message seen: whatever else happens to it, it is new when it comes back.
func TestSemanticsInboxSeen(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{
		Name: "q", Inbox: bourse.InboxMemory{Window: time.Hour}, AckDeadline: time.Minute, MaxRetries: bourse.NoLimit,
	})
	inbox := inboxOf(t, b, "q")
	give(t, b, "q", "a", "one")
	for _, back := range []func(d *bourse.Delivery) error{
		func(d *bourse.Delivery) error { return d.Nack() },
		func(d *bourse.Delivery) error { return d.Release(0) },
		func(*bourse.Delivery) error { clock.advance(t, b, time.Minute); return nil },
	} {
		d := take(t, b, "q")
		require.False(t, hasSeen(t, inbox, d))
		require.NoError(t, back(d))
	}
	require.NoError(t, take(t, b, "q").AckSync(ctx))
	give(t, b, "q", "a", "two")
	d := take(t, b, "q")
	require.False(t, hasSeen(t, inbox, d), "an ack is no Done")
	require.NoError(t, inbox.Done(ctx, d))
	require.True(t, hasSeen(t, inbox, d))
	require.ErrorIs(t, inbox.Done(ctx, d), bourse.ErrUnknownDelivery)

	give(t, b, "q", "a", "three")
	give(t, b, "q", "b", "four")
	require.True(t, hasSeen(t, inbox, take(t, b, "q")))
	require.False(t, hasSeen(t, inbox, take(t, b, "q")))
	require.EqualValues(t, 1, stats(t, b, "q").Done)
	require.Equal(t, 1, stats(t, b, "q").InboxIDs)
}

// The window counts from the first Done.
func TestSemanticsInboxWindow(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock},
		bourse.Queue{Name: "q", Inbox: bourse.InboxMemory{Window: time.Hour}, AckDeadline: 2 * time.Hour})
	inbox := inboxOf(t, b, "q")
	for range 3 {
		give(t, b, "q", "a", "")
	}
	first, second, third := take(t, b, "q"), take(t, b, "q"), take(t, b, "q")
	require.NoError(t, inbox.Done(ctx, first))
	clock.advance(t, b, time.Minute)
	require.NoError(t, inbox.Done(ctx, second))
	clock.advance(t, b, 59*time.Minute-1)
	require.True(t, hasSeen(t, inbox, third))
	clock.advance(t, b, 1)
	require.False(t, hasSeen(t, inbox, third))
	require.NoError(t, inbox.Done(ctx, third))
	require.True(t, hasSeen(t, inbox, third))
}

// A broker that dies after the work and before Done gives the message again, as new; one that dies after Done does not, and
// knows it: it is never one without the other. That snapshots hold the inbox is for the scripts and the models.
func TestSemanticsInboxCrash(t *testing.T) {
	clock, fs := newHandClock(), new(storage.MemFS)
	q := bourse.Queue{Name: "q", Inbox: bourse.InboxMemory{Window: time.Hour}}
	b := open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)}, q)
	reopen := func(crash bool) {
		if crash {
			fs = crashed(fs)
		}
		require.NoError(t, b.Close())
		b = open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)}, q)
	}
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q"})) // its id is made by the broker
	id := take(t, b, "q").ID
	reopen(true)
	d := take(t, b, "q")
	require.Equal(t, id, d.ID)
	require.False(t, hasSeen(t, inboxOf(t, b, "q"), d))
	require.NoError(t, inboxOf(t, b, "q").Done(ctx, d))
	for _, crash := range []bool{true, false, true} {
		reopen(crash)
		require.Zero(t, stats(t, b, "q").Ready)
		give(t, b, "q", id, "")
		d := take(t, b, "q")
		require.True(t, hasSeen(t, inboxOf(t, b, "q"), d))
		require.NoError(t, d.AckSync(ctx))
	}
}

// A delivery that was taken back records nothing: another consumer has the message.
func TestSemanticsInboxStale(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock},
		bourse.Queue{Name: "q", Inbox: bourse.InboxMemory{Window: time.Hour}, AckDeadline: time.Minute})
	inbox := inboxOf(t, b, "q")
	give(t, b, "q", "a", "")
	slow := take(t, b, "q")
	clock.advance(t, b, time.Minute)
	require.ErrorIs(t, inbox.Done(ctx, slow), bourse.ErrStaleDelivery)
	d := take(t, b, "q")
	require.False(t, hasSeen(t, inbox, d))
	require.NoError(t, inbox.Done(ctx, d))
}

// The id stays the same over dead letters: what died, and is brought back, is recognised.
func TestSemanticsInboxDeadLetter(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock},
		bourse.Exchange{Name: "dead", Kind: bourse.Fanout}, bourse.Exchange{Name: "back", Kind: bourse.Fanout},
		bourse.Queue{Name: "q", Inbox: bourse.InboxMemory{Window: time.Hour}, DeadLetter: bourse.DeadLetter{Exchange: "dead"}},
		bourse.Queue{Name: "dead", DeadLetter: bourse.DeadLetter{Exchange: "back"}},
		bourse.Binding{Exchange: "dead", Queue: "dead"}, bourse.Binding{Exchange: "back", Queue: "q"})
	inbox := inboxOf(t, b, "q")
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q"}))
	d := take(t, b, "q")
	id := d.ID
	give(t, b, "q", id, "the same once more")
	require.NoError(t, d.Reject("not now"))
	barrier(t, b, clock)
	require.NoError(t, inbox.Done(ctx, take(t, b, "q")))
	require.NoError(t, take(t, b, "dead").Reject("back"))
	barrier(t, b, clock)
	d = take(t, b, "q")
	require.Equal(t, id, d.ID)
	require.Len(t, d.Deaths, 2)
	require.True(t, hasSeen(t, inbox, d))
}

// A replay goes back to the queue with the id that it always had, also one that the broker made, and past Dedup.
func TestSemanticsInboxReplay(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{
		Name: "q", Inbox: bourse.InboxMemory{Window: time.Hour}, Dedup: bourse.Dedup{Window: time.Hour},
	})
	inbox := inboxOf(t, b, "q")
	give(t, b, "q", "a", "")
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q"}))
	given, made := take(t, b, "q"), take(t, b, "q")
	require.NoError(t, given.Reject(""))
	require.NoError(t, made.Reject(""))
	barrier(t, b, clock)
	give(t, b, "q", made.ID, "")
	require.NoError(t, inbox.Done(ctx, take(t, b, "q")))
	_, err := b.Replay(ctx, bourse.ParkingQueue, bourse.ReplayOptions{})
	require.NoError(t, err)
	d := take(t, b, "q")
	require.Equal(t, given.ID, d.ID)
	require.False(t, hasSeen(t, inbox, d))
	d = take(t, b, "q")
	require.Equal(t, made.ID, d.ID)
	require.True(t, hasSeen(t, inbox, d))
}

// Handle works on each message once.
func TestSemanticsInboxHandle(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", Inbox: bourse.InboxMemory{Window: time.Hour}})
	for _, id := range []string{"a", "b", "a", "fails once", "a", "b"} {
		give(t, b, "q", id, id)
	}
	var worked []string
	stop, end := context.WithCancel(ctx)
	err := b.Work(stop, "q", inboxOf(t, b, "q").Handle(func(_ context.Context, d *bourse.Delivery) error {
		if worked = append(worked, d.ID); d.ID == "fails once" && d.Failures == 0 {
			return errors.New("broken")
		}
		if len(worked) == 4 {
			give(t, b, "q", "last", "")
		}
		if d.ID == "last" {
			end()
		}
		return nil
	}), bourse.WorkOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "fails once", "fails once", "last"}, worked)
	barrier(t, b, clock)
	require.Zero(t, stats(t, b, "q").Unacked)
	require.EqualValues(t, 7, stats(t, b, "q").Acked)
	require.EqualValues(t, 4, stats(t, b, "q").Done)
}

func TestSemanticsInboxRefuses(t *testing.T) {
	q := bourse.Queue{Name: "q", Inbox: bourse.InboxMemory{Window: time.Hour}}
	b := open(t, bourse.Options{}, q, bourse.Queue{Name: "other"})
	inbox := inboxOf(t, b, "q")
	refused := func(d *bourse.Delivery, is error) {
		t.Helper()
		_, err := inbox.Seen(ctx, d)
		require.ErrorIs(t, err, is)
		require.ErrorIs(t, inbox.Done(ctx, d), is)
	}
	send(t, b, "other", "x")
	refused(take(t, b, "other"), bourse.ErrInvalid)
	refused(new(bourse.Delivery), bourse.ErrUnknownDelivery)
	send(t, b, "q", "x")
	d := take(t, b, "q")
	over, end := context.WithCancel(ctx)
	end()
	_, err := inbox.Seen(over, d)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, inbox.Done(over, d), context.Canceled)
	require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
	refused(d, bourse.ErrQueueGone)
	require.NoError(t, b.Declare(ctx, q))
	refused(d, bourse.ErrQueueGone)
	send(t, b, "q", "x")
	refused(take(t, b, "q"), bourse.ErrQueueGone) // inbox is of the queue that is gone

	s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{AutoAck: true})
	require.NoError(t, err)
	send(t, b, "q", "y")
	d = next(t, s)
	inbox = inboxOf(t, b, "q")
	require.False(t, hasSeen(t, inbox, d))
	require.ErrorIs(t, inbox.Done(ctx, d), bourse.ErrAutoAck)
}

// Update changes what is remembered: the window counts from when a message was done, and without a window there is no inbox.
func TestSemanticsInboxUpdate(t *testing.T) {
	clock := newHandClock()
	q := bourse.Queue{Name: "q"}
	b := open(t, bourse.Options{Clock: clock}, q)
	window := func(d time.Duration) {
		q.Inbox.Window = d
		require.NoError(t, b.Update(ctx, q))
	}
	window(time.Hour)
	inbox := inboxOf(t, b, "q")
	send(t, b, "q", "x")
	d := take(t, b, "q")
	require.NoError(t, inbox.Done(ctx, d))
	clock.advance(t, b, 30*time.Minute)
	window(2 * time.Hour)
	clock.advance(t, b, 89*time.Minute)
	require.True(t, hasSeen(t, inbox, d))
	window(time.Hour)
	require.False(t, hasSeen(t, inbox, d))
	window(0)
	_, err := inbox.Seen(ctx, d)
	require.ErrorIs(t, err, bourse.ErrInvalid)
}
