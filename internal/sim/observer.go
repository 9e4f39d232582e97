package sim

import "time"

// observer is what publishers and consumers know of the queues. It is told each command with its outcome and fails where
// that cannot be. It never looks into the system, and keeps a message until it has heard of its end.
type observer struct {
	now     int64
	session uint64
	byID    []*view // by id; nil: gone, or never declared
	order   []*view // those that exist, by id
	lastID  uint64
	refs    []reference // by ref
	dirty   []uint64    // refs whose counts changed with this command

	free []*view // for their memory
}

// reference is what is known of a command of the log that holds a message.
type reference struct {
	number uint64 // of the message
	held   int32  // references that the system took and did not free
	live   int32  // copies that the observer knows
}

// view is one queue.
type view struct {
	id        uint64
	spec      Spec
	now       int64 // of the last command that concerned it
	copies    []message
	ended     int // of copies
	consumers []member
	ids       []remembered
	turn      uint64
	active    uint64 // the single active consumer; 0: none
	due       int64  // when something will be due here; 0: never
	count     Counts
	touched   bool // by this command
	lapsed    bool // a message that must not wait ended with this command
}

// remembered is an id of which a queue takes no other message before until.
type remembered struct {
	key   uint64
	until int64
}

// repeats reports whether v has taken a message with that id within its window. If not, it remembers it from now on.
func (v *view) repeats(key uint64, now int64) bool {
	if key == 0 || v.spec.Window == 0 {
		return false
	}
	until := now + int64(v.spec.Window)
	for i := range v.ids {
		if id := &v.ids[i]; id.key == key {
			if id.until > now {
				return true
			}
			id.until = until
			return false
		}
	}
	v.ids = append(v.ids, remembered{key, until})
	return false
}

// state of a message in a queue.
type state byte

const (
	waiting state = iota // ready from hi on, not ready before lo
	lent
	dying
	ended
)

// message is one copy, in one queue.
type message struct {
	ref        uint64
	number     uint64
	priority   uint8
	level      uint8
	state      state
	reason     Reason
	ordered    bool // dying: its move was ordered
	arrived    int64
	start      int64 // its TTL counts from here
	ttl        time.Duration
	lo, hi     int64
	deliveries uint32
	failures   uint32
	consumer   uint64
	tag        uint64
	slot       int32
	deadline   int64
	seq        uint64 // of its arrival here, from 1
	// circle has a bit for each queue where it died since a consumer rejected it last: by names, since a queue may be declared anew.
	circle uint64
}

// member is a consumer of a queue.
type member struct {
	id          uint64
	prefetch    int
	pull        bool // it came without a prefetch: it only takes
	outstanding int
	rank        int
	lastTag     uint64
	turn        uint64 // when it was served last
}

func (o *observer) reset() {
	o.now, o.session, o.lastID = 0, 0, 1
	o.free = append(o.free, o.order...)
	clear(o.byID)
	o.byID, o.order, o.refs, o.dirty = o.byID[:0], o.order[:0], o.refs[:0], o.dirty[:0]
	o.add(1, Spec{Name: Parking, Levels: 1, Retries: Unlimited, Deadline: 30 * time.Minute})
}

func (o *observer) add(id uint64, spec Spec) {
	v := &view{}
	if n := len(o.free); n > 0 {
		v, o.free = o.free[n-1], o.free[:n-1]
		*v = view{copies: v.copies[:0], consumers: v.consumers[:0], ids: v.ids[:0]}
	}
	v.id, v.spec, v.now = id, spec, o.now
	for uint64(len(o.byID)) <= id {
		o.byID = append(o.byID, nil)
	}
	o.byID[id] = v
	o.order = append(o.order, v)
}

// queue returns the view of id, or nil.
func (o *observer) queue(id uint64) *view {
	if id >= uint64(len(o.byID)) {
		return nil
	}
	return o.byID[id]
}

func (o *observer) named(name string) *view {
	for _, v := range o.order {
		if v.spec.Name == name {
			return v
		}
	}
	return nil
}

// reference returns the books on ref.
func (o *observer) reference(ref uint64) *reference {
	for uint64(len(o.refs)) <= ref {
		o.refs = append(o.refs, reference{})
	}
	o.dirty = append(o.dirty, ref)
	return &o.refs[ref]
}

