package bourse

import (
	"bytes"
	"cmp"
	"flag"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/boursemq/bourse/internal/wire"
)

// Goal: messages that nobody needs soon take some bytes each, are what they were when they are needed, and cost nothing while the
// queue is short; and a snapshot does not show which are packed. Method: the models of ready sets (priority_test.go), of
// the machine and of the whole broker run with blocks so small that most messages get packed; a chain is compared with its
// entries and with a naive one, cut, and read from random bytes; memory and allocations of a million messages are measured.

var backlog = flag.Int("backlog", 0, "messages of TestBacklog, which then has bounds; 0: a few, without bounds")

// TestMain makes blocks small, but where it matters how large they are.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.bench"); (f == nil || f.Value.String() == "") && *backlog == 0 {
		usualShape = smallShape
	}
	os.Exit(m.Run())
}

var (
	largeShape = blockShape{full: blockEntries, warm: 8}
	smallShape = blockShape{full: 3, warm: 1}
	coldShapes = []blockShape{{1, 1}, smallShape, {7, 2}, {blockEntries, 1}, largeShape}
)

func bySeqOrder(a, b entry) int { return cmp.Compare(a.seq, b.seq) }

// drawnEntry is an entry that looks like one of a log, and now and then not. It is the same for the same seq.
func drawnEntry(seq uint64) entry {
	n := mix64(seq)
	e := entry{seq: seq, ref: Ref(seq * 1100), arrived: instant(1<<60 + seq*n%3*5000), size: uint32(seq % 7)}
	if n>>8%16 == 0 {
		e.ref, e.arrived, e.size = Ref(n), instant(n<<1), uint32(n)
	}
	if n>>16%8 == 0 {
		e.deliveries, e.failures = uint32(n>>20%3), uint32(n>>24%3)
	}
	if n>>32%8 == 0 {
		e.part = uint8(1 + n>>40%maxParts)
	}
	return e
}

// readyChain is what a snapshot holds of v.
func readyChain(v readyView) []byte {
	return v.write(nil, func(b []byte) ([]byte, bool) { return b, true })
}

// plainChain is the same of sorted entries.
func plainChain(sorted []entry) []byte {
	var levels [][]entry
	for _, e := range sorted {
		if n := len(levels); n == 0 || levels[n-1][0].level != e.level {
			levels = append(levels, nil)
		}
		levels[len(levels)-1] = append(levels[len(levels)-1], e)
	}
	b := wire.AppendUvarint(nil, uint64(len(levels)))
	for _, level := range levels {
		b = wire.AppendUvarint(append(b, level[0].level), uint64(len(level)))
		before := entry{}
		for _, e := range level {
			b = appendLink(b, &before, &e)
			before = e
		}
	}
	return b
}

func TestColdChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		level := rapid.Uint8().Draw(t, "level")
		entries := make([]entry, rapid.IntRange(1, blockEntries).Draw(t, "n"))
		seq := uint64(0)
		for i := range entries {
			seq += rapid.SampledFrom([]uint64{1, 1, 1, 2, 127, 128, 129, 1 << 40}).Draw(t, "step")
			e := drawnEntry(seq)
			if rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
				e.ref, e.size = Ref(rapid.Uint64().Draw(t, "ref")), rapid.Uint32().Draw(t, "size")
				e.arrived, e.deliveries = instant(rapid.Int64().Draw(t, "arrived")), rapid.Uint32().Draw(t, "deliveries")
			}
			e.level, e.extra = level, rapid.IntRange(0, 9).Draw(t, "extra") == 0
			entries[i] = e
		}
		p, _ := pack(entries, nil)
		var room [blockEntries]entry
		require.Equal(t, entries, p.unpack(room[:]))
		require.Equal(t, []any{entries[0], seq, len(entries)}, []any{p.first, p.last.seq, p.n})

		b := plainChain(entries)[1:]
		read := func(b []byte) ([]entry, error) {
			r := wire.NewReader(b)
			var got []entry
			r.Byte()
			before := entry{level: level}
			for range r.Count(smallestLink) {
				e := decodeLink(&r, &before)
				got = append(got, e)
				before = e
			}
			return got, r.Done()
		}
		got, err := read(b)
		require.NoError(t, err)
		require.Equal(t, entries, got)
		_, err = read(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")])
		require.Error(t, err)
	})
}

