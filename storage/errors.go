package storage

import (
	"errors"
	"fmt"
)

// Refusals: nothing was appended or changed. Test with errors.Is.
var (
	// ErrClosed: the log was closed before the call or during it.
	ErrClosed = errors.New("log closed")
	// ErrLocked: the directory is open elsewhere, or a second time in this process.
	ErrLocked = errors.New("directory is locked")
	// ErrForeign: the directory holds something, but no log, or a log in a newer format.
	ErrForeign = errors.New("not a log directory")
	// ErrDiskFull: no space. Records that bring in nothing (sync false) still go in while
	// the reserve lasts. Appends work again once there is space; no call is needed.
	ErrDiskFull = errors.New("disk full")
	// ErrTooLarge: the payload is longer than a record can be, 1 GiB.
	ErrTooLarge = errors.New("record too large")
	// ErrSuperseded: WriteCheckpoint for a mark that is older than that of the last checkpoint.
	ErrSuperseded = errors.New("the mark is older than the last checkpoint")
	// ErrGone: Read of a record whose segment was freed: nobody kept it.
	ErrGone = errors.New("record is gone")
)

// ErrFailed is the one fault: a write or a sync failed. It wraps the cause and is
// final: what the disk holds behind the failure is not known, so nothing more is
// written, and nothing is tried again. Close the log and open it to go on.
var ErrFailed = errors.New("log failed")

// errOrder reports calls in the wrong order, a bug of the caller.
var errOrder = errors.New("log is not replayed, or replayed twice")

// CorruptError reports bytes that were durable once and are not what was written.
// Nothing was changed on disk. Restore the file from a copy; the log never guesses
// what it held.
type CorruptError struct {
	File   string // path of the file
	Offset int64  // where in the file
	Wanted string // what should be there
	Found  string // what is there
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged at offset %d: wanted %s, found %s",
		e.File, e.Offset, e.Wanted, e.Found)
}
