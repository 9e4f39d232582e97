// Package sim simulates a broker around its deterministic part: publishers, consumers that ack, fail, stall and vanish, the
// mover of the dead, the timer, a log, snapshots, and the loss of the process at any command. One seed decides all of it, on
// a virtual clock, in one goroutine, so that equal seeds give equal runs.
//
// The part under test is a System, and the package knows no more of it than that. What must hold is judged from outside, by an
// observer that sees what publishers and consumers see: commands with their answers, effects, and the counters that Stats
// shows. The numbers of the invariants are those of RELIABILITY and of its failures. I1, I3 and I19 follow from the others: what is
// lost, or there without a cause, is missed or found as one of I5, I16, I17 or I21.
//
//	I1   what was accepted is in the queue until it has an outcome, and each outcome is counted
//	I2   a delivery carries the bytes of a message that was published to that queue
//	I3   what was refused is not stored, and changes nothing
//	I4   a message is handed out again only after a cause, with its failures and deliveries counted
//	I5   what was acked, purged, moved or has expired does not come back
//	I6   a message is with one consumer at a time; a late verdict is stale and harmless
//	I7   deliveries rise by one, and failures stay within the retry limit
//	I8   within a level, messages go out in the order in which they arrived
//	I9   no message goes out while one of a higher level is ready
//	I10  the dead are moved once, whole, to where their queue sends them, and circles are parked
//	I11  no consumer is sent more than its prefetch; the one with least on loan is next
//	I12  nothing happens before its time, and the timer is set for whatever will be due
//	I13  one answer for each command, of the right kind; tags go up by one
//	I14  of two publishes with one id within the window a queue takes the first (found as I22)
//	I16  messages, references to bodies and counters add up after each command
//	I17  a snapshot and the rest of the log lead to where the whole log leads
//	I19  what a restart finds is a prefix of the log that holds all that was confirmed
//	I21  with a ready message no consumer has room; without faults all queues run empty
//	I22  a message for several queues is in all of them or in none
//	I23  a deleted queue is heard of no more, and a new one starts empty
//	I26  a queue with a single active consumer lends to that one alone, and its epochs rise, over crashes and deletions too
package sim

import (
	"fmt"
	"time"
)

// System is the deterministic part of a broker. It is driven by one goroutine.
type System interface {
	// Reset makes it new, without a history.
	Reset()
	// Encode appends a command as the log holds it.
	Encode(dst []byte, c *Command) []byte
	// Resend is Encode for a Replay of the message that read, a command, holds.
	Resend(dst []byte, c *Command, read []byte) []byte
	// Bury makes the command that brings a dead message to its queues, whose ids it returns. order is the effect that asks for
	// it, dead the command that holds the message.
	Bury(dst []byte, at int64, order *Effect, dead []byte) (cmd []byte, targets []uint64)
	// Body is the body of the message that a command holds.
	Body(cmd []byte) []byte
	// Apply takes the system forward by a command that the log holds at ref, and fills out.
	Apply(ref uint64, cmd []byte, out *Outcome)
	// Lead says what must be done anew after a start.
	Lead(out *Outcome)
	// Snapshot appends the state. Equal states give equal bytes.
	Snapshot(dst []byte) []byte
	// Restore makes the state that of a snapshot, and tells keep every reference in it.
	Restore(snapshot []byte, keep func(ref uint64)) error
	// QueueID is the id of the queue of that name, or 0.
	QueueID(name string) uint64
	// Counts is what can be seen of a queue; false: there is none.
	Counts(queue uint64) (Counts, bool)
	// Check walks through the structures and panics where they are not sound.
	Check()
}

// Command is one entry of the log; which fields count depends on Kind.
type Command struct {
	Kind     Kind
	At       int64 // the proposer's clock
	Queue    uint64
	Consumer uint64 // the session in the upper 32 bits
	Tag      uint64
	Slot     int32
	Verdict  Verdict
	Pause    time.Duration // of a verdict; below zero: as the queue's Retry says
	Sync     bool          // the proposer waits until it is durable
	Lost     bool          // Detach, Open: the consumers did not leave in good order
	Prefetch int
	Rank     int      // Attach: where there is a single active consumer, the higher becomes so first
	Targets  []uint64 // Publish, Move; Amend: of Replay
	Message  Message  // Publish; Amend: of Edit; its Priority is that of Reprioritize
	Seq      uint64   // Move, Amend: of the message in Queue, by its arrival from 1
	Amend    Amendment
	Ref      uint64 // Edit, Replay: where the message was read
	Spec     Spec   // Declare, Delete: the name
	Unused   bool   // Delete: only without consumers
	Emptied  bool   // Delete: only without messages
}

// Kind is a kind of command.
type Kind byte

// Kinds of commands.
const (
	Publish Kind = iota
	Attach
	Detach
	Settle
	AckUpTo
	Take
	Tick
	Open
	Declare
	Delete
	Move
	Purge
	Amend
)

func (k Kind) String() string {
	return [...]string{
		"publish", "attach", "detach", "settle", "ack up to", "take", "tick", "open", "declare", "delete", "move", "purge", "amend",
	}[k]
}

// durable reports whether the proposer's answer means that the command is on the disk.
func (c *Command) durable() bool {
	switch c.Kind {
	case Publish, Declare, Delete, Move, Purge, Amend:
		return true
	case Attach, Detach, Settle, AckUpTo, Take, Tick, Open:
	}
	return c.Sync
}

