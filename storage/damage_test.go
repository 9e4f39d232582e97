package storage

import (
	"errors"
	"fmt"
	"math/rand"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: changed bytes are never taken for what was written. Method: a small directory
// is damaged in every byte, cut at every length, robbed of every file, and has its
// files exchanged; each time it is opened and everything in it is read. Allowed: the
// same content, or an error that names the file. After a crash, not after a close, the
// last batch may be missing.

// golden is a directory, closed in good order or as left by a killed process.
func golden(t *testing.T, closed bool) (*MemFS, []op, int) {
	fs := &MemFS{}
	a := newApp()
	require.NoError(t, a.open("d", crashOptions(fs), nil))
	require.NoError(t, a.work(rand.New(rand.NewSource(3)), 45))
	for range 5 { // batches of their own, behind the checkpoint
		require.NoError(t, a.append(op{size: 100, sync: true}))
		require.NoError(t, a.wait())
	}
	_, synced, _ := a.view()
	require.NoError(t, a.append(op{size: 100, sync: true}))
	require.NoError(t, a.wait())
	killed := fs.Crash(CrashKept, nil)
	ops, _, _ := a.view()
	require.NoError(t, a.log.Close())
	if closed {
		return fs, ops, len(ops)
	}
	return killed, ops, synced
}

// tryDamaged opens a damaged directory. It returns false if that was not noticed and
// did no harm, and fails the test if it did harm.
func tryDamaged(t *testing.T, fs *MemFS, file, what string, ops []op, least int) bool {
	t.Helper()
	a := newApp()
	var err error
	within(20*time.Second, what, func() {
		if err = a.open("d", crashOptions(fs), ops); err == nil {
			require.GreaterOrEqual(t, int(a.last), least, what)
			require.NoError(t, a.log.Close(), what)
		}
	})
	if err == nil {
		return false
	}
	require.NotErrorIs(t, err, errModel, what)
	var c *CorruptError
	if errors.As(err, &c) {
		if file != "" {
			require.Contains(t, file+" ", filepath.Base(c.File), what)
		}
		return true
	}
	require.ErrorIs(t, err, ErrForeign, "%s: %v", what, err)
	require.Contains(t, what, formatName)
	return true
}

func dataFiles(t *testing.T, fs *MemFS) []string {
	names, err := fs.ReadDir("d")
	require.NoError(t, err)
	var out []string
	for _, n := range names {
		if n != lockName && n != reserveName && !strings.HasSuffix(n, tempSuffix) {
			out = append(out, n)
		}
	}
	return out
}

func openMem(t *testing.T, fs *MemFS, name string) (File, int64) {
	f, err := fs.Open(filepath.Join("d", name))
	require.NoError(t, err)
	size, err := f.Size()
	require.NoError(t, err)
	return f, size
}

func TestDamage(t *testing.T) {
	for _, closed := range []bool{true, false} {
		good, ops, least := golden(t, closed)
		require.False(t, tryDamaged(t, good.Crash(CrashKept, nil), "", "no damage", ops, len(ops)))
		opens, noticed := 0, 0
		try := func(fs *MemFS, file, what string) {
			what = fmt.Sprintf("closed %t: %s", closed, what)
			opens++
			if tryDamaged(t, fs, file, what, ops, least) {
				noticed++
			}
		}
		names := dataFiles(t, good)
		for _, name := range names {
			_, size := openMem(t, good, name)
			for i := range size {
				if !closed && i%5 != 0 {
					continue
				}
				fs := good.Crash(CrashKept, nil)
				f, _ := openMem(t, fs, name)
				var b [1]byte
				_, err := f.ReadAt(b[:], i)
				require.NoError(t, err)
				b[0] ^= 1 << (i % 8)
				_, err = f.WriteAt(b[:], i)
				require.NoError(t, err)
				try(fs, name, fmt.Sprintf("flip at %d of %s", i, name))
				if i%7 == 0 && closed {
					fs := good.Crash(CrashKept, nil)
					f, _ := openMem(t, fs, name)
					require.NoError(t, f.Truncate(i))
					try(fs, "", fmt.Sprintf("cut %s at %d", name, i))
				}
			}
			if closed {
				fs := good.Crash(CrashKept, nil)
				require.NoError(t, fs.Remove(filepath.Join("d", name)))
				if !strings.HasSuffix(name, checkSuffix) { // without it, the first segment is asked for
					try(fs, "", "remove "+name)
				}
				for _, other := range names {
					if name < other && filepath.Ext(name) == filepath.Ext(other) {
						fs := good.Crash(CrashKept, nil)
						for _, r := range [][2]string{{name, "x"}, {other, name}, {"x", other}} {
							require.NoError(t, fs.Rename(filepath.Join("d", r[0]), filepath.Join("d", r[1])))
						}
						try(fs, "", fmt.Sprintf("swap %s and %s", name, other))
					}
				}
			}
		}
		fmt.Printf("damage: closed %t, %d opens, %d noticed, %d harmless, 0 silent\n", closed, opens, noticed, opens-noticed)
	}
}
