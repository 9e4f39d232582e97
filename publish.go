package bourse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boursemq/bourse/internal/invariant"
)

// publisher waits for the outcome of a publication.
type publisher interface {
	published(p *publication, err error) // once; must not block
}

// publication is one message on its way into the log.
type publication struct {
	b       *Broker
	owner   publisher
	message Message
	made    uint64  // number of the id that the broker gives it
	at      instant // of the command; read before the log's lock is taken, so it may be before that of an earlier command
	targets []queueID
	few     [2]queueID  // room for targets
	body    *compressed // the body while p is proposed; nil: as it is in message

	parts     atomic.Pointer[parts] // if one command does not decide the outcome
	index     int32                 // in a batch
	abandoned atomic.Bool           // set under mu: the caller has body and headers back
	mu        sync.Mutex            // guards body and headers when they are read again after submit
}

// parts is what became of the parts of a publication: of its commands to several shards, and of its waits for room.
type parts struct {
	mu      sync.Mutex // guards below; leaf lock
	left    int        // without an outcome
	taken   int        // queues that took it
	failed  error
	refused []Refusal
	waiters []*waiter // that ever were
}

// id is the id that the broker made for a message that came without one.
func (p *publication) id() messageID { return messageID{instance: p.b.instance, number: p.made} }

// AppendTo implements Proposal.
func (p *publication) AppendTo(dst []byte) []byte {
	dst = appendHeader(dst, cmdEnqueue, p.at)
	dst = appendTargets(dst, p.targets)
	return appendCompressed(dst, &p.message, p.body, p.id(), nil)
}

// Durable implements Proposal.
func (p *publication) Durable() bool { return true }

// Done implements Proposal.
func (p *publication) Done(a Answer, err error) {
	switch {
	case err != nil || a.Code == answerOK:
		p.finish(err)
	case a.Code == answerFull:
		of := &parts{left: 1}
		p.parts.Store(of)
		p.refusedBy(of, a)
	default:
		// The queues were deleted between routing and the log: route anew, elsewhere, since this is the
		// log's goroutine. The goroutine ends when the publication is proposed or has its outcome.
		go p.again()
	}
}

// refusedBy takes note of a part that not all queues took, and waits at those that say so.
func (p *publication) refusedBy(of *parts, a Answer) {
	kept, refused, err := decodeRefused(a.Data)
	invariant.Check(err == nil, "who refused a publish: %v", err)
	var waiters []*waiter
	of.mu.Lock()
	of.taken += kept
	for _, no := range refused {
		shard := p.b.placement.of(no.queue)
		switch {
		case no.why != refusedWaits:
			of.refused = append(of.refused, p.refusal(no))
		case shard != nil: // else the queue is gone
			size := uint32(len(p.message.Body)) // it is more, and known after the first try
			waiters = append(waiters, &waiter{p: p, of: of, shard: shard, queue: no.queue, turn: no.turn, size: size})
		}
	}
	of.waiters = append(of.waiters, waiters...)
	of.left += len(waiters)
	of.mu.Unlock()
	for _, w := range waiters {
		w.shard.wait(w)
	}
	p.partDone(of, func() {})
}

// refusal is a queue's refusal for the caller.
func (p *publication) refusal(no refusal) Refusal {
	r := Refusal{Queue: p.b.queueName(no.queue), Err: ErrQueueFull}
	if no.why == refusedLarge {
		r.Err = invalid("Message.Body", "takes %d bytes with headers and names, more than Queue.MaxBytes", no.size)
	}
	return r
}

