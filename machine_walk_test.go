package bourse

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boursemq/bourse/internal/wire"
)

// Goal: walks of TestMachineModel (machine_model_test.go) that go everywhere. Method: commands are drawn with what
// the model knows, so that most of them count, and a few miss in each way they can: loans settled before, queues
// and consumers that are gone, clocks that lag.

// step proposes one random command.
func (w *walker) step() {
	w.pass()
	switch w.rng.IntN(280) {
	case 0, 1, 2, 3:
		w.update()
		return
	case 4, 5, 6, 7, 8, 9, 10, 11:
		w.bundle()
		return
	}
	most := 30
	if w.deep {
		most = 700
	}
	switch k := w.rng.IntN(206); {
	case k < 66:
		if q := w.queue(); q == nil || len(q.messages) < most {
			w.enqueue()
		} else {
			w.settle()
		}
	case k < 126:
		w.settle()
	case k < 138:
		w.attach()
	case k < 146:
		w.detach()
	case k < 154:
		w.take()
	case k < 160:
		if w.one(2) {
			w.ackUpTo()
		} else {
			w.acks()
		}
	case k < 175:
		w.tick()
	case k < 178:
		w.pause()
	case k < 179:
		w.purge()
	case k < 186:
		w.amend()
	case k < 190:
		w.move()
	case k < 192:
		w.enter()
	case k < 194:
		w.forwarded()
	case k < 197:
		w.declare()
	case k < 199:
		w.remove()
	case k < 200:
		w.schedule()
	case k < 205:
		w.fire()
	default:
		w.open(w.one(2))
	}
}

// pass moves the clock, usually a little, sometimes to when something is due or just beside it.
func (w *walker) pass() {
	switch k := w.rng.IntN(100); {
	case k < 75:
		w.clock += instant(w.rng.IntN(3)) * instant(10*time.Millisecond)
	case k < 85:
		if due := w.p.due(); due > w.clock && !w.deep {
			w.clock = max(w.clock, due+instant(w.rng.IntN(3)-1))
		}
	case k < 90:
		w.clock += instant(w.rng.IntN(4000)) * instant(time.Millisecond)
	}
}

// at is what the proposer's clock shows; now and then it is another node's, which lags.
func (w *walker) at() instant {
	if w.one(30) {
		return w.clock - instant(w.rng.IntN(2000))*instant(time.Millisecond)
	}
	return w.clock
}

// queue is any queue; the parking queue less often, since it only fills.
func (w *walker) queue() *plainQueue {
	if len(w.p.queues) == 1 || w.one(10) {
		return w.p.queues[0]
	}
	return w.p.queues[1+w.rng.IntN(len(w.p.queues)-1)]
}

// queueID is that of any queue, now and then one that is gone or never was.
func (w *walker) queueID() queueID {
	switch {
	case len(w.p.gone) > 0 && w.one(40):
		return w.p.gone[w.rng.IntN(len(w.p.gone))]
	case w.one(300):
		return queueID(w.rng.IntN(100))
	}
	return w.queue().id
}

// consumer is one of q, now and then one that is not there.
func (w *walker) consumer(q *plainQueue) consumerID {
	if q == nil || len(q.consumers) == 0 || w.one(25) {
		return consumerID(w.p.session)<<32 | consumerID(1+w.rng.IntN(int(w.ids)+2))
	}
	return q.consumers[w.rng.IntN(len(q.consumers))].id
}

