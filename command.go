package bourse

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/boursemq/bourse/internal/wire"
)

// A command is one entry of a shard's log:
//
//	kind     1 byte
//	at       8 bytes   the proposer's clock, nanoseconds
//	...      by kind, see the append functions
//
// Kinds and layouts are part of the data format: they are never changed or used again, only added to.
type commandKind byte

const (
	cmdEnqueue   commandKind = 1  // a message to one or more queues
	cmdAttach    commandKind = 2  // a consumer comes
	cmdDetach    commandKind = 3  // and goes
	cmdSettle    commandKind = 4  // a verdict on one loan
	cmdAckUpTo   commandKind = 5  // acks of all loans up to a tag
	cmdTake      commandKind = 6  // one message for a consumer without prefetch
	cmdTick      commandKind = 7  // time passes
	cmdOpen      commandKind = 8  // a broker starts to act for this shard
	cmdDeclare   commandKind = 9  // declarations to make
	cmdRemove    commandKind = 10 // declarations to undo
	cmdMove      commandKind = 11 // a dying message into its dead-letter queues
	cmdForwarded commandKind = 12 // a dying message is safe in other shards
	cmdPurge     commandKind = 13 // drop what is ready or delayed
	cmdAmend     commandKind = 14 // cancel, promote, edit or replay one message, or change its priority
	cmdUpdate    commandKind = 15 // change a queue
	cmdRedefine  commandKind = 16 // bring that change into the queue's own shard
	cmdBundle    commandKind = 17 // several messages, and perhaps the ack of a loan
	cmdFire      commandKind = 18 // what a schedule does that is due
	cmdPause     commandKind = 19 // stop or start the deliveries of a queue
	cmdEnter     commandKind = 20 // a message that was told to wait for room, to one queue
	cmdRetire    commandKind = 21 // a queue that is ending in its own shard leaves the catalogue
	cmdAcks      commandKind = 22 // acks of some loans of one consumer
)

// brings reports whether a command may hold a message: nothing refers to others once they are applied.
func (k commandKind) brings() bool {
	// The others hold none.
	//exhaustive:ignore
	switch k {
	case cmdEnqueue, cmdMove, cmdEnter, cmdAmend, cmdBundle, cmdFire:
		return true
	}
	return false
}

const commandHeader = 1 + 8

func appendHeader(dst []byte, kind commandKind, at instant) []byte {
	return wire.AppendUint64(append(dst, byte(kind)), uint64(at))
}

// enqueue: count, queue ids, message.
func appendTargets(dst []byte, targets []queueID) []byte {
	dst = wire.AppendUvarint(dst, uint64(len(targets)))
	for _, id := range targets {
		dst = wire.AppendUvarint(dst, uint64(id))
	}
	return dst
}

// attach names a consumer of a queue, its prefetch and its priority. One that is there keeps its priority.
type attach struct {
	queue    queueID
	consumer consumerID
	prefetch int32
	priority int32
}

func (c attach) appendTo(dst []byte, at instant) []byte {
	dst = appendHeader(dst, cmdAttach, at)
	dst = wire.AppendUvarint(dst, uint64(c.queue))
	dst = wire.AppendUvarint(dst, uint64(c.consumer))
	dst = wire.AppendUvarint(dst, uint64(c.prefetch))
	return wire.AppendVarint(dst, int64(c.priority))
}

func decodeAttach(r *wire.Reader) (c attach) {
	c.queue = queueID(r.Uvarint())
	c.consumer = consumerID(r.Uvarint())
	prefetch := r.Uvarint()
	if prefetch > MaxPrefetch {
		r.Fail()
	}
	c.prefetch = int32(prefetch)
	c.priority = decodeConsumerPriority(r)
	return c
}

// decodeConsumerPriority reads the priority of a consumer.
func decodeConsumerPriority(r *wire.Reader) int32 {
	p := r.Varint()
	if p < -MaxConsumerPriority || p > MaxConsumerPriority {
		r.Fail()
		return 0
	}
	return int32(p)
}

// detach ends a consumer; failed counts a failure for each message it held.
type detach struct {
	queue    queueID
	consumer consumerID
	failed   bool
}

func (c detach) appendTo(dst []byte, at instant) []byte {
	dst = appendHeader(dst, cmdDetach, at)
	dst = wire.AppendUvarint(dst, uint64(c.queue))
	dst = wire.AppendUvarint(dst, uint64(c.consumer))
	return wire.AppendBool(dst, c.failed)
}

func decodeDetach(r *wire.Reader) detach {
	return detach{queue: queueID(r.Uvarint()), consumer: consumerID(r.Uvarint()), failed: r.Bool()}
}

// verdict is what a consumer says about a loan.
type verdict byte

