package bourse

import "sync"

// Acks that nobody waits for go into the log together: a record of its own for each would cost as much as the message. The first one
// proposes a record with room for more, and those that come until the log writes it fill that room. So an ack is in the
// log no later than it would be alone, at a place before what was proposed meanwhile: who acks and then publishes finds the room in
// the queue that the ack made.

// acks is what is left to fill of a subscription's acks. The zero value is ready for use.
type acks struct {
	mu   sync.Mutex // guards below, and the records; leaf lock
	open *ackRecord // in the log and not written yet; nil: none
	room int        // bytes for acks in the next record
	idle []*ackRecord
}

const (
	leastAckRoom = 16 // any ack, and usually four, in no more log than one would take alone
	mostAckRoom  = 1 << 10
	idleAcks     = 4
)

// ackRecord is the proposal of some acks.
type ackRecord struct {
	sub  *Subscription
	turn uint64 // counts its uses: guarded by acks.mu, as what is below
	open bool   // not sealed
	room int
	last uint64 // tag of the ack before
	list []byte
}

// add puts an ack into the record if there is room.
func (r *ackRecord) add(tag uint64, slot slotID) bool {
	n := len(r.list)
	if r.list = appendAck(r.list, tag, r.last, slot); len(r.list) > r.room {
		r.list = r.list[:n]
		return false
	}
	r.last = tag
	return true
}

// ackLate puts an ack of nobody who waits into the log.
func (s *Subscription) ackLate(log *localShard, tag uint64, slot slotID) error {
	a := &s.acks
	a.mu.Lock()
	if r := a.open; r != nil {
		if r.add(tag, slot) {
			a.mu.Unlock()
			return nil
		}
		a.open, a.room = nil, min(4*r.room, mostAckRoom)
	}
	r := a.takeLocked(s)
	turn := r.turn
	r.add(tag, slot) // one fits
	a.mu.Unlock()
	err := log.Propose(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil:
		a.putLocked(r)
	case r.turn == turn && r.open: // else it has been written, and perhaps used again
		a.open = r
	}
	return err
}

func (a *acks) takeLocked(s *Subscription) *ackRecord {
	r := &ackRecord{sub: s}
	if n := len(a.idle); n > 0 {
		r, a.idle = a.idle[n-1], a.idle[:n-1]
	}
	r.turn++
	r.open, r.room, r.last, r.list = true, max(a.room, leastAckRoom), 0, r.list[:0]
	return r
}

func (a *acks) putLocked(r *ackRecord) {
	if len(a.idle) < idleAcks {
		a.idle = append(a.idle, r)
	}
}

// AppendTo implements Proposal.
func (r *ackRecord) AppendTo(dst []byte) []byte {
	return appendAcks(dst, 0, r.sub.queue.id, r.sub.id, nil, r.room)
}

// Seal implements storage.Sealer.
func (r *ackRecord) Seal(data []byte) {
	now := r.sub.b.now()
	a := &r.sub.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == r {
		a.open = nil
	}
	r.open = false
	if len(r.list) < r.room/8 {
		a.room = r.room / 4
	}
	appendAcks(data[:0], now, r.sub.queue.id, r.sub.id, r.list, r.room)
}

// Durable implements Proposal.
func (r *ackRecord) Durable() bool { return false }

// Frees implements storage.Freer.
func (r *ackRecord) Frees() bool { return true }

// Done implements Proposal.
func (r *ackRecord) Done(Answer, error) {
	if o, _ := r.sub.whole(); o.joined.Load() != nil {
		for tag := range (ackList{list: r.list}).all {
			r.sub.returned(tag)
		}
	}
	a := &r.sub.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	a.putLocked(r)
}
