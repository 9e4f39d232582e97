package bourse_test

// Goal: SEMANTICS 9 on TTL and 11 on delays, row by row, as a user sees them. Method: as in time_test.go, each row with the
// system's clock in a bubble and with one moved by hand, to one nanosecond before an instant and to it.

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/storage"
)

// sendWith publishes one message to queue.
func sendWith(t require.TestingT, b *bourse.Broker, queue, body string, m bourse.Message) {
	m.RoutingKey, m.Body = queue, []byte(body)
	require.NoError(t, b.Publish(ctx, m))
}

// The shorter of both TTLs counts.
func TestTTLEffective(t *testing.T) {
	for _, c := range []struct{ queue, message, want time.Duration }{
		{time.Minute, 0, time.Minute},
		{0, time.Minute, time.Minute},
		{time.Minute, time.Hour, time.Minute},
		{time.Hour, time.Minute, time.Minute},
		{time.Minute, time.Minute, time.Minute},
		{0, 1, 1},
		{bourse.MaxDelay, bourse.MaxDelay - 1, bourse.MaxDelay - 1},
	} {
		t.Run(fmt.Sprintf("%v %v", c.queue, c.message), func(t *testing.T) {
			bothClocks(t, bourse.Queue{Name: "q", TTL: c.queue}, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
				sendWith(t, b, "q", "m", bourse.Message{TTL: c.message})
				pass(c.want - 1)
				require.Equal(t, 1, stats(t, b, "q").Ready)
				pass(1)
				require.Zero(t, stats(t, b, "q").Ready)
				require.EqualValues(t, 1, stats(t, b, "q").Expired)
				_, err := b.Get(ctx, "q")
				require.ErrorIs(t, err, bourse.ErrEmpty)
			})
		})
	}
}

// A message on loan does not expire; what comes back keeps its time, and dies at once if that is over.
func TestTTLOnLoan(t *testing.T) {
	bothClocks(t, bourse.Queue{Name: "q", TTL: time.Minute}, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
		send(t, b, "q", "early", "late", "acked")
		s := consume(t, b, "q", 3)
		early := next(t, s)
		pass(30 * time.Second)
		require.NoError(t, s.Close()) // all come back
		require.ErrorIs(t, early.Ack(), bourse.ErrUnknownDelivery)
		s = consume(t, b, "q", 3)
		early, late, acked := next(t, s), next(t, s), next(t, s)
		pass(time.Minute)
		require.Zero(t, stats(t, b, "q").Expired)
		require.NoError(t, late.Release(0))
		require.NoError(t, early.Nack())
		require.NoError(t, acked.AckSync(ctx))
		pass(0)
		require.Equal(t, []uint64{2, 2, 1}, []uint64{stats(t, b, "q").Expired, stats(t, b, "q").Discarded, stats(t, b, "q").Acked})
	})
	bothClocks(t, bourse.Queue{Name: "q", TTL: time.Minute}, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
		send(t, b, "q", "m")
		s := consume(t, b, "q", 1)
		d := next(t, s)
		pass(10 * time.Second)
		require.NoError(t, s.Close())
		require.ErrorIs(t, d.Ack(), bourse.ErrUnknownDelivery)
		pass(50*time.Second - 1)
		require.Equal(t, 1, stats(t, b, "q").Ready)
		pass(1)
		require.EqualValues(t, 1, stats(t, b, "q").Expired)
	})
}

// NoWait is delivery to a consumer with room in the same step, or death.
func TestTTLNoWait(t *testing.T) {
	for name, def := range map[string]struct {
		queue   bourse.Queue
		message bourse.Message
	}{
		"queue":   {queue: bourse.Queue{Name: "q", TTL: bourse.NoWait}},
		"message": {bourse.Queue{Name: "q", TTL: time.Hour}, bourse.Message{TTL: bourse.NoWait}},
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, def.queue, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
				sendWith(t, b, "q", "nobody", def.message)
				require.EqualValues(t, 1, stats(t, b, "q").Expired)
				s := consume(t, b, "q", 1)
				sendWith(t, b, "q", "a", def.message)
				sendWith(t, b, "q", "no room", def.message)
				d := next(t, s)
				require.Equal(t, "a", string(d.Body))
				require.EqualValues(t, 2, stats(t, b, "q").Expired)
				require.NoError(t, d.Nack()) // it would have to wait now
				pass(0)
				require.EqualValues(t, 3, stats(t, b, "q").Expired)
				require.Equal(t, []int{0, 0, 0}, []int{stats(t, b, "q").Ready, stats(t, b, "q").Unacked, stats(t, b, "q").Delayed})
			})
		})
	}
}