func (w *walker) targets() []queueID {
	ids := []queueID{w.queueID()}
	for w.one(4) {
		if id := w.queueID(); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (w *walker) enqueue() {
	targets, msg, at := w.targets(), w.message(), w.at()
	cmd := appendTargets(appendHeader(nil, cmdEnqueue, at), targets)
	deaths, died := []Death(nil), w.one(20) // brought from another shard
	if died {
		deaths = w.deaths()
	}
	cmd, size := w.append(cmd, msg, deaths)
	before := w.p.duplicates()
	res := w.propose(at, cmd)
	code, kept := w.p.enqueue(w.ref, size, msg, died, targets, &w.want)
	w.count.duplicates += int(w.p.duplicates() - before)
	w.same("kept", res.kept, kept)
	w.agree(res.answer.Code, code)
}

// deaths are the history of a dead letter.
func (w *walker) deaths() []Death {
	return []Death{{Queue: "q0", Reason: ReasonRejected, Count: 1, First: time.Unix(1, 0), Last: time.Unix(1, 0)}}
}

func (w *walker) priority() uint8 {
	if w.one(2) {
		return 0
	}
	return uint8(w.rng.IntN([]int{2, 4, 12, 256}[w.rng.IntN(4)]))
}

// message is one without anything special, mostly.
func (w *walker) message() Message {
	m := Message{Priority: w.priority(), Body: make([]byte, w.rng.IntN(20))}
	if w.one(6) {
		m.TTL = []time.Duration{NoWait, 1, time.Second, 3 * time.Second, time.Minute}[w.rng.IntN(5)]
	}
	if !w.one(3) {
		m.ID = fmt.Sprintf("id%d", w.rng.IntN(12))
	}
	if w.one(3) {
		m.GroupID = []string{"a", "b", "c", "d", "e"}[w.rng.IntN(5)]
	}
	if w.one(8) {
		m.DeliverAt = time.Unix(0, int64(w.clock)).Add(time.Duration(w.rng.IntN(5)-1) * 900 * time.Millisecond)
	}
	return m
}

// enter proposes a publish again that was told to wait, or one that was not, alone or behind others.
func (w *walker) enter() {
	q := w.queue()
	for _, other := range w.p.queues {
		if len(other.waiting) > 0 && !w.one(3) {
			q = other
		}
	}
	id, turn := q.id, uint64(w.rng.IntN(int(q.given)+2))
	if len(q.waiting) > 0 && !w.one(4) {
		turn = q.waiting[w.rng.IntN(min(len(q.waiting), 2))]
	}
	if w.one(30) {
		id = w.queueID()
	}
	first, msg, at := w.one(2), w.message(), w.at()
	cmd, size := w.append(appendTargets(appendEnter(nil, at, turn, first), []queueID{id}), msg, nil)
	res := w.propose(at, cmd)
	code, kept := w.p.enter(w.ref, size, msg, turn, first, id, &w.want)
	w.same("kept", res.kept, kept)
	w.count.entered += kept
	w.agree(res.answer.Code, code)
}

// loan is a verdict on a loan of any queue, or one that cannot count.
func (w *walker) loan() settle {
	var c settle
	q := w.queue()
	var lent []*plainMessage
	for _, m := range q.messages {
		if m.state == plainLent {
			lent = append(lent, m)
		}
	}
	switch {
	case len(w.past) > 0 && w.one(25):
		c = w.past[w.rng.IntN(len(w.past))]
	case len(lent) > 0:
		m := lent[w.rng.IntN(len(lent))]
		if w.one(2) {
			m = lent[0]
		}
		c = settle{queue: q.id, consumer: m.holder.id, tag: m.tag, slot: m.slot}
	default:
		c = settle{queue: w.queueID(), consumer: w.consumer(q), tag: uint64(w.rng.IntN(4)), slot: slotID(w.rng.IntN(4))}
	}
	switch w.rng.IntN(150) {
	case 0:
		c.tag += uint64(w.rng.IntN(3)) - 1
	case 1:
		c.slot = slotID(w.rng.IntN(10))
	case 2:
		c.consumer = w.consumer(q)
	case 3:
		c.queue = w.queueID()
	}
	return c
}

func (w *walker) settle() {
	c := w.loan()
	c.verdict = []verdict{
		verdictAck, verdictAck, verdictAck, verdictNack, verdictNack, verdictReject, verdictRelease, verdictExtend,
	}[w.rng.IntN(8)]
	if c.verdict != verdictAck {
		c.pause = time.Duration(w.rng.IntN(6)-1) * 700 * time.Millisecond
		c.note = []string{"", "broken pipe", "no"}[w.rng.IntN(3)]
	} else {
		c.pause, c.note = 0, ""
	}
	at := w.at()
	res := w.propose(at, c.appendTo(nil, at))
	code := w.p.settle(c, &w.want)
	if code == answerStale {
		w.count.stale++
	}
	if c.pause > 0 && c.verdict != verdictExtend {
		w.count.delays++
	}
	w.past = append(w.past, c)
	if len(w.past) > 200 {
		w.past = w.past[100:]
	}
	w.agree(res.answer.Code, code)
}

func (w *walker) ackUpTo() {
	q := w.queue()
	c := ackUpTo{queue: q.id, consumer: w.consumer(q)}
	if have := q.consumer(c.consumer); have != nil {
		c.tag = uint64(w.rng.IntN(int(have.lastTag) + 2))
	}
	if w.one(20) {
		c.queue = w.queueID()
	}
	at := w.at()
	res := w.propose(at, c.appendTo(nil, at))
	w.agree(res.answer.Code, w.p.ackUpTo(c, &w.want))
}

// acks are some of a consumer's loans, in any order, some twice and some that are not there.
func (w *walker) acks() {
	q := w.queue()
	l := ackList{queue: q.id, consumer: w.consumer(q)}
	if w.one(20) {
		l.queue = w.queueID()
	}
	var all []*plainMessage
	if have := q.consumer(l.consumer); have != nil {
		all = q.loans(have)
	}
	before := uint64(0)
	for range w.rng.IntN(6) {
		tag, slot := uint64(w.rng.IntN(5)), slotID(w.rng.IntN(5))
		if len(all) > 0 && !w.one(20) {
			m := all[w.rng.IntN(len(all))]
			tag, slot = m.tag, m.slot
		}
		l.list = appendAck(l.list, tag, before, slot)
		before = tag
	}
	at := w.at()
	res := w.propose(at, appendAcks(nil, at, l.queue, l.consumer, l.list, len(l.list)+w.rng.IntN(9)))
	w.agree(res.answer.Code, w.p.acks(l, &w.want))
}

func (w *walker) attach() {
	q := w.queue()
	c := attach{queue: w.queueID(), prefetch: int32([]int{0, 1, 1, 2, 3, 5, 20, MaxPrefetch}[w.rng.IntN(8)])}
	switch {
	case len(q.consumers) > 0 && w.one(3) || len(q.consumers) > 5: // another prefetch
		c.queue, c.consumer = q.id, w.consumer(q)
	case w.one(20): // of an earlier session
		c.consumer = consumerID(w.p.session-1)<<32 | 1
	default:
		w.ids++
		c.consumer = consumerID(w.p.session)<<32 | consumerID(w.ids)
	}
	if w.one(3) {
		c.priority = int32(w.rng.IntN(5) - 2)
	}
	at := w.at()
	res := w.propose(at, c.appendTo(nil, at))
	w.agree(res.answer.Code, w.p.attach(c, &w.want))
}

func (w *walker) detach() {
	q := w.queue()
	c := detach{queue: q.id, consumer: w.consumer(q), failed: w.one(2)}
	if w.one(30) {
		c.queue = w.queueID()
	}
	at := w.at()
	res := w.propose(at, c.appendTo(nil, at))
	w.p.detach(c, &w.want)
	w.agree(res.answer.Code, answerOK)
}

func (w *walker) take() {
	q := w.queue()
	c := take{queue: q.id, consumer: w.consumer(q)}
	if w.one(30) {
		c.queue = w.queueID()
	}
	at := w.at()
	res := w.propose(at, c.appendTo(nil, at))
	code, lent := w.p.take(c, &w.want)
	w.same("answer", res.answer.Code, code)
	if code == answerOK {
		w.count.takes++
		e, err := decodeLoanEffect(res.answer.Data)
		if err != nil {
			w.t.Fatalf("the loan in an answer does not decode: %v", err)
		}
		w.same("taken", loanOf(&e), lent)
		w.learn(&e)
	}
	w.agree(res.answer.Code, code)
}

// tick is proposed by the shell when the wake rings, or by anybody before.
func (w *walker) tick() {
	at := w.at()
	if w.armed != 0 && w.one(2) {
		at = max(at, w.armed)
		w.clock = max(w.clock, at)
	}
	if w.armed <= at {
		w.armed = 0
	}
	res := w.propose(at, appendTick(nil, at))
	w.p.tick(&w.want)
	w.agree(res.answer.Code, answerOK)
}

func (w *walker) pause() {
	id, paused, at := w.queueID(), w.one(3), w.at()
	res := w.propose(at, appendPause(nil, at, id, paused))
	w.agree(res.answer.Code, w.p.pause(id, paused, &w.want))
}

func (w *walker) purge() {
	id, at := w.queueID(), w.at()
	res := w.propose(at, appendPurge(nil, at, id))
	w.agree(res.answer.Code, w.p.purge(id, &w.want))
}

// amend names a message in any state, with its place, an old one or none, and now and then one that is not there.
func (w *walker) amend() {
	q := w.queue()
	c := amend{queue: q.id, what: amendment(1 + w.rng.IntN(int(amendReplay))), priority: w.priority()}
	m := &plainMessage{number: uint64(w.rng.IntN(int(q.nextSeq) + 1))}
	m.seq = m.number
	if n := len(q.messages); n > 0 && !w.one(10) {
		m = q.messages[w.rng.IntN(n)]
	}
	c.place, c.ref = place{seq: m.number}, m.ref
	switch w.rng.IntN(3) {
	case 0:
		c.place = w.placeOf(m)
	case 1:
		c.place = w.placeOf(&plainMessage{
			seq: m.seq, number: m.number, at: m.at, slot: m.slot, level: w.rng.IntN(256), state: plainState(w.rng.IntN(4)),
		})
	}
	if w.one(20) {
		c.queue = w.queueID()
	}
	if w.one(20) {
		c.ref++
	}
	if w.one(20) { // it is another message's number, or nobody's
		c.place.first = uint64(w.rng.IntN(int(q.nextSeq) + 1))
	}
	at, targets, msg := w.at(), []queueID(nil), Message{}
	cmd, size := c.appendTo(nil, at), uint32(0)
	if c.what.hasMessage() {
		var deaths []Death
		if msg = w.message(); c.what == amendReplay {
			targets, deaths = w.targets()[:1], w.deaths()
		}
		cmd, size = w.append(appendTargets(cmd, targets), msg, deaths)
	}
	res := w.propose(at, cmd)
	code, kept := w.p.amend(c, w.ref, size, msg, targets, &w.want)
	w.same("kept", res.kept, kept)
	if code == answerOK {
		w.count.amended[c.what]++
	}
	w.agree(res.answer.Code, code)
	w.look()
}

// placeOf is where the machine should have m.
func (w *walker) placeOf(m *plainMessage) place {
	p := place{seq: m.seq}
	if m.number != m.seq {
		p.first = m.number
	}
	switch m.state {
	case plainReady:
		p.state, p.level = StateReady, uint8(m.level)
	case plainDelayed:
		p.state, p.at = StateDelayed, m.at
	case plainLent:
		p.state, p.slot = StateUnacked, m.slot
	case plainDying:
		p.state = StateDying
	}
	return p
}

// look goes over a queue page by page and compares what it sees with what there is, in order.
func (w *walker) look() {
	w.t.Helper()
	p := w.queue()
	q := w.m.queues[p.id]
	states := uint8(w.rng.IntN(16)) << StateReady
	var want []place
	for _, m := range p.messages {
		if at := w.placeOf(m); states&(1<<at.state) != 0 {
			want = append(want, at)
		}
	}
	slices.SortFunc(want, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.state, b.state), cmp.Compare(b.level, a.level), cmp.Compare(a.at, b.at),
			cmp.Compare(a.slot, b.slot), cmp.Compare(a.seq, b.seq))
	})
	var got []place
	page := 1 + w.rng.IntN(5)
	if w.deep {
		page *= 40
	}
	for after := firstPlace(StateReady); after.state <= StateDying; {
		var seen []sight
		seen, after = q.look(after, states, page, nil)
		if len(seen) > page {
			w.t.Fatalf("a page of %d holds %d", page, len(seen))
		}
		for i := range seen {
			at, e, ok := q.locate(seen[i].place)
			if !ok || at != seen[i].place || e != seen[i].entry {
				w.t.Fatalf("%+v is at %+v", seen[i], at)
			}
			if at, _, ok := q.locate(place{seq: at.number()}); !ok || at != seen[i].place {
				w.t.Fatalf("%+v is found at %+v", seen[i], at)
			}
			got = append(got, at)
		}
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("looking at queue %d, states %b: %+v, want %+v", p.id, states, got, want)
	}
}

