//go:build linux || darwin || freebsd

package storage

import (
	"errors"
	"math"
	"os"
	"syscall"
)

func freeBytes(dir string) (int64, error) {
	var s syscall.Statfs_t
	err := syscall.Statfs(dir, &s)
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Statfs(dir, &s)
	}
	if err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	blocks, size := max(0, int64(s.Bavail)), max(1, int64(s.Bsize)) // types differ from system to system
	if blocks > math.MaxInt64/size {
		return math.MaxInt64, nil
	}
	return blocks * size, nil
}
