package enginetest

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/boursemq/bourse"
)

// Disk is what an engine of [Memory] leaves behind when it is closed. One engine uses it
// at a time.
type Disk struct {
	fault  fault // planted by the suite's own tests
	shards map[uint64]*shardFile
}

// shardFile is one shard's log on a Disk.
type shardFile struct {
	mu       sync.Mutex
	first    uint64         // index of cmds[0]; indexes and Refs are the same numbers
	cmds     [][]byte       // nil: forgotten, a snapshot covers it and nothing refers to it
	refs     map[uint64]int // references by index
	snapshot []byte         // nil: none
	covered  uint64         // index of the last command in the snapshot
}

// NewDisk returns an empty disk.
func NewDisk() *Disk { return &Disk{shards: map[uint64]*shardFile{}} }

// MemoryEngine is the smallest engine that passes the suite: a slice per shard. It scribbles
// over Entry.Cmd after Apply, to find machines that keep it.
type MemoryEngine struct {
	disk *Disk

	mu     sync.Mutex
	open   map[uint64]*memoryLog
	closed bool
}

// Memory returns an engine on d.
func Memory(d *Disk) *MemoryEngine {
	return &MemoryEngine{disk: d, open: map[uint64]*memoryLog{}}
}

// Placement implements bourse.Engine.
func (e *MemoryEngine) Placement() bourse.Placement { return bourse.OneShard }

// Open implements bourse.Engine.
func (e *MemoryEngine) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := ctx.Err(); err != nil && !e.disk.has(ignoreContext) {
		return nil, fmt.Errorf("memory: open shard %d: %w", shard, err)
	}
	if e.closed {
		return nil, fmt.Errorf("memory: open shard %d: %w", shard, bourse.ErrClosed)
	}
	if e.open[shard] != nil && !e.disk.has(openTwiceAllowed) {
		return nil, fmt.Errorf("memory: shard %d is open already", shard)
	}
	at := shard
	if e.disk.has(shardsShared) {
		at = 1
	}
	if e.disk.shards[at] == nil {
		e.disk.shards[at] = &shardFile{first: 1}
	}
	l := &memoryLog{engine: e, shard: shard, file: e.disk.shards[at], m: m, done: make(chan struct{})}
	l.changed.L = &l.mu
	if e.disk.has(leadEarly) {
		m.Lead(true)
	}
	if err := l.recover(); err != nil {
		return nil, fmt.Errorf("memory: open shard %d: %w", shard, err)
	}
	if !e.disk.has(leadEarly) {
		m.Lead(true)
	}
	if e.disk.has(leadTwice) {
		m.Lead(true)
	}
	e.open[shard] = l
	go l.run()
	return l, nil
}

// Close implements bourse.Engine.
func (e *MemoryEngine) Close() error {
	e.mu.Lock()
	if e.closed && e.disk.has(closeOnce) {
		e.mu.Unlock()
		return bourse.ErrClosed
	}
	e.closed = true
	var logs []*memoryLog
	for _, l := range e.open {
		logs = append(logs, l)
	}
	e.mu.Unlock()
	for _, l := range logs {
		_ = l.Close()
	}
	return nil
}

// Snapshot takes a snapshot of an open shard now.
func (e *MemoryEngine) Snapshot(shard uint64) error {
	e.mu.Lock()
	l := e.open[shard]
	e.mu.Unlock()
	return l.snapshot()
}

// Held counts the commands of an open shard that something refers to.
func (e *MemoryEngine) Held(shard uint64) int {
	e.mu.Lock()
	f := e.open[shard].file
	e.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.refs)
}

// memoryLog is one open shard.
type memoryLog struct {
	engine *MemoryEngine
	shard  uint64
	file   *shardFile
	m      bourse.Machine
	done   chan struct{} // closed by run at its end

	machine sync.Mutex // held for every call of m; taken before file.mu
	buf     []byte     // commands of the batch in Apply; owned by run

	snapshots atomic.Int32 // calls of the machine's Snapshot under way

	mu      sync.Mutex // guards below
	changed sync.Cond
	pending []memoryCall
	bytes   int
	closed  bool
}

