package storage

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: a directory that a log has made does not go with a power cut, whoever made how much of it. Method: the process is killed at each
// call of the first open, and the next one at each of its own; another one goes on with what is there and confirms a record; then the
// power is cut.
func TestNewDirectoryIsThere(t *testing.T) {
	for _, dir := range []string{"d", "a/b/d", "/a/b/c/d"} {
		images := 0
		killed(t, dir, &MemFS{}, func(first *MemFS, at int) {
			killed(t, dir, first, func(second *MemFS, again int) {
				images++
				c := newCollector()
				l, _ := open(t, dir, Options{SegmentBytes: 1024, FS: second, Commit: c.commit})
				require.NoError(t, l.Append(1, true, raw("confirmed")))
				c.wait(1)
				cut := second.Crash(CrashLost, nil)
				require.NoError(t, l.Close())
				l, records := open(t, dir, Options{SegmentBytes: 1024, FS: cut})
				require.Len(t, records, 1, "%s, killed before call %d and then before call %d", dir, at, again)
				require.NoError(t, l.Close())
			})
		})
		require.Greater(t, images, 100)
	}
}

// killed opens a log on disk and closes it, and calls fn with what a kill before each of the calls leaves.
func killed(t *testing.T, dir string, disk *MemFS, fn func(left *MemFS, at int)) {
	var left []*MemFS
	l, _ := open(t, dir, Options{SegmentBytes: 1024, FS: &FaultFS{FS: disk, Rule: func(_, _ string, _ int) error {
		left = append(left, disk.Crash(CrashKilled, nil))
		return nil
	}}})
	require.NoError(t, l.Close())
	for i, image := range left {
		fn(image, i+1)
	}
}

// What was there before is as it was, and who may not look at what is above it can have a log below.
func TestMakeDir(t *testing.T) {
	base := t.TempDir()
	there := filepath.Join(base, "there")
	require.NoError(t, os.Mkdir(there, 0o755))
	for range 2 {
		require.NoError(t, makeDir(OS, there))
		require.NoError(t, makeDir(OS, filepath.Join(there, "x", "y")+"/"))
	}
	for name, mode := range map[string]fs.FileMode{there: 0o755, there + "/x": 0o700, there + "/x/y": 0o700} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.True(t, info.IsDir())
		require.Equal(t, mode, info.Mode().Perm(), name)
	}

	file := filepath.Join(base, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "d")} {
		_, err := Open(dir, Options{})
		require.ErrorIs(t, err, syscall.ENOTDIR)
	}

	hidden := &MemFS{}
	require.NoError(t, makeDir(hidden, "/home/me"))
	noEntry := &FaultFS{FS: hidden, Rule: func(op, name string, _ int) error {
		if (op == "readdir" || op == "syncdir") && (name == "/" || name == "/home") {
			return fmt.Errorf("%s %s: %w", op, name, fs.ErrPermission)
		}
		return nil
	}}
	require.NoError(t, makeDir(noEntry, "/home/me/app"))
	require.ErrorIs(t, makeDir(noEntry, "/home/other"), fs.ErrPermission, "its name would not be durable")
}
