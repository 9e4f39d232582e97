package replicate

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/invariant"
)

const (
	flightBatches = 8       // batches of a shard that are proposed and not applied yet
	flightBytes   = 8 << 20 // bytes of them, unless it is one alone
	waitingBytes  = 4 << 20 // bytes not proposed yet, then Propose waits
)

// shardLog is one open shard: it batches proposals, sends the batches into the Raft group
// while this node leads it, and follows what becomes of them.
//
// A batch's fate is read off this replica's own Update, never off the answer to a Raft
// proposal, which may be lost or say that it does not know. So Done comes in log order by
// construction, once, and right after Apply, whichever of several tries got through.
//
// # Sessions
//
// A node that becomes leader in a term proposes an opening with that term as its epoch. Once
// its own replica applies it, the replica has everything that earlier leaders committed;
// then comes Lead(true), and proposals are accepted as batches 1, 2, 3 of the epoch.
// position.judge keeps repeats and everything behind a gap out. What that is good for:
//
//   - A lost batch in the middle. 1. Batches 5, 6, 7 are sent. 2. The library drops 5. 3. 6
//     and 7 reach the log and are refused as gaps. 4. All three are sent again, in order.
//   - A try whose end is unknown. It is sent again with the same number; if both arrive
//     the second is a repeat.
//   - Two leaders. 1. A leads in term 5 and is cut off with batches on their way. 2. B is
//     elected in term 6 and opens epoch 6. 3. A comes back and its forwarded batches of
//     epoch 5 arrive: stale, whatever their number. 4. A's replica applies the opening of
//     epoch 6: from there on it is certain that what A has not seen applied never will
//     be, so those proposals end with ErrNotLeader rather than with ErrUnknownOutcome.
//     Batches of A that arrive between 2's election and opening are in order and count.
//
// The epoch needs no clock and no counter on disk: Raft has at most one leader a term, and
// no node leads twice in the same.
type shardLog struct {
	node    *Node
	shard   uint64
	replica *replica
	session *client.Session // the library's, for proposals without its own sessions
	wake    chan struct{}   // sent by anyone, received by run, never closed; capacity 1
	ended   chan struct{}   // closed by run at its end

	// owned by run
	opening   *dragonboat.RequestState // of the opening on its way
	openAt    time.Time                // not before
	resendAt  time.Time                // send all batches in flight again then; zero: no need
	orphaned  time.Time                // since when batches in flight have no session
	closeBy   time.Time                // then Close gives up waiting
	snapshot  time.Time                // no request for a snapshot before
	handovers int

	led bool // the machine was told Lead(true); guarded by replica.run

	mu      sync.Mutex // guards below; taken after replica.run
	room    sync.Cond  // of mu: waiting has shrunk, or proposals are refused now
	hint    hint
	epoch   uint64 // under which proposals are accepted; 0: not the leader
	asked   uint64 // the epoch that this node has last tried to open
	own     uint64 // the epoch of its own that was opened last
	seq     uint64 // of the last batch sent
	attempt uint32 // written by run alone
	missing bool   // a batch in flight was refused as a gap
	waiting []*batch
	unsent  int      // bytes in waiting
	flight  []*batch // in order of seq; applied ones leave from the front
	flying  int      // bytes in flight
	closing bool     // once true, nothing is accepted
}

// hint is the last word of the library's listener about the leader.
type hint struct{ term, leader uint64 }

func newShardLog(n *Node, shard uint64, m bourse.Machine) *shardLog {
	l := &shardLog{
		node:  n,
		shard: shard,
		wake:  make(chan struct{}, 1),
		ended: make(chan struct{}),
	}
	l.room.L = &l.mu
	l.replica = newReplica(shard, m, l)
	return l
}

// poke makes run look again.
func (l *shardLog) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Propose implements bourse.Log.
func (l *shardLog) Propose(p bourse.Proposal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if err := l.refusalLocked(); err != nil {
			return fmt.Errorf("replicate: propose to shard %d: %w", l.shard, err)
		}
		if l.unsent < waitingBytes {
			break
		}
		l.room.Wait()
	}
	b := l.lastLocked()
	before := len(b.payload)
	n := b.add(p)
	switch {
	case n > MaxCommandBytes:
		b.drop(n)
		if len(b.props) == 0 {
			l.waiting = l.waiting[:len(l.waiting)-1]
		}
		return &bourse.InvalidError{Field: "command", Reason: fmt.Sprintf("%d bytes, the limit is %d", n, MaxCommandBytes)}
	case len(b.payload) > batchBytes && len(b.props) > 1:
		_, cmd := b.drop(n)
		alone := newBatch(lengthBytes + n)
		alone.take(p, cmd)
		l.waiting = append(l.waiting, alone)
		l.unsent += lengthBytes + n
	default:
		l.unsent += len(b.payload) - before
	}
	l.poke()
	return nil
}

