package bourse

import (
	"context"
	"errors"
	"fmt"

	"github.com/boursemq/bourse/storage"
)

// Compact makes the directory of the broker about as small as what is in it. A broker at rest does that by itself as far as it pays, see
// DESIGN.md; Compact also copies what is an eighth garbage or more, and files that are prepared for messages to come are
// removed when the broker is closed: a directory that is to be kept, or moved, or that has had its day, takes less then.
//
// It blocks until it is done, and needs space for some files of the log meanwhile. The broker works on, slower. After an error the
// directory is as good as before, and what was done is done: an *InvalidError if the Engine is not a local one, ErrDiskFull, ErrClosed,
// ErrStorage, a *storage.CorruptError about what it could not copy, or ctx.Err().
func (b *Broker) Compact(ctx context.Context) error {
	err := b.compact(ctx)
	if err != nil {
		return fmt.Errorf("broker: compact: %w", err)
	}
	return nil
}

func (b *Broker) compact(ctx context.Context) error {
	e, local := b.engine.(*localEngine)
	if !local {
		return invalid("Options.Engine", "is not a local one: compact what it keeps by its own means")
	}
	if err := errors.Join(b.open(), ctx.Err()); err != nil {
		return err
	}
	var own error // of a checkpoint
	err := e.store.Shrink(func() error {
		own = e.save(ctx)
		return own
	})
	switch {
	case own != nil:
		return own
	case err != nil && b.open() != nil:
		return ErrClosed
	}
	return storageError(err)
}

// save writes a checkpoint of the state as it is during the call, or waits while a later one is written.
func (e *localEngine) save(ctx context.Context) error {
	p, err := e.pin(ctx)
	if err != nil {
		return err
	}
	p.pinned.Unpin()
	switch err = e.store.WriteCheckpoint(p.pinned.Mark, p.state); {
	case err == nil:
		e.size.Store(p.state.bytes)
		e.saved.Add(1)
	case errors.Is(err, storage.ErrSuperseded):
		err = nil
	}
	return storageError(err)
}
