package enginetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boursemq/bourse"
)

// Goal: the suite accepts a right engine and notices every wrong one that we could think
// of. Method: the reference engine passes; then each planted fault is run through all
// cases, and at least one must fail.

func harness(d *Disk, patience time.Duration) Harness {
	var e *MemoryEngine
	return Harness{
		Open:     func() (bourse.Engine, error) { e = Memory(d); return e, nil },
		Snapshot: func(shard uint64) error { return e.Snapshot(shard) },
		Held:     func(shard uint64) int { return e.Held(shard) },
		Patience: patience,
	}
}

func TestMemory(t *testing.T) {
	Run(t, func(t *testing.T) Harness { return harness(NewDisk(), 0) })
}

// TestMemoryAlone covers harnesses that have none of the optional parts.
func TestMemoryAlone(t *testing.T) {
	Run(t, func(t *testing.T) Harness {
		d := NewDisk()
		return Harness{Open: func() (bourse.Engine, error) { return Memory(d), nil }, LateLead: true, MaxCommand: 1 << 20}
	})
}

func TestFaultsAreCaught(t *testing.T) {
	for f := none + 1; f < faults; f++ {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			var caught []string
			// What is called beside something else is seen only if they meet, which a busy machine may take some tries for.
			for try := 0; try < 10 && len(caught) == 0; try++ {
				for _, c := range Cases() {
					d := NewDisk()
					d.fault = f
					if text := run(c, harness(d, 200*time.Millisecond)); text != "" {
						caught = append(caught, c.Name+": "+text)
					}
				}
			}
			if len(caught) == 0 {
				t.Fatalf("no case noticed %v", f)
			}
			t.Logf("%d cases noticed, the first %s", len(caught), caught[0])
		})
	}
}

// run runs one case and returns its first complaint.
func run(c Case, h Harness) string {
	r := &recorder{}
	ended := make(chan struct{})
	go func() { // ends with the case; waited for below
		defer close(ended)
		defer r.end()
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		c.Run(r, h)
	}()
	<-ended
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.texts) == 0 {
		return ""
	}
	return strings.Join(r.texts[:1], "; ")
}

// recorder is a TB that notes failures instead of reporting them.
type recorder struct {
	mu       sync.Mutex
	texts    []string
	cleanups []func()
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) end() {
	for _, f := range r.cleanups {
		f()
	}
}