type memoryCall struct {
	p   bourse.Proposal
	cmd []byte
}

const memoryRoom = 1 << 20 // bytes pending before Propose waits

// Propose implements bourse.Log.
func (l *memoryLog) Propose(p bourse.Proposal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.bytes > memoryRoom && !l.closed {
		l.changed.Wait()
	}
	if l.closed {
		if l.engine.disk.has(acceptAfterClose) {
			return nil
		}
		return fmt.Errorf("memory: propose to shard %d: %w", l.shard, bourse.ErrClosed)
	}
	cmd := p.AppendTo(nil)
	if l.engine.disk.has(appendTwice) {
		cmd = p.AppendTo(nil)
	}
	l.pending = append(l.pending, memoryCall{p, cmd})
	l.bytes += len(cmd)
	l.changed.Broadcast()
	return nil
}

// run orders and applies what is proposed, until Close.
func (l *memoryLog) run() {
	defer close(l.done)
	for {
		l.mu.Lock()
		for len(l.pending) == 0 && !l.closed {
			l.changed.Wait()
		}
		batch := l.pending
		l.pending, l.bytes = nil, 0
		l.changed.Broadcast()
		l.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		l.commit(batch)
	}
}

// commit writes a batch, applies it and tells the proposers.
func (l *memoryLog) commit(batch []memoryCall) {
	d := l.engine.disk
	if n := len(batch); d.has(reorder) && n > 1 {
		batch[n-1], batch[n-2] = batch[n-2], batch[n-1]
	}
	l.machine.Lock()
	defer l.machine.Unlock()
	f := l.file
	f.mu.Lock()
	next := f.first + uint64(len(f.cmds))
	for i, c := range batch {
		if d.has(loseLast) && i == len(batch)-1 && l.closing() {
			break
		}
		f.cmds = append(f.cmds, c.cmd)
	}
	f.mu.Unlock()
	entries := make([]bourse.Entry, len(batch))
	l.buf = l.buf[:0]
	for _, c := range batch {
		l.buf = append(l.buf, c.cmd...)
	}
	at := 0
	for i, c := range batch {
		n := at + len(c.cmd)
		index := next + uint64(i)
		entries[i] = bourse.Entry{Index: index, Ref: bourse.Ref(index), Cmd: l.buf[at:n:n]}
		if d.has(sameIndex) {
			entries[i].Index = next
		}
		at = n
	}
	if d.has(earlyDone) {
		for _, c := range batch {
			c.p.Done(bourse.Answer{Code: next, Data: make([]byte, 8)}, nil)
		}
	}
	l.apply(entries)
	if d.has(earlyDone) {
		return
	}
	for i, c := range batch {
		a := entries[i].Answer
		switch {
		case d.has(loseDone) && i == 3:
			continue
		case d.has(doubleDone) && i == 3:
			c.p.Done(a, nil)
		case d.has(wrongAnswer) && i > 0:
			a = entries[i-1].Answer
		case d.has(doneError) && i == 3:
			c.p.Done(bourse.Answer{}, bourse.ErrUnknownOutcome)
			continue
		case d.has(doneBackwards):
			i = len(batch) - 1 - i
			c, a = batch[i], entries[i].Answer
		}
		c.p.Done(a, nil)
	}
}

func (l *memoryLog) closing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// apply feeds the machine and scribbles over the commands.
func (l *memoryLog) apply(entries []bourse.Entry) {
	if len(entries) == 0 {
		return
	}
	l.m.Apply(memoryBodies{l}, entries)
	for _, e := range entries {
		for i := range e.Cmd {
			e.Cmd[i] = 0xEE
		}
	}
}

type memoryBodies struct{ l *memoryLog }

func (b memoryBodies) Keep(ref bourse.Ref, n int) {
	if m, ok := b.l.m.(*Machine); ok && b.l.engine.disk.has(unlockedSnapshot) {
		for b.l.snapshots.Load() > 0 && m.busy.Load() == 1 { // until Snapshot is beside this Apply
			runtime.Gosched()
		}
	}
	b.l.file.mu.Lock()
	defer b.l.file.mu.Unlock()
	b.l.file.refs[uint64(ref)] += n
}