// see takes the observer forward by a command that the log holds at ref.
func (o *observer) see(ref uint64, c *Command, out *Outcome) {
	o.now = max(o.now, c.At)
	if out.Kept > 0 {
		o.reference(ref).held += int32(out.Kept)
	}
	o.command(ref, c, out)
	for _, v := range o.order {
		if v.touched {
			v.now = o.now
			o.pass(v)
		}
	}
	switch {
	case c.Kind == Amend:
		o.amended(ref, c, out)
	case c.Kind == Take && out.Code == OK:
		// What came due has come back before the loan was made, and what is sent to others was made after it.
		for i := range out.Effects {
			if out.Effects[i].Kind != Deliver {
				o.effect(&out.Effects[i])
			}
		}
		if out.Lent.Queue != c.Queue || out.Lent.Consumer != c.Consumer {
			fail("I6", "queue %d: consumer %x took a loan of consumer %x", c.Queue, c.Consumer, out.Lent.Consumer)
		}
		o.deliver(&out.Lent, true)
		for i := range out.Effects {
			if out.Effects[i].Kind == Deliver {
				o.effect(&out.Effects[i])
			}
		}
	default:
		for i := range out.Effects {
			o.effect(&out.Effects[i])
		}
	}
	for _, v := range o.order {
		if v.touched {
			v.touched = false
			o.finish(v)
		}
	}
	for _, r := range o.dirty {
		if b := &o.refs[r]; b.held != b.live {
			fail("I16", "the log keeps the command at %d for %d messages, %d of it are in queues", r, b.held, b.live)
		}
	}
	o.dirty = o.dirty[:0]
}

func (o *observer) effect(e *Effect) {
	switch e.Kind {
	case Deliver:
		o.deliver(e, false)
	case Withdraw:
		o.withdraw(e)
	case QueueGone: // looked at in delete
	case Forward:
		o.forward(e)
	case Free:
		o.reference(e.Ref).held--
	case Active:
		o.activated(e)
	}
}

// pass lets time pass in v, up to v.now.
func (o *observer) pass(v *view) {
	for i := range v.copies {
		m := &v.copies[i]
		if m.state != waiting || m.hi > v.now {
			continue
		}
		if m.deliveries == 0 && m.start > m.arrived && v.life(m) == NoWait {
			m.start = v.now // it could not wait for its time any longer than until now
		}
		o.expireDue(v, m)
	}
}

// life is how long m may wait in v: the shorter of both TTLs, where NoWait is shorter than any; 0: for ever.
func (v *view) life(m *message) time.Duration {
	a, b := m.ttl, v.spec.TTL
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	}
	return min(a, b)
}

// expires is when m, which is ready, expires, or 0. A message that may not wait and was never delivered has until the end
// of the command: finish looks after it.
func (v *view) expires(m *message) int64 {
	switch life := v.life(m); {
	case life == 0:
		return 0
	case life > 0:
		return m.start + int64(life)
	case m.deliveries == 0:
		return v.now + 1
	}
	return m.start
}

// expireDue ends m, which is ready, if its time is over.
func (o *observer) expireDue(v *view, m *message) {
	if at := v.expires(m); at != 0 && at <= v.now {
		o.die(v, m, Expired)
	}
}

// finish judges v after a command.
func (o *observer) finish(v *view) {
	v.due = 0
	ready, unsure, delayed, held, dead := 0, 0, 0, 0, 0
	for i := range v.copies {
		m := &v.copies[i]
		at := int64(0)
		switch m.state {
		case waiting:
			switch {
			case m.hi <= v.now && v.life(m) == NoWait:
				o.die(v, m, Expired)
				v.lapsed = true
			case m.hi <= v.now:
				ready++
				at = v.expires(m)
			case m.lo > v.now:
				delayed++
				at = m.hi
			default: // perhaps it is ready by now, and nothing is due
				unsure++
			}
		case lent:
			held++
			if at = m.deadline; at <= v.now {
				fail("I12", "queue %d: message %d is on loan until %d, now is %d", v.id, m.number, at, v.now)
			}
		case dying:
			dead++
		case ended:
		}
		if at != 0 && (v.due == 0 || at < v.due) {
			v.due = at
		}
		if m.state == dying && !m.ordered {
			fail("I10", "queue %d: message %d is dead, and nobody is told to move it", v.id, m.number)
		}
	}
	if ready > 0 || v.lapsed {
		for i := range v.consumers {
			if c := &v.consumers[i]; c.outstanding < c.prefetch && v.serves(c.id) {
				fail("I21", "queue %d: %d messages are ready and consumer %x has room", v.id, ready, c.id)
			}
		}
	}
	v.elected()
	v.lapsed = false
	v.count.Ready, v.count.Delayed, v.count.Unacked, v.count.Dying = ready, delayed+unsure, held, dead
	if v.ended > 16 && v.ended > len(v.copies)/2 {
		v.compact()
	}
}

