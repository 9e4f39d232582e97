package bourse

import "github.com/boursemq/bourse/internal/wire"

// valve says whether a queue may hand out messages.
type valve struct {
	paused bool // by Broker.Pause, until Broker.Resume
}

// shut reports whether nothing may be handed out now, whoever asks.
func (q *queue) shut() bool { return q.valve.paused }

func (v valve) appendTo(dst []byte) []byte { return wire.AppendBool(dst, v.paused) }

func (q *queue) decodeValve(r *wire.Reader) { q.valve.paused = r.Bool() }

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
