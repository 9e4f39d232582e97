package bourse

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: a checkpoint of several shards comes back as it was, and nothing that a directory may hold in its place makes the decoder
// panic. Method: a round trip with states in many pieces, a writer that fails, and a fuzz target.

// inPieces writes a state a few bytes at a time.
type inPieces []byte

func (s inPieces) WriteTo(w io.Writer) (n int64, err error) {
	for piece := range bytesChunks(s, 3) {
		k, err := w.Write(piece)
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func bytesChunks(b []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			k := min(n, len(b))
			if !yield(b[:k]) {
				return
			}
			b = b[k:]
		}
	}
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(b []byte) (int, error) {
	if len(b) > w.left {
		return 0, errors.New("no more")
	}
	w.left -= len(b)
	return len(b), nil
}

// decodeCheckpoint returns the snapshots in a checkpoint by shard.
func decodeCheckpoint(b []byte) (map[uint64][]byte, error) {
	shards := make(map[uint64][]byte)
	err := scanCheckpoint(bytes.NewReader(b), func(shard uint64, state io.Reader) error {
		all, err := io.ReadAll(state)
		shards[shard] = all
		return err
	})
	return shards, err
}

func TestCheckpointRoundTrip(t *testing.T) {
	c := &checkpoint{shards: []savedShard{{1, inPieces("the state of shard one")}, {7, inPieces("seven")}, {9, inPieces(nil)}}}
	var out bytes.Buffer
	n, err := c.WriteTo(&out)
	require.NoError(t, err)
	require.EqualValues(t, out.Len(), n)
	require.EqualValues(t, out.Len(), c.bytes)
	got, err := decodeCheckpoint(out.Bytes())
	require.NoError(t, err)
	require.Equal(t, map[uint64][]byte{1: []byte("the state of shard one"), 7: []byte("seven"), 9: {}}, got)
	for i := range out.Len() {
		_, err := decodeCheckpoint(out.Bytes()[:i])
		require.Error(t, err, "cut at %d", i)
		_, err = c.WriteTo(&failingWriter{left: i})
		require.Error(t, err, "a disk with room for %d", i)
	}
	// What is not read is passed over, and what is behind it is still looked at.
	for _, more := range []string{"", "x"} {
		ids := []uint64{}
		err = scanCheckpoint(strings.NewReader(out.String()+more), func(id uint64, state io.Reader) error {
			ids = append(ids, id)
			_, err := state.Read(make([]byte, 2))
			if id == 9 {
				require.ErrorIs(t, err, io.EOF)
				err = nil
			}
			return err
		})
		require.Equal(t, []uint64{1, 7, 9}, ids)
		require.Equal(t, more == "", err == nil)
	}
	failed := errors.New("failed")
	require.ErrorIs(t, scanCheckpoint(&out, func(uint64, io.Reader) error { return failed }), failed)
	_, err = decodeCheckpoint([]byte{checkpointVersion, 2, 1, 0, 1, 0})
	require.ErrorIs(t, err, ErrStorage, "a shard twice")
	_, err = decodeCheckpoint([]byte{checkpointVersion + 1})
	require.ErrorIs(t, err, ErrForeignDir)
}

func FuzzLocalCheckpoint(f *testing.F) {
	var out bytes.Buffer
	_, _ = (&checkpoint{shards: []savedShard{{1, inPieces("state")}, {2, inPieces("x")}}}).WriteTo(&out)
	f.Add(out.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		shards, err := decodeCheckpoint(b)
		if err != nil {
			return
		}
		total := 0
		for _, state := range shards {
			total += len(state)
		}
		if total > len(b) {
			t.Fatalf("%d bytes of states out of %d", total, len(b))
		}
	})
}