// partDone takes note of the outcome of a part. The last one brings that of the publication: nil if each target took the
// message or is gone, and at least one took it. If some took it and others failed, it is not true that it is not stored.
func (p *publication) partDone(of *parts, note func()) {
	of.mu.Lock()
	note()
	of.left--
	left := of.left
	of.mu.Unlock()
	switch {
	case left > 0:
	case of.failed != nil && of.taken > 0:
		p.finish(fmt.Errorf("%w: stored in %d of %d queues: %w", ErrUnknownOutcome, of.taken, len(p.targets), of.failed))
	case of.failed != nil:
		p.finish(of.failed)
	case len(of.refused) > 0:
		slices.SortFunc(of.refused, func(a, b Refusal) int { return strings.Compare(a.Queue, b.Queue) })
		p.finish(&RejectedError{Refusals: of.refused, Stored: of.taken})
	case of.taken > 0:
		p.finish(nil)
	default:
		go p.again() // ends as in Done
	}
}

// queueName is the name of a queue that may be gone.
func (b *Broker) queueName(id queueID) string {
	def, _ := b.topology.Load().queueByID(id)
	return def.Name
}

// again submits p once more, with copies of body and headers, which are the caller's again as soon as it gives up.
func (p *publication) again() {
	p.mu.Lock()
	abandoned := p.abandoned.Load()
	if !abandoned {
		p.message.Body = bytes.Clone(p.message.Body)
		p.message.Headers = cloneHeaders(p.message.Headers)
	}
	p.mu.Unlock()
	if abandoned {
		p.finish(ErrQueueGone) // nobody listens
		return
	}
	p.submit()
}

// cloneHeaders copies h and the values in it.
func cloneHeaders(h map[string]any) map[string]any {
	h = maps.Clone(h)
	for name, v := range h {
		if b, ok := v.([]byte); ok {
			h[name] = bytes.Clone(b)
		}
	}
	return h
}

// abandon says that the caller takes body and headers back without waiting for the outcome. Where it waits for room it leaves the
// door, so the outcome may be there when abandon returns: ErrQueueFull, and why.
//
// Nobody is left behind at a door: the flag is set before the waiters are looked for, and they can be found before they look at
// the flag, so one of both sees the other.
func (p *publication) abandon(why error) {
	p.mu.Lock()
	p.abandoned.Store(true)
	p.mu.Unlock()
	of := p.parts.Load()
	if of == nil {
		return
	}
	of.mu.Lock()
	waiters := slices.Clone(of.waiters)
	of.mu.Unlock()
	for _, w := range waiters {
		w.shard.leave(w, fmt.Errorf("%w: %w", ErrQueueFull, why))
	}
}

func (p *publication) finish(err error) {
	b := p.b
	b.gate.release(p.cost())
	if err == nil {
		b.published.Add(1)
	} else {
		err = p.describe(err)
	}
	p.message.Body, p.message.Headers = nil, nil // the caller's again
	if p.parts.Load() != nil {
		p.parts.Store(nil)
	}
	p.owner.published(p, err)
}

// cost is what a publication weighs at the gate.
func (p *publication) cost() int64 { return int64(len(p.message.Body)) }

func (p *publication) describe(err error) error {
	return fmt.Errorf("broker: publish to %q with key %q: %w", p.message.Exchange, p.message.RoutingKey, err)
}

// submit routes p and proposes it. The outcome goes to its owner, at once or later.
func (p *publication) submit() {
	if shard := p.aim(nil); shard != nil {
		p.proposeTo(shard)
	}
}

// proposeTo proposes p to the shard of all its targets.
func (p *publication) proposeTo(s *shard) {
	c := s.compress(p.message.Body)
	p.body = c
	err := s.propose(p)
	c.release() // p may be another's by now
	if err != nil {
		p.proposed(err)
	}
}

