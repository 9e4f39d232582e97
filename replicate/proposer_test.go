package replicate

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"
	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/enginetest"
)

// Goal: what a log says of a proposal is true whatever happens to its node in between. Method:
// a log without a Raft group, stepped by hand; the test decides who leads and what the
// group commits.

// puppet is such a log. Raft's part is played by sent, and by commit.
type puppet struct {
	*shardLog
	t     *testing.T
	m     *enginetest.Machine
	now   time.Time
	term  uint64   // in which this node leads; 0: it does not
	sent  [][]byte // proposed to the group and not looked at yet
	index uint64
}

func newPuppet(t *testing.T) *puppet {
	p := &puppet{t: t, m: enginetest.NewMachine(), now: time.Unix(1, 0)}
	n := &Node{cfg: Config{NodeID: 1, Members: map[uint64]string{1: "a:1"}, RTT: 10 * time.Millisecond, SnapshotBytes: 1 << 40}}
	n.propose = func(_ *client.Session, b []byte, _ time.Duration) (*dragonboat.RequestState, error) {
		p.sent = append(p.sent, bytes.Clone(b))
		return &dragonboat.RequestState{}, nil
	}
	n.leader = func(uint64) (uint64, uint64, bool, error) {
		if p.term == 0 {
			return 0, 0, false, nil
		}
		return 1, p.term, true, nil
	}
	p.shardLog = newShardLog(n, 1, p.m)
	return p
}

// look steps the log and returns what it sent.
func (p *puppet) look() [][]byte {
	p.t.Helper()
	p.now = p.now.Add(p.node.cfg.RTT + 1)
	if _, more := p.step(p.now); !more {
		p.t.Fatal("the log has ended")
	}
	sent := p.sent
	p.sent = nil
	return sent
}

// commit has the group commit entries.
func (p *puppet) commit(payloads ...[]byte) {
	p.t.Helper()
	var es []sm.Entry
	for _, b := range payloads {
		p.index++
		es = append(es, sm.Entry{Index: p.index, Cmd: bytes.Clone(b)})
	}
	if _, err := p.replica.Update(es); err != nil {
		p.t.Fatal(err)
	}
	for _, text := range p.m.Problems() {
		p.t.Error(text)
	}
}

// elect makes this node lead in term, up to Lead(true).
func (p *puppet) elect(term uint64) {
	p.t.Helper()
	p.term = term
	sent := p.look()
	if len(sent) != 1 || parseHeader(sent[0]) != (header{kind: batchOpens, epoch: term}) {
		p.t.Fatalf("elected, the log sent %d batches", len(sent))
	}
	if p.m.Leading() {
		p.t.Fatal("Lead(true) before the opening was committed")
	}
	if err := p.Propose(&try{of: newStream(p.t)}); !errors.Is(err, bourse.ErrNotLeader) {
		p.t.Fatalf("Propose before Lead(true): %v", err)
	}
	p.commit(sent[0])
	p.look()
	if !p.m.Leading() {
		p.t.Fatal("no Lead(true)")
	}
}

// put proposes a command and returns the try and the batch it was sent in.
func (p *puppet) put(s *stream, id uint64) (*try, []byte) {
	p.t.Helper()
	t := &try{of: s, id: id, number: uint32(id)}
	s.open++
	if err := p.Propose(t); err != nil {
		p.t.Fatal(err)
	}
	sent := p.look()
	if len(sent) != 1 {
		p.t.Fatalf("%d batches sent", len(sent))
	}
	return t, sent[0]
}

func (t *try) ended(tb testing.TB, want error) {
	tb.Helper()
	if want == nil && t.err != nil || !errors.Is(t.err, want) || t.dones != 1 {
		tb.Fatalf("command %d was done %d times with %v, want once with %v", t.id, t.dones, t.err, want)
	}
}

func TestDeposed(t *testing.T) {
	p := newPuppet(t)
	s := newStream(t)
	p.elect(5)
	a, inA := p.put(s, 1)
	b, inB := p.put(s, 2)
	p.term = 0
	p.look()
	if p.m.Leading() {
		t.Fatal("no Lead(false)")
	}
	if a.dones+b.dones > 0 {
		t.Fatalf("done with %v and %v, and nobody can know yet", a.err, b.err)
	}
	if err := p.Propose(a); !errors.Is(err, bourse.ErrNotLeader) {
		t.Fatalf("Propose: %v", err)
	}
	p.commit(inA) // by the next leader, which found it in its log
	a.ended(t, nil)
	p.commit(opening(7), inB) // too late
	b.ended(t, bourse.ErrNotLeader)
	if n := p.m.Count(); n != 1 {
		t.Fatalf("%d commands applied", n)
	}

	// The successor's opening is the first that this node hears of it.
	p.elect(8)
	c, _ := p.put(s, 3)
	p.commit(opening(9))
	if p.m.Leading() {
		t.Fatal("no Lead(false) at the opening of a successor")
	}
	c.ended(t, bourse.ErrNotLeader)
}

