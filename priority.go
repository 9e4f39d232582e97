package bourse

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/google/btree"
)

// entry is a message as a queue knows it: where its body is and what has happened to it.
// Bodies, headers and names stay in the log, so that millions of waiting messages fit
// into memory.
type entry struct {
	seq        uint64  // order of arrival in this queue, from 1
	ref        Ref     // the command in the log that holds the message
	arrived    instant // when it came to this queue
	size       uint32  // bytes of the command at ref, or of the part, as if its body were not compressed
	deliveries uint32  // times it was handed out
	failures   uint32  // times it went wrong
	level      uint8   // 0 is served last
	extra      bool    // there is more about it in queue.extras
	counted    bool    // on loan or resting, it counts against the limit of its group
	part       uint8   // which message of the command at ref, from 1; 0: that holds one
}

// readySet holds the messages that wait for a consumer: one line per priority level, each
// in order of arrival. Push and pop cost the same for 1 level or 256, and for ten
// messages or ten million; a message that comes back goes to its old place.
//
// A message with a group stands beside the lines, since it may have to wait for others of its group: which one is next, group.go
// says. Top, pop and first know only the lines; all else knows both.
//
// Invariants, tested by check:
//  1. Each line is in ascending order of seq, and all in it have its level.
//  2. Bit l of occupied is set if and only if line l is not empty.
//  3. n and bytes are the sums over all lines and grouped.
//  4. No block is empty, and none is the spare one.
//  5. n of a line is the number of its messages, and perLevel that of the grouped.
//  6. saved is the sum over all packed blocks.
type readySet struct {
	lines    []line
	occupied [MaxPriorities / 64]uint64
	grouped  *btree.BTreeG[entry] // messages with a group, by level and seq; nil until there is one
	perLevel []int                // of grouped, how many are at each level; nil likewise
	n        int
	bytes    int64
	saved    int64  // bytes of memory that the packed take less than entries would
	spare    *block // one emptied block, kept for the next push
	shape    blockShape
}

// line is the messages of one level. New ones always have the highest seq so far and go to
// the tail of a row of blocks; when there are many, the first of the row goes to the cold part. One that comes back, or comes from
// another level, may have any seq, usually one lower than the head, and goes into returned, which is nil in a queue
// where nothing ever comes back. The next message is the one with the lower seq of both heads.
type line struct {
	cold     *cold    // what goes before the row; nil while the line is short
	row      []*block // the blocks are row[head:], in order
	head     int
	n        int // messages, those of returned included
	returned *btree.BTreeG[entry]
}

// block is a piece of a line: entries[first:last] are in it, at least one.
type block struct {
	entries     [blockEntries]entry
	first, last int
	shared      bool // a view refers to it
}

const blockEntries = 128

func bySeq(a, b entry) bool { return a.seq < b.seq }

func byLevel(a, b entry) bool { return a.level < b.level || a.level == b.level && a.seq < b.seq }

func newReadySet(levels int) readySet {
	return readySet{lines: make([]line, levels), shape: usualShape}
}

// push adds e, whose seq is higher than any that was pushed before, at the tail of its level.
func (r *readySet) push(e entry) {
	l := &r.lines[e.level]
	n := len(l.row)
	if n == l.head || l.row[n-1].last == r.shape.full {
		if n-l.head >= r.shape.warm {
			r.chill(l)
		}
		l.append(r.fresh())
		n = len(l.row)
	}
	b := l.row[n-1]
	b.entries[b.last] = e
	b.last++
	r.added(e)
}

// fresh returns an empty block.
func (r *readySet) fresh() *block {
	b := r.spare
	if b == nil {
		return new(block)
	}
	r.spare = nil
	return b
}

// recycle takes back a block that is in no line any more. A shared one is left to its views.
func (r *readySet) recycle(b *block) {
	if !b.shared {
		b.first, b.last = 0, 0
		r.spare = b
	}
}

// append puts b behind the row. The places of blocks that were popped are used again before the row grows.
func (l *line) append(b *block) {
	if len(l.row) == cap(l.row) && l.head > len(l.row)/2 {
		n := copy(l.row, l.row[l.head:])
		clear(l.row[n:])
		l.row, l.head = l.row[:n], 0
	}
	l.row = append(l.row, b)
}

