package bourse

import (
	"context"
	"slices"
	"sync"
	"time"
)

// defaultRuntime is WorkOptions.Timeout with AutoExtend.
const defaultRuntime = 24 * time.Hour

// extender keeps the loans of a Work alive, for WorkOptions.AutoExtend: those of its running handlers, and those that wait for
// one. It has one timer and no goroutine, however many there are. It looks at them six times in a deadline and extends those
// of which a third has passed, by a whole deadline: a handler that returns before that costs nothing in the log, and if an
// extension fails, on a full disk say, there is time for two more.
type extender struct {
	sub *Subscription // fixed

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

func newExtender(sub *Subscription) *extender {
	x := &extender{sub: sub}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.setLocked()
	return x
}

// begin says that a handler starts to work on d, with ctx. A nil extender does nothing.
func (x *extender) begin(ctx context.Context, d *Delivery) *extendable {
	if x == nil {
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
	if x == nil {
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
	if x == nil {
		return
	}
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

// look extends what needs it. It runs on a goroutine of the clock.
func (x *extender) look() {
	by := x.sub.queue.AckDeadline
	limit := x.sub.b.now() + instant(by-by/3)
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
	x.mu.Lock()
	defer x.mu.Unlock()
	x.setLocked()
}

// extendWaiting extends the loans in the buffer that end by limit.
func (s *Subscription) extendWaiting(by time.Duration, limit instant) {
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
