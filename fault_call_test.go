package bourse_test

// Goal: whichever call of the file system fails, once or from then on, the broker says so by a typed error, and nothing that was
// confirmed is lost, nor does anything come back that was settled for certain. Method: a broker in memory, in a new directory or in
// one that a broker has left, runs again and again, each time with another call failing; then it is opened without faults and
// compared with what was answered. make faults runs it long.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

var faultPoints = flag.Int("faults.points", 600, "calls that TestFaultEveryCall makes fail, at least so many")

func TestFaultEveryCall(t *testing.T) {
	noLeaks(t)
	points, ops := 0, map[string]int{}
	for seed := uint64(0); points < *faultPoints; seed++ {
		for _, fault := range []error{syscall.EIO, syscall.ENOSPC, syscall.EMFILE, storage.ErrShortWrite} {
			for _, forever := range []bool{false, true} {
				for n := 1; ; n++ {
					f := faultRun{seed: seed, n: n, fault: fault, forever: forever}
					more := f.run(t)
					if op := f.hit.Load(); op != nil {
						points++
						ops[*op]++
					}
					if !more {
						break
					}
				}
			}
		}
	}
	fmt.Printf("faults: %d points in a broker, 0 lost %v\n", points, ops)
}

// faultRun is a broker whose n-th call fails.
type faultRun struct {
	seed             uint64
	n                int
	fault            error
	forever          bool
	hit              atomic.Pointer[string] // the operation that failed first
	confirmed, acked []string
}

// run reports whether there were so many calls.
func (f *faultRun) run(t *testing.T) (reached bool) {
	what := fmt.Sprintf("seed %d, %v at call %d, for ever: %t", f.seed, f.fault, f.n, f.forever)
	rng := rand.New(rand.NewPCG(f.seed, uint64(f.n)))
	fs := &storage.MemFS{}
	if f.seed%3 > 0 { // a directory that is there
		b, err := openFault(fs, "data")
		require.NoError(t, err, what)
		require.NoError(t, f.work(t, b, rng, "before", what), what)
		if f.seed%3 == 1 {
			killed := fs.Crash(storage.CrashKilled, rng.IntN)
			require.NoError(t, b.Close(), what)
			fs = killed
		} else {
			require.NoError(t, b.Close(), what)
		}
	}
	var off atomic.Bool
	ffs := &storage.FaultFS{FS: fs, Rule: func(op, name string, k int) error {
		if off.Load() || k < f.n || k > f.n && !f.forever || errors.Is(f.fault, storage.ErrShortWrite) && op != "write" {
			return nil
		}
		f.hit.CompareAndSwap(nil, &op)
		return &os.PathError{Op: op, Path: name, Err: f.fault}
	}}
	b, err := openFault(ffs, "data")
	if err == nil {
		err = f.work(t, b, rng, "m", what)
		if closed := b.Close(); err == nil {
			err = closed
		}
	}
	if err != nil {
		full := errors.Is(f.fault, syscall.ENOSPC) || errors.Is(f.fault, syscall.EMFILE)
		typed := errors.Is(err, bourse.ErrStorage) || full && errors.Is(err, bourse.ErrDiskFull)
		require.True(t, typed, "%s: %v", what, err)
		require.NotNil(t, f.hit.Load(), "%s: %v", what, err)
	}
	off.Store(true)
	reached = ffs.Calls() >= f.n
	b, err = openFault(fs, "data")
	require.NoError(t, err, what)
	f.compare(t, b, what)
	lost := fs.Crash(storage.CrashLost, rng.IntN)
	require.NoError(t, b.Close(), what)
	b, err = openFault(lost, "data") // what was found is there for good
	require.NoError(t, err, what)
	f.compare(t, b, what+", then a power cut")
	require.NoError(t, b.Close(), what)
	return reached
}

// compare looks for what was confirmed.
func (f *faultRun) compare(t *testing.T, b *bourse.Broker, what string) {
	t.Helper()
	var found []string
	if _, ok := b.QueueStats("q"); ok {
		held, err := bourse.Browse(b, "q")
		require.NoError(t, err, what)
		for _, h := range held {
			require.NotContains(t, found, h.Message.ID, what)
			found = append(found, h.Message.ID)
		}
	}
	for _, id := range f.confirmed {
		require.Equal(t, !slices.Contains(f.acked, id), slices.Contains(found, id), "%s: %s, found %v", what, id, found)
	}
}

// work publishes and acks until something fails.
func (f *faultRun) work(t *testing.T, b *bourse.Broker, rng *rand.Rand, name, what string) error {
	bounded, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	if err := b.Declare(bounded, bourse.Queue{Name: "q"}); err != nil {
		return err
	}
	s, err := b.Subscribe(bounded, "q", bourse.SubscribeOptions{Prefetch: 1})
	if err != nil {
		return err
	}
	for i := range 8 {
		id, size := fmt.Sprint(name, i), 30_000
		if f.seed > 0 {
			size = 20_000 + rng.IntN(20_000)
		}
		err := b.Publish(bounded, bourse.Message{RoutingKey: "q", ID: id, Body: make([]byte, size)})
		require.NotErrorIs(t, err, context.DeadlineExceeded, what)
		if err != nil {
			return err
		}
		f.confirmed = append(f.confirmed, id)
		if i%2 == 1 {
			continue
		}
		d, err := s.Next(bounded)
		require.NotErrorIs(t, err, context.DeadlineExceeded, what)
		if err != nil {
			return err
		}
		if err := d.AckSync(bounded); err != nil {
			require.NotErrorIs(t, err, context.DeadlineExceeded, what)
			f.confirmed = slices.DeleteFunc(f.confirmed, func(c string) bool { return c == d.ID }) // may be gone
			return err
		}
		f.acked = append(f.acked, d.ID)
	}
	return nil
}
