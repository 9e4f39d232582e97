package bourse_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// Goal: at rest the directory takes at most twice what waits and 128 MiB, in the cases in which others keep everything: one
// old message under many newer ones, one that goes back and back while many pass, a message in each of many queues, and
// small bodies beside large ones. Method: segments a sixteenth of the usual size, and a sixteenth of 128 MiB; as they are by
// default with -space.full.

var spaceFull = flag.Bool("space.full", false, "run TestSpace with segments of the size that they have by default, and a million messages")

func TestSpace(t *testing.T) {
	segment, constant, many, large := 1<<20, int64(8<<20), 10_000, 1<<20-4096
	if *spaceFull {
		segment, constant, many, large = 0, 128<<20, 1_000_000, 16<<20
	}
	from := func(b *bourse.Broker, queue string, prefetch int) *bourse.Subscription { // until the broker is closed
		s, err := b.Subscribe(ctx, queue, bourse.SubscribeOptions{Prefetch: prefetch})
		require.NoError(t, err)
		return s
	}
	pass := func(b *bourse.Broker, s *bourse.Subscription, n int) {
		ms := make([]bourse.Message, 100)
		for i := range ms {
			ms[i] = bourse.Message{RoutingKey: "q", Body: bytes.Repeat([]byte{byte(i)}, 1000)}
		}
		for range n / len(ms) {
			require.NoError(t, b.PublishBatch(ctx, ms))
			var last *bourse.Delivery
			for range ms {
				last = next(t, s)
			}
			require.NoError(t, s.AckUpTo(last.Tag))
		}
	}
	for name, fill := range map[string]func(b *bourse.Broker){
		"an old one": func(b *bourse.Broker) {
			send(t, b, "other", "old")
			pass(b, from(b, "q", 1000), many)
		},
		"back and back": func(b *bourse.Broker) {
			s := from(b, "other", 1)
			send(t, b, "other", "poison")
			q := from(b, "q", 1000)
			for range many / 100 {
				for range 10 {
					require.NoError(t, next(t, s).NackAfter(0))
				}
				pass(b, q, 100)
			}
		},
		"many queues": func(b *bourse.Broker) {
			queues := many / 20
			if *spaceFull {
				queues = 9_990
			}
			for i := range queues {
				require.NoError(t, b.Declare(ctx, bourse.Queue{Name: fmt.Sprint("queue ", i)}))
			}
			for i := range queues {
				send(t, b, fmt.Sprint("queue ", i), "one")
			}
			pass(b, from(b, "q", 1000), many)
		},
		"large and small": func(b *bourse.Broker) {
			s := from(b, "q", 1000)
			for i := range 60 {
				send(t, b, "other", fmt.Sprint("small ", i))
				require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: noise(int64(i), large)}))
				require.NoError(t, next(t, s).Ack())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			e, err := bourse.NewLocalEngine(dir, bourse.LocalOptions{SegmentBytes: segment})
			require.NoError(t, err)
			b := open(t, bourse.Options{Engine: e}, bourse.Queue{Name: "q"}, bourse.Queue{Name: "other", MaxRetries: bourse.NoLimit})
			fill(b)
			live := int64(b.Stats().Storage.References) * 200
			used := size(t, dir)
			for deadline := time.Now().Add(time.Minute); used > 2*live+constant; used = size(t, dir) {
				require.True(t, time.Now().Before(deadline), "%d bytes, of which at most %d live: %+v", used, live, b.Stats().Storage)
				runtime.Gosched()
			}
			fmt.Printf("space: %s: %d KiB for %d KiB\n", name, used>>10, live>>10)
			require.NoError(t, b.Close())

			b = open(t, bourse.Options{Dir: dir})
			for _, q := range b.Stats().Queues {
				if q.Ready > 0 {
					got, err := b.Get(ctx, q.Name)
					require.NoError(t, err)
					require.NotEmpty(t, got.Body)
				}
			}
			require.NoError(t, b.Close())
		})
	}
}

// size is the sum of the sizes of the files in dir.
func size(t *testing.T, dir string) (n int64) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil { // else it is gone
			n += info.Size()
		}
	}
	return n
}

// noise is n bytes that cannot be made shorter.
func noise(seed int64, n int) []byte {
	b := make([]byte, n)
	x := uint64(seed)*2 + 1
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
	return b
}
