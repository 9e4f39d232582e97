package bourse_test

// Goal: say what a broker must do as plainly as can be, for model_test.go to compare with. Method: slices that are
// searched from end to end, and one rule of the semantics after the other. Nothing here is shared with the broker.

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/boursemq/bourse"
)

type reference struct {
	clock     *handClock
	exchanges map[string]bourse.Exchange
	bindings  []bourse.Binding
	queues    []*refQueue // in order of declaration; the parking queue first
	consumers map[int]*refConsumer
	attached  int
	dead      []refDeath // in order of death, not moved yet
	schedules []*refSchedule
}

type refQueue struct {
	bourse.Queue
	ready, delayed []*refEntry
	loans          []*refLoan // in order of dispatch
	attached       []*refConsumer
	known          []refID // that deduplication remembers
	done           []refID // that the inbox does

	groupTurn  uint64            // see model_group_test.go
	turns      map[string]uint64 // by group: when it was served last, or came
	looseTurns map[int]uint64    // by level: when a message without a group was
	inHand     *refEntry         // on the way to another queue

	active *refConsumer // it may be gone

	line        []refWait // those who wait for room, see model_limits_test.go
	given, over uint64    // turns in it

	seq, turn uint64
	listed    uint64 // counts what becomes ready for the first time
	paused    bool
	lent      refCredit // see model_rate_test.go
	count     bourse.QueueStats
}

// refMessage is what all queues that got a message share.
type refMessage struct {
	bourse.Message
	deaths []bourse.Death
}

func (m *refMessage) history() (short string) {
	for _, d := range m.deaths {
		short += fmt.Sprintf("%s/%s/%d/%d/%v ", d.Queue, d.Reason, d.Count, d.Failures, d.TTL)
	}
	return short
}

// refEntry is a message in a queue.
type refEntry struct {
	m                    *refMessage
	seq, number          uint64 // where it stands, and the one that it came with
	listed               uint64
	level                int
	arrived, readyAt     time.Time
	deliveries, failures int
	group                string
	ttl                  time.Duration
	start                time.Time // from when ttl counts
}

type refLoan struct {
	*refEntry
	consumer             *refConsumer
	tag                  uint64
	deadline             time.Time
	extended             bool
	deliveries, failures int // as they were then
}

type refConsumer struct {
	n, prefetch     int
	priority        int
	q               *refQueue
	pull, auto      bool
	tag, handed     uint64
	ackedTo, turn   uint64
	buffer          []*refLoan
	settled, stale  map[uint64]bool
	ended           error
	epoch           uint64 // as the broker said it first
	outstandingLoan int
}

type refDeath struct {
	q      *refQueue
	e      *refEntry
	reason string
}

func newReference(clock *handClock) *reference {
	r := &reference{clock: clock, exchanges: map[string]bourse.Exchange{}, consumers: map[int]*refConsumer{}}
	r.addQueue(bourse.Queue{Name: bourse.ParkingQueue, MaxRetries: bourse.NoLimit})
	return r
}

func withDefaults(q bourse.Queue) bourse.Queue {
	if q.Priorities == 0 {
		q.Priorities = 1
	}
	if q.MaxRetries == 0 {
		q.MaxRetries = 20
	}
	if q.Retry.Max == 0 {
		q.Retry.Max = q.Retry.Min
	}
	if q.Retry.Min > 0 && q.Retry.Factor == 0 {
		q.Retry.Factor = 2
	}
	if q.GroupConcurrency == 0 {
		q.GroupConcurrency = 1
	}
	if q.Rate.Deliveries > 0 && q.Rate.Per == 0 {
		q.Rate.Per = time.Second
	}
	if q.Rate.Burst == 0 {
		q.Rate.Burst = q.Rate.Deliveries
	}
	if q.AckDeadline == 0 {
		q.AckDeadline = 30 * time.Minute
	}
	if q.Dedup != (bourse.Dedup{}) && q.Dedup.MaxIDs == 0 {
		q.Dedup.MaxIDs = 1 << 20
	}
	if q.Inbox.Window > 0 && q.Inbox.MaxIDs == 0 {
		q.Inbox.MaxIDs = 1 << 20
	}
	return q
}

