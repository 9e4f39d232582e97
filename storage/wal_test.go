package storage

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: the contract of Log on a disk that works, on the operating system's files and
// in memory. Method: the application of app_test.go against its model, across many
// closings, and direct calls for what it does not use.

// TestMain fails the package if a goroutine of a log outlives its Close.
func TestMain(m *testing.M) {
	code := m.Run()
	stacks := make([]byte, 1<<20)
	for range 1000 { // they are past their last statement, perhaps not gone yet
		stacks = stacks[:runtime.Stack(stacks[:cap(stacks)], true)]
		if !bytes.Contains(stacks, []byte("storage.(*Log)")) {
			os.Exit(code)
		}
		runtime.Gosched()
	}
	fmt.Printf("goroutines are left:\n%s\n", stacks)
	os.Exit(1)
}

const testSegment = 4096

type raw []byte

func (r raw) AppendTo(dst []byte) []byte { return append(dst, r...) }

// collector keeps what is reported.
type collector struct {
	mu    sync.Mutex
	cond  *sync.Cond
	seen  []Committed // Data copied
	err   error
	batch int
	hook  func([]Committed) // called with each batch; nil: nothing is
}

func newCollector() *collector {
	c := &collector{}
	c.cond = sync.NewCond(&c.mu)
	return c
}

func (c *collector) commit(batch []Committed, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range batch {
		r.Data = bytes.Clone(r.Data)
		c.seen = append(c.seen, r)
	}
	c.err = err
	c.batch++
	if c.hook != nil {
		c.hook(batch)
	}
	c.cond.Broadcast()
}

func (c *collector) wait(n int) []Committed {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.seen) < n {
		c.cond.Wait()
	}
	return c.seen
}

func open(t testing.TB, dir string, o Options) (*Log, []Committed) {
	t.Helper()
	l, err := Open(dir, o)
	require.NoError(t, err)
	var got []Committed
	require.NoError(t, l.Replay(func(batch []Committed) error {
		for _, r := range batch {
			r.Data = bytes.Clone(r.Data)
			got = append(got, r)
		}
		return nil
	}))
	return l, got
}

func TestAppendReadReopen(t *testing.T) {
	for name, o := range map[string]Options{
		"disk":     {},
		"memory":   {FS: &MemFS{}},
		"volatile": {FS: &MemFS{Volatile: true}, CacheBytes: -1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			c := newCollector()
			o.Commit, o.SegmentBytes = c.commit, 1<<16
			l, got := open(t, dir, o)
			require.Empty(t, got)
			var want [][]byte
			rng := rand.New(rand.NewSource(1))
			for i := range 300 {
				b := make([]byte, rng.Intn(3000))
				if i%100 == 50 {
					b = make([]byte, 200_000) // longer than a segment
				}
				rng.Read(b)
				want = append(want, b)
				require.NoError(t, l.Append(uint64(i), i%2 == 0, raw(b)))
			}
			seen := c.wait(300)
			for i, r := range seen {
				require.Equal(t, uint64(i), r.Stream)
				require.Equal(t, want[i], []byte(r.Data))
				for _, hint := range []int{0, len(want[i]), 1 << 20} {
					b, err := l.Read(r.Pos, hint, []byte("x"))
					require.NoError(t, err)
					require.Equal(t, append([]byte("x"), want[i]...), b)
				}
				if i > 0 {
					require.Greater(t, r.Sequence, seen[i-1].Sequence)
					require.Greater(t, r.Pos, seen[i-1].Pos)
				}
			}
			_, err := l.Read(at(999, 64), 0, nil)
			require.ErrorIs(t, err, ErrGone)
			require.NoError(t, l.Close())
			require.NoError(t, l.Close())
			require.ErrorIs(t, l.Append(1, true, raw("x")), ErrClosed)

			l, got = open(t, dir, o)
			require.Len(t, got, 300)
			for i, r := range got {
				require.Equal(t, want[i], []byte(r.Data))
				require.Equal(t, seen[i].Pos, r.Pos)
				b, err := l.Read(r.Pos, 0, nil)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want[i], b))
			}
			require.NoError(t, l.Append(7, true, raw("more")))
			require.NoError(t, l.Close())
			l, got = open(t, dir, o)
			require.Len(t, got, 301)
			require.NoError(t, l.Close())
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "log")
	l, _ := open(t, dir, Options{SegmentBytes: testSegment})
	_, err := Open(dir, Options{})
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, l.Append(1, true, raw("x")))
	require.NoError(t, l.Close())
	s, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), s.Mode().Perm())
	s, err = os.Stat(filepath.Join(dir, formatName))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), s.Mode().Perm())

	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "holiday.jpg"), nil, 0o600))
	_, err = Open(foreign, Options{})
	require.ErrorIs(t, err, ErrForeign)
	names, err := OS.ReadDir(foreign)
	require.NoError(t, err)
	require.Equal(t, []string{"holiday.jpg"}, names, "nothing was put into it")

	require.NoError(t, os.WriteFile(filepath.Join(dir, formatName), []byte("bourse log, format 2\n"), 0o600))
	_, err = Open(dir, Options{})
	require.ErrorIs(t, err, ErrForeign)
	require.ErrorContains(t, err, "format 2")

	require.NoError(t, os.Remove(filepath.Join(dir, formatName)))
	_, err = Open(dir, Options{})
	require.ErrorIs(t, err, ErrForeign)
}

