package bourse_test

// Small disks of real file systems, for tests that fill them or cut their power: an image in memory, a loop device, a mount. All of it is
// below one folder whose name has the number of the process, so that what a killed run has left behind is found and
// taken down by the next one.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

const diskPrefix = "bourse-disk-"

var (
	diskMu    sync.Mutex
	diskCount int
)

// disk is a file system of its own.
type disk struct {
	kind string
	base string // folder that everything is in; a tmpfs
	dir  string // where it is mounted
	loop string // device
}

// newDisk makes and mounts a disk: ext4, xfs or tmpfs. It fails the test, or skips it if must is false, where that cannot be done.
func newDisk(t *testing.T, kind string, bytes int64, must bool) *disk {
	t.Helper()
	diskMu.Lock()
	defer diskMu.Unlock()
	removeOldDisks()
	diskCount++
	d := &disk{kind: kind, base: filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-%d", diskPrefix, os.Getpid(), diskCount))}
	d.dir = filepath.Join(d.base, "disk")
	t.Cleanup(func() { require.NoError(t, removeDisk(d.base)) })
	if err := d.create(bytes); err != nil {
		if must {
			require.NoError(t, err, "no disk of the kind %s", kind)
		}
		t.Skipf("cannot make a disk of the kind %s: %v", kind, err)
	}
	return d
}

func (d *disk) create(bytes int64) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can mount")
	}
	if err := os.MkdirAll(d.base, 0o700); err != nil {
		return err
	}
	if d.kind == "tmpfs" {
		if err := os.Mkdir(d.dir, 0o700); err != nil {
			return err
		}
		return syscall.Mount("bourse", d.dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes))
	}
	if err := syscall.Mount("bourse", d.base, "tmpfs", 0, "size=1g"); err != nil {
		return err
	}
	image := filepath.Join(d.base, "image")
	if err := errors.Join(os.Mkdir(d.dir, 0o700), os.WriteFile(image, nil, 0o600), os.Truncate(image, bytes)); err != nil {
		return err
	}
	makers := map[string][]string{
		"ext4": {"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", image},
		"xfs":  {"mkfs.xfs", "-q", "-f", image},
	}
	maker := makers[d.kind]
	if _, err := run(maker[0], maker[1:]...); err != nil {
		return err
	}
	loop, err := run("losetup", "--find", "--show", image)
	if err != nil {
		return err
	}
	d.loop = loop
	return d.mount()
}

func run(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

func (d *disk) mount() error {
	return os.NewSyscallError("mount "+d.kind, syscall.Mount(d.loop, d.dir, d.kind, syscall.MS_NOATIME, ""))
}

// cut takes the power from the disk: what is synced stays, nothing else is written any more, not even the journal.
func (d *disk) cut() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	const shutdown, withoutLog = 0x8004587d, 2
	how := uint32(withoutLog)
	if _, _, no := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&how))); no != 0 {
		return os.NewSyscallError("shutdown "+d.kind, no)
	}
	return nil
}

// files are those that this process has open on the disk.
func (d *disk) files() (open []string) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if name, _ := os.Readlink(l); strings.HasPrefix(name, d.dir+"/") {
			open = append(open, name)
		}
	}
	return open
}

// again mounts a disk anew whose power was cut. Nobody may have files open there, but a process that is being started
// has copies of ours for a moment.
func (d *disk) again() error {
	err := syscall.Unmount(d.dir, 0)
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for end := time.Now().Add(testTimeout); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); {
		<-pause.C
		err = syscall.Unmount(d.dir, 0)
	}
	if err != nil {
		return os.NewSyscallError("unmount", err)
	}
	return d.mount()
}

// removeDisk takes down what is below base, whoever has made it.
func removeDisk(base string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var below []string
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; at == base || strings.HasPrefix(at, base+"/") {
			below = append(below, at)
		}
	}
	slices.SortFunc(below, func(a, b string) int { return len(b) - len(a) })
	for _, at := range below[:max(0, len(below)-1)] {
		err = errors.Join(err, syscall.Unmount(at, syscall.MNT_DETACH))
	}
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, _ := os.ReadFile(f); strings.HasPrefix(string(b), base+"/") {
			_, e := run("losetup", "--detach", "/dev/"+strings.Split(f, "/")[3])
			err = errors.Join(err, e)
		}
	}
	if n := len(below); n > 0 {
		err = errors.Join(err, syscall.Unmount(below[n-1], syscall.MNT_DETACH))
	}
	return errors.Join(err, os.RemoveAll(base))
}

// removeOldDisks takes down those of processes that are no more.
func removeOldDisks() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), diskPrefix+"*"))
	for _, base := range left {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(base), diskPrefix), "-")
		pid, err := strconv.Atoi(number)
		if err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		if err := removeDisk(base); err != nil {
			fmt.Printf("disk of a process that is no more: %v\n", err)
		}
	}
}

// TestOldDisks: what a killed process has left is taken down.
func TestOldDisks(t *testing.T) {
	if testing.Short() {
		t.Skip("it mounts")
	}
	child := exec.Command("true")
	require.NoError(t, child.Run())
	old := &disk{kind: "ext4", base: filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-1", diskPrefix, child.Process.Pid))}
	old.dir = filepath.Join(old.base, "disk")
	t.Cleanup(func() { require.NoError(t, removeDisk(old.base)) })
	if err := old.create(16 << 20); err != nil {
		t.Skipf("cannot make a disk: %v", err)
	}
	newDisk(t, "tmpfs", 1<<20, true)
	require.NoDirExists(t, old.base)
	backing, _ := os.ReadFile(filepath.Join("/sys/block", filepath.Base(old.loop), "loop/backing_file"))
	require.NotContains(t, string(backing), old.base)
}