func (r *reference) addQueue(q bourse.Queue) {
	q = withDefaults(q)
	r.queues = append(r.queues, &refQueue{Queue: q, count: bourse.QueueStats{Name: q.Name}, lent: refCredit{left: wholes(q.Rate.Burst)}})
}

func (r *reference) queue(name string) *refQueue {
	for _, q := range r.queues {
		if q.Name == name {
			return q
		}
	}
	return nil
}

// publish does what a publish that was routed so does.
func (r *reference) publish(m bourse.Message, routed []*refQueue, err error) *refPublication {
	p := &refPublication{m: &refMessage{Message: m}}
	if m.Delay > 0 {
		p.m.DeliverAt, p.m.Delay = r.clock.Now().Add(m.Delay), 0
	}
	r.goTo(p, routed, err)
	return p
}

// enqueue brings a message to queues that take it.
func (r *reference) enqueue(m *refMessage, queues []*refQueue) {
	for _, q := range queues {
		r.admit(m, q)
	}
}

// dispatch is what each change of a queue ends with.
func (r *reference) dispatch(q *refQueue) {
	q.elect()
	r.expireReady(q)
	r.lendAll(q)
	r.lapse(q)
}

func (r *reference) lendAll(q *refQueue) {
	for len(q.heads()) > 0 && !q.paused && q.heldUntil(r.clock.Now()).IsZero() {
		to := q.eligible()
		if to == nil {
			return
		}
		to.buffer = append(to.buffer, r.lend(q, to))
	}
}

// eligible is the consumer to serve, if any has room.
func (q *refQueue) eligible() (to *refConsumer) {
	for _, c := range q.attached {
		if c.outstandingLoan >= c.prefetch || !q.serves(c) {
			continue
		}
		if to == nil || c.priority > to.priority || c.priority == to.priority &&
			(c.outstandingLoan < to.outstandingLoan || c.outstandingLoan == to.outstandingLoan && c.turn < to.turn) {
			to = c
		}
	}
	return to
}

func (r *reference) lend(q *refQueue, c *refConsumer) *refLoan {
	e := q.pop(r.clock.Now())
	e.deliveries++
	q.spend(r.clock.Now())
	q.count.Delivered++
	q.turn++
	c.turn = q.turn
	c.tag++
	c.outstandingLoan++
	l := &refLoan{refEntry: e, consumer: c, tag: c.tag, deadline: r.clock.Now().Add(q.AckDeadline), deliveries: e.deliveries,
		failures: e.failures}
	q.loans = append(q.loans, l)
	return l
}

// back takes a loan out of the ledger.
func (q *refQueue) back(l *refLoan) {
	q.loans = slices.DeleteFunc(q.loans, func(o *refLoan) bool { return o == l })
	l.consumer.outstandingLoan--
}

func (r *reference) rest(q *refQueue, e *refEntry, pause time.Duration) {
	if pause == 0 {
		q.ready = append(q.ready, e)
		return
	}
	e.readyAt = r.clock.Now().Add(pause)
	q.delayed = append(q.delayed, e)
}

func (r *reference) fail(q *refQueue, e *refEntry, pause time.Duration) {
	e.failures++
	q.count.Failed++
	if q.MaxRetries != bourse.NoLimit && e.failures > max(q.MaxRetries, 0) {
		r.kill(q, e, bourse.ReasonDeliveryLimit)
		return
	}
	if q.BumpOnRedelivery {
		e.level = min(e.level+1, q.Priorities-1)
	}
	r.rest(q, e, pause)
}

// backoff is the pause after one failure more.
func (q *refQueue) backoff(e *refEntry) time.Duration {
	if list := q.Retry.Pauses; len(list) > 0 {
		return list[min(e.failures, len(list)-1)]
	}
	d := q.Retry.Min
	for range e.failures {
		d = min(d*time.Duration(q.Retry.Factor), q.Retry.Max) // whole factors only
	}
	return d
}

func (r *reference) kill(q *refQueue, e *refEntry, reason string) {
	q.count.Dead++
	drops := reason == bourse.ReasonExpired || reason == bourse.ReasonMaxLength
	if q.DeadLetter.Discard || drops && q.DeadLetter.Exchange == "" {
		q.count.Discarded++
		return
	}
	r.dead = append(r.dead, refDeath{q, e, reason})
}