const (
	verdictAck     verdict = iota // done
	verdictNack                   // failed: again after pause; below zero: as the queue's Retry says
	verdictReject                 // failed: never again
	verdictRelease                // no failure: again after pause
	verdictExtend                 // still working: deadline in pause from now
	verdictDone                   // done, and key goes into the inbox
)

// settle is a verdict on one loan.
type settle struct {
	queue    queueID
	consumer consumerID
	tag      uint64
	slot     slotID
	verdict  verdict
	pause    time.Duration
	note     string
	key      idKey
}

func (c settle) appendTo(dst []byte, at instant) []byte {
	dst = appendHeader(dst, cmdSettle, at)
	dst = wire.AppendUvarint(dst, uint64(c.queue))
	dst = wire.AppendUvarint(dst, uint64(c.consumer))
	dst = wire.AppendUvarint(dst, c.tag)
	dst = wire.AppendUvarint(dst, uint64(uint32(c.slot)))
	dst = append(dst, byte(c.verdict))
	if c.verdict == verdictAck {
		return dst
	}
	if c.verdict == verdictDone {
		return c.key.appendTo(dst)
	}
	dst = wire.AppendVarint(dst, int64(c.pause))
	return wire.AppendString(dst, c.note)
}

func decodeSettle(r *wire.Reader) (c settle) {
	c.queue = queueID(r.Uvarint())
	c.consumer = consumerID(r.Uvarint())
	c.tag = r.Uvarint()
	slot := r.Uvarint()
	if slot > 1<<31-1 {
		r.Fail()
	}
	c.slot = slotID(slot)
	c.verdict = verdict(r.Byte())
	if c.verdict > verdictDone {
		r.Fail()
	}
	switch c.verdict {
	case verdictAck:
	case verdictDone:
		c.key = decodeKey(r)
	case verdictNack, verdictReject, verdictRelease, verdictExtend:
		c.pause = time.Duration(r.Varint())
		c.note = r.String()
		if c.pause > MaxDelay {
			r.Fail()
		}
	}
	return c
}

// ackUpTo acks all loans of a consumer up to a tag.
type ackUpTo struct {
	queue    queueID
	consumer consumerID
	tag      uint64
}

func (c ackUpTo) appendTo(dst []byte, at instant) []byte {
	dst = appendHeader(dst, cmdAckUpTo, at)
	dst = wire.AppendUvarint(dst, uint64(c.queue))
	dst = wire.AppendUvarint(dst, uint64(c.consumer))
	return wire.AppendUvarint(dst, c.tag)
}

func decodeAckUpTo(r *wire.Reader) ackUpTo {
	return ackUpTo{queue: queueID(r.Uvarint()), consumer: consumerID(r.Uvarint()), tag: r.Uvarint()}
}

// acks: queue, consumer, two bytes for the length of the list, the list, and zeros.
func appendAcks(dst []byte, at instant, queue queueID, consumer consumerID, list []byte, room int) []byte {
	dst = appendHeader(dst, cmdAcks, at)
	dst = wire.AppendUvarint(dst, uint64(queue))
	dst = wire.AppendUvarint(dst, uint64(consumer))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(list)))
	dst = append(dst, list...)
	return append(dst, zeros[:room-len(list)]...)
}

var zeros [mostAckRoom]byte // what is not filled

// appendAck appends an element of a list: how far its tag is from that of the one before, and its slot.
func appendAck(dst []byte, tag, before uint64, slot slotID) []byte {
	return wire.AppendUvarint(wire.AppendVarint(dst, int64(tag-before)), uint64(uint32(slot)))
}

// ackList is a list of acks.
type ackList struct {
	queue    queueID
	consumer consumerID
	list     []byte
}

func decodeAcks(r *wire.Reader) (l ackList) {
	l.queue = queueID(r.Uvarint())
	l.consumer = consumerID(r.Uvarint())
	rest := r.Rest()
	if len(rest) < 2 {
		r.Fail()
		return l
	}
	n := int(binary.LittleEndian.Uint16(rest))
	if rest = rest[2:]; n > len(rest) {
		r.Fail()
		return l
	}
	for _, b := range rest[n:] {
		if b != 0 {
			r.Fail()
		}
	}
	list := wire.NewReader(rest[:n])
	for list.Len() > 0 {
		list.Varint()
		if list.Uvarint() > 1<<31-1 {
			list.Fail()
		}
	}
	if list.Err() != nil {
		r.Fail()
	}
	l.list = rest[:n]
	return l
}

// all calls yield with each ack.
func (l ackList) all(yield func(tag uint64, slot slotID) bool) {
	tag := uint64(0)
	for r := wire.NewReader(l.list); r.Len() > 0; {
		tag += uint64(r.Varint())
		if !yield(tag, slotID(r.Uvarint())) {
			return
		}
	}
}

