package bourse

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/storage"
)

// Goal: acks that come together are one record, none is lost or counted twice, and they take effect before what the same goroutine
// does next. Method: brokers on a file system whose writes can be held up, so that acks pile up, and whose syncs can fail.

// heldUp is a broker whose log waits in its next write while hold is locked.
type heldUp struct {
	*Broker
	hold    sync.RWMutex
	writes  atomic.Int64 // that began
	failing atomic.Bool  // of syncs
}

func openHeld(t *testing.T, fs storage.FS) *heldUp {
	h := &heldUp{}
	e, err := NewLocalEngine("data", LocalOptions{FS: &storage.FaultFS{FS: fs, Rule: func(op, _ string, _ int) error {
		switch {
		case op == "write":
			h.writes.Add(1)
			h.hold.RLock()
			h.hold.RUnlock() //nolint:staticcheck // to wait is all it is for
		case op == "sync" && h.failing.Load():
			return errors.New("no more")
		}
		return nil
	}}})
	require.NoError(t, err)
	h.Broker, err = NewBroker(context.Background(), Options{Engine: e})
	require.NoError(t, err)
	return h
}

func TestAcksGoTogether(t *testing.T) {
	ctx := context.Background()
	const n = 1001
	fs := &storage.MemFS{}
	b := openHeld(t, fs)
	require.NoError(t, b.Declare(ctx, Queue{Name: "q"}))
	batch := make([]Message, n+100)
	for i := range batch {
		batch[i] = Message{RoutingKey: "q"}
	}
	require.NoError(t, b.PublishBatch(ctx, batch))
	s, err := b.Subscribe(ctx, "q", SubscribeOptions{})
	require.NoError(t, err)
	var ds []*Delivery
	for len(ds) < len(batch) {
		more, err := s.NextBatch(ctx, len(batch))
		require.NoError(t, err)
		ds = append(ds, more...)
	}
	acked := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return mustStats(t, b.Broker, "q").Acked == uint64(n) }, 10*time.Second, time.Millisecond)
	}

	b.hold.Lock()
	writes, records := b.writes.Load(), b.Stats().Storage.Records
	require.NoError(t, ds[0].Ack())
	require.Eventually(t, func() bool { return b.writes.Load() > writes }, 10*time.Second, time.Millisecond)
	for i := range ds[1:n] {
		require.NoError(t, ds[1:n][i^1].Ack()) // not in the order of their tags
	}
	require.ErrorIs(t, ds[1].Ack(), ErrUnknownDelivery)
	require.LessOrEqual(t, b.Stats().Storage.Records-records, uint64(8))
	require.Zero(t, mustStats(t, b.Broker, "q").Acked)
	b.hold.Unlock()
	acked(n)

	// Later, one at a time, they take no more log than one needs.
	for i := n; i < n+100; i++ {
		require.NoError(t, ds[i].AckSync(ctx)) // brings what came before with it
		if i++; i < n+100 {
			require.NoError(t, ds[i].Ack())
		}
	}
	acked(n + 100)
	s.acks.mu.Lock()
	require.Equal(t, leastAckRoom, max(s.acks.room, leastAckRoom))
	s.acks.mu.Unlock()
	image := fs.Crash(storage.CrashModes[0], func(int) int { return 0 })
	require.NoError(t, b.Close())
	for _, fs := range []*storage.MemFS{fs, image} {
		b = openHeld(t, fs)
		left := mustStats(t, b.Broker, "q")
		require.LessOrEqual(t, left.Ready+left.Unacked+left.Delayed, 1, "the last ack may not have been synced")
		require.NoError(t, b.Close())
	}
}

// An id that is remembered until its message is done is free for who has acked it. Others keep the log busy.
func TestAcksComeBeforeWhatFollows(t *testing.T) {
	ctx := context.Background()
	b := openHeld(t, &storage.MemFS{})
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		require.NoError(t, b.Declare(ctx, Queue{Name: name, Dedup: Dedup{UntilDone: true}}))
		s, err := b.Subscribe(ctx, name, SubscribeOptions{})
		require.NoError(t, err)
		batch := make([]Message, 30)
		for i := range batch {
			batch[i] = Message{RoutingKey: name, ID: string(rune('A' + i))}
		}
		all.Go(func() {
			for range 100 {
				if err := b.PublishBatch(ctx, batch); err != nil {
					t.Error(err)
					return
				}
				for range batch {
					d, err := s.Next(ctx)
					if err = errors.Join(err, d.Ack()); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	for _, q := range b.Stats().Queues {
		require.Zero(t, q.Duplicates)
	}
	require.NoError(t, b.Close())
}

func TestAcksOfMany(t *testing.T) {
	ctx := context.Background()
	const n, workers = 5000, 8
	b := openHeld(t, &storage.MemFS{})
	require.NoError(t, b.Declare(ctx, Queue{Name: "q"}))
	s, err := b.Subscribe(ctx, "q", SubscribeOptions{Prefetch: 300})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	var acked atomic.Int64
	for w := range workers {
		all.Go(func() {
			for {
				d, err := s.Next(ctx)
				if err != nil {
					return
				}
				switch {
				case d.Failures == 0 && d.Tag%10 == 0:
					err = d.Nack()
				case w == 0:
					err = d.AckSync(context.Background())
					acked.Add(1)
				default:
					err = d.Ack()
					acked.Add(1)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range n / 100 {
		require.NoError(t, b.PublishBatch(ctx, make100("q")))
	}
	require.Eventually(t, func() bool { return mustStats(t, b.Broker, "q").Acked == n }, time.Minute, time.Millisecond)
	stop()
	all.Wait()
	require.EqualValues(t, n, acked.Load())
	st := mustStats(t, b.Broker, "q")
	require.Zero(t, st.Ready+st.Unacked+st.Delayed)
	require.NoError(t, b.Close())
}

func make100(queue string) []Message {
	batch := make([]Message, 100)
	for i := range batch {
		batch[i] = Message{RoutingKey: queue}
	}
	return batch
}

// Once the log has failed an ack says so, also if there was room in a record that was under way.
func TestAcksOfAFailedLog(t *testing.T) {
	ctx := context.Background()
	b := openHeld(t, &storage.MemFS{})
	require.NoError(t, b.Declare(ctx, Queue{Name: "q"}))
	require.NoError(t, b.PublishBatch(ctx, make100("q")))
	s, err := b.Subscribe(ctx, "q", SubscribeOptions{})
	require.NoError(t, err)
	var ds []*Delivery
	for len(ds) < 100 {
		more, err := s.NextBatch(ctx, 100)
		require.NoError(t, err)
		ds = append(ds, more...)
	}
	b.failing.Store(true)
	for _, d := range ds[:50] {
		if err := d.Ack(); err != nil {
			require.ErrorIs(t, err, ErrStorage)
		}
	}
	require.Error(t, b.Publish(ctx, Message{RoutingKey: "q"}))
	for _, d := range ds[50:] {
		require.ErrorIs(t, d.Ack(), ErrStorage)
	}
	require.ErrorIs(t, b.Close(), ErrStorage)
}