// dying is a message that waits to be moved, or any number.
func (w *walker) dying() (queueID, uint64) {
	q := w.queue()
	for _, other := range w.p.queues {
		if other.in(plainDying) > 0 && !w.one(3) {
			q = other
		}
	}
	for _, m := range q.messages {
		if m.state == plainDying && !w.one(3) {
			return q.id, m.seq
		}
	}
	return w.queueID(), uint64(w.rng.IntN(int(q.nextSeq) + 1))
}

func (w *walker) move() {
	source, seq := w.dying()
	targets, msg, at := w.targets(), w.message(), w.at()
	if w.one(2) {
		targets = []queueID{parkingID}
	}
	cmd, size := w.append(appendTargets(appendMove(nil, at, source, seq), targets), msg, w.deaths())
	res := w.propose(at, cmd)
	code, kept := w.p.move(w.ref, size, msg, source, seq, targets, &w.want)
	w.same("kept", res.kept, kept)
	if kept > 0 {
		w.count.moves++
	}
	w.agree(res.answer.Code, code)
}

func (w *walker) forwarded() {
	source, seq := w.dying()
	at := w.at()
	res := w.propose(at, appendForwarded(nil, at, source, seq))
	w.p.forwarded(source, seq, &w.want)
	w.agree(res.answer.Code, answerOK)
}

