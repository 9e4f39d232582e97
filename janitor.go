package bourse

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// janitor takes queues that are ending in shards of their own out of the catalogue. Every replica is told of them, and the one that
// leads the catalogue proposes; that they are ending is part of the state of their shards, so the janitor needs no memory of its own.
type janitor struct {
	b    *Broker
	done chan struct{} // closed when run has returned
	// over ends what run waits for; its CancelFunc is quit.
	over context.Context
	quit context.CancelFunc

	mu      sync.Mutex    // guards below; taken under shard.mu
	waiting []queueID     // in order
	signal  chan struct{} // capacity 1; sent by add, received by run
}

// retryRetire is the pause after a retire whose outcome nobody knows.
const retryRetire = time.Second

func newJanitor(b *Broker) *janitor {
	j := &janitor{b: b, done: make(chan struct{}), signal: make(chan struct{}, 1)}
	j.over, j.quit = context.WithCancel(context.Background())
	return j
}

func (j *janitor) add(id queueID) {
	j.mu.Lock()
	j.waiting = append(j.waiting, id)
	j.mu.Unlock()
	select {
	case j.signal <- struct{}{}:
	default:
	}
}

// stop makes run return after the retire it is at, and waits for that.
func (j *janitor) stop() {
	j.quit()
	<-j.done
}

// run retires what comes until stop.
func (j *janitor) run() {
	defer close(j.done)
	for j.over.Err() == nil {
		j.mu.Lock()
		batch := j.waiting
		j.waiting = nil
		j.mu.Unlock()
		for _, id := range batch {
			if err := j.retire(j.over, id); err != nil && j.over.Err() == nil {
				j.b.log.Warn("a queue cannot be deleted now", "queue", j.b.queueName(id), "err", err)
				j.b.clock.AfterFunc(retryRetire, func() { j.add(id) })
			}
		}
		if len(batch) == 0 {
			select {
			case <-j.signal:
			case <-j.over.Done():
			}
		}
	}
}

// retire takes one queue out of the catalogue if it is ending, and returns when that is done here. Where the catalogue is led elsewhere,
// that node does it.
func (j *janitor) retire(ctx context.Context, id queueID) error {
	shard := j.b.placement.of(id)
	if shard == nil {
		return nil // gone already
	}
	revision, why := shard.ending()
	if why == endsNot {
		return nil
	}
	a, err := j.b.placement.first.call(ctx, freeing, func(dst []byte, at instant) []byte {
		return appendRetire(dst, at, id, why, revision)
	})
	for _, over := range []error{ErrNotLeader, ErrStorage, ErrClosed} {
		if errors.Is(err, over) {
			return nil
		}
	}
	if err == nil && a.Code == answerStale {
		_, err = j.b.placement.tell(ctx, j.b.queueName(id))
	}
	if err != nil {
		return err
	}
	return j.b.placement.settled(ctx)
}

// ending is how many changes of its queue a shard has heard of, and why the queue is ending there.
func (s *shard) ending() (revision uint64, why ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m.role != roleQueue {
		return 0, endsNot
	}
	return s.m.revision, s.m.order[0].lease.ending
}

// reportEnding tells the janitor if the queue of this shard is ending, where no effect does: its state has not come command by command.
func (s *shard) reportEnding() {
	if s.m.role == roleQueue && s.m.order[0].lease.ending != endsNot {
		s.b.janitor.add(s.m.order[0].def.id)
	}
}

// reportAllEnding does so for all shards: this node may have begun to lead the catalogue.
func (p *placement) reportAllEnding() {
	for _, s := range p.all() {
		if s != p.first {
			s.mu.Lock()
			s.reportEnding()
			s.mu.Unlock()
		}
	}
}

// renew brings a declare of queues with shards of their own there, so that their leases run from now on. It reports whether one that
// had knows was about to go, or has gone since: then it may have been ending when it was declared, and the declare must be made again.
func (p *placement) renew(ctx context.Context, had *topology, ds []Declaration) (again bool, err error) {
	for _, d := range ds {
		q, ok := d.(Queue)
		if !ok || q.Expires == 0 && !q.AutoDelete {
			continue
		}
		t := p.b.topology.Load()
		def, ok := t.queue(q.Name)
		s := p.of(def.id)
		if !ok || def.Transient && s == p.first {
			_, known := had.queue(q.Name)
			again = again || known && (q.Transient || p.kind == ShardPerQueue)
			continue
		}
		if s == nil || s == p.first {
			continue // renewed with the declare
		}
		// The first session begins the lease. An error means that another node leads the shard, and hears of it.
		if err := s.serves(ctx); err != nil {
			again = again || errors.Is(err, ErrQueueGone)
			if ctx.Err() != nil {
				return false, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
			}
			continue
		}
		if t.revision(def.id) > 0 {
			_, err := p.tell(ctx, q.Name)
			if errors.Is(err, ErrQueueGone) {
				again = true
				continue
			}
			if err != nil {
				return false, err
			}
		}
		if _, why := s.ending(); why == endsLeft {
			if err := p.b.janitor.retire(ctx, def.id); err != nil {
				return false, err
			}
			again = true
		}
	}
	return again, nil
}