// aim routes p and returns the shard that it is to be proposed to. Nil: it has its outcome, or is proposed in parts, behind the
// company before it.
func (p *publication) aim(before *company) *shard {
	targets, err := p.b.topology.Load().route(p.message.Exchange, p.message.RoutingKey, p.message.Headers, p.few[:0])
	if err == nil && len(targets) == 0 {
		if p.message.Mandatory {
			err = ErrUnroutable
		} else {
			p.b.unroutable.Add(1)
			p.finish(nil)
			return nil
		}
	}
	if err == nil {
		p.targets, p.at = targets, p.b.now()
		var shard, other *shard
		shard, err = p.b.placement.toward(&p.message, targets[0])
		for _, id := range targets[1:] {
			if other, _ = p.b.placement.toward(&p.message, id); other != shard {
				before.submit()
				p.submitParts()
				return nil
			}
		}
		if err == nil {
			return shard
		}
		p.proposed(err)
		return nil
	}
	p.finish(err)
	return nil
}

// proposed takes what became of the proposal: after nil, Done will be called or has been.
func (p *publication) proposed(err error) {
	switch {
	case errors.Is(err, ErrQueueGone):
		p.Done(Answer{Code: answerGone}, nil)
	case err != nil:
		p.finish(err)
	}
}

// part is what a publication brings to a shard, if its targets are in more than one.
type part struct {
	p      *publication
	of     *parts
	target [1]queueID
	body   *compressed // as in publication
}

// submitParts proposes a command for each target. They succeed or fail one by one.
func (p *publication) submitParts() {
	all := make([]part, len(p.targets))
	of := &parts{left: len(all)}
	p.parts.Store(of)
	c := p.b.compress(p.message.Body)
	defer c.release()
	for i, id := range p.targets {
		all[i] = part{p: p, of: of, target: [1]queueID{id}}
	}
	for i := range all {
		t := &all[i]
		shard, err := p.b.placement.toward(&p.message, t.target[0])
		if err == nil {
			if !shard.inMemory {
				t.body = c
			}
			err = shard.propose(t)
		}
		switch {
		case errors.Is(err, ErrQueueGone):
			t.Done(Answer{Code: answerGone}, nil)
		case err != nil:
			t.Done(Answer{}, err)
		}
	}
}

// AppendTo implements Proposal.
func (t *part) AppendTo(dst []byte) []byte {
	dst = appendHeader(dst, cmdEnqueue, t.p.at)
	dst = appendTargets(dst, t.target[:])
	return appendCompressed(dst, &t.p.message, t.body, t.p.id(), nil)
}

// Durable implements Proposal.
func (t *part) Durable() bool { return true }

// Done implements Proposal.
func (t *part) Done(a Answer, err error) {
	p, of := t.p, t.of
	switch {
	case err != nil:
		p.partDone(of, func() {
			of.failed = errors.Join(of.failed, fmt.Errorf("queue %q: %w", p.b.queueName(t.target[0]), err))
		})
	case a.Code == answerFull:
		p.refusedBy(of, a)
	case a.Code == answerOK:
		p.partDone(of, func() { of.taken++ })
	default: // the queue is gone
		p.partDone(of, func() {})
	}
}

// start checks p and waits at the gate. After an error p is not submitted. What is in before is submitted before it waits: that may
// be what the gate is full of.
func (p *publication) start(ctx context.Context, before *company) error {
	if err := p.b.checkMessage(&p.message); err != nil {
		return p.describe(err)
	}
	if err := ctx.Err(); err != nil {
		return p.describe(err)
	}
	if !p.b.gate.enter(p.cost(), false) {
		before.submit()
		if err := p.b.gate.acquire(ctx, p.cost(), false); err != nil {
			return p.describe(err)
		}
	}
	if p.message.Delay > 0 {
		p.message.DeliverAt, p.message.Delay = time.Unix(0, int64(p.b.now())).Add(p.message.Delay), 0
	}
	if p.message.ID == "" {
		p.made = p.b.made.Add(1)
	}
	return nil
}

// waiting is the publisher behind Publish.
type waiting struct {
	pub     publication
	outcome chan error // capacity 1, sent by published, received by Publish; never closed
}

func (w *waiting) published(_ *publication, err error) { w.outcome <- err }

func newWaiting() any { return &waiting{outcome: make(chan error, 1)} }