func (w *walker) open(lost bool) {
	at := w.at()
	res := w.propose(at, appendOpen(nil, at, lost))
	w.ids = 0
	w.count.sessions++
	w.agree(res.answer.Code, w.p.open(lost, &w.want))
}

// declare is of one of few names, so that some exist already, equal or different, and some did.
func (w *walker) declare() {
	def := Queue{Name: fmt.Sprintf("q%d", w.rng.IntN(6))}
	if have := w.p.named(def.Name); have != nil && w.one(2) {
		def = have.def
	} else {
		w.settings(&def)
	}
	at := w.at()
	res := w.propose(at, appendDeclare(nil, at, 0, topologyLimits{}, []Declaration{def}))
	want := w.p.declare(def.withDefaults(), &w.want)
	w.refusal(res, want)
}

// settings are any for a queue.
func (w *walker) settings(def *Queue) {
	def.Priorities = []int{0, 1, 2, 10, 256}[w.rng.IntN(5)]
	if def.Priorities > 1 && w.one(2) {
		def.Fairness.LowerOneIn = []int{0, 2, 3, 7}[w.rng.IntN(4)]
		def.Fairness.Aging = []time.Duration{0, 0, 50 * time.Millisecond, time.Second, time.Minute}[w.rng.IntN(5)]
		def.BumpOnRedelivery = w.one(2)
	}
	def.MaxRetries = []int{0, 1, 2, 3, NoRetry, NoLimit}[w.rng.IntN(6)]
	def.AckDeadline = []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second}[w.rng.IntN(4)]
	def.Retry = []Backoff{
		{}, {}, {Min: time.Second}, {Min: 500 * time.Millisecond, Max: 3 * time.Second},
		{Min: 300 * time.Millisecond, Max: 9 * time.Second, Factor: 3.25, Jitter: 0.3},
		{Pauses: []time.Duration{0, 700 * time.Millisecond, 3 * time.Second}, Jitter: []float64{0, 1}[w.rng.IntN(2)]},
	}[w.rng.IntN(6)]
	def.Retry.AtTail = w.one(3)
	def.TTL = []time.Duration{0, 0, 0, 0, 5 * time.Second, 800 * time.Millisecond, NoWait}[w.rng.IntN(7)]
	if w.one(2) {
		def.Dedup = Dedup{
			Window:      []time.Duration{0, 0, 900 * time.Millisecond, 5 * time.Second, time.Hour}[w.rng.IntN(5)],
			OnDuplicate: DuplicateAction(w.rng.IntN(3)), MaxIDs: []int{0, 0, 1, 3}[w.rng.IntN(4)],
		}
		def.Dedup.UntilDone = def.Dedup.Window == 0
	}
	def.GroupConcurrency = []int{0, 0, 2, 3, NoLimit}[w.rng.IntN(5)]
	def.Rate = []Rate{
		{}, {}, {}, {Deliveries: 1}, {Deliveries: 3, Burst: 2}, {Deliveries: 7, Per: 5 * time.Second, Burst: 1},
		{Deliveries: 1_000_000, Per: 999_999_999_999, Burst: 3},
	}[w.rng.IntN(7)]
	def.Inbox = []InboxMemory{{}, {}, {Window: time.Second}, {Window: time.Hour, MaxIDs: 3}}[w.rng.IntN(4)]
	def.DeadLetter = []DeadLetter{{}, {}, {Discard: true}, {Exchange: "dead"}}[w.rng.IntN(4)]
	def.Expires = w.expires()
	w.limits(def)
	def.SingleActiveConsumer = w.one(4)
}

