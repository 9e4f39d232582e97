package bourse

import "github.com/boursemq/bourse/internal/wire"

// valve says whether a queue may hand out messages.
type valve struct {
	paused bool   // by Broker.Pause, until Broker.Resume
	bucket bucket // of Queue.Rate
}

// shut reports whether nothing may be handed out now, whoever asks.
func (q *queue) shut() bool { return q.valve.paused || q.heldUntil(q.now) != 0 }

// appendTo appends whether v is paused and, if there is a rate, its bucket.
func (v valve) appendTo(dst []byte, r Rate) []byte {
	dst = wire.AppendBool(dst, v.paused)
	if r.Deliveries == 0 {
		return dst
	}
	return wire.AppendUvarint(wire.AppendVarint(dst, int64(v.bucket.full)), uint64(v.bucket.part))
}

func (q *queue) decodeValve(r *wire.Reader) {
	v := &q.valve
	if v.paused = r.Bool(); q.def.Rate.Deliveries == 0 {
		return
	}
	v.bucket = bucket{instant(r.Varint()), decodeUint32(r)}
	if int(v.bucket.part) >= q.def.Rate.Deliveries || v.bucket.full == 0 && v.bucket.part != 0 {
		r.Fail()
	}
}

// pause: queue id, whether it is paused from now on.
func appendPause(dst []byte, at instant, queue queueID, paused bool) []byte {
	dst = wire.AppendUvarint(appendHeader(dst, cmdPause, at), uint64(queue))
	return wire.AppendBool(dst, paused)
}

// pause shuts or opens the valve of a queue. What is on loan is not touched.
func (m *machine) pause(r *wire.Reader, out []effect) (Answer, []effect) {
	id, paused := queueID(r.Uvarint()), r.Bool()
	mustDecode(cmdPause, r.Done())
	q := m.at(id)
	if q == nil {
		return Answer{Code: answerGone}, out
	}
	q.valve.paused = paused
	return Answer{Code: answerOK}, m.touch(q, out)
}
