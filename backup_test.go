package bourse_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Goal: a backup that is taken while a broker works is a state of one moment of the call, with all that was confirmed before; nothing of a
// damaged, cut off or newer one is ever restored; half a restore is no log. Method: publishers and consumers beside backups, and what is
// restored compared with what was confirmed before and begun after; every kind of damage; disks that are full or lose power at any point.

// restored is a file system with what a backup holds.
func restored(t *testing.T, backup []byte) *storage.MemFS {
	t.Helper()
	files := new(storage.MemFS)
	require.NoError(t, files.Mkdir("data")) // it is there, but that is not durable
	require.NoError(t, storage.Restore(files, "data", bytes.NewReader(backup)))
	return files.Crash(storage.CrashLost, func(int) int { return 0 })
}

func TestBackupUnderLoad(t *testing.T) {
	noLeaks(t)
	b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, new(storage.MemFS))})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "kept"}, bourse.Queue{Name: "churn"}))
	var begun, confirmed atomic.Int64
	var stop atomic.Bool
	more := make(chan struct{}, 1) // each time that there are some more
	var wg sync.WaitGroup
	body := func(n int64) []byte { return bytes.Repeat([]byte(fmt.Sprint(n, " ")), int(n%500)+1) }
	wg.Go(func() { // ends by stop
		for n := int64(1); !stop.Load(); n++ {
			begun.Store(n)
			if err := b.Publish(ctx, bourse.Message{RoutingKey: "kept", ID: fmt.Sprint(n), Body: body(n)}); err != nil {
				t.Error(err)
				return
			}
			confirmed.Store(n)
			if n%50 == 0 {
				select {
				case more <- struct{}{}:
				default:
				}
			}
		}
	})
	wg.Go(func() { // likewise: segments are freed and used again all the time
		for !stop.Load() {
			err := b.Publish(ctx, bourse.Message{RoutingKey: "churn", Body: make([]byte, 3000)})
			d, failed := b.Get(ctx, "churn")
			if err := errors.Join(err, failed); err != nil {
				t.Error(err)
				return
			}
			if err := d.Ack(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 5 {
		<-more
		var backup bytes.Buffer
		least := confirmed.Load()
		require.NoError(t, b.Backup(ctx, &backup))
		most := begun.Load()
		copied, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, restored(t, backup.Bytes()))})
		require.NoError(t, err)
		n := int64(0)
		for m, err := range copied.Browse(ctx, "kept", bourse.BrowseOptions{}) {
			require.NoError(t, err)
			n++
			require.Equal(t, fmt.Sprint(n), m.ID, "they are there in order, without a gap")
			require.Equal(t, body(n), m.Body)
		}
		require.GreaterOrEqual(t, n, least, "what was confirmed before is there")
		require.LessOrEqual(t, n, most)
		send(t, copied, "kept", "it goes on")
		require.Equal(t, int(n)+1, stats(t, copied, "kept").Ready)
		require.NoError(t, copied.Close())
	}
	stop.Store(true)
	wg.Wait()
	require.NoError(t, b.Close())
}

// slowWriter does something before the first byte comes.
type slowWriter struct {
	bytes.Buffer
	before func()
}

func (w *slowWriter) Write(b []byte) (int, error) {
	if w.before != nil {
		w.before()
		w.before = nil
	}
	return w.Buffer.Write(b)
}

// TestBackupKeepsItsFiles: what a backup has not read yet is not used again, though nothing else needs it any more.
func TestBackupKeepsItsFiles(t *testing.T) {
	noLeaks(t)
	b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, new(storage.MemFS)), Compression: bourse.CompressOff})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}, bourse.Queue{Name: "churn"}))
	body := make([]byte, 3000)
	for n := range 60 { // in several segments
		body[0] = byte(n)
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: body}))
	}
	out := &slowWriter{before: func() {
		_, err := b.Purge(ctx, "q")
		require.NoError(t, err)
		for had := b.Stats().Storage.Checkpoints; b.Stats().Storage.Checkpoints < had+4; {
			require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "churn", Body: body}))
			d, err := b.Get(ctx, "churn")
			require.NoError(t, err)
			require.NoError(t, d.AckSync(ctx))
		}
	}}
	require.NoError(t, b.Backup(ctx, out))
	require.NoError(t, b.Close())
	copied, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, restored(t, out.Bytes()))})
	require.NoError(t, err)
	n := 0
	for m, err := range copied.Browse(ctx, "q", bourse.BrowseOptions{}) {
		require.NoError(t, err)
		require.Equal(t, byte(n), m.Body[0])
		n++
	}
	require.Equal(t, 60, n)
	require.NoError(t, copied.Close())
}

// backedUp is a broker with something of each kind in more than one segment, and its backup.
func backedUp(t *testing.T) (state string, backup []byte) {
	t.Helper()
	dir := t.TempDir()
	makeGolden(t, dir)
	b, _ := goldenBroker(t, dir+"/closed")
	state = wholeState(t, b)
	var out bytes.Buffer
	require.NoError(t, b.Backup(ctx, &out))
	require.NoError(t, b.Close())
	return state, out.Bytes()
}

