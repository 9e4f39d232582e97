//go:build unix && !solaris && !aix

package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

const openFlags = syscall.O_NOFOLLOW | syscall.O_CLOEXEC

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}

// lockFile uses flock, which holds between two descriptors of one process too, and
// ends with the process.
func lockFile(name string) (io.Closer, error) {
	f, err := openFile(name, os.O_CREATE)
	if err != nil {
		return nil, err
	}
	return flock(f, syscall.LOCK_EX)
}

// lockShared locks a file that exists against lockFile, and is not writing to it.
func lockShared(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	return flock(f, syscall.LOCK_SH)
}

// flocked is a file with a lock that ends when it is closed, though a process that is just being started has copies of
// all our files until it runs.
type flocked struct{ *os.File }

func (f flocked) Close() error {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	return f.File.Close()
}

func flock(f *os.File, how int) (io.Closer, error) {
	name := f.Name()
	var err error
	for {
		err = syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		return flocked{f}, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("%s: %w", name, ErrLocked)
	}
	return nil, &os.PathError{Op: "flock", Path: name, Err: err}
}
