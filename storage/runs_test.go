package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: records that are read in their order come from a few large reads, others cost what they did, and what is served is what was
// written, whatever is read at once and whatever happens to the files. Method: logs without a cache, whose reads of files are counted;
// the bookkeeping of the runs is checked after each step.

// filled is a log with records that are kept, none of which is in the cache.
type filled struct {
	*Log
	sizes []int
	at    []Position
	reads atomic.Int64 // of files
	c     *collector
}

// noise is what bodies are cut from.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 512<<10)
	for i := range b {
		b[i] = byte(i*31 + i>>8*7 + i>>16)
	}
	return b
})

func body(i, size int) raw {
	b := bytes.Clone(noise()[i%(64<<10):][:size])
	if size >= 8 {
		binary.LittleEndian.PutUint64(b, uint64(i))
	}
	return b
}

const fillers = 4 // records that fill the cache

// fill makes a log with n records and, behind them, so many that they are not cached.
func fill(t testing.TB, o Options, fs FS, n int, size func(i int) int) *filled {
	f := &filled{c: newCollector()}
	o.FS = &FaultFS{FS: fs, Rule: func(op, _ string, _ int) error {
		if op == "read" {
			f.reads.Add(1)
		}
		return nil
	}}
	kept := 0
	o.CacheBytes, o.Commit = -1, func(batch []Committed, err error) {
		for _, c := range batch { // at once, or the log would take them for garbage
			if kept < n {
				f.Keep(c.Pos, 1)
				kept++
			}
		}
		f.c.commit(batch, err)
	}
	f.Log, _ = open(t, "d", o)
	for i := range n {
		f.sizes = append(f.sizes, size(i))
		require.NoError(t, f.Append(1, false, body(i, f.sizes[i])))
	}
	f.c.wait(n)
	for i := range fillers {
		require.NoError(t, f.Append(1, true, raw(make([]byte, 300<<10))))
		f.c.wait(n + i + 1)
	}
	for _, c := range f.c.wait(n + fillers)[:n] {
		f.at = append(f.at, c.Pos)
	}
	f.reads.Store(0)
	return f
}

// check reads record i and compares it, and then the runs with what is said of them.
func (f *filled) check(t testing.TB, i int) {
	b, err := f.Read(f.at[i], f.sizes[i], []byte("x"))
	if err != nil || !bytes.Equal(append([]byte("x"), body(i, f.sizes[i])...), b) {
		t.Fatalf("record %d: %v", i, err)
	}
	if i%8 == 0 {
		f.runs.check(t)
	}
}

func (rs *runs) check(t testing.TB) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	bytes := 0
	for i := range rs.all[:rs.n] {
		r := &rs.all[i]
		bytes += len(r.mem)
		if r.from > r.to || r.to-r.from > Position(len(r.mem)) || r.window > len(r.mem) || r.window < runLeast || r.pins < 0 {
			t.Fatalf("a run from %d to %d, window %d of %d, %d pins", r.from, r.to, r.window, len(r.mem), r.pins)
		}
	}
	if bytes != rs.bytes || bytes > rs.budget {
		t.Fatalf("%d runs with %d bytes, %d counted, at most %d", rs.n, bytes, rs.bytes, rs.budget)
	}
}

func kilobyte(int) int { return 1000 }

func TestRunsForward(t *testing.T) {
	const n = 40_000
	f := fill(t, Options{}, &MemFS{Volatile: true}, n, kilobyte)
	for i := range n {
		f.check(t, i)
	}
	st := f.Stats()
	require.EqualValues(t, n, st.AheadHits+st.DiskReads+st.CacheHits, "%+v", st)
	require.Less(t, f.reads.Load(), int64(250), "%+v", st)
	require.Less(t, st.AheadRead, int64(n)*1100, "%+v", st)
	require.LessOrEqual(t, st.Ahead, int64(2*runMost), "%+v", st)
	require.NoError(t, f.Close())
}

// Records of one of several queues: others lie between them. Or what is read comes from several who read at once, not quite in
// order.
func TestRunsNearlyForward(t *testing.T) {
	for name, order := range map[string]func(i int) int{
		"each eighth":   func(i int) int { return i * 8 % 16_000 },
		"in small rows": func(i int) int { return i ^ 7 },
		"pairs swapped": func(i int) int { return i ^ 1 },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 16_000
			f := fill(t, Options{}, &MemFS{Volatile: true}, n, kilobyte)
			reads := 2000
			for i := range reads {
				f.check(t, order(i))
			}
			require.Less(t, f.reads.Load(), int64(reads/8), "%+v", f.Stats())
			require.NoError(t, f.Close())
		})
	}
}