// Unknown files stay, our temporary ones go.
func TestOpenLeavesUnknownFiles(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir, Options{SegmentBytes: testSegment})
	require.NoError(t, l.Close())
	for _, n := range []string{"notes.tmp", "1.log", "x.ckpt", "0000000000000009.ckpt.tmp"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), []byte("x"), 0o600))
	}
	l, _ = open(t, dir, Options{SegmentBytes: testSegment})
	require.NoError(t, l.Close())
	for _, n := range []string{"notes.tmp", "1.log", "x.ckpt"} {
		require.FileExists(t, filepath.Join(dir, n))
	}
	require.NoFileExists(t, filepath.Join(dir, "0000000000000009.ckpt.tmp"))
}

func TestOrderOfCalls(t *testing.T) {
	l, err := Open("d", Options{FS: &MemFS{}})
	require.NoError(t, err)
	require.Error(t, l.Append(1, true, raw("x")))
	require.NoError(t, l.Replay(nil))
	require.Error(t, l.Replay(nil))
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Replay(nil), ErrClosed)

	l, err = Open("d", Options{FS: &MemFS{}})
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// The model across many lives, with checkpoints, frees and rotation.
func TestModelAcrossClose(t *testing.T) {
	for seed := range int64(8) {
		rng := rand.New(rand.NewSource(seed))
		fs := &MemFS{}
		var ops []op
		for life := range 6 {
			within(20*time.Second, fmt.Sprintf("seed %d life %d", seed, life), func() {
				a := newApp()
				o := Options{FS: fs, SegmentBytes: testSegment, CacheBytes: -1}
				require.NoError(t, a.open("d", o, ops), "seed %d life %d", seed, life)
				require.Equal(t, len(ops), int(a.last), "seed %d life %d", seed, life)
				require.NoError(t, a.work(rng, rng.Intn(150)), "seed %d", seed)
				require.NoError(t, a.check())
				require.NoError(t, a.log.Close())
				ops = a.ops
			})
		}
	}
}

