package bourse_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Goal: SEMANTICS 3, D-7: with Backoff.AtTail what has rested goes last, and is the same message to all that name it. Method: one row
// for each way back; then each thing that knows a message by its number. testdata/machine/retry-at-tail.txt has command by command.

const rest = 5 * time.Second

func tailQueue(change ...func(*bourse.Queue)) bourse.Queue {
	q := bourse.Queue{Name: "q", Priorities: 2, AckDeadline: time.Minute, Retry: bourse.Backoff{Min: rest, AtTail: true}}
	for _, c := range change {
		c(&q)
	}
	return q
}

func TestSemanticsTail(t *testing.T) {
	tail, old := []string{"b", "c", "a"}, []string{"a", "b", "c"}
	nack := func(_ *bourse.Broker, _ *handClock, d *bourse.Delivery) error { return d.Nack() }
	for _, row := range []struct {
		name   string
		change func(*bourse.Queue)
		group  string
		do     func(b *bourse.Broker, clock *handClock, d *bourse.Delivery) error
		want   []string
	}{
		{name: "nack", do: nack, want: tail},
		{name: "nack with a pause of its own", do: func(_ *bourse.Broker, _ *handClock, d *bourse.Delivery) error {
			return d.NackAfter(1)
		}, want: tail},
		{name: "nack without a pause", do: func(_ *bourse.Broker, _ *handClock, d *bourse.Delivery) error {
			return d.NackAfter(0)
		}, want: old},
		{name: "nack where the policy has no pause", change: func(q *bourse.Queue) { q.Retry.Min, q.Retry.Max = 0, 0 }, do: nack, want: old},
		{name: "release after a while", do: func(_ *bourse.Broker, _ *handClock, d *bourse.Delivery) error {
			return d.Release(time.Second)
		}, want: tail},
		{name: "release", do: func(_ *bourse.Broker, _ *handClock, d *bourse.Delivery) error { return d.Release(0) }, want: old},
		{name: "deadline", do: func(b *bourse.Broker, clock *handClock, _ *bourse.Delivery) error {
			clock.advance(t, b, time.Minute)
			return nil
		}, want: tail},
		{name: "a group", group: "g", do: nack, want: old},
		{name: "without the option", change: func(q *bourse.Queue) { q.Retry.AtTail = false }, do: nack, want: old},
		{name: "a promoted one", do: func(b *bourse.Broker, clock *handClock, d *bourse.Delivery) error {
			if err := d.Nack(); err != nil {
				return err
			}
			barrier(t, b, clock)
			return b.Promote(ctx, bourse.Locator{Queue: "q", Seq: 1})
		}, want: old},
		{name: "raised with each failure", change: func(q *bourse.Queue) { q.BumpOnRedelivery = true }, do: nack, want: old},
	} {
		t.Run(row.name, func(t *testing.T) {
			clock := newHandClock()
			q := tailQueue()
			if row.change != nil {
				row.change(&q)
			}
			b := open(t, bourse.Options{Clock: clock}, q)
			publish := func(body string) {
				require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: []byte(body), GroupID: row.group}))
			}
			publish("a")
			publish("b")
			s := consume(t, b, "q", 1)
			d := next(t, s)
			require.NoError(t, b.Pause(ctx, "q"))
			require.NoError(t, row.do(b, clock, d))
			publish("c")
			clock.advance(t, b, time.Minute)
			require.NoError(t, s.Close())
			require.NoError(t, b.Resume(ctx, "q"))
			require.Equal(t, row.want, drain(t, b, "q"))
		})
	}
}

// A delay that the publisher chose is no retry: the message has its place from its arrival.
func TestSemanticsTailOfADelay(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, tailQueue())
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: []byte("a"), Delay: time.Second}))
	send(t, b, "q", "b")
	clock.advance(t, b, time.Second)
	require.Equal(t, []string{"a", "b"}, drain(t, b, "q"))
}

// Several that are due at one command come in the order in which they are, and new ones behind them.
func TestSemanticsTailInOrder(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, tailQueue())
	s := consume(t, b, "q", 4)
	send(t, b, "q", "a", "b", "c", "d")
	for _, pause := range []time.Duration{3, 1, 2, 1} {
		require.NoError(t, next(t, s).NackAfter(pause*time.Second))
	}
	barrier(t, b, clock)
	require.NoError(t, s.Close())
	require.NoError(t, b.Pause(ctx, "q"))
	clock.advance(t, b, 3*time.Second)
	send(t, b, "q", "e")
	require.NoError(t, b.Resume(ctx, "q"))
	require.Equal(t, []string{"b", "d", "c", "a", "e"}, drain(t, b, "q"))
}

