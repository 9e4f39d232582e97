package storage

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

const openFlags = 0

// syncDir does nothing: NTFS journals names, and a directory cannot be flushed.
func syncDir(string) error { return nil }

// lockShared is lockFile: of several who only read, one at a time can.
func lockShared(name string) (io.Closer, error) { return lockFile(name) }

// lockFile opens the file without sharing it.
func lockFile(name string) (io.Closer, error) {
	const sharingViolation = syscall.Errno(32)
	p, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, err
	}
	h, err := syscall.CreateFile(p, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if err == sharingViolation {
		return nil, fmt.Errorf("%s: %w", name, ErrLocked)
	}
	if err != nil {
		return nil, &os.PathError{Op: "lock", Path: name, Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}
