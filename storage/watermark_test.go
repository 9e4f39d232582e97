package storage

// Goal: with less than MinFree left, what adds is refused with the figures, and nothing else is; what is given back, by a drain or by
// others, is enough to go on, without a call; and a log that stands still below the watermark keeps no space that it does not need.
// Method: file systems in memory with a capacity, where every byte counts.

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// until waits for what the preparer does, which gives no other sign.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	within(10*time.Second, what, func() {
		for !ok() {
			runtime.Gosched()
		}
	})
}

// fillToMark appends until the disk is below the watermark, and returns the refusal.
func fillToMark(t *testing.T, a *app) (low *LowDiskError) {
	t.Helper()
	within(10*time.Second, "filling", func() {
		for {
			if err := a.append(op{size: 300, sync: true}); err != nil {
				require.ErrorIs(t, err, ErrDiskFull)
				require.ErrorAs(t, err, &low)
				return
			}
			require.NoError(t, a.wait())
		}
	})
	return low
}

// addsAgain waits until something can be added.
func addsAgain(t *testing.T, a *app) {
	t.Helper()
	until(t, "adding again", func() bool {
		err := a.append(op{size: 300, sync: true})
		if err != nil {
			require.ErrorIs(t, err, ErrDiskFull)
		}
		return err == nil
	})
	require.NoError(t, a.wait())
}

func TestWatermark(t *testing.T) {
	const minFree = 20 * testSegment
	fs := &MemFS{}
	fs.SetCapacity(40 * testSegment)
	a := newApp()
	o := Options{FS: fs, SegmentBytes: testSegment, MinFree: minFree}
	require.NoError(t, a.open("d", o, nil))
	for round := range 4 {
		low := fillToMark(t, a)
		require.Equal(t, &LowDiskError{"d", low.Free, minFree, low.Checkpoint}, low)
		require.Less(t, low.Free, minFree+low.Checkpoint)
		require.Equal(t, round > 0, low.Checkpoint > 0)
		// The segment that crosses it, and what is kept ready for the rest if records took the spares meanwhile.
		require.GreaterOrEqual(t, low.Free, int64(minFree-(1+leastSpare)*testSegment))
		require.ErrorIs(t, a.append(op{size: 300, sync: true}), ErrDiskFull, "the next one, too")
		st := a.log.Stats()
		require.True(t, st.Low)
		require.False(t, st.Full)
		require.Equal(t, fs.capacity.Load()-fs.Used(), st.Free)
		if round%2 == 1 { // the first that is added after an open is refused
			require.NoError(t, a.log.Close())
			fs.SetCapacity(fs.Used() + minFree - 1)
			ops, _, _ := a.view()
			a = newApp()
			require.NoError(t, a.open("d", o, ops))
			var low *LowDiskError
			require.ErrorAs(t, a.append(op{size: 300, sync: true}), &low)
			fs.SetCapacity(40 * testSegment)
		}
		for range 200 { // what adds nothing goes on, also into new segments
			require.NoError(t, a.append(op{size: 100}))
		}
		require.NoError(t, a.wait())
		require.NoError(t, a.check())
		drain(t, a, "draining")
		addsAgain(t, a)
		require.False(t, a.log.Stats().Low)
	}
	require.NoError(t, a.check())
	require.NoError(t, a.log.Close())
}

// What others take and give back counts as well, and prepared space is given back meanwhile.
func TestWatermarkOthers(t *testing.T) {
	const spare = 16
	fs := &MemFS{}
	fs.SetCapacity(1000 * testSegment)
	a := newApp()
	require.NoError(t, a.open("d", Options{FS: fs, SegmentBytes: testSegment, Spare: spare, MinFree: 100 * testSegment}, nil))
	spares := func(n int) func() bool { return func() bool { return a.log.Stats().Spares == n } }
	until(t, "preparing", spares(spare))
	for range 3 {
		fs.SetCapacity(fs.Used() + 80*testSegment) // more is missing than can be given back
		fillToMark(t, a)
		until(t, "giving back", spares(leastSpare))
		low := fillToMark(t, a)
		require.Less(t, low.Free, 100*testSegment+low.Checkpoint)
		fs.SetCapacity(1000 * testSegment)
		addsAgain(t, a)
		until(t, "preparing", func() bool { return a.log.Stats().Spares >= spare/2 })
	}
	require.NoError(t, a.check())
	require.NoError(t, a.log.Close())
}

