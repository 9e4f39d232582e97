package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// Reclaiming space: segment files from the last reference to their next use.
//
// A segment goes through these states:
//
//	prepared → current → sealed → free → prepared, or removed
//
// It becomes free when it lies wholly below the mark of a durable checkpoint and had
// no reference at that mark: then neither recovery nor a reader will look for it. Its
// file is renamed to a number never used before. That is all it takes: the header and
// the records in it carry the old number, so none of them counts under the new name,
// and if a power cut takes the rename back, the checkpoint still says that the old
// name is free.

// reserveBytes is the size of the file "reserve", which is removed when a checkpoint,
// or the first segment after an Open, finds the disk full: both are needed to get out of
// that state.
const reserveBytes = 4 << 20

func (l *Log) reserveSize() int64 { return int64(min(l.opts.SegmentBytes, reserveBytes)) }

// wakePreparer asks for another look at what is missing. It never blocks.
func (l *Log) wakePreparer() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// prepare is the preparer. Close stops it through quit and waits for it. It has no
// clock: what fails for want of space is tried again when a segment is freed, or when
// an Append is refused.
func (l *Log) prepare() {
	defer l.prep.Done()
	for {
		select {
		case <-l.quit:
			return
		case <-l.kick:
		}
		for l.prepareOne() {
			select {
			case <-l.quit:
				return
			default:
			}
		}
	}
}

// keepFree is how many segments that nobody needs are kept for use, besides the spares; if more spares are asked for, so
// many.
const keepFree = 3

// prepareOne makes one spare if one is missing, and reports whether to look again.
func (l *Log) prepareOne() bool {
	l.watch()
	l.mu.Lock()
	if l.failed != nil {
		l.mu.Unlock()
		return false
	}
	// Once there were enough, new files are made only below half of that: what is in use comes back with a
	// checkpoint, and until then making files would only slow the log down.
	l.ample = l.ample || len(l.spares) >= l.opts.Spare
	want := l.opts.Spare
	if l.ample && len(l.free) == 0 {
		want = max(want/2, 2)
	}
	want = l.spareLocked(want)
	if len(l.spares) >= want {
		// Checkpoints free segments several at a time, and the log takes them one at a time: some wait for that
		// here, or the preparer would remove files and fill new ones with zeros all the time.
		keep := l.keepLocked(min(len(l.free), max(keepFree, l.opts.Spare)))
		surplus := append(slices.Clone(l.free[keep:]), l.surplusLocked()...)
		l.free = l.free[:keep:keep]
		l.mu.Unlock()
		l.removeSegments(surplus)
		return l.prepareReserve() || len(surplus) > 0 && l.opts.MinFree > 0 // what that has changed
	}
	l.number++
	number := l.number
	var old *segment
	if n := len(l.free); n > 0 {
		old = l.free[n-1]
		l.free = l.free[:n-1]
	}
	l.mu.Unlock()

	s, err := l.prepareSegment(number, old)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.room.Broadcast()
	switch {
	case err == nil && s == nil: // the old file was no use; it is gone
		return true
	case err == nil:
		if l.full != nil {
			l.opts.Logger.Info("there is space again", "dir", l.dir)
		}
		l.full = nil
		l.spares = append(l.spares, s)
		return true
	case isFull(err) && old == nil && len(l.free) > 0: // freed meanwhile
		return true
	case isFull(err):
		if s != nil {
			l.free = append(l.free, s)
		}
		if l.full == nil {
			l.opts.Logger.Warn("no space for another segment", "dir", l.dir, "err", err)
		}
		l.full = fmt.Errorf("%w: %w", ErrDiskFull, err)
		return false
	default:
		l.failLocked(err)
		return false
	}
}