// moveDead brings the dead to where they go.
func (r *reference) moveDead() {
	for len(r.dead) > 0 {
		d := r.dead[0]
		r.dead = r.dead[1:]
		m := &refMessage{d.e.m.Message, bury(d.e.m.deaths, d, d.reason)}
		m.TTL, m.Delay, m.DeliverAt = 0, 0, time.Time{}
		dl := d.q.DeadLetter
		if dl.Exchange == "" {
			r.enqueue(m, r.queues[:1])
			continue
		}
		key := dl.RoutingKey
		if key == "" {
			key = m.RoutingKey
		}
		found, _ := r.route(dl.Exchange, key, m.Headers)
		var targets []*refQueue
		for _, q := range found {
			if d.reason == bourse.ReasonRejected || !roundAgain(m.deaths, q.Name) {
				targets = append(targets, q)
			}
		}
		if len(targets) > 0 {
			m.Exchange, m.RoutingKey = dl.Exchange, key
		}
		if len(found) == 0 {
			m.deaths = bury(m.deaths, d, bourse.ReasonUnroutable)
		} else if len(targets) < len(found) {
			m.deaths = bury(m.deaths, d, bourse.ReasonCycle)
		}
		if len(targets) < max(len(found), 1) {
			targets = append(targets, r.queues[0])
		}
		r.enqueue(m, targets)
	}
}

func bury(history []bourse.Death, of refDeath, reason string) []bourse.Death {
	d := bourse.Death{Queue: of.q.Name, Reason: reason, Exchange: of.e.m.Exchange, RoutingKey: of.e.m.RoutingKey,
		TTL: of.e.m.TTL}
	rest := slices.DeleteFunc(slices.Clone(history), func(h bourse.Death) bool {
		if h.Queue != d.Queue || h.Reason != reason {
			return false
		}
		d = h
		return true
	})
	d.Count++
	d.Failures = of.e.failures
	return append([]bourse.Death{d}, rest...)
}

// roundAgain: the message died in queue, and nobody has rejected it since, that death included.
func roundAgain(history []bourse.Death, queue string) bool {
	for _, h := range history {
		if h.Reason == bourse.ReasonRejected || h.Queue == queue {
			return h.Reason != bourse.ReasonRejected
		}
	}
	return false
}

func (r *reference) attach(q *refQueue, prefetch, priority int, pull, auto bool) *refConsumer {
	r.attached++
	c := &refConsumer{n: r.attached, prefetch: prefetch, priority: priority, q: q, pull: pull, auto: auto, settled: map[uint64]bool{},
		stale: map[uint64]bool{}}
	r.consumers[c.n] = c
	q.attached = append(q.attached, c)
	r.dispatch(q)
	return c
}

func (r *reference) subscribe(queue string, opts bourse.SubscribeOptions) (int, error) {
	q := r.queue(queue)
	if q == nil {
		return 0, bourse.ErrNotFound
	}
	if opts.Prefetch == 0 {
		opts.Prefetch = bourse.MaxPrefetch
	}
	return r.attach(q, opts.Prefetch, opts.Priority, false, opts.AutoAck).n, nil
}

func (r *reference) closeConsumer(n int) {
	c := r.consumers[n]
	delete(r.consumers, n)
	gone := c.ended != nil
	c.ended = bourse.ErrUnknownDelivery
	if gone {
		return
	}
	c.q.attached = slices.DeleteFunc(c.q.attached, func(o *refConsumer) bool { return o == c })
	r.giveBack(c, false)
	r.dispatch(c.q)
}

// giveBack ends all loans of c in the order of their tags.
func (r *reference) giveBack(c *refConsumer, failed bool) {
	for _, l := range slices.Clone(c.q.loans) {
		switch {
		case l.consumer != c:
		case failed:
			c.q.back(l)
			r.fail(c.q, l.refEntry, 0)
		default:
			c.q.back(l)
			c.q.count.Released++
			c.q.ready = append(c.q.ready, l.refEntry)
		}
	}
}

