package bourse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// mover brings dying messages to their dead-letter queues. The machine orders it with a forward effect and
// forgets the message only when the move is in the log, so the mover needs no memory of its own: what a crash
// interrupts is ordered anew.
type mover struct {
	b    *Broker
	done chan struct{} // closed when run has returned
	// over ends what run waits for; its CancelFunc is quit.
	over context.Context
	quit context.CancelFunc

	mu      sync.Mutex    // guards below; taken under shard.mu
	waiting []order       // forward effects in order
	signal  chan struct{} // capacity 1; sent by add, received by run
}

func newMover(b *Broker) *mover {
	v := &mover{b: b, done: make(chan struct{}), signal: make(chan struct{}, 1)}
	v.over, v.quit = context.WithCancel(context.Background())
	return v
}

// A move that the log refuses, when the disk is full for example, or for which a target has no room, is tried again after
// retryMove, then after twice as long each time, up to retryMoveMost.
const (
	retryMove     = time.Second
	retryMoveMost = 32 * time.Second
)

// order is a forward effect and what was done for it so far.
type order struct {
	effect
	tries  int       // that came to nothing
	copied []queueID // targets in other shards that hold the message
}

func (v *mover) add(e order) {
	v.mu.Lock()
	v.waiting = append(v.waiting, e)
	v.mu.Unlock()
	select {
	case v.signal <- struct{}{}:
	default:
	}
}

// stop makes run return after the move it is at, and waits for that.
func (v *mover) stop() {
	v.quit()
	<-v.done
}

// run moves what comes until stop.
func (v *mover) run() {
	defer close(v.done)
	for v.over.Err() == nil {
		v.mu.Lock()
		batch := v.waiting
		v.waiting = nil
		v.mu.Unlock()
		for i := range batch {
			if v.over.Err() != nil {
				return
			}
			v.move(&batch[i])
		}
		if len(batch) == 0 {
			select {
			case <-v.signal:
			case <-v.over.Done():
			}
		}
	}
}

// moving is the proposal of a move.
type moving struct {
	v       *mover
	source  *shard
	order   order
	message Message
	body    *compressed // of message, as it is in the log; nil: not compressed
	deaths  []Death
	made    messageID
	targets []queueID
}

func (p *moving) AppendTo(dst []byte) []byte {
	dst = appendMove(dst, p.v.b.now(), p.order.queue, p.order.seq)
	dst = appendTargets(dst, p.targets)
	return appendCompressed(dst, &p.message, p.body, p.made, p.deaths)
}

func (p *moving) Durable() bool { return true }

// Moves implements storage.Mover.
func (p *moving) Moves() bool { return true }

// Done tries again if the targets were deleted meanwhile, or if nobody can tell what happened: a move that has
// happened does nothing the second time.
func (p *moving) Done(a Answer, err error) {
	switch {
	case err == nil && a.Code == answerGone:
		p.v.add(p.order)
	case err == nil && a.Code == answerFull:
		p.v.later(&p.order, p.v.b.fullError(a))
	case err != nil:
		p.v.refused(&p.order, err)
	}
}

// refused gives an order that its own shard refused again later, unless it will be ordered anew by itself: when
// this node leads again, or the broker is opened again.
func (v *mover) refused(order *order, err error) {
	for _, over := range []error{ErrNotLeader, ErrStorage, ErrClosed} {
		if errors.Is(err, over) {
			return
		}
	}
	v.later(order, err)
}

// later gives an order again after a while.
func (v *mover) later(order *order, err error) {
	if v.over.Err() != nil {
		return
	}
	if order.tries == 0 {
		v.b.log.Warn("a dead message cannot be moved now", "queue", order.queue, "msg", order.seq, "err", err)
	}
	again := *order
	again.tries++
	v.b.clock.AfterFunc(min(retryMove<<min(order.tries, 10), retryMoveMost), func() { v.add(again) })
}

// fullError is an answer of refusal as an error that names the queues.
func (b *Broker) fullError(a Answer) error {
	_, refused, err := decodeRefused(a.Data)
	for _, no := range refused {
		err = errors.Join(err, fmt.Errorf("queue %q: %w", b.queueName(no.queue), ErrQueueFull))
	}
	return err
}

