package bourse

import (
	"context"
	"slices"
	"sync"
	"time"
)

// defaultRuntime is WorkOptions.Timeout with AutoExtend.
const defaultRuntime = 24 * time.Hour

// extender looks after the loans of a Work. It has one timer and no goroutine, however many there are, and looks at them six
// times in a deadline.
//
// With WorkOptions.AutoExtend it keeps them alive: those of running handlers, and those that wait for one. It extends those
// of which a third has passed, by a whole deadline: a handler that returns before that costs nothing in the log, and if an
// extension fails, on a full disk say, there is time for two more.
//
// Without, it gives back those that wait for a handler of which two thirds have passed, without a failure: nobody has worked on
// them. Else a job that always takes until its deadline would burn the retries of those that wait behind it.
type extender struct {
	sub  *Subscription // fixed, as auto is
	auto bool          // WorkOptions.AutoExtend

	mu      sync.Mutex // guards below; leaf lock
	running []*extendable
	stop    func() bool // stops the timer
	over    bool
}

// extendable is a loan whose handler runs.
type extendable struct {
	d     *Delivery
	ctx   context.Context // the handler's; when it has ended there is no extension any more
	place int             // in extender.running
}

func newExtender(sub *Subscription, auto bool) *extender {
	x := &extender{sub: sub, auto: auto}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.setLocked()
	return x
}

// begin says that a handler starts to work on d, with ctx.
func (x *extender) begin(ctx context.Context, d *Delivery) *extendable {
	if !x.auto {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := &extendable{d: d, ctx: ctx, place: len(x.running)}
	x.running = append(x.running, e)
	return e
}

// end says that the handler has returned. Its delivery is not extended any more, unless that is under way.
func (x *extender) end(e *extendable) {
	if !x.auto {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	last := len(x.running) - 1
	x.running[e.place] = x.running[last]
	x.running[e.place].place = e.place
	x.running[last] = nil
	x.running = x.running[:last]
}

// close ends the extensions, of handlers that still run too.
func (x *extender) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	x.stop()
}

// least is the shortest time between two looks.
const least = time.Millisecond

func (x *extender) setLocked() {
	if x.over {
		return
	}
	x.stop = x.sub.b.clock.AfterFunc(max(x.sub.queue.AckDeadline/6, least), x.look)
}

// look does what is needed. It runs on a goroutine of the clock.
func (x *extender) look() {
	if by := x.sub.queue.AckDeadline; x.auto {
		x.extend(by, x.sub.b.now()+instant(by-by/3))
	} else {
		x.sub.giveBackWaiting(x.sub.b.now() + instant(by/3))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.setLocked()
}

// extend extends what ends by limit.
func (x *extender) extend(by time.Duration, limit instant) {
	x.mu.Lock()
	running := slices.Clone(x.running)
	x.mu.Unlock()
	for _, e := range running {
		if e.ctx.Err() == nil && instant(e.d.loan.deadline.Load()) <= limit {
			// An error means that the loan is over, or that the next look must try again.
			_ = e.d.extend(by)
		}
	}
	x.sub.extendWaiting(by, limit)
}

// giveBackWaiting releases the loans in the buffer that end by limit.
func (s *Subscription) giveBackWaiting(limit instant) {
	if j := s.joined.Load(); j != nil {
		j.part.giveBackWaiting(limit)
	}
	var due []lent
	s.mu.Lock()
	s.buffer = append(s.buffer[:s.first], slices.DeleteFunc(s.buffer[s.first:], func(l lent) bool {
		if l.deadline <= limit {
			due = append(due, l)
		}
		return l.deadline <= limit
	})...)
	s.mu.Unlock()
	for i := range due {
		l := &settlement{sub: s, tag: due[i].tag, slot: due[i].slot}
		if l.propose(verdictRelease, 0, "", nil) != nil {
			s.putBack(due[i:])
			return
		}
	}
}

// extendWaiting extends the loans in the buffer that end by limit.
func (s *Subscription) extendWaiting(by time.Duration, limit instant) {
	if j := s.joined.Load(); j != nil {
		j.part.extendWaiting(by, limit)
	}
	s.mu.Lock()
	var due []lent
	for _, l := range s.buffer[s.first:] {
		if l.deadline <= limit {
			due = append(due, l)
		}
	}
	s.mu.Unlock()
	for i := range due {
		e := extending{loan: &settlement{sub: s, tag: due[i].tag, slot: due[i].slot}, by: by}
		if s.shard.log.Propose(&e) != nil {
			return
		}
		s.mu.Lock()
		if at, found := slices.BinarySearchFunc(s.buffer[s.first:], due[i].tag, lent.compareTag); found {
			s.buffer[s.first+at].deadline = e.until
		}
		s.mu.Unlock()
	}
}