func TestBackupIsWhole(t *testing.T) {
	noLeaks(t)
	want, backup := backedUp(t)
	dir := t.TempDir() + "/deep/down"
	require.NoError(t, bourse.Restore(dir, bytes.NewReader(backup)))
	b, _ := goldenBroker(t, dir)
	require.Equal(t, want, wholeState(t, b))
	require.NoError(t, b.Close())
	require.ErrorIs(t, bourse.Restore(dir, bytes.NewReader(backup)), fs.ErrExist, "never over a log")
}

// requireNoLog expects that a failed restore has left nothing that opens.
func requireNoLog(t *testing.T, files *storage.MemFS, what string) {
	t.Helper()
	names, err := files.ReadDir("data")
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		return
	}
	_, err = bourse.NewLocalEngine("data", bourse.LocalOptions{FS: files})
	require.ErrorIs(t, err, bourse.ErrForeignDir, "%s: it left %v", what, names)
}

func TestRestoreDamaged(t *testing.T) {
	_, backup := backedUp(t)
	try := func(what string, b []byte) {
		t.Helper()
		files := new(storage.MemFS)
		err := storage.Restore(files, "data", bytes.NewReader(b))
		var damaged *storage.BackupError
		if !errors.As(err, &damaged) && !errors.Is(err, storage.ErrForeign) {
			t.Errorf("%s: %v", what, err)
		}
		requireNoLog(t, files, what)
	}
	try("nothing", nil)
	try("another archive", make([]byte, 4096))
	// Where the content of each file begins, and how long it is.
	r := tar.NewReader(bytes.NewReader(backup))
	end := 0
	for at := 0; ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		for _, i := range []int64{0, h.Size / 2, h.Size - 1} {
			bad := bytes.Clone(backup)
			bad[at+512+int(i)] ^= 1
			try(fmt.Sprintf("byte %d of %s", i, h.Name), bad)
		}
		for _, i := range []int{0, 124, 150} { // name, size and checksum in the header
			bad := bytes.Clone(backup)
			bad[at+i] ^= 1
			try(fmt.Sprintf("byte %d of the header of %s", i, h.Name), bad)
		}
		end = at + 512 + int(h.Size)
		at = end + int(511-(h.Size+511)%512)
		try("the end in "+h.Name, backup[:end-1])
		try("a file that is left out: "+h.Name, append(bytes.Clone(backup[:at-(at-end)-int(h.Size)-512]), backup[at:]...))
	}
	for cut := 0; cut < end; cut += 997 {
		try(fmt.Sprintf("cut at %d", cut), backup[:cut])
	}
}

func TestRestoreDiskFull(t *testing.T) {
	_, backup := backedUp(t)
	files := new(storage.MemFS)
	require.NoError(t, storage.Restore(files, "data", bytes.NewReader(backup)))
	most := files.Used()
	for capacity := int64(0); capacity < most; capacity += most / 23 {
		small := new(storage.MemFS)
		small.SetCapacity(max(capacity, 1))
		err := storage.Restore(small, "data", bytes.NewReader(backup))
		require.ErrorIs(t, err, storage.ErrDiskFull)
		requireNoLog(t, small, fmt.Sprint("a disk of ", capacity))
		small.SetCapacity(0)
		require.NoError(t, storage.Restore(small, "data", bytes.NewReader(backup)), "once there is space")
	}
}

// cutReader fails at a point, as a process that is killed there.
type cutReader struct {
	r    io.Reader
	left int
	at   func()
}

func (c *cutReader) Read(b []byte) (int, error) {
	if c.left <= 0 {
		c.at()
	}
	n, err := c.r.Read(b[:min(len(b), 1500)])
	c.left -= n
	return n, err
}

func TestRestoreCutOff(t *testing.T) {
	_, backup := backedUp(t)
	for cut := 0; cut < len(backup); cut += len(backup) / 37 {
		for _, mode := range []storage.CrashMode{storage.CrashKept, storage.CrashLost} {
			files := new(storage.MemFS)
			var image *storage.MemFS
			source := &cutReader{bytes.NewReader(backup), cut, func() {
				if image == nil {
					image = files.Crash(mode, func(int) int { return 0 })
				}
			}}
			require.NoError(t, storage.Restore(files, "data", source))
			if image != nil {
				requireNoLog(t, image, fmt.Sprint("cut at ", cut))
			}
		}
	}
}

func TestBackupRefused(t *testing.T) {
	noLeaks(t)
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	require.NoError(t, err)
	over, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, b.Backup(over, io.Discard), over.Err())
	full := errors.New("no room")
	require.ErrorIs(t, b.Backup(ctx, failingWriter{full}), full)
	require.NoError(t, b.Backup(ctx, io.Discard), "of a broker in memory")
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Backup(ctx, io.Discard), bourse.ErrClosed)
	e, err := bourse.NewLocalEngine("", bourse.LocalOptions{})
	require.NoError(t, err)
	b, err = bourse.NewBroker(ctx, bourse.Options{Engine: bourse.PerQueue(e)})
	require.NoError(t, err)
	var invalid *bourse.InvalidError
	require.ErrorAs(t, b.Backup(ctx, io.Discard), &invalid)
	require.Equal(t, "Options.Engine", invalid.Field)
	require.NoError(t, b.Close())
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
