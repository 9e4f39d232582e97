package bourse_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Goal: Compact makes a directory small while the broker works on, loses nothing, whatever is cut off under it, and ends when it is to.
// Method: publishers and consumers beside it, and what is found when the directory is opened again; each call of the file system
// failing in turn. The log alone: storage/shrink_test.go.

// remains publishes n messages to "q" and acks all but one in every so many of them. It returns the ids that stay.
func remains(t *testing.T, b *bourse.Broker, n, every int) (stay []string) {
	t.Helper()
	s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: n})
	require.NoError(t, err)
	body := make([]byte, 1000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(body) // it cannot fail
	for i := range n {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: fmt.Sprint("m", i), Body: body}))
		d, err := s.Next(ctx)
		require.NoError(t, err)
		if i%every == 0 {
			stay = append(stay, d.ID)
		} else {
			require.NoError(t, d.AckSync(ctx))
		}
	}
	require.NoError(t, s.Close())
	return stay
}

// idsIn are the ids in a queue, in order.
func idsIn(t *testing.T, b *bourse.Broker, queue string) (ids []string) {
	t.Helper()
	held, err := bourse.Browse(b, queue)
	require.NoError(t, err)
	for _, h := range held {
		ids = append(ids, h.Message.ID)
	}
	return ids
}

func TestCompact(t *testing.T) {
	noLeaks(t)
	fs := new(storage.MemFS)
	b, err := openFault(fs, "data")
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}, bourse.Queue{Name: "beside"}))
	stay := remains(t, b, 600, 3)
	var published []string
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { // ends by stop
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			id := fmt.Sprint("b", i)
			if err := b.Publish(ctx, bourse.Message{RoutingKey: "beside", ID: id, Body: make([]byte, 500)}); err != nil {
				t.Error(err)
				return
			}
			published = append(published, id)
		}
	})
	for range 2 { // two at once
		all.Go(func() {
			for range 3 {
				if err := b.Compact(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	require.NoError(t, b.Compact(ctx))
	close(stop)
	all.Wait()
	_, err = b.Purge(ctx, "beside")
	require.NoError(t, err)
	require.NoError(t, b.Compact(ctx))
	require.Equal(t, stay, idsIn(t, b, "q"))
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Compact(ctx), bourse.ErrClosed)

	require.Less(t, fs.Used(), int64(len(stay)*1100*9/8+(64<<10))) // segments of 64 KiB
	b, err = openFault(fs, "data")
	require.NoError(t, err)
	require.Equal(t, stay, idsIn(t, b, "q"))
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.Len(t, d.Body, 1000)
	require.NotEmpty(t, published)
	require.NoError(t, b.Close())
}

func TestCompactRefused(t *testing.T) {
	b, err := openFault(new(storage.MemFS), "data")
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	remains(t, b, 100, 2)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, b.Compact(gone), context.Canceled)
	require.NoError(t, b.Close())
}

// Each call of the file system fails in turn, once or from then on: what was confirmed is there.
func TestCompactFails(t *testing.T) {
	noLeaks(t)
	points := 0
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC, syscall.EMFILE} {
		for _, forever := range []bool{false, true} {
			for n, reached := 1, true; reached; n++ {
				what := fmt.Sprintf("%v at call %d of Compact, for ever: %t", fault, n, forever)
				fs := new(storage.MemFS)
				armed, calls := false, 0
				var mu sync.Mutex
				ffs := &storage.FaultFS{FS: fs, Rule: func(op, name string, _ int) error {
					mu.Lock()
					defer mu.Unlock()
					if armed {
						if calls++; calls == n || calls > n && forever {
							return fault
						}
					}
					return nil
				}}
				arm := func(on bool) {
					mu.Lock()
					defer mu.Unlock()
					armed = on
				}
				b, err := openFault(ffs, "data")
				require.NoError(t, err, what)
				require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}), what)
				stay := remains(t, b, 160, 2)
				arm(true)
				err = b.Compact(ctx)
				if err == nil {
					err = b.Close()
				} else {
					_ = b.Close() // with the same
				}
				if err != nil {
					require.True(t, errors.Is(err, bourse.ErrStorage) || errors.Is(err, bourse.ErrDiskFull), "%s: %v", what, err)
				}
				arm(false)
				if reached = calls >= n; reached {
					points++
				}
				for _, fs := range []*storage.MemFS{fs, fs.Crash(storage.CrashLost, nil)} {
					b, err = openFault(fs, "data")
					require.NoError(t, err, what)
					require.Equal(t, stay, idsIn(t, b, "q"), what)
					require.NoError(t, b.Close(), what)
				}
			}
		}
	}
	fmt.Printf("compact: %d calls failed under it, 0 lost\n", points)
}
