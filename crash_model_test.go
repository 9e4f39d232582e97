package bourse

// What TestCrashFS knows: every state that the machine went through, and what became of each message.

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boursemq/bourse/storage"
)

// crashClock moves a little with each look, so that no two commands have the same time, and by hand.
type crashClock struct {
	now    atomic.Int64
	mu     sync.Mutex // guards below
	timers map[*crashTimer]bool
}

type crashTimer struct {
	at int64
	f  func()
}

func newCrashClock(at int64) *crashClock {
	c := &crashClock{timers: map[*crashTimer]bool{}}
	c.now.Store(at)
	return c
}

func (c *crashClock) Now() time.Time { return time.Unix(0, c.now.Add(1)) }

func (c *crashClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &crashTimer{c.now.Load() + int64(d), f}
	c.timers[t] = true
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		had := c.timers[t]
		delete(c.timers, t)
		return had
	}
}

// advance moves the clock and calls what is due.
func (c *crashClock) advance(d time.Duration) {
	now := c.now.Add(int64(d))
	c.mu.Lock()
	var due []*crashTimer
	for t := range c.timers {
		if t.at <= now {
			due = append(due, t)
			delete(c.timers, t)
		}
	}
	c.mu.Unlock()
	for _, t := range due {
		t.f()
	}
}

// crashHistory is the states of a machine, one after each command, and how far they are durable.
type crashHistory struct {
	seed maphash.Seed

	mu      sync.Mutex // guards below
	last    map[uint64]int
	states  int
	durable int  // index of the last state that a crash may not take back
	syncing bool // the next settle asks for a sync
}

func newCrashHistory() *crashHistory {
	h := &crashHistory{seed: maphash.MakeSeed(), last: map[uint64]int{}}
	h.record(cmdTick, newMachine(roleAll, newTopology(topologyLimits{})))
	return h
}

func (h *crashHistory) hash(m *machine) uint64 { return maphash.Bytes(h.seed, m.appendTo(nil)) }

// record takes the state after a command. These are durable before they are applied: a consumer must not see
// what a crash can take back.
func (h *crashHistory) record(kind commandKind, m *machine) {
	state := h.hash(m)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last[state] = h.states
	switch kind {
	case cmdEnqueue, cmdMove, cmdDeclare, cmdRemove, cmdPurge, cmdUpdate, cmdBundle:
		h.durable = h.states
	case cmdSettle:
		if h.syncing {
			h.durable, h.syncing = h.states, false
		}
	default:
	}
	h.states++
}

func (h *crashHistory) syncedTo() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.durable
}

// recorder is a shard whose states are recorded.
type recorder struct {
	*shard
	h *crashHistory
}

func (r recorder) Apply(bodies Bodies, entries []Entry) {
	for i := range entries {
		r.shard.Apply(bodies, entries[i:i+1])
		r.shard.mu.Lock()
		r.h.record(commandKind(entries[i].Cmd[0]), r.shard.m)
		r.shard.mu.Unlock()
	}
}

// bareMachine applies commands and nothing else: to see what a log recovers to.
type bareMachine struct {
	mu sync.Mutex // guards m
	m  *machine
}

func (b *bareMachine) Apply(bodies Bodies, entries []Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range entries {
		res, out := b.m.apply(entries[i].Ref, entries[i].Cmd, nil)
		entries[i].Answer = res.answer
		if res.kept > 0 {
			bodies.Keep(entries[i].Ref, res.kept)
		}
		for _, e := range out {
			if e.kind == effectFree {
				bodies.Free(e.ref)
			}
		}
	}
}

func (b *bareMachine) Lead(bool) {}

func (b *bareMachine) Snapshot() (io.WriterTo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return snapshot{b.m.view()}, nil
}

func (b *bareMachine) Restore(bodies Bodies, r io.Reader) error {
	all, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m, err := decodeMachine(all, func(ref Ref) { bodies.Keep(ref, 1) })
	if err == nil {
		b.m = m
	}
	return err
}

// rawEntry is a message in a recovered log, before a broker has come to it.
type rawEntry struct {
	entry
	loan bool
}

type rawKey struct {
	queue string
	seq   uint64
}

