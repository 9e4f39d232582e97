package bourse

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: many messages that wait in one queue take little memory, an open that finds them is quick, a checkpoint of them is cheap, and
// each comes, once and in its order. Method: the public API on a real disk, with bodies of 1 KB that do not compress; what the kernel
// says of the process. `make backlog` runs it with millions.

// The bounds, in which a noisy machine still is. With ten million the measured memory is half of them, the time a third.
const (
	backlogBase    = 200 << 20              // bytes that the process may take with nothing waiting: bodies, batches, the runtime
	backlogMost    = 30                     // more for each message: what it is packed into, and as much again for the collector
	backlogOpen    = 2 * time.Second        // for an open: to replay what came behind the checkpoint
	backlogEach    = 800 * time.Nanosecond  // more for each message
	backlogCapture = 100 * time.Millisecond // for what publishers wait for when a checkpoint begins
)

func TestBacklog(t *testing.T) {
	n, bound := *backlog, *backlog > 0
	if !bound {
		n = 20_000
	}
	ctx, dir := context.Background(), t.TempDir()
	opened := func() (*Broker, time.Duration) {
		start := time.Now()
		b, err := NewBroker(ctx, Options{Dir: dir})
		require.NoError(t, err)
		return b, time.Since(start)
	}
	b, _ := opened()
	require.NoError(t, b.Declare(ctx, Queue{Name: "jobs"}))
	idle := residentBytes(t)
	start := time.Now()
	fillBacklog(t, b, n)
	t.Logf("%d messages published in %v", n, time.Since(start).Round(time.Millisecond))
	within := func(when string) {
		rss := residentBytes(t)
		t.Logf("%s: %d MiB of memory, %d MiB of them before; %.1f bytes for each message", when, rss>>20, idle>>20,
			float64(rss-idle)/float64(n))
		if bound {
			require.LessOrEqual(t, rss, int64(backlogBase+backlogMost*n), "bytes of memory %s", when)
		}
	}
	within("filled")

	engine, ok := b.engine.(*localEngine)
	require.True(t, ok)
	engine.saving.Wait()
	start = time.Now()
	state, err := engine.capture()
	captured := time.Since(start)
	require.NoError(t, err)
	written, err := state.WriteTo(io.Discard)
	engine.saving.Done()
	require.NoError(t, err)
	t.Logf("a checkpoint of %d bytes: captured in %v, encoded in %v", written, captured, time.Since(start)-captured)
	if bound {
		require.LessOrEqual(t, captured, backlogCapture)
	}

	require.NoError(t, b.Close())
	engine, state, b = nil, nil, nil
	debug.FreeOSMemory()
	b, took := opened()
	defer func() { _ = b.Close() }()
	t.Logf("reopened in %v", took.Round(time.Millisecond))
	within("reopened")
	if bound {
		require.LessOrEqual(t, took, backlogOpen+time.Duration(n)*backlogEach)
	}
	stats, ok := b.QueueStats("jobs")
	require.True(t, ok)
	require.Equal(t, n, stats.Ready)

	start = time.Now()
	drainBacklog(t, b, n)
	t.Logf("drained in %v", time.Since(start).Round(time.Millisecond))
	within("drained")
}

// fillBacklog publishes n messages, each of which begins with its number.
func fillBacklog(t *testing.T, b *Broker, n int) {
	body := make([]byte, 1024)
	_, _ = rand.Read(body)
	batch := make([]Message, 0, 1000)
	for i := range n {
		mine := append([]byte(nil), body...)
		binary.LittleEndian.PutUint64(mine, uint64(i))
		batch = append(batch, Message{RoutingKey: "jobs", Body: mine})
		if len(batch) == cap(batch) || i == n-1 {
			require.NoError(t, b.PublishBatch(context.Background(), batch))
			batch = batch[:0]
		}
	}
}

// drainBacklog takes n messages, which must be those of fillBacklog in order, and finds nothing behind them.
func drainBacklog(t *testing.T, b *Broker, n int) {
	ctx := context.Background()
	sub, err := b.Subscribe(ctx, "jobs", SubscribeOptions{Prefetch: 1000})
	require.NoError(t, err)
	for i := range n {
		d, err := sub.Next(ctx)
		require.NoError(t, err)
		if got := binary.LittleEndian.Uint64(d.Body); got != uint64(i) || len(d.Body) != 1024 {
			t.Fatalf("message %d of %d bytes, want %d", got, len(d.Body), i)
		}
		require.NoError(t, d.Ack())
	}
	require.NoError(t, sub.Close())
	stats, ok := b.QueueStats("jobs")
	require.True(t, ok)
	require.Zero(t, stats.Ready+stats.Unacked)
}

// residentBytes is the memory that the process takes.
func residentBytes(t *testing.T) int64 {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			require.NoError(t, err)
			return kib << 10
		}
	}
	t.Fatal("the kernel does not say")
	return 0
}
