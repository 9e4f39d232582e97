package bourse

import "time"

// Limits that hold for every broker. Those that Options can lower say so there.
const (
	MaxNameBytes     = 255       // of a name, routing key, binding key or message id
	MaxHeaders       = 64        // per message
	MaxHeaderBytes   = 64 << 10  // of a message's headers, encoded
	MaxBodyBytes     = 128 << 20 // of a body; Options.MaxBodyBytes defaults to 16 MiB
	MaxPriorities    = 256       // levels of a queue
	MaxPrefetch      = 65535     // unacked deliveries of a subscription
	MaxExchangeHops  = 64        // exchanges visited by one publish, over bindings and alternates
	MaxAckDeadline   = 7 * 24 * time.Hour
	MaxDelay         = 10 * 365 * 24 * time.Hour
	DefaultRetries   = 20               // failures a message survives
	DefaultDeadline  = 30 * time.Minute // of a loan
	DefaultBodyBytes = 16 << 20
)

// Values for Queue.MaxRetries.
const (
	NoRetry = -2 // the first failure is death
	NoLimit = -1 // a message is retried for ever
)

// ParkingQueue is the broker's own queue for messages that died by rejection or by the
// retry limit and that no dead-letter exchange took. It always exists, is durable, and
// can be consumed like any other; it cannot be declared, bound or deleted.
const ParkingQueue = "bourse.parked"

// Declaration is an Exchange, a Queue or a Binding. The set is closed.
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
	ConsistentHash                     // one binding, chosen by a hash of the routing key
)

// Exchange receives published messages and routes them by its bindings. Names that
// start with "bourse." are reserved; the default exchange is the one without a name.
type Exchange struct {
	Name string
	Kind ExchangeKind // default Direct
	// Alternate names an exchange that gets what routing here brings to no queue. It need
	// not exist yet; while it does not, such messages are unroutable.
	Alternate string
}

// Binding leads from an exchange to a queue or to another exchange. Exactly one of Queue and
// Destination is set. Two bindings are the same if all fields are equal.
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
	// value asks only that the header be present.
	Headers map[string]any
	// Weight is the target's share at a ConsistentHash exchange: 1 to 100, default 1. A
	// negative weight drains: no keys, but the binding stays.
	Weight int
}

// Queue holds messages until they are acked. The zero value of every field is its default.
type Queue struct {
	Name string
	// Priorities is the number of levels, 1 (default) to MaxPriorities. A message of
	// priority p waits at level min(p, Priorities-1); the highest level goes first.
	Priorities int
	// MaxRetries is how many failures a message survives: one more is death. Default
	// DefaultRetries; NoRetry and NoLimit are special.
	MaxRetries int
	// Retry is the pause before a failed message is ready again. Default: none.
	Retry Backoff
	// AckDeadline is the longest loan: a delivery that is not settled by then counts as a
	// failure and goes back. Default DefaultDeadline, at most MaxAckDeadline.
	AckDeadline time.Duration
	// DeadLetter says where the dead go. Default: to ParkingQueue.
	DeadLetter DeadLetter
}

// Backoff is a pause that doubles from Min with each failure, up to Max. The zero value
// is no pause. With Min set, Max defaults to Min: a constant pause.
type Backoff struct{ Min, Max time.Duration }

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
