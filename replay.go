package bourse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ReplayOptions say what Replay moves, and how fast. The zero value is all, at once.
type ReplayOptions struct {
	IDs    []string            // only messages with these ids; none: any
	Filter func(*Browsed) bool // only those for which it is true; nil: all
	Rate   int                 // messages a second, spread evenly; 0: as fast as the log takes them
	Limit  int                 // at most so many; 0: all
}

// Replayed is what a Replay did.
type Replayed struct {
	Moved int // messages that are where they died
	// Skipped is how many were passed over because they have no Deaths, or went on loan or away before it was their turn.
	Skipped  int
	Failed   int             // messages that stay where they are because of an error
	Failures []ReplayFailure // the first 100 of them
}

// ReplayFailure says why a message was not moved.
type ReplayFailure struct {
	Locator
	ID string // Message.ID
	// Err is ErrQueueGone: the queue where it died; ErrQueueFull: that has no room; ErrStorage: it cannot be read; ErrNotFound: no
	// message of that id.
	Err error
}

const (
	maxReplayFailures = 100
	replayWindow      = 64 // moves on their way into the log
)

// Replay moves dead messages from a queue, ParkingQueue for example, back to the queues where they died, which the newest of
// their Deaths names. They go there directly and not through an exchange, to the end of their level, with Deliveries and
// Failures at 0, with the Exchange and RoutingKey that they had before that death, and without the TTL that it took from
// them; their Deaths stay.
// Only what is ready or delayed is moved, and only what is there when Replay begins, so it ends even if the messages die again.
//
// Each message moves in one step of the log, so after a crash it is in one queue or the other; with an engine that gives each queue
// a log of its own, it may be in both. A message that cannot be moved stays, and the rest go on: see Replayed.Failed. An error
// says that Replay ended early, and what Replayed says was done before: ErrNotFound, ErrQueueGone, ErrClosed, an *InvalidError,
// ErrDiskFull, ErrStorage, ErrNotLeader, ctx.Err(). If a move was not answered it matches ErrUnknownOutcome as well.
func (b *Broker) Replay(ctx context.Context, from string, opts ReplayOptions) (Replayed, error) {
	r := &replay{b: b, opts: opts, rest: slices.Clone(opts.IDs)}
	err := r.run(ctx, from)
	if err != nil {
		err = fmt.Errorf("broker: replay from %q: %w", from, err)
	}
	return r.done, err
}

// replay is a Replay under way.
type replay struct {
	b       *Broker
	opts    ReplayOptions
	rest    []string // ids that were not found yet
	start   instant
	tried   int // messages that were proposed
	waiting []*replaying
	done    Replayed
}

// replaying is a message on its way.
type replaying struct {
	m      *Browsed
	target queueDef
	call   *calling
}

func (r *replay) run(ctx context.Context, from string) error {
	switch {
	case r.opts.Rate < 0:
		return invalid("ReplayOptions.Rate", "is %d, which is negative", r.opts.Rate)
	case r.opts.Limit < 0:
		return invalid("ReplayOptions.Limit", "is %d, which is negative", r.opts.Limit)
	}
	r.start = r.b.now()
	err := r.all(ctx, from)
	for len(r.waiting) > 0 { // also after an error: these may have moved
		if failed := r.settle(ctx); err == nil {
			err = failed
		}
	}
	if err == nil && !r.full() {
		for _, id := range r.rest {
			r.failed(&Browsed{Message: Message{ID: id}, Locator: Locator{Queue: from}}, ErrNotFound)
		}
	}
	return err
}