// cut takes block i out of the row.
func (l *line) cut(i int) {
	if i == l.head {
		l.row[i] = nil
		l.head++
	} else {
		l.row = slices.Delete(l.row, i, i+1)
	}
	if l.head == len(l.row) {
		l.row, l.head = l.row[:0], 0
	}
}

// next is the first of the blocks, which returned may come before; nil if there is none.
func (l *line) next() *entry {
	if l.cold != nil {
		b := l.cold.front
		return &b.entries[b.first]
	}
	if l.head == len(l.row) {
		return nil
	}
	b := l.row[l.head]
	return &b.entries[b.first]
}

func (l *line) empty() bool {
	return l.cold == nil && l.head == len(l.row) && (l.returned == nil || l.returned.Len() == 0)
}

// insert puts e back to the place that its seq gives it in its level.
func (r *readySet) insert(e entry) {
	l := &r.lines[e.level]
	if l.returned == nil {
		l.returned = btree.NewG(16, bySeq)
	}
	l.returned.ReplaceOrInsert(e)
	r.added(e)
}

// insertGrouped adds e, which has a group, at the place that its seq gives it.
func (r *readySet) insertGrouped(e entry) {
	if r.grouped == nil {
		r.grouped, r.perLevel = btree.NewG(16, byLevel), make([]int, MaxPriorities)
	}
	r.grouped.ReplaceOrInsert(e)
	r.perLevel[e.level]++
	r.n++
	r.bytes += int64(e.size)
}

// removeGrouped takes out a message with a group. False: it is not there.
func (r *readySet) removeGrouped(level uint8, seq uint64) (entry, bool) {
	if r.grouped == nil {
		return entry{}, false
	}
	e, ok := r.grouped.Delete(entry{level: level, seq: seq})
	if ok {
		r.perLevel[level]--
		r.n--
		r.bytes -= int64(e.size)
	}
	return e, ok
}

// at is the number of messages at a level.
func (r *readySet) at(level int) int {
	if r.grouped == nil {
		return r.lines[level].n
	}
	return r.lines[level].n + r.perLevel[level]
}

// loose is the number of messages without a group.
func (r *readySet) loose() int { return r.n - treeLen(r.grouped) }

func (r *readySet) added(e entry) {
	r.occupied[e.level/64] |= 1 << (e.level % 64)
	r.lines[e.level].n++
	r.n++
	r.bytes += int64(e.size)
}

// top is the highest level that is not empty. The set must not be empty.
func (r *readySet) top() int {
	for w := len(r.occupied) - 1; w >= 0; w-- {
		if r.occupied[w] != 0 {
			return w*64 + bits.Len64(r.occupied[w]) - 1
		}
	}
	panic("bourse: top of an empty ready set")
}

// occupiedFrom is the highest level at which something waits, with or without a group, from level downwards; -1 if there is none.
func (r *readySet) occupiedFrom(level int) int {
	found := r.lineFrom(level)
	if level >= 0 && r.grouped != nil {
		r.grouped.DescendLessOrEqual(entry{level: uint8(level), seq: math.MaxUint64}, func(e entry) bool {
			found = max(found, int(e.level))
			return false
		})
	}
	return found
}

// lineFrom is the highest line that is not empty, from level downwards; -1 if there is none.
func (r *readySet) lineFrom(level int) int {
	for ; level >= 0; level-- {
		if w := r.occupied[level/64] << (63 - level%64); w != 0 {
			return level - bits.LeadingZeros64(w)
		}
		level &^= 63 // the rest of this word is empty
	}
	return -1
}

// pop takes the first message of the highest level. The set must not be empty.
func (r *readySet) pop() entry { return r.popOf(r.top()) }

// popOf takes the first message of a level, which must not be empty.
func (r *readySet) popOf(level int) entry {
	l := &r.lines[level]
	next := l.next()
	var e entry
	if first, ok := l.firstReturned(); ok && (next == nil || first.seq < next.seq) {
		e, _ = l.returned.DeleteMin()
	} else {
		e = *next
		r.dropFirst(l)
	}
	r.removed(e)
	return e
}

