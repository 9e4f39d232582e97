// Package enginetest is the conformance suite of [bourse.Engine]: what every engine must
// do for the broker, checked from the outside through the seam alone.
//
// Each case drives a small deterministic [Machine] of the suite's own, which remembers
// every command in order and complains about calls that the seam forbids. [Memory] is
// the smallest engine that passes. The suite's own tests plant faults in it and demand
// that each is caught.
package enginetest

import (
	"context"
	"testing"
	"time"

	"github.com/boursemq/bourse"
)

// TB is the part of testing.TB that the cases use. Fatalf must not return.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// Harness is one engine under test, in a place of its own that outlives its Close.
type Harness struct {
	// Open opens the engine: the first call in an empty place, later calls on what the
	// engine before, which has been closed, left behind.
	Open func() (bourse.Engine, error)

	// Snapshot makes the engine take a snapshot of an open shard and returns when a reopen
	// would start from it. nil: the engine cannot be made to, and cases do without.
	Snapshot func(shard uint64) error

	// Follower returns a log of the open shard on a node that does not lead it. nil: the
	// engine has no such nodes.
	Follower func(shard uint64) (bourse.Log, error)

	// Held counts the commands that the engine holds for an open shard because of
	// Bodies.Keep. nil: the engine cannot tell.
	Held func(shard uint64) int

	// LateLead: Open may return before the machine leads. The cases then wait for
	// Lead(true) before they propose.
	LateLead bool

	MaxCommand int           // length of the largest command to try; default 4 MiB
	Patience   time.Duration // before a wait is a failure; default 30 s
}

// Case is one test of the suite.
type Case struct {
	Name string
	Run  func(tb TB, h Harness)
}

// Run runs every case as a subtest of t, each on a harness of its own. open may call
// t.Parallel.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, open(t)) })
	}
}

// rig is a harness in use by one case.
type rig struct {
	TB
	Harness
	engine bourse.Engine
}

func newRig(tb TB, h Harness) *rig {
	if h.MaxCommand == 0 {
		h.MaxCommand = 4 << 20
	}
	if h.Patience == 0 {
		h.Patience = 30 * time.Second
	}
	r := &rig{TB: tb, Harness: h}
	r.start()
	tb.Cleanup(func() {
		if err := r.engine.Close(); err != nil {
			tb.Errorf("Engine.Close at the end: %v", err)
		}
	})
	return r
}

// start opens the engine.
func (r *rig) start() {
	r.Helper()
	e, err := r.Harness.Open()
	if err != nil {
		r.Fatalf("open the engine: %v", err)
	}
	r.engine = e
}

// stop closes the engine.
func (r *rig) stop() {
	r.Helper()
	if err := r.engine.Close(); err != nil {
		r.Fatalf("Engine.Close: %v", err)
	}
}

// subject is one open shard and the machine it feeds.
type subject struct {
	*rig
	shard uint64
	log   bourse.Log
	m     *Machine
}

// open opens shard with a new machine and waits until it leads.
func (r *rig) open(shard uint64) *subject {
	r.Helper()
	m := NewMachine()
	ctx, cancel := context.WithTimeout(context.Background(), r.Patience)
	defer cancel()
	l, err := r.engine.Open(ctx, shard, m)
	if err != nil {
		r.Fatalf("open shard %d: %v", shard, err)
	}
	if !r.LateLead && !m.Leading() {
		r.Fatalf("shard %d: Open returned before Lead(true)", shard)
	}
	if !m.AwaitLead(r.Patience) {
		r.Fatalf("shard %d: no Lead(true) within %v", shard, r.Patience)
	}
	return &subject{rig: r, shard: shard, log: l, m: m}
}

// close closes the log; from then on the machine complains about every call.
func (s *subject) close() {
	s.Helper()
	if err := s.log.Close(); err != nil {
		s.Fatalf("Log.Close: %v", err)
	}
	s.m.forbid()
	s.sound()
}

// restart closes log and engine and opens both again. The new machine must hold what the
// old one held.
func (s *subject) restart() *subject {
	s.Helper()
	s.close()
	s.stop()
	s.start()
	n := s.open(s.shard)
	n.sameAs(s.m)
	return n
}

// snapshot has the engine take a snapshot, if it can be made to.
func (s *subject) snapshot() {
	s.Helper()
	if s.Snapshot == nil {
		return
	}
	if err := s.Harness.Snapshot(s.shard); err != nil {
		s.Fatalf("snapshot of shard %d: %v", s.shard, err)
	}
}

// sound fails if the machine saw a call that the seam forbids.
func (s *subject) sound() {
	s.Helper()
	for _, p := range s.m.Problems() {
		s.Errorf("shard %d: %s", s.shard, p)
	}
}

// sameAs fails if the machine does not hold exactly what o holds.
func (s *subject) sameAs(o *Machine) {
	s.Helper()
	if diff := s.m.Diff(o); diff != "" {
		s.Fatalf("shard %d after recovery: %s", s.shard, diff)
	}
}

// readable fails if a body that the machine keeps cannot be read, or reads differently.
func (s *subject) readable() {
	s.Helper()
	prefix := []byte("prefix")
	for i, b := range s.m.Bodies() {
		size := b.Size
		if i%2 == 1 {
			size = 0 // unknown to the caller
		}
		got, err := s.log.Read(b.Ref, size, prefix[:len(prefix):len(prefix)])
		if err != nil {
			s.Fatalf("shard %d: read of command %d, %d bytes: %v", s.shard, b.Ordinal, b.Size, err)
		}
		if len(got) < len(prefix) || string(got[:len(prefix)]) != string(prefix) {
			s.Fatalf("shard %d: Read of command %d lost what dst held", s.shard, b.Ordinal)
		}
		if got = got[len(prefix):]; len(got) != b.Size || digest(got) != b.Sum {
			s.Fatalf("shard %d: command %d reads as %d other bytes, was %d", s.shard, b.Ordinal, len(got), b.Size)
		}
	}
}
