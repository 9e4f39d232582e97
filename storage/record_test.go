package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: what is not a whole record of this place is never taken for one, and no input
// makes a decoder panic, allocate or run without bound. Method: tables, and fuzzing of
// everything that is read from disk.

func frame(payload string, segment, offset uint32, seq uint64) []byte {
	b := make([]byte, recordSize(len(payload)))
	copy(b[recordBytes:], payload)
	putRecord(b, len(payload), seq, segment, kindData, flagSync, 7)
	sealRecord(b, offset, seq-1)
	return b
}

func TestDecodeRecord(t *testing.T) {
	good := frame("hello", 3, 64, 12)
	r, bad := decodeRecord(good, 3, 64)
	require.Empty(t, bad)
	require.Equal(t, record{sequence: 12, stream: 7, synced: 11, kind: kindData, flags: flagSync,
		payload: []byte("hello"), size: 48}, r)

	change := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	for name, c := range map[string]struct {
		b               []byte
		segment, offset uint32
		bad             string
	}{
		"empty":               {nil, 3, 64, "the end of the file"},
		"half a header":       {good[:39], 3, 64, "the end of the file"},
		"half a payload":      {good[:44], 3, 64, "a length of 5, past the end of the file"},
		"of another segment":  {good, 4, 64, "a header for segment 3"},
		"from another place":  {good, 3, 72, "checksum"},
		"checksum changed":    {change(0, good[0]^1), 3, 64, "checksum"},
		"length changed":      {change(4, 4), 3, 64, "checksum"},
		"length huge":         {change(7, 0xff), 3, 64, "a length of 4278190085"},
		"sequence changed":    {change(8, 13), 3, 64, "checksum"},
		"kind changed":        {change(20, 2), 3, 64, "checksum"},
		"synced changed":      {change(32, 12), 3, 64, "checksum"},
		"payload changed":     {change(42, 'L'), 3, 64, "checksum"},
		"zeros":               {make([]byte, 100), 3, 64, "a header for segment 0"},
		"zeros for segment 0": {make([]byte, 100), 0, 64, "checksum"},
		"end of a wrong length": {func() []byte {
			b := bytes.Clone(good)
			b[20] = byte(kindEnd)
			sealRecord(b, 64, 11)
			return b
		}(), 3, 64, "a record of kind 2 and length 5"},
	} {
		_, bad := decodeRecord(c.b, c.segment, c.offset)
		require.Contains(t, bad, c.bad, name)
		require.NotEmpty(t, bad, name)
	}
}

// A payload full of what looks like headers does not make the search quadratic.
func TestFindRecordIsBounded(t *testing.T) {
	b := make([]byte, 1<<20)
	for i := 0; i+recordBytes <= len(b); i += chunkAlign {
		binary.LittleEndian.PutUint32(b[i+16:], 3)
		binary.LittleEndian.PutUint32(b[i+4:], uint32(len(b)-i-recordBytes)&^7)
	}
	for i := 16; i+recordBytes <= len(b); i += 16 {
		binary.LittleEndian.PutUint64(b[i+8:], 1<<60)
		b[i+20] = byte(kindData)
	}
	budget := 16 * len(b)
	k, _ := findRecord(b, 3, 64, 0, 1, &budget)
	require.Equal(t, -1, k)
	require.Equal(t, -1, budget)
}

// A tail that hides records behind a hole: they must not come back.
func TestHoleIsSealed(t *testing.T) {
	fs := &MemFS{}
	c := newCollector()
	l, _ := open(t, "d", Options{FS: fs, SegmentBytes: testSegment, Commit: c.commit})
	for _, s := range []string{"one", "two", "three", "four"} {
		require.NoError(t, l.Append(1, false, raw(s)))
		c.wait(1)
	}
	seen := c.wait(4)
	crashed := fs.Crash(CrashKept, nil)
	require.NoError(t, l.Close())
	f, err := crashed.Open(l.segmentName(1))
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, 48), int64(seen[1].Pos.offset())) // "two" was not written
	require.NoError(t, err)

	for range 3 {
		d := newCollector()
		l, got := open(t, "d", Options{FS: crashed, SegmentBytes: testSegment, Commit: d.commit})
		require.Equal(t, "one", string(got[0].Data))
		for _, r := range got[1:] {
			require.Equal(t, "new", string(r.Data))
			require.Greater(t, r.Sequence, seen[3].Sequence, "no sequence names two records")
		}
		require.NoError(t, l.Append(1, true, raw("new")))
		d.wait(1)
		crashed = crashed.Crash(CrashKept, nil)
		require.NoError(t, l.Close())
	}
}

