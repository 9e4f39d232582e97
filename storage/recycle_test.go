package storage

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: a segment that is in the file of a freed one is there after a power cut. Method: bodies come and go, checkpoints free segments,
// and each time the log has come to a file that was renamed, the power is cut.
func TestUsedAgainIsThere(t *testing.T) {
	fs := &MemFS{}
	var mu sync.Mutex
	renamed := map[string]bool{} // and the power was not cut yet
	ffs := &FaultFS{FS: fs, Rule: func(op, name string, _ int) error {
		if op == "rename" && strings.HasSuffix(name, segmentSuffix) {
			mu.Lock()
			defer mu.Unlock()
			renamed[name] = true
		}
		return nil
	}}
	a := newApp()
	require.NoError(t, a.open("d", crashOptions(ffs), nil))
	cuts := 0
	for i := uint64(0); cuts < 60; i++ {
		require.Less(t, i, uint64(20000), "files are not used again")
		require.NoError(t, a.append(op{size: 600, sync: true}))
		require.NoError(t, a.append(op{drop: uint64(len(a.ops)), sync: true}))
		require.NoError(t, a.wait())
		a.log.mu.Lock()
		name := a.log.segmentName(a.log.current.number)
		a.log.mu.Unlock()
		mu.Lock()
		cut := renamed[name]
		delete(renamed, name)
		mu.Unlock()
		if cut {
			cuts++
			lost := fs.Crash(CrashLost, nil)
			ops, synced, _ := a.view()
			b := newApp()
			require.NoError(t, b.open("d", crashOptions(lost), ops))
			require.GreaterOrEqual(t, int(b.last), synced)
			require.NoError(t, b.log.Close())
		}
		if i%8 == 7 {
			require.NoError(t, a.writeCheckpoint(1))
		}
	}
	require.NoError(t, a.log.Close())
}

// Goal: a file that could not be taken, since the directory could not be opened to sync it, is taken later. Method: that fails twice for
// each file; at the end the directory has no file that the log does not know.
func TestUsedAgainLater(t *testing.T) {
	fs := &MemFS{}
	var mu sync.Mutex
	failed := 0
	left := 0
	ffs := &FaultFS{FS: fs, Rule: func(op, name string, _ int) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case op == "rename" && strings.HasSuffix(name, segmentSuffix) && left == 0:
			left = 3
		case op == "syncdir" && left > 1:
			left--
			failed++
			return syscall.EMFILE
		case op == "syncdir" && left == 1:
			left = 0
		}
		return nil
	}}
	a := newApp()
	require.NoError(t, a.open("d", crashOptions(ffs), nil))
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return failed >= 40
	}
	append := func(o op) {
		for {
			if err := a.append(o); err == nil {
				return
			} else if !errors.Is(err, ErrDiskFull) {
				require.NoError(t, err)
			}
		}
	}
	for i := uint64(0); !enough(); i++ {
		require.Less(t, i, uint64(20000), "files are not used again")
		append(op{size: 600, sync: true})
		append(op{drop: uint64(len(a.ops)), sync: true})
		require.NoError(t, a.wait())
		if i%8 == 7 {
			if err := a.writeCheckpoint(1); !errors.Is(err, ErrDiskFull) {
				require.NoError(t, err)
			}
		}
	}
	require.NoError(t, a.log.Close())
	names, err := fs.ReadDir("d")
	require.NoError(t, err)
	known := map[string]bool{}
	l := a.log
	for _, s := range slices.Concat(l.spares, l.free, slices.Collect(maps.Values(l.segments)), slices.Collect(maps.Values(l.chain))) {
		known[filepath.Base(l.segmentName(s.number))] = true
	}
	for _, name := range names {
		if strings.HasSuffix(name, segmentSuffix) {
			require.True(t, known[name], name)
		}
	}
}
