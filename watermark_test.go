package bourse_test

// Goal: below Options.MinFreeDisk publishes and declarations are refused with the figures, and all that gives space back goes on;
// above it everything does, without a restart or a call. Method: a file system in memory with a capacity; one test on the real one,
// where no disk is large enough. disk_test.go does the same on small real disks.

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// openLow opens a broker with small files that leaves minFree bytes of its disk free.
func openLow(t *testing.T, fs storage.FS, minFree int64) *bourse.Broker {
	t.Helper()
	e, err := bourse.NewLocalEngine("data", bourse.LocalOptions{
		FS: fs, SegmentBytes: 64 << 10, CheckpointBytes: 128 << 10, MinFreeDisk: minFree,
	})
	require.NoError(t, err)
	b, err := bourse.NewBroker(ctx, bourse.Options{Engine: e})
	require.NoError(t, err)
	return b
}

// requireLow expects a refusal below the watermark.
func requireLow(t *testing.T, err error, minFree int64) {
	t.Helper()
	require.ErrorIs(t, err, bourse.ErrDiskFull)
	require.NotErrorIs(t, err, bourse.ErrUnknownOutcome)
	var low *storage.LowDiskError
	require.ErrorAs(t, err, &low)
	require.Equal(t, minFree, low.MinFree)
	require.Less(t, low.Free-low.Checkpoint, minFree)
}

func TestMinFreeDisk(t *testing.T) {
	noLeaks(t)
	const capacity, minFree = 4 << 20, 2 << 20
	fs := &storage.MemFS{}
	fs.SetCapacity(capacity)
	b := openLow(t, fs, minFree)
	require.NoError(t, b.Declare(ctx,
		bourse.Queue{Name: "q", DeadLetter: bourse.DeadLetter{Exchange: "dead"}},
		bourse.Queue{Name: "single", SingleActiveConsumer: true}, bourse.Queue{Name: "dead"},
		bourse.Exchange{Name: "dead", Kind: bourse.Fanout}, bourse.Binding{Exchange: "dead", Queue: "dead"}))
	send(t, b, "single", "one")
	total := 0
	for round := range 5 {
		confirmed := fillUp(t, b, total)
		total += len(confirmed)
		if round == 0 { // later, what the last drain has freed may come into use at any moment
			st := b.Stats().Storage
			require.True(t, st.DiskLow)
			require.False(t, st.DiskFull)
			require.Less(t, st.DiskFree, int64(capacity)/2+256<<10, "with a checkpoint")
			requireLow(t, b.Publish(ctx, bourse.Message{RoutingKey: "q"}), minFree)
			requireLow(t, b.PublishAsync(ctx, bourse.Message{RoutingKey: "q"}).Wait(ctx), minFree)
			requireLow(t, b.Declare(ctx, bourse.Queue{Name: "other"}), minFree)
		}
		if round == 1 { // opened below it
			require.NoError(t, b.Close())
			fs.SetCapacity(fs.Used() + minFree/4)
			b = openLow(t, fs, minFree)
			requireLow(t, b.Publish(ctx, bourse.Message{RoutingKey: "q"}), minFree)
			fs.SetCapacity(capacity)
		}
		one, err := b.Subscribe(ctx, "single", bourse.SubscribeOptions{})
		require.NoError(t, err)
		require.NoError(t, next(t, one).Release(0))
		require.NoError(t, one.Close())

		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
		require.NoError(t, err)
		for i, id := range confirmed {
			if round == 3 && i == len(confirmed)/2 {
				break // the rest by Purge
			}
			d := next(t, s)
			require.Equal(t, id, d.ID)
			switch i % 10 {
			case 3:
				require.NoError(t, d.Nack())
				d = next(t, s)
			case 5:
				require.NoError(t, d.AckSync(ctx))
				continue
			case 7:
				require.NoError(t, d.Reject("dies when there is space again"))
				continue
			}
			require.NoError(t, d.Ack())
		}
		require.NoError(t, s.Close())
		_, err = b.Purge(ctx, "q")
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			err := b.Publish(ctx, bourse.Message{RoutingKey: "single", ID: "probe"})
			if err != nil {
				requireLow(t, err, minFree)
			}
			return err == nil
		}, testTimeout, 1e6, "round %d", round)
		require.Eventually(t, func() bool { return stats(t, b, "q").Dying == 0 }, testTimeout, 1e6)
		_, err = b.Purge(ctx, "dead")
		require.NoError(t, err)
	}
	require.NoError(t, b.Close())
	require.Greater(t, total, 1000)
}

// Without a word the watermark is at 64 MiB; a negative one is none.
func TestMinFreeDiskDefault(t *testing.T) {
	noLeaks(t)
	fs := &storage.MemFS{}
	fs.SetCapacity(64 << 20)
	b := openLow(t, fs, 0)
	requireLow(t, b.Declare(ctx, bourse.Queue{Name: "q"}), 64<<20)
	fs.SetCapacity(65 << 20)
	require.Eventually(t, func() bool { return b.Declare(ctx, bourse.Queue{Name: "q"}) == nil }, testTimeout, 1e6)
	require.NoError(t, b.Close())

	fs.SetCapacity(1 << 20)
	b = openLow(t, fs, -1)
	send(t, b, "q", "a")
	require.NoError(t, b.Close())

	b = openLow(t, &storage.MemFS{}, 1<<40) // it has no capacity to tell
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	require.EqualValues(t, -1, b.Stats().Storage.DiskFree)
	require.NoError(t, b.Close())

	b, err := bourse.NewBroker(ctx, bourse.Options{MinFreeDisk: math.MaxInt64}) // in memory
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	require.NoError(t, b.Close())
}

// On the disk of the system, through Options.
func TestMinFreeDiskOfTheSystem(t *testing.T) {
	noLeaks(t)
	dir := filepath.Join(t.TempDir(), "data")
	if _, err := storage.OS.Free(t.TempDir()); err != nil {
		t.Skip(err)
	}
	with := func(minFree int64) *bourse.Broker {
		b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir, MinFreeDisk: minFree})
		require.NoError(t, err)
		return b
	}
	b := with(math.MaxInt64)
	requireLow(t, b.Declare(ctx, bourse.Queue{Name: "q"}), math.MaxInt64)
	require.Positive(t, b.Stats().Storage.DiskFree)
	require.NoError(t, b.Close())
	b = with(-1)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	send(t, b, "q", "a", "b")
	require.NoError(t, b.Close())
	b = with(math.MaxInt64)
	requireLow(t, b.Publish(ctx, bourse.Message{RoutingKey: "q"}), math.MaxInt64)
	require.Equal(t, []string{"a", "b"}, drain(t, b, "q"))
	require.NoError(t, b.Close())

	view, err := bourse.NewLocalEngine(dir, bourse.LocalOptions{ReadOnly: true, MinFreeDisk: math.MaxInt64})
	require.NoError(t, err)
	b, err = bourse.NewBroker(ctx, bourse.Options{Engine: view})
	require.NoError(t, err)
	send(t, b, "q", "in the shadow")
	require.NoError(t, b.Close())
}
