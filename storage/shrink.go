package storage

import (
	"cmp"
	"slices"
)

// Shrinking: what the compactor leaves alone for the sake of the work going on (move.go) is copied as well, once, when somebody asks
// for it, and the files that are prepared for what may come are given back at Close.

// shrinkShare is the part of a segment that must be garbage for its records to be copied: less would write eight bytes for
// each that it frees, and is about what the size classes may be wrong by.
const shrinkShare = 8

// squeeze asks the compactor to evacuate segments.
type squeeze struct {
	list []*segment    // replaced by what is left of it
	err  error         // why it stopped, if not to have a checkpoint written
	done chan struct{} // closed when list and err are set
}

// Shrink makes the directory about as small as it can be. It copies the records out of each segment there is of which an eighth or more is
// garbage, and calls checkpoint, which must call Mark and then WriteCheckpoint, when there are segments to be freed, and at the
// end. The next Close removes what is prepared for records to come. All methods may be called meanwhile.
//
// It blocks until all is done. On an error the log is as good as before: ErrDiskFull if there is no space for copies, ErrClosed,
// ErrFailed, the error of checkpoint, or a *CorruptError for the first damaged record, after all that could be copied was.
func (l *Log) Shrink(checkpoint func() error) error {
	l.mu.Lock()
	running := l.running
	l.mu.Unlock()
	if !running {
		return errOrder
	}
	q := squeeze{list: l.wasteful()}
	for {
		moved := l.counts.moved.Load()
		q.err, q.done = nil, make(chan struct{})
		select {
		case l.squeezes <- &q:
			<-q.done
		case <-l.quit:
			return ErrClosed
		}
		if q.err != nil && (!isFull(q.err) || l.counts.moved.Load() == moved) {
			return q.err
		}
		if err := checkpoint(); err != nil {
			return err
		}
		if len(q.list) == 0 {
			l.trim.Store(true)
			return l.damage()
		}
	}
}

// wasteful returns the segments that are worth being squeezed, the emptiest first.
func (l *Log) wasteful() (list []*segment) {
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	bytes := make(map[*segment]int64)
	for number, s := range l.segments {
		if n := s.bytes.Load(); number < l.settled.Load() && s.size-n >= s.size/shrinkShare {
			bytes[s] = n
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(bytes[a], bytes[b]), cmp.Compare(a.number, b.number))
	})
	return list
}

// squeeze evacuates segments until there are none left, or a checkpoint is due. It runs on the goroutine of the compactor.
func (l *Log) squeeze(q *squeeze) {
	defer close(q.done)
	for ; len(q.list) > 0; q.list = q.list[1:] {
		if u, _ := l.survey(); u.dead > l.enough() {
			return
		}
		s := q.list[0]
		if s.live.Load() == 0 || s.stuck.Load() != nil || l.segment(s.number) != s {
			continue
		}
		if q.err = l.evacuate(s, true); q.err != nil {
			return
		}
	}
}

// damage returns what keeps segments from being compacted, the first of them.
func (l *Log) damage() error {
	l.segMu.RLock()
	defer l.segMu.RUnlock()
	var found error
	least := uint32(0)
	for number, s := range l.segments {
		if err := s.stuck.Load(); err != nil && (found == nil || number < least) {
			found, least = *err, number
		}
	}
	return found
}

// giveBack removes what is prepared. It is called by Close when all goroutines have ended.
func (l *Log) giveBack() {
	l.mu.Lock()
	list := slices.Concat(l.spares, l.free)
	l.spares, l.free = nil, nil
	l.mu.Unlock()
	l.removeSegments(list)
	l.useReserve()
}