func TestCutOff(t *testing.T) {
	p := newPuppet(t)
	s := newStream(t)
	p.elect(5)
	a, inA := p.put(s, 1)
	p.term = 0
	p.look()
	p.now = p.now.Add(p.node.patience() / 2)
	p.look()
	if a.dones > 0 {
		t.Fatalf("done early with %v", a.err)
	}
	p.now = p.now.Add(p.node.patience())
	p.look()
	a.ended(t, bourse.ErrUnknownOutcome)
	p.commit(inA)
	a.ended(t, bourse.ErrUnknownOutcome)
	if n := p.m.Count(); n != 1 {
		t.Fatalf("%d commands applied", n)
	}

	// Elected again in a later term, it starts from a clean slate.
	p.elect(6)
	b, inB := p.put(s, 2)
	p.commit(inB, inA)
	b.ended(t, nil)
	if n := p.m.Count(); n != 2 {
		t.Fatalf("%d commands applied", n)
	}
}

func TestSentAgainInOrder(t *testing.T) {
	p := newPuppet(t)
	s := newStream(t)
	p.elect(5)
	a, _ := p.put(s, 1) // lost
	b, inB := p.put(s, 2)
	c, inC := p.put(s, 3)
	p.commit(inB, inC) // gaps, both
	again := p.look()
	var seqs []uint64
	for _, x := range again {
		seqs = append(seqs, parseHeader(x).seq)
	}
	if !slices.Equal(seqs, []uint64{1, 2, 3}) {
		t.Fatalf("sent again: %v", seqs)
	}
	p.commit(inC) // a gap of the first attempt is no reason
	if sent := p.look(); len(sent) != 0 {
		t.Fatalf("%d batches sent for a gap of an earlier attempt", len(sent))
	}
	p.commit(append(again, again...)...)
	for _, x := range []*try{a, b, c} {
		x.ended(t, nil)
	}
	if n := p.m.Count(); n != 3 {
		t.Fatalf("%d commands applied", n)
	}
}

// A snapshot from the next leader jumps over what was in flight.
func TestSkipped(t *testing.T) {
	p := newPuppet(t)
	s := newStream(t)
	p.elect(5)
	a, inA := p.put(s, 1)
	f := newFeed(t)
	f.update(opening(5), inA)
	p.term = 0
	p.look()
	if err := p.replica.RecoverFromSnapshot(bytes.NewReader(f.snapshot()), nil, nil); err != nil {
		t.Fatal(err)
	}
	a.ended(t, bourse.ErrUnknownOutcome)
	p.commit(inA) // a repeat
	if n := p.m.Count(); n != 1 {
		t.Fatalf("%d commands applied", n)
	}
}

// While the batches in flight leave no room, commands gather in the next, up to its size,
// and a large one travels alone.
func TestBatching(t *testing.T) {
	p := newPuppet(t)
	s := newStream(t)
	p.elect(5)
	var flight [][]byte
	for i := range uint64(flightBatches) {
		_, b := p.put(s, i+1)
		flight = append(flight, b)
	}
	put := func(id uint64, size int) {
		t.Helper()
		s.open++
		if err := p.Propose(proposal(enginetest.Command(id, size, false))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(100) {
		put(100+i, 1000)
	}
	put(300, 1<<20)
	put(301, 1000)
	if sent := p.look(); len(sent) != 0 {
		t.Fatalf("%d batches sent beyond the limit", len(sent))
	}
	p.commit(flight...)
	var sizes []int
	sent := p.look()
	for _, b := range sent {
		h := parseHeader(b)
		sizes = append(sizes, int(h.commands))
		if len(b) > batchBytes && h.commands > 1 {
			t.Errorf("a batch of %d commands has %d bytes", h.commands, len(b))
		}
	}
	if want := []int{65, 35, 1, 1}; !slices.Equal(sizes, want) {
		t.Fatalf("commands in the batches: %v, want %v", sizes, want)
	}
	p.commit(sent...)
	if n := p.m.Count(); n != flightBatches+102 {
		t.Fatalf("%d commands applied", n)
	}
	if err := p.Propose(proposal(make([]byte, MaxCommandBytes+1))); !errors.Is(err, bourse.ErrInvalid) {
		t.Fatalf("a command that is too large: %v", err)
	}
	if sent := p.look(); len(sent) != 0 {
		t.Fatalf("%d batches sent after a refusal", len(sent))
	}
}

// A closing log waits for what is in flight, and then calls the machine no more.
func TestClosing(t *testing.T) {
	p := newPuppet(t)
	s := newStream(t)
	p.elect(5)
	a, inA := p.put(s, 1)
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	p.look()
	if a.dones > 0 {
		t.Fatalf("done with %v", a.err)
	}
	if err := p.Propose(a); !errors.Is(err, bourse.ErrClosed) {
		t.Fatalf("Propose: %v", err)
	}
	p.commit(inA)
	a.ended(t, nil)
	if _, more := p.step(p.now); more {
		t.Fatal("the log goes on")
	}
	if p.m.Leading() {
		t.Fatal("no Lead(false)")
	}
	p.commit(sealed(5, 2, 4))
	if n := p.m.Count(); n != 1 {
		t.Fatalf("%d commands applied after Close", n)
	}
}
