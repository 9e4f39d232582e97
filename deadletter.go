package bourse

import (
	"slices"
	"time"
	"unicode/utf8"

	"github.com/boursemq/bourse/internal/wire"
)

// Reasons of a death.
const (
	ReasonRejected      = "rejected"       // a consumer rejected it
	ReasonDeliveryLimit = "delivery_limit" // it failed once more than Queue.MaxRetries
	ReasonExpired       = "expired"        // it waited longer than its TTL, or that of the queue
	ReasonMaxLength     = "maxlen"         // it had to go at a limit of its queue, see DropHead
	ReasonCycle         = "cycle"          // parked: dead-lettering would go round for ever
	ReasonUnroutable    = "unroutable"     // parked: the dead-letter exchange led nowhere
)

// Death is what a message carries of its deaths in one queue for one reason. A history
// is sorted by the latest death, newest first. It belongs to the broker: it survives restarts and
// moves, and a publish starts without one whatever headers it carries.
type Death struct {
	Queue      string
	Reason     string
	Count      int       // deaths in this queue for this reason
	Failures   int       // deliveries that had gone wrong in this queue, at the latest
	First      time.Time // the first of them
	Last       time.Time // the latest
	Exchange   string    // it was published to before the first of them
	RoutingKey string    // likewise
	Note       string    // what the consumer said at the latest: a handler's error, the text of Reject
	// TTL is Message.TTL as it was before the first of them, which took it away: it would not count where the dead wait.
	TTL time.Duration
}

// maxDeaths bounds a history. Beyond it the oldest entries but the very first death
// are forgotten; a message comes here only by dying in so many different queues.
const maxDeaths = 64

// maxNoteBytes is how much of a consumer's explanation is kept.
const maxNoteBytes = 255

// bury adds a death to a history and returns the new history. A death in the same queue for the same
// reason as an earlier one is counted there and moves to the front; time and address of the first stay
// (as RabbitMQ's x-death). The history passed in is not changed.
func bury(history []Death, d Death) []Death {
	out := make([]Death, 0, len(history)+1)
	out = append(out, d)
	for _, h := range history {
		if h.Queue == d.Queue && h.Reason == d.Reason {
			h.Count++
			h.Last, h.Failures, h.Note = d.Last, d.Failures, d.Note
			out[0] = h
			continue
		}
		out = append(out, h)
	}
	for len(out) > maxDeaths {
		oldest := len(out) - 1
		if firstDeath(out) == oldest {
			oldest--
		}
		out = slices.Delete(out, oldest, oldest+1)
	}
	return out
}

// firstDeath is the place of the entry that counts the very first death. It is not always the last one,
// since an entry moves to the front when a death is counted in it.
func firstDeath(history []Death) int {
	first := 0
	for i := range history {
		if !history[i].First.After(history[first].First) {
			first = i
		}
	}
	return first
}

// cycles reports whether a message with this history, its latest death first, would go round for ever
// if it went to target: it died there before, and no consumer rejected it since. A rejection
// breaks the circle, because it is a decision each time.
func cycles(history []Death, target string) bool {
	for _, h := range history {
		if h.Reason == ReasonRejected {
			return false
		}
		if h.Queue == target {
			return true
		}
	}
	return false
}

// clipNote shortens a consumer's explanation to maxNoteBytes.
func clipNote(s string) string {
	if len(s) <= maxNoteBytes {
		return s
	}
	n := maxNoteBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n-- // not through the middle of a character
	}
	return s[:n]
}

// A history in a message: version, count, then each death from the newest.
const deathsVersion = 1

func appendDeaths(dst []byte, history []Death) []byte {
	dst = append(dst, deathsVersion)
	dst = wire.AppendUvarint(dst, uint64(len(history)))
	for _, d := range history {
		dst = wire.AppendString(dst, d.Queue)
		dst = wire.AppendString(dst, d.Reason)
		dst = wire.AppendUvarint(dst, uint64(d.Count))
		dst = wire.AppendUvarint(dst, uint64(d.Failures))
		dst = wire.AppendVarint(dst, d.First.UnixNano())
		dst = wire.AppendVarint(dst, d.Last.UnixNano())
		dst = wire.AppendString(dst, d.Exchange)
		dst = wire.AppendString(dst, d.RoutingKey)
		dst = wire.AppendString(dst, d.Note)
		dst = wire.AppendVarint(dst, int64(d.TTL))
	}
	return dst
}

func decodeDeaths(b []byte) ([]Death, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := wire.NewReader(b)
	if r.Byte() != deathsVersion {
		r.Fail()
	}
	history := make([]Death, 0, r.Count(10))
	for range cap(history) {
		history = append(history, Death{
			Queue:      r.String(),
			Reason:     r.String(),
			Count:      int(r.Uvarint()),
			Failures:   int(r.Uvarint()),
			First:      time.Unix(0, r.Varint()),
			Last:       time.Unix(0, r.Varint()),
			Exchange:   r.String(),
			RoutingKey: r.String(),
			Note:       r.String(),
			TTL:        time.Duration(r.Varint()),
		})
	}
	return history, r.Done()
}
