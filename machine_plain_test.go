package bourse

import (
	"cmp"
	"slices"
	"time"
)

// Goal: a second opinion on the machine, written from the rules of SEMANTICS 2, 3, 7, 8 and 10
// rather than from the code. Method: one slice of messages per queue, one of consumers, linear search
// everywhere, nothing that is kept up to date if it can be counted. What a plainMachine says
// must happen outside is a report, which the tests compare with the effects of a machine.

type plainMachine struct {
	now     instant
	session uint32
	nextID  queueID
	queues  []*plainQueue // by id
	gone    []queueID

	schedules []*plainSchedule // by id
}

type plainQueue struct {
	id        queueID
	def       Queue // with defaults
	updated   bool
	part      uint8 // of the bundle that is taken now; 0: none
	now       instant
	nextSeq   uint64
	turn      uint64
	paused    bool
	credit    plainCredit     // of Rate
	used      instant         // the last time that counts for Expires
	messages  []*plainMessage // those that are not gone, by seq
	consumers []*plainConsumer
	known     []plainID // that deduplication remembers, in order
	done      []plainID // that the inbox does
	count     counters  // bytes aside

	groupTurn uint64            // turns taken since there are groups
	turns     map[string]uint64 // of each group that has a message ready, lent, or resting after a loan
	loose     map[int]uint64    // by level: when one without a group was last lent

	waiting []uint64 // turns of publishes that were told to wait, and did not come in yet
	given   uint64   // of those turns
	stalled bool

	active      *plainConsumer // it may be gone
	activations uint64
}

type plainState int

const (
	plainReady plainState = iota
	plainLent
	plainDelayed
	plainDying
	plainInHand // on the way to another queue
)

type plainMessage struct {
	seq        uint64
	number     uint64 // by arrival
	ref        Ref
	part       uint8
	size       uint32
	level      int
	arrived    instant
	deliveries uint32
	failures   uint32
	state      plainState
	ttl        time.Duration // its own; 0: none
	since      instant       // the TTL counts from here
	group      string
	engaged    bool // in hand: it counts against its group

	at       instant // delayed: until when; lent: the deadline; dying: since when
	holder   *plainConsumer
	tag      uint64
	slot     slotID // learnt from the machine: where it keeps the loan is its own affair
	extended bool
	reason   string
	note     string
}

type plainConsumer struct {
	id       consumerID
	prefetch int
	priority int
	pull     bool
	lastTag  uint64
	turn     uint64
}

// report is what a command makes happen outside, by kind.
type report struct {
	delivered []plainLoan
	withdrawn []plainTag
	gone      []plainTag // tag 0: consumers of a queue that is gone
	forward   []plainDeath
	freed     []Ref
	expired   int // of forward and freed; not compared, the counters are
	ended     int // queues that were unused; not compared, topology is
	refused   []refusal
	stored    int // queues that have the message, or had it; not compared if all have
	topology  bool
	fires     []plainFire
	activated []plainActive
}

// plainFire is the question what a schedule does.
type plainFire struct {
	id  scheduleID
	due instant
}

type plainTag struct {
	queue    queueID
	consumer consumerID
	tag      uint64
}

type plainLoan struct {
	plainTag
	seq                  uint64
	ref                  Ref
	part                 uint8
	size                 uint32
	deliveries, failures uint32
	deadline, arrived    instant
}

type plainDeath struct {
	queue  queueID
	seq    uint64
	ref    Ref
	part   uint8
	size   uint32
	failed uint32
	reason string
	note   string
	at     instant
}

func newPlainMachine() *plainMachine {
	p := &plainMachine{nextID: parkingID + 1}
	parking := &plainQueue{id: parkingID, nextSeq: 1}
	parking.def = Queue{Name: ParkingQueue, Priorities: 1, MaxRetries: NoLimit, AckDeadline: 30 * time.Minute, GroupConcurrency: 1}
	p.queues = append(p.queues, parking)
	return p
}

func (p *plainMachine) queue(id queueID) *plainQueue {
	for _, q := range p.queues {
		if q.id == id {
			q.now = p.now
			return q
		}
	}
	return nil
}

func (p *plainMachine) named(name string) *plainQueue {
	for _, q := range p.queues {
		if q.def.Name == name {
			return q
		}
	}
	return nil
}

// pass lets the proposer's clock show at; it may lag behind what an earlier one showed.
func (p *plainMachine) pass(at instant) {
	if at > p.now {
		p.now = at
	}
}

