package bourse

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// placement knows in which shard each queue is. With OneShard that is always the first. With ShardPerQueue the
// first shard holds the catalogue, and placement follows it: it opens a shard for each queue that appears and closes that
// of each that goes. The broker routes by a topology only when all its queues are open here.
type placement struct {
	b     *Broker // fixed, as kind and first are
	kind  Placement
	first *shard
	done  chan struct{} // closed when run has returned

	lanes   atomic.Pointer[lanes] // of the transient queues; stored by changed
	annexes annexes               // of the durable queues
	closing sync.WaitGroup        // lanes and annexes that are being closed

	mu     sync.Mutex // guards below; taken under shard.mu; a leaf
	queues map[queueID]*shard
	newest *topology     // what the catalogue says
	news   uint64        // counts newest
	shown  uint64        // news of the topology that the broker routes by
	moved  chan struct{} // closed when shown changes, and replaced
	signal chan struct{} // capacity 1; sent by changed and stop, received by run
	ended  bool
}

// shardOf is the number of the shard of a queue that has one of its own.
func shardOf(id queueID) uint64 { return uint64(id) + 1 }

// retryOpen is the pause after a shard that could not be opened.
const retryOpen = time.Second

func newPlacement(b *Broker, kind Placement) *placement {
	p := &placement{
		b: b, kind: kind, queues: make(map[queueID]*shard), done: make(chan struct{}),
		moved: make(chan struct{}), signal: make(chan struct{}, 1),
	}
	role := roleAll
	if kind == ShardPerQueue {
		role = roleCatalogue
	}
	p.first = newShard(b, 1, newMachine(role, newTopology(topologyLimits{})))
	p.changed(p.first.m.topology)
	return p
}

// start opens the first shard and, with ShardPerQueue, those of all queues that it knows.
func (p *placement) start(ctx context.Context) error {
	log, err := p.b.engine.Open(ctx, 1, p.first)
	if err != nil {
		return err
	}
	p.first.opened(log)
	// A log that leads from the start is ready for consumers when the broker is; another one may lead later, or never.
	if err := p.first.serves(ctx); err != nil && (p.first.lost || ctx.Err() != nil) {
		return err
	}
	if p.kind == ShardPerQueue {
		if err := p.follow(ctx); err != nil {
			return err
		}
	}
	go p.run() // ends by stop, which waits for it
	return nil
}

// of is the shard of a queue; nil if the queue is not known here.
func (p *placement) of(id queueID) *shard {
	if p.kind == OneShard {
		if l := p.lanes.Load(); l != nil {
			if s := (*l)[id]; s != nil {
				return s
			}
		}
		return p.first
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queues[id]
}

// all returns the open shards, the first at the end.
func (p *placement) all() []*shard {
	var all []*shard
	p.annexes.mu.Lock() // none is being opened
	if open := p.annexes.open.Load(); open != nil {
		for _, s := range *open {
			all = append(all, s)
		}
	}
	p.annexes.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lanes.Load(); l != nil {
		for _, s := range *l {
			all = append(all, s)
		}
	}
	for _, s := range p.queues {
		all = append(all, s)
	}
	return append(all, p.first)
}

// changed says what the first shard's topology is now.
func (p *placement) changed(t *topology) {
	if p.kind == OneShard {
		p.followTransient(t)
		p.b.topology.Store(t)
		p.closeAnnexesBut(t)
		return
	}
	p.mu.Lock()
	p.newest = t
	p.news++
	p.mu.Unlock()
	p.wake()
}

func (p *placement) wake() {
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// settled waits until the broker routes by the topology that the first shard has now.
func (p *placement) settled(ctx context.Context) error {
	if p.kind == OneShard {
		return nil
	}
	p.mu.Lock()
	want := p.news
	for p.shown < want && !p.ended {
		moved := p.moved
		p.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
		}
		p.mu.Lock()
	}
	p.mu.Unlock()
	return nil
}

// run follows the catalogue until stop.
func (p *placement) run() {
	defer close(p.done)
	for {
		<-p.signal
		p.mu.Lock()
		ended := p.ended
		p.mu.Unlock()
		if ended {
			return
		}
		if p.kind == OneShard {
			continue
		}
		if err := p.follow(context.Background()); err != nil {
			p.b.log.Error("the shard of a queue cannot be opened", "err", err)
			p.b.clock.AfterFunc(retryOpen, p.wake)
		}
	}
}

// follow opens and closes shards until they are those of the newest topology, and shows that to the broker.
func (p *placement) follow(ctx context.Context) error {
	p.mu.Lock()
	t, news := p.newest, p.news
	var gone []*shard
	for id, s := range p.queues {
		if _, ok := t.queueByID(id); !ok {
			gone = append(gone, s)
			delete(p.queues, id)
		}
	}
	p.mu.Unlock()
	var failed error
	for _, s := range gone {
		failed = errors.Join(failed, s.close(ErrQueueGone))
	}
	for def := range t.queues {
		if p.of(def.id) != nil {
			continue
		}
		s := newShard(p.b, shardOf(def.id), newMachine(roleQueue, topologyOf(queueDef{def.id, t.declared(def)})))
		log, err := p.b.engine.Open(ctx, s.number, s)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("queue %q: %w", def.Name, err))
			continue
		}
		s.opened(log)
		p.mu.Lock()
		p.queues[def.id] = s
		p.mu.Unlock()
	}
	if failed != nil {
		return failed
	}
	p.b.topology.Store(t)
	p.closeAnnexesBut(t)
	p.tellAll(t)
	p.reportAllEnding()
	p.mu.Lock()
	p.shown = news
	close(p.moved)
	p.moved = make(chan struct{})
	p.mu.Unlock()
	return nil
}

// stop ends run and waits for it.
func (p *placement) stop() {
	p.mu.Lock()
	p.ended = true
	close(p.moved)
	p.moved = make(chan struct{})
	p.mu.Unlock()
	p.wake()
	<-p.done
	p.closing.Wait()
}

// close closes all shards.
func (p *placement) close() error {
	var err error
	for _, s := range p.all() {
		err = errors.Join(err, s.close(ErrClosed))
	}
	return err
}
