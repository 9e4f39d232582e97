package sim

import (
	"fmt"
	"slices"
	"time"
)

const (
	millisecond = time.Millisecond
	second      = time.Second
)

// actor is a consumer.
type actor struct {
	id    uint64
	queue uint64
	kind  behaviour
	pull  bool
	held  []hold
	lost  []hold // it held these once, and may not know that it does not any more
}

// hold is a loan as its consumer knows it.
type hold struct {
	queue, tag uint64
	slot       int32
}

// behaviour is what a consumer is like.
type behaviour byte

const (
	good   behaviour = iota // acks
	flaky                   // any verdict
	broken                  // fails always
	asleep                  // lets deadlines pass
)

// lose takes a loan from a.
func (a *actor) lose(tag uint64) {
	for i, h := range a.held {
		if h.tag == tag {
			a.held = append(a.held[:i], a.held[i+1:]...)
			a.lost = append(a.lost, h)
			return
		}
	}
}

func (w *Runner) actor(id uint64) *actor {
	for _, a := range w.actors {
		if a.id == id {
			return a
		}
	}
	return nil
}

// dismiss forgets a consumer.
func (w *Runner) dismiss(id uint64) {
	for i, a := range w.actors {
		if a.id == id {
			w.actors = append(w.actors[:i], w.actors[i+1:]...)
			w.idle = append(w.idle, a)
			return
		}
	}
}

// dismissAll forgets all that a process has in memory: its consumers, and what its mover is at.
func (w *Runner) dismissAll() {
	w.idle = append(w.idle, w.actors...)
	w.actors, w.orders, w.repeats, w.again = w.actors[:0], w.orders[:0], w.repeats[:0], w.again[:0]
}

// step lets some time pass and does one thing.
func (w *Runner) step() {
	switch k := w.rng.IntN(100); {
	case k < 75:
		w.pass(w.clock + int64(w.rng.IntN(3))*int64(10*millisecond))
	case k < 88: // to when something is due, or just beside it
		if w.wake > w.clock {
			w.pass(w.wake + int64(w.rng.IntN(3)-1))
		}
	case k < 92:
		w.pass(w.clock + int64(w.rng.IntN(4000))*int64(millisecond))
	}
	w.act()
	switch k := w.rng.IntN(1000); {
	case k < 8:
		w.save()
	case k < 11:
		w.restart(killed)
	case k < 14:
		w.restart(powerCut)
	case k < 16:
		w.restart(closed)
	}
}

// act proposes one command, or a few. A feature of queues that others do not know of gets its line here, its fields in
// Command and Spec, and its rules in the observer.
func (w *Runner) act() {
	switch k := w.rng.IntN(200); {
	case k < 66:
		w.publish()
	case k < 128:
		w.settle()
	case k < 138:
		w.attach()
	case k < 143:
		w.detach()
	case k < 151:
		w.take()
	case k < 157:
		w.ackUpTo()
	case k < 161:
		if w.wake != 0 && w.wake <= w.clock || w.one(3) {
			w.tick()
		}
	case k < 163:
		w.purge()
	case k < 186:
		w.move()
	case k < 190:
		w.amend()
	case k < 195:
		w.declare()
	case k < 197:
		w.delete()
	case k < 198:
		w.amend()
	case k < 199 && !w.failing:
		w.submit(&Command{Kind: Open, At: w.at(), Lost: w.one(2)})
		w.newSession()
	}
}

// newSession is another leader in the same process.
func (w *Runner) newSession() {
	w.idle = append(w.idle, w.actors...)
	w.actors = w.actors[:0]
	w.session, w.numbers = w.obs.session, 0
}

// at is what the proposer's clock shows; now and then it is another node's, which lags.
func (w *Runner) at() int64 {
	if w.one(30) {
		return w.clock - int64(w.rng.IntN(2000))*int64(millisecond)
	}
	return w.clock
}

// queue is any queue; the parking queue less often.
func (w *Runner) queue() *view {
	if n := len(w.obs.order); n > 1 && !w.one(10) {
		return w.obs.order[1+w.rng.IntN(n-1)]
	}
	return w.obs.order[0]
}

// queueID is that of any queue, now and then one that is gone or never was.
func (w *Runner) queueID() uint64 {
	switch {
	case len(w.gone) > 0 && w.one(40):
		return w.gone[w.rng.IntN(len(w.gone))]
	case w.one(300):
		return uint64(50 + w.rng.IntN(50))
	}
	return w.queue().id
}

