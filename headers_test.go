package bourse

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boursemq/bourse/internal/wire"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Goal: headers keep their values through the encoding, nothing that is not a header
// passes, and criteria compare exactly. Method: tables, round trips of random headers, and
// decoding of random bytes.

func TestHeadersRoundTrip(t *testing.T) {
	zone := time.FixedZone("there", 3600)
	at := time.Date(2026, 2, 3, 4, 5, 6, 7, zone)
	rows := []struct{ in, out any }{
		{"text", "text"}, {"", ""}, {true, true}, {false, false},
		{int(-1), int64(-1)}, {int8(-128), int64(-128)}, {int16(1), int64(1)}, {int32(1), int64(1)},
		{int64(math.MinInt64), int64(math.MinInt64)}, {int64(math.MaxInt64), int64(math.MaxInt64)},
		{uint(7), int64(7)}, {uint8(255), int64(255)}, {uint16(1), int64(1)}, {uint32(math.MaxUint32), int64(math.MaxUint32)},
		{uint64(math.MaxInt64), int64(math.MaxInt64)}, {uint64(math.MaxInt64 + 1), uint64(math.MaxInt64 + 1)},
		{uint64(math.MaxUint64), uint64(math.MaxUint64)},
		{float32(0.5), 0.5}, {1.5, 1.5}, {2.0, 2.0}, {math.Inf(-1), math.Inf(-1)},
		{[]byte("raw"), []byte("raw")}, {[]byte{}, []byte{}},
		{at, at.UTC()}, {time.Time{}, time.Time{}}, {time.Unix(-1, 1), time.Unix(-1, 1).UTC()},
	}
	for _, row := range rows {
		h := map[string]any{"k": row.in}
		require.NoError(t, validateHeaders("Message.Headers", h))
		b := appendHeaders(nil, h)
		got, err := decodeHeaders(b)
		require.NoError(t, err)
		require.Equal(t, map[string]any{"k": row.out}, got, "%T", row.in)
		require.Equal(t, b, appendHeaders(nil, got), "the decoded value encodes differently")
		n, ok := headerValueSize(row.in)
		require.True(t, ok)
		require.Equal(t, len(b)-4, n, "size of %T", row.in)
	}
	require.Empty(t, appendHeaders(nil, nil))
	require.Empty(t, appendHeaders(nil, map[string]any{}))
	got, err := decodeHeaders(nil)
	require.NoError(t, err)
	require.Nil(t, got)
}

// TestHeadersGolden pins the bytes: they are in logs of released versions.
func TestHeadersGolden(t *testing.T) {
	b := appendHeaders(nil, map[string]any{"b": "x", "a": 3, "c": nil, "d": true, "e": 1.5, "f": []byte{9},
		"g": time.Unix(1, 2), "h": uint64(math.MaxUint64)})
	require.Equal(t, "01 08 01 61 03 06 01 62 06 01 78 01 63 00 01 64 02 01 65 05 00 00 00 00 00 00 f8 3f "+
		"01 66 07 01 09 01 67 08 02 02 01 68 04 ff ff ff ff ff ff ff ff ff 01", fmt.Sprintf("% x", b))
}

func TestHeadersRefused(t *testing.T) {
	many := map[string]any{}
	for i := range MaxHeaders + 1 {
		many[fmt.Sprint(i)] = i
	}
	// One header: version, count, name length, name, tag, three bytes of length.
	fits := MaxHeaderBytes - 8
	rows := []struct {
		h    map[string]any
		want string // empty: accepted
	}{
		{nil, ""},
		{map[string]any{"k": nil}, `header "k" is nil`},
		{map[string]any{"k": []string{"x"}}, `header "k" is a []string`},
		{map[string]any{"k": struct{}{}}, "no header type"},
		{map[string]any{"k": uintptr(1)}, "no header type"},
		{map[string]any{"k": time.Second}, "no header type"},
		{map[string]any{"": 1}, "is empty"},
		{map[string]any{"a\nb": 1}, "control character"},
		{map[string]any{"a\xff": 1}, "not UTF-8"},
		{map[string]any{strings.Repeat("n", 255): 1}, ""},
		{map[string]any{strings.Repeat("n", 256): 1}, "256 bytes"},
		{many, "65 headers"},
		{map[string]any{"k": strings.Repeat("x", fits)}, ""},
		{map[string]any{"k": strings.Repeat("x", fits+1)}, "takes 65537 bytes"},
		{map[string]any{"k": make([]byte, fits+1)}, "takes 65537 bytes"},
	}
	for _, row := range rows {
		err := validateHeaders("Message.Headers", row.h)
		if row.want == "" {
			require.NoError(t, err)
			_, err = decodeHeaders(appendHeaders(nil, row.h))
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "Message.Headers")
		require.ErrorContains(t, err, row.want)
	}
	delete(many, "0")
	require.NoError(t, validateHeaders("Message.Headers", many))
	require.Nil(t, validateCriteria("Binding.Headers", map[string]any{"k": nil}))
}

