//go:build !linux

package bench

import (
	"os"
	"runtime"
	"time"
)

func datasync(f *os.File) error { return f.Sync() }

// processorTime is not known here; tables print it as 0.
func processorTime() time.Duration { return 0 }

func fileSystem(string) string { return "unknown" }

func processorModel() string { return runtime.GOARCH }