// take asks for one message for a consumer; its answer is the loan.
type take struct {
	queue    queueID
	consumer consumerID
}

func (c take) appendTo(dst []byte, at instant) []byte {
	dst = appendHeader(dst, cmdTake, at)
	dst = wire.AppendUvarint(dst, uint64(c.queue))
	return wire.AppendUvarint(dst, uint64(c.consumer))
}

func decodeTake(r *wire.Reader) take {
	return take{queue: queueID(r.Uvarint()), consumer: consumerID(r.Uvarint())}
}

func appendTick(dst []byte, at instant) []byte { return appendHeader(dst, cmdTick, at) }

// open: a broker starts to act for this shard. Consumers of earlier sessions are gone; if they
// were lost with their process, each message they held has failed once more. The answer is the number of the new session.
func appendOpen(dst []byte, at instant, lost bool) []byte {
	return wire.AppendBool(appendHeader(dst, cmdOpen, at), lost)
}

// declare: limits of the proposer's broker, its session, declarations. The limits travel, since every replica must come to the
// same answer whatever it was opened with.
func appendDeclare(dst []byte, at instant, session sessionID, limits topologyLimits, ds []Declaration) []byte {
	dst = appendHeader(dst, cmdDeclare, at)
	dst = wire.AppendUvarint(dst, uint64(limits.queues))
	dst = wire.AppendUvarint(dst, uint64(limits.exchanges))
	dst = wire.AppendUvarint(dst, uint64(limits.bindings))
	dst = wire.AppendUvarint(dst, uint64(limits.schedules))
	dst = wire.AppendUint64(dst, uint64(session))
	return appendDeclarations(dst, ds)
}

func decodeLimits(r *wire.Reader) (l topologyLimits) {
	l.queues = int(min(r.Uvarint(), MaxQueues))
	l.exchanges = int(min(r.Uvarint(), MaxExchanges))
	l.bindings = int(min(r.Uvarint(), MaxBindings))
	l.schedules = int(min(r.Uvarint(), MaxSchedules))
	return l.withDefaults()
}

// remove: conditions, session, declarations.
func appendRemove(dst []byte, at instant, session sessionID, only removeOnly, ds []Declaration) []byte {
	dst = wire.AppendUint64(append(appendHeader(dst, cmdRemove, at), byte(only)), uint64(session))
	return appendDeclarations(dst, ds)
}

// removeOnly is a set of conditions that all queues and exchanges of a remove must meet.
type removeOnly byte

const (
	onlyUnused removeOnly = 1 << iota
	onlyEmpty
)

// move: source queue, seq of the dying message, then as enqueue. One entry takes the message out of its
// source and puts it into its targets.
func appendMove(dst []byte, at instant, source queueID, seq uint64) []byte {
	dst = appendHeader(dst, cmdMove, at)
	dst = wire.AppendUvarint(dst, uint64(source))
	return wire.AppendUvarint(dst, seq)
}

// enter: turn, whether it is the first of those that are proposed together, then as enqueue, to one queue.
func appendEnter(dst []byte, at instant, turn uint64, first bool) []byte {
	return wire.AppendBool(wire.AppendUvarint(appendHeader(dst, cmdEnter, at), turn), first)
}

func appendForwarded(dst []byte, at instant, source queueID, seq uint64) []byte {
	dst = appendHeader(dst, cmdForwarded, at)
	dst = wire.AppendUvarint(dst, uint64(source))
	return wire.AppendUvarint(dst, seq)
}

func appendPurge(dst []byte, at instant, queue queueID) []byte {
	return wire.AppendUvarint(appendHeader(dst, cmdPurge, at), uint64(queue))
}

// Answer codes. A command whose answer is a number adds it to answerNumber.
const (
	answerOK         uint64 = iota
	answerGone              // the queue does not exist any more
	answerStale             // no such loan
	answerEmpty             // nothing is ready
	answerError             // Data is an error, see appendError
	answerTooMany           // a limit on consumers is reached
	answerAbsent            // the queue does not hold the message
	answerNotWaiting        // the message is on loan or dying
	answerTargetGone        // no queue of a message in a bundle exists any more
	answerHeld              // the queue hands out nothing now
	answerFull              // not all queues took it; Data says which, see refusedAnswer
	answerNumber     uint64 = 1 << 32
)

// effectKind is one of a closed set of orders to the outside. All may repeat.
type effectKind byte

const (
	effectDeliver  effectKind = iota + 1 // hand the message to the consumer
	effectWithdraw                       // the consumer's loan was taken back
	effectGone                           // the consumer's queue was deleted
	effectForward                        // bring the dying message to its dead-letter queues
	effectFree                           // nothing in this queue refers to the message any more
	effectWake                           // propose a tick no earlier than at; replaces the last wake; at 0: none
	effectTopology                       // the topology has changed
	effectFire                           // say what the schedule with the number seq does at; at 0: when it begins
	effectActive                         // the consumer is the active one from now on, with the epoch seq
	effectRetire                         // propose to the catalogue that the queue retires
)