func (q *plainQueue) consumer(id consumerID) *plainConsumer {
	for _, c := range q.consumers {
		if c.id == id {
			return c
		}
	}
	return nil
}

// loan is what the consumer knows by tag, or nil.
func (q *plainQueue) loan(id consumerID, tag uint64) *plainMessage {
	for _, m := range q.messages {
		if m.state == plainLent && m.holder.id == id && m.tag == tag {
			return m
		}
	}
	return nil
}

func (q *plainQueue) message(seq uint64) *plainMessage {
	for _, m := range q.messages {
		if m.seq == seq {
			return m
		}
	}
	return nil
}

// loans are what c holds, by tag.
func (q *plainQueue) loans(c *plainConsumer) []*plainMessage {
	var held []*plainMessage
	for _, m := range q.messages {
		if m.state == plainLent && m.holder == c {
			held = append(held, m)
		}
	}
	slices.SortFunc(held, func(a, b *plainMessage) int { return cmp.Compare(a.tag, b.tag) })
	return held
}

func (q *plainQueue) outstanding(c *plainConsumer) int {
	n := 0
	for _, m := range q.messages {
		if m.state == plainLent && m.holder == c {
			n++
		}
	}
	return n
}

func (q *plainQueue) in(state plainState) int {
	n := 0
	for _, m := range q.messages {
		if m.state == state {
			n++
		}
	}
	return n
}

func (q *plainQueue) enqueue(ref Ref, size uint32, msg Message) {
	m := &plainMessage{
		seq: q.nextSeq, number: q.nextSeq, ref: ref, part: q.part, size: size, arrived: q.now, level: int(msg.Priority),
		ttl: msg.TTL, since: q.now, group: msg.GroupID,
	}
	if !msg.DeliverAt.IsZero() {
		if at := instant(msg.DeliverAt.UnixNano()); at > q.now {
			m.state, m.at, m.since = plainDelayed, at, at
		}
	}
	if m.level > q.def.Priorities-1 {
		m.level = q.def.Priorities - 1
	}
	q.nextSeq++
	q.count.Enqueued++
	q.messages = append(q.messages, m)
	if m.state == plainReady {
		q.ready(m)
	}
}

func (q *plainQueue) lend(m *plainMessage, c *plainConsumer) plainLoan {
	c.lastTag++
	q.turn++
	c.turn = q.turn
	if len(q.turns) > 0 {
		q.groupTurn++
		if m.group == "" {
			q.loose[m.level] = q.groupTurn
		} else {
			q.turns[m.group] = q.groupTurn
		}
	}
	m.state, m.holder, m.tag, m.at = plainLent, c, c.lastTag, q.now+instant(q.def.AckDeadline)
	m.extended = false
	m.deliveries++
	q.spend()
	q.count.Delivered++
	return plainLoan{
		plainTag: plainTag{q.id, c.id, m.tag}, seq: m.seq, ref: m.ref, part: m.part, size: m.size,
		deliveries: m.deliveries, failures: m.failures, deadline: m.at, arrived: m.arrived,
	}
}

// settle lets what is due happen and hands out what can be. What then still must not wait dies.
func (q *plainQueue) settled(r *report) {
	q.due(r)
	q.elect(r)
	for {
		m, c := q.next(), q.eligible()
		if m == nil || c == nil || q.paused || q.heldUntil() != 0 {
			break
		}
		r.delivered = append(r.delivered, q.lend(m, c))
	}
	q.expire(r, true)
}

// life is how long m may wait: the shorter of both TTLs; NoWait is shorter than any, 0 is none.
func (q *plainQueue) life(m *plainMessage) (time.Duration, bool) {
	switch {
	case m.ttl == NoWait || q.def.TTL == NoWait:
		return 0, true
	case m.ttl == 0:
		return q.def.TTL, q.def.TTL != 0
	case q.def.TTL == 0:
		return m.ttl, true
	}
	return min(m.ttl, q.def.TTL), true
}

// expire ends the ready messages that have waited too long. One that may not wait at all and has just come is spared
// at first.
func (q *plainQueue) expire(r *report, all bool) {
	for _, m := range slices.Clone(q.messages) {
		life, mortal := q.life(m)
		if m.state != plainReady || !mortal || m.since+instant(life) > q.now {
			continue
		}
		if !all && life == 0 && m.since == q.now && m.deliveries == 0 {
			continue
		}
		q.count.Expired++
		r.expired++
		q.die(m, ReasonExpired, "", r)
	}
}

