package bourse

import "sync/atomic"

// budget is what a broker may use of Options.MemoryLimit, and does. Of the limit the log has a share for what it caches, fixed, and a
// sixteenth is left for what comes in without waiting. The rest is for messages: those that are published and not yet confirmed, what is
// known of those that wait, the bodies of transient ones, and ids.
//
// Once a publish finds no room up to high, publishers wait at the gate until there is room below low, so that they come in
// together and not one with each ack. What frees memory never waits, nor what the broker does by itself: dead letters, schedules,
// replays. So memory is above high by what these bring, and by what the publishes that are on their way take beyond their bodies:
// names, headers, and a copy for each transient queue.
//
// A publish that meets nothing else, neither a message that waits nor another publish, always has room: or one that is larger
// than the limit, or a broker full of ids, would wait for ever.
type budget struct {
	limit, high, low int64 // fixed

	// Bytes, counted once for what a few commands do together.
	messages atomic.Int64 // of machines; see weight
	ids      atomic.Int64 // likewise
	bodies   atomic.Int64 // of memory logs
	shut     atomic.Bool  // high was reached and low is not
}

// Shares of Options.MemoryLimit.
const (
	defaultMemory = 512 << 20
	leastMemory   = 8 << 20
	cacheShare    = 16  // the log's cache of recent records has one in so many
	aheadShare    = 128 // and what it reads ahead
	slackShare    = 16
	restShare     = 8 // from high to low

	pendingBytes = 64 // of a publish that is not confirmed, beside its body
)

// cacheOf is how much of a limit is for the log's cache.
func cacheOf(limit int64) int { return int(min(limit/cacheShare, 1<<30)) }

func (b *budget) open(limit int64) {
	b.limit = limit
	b.high = limit - int64(cacheOf(limit)) - limit/aheadShare - limit/slackShare
	b.low = b.high - limit/restShare
}

// roomy reports whether there is no doubt that admits does, for so much on its way or less.
func (b *budget) roomy(count, bytes int64) bool {
	return !b.shut.Load() && b.messages.Load()+b.bodies.Load()+b.ids.Load()+bytes+count*pendingBytes <= b.high
}

// admits reports whether there is room for publishes, so many with so many bytes: those on their way, and one more, of n bytes.
func (b *budget) admits(count, bytes, n int64) bool {
	waiting := b.messages.Load() + b.bodies.Load()
	if waiting <= 0 && count == 1 {
		return true
	}
	total := waiting + b.ids.Load() + bytes + count*pendingBytes
	if b.shut.Load() {
		if total-n-pendingBytes > b.low {
			return false
		}
		b.shut.Store(false)
	}
	if total > b.high {
		b.shut.Store(true)
		return false
	}
	return true
}

// weighs takes note of a change in the machines.
func (g *gate) weighs(change weight) {
	if change.messages != 0 {
		g.memory.messages.Add(change.messages)
	}
	if change.ids != 0 {
		g.memory.ids.Add(change.ids)
	}
	if change.messages < 0 || change.ids < 0 {
		g.look()
	}
}

// holds takes note of a change in what memory logs hold.
func (g *gate) holds(change int64) {
	if g == nil || change == 0 {
		return
	}
	if g.memory.bodies.Add(change); change < 0 {
		g.look()
	}
}

// look lets in who waits in line, if there is room. Memory is less before it is called, and who comes into line looks for room
// afterwards, so nobody is left there.
func (g *gate) look() {
	if g.waits.Load() != 0 {
		g.mu.Lock()
		g.letLocked()
		g.mu.Unlock()
	}
}

// waiting is how many stand in line.
func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.line)
}

// weighLocked tells the budget what the last commands have changed.
func (s *shard) weighLocked(change weight) {
	if change != (weight{}) {
		s.weight = s.weight.plus(change)
		s.b.gate.weighs(change)
	}
}

// weighNothing gives back what the machine of a shard weighs, which is closed or replaced.
func (s *shard) weighNothingLocked() {
	s.weighLocked(weight{}.minus(s.weight))
}

// held is how many bytes the log has for commands that are kept. Of the slabs those that are full count whole, however little of
// them is still kept; but none that could be used again, so that a log whose messages are gone holds nothing.
func (l *memoryLog) held() int64 {
	held := l.large + memorySlabBytes*int64(l.full) + keptBytes*int64(len(l.kept)-len(l.free))
	if s := l.open; s != nil && s.live > 0 {
		held += int64(len(s.all) - len(s.rest))
	}
	return held
}

const keptBytes = 64

// settle tells the budget what the last commands have changed.
func (l *memoryLog) settle(held int64) {
	l.gate.holds(held - l.told)
	l.told = held
}

// MemoryStats is what a broker uses of Options.MemoryLimit, in bytes, by what they are for. It counts what grows with messages, not
// the code, the topology or what callers hold; a garbage collector keeps about as much again.
type MemoryStats struct {
	Limit     int64 // Options.MemoryLimit, or its default
	Used      int64 // the sum of the six that follow
	Waiting   int64 // what is known of the messages in queues, wherever their bodies are
	Transient int64 // the bodies of transient messages
	IDs       int64 // what Queue.Dedup and the inbox remember
	Pending   int64 // publishes that are not confirmed
	Cached    int64 // recent records of the local log
	ReadAhead int64 // records of the local log that are expected to be read next
	Full      bool  // publishers wait until less is used
	Waiters   int   // publishes that wait before anything is proposed: for memory, or for Options.MaxPending
}

func (b *Broker) memoryStats() MemoryStats {
	m, pending := &b.gate.memory, b.gate.loaded()
	s := MemoryStats{
		Limit: m.limit, Waiting: m.messages.Load(), Transient: m.bodies.Load(), IDs: m.ids.Load(),
		Pending: pending.bytes() + pendingBytes*pending.count(), Full: m.shut.Load(), Waiters: b.gate.waiting(),
	}
	if e, ok := b.engine.(*localEngine); ok {
		st := e.store.Stats()
		s.Cached, s.ReadAhead = st.Cached, st.Ahead
	}
	s.Used = s.Waiting + s.Transient + s.IDs + s.Pending + s.Cached + s.ReadAhead
	return s
}
