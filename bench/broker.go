package bench

import (
	"context"
	"errors"
	"time"

	"github.com/boursemq/bourse"
)

// The broker's side of the scenarios.

// confirms keeps the last publishes of one goroutine, so that InFlight of them are outstanding.
type confirms struct {
	all  []*bourse.Confirm
	next int
}

func newConfirms(n int) *confirms { return &confirms{all: make([]*bourse.Confirm, n)} }

// add waits for the oldest, whose place c takes.
func (r *confirms) add(ctx context.Context, c *bourse.Confirm) error {
	r.all[r.next] = c
	if r.next++; r.next == len(r.all) {
		r.next = 0
	}
	if oldest := r.all[r.next]; oldest != nil {
		return oldest.Wait(ctx)
	}
	return nil
}

func (r *confirms) wait(ctx context.Context) error {
	for _, c := range r.all {
		if c != nil {
			if err := c.Wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *Bench) publishAsync(l limit) (int, []time.Duration, error) {
	ring := newConfirms(b.cfg.InFlight)
	n := 0
	for ; !l.soon(n); n++ {
		if err := ring.add(b.ctx, b.broker.PublishAsync(b.ctx, b.message)); err != nil {
			return n, nil, err
		}
	}
	return n, nil, ring.wait(b.ctx)
}

func (b *Bench) publishBatch(l limit) (int, []time.Duration, error) {
	batch := make([]bourse.Message, b.cfg.InFlight)
	for i := range batch {
		batch[i] = b.message
	}
	n := 0
	for ; !l.reached(n); n += len(batch) {
		if err := b.broker.PublishBatch(b.ctx, batch); err != nil {
			return n, nil, err
		}
	}
	return n, nil, nil
}

func (b *Bench) publishSync(l limit) (int, []time.Duration, error) {
	l = l.share(b.cfg.InFlight)
	return inParallel(b.cfg.InFlight, func(int) (int, error) {
		n := 0
		for ; !l.reached(n); n++ {
			if err := b.broker.Publish(b.ctx, b.message); err != nil {
				return n, err
			}
		}
		return n, nil
	})
}

// consumer takes from a subscription until ctx ends, and counts in w what it has acked.
type consumer func(ctx context.Context, s *bourse.Subscription, w *window) error

func consumeNext(ctx context.Context, s *bourse.Subscription, w *window) error {
	for {
		d, err := s.Next(ctx)
		if err != nil {
			return err
		}
		if err := d.Ack(); err != nil {
			return err
		}
		w.ack(1)
	}
}

// consumedAtOnce is the most that a call of NextBatch asks for.
const consumedAtOnce = 256

func consumeBatch(ctx context.Context, s *bourse.Subscription, w *window) error {
	for {
		ds, err := s.NextBatch(ctx, consumedAtOnce)
		if err != nil {
			return err
		}
		if err := s.AckUpTo(ds[len(ds)-1].Tag); err != nil {
			return err
		}
		w.ack(len(ds))
	}
}

func brokerCycle(queues int, consume consumer) func(*Bench, limit) (int, []time.Duration, error) {
	return func(b *Bench, l limit) (int, []time.Duration, error) {
		return inParallel(queues, func(i int) (int, error) { return b.cycle(wideName(i), consume, l.share(queues)) })
	}
}

// cycle publishes to a queue, and consumes from it on another goroutine until all is acked.
func (b *Bench) cycle(queue string, consume consumer, l limit) (int, error) {
	s, err := b.broker.Subscribe(b.ctx, queue, bourse.SubscribeOptions{Prefetch: b.cfg.Prefetch})
	if err != nil {
		return 0, err
	}
	w := newWindow(b.cfg.Ahead)
	ctx, stop := context.WithCancel(b.ctx)
	failed := make(chan error, 1)
	go func() { // ends by stop, below
		err := consume(ctx, s, w)
		if ctx.Err() == nil {
			b.cancel() // so that the publisher does not wait for ever
		}
		failed <- err
	}()
	message := b.message
	message.RoutingKey = queue
	ring := newConfirms(b.cfg.InFlight)
	n := 0
	for ; err == nil && !l.soon(n); n++ {
		err = ring.add(b.ctx, b.broker.PublishAsync(b.ctx, message))
		w.publish(1)
	}
	if err == nil {
		if err = ring.wait(b.ctx); err == nil {
			w.wait(0)
		}
	}
	stop()
	if lost := <-failed; !errors.Is(lost, context.Canceled) {
		err = errors.Join(err, lost)
	}
	return n, errors.Join(err, s.Close())
}

func (b *Bench) brokerAlone(l limit) (int, []time.Duration, error) {
	took := make([]time.Duration, 0, 1<<16)
	for !l.reached(len(took)) {
		start := time.Now()
		if err := b.broker.Publish(b.ctx, b.message); err != nil {
			return len(took), took, err
		}
		took = append(took, time.Since(start))
	}
	return len(took), took, nil
}

func (b *Bench) brokerPaced(l limit) (int, []time.Duration, error) {
	s, err := b.broker.Subscribe(b.ctx, wideName(0), bourse.SubscribeOptions{Prefetch: b.cfg.Prefetch})
	if err != nil {
		return 0, nil, err
	}
	var took []time.Duration
	w := newWindow(b.cfg.Ahead)
	ctx, stop := context.WithCancel(b.ctx)
	failed := make(chan error, 1)
	go func() { // ends by stop, below
		for {
			d, err := s.Next(ctx)
			if err == nil {
				took = append(took, b.age(d.Body))
				err = d.Ack()
			}
			if err != nil {
				failed <- err
				return
			}
			w.ack(1)
		}
	}()
	ring := newConfirms(b.cfg.InFlight)
	n := b.paced(l, func(body []byte) error {
		message := b.message
		message.Body = body
		if err = ring.add(b.ctx, b.broker.PublishAsync(b.ctx, message)); err == nil {
			w.publish(1)
		}
		return err
	})
	if err == nil {
		if err = ring.wait(b.ctx); err == nil {
			w.wait(0)
		}
	}
	stop()
	if lost := <-failed; !errors.Is(lost, context.Canceled) {
		err = errors.Join(err, lost)
	}
	return n, took, errors.Join(err, s.Close())
}
