package bourse

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Goal: a ready set is the sorted list that it stands for, whatever is pushed, popped, removed and put back, and a view is
// of its moment. Method: a twin that sorts a slice, in lock-step under random operations, with the invariants checked
// and the whole content compared; and the shapes of blocks that random operations meet too rarely.

// plainReadySet is the twin: a slice, sorted when asked.
type plainReadySet []entry

func (p *plainReadySet) pop() entry {
	p.sort()
	e := (*p)[0]
	*p = (*p)[1:]
	return e
}

func (p *plainReadySet) sort() {
	slices.SortFunc(*p, func(a, b entry) int { return cmp.Or(cmp.Compare(b.level, a.level), cmp.Compare(a.seq, b.seq)) })
}

// requireReady compares the content of a ready set with the twin's.
func requireReady(t require.TestingT, r *readySet, p *plainReadySet) {
	r.check(func(entry, bool) {})
	var got []entry
	r.each(func(e entry) bool { got = append(got, e); return true })
	want := slices.Clone(*p)
	// each goes from the lowest level.
	slices.SortFunc(want, func(a, b entry) int { return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(a.seq, b.seq)) })
	if len(want) > 0 {
		require.Equal(t, want[0], r.lowest())
	}
	require.True(t, slices.Equal(got, want), "got %v\nwant %v", got, want)
	require.Equal(t, len(want), r.n)
	require.Equal(t, plainChain(want), readyChain(r.look(false)), "in a snapshot")
	if r.n > 0 {
		p.sort()
		require.Equal(t, (*p)[0], r.first())
	}
}

func TestReadySetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		levels := rapid.SampledFrom([]int{1, 2, 10, 64, 65, 256}).Draw(t, "levels")
		r, p := newReadySet(levels), plainReadySet{}
		r.shape = rapid.SampledFrom(coldShapes).Draw(t, "shape")
		seq := uint64(0)
		var out []entry // popped or removed, may come back
		type seen struct {
			view  readyView
			want  []entry
			chain []byte
		}
		var views []seen
		push := func(n int) {
			for range n {
				seq++
				e := drawnEntry(seq)
				e.level = uint8((seq * 2654435761 >> 7) % uint64(levels))
				r.push(e)
				p = append(p, e)
			}
		}
		pop := func(n int) {
			for range min(n, r.n) {
				want := p.pop()
				require.Equal(t, want, r.first())
				got := r.pop()
				require.Equal(t, want, got)
				out = append(out, got)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push":      func(t *rapid.T) { push(rapid.IntRange(1, 5).Draw(t, "n")) },
			"push many": func(t *rapid.T) { push(rapid.IntRange(50, 300).Draw(t, "n")) },
			"pop":       func(t *rapid.T) { pop(rapid.IntRange(1, 5).Draw(t, "n")) },
			"pop many":  func(t *rapid.T) { pop(rapid.IntRange(50, 300).Draw(t, "n")) },
			"pop all":   func(t *rapid.T) { pop(r.n) },
			"return": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					if len(out) == 0 {
						return
					}
					i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
					e := out[i]
					out = slices.Delete(out, i, i+1)
					e.failures++
					r.insert(e)
					p = append(p, e)
				}
			},
			"remove": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					if len(p) == 0 {
						return
					}
					i := rapid.IntRange(0, len(p)-1).Draw(t, "which")
					want := p[i]
					p = slices.Delete(p, i, i+1)
					requireRemove(t, &r, want)
					if rapid.Bool().Draw(t, "back") {
						out = append(out, want)
					}
				}
			},
			"remove most": func(t *rapid.T) {
				keep := rapid.IntRange(2, 50).Draw(t, "keep one in")
				for _, e := range slices.Clone(p) {
					if e.seq%uint64(keep) != 0 {
						requireRemove(t, &r, e)
					}
				}
				p = slices.DeleteFunc(p, func(e entry) bool { return e.seq%uint64(keep) != 0 })
			},
			"remove what is not there": func(t *rapid.T) {
				level := uint8(rapid.IntRange(0, levels-1).Draw(t, "level"))
				at := uint64(rapid.IntRange(0, int(seq)+1).Draw(t, "seq"))
				if slices.ContainsFunc(p, func(e entry) bool { return e.seq == at && e.level == level }) {
					return
				}
				_, found := r.find(level, at)
				_, removed := r.remove(level, at)
				require.False(t, found || removed, "message %d", at)
			},
			"view": func(t *rapid.T) {
				if len(views) == 3 {
					views = views[1:]
				}
				v := seen{view: r.view()}
				v.chain = readyChain(v.view)
				v.view.each(func(e entry) bool { v.want = append(v.want, e); return true })
				views = append(views, v)
			},
			"from": func(t *rapid.T) {
				level := uint8(rapid.IntRange(0, levels-1).Draw(t, "level"))
				at := uint64(rapid.IntRange(0, int(seq)+1).Draw(t, "seq"))
				limit := rapid.IntRange(1, 300).Draw(t, "limit")
				want := slices.DeleteFunc(slices.Clone(p), func(e entry) bool { return e.level != level || e.seq < at })
				slices.SortFunc(want, bySeqOrder)
				want = want[:min(len(want), limit)]
				var got []entry
				r.from(int(level), at, func(e entry) bool { got = append(got, e); return len(got) < limit })
				require.True(t, slices.Equal(want, got), "from %d: got %v\nwant %v", at, got, want)
			},
			"": func(t *rapid.T) {
				requireReady(t, &r, &p)
				for _, v := range views {
					var got []entry
					v.view.each(func(e entry) bool { got = append(got, e); return true })
					require.True(t, slices.Equal(v.want, got), "a view has changed")
					require.Equal(t, v.chain, readyChain(v.view), "what a view writes has changed")
				}
			},
		})
	})
}