// dropFirst takes the first entry out of the blocks of l.
func (r *readySet) dropFirst(l *line) {
	if l.cold != nil {
		l.cold.dropFirst(r, l)
		return
	}
	b := l.row[l.head]
	b.first++
	if b.first == b.last {
		l.cut(l.head)
		r.recycle(b)
	}
}

func (r *readySet) removed(e entry) {
	l := &r.lines[e.level]
	if l.n--; l.n == 0 {
		r.occupied[e.level/64] &^= 1 << (e.level % 64)
	}
	r.n--
	r.bytes -= int64(e.size)
}

// first is the message that pop would take. The set must not be empty.
func (r *readySet) first() entry { return r.firstOf(r.top()) }

// lowest is the message that goes first where there is no room: the oldest of the lowest level, with or without a group. The set
// must not be empty.
func (r *readySet) lowest() entry {
	if r.loose() == 0 {
		e, _ := r.grouped.Min()
		return e
	}
	w := 0
	for r.occupied[w] == 0 {
		w++
	}
	e := r.firstOf(w*64 + bits.TrailingZeros64(r.occupied[w]))
	if treeLen(r.grouped) > 0 {
		if g, _ := r.grouped.Min(); byLevel(g, e) {
			return g
		}
	}
	return e
}

// firstOf is the message that popOf would take.
func (r *readySet) firstOf(level int) entry {
	l := &r.lines[level]
	next := l.next()
	first, ok := l.firstReturned()
	if !ok || next != nil && next.seq < first.seq {
		return *next
	}
	return first
}

// any is one of the messages: the first of the highest level, or one with a group if there are no others. The set must not be empty.
func (r *readySet) any() entry {
	if r.loose() > 0 {
		return r.first()
	}
	e, _ := r.grouped.Min()
	return e
}

// find returns the message seq of a level, and whether it is there. Its cost grows with the logarithm of what waits.
func (r *readySet) find(level uint8, seq uint64) (entry, bool) {
	l := &r.lines[level]
	if n, i, ok := l.search(seq); ok {
		return l.row[n].entries[i], true
	}
	if l.cold != nil {
		if e, ok := l.cold.find(seq); ok {
			return e, true
		}
	}
	if l.returned != nil {
		if e, ok := l.returned.Get(entry{seq: seq}); ok {
			return e, true
		}
	}
	if r.grouped == nil {
		return entry{}, false
	}
	return r.grouped.Get(entry{level: level, seq: seq})
}

// search finds the place of seq in the row: that of the first entry that is not before it, and whether that is seq. If all are
// before it, n is the length of the row.
func (l *line) search(seq uint64) (n, i int, found bool) {
	n, _ = slices.BinarySearchFunc(l.row[l.head:], seq, func(b *block, seq uint64) int {
		return cmp.Compare(b.entries[b.last-1].seq, seq)
	})
	n += l.head
	if n == len(l.row) {
		return n, 0, false
	}
	i, found = l.row[n].search(seq)
	return n, i, found
}

// search finds the place of seq in b: that of the first entry that is not before it, and whether that is seq.
func (b *block) search(seq uint64) (int, bool) {
	i, found := searchEntries(b.entries[b.first:b.last], seq)
	return b.first + i, found
}

func searchEntries(entries []entry, seq uint64) (int, bool) {
	return slices.BinarySearchFunc(entries, seq, func(e entry, seq uint64) int { return cmp.Compare(e.seq, seq) })
}

// from calls yield with the messages of a level from seq on, in order, until it returns false.
func (r *readySet) from(level int, seq uint64, yield func(entry) bool) {
	l := &r.lines[level]
	if treeLen(r.grouped) == 0 {
		l.from(seq, yield)
		return
	}
	for {
		next, ok := entry{}, false
		l.from(seq, func(e entry) bool { next, ok = e, true; return false })
		r.grouped.AscendGreaterOrEqual(entry{level: uint8(level), seq: seq}, func(e entry) bool {
			if int(e.level) == level && (!ok || e.seq < next.seq) {
				next, ok = e, true
			}
			return false
		})
		if !ok || !yield(next) {
			return
		}
		seq = next.seq + 1
	}
}

