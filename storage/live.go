package storage

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/boursemq/bourse/internal/invariant"
)

// Which records somebody refers to, and where they are.
//
// A record is named by the position at which it was first written, its home, for as long as it lives. Copying it forward
// (move.go) changes where it is and not its name, so owners keep what they know, and the log looks the place up where a
// record has moved. A segment has a roll of the records in it that were ever kept: 6 bytes for each, 8 more
// once one of them has moved. The roll outlives the file.

// roll is the account of the records that have their home in one segment. Guarded by Log.rollMu, but for offsets, sizes
// and where, of which views of a Mark share what was there then: their elements are not changed, only added
// behind, or the slice is replaced.
type roll struct {
	offsets []uint32   // of records that were kept, ascending
	sizes   []uint8    // their size classes
	refs    []uint8    // references; refsMany: the number is in Log.many
	where   []Position // where they are; nil: all at home
	shared  bool       // a view shares where
	live    int        // records with references
	hint    int        // the place behind the last one looked for: records are mostly freed in order
}

const refsMany = 255

// place is where record i is.
func (r *roll) place(home Position, i int) Position {
	if r.where == nil {
		return home
	}
	return r.where[i]
}

// find returns the place of offset in the roll, or where it would be. It guesses by the distance from both ends, since records of
// one segment have much the same size, and halves when that does not help.
func (r *roll) find(offset uint32) (int, bool) {
	if r.hint < len(r.offsets) && r.offsets[r.hint] == offset {
		r.hint++
		return r.hint - 1, true
	}
	lo, hi := 0, len(r.offsets)-1
	for try := 0; lo <= hi; try++ {
		a, b := r.offsets[lo], r.offsets[hi]
		switch {
		case offset < a:
			return lo, false
		case offset > b:
			return hi + 1, false
		}
		i := (lo + hi) / 2
		if try < 4 && b > a {
			i = lo + int(uint64(offset-a)*uint64(hi-lo)/uint64(b-a))
		}
		switch v := r.offsets[i]; {
		case v == offset:
			r.hint = i + 1
			return i, true
		case v < offset:
			lo = i + 1
		default:
			hi = i - 1
		}
	}
	return lo, false
}

// insert makes room for a record at place i, without references.
func (r *roll) insert(home Position, i, size int) {
	c := sizeClass(size)
	if i == len(r.offsets) {
		r.offsets, r.sizes, r.refs = append(r.offsets, home.offset()), append(r.sizes, c), append(r.refs, 0)
		if r.where != nil {
			r.where = append(r.where, home)
		}
		return
	}
	r.offsets = slices.Insert(slices.Clone(r.offsets), i, home.offset())
	r.sizes = slices.Insert(slices.Clone(r.sizes), i, c)
	r.refs = slices.Insert(r.refs, i, 0)
	if r.where != nil {
		r.where, r.shared = slices.Insert(slices.Clone(r.where), i, home), false
	}
}

// prune forgets the records that nobody refers to, if they are most of the roll.
func (r *roll) prune() {
	if len(r.refs) < 32 || r.live > len(r.refs)/2 {
		return
	}
	was := *r
	*r = roll{offsets: make([]uint32, 0, r.live), sizes: make([]uint8, 0, r.live), refs: make([]uint8, 0, r.live), live: r.live}
	if was.where != nil {
		r.where = make([]Position, 0, r.live)
	}
	for i, n := range was.refs {
		if n == 0 {
			continue
		}
		r.offsets, r.sizes, r.refs = append(r.offsets, was.offsets[i]), append(r.sizes, was.sizes[i]), append(r.refs, n)
		if was.where != nil {
			r.where = append(r.where, was.where[i])
		}
	}
}

// sizeClass is a size, in one byte: of its number of units of 8 bytes the four highest bits, and how many are below them.
func sizeClass(size int) uint8 {
	u := uint(size+chunkAlign-1) / chunkAlign
	if u < 8 {
		return uint8(u)
	}
	e := bits.Len(u) - 4
	return uint8((e+1)*8) + uint8(u>>e&7)
}