// The same hole, with a later record that says it was durable: that is damage.
func TestHoleBelowSyncIsDamage(t *testing.T) {
	fs := &MemFS{}
	c := newCollector()
	l, _ := open(t, "d", Options{FS: fs, SegmentBytes: testSegment, Commit: c.commit})
	for i, s := range []string{"one", "two", "three"} {
		require.NoError(t, l.Append(1, true, raw(s)))
		c.wait(i + 1)
	}
	seen := c.wait(3)
	crashed := fs.Crash(CrashKept, nil)
	require.NoError(t, l.Close())
	f, err := crashed.Open(l.segmentName(1))
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, 48), int64(seen[1].Pos.offset()))
	require.NoError(t, err)

	l, err = Open("d", Options{FS: crashed, SegmentBytes: testSegment})
	require.NoError(t, err)
	err = l.Replay(func([]Committed) error { return nil })
	var bad *CorruptError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, l.segmentName(1), bad.File)
	require.Equal(t, int64(seen[1].Pos.offset()), bad.Offset)
	require.ErrorContains(t, err, "was durable")
	require.NoError(t, l.Close())
}

// A segment header cannot be torn off a first record in the same sector: damage, even if
// nothing says that the record was durable.
func TestHeaderBeforeGoodRecord(t *testing.T) {
	fs := &MemFS{}
	c := newCollector()
	l, _ := open(t, "d", Options{FS: fs, SegmentBytes: testSegment, Commit: c.commit})
	require.NoError(t, l.Append(1, true, raw("one")))
	c.wait(1)
	crashed := fs.Crash(CrashKept, nil)
	require.NoError(t, l.Close())
	f, err := crashed.Open(l.segmentName(1))
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff}, 20)
	require.NoError(t, err)
	l, err = Open("d", Options{FS: crashed, SegmentBytes: testSegment})
	require.NoError(t, err)
	var bad *CorruptError
	require.ErrorAs(t, l.Replay(nil), &bad)
	require.Zero(t, bad.Offset)
	require.NoError(t, l.Close())
}

func FuzzRecord(f *testing.F) {
	f.Add(frame("hello", 3, 64, 12), uint32(3), uint32(64))
	f.Add(make([]byte, 64), uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, segment, offset uint32) {
		if r, bad := decodeRecord(b, segment, offset); bad == "" && (r.size > len(b)+7 || len(r.payload) > len(b)) {
			t.Fatalf("record of %d bytes in %d", r.size, len(b))
		}
		decodeSegmentHeader(b)
		budget := 1 << 20
		findRecord(b, segment, offset, 0, 0, &budget)
	})
}

// fuzzDir makes a directory with the given file in place of its own, and opens it.
func fuzzDir(t *testing.T, name string, content []byte) {
	fs := &MemFS{}
	a := newApp()
	require.NoError(t, a.open("d", crashOptions(fs), nil))
	require.NoError(t, a.append(op{size: 10, sync: true}))
	require.NoError(t, a.wait())
	require.NoError(t, a.log.WriteCheckpoint(a.log.Mark(), bytes.NewReader(a.encode())))
	require.NoError(t, a.append(op{size: 10, sync: true}))
	require.NoError(t, a.wait())
	crashed := fs.Crash(CrashKept, nil)
	require.NoError(t, a.log.Close())
	file, err := crashed.Create("d/" + name)
	require.NoError(t, err)
	_, err = file.WriteAt(content, 0)
	require.NoError(t, err)
	l, err := Open("d", crashOptions(crashed))
	if err != nil {
		return
	}
	if r, found, err := l.Checkpoint(); err == nil && found {
		if _, err := io.Copy(io.Discard, r); err != nil {
			var c *CorruptError
			require.True(t, errors.As(err, &c), "%v", err)
		}
		r.Close()
	}
	l.Replay(func([]Committed) error { return nil })
	l.Close()
}

func seedFile(f *testing.F, name string) {
	fs := &MemFS{}
	l, err := Open("d", crashOptions(fs))
	if err != nil {
		f.Fatal(err)
	}
	done := make(chan bool, 3)
	l.opts.Commit = func([]Committed, error) { done <- true }
	if err := l.Replay(nil); err != nil {
		f.Fatal(err)
	}
	l.Append(1, true, raw("hello"))
	<-done
	l.WriteCheckpoint(Mark{base: base{1, headerBytes, 2}}, bytes.NewReader([]byte("state")))
	crashed := fs.Crash(CrashKept, nil)
	l.Close()
	file, err := crashed.Open("d/" + name)
	if err != nil {
		f.Fatal(err)
	}
	b := make([]byte, 512)
	n, _ := file.ReadAt(b, 0)
	f.Add(b[:n])
	f.Add([]byte{})
}

func FuzzSegment(f *testing.F) {
	seedFile(f, "0000000000000001.log")
	f.Fuzz(func(t *testing.T, b []byte) { fuzzDir(t, "0000000000000001.log", b) })
}

func FuzzCheckpoint(f *testing.F) {
	seedFile(f, "0000000000000001.ckpt")
	f.Fuzz(func(t *testing.T, b []byte) { fuzzDir(t, "0000000000000001.ckpt", b) })
}