// refusalLocked says why nothing can be proposed now; nil: it can.
func (l *shardLog) refusalLocked() error {
	switch {
	case l.closing:
		return bourse.ErrClosed
	case l.epoch == 0:
		return bourse.ErrNotLeader
	}
	return nil
}

// lastLocked returns the batch that takes the next command.
func (l *shardLog) lastLocked() *batch {
	if n := len(l.waiting); n > 0 && !l.waiting[n-1].full() {
		return l.waiting[n-1]
	}
	b := newBatch(1 << 10)
	l.waiting = append(l.waiting, b)
	return b
}

// Read implements bourse.Log.
func (l *shardLog) Read(ref bourse.Ref, _ int, dst []byte) ([]byte, error) {
	dst, err := l.replica.bodies.read(ref, dst)
	if err != nil {
		return dst, fmt.Errorf("replicate: read from shard %d: %w", l.shard, err)
	}
	return dst, nil
}

// run drives the log until Close.
func (l *shardLog) run() {
	defer close(l.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		again, more := l.step(time.Now())
		if !more {
			return
		}
		timer.Reset(again)
		var first, open chan dragonboat.RequestResult
		b := l.firstInFlight()
		if b != nil && b.result != nil {
			first = b.result.AppliedC()
		}
		if l.opening != nil {
			open = l.opening.AppliedC()
		}
		select {
		case <-l.wake:
		case <-timer.C:
		case <-first:
			// Whatever it says: if it was applied it is not in flight any more, else send
			// finds it without a try that runs.
			b.result = nil
		case <-open:
			l.opening = nil
			l.openAt = time.Now().Add(l.node.cfg.RTT) // if it was not applied
		}
	}
}

func (l *shardLog) firstInFlight() *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.flight) == 0 {
		return nil
	}
	return l.flight[0]
}

