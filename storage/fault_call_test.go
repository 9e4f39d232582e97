package storage

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: every call of the file system may fail, and nothing that was reported is lost. Method: the application runs again and
// again, each time with another call failing, in a new directory or in one that a closed or a killed log has left; it closes, and
// is opened without faults; the model says what must be there, then, and still after a power cut. make faults runs it long.

var faultPoints = flag.Int("faults.points", 800, "calls that TestEveryCallFails makes fail, at least so many")

// callFault is a way in which a call fails. All are over with that call: the next one of the same kind succeeds.
type callFault struct {
	name    string
	err     error
	ops     string // the only operations that fail so; empty: any
	passes  bool   // the log never fails from it
	forgets bool   // the pages that could not be written are taken for clean, as some kernels do
}

var callFaults = []callFault{
	{name: "EIO", err: syscall.EIO},
	{name: "ENOSPC", err: syscall.ENOSPC},
	{name: "EMFILE", err: syscall.EMFILE, ops: "create, open, syncdir, readdir, lock", passes: true},
	{name: "short", err: ErrShortWrite, ops: "write"},
	{name: "forgotten sync", err: syscall.EIO, ops: "sync", forgets: true},
}

// faultCounts says what was tried.
type faultCounts struct {
	points, tolerated int
	ops               map[string]int
}

// failAt makes the n-th call fail and reports whether there were so many.
func failAt(t *testing.T, seed int64, c callFault, n int, counts *faultCounts) (reached bool) {
	what := fmt.Sprintf("seed %d, %s at call %d", seed, c.name, n)
	rng := rand.New(rand.NewSource(seed<<20 + int64(n)))
	fs, ops := &MemFS{}, []op(nil)
	fs.SetCapacity(1 << 30) // so that Free has an answer
	options := func(fs FS) Options {
		o := crashOptions(fs)
		o.MinFree = int64(seed % 2)
		return o
	}
	if seed%3 > 0 { // a directory that is there
		a := newApp()
		require.NoError(t, a.open("d", crashOptions(fs), nil), what)
		require.NoError(t, a.work(rng, 25), what)
		killed := fs.Crash(CrashKilled, nil)
		require.NoError(t, a.log.Close(), what)
		ops, _, _ = a.view()
		if seed%3 == 1 {
			fs = killed
		}
	}
	earlier := len(ops)
	var hit atomic.Pointer[string]
	ffs := &FaultFS{FS: fs, Rule: func(op, name string, call int) error {
		if call != n || c.ops != "" && !slices.Contains(strings.Split(c.ops, ", "), op) {
			return nil
		}
		hit.Store(&op)
		if c.forgets {
			_ = fs.forget(name) // an error: the file has another name by now
		}
		return c.err
	}}
	a := newApp()
	err := a.open("d", options(ffs), ops)
	if err == nil {
		err = a.work(rng, 40)
		if a.log.Stats().Failed {
			require.False(t, c.passes, what)
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
				require.ErrorIs(t, e, c.err, what)
				err = e
			}
		}
		ops, _, _ = a.view()
	}
	if err == nil {
		counts.tolerated++
	} else {
		require.True(t, errors.Is(err, c.err) || errors.Is(err, ErrDiskFull), "%s: %v", what, err)
	}
	_, synced, _ := a.view()
	b := newApp()
	require.NoError(t, b.open("d", crashOptions(fs), ops), what)
	require.GreaterOrEqual(t, int(b.last), max(synced, earlier), what)
	ops, _, _ = b.view()
	lost := fs.Crash(CrashLost, nil)
	require.NoError(t, b.log.Close(), what)
	d := newApp() // what was recovered is there for good
	require.NoError(t, d.open("d", crashOptions(lost), ops), what)
	require.Len(t, ops, int(d.last), what)
	require.NoError(t, d.log.Close(), what)
	if op := hit.Load(); op != nil {
		counts.points++
		counts.ops[*op]++
	}
	return hit.Load() != nil || ffs.Calls() >= n
}

