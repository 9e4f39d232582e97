package bourse

import "slices"

// Backoff.AtTail in the naive model of machine_plain_test.go.

// toTail moves a message that was handed out and has rested since behind all others.
func (q *plainQueue) toTail(m *plainMessage) {
	if q.def.Retry.AtTail && m.deliveries > 0 && m.group == "" {
		i := slices.Index(q.messages, m)
		q.messages = append(slices.Delete(q.messages, i, i+1), m)
		m.seq = q.nextSeq
		q.nextSeq++
	}
}

// numbered is the message with a number, or nil.
func (q *plainQueue) numbered(number uint64) *plainMessage {
	for _, m := range q.messages {
		if m.number == number {
			return m
		}
	}
	return nil
}