// Publish routes m and returns when every queue that took it holds it durably. It waits for room where Queue.Overflow is Block,
// and while Options.MemoryLimit or Options.MaxPending is reached. An error that matches ErrUnknownOutcome says that ctx ended, or the
// log failed, after m was proposed, or, where queues have logs of their own, that only some took it: it may be stored, so retry with
// the same Message.ID. A *RejectedError names the queues that
// refused it; the others, if there are any, hold it. Any other error says that it is not stored: ErrUnroutable, ErrNoExchange,
// an *InvalidError, ErrDiskFull, ErrMemoryFull with ctx.Err(), ErrClosed, ErrStorage, ErrNotLeader, ErrQueueGone or ctx.Err().
func (b *Broker) Publish(ctx context.Context, m Message) error {
	w, _ := b.waitings.Get().(*waiting) // the pool holds nothing else
	p := &w.pub
	p.b, p.owner, p.message = b, w, m
	if err := p.start(ctx, nil); err != nil {
		p.message = Message{}
		b.waitings.Put(w)
		return err
	}
	p.submit()
	err, known := await(ctx, w.outcome)
	if !known {
		// w is not used again: its outcome is still to come.
		p.abandon(ctx.Err())
		select {
		case err = <-w.outcome:
			return err
		default:
		}
		return fmt.Errorf("broker: publish to %q: %w: %w", m.Exchange, ErrUnknownOutcome, ctx.Err())
	}
	b.waitings.Put(w)
	return err
}

// await returns what outcome brings, and false if ctx ends before. An outcome that is there counts, even if ctx
// has ended too: select alone would toss a coin.
func await[T any](ctx context.Context, outcome <-chan T) (got T, known bool) {
	select {
	case got = <-outcome:
		return got, true
	default:
	}
	select {
	case got = <-outcome:
		return got, true
	case <-ctx.Done():
	}
	select {
	case got = <-outcome:
		return got, true
	default:
		return got, false
	}
}

// PublishAsync is Publish without the wait for durability. It blocks only while Options.MaxPending publishes are unconfirmed, or
// Options.MemoryLimit is reached, until ctx ends; those whose Confirm waits for room, where Queue.Overflow is Block, are among them. The
// Confirm is never nil; it
// carries refusals too. Confirms of one goroutine's publishes to the same queues come in order.
func (b *Broker) PublishAsync(ctx context.Context, m Message) *Confirm {
	c := newConfirm()
	p := &c.pub
	p.b, p.owner, p.message = b, c, m
	if err := p.start(ctx, nil); err != nil {
		p.message = Message{}
		c.published(p, err)
		return c
	}
	p.submit()
	return c
}

// batch is the publisher behind PublishBatch.
type batch struct {
	pubs    []publication
	errs    []error // errs[i] is written once, before left is taken down for it
	left    atomic.Int64
	failed  atomic.Bool
	outcome chan struct{} // closed when left is 0
}

func (t *batch) published(p *publication, err error) {
	if err != nil {
		t.errs[p.index] = err
		t.failed.Store(true)
	}
	if t.left.Add(-1) == 0 {
		close(t.outcome)
	}
}

// company is publications, one after the other in a batch, to one transient queue: they are proposed together.
type company struct {
	shard *shard
	log   *memoryLog // of shard; nil: nothing was added
	ps    []Proposal // each a publication
}

// add routes p and submits it, unless it goes where the others do.
func (c *company) add(p *publication) {
	shard := p.aim(c)
	if shard == nil {
		return
	}
	log, _ := shard.log.(*memoryLog)
	if log != c.log {
		c.submit()
	}
	if log == nil {
		p.proposeTo(shard)
		return
	}
	c.shard, c.log, c.ps = shard, log, append(c.ps, p)
	if len(c.ps) == memoryAtOnce {
		c.submit()
	}
}