// held is how many messages there are.
func (w *Runner) held() int {
	n := 0
	for _, v := range w.obs.order {
		n += len(v.copies) - v.ended
	}
	return n
}

func (w *Runner) publish() {
	if w.held() >= w.most {
		w.settle()
		return
	}
	n := 1
	if w.one(8) {
		n += w.rng.IntN(8)
	}
	for range n {
		w.publishOne()
	}
}

func (w *Runner) publishOne() {
	var ids [8]uint64
	c := Command{Kind: Publish, At: w.at(), Targets: append(ids[:0], w.queueID())}
	for w.one(4) && len(c.Targets) < len(ids) {
		if id := w.queueID(); !slices.Contains(c.Targets, id) {
			c.Targets = append(c.Targets, id)
		}
	}
	w.message++
	c.Message = Message{Number: w.message}
	if w.one(2) {
		c.Message.Priority = uint8(w.rng.IntN([...]int{2, 4, 12, 256}[w.rng.IntN(4)]))
	}
	if w.one(5) {
		c.Message.TTL = [...]time.Duration{NoWait, 1, second, 3 * second, time.Minute}[w.rng.IntN(5)]
	}
	if w.one(4) {
		c.Message.Key = 1 + uint64(w.rng.IntN(12))
	}
	if w.one(8) {
		c.Message.ReadyAt = w.clock + int64(w.rng.IntN(5)-1)*int64(900*millisecond)
	}
	for _, id := range c.Targets {
		if v := w.obs.queue(id); v != nil && v.spec.Retry.Jitter > 0 {
			c.Message.TTL = 0 // when it expires there would depend on how long it rests, which only the system knows
		}
	}
	w.submit(&c)
}

// settle is a verdict of a consumer on something that it holds, or held, or never held.
func (w *Runner) settle() {
	if len(w.actors) == 0 {
		w.attach()
		return
	}
	a := w.actors[w.rng.IntN(len(w.actors))]
	for range 4 {
		if len(a.held) > 0 {
			break
		}
		a = w.actors[w.rng.IntN(len(w.actors))]
	}
	var h hold
	mine := false
	switch {
	case len(a.lost) > 0 && w.one(12):
		h = a.lost[w.rng.IntN(len(a.lost))]
	case len(a.held) > 0:
		i := 0
		if w.one(2) {
			i = w.rng.IntN(len(a.held))
		}
		h, mine = a.held[i], true
	default:
		h = hold{a.queue, uint64(w.rng.IntN(4)), int32(w.rng.IntN(4))}
	}
	c := Command{Kind: Settle, At: w.at(), Queue: h.queue, Consumer: a.id, Tag: h.tag, Slot: h.slot, Sync: w.one(4)}
	if w.one(40) { // what is another's, or nobody's
		b := w.actors[w.rng.IntN(len(w.actors))]
		if c.Consumer = b.id; len(b.held) > 0 && w.one(2) {
			c.Tag = b.held[0].tag
		}
		mine = false
	}
	c.Verdict, c.Pause = w.verdict(a)
	if mine && a.kind == asleep && !w.one(4) {
		return
	}
	if !w.submit(&c) {
		return
	}
	if mine && c.Verdict != Extend {
		a.lose(h.tag)
	}
	if len(a.lost) > 30 {
		a.lost = append(a.lost[:0], a.lost[20:]...)
	}
}

func (w *Runner) verdict(a *actor) (Verdict, time.Duration) {
	pause := time.Duration(w.rng.IntN(6)-1) * 700 * millisecond
	k := w.rng.IntN(100)
	switch {
	case a.kind == broken && k < 75:
		return Nack, -1
	case a.kind == broken:
		return Reject, 0
	case a.kind == good && k < 90, k < 40:
		return Ack, 0
	case k < 70:
		if w.one(3) {
			pause = -1
		}
		return Nack, pause
	case k < 80:
		return Reject, 0
	case k < 92:
		return Release, max(pause, 0)
	}
	return Extend, max(pause, 0)
}

