package bourse_test

// Goal: a disk that fills up, at a publish, a checkpoint, or while a broker opens, costs no message that was confirmed, and as soon as
// there is space again, by a drain or since others have removed something, all goes on without a restart or a call. Method: small disks
// with ext4 and in memory, filled by publishers until ErrDiskFull and then by a file of somebody else to the last
// block; what was confirmed is expected in full and in order. The same without free descriptors, in a process with a limit.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

var fullFills = flag.Int("full.fills", 0, "fills of TestFull, which then must run; 0: a few, if it can")

// fullRun is one disk.
type fullRun struct {
	t       *testing.T
	disk    *disk
	minFree int64
	b       *bourse.Broker
	sent    int
	stored  map[int][]string // confirmed and not acked, by publisher, in order
	total   int
}

func (r *fullRun) open() error {
	e, err := bourse.NewLocalEngine(filepath.Join(r.disk.dir, "data"), bourse.LocalOptions{
		SegmentBytes: 64 << 10, CheckpointBytes: 128 << 10, MinFreeDisk: r.minFree,
	})
	if err == nil {
		r.b, err = bourse.NewBroker(ctx, bourse.Options{Engine: e})
	}
	return err
}

// fullBody is what does not compress, since few large messages make a small state, and a full disk has little space for that.
func fullBody(sent, n int) []byte {
	b := make([]byte, 3000+n%7*1500)
	_, _ = rand.NewChaCha8([32]byte{byte(sent), byte(n), byte(n >> 8)}).Read(b)
	return b
}

// fill publishes from several sides until each was refused.
func (r *fullRun) fill() {
	var mu sync.Mutex
	var all sync.WaitGroup
	r.sent++
	for pub := range 3 {
		all.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("%d.%d.%d", r.sent, pub, n)
				err := r.b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: id, Body: fullBody(r.sent, n)})
				if err != nil {
					if !errors.Is(err, bourse.ErrDiskFull) || errors.Is(err, bourse.ErrUnknownOutcome) {
						r.t.Error(err)
					}
					return
				}
				mu.Lock()
				r.stored[pub] = append(r.stored[pub], id)
				r.total++
				mu.Unlock()
			}
		})
	}
	all.Wait()
}

// ballast takes blocks, every one that is free if there are not so many bytes, and gives back what removes it.
func (r *fullRun) ballast(bytes int) (remove func()) {
	name := filepath.Join(r.disk.dir, "ballast")
	f, err := os.Create(name)
	require.NoError(r.t, err)
	for size := 64 << 10; size >= 512 && bytes > 0; bytes -= size {
		if _, err := f.Write(make([]byte, size)); err != nil {
			require.ErrorIs(r.t, err, syscall.ENOSPC)
			size /= 2
		}
	}
	_ = f.Sync() // where blocks are given at last
	require.NoError(r.t, f.Close())
	return func() { require.NoError(r.t, os.Remove(name)) }
}

// take consumes n messages and expects those that were confirmed, in order. Once an ack has no space, it calls relief.
func (r *fullRun) take(n int, relief func()) {
	settle := func(call func() error) {
		err := call()
		if errors.Is(err, bourse.ErrDiskFull) {
			if relief != nil {
				relief()
				relief = nil
			}
			require.Eventually(r.t, func() bool {
				if err = call(); err != nil {
					require.ErrorIs(r.t, err, bourse.ErrDiskFull)
				}
				return err == nil
			}, testTimeout, 1e6)
		}
		require.NoError(r.t, err)
	}
	s, err := r.b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
	require.NoError(r.t, err)
	for i := range n {
		d := next(r.t, s)
		var gen, pub, number int
		_, err := fmt.Sscanf(d.ID, "%d.%d.%d", &gen, &pub, &number)
		require.NoError(r.t, err)
		require.NotEmpty(r.t, r.stored[pub], d.ID)
		require.Equal(r.t, r.stored[pub][0], d.ID)
		r.stored[pub] = r.stored[pub][1:]
		switch i % 10 {
		case 3:
			settle(d.Nack)
			settle(next(r.t, s).Ack)
		case 5:
			settle(func() error { return d.AckSync(ctx) })
		default:
			settle(d.Ack)
		}
	}
	require.NoError(r.t, s.Close())
	if relief != nil {
		relief()
	}
}

func (r *fullRun) left() int { return len(r.stored[0]) + len(r.stored[1]) + len(r.stored[2]) }

// accepts waits until publishing works.
func (r *fullRun) accepts(what string) {
	require.Eventually(r.t, func() bool {
		err := r.b.Publish(ctx, bourse.Message{RoutingKey: "other"})
		if err != nil {
			require.ErrorIs(r.t, err, bourse.ErrDiskFull)
		}
		return err == nil
	}, testTimeout, 1e6, "%s: there is space, and publishing does not go on", what)
}

