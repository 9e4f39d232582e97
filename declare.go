package bourse

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/internal/wire"
)

// Limits that hold for every broker. Those that Options can lower say so there.
const (
	MaxNameBytes     = 255       // of a name, routing key, binding key or message id
	MaxHeaders       = 64        // per message
	MaxHeaderBytes   = 64 << 10  // of a message's headers, encoded
	MaxBodyBytes     = 128 << 20 // of a body; Options.MaxBodyBytes defaults to 16 MiB
	MaxPriorities    = 256       // levels of a queue
	MaxPrefetch      = 65535     // unacked deliveries of a subscription
	MaxExchangeHops  = 64        // exchanges visited by one publish, over bindings and alternates
	MaxQueues        = 10_000    // of a broker
	MaxExchanges     = 10_000    // of a broker
	MaxBindings      = 100_000   // of a broker
	MaxWeight        = 100       // of a binding to a ConsistentHash exchange
	MaxAckDeadline   = 7 * 24 * time.Hour
	MaxDelay         = 10 * 365 * 24 * time.Hour
	DefaultRetries   = 20               // failures a message survives
	DefaultDeadline  = 30 * time.Minute // of a loan
	DefaultBodyBytes = 16 << 20
)

// Values for Queue.MaxRetries. NoLimit is one for Queue.GroupConcurrency as well.
const (
	NoRetry = -2 // the first failure is death
	NoLimit = -1 // a message is retried for ever; a group may have any number on loan
)

// ParkingQueue is the broker's own queue for messages that died by rejection or by the
// retry limit and that no dead-letter exchange took. It always exists, is durable, and
// can be consumed like any other; it cannot be declared, bound or deleted.
const ParkingQueue = "bourse.parked"

// Declaration is an Exchange, a Queue, a Binding or a Schedule. The set is closed.
type Declaration interface{ declaration() }

func (Exchange) declaration() {}
func (Queue) declaration()    {}
func (Binding) declaration()  {}

// ExchangeKind says how an exchange chooses among its bindings.
type ExchangeKind uint8

const (
	Direct         ExchangeKind = iota // the binding key equals the routing key
	Fanout                             // every binding
	Topic                              // the binding key is a pattern of words with * and #
	HeadersMatch                       // the binding's Headers against the message's
	ConsistentHash                     // one target, chosen by a hash of the routing key
)

func (k ExchangeKind) String() string {
	switch k {
	case Direct:
		return "direct"
	case Fanout:
		return "fanout"
	case Topic:
		return "topic"
	case HeadersMatch:
		return "headers"
	case ConsistentHash:
		return "consistent-hash"
	}
	return "kind " + strconv.Itoa(int(k))
}

// Exchange receives published messages and routes them by its bindings. Names that
// start with "bourse." are reserved; the default exchange is the one without a name.
type Exchange struct {
	Name string
	Kind ExchangeKind // default Direct
	// Alternate names an exchange that gets what routing here brings to no queue, be it
	// published here or come over a binding. It need not exist yet; while it does not,
	// such messages are unroutable.
	Alternate string
}

// Binding leads from an exchange to a queue or to another exchange. Exactly one of Queue and
// Destination is set. Two bindings are the same if all fields are equal once defaults are
// applied. Whatever the number of bindings that match, a queue gets one copy of a message.
type Binding struct {
	Exchange    string
	Queue       string // the target, if it is a queue
	Destination string // the target, if it is an exchange
	// Key is compared with the routing key: equal for Direct, a pattern for Topic (words
	// between dots; * is one word, # is zero or more). Fanout, HeadersMatch and
	// ConsistentHash ignore it.
	Key string
	// Headers are the criteria of a HeadersMatch exchange, with the same value types as
	// Message.Headers. "x-match" is all (default), any, all-with-x or any-with-x; a nil
	// value asks only that the header be present. Numbers are compared by value whatever
	// their types, exactly; other values by type and value. The modes all and any ignore
	// criteria that start with "x-".
	Headers map[string]any
	// Weight is the target's share at a ConsistentHash exchange: 1 to MaxWeight, default 1.
	// The weights of several bindings to one target add up. A negative weight drains the
	// target: it gets no keys while such a binding is there, whatever its other bindings.
	Weight int
}

