package bourse

import (
	"cmp"
	"slices"

	"github.com/boursemq/bourse/internal/wire"
)

// blockShape says when the blocks of a line are packed.
type blockShape struct {
	full int // entries that a block takes, at most blockEntries
	warm int // blocks that a line has before the first of them is packed; at least 1
}

// usualShape is that of every ready set. Tests that want to see many packed blocks in a shallow queue change it before there is one.
var usualShape = blockShape{full: blockEntries, warm: 8}

// cold is the older part of a long line: all in it goes before the row. Only the first block is open; the others are
// packed, in a few bytes a message, since nobody needs them soon. Each is packed once, when the row gets a block too many, and
// unpacked once, when those before it are gone. A line that is short has no cold part.
//
// Invariants, tested by check:
//  1. front has at least one entry, and each packed block too.
//  2. A packed block says what is in it: how many, the first and the last.
//  3. Nothing before head is kept.
type cold struct {
	front *block
	row   []*coldBlock // behind front: row[head:], in order
	head  int
	bytes []byte // kept for its memory
}

// coldBlock is a piece of a line that takes little memory. It is never changed, so that views can share it.
type coldBlock struct {
	first, last entry
	n           int
	links       []byte // a chain of those behind the first
}

// A chain is entries of one level by seq, each as what it has more than the one before it:
//
//	what      1 byte, the sum of the constants below for what follows
//	seq       uvarint
//	ref       varint
//	arrived   varint
//	size      uvarint, not what it has more
//	history   uvarint deliveries, uvarint failures, likewise
//	part      1 byte, likewise
//
// Before the first entry of a line is one of zeros. There is one chain for given entries, and a piece of one goes into a snapshot
// as it is, wherever the blocks begin and end.
const (
	linkSeq     = 1 << iota // unless it is one more
	linkArrived             // unless it is the same
	linkSize                // unless it is the same
	linkHistory             // unless it was never handed out
	linkPart                // unless it is 0
	linkExtra               // nothing follows
	linkEnd
)

// smallestLink is a lower bound of the bytes of an entry in a chain.
const smallestLink = 2

// appendLink appends e, which comes behind before.
func appendLink(dst []byte, before, e *entry) []byte {
	what := byte(0)
	at := len(dst)
	dst = append(dst, 0)
	if e.seq != before.seq+1 {
		what |= linkSeq
		dst = wire.AppendUvarint(dst, e.seq-before.seq)
	}
	dst = wire.AppendVarint(dst, int64(e.ref-before.ref))
	if e.arrived != before.arrived {
		what |= linkArrived
		dst = wire.AppendVarint(dst, int64(e.arrived-before.arrived))
	}
	if e.size != before.size {
		what |= linkSize
		dst = wire.AppendUvarint(dst, uint64(e.size))
	}
	if e.deliveries != 0 || e.failures != 0 {
		what |= linkHistory
		dst = wire.AppendUvarint(dst, uint64(e.deliveries))
		dst = wire.AppendUvarint(dst, uint64(e.failures))
	}
	if e.part != 0 {
		what |= linkPart
		dst = append(dst, e.part)
	}
	if e.extra {
		what |= linkExtra
	}
	dst[at] = what
	return dst
}

// decodeLink reads an entry that comes behind before. It refuses what appendLink would have written otherwise.
func decodeLink(r *wire.Reader, before *entry) entry {
	what := r.Byte()
	e := entry{seq: before.seq + 1, arrived: before.arrived, size: before.size, level: before.level, extra: what&linkExtra != 0}
	if what&linkSeq != 0 {
		e.seq = before.seq + r.Uvarint()
	}
	e.ref = before.ref + Ref(r.Varint())
	if what&linkArrived != 0 {
		e.arrived += instant(r.Varint())
	}
	if what&linkSize != 0 {
		e.size = decodeUint32(r)
	}
	if what&linkHistory != 0 {
		e.deliveries, e.failures = decodeUint32(r), decodeUint32(r)
	}
	if what&linkPart != 0 {
		e.part = r.Byte()
	}
	if what >= linkEnd || e.seq <= before.seq || what&linkSeq != 0 && e.seq == before.seq+1 ||
		what&linkArrived != 0 && e.arrived == before.arrived || what&linkSize != 0 && e.size == before.size ||
		what&linkHistory != 0 && e.deliveries|e.failures == 0 ||
		what&linkPart != 0 && e.part == 0 {
		r.Fail()
		return entry{level: before.level}
	}
	return e
}