func (w *Runner) attach() {
	v := w.queue()
	c := Command{Kind: Attach, At: w.at(), Queue: v.id}
	c.Prefetch = [...]int{0, 1, 1, 2, 3, 5, 20}[w.rng.IntN(7)]
	switch {
	case len(v.consumers) > 0 && w.one(3) || len(v.consumers) > 4: // another prefetch
		c.Consumer = v.consumers[w.rng.IntN(len(v.consumers))].id
	case w.one(20) && w.session > 0: // of an earlier session
		c.Consumer = (w.session-1)<<32 | 1
	default:
		w.numbers++
		c.Consumer = w.session<<32 | uint64(w.numbers)
		if w.one(40) {
			c.Queue = w.queueID()
		}
	}
	if c.Sync = w.lasting(c.Queue); c.Sync {
		c.Rank = w.rng.IntN(3)
	}
	if w.failing {
		w.submit(&c)
		return
	}
	if v := w.obs.queue(c.Queue); v != nil && w.actor(c.Consumer) == nil && c.Consumer>>32 == w.session {
		w.hire(c.Consumer, c.Queue, behaviour(w.rng.IntN(4)), c.Prefetch == 0)
	}
	w.submit(&c)
}

// hire makes a consumer before its attach is proposed, since it may be sent messages with that.
func (w *Runner) hire(id, queue uint64, kind behaviour, pull bool) *actor {
	a := &actor{}
	if n := len(w.idle); n > 0 {
		a, w.idle = w.idle[n-1], w.idle[:n-1]
		*a = actor{held: a.held[:0], lost: a.lost[:0]}
	}
	a.id, a.queue, a.kind, a.pull = id, queue, kind, pull
	w.actors = append(w.actors, a)
	return a
}

// detach ends a consumer: it leaves, or its process vanishes.
func (w *Runner) detach() {
	if len(w.actors) == 0 {
		return
	}
	a := w.actors[w.rng.IntN(len(w.actors))]
	c := Command{Kind: Detach, At: w.at(), Queue: a.queue, Consumer: a.id, Lost: w.one(2)}
	if w.one(30) {
		c.Queue = w.queueID()
	}
	c.Sync = w.lasting(c.Queue)
	if w.submit(&c) && c.Queue == a.queue {
		w.dismiss(a.id)
		if c.Lost && len(a.held) > 0 {
			w.report.Vanished++
		}
	}
}

func (w *Runner) take() {
	if len(w.actors) == 0 {
		return
	}
	a := w.actors[w.rng.IntN(len(w.actors))]
	c := Command{Kind: Take, At: w.at(), Queue: a.queue, Consumer: a.id}
	if w.one(30) {
		c.Queue = w.queueID()
	}
	if w.submit(&c) && w.out.Code == OK {
		w.receive(&w.out.Lent)
	}
}

func (w *Runner) ackUpTo() {
	if len(w.actors) == 0 {
		return
	}
	a := w.actors[w.rng.IntN(len(w.actors))]
	c := Command{Kind: AckUpTo, At: w.at(), Queue: a.queue, Consumer: a.id, Sync: w.one(4)}
	if len(a.held) > 0 {
		c.Tag = a.held[w.rng.IntN(len(a.held))].tag
	}
	c.Tag += uint64(w.rng.IntN(3))
	if !w.submit(&c) {
		return
	}
	for i := len(a.held) - 1; i >= 0; i-- {
		if a.held[i].tag <= c.Tag {
			a.lose(a.held[i].tag)
		}
	}
}

func (w *Runner) purge() {
	if w.one(2) {
		return
	}
	w.submit(&Command{Kind: Purge, At: w.at(), Queue: w.queueID()})
}

// move carries out one of the orders to move the dead. Each may be given up and come again, or be proposed twice.
func (w *Runner) move() {
	if len(w.again) > 0 && w.one(3) {
		w.report.Repeated++
		c, cmd := w.repeats[0], w.again[0]
		w.repeats, w.again = slices.Delete(w.repeats, 0, 1), slices.Delete(w.again, 0, 1)
		from := len(w.log)
		w.log = append(w.log, cmd...)
		w.submitted(&c, from)
		return
	}
	if len(w.orders) == 0 {
		return
	}
	i := 0
	if w.one(4) {
		i = w.rng.IntN(len(w.orders))
	}
	e := w.orders[i]
	v := w.obs.queue(e.Queue)
	var m *message
	if v != nil {
		m = v.copyOf(e.Ref)
	}
	if !w.failing {
		w.orders = append(w.orders[:i], w.orders[i+1:]...)
	}
	if m == nil || m.state != dying {
		return // its queue was deleted, or the order came twice
	}
	w.body(e.Ref)
	at, from, s := w.at(), len(w.log), &w.steps[e.Ref-1]
	var targets []uint64
	w.log, targets = w.sys.Bury(w.log, at, &e, w.log[s.from:s.to])
	c := Command{Kind: Move, At: at, Queue: e.Queue, Seq: e.Seq, Targets: targets, Message: Message{Number: m.number, Priority: m.priority}}
	var room [16]uint64
	want := w.obs.destinations(room[:0], v, m)
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(targets)); !slices.Equal(got, want) {
		fail("I10", "queue %d: message %d goes to queues %v, want %v", v.id, m.number, got, want)
	}
	late := w.one(3) && !w.failing // its queues may be gone when it comes, or another move have carried out the order
	if late || w.one(8) {
		w.repeats, w.again = append(w.repeats, c), append(w.again, slices.Clone(w.log[from:]))
	}
	if late {
		w.log, w.orders = w.log[:from], append(w.orders, e)
		return
	}
	if w.submitted(&c, from) && w.out.Code == Gone {
		w.orders = append(w.orders, e)
	}
}