func requireRemove(t require.TestingT, r *readySet, want entry) {
	found, ok := r.find(want.level, want.seq)
	require.True(t, ok, "message %d is not found", want.seq)
	require.Equal(t, want, found)
	got, ok := r.remove(want.level, want.seq)
	require.True(t, ok, "message %d is not removed", want.seq)
	require.Equal(t, want, got)
	_, ok = r.find(want.level, want.seq)
	require.False(t, ok, "message %d is still found", want.seq)
}

// What remove has thinned out does not keep the blocks of what is gone, in whatever order that goes.
func TestReadySetMergesBlocks(t *testing.T) {
	for name, next := range map[string]func(i, n int) int{
		"forward": func(i, _ int) int { return i }, "backward": func(i, n int) int { return n - 1 - i },
		"scattered": func(i, n int) int { return i * 7919 % n },
	} {
		t.Run(name, func(t *testing.T) {
			const n, keep = 100 * blockEntries, 97
			r := newReadySet(1)
			r.shape = largeShape
			for seq := range uint64(n) {
				r.push(entry{seq: seq})
			}
			left := 0
			for i := range n {
				if seq := uint64(next(i, n)); seq%keep != 0 {
					requireRemove(t, &r, entry{seq: seq})
				} else {
					left++
				}
			}
			require.Equal(t, left, r.n)
			r.check(func(entry, bool) {})
			l := &r.lines[0]
			blocks := len(l.row) - l.head
			if l.cold != nil {
				blocks += 1 + len(l.cold.row) - l.cold.head
			}
			require.LessOrEqual(t, blocks, 2+4*left/blockEntries, "%d messages", left)
		})
	}
}