// step does what can be done now. It returns when to look again at the latest, and false if
// the log has been closed.
func (l *shardLog) step(now time.Time) (again time.Duration, more bool) {
	term, sure := l.leads()
	l.lead(term, now)
	l.send(now)
	l.expire(now)
	l.compact(now)
	if done := l.shut(term, now); done {
		return 0, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := len(l.flight) > 0 || l.closing || !sure || l.opening == nil && term != 0 && l.epoch != term
	if busy {
		return l.node.cfg.RTT, true
	}
	return time.Hour, true
}

// leads returns the term in which this node leads the shard now, 0 if it does not, and
// whether the library's two accounts of that agree. The listener may speak first, or of an
// earlier life of the replica, so it only hints.
func (l *shardLog) leads() (term uint64, sure bool) {
	leader, term, known, err := l.node.leader(l.shard)
	l.mu.Lock()
	h := l.hint
	l.mu.Unlock()
	sure = err != nil || h.term < term || h.term == term && h.leader == leader
	if err != nil || !known || leader != l.node.cfg.NodeID {
		return 0, sure
	}
	return term, sure
}

// lead follows the leadership: it steps down, opens an epoch, starts to accept proposals.
func (l *shardLog) lead(term uint64, now time.Time) {
	l.mu.Lock()
	epoch, own, closing := l.epoch, l.own, l.closing
	fresh := l.asked != term
	l.mu.Unlock()
	if epoch != 0 && epoch != term {
		l.replica.run.Lock()
		l.stepDown()
		l.replica.run.Unlock()
	}
	switch {
	case term == 0 || epoch == term:
	case own == term:
		if !closing {
			l.accept(term)
		}
	case fresh || l.opening == nil && !now.Before(l.openAt):
		l.mu.Lock()
		l.asked = term
		l.mu.Unlock()
		rs, err := l.node.propose(l.session, opening(term), l.node.timeout())
		l.opening = rs
		if err != nil {
			l.opening, l.openAt = nil, now.Add(l.node.cfg.RTT)
		}
	}
}

// accept tells the machine that it leads, and starts to accept proposals, unless the epoch
// is over by now. Apply waits, so the machine leads before it sees a command of the epoch;
// and Lead may propose.
func (l *shardLog) accept(epoch uint64) {
	l.replica.run.Lock()
	defer l.replica.run.Unlock()
	l.mu.Lock()
	ok := l.own == epoch && l.replica.position.epoch == epoch && !l.closing && len(l.flight) == 0
	if ok {
		l.epoch, l.seq, l.attempt, l.missing = epoch, 0, 0, false
		l.resendAt = time.Time{}
	}
	l.mu.Unlock()
	if ok && !l.led {
		l.led = true
		l.replica.machine.Lead(true)
	}
}

// stepDown stops accepting. What was not sent is certainly not in the log; what is in flight
// waits for the next epoch, or for expire. replica.run is held.
func (l *shardLog) stepDown() {
	l.mu.Lock()
	l.epoch = 0
	unsent := l.takeWaitingLocked()
	l.mu.Unlock()
	if l.led {
		l.led = false
		l.replica.machine.Lead(false)
	}
	l.fail(unsent, bourse.ErrNotLeader)
}

func (l *shardLog) takeWaitingLocked() []*batch {
	bs := l.waiting
	l.waiting, l.unsent = nil, 0
	l.room.Broadcast()
	return bs
}

func (l *shardLog) takeFlightLocked() []*batch {
	bs := l.flight
	l.flight, l.flying = nil, 0
	return bs
}

// fail tells the proposers of the batches that they end with why. replica.run is held.
func (l *shardLog) fail(bs []*batch, why error) {
	if len(bs) == 0 {
		return
	}
	err := fmt.Errorf("replicate: shard %d: %w", l.shard, why)
	for _, b := range bs {
		for _, p := range b.props {
			p.Done(bourse.Answer{}, err)
		}
	}
}

// send sends again what has to be, and then new batches as far as there is room.
func (l *shardLog) send(now time.Time) {
	l.mu.Lock()
	if l.epoch == 0 {
		l.mu.Unlock()
		return
	}
	if l.missing {
		l.missing = false
		l.resendAt = now
	}
	if l.resendAt.IsZero() {
		if n := len(l.flight); n > 0 && l.flight[0].result == nil {
			l.resendAt = now.Add(l.node.cfg.RTT) // its try has ended and it was not applied
		}
	}
	if !l.resendAt.IsZero() {
		if now.Before(l.resendAt) {
			l.mu.Unlock()
			return
		}
		l.resendAt = time.Time{}
		l.attempt++
		all := slices.Clone(l.flight)
		l.mu.Unlock()
		for _, b := range all {
			if !l.try(b, now) {
				return
			}
		}
		l.mu.Lock()
	}
	for l.epoch != 0 && len(l.waiting) > 0 && len(l.flight) < flightBatches {
		b := l.waiting[0]
		if l.flying > 0 && l.flying+len(b.payload) > flightBytes {
			break
		}
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
		l.unsent -= len(b.payload) - batchHeader
		l.room.Broadcast()
		l.seq++
		b.epoch, b.seq = l.epoch, l.seq
		// In flight before it is sent: it may be applied before Propose returns.
		l.flight = append(l.flight, b)
		l.flying += len(b.payload)
		l.mu.Unlock()
		if !l.try(b, now) {
			return
		}
		l.mu.Lock()
	}
	l.mu.Unlock()
}

// try sends a batch into the Raft group. The library copies it.
func (l *shardLog) try(b *batch, now time.Time) bool {
	b.seal(b.epoch, b.seq, l.attempt)
	rs, err := l.node.propose(l.session, b.payload, l.node.timeout())
	if err != nil { // certainly not in the log: the library is busy, or has no leader
		b.result = nil
		l.resendAt = now.Add(l.node.cfg.RTT)
		return false
	}
	b.result = rs
	return true
}

// applied implements observer.
func (l *shardLog) applied(epoch, seq uint64, entries []bourse.Entry) {
	l.mu.Lock()
	if len(l.flight) == 0 || l.flight[0].epoch != epoch || l.flight[0].seq > seq {
		l.mu.Unlock() // of another node, or given up
		if l.replica.bytes.Load() >= l.node.cfg.SnapshotBytes {
			l.poke()
		}
		return
	}
	b := l.flight[0]
	invariant.Check(b.seq == seq && len(b.props) == len(entries),
		"epoch %d: batch %d with %d commands applied, in flight first is %d with %d", epoch, seq, len(entries), b.seq, len(b.props))
	l.flight[0] = nil
	l.flight = l.flight[1:]
	l.flying -= len(b.payload)
	l.mu.Unlock()
	for i, p := range b.props {
		p.Done(entries[i].Answer, nil)
	}
	l.poke()
}

// opened implements observer.
func (l *shardLog) opened(epoch uint64) {
	l.mu.Lock()
	if epoch == l.asked {
		l.own = epoch
	}
	over := l.epoch != 0 && l.epoch < epoch
	var lost []*batch
	if len(l.flight) > 0 && l.flight[0].epoch < epoch {
		lost = l.takeFlightLocked()
	}
	l.mu.Unlock()
	l.fail(lost, bourse.ErrNotLeader)
	if over {
		l.stepDown()
	}
	l.poke()
}

// gap implements observer.
func (l *shardLog) gap(epoch uint64, attempt uint32) {
	l.mu.Lock()
	// A batch of an earlier attempt has been sent again already.
	if epoch == l.epoch && attempt == l.attempt {
		l.missing = true
	}
	l.mu.Unlock()
	l.poke()
}

// skipped implements observer. Some of the batches in flight may be in the snapshot; their
// answers are lost.
func (l *shardLog) skipped(p position) {
	l.mu.Lock()
	var lost []*batch
	if len(l.flight) > 0 && l.flight[0].epoch <= p.epoch {
		lost = l.takeFlightLocked()
	}
	over := l.epoch != 0
	l.mu.Unlock()
	l.fail(lost, bourse.ErrUnknownOutcome)
	if over {
		l.stepDown()
	}
	l.poke()
}

// expire gives up on batches in flight whose session was lost, and of which no later epoch
// has told: this node is cut off from the others.
func (l *shardLog) expire(now time.Time) {
	l.mu.Lock()
	orphans := l.epoch == 0 && len(l.flight) > 0
	l.mu.Unlock()
	switch {
	case !orphans:
		l.orphaned = time.Time{}
	case l.orphaned.IsZero():
		l.orphaned = now
	case now.Sub(l.orphaned) > l.node.patience():
		l.giveUp()
	}
}

// giveUp ends what is in flight with ErrUnknownOutcome.
func (l *shardLog) giveUp() {
	l.replica.run.Lock()
	defer l.replica.run.Unlock()
	l.mu.Lock()
	bs := l.takeFlightLocked()
	l.mu.Unlock()
	l.fail(bs, bourse.ErrUnknownOutcome)
}

// compact asks for a snapshot when enough was applied since the last.
func (l *shardLog) compact(now time.Time) {
	if l.replica.bytes.Load() < l.node.cfg.SnapshotBytes || now.Before(l.snapshot) {
		return
	}
	l.snapshot = now.Add(time.Second)
	// One that is running, or a moment without anything new, is no matter: bytes stays up
	// until one succeeds, and we ask again.
	_, _ = l.node.host.RequestSnapshot(l.shard, dragonboat.SnapshotOption{}, time.Minute)
}

// shut closes the log in good order if it is closing: what was accepted is waited for,
// then leadership is handed over. It reports whether all is done.
func (l *shardLog) shut(term uint64, now time.Time) bool {
	l.mu.Lock()
	closing, pending := l.closing, len(l.waiting)+len(l.flight)
	l.mu.Unlock()
	if !closing {
		return false
	}
	if l.closeBy.IsZero() {
		l.closeBy = now.Add(l.node.patience())
	}
	if pending > 0 {
		if now.Before(l.closeBy) {
			return false
		}
		l.giveUp()
	}
	if term != 0 && l.handOver(now) {
		return false
	}
	l.replica.run.Lock()
	defer l.replica.run.Unlock()
	l.mu.Lock()
	l.epoch = 0
	unsent, lost := l.takeWaitingLocked(), l.takeFlightLocked()
	l.mu.Unlock()
	if l.led {
		l.led = false
		l.replica.machine.Lead(false)
	}
	l.fail(lost, bourse.ErrUnknownOutcome)
	l.fail(unsent, bourse.ErrClosed)
	l.replica.detached = true
	return true
}

// handOver asks the other members, one after the other, to lead the shard. It reports
// whether to wait on. The library ignores such requests at times, and one of the members
// may be down, so it asks again; it is a courtesy, without which the others wait for
// an election.
func (l *shardLog) handOver(now time.Time) bool {
	others := l.node.others()
	if len(others) == 0 {
		return false
	}
	every := 6 * l.node.cfg.RTT
	if l.handovers == 0 {
		l.closeBy = now
	}
	if elapsed := now.Sub(l.closeBy); elapsed > 2*l.node.cfg.election() {
		return false
	} else if elapsed >= time.Duration(l.handovers)*every {
		_ = l.node.host.RequestLeaderTransfer(l.shard, others[l.handovers%len(others)])
		l.handovers++
	}
	return true
}

// Close implements bourse.Log. It takes as long as what was proposed, and a little for
// another node to take over; at most a few seconds if the others are gone.
func (l *shardLog) Close() error {
	l.mu.Lock()
	l.closing = true
	l.room.Broadcast()
	l.mu.Unlock()
	l.poke()
	<-l.ended
	return l.node.stopped(l)
}