func (b memoryBodies) Free(ref bourse.Ref) {
	f := b.l.file
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.l.engine.disk.has(neverFree) {
		return
	}
	if f.refs[uint64(ref)]--; f.refs[uint64(ref)] <= 0 || b.l.engine.disk.has(freeAll) {
		delete(f.refs, uint64(ref))
	}
	if b.l.engine.disk.has(freeAll) {
		f.cmds[uint64(ref)-f.first] = nil
	}
}

// snapshot takes a snapshot and forgets what it makes superfluous.
func (l *memoryLog) snapshot() error {
	d := l.engine.disk
	if !d.has(unlockedSnapshot) {
		l.machine.Lock()
	}
	l.snapshots.Add(1)
	w, err := l.m.Snapshot()
	l.snapshots.Add(-1)
	f := l.file
	f.mu.Lock()
	covered := f.first + uint64(len(f.cmds)) - 1
	f.mu.Unlock()
	if !d.has(unlockedSnapshot) {
		l.machine.Unlock()
	}
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	if _, err := w.WriteTo(&buf); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshot, f.covered = buf.Bytes(), covered
	for i := range f.cmds {
		index := f.first + uint64(i)
		if index <= covered && (f.refs[index] == 0 || d.has(forgetBody)) {
			f.cmds[i] = nil
		}
	}
	return nil
}

// recover brings the machine to where the log ends.
func (l *memoryLog) recover() error {
	f, d := l.file, l.engine.disk
	f.mu.Lock()
	f.refs = map[uint64]int{}
	snapshot, covered := f.snapshot, f.covered
	if d.has(ignoreSnapshot) {
		snapshot = nil
	}
	f.mu.Unlock()
	if snapshot != nil {
		if err := l.m.Restore(memoryBodies{l}, bytes.NewReader(snapshot)); err != nil {
			return err
		}
	}
	if d.has(tailOverlaps) && snapshot != nil {
		covered--
	}
	f.mu.Lock()
	var entries []bourse.Entry
	for i, c := range f.cmds {
		index := f.first + uint64(i)
		if index <= covered && snapshot != nil {
			continue
		}
		entries = append(entries, bourse.Entry{Index: index, Ref: bourse.Ref(index), Cmd: bytes.Clone(c)})
	}
	f.mu.Unlock()
	if n := len(entries); n > 0 {
		switch {
		case d.has(applyTwice):
			e := entries[n-1]
			e.Index++
			e.Cmd = bytes.Clone(e.Cmd)
			entries = append(entries, e)
		case d.has(reopenShort):
			entries = entries[:n-1]
		}
	}
	l.apply(entries)
	return nil
}

// Read implements bourse.Log.
func (l *memoryLog) Read(ref bourse.Ref, _ int, dst []byte) ([]byte, error) {
	f := l.file
	f.mu.Lock()
	defer f.mu.Unlock()
	i := uint64(ref) - f.first
	if uint64(ref) < f.first || i >= uint64(len(f.cmds)) || f.cmds[i] == nil {
		return dst, fmt.Errorf("memory: read %d of shard %d: no such command", ref, l.shard)
	}
	if l.engine.disk.has(aliasBody) && i+100 < uint64(len(f.cmds)) {
		i += 100 // as if the buffer had been used again
	}
	if l.engine.disk.has(readOverwrites) {
		dst = dst[:0]
	}
	return append(dst, f.cmds[i]...), nil
}

// Close implements bourse.Log.
func (l *memoryLog) Close() error {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	if d := l.engine.disk; d.has(dropOnClose) {
		l.pending = nil
	}
	l.mu.Unlock()
	if !l.engine.disk.has(closeEarly) {
		<-l.done
	}
	l.engine.mu.Lock()
	if l.engine.open[l.shard] == l {
		delete(l.engine.open, l.shard)
	}
	l.engine.mu.Unlock()
	return nil
}