func TestRunsRandom(t *testing.T) {
	const n = 20_000
	f := fill(t, Options{}, &MemFS{Volatile: true}, n, kilobyte)
	rng := rand.New(rand.NewSource(1))
	for range 20_000 {
		f.check(t, rng.Intn(n))
	}
	st := f.Stats()
	require.Less(t, st.AheadRead, int64(20_000*1000/4), "%+v", st)
	require.LessOrEqual(t, f.reads.Load(), 20_000+st.AheadRuns, "%+v", st)
	require.NoError(t, f.Close())
}

// Backwards is as it was: a read of the file for each record.
func TestRunsBackwards(t *testing.T) {
	const n = 5000
	f := fill(t, Options{}, &MemFS{Volatile: true}, n, kilobyte)
	for i := range n {
		f.check(t, n-1-i)
	}
	st := f.Stats()
	require.Less(t, st.AheadRead, int64(n)*1000/4, "%+v", st)
	require.NoError(t, f.Close())
}

// Many readers, each forward from its own place. So few that each has its run, or so many that none can have one for long.
func TestRunsInterleaved(t *testing.T) {
	for _, test := range []struct {
		readers, row, budget int
		most                 float64 // reads of files, of all
		wasted               float64 // bytes read ahead, of all that were read
	}{
		{readers: 2, row: 1, budget: 0, most: 0.05, wasted: 1.2},
		{readers: 16, row: 1, budget: 0, most: 0.1, wasted: 1.2},
		{readers: 16, row: 50, budget: 0, most: 0.1, wasted: 1.2},
		{readers: 50, row: 1, budget: 0, most: 0.3, wasted: 1.5},
		{readers: 50, row: 10, budget: 1 << 20, most: 0.3, wasted: 1.5},
		{readers: 10_000, row: 2, budget: 0, most: 1, wasted: 1},
		{readers: 10_000, row: 4, budget: 0, most: 1, wasted: 1},
		{readers: 1000, row: 1, budget: 0, most: 1.001, wasted: 0.5},
	} {
		t.Run(fmt.Sprintf("%d readers, %d at once, %d bytes", test.readers, test.row, test.budget), func(t *testing.T) {
			const n = 40_000
			f := fill(t, Options{AheadBytes: test.budget}, &MemFS{Volatile: true}, n, kilobyte)
			each := n / test.readers
			read := 0
			readers := rand.New(rand.NewSource(1)).Perm(test.readers)
			for done := 0; done < each; done += test.row {
				for _, r := range readers {
					for k := range min(test.row, each-done) {
						f.check(t, r*each+done+k)
						read++
					}
				}
			}
			st := f.Stats()
			require.Less(t, float64(f.reads.Load())/float64(read), test.most, "%+v", st)
			require.Less(t, float64(st.AheadRead)/float64(read*1000), test.wasted, "%+v", st)
			require.NoError(t, f.Close())
		})
	}
}

// Whatever is read in whatever order and size, and with whatever budget, is what was written.
func TestRunsAny(t *testing.T) {
	for seed := range int64(12) {
		rng := rand.New(rand.NewSource(seed))
		sizes := func(int) int {
			switch rng.Intn(50) {
			case 0:
				return rng.Intn(200_000)
			case 1:
				return rng.Intn(40_000)
			}
			return rng.Intn(2000)
		}
		budget := []int{-1, 1, runLeast, 3 * runLeast, 100_000, 1 << 20}[rng.Intn(6)]
		f := fill(t, Options{AheadBytes: budget, SegmentBytes: 64 << 10 << rng.Intn(5)}, &MemFS{Volatile: true}, 1500, sizes)
		places := make([]int, 1+rng.Intn(10))
		for range 6000 {
			p := &places[rng.Intn(len(places))]
			if *p += 1 + rng.Intn(2); rng.Intn(200) == 0 || *p >= len(f.at) {
				*p = rng.Intn(len(f.at))
			}
			hint := []int{0, f.sizes[*p], f.sizes[*p] + 100}[rng.Intn(3)]
			b, err := f.Read(f.at[*p], hint, nil)
			require.NoError(t, err)
			if !bytes.Equal(body(*p, f.sizes[*p]), b) {
				t.Fatalf("seed %d, record %d", seed, *p)
			}
			f.runs.check(t)
		}
		if budget < runLeast {
			require.Zero(t, f.Stats().AheadRuns)
		}
		require.NoError(t, f.Close())
	}
}

