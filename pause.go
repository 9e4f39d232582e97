package bourse

import (
	"context"
	"fmt"
)

// Pause stops the deliveries of a queue, to subscriptions and to Get, which returns ErrHeldBack. Publishing goes on, and so does all
// that is timed: what is on loan can be settled, and has its deadline, and messages expire. It returns when that is durable; the queue
// then stays paused, over restarts too, until Resume. To pause a paused queue changes nothing. Errors: ErrNotFound, ErrClosed.
func (b *Broker) Pause(ctx context.Context, queue string) error {
	if err := b.pause(ctx, queue, true); err != nil {
		return fmt.Errorf("broker: pause %q: %w", queue, err)
	}
	return nil
}

// Resume lets a paused queue deliver again, at once. Of a queue that is not paused it changes nothing. Errors as Pause.
func (b *Broker) Resume(ctx context.Context, queue string) error {
	if err := b.pause(ctx, queue, false); err != nil {
		return fmt.Errorf("broker: resume %q: %w", queue, err)
	}
	return nil
}

func (b *Broker) pause(ctx context.Context, queue string, paused bool) error {
	if err := b.open(); err != nil {
		return err
	}
	def, err := b.queue(queue)
	if err != nil {
		return err
	}
	shard := b.placement.of(def.id)
	if shard == nil {
		return ErrNotFound
	}
	a, err := shard.call(ctx, durably, func(dst []byte, at instant) []byte { return appendPause(dst, at, def.id, paused) })
	if err == nil && a.Code == answerGone {
		err = ErrNotFound
	}
	b.placement.syncAnnex(def.id)
	return err
}
