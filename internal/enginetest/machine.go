package enginetest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boursemq/bourse"
)

// A command is one byte for what to do, eight for the id that the suite gave it, and
// whatever else: for opFree the ordinal of the command to free, else filling.
const (
	opPlain = 'p' // remember that it came
	opKeep  = 'k' // and keep the command itself
	opTwice = 't' // and keep it with two references
	opFree  = 'f' // and take back one reference
	opHead  = 9   // bytes before the filling
)

// Line is one command as the machine saw it.
type Line struct {
	Index uint64 // Entry.Index
	ID    uint64
	Hash  uint64 // over this and every earlier command, in order
}

// Body is one kept command.
type Body struct {
	Ordinal uint64 // of the command, from 1
	Ref     bourse.Ref
	Size    int
	Sum     [32]byte
	Refs    int // references held
}

// Machine is the suite's machine: a hash over all commands in their order, the list of
// them, and the bodies it was told to keep. It answers with a command's ordinal and the
// hash after it. Its methods may be called while an engine feeds it.
type Machine struct {
	busy      atomic.Int32 // calls of the engine under way
	forbidden atomic.Bool  // no call may come any more

	mu       sync.Mutex
	state    state
	problems []string
	leads    []int // lines held at each Lead(true)
	leading  bool
	led      chan struct{} // closed at the first Lead(true)
	restores int
	applied  int // commands that came through Apply
}

// state is what a snapshot holds.
type state struct {
	Lines  []Line
	Bodies map[uint64]Body // by ordinal
}

// NewMachine returns a machine in its first state.
func NewMachine() *Machine {
	return &Machine{state: state{Bodies: map[uint64]Body{}}, led: make(chan struct{})}
}

func digest(b []byte) [32]byte { return sha256.Sum256(b) }

func (m *Machine) problem(format string, args ...any) {
	if len(m.problems) < 10 {
		m.problems = append(m.problems, fmt.Sprintf(format, args...))
	}
}

// enter checks that the engine makes one call at a time, and none after the end, and
// takes the lock.
func (m *Machine) enter(call string) (leave func()) {
	alone := m.busy.Add(1) == 1
	runtime.Gosched() // a call that should have waited gets its chance to run
	m.mu.Lock()
	if !alone {
		m.problem("%s while another call of the machine was running", call)
	}
	if m.forbidden.Load() {
		m.problem("%s after Log.Close returned", call)
	}
	return func() {
		m.mu.Unlock()
		m.busy.Add(-1)
	}
}

// Apply implements bourse.Machine.
func (m *Machine) Apply(bodies bourse.Bodies, entries []bourse.Entry) {
	defer m.enter("Apply")()
	if len(entries) == 0 {
		m.problem("Apply of nothing")
	}
	for i := range entries {
		m.apply(bodies, &entries[i])
	}
}

func (m *Machine) apply(bodies bourse.Bodies, e *bourse.Entry) {
	m.applied++
	if last := m.last(); e.Index <= last.Index {
		m.problem("Entry.Index %d after %d", e.Index, last.Index)
	}
	if len(e.Cmd) < opHead {
		m.problem("command %d has %d bytes: %q", len(m.state.Lines)+1, len(e.Cmd), e.Cmd)
		return
	}
	h := sha256.New()
	var num [8]byte
	binary.LittleEndian.PutUint64(num[:], m.last().Hash)
	h.Write(num[:])
	h.Write(e.Cmd)
	ordinal := uint64(len(m.state.Lines) + 1)
	line := Line{
		Index: e.Index,
		ID:    binary.LittleEndian.Uint64(e.Cmd[1:]),
		Hash:  binary.LittleEndian.Uint64(h.Sum(nil)),
	}
	m.state.Lines = append(m.state.Lines, line)
	switch op := e.Cmd[0]; op {
	case opPlain:
	case opKeep, opTwice:
		b := Body{Ordinal: ordinal, Ref: e.Ref, Size: len(e.Cmd), Sum: digest(e.Cmd), Refs: 1}
		if op == opTwice {
			b.Refs = 2
		}
		if e.Ref == 0 {
			m.problem("command %d has no Ref", ordinal)
		}
		m.state.Bodies[ordinal] = b
		bodies.Keep(e.Ref, b.Refs)
	case opFree:
		of := binary.LittleEndian.Uint64(e.Cmd[opHead:])
		b, ok := m.state.Bodies[of]
		if !ok {
			m.problem("command %d frees %d, which is not kept", ordinal, of)
			break
		}
		bodies.Free(b.Ref)
		if b.Refs--; b.Refs > 0 {
			m.state.Bodies[of] = b
		} else {
			delete(m.state.Bodies, of)
		}
	default:
		m.problem("command %d starts with %q", ordinal, op)
	}
	e.Answer = bourse.Answer{Code: ordinal, Data: binary.LittleEndian.AppendUint64(nil, line.Hash)}
}

