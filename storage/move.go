package storage

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/boursemq/bourse/internal/invariant"
)

// Copying forward: what little of a segment is still referred to is written again at the end of the log, so that one
// old record does not hold the space of all that was written around it.
//
// The compactor reads a record, with its checksum, and appends a copy, which says where its home is. After some of
// them it appends a kindMove, synced, which makes the copies count; when that is reported the references are moved over.
// What it left has no references then, so the next durable checkpoint frees it, as any other. A crash before that finds
// the records in both places: in the old one if the kindMove was lost, else in the new one. A checkpoint holds the places
// of all records that it refers to (table.go).
//
// The work is bounded. It is done while more than a third of what is in segments is garbage, and half a segment at
// that, or four while the log is busy, and takes the emptiest segment first: so it writes at most two bytes for each that
// it frees. It goes through the log as everything else, in small steps with a sync between them, so a publish waits for one
// of these at most.

const (
	stepBytes   = 512 << 10 // of copies between two syncs; one record may be longer
	stepRecords = 4096
)

// compact is the compactor. Close stops it through quit and waits for it. It has no clock: it looks when told that there may be
// something to do.
func (l *Log) compact() {
	defer l.prep.Done()
	for {
		select {
		case <-l.quit:
			return
		case q := <-l.squeezes:
			l.squeeze(q)
			continue
		case <-l.thin:
		}
		for again := true; again; again = l.rests() {
			s, full := l.victim()
			for s != nil && l.stays(s, !full) && l.evacuate(s, !full) == nil {
				s, full = l.victim()
			}
		}
	}
}

// wakeCompactor asks for another look. It never blocks.
func (l *Log) wakeCompactor() {
	select {
	case l.thin <- struct{}{}:
	default:
	}
}

// usage is what there is in the segments that have records, but for the one that is written to.
type usage struct {
	live    int64 // bytes with references, everywhere
	garbage int64 // bytes without, in segments with some
	dead    int64 // bytes of segments without references
	free    int   // how many these are
	best    *segment
}

// survey finds the usage, and the segment with the least in it to move.
func (l *Log) survey() (u usage, full bool) {
	l.mu.Lock()
	full = l.full != nil
	l.mu.Unlock()
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	least := 0.0
	for number, s := range l.segments {
		bytes := s.bytes.Load()
		u.live += bytes
		switch {
		case number >= l.settled.Load(): // what is in it is not known yet
		case s.live.Load() == 0:
			u.dead += s.size
			u.free++
		case s.stuck.Load() == nil:
			u.garbage += max(s.size-bytes, 0)
			if share := float64(bytes) / float64(s.size); u.best == nil || share < least {
				u.best, least = s, share
			}
		}
	}
	return u, full
}

// victim returns the segment to be evacuated next, or nil: there is too little garbage, or enough is waiting for a checkpoint.
// full: there is no space for another segment, so it must go into what is left for verdicts. There may be no other way out.
func (l *Log) victim() (s *segment, full bool) {
	u, full := l.survey()
	switch {
	case u.best == nil:
		return nil, full
	case full && (u.free > 0 || u.best.bytes.Load() > int64(l.opts.SegmentBytes)/8):
		return nil, full
	case full:
		return u.best, full
	case u.dead > l.enough():
		return nil, full
	case u.garbage <= l.slack(u, l.busy.Load()) || u.best.bytes.Load() > u.best.size/4*3:
		return nil, full
	}
	return u.best, full
}

// enough is how many bytes of segments without references are left to a checkpoint before more are made.
func (l *Log) enough() int64 { return 4*int64(l.opts.SegmentBytes) + l.checkpointBytes.Load() }

// slack is how much garbage is left alone: more in a busy log, where most of it goes by itself.
func (l *Log) slack(u usage, busy bool) int64 {
	segment := int64(l.opts.SegmentBytes)
	if busy {
		return u.live/2 + 4*segment
	}
	return u.live/2 + segment/2
}

