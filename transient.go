package bourse

import (
	"fmt"
	"sync"
)

// Transient queues. The catalogue in the first shard knows them, so that they are routed to as others are; what they hold never comes
// to the log. Each has a shard of its own on a memoryLog: a machine as any other, fed by the goroutines that propose.

// memoryLog is a Log without a goroutine and without a disk: Propose applies the command before it returns. What it
// keeps are the commands that something refers to, each in memory of its own.
type memoryLog struct {
	m Machine // fixed

	mu      sync.Mutex // held for each call of m; guards below. Taken before shard.mu
	closed  bool
	index   uint64
	scratch []byte   // the command that is applied
	entry   [1]Entry // likewise

	keptMu sync.RWMutex // guards below; a leaf, since bodies are read beside Apply
	kept   []keptCommand
	free   []Ref // places in kept; a stack
}

// keptCommand is one at the place of its Ref less 1.
type keptCommand struct {
	cmd  []byte
	refs int // 0: the place is free
}

func newMemoryLog(m Machine) *memoryLog { return &memoryLog{m: m} }

// Propose implements Log. Done has been called when it returns.
func (l *memoryLog) Propose(p Proposal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.scratch = p.AppendTo(l.scratch[:0])
	l.index++
	e := &l.entry[0]
	*e = Entry{Index: l.index, Ref: l.next(), Cmd: l.scratch}
	l.m.Apply(l, l.entry[:])
	p.Done(e.Answer, nil)
	if cap(l.scratch) > maxScratch {
		l.scratch = nil
	}
	return nil
}

const maxScratch = 1 << 20 // bytes of a buffer that is not let go

// next is where Keep will put the command that is about to be applied.
func (l *memoryLog) next() Ref {
	if n := len(l.free); n > 0 {
		return l.free[n-1]
	}
	return Ref(len(l.kept) + 1)
}

// Keep implements Bodies.
func (l *memoryLog) Keep(ref Ref, n int) {
	l.keptMu.Lock()
	defer l.keptMu.Unlock()
	if int(ref) > len(l.kept) {
		l.kept = append(l.kept, keptCommand{})
	} else if l.kept[ref-1].refs == 0 {
		l.free = l.free[:len(l.free)-1]
	}
	k := &l.kept[ref-1]
	if k.refs == 0 {
		k.cmd = append(room(len(l.scratch)), l.scratch...)
	}
	k.refs += n
}

// Free implements Bodies.
func (l *memoryLog) Free(ref Ref) {
	l.keptMu.Lock()
	defer l.keptMu.Unlock()
	k := &l.kept[ref-1]
	if k.refs--; k.refs == 0 {
		k.cmd = nil
		l.free = append(l.free, ref)
	}
}

// Read implements Log.
func (l *memoryLog) Read(ref Ref, _ int, dst []byte) ([]byte, error) {
	l.keptMu.RLock()
	defer l.keptMu.RUnlock()
	if ref == 0 || int(ref) > len(l.kept) || l.kept[ref-1].refs == 0 {
		return dst, fmt.Errorf("%w: message %d of a transient queue is gone", ErrStorage, ref)
	}
	return append(dst, l.kept[ref-1].cmd...), nil
}

// Close implements Log.
func (l *memoryLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}

// lanes are the shards of the transient queues. A map that was stored is not changed any more.
type lanes map[queueID]*shard

// follow opens a lane for each transient queue of t that has none, and closes those of queues that are gone. It is
// called with the first shard's lock, or before anything runs.
func (p *placement) followTransient(t *topology) {
	if p.first.log == nil {
		return // what a log that is replayed says of an earlier process
	}
	had := lanes{}
	if before := p.lanes.Load(); before != nil {
		had = *before
	}
	if len(had) == 0 && t.transients.Len() == 0 {
		return
	}
	now, changed := make(lanes, t.transients.Len()), false
	t.transients.Ascend(func(n numbered) bool {
		s := had[n.id]
		if s == nil {
			changed = true
			s = newShard(p.b, shardOf(n.id), newMachine(roleQueue, topologyOf(*n.def)))
			log := newMemoryLog(s)
			s.Lead(true)
			s.opened(log)
		}
		now[n.id] = s
		return true
	})
	for id, s := range had {
		if now[id] == nil {
			changed = true
			p.closeLane(s)
		}
	}
	if changed {
		p.lanes.Store(&now)
	}
}

// closeLane closes the shard of a queue that is gone, unless close will. Its subscriptions have ended when it returns; its lock
// is taken under that of the first shard here, and never the other way round.
func (p *placement) closeLane(s *shard) {
	s.endAll(ErrQueueGone)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.closing.Go(func() { _ = s.close(ErrQueueGone) }) // ends by itself; stop waits for it
	}
}