// compact forgets the copies that have ended.
func (v *view) compact() {
	kept := v.copies[:0]
	for i := range v.copies {
		if v.copies[i].state != ended {
			kept = append(kept, v.copies[i])
		}
	}
	v.copies, v.ended = kept, 0
}

// agree compares the counters of v with those that the system shows.
func (o *observer) agree(v *view, sys System) {
	got, ok := sys.Counts(v.id)
	if !ok {
		fail("I23", "queue %d is not there", v.id)
	}
	if got == v.count {
		return
	}
	want := v.count
	for i := range v.copies { // ready or delayed: only the system knows how long jitter made the pause
		if m := &v.copies[i]; m.state == waiting && m.lo <= v.now && m.hi > v.now && got.Ready > want.Ready {
			want.Ready++
			want.Delayed--
		}
	}
	if got != want {
		fail("I16", "queue %d counts\n\t%+v, want\n\t%+v", v.id, got, want)
	}
}

// timed asks that the timer is set for what will be due.
func (o *observer) timed(wake int64) {
	for _, v := range o.order {
		if v.due != 0 && (wake == 0 || wake > v.due) {
			fail("I12", "queue %d: something is due at %d, now is %d, the timer is set to %d", v.id, v.due, o.now, wake)
		}
	}
}

// empty asks that nothing is left anywhere.
func (o *observer) empty() {
	for _, v := range o.order {
		for i := range v.copies {
			if m := &v.copies[i]; m.state != ended {
				fail("I21", "queue %d: message %d is still there, in state %d", v.id, m.number, m.state)
			}
		}
		c := &v.count
		if gone := c.Acked + c.Discarded + c.Moved + c.Purged + c.Cancelled + c.Replayed; c.Enqueued != gone {
			fail("I16", "queue %d: %d messages came, %d went", v.id, c.Enqueued, gone)
		}
	}
	for ref := range o.refs {
		if o.refs[ref].held != 0 {
			fail("I16", "the command at %d is still kept %d times", ref, o.refs[ref].held)
		}
	}
}

// arrive puts a copy of a message into v.
func (o *observer) arrive(v *view, ref uint64, msg *Message, circle uint64) {
	m := message{
		ref: ref, number: msg.Number, priority: msg.Priority, level: uint8(min(int(msg.Priority), v.spec.Levels-1)),
		arrived: o.now, start: o.now, ttl: msg.TTL, circle: circle, lo: o.now, hi: o.now,
	}
	if msg.ReadyAt > o.now {
		m.lo, m.hi, m.start = msg.ReadyAt, msg.ReadyAt, msg.ReadyAt
	}
	v.count.Enqueued++
	m.seq = v.count.Enqueued
	v.copies = append(v.copies, m)
	r := o.reference(ref)
	r.live++
	r.number = msg.Number
}

// end is the end of m in v.
func (o *observer) end(v *view, m *message) {
	o.leave(v, m)
	m.state = ended
	v.ended++
	o.reference(m.ref).live--
}

// leave takes m from who holds it.
func (o *observer) leave(v *view, m *message) {
	if m.state == lent {
		v.member(m.consumer).outstanding--
	}
}

// die is the death of m in v.
func (o *observer) die(v *view, m *message, why Reason) {
	o.leave(v, m)
	v.count.Dead++
	if why == Expired {
		v.count.Expired++
	}
	if v.spec.Dead == DeadDropped || why == Expired && v.spec.Dead == DeadParked {
		v.count.Discarded++
		m.state = ended
		v.ended++
		o.reference(m.ref).live--
		return
	}
	m.state, m.reason, m.ordered = dying, why, false
}

// failed takes m back after a failure. It rests between lo and hi, unless that was one failure too many.
func (o *observer) failed(v *view, m *message, lo, hi time.Duration) {
	o.leave(v, m)
	m.state = waiting
	m.failures++
	v.count.Failed++
	if v.spec.Retries != Unlimited && int(m.failures) > v.spec.Retries {
		o.die(v, m, Limit)
		return
	}
	o.rest(v, m, lo, hi)
}

// rest takes m back, to be ready after a pause between lo and hi.
func (o *observer) rest(v *view, m *message, lo, hi time.Duration) {
	o.leave(v, m)
	m.state = waiting
	m.lo, m.hi = o.now+int64(max(lo, 0)), o.now+int64(max(hi, 0))
	if m.hi <= o.now {
		v.now = o.now
		o.expireDue(v, m)
	}
}

