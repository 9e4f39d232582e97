package storage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
)

// A backup is a tar archive of what a directory needs to start at a mark:
//
//	BACKUP                  text: "bourse backup, format 1"
//	0000000000000012.log    the segments that the checkpoint needs; the last one ends at the mark
//	0000000000004711.ckpt   the checkpoint
//	FORMAT                  as in the directory
//	SUMS                    for each of these, in this order: SHA-256 in hex, two spaces, name, newline
//
// SUMS comes last, so a backup that was cut off has none.
const (
	backupName    = "BACKUP"
	backupText    = "bourse backup, format 1\n"
	sumsName      = "SUMS"
	restoringName = "RESTORING" // in a directory that is not whole yet
	maxSums       = 64 << 20
)

// Pinned is a mark whose segments stay as they are until Unpin.
type Pinned struct {
	Mark
	log      *Log
	segments []*segment // Mark.live, then that of the mark
}

// Pin captures a mark as Mark does, and keeps its segments from being used again.
func (l *Log) Pin() *Pinned {
	p := &Pinned{Mark: l.Mark(), log: l}
	l.segMu.Lock()
	defer l.segMu.Unlock()
	for _, n := range append(p.live[:len(p.live):len(p.live)], p.base.segment) {
		if s := l.segments[n]; s != nil {
			s.pins++
			p.segments = append(p.segments, s)
		}
	}
	return p
}

// Unpin lets the segments go. The next checkpoint frees those that nothing else needs.
func (p *Pinned) Unpin() {
	p.log.segMu.Lock()
	defer p.log.segMu.Unlock()
	for _, s := range p.segments {
		s.pins--
	}
}

// Backup writes a backup to out: state is that of the owner of the log at the mark, and is asked twice for its bytes, which must be
// the same. Appends and checkpoints go on meanwhile.
func (p *Pinned) Backup(state io.WriterTo, out io.Writer) error {
	if len(p.segments) != len(p.live)+1 {
		return p.log.corrupt(p.base.segment, int64(p.base.offset), "the segments of a backup", "that one is missing")
	}
	a := &archive{tar: tar.NewWriter(out)}
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
	}
	if err := a.add(backupName, int64(len(backupText)), text(backupText)); err != nil {
		return err
	}
	for i, s := range p.segments {
		size, err := s.file.Size()
		if err != nil {
			return err
		}
		if i == len(p.live) {
			size = min(size, int64(p.base.offset))
		}
		name := filepath.Base(p.log.segmentName(s.number))
		err = a.add(name, size, func(w io.Writer) error {
			_, err := io.Copy(w, io.NewSectionReader(s.file, 0, size))
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	count := &sequentialFile{w: io.Discard}
	if err := p.log.writeCheckpoint(count, p.Mark, state); err != nil {
		return err
	}
	err := a.add(filepath.Base(p.log.checkpointName(p.base.next-1)), count.n, func(w io.Writer) error {
		return p.log.writeCheckpoint(&sequentialFile{w: w}, p.Mark, state)
	})
	if err != nil {
		return err
	}
	format := fmt.Sprintf("%s%d\n", formatPrefix, formatVersion)
	if err := a.add(formatName, int64(len(format)), text(format)); err != nil {
		return err
	}
	sums := a.sums.String()
	if err := a.add(sumsName, int64(len(sums)), text(sums)); err != nil {
		return err
	}
	return a.tar.Close()
}

// archive writes files and notes their sums.
type archive struct {
	tar  *tar.Writer
	sums bytes.Buffer
}

func (a *archive) add(name string, size int64, write func(io.Writer) error) error {
	if err := a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: size}); err != nil {
		return err
	}
	sum := sha256.New()
	if err := write(io.MultiWriter(a.tar, sum)); err != nil {
		return err
	}
	if err := a.tar.Flush(); err != nil { // all of size was written
		return err
	}
	_, err := fmt.Fprintf(&a.sums, "%x  %s\n", sum.Sum(nil), name)
	return err
}

// sequentialFile is a File for who writes from the start to the end.
type sequentialFile struct {
	File // none: nothing else is called
	w    io.Writer
	n    int64
}

func (f *sequentialFile) WriteAt(b []byte, offset int64) (int, error) {
	if offset != f.n {
		return 0, errors.New("a checkpoint was not written in order")
	}
	n, err := f.w.Write(b)
	f.n += int64(n)
	if err != nil {
		return n, errors.New("write the backup: " + err.Error()) // not as it is: the reserve of the log is for its own disk
	}
	return n, nil
}

// BackupError says what is wrong with a backup. Nothing was restored.
type BackupError struct {
	File   string // in the backup; empty: all of it
	Reason string
}

func (e *BackupError) Error() string {
	if e.File == "" {
		return "the backup is damaged: " + e.Reason
	}
	return fmt.Sprintf("the backup is damaged: %s: %s", e.File, e.Reason)
}

// Restore makes dir, which must be empty or not there, what a backup holds. When it returns nil that is durable. After an error or a crash
// dir is not a log: Open refuses it, and so does Restore unless it is empty. Errors: a *BackupError, ErrForeign for a newer format,
// fs.ErrExist if dir is not empty, ErrDiskFull, or a fault.
func Restore(files FS, dir string, from io.Reader) error {
	if files == nil {
		files = OS
	}
	r := &restoring{fs: files, dir: dir}
	err := r.run(from)
	if err != nil && r.began {
		r.clear()
	}
	if err != nil && isFull(err) && !errors.Is(err, ErrDiskFull) {
		err = fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", dir, err)
	}
	return nil
}

