package bourse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// scheduler finds out what schedules do when they are due, and proposes it. The machine orders that with a fire effect and
// goes on only with the answer, so the scheduler needs no memory of its own: what a crash interrupts is ordered anew.
type scheduler struct {
	b    *Broker
	done chan struct{} // closed when run has returned
	// over ends what run waits for; its CancelFunc is quit.
	over context.Context
	quit context.CancelFunc

	copied map[scheduleID]copies // owned by run

	mu      sync.Mutex    // guards below; taken under shard.mu
	waiting []scheduleID  // in order
	signal  chan struct{} // capacity 1; sent by add, received by run
}

// copies are the queues in other shards that have the message of a fire which is not done, since another had no room. To
// forget them brings a repetition.
type copies struct {
	fire   instant
	queues []queueID
}

func newScheduler(b *Broker) *scheduler {
	v := &scheduler{b: b, done: make(chan struct{}), signal: make(chan struct{}, 1), copied: make(map[scheduleID]copies)}
	v.over, v.quit = context.WithCancel(context.Background())
	return v
}

// Pauses after what cannot be done now.
const (
	retryFire = time.Second // the log or a queue refused it
	retryZone = time.Minute // this system does not know a time zone
)

func (v *scheduler) add(id scheduleID) {
	v.mu.Lock()
	v.waiting = append(v.waiting, id)
	v.mu.Unlock()
	select {
	case v.signal <- struct{}{}:
	default:
	}
}

// stop makes run return after the fire it is at, and waits for that.
func (v *scheduler) stop() {
	v.quit()
	<-v.done
}

// run carries out what comes until stop.
func (v *scheduler) run() {
	defer close(v.done)
	for v.over.Err() == nil {
		v.mu.Lock()
		batch := v.waiting
		v.waiting = nil
		v.mu.Unlock()
		for _, id := range batch {
			if v.over.Err() != nil {
				return
			}
			v.fire(id)
		}
		if len(batch) == 0 {
			select {
			case <-v.signal:
			case <-v.over.Done():
			}
		}
	}
}

// firing is the proposal of a fire.
type firing struct {
	v       *scheduler
	command fire
	name    string // of the schedule
	message Message
	body    *compressed // of message; nil: not compressed
	targets []queueID
}

// AppendTo implements Proposal. A clock that was set back since what happens was decided is not believed: to the machine it would come
// before its time.
func (p *firing) AppendTo(dst []byte) []byte {
	dst = p.command.appendTo(dst, max(p.v.b.now(), p.command.due, p.command.fire))
	if p.command.outcome != outcomeHere {
		return dst
	}
	return appendCompressed(appendTargets(dst, p.targets), &p.message, p.body, messageID{}, nil)
}

// Durable implements Proposal.
func (p *firing) Durable() bool { return true }

// Done implements Proposal. It tries again if the targets were deleted meanwhile or refused it, or if nobody can tell what
// happened: a fire that has happened does nothing the second time.
func (p *firing) Done(a Answer, err error) {
	switch {
	case err != nil:
		p.v.refused(p, err)
	case a.Code == answerGone:
		p.v.add(p.command.schedule)
	case a.Code == answerFull:
		p.v.later(p, retryFire, p.v.b.fullError(a))
	case a.Code != answerOK && a.Code != answerStale:
		p.v.later(p, retryFire, fmt.Errorf("a queue refused it with %d", a.Code))
	}
}

// refused tries again later, unless the fire will be ordered anew by itself: when this node leads again, or the broker is
// opened again.
func (v *scheduler) refused(p *firing, err error) {
	for _, over := range []error{ErrNotLeader, ErrStorage, ErrClosed} {
		if errors.Is(err, over) {
			return
		}
	}
	v.later(p, retryFire, err)
}

func (v *scheduler) later(p *firing, pause time.Duration, err error) {
	if v.over.Err() != nil {
		return
	}
	v.b.log.Warn("a schedule cannot fire now", "schedule", p.name, "err", err)
	id := p.command.schedule
	v.b.clock.AfterFunc(pause, func() { v.add(id) })
}

// fire does for one schedule what is due.
func (v *scheduler) fire(id scheduleID) {
	first := v.b.placement.first
	a, ok := first.appointment(id)
	if !ok || !a.asked {
		return // deleted, or the order came twice, as at each change of the leader
	}
	p := &firing{v: v, name: a.Name, command: fire{schedule: id}}
	tt, bad := newTimetable(a.Schedule, a.since)
	if bad != nil {
		v.later(p, retryZone, bad)
		return
	}
	p.command = decide(&a, &tt, v.b.now())
	if p.command.next == never {
		v.b.log.Warn("a schedule has no more fires", "schedule", a.Name)
	}
	if p.command.outcome == outcomeHere {
		p.body = v.b.compress(a.Message.Body)
		defer p.body.release() // no proposal is encoded after that
		if err := p.address(&a); err != nil {
			v.later(p, retryFire, err)
			return
		}
	}
	if err := first.log.Propose(p); err != nil {
		v.refused(p, err)
	}
}

// address makes the message of the fire and finds its queues. Those that are in other shards get it at once: if that is cut
// off, they get it again, with the same id, and never not at all.
func (p *firing) address(a *appointment) error {
	b := p.v.b
	p.message = a.Message
	p.message.ID = fireID(a.Name, p.command.fire)
	p.message.Timestamp = time.Unix(0, int64(p.command.fire))
	targets, err := b.topology.Load().route(p.message.Exchange, p.message.RoutingKey, p.message.Headers, nil)
	if err != nil || len(targets) == 0 {
		p.command.outcome = outcomeUnroutable
		return nil
	}
	if len(p.v.copied) > MaxSchedules {
		clear(p.v.copied) // most are of schedules that are gone
	}
	have := p.v.copied[a.id]
	if have.fire != p.command.fire {
		have = copies{fire: p.command.fire}
	}
	for _, id := range targets {
		if slices.Contains(have.queues, id) {
			continue
		}
		shard := b.placement.of(id)
		if shard == b.placement.first {
			p.targets = append(p.targets, id)
			continue
		}
		if shard == nil {
			return ErrQueueGone
		}
		body := p.body
		if shard.inMemory {
			body = nil
		}
		answer, err := shard.call(p.v.over, durably, func(dst []byte, at instant) []byte {
			dst = appendTargets(appendHeader(dst, cmdEnqueue, at), []queueID{id})
			return appendCompressed(dst, &p.message, body, messageID{}, nil)
		})
		if err == nil && answer.Code == answerFull {
			err = b.fullError(answer)
		}
		if err == nil && answer.Code != answerOK {
			err = ErrQueueGone
		}
		if err != nil {
			return err
		}
		have.queues = append(have.queues, id)
		p.v.copied[a.id] = have
	}
	if len(p.targets) == 0 {
		p.command.outcome = outcomeElsewhere
	}
	return nil
}

// checkSchedules checks what the schedules among ds say of times, and their messages by the limits of this broker.
func (b *Broker) checkSchedules(ds []Declaration) error {
	for _, d := range ds {
		s, ok := d.(Schedule)
		if !ok {
			continue
		}
		now := b.now()
		tt, wrong := newTimetable(s, now)
		if wrong != nil {
			return wrong
		}
		if tt.after(now) == never {
			return invalid("Schedule.Cron", "%q: there is no such time in the next years", s.Cron)
		}
		var bad *InvalidError
		if err := b.checkMessage(&s.Message); errors.As(err, &bad) {
			return invalid("Schedule."+bad.Field, "%s", bad.Reason)
		} else if err != nil {
			return err
		}
	}
	return nil
}