// pause is the shortest and longest rest that the queue's policy gives m after its next failure.
func (v *view) pause(m *message) (lo, hi time.Duration) {
	r, n := &v.spec.Retry, int(m.failures)+1
	d := r.Min
	if r.Listed > 0 {
		d = r.Pauses[min(n, r.Listed)-1]
	} else {
		for i := 1; i < n && d < r.Max; i++ {
			d = min(d*time.Duration(r.Percent)/100, r.Max)
		}
	}
	share := d * time.Duration(r.Jitter) / 100
	return d - share, d + share
}

func (v *view) member(id uint64) *member {
	for i := range v.consumers {
		if v.consumers[i].id == id {
			return &v.consumers[i]
		}
	}
	return nil
}

// loan is the message that a consumer of v holds by tag, or nil.
func (v *view) loan(consumer, tag uint64) *message {
	for i := range v.copies {
		if m := &v.copies[i]; m.state == lent && m.consumer == consumer && m.tag == tag {
			return m
		}
	}
	return nil
}

// copyOf is the message of v that lies at ref and has not ended, or nil.
func (v *view) copyOf(ref uint64) *message {
	for i := range v.copies {
		if m := &v.copies[i]; m.ref == ref && m.state != ended {
			return m
		}
	}
	return nil
}

// withdraw judges that a loan was taken back.
func (o *observer) withdraw(e *Effect) {
	v := o.queue(e.Queue)
	if v == nil {
		fail("I23", "queue %d, which is gone, takes a loan back", e.Queue)
	}
	m := v.loan(e.Consumer, e.Tag)
	if m == nil {
		fail("I6", "queue %d takes back tag %d of consumer %x, which is not on loan", e.Queue, e.Tag, e.Consumer)
	}
	if m.deadline > o.now {
		fail("I12", "queue %d: message %d is on loan until %d, and taken back at %d", v.id, m.number, m.deadline, o.now)
	}
	if !v.touched {
		fail("I12", "queue %d takes a loan back, and had nothing to do with the command", v.id)
	}
	v.count.TimedOut++
	lo, hi := v.pause(m)
	o.failed(v, m, lo, hi)
}

// forward judges the order to move a dead message.
func (o *observer) forward(e *Effect) {
	v := o.queue(e.Queue)
	if v == nil {
		fail("I23", "queue %d, which is gone, has a message to move", e.Queue)
	}
	m := v.copyOf(e.Ref)
	if m == nil {
		fail("I10", "queue %d: the order to move what lies at %d, which is not there", v.id, e.Ref)
	}
	if m.state == waiting && m.hi <= v.now && v.touched && v.life(m) == NoWait { // told before finish comes to it
		o.die(v, m, Expired)
		v.lapsed = true
	}
	if m.state != dying || m.ordered {
		fail("I10", "queue %d: the order to move message %d, which is in state %d", v.id, m.number, m.state)
	}
	m.ordered = true
	if e.Seq != m.seq || e.Reason != m.reason || e.Failures != m.failures || e.At != o.now {
		fail("I10", "queue %d: message %d died of reason %d at %d after %d failures, the order says %+v",
			v.id, m.number, m.reason, o.now, m.failures, *e)
	}
	if m.reason == Rejected {
		m.circle = 0
	} else {
		m.circle |= circleBit(v.spec.Name)
	}
}

// circleBit is the bit of a queue in message.circle.
func circleBit(name string) uint64 {
	h := uint64(0)
	for _, c := range []byte(name) {
		h = h*31 + uint64(c)
	}
	return 1 << (h % 64)
}

// destinations appends the ids of the queues that a dead message of v must go to.
func (o *observer) destinations(dst []uint64, v *view, m *message) []uint64 {
	parked := true
	circle := false
	for _, t := range o.order {
		if v.spec.Dead == DeadDirect && t.spec.Name == v.spec.DeadTo || v.spec.Dead == DeadFan && t.spec.Joined {
			if m.circle&circleBit(t.spec.Name) != 0 {
				circle = true
				continue
			}
			parked = false
			dst = append(dst, t.id)
		}
	}
	if parked || circle {
		dst = append(dst, 1)
	}
	return dst
}