// tailed is a broker in which message 1 has gone behind 2 and 3, twice, and where that was seen before, in between and after.
func tailed(t *testing.T, clock *handClock, change ...func(*bourse.Queue)) (b *bourse.Broker, seen []bourse.Locator) {
	b = open(t, bourse.Options{Clock: clock}, tailQueue(change...))
	look := func() {
		for _, m := range browsed(t, b, "q", bourse.BrowseOptions{}) {
			if m.Seq == 1 {
				require.Equal(t, "x", m.ID)
				seen = append(seen, m.Locator)
			}
		}
	}
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: "x", Body: []byte("a"), TTL: time.Hour}))
	send(t, b, "q", "b", "c")
	for range 2 {
		look()
		for _, body := range drainOnce(t, b, clock) {
			require.Contains(t, []string{"a", "b", "c"}, body)
		}
	}
	look()
	require.Len(t, seen, 3)
	return b, append(seen, bourse.Locator{Queue: "q", Seq: 1})
}

// drainOnce fails message a and releases the others, and waits until a is back.
func drainOnce(t *testing.T, b *bourse.Broker, clock *handClock) (bodies []string) {
	s := consume(t, b, "q", 3)
	for range 3 {
		d := next(t, s)
		if bodies = append(bodies, string(d.Body)); string(d.Body) == "a" {
			require.NoError(t, d.Nack())
		}
	}
	barrier(t, b, clock)
	require.NoError(t, s.Close())
	clock.advance(t, b, rest)
	return bodies
}

// It is named by the number that it came with, wherever it was seen.
func TestSemanticsTailKeepsItsNumber(t *testing.T) {
	for i := range 4 {
		clock := newHandClock()
		b, seen := tailed(t, clock)
		l := seen[i]
		require.NoError(t, b.SetPriority(ctx, l, 1))
		require.NoError(t, b.Edit(ctx, l, func(m *bourse.Message) error {
			require.Equal(t, "x", m.ID)
			m.Body = []byte("edited")
			return nil
		}))
		m, err := b.Find(ctx, "q", "x")
		require.NoError(t, err)
		require.Equal(t, "edited", string(m.Body))
		require.EqualValues(t, 1, m.Seq)
		require.Equal(t, 1, m.Level)
		require.Equal(t, 2, m.Failures)
		var all []uint64
		for _, m := range browsed(t, b, "q", bourse.BrowseOptions{After: bourse.Locator{}}) {
			all = append(all, m.Seq)
		}
		require.Equal(t, []uint64{1, 2, 3}, all)
		require.NoError(t, b.Cancel(ctx, l))
		require.ErrorIs(t, b.Cancel(ctx, l), bourse.ErrNotFound)
		require.ErrorIs(t, b.Promote(ctx, seen[2]), bourse.ErrNotFound)
		for seq := uint64(4); seq < 9; seq++ { // what it stands at is no number of it or of others
			require.ErrorIs(t, b.Cancel(ctx, bourse.Locator{Queue: "q", Seq: seq}), bourse.ErrNotFound)
		}
		require.Equal(t, []string{"b", "c"}, drain(t, b, "q"))
	}
}

// Browse gives messages in the order in which they go, by pages too, and goes on behind one of them.
func TestSemanticsTailInBrowse(t *testing.T) {
	b, _ := tailed(t, newHandClock())
	var seqs []uint64
	var after bourse.Locator
	for {
		page := browsed(t, b, "q", bourse.BrowseOptions{Limit: 1, After: after})
		if len(page) == 0 {
			break
		}
		after = page[0].Locator
		seqs = append(seqs, after.Seq)
	}
	require.Equal(t, []uint64{2, 3, 1}, seqs)
}

