package storage

import (
	"errors"
	"io"
	"sync/atomic"
)

// ErrShortWrite, returned by the rule of a FaultFS for a write, makes it write half of
// the bytes and fail.
var ErrShortWrite = errors.New("short write")

// FaultFS passes calls on to FS and asks Rule before each: a test tool, to make calls
// fail, to count them, or to look at the world between two of them.
type FaultFS struct {
	FS FS
	// Rule is called before each call, possibly concurrently, with the name of the
	// operation (create, open, rename, remove, readdir, mkdir, syncdir, free, lock, read, write,
	// truncate, allocate, sync, size), the path (of a rename the new one), and the number
	// of the call, from 1. If it returns an error the call fails with it and does
	// nothing. Nil: no faults. Fixed after first use.
	Rule func(op, name string, n int) error

	calls atomic.Int64
}

// Calls returns the number of calls so far.
func (f *FaultFS) Calls() int { return int(f.calls.Load()) }

func (f *FaultFS) check(op, name string) error {
	n := int(f.calls.Add(1))
	if f.Rule == nil {
		return nil
	}
	return f.Rule(op, name, n)
}

// Mkdir implements FS.
func (f *FaultFS) Mkdir(dir string) error {
	if err := f.check("mkdir", dir); err != nil {
		return err
	}
	return f.FS.Mkdir(dir)
}

// ReadDir implements FS.
func (f *FaultFS) ReadDir(dir string) ([]string, error) {
	if err := f.check("readdir", dir); err != nil {
		return nil, err
	}
	return f.FS.ReadDir(dir)
}

// Create implements FS.
func (f *FaultFS) Create(name string) (File, error) {
	if err := f.check("create", name); err != nil {
		return nil, err
	}
	return f.wrap(f.FS.Create(name))(name)
}

// Open implements FS.
func (f *FaultFS) Open(name string) (File, error) {
	if err := f.check("open", name); err != nil {
		return nil, err
	}
	return f.wrap(f.FS.Open(name))(name)
}

func (f *FaultFS) wrap(file File, err error) func(name string) (File, error) {
	return func(name string) (File, error) {
		if err != nil {
			return nil, err
		}
		return &faultFile{file, f, name}, nil
	}
}

// Rename implements FS.
func (f *FaultFS) Rename(oldname, newname string) error {
	if err := f.check("rename", newname); err != nil {
		return err
	}
	return f.FS.Rename(oldname, newname)
}

// Remove implements FS.
func (f *FaultFS) Remove(name string) error {
	if err := f.check("remove", name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

// SyncDir implements FS.
func (f *FaultFS) SyncDir(dir string) error {
	if err := f.check("syncdir", dir); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

// Free implements FS.
func (f *FaultFS) Free(dir string) (int64, error) {
	if err := f.check("free", dir); err != nil {
		return 0, err
	}
	return f.FS.Free(dir)
}

// Lock implements FS.
func (f *FaultFS) Lock(name string) (io.Closer, error) {
	if err := f.check("lock", name); err != nil {
		return nil, err
	}
	return f.FS.Lock(name)
}

type faultFile struct {
	File
	fs   *FaultFS
	name string
}

func (f *faultFile) ReadAt(b []byte, offset int64) (int, error) {
	if err := f.fs.check("read", f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(b, offset)
}

func (f *faultFile) WriteAt(b []byte, offset int64) (int, error) {
	if err := f.fs.check("write", f.name); err != nil {
		if errors.Is(err, ErrShortWrite) {
			n, _ := f.File.WriteAt(b[:len(b)/2], offset)
			return n, err
		}
		return 0, err
	}
	return f.File.WriteAt(b, offset)
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.fs.check("truncate", f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Allocate(size int64) error {
	if err := f.fs.check("allocate", f.name); err != nil {
		return err
	}
	return f.File.Allocate(size)
}

func (f *faultFile) Sync() error {
	if err := f.fs.check("sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) Size() (int64, error) {
	if err := f.fs.check("size", f.name); err != nil {
		return 0, err
	}
	return f.File.Size()
}
