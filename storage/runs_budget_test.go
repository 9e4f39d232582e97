package storage

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: the rules of the runs that chance seldom breaks. Method: logs as in runs_test.go, brought to the edge by hand.

// A run that somebody copies from is not read anew by who comes to its end: that one reads alone.
func TestRunsPinned(t *testing.T) {
	f := fill(t, Options{}, &MemFS{Volatile: true}, 2000, kilobyte)
	i := 0
	for ; f.Stats().AheadRuns == 0; i++ {
		f.check(t, i)
	}
	rs := &f.runs
	r := &rs.all[0]
	end := r.to
	rs.mu.Lock()
	r.pins++
	rs.mu.Unlock()
	for ; f.at[i]+2*recordBytes+2000 < end+runGap; i++ {
		f.check(t, i)
	}
	require.Equal(t, end, r.to)
	require.EqualValues(t, 1, f.Stats().AheadRuns)
	rs.mu.Lock()
	r.pins--
	rs.mu.Unlock()
	f.check(t, i)
	require.EqualValues(t, 2, f.Stats().AheadRuns)
	require.NoError(t, f.Close())
}

// Memory of runs that are idle counts too when another grows.
func TestRunsGrowBesideIdle(t *testing.T) {
	f := fill(t, Options{AheadBytes: 10 * runLeast}, &MemFS{Volatile: true}, 16_000, kilobyte)
	f.runs.usual = runLeast // so that each is as small
	for reader := range 8 {
		for i := range 10 {
			f.check(t, reader*1000+i)
		}
	}
	require.Greater(t, f.Stats().Ahead, int64(4*runLeast))
	for i := range 7000 { // all others are idle then
		f.check(t, 8000+i)
		f.runs.check(t)
	}
	require.NoError(t, f.Close())
}