// Its id is remembered as ever, and finds it.
func TestSemanticsTailWithIDs(t *testing.T) {
	for name, dedup := range map[string]bourse.Dedup{
		"window":     {Window: time.Hour, OnDuplicate: bourse.ReplaceWaiting},
		"until done": {UntilDone: true, OnDuplicate: bourse.ReplaceWaiting},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newHandClock()
			b, _ := tailed(t, clock, func(q *bourse.Queue) { q.Dedup = dedup })
			again := func(body string) {
				require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: "x", Body: []byte(body)}))
			}
			again("ready")
			require.Equal(t, 3, stats(t, b, "q").Ready)
			s := consume(t, b, "q", 3)
			for range 2 {
				require.NoError(t, next(t, s).Ack())
			}
			d := next(t, s)
			require.Equal(t, "ready", string(d.Body))
			require.NoError(t, d.Nack())
			again("resting")
			require.Equal(t, 1, stats(t, b, "q").Delayed)
			clock.advance(t, b, time.Minute)
			d = next(t, s)
			require.Equal(t, "resting", string(d.Body))
			again("on loan")
			require.NoError(t, d.Ack())
			nothing(t, b, clock, s)
			again("done")
			barrier(t, b, clock)
			require.Equal(t, dedup.UntilDone, stats(t, b, "q").Unacked == 1)
			require.EqualValues(t, 3+bitOf(!dedup.UntilDone), stats(t, b, "q").Duplicates)
		})
	}
}

// An update that makes duplicates replace what waits finds what has gone to the tail before.
func TestSemanticsTailBeforeAnUpdate(t *testing.T) {
	ignoring := func(q *bourse.Queue) { q.Dedup = bourse.Dedup{Window: time.Hour} }
	b, _ := tailed(t, newHandClock(), ignoring)
	require.NoError(t, b.Update(ctx, tailQueue(func(q *bourse.Queue) {
		q.Dedup = bourse.Dedup{Window: time.Hour, OnDuplicate: bourse.ReplaceWaiting}
	})))
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: "x", Body: []byte("new")}))
	require.Equal(t, []string{"b", "c", "new"}, drain(t, b, "q"))
}

func bitOf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Arrival and TTL stay, and AckUpTo goes by tags.
func TestSemanticsTailKeepsItsTimes(t *testing.T) {
	clock := newHandClock()
	start := clock.Now()
	b, _ := tailed(t, clock)
	m, err := b.Find(ctx, "q", "x")
	require.NoError(t, err)
	require.True(t, m.EnqueuedAt.Equal(start))
	require.True(t, m.ExpiresAt.Equal(start.Add(time.Hour)))
	require.Equal(t, 2*rest, stats(t, b, "q").Levels[0].Oldest)
	s := consume(t, b, "q", 3)
	d := next(t, s)
	require.Equal(t, "b", string(d.Body))
	next(t, s)
	require.NoError(t, s.AckUpTo(0))
	require.NoError(t, s.Close())
	clock.advance(t, b, time.Hour)
	require.EqualValues(t, 1, stats(t, b, "q").Expired)
	require.EqualValues(t, 2, stats(t, b, "q").Acked)
}

// The place is the same after a restart and after a crash, and an update changes it from the next pause on.
func TestSemanticsTailOverARestart(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprint("crash ", crash), func(t *testing.T) {
			noLeaks(t)
			clock, fs := newHandClock(), new(storage.MemFS)
			start := func() *bourse.Broker {
				b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs), Clock: clock})
				require.NoError(t, err)
				return b
			}
			b := start()
			require.NoError(t, b.Declare(ctx, tailQueue()))
			send(t, b, "q", "a", "b", "c")
			take := func(want string) *bourse.Delivery {
				d, err := b.Get(ctx, "q")
				require.NoError(t, err)
				require.Equal(t, want, string(d.Body))
				return d
			}
			require.NoError(t, take("a").Nack())
			clock.advance(t, b, rest)
			require.NoError(t, take("b").Nack())
			barrier(t, b, clock)
			left := fs
			if crash {
				left = crashed(fs)
			}
			require.NoError(t, b.Close())
			fs = left
			b = start()
			clock.advance(t, b, rest)
			require.NoError(t, b.Update(ctx, tailQueue(func(q *bourse.Queue) { q.Retry.AtTail = false })))
			require.NoError(t, take("c").Nack())
			clock.advance(t, b, rest)
			require.Equal(t, []string{"c", "a", "b"}, drain(t, b, "q"))
			require.NoError(t, b.Close())
		})
	}
}