// due takes back loans past their deadline, each as a failure, and ends delays.
func (q *plainQueue) due(r *report) {
	var late []*plainMessage
	for _, m := range q.messages {
		if m.state == plainLent && m.at <= q.now {
			late = append(late, m)
		}
	}
	slices.SortStableFunc(late, func(a, b *plainMessage) int { return cmp.Compare(a.at, b.at) })
	for _, m := range late {
		r.withdrawn = append(r.withdrawn, plainTag{q.id, m.holder.id, m.tag})
		q.count.TimedOut++
		q.fail(m, q.pause(m), "no verdict before the deadline", r)
	}
	byTime := slices.Clone(q.messages)
	slices.SortStableFunc(byTime, func(a, b *plainMessage) int { return cmp.Compare(a.at, b.at) })
	for _, m := range byTime {
		if m.state == plainDelayed && m.at <= q.now {
			q.toTail(m)
			q.ready(m)
			if life, mortal := q.life(m); mortal && life == 0 && m.deliveries == 0 && m.since > m.arrived {
				m.since = q.now
			}
		}
	}
	q.expire(r, false)
}

func (q *plainQueue) fail(m *plainMessage, pause time.Duration, note string, r *report) {
	m.failures++
	q.count.Failed++
	dead := false
	switch q.def.MaxRetries {
	case NoLimit:
	case NoRetry:
		dead = true
	default:
		dead = int(m.failures) > q.def.MaxRetries
	}
	if dead {
		q.die(m, ReasonDeliveryLimit, note, r)
		return
	}
	if q.def.BumpOnRedelivery {
		m.level = min(m.level+1, q.def.Priorities-1)
	}
	q.rest(m, pause)
}

func (q *plainQueue) rest(m *plainMessage, pause time.Duration) {
	m.holder = nil
	if pause <= 0 {
		q.ready(m)
		return
	}
	m.state, m.at = plainDelayed, q.now+instant(pause)
}

func (q *plainQueue) die(m *plainMessage, reason, note string, r *report) {
	q.count.Dead++
	m.holder = nil
	waited := reason == ReasonExpired || reason == ReasonMaxLength
	if q.def.DeadLetter.Discard || waited && q.def.DeadLetter.Exchange == "" {
		q.count.Discarded++
		q.remove(m, r)
		return
	}
	m.state, m.reason, m.note, m.at = plainDying, reason, note, q.now
	q.endGroups()
	r.forward = append(r.forward, q.death(m))
}

func (q *plainQueue) death(m *plainMessage) plainDeath {
	return plainDeath{
		queue: q.id, seq: m.seq, ref: m.ref, part: m.part, size: m.size, failed: m.failures, reason: m.reason, note: m.note, at: m.at,
	}
}

func (q *plainQueue) remove(m *plainMessage, r *report) {
	i := slices.Index(q.messages, m)
	q.messages = slices.Delete(q.messages, i, i+1)
	q.endGroups()
	r.freed = append(r.freed, m.ref)
}

// leave takes back what c holds, as failures or not, and forgets c.
func (q *plainQueue) leave(c *plainConsumer, failed bool, r *report) {
	for _, m := range q.loans(c) {
		if failed {
			q.fail(m, 0, "", r)
		} else {
			q.count.Released++
			q.rest(m, 0)
		}
	}
	q.consumers = slices.DeleteFunc(q.consumers, func(o *plainConsumer) bool { return o == c })
	if !c.pull {
		q.used = q.now
	}
}

// due is when something happens by itself, 0 for never.
func (p *plainMachine) due() instant {
	at := instant(0)
	for _, q := range p.queues {
		if opens := q.refills(); opens != 0 && (at == 0 || opens < at) {
			at = opens
		}
		if end := q.endsUnused(); end != 0 && (at == 0 || end < at) {
			at = end
		}
		for _, m := range q.messages {
			if (m.state == plainLent || m.state == plainDelayed) && (at == 0 || m.at < at) {
				at = m.at
			}
			if life, mortal := q.life(m); m.state == plainReady && mortal && (at == 0 || m.since+instant(life) < at) {
				at = m.since + instant(life)
			}
		}
	}
	for _, s := range p.schedules {
		if !s.asked && (at == 0 || s.due < at) {
			at = s.due
		}
	}
	return at
}