// pack returns entries packed, of which there is at least one. buf is memory to work in, returned for the next time.
func pack(entries []entry, buf []byte) (*coldBlock, []byte) {
	buf = buf[:0]
	for i := 1; i < len(entries); i++ {
		buf = appendLink(buf, &entries[i-1], &entries[i])
	}
	links := make([]byte, len(buf))
	copy(links, buf)
	return &coldBlock{first: entries[0], last: entries[len(entries)-1], n: len(entries), links: links}, buf
}

// unpack puts the entries of p into to, which has room for a block, and returns them.
func (p *coldBlock) unpack(to []entry) []entry {
	to = to[:p.n]
	e, at := p.first, 0
	to[0] = e
	for i := 1; i < len(to); i++ {
		at = nextLink(p.links, at, &e)
		to[i] = e
	}
	return to
}

// nextLink makes of an entry the one behind it, whose link is at a place in b, and returns the place behind that.
func nextLink(b []byte, at int, e *entry) int {
	what, v := b[at], uint64(0)
	at++
	if what&linkSeq != 0 {
		v, at = uvarintAt(b, at)
		e.seq += v
	} else {
		e.seq++
	}
	v, at = uvarintAt(b, at)
	e.ref += Ref(unzigzag(v))
	if what&linkArrived != 0 {
		v, at = uvarintAt(b, at)
		e.arrived += instant(unzigzag(v))
	}
	if what&linkSize != 0 {
		v, at = uvarintAt(b, at)
		e.size = uint32(v)
	}
	e.deliveries, e.failures, e.part, e.extra = 0, 0, 0, what&linkExtra != 0
	if what&(linkHistory|linkPart) == 0 {
		return at
	}
	if what&linkHistory != 0 {
		v, at = uvarintAt(b, at)
		e.deliveries = uint32(v)
		v, at = uvarintAt(b, at)
		e.failures = uint32(v)
	}
	if what&linkPart != 0 {
		e.part = b[at]
		at++
	}
	return at
}

// find returns the message seq, and whether it is in p.
func (p *coldBlock) find(seq uint64) (entry, bool) {
	e, at := p.first, 0
	for e.seq < seq && at < len(p.links) {
		at = nextLink(p.links, at, &e)
	}
	return e, e.seq == seq
}

// without returns the message seq and p without it, nil if that is empty. False: it is not in p.
func (p *coldBlock) without(seq uint64) (entry, *coldBlock, bool) {
	var before entry
	e, start, end := p.first, 0, 0
	for e.seq < seq && end < len(p.links) {
		before, start = e, end
		end = nextLink(p.links, end, &e)
	}
	if e.seq != seq {
		return entry{}, nil, false
	}
	if p.n == 1 {
		return e, nil, true
	}
	rest := *p
	rest.n--
	switch behind := e; {
	case end == len(p.links):
		rest.last, rest.links = before, slices.Clone(p.links[:start])
	case seq == p.first.seq:
		end = nextLink(p.links, end, &behind)
		rest.first, rest.links = behind, slices.Clone(p.links[end:])
	default:
		end = nextLink(p.links, end, &behind)
		rest.links = append(make([]byte, 0, len(p.links)+8), p.links[:start]...)
		rest.links = append(appendLink(rest.links, &before, &behind), p.links[end:]...)
	}
	return e, &rest, true
}

