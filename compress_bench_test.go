package bourse

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: the threshold of compression, and whether it pays, come from figures. Method: publish, confirm, consume and ack bodies of
// several kinds and sizes in batches, on disk, with compression and without; kept is what the log wrote, of what was published.

func testJSON(n int) []byte {
	r := rand.New(rand.NewPCG(3, uint64(n)))
	words := []string{"Berlin", "Lyon", "Porto", "blue", "large", "express", "gift", "invoice"}
	var b []byte
	for len(b) < n {
		line, _ := json.Marshal(map[string]any{
			"id": r.Uint64(), "city": words[r.IntN(8)], "item": words[r.IntN(8)] + " " + words[r.IntN(8)],
			"price": float64(r.IntN(1e5)) / 100, "paid": r.IntN(2) == 0,
			"at": fmt.Sprintf("2026-%02d-%02dT%02d:%02d:%02dZ", 1+r.IntN(12), 1+r.IntN(28), r.IntN(24), r.IntN(60), r.IntN(60)),
		})
		b = append(append(b, line...), '\n')
	}
	return b[:n]
}

func BenchmarkCompression(b *testing.B) {
	for _, kind := range []struct {
		name string
		body func(int) []byte
	}{{"text", testText}, {"json", testJSON}, {"random", testNoise}} {
		for _, size := range []int{256, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 256 << 10, 1 << 20} {
			for name, how := range map[string]Compression{"auto": CompressAuto, "off": CompressOff} {
				b.Run(fmt.Sprintf("%s/%d/%s", kind.name, size, name), func(b *testing.B) { benchCompression(b, kind.body(size), how) })
			}
		}
	}
}

func benchCompression(b *testing.B, body []byte, how Compression) {
	ctx := context.Background()
	broker, err := NewBroker(ctx, Options{Dir: b.TempDir(), Compression: how, Preallocate: 256 << 20})
	require.NoError(b, err)
	require.NoError(b, broker.Declare(ctx, Queue{Name: "q"}))
	batch := make([]Message, max(1, min(256, (4<<20)/len(body))))
	for i := range batch {
		batch[i] = Message{RoutingKey: "q", Body: body}
	}
	s, err := broker.Subscribe(ctx, "q", SubscribeOptions{Prefetch: 2 * len(batch)})
	require.NoError(b, err)
	before, n := broker.Stats().Storage.Written, 0
	b.SetBytes(int64(len(batch) * len(body)))
	for b.Loop() {
		if err := broker.PublishBatch(ctx, batch); err != nil {
			b.Fatal(err)
		}
		for range batch {
			d, err := s.Next(ctx)
			if err == nil {
				err = d.Ack()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		n += len(batch) * len(body)
	}
	b.ReportMetric(100*float64(broker.Stats().Storage.Written-before)/float64(n), "%kept")
	require.NoError(b, broker.Close())
}
