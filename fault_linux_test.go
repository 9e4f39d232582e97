package bourse_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/boursemq/bourse/storage"
)

// TestDiskFullTmpfs is TestDiskFull on a real file system. It needs the right to mount one.
func TestDiskFullTmpfs(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("bourse", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	fillAndDrain(t, storage.OS, filepath.Join(dir, "data"))
}
