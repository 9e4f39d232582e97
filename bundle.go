package bourse

import (
	"slices"

	"github.com/boursemq/bourse/internal/wire"
)

// A bundle is several messages in one command, so in one record of a log: a crash leaves all of them or none. It may
// settle a loan as well. A message in it is addressed by the command and its number there, its part; that is in entry, where it
// costs no memory. To read one the whole command is read, since that is what its checksum covers, so bundles are bounded.
//
//	loan      1 byte, 1 if a loan is acked; then queue, consumer, tag, slot
//	messages  count, then for each: length and bytes, which are as in an enqueue: count, queue ids, message
type bundle struct {
	ack   bool
	loan  settle // queue, consumer, tag and slot
	parts []packed
}

// packed is one message of a bundle.
type packed struct {
	targets wire.Reader // at the count of the queue ids
	rest    wire.Reader // behind the attributes
	attributes
	size uint32
}

// maxParts is what entry.part can number.
const maxParts = 1<<8 - 1

func appendBundle(dst []byte, ack *settle, parts [][]byte) []byte {
	if ack == nil {
		dst = append(dst, 0)
	} else {
		dst = append(dst, 1)
		dst = wire.AppendUvarint(dst, uint64(ack.queue))
		dst = wire.AppendUvarint(dst, uint64(ack.consumer))
		dst = wire.AppendUvarint(dst, ack.tag)
		dst = wire.AppendUvarint(dst, uint64(uint32(ack.slot)))
	}
	dst = wire.AppendUvarint(dst, uint64(len(parts)))
	for _, p := range parts {
		dst = wire.AppendBytes(dst, p)
	}
	return dst
}

// decodeBundleHead reads what comes before the messages, and how many these are.
func decodeBundleHead(r *wire.Reader) (x bundle, n int) {
	if x.ack = r.Bool(); x.ack {
		x.loan.queue, x.loan.consumer, x.loan.tag = queueID(r.Uvarint()), consumerID(r.Uvarint()), r.Uvarint()
		slot := r.Uvarint()
		if slot > 1<<31-1 {
			r.Fail()
		}
		x.loan.slot = slotID(slot)
	}
	if n = r.Count(1); n > maxParts {
		r.Fail()
		n = 0
	}
	return x, n
}

func decodeBundle(r *wire.Reader) bundle {
	x, n := decodeBundleHead(r)
	for range n {
		b := r.Bytes()
		p := packed{targets: wire.NewReader(b)}
		p.rest = p.targets
		targets := p.rest.Count(1)
		for range targets {
			p.rest.Uvarint()
		}
		p.attributes = decodeAttributes(&p.rest)
		p.size = p.plain(len(b))
		if targets == 0 || p.rest.Err() != nil {
			r.Fail()
			return x
		}
		x.parts = append(x.parts, p)
	}
	return x
}

// partOf finds message number n, from 1, in a command that holds a bundle. It is in the form of an enqueue without header.
func partOf(cmd []byte, n uint8) ([]byte, error) {
	r := wire.NewReader(cmd)
	kind := commandKind(r.Byte())
	r.Uint64()
	_, count := decodeBundleHead(&r)
	if kind != cmdBundle || n == 0 || int(n) > count {
		r.Fail()
	}
	for range n - 1 {
		r.Bytes()
	}
	return r.Bytes(), r.Err()
}

// each calls yield with the queues of p that are there.
func (m *machine) each(p *packed, yield func(*queue)) {
	targets := p.targets
	for range targets.Count(1) {
		if q := m.at(queueID(targets.Uvarint())); q != nil {
			yield(q)
		}
	}
}

// bundle carries out all of a bundle or nothing: the loan must be there, of each message at least one queue, and room in all of
// them. What it brings is visible, and lent, only when all of it is there.
func (m *machine) bundle(ref Ref, x *bundle, out []effect) (res applied, _ []effect) {
	var touched []*queue
	var first []uint64 // number of the first that the bundle brings to each of touched
	touch := func(q *queue) {
		if !slices.Contains(touched, q) {
			touched = append(touched, q)
			first = append(first, q.nextSeq)
		}
	}
	if x.ack {
		q := m.at(x.loan.queue)
		switch {
		case q == nil:
			res.answer.Code = answerGone
			return res, out
		case q.ledger.find(x.loan.consumer, x.loan.tag, x.loan.slot) == noSlot:
			res.answer.Code = answerStale
			return res, out
		}
	}
	for i := range x.parts {
		there := 0
		m.each(&x.parts[i], func(*queue) { there++ })
		if there == 0 {
			res.answer.Code = answerTargetGone
			return res, out
		}
	}
	var refused []refusal
	if refused, out = m.bundleRefused(x, out); len(refused) > 0 {
		return applied{answer: refusedAnswer(0, refused)}, out
	}
	if x.ack {
		q := m.at(x.loan.queue)
		_, out = q.settle(x.loan, out)
		touch(q)
	}
	for i := range x.parts {
		p := &x.parts[i]
		p.part = uint8(i + 1)
		m.each(p, func(q *queue) {
			touch(q)
			var kept int
			kept, out = q.accept(ref, p.size, p.attributes, p.rest, out)
			res.kept += kept
		})
	}
	for i, q := range touched {
		out = m.touch(q, out)
		if messages, bytes := q.length(); q.def.evicts() && q.def.exceeds(messages, bytes) {
			out = q.evict(messages-q.waitingFrom(first[i]), first[i], out)
		}
	}
	return res, out
}

// accept takes the message at ref, unless it is a duplicate: of whose attributes r is behind. kept is how many references it took.
func (q *queue) accept(ref Ref, size uint32, a attributes, r wire.Reader, out []effect) (kept int, _ []effect) {
	if q.def.Dedup.on() {
		var again bool
		if again, kept, out = q.repeated(ref, size, &a, r, out); again {
			return kept, out
		}
	}
	q.enqueue(ref, size, a)
	return 1, out
}
