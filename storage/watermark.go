package storage

import (
	"errors"
	"fmt"
)

// The watermark: how much of the disk the log leaves free, besides the space of a checkpoint like the last one, without which nothing
// could be drained. It is looked at by whoever makes segments ready, so once for each segment
// of log, and, while less is free, at each refusal. There is no clock. While less is free:
//
//	what adds is refused, though prepared space may be left: checkpoints, acks, and whoever else lives on this disk need it
//	what moves, and so gives back later what it takes now, goes on, or messages that wait for that would keep all segments
//	segments for the rest are still made ready, but none are kept beyond the least, so that what is drained is given back
//	a checkpoint is worth taking as soon as it frees anything

// LowDiskError says that less is free in the file system of a log than Options.MinFree and the size of a checkpoint. It matches
// ErrDiskFull.
type LowDiskError struct {
	Dir        string
	Free       int64 // bytes
	MinFree    int64
	Checkpoint int64 // the last one's; the next one must fit as well
}

func (e *LowDiskError) Error() string {
	return fmt.Sprintf("%v: %s has %d bytes free, of which %d are to stay so, and %d are for a checkpoint",
		ErrDiskFull, e.Dir, e.Free, e.MinFree, e.Checkpoint)
}

// Unwrap makes it match ErrDiskFull.
func (e *LowDiskError) Unwrap() error { return ErrDiskFull }

// Mover is a Payload that may say that it takes away what it brings anew, such as a message that goes from one queue to another.
// Below the watermark it goes in, on a full disk it does not.
type Mover interface {
	Payload
	// Moves reports whether the record does that.
	Moves() bool
}

func moves(p Payload) bool {
	m, ok := p.(Mover)
	return ok && m.Moves()
}

// leastSpare is how many segments are kept ready however full the disk is, as long as they can be made.
const leastSpare = 2

// watch looks how much is free, and sets low and tight by it. It is called by the preparer, and before that starts.
func (l *Log) watch() {
	if l.opts.MinFree <= 0 || l.blind {
		return
	}
	free, err := l.fs.Free(l.dir)
	if err != nil {
		l.blind = errors.Is(err, errors.ErrUnsupported)
		l.opts.Logger.Info("it cannot be told how much of the disk is free", "dir", l.dir, "err", err)
		return // low stays what it is
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	weight := l.checkpointBytes.Load()
	l.tight = free-weight-int64(l.opts.SegmentBytes) < l.opts.MinFree
	was := l.low != nil
	l.low = nil
	if free-weight < l.opts.MinFree {
		l.low = &LowDiskError{l.dir, free, l.opts.MinFree, weight}
	}
	switch {
	case l.low != nil && !was:
		l.opts.Logger.Warn("the disk is below the watermark: nothing is added", "dir", l.dir, "free", free, "minimum", l.opts.MinFree)
	case l.low == nil && was:
		l.opts.Logger.Info("the disk is above the watermark again", "dir", l.dir, "free", free)
	}
}

// spareLocked is how many of the want segments are to be kept ready, and keepLocked how many of the files that nobody needs.
func (l *Log) spareLocked(want int) int {
	if l.low != nil || l.tight && len(l.free) == 0 {
		return leastSpare
	}
	return want
}

func (l *Log) keepLocked(keep int) int {
	if l.low != nil {
		return 0
	}
	return keep
}

// surplusLocked takes out the spares that are not kept while the disk is below the watermark. They have the highest numbers, and no
// record names them.
func (l *Log) surplusLocked() (list []*segment) {
	if l.low != nil && len(l.spares) > leastSpare {
		list = append(list, l.spares[leastSpare:]...)
		l.spares = l.spares[:leastSpare:leastSpare]
	}
	return list
}