// A message expires wherever it stands: behind those that stay, in any level, and without consumers.
func TestTTLAnyPosition(t *testing.T) {
	q := bourse.Queue{Name: "q", Priorities: 10}
	bothClocks(t, q, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
		for i := range 300 {
			m := bourse.Message{Priority: uint8(i % 10)}
			if i%3 == 0 {
				m.TTL = time.Duration(1+i%7) * time.Second
			}
			sendWith(t, b, "q", fmt.Sprint(i), m)
		}
		gone := 0
		for s := range 7 {
			for i := 0; i < 300; i += 3 {
				if i%7 == s {
					gone++
				}
			}
			pass(time.Second)
			require.EqualValues(t, gone, stats(t, b, "q").Expired, "after %d s", s+1)
		}
		require.Len(t, drain(t, b, "q"), 200)
	})
}

// The dead-letter queue gets the expired in the order in which they expired, without their TTL, which the history notes; the TTL
// of that queue counts afresh.
func TestTTLDeadLetter(t *testing.T) {
	q := bourse.Queue{Name: "q", Priorities: 3, DeadLetter: bourse.DeadLetter{Exchange: "dead"}}
	bothClocks(t, q, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
		require.NoError(t, b.Declare(ctx, bourse.Exchange{Name: "dead", Kind: bourse.Fanout}, bourse.Queue{Name: "d", TTL: time.Hour},
			bourse.Binding{Exchange: "dead", Queue: "d"}))
		sendWith(t, b, "q", "third", bourse.Message{TTL: 3 * time.Second, Priority: 2})
		sendWith(t, b, "q", "first", bourse.Message{TTL: time.Second, Priority: 1})
		sendWith(t, b, "q", "second", bourse.Message{TTL: 2 * time.Second})
		pass(time.Minute)
		s := consume(t, b, "d", 3)
		for i, want := range []string{"first", "second", "third"} {
			d := next(t, s)
			require.Equal(t, want, string(d.Body))
			require.Zero(t, d.TTL)
			require.Len(t, d.Deaths, 1)
			death := d.Deaths[0]
			require.Equal(t, []any{"q", bourse.ReasonExpired, 1, 0}, []any{death.Queue, death.Reason, death.Count, death.Failures})
			require.Equal(t, time.Duration(i+1)*time.Second, death.TTL)
			require.Equal(t, death.First, d.EnqueuedAt)
			require.NoError(t, d.Release(0))
		}
		require.NoError(t, s.Close())
		pass(time.Hour - time.Minute + time.Second - 1)
		require.Equal(t, 3, stats(t, b, "d").Ready)
		pass(1)
		require.Equal(t, 2, stats(t, b, "d").Ready)
	})
}

// A delayed message is not ready before its time, and its TTL counts from then. It takes its place by its arrival.
func TestDelay(t *testing.T) {
	bothClocks(t, bourse.Queue{Name: "q", TTL: time.Minute}, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
		s := consume(t, b, "q", 10)
		sendWith(t, b, "q", "delayed", bourse.Message{Delay: time.Hour})
		require.Equal(t, []int{0, 1, 0}, []int{stats(t, b, "q").Ready, stats(t, b, "q").Delayed, stats(t, b, "q").Unacked})
		pass(time.Hour - 1)
		require.Equal(t, 1, stats(t, b, "q").Delayed)
		pass(1)
		d := next(t, s)
		require.Equal(t, time.Hour, d.DeliverAt.Sub(d.EnqueuedAt))
		require.Zero(t, d.Delay)
		require.NoError(t, d.Ack())
	})
	bothClocks(t, bourse.Queue{Name: "q", TTL: time.Minute}, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
		sendWith(t, b, "q", "delayed", bourse.Message{Delay: time.Hour, TTL: 10 * time.Second})
		pass(time.Hour - time.Second)
		send(t, b, "q", "behind")
		pass(time.Second)
		got, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.Equal(t, "delayed", string(got.Body), "it arrived first")
		require.NoError(t, got.Release(0))
		pass(10*time.Second - 1)
		require.Zero(t, stats(t, b, "q").Expired)
		pass(1)
		require.EqualValues(t, 1, stats(t, b, "q").Expired)
	})
	bothClocks(t, bourse.Queue{Name: "q"}, func(t *testing.T, b *bourse.Broker, _ *handClock, pass passing) {
		sendWith(t, b, "q", "past", bourse.Message{DeliverAt: time.Unix(1, 0)})
		require.Equal(t, 1, stats(t, b, "q").Ready)
		sendWith(t, b, "q", "no wait", bourse.Message{Delay: time.Second, TTL: bourse.NoWait})
		pass(time.Second)
		require.EqualValues(t, 1, stats(t, b, "q").Expired)
	})
}

