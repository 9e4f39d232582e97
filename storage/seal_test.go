package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: what a Sealer fills in last is what is written, reported, read and replayed, and it is filled in once, in log order, also by a
// log that fails. Method: records of many sizes, between others that are complete from the start.

// late is a payload of n bytes that are not known before Seal.
type late struct {
	id     uint64
	n      int
	sealed *[]uint64 // by the writer
}

func (p *late) AppendTo(dst []byte) []byte { return append(dst, make([]byte, p.n)...) }

func (p *late) Seal(data []byte) {
	*p.sealed = append(*p.sealed, p.id)
	copy(data, p.content())
}

func (p *late) content() []byte {
	return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, p.id), p.n/8)
}

func TestSealer(t *testing.T) {
	c := newCollector()
	fs := &MemFS{}
	l, _ := open(t, "d", Options{FS: fs, SegmentBytes: 1 << 14, Commit: c.commit})
	const n = 2000
	var sealed, ids []uint64
	var want [][]byte
	for i := range n {
		if i%3 == 0 {
			b := bytes.Repeat([]byte{byte(i)}, i%700)
			want = append(want, b)
			require.NoError(t, l.Append(1, i%9 == 0, raw(b)))
			continue
		}
		p := &late{id: uint64(i), n: 8 * (i % 90), sealed: &sealed}
		if i%500 == 1 {
			p.n = 1 << 15 // longer than a segment
		}
		want, ids = append(want, p.content()), append(ids, p.id)
		require.NoError(t, l.Append(1, i%7 == 0, p))
	}
	for i, r := range c.wait(n) {
		require.True(t, bytes.Equal(want[i], r.Data), "record %d", i)
		l.Keep(r.Pos, 1)
		b, err := l.Read(r.Pos, len(r.Data), nil)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[i], b), "record %d", i)
	}
	require.NoError(t, l.Close())
	require.Equal(t, ids, sealed)
	l, again := open(t, "d", Options{FS: fs})
	defer l.Close()
	require.Len(t, again, n)
	for i, r := range again {
		require.True(t, bytes.Equal(want[i], r.Data), "record %d", i)
	}
}

func TestSealerOfAFailedLog(t *testing.T) {
	c := newCollector()
	var failing atomic.Bool
	fs := &FaultFS{FS: &MemFS{}, Rule: func(op, _ string, _ int) error {
		if op == "sync" && failing.Load() {
			return errors.New("no more")
		}
		return nil
	}}
	l, _ := open(t, "d", Options{FS: fs, Commit: c.commit})
	var sealed, ids []uint64
	for i := uint64(1); ; i++ {
		failing.Store(i > 100)
		if err := l.Append(1, true, &late{id: i, n: 64, sealed: &sealed}); err != nil {
			require.ErrorIs(t, err, ErrFailed)
			break
		}
		ids = append(ids, i)
	}
	require.ErrorIs(t, l.Close(), ErrFailed)
	require.Equal(t, ids, sealed)
}