// classBytes is the size that stands for all of a class: at most a sixteenth from each.
func classBytes(c uint8) int64 {
	if c < 8 {
		return int64(c) * chunkAlign
	}
	e := int(c)/8 - 1
	return (int64(8|c&7)<<e + int64(1)<<e/2) * chunkAlign
}

// rollOfLocked returns the roll of a segment, or nil.
func (l *Log) rollOfLocked(number uint32) *roll {
	if r := l.lastRoll[number%recentSegments]; r.roll != nil && r.number == number {
		return r.roll
	}
	r := l.rolls[number]
	if r != nil {
		l.lastRoll[number%recentSegments] = numberedRoll{number, r}
	}
	return r
}

type numberedRoll struct {
	number uint32
	roll   *roll
}

// Keep adds n references to the record at pos. The bytes of a record with references can be read, whatever happens to the
// file that they were first written to. It is called while the record is reported, by Commit or Replay, or while a
// checkpoint is restored, or when the record has references already.
func (l *Log) Keep(pos Position, n int) {
	l.rollMu.Lock()
	defer l.rollMu.Unlock()
	l.takeRefsLocked(pos, n)
}

// Change is a Keep of N references to the record at Pos, or a Free of one if N is below zero.
type Change struct {
	Pos Position
	N   int
}

// Refer is Keep and Free for each of the changes, in their order.
func (l *Log) Refer(changes []Change) {
	l.rollMu.Lock()
	defer l.rollMu.Unlock()
	for i := range changes {
		if c := &changes[i]; c.N < 0 {
			l.dropRefLocked(c.Pos)
		} else {
			l.takeRefsLocked(c.Pos, c.N)
		}
	}
}

func (l *Log) takeRefsLocked(pos Position, n int) {
	r := l.rollOfLocked(pos.segment())
	if r == nil {
		r = &roll{}
		l.rolls[pos.segment()] = r
	}
	i := len(r.offsets)
	if i > 0 && r.offsets[i-1] >= pos.offset() {
		found := false
		if i, found = r.find(pos.offset()); found {
			l.referLocked(pos, r, i, n)
			return
		}
	}
	size := l.sizeOfLocked(pos)
	if size == 0 {
		l.missLocked(pos)
		return
	}
	r.insert(pos, i, size)
	l.referLocked(pos, r, i, n)
}

// referLocked adds n references to record i of r.
func (l *Log) referLocked(home Position, r *roll, i, n int) {
	have := l.countLocked(home, r.refs[i])
	if have == 0 {
		at := r.place(home, i)
		s := l.segment(at.segment())
		if s == nil {
			l.missLocked(at)
			return
		}
		r.live++
		s.live.Add(1)
		s.bytes.Add(classBytes(r.sizes[i]))
		if at != home {
			s.copies = append(s.copies, home)
		}
	}
	l.refs += int64(n)
	l.setCountLocked(home, r, i, have+n)
}

func (l *Log) countLocked(home Position, refs uint8) int {
	if refs == refsMany {
		return l.many[home]
	}
	return int(refs)
}

func (l *Log) setCountLocked(home Position, r *roll, i, n int) {
	if n < refsMany {
		if r.refs[i] == refsMany {
			delete(l.many, home)
		}
		r.refs[i] = uint8(n)
		return
	}
	if l.many == nil {
		l.many = make(map[Position]int)
	}
	r.refs[i], l.many[home] = refsMany, n
}

// missLocked remembers that somebody refers to a record that is not there.
func (l *Log) missLocked(pos Position) {
	if l.missing == nil {
		l.missing = l.corrupt(pos.segment(), int64(pos.offset()), "a record that the checkpoint refers to", "no such record")
	}
}

func (l *Log) missed() error {
	l.rollMu.Lock()
	defer l.rollMu.Unlock()
	return l.missing
}

