package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: freed segments come back into use while everything else goes on, and a reader
// that is late gets ErrGone or the right bytes, never others. Method: one goroutine
// appends, Commit keeps and frees all but the newest, checkpoints are written beside
// it, and readers read what is kept and what is not any more.

func TestReclaimBesideReaders(t *testing.T) {
	const window, total = 50, 20_000
	var (
		l       *Log
		mu      sync.Mutex
		recent  []Committed // kept ones, without Data, and as many that are freed
		saving  atomic.Bool
		saves   sync.WaitGroup
		count   atomic.Int64
		written atomic.Int64
		done    = make(chan struct{})
	)
	body := func(seq uint64) []byte {
		return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, seq), 1+int(seq%40))
	}
	commit := func(batch []Committed, err error) {
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, c := range batch {
			l.Keep(c.Pos, 2)
			l.Free(c.Pos)
			c.Data, c.Stream = nil, binary.LittleEndian.Uint64(c.Data)
			recent = append(recent, c)
			if len(recent) > window {
				l.Free(recent[len(recent)-1-window].Pos)
			}
		}
		recent = recent[max(0, len(recent)-2*window):]
		if l.SinceCheckpoint() > 8*testSegment && saving.CompareAndSwap(false, true) {
			m := l.Mark()
			saves.Go(func() {
				err := l.WriteCheckpoint(m, bytes.NewReader([]byte("state")))
				if err != nil && !errors.Is(err, ErrClosed) { // the last one may be late
					t.Error(err)
				}
				written.Add(1)
				saving.Store(false)
			})
		}
		if n := int64(len(batch)); count.Add(n) == total && n > 0 {
			close(done)
		}
	}
	l, _ = open(t, "d", Options{FS: &MemFS{Volatile: true}, SegmentBytes: testSegment, CacheBytes: -1, Commit: commit})
	var readers sync.WaitGroup
	var gone, right atomic.Int64
	for g := range 2 {
		readers.Go(func() {
			for i := g; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				mu.Lock()
				if len(recent) == 0 {
					mu.Unlock()
					continue
				}
				at := i % len(recent)
				c, kept := recent[at], len(recent)-at <= window/2
				mu.Unlock()
				b, err := l.Read(c.Pos, 0, nil)
				switch {
				case err == nil:
					right.Add(1)
					if !bytes.Equal(b, body(c.Stream)) {
						t.Errorf("record %d reads back other bytes", c.Sequence)
					}
				case !errors.Is(err, ErrGone) || kept && count.Load() < window/2:
					t.Error(err)
				default:
					gone.Add(1)
				}
			}
		})
	}
	within(time.Minute, "appending", func() {
		for i := range uint64(total) {
			if err := l.Append(1, i%16 == 0, raw(body(i))); err != nil {
				t.Fatal(err)
			}
			for i%500 == 0 && count.Load()+500 < int64(i) { // many batches, not a few large ones
				runtime.Gosched()
			}
		}
		<-done
	})
	readers.Wait()
	require.Positive(t, right.Load())
	require.Positive(t, written.Load())

	// At rest: what is kept, and the spares.
	require.NoError(t, l.Append(1, true, raw(body(total))))
	require.NoError(t, l.Close())
	saves.Wait()
	st := l.Stats()
	require.EqualValues(t, window, st.Live)
	require.Less(t, st.Bytes, int64(4<<20), "%+v", st)
	t.Logf("%d reads right, %d gone, %d checkpoints, %+v", right.Load(), gone.Load(), written.Load(), st)
}
