package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// Goal: compact makes a directory small, changes nothing of what is in it, and says what it could not do. Method: a directory with as much
// garbage as a broker at rest leaves; what dump shows before and after; the refusals of the other commands.

func TestCompact(t *testing.T) {
	dir := t.TempDir()
	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	const messages, size = 20_000, 4 << 10
	body := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(body) // it cannot fail
	s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: messages})
	require.NoError(t, err)
	batch := make([]bourse.Message, 1000)
	live := 0
	for range messages / len(batch) {
		for i := range batch {
			batch[i] = bourse.Message{RoutingKey: "q", Body: body}
		}
		require.NoError(t, b.PublishBatch(ctx, batch))
		for i := range batch {
			d, err := s.Next(ctx)
			require.NoError(t, err)
			if i%3 == 0 {
				live += size
				continue
			}
			require.NoError(t, d.Ack())
		}
	}
	require.NoError(t, b.Close())
	dump := func() string {
		status, out, errs := bourseOn("dump", dir)
		require.Equal(t, well, status, errs)
		return out
	}
	before, size0 := dump(), mustSize(t, dir)
	status, out, errs := bourseOn("compact", dir)
	require.Equal(t, well, status, errs)
	size1 := mustSize(t, dir)
	require.Equal(t, fmt.Sprintf("%d bytes on disk before, %d now\n", size0, size1), out)
	require.Less(t, size1, size0)
	require.Less(t, size1, int64(live)*9/8+(2<<20))
	require.Equal(t, before, dump())
	status, _, errs = bourseOn("compact", dir)
	require.Equal(t, well, status, errs)
	require.InDelta(t, size1, mustSize(t, dir), 1<<20, "there is nothing more to do")
	require.Equal(t, before, dump())
}

func mustSize(t *testing.T, dir string) int64 {
	t.Helper()
	n, err := sizeOf(dir)
	require.NoError(t, err)
	return n
}

func TestCompactRefused(t *testing.T) {
	dir := filled(t)
	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.NoError(t, err)
	status, _, errs := bourseOn("compact", dir)
	require.Equal(t, unknown, status)
	require.Contains(t, errs, "in use")
	require.NoError(t, b.Close())
	empty := t.TempDir()
	for _, args := range [][]string{{"compact"}, {"compact", dir, dir}, {"compact", empty}, {"compact", filepath.Join(dir, "none")}} {
		status, _, errs := bourseOn(args...)
		require.Equal(t, unknown, status, args)
		require.NotEmpty(t, errs, args)
	}
	require.Empty(t, files(t, empty), "nothing is put into it")
}