// pause waits while one sync goes by, which is the only clock that the log has, and reports whether it is well. quiet: nothing
// was appended meanwhile.
func (l *Log) pause(adds bool) (quiet, ok bool) {
	nothing := &step{list: []moved{{}}, done: make(chan error, 1)}
	if _, err := l.append(kindMove, 0, true, adds, nothing); err != nil {
		return false, false
	}
	l.mu.Lock()
	seq := l.seq
	l.mu.Unlock()
	if err := <-nothing.done; err != nil {
		return false, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return seq == l.seq, true
}

// stays reports whether what s holds is going to stay there: none of it lost its references while one sync went by. What is
// written and acked at once leaves segments nearly empty too, which will be empty before they are copied.
func (l *Log) stays(s *segment, adds bool) bool {
	before := s.live.Load()
	_, ok := l.pause(adds)
	return ok && s.live.Load() == before
}

// rests reports whether the log has come to rest, and there is something to do that a busy one leaves alone. A checkpoint is asked
// for if it is that.
func (l *Log) rests() bool {
	u, full := l.survey()
	if full || !l.restless(u) {
		return false
	}
	if quiet, ok := l.pause(true); !quiet || !ok {
		return false
	}
	l.busy.Store(false)
	u, _ = l.survey()
	l.setDue(u)
	return u.garbage > l.slack(u, false)
}

// moved is a record to be copied.
type moved struct{ home, at, to Position }

// survivors are the records in s that have references, in the order in which they are there.
//
// What was put into s has all been reported, and only the compactor brings more to it.
func (l *Log) survivors(s *segment) (list []moved) {
	l.rollMu.Lock()
	defer l.rollMu.Unlock()
	if r := l.rollOfLocked(s.number); r != nil {
		for i, offset := range r.offsets {
			if home := at(s.number, offset); r.refs[i] > 0 && r.place(home, i) == home {
				list = append(list, moved{home: home, at: home})
			}
		}
	}
	for _, home := range s.copies {
		r := l.rollOfLocked(home.segment())
		if r == nil {
			continue
		}
		if i, found := r.find(home.offset()); found && r.refs[i] > 0 && r.place(home, i).segment() == s.number {
			list = append(list, moved{home: home, at: r.place(home, i)})
		}
	}
	slices.SortFunc(list, func(a, b moved) int { return cmp.Compare(a.at, b.at) })
	list = slices.CompactFunc(list, func(a, b moved) bool { return a.home == b.home })
	invariant.Check(int64(len(list)) == s.live.Load(), "segment %d has %d records with references, and %d are known", s.number,
		s.live.Load(), len(list))
	return list
}

// evacuate copies what s holds to the end of the log. An error means that not all of it was; what cannot be read is none.
// adds is that of append.
func (l *Log) evacuate(s *segment, adds bool) error {
	list := l.survivors(s)
	var body []byte
	n := 0
	unpin := func() {
		for i := range n {
			l.segment(list[i].to.segment()).live.Add(-1)
		}
		n = 0
	}
	defer unpin()
	for len(list) > 0 {
		bytes := 0
		for n < min(len(list), stepRecords) && bytes < stepBytes {
			m := &list[n]
			var err error
			if body, err = l.readFile(s, m.at, m.home, 0, body[:0]); err != nil {
				if l.segment(s.number) != s {
					return nil // all of it was freed meanwhile
				}
				s.stuck.Store(&err)
				l.opts.Logger.Error("a segment is not compacted, since a record in it cannot be read", "err", err)
				return nil
			}
			if m.to, err = l.append(kindCopy, 0, false, adds, &copied{m.home, body}); err != nil {
				return err
			}
			bytes += recordSize(len(body) + homeBytes)
			n++
		}
		made := &step{list: list[:n], done: make(chan error, 1)}
		if _, err := l.append(kindMove, 0, true, adds, made); err != nil {
			return err
		}
		if err := <-made.done; err != nil {
			return err
		}
		l.counts.moved.Add(int64(n))
		did := n
		unpin()
		list = list[did:]
	}
	return nil
}

// copied is the payload of a kindCopy. Below the watermark of the disk it goes in, since it makes space.
type copied struct {
	home Position
	body []byte
}

func (c *copied) AppendTo(dst []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, uint64(c.home)), c.body...)
}

// Moves implements Mover.
func (c *copied) Moves() bool { return true }

// step is the payload of a kindMove.
type step struct {
	list []moved
	done chan error // capacity 1; sent when it has been applied, or is lost
}

// Moves implements Mover.
func (m *step) Moves() bool { return true }

func (m *step) AppendTo(dst []byte) []byte {
	for _, r := range m.list {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.home))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.to))
	}
	return dst
}

// applyMoves moves references as the payload of a kindMove says. A record that nobody refers to any more stays where it is.
func (l *Log) applyMoves(payload []byte) error {
	l.rollMu.Lock()
	defer l.rollMu.Unlock()
	for ; len(payload) >= moveBytes; payload = payload[moveBytes:] {
		home := Position(binary.LittleEndian.Uint64(payload))
		to := Position(binary.LittleEndian.Uint64(payload[8:]))
		r := l.rollOfLocked(home.segment())
		if r == nil {
			continue
		}
		i, found := r.find(home.offset())
		if !found || r.refs[i] == 0 || r.place(home, i) == to {
			continue
		}
		old, now := l.segment(r.place(home, i).segment()), l.segment(to.segment())
		if old == nil || now == nil {
			return l.corrupt(to.segment(), int64(to.offset()), "a copy of a record", "no such segment")
		}
		r.move(home.segment(), i, to)
		size := classBytes(r.sizes[i])
		old.live.Add(-1)
		old.bytes.Add(-size)
		now.live.Add(1)
		now.bytes.Add(size)
		now.copies = append(now.copies, home)
	}
	return nil
}

// move sets where record i is.
func (r *roll) move(segment uint32, i int, to Position) {
	switch {
	case r.where == nil:
		r.where = make([]Position, len(r.offsets))
		for j, offset := range r.offsets {
			r.where[j] = at(segment, offset)
		}
	case r.shared:
		r.where = slices.Clone(r.where)
	}
	r.shared = false
	r.where[i] = to
}