func (m *Machine) last() Line {
	if n := len(m.state.Lines); n > 0 {
		return m.state.Lines[n-1]
	}
	return Line{}
}

// Lead implements bourse.Machine.
func (m *Machine) Lead(leading bool) {
	defer m.enter("Lead")()
	if leading == m.leading {
		m.problem("Lead(%t) twice", leading)
	}
	m.leading = leading
	if leading {
		m.leads = append(m.leads, len(m.state.Lines))
		if len(m.leads) == 1 {
			close(m.led)
		}
	}
}

// Snapshot implements bourse.Machine.
func (m *Machine) Snapshot() (io.WriterTo, error) {
	defer m.enter("Snapshot")()
	s := state{Lines: slices.Clone(m.state.Lines), Bodies: map[uint64]Body{}}
	for k, b := range m.state.Bodies {
		s.Bodies[k] = b
	}
	return writer{s}, nil
}

type writer struct{ state }

func (w writer) WriteTo(to io.Writer) (int64, error) {
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(w.state); err != nil {
		return 0, err
	}
	return buf.WriteTo(to)
}

// Restore implements bourse.Machine.
func (m *Machine) Restore(bodies bourse.Bodies, r io.Reader) error {
	defer m.enter("Restore")()
	all, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	var s state
	if err := gob.NewDecoder(bytes.NewReader(all)).Decode(&s); err != nil {
		return fmt.Errorf("snapshot of %d bytes: %w", len(all), err)
	}
	if s.Bodies == nil {
		s.Bodies = map[uint64]Body{}
	}
	for _, b := range s.Bodies {
		bodies.Keep(b.Ref, b.Refs)
	}
	m.state = s
	m.restores++
	return nil
}

// forbid makes every later call of the engine a problem.
func (m *Machine) forbid() { m.forbidden.Store(true) }

// AwaitLead waits until the first Lead(true).
func (m *Machine) AwaitLead(patience time.Duration) bool {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-m.led:
		return true
	case <-deadline.C:
		return false
	}
}

// Leading reports whether the last call of Lead was Lead(true).
func (m *Machine) Leading() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leading
}

// Leads returns how many lines the machine held at each Lead(true).
func (m *Machine) Leads() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.leads)
}

// Count is the number of commands in the machine's state.
func (m *Machine) Count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.state.Lines)
}

// Hash is the hash over all commands in their order.
func (m *Machine) Hash() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last().Hash
}

// Recovered returns how often Restore was called and how many commands came by Apply.
func (m *Machine) Recovered() (restores, applied int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.restores, m.applied
}

// Lines returns a copy of all commands in their order.
func (m *Machine) Lines() []Line {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.state.Lines)
}

// line returns the command with the ordinal.
func (m *Machine) line(ordinal uint64) (Line, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ordinal == 0 || ordinal > uint64(len(m.state.Lines)) {
		return Line{}, false
	}
	return m.state.Lines[ordinal-1], true
}

// Bodies returns the kept commands, oldest first.
func (m *Machine) Bodies() []Body {
	m.mu.Lock()
	defer m.mu.Unlock()
	var bs []Body
	for _, b := range m.state.Bodies {
		bs = append(bs, b)
	}
	slices.SortFunc(bs, func(a, b Body) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return bs
}

// Problems returns the calls so far that the seam forbids.
func (m *Machine) Problems() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.problems)
}

// Diff says how the states of the two machines differ; empty: they do not. Refs are
// not compared, since an engine may move a command.
func (m *Machine) Diff(o *Machine) string {
	a, b := m.Lines(), o.Lines()
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("command %d is %+v, was %+v", i+1, a[i], b[i])
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d commands, were %d", len(a), len(b))
	}
	x, y := m.Bodies(), o.Bodies()
	for i := range min(len(x), len(y)) {
		x[i].Ref, y[i].Ref = 0, 0
		if x[i] != y[i] {
			return fmt.Sprintf("kept command %d has %d bytes and %d references, was %d with %d and %d",
				x[i].Ordinal, x[i].Size, x[i].Refs, y[i].Ordinal, y[i].Size, y[i].Refs)
		}
	}
	if len(x) != len(y) {
		return fmt.Sprintf("%d commands are kept, were %d", len(x), len(y))
	}
	return ""
}
