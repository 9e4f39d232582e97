package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: every call of the file system may fail, and nothing that was reported is
// lost; a failed write or sync is final; a full disk is not. Method: the application
// runs again and again, each time with another call failing, closes, and is opened
// without faults; the model says what must be there. The rules of a full disk are
// tested by a MemFS of limited capacity.

func TestEveryCallFails(t *testing.T) {
	points, tolerated := 0, 0
	for name, fault := range map[string]error{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC, "EMFILE": syscall.EMFILE, "short": ErrShortWrite} {
		for n := 1; ; n++ {
			what := fmt.Sprintf("%s at call %d", name, n)
			fs := &MemFS{}
			var hit atomic.Bool
			ffs := &FaultFS{FS: fs, Rule: func(op, _ string, call int) error {
				if call != n || name == "short" && op != "write" {
					return nil
				}
				hit.Store(true)
				return fault
			}}
			a := newApp()
			within(20*time.Second, what, func() {
				rng := rand.New(rand.NewSource(int64(n)))
				err := a.open("d", crashOptions(ffs), nil)
				if err == nil {
					err = a.work(rng, 40)
					if a.log.Stats().Failed {
						require.ErrorIs(t, a.log.Append(1, false, op{}), ErrFailed, what)
						require.ErrorIs(t, a.log.WriteCheckpoint(Mark{}, nil), ErrFailed, what)
						require.ErrorIs(t, a.log.Close(), ErrFailed, what)
						require.ErrorIs(t, a.log.Close(), ErrFailed, what)
					} else {
						if errors.Is(err, ErrDiskFull) {
							// The fault was a single one: it goes on by itself.
							for errors.Is(err, ErrDiskFull) {
								err = a.append(op{salt: 1, sync: true})
							}
							require.NoError(t, errors.Join(err, a.wait()), what)
						}
						if e := a.log.Close(); e != nil { // by a goroutine, after the look at Stats
							require.ErrorIs(t, e, fault, what)
							err = e
						}
					}
				}
				if err == nil {
					tolerated++
				} else {
					require.True(t, errors.Is(err, fault) || errors.Is(err, ErrDiskFull), "%s: %v", what, err)
				}
				ops, synced, _ := a.view()
				b := newApp()
				require.NoError(t, b.open("d", crashOptions(fs), ops), what)
				require.GreaterOrEqual(t, int(b.last), synced, what)
				require.NoError(t, b.log.Close(), what)
			})
			points++
			if !hit.Load() && ffs.Calls() < n {
				break
			}
		}
	}
	fmt.Printf("faults: %d points, %d of them without effect on the caller, 0 bad\n", points, tolerated)
}

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
				for _, id := range sortedIDs(a.live) { // one by one, by the reserve
					require.NoError(t, a.append(op{drop: id}), "round %d", round)
				}
				require.NoError(t, a.wait())
				m := a.log.Mark() // nothing else runs
				require.NoError(t, a.log.WriteCheckpoint(m, bytes.NewReader(a.encode())))
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
			for _, id := range sortedIDs(a.live) {
				require.NoError(t, a.append(op{drop: id}), "round %d", round)
			}
			require.NoError(t, a.wait())
			require.NoError(t, a.log.WriteCheckpoint(a.log.Mark(), bytes.NewReader(a.encode())))
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
			time.Sleep(time.Millisecond) // lint: the preparer has no other sign
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
