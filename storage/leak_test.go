package storage

// Goal: an open that fails leaves no file open, wherever it fails. Method: files are counted while every call in turn fails, on what
// power cuts have left of a log.

import (
	"math/rand"
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
