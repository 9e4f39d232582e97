package storage

import (
	"flag"
	"fmt"
	"math/rand"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: as in TestDamage, for whatever a disk, a copy or a hand may do to one file of a directory. Method: directories of random
// workloads, closed in good order or left by a killed process; each is damaged in ways that a seed draws, opened, and read whole.
// Nothing here knows a format: kinds of damage are bytes, places and names. make damage runs it long.
//
// What is left out is what no log can see: an older state of all files together, and in a directory that was not closed an
// older state of what was written last.

var (
	damageOpens = flag.Int("damage.opens", 3000, "opens of TestDamageDrawn, at least so many")
	damageSeed  = flag.Int64("damage.seed", 0, "first seed of TestDamageDrawn; 0: a new one each time")
)

// damageEach is how often a directory is damaged.
const damageEach = 1000

// ground is a directory to be damaged.
type ground struct {
	fs, early *MemFS // as it is, and as it was at some time before
	ops       []op
	least     int // records that must be found
	closed    bool
	names     []string
	gone      []string // names that were there earlier
	newest    string   // the segment with the last record
	settled   int64    // what is behind this offset of it may be torn, if the directory was not closed
}

// newGround works for a while and leaves a directory.
func newGround(t *testing.T, rng *rand.Rand) *ground {
	g := &ground{closed: rng.Intn(3) > 0, fs: &MemFS{}}
	a := newApp()
	require.NoError(t, a.open("d", crashOptions(g.fs), nil))
	require.NoError(t, a.work(rng, 20+rng.Intn(30)))
	g.early = g.fs.Crash(CrashKept, nil)
	require.NoError(t, a.work(rng, 20+rng.Intn(30)))
	for range rng.Intn(8) { // batches of their own
		require.NoError(t, a.append(op{size: rng.Intn(200), sync: true}))
		require.NoError(t, a.wait())
	}
	_, g.least, _ = a.view()
	require.NoError(t, a.append(op{size: 100, sync: true}))
	require.NoError(t, a.wait())
	g.ops, _, _ = a.view()
	a.mu.Lock()
	last := a.live[a.last]
	a.mu.Unlock()
	g.newest, g.settled = filepath.Base(a.log.segmentName(last.segment())), int64(last.offset())
	killed := g.fs.Crash(CrashKept, nil)
	require.NoError(t, a.log.Close())
	if g.closed {
		g.least = len(g.ops)
	} else {
		g.fs = killed
	}
	g.names = dataFiles(t, g.fs)
	for _, name := range dataFiles(t, g.early) {
		if _, err := g.fs.Open(filepath.Join("d", name)); err != nil {
			g.gone = append(g.gone, name)
		}
	}
	return g
}

// bytesOf is the content of a file.
func bytesOf(t *testing.T, fs *MemFS, name string) []byte {
	f, size := openMem(t, fs, name)
	b := make([]byte, size)
	if size > 0 {
		_, err := f.ReadAt(b, 0)
		require.NoError(t, err)
	}
	return b
}

func putBytes(t *testing.T, fs *MemFS, name string, b []byte) {
	f, err := fs.Create(filepath.Join("d", name))
	require.NoError(t, err)
	_, err = f.WriteAt(b, 0)
	require.NoError(t, err)
}

// span draws a place in a file, of at most length bytes, whose damage must be seen or do no harm.
func (g *ground) span(rng *rand.Rand, name string, size int64, length int) (from, to int64) {
	if !g.closed && name == g.newest {
		size = min(size, g.settled)
	}
	if size == 0 {
		return 0, 0
	}
	from = rng.Int63n(size)
	return from, min(size, from+1+rng.Int63n(int64(length)))
}

// whole draws a file that may be replaced.
func (g *ground) whole(rng *rand.Rand) string {
	for {
		if name := g.names[rng.Intn(len(g.names))]; g.closed || name != g.newest {
			return name
		}
	}
}

// alike draws another file of the same kind, or none.
func (g *ground) alike(rng *rand.Rand, name string) string {
	for range 8 {
		if other := g.whole(rng); other != name && filepath.Ext(other) == filepath.Ext(name) {
			return other
		}
	}
	return ""
}

// spanDamages are the kinds of damage to a part of a file: what each makes of these bytes, given those of the file, of its earlier
// state, and of another file.
var spanDamages = []struct {
	name   string
	length int
	make   func(rng *rand.Rand, span, own, early, other []byte, from int)
}{
	{"flipped", 1, func(rng *rand.Rand, span, _, _, _ []byte, _ int) { span[0] ^= 1 << rng.Intn(8) }},
	{"noise", 600, func(rng *rand.Rand, span, _, _, _ []byte, _ int) { rng.Read(span) }},
	{"zeroed", 2 * sectorBytes, func(_ *rand.Rand, span, _, _, _ []byte, _ int) { clear(span) }},
	{"misplaced", sectorBytes, func(rng *rand.Rand, span, own, _, _ []byte, _ int) { copy(span, own[rng.Intn(len(own)):]) }},
	{"crossed", 2 * sectorBytes, func(_ *rand.Rand, span, _, _, other []byte, from int) { copy(span, other[min(from, len(other)):]) }},
	{"stale bytes", 2 * sectorBytes, func(_ *rand.Rand, span, _, early, _ []byte, from int) { copy(span, early[min(from, len(early)):]) }},
}

// fileDamages are the kinds of damage to whole files. Each says what it did, or nothing if there is nothing to do it to.
var fileDamages = []struct {
	name string
	do   func(t *testing.T, g *ground, rng *rand.Rand, fs *MemFS, name string) string
}{
	{"cut", func(t *testing.T, _ *ground, rng *rand.Rand, fs *MemFS, name string) string {
		f, size := openMem(t, fs, name)
		to := rng.Int63n(size + 1)
		require.NoError(t, f.Truncate(to))
		return fmt.Sprintf("at %d", to)
	}},
	{"grown", func(t *testing.T, _ *ground, rng *rand.Rand, fs *MemFS, name string) string {
		b := make([]byte, 1+rng.Intn(600))
		if rng.Intn(2) == 0 {
			rng.Read(b)
		}
		f, size := openMem(t, fs, name)
		_, err := f.WriteAt(b, size)
		require.NoError(t, err)
		return fmt.Sprintf("by %d", len(b))
	}},
	{"missing", func(t *testing.T, _ *ground, _ *rand.Rand, fs *MemFS, name string) string {
		require.NoError(t, fs.Remove(filepath.Join("d", name)))
		return "removed"
	}},
	{"swapped", func(t *testing.T, g *ground, rng *rand.Rand, fs *MemFS, name string) string {
		other := g.alike(rng, name)
		if other == "" {
			return ""
		}
		for _, r := range [][2]string{{name, "x"}, {other, name}, {"x", other}} {
			require.NoError(t, fs.Rename(filepath.Join("d", r[0]), filepath.Join("d", r[1])))
		}
		return "with " + other
	}},
	{"copied", func(t *testing.T, g *ground, rng *rand.Rand, fs *MemFS, name string) string {
		other := g.alike(rng, name)
		if other == "" {
			return ""
		}
		putBytes(t, fs, name, bytesOf(t, g.fs, other))
		return "from " + other
	}},
	{"doubled", func(t *testing.T, g *ground, rng *rand.Rand, fs *MemFS, name string) string {
		number, ok := numbered(name, filepath.Ext(name))
		if !ok {
			return ""
		}
		other := fmt.Sprintf("%016d%s", max(1, int64(number)+rng.Int63n(12)-4), filepath.Ext(name))
		if _, err := fs.Open(filepath.Join("d", other)); err == nil {
			return ""
		}
		putBytes(t, fs, other, bytesOf(t, g.fs, name))
		return "as " + other
	}},
	{"stale file", func(t *testing.T, g *ground, _ *rand.Rand, fs *MemFS, name string) string {
		if _, err := g.early.Open(filepath.Join("d", name)); err != nil {
			return ""
		}
		putBytes(t, fs, name, bytesOf(t, g.early, name))
		return "as it was"
	}},
	{"come back", func(t *testing.T, g *ground, rng *rand.Rand, fs *MemFS, _ string) string {
		if len(g.gone) == 0 {
			return ""
		}
		old := g.gone[rng.Intn(len(g.gone))]
		putBytes(t, fs, old, bytesOf(t, g.early, old))
		return old
	}},
	{"older checkpoint", func(t *testing.T, g *ground, _ *rand.Rand, fs *MemFS, _ string) string {
		what := ""
		for _, old := range g.gone {
			if strings.HasSuffix(old, checkSuffix) {
				putBytes(t, fs, old, bytesOf(t, g.early, old))
				what = old
			}
		}
		for _, name := range g.names {
			if what != "" && strings.HasSuffix(name, checkSuffix) {
				require.NoError(t, fs.Remove(filepath.Join("d", name)))
			}
		}
		return what
	}},
}

// damage damages a copy of g. kind is empty if what was drawn does not apply or changes nothing. file is set if an error has to
// name it.
func (g *ground) damage(t *testing.T, rng *rand.Rand) (fs *MemFS, kind, file, what string) {
	fs = g.fs.Crash(CrashKept, nil)
	if n := rng.Intn(len(spanDamages) + len(fileDamages)); n >= len(spanDamages) {
		m, name := fileDamages[n-len(spanDamages)], g.whole(rng)
		what = m.do(t, g, rng, fs, name)
		if what == "" {
			return fs, "", "", ""
		}
		return fs, m.name, "", fmt.Sprintf("%s %s: %s", name, m.name, what)
	} else {
		c, name := spanDamages[n], g.names[rng.Intn(len(g.names))]
		own := bytesOf(t, fs, name)
		from, to := g.span(rng, name, int64(len(own)), c.length)
		if from == to {
			return fs, "", "", ""
		}
		var early []byte
		if _, err := g.early.Open(filepath.Join("d", name)); err == nil {
			early = bytesOf(t, g.early, name)
		}
		span := append([]byte(nil), own[from:to]...)
		c.make(rng, span, own, early, bytesOf(t, fs, g.names[rng.Intn(len(g.names))]), int(from))
		if string(span) == string(own[from:to]) {
			return fs, "", "", ""
		}
		f, _ := openMem(t, fs, name)
		_, err := f.WriteAt(span, from)
		require.NoError(t, err)
		return fs, c.name, name, fmt.Sprintf("%s %s: %d to %d", name, c.name, from, to)
	}
}

func TestDamageDrawn(t *testing.T) {
	seed := *damageSeed
	if seed == 0 {
		seed = rand.Int63n(1 << 40)
	}
	type count struct{ opens, noticed int }
	counts := map[string]*count{}
	opens, noticed, grounds := 0, 0, 0
	for ; opens < *damageOpens; seed++ {
		rng := rand.New(rand.NewSource(seed))
		g := newGround(t, rng)
		grounds++
		replay := fmt.Sprintf("go test ./storage -run '^TestDamageDrawn$' -damage.seed %d -damage.opens 1, closed %t", seed, g.closed)
		require.False(t, tryDamaged(t, g.fs.Crash(CrashKept, nil), "", replay, g.ops, len(g.ops)))
		for range damageEach {
			fs, kind, file, what := g.damage(t, rng)
			if kind == "" {
				continue
			}
			if counts[kind] == nil {
				counts[kind] = &count{}
			}
			opens++
			counts[kind].opens++
			if tryDamaged(t, fs, file, replay+": "+what, g.ops, g.least) {
				noticed++
				counts[kind].noticed++
			}
		}
	}
	each := ""
	for _, kind := range sortedKeys(counts) {
		each += fmt.Sprintf(", %s %d/%d", kind, counts[kind].noticed, counts[kind].opens)
	}
	if *damageOpens >= 10*damageEach {
		require.Len(t, counts, len(spanDamages)+len(fileDamages), "a kind of damage was not tried")
	}
	fmt.Printf("damage: %d directories, %d opens, %d noticed, %d harmless, 0 silent%s\n", grounds, opens, noticed, opens-noticed, each)
}