// A view keeps what is removed from its blocks: at the front, in between, at the end, and of several at once.
func TestReadySetViewKeepsRemoved(t *testing.T) {
	const n = 3 * blockEntries
	for _, shape := range coldShapes {
		for _, gone := range [][]uint64{{0}, {5}, {blockEntries - 1}, {blockEntries}, {n - 1}, {5, 6, blockEntries + 7, n - 2, n - 1}} {
			r := newReadySet(1)
			r.shape = shape
			for seq := range uint64(n) {
				r.push(entry{seq: seq})
			}
			v := r.view()
			for i, seq := range gone {
				requireRemove(t, &r, entry{seq: seq})
				r.push(entry{seq: uint64(n + i)})
			}
			want := uint64(0)
			v.each(func(e entry) bool {
				require.Equal(t, want, e.seq, "removed %v", gone)
				want++
				return true
			})
			require.Equal(t, uint64(n), want)
			r.check(func(entry, bool) {})
		}
	}
}

// A row whose head moves on for ever does not grow.
func TestReadySetRowIsUsedAgain(t *testing.T) {
	r, seq := newReadySet(1), uint64(0)
	for r.shape = largeShape; seq < 20*blockEntries; {
		seq++
		r.push(entry{seq: seq})
	}
	for range 1000 * blockEntries {
		seq++
		r.push(entry{seq: seq})
		r.pop()
	}
	require.Less(t, cap(r.lines[0].row)+cap(r.lines[0].cold.row), 100)
	r.check(func(entry, bool) {})
}

// Ten returned in any order come back by seq, before, between and behind what waits.
func TestReadySetReturnsToItsPlace(t *testing.T) {
	for _, waiting := range []int{0, 1, blockEntries - 1, blockEntries, blockEntries + 1} {
		for _, order := range [][]int{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, {4, 9, 0, 7, 2, 5, 8, 1, 6, 3}} {
			r := newReadySet(1)
			for seq := range uint64(10 + waiting) {
				r.push(entry{seq: seq + 1})
			}
			var held []entry
			for range 10 {
				held = append(held, r.pop())
			}
			for _, i := range order {
				r.insert(held[i])
			}
			for seq := range uint64(10 + waiting) {
				require.Equal(t, seq+1, r.pop().seq)
			}
			require.Zero(t, r.n)
			r.check(func(entry, bool) {})
		}
	}
}

// The borders of blocks, and the one spare block.
func TestReadySetBlocks(t *testing.T) {
	for _, n := range []int{1, blockEntries - 1, blockEntries, blockEntries + 1, 2 * blockEntries, 3*blockEntries + 1} {
		r, p := newReadySet(2), plainReadySet{}
		seq := uint64(0)
		for round := range 3 {
			for range n {
				seq++
				e := entry{seq: seq, level: uint8(seq % 2), size: 3}
				r.push(e)
				p = append(p, e)
			}
			keep := round % 2
			for r.n > keep {
				require.Equal(t, p.pop(), r.pop())
			}
			requireReady(t, &r, &p)
		}
	}
}

func TestReadySetLevels(t *testing.T) {
	r := newReadySet(MaxPriorities)
	for l := range MaxPriorities {
		r.push(entry{seq: uint64(l + 1), level: uint8(l)})
		require.Equal(t, l, r.top())
	}
	for l := MaxPriorities - 1; l >= 0; l-- {
		require.Equal(t, uint8(l), r.pop().level)
	}
	require.Panics(t, func() { r.pop() })
	// A level is occupied by what was returned too.
	r.insert(entry{seq: 1, level: 200})
	require.Equal(t, 200, r.top())
	r.pop()
	require.Equal(t, [4]uint64{}, r.occupied)
}

// each stops when it is told to.
func TestReadySetEachStops(t *testing.T) {
	r := newReadySet(2)
	for seq := range uint64(6) {
		r.push(entry{seq: seq + 1, level: uint8(seq % 2)})
	}
	back := r.pop()
	r.insert(back)
	for n := 1; n <= 6; n++ {
		seen := 0
		r.each(func(entry) bool {
			seen++
			return seen < n
		})
		require.Equal(t, n, seen)
	}
}
