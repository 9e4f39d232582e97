package bourse_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/storage"
)

// Goal: a broker that has worked for long is as one that has not: memory, goroutines, descriptors and the directory return to
// where they were. Method: rounds of everything at once, each with a deep backlog beyond the cache and a complete drain, and
// the measures taken between them. Run with -soak 2h for a long run.

var soak = flag.Duration("soak", 0, "how long TestSoak works; 0: a few rounds")

// vitals are what must not grow.
type vitals struct {
	heap        uint64 // after a collection
	goroutines  int
	descriptors int // that are not of files of the log
}

func TestSoak(t *testing.T) {
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewSource(seed))
	const segment = 1 << 20
	dir := t.TempDir()
	e, err := bourse.NewLocalEngine(dir, bourse.LocalOptions{SegmentBytes: segment, CacheBytes: 2 << 20})
	require.NoError(t, err)
	b := open(t, bourse.Options{Engine: e},
		bourse.Exchange{Name: "dead", Kind: bourse.Fanout},
		bourse.Queue{
			Name: "jobs", MaxRetries: 1, Priorities: 10, DeadLetter: bourse.DeadLetter{Exchange: "dead"},
			Retry: bourse.Backoff{Min: time.Millisecond},
		},
		bourse.Queue{Name: "graves", TTL: 20 * time.Millisecond},
		bourse.Binding{Exchange: "dead", Queue: "graves"},
		bourse.Queue{Name: "fast", Transient: true},
		bourse.Queue{Name: "deep"},
	)
	n, least := 20_000, 3
	if testing.Short() || invariant.Costly { // which look at all that waits after each command
		n, least = 1_000, 15
	}
	begin := time.Now()
	var first, last vitals
	var published atomic.Int64
	rounds := 0
	for ; rounds < least || time.Since(begin) < *soak; rounds++ {
		soakRound(t, b, rng, n, &published)
		last = rested(t, b, dir, segment)
		if rounds < least*2/3 || time.Since(begin) < *soak/3 { // pools and slices have come to the size that they need
			first.goroutines, first.descriptors, first.heap = last.goroutines, last.descriptors, max(first.heap, last.heap)
		}
	}
	most := first.heap + first.heap/20 + 512<<10
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); last = rested(t, b, dir, segment) {
		if last.goroutines <= first.goroutines && last.descriptors <= first.descriptors && last.heap <= most {
			break // else something was still on its way out
		}
	}
	fmt.Printf("soak: %d rounds, %d messages, heap %d to %d KiB, %d goroutines, %d descriptors; seed %d\n", rounds, published.Load(),
		first.heap>>10, last.heap>>10, last.goroutines, last.descriptors, seed)
	require.LessOrEqual(t, last.goroutines, first.goroutines)
	require.LessOrEqual(t, last.descriptors, first.descriptors)
	require.LessOrEqual(t, last.heap, most)
}

// soakRound does everything at once, and leaves nothing.
func soakRound(t *testing.T, b *bourse.Broker, rng *rand.Rand, n int, published *atomic.Int64) {
	bounded, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	batch := func(queue string, size int, transient bool) {
		ms := make([]bourse.Message, 100)
		for i := range ms {
			ms[i] = bourse.Message{RoutingKey: queue, Body: make([]byte, size), Priority: uint8(i % 10), Transient: transient}
			if queue == "jobs" && i%10 == 0 {
				ms[i].GroupID = fmt.Sprint("group ", i%30)
			}
		}
		for i := 0; i < n; i += len(ms) {
			require.NoError(t, b.PublishBatch(bounded, ms))
			published.Add(int64(len(ms)))
		}
	}
	sizes := [...]int{rng.Intn(2000), rng.Intn(500), rng.Intn(500)}
	var all sync.WaitGroup
	all.Go(func() { batch("deep", sizes[0], false) }) // nobody reads it yet
	all.Go(func() { batch("fast", sizes[1], false) })
	all.Go(func() { batch("jobs", sizes[2], rng.Intn(2) == 0) })
	all.Go(func() { // queues and consumers that come and go
		for i := range n / 500 {
			name := fmt.Sprint("passing ", i)
			require.NoError(t, b.Declare(bounded, bourse.Queue{Name: name, Expires: time.Hour}))
			send(t, b, name, "one", "two")
			s, err := b.Subscribe(bounded, name, bourse.SubscribeOptions{Prefetch: 2})
			require.NoError(t, err)
			require.NoError(t, next(t, s).Ack())
			require.NoError(t, s.Close())
			require.NoError(t, b.Delete(bounded, bourse.Queue{Name: name}))
		}
	})
	done := make(chan struct{})
	var workers sync.WaitGroup
	stop, halt := context.WithCancel(ctx)
	for _, queue := range []string{"jobs", "fast"} {
		workers.Go(func() {
			var seen atomic.Int64
			_ = b.Work(stop, queue, func(context.Context, *bourse.Delivery) error {
				if seen.Add(1)%50 == 0 {
					return errors.New("one of fifty")
				}
				return nil
			}, bourse.WorkOptions{Concurrency: 4})
		})
	}
	go func() { defer close(done); all.Wait() }() // ends with the round
	<-done
	s, err := b.Subscribe(bounded, "deep", bourse.SubscribeOptions{Prefetch: 1000})
	require.NoError(t, err)
	for i := range n {
		d, err := s.Next(bounded)
		require.NoError(t, err)
		if i%100 == 99 || i == n-1 {
			require.NoError(t, s.AckUpTo(d.Tag))
		}
	}
	require.NoError(t, s.Close())
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		left := 0
		for _, q := range b.Stats().Queues {
			left += q.Ready + q.Unacked + q.Delayed + q.Dying
		}
		if left == 0 {
			break
		}
		require.True(t, time.Now().Before(deadline), "%d messages are left: %+v", left, b.Stats().Queues)
	}
	halt()
	workers.Wait()
}

// rested waits until the directory has come to its floor, and returns the vitals.
func rested(t *testing.T, b *bourse.Broker, dir string, segment int64) (v vitals) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); size(t, dir) > 9*segment+4*storage.DefaultSegmentBytes/16; runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), "%d bytes: %+v", size(t, dir), b.Stats().Storage)
	}
	for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() { // what is past its last statement
		var ms runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&ms)
		now := vitals{ms.HeapAlloc, runtime.NumGoroutine(), descriptors(t, dir)}
		if now == v || time.Now().After(deadline) {
			return now
		}
		if v.goroutines == now.goroutines && v.descriptors == now.descriptors && now.heap <= v.heap+v.heap/100 {
			return now
		}
		v = now
	}
}

// descriptors counts those that are open, but for files in dir; 0 where they cannot be seen.
func descriptors(t *testing.T, dir string) (n int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if name, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && !strings.HasPrefix(name, dir) {
			n++
		}
	}
	return n
}
