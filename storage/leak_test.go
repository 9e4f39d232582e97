package storage

// Goal: an open that fails leaves no file open, wherever it fails. Method: files are counted while every call in turn fails, on what
// power cuts have left of a log.

import (
	"math/rand"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// countFS counts the files that are open.
type countFS struct {
	FS
	open atomic.Int64
}

func (c *countFS) Create(name string) (File, error) { return c.count(c.FS.Create(name)) }
func (c *countFS) Open(name string) (File, error)   { return c.count(c.FS.Open(name)) }

func (c *countFS) count(f File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &countFile{File: f, fs: c}, nil
}

type countFile struct {
	File
	fs   *countFS
	once sync.Once
}

func (f *countFile) Close() error {
	f.once.Do(func() { f.fs.open.Add(-1) })
	return f.File.Close()
}

func TestFailedOpenClosesAll(t *testing.T) {
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewSource(seed))
	for range 2 {
		fs := &MemFS{}
		a := newApp()
		require.NoError(t, a.open("d", crashOptions(fs), nil))
		require.NoError(t, a.work(rng, 60))
		for _, mode := range []CrashMode{CrashKept, CrashRandom, CrashTorn, CrashKilled} {
			left := fs.Crash(mode, rng.Intn)
			for n := 1; ; n++ {
				ffs := &FaultFS{FS: left.Crash(CrashKilled, rng.Intn), Rule: func(_, _ string, k int) error {
					if k == n {
						return syscall.EIO
					}
					return nil
				}}
				counted := &countFS{FS: ffs}
				ops, _, _ := a.view()
				b := newApp()
				err := b.open("d", crashOptions(counted), ops)
				if b.log != nil {
					_ = b.log.Close()
				}
				require.Zero(t, counted.open.Load(), "call %d of %v: %v", n, mode, err)
				if ffs.Calls() < n {
					break
				}
			}
		}
		require.NoError(t, a.log.Close())
	}
}

// An open that has cut the tail goes on in a segment that it has just made. If what comes next fails, that one is closed as well.
func TestFailedOpenClosesWhatItCutTo(t *testing.T) {
	fs := &MemFS{}
	c := newCollector()
	l, _ := open(t, "d", Options{FS: fs, SegmentBytes: testSegment, Commit: c.commit})
	require.NoError(t, l.Append(1, true, raw("a")))
	c.wait(1)
	first := l.segmentName(1)
	left := fs.Crash(CrashKilled, rand.Intn)
	require.NoError(t, l.Close())
	names, err := left.ReadDir("d")
	require.NoError(t, err)
	for _, name := range names { // no spare: the open makes two segments, one to go on in and then another
		if name = l.path(name); name != first && filepath.Ext(name) == filepath.Ext(first) {
			require.NoError(t, left.Remove(name))
		}
	}
	f, err := left.Open(first)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("what a cut write left"), testSegment/2)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())

	most := int64(0)
	for n := 1; ; n++ {
		var created atomic.Int64
		ffs := &FaultFS{FS: left.Crash(CrashKilled, rand.Intn), Rule: func(op, name string, k int) error {
			if op == "create" && filepath.Ext(name) == filepath.Ext(first) {
				created.Add(1)
			}
			if k == n {
				return syscall.EIO
			}
			return nil
		}}
		counted := &countFS{FS: ffs}
		again := newCollector()
		l, err := Open("d", Options{FS: counted, SegmentBytes: testSegment, Commit: again.commit})
		if err == nil {
			err = l.Replay(func([]Committed) error { return nil })
			_ = l.Close()
		}
		if err != nil {
			most = max(most, created.Load())
		}
		require.Zero(t, counted.open.Load(), "call %d: %v", n, err)
		if ffs.Calls() < n {
			break
		}
	}
	require.GreaterOrEqual(t, most, int64(2), "the open did not cut")
}

// A Close writes the end of the log, and takes a segment for what comes behind it. If that fails, all is closed as well.
func TestFailedCloseClosesAll(t *testing.T) {
	for n := int64(1); ; n++ {
		var armed atomic.Bool
		var calls atomic.Int64
		counted := &countFS{FS: &FaultFS{FS: &MemFS{}, Rule: func(string, string, int) error {
			if armed.Load() && calls.Add(1) == n {
				return syscall.EIO
			}
			return nil
		}}}
		a := newApp()
		require.NoError(t, a.open("d", crashOptions(counted), nil))
		require.NoError(t, a.append(op{size: 100, sync: true}))
		require.NoError(t, a.wait())
		armed.Store(true)
		err := a.log.Close()
		require.Zero(t, counted.open.Load(), "call %d: %v", n, err)
		if calls.Load() < n {
			require.Greater(t, n, int64(4), "a Close makes more calls")
			return
		}
	}
}