// prepareSegment makes a segment of the given number, from the file of old if that has
// the right size. If not, it removes the file and returns nil. With an error of which
// isFull is true it returns what old is now: the file is as good as before.
func (l *Log) prepareSegment(number uint32, old *segment) (*segment, error) {
	if old == nil {
		return l.createSegment(number, int64(l.opts.SegmentBytes), !l.bulk())
	}
	if old.size != int64(l.opts.SegmentBytes) {
		l.removeSegments([]*segment{old})
		return nil, nil
	}
	err := l.fs.Rename(l.segmentName(old.number), l.segmentName(number))
	if err == nil {
		old = &segment{number: number, file: old.file, size: old.size} // a late reader may have the other
		err = l.fs.SyncDir(l.dir)
	}
	if err != nil && !isFull(err) {
		old.file.Close()
		return nil, err
	}
	return old, err
}

// createSegment creates the file of a segment, with all its blocks, and makes it and
// its name durable. With fill it also writes zeros, since overwriting a block that was
// written before makes for shorter syncs than the first write of an allocated one; it
// stops that as soon as somebody waits for the segment.
func (l *Log) createSegment(number uint32, size int64, fill bool) (s *segment, err error) {
	name := l.segmentName(number)
	f, err := l.fs.Create(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
			_ = l.fs.Remove(name) // best effort: Open can tell that it was never used
		}
	}()
	if err = f.Allocate(size); err != nil {
		return nil, err
	}
	for at := int64(0); fill && at < size && !l.hurry(); {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at)
		if err != nil {
			return nil, err
		}
		at += int64(n)
	}
	if err = f.Sync(); err != nil {
		return nil, err
	}
	if err = l.fs.SyncDir(l.dir); err != nil {
		return nil, err
	}
	return &segment{number: number, file: f, size: size}, nil
}

// bulkBytes is how much a sync must cover for zeros not to be worth writing.
const bulkBytes = 128 << 10

// bulk reports whether the syncs since the last look covered much each. Zeros make the sync of a small batch shorter, which
// is most of what it costs; a log that grows by large ones would only write everything twice.
func (l *Log) bulk() bool {
	syncs, written := l.counts.syncs.Load(), l.counts.written.Load()
	n, bytes := syncs-l.looked.syncs, written-l.looked.written
	l.looked.syncs, l.looked.written = syncs, written
	return n > 0 && bytes/n >= bulkBytes
}

// hurry reports whether the next spare is wanted now, or nothing at all is any more.
func (l *Log) hurry() bool {
	select {
	case <-l.quit:
		return true
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.spares) < 2
}

// prepareReserve makes the reserve file if it is missing and there is space. It
// returns false: nothing is left to do.
func (l *Log) prepareReserve() bool {
	if l.reserve.Load() {
		return false
	}
	name, temp := l.path(reserveName), l.path(reserveName+tempSuffix)
	err := l.writeFile(temp, func(f File) error { return f.Allocate(l.reserveSize()) })
	if err == nil {
		if err = l.fs.Rename(temp, name); err == nil {
			l.reserve.Store(true)
			return false
		}
	}
	_ = l.fs.Remove(temp)
	if !isFull(err) {
		l.opts.Logger.Warn("cannot prepare the reserve", "dir", l.dir, "err", err)
	}
	return false
}

// useReserve gives the blocks of the reserve back to the file system, and reports
// whether there was one.
func (l *Log) useReserve() bool {
	if !l.reserve.CompareAndSwap(true, false) {
		return false
	}
	return l.fs.Remove(l.path(reserveName)) == nil
}

// writeFile creates a file by fn and syncs it. On an error the file may be left.
func (l *Log) writeFile(name string, fn func(File) error) error {
	f, err := l.fs.Create(name)
	if err != nil {
		return err
	}
	if err = fn(f); err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// removeSegments removes files that nobody needs. What cannot be removed, or comes back
// after a power cut, costs space only: the next Open frees it again.
func (l *Log) removeSegments(list []*segment) {
	for _, s := range list {
		s.file.Close()
		l.remove(l.segmentName(s.number))
	}
}

// remove removes a file that does not count any more.
func (l *Log) remove(name string) {
	if err := l.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.opts.Logger.Warn("a file that is not needed cannot be removed", "file", name, "err", err)
	}
}