// declare is of one of few names, so that some exist already, equal or different, and some did.
func (w *Runner) declare() {
	name := fmt.Sprintf("q%d", w.rng.IntN(6))
	spec := w.spec(name)
	if have := w.obs.named(name); have != nil && w.one(2) {
		spec = have.spec
	}
	w.submit(&Command{Kind: Declare, At: w.at(), Spec: spec})
}

func (w *Runner) spec(name string) Spec {
	s := Spec{
		Name:     name,
		Levels:   [...]int{1, 2, 10, 256}[w.rng.IntN(4)],
		Retries:  [...]int{20, 0, 1, 2, 3, Unlimited}[w.rng.IntN(6)],
		Deadline: [...]time.Duration{second, 3 * second, 10 * second, 30 * time.Minute}[w.rng.IntN(4)],
		Dead:     Dead(w.rng.IntN(5)),
		Joined:   w.one(3),
		Single:   w.one(5),
		Window:   [...]time.Duration{0, 0, second, time.Minute}[w.rng.IntN(4)],
		Retry: [...]Retry{
			{}, {}, {Min: second, Max: second, Percent: 200}, {Min: 500 * millisecond, Max: 3 * second, Percent: 150},
			{Min: 300 * millisecond, Max: 9 * second, Percent: 325, Jitter: 30},
			{Listed: 3, Pauses: [3]time.Duration{0, 700 * millisecond, 3 * second}, Jitter: [...]int{0, 100}[w.rng.IntN(2)]},
		}[w.rng.IntN(6)],
	}
	if s.Dead == DeadDirect {
		s.DeadTo = fmt.Sprintf("q%d", w.rng.IntN(6))
	}
	if s.Retry.Jitter == 0 {
		s.TTL = [...]time.Duration{0, 0, 0, 5 * second, 800 * millisecond, NoWait}[w.rng.IntN(6)]
	}
	return s
}

func (w *Runner) delete() {
	c := Command{Kind: Delete, At: w.at(), Spec: Spec{Name: fmt.Sprintf("q%d", w.rng.IntN(6))}, Unused: w.one(2), Emptied: w.one(2)}
	have := w.obs.named(c.Spec.Name)
	if have == nil {
		w.submit(&c)
		return
	}
	id := have.id
	if w.submit(&c) && w.out.Code == OK {
		w.gone = append(w.gone, id)
		w.report.Deleted++
	}
}

// drain ends all faults: good consumers everywhere, the mover works, and the clock goes on until nothing is left.
func (w *Runner) drain() {
	w.submit(&Command{Kind: Open, At: w.clock})
	w.newSession()
	w.again, w.repeats = w.again[:0], w.repeats[:0]
	for _, v := range w.obs.order {
		w.numbers++
		c := Command{Kind: Attach, At: w.clock, Queue: v.id, Consumer: w.session<<32 | uint64(w.numbers), Prefetch: 1 + w.rng.IntN(20)}
		w.hire(c.Consumer, v.id, good, false)
		w.submit(&c)
	}
	for n := 0; ; n++ {
		if n > 10_000 {
			fail("I21", "the queues do not run empty")
		}
		if !w.drainOnce() {
			break
		}
	}
	w.sys.Check()
	w.obs.empty()
	w.scratch = w.sys.Snapshot(w.scratch[:0])
}

// drainOnce reports whether there was anything to do.
func (w *Runner) drainOnce() bool {
	busy := false
	for _, a := range w.actors {
		for len(a.held) > 0 {
			h := a.held[0]
			w.submit(&Command{Kind: Settle, At: w.clock, Queue: h.queue, Consumer: a.id, Tag: h.tag, Slot: h.slot})
			a.lose(h.tag)
			busy = true
		}
	}
	for len(w.orders) > 0 {
		w.move()
		busy = true
	}
	if !busy && w.wake != 0 {
		w.tick()
		busy = true
	}
	return busy
}
