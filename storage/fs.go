package storage

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// FS is all that the log asks of a file system. Paths are what Open was given and
// names that the log chose itself, joined by filepath. Methods may be called
// concurrently. Errors keep the cause, so that errors.Is finds syscall.ENOSPC or
// fs.ErrNotExist. What is not synced may be lost, in part and in any order.
type FS interface {
	// Mkdir creates dir, for this user only (0700). It returns fs.ErrExist if there is something with that name, and
	// fs.ErrNotExist if the directory above is missing.
	Mkdir(dir string) error
	// ReadDir returns the names in dir, in any order.
	ReadDir(dir string) ([]string, error)
	// Create opens an empty file for reading and writing, for this user only (0600).
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing, and follows no symbolic link.
	Open(name string) (File, error)
	// Rename replaces newname if it exists, in one step.
	Rename(oldname, newname string) error
	// Remove removes a file.
	Remove(name string) error
	// SyncDir makes the names in dir durable, those of directories too.
	SyncDir(dir string) error
	// Free returns how many bytes are free for whoever has no privileges in the file system that dir is in, or
	// errors.ErrUnsupported where there is no telling.
	Free(dir string) (int64, error)
	// Lock creates name if needed and locks it against every other Lock, of this process
	// too, until it is closed. It returns ErrLocked if another holds it.
	Lock(name string) (io.Closer, error)
}

// File is an open file. Methods may be called concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size returns the length in bytes.
	Size() (int64, error)
	// Truncate sets the length.
	Truncate(size int64) error
	// Allocate gives the file at least size bytes of length and the blocks for them.
	Allocate(size int64) error
	// Sync makes the content, and the length as far as it is needed, durable.
	Sync() error
}

// isFull reports whether err means that something has run out and may be there again
// later, as against a fault of the disk.
func isFull(err error) bool {
	return errors.Is(err, ErrDiskFull) || errors.Is(err, syscall.ENOSPC) ||
		errors.Is(err, syscall.EDQUOT) || noDescriptor(err)
}

// noDescriptor reports whether err means that nothing could be opened now. No sync returns that, so a directory that was to
// be synced is as it was: it can be tried again, unlike a sync that has failed.
func noDescriptor(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// makeDir creates dir and what is missing above it, from the top down, and makes the name of each durable, so that no power cut takes it
// away with what it holds. What was there already may be the work of one who was killed before its name was durable. Then it is
// empty, since nothing is put into a directory before: for what is above that is seen to here, for dir in createDir.
func makeDir(files FS, dir string) error {
	dir = filepath.Clean(dir)
	if _, err := files.ReadDir(dir); !errors.Is(err, fs.ErrNotExist) {
		return err // nil: it is there, as the operator made it
	}
	above := filepath.Dir(dir)
	names, err := files.ReadDir(above)
	switch {
	case errors.Is(err, fs.ErrNotExist) && above != dir:
		err = makeDir(files, above)
	case err == nil && len(names) == 0:
		err = files.SyncDir(filepath.Dir(above))
	}
	if err != nil && !errors.Is(err, fs.ErrPermission) { // where we may not look nothing is ours
		return err
	}
	if err = files.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return files.SyncDir(above)
}

// OS is the file system of the operating system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) Mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700) // whatever the umask
}

func (osFS) ReadDir(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return f.Readdirnames(-1)
}

func openFile(name string, flag int) (*os.File, error) {
	f, err := os.OpenFile(name, flag|os.O_RDWR|openFlags, 0o600)
	if err != nil {
		return nil, err
	}
	if flag&os.O_CREATE != 0 {
		if err := f.Chmod(0o600); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	return f, nil
}

func (osFS) Create(name string) (File, error) {
	f, err := openFile(name, os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Open(name string) (File, error) {
	f, err := openFile(name, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Rename(oldname, newname string) error { return os.Rename(oldname, newname) }
func (osFS) Remove(name string) error             { return os.Remove(name) }

func (osFS) SyncDir(dir string) error { return syncDir(filepath.Clean(dir)) }

func (osFS) Free(dir string) (int64, error) { return freeBytes(dir) }

func (osFS) Lock(name string) (io.Closer, error) { return lockFile(name) }

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	s, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return s.Size(), nil
}

func (f osFile) Sync() error { return datasync(f.File) }

// Allocate uses what the system offers and else writes zeros, which allocates too.
func (f osFile) Allocate(size int64) error {
	if err := allocate(f.File, size); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	have, err := f.Size()
	if err != nil {
		return err
	}
	for have < size {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-have)], have)
		if err != nil {
			return err
		}
		have += int64(n)
	}
	return nil
}

// zeros is what segments are filled with; never written to.
var zeros [1 << 18]byte