// update changes some fields of a queue, or all.
func (w *walker) update() {
	def := Queue{Name: fmt.Sprintf("q%d", w.rng.IntN(6))}
	if have := w.queue(); w.one(2) {
		def = have.def
		switch other := (Queue{}); w.rng.IntN(8) {
		case 6:
			w.settings(&other)
			def.Rate = other.Rate
		case 3:
			def.Expires = w.expires()
		case 4:
			w.settings(&other)
			def.GroupConcurrency = other.GroupConcurrency
		case 5:
			w.settings(&other)
			def.MaxMessages, def.MaxBytes, def.Overflow = other.MaxMessages, other.MaxBytes, other.Overflow%DeadLetterHead
			if def.validateLimits() != nil {
				def.Overflow = RejectPublish
			}
		case 0:
			w.settings(&other)
			def.TTL = other.TTL
		case 1:
			w.settings(&other)
			def.Priorities, def.Dedup, def.Inbox = other.Priorities, other.Dedup, other.Inbox
			def.Fairness, def.BumpOnRedelivery = other.Fairness, other.BumpOnRedelivery
		case 2:
			w.settings(&other)
			def.MaxRetries, def.AckDeadline = other.MaxRetries, other.AckDeadline
		}
	} else {
		w.settings(&def)
		if q := w.p.named(def.Name); q != nil && !w.one(8) {
			def.SingleActiveConsumer = q.def.SingleActiveConsumer // it is fixed
		}
	}
	at := w.at()
	res := w.propose(at, appendUpdate(nil, at, 0, def))
	want := w.p.update(def.withDefaults(), &w.want)
	if want == nil && w.want.topology {
		w.count.updates++
	}
	w.refusal(res, want)
}

