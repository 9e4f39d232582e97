package replicate

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/invariant"
)

// What replica.Update says of a batch. Only the first changes anything.
const (
	verdictApplied = 1 + iota // it was next in its epoch
	verdictRepeat             // it is in the log already, from an earlier try
	verdictGap                // one before it is missing
	verdictStale              // its epoch is over
)

// position says how far the order of batches has come. It is part of the replicated state:
// equal on every replica after the same entry.
//
//  1. epoch never decreases, and is the term of a leader that opened it.
//  2. Of an epoch exactly the batches 1 to seq are applied, each once, in order.
//  3. Once an epoch is over, no batch of it is ever applied.
//
// One session per shard is enough, since all proposals go through the leader's log. So the
// table that finds repeats has one line, however many nodes and leaders there were.
type position struct {
	epoch    uint64
	seq      uint64
	commands uint64 // applied so far: the Index of the last
}

// judge decides about a batch with header h and moves the position if it is accepted.
func (p *position) judge(h header) uint64 {
	switch {
	case h.epoch < p.epoch || h.epoch == 0: // no term is 0
		return verdictStale
	case h.kind == batchOpens && h.epoch == p.epoch:
		return verdictRepeat
	case h.kind == batchOpens:
		p.epoch, p.seq = h.epoch, 0
		return verdictApplied
	case h.epoch > p.epoch: // its opening is missing
		return verdictGap
	case h.seq <= p.seq:
		return verdictRepeat
	case h.seq > p.seq+1:
		return verdictGap
	}
	p.seq++
	p.commands += uint64(h.commands)
	return verdictApplied
}

// observer is told what becomes of batches on this replica. All calls come with run held,
// and none but done may call the machine.
type observer interface {
	// applied: the commands of the batch are applied, entries has the answers.
	applied(epoch, seq uint64, entries []bourse.Entry)
	// opened: epoch is open, and all before it are over.
	opened(epoch uint64)
	// gap: a batch was refused since one before it is missing.
	gap(epoch uint64, attempt uint32)
	// skipped: a snapshot moved the state to p without applying what led there.
	skipped(p position)
}

// replica feeds a bourse.Machine from a Raft group: it is the group's state machine on this
// node. Raft makes one call at a time, except that SaveSnapshot runs beside the others.
type replica struct {
	shard  uint64
	seen   observer
	bodies *bodies
	closed chan struct{} // closed by Close
	bytes  atomic.Int64  // of commands applied since the last snapshot

	// run is held for every call of the machine and of Proposal.Done, so that they come one
	// at a time. It is taken before shardLog.mu.
	run      sync.Mutex
	machine  bourse.Machine
	detached bool // no further call of the machine
	position position

	// owned by Update
	entries []bourse.Entry
	spans   []span
}

// span is a batch among the entries that are about to be applied.
type span struct {
	epoch, seq uint64
	end        int // index behind its last entry
}

const (
	applyBytes   = 1 << 20 // of commands handed to the machine at once, if there are so many
	applyEntries = 8192
)

var _ sm.IConcurrentStateMachine = (*replica)(nil)

func newReplica(shard uint64, m bourse.Machine, seen observer) *replica {
	return &replica{
		shard:   shard,
		machine: m,
		seen:    seen,
		bodies:  &bodies{held: map[bourse.Ref]*body{}},
		closed:  make(chan struct{}),
	}
}

// Update applies committed entries. It never fails: a refusal is a result.
func (r *replica) Update(entries []sm.Entry) ([]sm.Entry, error) {
	r.run.Lock()
	defer r.run.Unlock()
	if r.detached {
		return entries, nil // the replica is being stopped and its state thrown away
	}
	bytes := 0
	for i := range entries {
		e := &entries[i]
		h := parseHeader(e.Cmd)
		first := r.position.commands + 1
		verdict := r.position.judge(h)
		e.Result.Value = verdict
		switch {
		case verdict == verdictGap:
			r.seen.gap(h.epoch, h.attempt)
		case verdict != verdictApplied:
		case h.kind == batchOpens:
			r.flush()
			r.seen.opened(h.epoch)
		default:
			r.entries = commands(r.entries, e.Cmd, h, e.Index, first)
			r.spans = append(r.spans, span{h.epoch, h.seq, len(r.entries)})
			if bytes += len(e.Cmd); bytes >= applyBytes || len(r.entries) >= applyEntries {
				r.flush()
				bytes = 0
			}
		}
	}
	r.flush()
	return entries, nil
}

// flush hands the collected commands to the machine and the answers to their proposers.
func (r *replica) flush() {
	if len(r.spans) == 0 {
		return
	}
	if len(r.entries) > 0 {
		r.machine.Apply(applying{r.bodies, r.entries}, r.entries)
	}
	n, from := 0, 0
	for _, s := range r.spans {
		r.seen.applied(s.epoch, s.seq, r.entries[from:s.end])
		from = s.end
	}
	for i := range r.entries {
		n += len(r.entries[i].Cmd)
	}
	r.bytes.Add(int64(n))
	clear(r.entries) // they point into Raft's buffers
	r.entries, r.spans = r.entries[:0], r.spans[:0]
}

// moment is the state of one moment, on its way into a snapshot.
type moment struct {
	position position
	kept     []kept
	machine  io.WriterTo
}

// PrepareSnapshot captures the state.
func (r *replica) PrepareSnapshot() (any, error) {
	r.run.Lock()
	defer r.run.Unlock()
	if r.detached {
		return nil, sm.ErrSnapshotStopped
	}
	w, err := r.machine.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("replicate: snapshot of shard %d: %w", r.shard, err)
	}
	r.bytes.Store(0)
	return moment{r.position, r.bodies.all(), w}, nil
}

// SaveSnapshot writes what PrepareSnapshot captured, beside Update.
func (r *replica) SaveSnapshot(captured any, w io.Writer, _ sm.ISnapshotFileCollection, stop <-chan struct{}) error {
	m, ok := captured.(moment)
	invariant.Check(ok, "a snapshot of %T", captured)
	return writeSnapshot(w, m, stop)
}

// RecoverFromSnapshot replaces the state by the one in a snapshot.
func (r *replica) RecoverFromSnapshot(from io.Reader, _ []sm.SnapshotFile, stop <-chan struct{}) error {
	r.run.Lock()
	defer r.run.Unlock()
	if r.detached {
		return sm.ErrSnapshotStopped
	}
	p, held, err := readSnapshot(from, r.machine, stop)
	if err != nil {
		return fmt.Errorf("replicate: restore shard %d: %w", r.shard, err)
	}
	r.bodies.mu.Lock()
	r.bodies.held = held
	r.bodies.mu.Unlock()
	r.bytes.Store(0)
	r.position = p
	r.seen.skipped(p)
	return nil
}

// Lookup has nothing to answer: reads go to the machine directly.
func (r *replica) Lookup(any) (any, error) { return nil, nil }

// Close is called when Raft has let go of the replica.
func (r *replica) Close() error {
	close(r.closed)
	return nil
}

// detach ends all calls of the machine, after the one that runs.
func (r *replica) detach() {
	r.run.Lock()
	r.detached = true
	r.run.Unlock()
}
