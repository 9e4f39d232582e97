package bourse

// weight is about how many bytes of memory something takes.
type weight struct {
	messages int64 // goes when they do
	ids      int64 // that queues remember, which no consumer frees
}

func (w weight) plus(o weight) weight  { return weight{w.messages + o.messages, w.ids + o.ids} }
func (w weight) minus(o weight) weight { return weight{w.messages - o.messages, w.ids - o.ids} }

// What is counted for each message and id, in bytes. Messages that wait are counted by readySet.memory. These are values in trees,
// whose nodes are three quarters full, and of slots that grow by doubling.
const (
	loanBytes   = 200 // on loan: its slot, and its place in the buffer of the subscription
	restBytes   = 64  // delayed
	dyingBytes  = 112
	extraBytes  = 96 // of a message with a group, a TTL or a delay
	expireBytes = 32 // listed by its TTL
	idBytes     = 144
)

// memory is what the messages in r take.
func (r *readySet) memory() int64 { return int64(r.n)*entryBytes - r.saved }

const (
	entryBytes  = 42  // of an entry in a block, with its share of the block
	packedBytes = 120 // of a packed block, beside its links
)

// saves is how much less p takes than its entries would.
func (p *coldBlock) saves() int64 { return int64(p.n)*entryBytes - packedBytes - int64(len(p.links)) }

// savedIn is what the packed of these lines save.
func savedIn(lines []line) (saved int64) {
	for i := range lines {
		if c := lines[i].cold; c != nil {
			for _, p := range c.row[c.head:] {
				saved += p.saves()
			}
		}
	}
	return saved
}

// weight is what q takes now.
func (q *queue) weight() weight {
	return weight{
		messages: q.ready.memory() + loanBytes*int64(q.ledger.n) + restBytes*int64(q.delayedLen()) + dyingBytes*int64(q.dyingLen()) +
			extraBytes*int64(treeLen(q.extras)) + expireBytes*int64(treeLen(q.expiring)),
		ids: idBytes * int64(q.ids.len()+q.inbox.len()),
	}
}

// scale knows what the queues of a machine weigh. It follows from their state, and nothing in the state follows from it.
type scale struct {
	due  []*queue
	lost weight // of queues that were dropped, less than nothing
}

// scaled is what the scale knows of a queue.
type scaled struct {
	weight weight // when it was weighed last
	due    bool   // it is listed, since it may have changed
}

// weighLater lists a queue that may change.
func (m *machine) weighLater(q *queue) {
	if !q.scaled.due {
		q.scaled.due = true
		m.scale.due = append(m.scale.due, q)
	}
}

// weighNoMore takes a queue that is dropped from the scale.
func (m *machine) weighNoMore(q *queue) {
	m.scale.lost = m.scale.lost.minus(q.scaled.weight)
	q.scaled.weight = weight{}
	if q.scaled.due {
		rest := m.scale.due[:0]
		for _, o := range m.scale.due {
			if o != q {
				rest = append(rest, o)
			}
		}
		m.scale.due = rest
	}
}

// weigh returns by how much the weight of all queues has changed since it was called last.
func (m *machine) weigh() (change weight) {
	change, m.scale.lost = m.scale.lost, weight{}
	for i, q := range m.scale.due {
		now := q.weight()
		change = change.plus(now.minus(q.scaled.weight))
		q.scaled = scaled{weight: now}
		m.scale.due[i] = nil
	}
	m.scale.due = m.scale.due[:0]
	return change
}
