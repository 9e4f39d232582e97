package bourse_test

// Goal: SEMANTICS 4, deduplication: a retried publish is stored exactly once inside the window, or while its message is alive, whatever
// happens in between. Method: a clock moved by hand to one nanosecond before the end of a window, and to it; brokers that are closed
// and opened again, or die; and the statistics, which tell a duplicate from what was stored.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// give publishes a message with an id to a queue.
func give(t require.TestingT, b *bourse.Broker, queue, id, body string) {
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: queue, ID: id, Body: []byte(body)}))
}

func TestSemanticsDedupWindow(t *testing.T) {
	for _, row := range []struct {
		name string
		// between happens to the first message, on a consumer with a prefetch of 1.
		between func(t *testing.T, b *bourse.Broker, s *bourse.Subscription)
	}{
		{"it waits", func(*testing.T, *bourse.Broker, *bourse.Subscription) {}},
		{"acked", func(t *testing.T, _ *bourse.Broker, s *bourse.Subscription) {
			require.NoError(t, next(t, s).AckSync(ctx))
		}},
		{"rejected", func(t *testing.T, _ *bourse.Broker, s *bourse.Subscription) {
			require.NoError(t, next(t, s).Reject("no"))
		}},
		{"released and purged", func(t *testing.T, b *bourse.Broker, s *bourse.Subscription) {
			require.NoError(t, next(t, s).Release(time.Minute))
			n, err := b.Purge(ctx, "q")
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}},
		{"duplicates do not prolong it", func(t *testing.T, b *bourse.Broker, _ *bourse.Subscription) {
			give(t, b, "q", "a", "again")
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			clock := newHandClock()
			b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", Dedup: bourse.Dedup{Window: time.Hour}})
			give(t, b, "q", "a", "first")
			s := consume(t, b, "q", 1)
			clock.advance(t, b, time.Second)
			row.between(t, b, s)
			clock.advance(t, b, time.Hour-time.Second-1)
			give(t, b, "q", "a", "inside")
			require.EqualValues(t, 1, stats(t, b, "q").Enqueued)
			clock.advance(t, b, 1)
			give(t, b, "q", "a", "behind")
			require.EqualValues(t, 2, stats(t, b, "q").Enqueued)
			give(t, b, "q", "b", "another")
			require.EqualValues(t, 3, stats(t, b, "q").Enqueued)
		})
	}
}

func TestSemanticsDedupUntilDone(t *testing.T) {
	type place struct {
		b     *bourse.Broker
		clock *handClock
		s     *bourse.Subscription
	}
	nack := func(t *testing.T, _ place, d *bourse.Delivery) { require.NoError(t, d.Nack()) }
	purge := func(t *testing.T, in place, _ *bourse.Delivery) {
		_, err := in.b.Purge(ctx, "q")
		require.NoError(t, err)
	}
	for _, row := range []struct {
		name  string
		then  func(t *testing.T, in place, d *bourse.Delivery) // d is the first delivery
		freed bool
	}{
		{"ack", func(t *testing.T, _ place, d *bourse.Delivery) { require.NoError(t, d.Ack()) }, true},
		{"ack up to", func(t *testing.T, in place, d *bourse.Delivery) { require.NoError(t, in.s.AckUpTo(d.Tag)) }, true},
		{"reject", func(t *testing.T, _ place, d *bourse.Delivery) { require.NoError(t, d.Reject("")) }, true},
		{"nack", nack, false},
		{"one nack too many", func(t *testing.T, in place, d *bourse.Delivery) {
			nack(t, in, d)
			nack(t, in, next(t, in.s))
		}, true},
		{"release", func(t *testing.T, _ place, d *bourse.Delivery) { require.NoError(t, d.Release(time.Hour)) }, false},
		{"its subscription ends", func(t *testing.T, in place, _ *bourse.Delivery) { require.NoError(t, in.s.Close()) }, false},
		{"a missed deadline", func(t *testing.T, in place, _ *bourse.Delivery) { in.clock.advance(t, in.b, time.Minute) }, false},
		{"its TTL is over", func(t *testing.T, in place, _ *bourse.Delivery) {
			require.NoError(t, in.s.Close())
			in.clock.advance(t, in.b, 24*time.Hour)
		}, true},
		{"purge", func(t *testing.T, in place, d *bourse.Delivery) {
			require.NoError(t, d.Release(time.Minute))
			purge(t, in, d)
		}, true},
		{"purge of the others", purge, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			in := place{clock: newHandClock()}
			in.b = open(t, bourse.Options{Clock: in.clock}, bourse.Queue{
				Name: "q", Dedup: bourse.Dedup{UntilDone: true}, MaxRetries: 1, AckDeadline: time.Minute, TTL: 24 * time.Hour,
			})
			give(t, in.b, "q", "a", "first")
			in.s = consume(t, in.b, "q", 1)
			row.then(t, in, next(t, in.s))
			give(t, in.b, "q", "a", "second")
			st := stats(t, in.b, "q")
			require.Equal(t, row.freed, st.Enqueued == 2)
			require.Equal(t, row.freed, st.Duplicates == 0)
		})
	}
}

// A queue that was deleted remembers nothing.
func TestSemanticsDedupDelete(t *testing.T) {
	for _, dedup := range []bourse.Dedup{{Window: time.Hour}, {UntilDone: true}} {
		b := open(t, bourse.Options{}, bourse.Queue{Name: "q", Dedup: dedup})
		give(t, b, "q", "a", "first")
		require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", Dedup: dedup}))
		give(t, b, "q", "a", "second")
		require.Equal(t, []string{"second"}, drain(t, b, "q"))
	}
}