// from calls yield with the messages of l from seq on, in order, until it returns false.
func (l *line) from(seq uint64, yield func(entry) bool) {
	n, i, _ := l.search(seq)
	more := true
	var w coldCursor
	if l.cold != nil {
		w = l.cold.from(seq)
	}
	upTo := func(end uint64) { // what is in the blocks and before end
		more = more && w.before(end, yield, nil)
		for more && n < len(l.row) && l.row[n].entries[i].seq < end {
			more = yield(l.row[n].entries[i])
			if i++; i == l.row[n].last {
				if n++; n < len(l.row) {
					i = l.row[n].first
				}
			}
		}
	}
	if l.returned != nil {
		l.returned.AscendGreaterOrEqual(entry{seq: seq}, func(e entry) bool {
			upTo(e.seq)
			more = more && yield(e)
			return more
		})
	}
	upTo(math.MaxUint64)
}

// remove takes the message seq out of a level, wherever it stands there. False: it is not there. The cost is that of find, and
// of moving what is behind it in its block.
func (r *readySet) remove(level uint8, seq uint64) (entry, bool) {
	l := &r.lines[level]
	n, i, ok := l.search(seq)
	if !ok {
		if l.cold != nil {
			if e, ok := l.cold.remove(r, l, seq); ok {
				r.removed(e)
				return e, true
			}
		}
		if l.returned != nil {
			if e, ok := l.returned.Delete(entry{seq: seq}); ok {
				r.removed(e)
				return e, true
			}
		}
		return r.removeGrouped(level, seq)
	}
	b := l.row[n]
	e := b.entries[i]
	switch {
	case l.cold == nil && n == l.head && i == b.first:
		r.dropFirst(l)
	case b.first+1 == b.last:
		l.cut(n)
		r.recycle(b)
	default:
		b = r.without(b, i)
		l.row[n] = b
		if n+1 < len(l.row) && b.len()+l.row[n+1].len() <= r.shape.full/2 {
			r.merge(l, n)
		} else if n > l.head && l.row[n-1].len()+b.len() <= r.shape.full/2 {
			r.merge(l, n-1)
		}
	}
	r.removed(e)
	return e, true
}

func (b *block) len() int { return b.last - b.first }

// without returns b, or a copy of it if that is shared, without the entry at i, which is not its only one.
func (r *readySet) without(b *block, i int) *block {
	if b.shared {
		i -= b.first
		b = r.copyOf(b)
	}
	copy(b.entries[i:], b.entries[i+1:b.last])
	b.last--
	return b
}

// copyOf returns the entries of b in a block of its own, from its beginning.
func (r *readySet) copyOf(b *block) *block {
	c := r.fresh()
	c.last = copy(c.entries[:], b.entries[b.first:b.last])
	return c
}

// merge puts block n and the one behind it, which fit into one, into one: what was thinned out by remove must not cost a block for
// a few messages.
func (r *readySet) merge(l *line, n int) {
	a, b := l.row[n], l.row[n+1]
	c := r.copyOf(a)
	c.last += copy(c.entries[c.last:], b.entries[b.first:b.last])
	l.row[n] = c
	l.row = slices.Delete(l.row, n+1, n+2)
	r.recycle(a)
	r.recycle(b)
}

func (l *line) firstReturned() (entry, bool) {
	if l.returned == nil || l.returned.Len() == 0 {
		return entry{}, false
	}
	return l.returned.Min()
}

// each calls yield with every message, by level from the lowest, by seq within one, until it
// returns false. The set must not change meanwhile.
func (r *readySet) each(yield func(entry) bool) { r.look(false).each(yield) }

// readyView is a ready set at one moment.
type readyView struct {
	n     int
	lines []lineView
}

type lineView struct {
	level    uint8
	n        int          // messages at that level
	front    blockView    // first of the cold part; none: without a block
	packed   []*coldBlock // the others of it
	blocks   []blockView
	returned *btree.BTreeG[entry]
	grouped  *btree.BTreeG[entry] // of all levels; nil: none
}

// blockView is entries[first:last] of a block.
type blockView struct {
	block       *block
	first, last int
}

