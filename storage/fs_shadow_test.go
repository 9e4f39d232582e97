package storage

// Goal: a shadow shows what is on disk, keeps changes to itself, and writes nothing. Method: the same calls on a shadow and on a copy of
// the directory on disk, compared after each; the bytes and times of the original before and after.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShadowAsDisk(t *testing.T) {
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewSource(seed))
	original, copied := t.TempDir(), t.TempDir()
	names := []string{"a", "b", "c", "d", "e"}
	for _, n := range names[:3] {
		b := make([]byte, rng.Intn(3*shadowPage))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		for _, dir := range []string{original, copied} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, n), b, 0o600))
		}
	}
	before := picture(t, original)
	shadow := Shadow()
	type pair struct{ shadow, disk File }
	open := map[string]pair{}
	both := func(do func(fs FS, dir string) error) {
		got, want := do(shadow, original), do(OS, copied)
		require.Equal(t, want == nil, got == nil, "%v, %v", got, want)
		require.Equal(t, errors.Is(want, fs.ErrNotExist), errors.Is(got, fs.ErrNotExist), "%v, %v", got, want)
	}
	for range 3000 {
		name, other := names[rng.Intn(len(names))], names[rng.Intn(len(names))]
		p, isOpen := open[name]
		_, otherOpen := open[other]
		switch op := rng.Intn(12); {
		case op == 0 && !isOpen:
			var p pair
			both(func(fs FS, dir string) error {
				f, err := fs.Create(filepath.Join(dir, name))
				p.shadow, p.disk = p.disk, f
				return err
			})
			open[name] = pair{p.shadow, p.disk}
		case op <= 2 && !isOpen:
			var p pair
			both(func(fs FS, dir string) error {
				f, err := fs.Open(filepath.Join(dir, name))
				p.shadow, p.disk = p.disk, f
				return err
			})
			if p.disk != nil && p.shadow != nil {
				open[name] = pair{p.shadow, p.disk}
			}
		case op == 3 && isOpen:
			require.NoError(t, errors.Join(p.shadow.Close(), p.disk.Close()))
			delete(open, name)
		case op == 4 && !isOpen && !otherOpen && name != other:
			both(func(fs FS, dir string) error { return fs.Rename(filepath.Join(dir, name), filepath.Join(dir, other)) })
		case op == 5 && !isOpen:
			both(func(fs FS, dir string) error { return fs.Remove(filepath.Join(dir, name)) })
		case op == 6:
			a, err := shadow.ReadDir(original)
			require.NoError(t, err)
			b, err := OS.ReadDir(copied)
			require.NoError(t, err)
			require.ElementsMatch(t, b, a)
		case isOpen && op == 7:
			size := int64(rng.Intn(3 * shadowPage))
			require.NoError(t, errors.Join(p.shadow.Truncate(size), p.disk.Truncate(size)))
		case isOpen && op == 8:
			size := 1 + int64(rng.Intn(3*shadowPage))
			require.NoError(t, errors.Join(p.shadow.Allocate(size), p.disk.Allocate(size)))
		case isOpen && op == 9:
			b, off := bytes.Repeat([]byte{byte(op), byte(rng.Uint32())}, rng.Intn(shadowPage)), int64(rng.Intn(3*shadowPage))
			n, err := p.shadow.WriteAt(b, off)
			require.NoError(t, err)
			m, err := p.disk.WriteAt(b, off)
			require.NoError(t, err)
			require.Equal(t, m, n)
		case isOpen:
			a, b := make([]byte, rng.Intn(2*shadowPage)), []byte(nil)
			b = make([]byte, len(a))
			off := int64(rng.Intn(3 * shadowPage))
			n, got := p.shadow.ReadAt(a, off)
			m, want := p.disk.ReadAt(b, off)
			require.Equal(t, m, n)
			require.Equal(t, want == nil, got == nil, "%v, %v", got, want)
			require.True(t, got == nil || errors.Is(got, io.EOF), got)
			require.True(t, bytes.Equal(a[:n], b[:m]))
			size, err := p.shadow.Size()
			require.NoError(t, err)
			wanted, err := p.disk.Size()
			require.NoError(t, err)
			require.Equal(t, wanted, size)
		}
	}
	for _, p := range open {
		require.NoError(t, errors.Join(p.shadow.Close(), p.disk.Close()))
	}
	require.Equal(t, before, picture(t, original))
}

// picture is what is in a directory, with times.
func picture(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		all = append(all, fmt.Sprintf("%s %v %v %x", e.Name(), info.Mode(), info.ModTime().UnixNano(), b))
	}
	return all
}

// A log opened on a shadow is the log, and goes on; the directory stays as it was, byte for byte.
func TestShadowOfALog(t *testing.T) {
	dir, seed := t.TempDir(), rand.Int63()
	t.Logf("seed %d", seed)
	var ops []op
	session := func(fs FS, seed int64) {
		a := newApp()
		require.NoError(t, a.open(dir, Options{FS: fs, SegmentBytes: testSegment}, ops))
		require.NoError(t, a.check())
		require.NoError(t, a.work(rand.New(rand.NewSource(seed)), 200))
		require.NoError(t, a.check())
		require.NoError(t, a.log.Close())
		ops = a.ops
	}
	session(OS, seed)
	before := picture(t, dir)
	shadow := Shadow()
	for i := range int64(3) { // what one has written the next one finds
		session(shadow, seed+1+i)
	}
	require.Equal(t, before, picture(t, dir))
}

func TestShadowLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	none, err := Shadow().Lock(name)
	require.NoError(t, err)
	require.NoError(t, none.Close())
	require.NoFileExists(t, name, "it makes nothing")
	writer, err := OS.Lock(name)
	require.NoError(t, err)
	_, err = Shadow().Lock(name)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, writer.Close())
	one, err := Shadow().Lock(name)
	require.NoError(t, err)
	_, err = OS.Lock(name)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, one.Close())
}
