package bourse

import (
	"math/bits"

	"github.com/google/btree"
)

// entry is a message as a queue knows it: where its body is and what has happened to it.
// Bodies, headers and names stay in the log, so that millions of waiting messages fit
// into memory.
type entry struct {
	seq        uint64  // order of arrival in this queue, from 1
	ref        Ref     // the command in the log that holds the message
	arrived    instant // when it came to this queue
	size       uint32  // bytes of the command at ref
	deliveries uint32  // times it was handed out
	failures   uint32  // times it went wrong
	level      uint8   // 0 is served last
}

// readySet holds the messages that wait for a consumer: one line per priority level, each
// in order of arrival. Push and pop cost the same for 1 level or 256, and for ten
// messages or ten million; a message that comes back goes to its old place.
//
// Invariants, tested by check:
//  1. Each line is in ascending order of seq, and all in it have its level.
//  2. Bit l of occupied is set if and only if line l is not empty.
//  3. n and bytes are the sums over all lines.
type readySet struct {
	lines    []line
	occupied [MaxPriorities / 64]uint64
	n        int
	bytes    int64
	spare    *block // one emptied block, kept for the next push
}

// line is the messages of one level. New ones always have the highest seq so far and go to
// the tail of a list of blocks. One that comes back has a lower seq than the tail, usually lower than the
// head, and goes into returned, which is nil in a queue where nothing ever comes
// back. The next message is the one with the lower seq of both heads.
type line struct {
	head, tail *block
	returned   *btree.BTreeG[entry]
}

// block is a piece of a line: entries[first:last] are in it.
type block struct {
	entries     [blockEntries]entry
	first, last int
	next        *block
	shared      bool // a view refers to it
}

const blockEntries = 128

func bySeq(a, b entry) bool { return a.seq < b.seq }

func newReadySet(levels int) readySet { return readySet{lines: make([]line, levels)} }

// push adds e, whose seq is higher than any that was pushed before, at the tail of its level.
func (r *readySet) push(e entry) {
	l := &r.lines[e.level]
	if l.tail == nil || l.tail.last == blockEntries {
		b := r.spare
		if b == nil {
			b = new(block)
		} else {
			r.spare = nil
		}
		if l.tail == nil {
			l.head = b
		} else {
			l.tail.next = b
		}
		l.tail = b
	}
	l.tail.entries[l.tail.last] = e
	l.tail.last++
	r.added(e)
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

func (r *readySet) added(e entry) {
	r.occupied[e.level/64] |= 1 << (e.level % 64)
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

// pop takes the next message: the first of the highest level. The set must not be empty.
func (r *readySet) pop() entry {
	level := r.top()
	l := &r.lines[level]
	var e entry
	if first, ok := l.firstReturned(); ok && (l.head == nil || first.seq < l.head.entries[l.head.first].seq) {
		e, _ = l.returned.DeleteMin()
	} else {
		b := l.head
		e = b.entries[b.first]
		b.first++
		if b.first == b.last {
			l.head = b.next
			if l.head == nil {
				l.tail = nil
			}
			if !b.shared {
				b.first, b.last, b.next = 0, 0, nil
				r.spare = b
			}
		}
	}
	if l.head == nil && (l.returned == nil || l.returned.Len() == 0) {
		r.occupied[level/64] &^= 1 << (level % 64)
	}
	r.n--
	r.bytes -= int64(e.size)
	return e
}

// first is the message that pop would take. The set must not be empty.
func (r *readySet) first() entry {
	l := &r.lines[r.top()]
	first, ok := l.firstReturned()
	if !ok || l.head != nil && l.head.entries[l.head.first].seq < first.seq {
		return l.head.entries[l.head.first]
	}
	return first
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
	blocks   []blockView
	returned *btree.BTreeG[entry]
}

// blockView is entries[first:last] of a block.
type blockView struct {
	block       *block
	first, last int
}

// view is the set as it is now, whatever happens to it later. It shares the blocks: what is in them is never
// changed, push adds behind what the view sees, and pop leaves a shared block to the view instead of using it again.
func (r *readySet) view() readyView { return r.look(true) }

func (r *readySet) look(share bool) readyView {
	v := readyView{n: r.n}
	for i := range r.lines {
		l := &r.lines[i]
		if l.head == nil && (l.returned == nil || l.returned.Len() == 0) {
			continue
		}
		var lv lineView
		for b := l.head; b != nil; b = b.next {
			b.shared = b.shared || share
			lv.blocks = append(lv.blocks, blockView{b, b.first, b.last})
		}
		if lv.returned = l.returned; share && l.returned != nil {
			lv.returned = l.returned.Clone()
		}
		v.lines = append(v.lines, lv)
	}
	return v
}

// each is readySet.each for a view.
func (v readyView) each(yield func(entry) bool) {
	for _, l := range v.lines {
		var back []entry
		if l.returned != nil && l.returned.Len() > 0 {
			back = make([]entry, 0, l.returned.Len())
			l.returned.Ascend(func(e entry) bool { back = append(back, e); return true })
		}
		for _, b := range l.blocks {
			for i := b.first; i < b.last; i++ {
				e := b.block.entries[i]
				for len(back) > 0 && back[0].seq < e.seq {
					if !yield(back[0]) {
						return
					}
					back = back[1:]
				}
				if !yield(e) {
					return
				}
			}
		}
		for _, e := range back {
			if !yield(e) {
				return
			}
		}
	}
}