// Spares are not made at the cost of the watermark.
func TestWatermarkSpares(t *testing.T) {
	const minFree = 20 * testSegment
	fs := &MemFS{}
	fs.SetCapacity(30 * testSegment)
	a := newApp()
	require.NoError(t, a.open("d", Options{FS: fs, SegmentBytes: testSegment, Spare: 100, MinFree: minFree}, nil))
	until(t, "preparing", func() bool { return a.log.reserve.Load() })
	require.NoError(t, a.append(op{size: 300, sync: true}))
	require.NoError(t, a.wait())
	require.GreaterOrEqual(t, a.log.Stats().Free, int64(minFree-testSegment), "but for the reserve")
	require.Greater(t, a.log.Stats().Spares, leastSpare)
	require.NoError(t, a.log.Close())
}

// The space of drained segments is given back where it is what keeps a log below the watermark.
func TestWatermarkSmallDisk(t *testing.T) {
	fs := &MemFS{}
	a := newApp()
	require.NoError(t, a.open("d", Options{FS: fs, SegmentBytes: testSegment}, nil))
	until(t, "preparing", func() bool { return a.log.reserve.Load() })
	require.NoError(t, a.log.Close())
	empty := fs.Used() + testSegment // another one when it is opened again

	const minFree = 4 * testSegment
	fs = &MemFS{}
	fs.SetCapacity(empty + minFree + 2*testSegment)
	a = newApp()
	require.NoError(t, a.open("d", Options{FS: fs, SegmentBytes: testSegment, MinFree: minFree}, nil))
	for range 20 {
		fillToMark(t, a)
		drain(t, a, "draining")
		addsAgain(t, a)
	}
	require.NoError(t, a.log.Close())
}

// The next checkpoint must fit as well, or nothing could be drained.
func TestWatermarkCheckpoint(t *testing.T) {
	const minFree, size = 10 * testSegment, 20 * testSegment
	fs := &MemFS{}
	fs.SetCapacity(80 * testSegment)
	a := newApp()
	o := Options{FS: fs, SegmentBytes: testSegment, MinFree: minFree}
	require.NoError(t, a.open("d", o, nil))
	require.NoError(t, a.append(op{size: 300, sync: true}))
	require.NoError(t, a.wait())
	require.NoError(t, a.log.WriteCheckpoint(a.log.Mark(), bytes.NewReader(make([]byte, size))))
	low := fillToMark(t, a)
	require.GreaterOrEqual(t, low.Checkpoint, int64(size))
	require.Less(t, low.Free, minFree+low.Checkpoint)
	require.Greater(t, low.Free, int64(minFree+size-3*testSegment))
	require.NoError(t, a.log.WriteCheckpoint(a.log.Mark(), bytes.NewReader(make([]byte, size))))
	require.NoError(t, a.log.Close())
}

// Where nobody can tell what is free there is no watermark, and one that cannot be told for a while stays as it was.
func TestWatermarkBlind(t *testing.T) {
	fs := &MemFS{}
	var fault atomic.Pointer[error]
	ffs := &FaultFS{FS: fs, Rule: func(op, _ string, _ int) error {
		if err := fault.Load(); err != nil && op == "free" {
			return *err
		}
		return nil
	}}
	fail := func(err error) { fault.Store(&err) }
	o := Options{FS: ffs, SegmentBytes: testSegment, MinFree: 10 * testSegment}
	for _, err := range []error{errors.ErrUnsupported, syscall.EIO} {
		fs.SetCapacity(5 * testSegment)
		fail(err)
		a := newApp()
		require.NoError(t, a.open("d", o, nil))
		require.NoError(t, a.append(op{size: 300, sync: true}), err)
		require.NoError(t, a.wait())
		require.EqualValues(t, -1, a.log.Stats().Free)
		drain(t, a, "draining")
		require.NoError(t, a.log.Close())
		require.NoError(t, removeAll(fs, "d"))
	}
	fault.Store(nil)
	a := newApp()
	require.NoError(t, a.open("d", o, nil))
	fillToMark(t, a)
	fail(syscall.EIO)
	require.ErrorIs(t, a.append(op{size: 300, sync: true}), ErrDiskFull)
	fs.SetCapacity(100 * testSegment)
	fault.Store(nil)
	addsAgain(t, a)
	require.NoError(t, a.log.Close())
}

func removeAll(fs FS, dir string) error {
	names, err := fs.ReadDir(dir)
	for _, n := range names {
		err = errors.Join(err, fs.Remove(filepath.Join(dir, n)))
	}
	return err
}

// Of the real one: what a file takes is not free any more.
func TestFreeOfTheSystem(t *testing.T) {
	dir := t.TempDir()
	free, err := OS.Free(dir)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.Positive(t, free)
	_, err = Shadow().Free(dir)
	require.NoError(t, err)
	_, err = OS.Free(filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = (&MemFS{}).Free("d")
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
