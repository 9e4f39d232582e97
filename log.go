package bourse

import (
	"context"
	"io"
)

// This file is the seam between the broker and what orders its commands. The
// broker encodes commands and applies them; an Engine puts them into one order
// per shard and makes them durable. The local engine (local.go) writes one log in
// a directory; the replicated one (package replicate) runs one Raft group a shard.

// Engine supplies ordered, durable logs, one per shard. Implementations must pass
// the conformance suite in internal/enginetest.
type Engine interface {
	// Open recovers the shard's log into m (Restore with the newest snapshot if there
	// is one, then Apply with what follows it) and returns the log, to which commands
	// can be proposed. ctx bounds the recovery only. Opening a shard twice is an error. An engine
	// of several nodes may return before this replica has caught up; Lead(true) says that it has.
	Open(ctx context.Context, shard uint64, m Machine) (Log, error)

	// Placement says how the broker spreads its queues over shards.
	Placement() Placement

	// Close closes every log that is still open and releases what the engine holds.
	// It is idempotent.
	Close() error
}

// Placement says how the queues of a broker are spread over the shards of an Engine.
type Placement int

const (
	// OneShard orders all queues in shard 1: a publish to several queues, and the move
	// of a dead message, is one entry of one log.
	OneShard Placement = iota
	// ShardPerQueue gives the catalogue shard 1 and every queue a shard of its own.
	ShardPerQueue
)

// Log is one shard's ordered log. Its methods may be called concurrently.
type Log interface {
	// Propose asks for p to be ordered, made durable as far as p asks for it, and
	// applied. A nil result means that p.Done will be called exactly once. Otherwise
	// nothing was proposed and Done is not called: the error says why. Proposals
	// of one goroutine are applied in the order of the calls, as far as they are accepted. Propose may
	// block briefly for room in the log's buffers, never for a sync. An engine may refuse a command
	// that is too large for it, with an *InvalidError.
	Propose(p Proposal) error

	// Read appends the command at ref to dst. size is the length of the command if the
	// caller knows it, else 0; it saves a second read. The bytes are verified against
	// their checksum. Only a ref that Bodies.Keep holds may be read; the error for another is up to the engine.
	Read(ref Ref, size int, dst []byte) ([]byte, error)

	// Close stops the log in good order: what was proposed is ordered and applied or
	// refused, and Done is called for all of it, before Close returns.
	Close() error
}

// Proposal is one command on its way into a log.
type Proposal interface {
	// AppendTo appends the encoded command to dst. It is called once, inside Propose.
	AppendTo(dst []byte) []byte

	// Durable reports whether the command must be on stable storage before it is
	// applied. A command that is not durable is written before it is applied, and
	// synced with the next one that is.
	Durable() bool

	// Done is told how the proposal ended: with the machine's answer, or with an error if
	// that cannot be known (the error then matches ErrUnknownOutcome) or if the command
	// is certainly not in the log and never will be (any other error, such as ErrNotLeader). It runs after
	// Apply, in log order, on the log's goroutine, and must neither block nor call Propose. The answer's
	// Data is valid during the call.
	Done(a Answer, err error)
}

// Ref is an address that a Log gave to a command. Zero means nowhere. It is part of a machine's
// snapshot, so a log of several replicas gives the same on each.
type Ref uint64

// Answer is what a machine says to a command. It is the same on every replica.
type Answer struct {
	Code uint64
	Data []byte // the machine leaves it alone until the next Apply
}

// Entry is one command in a log's order.
type Entry struct {
	Index  uint64 // position in the shard's order; increases, not always by one
	Ref    Ref    // where the log keeps Cmd, for Bodies and Log.Read
	Cmd    []byte // the command; valid during Apply only
	Answer Answer // set by Apply
}

// Bodies is the log's account of the commands that something still refers to, since
// they hold the body of a message. It is passed to Apply and Restore and valid during
// the call.
type Bodies interface {
	// Keep adds n references to the command at ref.
	Keep(ref Ref, n int)
	// Free takes one reference back. The log may forget a command without references once
	// the removal itself is durable.
	Free(ref Ref)
}

// Machine is fed by a Log: one call at a time, in log order, except that WriteTo of a
// snapshot may run beside later calls.
type Machine interface {
	// Apply takes the machine forward by entries and sets their answers. Equal state and
	// entries give equal state and answers, on every replica and after every restart.
	Apply(bodies Bodies, entries []Entry)

	// Lead tells the machine to start or stop acting on the outside. It is called with
	// true once recovery has caught up and this replica leads, and with false when it stops to, or
	// the log has failed; the local log leads until then. No method is called after Log.Close.
	Lead(leading bool)

	// Snapshot captures the state after the last Apply. It must be quick; the returned value
	// is written later, beside Apply.
	Snapshot() (io.WriterTo, error)

	// Restore replaces the state by one that a snapshot wrote, and calls bodies.Keep for
	// every reference in it.
	Restore(bodies Bodies, r io.Reader) error
}
