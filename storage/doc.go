// Package storage is the log under bourse's local engine: one append-only,
// checksummed log in one directory, which is also where message bodies live.
//
// # Contract
//
//	l, err := storage.Open(dir, storage.Options{Commit: report})
//	r, found, err := l.Checkpoint()   // restore from r; Keep what it refers to
//	err = l.Replay(apply)             // what came after; then the log is open
//	err = l.Append(stream, true, p)   // nil: report will be called with it
//	body, err := l.Read(pos, size, nil)
//	err = l.WriteCheckpoint(mark, state)
//	err = l.Close()
//
// What the log promises:
//
//  1. A record that was reported with sync is there after any crash or power cut of
//     a disk that honours fsync, with the bytes it was given.
//  2. What is recovered is a prefix of what was appended, in that order. It may be
//     longer than what was reported, never shorter than what was reported with sync.
//  3. What one recovery has cut off no later one brings back.
//  4. Bytes that were durable and have changed are reported as *CorruptError with file
//     and offset, or they do not matter. What cannot be told from a torn write is only
//     the last batch written before a crash.
//  5. A failed write or sync is final (ErrFailed). A full disk is not: what brings in
//     data is refused (ErrDiskFull), what only settles still goes in for a while. So it is
//     below Options.MinFree, where what settles goes on (watermark.go).
//  6. A record with references can be read, at the position that it was reported with.
//  7. At rest the directory takes at most twice the bytes with references and eight
//     segments, if the owner writes a checkpoint whenever Reclaimable says so.
//
// # Directory
//
//	FORMAT                  text: "bourse log, format 1"
//	LOCK                    locked while the log is open
//	reserve                 blocks to get out of a full disk with
//	0000000000000012.log    segments, see record.go; some are prepared and empty
//	0000000000004711.ckpt   the checkpoint up to that sequence, see snapshot.go
//
// Names are numbers that the log chose. What else is in the directory is left alone.
// Directory and files are for this user only.
//
// # Life of a record
//
// Append encodes the payload into the open chunk, gives it sequence and position, and
// puts it into the open batch (wal.go). The writer completes the checksums and writes the
// batch, the syncer syncs it if any of its records asked, and the committer reports it; there
// the owner calls Keep for what must stay readable. Read finds it in the chunk as long
// as that is cached, else in the file (message.go). Free takes references back (live.go), and the
// next durable checkpoint frees segments without any (compact.go). What little is left in others
// is copied to the end of the log first (move.go).
//
// # Not obvious
//
// A record keeps the position that it was first written at as its name, wherever it is.
//
// Sequence numbers jump after a tear, so that no sequence names two different records.
//
// A segment is never written to by two owners, except one that had no records yet. So
// each start after a crash ends a segment early; it is shortened to what it holds.
//
// A clean Close puts an end record behind the last one and a header into the next
// segment. The header proves the end record, and the end record the last segment, so a
// log that was shortened while it was closed does not open.
package storage