// Reclaimable returns how many segments a checkpoint would free now, if there is no space for new ones, the disk is below the
// watermark, less than half of the spares are left, or they are many; else 0. Then a checkpoint is worth taking, however little has been
// written since the last. It may be a little late: what has lost its references is counted from time to time. Commit is called once more,
// as by Poke, when it has become positive.
func (l *Log) Reclaimable() int {
	if n := l.due.Load(); n > 0 {
		return int(n)
	}
	l.mu.Lock()
	short := 2*(len(l.spares)+len(l.free)) < l.opts.Spare
	full := l.full != nil || l.low != nil
	l.mu.Unlock()
	if !full && !short {
		return 0
	}
	u, _ := l.survey()
	return u.free
}

// weighEvery is the share of a segment that is written, or loses its references, between two looks.
const weighEvery = 4

// weigh finds whether a checkpoint would free so much that it is worth one, and whether there is something to compact. It
// is called by the committer, after bytes more of log. again: something has changed for whole segments. idle: nothing else is on its
// way. A log at rest is left with less garbage than a busy one, which would have to write its checkpoints more often; whether
// it is at rest the compactor finds out.
func (l *Log) weigh(bytes int, again, idle bool) {
	l.rollMu.Lock()
	l.churn += int64(bytes)
	enough := l.churn >= int64(l.opts.SegmentBytes)/weighEvery
	if again = again || l.emptied; again || enough {
		l.churn, l.emptied = 0, false
	}
	l.rollMu.Unlock()
	if enough {
		l.busy.Store(true)
	}
	if !enough && !again && !(idle && l.stirred.Load()) {
		return
	}
	u, _ := l.survey()
	if u.garbage > l.slack(u, l.busy.Load()) {
		l.wakeCompactor()
	}
	l.setDue(u)
	if idle && l.restless(u) && l.stirred.CompareAndSwap(true, false) {
		l.wakeCompactor()
	}
}

// setDue has a checkpoint taken if it is worth one.
func (l *Log) setDue(u usage) {
	if n := l.worth(u, l.busy.Load()); l.due.Swap(n) == 0 && n > 0 {
		l.Poke()
	}
}

// restless reports whether there is something to do as soon as the log is at rest.
func (l *Log) restless(u usage) bool {
	return l.busy.Load() && (u.garbage > l.slack(u, false) || l.worth(u, false) > 0)
}

// worth is how many segments a checkpoint would free, if they are worth one.
func (l *Log) worth(u usage, busy bool) int64 {
	segment := int64(l.opts.SegmentBytes)
	l.rollMu.Lock()
	// About what it would take: as much for each reference as the last one did.
	limit := int64(float64(l.checkpointBytes.Load())*min(float64(l.refs+1)/float64(l.checkpointRefs+1), 1)) + segment/2
	l.rollMu.Unlock()
	if busy {
		limit = max(limit, segment*int64(max(4, l.opts.Spare/4)))
	}
	if u.dead < limit {
		return 0
	}
	return int64(u.free)
}

// freeSegments makes the segments below m that had no reference there free. A
// checkpoint at m must be durable.
func (l *Log) freeSegments(m Mark) {
	defer func() { // of what was freed meanwhile
		u, _ := l.survey()
		l.due.Store(l.worth(u, l.busy.Load()))
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segMu.Lock()
	for i := range l.recent {
		l.recent[i].Store(nil)
	}
	for n, s := range l.segments {
		if n < m.base.segment && !slices.Contains(m.live, n) && s.pins == 0 {
			delete(l.segments, n)
			l.free = append(l.free, s)
		}
	}
	l.segMu.Unlock()
	if len(l.free) > 0 {
		l.full = nil // let appends wait for what the preparer finds now
	}
	l.wakePreparer()
	l.wakeCompactor() // it stops when much waits for a checkpoint
}