// recoverRaw recovers a log without a broker, checks it, and returns its state and what the queues hold.
func recoverRaw(fs storage.FS, h *crashHistory) (state uint64, held map[rawKey]rawEntry, err error) {
	opened, err := NewLocalEngine("d", crashLocal(fs))
	if err != nil {
		return 0, nil, err
	}
	e := opened.(*localEngine)
	m := &bareMachine{m: newMachine(roleAll, newTopology(topologyLimits{}))}
	if _, err := e.Open(context.Background(), 1, m); err != nil {
		_ = e.Close()
		return 0, nil, err
	}
	n := 0
	m.mu.Lock() // the engine may be taking a checkpoint
	m.m.check()
	state, held = h.hash(m.m), map[rawKey]rawEntry{}
	for _, q := range m.m.order {
		n += q.size()
		q.ready.each(func(x entry) bool { held[rawKey{q.def.Name, x.seq}] = rawEntry{x, false}; return true })
		for _, ln := range q.ledger.slots {
			if ln.holder != nil {
				held[rawKey{q.def.Name, ln.seq}] = rawEntry{ln.entry, true}
			}
		}
		if q.delayed != nil {
			q.delayed.Ascend(func(d delayed) bool { held[rawKey{q.def.Name, d.seq}] = rawEntry{d.entry, false}; return true })
		}
	}
	m.mu.Unlock()
	if live := e.store.Stats().Live; live != int64(n) {
		err = fmt.Errorf("the log counts %d references, the queues hold %d messages", live, n)
	}
	if closed := e.Close(); err == nil {
		err = closed
	}
	return state, held, err
}

// fate is a message that was published.
type fate struct {
	route     []string
	confirmed bool
	touched   map[string]bool // queues where it may be gone: a verdict or a removal was begun
	final     map[string]bool // queues where it is gone for certain
}

// fates is what became of all messages. A crash is taken under mu, so that it falls between two changes.
type fates struct {
	mu  sync.Mutex
	all map[string]*fate
}

func (f *fates) change(fn func(all map[string]*fate)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f.all)
}

// copyLocked returns the fates as they are now.
func (f *fates) copyLocked() map[string]fate {
	all := make(map[string]fate, len(f.all))
	for id, one := range f.all {
		c := fate{route: one.route, confirmed: one.confirmed, touched: map[string]bool{}, final: map[string]bool{}}
		for q := range one.touched {
			c.touched[q] = true
		}
		for q := range one.final {
			c.final[q] = true
		}
		all[id] = c
	}
	return all
}

func crashBody(id string, size int) []byte {
	return bytes.Repeat([]byte(id+" "), size/(len(id)+1)+1)
}

// checkHeld compares what a broker holds with the fates.
func checkHeld(held map[string][]Held, all map[string]fate) error {
	where := map[string]map[string]int{} // message, queue: how often
	for queue, list := range held {
		for _, h := range list {
			id := h.Message.ID
			if where[id] == nil {
				where[id] = map[string]int{}
			}
			where[id][queue]++
			if _, known := all[id]; !known {
				return fmt.Errorf("%s in %s was never published", id, queue)
			}
			if size := len(h.Message.Body) - len(id) - 1; size < 0 || !bytes.Equal(h.Message.Body, crashBody(id, size)) {
				return fmt.Errorf("%s in %s has another body", id, queue)
			}
		}
	}
	for id, f := range all {
		at := where[id]
		stored := f.confirmed || len(at) > 0
		for queue, n := range at {
			dead := (queue == "dead1" || queue == "dead2") && slices.Contains(f.route, "jobs")
			switch {
			case n > 1:
				return fmt.Errorf("%s is in %s %d times", id, queue, n)
			case f.final[queue]:
				return fmt.Errorf("%s has come back to %s", id, queue)
			case !dead && !slices.Contains(f.route, queue):
				return fmt.Errorf("%s is in %s, not of its route", id, queue)
			}
		}
		isDead := at["dead1"]+at["dead2"] > 0
		if isDead && at["jobs"] > 0 {
			return fmt.Errorf("%s is dead, and in jobs as well", id)
		}
		if isDead && (at["dead1"] == 0 && !f.touched["dead1"] || at["dead2"] == 0 && !f.touched["dead2"]) {
			return fmt.Errorf("%s is in one of its dead-letter queues: %v", id, at)
		}
		for _, queue := range f.route {
			gone := f.touched[queue] || queue == "jobs" && (isDead || f.touched["dead1"] && f.touched["dead2"])
			if stored && at[queue] == 0 && !gone {
				return fmt.Errorf("%s is lost from %s; confirmed: %t, it is in %v", id, queue, f.confirmed, at)
			}
		}
	}
	return nil
}