// What is due while nothing runs happens once when the broker is opened again; nothing happens early.
func TestDelayWhileDown(t *testing.T) {
	fs := &storage.MemFS{}
	clock := newHandClock()
	b := open(t, bourse.Options{Engine: onFS(t, fs), Clock: clock}, bourse.Queue{Name: "q"})
	sendWith(t, b, "q", "soon", bourse.Message{Delay: time.Minute})
	sendWith(t, b, "q", "later", bourse.Message{Delay: 3 * time.Hour})
	sendWith(t, b, "q", "expires", bourse.Message{TTL: time.Minute})
	require.NoError(t, b.Close())
	require.Zero(t, clock.pending())
	clock.step(clock.Now().Add(2 * time.Hour))
	b = open(t, bourse.Options{Engine: onFS(t, fs), Clock: clock})
	barrier(t, b, clock)
	require.Equal(t, []string{"soon"}, drain(t, b, "q"))
	require.EqualValues(t, 1, stats(t, b, "q").Expired)
	clock.advance(t, b, time.Hour-1)
	require.Empty(t, drain(t, b, "q"))
	clock.advance(t, b, 1)
	require.Equal(t, []string{"later"}, drain(t, b, "q"))
}

// A computer's clock that goes back holds the broker's still; it makes nothing early, and nothing later than it went back.
func TestDelayClockBack(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"})
	sendWith(t, b, "q", "m", bourse.Message{Delay: time.Minute})
	clock.advance(t, b, 30*time.Second)
	clock.mu.Lock()
	clock.now = clock.now.Add(-10 * time.Second)
	clock.mu.Unlock()
	clock.advance(t, b, 40*time.Second-1)
	require.Equal(t, 1, stats(t, b, "q").Delayed)
	clock.advance(t, b, 1)
	require.Equal(t, []string{"m"}, drain(t, b, "q"))
}

// 100,000 delays from a second to seven months, on a clock moved by hand: none early, none late, each once.
func TestDelayMany(t *testing.T) {
	n := 100_000
	if testing.Short() || invariant.Costly { // which looks at all that waits after each command
		n = 2_000
	}
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"})
	rng := rand.New(rand.NewPCG(1, 1))
	const longest = 7 * 30 * 24 * time.Hour
	batch := make([]bourse.Message, 0, 1000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range n / cap(batch) {
		batch = batch[:0]
		for range cap(batch) {
			delay := time.Second + time.Duration(rng.Int64N(int64(longest-time.Second)))
			batch = append(batch, bourse.Message{RoutingKey: "q", Delay: delay.Truncate(time.Minute) + time.Second})
		}
		require.NoError(t, b.PublishBatch(ctx, batch))
	}
	require.Equal(t, n, stats(t, b, "q").Delayed)
	runtime.GC()
	runtime.ReadMemStats(&after)
	// The bodies are in the log, which is in memory here: about 100 bytes each. What is held beside it is bounded.
	// It may be less than before: what other tests left in pools goes with the second collection.
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(n)*1000, "bytes for each delayed message")
	s := consume(t, b, "q", bourse.MaxPrefetch)
	seen := 0
	for seen < n {
		pass := 12 * time.Hour
		barrier(t, b, clock)
		clock.step(clock.Now().Add(pass))
		barrier(t, b, clock)
		now := clock.Now()
		for range stats(t, b, "q").Unacked {
			d := next(t, s)
			require.False(t, d.DeliverAt.After(now), "early by %v", d.DeliverAt.Sub(now))
			require.LessOrEqual(t, now.Sub(d.DeliverAt), pass)
			require.Equal(t, 1, d.Deliveries)
			require.NoError(t, d.Ack())
			seen++
		}
	}
	require.Equal(t, 0, stats(t, b, "q").Delayed)
}