// submit proposes what was added. Nil is nothing.
func (c *company) submit() {
	if c == nil || len(c.ps) == 0 {
		return
	}
	if err := c.shard.orGone(c.log.ProposeAll(c.ps)); err != nil {
		for _, p := range c.ps {
			if p, ok := p.(*publication); ok {
				p.proposed(err)
			}
		}
	}
	c.log, c.ps = nil, c.ps[:0]
}

// PublishBatch publishes all of ms, in order, and waits once for all of them. If any is not stored the error is
// a *BatchError that has the outcome of each, or, when ctx ends first, one that matches
// ErrUnknownOutcome.
func (b *Broker) PublishBatch(ctx context.Context, ms []Message) error {
	if len(ms) == 0 {
		return nil
	}
	t := &batch{pubs: make([]publication, len(ms)), errs: make([]error, len(ms)), outcome: make(chan struct{})}
	t.left.Store(int64(len(ms)))
	var together company
	for i := range ms {
		p := &t.pubs[i]
		p.b, p.owner, p.message, p.index = b, t, ms[i], int32(i)
		if err := p.start(ctx, &together); err != nil {
			t.published(p, err)
			continue
		}
		together.add(p)
	}
	together.submit()
	if _, known := await(ctx, t.outcome); !known {
		for i := range t.pubs {
			t.pubs[i].abandon(ctx.Err())
		}
	}
	if t.left.Load() > 0 {
		return fmt.Errorf("broker: publish a batch of %d: %w: %w", len(ms), ErrUnknownOutcome, ctx.Err())
	}
	if !t.failed.Load() {
		return nil
	}
	return fmt.Errorf("broker: publish a batch: %w", &BatchError{Errs: t.errs})
}

// checkMessage reports what in m breaks a rule or a limit. The name of the exchange is checked by finding it.
func (b *Broker) checkMessage(m *Message) error {
	if err := validateKey("Message.RoutingKey", m.RoutingKey); err != nil {
		return err
	}
	if m.ID != "" {
		if err := validateName("Message.ID", m.ID); err != nil {
			return err
		}
	}
	if err := validateKey("Message.GroupID", m.GroupID); err != nil {
		return err
	}
	if len(m.Body) > b.opts.MaxBodyBytes {
		return &InvalidError{"Message.Body", fmt.Sprintf("%d bytes, limit %d", len(m.Body), b.opts.MaxBodyBytes)}
	}
	if t := m.Timestamp; !t.IsZero() && !time.Unix(0, t.UnixNano()).Equal(t) {
		return invalid("Message.Timestamp", "is %v, want a time in the years 1678 to 2261", t)
	}
	if len(m.Headers) > 0 {
		if err := validateHeaders("Message.Headers", m.Headers); err != nil {
			return err
		}
	}
	return b.checkTimes(m)
}

// checkTimes checks what a message asks of the clock.
func (b *Broker) checkTimes(m *Message) error {
	switch {
	case m.TTL < NoWait || m.TTL > MaxDelay:
		return invalid("Message.TTL", "is %v, want 0 to %v, or NoWait", m.TTL, time.Duration(MaxDelay))
	case m.Delay < 0 || m.Delay > MaxDelay:
		return invalid("Message.Delay", "is %v, want 0 to %v", m.Delay, time.Duration(MaxDelay))
	case m.DeliverAt.IsZero():
		return nil
	case m.Delay != 0:
		return invalid("Message.DeliverAt", "is set together with Delay")
	case !time.Unix(0, m.DeliverAt.UnixNano()).Equal(m.DeliverAt):
		return invalid("Message.DeliverAt", "is %v, want a time in the years 1678 to 2261", m.DeliverAt)
	case m.DeliverAt.Sub(b.clock.Now()) > MaxDelay:
		return invalid("Message.DeliverAt", "is %v, more than %v ahead", m.DeliverAt, time.Duration(MaxDelay))
	}
	return nil
}
