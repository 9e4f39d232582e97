package bourse_test

import (
	"testing"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/enginetest"
	"github.com/boursemq/bourse/storage"
)

// Goal: the local engine is an Engine. Method: the conformance suite, with default sizes on the operating system's files, and
// in a file system in memory with segments and checkpoints so small that every case goes through many of them.

func TestLocalEngine(t *testing.T) {
	for name, local := range map[string]struct {
		fs   storage.FS
		opts bourse.LocalOptions
	}{
		"files":  {},
		"memory": {fs: &storage.MemFS{}, opts: bourse.LocalOptions{SegmentBytes: 64 << 10, CheckpointBytes: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) enginetest.Harness {
				dir, opts := t.TempDir(), local.opts
				opts.FS = local.fs
				return enginetest.Harness{
					Open: func() (bourse.Engine, error) { return bourse.NewLocalEngine(dir, opts) },
				}
			})
		})
	}
}
