package storage

import (
	"errors"
	"os"
	"syscall"
)

// datasync is fdatasync: the content, and the length if it changed, but not the times.
func datasync(f *os.File) error {
	return control(f, "fdatasync", syscall.Fdatasync)
}

func allocate(f *os.File, size int64) error {
	err := control(f, "fallocate", func(fd int) error { return syscall.Fallocate(fd, 0, 0, size) })
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return errors.ErrUnsupported
	}
	return err
}

func control(f *os.File, op string, call func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := raw.Control(func(fd uintptr) {
		for {
			if result = call(int(fd)); !errors.Is(result, syscall.EINTR) {
				return
			}
		}
	}); err != nil {
		return err
	}
	if result != nil {
		return &os.PathError{Op: op, Path: f.Name(), Err: result}
	}
	return nil
}
