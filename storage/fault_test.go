package storage

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: a failed write or sync is final; a full disk is not. Method: rules that make single calls fail, and a MemFS of limited
// capacity. That every call may fail is tested in fault_call_test.go.

// A sync that fails once is not tried again, though it would succeed.
func TestFailedSyncIsFinal(t *testing.T) {
	var fail atomic.Bool
	ffs := &FaultFS{FS: &MemFS{}, Rule: func(op, name string, _ int) error {
		if op == "sync" && strings.HasSuffix(name, "1.log") && fail.CompareAndSwap(true, false) {
			return syscall.EIO
		}
		return nil
	}}
	c := newCollector()
	l, _ := open(t, "d", Options{FS: ffs, Commit: c.commit})
	require.NoError(t, l.Append(1, true, raw("a")))
	c.wait(1)
	fail.Store(true)
	require.NoError(t, l.Append(1, true, raw("b")))
	c.wait(2)
	require.ErrorIs(t, c.err, ErrFailed)
	require.ErrorIs(t, c.err, syscall.EIO)
	require.ErrorIs(t, l.Append(1, true, raw("c")), ErrFailed)
	b, err := l.Read(c.seen[0].Pos, 0, nil)
	require.NoError(t, err)
	require.Equal(t, "a", string(b))
	syncs := l.Stats().Syncs
	require.ErrorIs(t, l.Close(), ErrFailed)
	require.Equal(t, syncs, l.Stats().Syncs)
}

// The writer syncs a file before it goes on in the next one, and the kernel tells a failure once. A batch that the
// syncer has not come to yet must not take the next sync of that file for its own success.
func TestFailedSyncCoversWhatWaits(t *testing.T) {
	var fail atomic.Bool
	ffs := &FaultFS{FS: &MemFS{}, Rule: func(op, name string, _ int) error {
		if op == "sync" && strings.HasSuffix(name, "1.log") && fail.CompareAndSwap(true, false) {
			return syscall.EIO
		}
		return nil
	}}
	release := make(chan struct{}) // closed below: the committer may go on
	var outcomes []error           // one for each record; read after Close
	l, _ := open(t, "d", Options{FS: ffs, SegmentBytes: 4096, Commit: func(batch []Committed, err error) {
		<-release
		for range batch {
			outcomes = append(outcomes, err)
		}
	}})
	until := func(n *atomic.Uint64, sequence uint64) {
		for n.Load() < sequence {
			runtime.Gosched()
		}
	}
	first := l.Stats().Sequence
	const synced = 2 + commitAhead // one in the callback, one that the syncer cannot hand over
	for i := range uint64(synced) {
		require.NoError(t, l.Append(1, true, raw("synced")))
		until(&l.synced, first+i+1)
	}
	require.NoError(t, l.Append(1, true, raw("written")))
	until(&l.written, first+synced+1)
	fail.Store(true)
	require.NoError(t, l.Append(1, true, raw(strings.Repeat("x", 3800)))) // into the next segment
	for !l.Stats().Failed {
		runtime.Gosched()
	}
	close(release)
	require.ErrorIs(t, l.Close(), ErrFailed)
	require.Len(t, outcomes, synced+2)
	for i, err := range outcomes {
		if i < synced {
			require.NoError(t, err, "record %d", i)
		} else {
			require.ErrorIs(t, err, syscall.EIO, "record %d", i)
		}
	}
}

// A kernel may take pages that it failed to write for clean: they can be read, and no
// later sync writes them. What recovery counts it must write again.
func TestSyncThatForgets(t *testing.T) {
	fs := &MemFS{}
	var fail atomic.Bool
	ffs := &FaultFS{FS: fs, Rule: func(op, name string, _ int) error {
		if op == "sync" && fail.CompareAndSwap(true, false) {
			require.NoError(t, fs.forget(name))
			return syscall.EIO
		}
		return nil
	}}
	for _, before := range []int{0, 1, 3} {
		within(10*time.Second, "forgetting", func() {
			dir := fmt.Sprint(before)
			a := newApp()
			require.NoError(t, a.open(dir, Options{FS: ffs, SegmentBytes: testSegment}, nil))
			for range before {
				require.NoError(t, a.append(op{size: 600, sync: true}))
				require.NoError(t, a.wait())
			}
			for a.log.Stats().Spares < 2 { // so that no other sync is hit
				runtime.Gosched()
			}
			for !a.log.reserve.Load() {
				runtime.Gosched()
			}
			fail.Store(true)
			require.NoError(t, a.append(op{size: 600, sync: true}))
			require.ErrorIs(t, a.wait(), ErrFailed)
			require.ErrorIs(t, a.log.Close(), ErrFailed)

			ops, _, _ := a.view()
			b := newApp()
			require.NoError(t, b.open(dir, Options{FS: fs, SegmentBytes: testSegment}, ops))
			require.Equal(t, before+1, int(b.last))
			lost := fs.Crash(CrashLost, nil)
			require.NoError(t, b.log.Close())
			c := newApp()
			require.NoError(t, c.open(dir, Options{FS: lost, SegmentBytes: testSegment}, ops))
			require.Equal(t, before+1, int(c.last))
			require.NoError(t, c.log.Close())
		})
	}
}

