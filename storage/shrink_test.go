package storage

import (
	"errors"
	"math/rand"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: Shrink makes the directory small, whatever is in it, and loses nothing. Method: bodies of which a known few stay, in every
// segment; the size of the directory behind Close. The crash and fault suites have it in their random work (app_test.go).

// scattered fills a log of which one body in every so many stays, and returns what stays in bytes.
func scattered(t *testing.T, a *app, n, every int) (live int64) {
	t.Helper()
	for i := range n {
		require.NoError(t, a.append(op{size: 100 + i%50, sync: i%20 == 0}))
		if id := uint64(len(a.ops)); i%every > 0 {
			require.NoError(t, a.append(op{drop: id}))
		} else {
			live += int64(recordSize(24 + 100 + i%50))
		}
		if i%100 == 99 {
			require.NoError(t, a.wait())
			require.NoError(t, a.writeCheckpoint(1))
		}
	}
	require.NoError(t, a.wait())
	return live
}

// segmentsIn is how many bytes the segments in a directory take.
func segmentsIn(t *testing.T, fs FS, dir string) (sum int64) {
	t.Helper()
	names, err := fs.ReadDir(dir)
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, segmentSuffix) {
			continue
		}
		f, err := fs.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		size, err := f.Size()
		require.NoError(t, errors.Join(err, f.Close()))
		sum += size
	}
	return sum
}

func TestShrink(t *testing.T) {
	for _, every := range []int{2, 3, 10, 200} {
		fs := &MemFS{}
		a := newApp()
		require.NoError(t, a.open("d", crashOptions(fs), nil))
		live := scattered(t, a, 3000, every)
		before, most := fs.Used(), int64(0)
		require.NoError(t, a.log.Shrink(func() error {
			most = max(most, fs.Used())
			return a.writeCheckpoint(1)
		}))
		require.LessOrEqual(t, most, before+10*testSegment, "one of %d stays: what can be freed is, before more is copied", every)
		require.NoError(t, errors.Join(a.wait(), a.check()))
		require.NoError(t, a.log.Shrink(func() error { return a.writeCheckpoint(1) }), "a second time")
		require.NoError(t, a.log.Close())
		after := segmentsIn(t, fs, "d")
		// What stays, with the home of each copy, the garbage that is not worth it, and the segments at the end of the log.
		require.LessOrEqual(t, after, live*5/4+live/10+2*testSegment, "one of %d stays", every)
		names, err := fs.ReadDir("d")
		require.NoError(t, err)
		require.NotContains(t, names, reserveName)

		b := newApp()
		require.NoError(t, b.open("d", crashOptions(fs), a.ops))
		require.Len(t, a.ops, int(b.last))
		require.NoError(t, b.work(rand.New(rand.NewSource(1)), 50), "it goes on")
		require.NoError(t, b.log.Close())
	}
}

// What cannot be read stays where it is, and is said; the rest is copied.
func TestShrinkDamage(t *testing.T) {
	fs := &MemFS{}
	a := newApp()
	var broken atomic.Bool
	var target atomic.Pointer[string] // the first that is read then
	ffs := &FaultFS{FS: fs, Rule: func(op, name string, _ int) error {
		if op == "read" && broken.Load() {
			if target.CompareAndSwap(nil, &name); *target.Load() == name {
				return syscall.EIO
			}
		}
		return nil
	}}
	require.NoError(t, a.open("d", crashOptions(ffs), nil))
	live := scattered(t, a, 1000, 10)
	broken.Store(true)
	require.ErrorIs(t, a.log.Shrink(func() error { return a.writeCheckpoint(1) }), syscall.EIO)
	broken.Store(false)
	require.NoError(t, errors.Join(a.wait(), a.check()))
	require.NoError(t, a.log.Close())
	after := segmentsIn(t, fs, "d")
	require.LessOrEqual(t, after, live*5/4+live/10+3*testSegment)
}

// A full disk is an error, and what was there is there.
func TestShrinkFull(t *testing.T) {
	fs := &MemFS{}
	a := newApp()
	require.NoError(t, a.open("d", crashOptions(fs), nil))
	scattered(t, a, 1000, 2)
	fs.SetCapacity(1)
	err := a.log.Shrink(func() error { return a.writeCheckpoint(1) })
	fs.SetCapacity(0)
	require.ErrorIs(t, err, ErrDiskFull)
	require.NoError(t, errors.Join(a.wait(), a.check()))
	for err != nil { // space is looked for again after each refusal
		require.ErrorIs(t, err, ErrDiskFull)
		err = a.log.Shrink(func() error { return a.writeCheckpoint(1) })
	}
	require.NoError(t, errors.Join(a.wait(), a.check()))
	require.NoError(t, a.log.Close())
	require.ErrorIs(t, a.log.Shrink(nil), ErrClosed)
}