// What a machine would have written in another way is refused.
func TestColdChainRefuses(t *testing.T) {
	before := entry{seq: 5, ref: 100, arrived: 50, size: 9}
	for name, b := range map[string][]byte{
		"nothing":                  {},
		"an unknown bit":           {linkEnd, 0},
		"the same seq":             {linkSeq, 0, 0},
		"a seq that needs no byte": {linkSeq, 1, 0},
		"a seq that goes back":     append(wire.AppendUvarint([]byte{linkSeq}, 1<<64-1), 0),
		"the same time":            {linkArrived, 0, 0},
		"the same size":            {linkSize, 0, 9},
		"a size too large":         wire.AppendUvarint([]byte{linkSize, 0}, 1<<32),
		"a history of nothing":     {linkHistory, 0, 0, 0},
		"too many deliveries":      append(wire.AppendUvarint([]byte{linkHistory, 0}, 1<<32), 1),
		"too many failures":        wire.AppendUvarint([]byte{linkHistory, 0, 1}, 1<<32),
		"a part of zero":           {linkPart, 0, 0},
	} {
		r := wire.NewReader(b)
		decodeLink(&r, &before)
		require.Error(t, r.Err(), name)
	}
	for name, b := range map[string][]byte{
		"a level too high":      {1, 3, 1, 0, 2},
		"a level twice":         {2, 1, 1, 0, 2, 1, 1, 0, 4},
		"levels out of order":   {2, 1, 1, 0, 2, 0, 1, 0, 4},
		"an empty level":        {1, 1, 0, 0, 0, 0},
		"more than there is":    {1, 1, 2, 0, 2},
		"more levels than fit":  {2, 1, 1, 0, 2},
		"a message without seq": {1, 1, 1, linkSeq, 0, 2},
	} {
		q := newQueue(queueDef{id: 1, Queue: Queue{Name: "q", Priorities: 3}.withDefaults()})
		r := wire.NewReader(b)
		q.decodeReady(&r, func(e entry) entry { return e })
		require.Error(t, r.Err(), name)
	}
}

// A chain that is read is written again as it was, but for numbers in more bytes than they need, and a ready set made of it holds.
func FuzzColdChain(f *testing.F) {
	f.Add(plainChain([]entry{{seq: 1, ref: 3, size: 5}, drawnEntry(16), drawnEntry(17), {seq: 18, level: 2, ref: 4}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		q := newQueue(queueDef{id: 1, Queue: Queue{Name: "q", Priorities: 3}.withDefaults()})
		var all []entry
		r := wire.NewReader(b)
		q.decodeReady(&r, func(e entry) entry {
			e.extra = false // would need a table
			all = append(all, e)
			return e
		})
		if r.Err() != nil {
			return
		}
		q.ready.check(func(entry, bool) {})
		written := readyChain(q.ready.view())
		require.Equal(t, plainChain(all), written)
		require.LessOrEqual(t, len(written), len(b)-r.Len())
	})
}

// Sets of equal content write equal bytes, whatever has happened to them.
func TestColdSnapshotShowsNoBlocks(t *testing.T) {
	const n = 3000
	var want []byte
	for _, shape := range coldShapes {
		for _, stray := range []uint64{0, 7, 64} { // each of so many comes back
			r := newReadySet(2)
			r.shape = shape
			var back []entry
			for seq := uint64(1); seq <= n; seq++ {
				e := drawnEntry(seq)
				e.level = uint8(seq / 2 % 2)
				if r.push(e); stray > 0 && seq%stray == 3 {
					e, ok := r.remove(e.level, seq)
					require.True(t, ok)
					back = append(back, e)
				}
			}
			for _, e := range back {
				r.insert(e)
			}
			got := readyChain(r.view())
			if want == nil {
				want = got
			}
			require.True(t, bytes.Equal(want, got), "%+v, %d", shape, stray)
		}
	}
}

// A message that waits far behind takes a few bytes.
func TestColdMemory(t *testing.T) {
	const n = 300_000
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	r := newReadySet(1)
	r.shape = largeShape
	for seq := range uint64(n) {
		r.push(entry{seq: seq + 1, ref: Ref(seq * 1100), arrived: instant(1<<60 + seq*20_000), size: 1024, level: 0})
	}
	each := float64(int64(heap()-before)) / n
	require.Less(t, each, 9.0, "bytes of a message")
	require.Equal(t, n, r.n)
	for seq := range uint64(n) {
		require.Equal(t, seq+1, r.pop().seq)
	}
	require.Nil(t, r.lines[0].cold)
}

// In a short line nothing is packed; what goes through a long one allocates less than one thing a message.
func TestColdOnlyWhenDeep(t *testing.T) {
	r := newReadySet(1)
	r.shape = largeShape
	seq := uint64(0)
	push := func() { seq++; r.push(entry{seq: seq}) }
	for range largeShape.warm * blockEntries {
		push()
	}
	for range 10 * blockEntries {
		r.pop()
		push()
	}
	require.Nil(t, r.lines[0].cold)
	for range 100 * blockEntries {
		push()
	}
	require.Len(t, r.lines[0].cold.row[r.lines[0].cold.head:], 2*(100-1))
	require.Zero(t, testing.AllocsPerRun(5000, func() { push(); r.pop() }))
	for r.n > 0 {
		r.pop()
	}
	require.Nil(t, r.lines[0].cold)
	require.True(t, slices.Equal([]uint64{0, 0, 0, 0}, r.occupied[:]))
}