// On a full disk data is refused and settling goes on; freeing makes room; after a
// checkpoint data is accepted again, without a new Open.
func TestDiskFullAndBack(t *testing.T) {
	for _, reopen := range []bool{false, true} {
		t.Run(fmt.Sprintf("reopen=%t", reopen), func(t *testing.T) {
			fs := &MemFS{}
			fs.SetCapacity(12 * testSegment)
			a := newApp()
			o := Options{FS: fs, SegmentBytes: testSegment, Spare: 2}
			require.NoError(t, a.open("d", o, nil))
			fill := func() {
				within(10*time.Second, "filling", func() {
					for {
						if err := a.append(op{size: 300, sync: true}); err != nil {
							require.ErrorIs(t, err, ErrDiskFull)
							break
						}
						require.NoError(t, a.wait())
					}
				})
			}
			for round := range 4 {
				fill()
				require.Equal(t, 1, a.log.Stats().Spares, "the reserve")
				if reopen {
					require.NoError(t, a.log.Close())
					ops, _, _ := a.view()
					a = newApp()
					require.NoError(t, a.open("d", o, ops))
					fill()
				}
				drain(t, a, fmt.Sprintf("round %d", round))
				within(10*time.Second, "recovering", func() {
					for {
						err := a.append(op{size: 300, sync: true})
						if err == nil {
							break
						}
						require.ErrorIs(t, err, ErrDiskFull)
					}
				})
				require.NoError(t, a.wait())
			}
			require.NoError(t, a.check())
			require.NoError(t, a.log.Close())
		})
	}
}

// drain takes everything away, by the reserve, with a checkpoint when that is used up.
func drain(t *testing.T, a *app, what string) {
	t.Helper()
	save := func() {
		require.NoError(t, a.wait(), what)
		// Nothing else runs, so the mark may be taken here.
		require.NoError(t, a.log.WriteCheckpoint(a.log.Mark(), bytes.NewReader(a.encode())), what)
	}
	within(10*time.Second, what, func() {
		for _, id := range sortedIDs(a.live) {
			for {
				err := a.append(op{drop: id})
				if err == nil {
					break
				}
				require.ErrorIs(t, err, ErrDiskFull, what)
				require.NoError(t, a.wait(), what)
				if a.log.Stats().Dead > 0 {
					save()
				}
			}
		}
		save()
	})
}

// Killed on a full disk again and again: it opens each time, and drains in the end.
func TestDiskFullKilled(t *testing.T) {
	fs := &MemFS{}
	fs.SetCapacity(10 * testSegment)
	var ops []op
	rng := newSource(1)
	for round := range 12 {
		a := newApp()
		o := Options{FS: fs, SegmentBytes: testSegment, Spare: 2}
		require.NoError(t, a.open("d", o, ops), "round %d", round)
		within(10*time.Second, "filling", func() {
			for a.append(op{size: 300, sync: true}) == nil {
				require.NoError(t, a.wait())
			}
		})
		require.NoError(t, a.wait())
		if round == 11 {
			drain(t, a, "at the end")
		}
		killed := fs.Crash(CrashKilled, rng.Intn)
		ops, _, _ = a.view()
		require.NoError(t, a.log.Close())
		fs = killed
	}
}

// A checkpoint on a full disk changes nothing, and uses the reserve if that helps.
func TestCheckpointDiskFull(t *testing.T) {
	fs := &MemFS{}
	a := newApp()
	require.NoError(t, a.open("d", Options{FS: fs, SegmentBytes: testSegment}, nil))
	require.NoError(t, a.append(op{size: 10, sync: true}))
	require.NoError(t, a.wait())
	within(10*time.Second, "preparing", func() {
		for !a.log.reserve.Load() {
			runtime.Gosched() // the preparer gives no other sign
		}
	})
	m := a.log.Mark()
	require.NoError(t, a.log.WriteCheckpoint(m, bytes.NewReader(a.encode())))
	names, err := fs.ReadDir("d")
	require.NoError(t, err)
	fs.SetCapacity(fs.Used())
	require.ErrorIs(t, a.log.WriteCheckpoint(m, bytes.NewReader(make([]byte, 2*testSegment))), ErrDiskFull)
	require.NoError(t, a.append(op{size: 10, sync: true}))
	require.NoError(t, a.wait())
	require.NoError(t, a.log.WriteCheckpoint(a.log.Mark(), bytes.NewReader(a.encode())), "by the reserve")
	require.NoError(t, a.log.Close())
	after, err := fs.ReadDir("d")
	require.NoError(t, err)
	require.Contains(t, names, reserveName)
	require.NotContains(t, after, reserveName)
	require.NotContains(t, strings.Join(after, " "), tempSuffix)
	ops, _, _ := a.view()
	b := newApp()
	require.NoError(t, b.open("d", Options{FS: fs, SegmentBytes: testSegment}, ops))
	require.Equal(t, 2, int(b.last))
	require.NoError(t, b.log.Close())
}
