package storage

import (
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: no power cut loses what was reported with sync, reorders, or brings back what
// a recovery has cut off. Method: the application runs on a MemFS; before every call
// of the file system, every kind of crash is taken as a copy, and the copy is
// recovered and compared with the model. While it recovers, the same is done again at
// its calls. Then the recovered log is used further, crashed, and recovered once more.
// Run with -crash.seeds=200 for a long run.

var crashSeeds = flag.Int("crash.seeds", 3, "workloads to crash at every call")

type crashCounts struct{ calls, images, nested, again, moved atomic.Int64 }

// source is a seeded source that several goroutines may use.
type source struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func newSource(seed int64) *source { return &source{rng: rand.New(rand.NewSource(seed))} }

func (s *source) Intn(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Intn(n)
}

// image is a file system after a crash, and what must be found there.
type image struct {
	fs     *MemFS
	ops    []op // at most these
	synced int  // at least so many of them, whatever else happens
	found  int  // at least so many by the next recovery
	what   string
}

func crashOptions(fs FS) Options {
	return Options{FS: fs, SegmentBytes: testSegment, CacheBytes: -1}
}

// crashDir is made by the log, all of it.
const crashDir = "made/for/it"

// atEveryCall returns a rule that hands fn the crashes of fs before every call that
// changes something, for which pick says so. least and most bound what may be found.
func atEveryCall(fs *MemFS, what string, rng *source, pick func() bool, view func() (ops []op, synced, reported int),
	calls *atomic.Int64, fn func(image)) func(op, name string, n int) error {
	var mu sync.Mutex
	return func(op, name string, n int) error {
		if slices.Contains([]string{"read", "readdir", "size", "open", "lock"}, op) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		calls.Add(1)
		for _, mode := range CrashModes {
			if !pick() {
				continue
			}
			_, synced, reported := view() // before the crash: these must be in it
			found := synced
			switch mode {
			case CrashKept:
				synced, found = reported, reported
			case CrashKilled:
				found = reported
			}
			clone := fs.Crash(mode, rng.Intn)
			ops, _, _ := view() // after the crash: no more than these can be in it
			fn(image{clone, ops, synced, found, fmt.Sprintf("%s, call %d (%s %s) %s", what, n, op, name, mode)})
		}
		return nil
	}
}

func (a *app) view() (ops []op, synced, reported int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.ops), int(a.synced), int(a.reported)
}

// recoverImage recovers an image and goes on from there, and returns what is wrong.
func recoverImage(im image, rng *source, nested func() bool, n *crashCounts) error {
	n.images.Add(1)
	fault := &FaultFS{FS: im.fs}
	a := newApp()
	var deeper atomic.Pointer[error]
	if nested != nil {
		view := func() ([]op, int, int) {
			ops, synced, reported := a.view()
			return ops, max(synced, im.synced), max(reported, im.found)
		}
		var calls atomic.Int64
		fault.Rule = atEveryCall(im.fs, im.what, rng, nested, view, &calls, func(again image) {
			n.nested.Add(1)
			if err := recoverImage(again, rng, nil, n); err != nil {
				deeper.CompareAndSwap(nil, &err)
			}
		})
	}
	if err := a.open(crashDir, crashOptions(fault), im.ops); err != nil {
		return fmt.Errorf("%s: %w", im.what, err)
	}
	if int(a.last) < im.found {
		a.log.Close()
		return fmt.Errorf("%s: %d records recovered, not %d", im.what, a.last, im.found)
	}
	// What follows must replace what was cut off, for good.
	for range 3 {
		if err := a.append(op{salt: uint64(rng.Intn(1 << 30)), size: rng.Intn(200), sync: true}); err != nil {
			a.log.Close()
			return fmt.Errorf("%s: then: %w", im.what, err)
		}
	}
	if rng.Intn(2) == 0 {
		if err := a.writeCheckpoint(1); err != nil {
			a.log.Close()
			return fmt.Errorf("%s: then: %w", im.what, err)
		}
	}
	err := a.wait()
	_, synced, _ := a.view()
	crashed := im.fs.Crash(CrashModes[rng.Intn(len(CrashModes))], rng.Intn)
	ops, _, _ := a.view()
	if err = errors.Join(err, a.log.Close()); err == nil && deeper.Load() != nil {
		return *deeper.Load()
	} else if err != nil {
		return fmt.Errorf("%s: then: %w", im.what, err)
	}
	for i, fs := range []*MemFS{crashed, im.fs} { // crashed, and closed
		n.again.Add(1)
		b := newApp()
		if err := b.open(crashDir, crashOptions(fs), ops); err != nil {
			return fmt.Errorf("%s: again (%d): %w", im.what, i, err)
		}
		last := int(b.last)
		if err := b.log.Close(); err != nil {
			return fmt.Errorf("%s: again (%d): %w", im.what, i, err)
		}
		if last < synced || i == 1 && last != len(ops) {
			return fmt.Errorf("%s: again (%d): %d records recovered of %d, %d were synced", im.what, i, last, len(ops), synced)
		}
	}
	return nil
}

// crashWorkload runs one workload and returns the first thing that is wrong.
func crashWorkload(seed int64, steps int, share int, n *crashCounts) error {
	rng := rand.New(rand.NewSource(seed))
	inner := newSource(seed + 1<<32)
	fs := &MemFS{}
	a := newApp()
	var bad error
	var mu sync.Mutex
	fault := &FaultFS{FS: fs}
	fault.Rule = atEveryCall(fs, fmt.Sprintf("seed %d", seed), inner, func() bool { return true }, a.view, &n.calls, func(im image) {
		mu.Lock()
		defer mu.Unlock()
		if bad == nil {
			var nested func() bool
			if inner.Intn(8) == 0 {
				nested = func() bool { return inner.Intn(share) == 0 }
			}
			bad = recoverImage(im, inner, nested, n)
		}
	})
	if err := a.open(crashDir, crashOptions(fault), nil); err != nil {
		return err
	}
	err := errors.Join(a.work(rng, steps), a.check(), a.log.Close())
	n.moved.Add(a.log.Stats().Moved)
	return errors.Join(err, bad)
}

func TestCrashAtEveryCall(t *testing.T) {
	var n crashCounts
	for seed := range int64(*crashSeeds) {
		within(2*time.Minute, fmt.Sprintf("seed %d", seed), func() {
			require.NoError(t, crashWorkload(seed, 60, 8, &n), "seed %d", seed)
		})
	}
	require.Positive(t, n.moved.Load())
	fmt.Printf("crash: %d seeds, %d calls, %d images, %d of them in a recovery, %d recovered again, %d records moved, 0 bad\n",
		*crashSeeds, n.calls.Load(), n.images.Load(), n.nested.Load(), n.again.Load(), n.moved.Load())
}