type restoring struct {
	fs    FS
	dir   string
	began bool
	made  []string
	sums  bytes.Buffer
}

func (r *restoring) path(name string) string { return filepath.Join(r.dir, name) }

// run writes the files under their names, but FORMAT, without which they are no log, only when all of them are durable and checked.
// RESTORING is there from before the first until after that, so that what a crash leaves is not taken for a new directory.
func (r *restoring) run(from io.Reader) error {
	if err := makeDir(r.fs, r.dir); err != nil {
		return err
	}
	names, err := r.fs.ReadDir(r.dir)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("%w: it holds %s and is to be empty", fs.ErrExist, names[0])
	}
	t := tar.NewReader(from)
	text, err := r.text(t, backupName, 64)
	if err != nil {
		return err
	}
	if text != backupText {
		return fmt.Errorf("%w: a backup that says %q, this release reads %q", ErrForeign, text, backupText)
	}
	if err := r.fs.SyncDir(filepath.Dir(filepath.Clean(r.dir))); err != nil { // as in createDir
		return err
	}
	r.began = true
	if err := r.write(restoringName, func(io.Writer) error { return nil }); err != nil {
		return err
	}
	if err := r.fs.SyncDir(r.dir); err != nil {
		return err
	}
	checkpoints := 0
	for {
		h, err := t.Next()
		if err != nil {
			return damagedTar("", err)
		}
		if h.Name == formatName {
			break
		}
		_, segment := numbered(h.Name, segmentSuffix)
		_, check := numbered(h.Name, checkSuffix)
		if h.Typeflag != tar.TypeReg || checkpoints > 0 || !segment && !check {
			return &BackupError{h.Name, "a file that does not belong there"}
		}
		if check {
			checkpoints++
		}
		sum := sha256.New()
		err = r.write(h.Name, func(w io.Writer) error {
			_, err := io.Copy(io.MultiWriter(w, sum), readDamage{t, h.Name})
			return err
		})
		if err != nil {
			return err
		}
		r.sum(sum.Sum(nil), h.Name)
	}
	if checkpoints != 1 {
		return &BackupError{"", "it has no checkpoint"}
	}
	format, err := io.ReadAll(io.LimitReader(readDamage{t, formatName}, 64))
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%s%d\n", formatPrefix, formatVersion); string(format) != want {
		return fmt.Errorf("%w: a backup of %q, this release reads %q", ErrForeign, format, want)
	}
	sum := sha256.Sum256(format)
	r.sum(sum[:], formatName)
	sums, err := r.text(t, sumsName, maxSums)
	if err != nil {
		return err
	}
	if sums != r.sums.String() {
		return &BackupError{"", "the checksums are not those of its files"}
	}

	if err := r.fs.SyncDir(r.dir); err != nil {
		return err
	}
	temp := formatName + tempSuffix
	if err := r.write(temp, func(w io.Writer) error { _, err := w.Write(format); return err }); err != nil {
		return err
	}
	if err := r.fs.Rename(r.path(temp), r.path(formatName)); err != nil {
		return err
	}
	r.made = append(r.made, formatName)
	if err := r.fs.SyncDir(r.dir); err != nil {
		return err
	}
	r.began = false // it is whole
	if err := r.fs.Remove(r.path(restoringName)); err != nil {
		return err
	}
	return r.fs.SyncDir(r.dir)
}

// text reads the next file, which must have that name.
func (r *restoring) text(t *tar.Reader, name string, most int64) (string, error) {
	h, err := t.Next()
	if err != nil {
		return "", damagedTar(name, err)
	}
	if h.Name != name || h.Size > most {
		return "", &BackupError{h.Name, "where " + name + " should be"}
	}
	b, err := io.ReadAll(readDamage{t, name})
	if err == nil && name == backupName {
		sum := sha256.Sum256(b)
		r.sum(sum[:], name)
	}
	return string(b), err
}

func (r *restoring) sum(sum []byte, name string) { _, _ = fmt.Fprintf(&r.sums, "%x  %s\n", sum, name) } // it cannot fail

// write writes a file durably; its name is so only after SyncDir.
func (r *restoring) write(name string, fn func(io.Writer) error) error {
	f, err := r.fs.Create(r.path(name))
	if err != nil {
		return err
	}
	r.made = append(r.made, name)
	if err = fn(&fileWriter{file: f}); err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// clear removes what was made, FORMAT first and RESTORING last. What cannot be removed stays, and is no log.
func (r *restoring) clear() {
	for i := range r.made {
		_ = r.fs.Remove(r.path(r.made[len(r.made)-1-i]))
	}
	_ = r.fs.SyncDir(r.dir)
}

// fileWriter writes a file from the start.
type fileWriter struct {
	file   File
	offset int64
}

func (w *fileWriter) Write(b []byte) (int, error) {
	n, err := w.file.WriteAt(b, w.offset)
	w.offset += int64(n)
	return n, err
}

// readDamage makes errors of an archive BackupErrors.
type readDamage struct {
	r    io.Reader
	file string
}

func (r readDamage) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = damagedTar(r.file, err)
	}
	return n, err
}

// damagedTar is an error of reading an archive. What the source of the bytes says is left as it is.
func damagedTar(file string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &BackupError{file, "it ends too early"}
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) {
		return &BackupError{file, err.Error()}
	}
	return err
}
