package bourse

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// memoryLog is a Log without a goroutine and without a disk: Propose applies the command before it returns. What it
// keeps are the commands that something refers to. They are written once, into slabs, which are used again when all that was in
// them is gone: at a million messages a second, new memory for each would cost as much as all else.
type memoryLog struct {
	m    Machine // fixed
	gate *gate   // fixed: it is told what is held; nil: nobody is

	mu      sync.Mutex // held for each call of m; guards below. Taken before shard.mu and gate.mu
	closed  bool
	index   uint64
	entries []Entry       // of one call of m, kept for their memory
	slabs   []*memorySlab // likewise: where the command of each is, nil if in memory of its own
	open    *memorySlab   // that commands are written to; nil: none
	usual   int           // bytes of a command, about
	free    []uint32      // places in kept; a stack
	freed   []Ref         // by the call of m that runs
	left    []*memorySlab // nothing is kept in them, but somebody may still read
	full    int           // slabs with something in them, but for open
	large   int64         // bytes of commands that are kept in memory of their own
	told    int64         // what gate was told that is held
	renewed uint32        // counts commands that were kept: the upper half of a Ref

	readers atomic.Int64 // copy what they found in kept

	keptMu sync.RWMutex // guards kept against readers: it is changed only under mu as well; a leaf
	kept   []keptCommand
}

// keptCommand is one at the place that is the lower half of its Ref, less 1. The upper half differs from that of the command that was
// there before: a reader whose loan is over must not get another's message.
type keptCommand struct {
	cmd  []byte // nil: the place is free
	slab *memorySlab
	ref  Ref
	refs int // guarded by mu alone
}

// memorySlab is memory for commands.
type memorySlab struct {
	rest []byte // not written yet
	all  []byte
	live int // commands in it
}

// memorySlabs are for all memory logs. The collector takes what nobody uses.
var memorySlabs = sync.Pool{New: func() any { return &memorySlab{all: make([]byte, memorySlabBytes)} }}

const (
	memorySlabBytes = 32 << 10
	memoryAtOnce    = 64  // commands in one call of the machine
	mostLeft        = 256 // slabs that wait for readers; more are the collector's
)

func newMemoryLog(m Machine) *memoryLog { return &memoryLog{m: m} }

// Propose implements Log. Done has been called when it returns.
func (l *memoryLog) Propose(p Proposal) error { return l.ProposeAll([]Proposal{p}) }

// ProposeAll is Propose for several, in their order: all of them or, after an error, none.
func (l *memoryLog) ProposeAll(ps []Proposal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	for len(ps) > 0 {
		n := min(len(ps), memoryAtOnce)
		l.apply(ps[:n])
		ps = ps[n:]
	}
	return nil
}

func (l *memoryLog) apply(ps []Proposal) {
	brings := false
	for _, p := range ps {
		cmd, slab := l.write(p)
		l.index++
		l.entries, l.slabs = append(l.entries, Entry{Index: l.index, Cmd: cmd}), append(l.slabs, slab)
		brings = brings || commandKind(cmd[0]).brings()
	}
	if brings {
		l.put()
	}
	l.m.Apply(l, l.entries)
	l.sweep()
	l.recycle()
	l.settle(l.held())
	for i, p := range ps {
		p.Done(l.entries[i].Answer, nil)
	}
	clear(l.entries)
	clear(l.slabs)
	l.entries, l.slabs = l.entries[:0], l.slabs[:0]
}

// write has p encode itself into the open slab or, if there is no room in it, elsewhere.
func (l *memoryLog) write(p Proposal) ([]byte, *memorySlab) {
	if l.open == nil || len(l.open.rest) < min(l.usual, slabMost) {
		l.renew()
	}
	s := l.open
	cmd := p.AppendTo(s.rest[:0])
	l.usual = max(len(cmd), l.usual-l.usual/8)
	if len(cmd) > len(s.rest) {
		l.large += int64(len(cmd))
		return cmd, nil
	}
	s.rest = s.rest[len(cmd):]
	s.live++
	return cmd[:len(cmd):len(cmd)], s
}

