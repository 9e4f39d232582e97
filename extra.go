package bourse

import (
	"time"

	"github.com/google/btree"
)

// extra is what only some messages have, apart from their entries, so that the others need no memory for it. It is found by seq
// and lives as long as the message is in the queue. Extras are values in a tree, never changed in place, so that a snapshot
// shares the tree.
type extra struct {
	seq   uint64
	ttl   time.Duration // Message.TTL: 0 for ever, or NoWait
	start instant       // the TTL counts from here; 0: from the arrival
	group string        // Message.GroupID
	first uint64        // the seq that it arrived with, if Backoff.AtTail has given it another since; else 0
}

func bySeqExtra(a, b extra) bool { return a.seq < b.seq }

// extraOf returns the extra of e, or an empty one.
func (q *queue) extraOf(e entry) extra {
	if !e.extra {
		return extra{}
	}
	x, _ := q.extras.Get(extra{seq: e.seq})
	return x
}

func (q *queue) setExtra(x extra) {
	if q.extras == nil {
		q.extras = btree.NewG(16, bySeqExtra)
	}
	q.extras.ReplaceOrInsert(x)
}

// forget drops the extra of a message that leaves the queue.
func (q *queue) forget(e entry) {
	if e.extra {
		if x, _ := q.extras.Delete(extra{seq: e.seq}); x.first != 0 {
			q.tailed--
		}
	}
}
