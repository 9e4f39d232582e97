package bourse_test

// Goal: a disk that is full or broken, and a directory that is not ours to use, give a clear typed error; nothing that
// was confirmed is lost, the process lives on, and a full disk needs no restart to be usable again. Method: file systems
// in memory with a capacity, or with a rule that makes single calls fail; where it takes a real one, a small tmpfs
// (fault_linux_test.go) and directories of the operating system.

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// openFault opens a broker with small files.
func openFault(fs storage.FS, dir string) (*bourse.Broker, error) {
	e, err := bourse.NewLocalEngine(dir, bourse.LocalOptions{FS: fs, SegmentBytes: 64 << 10, CheckpointBytes: 128 << 10, MinFreeDisk: -1})
	if err != nil {
		return nil, err
	}
	return bourse.NewBroker(ctx, bourse.Options{Engine: e, Compression: bourse.CompressOff}) // bodies are to fill a disk
}

// fillUp publishes until the disk is full and returns what was confirmed.
func fillUp(t *testing.T, b *bourse.Broker, from int) []string {
	var confirmed []string
	body := make([]byte, 4000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(body) // it cannot fail; nothing is saved by compression
	for n := from; ; n++ {
		require.Less(t, n, 1<<20)
		id := fmt.Sprintf("m%d", n)
		err := b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: id, Body: body})
		if err != nil {
			require.ErrorIs(t, err, bourse.ErrDiskFull)
			require.NotErrorIs(t, err, bourse.ErrUnknownOutcome)
			return confirmed
		}
		confirmed = append(confirmed, id)
	}
}

// fillAndDrain fills a disk, drains the queue, and expects that publishing works again, several times over.
func fillAndDrain(t *testing.T, fs storage.FS, dir string) {
	b, err := openFault(fs, dir)
	require.NoError(t, err)
	defer func() { _ = b.Close() }()
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	var total int
	for round := range 5 {
		confirmed := fillUp(t, b, total)
		total += len(confirmed)
		require.Equal(t, len(confirmed), stats(t, b, "q").Ready)
		if round == 0 { // later, what the last drain has freed may come into use at any moment
			require.True(t, b.Stats().Storage.DiskFull)
			require.ErrorIs(t, b.Declare(ctx, bourse.Queue{Name: "other"}), bourse.ErrDiskFull)
		}
		if round == 2 { // a restart on the full disk
			require.NoError(t, b.Close())
			b, err = openFault(fs, dir)
			require.NoError(t, err, "open on a full disk")
			require.Equal(t, len(confirmed), stats(t, b, "q").Ready)
		}
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
		require.NoError(t, err)
		for i, id := range confirmed {
			d := next(t, s)
			require.Equal(t, id, d.ID)
			switch i % 10 {
			case 3:
				require.NoError(t, d.Release(0))
				d = next(t, s)
			case 5:
				require.NoError(t, d.Nack())
				d = next(t, s)
			}
			require.NoError(t, d.Ack())
		}
		require.NoError(t, s.Close())
		require.Eventually(t, func() bool {
			err := b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: "probe"})
			if err != nil {
				require.ErrorIs(t, err, bourse.ErrDiskFull)
			}
			return err == nil
		}, testTimeout, 1e6, "round %d: the disk has space, and publishing does not go on", round)
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.Equal(t, "probe", d.ID)
		require.NoError(t, d.AckSync(ctx))
	}
	require.NoError(t, b.Close())
	b, err = openFault(fs, dir)
	require.NoError(t, err)
	require.Zero(t, stats(t, b, "q").Ready)
	require.NoError(t, b.Close())
	require.Greater(t, total, 300, "too little room")
	fmt.Printf("disk full: 5 fills, %d confirmed, 0 lost\n", total)
}

func TestDiskFull(t *testing.T) {
	noLeaks(t)
	fs := &storage.MemFS{}
	fs.SetCapacity(2 << 20)
	fillAndDrain(t, fs, "data")
}

// TestDiskFullGrows: space that comes from elsewhere is used without a restart and without a drain.
func TestDiskFullGrows(t *testing.T) {
	noLeaks(t)
	fs := &storage.MemFS{}
	fs.SetCapacity(1 << 20)
	b, err := openFault(fs, "data")
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	n := len(fillUp(t, b, 0))
	fs.SetCapacity(2 << 20)
	require.Eventually(t, func() bool {
		return b.Publish(ctx, bourse.Message{RoutingKey: "q"}) == nil
	}, testTimeout, 1e6)
	require.Equal(t, n+1, stats(t, b, "q").Ready)
	require.NoError(t, b.Close())
}

// TestDiskFullFrees: what gives space back is let in on a full disk, durably.
func TestDiskFullFrees(t *testing.T) {
	noLeaks(t)
	fs := &storage.MemFS{}
	fs.SetCapacity(1 << 20)
	b, err := openFault(fs, "data")
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}, bourse.Queue{Name: "other"}))
	n := len(fillUp(t, b, 0))
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, d.AckSync(ctx))
	require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "other"}))
	require.ErrorIs(t, b.Declare(ctx, bourse.Queue{Name: "more"}), bourse.ErrDiskFull)
	purged, err := b.Purge(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, n-1, purged)
	lost := fs.Crash(storage.CrashLost, func(int) int { return 0 })
	require.Eventually(t, func() bool {
		return b.Publish(ctx, bourse.Message{RoutingKey: "q"}) == nil
	}, testTimeout, 1e6)
	require.NoError(t, b.Close())

	b, err = openFault(lost, "data")
	require.NoError(t, err)
	require.Zero(t, stats(t, b, "q").Ready)
	_, there := b.QueueStats("other")
	require.False(t, there)
	require.NoError(t, b.Close())
}

