package bourse

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/boursemq/bourse/internal/invariant"
)

// The annex of a durable queue holds its transient messages: a machine of its own, with the definition of the queue, on a
// memoryLog. It is opened by the first such message and goes with its queue, its broker or the leadership of its queue. Nothing
// that the queue's own log determines depends on it.
//
// A queue has none while something must hold for all its messages together, see admits; then they are stored as durable ones.

// annexSeq is less than the seq of each message in an annex, and more than that of any other.
const annexSeq = 1 << 62

// annexes are those that are open.
type annexes struct {
	open atomic.Pointer[lanes] // nil: none. Stored under mu
	mu   sync.Mutex            // taken under the shard.mu of a durable queue; that of an annex is taken under it
}

// admits reports whether m, which is transient, may be kept beside the durable messages of this queue.
func (d queueDef) admits(m *Message) bool {
	return !d.Transient && m.GroupID == "" && !d.limited() && !d.SingleActiveConsumer && d.Expires == 0 &&
		d.Dedup == (Dedup{}) && d.Inbox == (InboxMemory{}) && d.Fairness == (Fairness{}) && d.Rate == (Rate{})
}

// annexed is the definition of the annex, in which those features of its queue that would count there alone are off.
func (d queueDef) annexed() queueDef {
	d.MaxMessages, d.MaxBytes, d.Overflow, d.Expires = 0, 0, 0, 0
	d.Dedup, d.Inbox, d.Fairness, d.Rate = Dedup{}, InboxMemory{}, Fairness{}, Rate{}
	return queueDef{d.id, d.Queue.withDefaults()}
}

// annex is that of a queue; nil if it is not open.
func (p *placement) annex(id queueID) *shard {
	if open := p.annexes.open.Load(); open != nil {
		return (*open)[id]
	}
	return nil
}

// holding is the shard that holds the message seq of a queue; nil if it is not known here.
func (p *placement) holding(id queueID, seq uint64) *shard {
	if seq > annexSeq {
		return p.annex(id)
	}
	return p.of(id)
}

// toward is the shard that m goes to for a queue: ErrQueueGone if it is not known here.
func (p *placement) toward(m *Message, id queueID) (*shard, error) {
	s := p.of(id)
	if s == nil {
		return nil, ErrQueueGone
	}
	if m.Transient {
		if def, ok := p.b.topology.Load().queueByID(id); ok && def.admits(m) {
			return p.openAnnex(def, s)
		}
	}
	return s, nil
}

// openAnnex returns the annex of a queue that is in the shard base, and opens it if there is none.
func (p *placement) openAnnex(def queueDef, base *shard) (*shard, error) {
	if s := p.annex(def.id); s != nil {
		return s, nil
	}
	s, made, err := p.makeAnnex(def, base)
	if err != nil || !made {
		return s, err
	}
	p.syncAnnex(def.id)
	// Who subscribes now finds the annex, and who did before is found here.
	for _, sub := range base.subscriptions(def.id) {
		sub.join(s)
	}
	return s, nil
}

func (p *placement) makeAnnex(def queueDef, base *shard) (s *shard, made bool, err error) {
	a := &p.annexes
	a.mu.Lock()
	defer a.mu.Unlock()
	open := lanes{}
	if before := a.open.Load(); before != nil {
		open = *before
	}
	if s := open[def.id]; s != nil {
		return s, false, nil
	}
	// Who closes annexes has changed what these look at, and waits for mu.
	switch _, ok := p.b.topology.Load().queueByID(def.id); {
	case p.b.closing.Load():
		return nil, false, ErrClosed
	case !ok:
		return nil, false, ErrQueueGone
	case !base.leads.Load():
		return nil, false, p.b.lostLog
	}
	m := newMachine(roleQueue, topologyOf(def.annexed()))
	m.order[0].nextSeq = annexSeq + 1
	s = newShard(p.b, shardOf(def.id), m)
	s.base, s.inMemory = base, true
	log := newMemoryLog(s)
	log.gate = &p.b.gate
	s.Lead(true)
	s.opened(log)
	now := make(lanes, len(open)+1)
	for id, other := range open {
		now[id] = other
	}
	now[def.id] = s
	a.open.Store(&now)
	return s, true, nil
}

// closeAnnexes closes those for which gone is true.
func (p *placement) closeAnnexes(why error, gone func(id queueID, s *shard) bool) {
	p.annexes.mu.Lock()
	defer p.annexes.mu.Unlock()
	before := p.annexes.open.Load()
	if before == nil {
		return
	}
	stay := make(lanes, len(*before))
	for id, s := range *before {
		if gone(id, s) {
			p.closeLane(s, why)
		} else {
			stay[id] = s
		}
	}
	if len(stay) < len(*before) {
		p.annexes.open.Store(&stay)
	}
}

// closeAnnexesBut closes those of queues that are not in t, by which the broker routes already.
func (p *placement) closeAnnexesBut(t *topology) {
	p.closeAnnexes(ErrQueueGone, func(id queueID, _ *shard) bool {
		_, ok := t.queueByID(id)
		return !ok
	})
}

// syncAnnex brings the definition of a queue, and whether it is paused, into its annex. It is called whenever one of both may have
// changed, by several at once.
func (p *placement) syncAnnex(id queueID) {
	s := p.annex(id)
	if s == nil {
		return
	}
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.base.mu.Lock()
	q := s.base.m.queues[id]
	var def queueDef
	paused := false
	if q != nil {
		def, paused = q.def.annexed(), q.valve.paused
	}
	s.base.mu.Unlock()
	if q == nil {
		return // deleted, and so will this be
	}
	s.mu.Lock()
	own := s.m.queues[id]
	sameDef, samePause, revision := own.def.Queue.equal(def.Queue), own.valve.paused == paused, s.m.revision+1
	s.mu.Unlock()
	// An error means that the annex has been closed.
	if !sameDef {
		_ = s.post(func(dst []byte, at instant) []byte { return appendRedefine(dst, at, def, revision) })
	}
	if !samePause {
		_ = s.post(func(dst []byte, at instant) []byte { return appendPause(dst, at, id, paused) })
	}
}

// subscriptions are those of a queue, without what Get has attached.
func (s *shard) subscriptions(id queueID) (all []*Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		if sub.queue.id == id && sub.prefetch > 0 {
			all = append(all, sub)
		}
	}
	return all
}

// purgeAnnex removes what waits in the annex of a queue, and returns how many messages that were.
func (p *placement) purgeAnnex(ctx context.Context, id queueID) (int, error) {
	s := p.annex(id)
	if s == nil {
		return 0, nil
	}
	a, err := s.call(ctx, lazily, func(dst []byte, at instant) []byte { return appendPurge(dst, at, id) })
	if err != nil {
		return 0, err
	}
	invariant.Check(a.Code >= answerNumber, "the annex of a queue does not know it")
	return int(a.Code - answerNumber), nil
}

// annexesEmpty reports which of the queues in ds holds transient messages.
func (b *Broker) annexesEmpty(ds []Declaration) error {
	for _, d := range ds {
		d, isQueue := d.(Queue)
		def, ok := b.topology.Load().queue(d.Name)
		if !isQueue || !ok {
			continue
		}
		if stats, _ := b.queueStats(def.id, b.now()); stats.Transient > 0 {
			return fmt.Errorf("queue %q holds %d messages: %w", d.Name, stats.Transient, ErrNotEmpty)
		}
	}
	return nil
}