// renew opens a slab.
func (l *memoryLog) renew() {
	if s := l.open; s != nil && s.live == 0 {
		l.left = append(l.left, s)
	} else if s != nil {
		l.full++
	}
	l.open, _ = memorySlabs.Get().(*memorySlab) // the pool holds nothing else
	l.open.rest = l.open.all
}

// leave says that a command is gone from s, which may be nil.
func (l *memoryLog) leave(s *memorySlab, cmd []byte) {
	if s == nil {
		l.large -= int64(len(cmd))
		return
	}
	if s.live--; s.live == 0 && s != l.open {
		l.left = append(l.left, s)
		l.full--
	}
}

// recycle lets the slabs that were left be used again, if nobody reads: who does was counted before the command was gone from
// kept.
func (l *memoryLog) recycle() {
	switch {
	case len(l.left) == 0:
		return
	case l.readers.Load() == 0:
		for _, s := range l.left {
			memorySlabs.Put(s)
		}
	case len(l.left) <= mostLeft:
		return
	}
	clear(l.left)
	l.left = l.left[:0]
}

// put gives the entries that may be referred to their places in kept, before the machine can tell a consumer.
func (l *memoryLog) put() {
	l.keptMu.Lock()
	defer l.keptMu.Unlock()
	for i := range l.entries {
		e := &l.entries[i]
		if !commandKind(e.Cmd[0]).brings() {
			continue
		}
		var place uint32
		if n := len(l.free); n > 0 {
			place = l.free[n-1]
			l.free = l.free[:n-1]
		} else {
			l.kept = append(l.kept, keptCommand{})
			place = uint32(len(l.kept))
		}
		l.renewed++
		e.Ref = Ref(l.renewed)<<32 | Ref(place)
		l.kept[place-1] = keptCommand{cmd: e.Cmd, slab: l.slabs[i], ref: e.Ref}
	}
}

// sweep takes out of kept what nothing refers to after a call of the machine.
func (l *memoryLog) sweep() {
	for i := range l.entries {
		if ref := l.entries[i].Ref; ref == 0 {
			l.leave(l.slabs[i], l.entries[i].Cmd)
		} else if l.at(ref).refs == 0 {
			l.freed = append(l.freed, ref)
		}
	}
	if len(l.freed) == 0 {
		return
	}
	l.keptMu.Lock()
	defer l.keptMu.Unlock()
	for _, ref := range l.freed {
		k := l.at(ref)
		if k.refs > 0 || k.ref != ref {
			continue // it is listed twice
		}
		l.leave(k.slab, k.cmd)
		*k = keptCommand{}
		l.free = append(l.free, uint32(ref))
	}
	l.freed = l.freed[:0]
}

func (l *memoryLog) at(ref Ref) *keptCommand { return &l.kept[uint32(ref)-1] }

// Keep implements Bodies.
func (l *memoryLog) Keep(ref Ref, n int) { l.at(ref).refs += n }

// Free implements Bodies.
func (l *memoryLog) Free(ref Ref) {
	k := l.at(ref)
	if k.refs--; k.refs == 0 {
		l.freed = append(l.freed, ref)
	}
}

// Read implements Log.
func (l *memoryLog) Read(ref Ref, _ int, dst []byte) ([]byte, error) {
	l.readers.Add(1)
	defer l.readers.Add(-1)
	cmd := l.find(ref)
	if cmd == nil {
		return dst, fmt.Errorf("%w: message %d of a transient queue is gone", ErrStorage, ref)
	}
	return append(dst, cmd...), nil
}

func (l *memoryLog) find(ref Ref) []byte {
	l.keptMu.RLock()
	defer l.keptMu.RUnlock()
	if place := int(uint32(ref)); place > 0 && place <= len(l.kept) && l.kept[place-1].ref == ref {
		return l.kept[place-1].cmd
	}
	return nil
}

// Close implements Log.
func (l *memoryLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.settle(0)
	return nil
}