// Amendment is what somebody who is no consumer does to one message.
type Amendment byte

// Amendments.
const (
	Cancel       Amendment = iota // remove it, in whatever state it is
	Promote                       // end its delay
	Reprioritize                  // give it another level
	Edit                          // put another message in its place
	Replay                        // put it at the end of another queue
)

// Verdict is what a consumer says about a loan.
type Verdict byte

// Verdicts.
const (
	Ack Verdict = iota
	Nack
	Reject
	Release
	Extend
)

func (v Verdict) String() string {
	return [...]string{"ack", "nack", "reject", "release", "extend"}[v]
}

// NoWait as a TTL means: deliver at once, or not at all.
const NoWait time.Duration = -1

// Message is what a publisher says about a message. Its body follows from Number, which is never used twice in a run.
type Message struct {
	Number   uint64
	Key      uint64 // its id; 0: the broker makes one
	Priority uint8
	TTL      time.Duration
	ReadyAt  int64 // 0: at once
}

// AppendBody appends the body of message number.
func AppendBody(dst []byte, number uint64) []byte {
	x := number
	for range 2 + number%5 {
		dst = append(dst, byte(x), byte(x>>8), byte(x>>16), byte(x>>24), byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56))
		x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	}
	return dst
}

// Spec is the definition of a queue.
type Spec struct {
	Name     string
	Levels   int // of priority; from 1
	Retries  int // failures that a message survives; Unlimited
	Deadline time.Duration
	TTL      time.Duration // 0: for ever; NoWait
	Retry    Retry
	Dead     Dead
	DeadTo   string        // DeadDirect: the name of the queue
	Window   time.Duration // ids are remembered so long; 0: not at all
	Joined   bool          // the exchange of DeadFan leads here
	Single   bool          // one consumer at a time is active
}

// Unlimited is a Spec.Retries without a limit.
const Unlimited = -1

// Retry is the pause after a failure.
type Retry struct {
	Min, Max time.Duration
	Percent  int // by which the pause grows, 200 doubles it
	Listed   int // how many of Pauses count; they take the place of Min and Max
	Pauses   [3]time.Duration
	Jitter   int // percent
}

// Dead says where a queue sends its dead.
type Dead byte

// Where the dead go.
const (
	DeadParked  Dead = iota // to the parking queue; what expires is dropped
	DeadDropped             // nowhere
	DeadDirect              // through an exchange to one queue, if it exists, else parked
	DeadFan                 // through an exchange to all that joined it, if any, else parked
	DeadMissing             // through an exchange that does not exist: parked
)

// Parking is the name of the queue that every system has.
const Parking = "parking"

// Code is the kind of an answer.
type Code byte

// Answers.
const (
	OK      Code = iota
	Number       // Outcome.Number is one
	Gone         // the queue does not exist
	Stale        // no such loan, consumer or dead message
	Empty        // nothing is ready
	Refused      // an error
	Absent       // no such message
	Busy         // the message is on loan or dead
	Held         // nothing is given to who asks
)

// Outcome is what a command brought about.
type Outcome struct {
	Code    Code
	Number  uint64
	Kept    int    // references to the command that the queues took
	Lent    Effect // the loan in the answer to a take
	Wake    int64  // when to propose a tick, if Woken; 0: not any more
	Woken   bool   // Wake is set
	Effects []Effect
}

// Clear empties the outcome and keeps its memory.
func (o *Outcome) Clear() { *o = Outcome{Effects: o.Effects[:0]} }

// Effect is an order to the outside; which fields count depends on Kind.
type Effect struct {
	Kind       EffectKind
	Reason     Reason
	Queue      uint64
	Consumer   uint64
	Tag        uint64
	Slot       int32
	Seq        uint64
	Ref        uint64
	Deliveries uint32
	Failures   uint32
	At         int64 // Deliver: the deadline; Forward: the death
	Arrived    int64
}

// EffectKind is a kind of effect.
type EffectKind byte

// Kinds of effects.
const (
	Deliver   EffectKind = iota // hand the message at Ref to the consumer
	Withdraw                    // the consumer's loan was taken back
	QueueGone                   // the consumer's queue was deleted
	Forward                     // bring the dead message to its queues
	Free                        // the queue does not refer to Ref any more
	Active                      // the consumer is the single active one from now on, with the epoch Seq
)

// Reason is why a message died.
type Reason byte

// Reasons.
const (
	Rejected Reason = iota + 1
	Limit           // it failed once too often
	Expired
)

// Counts are what can be seen of a queue: what it holds, and totals since it was declared.
type Counts struct {
	Ready, Unacked, Delayed, Dying                                           int
	Enqueued, Delivered, Acked, Failed, Released, TimedOut                   uint64
	Dead, Expired, Discarded, Moved, Purged, Cancelled, Replayed, Duplicates uint64
}

// Failure is a broken invariant. It carries what led to it.
type Failure struct {
	Rule string   // the invariant
	What string   // how it was broken
	Last []string // the last commands
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %s", f.Rule, f.What) }

func fail(rule, format string, args ...any) {
	panic(&Failure{Rule: rule, What: fmt.Sprintf(format, args...)})
}
