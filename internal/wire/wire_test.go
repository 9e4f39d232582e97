package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Goal: what is appended is read back, and a Reader never panics, never reads past its input and never gives a count that its
// input cannot hold. Method: a round trip of random values, every cut of an encoding, and a fuzz target that reads
// arbitrary bytes by arbitrary methods.

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u32, u64, i64 := rapid.Uint32().Draw(t, "u32"), rapid.Uint64().Draw(t, "u64"), rapid.Int64().Draw(t, "i64")
		f, s := rapid.Float64().Draw(t, "f"), rapid.String().Draw(t, "s")
		b, yes := rapid.SliceOf(rapid.Byte()).Draw(t, "b"), rapid.Bool().Draw(t, "yes")
		var enc []byte
		enc = AppendUint32(enc, u32)
		enc = AppendUint64(enc, u64)
		enc = AppendUvarint(enc, u64)
		require.Len(t, enc, 12+UvarintLen(u64))
		enc = AppendVarint(enc, i64)
		enc = AppendFloat64(enc, f)
		enc = AppendString(enc, s)
		enc = AppendBytes(enc, b)
		enc = AppendBool(enc, yes)
		enc = append(enc, "rest"...)

		read := func(enc []byte) (*Reader, bool) {
			r := NewReader(enc)
			same := r.Uint32() == u32
			same = r.Uint64() == u64 && same
			same = r.Uvarint() == u64 && same
			same = r.Varint() == i64 && same
			same = math.Float64bits(r.Float64()) == math.Float64bits(f) && same
			same = r.String() == s && same
			same = bytes.Equal(r.Bytes(), b) && same
			same = r.Bool() == yes && same
			return &r, same
		}
		r, same := read(enc)
		require.True(t, same)
		require.NoError(t, r.Err())
		require.ErrorIs(t, r.Done(), ErrMalformed, "bytes are left over")
		require.Equal(t, "rest", string(r.Fixed(4)))
		require.NoError(t, r.Done())
		cut := rapid.IntRange(0, len(enc)-5).Draw(t, "cut")
		r, _ = read(enc[:cut])
		require.ErrorIs(t, r.Err(), ErrMalformed)
		require.Zero(t, r.Len())
		require.Zero(t, r.Uint64(), "after a failure everything is zero")
	})
}

func TestReaderRefuses(t *testing.T) {
	for name, read := range map[string]func(r *Reader){
		"a bool of 2":       func(r *Reader) { *r = NewReader([]byte{2}); r.Bool() },
		"a count too large": func(r *Reader) { *r = NewReader([]byte{3, 1, 2, 3, 4}); r.Count(2) },
		"a long varint":     func(r *Reader) { *r = NewReader(bytes.Repeat([]byte{0xff}, 11)); r.Uvarint() },
		"a negative length": func(r *Reader) { *r = NewReader([]byte{1}); r.Fixed(-1) },
		"a value refused":   func(r *Reader) { *r = NewReader([]byte{1}); r.Fail() },
	} {
		var r Reader
		read(&r)
		require.ErrorIs(t, r.Err(), ErrMalformed, name)
		require.ErrorIs(t, r.Done(), ErrMalformed, name)
	}
}

// A Reader over a stream reads what one over a slice does, and gives back parts that stay as they are.
func TestStreamReader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var enc []byte
		var want [][]byte
		for range rapid.IntRange(0, 20).Draw(t, "values") {
			n := rapid.SampledFrom([]int{0, 1, 100, 1 << 14, streamWindow, 3 * streamWindow}).Draw(t, "n")
			b := bytes.Repeat([]byte{rapid.Byte().Draw(t, "b")}, n)
			want = append(want, b)
			enc = AppendBytes(AppendVarint(AppendUvarint(AppendUint32(enc, 7), 1<<40), -1<<50), b)
		}
		r := NewStreamReader(bytes.NewReader(enc), len(enc))
		var got [][]byte
		for range want {
			require.Equal(t, []any{uint32(7), uint64(1 << 40), int64(-1 << 50)}, []any{r.Uint32(), r.Uvarint(), r.Varint()})
			got = append(got, r.Bytes())
		}
		require.NoError(t, r.Done())
		for i := range want {
			require.True(t, bytes.Equal(want[i], got[i]))
		}
	})
	// Over the edge of a window, wherever that is.
	numbers := make([]byte, 0, 4*streamWindow)
	for len(numbers) < 3*streamWindow {
		numbers = AppendVarint(AppendUvarint(numbers, 1<<40), -1<<50)
	}
	numbers = append(make([]byte, 3), numbers...)
	for skip := range 3 {
		r := NewStreamReader(bytes.NewReader(numbers[skip:]), len(numbers)-skip)
		for r.Fixed(3 - skip); r.Len() > 0; {
			require.Equal(t, []any{uint64(1 << 40), int64(-1 << 50)}, []any{r.Uvarint(), r.Varint()})
		}
		require.NoError(t, r.Done())
	}
	r := NewStreamReader(bytes.NewReader([]byte("three")), 5)
	require.Equal(t, byte('t'), r.Byte())
	require.Equal(t, 4, r.Len())
	require.ErrorIs(t, r.Done(), ErrMalformed)
	require.Equal(t, "hree", string(r.Rest()))
	require.NoError(t, r.Done())
	require.Zero(t, r.Byte())
	require.ErrorIs(t, r.Err(), ErrMalformed)
	r = NewStreamReader(bytes.NewReader([]byte{200}), math.MaxInt)
	require.Zero(t, r.Uvarint())
	require.ErrorIs(t, r.Err(), io.ErrUnexpectedEOF)
}

func FuzzReader(f *testing.F) {
	f.Add([]byte{1, 2, 3}, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(AppendString(AppendUvarint(nil, 1<<60), "text"), []byte{2, 6, 5})
	f.Fuzz(func(t *testing.T, input, methods []byte) {
		r, s := NewReader(input), NewStreamReader(iotest.OneByteReader(bytes.NewReader(input)), len(input))
		for _, m := range methods {
			left := r.Len()
			streamed(t, r, &s, m)
			switch m % 9 {
			case 0:
				r.Byte()
			case 1:
				r.Uint32()
			case 2:
				r.Uvarint()
			case 3:
				r.Varint()
			case 4:
				if n := r.Count(3); 3*n > left {
					t.Fatalf("a count of %d with %d bytes left", n, left)
				}
			case 5:
				if b := r.Bytes(); len(b) > left || cap(b) > len(b) {
					t.Fatalf("%d bytes of %d left, capacity %d", len(b), left, cap(b))
				}
			case 6:
				_ = r.String()
			case 7:
				r.Bool()
			case 8:
				r.Float64()
			}
			if r.Len() > left {
				t.Fatal("a Reader went back")
			}
		}
	})
}

// streamed reads from s as by a method from r, and compares.
func streamed(t *testing.T, r Reader, s *Reader, method byte) {
	read := func(r *Reader) any {
		switch method % 9 {
		case 0:
			return r.Byte()
		case 1:
			return r.Uint32()
		case 2:
			return r.Uvarint()
		case 3:
			return r.Varint()
		case 4:
			return r.Count(3)
		case 5:
			return string(r.Bytes())
		case 6:
			return r.String()
		case 7:
			return r.Bool()
		}
		return math.Float64bits(r.Float64())
	}
	if a, b := read(&r), read(s); a != b || r.Len() != s.Len() || !errors.Is(r.Err(), s.Err()) {
		t.Fatalf("%v, %d left, %v; of a stream %v, %d left, %v", a, r.Len(), r.Err(), b, s.Len(), s.Err())
	}
}