// fullWays are what happens on a full disk.
var fullWays = []struct {
	name string
	do   func(r *fullRun)
}{
	{"drained", func(r *fullRun) { r.take(r.left(), nil) }},
	{"space from elsewhere", func(r *fullRun) {
		r.take(r.left(), nil)
		r.accepts("space from elsewhere, before")
		remove := r.ballast(1 << 20)
		r.fill()
		remove()
		r.accepts("space from elsewhere")
	}},
	{"full to the last block, and drained", func(r *fullRun) {
		remove := r.ballast(math.MaxInt)
		r.take(r.left(), remove) // with checkpoints that have no space
	}},
	{"opened while full", func(r *fullRun) {
		remove := r.ballast(math.MaxInt)
		require.NoError(r.t, r.b.Close())
		if err := r.open(); err != nil {
			require.ErrorIs(r.t, err, bourse.ErrDiskFull)
			remove()
			require.NoError(r.t, r.open())
			remove = nil
		}
		r.take(r.left(), remove)
	}},
	{"others are first", func(r *fullRun) {
		r.take(r.left(), nil)
		r.accepts("others are first, before")
		remove := r.ballast(math.MaxInt) // below a broker that is at rest
		r.fill()
		remove()
	}},
}

func TestFull(t *testing.T) {
	noLeaks(t)
	fills, must := *fullFills, *fullFills > 0
	if !must {
		if testing.Short() {
			t.Skip("it mounts")
		}
		fills = 2 * len(fullWays)
	}
	total, done := 0, 0
	for _, c := range []struct {
		kind    string
		bytes   int64
		minFree int64
	}{{"ext4", 10 << 20, -1}, {"tmpfs", 4 << 20, -1}, {"ext4", 10 << 20, 2 << 20}, {"tmpfs", 4 << 20, 1 << 20}} {
		t.Run(fmt.Sprintf("%s %d", c.kind, c.minFree), func(t *testing.T) {
			r := &fullRun{t: t, disk: newDisk(t, c.kind, c.bytes, must), minFree: c.minFree, stored: map[int][]string{}}
			require.NoError(t, r.open())
			defer func() { _ = r.b.Close() }()
			require.NoError(t, r.b.Declare(ctx, bourse.Queue{Name: "q"}, bourse.Queue{Name: "other"}))
			for i := range (fills + 3) / 4 {
				r.fill()
				done++
				way := fullWays[i%len(fullWays)]
				way.do(r)
				r.accepts(way.name)
				r.take(r.left(), nil)
				_, err := r.b.Purge(ctx, "other")
				require.NoError(t, err)
				require.Zero(t, stats(t, r.b, "q").Ready, "%s: more than was confirmed", way.name)
				r.accepts(way.name + ", drained")
			}
			require.NoError(t, r.b.Close())
			require.NoError(t, r.open())
			require.Zero(t, stats(t, r.b, "q").Ready)
			require.NoError(t, r.b.Close())
			require.Empty(t, r.disk.files())
			total += r.total
		})
	}
	if t.Failed() || done == 0 {
		return
	}
	descriptors := 0
	t.Run("descriptors", func(t *testing.T) { descriptors = runOutOfDescriptors(t) })
	fmt.Printf("disk full: %d fills of ext4 and tmpfs, %d confirmed; out of descriptors: %d times; 0 lost\n", done, total, descriptors)
	if must {
		require.GreaterOrEqual(t, done, fills)
		require.Greater(t, total, 50*fills)
	}
}

const descriptorsEnv = "BOURSE_DESCRIPTORS_CHILD"

// runOutOfDescriptors works in a process that runs out of them, and returns how often it did.
func runOutOfDescriptors(t *testing.T) (times int) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestDescriptorsChild$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), descriptorsEnv+"="+filepath.Join(t.TempDir(), "data"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for line := range strings.Lines(string(out)) {
		_, _ = fmt.Sscanf(line, "@ %d times", &times)
	}
	require.Positive(t, times, "%s", out)
	return times
}

// TestDescriptorsChild is not a test of its own.
func TestDescriptorsChild(t *testing.T) {
	dir := os.Getenv(descriptorsEnv)
	if dir == "" {
		t.Skip("runs in a process of its own")
	}
	b, err := openFault(storage.OS, dir)
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	limit := func(n uint64) {
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: before.Max}))
	}
	const rounds = 10
	// One is confirmed before: the log may still be making its reserve, and without that it takes nothing from the first on.
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: "first"}))
	all := []string{"first"}
	for range rounds {
		limit(3) // fewer than there are: no other is to be had
		all = append(all, fillUp(t, b, len(all))...)
		bounded, cancel := context.WithTimeout(ctx, testTimeout)
		d, err := b.Get(bounded, "q") // what is there can be worked on
		require.NoError(t, err)
		require.Equal(t, all[0], d.ID)
		require.NoError(t, d.Release(0))
		cancel()
		limit(before.Cur)
		require.Eventually(t, func() bool {
			err := b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: "probe"})
			if err != nil {
				require.ErrorIs(t, err, bourse.ErrDiskFull)
			}
			return err == nil
		}, testTimeout, 1e6)
		all = append(all, "probe")
	}
	require.NoError(t, b.Close())
	b, err = openFault(storage.OS, dir)
	require.NoError(t, err)
	held, err := bourse.Browse(b, "q")
	require.NoError(t, err)
	var found []string
	for _, h := range held {
		found = append(found, h.Message.ID)
	}
	require.True(t, slices.Equal(all, found))
	require.NoError(t, b.Close())
	fmt.Printf("@ %d times\n", rounds)
}