// TestFailedSync: the outcome of what was on its way is unknown, all later calls say why, and Close works.
func TestFailedSync(t *testing.T) {
	for _, op := range []string{"sync", "write"} {
		t.Run(op, func(t *testing.T) {
			noLeaks(t)
			fs := &storage.MemFS{}
			var broken atomic.Bool
			b, err := openFault(&storage.FaultFS{FS: fs, Rule: func(o, name string, _ int) error {
				// The segment that is written to: if preparing another one fails first, it is certain that nothing was stored.
				if broken.Load() && o == op && strings.HasSuffix(name, "0000000000000001.log") {
					return syscall.EIO
				}
				return nil
			}}, "data")
			require.NoError(t, err)
			require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
			send(t, b, "q", "stays")
			s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
			require.NoError(t, err)
			d := next(t, s)
			waiting := make(chan error, 1)
			go func() { // ends with the subscription
				_, err := s.Next(ctx)
				waiting <- err
			}()

			broken.Store(true)
			err = b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: "unknown"})
			require.ErrorIs(t, err, bourse.ErrStorage)
			require.ErrorIs(t, err, bourse.ErrUnknownOutcome)
			require.ErrorIs(t, err, syscall.EIO)
			require.ErrorIs(t, <-waiting, bourse.ErrStorage)
			broken.Store(false) // what failed once is not tried again

			err = b.Publish(ctx, bourse.Message{RoutingKey: "q"})
			require.ErrorIs(t, err, bourse.ErrStorage)
			require.NotErrorIs(t, err, bourse.ErrUnknownOutcome)
			require.ErrorIs(t, b.Declare(ctx, bourse.Queue{Name: "r"}), bourse.ErrStorage)
			require.ErrorIs(t, d.Ack(), bourse.ErrStorage)
			_, err = b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
			require.ErrorIs(t, err, bourse.ErrStorage)
			_, err = b.Get(ctx, "q")
			require.ErrorIs(t, err, bourse.ErrStorage)
			require.NoError(t, s.Close())
			require.ErrorIs(t, b.Close(), bourse.ErrStorage)
			require.ErrorIs(t, b.Publish(ctx, bourse.Message{RoutingKey: "q"}), bourse.ErrClosed)

			b, err = openFault(fs, "data")
			require.NoError(t, err)
			require.Contains(t, drain(t, b, "q"), "stays")
			require.NoError(t, b.Close())
		})
	}
}

// TestForeignDir: a directory with something else in it is refused, and left as it is.
func TestForeignDir(t *testing.T) {
	noLeaks(t)
	for name, files := range map[string]map[string]string{
		"notes":         {"notes.txt": "mine"},
		"newer version": {"FORMAT": "bourse log, format 99\n"},
		"other format":  {"FORMAT": "a log of something else\n"},
		"no format":     {"FORMAT": ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			_, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
			require.ErrorIs(t, err, bourse.ErrForeignDir)
			require.ErrorContains(t, err, dir)
			if name == "newer version" {
				require.ErrorContains(t, err, "format 99")
			}
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			for _, e := range entries {
				if e.Name() == "LOCK" { // no data, and needed to look at FORMAT without a race
					continue
				}
				text, err := os.ReadFile(filepath.Join(dir, e.Name()))
				require.NoError(t, err)
				require.Equal(t, files[e.Name()], string(text), e.Name())
			}
		})
	}
}

// TestUnusableDir: a directory that cannot be made or written to.
func TestUnusableDir(t *testing.T) {
	noLeaks(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "data")} {
		_, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
		require.ErrorIs(t, err, bourse.ErrStorage)
		require.ErrorContains(t, err, file)
	}
	for _, op := range []string{"mkdir", "lock", "create"} {
		_, err := openFault(&storage.FaultFS{FS: &storage.MemFS{}, Rule: func(o, name string, _ int) error {
			if o == op {
				return &os.PathError{Op: o, Path: name, Err: syscall.EACCES}
			}
			return nil
		}}, "data")
		require.ErrorIs(t, err, bourse.ErrStorage)
		require.ErrorIs(t, err, os.ErrPermission)
	}
}

// TestDirInUse: one broker a directory, of whatever process, until it closes or dies.
func TestDirInUse(t *testing.T) {
	noLeaks(t)
	dir := filepath.Join(t.TempDir(), "data")
	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.NoError(t, err)
	_, err = bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.ErrorIs(t, err, bourse.ErrDirInUse)
	require.NoError(t, b.Close())

	cmd := exec.Command(os.Args[0], "-test.run=^TestKillChild$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=run|%s|0", killEnv, dir))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "@ opened\n", line)
	_, err = bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.ErrorIs(t, err, bourse.ErrDirInUse)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	b, err = bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, b.Close())
}