// view is the set as it is now, whatever happens to it later. It shares the blocks: what is in them is not changed any
// more, push adds behind what the view sees, pop leaves a shared block to the view instead of using it again, and
// remove takes a copy of it.
func (r *readySet) view() readyView { return r.look(true) }

func (r *readySet) look(share bool) readyView {
	v := readyView{n: r.n}
	grouped := r.grouped
	if treeLen(grouped) == 0 {
		grouped = nil
	} else if share {
		grouped = grouped.Clone()
	}
	for i := range r.lines {
		l := &r.lines[i]
		if l.empty() && grouped == nil {
			continue
		}
		lv := l.look(share)
		lv.level, lv.n, lv.grouped = uint8(i), l.n, grouped
		if grouped != nil {
			lv.n += r.perLevel[i]
		}
		if share && l.returned != nil {
			lv.returned = l.returned.Clone()
		}
		v.lines = append(v.lines, lv)
	}
	return v
}

// look is what is in the blocks of l, and what was returned to it.
func (l *line) look(share bool) lineView {
	v := lineView{returned: l.returned}
	if c := l.cold; c != nil {
		v.front, v.packed = c.front.look(share), c.row[c.head:]
		if share {
			v.packed = slices.Clone(v.packed)
		}
	}
	for _, b := range l.row[l.head:] {
		v.blocks = append(v.blocks, b.look(share))
	}
	return v
}

func (b *block) look(share bool) blockView {
	b.shared = b.shared || share
	return blockView{b, b.first, b.last}
}

func (v blockView) entries() []entry { return v.block.entries[v.first:v.last] }

// each is readySet.each for a view.
func (v readyView) each(yield func(entry) bool) {
	for _, l := range v.lines {
		if !l.each(yield) {
			return
		}
	}
}

// each yields the messages of the line, those with a group in between, and reports whether yield always wanted more.
func (l *lineView) each(yield func(entry) bool) bool { return l.walk(lineCursor{yield: yield}) }

// walk goes over the line with c, and reports whether that always wanted more.
func (l *lineView) walk(c lineCursor) bool {
	c.cold, c.blocks = coldCursor{packed: l.packed}, l.blocks
	if l.front.block != nil {
		c.cold.front = l.front.entries()
	}
	if l.returned != nil && l.returned.Len() > 0 {
		c.back = make([]entry, 0, l.returned.Len())
		l.returned.Ascend(func(e entry) bool { c.back = append(c.back, e); return true })
	}
	on := true
	if l.grouped != nil {
		l.grouped.AscendGreaterOrEqual(entry{level: l.level}, func(e entry) bool {
			if e.level != l.level {
				return false
			}
			on = c.before(e.seq) && c.yield(e)
			return on
		})
	}
	return on && c.before(math.MaxUint64)
}

// lineCursor is how far a walk through the blocks of a line, and what was returned to it, has come.
type lineCursor struct {
	yield func(entry) bool
	whole func(*coldBlock) bool // gets a packed block that nothing comes between, in place of yield; nil: none

	cold   coldCursor
	open   []entry     // of the block in which it is
	blocks []blockView // behind it
	back   []entry
}

// before yields what comes before seq, and reports whether yield always wanted more.
func (c *lineCursor) before(seq uint64) bool {
	for {
		end := seq // for what is in the blocks
		if len(c.back) > 0 {
			end = min(end, c.back[0].seq)
		}
		if !c.inBlocks(end) {
			return false
		}
		if end == seq {
			return true
		}
		e := c.back[0]
		c.back = c.back[1:]
		if !c.yield(e) {
			return false
		}
	}
}

// inBlocks is before, but for what was returned.
func (c *lineCursor) inBlocks(seq uint64) bool {
	if !c.cold.before(seq, c.yield, c.whole) {
		return false
	}
	for {
		for len(c.open) > 0 {
			e := c.open[0]
			if e.seq >= seq {
				return true
			}
			c.open = c.open[1:]
			if !c.yield(e) {
				return false
			}
		}
		if len(c.blocks) == 0 {
			return true
		}
		c.open, c.blocks = c.blocks[0].entries(), c.blocks[1:]
	}
}