func (k effectKind) String() string {
	names := [...]string{"", "deliver", "withdraw", "gone", "forward", "free", "wake", "topology", "fire", "active", "retire"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// effect is one order to the outside; which fields count depends on kind.
type effect struct {
	kind       effectKind
	reason     deathReason
	part       uint8 // of the command at ref
	level      uint8 // deliver: where it waited; not in the answer to a take
	slot       slotID
	queue      queueID
	consumer   consumerID
	tag        uint64
	seq        uint64
	ref        Ref
	size       uint32
	deliveries uint32
	failures   uint32
	at         instant // deliver: deadline; forward: death; wake: when
	arrived    instant
	note       string
}

// appendTo encodes a loan for the answer to a take.
func (e effect) appendTo(dst []byte) []byte {
	dst = wire.AppendUint64(dst, uint64(e.queue))
	dst = wire.AppendUint64(dst, uint64(e.consumer))
	dst = wire.AppendUint64(dst, e.tag)
	dst = wire.AppendUint32(dst, uint32(e.slot))
	dst = wire.AppendUint64(dst, e.seq)
	dst = wire.AppendUint64(dst, uint64(e.ref))
	dst = wire.AppendUint32(dst, e.size)
	dst = append(dst, e.part)
	dst = wire.AppendUint32(dst, e.deliveries)
	dst = wire.AppendUint32(dst, e.failures)
	dst = wire.AppendUint64(dst, uint64(e.at))
	return wire.AppendUint64(dst, uint64(e.arrived))
}

func decodeLoanEffect(b []byte) (effect, error) {
	r := wire.NewReader(b)
	e := effect{
		kind: effectDeliver, queue: queueID(r.Uint64()), consumer: consumerID(r.Uint64()), tag: r.Uint64(),
		slot: slotID(r.Uint32()), seq: r.Uint64(), ref: Ref(r.Uint64()), size: r.Uint32(), part: r.Byte(),
		deliveries: r.Uint32(), failures: r.Uint32(), at: instant(r.Uint64()), arrived: instant(r.Uint64()),
	}
	return e, r.Done()
}

// Refusals travel in answers: kind, then text or fields. The sentinels keep their place in the list
// for ever.
var wireSentinels = []error{
	ErrInvalid, ErrNotFound, ErrNoExchange, ErrInUse, ErrNotEmpty, ErrTooMany, ErrQueueGone, ErrPrecondition,
	ErrLocked,
}

const (
	errorText byte = iota // text around a sentinel, or of its own
	errorInvalid
	errorPrecondition
)

// sentinelError is a refusal that came out of a log: the text of the original, matching its sentinel.
type sentinelError struct {
	text string
	is   error
}

func (e *sentinelError) Error() string { return e.text }
func (e *sentinelError) Unwrap() error { return e.is }

func appendError(dst []byte, err error) []byte {
	var invalid *InvalidError
	var pre *PreconditionError
	switch {
	case errors.As(err, &invalid):
		dst = append(dst, errorInvalid)
		dst = wire.AppendString(dst, invalid.Field)
		return wire.AppendString(dst, invalid.Reason)
	case errors.As(err, &pre):
		dst = append(dst, errorPrecondition)
		dst = wire.AppendString(dst, pre.Object)
		dst = wire.AppendUvarint(dst, uint64(len(pre.Fields)))
		for _, f := range pre.Fields {
			dst = wire.AppendString(dst, f.Field)
			dst = wire.AppendString(dst, f.Have)
			dst = wire.AppendString(dst, f.Want)
		}
		return dst
	}
	is := len(wireSentinels)
	for i, s := range wireSentinels {
		if errors.Is(err, s) {
			is = i
			break
		}
	}
	dst = append(dst, errorText, byte(is))
	return wire.AppendString(dst, err.Error())
}

func decodeError(b []byte) error {
	r := wire.NewReader(b)
	var err error
	switch r.Byte() {
	case errorInvalid:
		err = &InvalidError{Field: r.String(), Reason: r.String()}
	case errorPrecondition:
		pre := &PreconditionError{Object: r.String()}
		for range r.Count(3) {
			pre.Fields = append(pre.Fields, FieldDiff{Field: r.String(), Have: r.String(), Want: r.String()})
		}
		err = pre
	case errorText:
		is := int(r.Byte())
		text := &sentinelError{text: r.String()}
		if is < len(wireSentinels) {
			text.is = wireSentinels[is]
		}
		err = text
	default:
		r.Fail()
	}
	if bad := r.Done(); bad != nil {
		return fmt.Errorf("decode a refusal: %w", bad)
	}
	return err
}