// limits draws limits that are met often.
func (w *walker) limits(def *Queue) {
	def.MaxMessages = []int64{0, 0, 1, 4, 12, 100}[w.rng.IntN(6)]
	def.MaxBytes = []int64{0, 0, 45, 150, 500}[w.rng.IntN(5)]
	def.Overflow = Overflow(w.rng.IntN(int(Block) + 1))
	if def.validateLimits() != nil {
		def.Overflow = RejectPublish
	}
}

func (w *walker) remove() {
	w.removeQueue(fmt.Sprintf("q%d", w.rng.IntN(6)), removeOnly(w.rng.IntN(4)))
}

func (w *walker) removeQueue(name string, only removeOnly) {
	at := w.at()
	res := w.propose(at, appendRemove(nil, at, 0, only, []Declaration{Queue{Name: name}}))
	want := w.p.delete(name, only, &w.want)
	if w.want.topology {
		w.count.deletes++
	}
	w.refusal(res, want)
}

// refusal compares an answer that may be an error.
func (w *walker) refusal(res applied, want error) {
	w.t.Helper()
	if want == nil {
		if res.answer.Code == answerError {
			w.t.Fatalf("refused with %v", decodeError(res.answer.Data))
		}
		w.agree(res.answer.Code, answerOK)
		return
	}
	w.agree(res.answer.Code, answerError)
	if err := decodeError(res.answer.Data); !matchesError(err, want) {
		w.t.Fatalf("refused with %v, want %v", err, want)
	}
}