// next is what Next must return: neither a loan nor an error means that it must wait.
func (r *reference) next(n int) (*refLoan, error) {
	c := r.consumers[n]
	if c.ended != nil || len(c.buffer) == 0 {
		return nil, c.ended
	}
	l := c.buffer[0]
	c.buffer = c.buffer[1:]
	c.handed = l.tag
	if c.auto {
		c.q.back(l)
		c.q.count.Acked++
		r.dispatch(c.q)
	}
	return l, nil
}

func (r *reference) get(queue string) (*refLoan, *refConsumer, error) {
	q := r.queue(queue)
	if q == nil {
		return nil, nil, bourse.ErrNotFound
	}
	if q.SingleActiveConsumer {
		return nil, nil, bourse.ErrInvalid
	}
	i := slices.IndexFunc(q.attached, func(c *refConsumer) bool { return c.pull })
	if i < 0 {
		r.attach(q, 0, 0, true, false)
		i = len(q.attached) - 1
	}
	if q.paused || !q.heldUntil(r.clock.Now()).IsZero() {
		return nil, nil, bourse.ErrHeldBack
	}
	if len(q.heads()) == 0 {
		return nil, nil, bourse.ErrEmpty
	}
	c := q.attached[i]
	l := r.lend(q, c)
	c.handed = l.tag
	return l, c, nil
}

// settle gives a verdict on the loan that c has, or had, under tag.
func (r *reference) settle(c *refConsumer, tag uint64, verdict string, pause time.Duration) error {
	if err := c.refuses(tag); err != nil {
		return err
	}
	q := c.q
	l := q.loans[slices.IndexFunc(q.loans, func(l *refLoan) bool { return l.consumer == c && l.tag == tag })]
	if verdict == "extend" {
		l.deadline, l.extended = r.clock.Now().Add(pause+time.Second), true
		return nil
	}
	c.settled[tag] = true
	q.back(l)
	switch verdict {
	case "ack", "done":
		q.count.Acked++
	case "nack":
		r.fail(q, l.refEntry, q.backoff(l.refEntry))
	case "after":
		r.fail(q, l.refEntry, pause)
	case "reject":
		l.refEntry.failures++
		q.count.Failed++
		r.kill(q, l.refEntry, bourse.ReasonRejected)
	case "release":
		q.count.Released++
		r.rest(q, l.refEntry, pause)
	}
	r.dispatch(q)
	return nil
}

func (r *reference) ackUpTo(n int, tag uint64) error {
	c := r.consumers[n]
	switch {
	case c.ended != nil:
		return c.ended
	case c.auto:
		return bourse.ErrAutoAck
	case tag > c.handed:
		return bourse.ErrUnknownDelivery
	}
	if tag == 0 {
		tag = c.handed
	}
	c.ackedTo = max(c.ackedTo, tag)
	for _, l := range slices.Clone(c.q.loans) {
		if l.consumer == c && l.tag <= tag {
			c.q.back(l)
			c.q.count.Acked++
		}
	}
	r.dispatch(c.q)
	return nil
}

func (r *reference) pause(queue string, paused bool) error {
	q := r.queue(queue)
	if q == nil {
		return bourse.ErrNotFound
	}
	q.paused = paused
	r.dispatch(q)
	return nil
}

func (r *reference) purge(queue string) (int, error) {
	q := r.queue(queue)
	if q == nil {
		return 0, bourse.ErrNotFound
	}
	n := len(q.ready) + len(q.delayed)
	q.ready, q.delayed = nil, nil
	q.count.Purged += uint64(n)
	return n, nil
}

// due is when the next thing happens in q by itself; zero for never.
func (q *refQueue) due() (at time.Time) {
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, l := range q.loans {
		sooner(l.deadline)
	}
	for _, e := range q.delayed {
		sooner(e.readyAt)
	}
	if q.Rate.Deliveries > 0 && !q.paused && len(q.heads()) > 0 && q.eligible() != nil {
		sooner(q.opens())
	}
	for _, e := range q.ready {
		if at := q.expiry(e); !at.IsZero() {
			sooner(at)
		}
	}
	return at
}

