package storage

import (
	"encoding/binary"
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizeClass(t *testing.T) {
	last := uint8(0)
	for size := recordBytes; size < 1<<30; size += 8 + size/100*8 {
		c := sizeClass(size)
		require.InEpsilon(t, size, classBytes(c), 1.0/15, "size %d", size)
		require.GreaterOrEqual(t, c, last)
		last = c
	}
	require.InEpsilon(t, recordSize(maxPayload), classBytes(sizeClass(recordSize(maxPayload))), 1.0/15)
}

func TestRollFinds(t *testing.T) {
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewSource(seed))
	for range 300 {
		r, at := &roll{}, uint32(headerBytes)
		there := map[uint32]bool{}
		for range rng.Intn(300) {
			step := 8 * (1 + rng.Intn(200))
			if rng.Intn(20) == 0 {
				step <<= 14
			}
			at += uint32(step)
			there[at] = true
			r.insert(Position(at), len(r.offsets), step)
		}
		for range 20 { // late ones
			o := uint32(8 * (1 + rng.Intn(int(at)/8)))
			if i, found := r.find(o); !found {
				r.insert(Position(o), i, 8)
				there[o] = true
			}
		}
		require.True(t, slices.IsSorted(r.offsets))
		require.Len(t, r.offsets, len(there))
		for o := range there {
			i, found := r.find(o)
			require.True(t, found)
			require.Equal(t, o, r.offsets[i])
		}
		for range 100 {
			o := uint32(8 * (1 + rng.Intn(int(at)/8+10)))
			_, found := r.find(o)
			require.Equal(t, there[o], found)
		}
	}
}

// A record that very many refer to, as one in very many queues, goes with the last of them.
func TestManyReferences(t *testing.T) {
	for _, n := range []int{1, 254, 255, 256, 1000} {
		c := newCollector()
		l, _ := open(t, "d", Options{FS: &MemFS{}, CacheBytes: -1, SegmentBytes: testSegment, Commit: c.commit})
		require.NoError(t, l.Append(1, true, raw("body")))
		pos := c.wait(1)[0].Pos
		for i := range 3 { // 3 times n
			l.Keep(pos, n-i%2)
			l.Keep(pos, i%2)
		}
		require.EqualValues(t, 3*n, l.Stats().Live)
		for range 3*n - 1 {
			l.Free(pos)
		}
		require.EqualValues(t, 1, l.Stats().Live)
		b, err := l.Read(pos, 0, nil)
		require.NoError(t, err)
		require.Equal(t, "body", string(b))
		l.Free(pos)
		require.Zero(t, l.Stats().Live)
		require.Zero(t, l.Stats().LiveBytes)
		require.Panics(t, func() { l.Free(pos) })
		require.NoError(t, l.Close())
	}
}

// Bytes that are whole are those of the record that was asked for, or an error.
func TestCopyOfAnother(t *testing.T) {
	for _, home := range []Position{at(3, 64), at(3, 128)} {
		payload := append(binary.LittleEndian.AppendUint64(nil, uint64(home)), "body"...)
		r := record{kind: kindCopy, payload: payload}
		body, ok := r.body(at(9, 64), at(3, 64))
		require.Equal(t, home == at(3, 64), ok)
		require.Equal(t, ok, string(body) == "body")
		r = record{kind: kindData, payload: payload}
		_, ok = r.body(home, at(3, 64))
		require.Equal(t, home == at(3, 64), ok)
	}
}
