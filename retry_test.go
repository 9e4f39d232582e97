package bourse

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: the pause after a failure is what Backoff says, to the nanosecond, and jitter spreads it evenly over its range and is
// a function of queue, message and failure alone. Method: tables, and counts over thousands of messages. Below is what the naive
// model of machine_plain_test.go says about it.

func TestBackoffPause(t *testing.T) {
	const s = time.Second
	rows := []struct {
		backoff Backoff
		want    []time.Duration // after the 1st, 2nd, ... failure
	}{
		{Backoff{}, []time.Duration{0, 0, 0}},
		{Backoff{Min: s, Max: s}, []time.Duration{s, s, s}},
		{Backoff{Min: s}, []time.Duration{s, s, s}},
		{Backoff{Min: s, Max: 8 * s}, []time.Duration{s, 2 * s, 4 * s, 8 * s, 8 * s}},
		{Backoff{Min: s, Max: 7 * s}, []time.Duration{s, 2 * s, 4 * s, 7 * s, 7 * s}},
		{Backoff{Min: 3 * s, Max: 4 * s}, []time.Duration{3 * s, 4 * s, 4 * s}},
		{Backoff{Min: s, Max: 30 * s, Factor: 3}, []time.Duration{s, 3 * s, 9 * s, 27 * s, 30 * s, 30 * s}},
		{Backoff{Min: 4 * s, Max: 10 * s, Factor: 1.5}, []time.Duration{4 * s, 6 * s, 9 * s, 10 * s}},
		{Backoff{Min: s, Max: 10 * s, Factor: 1}, []time.Duration{s, s, s}},
		{Backoff{Min: s, Max: 10 * s, Factor: 10}, []time.Duration{s, 10 * s, 10 * s}},
		{Backoff{Pauses: []time.Duration{5 * s}}, []time.Duration{5 * s, 5 * s}},
		{Backoff{Pauses: []time.Duration{0, 3 * s, s}}, []time.Duration{0, 3 * s, s, s, s}},
	}
	for _, row := range rows {
		for i, want := range row.want {
			require.Equal(t, want, row.backoff.withDefaults().pause(uint32(i+1)), "%+v, failure %d", row.backoff, i+1)
		}
	}
	// The longest of all, and more failures than it can grow.
	for _, b := range []Backoff{
		{Min: 1, Max: MaxDelay, Factor: 2}, {Min: s, Max: MaxDelay, Factor: 10}, {Min: s, Max: MaxDelay, Factor: 1.01},
	} {
		for n := uint32(1); n < 3000; n++ {
			require.Positive(t, b.pause(n))
			require.LessOrEqual(t, b.pause(n), b.Max)
			require.LessOrEqual(t, b.pause(n), b.pause(n+1))
		}
		require.Equal(t, time.Duration(MaxDelay), b.pause(math.MaxUint32))
	}
	require.EqualValues(t, 9, Backoff{Min: 9, Max: 100, Factor: 1.1}.pause(math.MaxUint32), "too short to grow by a tenth")
	require.Equal(t, time.Duration(MaxDelay), Backoff{Pauses: []time.Duration{1, MaxDelay}}.pause(math.MaxUint32))
}

func TestBackoffVaries(t *testing.T) {
	b := Backoff{Min: time.Second, Jitter: 0.25}.withDefaults()
	require.EqualValues(t, 750*time.Millisecond, b.vary(time.Second, 0))
	require.EqualValues(t, time.Second, b.vary(time.Second, uint64(250*time.Millisecond)))
	require.EqualValues(t, 1250*time.Millisecond, b.vary(time.Second, uint64(500*time.Millisecond)), "both ends are reached")
	require.EqualValues(t, 750*time.Millisecond, b.vary(time.Second, uint64(500*time.Millisecond+1)), "and not passed")
	require.Zero(t, b.vary(0, math.MaxUint64))
	require.EqualValues(t, 3, b.vary(3, math.MaxUint64), "a quarter of it is less than a nanosecond")
	all := Backoff{Jitter: 1}
	require.Zero(t, all.vary(time.Hour, 0))
	require.EqualValues(t, 2*time.Hour, all.vary(time.Hour, uint64(2*time.Hour)))
	require.Equal(t, time.Duration(MaxDelay), all.vary(MaxDelay, uint64(2*MaxDelay)), "never longer than a delay may be")
}

func TestBackoffScatters(t *testing.T) {
	const n, buckets = 20_000, 20
	b := Backoff{Min: time.Minute, Jitter: 0.5}.withDefaults()
	for name, h := range map[string]func(i int) uint64{
		"by message": func(i int) uint64 { return scatter(7, uint64(i), 1) },
		"by failure": func(i int) uint64 { return scatter(7, 1, uint32(i)) },
		"by queue":   func(i int) uint64 { return scatter(queueID(i), 1, 1) },
	} {
		var count [buckets]int
		for i := range n {
			d := b.vary(time.Minute, h(i))
			require.Equal(t, d, b.vary(time.Minute, h(i)))
			require.GreaterOrEqual(t, d, 30*time.Second)
			require.LessOrEqual(t, d, 90*time.Second)
			count[min(int((d-30*time.Second)*buckets/time.Minute), buckets-1)]++
		}
		for i, k := range count {
			require.InDelta(t, n/buckets, k, 200, "%s: part %d of the range", name, i)
		}
	}
	// A format, like the commands: replicas of different versions must agree.
	require.Equal(t, uint64(0xfc788579e4293fb1), scatter(2, 1, 1))
}

// pause is the retry policy for the next failure of m: the list if there is one, else Min, times Factor with each failure after
// the first, at most Max; then more or less by Jitter. Where in that range it lies is for the machine to scatter, and for
// TestBackoffScatters to judge.
func (q *plainQueue) pause(m *plainMessage) time.Duration {
	retry, n := q.def.Retry, m.failures+1
	d := big.NewInt(int64(retry.Min))
	share := func(d *big.Int, f float64) *big.Int {
		d = new(big.Int).Mul(d, big.NewInt(int64(f*100+0.5)))
		return d.Div(d, big.NewInt(100))
	}
	for i := uint32(1); i < n && i < 10_000; i++ {
		if next := share(d, retry.Factor); next.Cmp(big.NewInt(int64(retry.Max))) < 0 {
			d = next
		} else {
			d = big.NewInt(int64(retry.Max))
		}
	}
	if len(retry.Pauses) > 0 {
		last := uint32(len(retry.Pauses))
		d = big.NewInt(int64(retry.Pauses[min(n, last)-1]))
	}
	if retry.Jitter == 0 {
		return time.Duration(d.Int64())
	}
	most := share(d, retry.Jitter)
	width := new(big.Int).Add(new(big.Int).Mul(most, big.NewInt(2)), big.NewInt(1))
	place := new(big.Int).Mod(new(big.Int).SetUint64(scatter(q.id, m.seq, n)), width)
	return min(time.Duration(d.Sub(d, most).Add(d, place).Int64()), MaxDelay)
}