func (r *replay) all(ctx context.Context, from string) error {
	for m, err := range r.b.browse(ctx, from, BrowseOptions{States: []State{StateReady, StateDelayed}}) {
		switch {
		case m == nil:
			return err
		case err != nil:
			if len(r.opts.IDs) == 0 {
				r.failed(m, err)
			}
			continue
		case !r.wanted(m):
			continue
		}
		// While the limit could be reached by what is on its way, its outcome is waited for.
		for len(r.waiting) > 0 && (len(r.waiting) == replayWindow || r.opts.Limit > 0 && r.done.Moved+len(r.waiting) >= r.opts.Limit) {
			if err := r.settle(ctx); err != nil {
				return err
			}
		}
		if r.full() {
			return nil
		}
		if len(m.Deaths) == 0 {
			r.done.Skipped++
			continue
		}
		if err := r.pace(ctx); err != nil {
			return err
		}
		if err := r.move(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (r *replay) full() bool { return r.opts.Limit > 0 && r.done.Moved >= r.opts.Limit }

func (r *replay) wanted(m *Browsed) bool {
	if len(r.opts.IDs) > 0 {
		if !slices.Contains(r.opts.IDs, m.ID) {
			return false
		}
		r.rest = slices.DeleteFunc(r.rest, func(id string) bool { return id == m.ID })
	}
	return r.opts.Filter == nil || r.opts.Filter(m)
}

func (r *replay) failed(m *Browsed, err error) {
	r.done.Failed++
	if len(r.done.Failures) < maxReplayFailures {
		r.done.Failures = append(r.done.Failures, ReplayFailure{Locator: m.Locator, ID: m.ID, Err: err})
	}
}

// pace waits until it is the time for the next message.
func (r *replay) pace(ctx context.Context) error {
	if r.opts.Rate == 0 {
		return nil
	}
	due := r.start + instant(r.tried/r.opts.Rate)*instant(time.Second) +
		instant(r.tried%r.opts.Rate)*instant(time.Second)/instant(r.opts.Rate)
	pause := time.Duration(due - r.b.now())
	if pause <= 0 {
		return nil
	}
	come := make(chan struct{}) // closed by the clock
	stop := r.b.clock.AfterFunc(pause, func() { close(come) })
	select {
	case <-come:
		return nil
	case <-r.b.draining:
		stop()
		return ErrClosed
	case <-ctx.Done():
		stop()
		return ctx.Err()
	}
}

// move sends m on its way.
func (r *replay) move(ctx context.Context, m *Browsed) error {
	r.tried++
	target, ok := r.b.topology.Load().queue(m.Deaths[0].Queue)
	if !ok {
		r.failed(m, fmt.Errorf("queue %q, where it died: %w", m.Deaths[0].Queue, ErrQueueGone))
		return nil
	}
	source, there := r.b.placement.holding(m.Locator.id, m.Seq), r.b.placement.of(target.id)
	switch {
	case source == nil:
		return ErrQueueGone
	case there == nil:
		r.failed(m, fmt.Errorf("queue %q, where it died: %w", target.Name, ErrQueueGone))
		return nil
	case source != there:
		return r.copyTo(ctx, m, target, source, there)
	}
	c := amend{queue: m.Locator.id, place: m.Locator.at(), what: amendReplay, ref: m.ref}
	call := &calling{done: make(chan struct{})}
	body := source.compress(m.Body)
	defer body.release()
	call.posting = posting{b: r.b, how: durably, encode: func(dst []byte, at instant) []byte {
		return m.appendReplay(appendTargets(c.appendTo(dst, at), []queueID{target.id}), body)
	}}
	if err := source.log.Propose(call); err != nil {
		return err
	}
	r.waiting = append(r.waiting, &replaying{m, target, call})
	return nil
}

// appendReplay appends the message as it was before it died.
func (m *Browsed) appendReplay(dst []byte, body *compressed) []byte {
	before := m.Message
	before.Exchange, before.RoutingKey = m.Deaths[0].Exchange, m.Deaths[0].RoutingKey
	before.DeliverAt = time.Time{}
	return appendCompressed(dst, &before, body, messageID{}, m.Deaths)
}

// settle waits for the outcome of the move that was sent first.
func (r *replay) settle(ctx context.Context) error {
	w := r.waiting[0]
	if _, known := await(ctx, w.call.done); !known {
		r.waiting = nil // nobody waits for the others either
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
	}
	r.waiting = r.waiting[1:]
	if w.call.err != nil {
		return w.call.err
	}
	return r.outcome(ctx, w.m, w.target, w.call.answer)
}

// outcome counts the answer to a move.
func (r *replay) outcome(ctx context.Context, m *Browsed, target queueDef, a Answer) error {
	switch a.Code {
	case answerOK:
		r.done.Moved++
	case answerAbsent, answerNotWaiting:
		r.done.Skipped++
	case answerStale: // it was edited after it was read
		return r.again(ctx, m)
	case answerFull:
		r.failed(m, r.b.fullError(a))
	default:
		r.failed(m, fmt.Errorf("queue %q, where it died: %w", target.Name, ErrQueueGone))
	}
	return nil
}

// again moves a message that has changed since it was read.
func (r *replay) again(ctx context.Context, m *Browsed) error {
	w, err := r.b.lookOver(m.Queue, BrowseOptions{After: m.Locator})
	if err != nil {
		return err
	}
	now, err := w.shard.see(w.queue.id, m.Locator.at())
	if errors.Is(err, ErrNotFound) {
		r.done.Skipped++
		return nil
	}
	if err != nil {
		return err
	}
	changed, err := w.read(&now)
	switch {
	case changed == nil:
		r.done.Skipped++
		return nil
	case err != nil:
		r.failed(m, err)
		return nil
	}
	return r.move(ctx, changed)
}

// copyTo moves m to a queue in another shard: first it is there, then it ends here. If it is cut off in between it is in both.
func (r *replay) copyTo(ctx context.Context, m *Browsed, target queueDef, source, there *shard) error {
	body := there.compress(m.Body)
	defer body.release()
	a, err := there.call(ctx, durably, func(dst []byte, at instant) []byte {
		return m.appendReplay(appendTargets(appendHeader(dst, cmdEnqueue, at), []queueID{target.id}), body)
	})
	if err != nil {
		return err
	}
	if a.Code != answerOK {
		return r.outcome(ctx, m, target, a)
	}
	c := amend{queue: m.Locator.id, place: m.Locator.at(), what: amendReplayed}
	if _, err := source.call(ctx, durably, func(dst []byte, at instant) []byte { return c.appendTo(dst, at) }); err != nil {
		return err
	}
	r.done.Moved++
	return nil
}