// What is remembered survives a restart and a crash, for the rest of the window. That snapshots hold it is for the scripts and the models.
func TestSemanticsDedupSurvives(t *testing.T) {
	for _, crash := range []bool{false, true} {
		clock, fs := newHandClock(), new(storage.MemFS)
		ds := []bourse.Declaration{
			bourse.Queue{Name: "window", Dedup: bourse.Dedup{Window: time.Hour}},
			bourse.Queue{Name: "done", Dedup: bourse.Dedup{UntilDone: true, OnDuplicate: bourse.ReplaceWaiting}},
		}
		b := open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)}, ds...)
		give(t, b, "window", "a", "first")
		give(t, b, "done", "a", "first")
		d, err := b.Get(ctx, "window")
		require.NoError(t, err)
		require.NoError(t, d.AckSync(ctx))
		for range 3 {
			if crash {
				fs = crashed(fs)
			}
			require.NoError(t, b.Close())
			clock.step(clock.Now().Add(10 * time.Minute))
			b = open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)}, ds...)
			give(t, b, "window", "a", "again")
			give(t, b, "done", "a", "latest")
		}
		require.Empty(t, drain(t, b, "window"))
		require.Equal(t, []string{"latest"}, drain(t, b, "done"))
		require.EqualValues(t, 3, stats(t, b, "window").Duplicates)
		require.EqualValues(t, 3, stats(t, b, "done").Duplicates)
		clock.advance(t, b, 30*time.Minute)
		give(t, b, "window", "a", "behind")
		give(t, b, "done", "a", "new")
		require.Equal(t, []string{"behind"}, drain(t, b, "window"))
		require.Equal(t, []string{"new"}, drain(t, b, "done"))
	}
}

// A publish whose context ends while it is on its way is retried with the same id, and stored once.
func TestSemanticsDedupUnknownOutcome(t *testing.T) {
	fs := newHeldFS()
	b := open(t, bourse.Options{Engine: onFS(t, fs)}, bourse.Queue{Name: "q", Dedup: bourse.Dedup{Window: time.Hour}})
	m := bourse.Message{RoutingKey: "q", ID: "a", Body: []byte("once")}
	fs.hold(true)
	short, cancel := context.WithCancel(ctx)
	c := b.PublishAsync(short, m)
	cancel()
	require.ErrorIs(t, c.Wait(short), bourse.ErrUnknownOutcome)
	retry := b.PublishAsync(ctx, m)
	fs.hold(false)
	require.NoError(t, c.Wait(ctx))
	require.NoError(t, retry.Wait(ctx))
	require.Equal(t, []string{"once"}, drain(t, b, "q"))
	require.EqualValues(t, 1, stats(t, b, "q").Duplicates)
}

// A dead letter is not a repetition of the message that it was, and is not lost to one.
func TestSemanticsDedupDeadLetter(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock},
		bourse.Exchange{Name: "dead"},
		bourse.Queue{Name: "q", Dedup: bourse.Dedup{UntilDone: true}, DeadLetter: bourse.DeadLetter{Exchange: "dead", RoutingKey: "k"}},
		bourse.Queue{Name: "dead", Dedup: bourse.Dedup{Window: time.Hour}}, bourse.Binding{Exchange: "dead", Queue: "dead", Key: "k"})
	give(t, b, "dead", "a", "direct")
	for _, body := range []string{"one", "two"} {
		give(t, b, "q", "a", body)
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.NoError(t, d.Reject("no"))
		barrier(t, b, clock)
	}
	give(t, b, "dead", "a", "direct again")
	require.Equal(t, []string{"direct", "one", "two"}, drain(t, b, "dead"))
}

// A message that waits is replaced, or raised, by its duplicate; one on loan is left alone.
func TestSemanticsDedupOnDuplicate(t *testing.T) {
	publish := func(b *bourse.Broker, id, body string, priority uint8) {
		require.NoError(t, b.Publish(ctx, bourse.Message{
			RoutingKey: "q", ID: id, Body: []byte(body), Priority: priority, Headers: map[string]any{"body": body},
		}))
	}
	for _, row := range []struct {
		action bourse.DuplicateAction
		want   []string
	}{
		{bourse.IgnoreDuplicate, []string{"b1", "a1", "c1"}},
		{bourse.ReplaceWaiting, []string{"b2", "a2", "c2"}},
		{bourse.BumpWaiting, []string{"c1", "b1", "a1"}},
	} {
		t.Run(row.action.String(), func(t *testing.T) {
			b := open(t, bourse.Options{}, bourse.Queue{Name: "q", Priorities: 10,
				Dedup: bourse.Dedup{Window: time.Hour, OnDuplicate: row.action}})
			publish(b, "lent", "lent1", 9)
			lent, err := b.Get(ctx, "q")
			require.NoError(t, err)
			publish(b, "a", "a1", 3)
			publish(b, "b", "b1", 5)
			publish(b, "c", "c1", 2)
			publish(b, "lent", "lent2", 9)
			publish(b, "b", "b2", 1)
			publish(b, "c", "c2", 7)
			publish(b, "a", "a2", 4)
			require.EqualValues(t, 4, stats(t, b, "q").Duplicates)
			for _, body := range row.want {
				d, err := b.Get(ctx, "q")
				require.NoError(t, err)
				require.Equal(t, body, string(d.Body))
				require.Equal(t, body, d.Headers["body"])
			}
			require.Equal(t, "lent1", string(lent.Body))
			require.NoError(t, lent.Release(0))
			require.Equal(t, []string{"lent1"}, drain(t, b, "q"))
			require.EqualValues(t, 3, b.Stats().Storage.References)
		})
	}
}
