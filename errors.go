package bourse

import (
	"errors"
	"fmt"
	"strings"
)

// Refusals: the caller can act, and nothing was changed. Test with errors.Is.
var (
	// ErrClosed: the broker, or the subscription, was closed before the call or during it.
	ErrClosed = errors.New("closed")
	// ErrInvalid: an argument breaks a rule or a limit; the error is an *InvalidError that
	// names the field.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: no queue of that name, or no such message in it.
	ErrNotFound = errors.New("not found")
	// ErrNotWaiting: the message is on loan or dying, and what was asked is for messages that wait: ready or delayed.
	ErrNotWaiting = errors.New("not waiting")
	// ErrNoExchange: no exchange of that name. Declare it first.
	ErrNoExchange = errors.New("no such exchange")
	// ErrUnroutable: a mandatory message that no binding, and no alternate exchange, sends
	// to a queue. Nothing was stored.
	ErrUnroutable = errors.New("unroutable")
	// ErrPrecondition: what exists differs from what was asked for; the error is a
	// *PreconditionError that names the fields.
	ErrPrecondition = errors.New("precondition failed")
	// ErrInUse: Delete with IfUnused of a queue that has consumers, or of an exchange
	// that has bindings.
	ErrInUse = errors.New("in use")
	// ErrLocked: the queue is Exclusive and belongs to another Broker.
	ErrLocked = errors.New("locked")
	// ErrNotEmpty: Delete with IfEmpty of a queue that holds messages.
	ErrNotEmpty = errors.New("not empty")
	// ErrEmpty: Get found no message that is ready.
	ErrEmpty = errors.New("queue is empty")
	// ErrHeldBack: Get from a queue that hands out nothing now, since it is paused, or by Queue.Rate.
	ErrHeldBack = errors.New("queue holds its messages back")
	// ErrQueueFull: a queue has no room, see Queue.Overflow; the error is a *RejectedError that names the queue. Nothing of
	// the message is in it.
	ErrQueueFull = errors.New("queue full")
	// ErrMemoryFull: Options.MemoryLimit is reached, and was until the context of the publish ended, whose error this one matches as
	// well. Nothing is stored. Consume what waits, or publish again later.
	ErrMemoryFull = errors.New("memory full")
	// ErrQueueGone: the queue was deleted, and with it the message or the subscription.
	ErrQueueGone = errors.New("queue gone")
	// ErrUnknownDelivery: the delivery has been settled already, or was never made on
	// this subscription, or its subscription is closed.
	ErrUnknownDelivery = errors.New("unknown delivery")
	// ErrStaleDelivery: the delivery was taken back (its deadline passed, or its
	// consumer was given up) and may be with another consumer by now.
	ErrStaleDelivery = errors.New("stale delivery")
	// ErrAutoAck: a verdict on a delivery of an AutoAck subscription, which is settled
	// when it is handed over.
	ErrAutoAck = errors.New("subscription acks automatically")
	// ErrTooMany: a limit on the number of queues, bindings or consumers is reached.
	ErrTooMany = errors.New("too many")
	// ErrDirInUse: another process, or another broker of this one, has the directory open.
	ErrDirInUse = errors.New("directory is in use")
	// ErrForeignDir: the directory holds something, but no broker's data, or data of a
	// newer version.
	ErrForeignDir = errors.New("not a broker directory")
	// ErrNotAtomic: the queues of a PublishAtomic or an AckAndPublish are in more than one log, since the engine gives each its
	// own, or some are transient: there is no commit for all of them. Nothing was stored.
	ErrNotAtomic = errors.New("not in one log")
	// ErrNotLeader: this node does not lead the shard; propose at the node that does.
	ErrNotLeader = errors.New("not the leader")
)

// Faults: something outside went wrong.
var (
	// ErrStorage: reading or writing the log failed. After a failed write or sync the broker
	// accepts nothing more; close it and open it again to go on with what is on disk.
	ErrStorage = errors.New("storage failed")
	// ErrDiskFull: no space for new messages. Acks and deliveries go on, and publishing
	// works again once there is space.
	ErrDiskFull = errors.New("disk full")
	// ErrUnknownOutcome: the command was proposed, and whether it took effect is not known. Retry
	// a publish with the same Message.ID.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrNoQuorum: a majority of the shard's replicas cannot be reached.
	ErrNoQuorum = errors.New("no quorum")
)

// InvalidError names the argument that breaks a rule or a limit. It matches ErrInvalid.
type InvalidError struct {
	Field  string // such as "Message.Body" or "Queue.Priorities"
	Reason string // what is wrong, with the value and the limit where there is one
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Reason }

// Is reports whether target is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// PreconditionError says how what exists differs from what was declared. Nothing was
// changed. It matches ErrPrecondition.
type PreconditionError struct {
	Object string // such as `queue "mail"`
	Fields []FieldDiff
}

// FieldDiff is one difference between a declaration and what exists.
type FieldDiff struct {
	Field string // such as "Priorities"
	Have  string // what exists
	Want  string // what was declared
}

func (e *PreconditionError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s exists with other settings:", e.Object)
	for i, f := range e.Fields {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %s is %s, declared %s", f.Field, f.Have, f.Want)
	}
	return b.String()
}

// Is reports whether target is ErrPrecondition.
func (e *PreconditionError) Is(target error) bool { return target == ErrPrecondition }

// AtomicError says which message kept a PublishAtomic or an AckAndPublish from being stored, and why. Neither it nor any other
// message is stored.
type AtomicError struct {
	Index int // of the message
	Err   error
}

func (e *AtomicError) Error() string {
	return fmt.Sprintf("nothing is stored: message %d: %v", e.Index, e.Err)
}

// Unwrap returns why the message was refused.
func (e *AtomicError) Unwrap() error { return e.Err }

// RejectedError names the queues that did not take a message. Those that it was routed to as well and that are not named
// hold it, so to publish it again brings them a second one. It matches the errors of its refusals, which is ErrQueueFull most
// of the time.
type RejectedError struct {
	Refusals []Refusal // by name
	Stored   int       // queues that hold the message durably
}

// Refusal is why a queue did not take a message: ErrQueueFull, joined by the error of the context if the publish waited for
// room until that ended; or an *InvalidError, if the message is larger than Queue.MaxBytes.
type Refusal struct {
	Queue string
	Err   error
}

func (e *RejectedError) Error() string {
	var b strings.Builder
	for i, r := range e.Refusals {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "queue %q: %v", r.Queue, r.Err)
	}
	if e.Stored > 0 {
		fmt.Fprintf(&b, "; stored in %d others", e.Stored)
	}
	return b.String()
}

// Unwrap returns the errors of the refusals.
func (e *RejectedError) Unwrap() []error {
	errs := make([]error, len(e.Refusals))
	for i, r := range e.Refusals {
		errs[i] = r.Err
	}
	return errs
}

// BatchError holds the outcome of each message of a PublishBatch of which at least one
// was not stored: Errs[i] belongs to message i and is nil if it is stored durably.
type BatchError struct{ Errs []error }

func (e *BatchError) Error() string {
	failed, first := 0, error(nil)
	for _, err := range e.Errs {
		if err != nil {
			if failed++; first == nil {
				first = err
			}
		}
	}
	return fmt.Sprintf("%d of %d messages not stored: %v", failed, len(e.Errs), first)
}

// Unwrap returns the errors of the messages that were not stored.
func (e *BatchError) Unwrap() []error {
	var errs []error
	for _, err := range e.Errs {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
