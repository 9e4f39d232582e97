package enginetest

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/boursemq/bourse"
)

// call is one proposal and what became of it.
type call struct {
	to      *calls
	cmd     []byte
	id      uint64
	durable bool

	// guarded by to.mu
	appended int
	dones    int
	ordinal  uint64 // from the answer
	hash     uint64 // likewise
	err      error
}

// calls are the proposals of one case to one log. It notes every Done in the order in which
// they came, and what was wrong with it.
type calls struct {
	s *subject

	mu       sync.Mutex
	order    []*call // as Done was called
	open     int     // accepted, Done still to come
	problems []string
	settled  chan struct{} // closed, if somebody waits, when open falls to 0
}

func newCalls(s *subject) *calls { return &calls{s: s} }

// command encodes a command of at least size bytes. The filling depends on the id.
func command(op byte, id uint64, size int) []byte {
	b := make([]byte, max(size, opHead))
	b[0] = op
	binary.LittleEndian.PutUint64(b[1:], id)
	x := id*0x9E3779B97F4A7C15 + 1
	for i := opHead; i < len(b); i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// freeing encodes the command that takes back one reference to the command with the ordinal.
func freeing(id, ordinal uint64) []byte {
	b := command(opFree, id, opHead+8)
	binary.LittleEndian.PutUint64(b[opHead:], ordinal)
	return b
}

// propose proposes cmd. The call is nil if the log refused, with the error.
func (cs *calls) propose(cmd []byte, durable bool) (*call, error) {
	c := &call{to: cs, cmd: cmd, id: binary.LittleEndian.Uint64(cmd[1:]), durable: durable}
	cs.mu.Lock()
	cs.open++
	cs.mu.Unlock()
	err := cs.s.log.Propose(c)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if err == nil {
		if c.appended != 1 {
			cs.problem("AppendTo called not once inside Propose")
		}
		// The command was copied by AppendTo; what it was copied from is ours again.
		for i := range min(len(cmd), 64) {
			cmd[i] = 0xDB
		}
		return c, nil
	}
	if c.dones > 0 {
		cs.problem("Done of a proposal that was refused")
	} else {
		cs.close()
	}
	return nil, err
}

// must proposes cmd durably and fails the case if it is refused.
func (cs *calls) must(cmd []byte) *call {
	cs.s.Helper()
	c, err := cs.propose(cmd, true)
	if err != nil {
		cs.s.Fatalf("Propose: %v", err)
	}
	return c
}

func (cs *calls) problem(text string) {
	if len(cs.problems) < 10 {
		cs.problems = append(cs.problems, text)
	}
}

// close notes that one open call is not open any more; cs.mu is held.
func (cs *calls) close() {
	if cs.open--; cs.open == 0 && cs.settled != nil {
		close(cs.settled)
		cs.settled = nil
	}
}

// AppendTo implements bourse.Proposal.
func (c *call) AppendTo(dst []byte) []byte {
	c.to.mu.Lock()
	c.appended++
	c.to.mu.Unlock()
	return append(dst, c.cmd...)
}

// Durable implements bourse.Proposal.
func (c *call) Durable() bool { return c.durable }

// Done implements bourse.Proposal.
func (c *call) Done(a bourse.Answer, err error) {
	cs := c.to
	if cs.s.m.busy.Load() != 0 {
		cs.mu.Lock()
		cs.problem("Done while the machine was in a call")
		cs.mu.Unlock()
	}
	line, applied := cs.s.m.line(a.Code)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.dones++; c.dones > 1 {
		cs.problem("Done twice")
		return
	}
	c.err = err
	cs.order = append(cs.order, c)
	defer cs.close()
	if err != nil {
		return
	}
	if len(a.Data) != 8 {
		cs.problem("Done without the machine's answer")
		return
	}
	c.ordinal, c.hash = a.Code, binary.LittleEndian.Uint64(a.Data)
	if !applied {
		cs.problem("Done before Apply")
	} else if line.ID != c.id || line.Hash != c.hash {
		cs.problem("Done with the answer to another command")
	}
}

// wait waits until every accepted call is done.
func (cs *calls) wait() {
	cs.s.Helper()
	cs.mu.Lock()
	if cs.open == 0 {
		cs.mu.Unlock()
		return
	}
	if cs.settled == nil {
		cs.settled = make(chan struct{})
	}
	settled := cs.settled
	cs.mu.Unlock()
	deadline := time.NewTimer(cs.s.Patience)
	defer deadline.Stop()
	select {
	case <-settled:
	case <-deadline.C:
		cs.mu.Lock()
		defer cs.mu.Unlock()
		cs.s.Fatalf("%d of %d proposals not done within %v", cs.open, cs.open+len(cs.order), cs.s.Patience)
	}
}

// settle waits for all calls and fails unless each is done once, without an error, in log
// order, with its own answer.
func (cs *calls) settle() {
	cs.s.Helper()
	cs.wait()
	cs.check(false)
}

// progress returns how many accepted calls are not done yet, and how many are. A wrong
// engine calls Done when a case no longer expects it, so everything here takes the lock.
func (cs *calls) progress() (open, done int) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.open, len(cs.order)
}

// finished returns the calls in the order in which they were done.
func (cs *calls) finished() []*call {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return slices.Clone(cs.order)
}

// confirmed returns how many calls are done without an error.
func (cs *calls) confirmed() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	n := 0
	for _, c := range cs.order {
		if c.err == nil {
			n++
		}
	}
	return n
}

// check fails if anything was wrong with a Done so far. refusals: errors that leave no
// doubt are fine.
func (cs *calls) check(refusals bool) {
	cs.s.Helper()
	cs.s.sound()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, p := range cs.problems {
		cs.s.Errorf("shard %d: %s", cs.s.shard, p)
	}
	last := uint64(0)
	for i, c := range cs.order {
		if c.err != nil {
			if !refusals || errors.Is(c.err, bourse.ErrUnknownOutcome) {
				cs.s.Fatalf("shard %d: proposal ended with %v", cs.s.shard, c.err)
			}
			continue
		}
		if c.ordinal <= last {
			cs.s.Fatalf("shard %d: Done %d is of command %d, after that of %d", cs.s.shard, i+1, c.ordinal, last)
		}
		last = c.ordinal
	}
}

// Command encodes a command for a [Machine], of at least size bytes: the machine notes the id,
// and keeps the command if keep is true.
func Command(id uint64, size int, keep bool) []byte {
	if keep {
		return command(opKeep, id, size)
	}
	return command(opPlain, id, size)
}