// Queue holds messages until they are acked. The zero value of every field is its default.
type Queue struct {
	Name string
	// Priorities is the number of levels, 1 (default) to MaxPriorities. A message of
	// priority p waits at level min(p, Priorities-1); the highest level goes first.
	Priorities int
	// Fairness lets lower levels have their part. Default: strict priority.
	Fairness Fairness
	// BumpOnRedelivery raises a message by one level, up to the highest, with each failure that it survives. It then waits
	// at its place by arrival there. Message.Priority, which a dead-letter queue goes by, stays as it was.
	BumpOnRedelivery bool
	// MaxMessages bounds how many messages wait here: those that are ready, delayed, or dead and not in their dead-letter
	// queues yet. What consumers hold does not count, and may come back above the limit. Default: no limit.
	MaxMessages int64
	// MaxBytes bounds the same messages by what they take in the log, were nothing compressed: body, headers, names, fifty bytes each. A
	// message that is larger alone is refused; a duplicate may replace a smaller one, see Dedup. Default: no limit.
	MaxBytes int64
	// Overflow says what happens to a publish for which there is no room. Default RejectPublish.
	Overflow Overflow
	// MaxRetries is how many failures a message survives: one more is death. Default
	// DefaultRetries; NoRetry and NoLimit are special.
	MaxRetries int
	// Retry is the pause before a failed message is ready again. Default: none.
	Retry Backoff
	// AckDeadline is the longest loan: a delivery that is not settled by then counts as a
	// failure and goes back. Default DefaultDeadline, at most MaxAckDeadline.
	AckDeadline time.Duration
	// TTL is how long a message may wait here, see Message.TTL. 0 is for ever, NoWait not at all; at most MaxDelay. What
	// expires goes to the dead-letter exchange, if there is one; else it is dropped and counted.
	TTL time.Duration
	// GroupConcurrency is how many messages with one Message.GroupID may be on loan, or resting after a failure, at a time: 1
	// (default) to MaxGroupConcurrency, or NoLimit, with which groups only take turns. With more than one they begin in order.
	GroupConcurrency int
	// SingleActiveConsumer lets one subscription at a time have messages: the first one that came, until it ends. What it holds is
	// back in its place before another gets anything, and that is, of those that are there, the one of the highest
	// SubscribeOptions.Priority, among equals the one that came first. One that comes later takes over from nobody, whatever its
	// priority. Each change has a new epoch, see Delivery.Epoch. Get is refused. It is fixed when the queue is declared.
	SingleActiveConsumer bool
	// Rate bounds how fast messages are handed out. Default: no bound.
	Rate Rate
	// DeadLetter says where the dead go. Default: to ParkingQueue.
	DeadLetter DeadLetter
	// Dedup says which publishes are repetitions. Default: none.
	Dedup Dedup
	// Transient keeps the queue and what it holds in memory alone: nothing of it comes to the log, a confirm means that it is in
	// memory, and all of it is gone, the declaration and its bindings too, when the broker is closed or its process
	// ends. It is refused where an Engine spreads its queues over several instances.
	Transient bool
	// Inbox is how long the queue remembers what its consumers ended by Inbox.Done. Default: it has no inbox.
	Inbox InboxMemory
	// Expires is how long the queue may be unused: then it is deleted, as by Delete. A subscription, until it ends, a Get and a
	// Declare of the queue are uses, and so is an Update that changes it; a publish is none, nor is holding what Get has given.
	// The time goes on while no broker has the data open; if a crash has ended subscriptions, it begins with the next open.
	// Default: for ever; at most MaxDelay.
	Expires time.Duration
	// AutoDelete deletes the queue, as by Delete, when its last subscription ends, or the Work behind it; before the first one has
	// begun it stays. What that subscription held is deleted with it, so the queue must be Transient. When Subscription.Close
	// returns the queue is gone. A Get is no subscription.
	AutoDelete bool
	// Exclusive keeps the queue for the Broker that declares it: at another one on the same Engine, to consume from it or look into
	// it, to declare, check, bind, change, purge, pause or delete it is ErrLocked. Publishing is open to all. It goes when that
	// Broker is closed or its process ends, so it must be Transient. As those are refused where several instances share an Engine,
	// there is one Broker for now, and nobody else to be locked out.
	Exclusive bool
}