// Several at once, each its own way.
func TestRunsConcurrent(t *testing.T) {
	const n = 8000
	f := fill(t, Options{AheadBytes: 1 << 20}, &MemFS{Volatile: true}, n, kilobyte)
	var all sync.WaitGroup
	var shared atomic.Int64
	for g := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewSource(int64(g)))
			dst := make([]byte, 0, 2000)
			for i := range 4000 {
				which := (g*1000 + i) % n // from its own place
				switch g % 4 {
				case 0:
					which = rng.Intn(n)
				case 1:
					which = int(shared.Add(1)) % n // together
				}
				b, err := f.Read(f.at[which], 1000, dst)
				if err != nil || !bytes.Equal(b, body(which, 1000)) {
					t.Errorf("record %d: %v", which, err)
					return
				}
			}
		})
	}
	all.Wait()
	f.runs.check(t)
	require.Positive(t, f.Stats().AheadHits)
	require.NoError(t, f.Close())
}

// A byte that changes is noticed in the record that it is in, and in no other.
func TestRunsDamage(t *testing.T) {
	const n = 2000
	fs := &MemFS{Volatile: true}
	f := fill(t, Options{}, fs, n, kilobyte)
	spoil := func(i, by int) {
		file, err := fs.Open(f.segmentName(f.at[i].segment()))
		require.NoError(t, err)
		defer file.Close()
		var b [1]byte
		_, err = file.ReadAt(b[:], int64(f.at[i].offset())+int64(by))
		require.NoError(t, err)
		b[0] ^= 1
		_, err = file.WriteAt(b[:], int64(f.at[i].offset())+int64(by))
		require.NoError(t, err)
	}
	bad := map[int]int{3: 500, 50: recordBytes, 51: 5, 100: 4, 101: 7, 700: 0, 900: 17, 1000: 20, 1001: 24, 1500: 33}
	for i, by := range bad {
		spoil(i, by)
	}
	for range 2 {
		for i := range n {
			b, err := f.Read(f.at[i], 1000, nil)
			if by, is := bad[i]; is {
				var c *CorruptError
				require.ErrorAs(t, err, &c, "record %d, byte %d", i, by)
				require.EqualValues(t, f.at[i].offset(), c.Offset)
				require.Empty(t, b)
				continue
			}
			require.NoError(t, err)
			require.True(t, bytes.Equal(body(i, 1000), b))
		}
	}
	require.Positive(t, f.Stats().AheadHits)
	require.NoError(t, f.Close())
}

// What was read ahead before anything was written there is asked of the file again.
func TestRunsBehindTheEnd(t *testing.T) {
	f := fill(t, Options{}, &MemFS{Volatile: true}, 2000, kilobyte)
	all := f.c.wait(2000 + fillers)
	last := all[len(all)-1].Pos
	// As if they were not in the cache: the file is asked for the records before the end, one after the other.
	ahead := func(of []Position, from int) {
		for i, pos := range of {
			s := f.segment(pos.segment())
			b, ok := f.runs.read(s, pos, pos, 1000, nil)
			if !ok {
				var err error
				b, err = f.readFile(s, pos, pos, 1000, nil)
				require.NoError(t, err)
			}
			require.True(t, bytes.Equal(body(from+i, 1000), b))
		}
		f.runs.check(t)
	}
	var positions []Position
	for round := range 50 {
		from := 2000 + 20*round
		for i := range 20 {
			require.NoError(t, f.Append(1, true, body(from+i, 1000)))
		}
		for _, c := range f.c.wait(2000 + fillers + 20*round + 20)[2000+fillers+20*round:] {
			require.Greater(t, c.Pos, last)
			positions = append(positions, c.Pos)
		}
		ahead(positions[20*round:], from)
	}
	ahead(positions, 2000)
	require.Positive(t, f.Stats().AheadHits)
	require.NoError(t, f.Close())
}

// A run does not keep a segment, and is not found once that is free, whatever its file is used for.
func TestRunsOfFreedSegments(t *testing.T) {
	const n = 200
	fs := &MemFS{Volatile: true}
	f := fill(t, Options{SegmentBytes: 128 << 10}, fs, n, kilobyte)
	for i := range n {
		f.check(t, i)
	}
	require.Positive(t, f.Stats().AheadHits)
	for i := range n {
		f.Free(f.at[i])
	}
	require.NoError(t, f.WriteCheckpoint(f.mark(t), bytes.NewReader([]byte("state"))))
	for i := range n {
		_, err := f.Read(f.at[i], 1000, nil)
		require.ErrorIs(t, err, ErrGone)
	}
	require.NoError(t, f.Close())
}

// mark is a Mark behind all that was appended.
func (f *filled) mark(t testing.TB) Mark {
	marks := make(chan Mark, 1)
	f.c.mu.Lock()
	f.c.hook = func(batch []Committed) {
		if n := len(batch); n > 0 && string(batch[n-1].Data) == "mark" {
			marks <- f.Mark()
			f.c.hook = nil
		}
	}
	f.c.mu.Unlock()
	require.NoError(t, f.Append(1, true, raw("mark")))
	return <-marks
}