// sizeOfLocked is the size of the record at pos, which is being reported, or is in its file; 0 if it is not there.
func (l *Log) sizeOfLocked(pos Position) int {
	for l.toldAt < len(l.told) && l.told[l.toldAt].Pos < pos {
		l.toldAt++
	}
	if l.toldAt < len(l.told) && l.told[l.toldAt].Pos == pos {
		return recordSize(len(l.told[l.toldAt].Data))
	}
	i, found := slices.BinarySearchFunc(l.told, pos, func(c Committed, pos Position) int {
		if c.Pos < pos {
			return -1
		}
		return int(min(c.Pos-pos, 1))
	})
	if found {
		return recordSize(len(l.told[i].Data))
	}
	s := l.segment(pos.segment())
	if s == nil {
		return 0
	}
	var h [recordBytes]byte
	if n, _ := s.file.ReadAt(h[:], int64(pos.offset())); n < len(h) {
		return 0
	}
	n := binary.LittleEndian.Uint32(h[4:])
	if binary.LittleEndian.Uint32(h[16:]) != s.number || kind(h[20]) != kindData || n > maxPayload {
		return 0
	}
	return recordSize(int(n))
}

// Free takes one reference back. More of them than Keep gave is a bug, and panics: somebody else's record could be gone.
func (l *Log) Free(pos Position) {
	l.rollMu.Lock()
	defer l.rollMu.Unlock()
	l.dropRefLocked(pos)
}

func (l *Log) dropRefLocked(pos Position) {
	r, i, found := l.rollOfLocked(pos.segment()), 0, false
	if r != nil {
		i, found = r.find(pos.offset())
	}
	if !found || r.refs[i] == 0 {
		invariant.Check(false, "free of record %x, which nobody keeps", uint64(pos))
		return
	}
	l.refs--
	n := l.countLocked(pos, r.refs[i]) - 1
	l.setCountLocked(pos, r, i, n)
	if n > 0 {
		return
	}
	size := classBytes(r.sizes[i])
	r.live--
	l.churn += size
	if s := l.segment(r.place(pos, i).segment()); s != nil {
		s.bytes.Add(-size)
		if s.live.Add(-1) == 0 && s.number < l.settled.Load() {
			l.emptied = true // it can be freed
		}
	}
}

// locate returns where the record with that home is; false: nobody refers to it.
func (l *Log) locate(home Position) (Position, bool) {
	l.rollMu.Lock()
	defer l.rollMu.Unlock()
	r := l.rollOfLocked(home.segment())
	if r == nil {
		return 0, false
	}
	i, found := r.find(home.offset())
	if !found || r.refs[i] == 0 {
		return 0, false
	}
	return r.place(home, i), true
}

// tell sets the records that are being reported, so that Keep knows their size; nil: none.
func (l *Log) tell(batch []Committed) {
	l.rollMu.Lock()
	defer l.rollMu.Unlock()
	l.told, l.toldAt = batch, 0
}

// rollView is a roll as it was at a Mark.
type rollView struct {
	segment uint32
	offsets []uint32
	sizes   []uint8
	where   []Position // nil: all at home
}

// viewRollsLocked returns the rolls as they are now, of records that somebody refers to and of few others, in order of their segments.
func (l *Log) viewRollsLocked() []rollView {
	views := make([]rollView, 0, len(l.rolls))
	for number, r := range l.rolls {
		if r.live == 0 {
			if number < l.reported.end.segment() {
				delete(l.rolls, number)
				l.lastRoll[number%recentSegments] = numberedRoll{}
			}
			continue
		}
		r.prune()
		r.shared = true
		n := len(r.offsets)
		views = append(views, rollView{segment: number, offsets: r.offsets[:n:n], sizes: r.sizes[:n:n], where: r.where})
	}
	slices.SortFunc(views, func(a, b rollView) int { return cmp.Compare(a.segment, b.segment) })
	return views
}
