package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Machine is what a figure means nothing without.
type Machine struct {
	Processor  string
	Cores      int
	Go         string
	System     string
	FileSystem string        // of the directory of the log
	Sync4K     time.Duration // median of a 4 KiB write and sync into a file that was written before
	Sync64K    time.Duration // likewise of 64 KiB
	Sync1M     time.Duration // likewise of 1 MiB
	Commit     string        // of bourse, if it is known
}

// Probe looks at the machine and the disk under dir.
func Probe(dir string) (Machine, error) {
	m := Machine{
		Processor: processorModel(), Cores: runtime.GOMAXPROCS(0), Go: runtime.Version(),
		System: runtime.GOOS + "/" + runtime.GOARCH, FileSystem: fileSystem(dir), Commit: commit(),
	}
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		return m, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if m.Sync4K, err = probeSync(f, 4<<10, 200); err != nil {
		return m, err
	}
	if m.Sync64K, err = probeSync(f, 64<<10, 100); err != nil {
		return m, err
	}
	m.Sync1M, err = probeSync(f, 1<<20, 30)
	return m, err
}

// probeSync returns the median time of a write of size bytes behind the last and a sync.
func probeSync(f *os.File, size, times int) (time.Duration, error) {
	block := make([]byte, size)
	for i := range times {
		if _, err := f.WriteAt(block, int64(i*size)); err != nil {
			return 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	took := make([]time.Duration, times)
	for i := range took {
		start := time.Now()
		if _, err := f.WriteAt(block, int64(i*size)); err != nil {
			return 0, err
		}
		if err := datasync(f); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	return quantile(took, 0.5), nil
}

// commit is what the build or the working directory says, "unknown" if neither does.
func commit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return s.Value[:12]
			}
		}
	}
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// String is one line for the top of a table.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s %s, %s, write and sync %.2f ms for 4 KiB, %.2f for 64 KiB, %.2f for 1 MiB, commit %s",
		m.Processor, m.Cores, m.Go, m.System, m.FileSystem, milliseconds(m.Sync4K), milliseconds(m.Sync64K),
		milliseconds(m.Sync1M), m.Commit)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Dir makes a new directory for a run, under parent or, if that is empty, where temporary files go. A disk in
// memory would measure nothing, so it is passed over if there is another.
func Dir(parent string) (string, error) {
	if parent == "" {
		parent = os.TempDir()
		for _, other := range []string{"/var/tmp", "."} {
			if fileSystem(parent) == "tmpfs" {
				parent = other
			}
		}
	}
	return os.MkdirTemp(parent, "bourse-bench-")
}
