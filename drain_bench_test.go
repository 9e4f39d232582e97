package bourse

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: what it costs to take a deep backlog, which is no longer in memory, with acks. Method: so many messages of 1 KiB are published
// to a broker on disk, and then drained in two ways, without a publisher beside them. Compare with bench/floor.go on the same disk.

func BenchmarkDrain(b *testing.B) {
	for _, how := range []struct {
		name  string
		drain func(ctx context.Context, b *testing.B, s *Subscription, n int)
	}{
		{"NextBatch", func(ctx context.Context, b *testing.B, s *Subscription, n int) {
			for n > 0 {
				batch, err := s.NextBatch(ctx, 256)
				require.NoError(b, err)
				n -= len(batch)
				require.NoError(b, s.AckUpTo(batch[len(batch)-1].Tag))
			}
		}},
		{"Next", func(ctx context.Context, b *testing.B, s *Subscription, n int) {
			for range n {
				d, err := s.Next(ctx)
				require.NoError(b, err)
				require.NoError(b, d.Ack())
			}
		}},
	} {
		b.Run(how.name, func(b *testing.B) {
			ctx := context.Background()
			broker, err := NewBroker(ctx, Options{Dir: b.TempDir()})
			require.NoError(b, err)
			require.NoError(b, broker.Declare(ctx, Queue{Name: "deep"}))
			batch := make([]Message, 1000)
			for i := range batch {
				batch[i] = Message{RoutingKey: "deep", Body: make([]byte, 1024)}
			}
			for left := b.N; left > 0; left -= len(batch) {
				require.NoError(b, broker.PublishBatch(ctx, batch[:min(left, len(batch))]))
			}
			s, err := broker.Subscribe(ctx, "deep", SubscribeOptions{Prefetch: 1024})
			require.NoError(b, err)
			runtime.GC()
			b.SetBytes(1024)
			b.ReportAllocs()
			b.ResetTimer()
			how.drain(ctx, b, s, b.N)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			require.NoError(b, broker.Close())
		})
	}
}