func matchesError(err, want error) bool { return slices.Contains(sentinelsOf(err), want) }

// sentinelsOf lists what err matches of the sentinels that travel.
func sentinelsOf(err error) (all []error) {
	for _, s := range wireSentinels {
		if errors.Is(err, s) {
			all = append(all, s)
		}
	}
	return all
}

// describeCommand is a command in words, for a failure.
func describeCommand(cmd []byte) string {
	r := wire.NewReader(cmd)
	kind := commandKind(r.Byte())
	at := instant(r.Uint64())
	var what any
	switch kind {
	case cmdEnqueue, cmdMove:
		var from, seq uint64
		if kind == cmdMove {
			from, seq = r.Uvarint(), r.Uvarint()
		}
		var ids []uint64
		for range r.Count(1) {
			ids = append(ids, r.Uvarint())
		}
		m := decodeEnvelope(&r)
		what = fmt.Sprintf("from %d seq %d to %v priority %d id %q group %q", from, seq, ids, m.priority, m.id, m.group)
	case cmdAttach:
		what = decodeAttach(&r)
	case cmdDetach:
		what = decodeDetach(&r)
	case cmdSettle:
		what = decodeSettle(&r)
	case cmdAckUpTo:
		what = decodeAckUpTo(&r)
	case cmdAcks:
		what = decodeAcks(&r)
	case cmdTake:
		what = decodeTake(&r)
	case cmdAmend:
		what = decodeAmend(&r)
	case cmdTick:
		what = "tick"
	case cmdOpen:
		what = fmt.Sprintf("open lost=%v", r.Bool())
	case cmdDeclare:
		decodeLimits(&r)
		r.Uint64()
		what = decodeDeclarations(&r)
	case cmdBundle:
		what = decodeBundle(&r)
	case cmdUpdate:
		r.Uint64()
		what = decodeOneQueue(&r)
	case cmdRemove:
		what = fmt.Sprintf("remove only %d by %d %+v", r.Byte(), r.Uint64(), decodeDeclarations(&r))
	case cmdFire:
		what = decodeFire(&r)
	default:
		what = fmt.Sprintf("%x", r.Rest())
	}
	return fmt.Sprintf("%d kind %d %T %+v", at, kind, what, what)
}
