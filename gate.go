package bourse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// gate bounds what is published and not yet confirmed, in messages and in bytes, and keeps to the budget of memory. Who finds it full
// waits in line, and who comes while others wait stands behind them; but what frees memory too does not wait for that, and so goes
// before those who might.
//
// Who passes without waiting takes no lock. Nobody is left in line beside an open gate: a waiter counts in waits first and
// then looks for room, who goes out makes room first and then looks at waits, so one of both sees the other.
type gate struct {
	maxCount int64 // fixed, as maxBytes is
	maxBytes int64
	memory   budget
	waits    atomic.Int64 // in line, and one more when the gate is closed

	// What has come in less what has gone out is inside; both only grow. Who comes and who lets go are at it all the time, on
	// different processors, so each has a cache line.
	_    [64]byte
	in   atomic.Int64 // loads, as out is
	seen atomic.Int64 // an earlier out: enough to know that there is room
	_    [64]byte
	out  atomic.Int64
	_    [64]byte

	mu     sync.Mutex // guards below; leaf lock
	line   []*gateWaiter
	closed bool
}

type gateWaiter struct {
	bytes int64
	frees bool
	let   chan error // capacity 1
}

// load is what is inside, or comes: publications above bytesBits, their bytes below. For a moment also who is about to be refused is
// counted, and who comes at the same time. There are a million at most, with a GiB, and no more of the others than there are
// goroutines. Sums of loads may wrap: their difference is right.
type load int64

const bytesBits = 40

func loadOf(n int64) load   { return 1<<bytesBits + load(n) }
func (l load) count() int64 { return int64(l >> bytesBits) }
func (l load) bytes() int64 { return int64(l & (1<<bytesBits - 1)) }

// loaded is what is inside. What comes or goes meanwhile may be counted.
func (g *gate) loaded() load {
	out := g.out.Load() // first, see take
	return load(g.in.Load() - out)
}

// take counts n bytes in if there is room. One publication may always pass an empty gate, as far as memory goes. After false undo
// must follow.
func (g *gate) take(n int64, frees bool) bool {
	// What has gone out is looked at first, here and below: else of who comes and goes in between only the going would count.
	seen := g.seen.Load()
	most := load(g.in.Add(int64(loadOf(n))) - seen)
	if most.count() <= g.maxCount && most.bytes() <= g.maxBytes && (frees || g.memory.roomy(most.count(), most.bytes())) {
		return true
	}
	out := g.out.Load()
	all := load(g.in.Load() - out)
	g.seen.Store(out)
	count, bytes := all.count(), all.bytes()
	return (count == 1 || count <= g.maxCount && bytes <= g.maxBytes) && (frees || g.memory.admits(count, bytes, n))
}

func (g *gate) undo(n int64) { g.out.Add(int64(loadOf(n))) }

// enter lets n bytes in if they need not wait.
func (g *gate) enter(n int64, frees bool) bool {
	if g.waits.Load() != 0 {
		return false
	}
	if g.take(n, frees) {
		return true
	}
	g.release(n) // it may have been in the way of one who has come into line since
	return false
}

// acquire lets n bytes in, and waits for room until ctx ends. frees: they replace others that are in memory. Errors: ErrClosed,
// ctx.Err(), and with that ErrMemoryFull if it was the reason.
func (g *gate) acquire(ctx context.Context, n int64, frees bool) error {
	if g.enter(n, frees) {
		return nil
	}
	w := &gateWaiter{bytes: n, frees: frees, let: make(chan error, 1)}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return ErrClosed
	}
	place := len(g.line)
	if frees {
		if place = slices.IndexFunc(g.line, func(o *gateWaiter) bool { return !o.frees }); place < 0 {
			place = len(g.line)
		}
	}
	g.line = slices.Insert(g.line, place, w)
	g.waits.Add(1)
	g.letLocked()
	g.mu.Unlock()
	if err, known := await(ctx, w.let); known {
		return err
	}
	g.mu.Lock()
	if i := slices.Index(g.line, w); i >= 0 {
		g.line = slices.Delete(g.line, i, i+1)
		g.waits.Add(-1)
		full := !frees && g.memory.shut.Load()
		g.letLocked() // a smaller one may have stood behind it
		g.mu.Unlock()
		if full {
			return fmt.Errorf("%w: %w", ErrMemoryFull, ctx.Err())
		}
		return ctx.Err()
	}
	g.mu.Unlock()
	// It was let through, or the gate was closed, in the same moment.
	if err := <-w.let; err != nil {
		return errors.Join(err, ctx.Err())
	}
	g.release(n)
	return ctx.Err()
}

// release lets n bytes out.
func (g *gate) release(n int64) {
	g.undo(n)
	if g.waits.Load() != 0 {
		g.mu.Lock()
		g.letLocked()
		g.mu.Unlock()
	}
}

// letLocked lets in who stands first in line, as long as they fit.
func (g *gate) letLocked() {
	for len(g.line) > 0 {
		w := g.line[0]
		if !g.take(w.bytes, w.frees) {
			g.undo(w.bytes)
			return
		}
		g.line = g.line[1:]
		g.waits.Add(-1)
		w.let <- nil
	}
}

// close refuses all who wait and all who come. What has passed is not touched.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, w := range g.line {
		w.let <- ErrClosed
	}
	g.waits.Add(1 - int64(len(g.line)))
	g.line = nil
}