// uvarintAt reads what AppendUvarint wrote, at a place in b, and returns the place behind it.
func uvarintAt(b []byte, at int) (v uint64, next int) {
	for shift := 0; ; shift += 7 {
		c := b[at]
		at++
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v, at
		}
	}
}

// unzigzag is the number that AppendVarint wrote as the uvarint v.
func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

// chill makes room in a row that has grown long: its first block goes to the cold part.
func (r *readySet) chill(l *line) {
	b := l.row[l.head]
	l.cut(l.head)
	c := l.cold
	if c == nil {
		l.cold = &cold{front: b}
		return
	}
	// In two, since a packed block can only be read from its beginning.
	entries := b.entries[b.first:b.last]
	for half := (len(entries) + 1) / 2; len(entries) > 0; {
		n := min(half, len(entries))
		var p *coldBlock
		p, c.bytes = pack(entries[:n], c.bytes)
		c.append(p)
		r.saved += p.saves()
		entries = entries[n:]
	}
	r.recycle(b)
}

// append puts p behind the row. The places of those that were unpacked are used again before the row grows.
func (c *cold) append(p *coldBlock) {
	if len(c.row) == cap(c.row) && c.head > len(c.row)/2 {
		n := copy(c.row, c.row[c.head:])
		clear(c.row[n:])
		c.row, c.head = c.row[:n], 0
	}
	c.row = append(c.row, p)
}

// dropFirst takes the first entry out of the cold part of l, and the next block out of its pack if it was the last of the first.
func (c *cold) dropFirst(r *readySet, l *line) {
	b := c.front
	if b.first++; b.first < b.last {
		return
	}
	r.recycle(b)
	if c.head == len(c.row) {
		l.cold = nil
		return
	}
	b = r.fresh()
	r.saved -= c.row[c.head].saves()
	b.last = len(c.row[c.head].unpack(b.entries[:]))
	c.front = b
	c.row[c.head] = nil
	c.head++
}

// search finds the first packed block that ends with seq or behind it; the length of the row if there is none.
func (c *cold) search(seq uint64) int {
	n, _ := slices.BinarySearchFunc(c.row[c.head:], seq, func(p *coldBlock, seq uint64) int { return cmp.Compare(p.last.seq, seq) })
	return c.head + n
}

// find returns the message seq, and whether it is here.
func (c *cold) find(seq uint64) (entry, bool) {
	if b := c.front; seq <= b.entries[b.last-1].seq {
		i, ok := b.search(seq)
		if !ok {
			return entry{}, false
		}
		return b.entries[i], true
	}
	n := c.search(seq)
	if n == len(c.row) || seq < c.row[n].first.seq {
		return entry{}, false
	}
	return c.row[n].find(seq)
}

// remove takes the message seq out of the cold part of l, wherever it stands. False: it is not there.
func (c *cold) remove(r *readySet, l *line, seq uint64) (entry, bool) {
	if b := c.front; seq <= b.entries[b.last-1].seq {
		i, ok := b.search(seq)
		if !ok {
			return entry{}, false
		}
		e := b.entries[i]
		if i == b.first {
			c.dropFirst(r, l)
		} else {
			c.front = r.without(b, i)
		}
		return e, true
	}
	n := c.search(seq)
	if n == len(c.row) || seq < c.row[n].first.seq {
		return entry{}, false
	}
	r.saved -= c.row[n].saves()
	e, rest, ok := c.row[n].without(seq)
	switch {
	case !ok:
		r.saved += c.row[n].saves()
	case rest == nil:
		c.row = slices.Delete(c.row, n, n+1)
	default:
		c.row[n] = rest
		r.saved += rest.saves()
		if n+1 < len(c.row) && rest.n+c.row[n+1].n <= r.shape.full/2 {
			c.merge(r, n)
		} else if n > c.head && c.row[n-1].n+rest.n <= r.shape.full/2 {
			c.merge(r, n-1)
		}
	}
	return e, ok
}