func TestEveryCallFails(t *testing.T) {
	counts := faultCounts{ops: map[string]int{}}
	for seed := int64(0); counts.points < *faultPoints; seed++ {
		for _, c := range callFaults {
			for n, more := 1, true; more; n++ {
				within(20*time.Second, fmt.Sprintf("seed %d, %s at call %d", seed, c.name, n), func() {
					more = failAt(t, seed, c, n, &counts)
				})
			}
		}
	}
	each := ""
	for _, op := range sortedKeys(counts.ops) {
		each += fmt.Sprintf(", %s %d", op, counts.ops[op])
	}
	for _, op := range []string{ // no kind of call is left out
		"create", "open", "rename", "remove", "readdir", "mkdir", "syncdir", "free", "lock", "read", "write", "truncate",
		"allocate", "sync", "size",
	} {
		if *faultPoints >= 1000 {
			require.Positive(t, counts.ops[op], op)
		}
	}
	fmt.Printf("faults: %d points, %d of them without effect on the caller, 0 bad%s\n", counts.points, counts.tolerated, each)
}

// The sync that fails and forgets is the one of a segment that is full, so the records that are lost with it are not in the newest
// segment, and neither is the record that leads there.
func TestSyncThatForgetsAtTheEnd(t *testing.T) {
	fs := &MemFS{}
	var fail atomic.Bool
	ffs := &FaultFS{FS: fs, Rule: func(op, name string, _ int) error {
		if op == "sync" && strings.HasSuffix(name, "1.log") && fail.CompareAndSwap(true, false) {
			require.NoError(t, fs.forget(name))
			return syscall.EIO
		}
		return nil
	}}
	a := newApp()
	require.NoError(t, a.open("d", crashOptions(ffs), nil))
	for i := range 5 { // and no room for a sixth
		require.NoError(t, a.append(op{size: 600, sync: i < 3}))
		require.NoError(t, a.wait())
	}
	fail.Store(true)
	require.NoError(t, a.append(op{size: 600, sync: true}))
	require.ErrorIs(t, a.wait(), ErrFailed)
	require.ErrorIs(t, a.log.Close(), ErrFailed)
	ops, _, _ := a.view()

	b := newApp()
	require.NoError(t, b.open("d", crashOptions(fs), ops))
	require.EqualValues(t, 5, b.last)
	require.NoError(t, b.append(op{size: 600, sync: true, salt: 1}))
	require.NoError(t, b.wait())
	lost := fs.Crash(CrashLost, nil)
	ops, _, _ = b.view()
	require.NoError(t, b.log.Close())
	c := newApp()
	require.NoError(t, c.open("d", crashOptions(lost), ops))
	require.EqualValues(t, 6, c.last)
	require.NoError(t, c.log.Close())
}

// The sync that fails and forgets is the one of a checkpoint, and the syncer of the log comes to the same file at the same time: it
// must not report as durable what a later sync, with nothing left to do, succeeds for.
func TestSyncThatForgetsInACheckpoint(t *testing.T) {
	fs := &MemFS{}
	var armed, failed atomic.Bool
	entered, leave := make(chan struct{}), make(chan struct{})
	ffs := &FaultFS{FS: fs, Rule: func(op, name string, _ int) error {
		if op != "sync" || !strings.HasSuffix(name, "1.log") {
			return nil // another segment, which is made ready meanwhile
		}
		if armed.CompareAndSwap(true, false) {
			require.NoError(t, fs.forget(name))
			failed.Store(true)
			close(entered)
			<-leave
			return syscall.EIO
		} else if failed.Load() {
			t.Error("another sync while the first one fails")
		}
		return nil
	}}
	a := newApp()
	require.NoError(t, a.open("d", crashOptions(ffs), nil))
	require.NoError(t, a.append(op{size: 100}))
	require.NoError(t, a.wait())
	a.mu.Lock()
	m, state := a.log.Mark(), a.encode()
	a.mu.Unlock()
	armed.Store(true)
	end := make(chan error)
	go func() { end <- a.log.WriteCheckpoint(m, bytes.NewReader(state)) }()
	<-entered
	require.NoError(t, a.append(op{size: 100, sync: true}))
	for a.log.written.Load() < 2 {
		runtime.Gosched()
	}
	for range 1000 { // time for the syncer to go wrong
		runtime.Gosched()
	}
	close(leave)
	require.ErrorIs(t, <-end, syscall.EIO)
	require.ErrorIs(t, a.wait(), ErrFailed)
	require.ErrorIs(t, a.log.Close(), ErrFailed)
	_, synced, _ := a.view()
	require.Zero(t, synced)
}