func (v *mover) move(order *order) {
	p := &moving{v: v, order: *order, source: v.b.placement.holding(order.queue, order.seq)}
	t := v.b.topology.Load()
	def, ok := t.queueByID(order.queue)
	if !ok || p.source == nil {
		return // deleted, and its messages with it
	}
	if !p.source.isDying(order.queue, order.seq) {
		return // the order came twice, as at each change of the leader: its body may be gone by now
	}
	if err := p.read(); err != nil {
		if !p.source.isDying(order.queue, order.seq) {
			return // it was cancelled meanwhile
		}
		v.b.log.Error("a dead message cannot be read and stays where it died",
			"queue", def.Name, "msg", order.seq, "err", err)
		return
	}
	p.address(t, def)
	for _, id := range p.targets {
		if v.b.placement.of(id) != p.source {
			if err := p.forward(); err != nil {
				v.later(&p.order, err)
			}
			return
		}
	}
	if err := p.source.log.Propose(p); err != nil {
		v.refused(order, err)
	}
}

// forward brings the message to targets in other shards: first a copy to each of them, then its end here. If it is
// cut off in between, the copies are made again, so it may arrive twice, and never not at all.
func (p *moving) forward() error {
	for _, id := range p.targets {
		if slices.Contains(p.order.copied, id) {
			continue // before another target had no room
		}
		target := p.v.b.placement.of(id)
		if target == nil {
			return ErrQueueGone
		}
		a, err := target.call(p.v.over, durably, func(dst []byte, at instant) []byte {
			dst = appendTargets(appendHeader(dst, cmdEnqueue, at), []queueID{id})
			return appendCompressed(dst, &p.message, p.body, p.made, p.deaths)
		})
		if err == nil && a.Code == answerGone {
			err = ErrQueueGone
		}
		if err == nil && a.Code == answerFull {
			err = p.v.b.fullError(a)
		}
		if err != nil {
			return err
		}
		p.order.copied = append(p.order.copied, id)
	}
	_, err := p.source.call(p.v.over, lazily, func(dst []byte, at instant) []byte {
		return appendForwarded(dst, at, p.order.queue, p.order.seq)
	})
	return err
}

func (p *moving) read() error {
	var d Delivery
	body, err := p.source.readCompressed(p.order.ref, p.order.part, p.order.size, &d)
	p.body, p.message, p.deaths = body, d.Message, d.Deaths
	return err
}

// address finds the queues for the dead message and writes its death into its history. Where the dead-letter
// exchange does not exist, leads nowhere or leads round in a circle, the message is parked.
func (p *moving) address(t *topology, def queueDef) {
	death := Death{
		Queue: def.Name, Reason: p.order.reason.String(), Count: 1, Failures: int(p.order.failures),
		Exchange: p.message.Exchange, RoutingKey: p.message.RoutingKey, Note: p.order.note,
	}
	death.TTL, p.message.TTL = p.message.TTL, 0
	p.message.DeliverAt = time.Time{} // it was, or a consumer decided otherwise
	death.First = time.Unix(0, int64(p.order.at))
	death.Last = death.First
	p.deaths = bury(p.deaths, death)
	if def.DeadLetter.Exchange == "" {
		p.targets = []queueID{parkingID}
		return
	}
	key := def.DeadLetter.RoutingKey
	if key == "" {
		key = p.message.RoutingKey
	}
	found, err := t.route(def.DeadLetter.Exchange, key, p.message.Headers, nil)
	if err != nil || len(found) == 0 {
		p.park(death, ReasonUnroutable)
		return
	}
	circle := false
	for _, id := range found {
		target, _ := t.queueByID(id)
		if death.Reason != ReasonRejected && cycles(p.deaths, target.Name) {
			circle = true
			continue
		}
		p.targets = append(p.targets, id)
	}
	if circle {
		p.park(death, ReasonCycle)
	}
	if len(found) > 0 && !(circle && len(p.targets) == 1) {
		p.message.Exchange, p.message.RoutingKey = def.DeadLetter.Exchange, key
	}
}

func (p *moving) park(death Death, reason string) {
	death.Reason = reason
	p.deaths = bury(p.deaths, death)
	p.targets = append(p.targets, parkingID)
}