func TestHeadersMalformed(t *testing.T) {
	rows := map[string][]byte{
		"another version":        {2, 1, 1, 'a', tagTrue},
		"no headers":             {1, 0},
		"a name twice":           {1, 2, 1, 'a', tagTrue, 1, 'a', tagTrue},
		"names out of order":     {1, 2, 1, 'b', tagTrue, 1, 'a', tagTrue},
		"no name":                {1, 1, 0, tagTrue},
		"a control character":    {1, 1, 1, '\n', tagTrue},
		"an unknown tag":         {1, 1, 1, 'a', tagTime + 1},
		"an unsigned that fits":  {1, 1, 1, 'a', tagUint, 7},
		"too many nanoseconds":   {1, 1, 1, 'a', tagTime, 2, 0x80, 0x94, 0xeb, 0xdc, 3},
		"a count past the end":   {1, 60, 1, 'a', tagTrue},
		"a length past the end":  {1, 1, 1, 'a', tagString, 9, 'x'},
		"bytes behind the last":  {1, 1, 1, 'a', tagTrue, 0},
		"more than can be valid": make([]byte, MaxHeaderBytes+1),
	}
	for name, b := range rows {
		_, err := decodeHeaders(b)
		require.ErrorIs(t, err, wire.ErrMalformed, name)
	}
	_, err := decodeHeaders([]byte{1, 1, 1, 'a', tagTrue})
	require.NoError(t, err)
}

func TestCriteriaListKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3*criteriaChunk).Draw(t, "n")
		step := rapid.SampledFrom([]int{1, 7, 11, 769}).Draw(t, "step") // coprime to most n: a mixed order
		var list criteriaList
		bindingOf := func(i int) *binding { return &binding{Binding: Binding{Key: fmt.Sprintf("%04d", i*step%9973)}} }
		for i := range n {
			list = list.with(bindingOf(i))
		}
		full, before := list, slices.Concat(list...)
		require.True(t, slices.IsSortedFunc(before, compareBinding))
		require.Len(t, before, n)
		for i := range n {
			list = list.without(bindingOf(i))
			for _, chunk := range list {
				require.NotEmpty(t, chunk)
				require.LessOrEqual(t, len(chunk), criteriaChunk)
			}
		}
		require.Empty(t, list)
		require.Equal(t, before, slices.Concat(full...), "the old list changed")
	})
}

func headerValues() *rapid.Generator[any] {
	return rapid.OneOf(
		rapid.Just[any](nil), rapid.Just[any](true), rapid.Just[any](false),
		rapid.Int64().AsAny(), rapid.Uint64().AsAny(), rapid.Int8().AsAny(), rapid.Float32().AsAny(), rapid.Float64().AsAny(),
		rapid.StringN(0, 5, 10).AsAny(), rapid.SliceOfN(rapid.Byte(), 0, 5).AsAny(),
		rapid.Custom(func(t *rapid.T) any {
			return time.Unix(rapid.Int64().Draw(t, "sec"), rapid.Int64Range(0, 999999999).Draw(t, "nsec"))
		}))
}

func TestHeadersEncodingIsCanonical(t *testing.T) {
	names := rapid.StringMatching(`[a-z\-é]{1,4}`)
	rapid.Check(t, func(t *rapid.T) {
		h := rapid.MapOfN(names, headerValues(), 0, 8).Draw(t, "headers")
		require.Nil(t, validateHeaderSet("f", h, true))
		b := appendHeaders(nil, h)
		got, err := decodeHeaders(b)
		require.NoError(t, err)
		require.Equal(t, b, appendHeaders(nil, got))
		if len(b) > 0 {
			_, err = decodeHeaders(b[:len(b)-1])
			require.Error(t, err, "a cut encoding decoded")
			_, err = decodeHeaders(append(b, 0))
			require.Error(t, err, "a longer encoding decoded")
		}
	})
}

// FuzzHeaders decodes arbitrary bytes: an error or headers that are valid criteria.
func FuzzHeaders(f *testing.F) {
	f.Add(appendHeaders(nil, map[string]any{"a": 1, "b": "x", "c": nil, "t": time.Unix(1, 2)}))
	f.Add([]byte{1, 2, 1, 'b', 1, 1, 'a', 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeaders(b)
		if err != nil {
			return
		}
		require.Nil(t, validateHeaderSet("f", h, true))
		again, err := decodeHeaders(appendHeaders(nil, h))
		require.NoError(t, err)
		require.Len(t, again, len(h))
	})
}

func TestHeaderEquality(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rows := []struct {
		a, b any
		want bool
	}{
		{1, 1.0, true}, {int8(1), uint64(1), true}, {float32(0.5), 0.5, true}, {0.0, math.Copysign(0, -1), true},
		{"1", 1, false}, {"1", "1", true}, {true, 1, false}, {true, true, true}, {true, false, false},
		{"true", true, false},
		{int64(1<<53 + 1), float64(1 << 53), false}, {int64(1 << 53), float64(1 << 53), true},
		{int64(1<<53 + 1), float64(1<<53 + 2), false},
		{int64(math.MaxInt64), float64(math.MaxInt64), false}, // the float is 1<<63
		{uint64(1 << 63), float64(1 << 63), true},
		{uint64(math.MaxUint64), float64(math.MaxUint64), false}, // the float is 1<<64
		{int64(math.MinInt64), float64(math.MinInt64), true},
		{int64(-1), uint64(math.MaxUint64), false},
		{float32(0.1), 0.1, false},
		{math.NaN(), math.NaN(), false}, {math.Inf(1), math.Inf(1), true}, {math.Inf(1), math.Inf(-1), false},
		{[]byte("x"), "x", false}, {[]byte("x"), []byte("x"), true}, {[]byte("x"), []byte("y"), false},
		{at, at.In(time.FixedZone("z", 60)), true}, {at, at.Add(1), false}, {at, at.Unix(), false},
		{struct{}{}, struct{}{}, false},
	}
	for _, row := range rows {
		a, okA := plainForm(row.a)
		b, okB := plainForm(row.b)
		require.Equal(t, row.want, okA && okB && a.equal(b), "%T %v and %T %v", row.a, row.a, row.b, row.b)
		require.Equal(t, row.want, okA && okB && b.equal(a), "not symmetric")
	}
}