// pass lets everything happen that is due by limit, one instant after the other. It moves the clock back to them
// meanwhile, since what happens is dated by it.
func (r *reference) pass(limit time.Time) {
	real := r.clock
	defer func() { r.clock = real }()
	for {
		var at time.Time
		for _, q := range r.queues {
			if due := q.due(); !due.IsZero() && !due.After(limit) && (at.IsZero() || due.Before(at)) {
				at = due
			}
		}
		for _, s := range r.schedules {
			if !s.due.After(limit) && (at.IsZero() || s.due.Before(at)) {
				at = s.due
			}
		}
		if at.IsZero() {
			return
		}
		r.clock = &handClock{now: at}
		for _, q := range r.queues {
			if q.due().Equal(at) {
				r.expire(q, at)
			}
		}
		r.fire(at)
		r.rests()
	}
}

func (r *reference) expire(q *refQueue, now time.Time) {
	loans := slices.Clone(q.loans)
	// Those that were extended come behind those that were not, if both are due.
	sort.SliceStable(loans, func(i, j int) bool { return !loans[i].extended && loans[j].extended })
	for _, l := range loans {
		if l.deadline.After(now) {
			continue
		}
		c := l.consumer
		q.back(l)
		if l.tag > c.handed {
			c.buffer = slices.DeleteFunc(c.buffer, func(o *refLoan) bool { return o == l })
		} else {
			c.stale[l.tag] = true
		}
		q.count.TimedOut++
		r.fail(q, l.refEntry, q.backoff(l.refEntry))
	}
	for _, e := range slices.SortedStableFunc(slices.Values(q.delayed), func(a, b *refEntry) int {
		return cmp.Or(a.readyAt.Compare(b.readyAt), cmp.Compare(a.seq, b.seq))
	}) {
		if !e.readyAt.After(now) {
			q.toTail(e)
			q.awake(e, now)
		}
	}
	r.dispatch(q)
}

// toTail gives e, which was failed or released and has rested, the last place, unless it has a group.
func (q *refQueue) toTail(e *refEntry) {
	if q.Retry.AtTail && e.deliveries > 0 && e.group == "" {
		q.seq++
		e.seq = q.seq
	}
}

// reopen starts a new session: the consumers are gone, in good order or lost.
func (r *reference) reopen(lost bool) {
	r.queues = slices.DeleteFunc(r.queues, func(q *refQueue) bool {
		r.bindings = slices.DeleteFunc(r.bindings, func(b bourse.Binding) bool { return q.Transient && b.Queue == q.Name })
		return q.Transient
	})
	for _, q := range r.queues {
		for _, c := range q.attached {
			r.giveBack(c, lost)
		}
		q.attached, q.line = nil, nil
		r.expire(q, r.clock.Now())
	}
	r.consumers = map[int]*refConsumer{}
	r.fire(r.clock.Now())
	r.rests()
}

// rests lets everything happen that comes of what has happened, at the same instant.
func (r *reference) rests() {
	for again := true; again; {
		r.moveDead()
		again = r.letIn()
	}
}

func (q *refQueue) stats(now time.Time) bourse.QueueStats {
	s := q.count
	s.Ready, s.Unacked, s.Delayed = len(q.ready), len(q.loans), len(q.delayed)
	s.Paused, s.HeldUntil = q.paused, q.heldUntil(now)
	if q.Priorities > 1 {
		s.Levels = make([]bourse.LevelStats, q.Priorities)
	}
	slices.SortFunc(q.ready, func(a, b *refEntry) int { return cmp.Compare(b.seq, a.seq) })
	for _, e := range q.ready {
		if s.Levels != nil {
			l := &s.Levels[e.level]
			l.Ready++
			l.Oldest = now.Sub(e.arrived) // the first of them is the last here
		}
	}
	s.Length, s.MaxMessages, s.MaxBytes = int64(s.Ready+s.Delayed), q.MaxMessages, q.MaxBytes
	s.Waiting = len(q.line)
	for _, c := range q.attached {
		if !c.pull {
			s.Consumers++
		}
	}
	return s
}

func (r *reference) stats() (all []bourse.QueueStats) {
	for _, q := range r.queues {
		all = append(all, q.stats(r.clock.Now()))
	}
	slices.SortFunc(all, func(a, b bourse.QueueStats) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (r *reference) lends() bool {
	return slices.ContainsFunc(r.queues, func(q *refQueue) bool { return len(q.loans) > 0 })
}