// A read that fails gives up the run, not the record.
func TestRunsFailedReads(t *testing.T) {
	const n = 3000
	var fails atomic.Int64
	broken := errors.New("broken")
	rng := rand.New(rand.NewSource(1))
	fs := &FaultFS{FS: &MemFS{Volatile: true}, Rule: func(op, _ string, _ int) error {
		if op == "read" && fails.Load() > 0 && rng.Intn(3) == 0 {
			return broken
		}
		return nil
	}}
	f := fill(t, Options{}, fs, n, kilobyte)
	fails.Store(1)
	failed := 0
	for i := range n {
		b, err := f.Read(f.at[i], 1000, nil)
		if err != nil {
			require.ErrorIs(t, err, broken)
			failed++
			continue
		}
		require.True(t, bytes.Equal(body(i, 1000), b))
		f.runs.check(t)
	}
	require.Less(t, failed, 100)
	require.Greater(t, f.Stats().AheadHits, int64(n/2))
	fails.Store(0)
	require.NoError(t, f.Close())
}

func TestRunsDoNotAllocate(t *testing.T) {
	const n = 16_000
	f := fill(t, Options{}, &MemFS{Volatile: true}, n, kilobyte)
	dst := make([]byte, 0, 2000)
	i := 0
	for ; i < 6000; i++ {
		_, err := f.Read(f.at[i], 1000, dst)
		require.NoError(t, err)
	}
	allocs := testing.AllocsPerRun(8000, func() {
		if _, err := f.Read(f.at[i], 1000, dst); err != nil {
			t.Error(err)
		}
		i++
	})
	require.Zero(t, allocs)
	require.NoError(t, f.Close())
}

// BenchmarkRead reads records of 1 KiB that are not cached from the operating system's files, with and without reading ahead.
func BenchmarkRead(b *testing.B) {
	for _, order := range []string{"forward", "random", "1000 readers"} {
		for _, budget := range []int{-1, 0} {
			b.Run(fmt.Sprintf("%s/ahead=%t", order, budget == 0), func(b *testing.B) {
				const n = 100_000
				o := Options{CacheBytes: -1, AheadBytes: budget}
				c := newCollector()
				o.Commit = c.commit
				l, _ := open(b, b.TempDir(), o)
				for i := range n {
					require.NoError(b, l.Append(1, false, body(i, 1000)))
				}
				seen := c.wait(n)[:n-1000]
				for _, r := range seen {
					l.Keep(r.Pos, 1)
				}
				rng := rand.New(rand.NewSource(1))
				at := make([]Position, len(seen))
				for i := range at {
					switch order {
					case "forward":
						at[i] = seen[i].Pos
					case "random":
						at[i] = seen[rng.Intn(len(seen))].Pos
					default:
						at[i] = seen[i%1000*99+i/1000].Pos
					}
				}
				dst := make([]byte, 0, 2000)
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					if _, err := l.Read(at[i%len(at)], 1000, dst); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				require.NoError(b, l.Close())
			})
		}
	}
}

// The runs of a log that is read beside its own writing and freeing are those of TestReclaimBesideReaders; here it is the reader's
// turn to be late.
func TestRunsLateReader(t *testing.T) {
	const n = 400
	f := fill(t, Options{SegmentBytes: 64 << 10}, &MemFS{Volatile: true}, n, kilobyte)
	var gone, right atomic.Int64
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for g := range 4 {
		readers.Go(func() {
			for i := g; ; i = (i + 1) % n {
				select {
				case <-stop:
					return
				default:
				}
				b, err := f.Read(f.at[i], 1000, nil)
				switch {
				case errors.Is(err, ErrGone):
					gone.Add(1)
				case err != nil || !bytes.Equal(b, body(i, 1000)):
					t.Errorf("record %d: %v", i, err)
					return
				default:
					right.Add(1)
				}
			}
		})
	}
	within(time.Minute, "freeing", func() {
		for i := range n {
			f.Free(f.at[i])
			if i%20 == 19 {
				if err := f.WriteCheckpoint(f.mark(t), bytes.NewReader([]byte("state"))); err != nil {
					t.Error(err)
				}
				for range 8 { // the files come into use again
					if err := f.Append(1, false, body(i, 30_000)); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
	close(stop)
	readers.Wait()
	f.runs.check(t)
	require.NoError(t, f.Close())
	t.Logf("%d right, %d gone", right.Load(), gone.Load())
}