// merge puts packed block n and the one behind it, which fit into one, into one.
func (c *cold) merge(r *readySet, n int) {
	a, b := c.row[n], c.row[n+1]
	r.saved -= a.saves() + b.saves()
	links := append(appendLink(slices.Clone(a.links), &a.last, &b.first), b.links...)
	c.row[n] = &coldBlock{first: a.first, last: b.last, n: a.n + b.n, links: slices.Clip(links)}
	r.saved += c.row[n].saves()
	c.row = slices.Delete(c.row, n+1, n+2)
}

// coldCursor is how far a walk through the cold part of a line has come.
type coldCursor struct {
	front  []entry
	packed []*coldBlock // behind front
	inside bool         // packed[0] was entered
	next   entry        // inside it
	at     int          // of the link behind next
}

// from is a cursor before the first message that is not before seq.
func (c *cold) from(seq uint64) (w coldCursor) {
	if b := c.front; seq <= b.entries[b.last-1].seq {
		i, _ := b.search(seq)
		return coldCursor{front: b.entries[i:b.last], packed: c.row[c.head:]}
	}
	w.packed = c.row[c.search(seq):]
	w.before(seq, func(entry) bool { return true }, nil)
	return w
}

// before yields what comes before seq, and reports whether yield always wanted more. whole, unless it is nil, gets the packed
// blocks that come before seq as a whole.
func (w *coldCursor) before(seq uint64, yield func(entry) bool, whole func(*coldBlock) bool) bool {
	for len(w.front) > 0 {
		e := w.front[0]
		if e.seq >= seq {
			return true
		}
		w.front = w.front[1:]
		if !yield(e) {
			return false
		}
	}
	for len(w.packed) > 0 {
		p := w.packed[0]
		if !w.inside {
			if whole != nil && p.last.seq < seq {
				w.packed = w.packed[1:]
				if !whole(p) {
					return false
				}
				continue
			}
			w.inside, w.next, w.at = true, p.first, 0
		}
		if w.next.seq >= seq {
			return true
		}
		e := w.next
		if w.at == len(p.links) {
			w.inside, w.packed = false, w.packed[1:]
		} else {
			w.at = nextLink(p.links, w.at, &w.next)
		}
		if !yield(e) {
			return false
		}
	}
	return true
}

// write appends the messages to buf for a snapshot. After each, or a packed block of them, it asks room for the buffer to go on
// with, and whether to go on.
func (v readyView) write(buf []byte, room func([]byte) ([]byte, bool)) []byte {
	levels := 0
	for i := range v.lines {
		if v.lines[i].n > 0 {
			levels++
		}
	}
	buf = wire.AppendUvarint(buf, uint64(levels))
	more := true
	for i := range v.lines {
		l := &v.lines[i]
		if l.n == 0 || !more {
			continue
		}
		buf = wire.AppendUvarint(append(buf, l.level), uint64(l.n))
		before := entry{level: l.level}
		more = l.walk(lineCursor{
			yield: func(e entry) bool {
				buf = appendLink(buf, &before, &e)
				before = e
				buf, more = room(buf)
				return more
			},
			whole: func(p *coldBlock) bool {
				buf = append(appendLink(buf, &before, &p.first), p.links...)
				before = p.last
				buf, more = room(buf)
				return more
			},
		})
	}
	return buf
}

// decodeReady reads what readyView.write wrote, and makes these messages ready. It tells taken of each.
func (q *queue) decodeReady(r *wire.Reader, taken func(entry) entry) {
	last := -1
	for range r.Count(2 + smallestLink) {
		level := int(r.Byte())
		n := r.Count(smallestLink)
		if level <= last || level >= q.def.Priorities || n == 0 {
			r.Fail()
			return
		}
		last = level
		before := entry{level: uint8(level)}
		for range n {
			e := taken(decodeLink(r, &before))
			if r.Err() != nil {
				return
			}
			q.pushReady(e)
			before = e
		}
	}
}