// deliver judges a loan. taken: the consumer asked for it, whatever its prefetch.
func (o *observer) deliver(e *Effect, taken bool) {
	v := o.queue(e.Queue)
	if v == nil {
		fail("I23", "queue %d delivers, and is gone", e.Queue)
	}
	m := v.copyOf(e.Ref)
	if m == nil {
		fail("I5", "queue %d delivers what lies at %d, which has ended or never came", v.id, e.Ref)
	}
	c := v.member(e.Consumer)
	switch {
	case c == nil:
		fail("I6", "queue %d delivers message %d to consumer %x, which is not attached", v.id, m.number, e.Consumer)
	case !v.serves(c.id):
		fail("I26", "queue %d delivers message %d to consumer %x, the active one is %x", v.id, m.number, c.id, v.active)
	case !v.touched:
		fail("I12", "queue %d delivers message %d, and had nothing to do with the command", v.id, m.number)
	case m.state == lent:
		fail("I6", "queue %d delivers message %d to consumer %x, while %x holds it", v.id, m.number, c.id, m.consumer)
	case m.state == dying:
		fail("I5", "queue %d delivers message %d, which is dead", v.id, m.number)
	case m.lo > v.now:
		fail("I12", "queue %d delivers message %d at %d, before %d", v.id, m.number, v.now, m.lo)
	case e.Deliveries != m.deliveries+1 || e.Failures != m.failures:
		fail("I7", "queue %d delivers message %d as delivery %d with %d failures, want %d with %d",
			v.id, m.number, e.Deliveries, e.Failures, m.deliveries+1, m.failures)
	case e.Tag != c.lastTag+1:
		fail("I13", "queue %d delivers tag %d to consumer %x after %d", v.id, e.Tag, c.id, c.lastTag)
	case e.Arrived != m.arrived:
		fail("I4", "queue %d: message %d came at %d, the delivery says %d", v.id, m.number, m.arrived, e.Arrived)
	case e.At != v.now+int64(v.spec.Deadline):
		fail("I12", "queue %d lends message %d at %d until %d, the deadline is %v", v.id, m.number, v.now, e.At, v.spec.Deadline)
	case !taken && c.outstanding >= c.prefetch:
		fail("I11", "queue %d: consumer %x holds %d of %d and is sent message %d", v.id, c.id, c.outstanding, c.prefetch, m.number)
	}
	o.ranked(v, m)
	if !taken {
		v.balanced(c)
	}
	m.state, m.consumer, m.tag, m.slot, m.deadline = lent, c.id, e.Tag, e.Slot, e.At
	m.deliveries++
	v.count.Delivered++
	c.outstanding++
	c.lastTag++
	v.turn++
	c.turn = v.turn
}

// ranked asks that no message goes before m: not one of a higher level, and of its own none that came earlier.
func (o *observer) ranked(v *view, m *message) {
	earlier := true
	for i := range v.copies {
		x := &v.copies[i]
		if x == m {
			earlier = false
			continue
		}
		if x.state != waiting || x.hi > v.now {
			continue
		}
		if x.level > m.level {
			fail("I9", "queue %d delivers message %d of level %d before %d of level %d", v.id, m.number, m.level, x.number, x.level)
		}
		if x.level == m.level && earlier {
			fail("I8", "queue %d delivers message %d before %d, which came before it", v.id, m.number, x.number)
		}
	}
}

// balanced asks that c is the consumer to serve: of those with room the one with least on loan, among equals the one that was
// served longest ago.
func (v *view) balanced(c *member) {
	for i := range v.consumers {
		x := &v.consumers[i]
		if x == c || x.outstanding >= x.prefetch || !v.serves(x.id) {
			continue
		}
		if x.outstanding < c.outstanding || x.outstanding == c.outstanding && x.turn < c.turn {
			fail("I11", "queue %d serves consumer %x with %d on loan, %x has %d and waits", v.id, c.id, c.outstanding, x.id, x.outstanding)
		}
	}
}

// ordered judges what is said at a start: each dead message is ordered to be moved once more, and nothing else.
func (o *observer) ordered(out *Outcome) {
	n, dead := 0, 0
	for i := range out.Effects {
		e := &out.Effects[i]
		if e.Kind != Forward {
			fail("I10", "effect %+v at a start", *e)
		}
		n++
		v := o.queue(e.Queue)
		if v == nil {
			fail("I23", "queue %d, which is gone, has a message to move at a start", e.Queue)
		}
		if m := v.copyOf(e.Ref); m == nil || m.state != dying || m.reason != e.Reason || m.failures != e.Failures || m.seq != e.Seq {
			fail("I10", "queue %d: the order %+v at a start, for what is not dead", v.id, *e)
		}
	}
	for _, v := range o.order {
		dead += v.count.Dying
	}
	if n != dead {
		fail("I10", "%d moves are ordered at a start, %d messages are dead", n, dead)
	}
}
