package bourse_test

// Goal: SEMANTICS 6 and 9, changing a queue in use: Update loses no message and no consumer, what waits follows the new
// settings, and Declare compares with them. Method: a row for each field, on a clock moved by hand; then over a restart, and
// a crash.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

func TestSemanticsUpdateTTL(t *testing.T) {
	const s = time.Second
	for _, row := range []struct {
		name     string
		from, to time.Duration
		own      time.Duration // Message.TTL
		want     time.Duration // from the arrival; 0: never
	}{
		{"from none", 0, 10 * s, 0, 10 * s},
		{"to none", 10 * s, 0, 0, 0},
		{"to none, with its own", 10 * s, 0, 20 * s, 20 * s},
		{"longer", 10 * s, 20 * s, 0, 20 * s},
		{"shorter", 20 * s, 10 * s, 0, 10 * s},
		{"shorter than its own", 0, 10 * s, 20 * s, 10 * s},
		{"longer than its own", 10 * s, 30 * s, 20 * s, 20 * s},
		{"so short that it is over", 20 * s, 2 * s, 0, 5 * s},
		{"not at all", 20 * s, bourse.NoWait, 0, 5 * s},
		{"not at all, with its own", 0, bourse.NoWait, 20 * s, 5 * s},
	} {
		t.Run(row.name, func(t *testing.T) {
			clock := newHandClock()
			b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", TTL: row.from})
			m := bourse.Message{RoutingKey: "q", TTL: row.own}
			require.NoError(t, b.Publish(ctx, m))
			c := consume(t, b, "q", 1)
			back := next(t, c) // comes back with the rest of its time
			require.NoError(t, b.Publish(ctx, m))
			require.NoError(t, back.Release(0))
			lent := next(t, c)
			clock.advance(t, b, 5*s) // Update comes after that
			require.NoError(t, b.Update(ctx, bourse.Queue{Name: "q", TTL: row.to}))
			switch {
			case row.want == 0:
				clock.advance(t, b, time.Hour)
				require.Equal(t, 1, stats(t, b, "q").Ready)
				require.Zero(t, stats(t, b, "q").Expired)
				return
			case row.want > 5*s:
				clock.advance(t, b, row.want-5*s-1)
				require.Equal(t, 1, stats(t, b, "q").Ready)
				clock.advance(t, b, 1)
			}
			require.Zero(t, stats(t, b, "q").Ready)
			require.EqualValues(t, 1, stats(t, b, "q").Expired)
			require.NoError(t, lent.Release(0)) // over, too
			barrier(t, b, clock)
			require.Zero(t, stats(t, b, "q").Ready)
			require.EqualValues(t, 2, stats(t, b, "q").Expired)
		})
	}
}

// Messages of all kinds expire under the new TTL in the order of their arrival; what has its own time is among them.
func TestSemanticsUpdateTTLOfMany(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", Priorities: 3})
	const n = 300 // more than a block
	start := clock.Now()
	for i := range n {
		m := bourse.Message{RoutingKey: "q", Priority: uint8(i % 3)}
		if i%5 == 0 {
			m.TTL = time.Hour
		}
		require.NoError(t, b.Publish(ctx, m))
		clock.advance(t, b, time.Second)
	}
	require.NoError(t, b.Update(ctx, bourse.Queue{Name: "q", Priorities: 2, TTL: n * time.Second}))
	for i := range n {
		require.EqualValues(t, i+1, stats(t, b, "q").Expired, "at %v", clock.Now().Sub(start))
		clock.advance(t, b, time.Second)
	}
	require.Zero(t, stats(t, b, "q").Ready)
}

func TestSemanticsUpdateKeepsEverything(t *testing.T) {
	clock := newHandClock()
	q := bourse.Queue{Name: "q", Priorities: 5, MaxRetries: bourse.NoLimit}
	fs := &storage.MemFS{}
	b := open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)}, q, bourse.Exchange{Name: "dead"},
		bourse.Queue{Name: "graves"}, bourse.Binding{Exchange: "dead", Queue: "graves", Key: "q"})
	c := consume(t, b, "q", 2)
	for i := range 10 {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Priority: uint8(i % 5), Body: []byte{'a' + byte(i)}}))
	}
	one, two := next(t, c), next(t, c)
	q.Priorities, q.MaxRetries, q.AckDeadline = 2, 1, time.Minute
	q.Retry, q.DeadLetter = bourse.Backoff{Min: time.Second}, bourse.DeadLetter{Exchange: "dead"}
	require.NoError(t, b.Update(ctx, q))
	require.NoError(t, b.Declare(ctx, q), "it is so now")
	require.NoError(t, b.Check(q))
	require.ErrorIs(t, b.Declare(ctx, bourse.Queue{Name: "q"}), bourse.ErrPrecondition)

	before := stats(t, b, "q")
	require.Equal(t, []int{8, 2, 1}, []int{before.Ready, before.Unacked, before.Consumers})
	require.NoError(t, one.Ack()) // the loans hold
	require.NoError(t, two.Nack())
	require.Equal(t, clock.Now().Add(time.Minute).UnixNano(), next(t, c).Deadline().UnixNano(), "a new loan")
	clock.advance(t, b, time.Second) // the new pause
	require.Zero(t, stats(t, b, "q").Delayed)

	for _, reopen := range []bool{false, true} {
		if reopen {
			fs = crashed(fs)
			b = open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)})
		}
		require.NoError(t, b.Check(q))
		s := stats(t, b, "q")
		require.Equal(t, 9, s.Ready+s.Unacked)
	}
	// After the restart the consumers are gone; levels above the highest are the highest, in order of arrival.
	require.Equal(t, []string{"b", "c", "d", "e", "g", "h", "i", "j", "f"}, withoutFirst(t, b))
	barrier(t, b, clock)
	require.Equal(t, 1, stats(t, b, "graves").Ready, "a second failure is one too many now")
}

// withoutFirst drains q, after the death of its first message.
func withoutFirst(t *testing.T, b *bourse.Broker) []string {
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, 1, d.Failures)
	first := string(d.Body)
	require.NoError(t, d.Reject("no"))
	return append([]string{first}, drain(t, b, "q")...)
}