// DeadLetter says what happens to a message that was rejected or failed once too often.
type DeadLetter struct {
	// Exchange to publish the dead to. It is looked up when a message dies; if it does not
	// exist then, or leads to no queue, the message goes to ParkingQueue.
	Exchange string
	// RoutingKey to publish them with. Default: the message's own.
	RoutingKey string
	// Discard drops the dead instead, counted. Not together with Exchange.
	Discard bool
}

// reservedPrefix starts the names that only the broker itself may give.
const reservedPrefix = "bourse."

func invalid(field, format string, args ...any) *InvalidError {
	return &InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// validateName checks the name of a queue or exchange, or another identifier that must not
// be empty: 1 to MaxNameBytes bytes of UTF-8 without control characters. It returns nil if
// s is one; the result is a concrete type, so compare it before it becomes an error.
func validateName(field, s string) *InvalidError {
	if s == "" {
		return invalid(field, "is empty")
	}
	return validateKey(field, s)
}

// validateKey checks a routing or binding key, which may be empty and is otherwise
// bound as a name is.
func validateKey(field, s string) *InvalidError {
	if len(s) > MaxNameBytes {
		return invalid(field, "has %d bytes, the limit is %d", len(s), MaxNameBytes)
	}
	if !utf8.ValidString(s) {
		return invalid(field, "is not UTF-8")
	}
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 {
		return invalid(field, "has a control character at byte %d", i)
	}
	return nil
}

// validateOwnName checks a name that a caller declares, binds or deletes: the default
// exchange and what the broker made itself are out of reach.
func validateOwnName(field, s string) *InvalidError {
	if err := validateName(field, s); err != nil {
		return err
	}
	if strings.HasPrefix(s, reservedPrefix) {
		return invalid(field, "%q is reserved: names that start with %q belong to the broker", s, reservedPrefix)
	}
	return nil
}

// validateExchangeName is validateOwnName for an exchange, where no name at all means the
// default exchange.
func validateExchangeName(field, s string) *InvalidError {
	if s == "" {
		return invalid(field, "is empty: the default exchange always exists and cannot be declared, bound or deleted")
	}
	return validateOwnName(field, s)
}

func (d Exchange) validate() *InvalidError {
	if err := validateExchangeName("Exchange.Name", d.Name); err != nil {
		return err
	}
	if d.Kind > ConsistentHash {
		return invalid("Exchange.Kind", "is %d, which is no kind", d.Kind)
	}
	if d.Alternate != "" {
		return validateName("Exchange.Alternate", d.Alternate)
	}
	return nil
}

func (d Queue) validate() *InvalidError {
	if err := validateOwnName("Queue.Name", d.Name); err != nil {
		return err
	}
	return d.validateSettings()
}

// validateSettings checks all but the name, for the queues that the broker makes itself.
func (d Queue) validateSettings() *InvalidError {
	switch {
	case d.Priorities < 0 || d.Priorities > MaxPriorities:
		return invalid("Queue.Priorities", "is %d, want 0 to %d", d.Priorities, MaxPriorities)
	case d.MaxRetries < NoRetry || d.MaxRetries > math.MaxInt32:
		return invalid("Queue.MaxRetries", "is %d, want 0 to %d, NoLimit or NoRetry", d.MaxRetries, math.MaxInt32)
	case d.AckDeadline < 0 || d.AckDeadline > MaxAckDeadline:
		return invalid("Queue.AckDeadline", "is %v, want 0 to %v", d.AckDeadline, MaxAckDeadline)
	case d.TTL < NoWait || d.TTL > MaxDelay:
		return invalid("Queue.TTL", "is %v, want 0 to %v, or NoWait", d.TTL, time.Duration(MaxDelay))
	case d.GroupConcurrency < NoLimit || d.GroupConcurrency > MaxGroupConcurrency:
		return invalid("Queue.GroupConcurrency", "is %d, want 0 to %d, or NoLimit", d.GroupConcurrency, MaxGroupConcurrency)
	case d.Expires < 0 || d.Expires > MaxDelay:
		return invalid("Queue.Expires", "is %v, want 0 to %v", d.Expires, time.Duration(MaxDelay))
	case d.Exclusive && !d.Transient:
		return invalid("Queue.Exclusive", "is set, but the queue is not Transient: it would outlive the broker that it belongs to")
	case d.AutoDelete && !d.Transient:
		return invalid("Queue.AutoDelete", "is set, but the queue is not Transient: what its last consumer holds would be lost")
	case d.DeadLetter.Discard && d.DeadLetter.Exchange != "":
		return invalid("Queue.DeadLetter.Discard", "is set together with Exchange")
	case d.DeadLetter.RoutingKey != "" && d.DeadLetter.Exchange == "":
		return invalid("Queue.DeadLetter.RoutingKey", "is set without Exchange")
	}
	if d.DeadLetter.Exchange != "" {
		if err := validateName("Queue.DeadLetter.Exchange", d.DeadLetter.Exchange); err != nil {
			return err
		}
	}
	if err := d.validateFairness(); err != nil {
		return err
	}
	if err := d.Retry.validate(); err != nil {
		return err
	}
	if err := d.Rate.validate(); err != nil {
		return err
	}
	if err := d.Dedup.validate(); err != nil {
		return err
	}
	if err := d.Inbox.validate(); err != nil {
		return err
	}
	if err := d.validateLimits(); err != nil {
		return err
	}
	return validateKey("Queue.DeadLetter.RoutingKey", d.DeadLetter.RoutingKey)
}

// validate checks what can be told without the exchange's kind; validateFor does the rest.
func (d Binding) validate() *InvalidError {
	if err := validateExchangeName("Binding.Exchange", d.Exchange); err != nil {
		return err
	}
	switch {
	case d.Queue == "" && d.Destination == "":
		return invalid("Binding.Queue", "is empty, and so is Destination: one of them is the target")
	case d.Queue != "" && d.Destination != "":
		return invalid("Binding.Destination", "is set together with Queue: a binding has one target")
	case d.Weight > MaxWeight:
		return invalid("Binding.Weight", "is %d, the limit is %d", d.Weight, MaxWeight)
	}
	var err *InvalidError
	if d.Queue != "" {
		err = validateOwnName("Binding.Queue", d.Queue)
	} else {
		err = validateExchangeName("Binding.Destination", d.Destination)
	}
	if err != nil {
		return err
	}
	if err := validateKey("Binding.Key", d.Key); err != nil {
		return err
	}
	return validateCriteria("Binding.Headers", d.Headers)
}

// validateFor checks the fields that have a meaning only for some kinds of exchange. A
// field without a meaning is refused rather than ignored, since who set it expects it to
// act. Key is the exception: it also tells bindings apart.
func (d Binding) validateFor(kind ExchangeKind) *InvalidError {
	if len(d.Headers) > 0 && kind != HeadersMatch {
		return invalid("Binding.Headers", "is set, but exchange %q is of kind %v", d.Exchange, kind)
	}
	if d.Weight != 0 && kind != ConsistentHash {
		return invalid("Binding.Weight", "is set, but exchange %q is of kind %v", d.Exchange, kind)
	}
	return nil
}

// validateDeclarations checks each of ds by itself, in order. Only what passes may be encoded.
func validateDeclarations(ds []Declaration) error {
	for _, d := range ds {
		var err *InvalidError
		switch d := d.(type) {
		case Exchange:
			err = d.validate()
		case Queue:
			err = d.validate()
		case Binding:
			err = d.validate()
		case Schedule:
			err = d.validate()
		default:
			err = notDeclaration(d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// validateRemovals checks each of ds as the name of something to remove. Of exchanges,
// queues and schedules only the name counts.
func validateRemovals(ds []Declaration) error {
	for _, d := range ds {
		var err *InvalidError
		switch d := d.(type) {
		case Exchange:
			err = validateExchangeName("Exchange.Name", d.Name)
		case Queue:
			err = validateOwnName("Queue.Name", d.Name)
		case Binding:
			err = d.validate()
		case Schedule:
			err = validateScheduleName(d.Name)
		default:
			err = notDeclaration(d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// notDeclaration refuses nil, and the pointers that Go lets through because the methods of
// a value are also those of its pointer.
func notDeclaration(d Declaration) *InvalidError {
	return invalid("Declaration", "is of type %T, want an Exchange, Queue, Binding or Schedule value", d)
}

func (d Queue) withDefaults() Queue {
	if d.Priorities == 0 {
		d.Priorities = 1
	}
	if d.MaxRetries == 0 {
		d.MaxRetries = DefaultRetries
	}
	d.Retry = d.Retry.withDefaults()
	d.Rate = d.Rate.withDefaults()
	d.Dedup = d.Dedup.withDefaults()
	d.Inbox = d.Inbox.withDefaults()
	if d.AckDeadline == 0 {
		d.AckDeadline = DefaultDeadline
	}
	if d.GroupConcurrency == 0 {
		d.GroupConcurrency = 1
	}
	return d
}

// withDefaults returns d as an exchange of the kind sees it: two declarations of the same
// binding become equal.
func (d Binding) withDefaults(kind ExchangeKind) Binding {
	if kind == ConsistentHash {
		switch {
		case d.Weight == 0:
			d.Weight = 1
		case d.Weight < 0:
			d.Weight = -1
		}
	}
	return d
}

// fieldDiffs collects what differs between what exists and what was declared.
type fieldDiffs []FieldDiff

func (f *fieldDiffs) add(field, have, want string) {
	if have != want {
		*f = append(*f, FieldDiff{Field: field, Have: have, Want: want})
	}
}

// precondition returns nil if nothing differs, as an error and not as a nil pointer in one.
func (f fieldDiffs) precondition(object string) error {
	if len(f) == 0 {
		return nil
	}
	return &PreconditionError{Object: object, Fields: f}
}

// compare returns a *PreconditionError with every field in which have, which exists, is
// not as d says.
func (d Exchange) compare(have Exchange) error {
	var f fieldDiffs
	f.add("Kind", have.Kind.String(), d.Kind.String())
	f.add("Alternate", strconv.Quote(have.Alternate), strconv.Quote(d.Alternate))
	return f.precondition(fmt.Sprintf("exchange %q", d.Name))
}

// compare is Exchange.compare for queues; both have their defaults applied.
func (d Queue) compare(have Queue) error {
	var f fieldDiffs
	f.add("Priorities", strconv.Itoa(have.Priorities), strconv.Itoa(d.Priorities))
	f.add("Fairness.LowerOneIn", strconv.Itoa(have.Fairness.LowerOneIn), strconv.Itoa(d.Fairness.LowerOneIn))
	f.add("Fairness.Aging", have.Fairness.Aging.String(), d.Fairness.Aging.String())
	f.add("BumpOnRedelivery", strconv.FormatBool(have.BumpOnRedelivery), strconv.FormatBool(d.BumpOnRedelivery))
	d.compareLimits(have, &f)
	f.add("MaxRetries", retriesText(have.MaxRetries), retriesText(d.MaxRetries))
	d.Retry.compare(have.Retry, &f)
	f.add("TTL", have.TTL.String(), d.TTL.String())
	f.add("GroupConcurrency", retriesText(have.GroupConcurrency), retriesText(d.GroupConcurrency))
	f.add("SingleActiveConsumer", strconv.FormatBool(have.SingleActiveConsumer), strconv.FormatBool(d.SingleActiveConsumer))
	d.Rate.compare(have.Rate, &f)
	f.add("AckDeadline", have.AckDeadline.String(), d.AckDeadline.String())
	f.add("Transient", strconv.FormatBool(have.Transient), strconv.FormatBool(d.Transient))
	f.add("DeadLetter.Exchange", strconv.Quote(have.DeadLetter.Exchange), strconv.Quote(d.DeadLetter.Exchange))
	f.add("DeadLetter.RoutingKey", strconv.Quote(have.DeadLetter.RoutingKey), strconv.Quote(d.DeadLetter.RoutingKey))
	f.add("DeadLetter.Discard", strconv.FormatBool(have.DeadLetter.Discard), strconv.FormatBool(d.DeadLetter.Discard))
	d.Dedup.compare(have.Dedup, &f)
	d.Inbox.compare(have.Inbox, &f)
	f.add("Expires", have.Expires.String(), d.Expires.String())
	f.add("Exclusive", strconv.FormatBool(have.Exclusive), strconv.FormatBool(d.Exclusive))
	f.add("AutoDelete", strconv.FormatBool(have.AutoDelete), strconv.FormatBool(d.AutoDelete))
	return f.precondition(fmt.Sprintf("queue %q", d.Name))
}

func retriesText(n int) string {
	switch n {
	case NoLimit:
		return "NoLimit"
	case NoRetry:
		return "NoRetry"
	}
	return strconv.Itoa(n)
}

// The encoding of declarations, for commands and checkpoints:
//
//	version 1 | count | count times: kind, then the fields in the order of the struct
//
// Strings and header sets have their length before them, numbers are varints. A new field
// is a new version.
const declarationVersion = 1

const (
	kindExchange = 1 + iota
	kindQueue
	kindBinding
	kindSchedule
)

// appendDeclarations appends ds, which have passed validateDeclarations or validateRemovals.
func appendDeclarations(dst []byte, ds []Declaration) []byte {
	dst = append(dst, declarationVersion)
	dst = wire.AppendUvarint(dst, uint64(len(ds)))
	for _, d := range ds {
		switch d := d.(type) {
		case Exchange:
			dst = d.appendTo(append(dst, kindExchange))
		case Queue:
			dst = d.appendTo(append(dst, kindQueue))
		case Binding:
			dst = d.appendTo(append(dst, kindBinding))
		case Schedule:
			dst = d.appendTo(append(dst, kindSchedule))
		default:
			invariant.Check(false, "a %T among declarations to encode", d)
		}
	}
	return dst
}

// decodeDeclarations reads what appendDeclarations wrote. It checks the form only: values are
// checked where they are used, so that a refusal is an answer. On input that does not
// decode r fails and the result is nil.
func decodeDeclarations(r *wire.Reader) []Declaration {
	if r.Byte() != declarationVersion {
		r.Fail()
	}
	n := r.Count(2)
	ds := make([]Declaration, 0, min(n, 1024))
	for range n {
		switch r.Byte() {
		case kindExchange:
			ds = append(ds, decodeExchange(r))
		case kindQueue:
			ds = append(ds, decodeQueue(r))
		case kindBinding:
			ds = append(ds, decodeBinding(r))
		case kindSchedule:
			ds = append(ds, decodeSchedule(r))
		default:
			r.Fail()
		}
		if r.Err() != nil {
			return nil
		}
	}
	if r.Err() != nil {
		return nil
	}
	return ds
}

func (d Exchange) appendTo(dst []byte) []byte {
	dst = wire.AppendString(dst, d.Name)
	dst = append(dst, byte(d.Kind))
	return wire.AppendString(dst, d.Alternate)
}

func decodeExchange(r *wire.Reader) Exchange {
	return Exchange{Name: r.String(), Kind: ExchangeKind(r.Byte()), Alternate: r.String()}
}

func (d Queue) appendTo(dst []byte) []byte {
	dst = wire.AppendString(dst, d.Name)
	dst = wire.AppendVarint(dst, int64(d.Priorities))
	dst = wire.AppendBool(d.Fairness.appendTo(dst), d.BumpOnRedelivery)
	dst = wire.AppendVarint(dst, d.MaxMessages)
	dst = append(wire.AppendVarint(dst, d.MaxBytes), byte(d.Overflow))
	dst = wire.AppendVarint(dst, int64(d.MaxRetries))
	dst = d.Retry.appendTo(dst)
	dst = wire.AppendVarint(dst, int64(d.AckDeadline))
	dst = wire.AppendVarint(dst, int64(d.TTL))
	dst = d.Rate.appendTo(wire.AppendVarint(dst, int64(d.GroupConcurrency)))
	dst = wire.AppendBool(dst, d.SingleActiveConsumer)
	dst = wire.AppendBool(dst, d.Transient)
	dst = wire.AppendString(dst, d.DeadLetter.Exchange)
	dst = wire.AppendString(dst, d.DeadLetter.RoutingKey)
	dst = wire.AppendBool(dst, d.DeadLetter.Discard)
	dst = d.Inbox.appendTo(d.Dedup.appendTo(dst))
	return wire.AppendBool(wire.AppendBool(wire.AppendVarint(dst, int64(d.Expires)), d.AutoDelete), d.Exclusive)
}

func decodeQueue(r *wire.Reader) Queue {
	return Queue{
		Name:                 r.String(),
		Priorities:           decodeInt(r),
		Fairness:             decodeFairness(r),
		BumpOnRedelivery:     r.Bool(),
		MaxMessages:          r.Varint(),
		MaxBytes:             r.Varint(),
		Overflow:             Overflow(r.Byte()),
		MaxRetries:           decodeInt(r),
		Retry:                decodeBackoff(r),
		AckDeadline:          time.Duration(r.Varint()),
		TTL:                  time.Duration(r.Varint()),
		GroupConcurrency:     decodeInt(r),
		Rate:                 decodeRate(r),
		SingleActiveConsumer: r.Bool(),
		Transient:            r.Bool(),
		DeadLetter:           DeadLetter{Exchange: r.String(), RoutingKey: r.String(), Discard: r.Bool()},
		Dedup:                decodeDedup(r),
		Inbox:                decodeInboxMemory(r),
		Expires:              time.Duration(r.Varint()),
		AutoDelete:           r.Bool(),
		Exclusive:            r.Bool(),
	}
}

func (d Binding) appendTo(dst []byte) []byte {
	dst = wire.AppendString(dst, d.Exchange)
	dst = wire.AppendString(dst, d.Queue)
	dst = wire.AppendString(dst, d.Destination)
	dst = wire.AppendString(dst, d.Key)
	dst = wire.AppendBytes(dst, appendHeaders(nil, d.Headers))
	return wire.AppendVarint(dst, int64(d.Weight))
}

func decodeBinding(r *wire.Reader) Binding {
	d := Binding{Exchange: r.String(), Queue: r.String(), Destination: r.String(), Key: r.String()}
	h, err := decodeHeaders(r.Bytes())
	if err != nil {
		r.Fail()
	}
	d.Headers, d.Weight = h, decodeInt(r)
	return d
}

// decodeInt reads a number that must fit 32 bits, so that all platforms read the same.
func decodeInt(r *wire.Reader) int {
	v := r.Varint()
	if v < math.MinInt32 || v > math.MaxInt32 {
		r.Fail()
		return 0
	}
	return int(v)
}