func TestConcurrentAppends(t *testing.T) {
	c := newCollector()
	l, _ := open(t, t.TempDir(), Options{SegmentBytes: 1 << 18, Commit: c.commit})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				if err := l.Append(uint64(g), i%4 == 0, raw(fmt.Sprintf("%d/%d", g, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := c.wait(1600)
	next := [8]int{}
	for _, r := range seen {
		require.Equal(t, fmt.Sprintf("%d/%d", r.Stream, next[r.Stream]), string(r.Data))
		next[r.Stream]++
	}
	require.NoError(t, l.Close())
}

func TestCheckpointStream(t *testing.T) {
	fs := &MemFS{}
	for _, n := range []int{0, 1, maxBlock - blockHeader, maxBlock, 300_000} {
		l, _ := open(t, "d", Options{FS: fs, SegmentBytes: testSegment})
		state := bytes.Repeat([]byte{7, 8, 9}, n)[:n]
		require.NoError(t, l.WriteCheckpoint(l.Mark(), bytes.NewReader(state)))
		require.NoError(t, l.Close())
		l, err := Open("d", Options{FS: fs, SegmentBytes: testSegment})
		require.NoError(t, err)
		r, found, err := l.Checkpoint()
		require.NoError(t, err)
		require.True(t, found)
		got, err := io.ReadAll(r)
		require.NoError(t, err)
		require.True(t, bytes.Equal(state, got))
		require.NoError(t, r.Close())
		require.NoError(t, l.Close())
	}
}

// A late mark must not replace a newer checkpoint, whose segments may be free by now.
func TestCheckpointOfOldMark(t *testing.T) {
	a := newApp()
	fs := &MemFS{}
	require.NoError(t, a.open("d", crashOptions(fs), nil))
	old := a.log.Mark()
	require.NoError(t, a.append(op{size: 10, sync: true}))
	require.NoError(t, a.wait())
	m, state := a.log.Mark(), a.encode()
	require.NoError(t, a.log.WriteCheckpoint(m, bytes.NewReader(state)))
	require.ErrorContains(t, a.log.WriteCheckpoint(old, bytes.NewReader(nil)), "older")
	require.NoError(t, a.log.WriteCheckpoint(m, bytes.NewReader(state)), "the same again")
	require.NoError(t, a.log.Close())
	ops, _, _ := a.view()
	b := newApp()
	require.NoError(t, b.open("d", crashOptions(fs), ops))
	require.Equal(t, 1, int(b.last))
	require.NoError(t, b.log.Close())
}

// Steady state: no allocation for a record, and segments are used again.
func TestAppendDoesNotAllocate(t *testing.T) {
	c := make(chan struct{}, 1)
	l, _ := open(t, "d", Options{FS: &MemFS{Volatile: true}, CacheBytes: 1 << 20, Commit: func([]Committed, error) {
		select {
		case c <- struct{}{}:
		default:
		}
	}})
	var p Payload = raw(make([]byte, 1000))
	for range 5000 {
		require.NoError(t, l.Append(1, false, p))
	}
	<-c
	n := testing.AllocsPerRun(5000, func() { l.Append(1, false, p) })
	require.Less(t, n, 0.5)
	require.NoError(t, l.Close())
}

// BenchmarkAppend keeps 1000 records of 1 KiB in flight, all with sync.
func BenchmarkAppend(b *testing.B) {
	for _, sync := range []bool{true, false} {
		for name, fs := range map[string]FS{"disk": OS, "memory": &MemFS{Volatile: true}} {
			b.Run(fmt.Sprintf("%s/sync=%t", name, sync), func(b *testing.B) {
				slots := make(chan struct{}, 1000)
				l, _ := open(b, b.TempDir(), Options{FS: fs, Commit: func(batch []Committed, err error) {
					if err != nil {
						b.Error(err)
					}
					for _, r := range batch {
						l := r.Owner.(*benchPayload).log
						l.Keep(r.Pos, 1)
						l.Free(r.Pos)
						<-slots
					}
				}})
				p := &benchPayload{make([]byte, 1024), l}
				b.SetBytes(1024)
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					slots <- struct{}{}
					if err := l.Append(1, sync, p); err != nil {
						b.Fatal(err)
					}
				}
				for range cap(slots) {
					slots <- struct{}{}
				}
				b.StopTimer()
				st := l.Stats()
				b.ReportMetric(float64(st.Appends)/float64(max(st.Syncs, 1)), "records/sync")
				if err := l.Close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

type benchPayload struct {
	body []byte
	log  *Log
}

func (p *benchPayload) AppendTo(dst []byte) []byte { return append(dst, p.body...) }

// BenchmarkLatency is one record at a time, from Append to Commit.
func BenchmarkLatency(b *testing.B) {
	done := make(chan struct{})
	l, _ := open(b, b.TempDir(), Options{Commit: func([]Committed, error) { done <- struct{}{} }})
	p := raw(make([]byte, 1024))
	b.ResetTimer()
	for range b.N {
		if err := l.Append(1, true, p); err != nil {
			b.Fatal(err)
		}
		<-done
	}
	b.StopTimer()
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkOpen is the first Open of a directory, to the first record reported.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for i := range b.N {
		done := make(chan struct{})
		l, _ := open(b, filepath.Join(dir, fmt.Sprint(i)), Options{Commit: func([]Committed, error) { close(done) }})
		if err := l.Append(1, true, raw("x")); err != nil {
			b.Fatal(err)
		}
		<-done
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		os.RemoveAll(filepath.Join(dir, fmt.Sprint(i)))
	}
}
