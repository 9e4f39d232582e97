package bourse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/boursemq/bourse/storage"
)

// Backup writes what the broker holds at one moment of the call to w, as a tar archive from which Restore makes a directory. Everything
// that was confirmed before the call is in it, and what is published meanwhile goes on as ever. Files of the log that it reads stay until
// it returns, so on a full disk a slow w costs space. To the broker that opens the copy, consumers of that moment are lost with their
// process: what they held is ready again and has failed once more. Transient messages are not in it.
//
// Errors: an *InvalidError if the Engine is not a local one, ErrClosed, ErrStorage, a *storage.CorruptError, ctx.Err(), or that of w. What
// was written then is refused by Restore.
func (b *Broker) Backup(ctx context.Context, w io.Writer) error {
	err := b.backup(ctx, w)
	if err != nil {
		return fmt.Errorf("broker: backup: %w", err)
	}
	return nil
}

func (b *Broker) backup(ctx context.Context, w io.Writer) error {
	e, local := b.engine.(*localEngine)
	if !local {
		return invalid("Options.Engine", "is not a local one: back up what it keeps by its own means")
	}
	if err := b.open(); err != nil {
		return err
	}
	p, err := e.pin(ctx)
	if err != nil {
		return err
	}
	defer p.pinned.Unpin()
	out := &backupWriter{ctx: ctx, b: b, w: w}
	err = p.pinned.Backup(p.state, out)
	switch {
	case out.err != nil:
		return out.err // as it is
	case err != nil && b.open() != nil:
		return ErrClosed // with it the files
	}
	return storageError(err)
}

// backupWriter ends a backup with its context and its broker, and keeps the error.
type backupWriter struct {
	ctx context.Context
	b   *Broker
	w   io.Writer
	err error
}

func (o *backupWriter) Write(p []byte) (n int, err error) {
	if o.err == nil {
		o.err = errors.Join(o.ctx.Err(), o.b.open())
	}
	if o.err == nil {
		n, o.err = o.w.Write(p)
	}
	if o.err != nil {
		return n, errBackup
	}
	return n, nil
}

var errBackup = errors.New("the backup cannot be written")

// Restore makes dir, which must be empty or not exist, from what Backup wrote. When it returns nil all of it is durable; it verifies
// checksums over all that it reads. After an error or a crash dir is no broker's directory: NewBroker and Restore refuse it, if anything
// is left in it at all. Errors: ErrForeignDir if the backup is of a newer version, ErrDiskFull, or ErrStorage, which is a
// *storage.BackupError if the backup is damaged or cut off, fs.ErrExist if dir is not empty, or the error of from or of the disk.
func Restore(dir string, from io.Reader) error {
	if err := storageError(storage.Restore(storage.OS, dir, from)); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	return nil
}

// pins are the backups that wait for the commit goroutine to take their moment.
type pins struct {
	waiting atomic.Int64
	mu      sync.Mutex // guards list; leaf lock, but for that of the store
	list    []*pin
}

type pin struct {
	state  *checkpoint
	pinned *storage.Pinned
	err    error
	done   chan struct{} // closed when the others are set
}

// pin captures the state of all shards at a moment, with the files that it needs. The caller must Unpin.
func (e *localEngine) pin(ctx context.Context) (*pin, error) {
	p := &pin{done: make(chan struct{})}
	e.pins.mu.Lock()
	e.pins.list = append(e.pins.list, p)
	e.pins.waiting.Add(1)
	e.pins.mu.Unlock()
	e.store.Poke()
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		e.endPins(ErrClosed)
	} else if e.store.Stats().Failed {
		e.endPins(ErrStorage)
	}
	select {
	case <-p.done:
		return p, p.err
	case <-ctx.Done():
	}
	e.pins.mu.Lock()
	defer e.pins.mu.Unlock()
	select {
	case <-p.done: // it was too late to give up
		if p.err == nil {
			p.pinned.Unpin()
		}
	default:
		p.err = ctx.Err() // nobody takes it any more
	}
	return nil, ctx.Err()
}

// takePins serves those who wait. It runs between two batches.
func (e *localEngine) takePins() {
	e.pins.mu.Lock()
	defer e.pins.mu.Unlock()
	for _, p := range e.pins.list {
		if p.err == nil {
			if p.state, p.err = e.capture(); p.state != nil {
				e.saving.Done() // Close need not wait
				p.pinned = e.store.Pin()
			} else if p.err == nil {
				p.err = ErrClosed
			}
		}
		close(p.done)
	}
	e.pins.waiting.Store(0)
	e.pins.list = nil
}

// endPins ends the waits with an error.
func (e *localEngine) endPins(why error) {
	e.pins.mu.Lock()
	defer e.pins.mu.Unlock()
	for _, p := range e.pins.list {
		if p.err == nil {
			p.err = why
		}
		close(p.done)
	}
	e.pins.waiting.Store(0)
	e.pins.list = nil
}
