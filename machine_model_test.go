package bourse

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/boursemq/bourse/internal/wire"
)

// Goal: the machine does what SEMANTICS says for any sequence of commands, and is a function of
// its log: snapshot plus tail, and the whole log from scratch, lead to the same bytes.
// Method: random valid commands in lock-step with the naive model of machine_plain_test.go. After
// each command the answer, the effects and the whole visible state are compared, references to bodies are
// counted, and (each time in short queues, now and then in deep ones) the invariants are checked.
// A walk is a few hundred commands from an empty machine and has a seed of its own; a failure prints the
// command that repeats just that walk.

var (
	commandsFlag = flag.Int("commands", 100_000, "random commands to the machine, in step with a naive model")
	seedFlag     = flag.Uint64("seed", 0, "seed of the first random walk; 0: a new one each time")
)

func TestMachineModel(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	commands := *commandsFlag
	if testing.Short() {
		commands = min(commands, 20_000)
	}
	var total walkCount
	for walk := seed; total.commands < commands; walk++ {
		total.add(walkOnce(t, walk))
		if t.Failed() {
			return
		}
	}
	t.Logf("seed %d: %+v", seed, total)
	if total.commands >= 100_000 {
		for name, n := range map[string]int{
			"deaths": total.deaths, "moves": total.moves, "deadlines": total.deadlines, "stale verdicts": total.stale,
			"deletes": total.deletes, "sessions": total.sessions, "snapshots": total.snapshots, "takes": total.takes,
			"delays": total.delays,
		} {
			if n < 100 {
				t.Errorf("the walk is too tame: only %d %s", n, name)
			}
		}
	}
}

// walkCount says what walks went through, so that a generator gone tame is noticed.
type walkCount struct {
	walks, commands, snapshots, checks                         int
	delivered, deaths, moves, deadlines, stale, deletes, takes int
	sessions, delays                                           int
}

func (c *walkCount) add(o walkCount) {
	c.walks++
	c.commands += o.commands
	c.snapshots += o.snapshots
	c.checks += o.checks
	c.delivered += o.delivered
	c.deaths += o.deaths
	c.moves += o.moves
	c.deadlines += o.deadlines
	c.stale += o.stale
	c.deletes += o.deletes
	c.takes += o.takes
	c.sessions += o.sessions
	c.delays += o.delays
}

// walker takes one machine and one model through a walk.
type walker struct {
	t    *testing.T
	rng  *rand.Rand
	m    *machine
	p    *plainMachine
	deep bool // few commands are checked, queues grow over several blocks

	clock instant // the proposers'
	armed instant // the last wake that was ordered and did not ring yet
	ref   Ref
	log   []logged
	held  map[Ref]int // as Bodies would count them
	out   []effect
	got   report
	want  report
	past  []settle // verdicts already given, to give again
	ids   uint32   // consumers given an id in this session
	gone  []queueID
	count walkCount
}

// logged is one entry of the walk's log and what the machine said to it.
type logged struct {
	ref    Ref
	cmd    []byte
	answer Answer
	kept   int
}

func walkOnce(t *testing.T, seed uint64) walkCount {
	w := &walker{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), m: newMachine(roleAll, newTopology(topologyLimits{})), p: newPlainMachine(),
		held: map[Ref]int{}, clock: instant(1_700_000_000 * time.Second),
	}
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("panic: %v", r)
		}
		if t.Failed() {
			for _, l := range w.log[max(0, len(w.log)-25):] {
				t.Logf("%s -> %d", describeCommand(l.cmd), l.answer.Code)
			}
			t.Logf("replay: go test -run '^TestMachineModel$' -commands 1 -seed %d .", seed)
		}
	}()
	w.deep = w.rng.IntN(40) == 0
	n := 100 + w.rng.IntN(900)
	if w.deep {
		n = 3000
	}
	w.open(false)
	for range 1 + w.rng.IntN(4) {
		w.declare()
	}
	for range n {
		w.step()
		if w.rng.IntN(150) == 0 {
			w.reload()
		}
	}
	w.replayed()
	w.drain()
	return w.count
}

// one of n with equal chance.
func (w *walker) one(n int) bool { return w.rng.IntN(n) == 0 }

// step proposes one random command.
func (w *walker) step() {
	w.pass()
	most := 30
	if w.deep {
		most = 700
	}
	switch k := w.rng.IntN(200); {
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
		w.ackUpTo()
	case k < 178:
		w.tick()
	case k < 180:
		w.purge()
	case k < 192:
		w.move()
	case k < 194:
		w.forwarded()
	case k < 197:
		w.declare()
	case k < 199:
		w.remove()
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
	case len(w.gone) > 0 && w.one(40):
		return w.gone[w.rng.IntN(len(w.gone))]
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

// propose gives cmd to the machine and returns its answer; the reports are then ready to compare.
func (w *walker) propose(at instant, cmd []byte) applied {
	w.ref += Ref(1 + w.rng.IntN(50))
	w.p.pass(at)
	w.got, w.want = w.got.emptied(), w.want.emptied()
	var res applied
	res, w.out = w.m.apply(w.ref, cmd, w.out[:0])
	w.log = append(w.log, logged{w.ref, cmd, Answer{res.answer.Code, slices.Clone(res.answer.Data)}, res.kept})
	w.count.commands++
	if res.kept > 0 {
		w.held[w.ref] += res.kept
	}
	for i := range w.out {
		w.account(&w.out[i])
	}
	return res
}

// account keeps the books on one effect.
func (w *walker) account(e *effect) {
	w.got.add(e)
	switch e.kind {
	case effectFree:
		if w.held[e.ref]--; w.held[e.ref] < 0 {
			w.t.Fatalf("reference %d is freed once too often", e.ref)
		} else if w.held[e.ref] == 0 {
			delete(w.held, e.ref)
		}
	case effectWake:
		w.armed = e.at
	}
}

func (r *report) emptied() report {
	return report{
		delivered: r.delivered[:0], withdrawn: r.withdrawn[:0], gone: r.gone[:0], forward: r.forward[:0], freed: r.freed[:0],
	}
}

func (r *report) add(e *effect) {
	tag := plainTag{e.queue, e.consumer, e.tag}
	switch e.kind {
	case effectDeliver:
		r.delivered = append(r.delivered, loanOf(e))
	case effectWithdraw:
		r.withdrawn = append(r.withdrawn, tag)
	case effectGone:
		r.gone = append(r.gone, tag)
	case effectForward:
		r.forward = append(r.forward, plainDeath{e.queue, e.seq, e.ref, e.size, e.reason.String(), e.note, e.at})
	case effectFree:
		r.freed = append(r.freed, e.ref)
	case effectTopology:
		r.topology = true
	}
}

func loanOf(e *effect) plainLoan {
	return plainLoan{
		plainTag: plainTag{e.queue, e.consumer, e.tag}, seq: e.seq, ref: e.ref, size: e.size,
		deliveries: e.deliveries, failures: e.failures, deadline: e.at, arrived: e.arrived,
	}
}

// agree compares what machine and model say after a command.
func (w *walker) agree(got, want uint64) {
	w.t.Helper()
	w.same("answer", got, want)
	w.lists()
	for i := range w.out {
		if e := &w.out[i]; e.kind == effectDeliver {
			w.learn(e)
		}
	}
	w.count.delivered += len(w.got.delivered)
	w.count.deadlines += len(w.got.withdrawn)
	w.count.deaths += len(w.got.forward)
	if w.deep && !w.one(100) {
		return
	}
	w.state()
	if due := w.p.due(); due != 0 && (w.armed == 0 || w.armed > due) {
		w.t.Fatalf("something is due at %d, the wake is set to %d", due, w.armed)
	}
	w.m.check()
	w.count.checks++
}

// lists compares the reports. Deliveries of a queue come in the order of SEMANTICS 7; what comes back or goes
// away at once has no order among itself, nor have queues.
func (w *walker) lists() {
	w.t.Helper()
	byTag := func(a, b plainTag) int {
		return cmp.Or(cmp.Compare(a.queue, b.queue), cmp.Compare(a.consumer, b.consumer), cmp.Compare(a.tag, b.tag))
	}
	byDeath := func(a, b plainDeath) int { return cmp.Or(cmp.Compare(a.queue, b.queue), cmp.Compare(a.seq, b.seq)) }
	for _, r := range []*report{&w.got, &w.want} {
		slices.SortStableFunc(r.delivered, func(a, b plainLoan) int { return cmp.Compare(a.queue, b.queue) })
		slices.Sort(r.freed)
		slices.SortFunc(r.withdrawn, byTag)
		slices.SortFunc(r.forward, byDeath)
	}
	if !slices.Equal(w.got.delivered, w.want.delivered) {
		w.t.Fatalf("delivered\n%+v, want\n%+v", w.got.delivered, w.want.delivered)
	}
	if !slices.Equal(w.got.withdrawn, w.want.withdrawn) {
		w.t.Fatalf("withdrawn\n%+v, want\n%+v", w.got.withdrawn, w.want.withdrawn)
	}
	if !slices.Equal(w.got.gone, w.want.gone) {
		w.t.Fatalf("gone\n%+v, want\n%+v", w.got.gone, w.want.gone)
	}
	if !slices.Equal(w.got.forward, w.want.forward) {
		w.t.Fatalf("forward\n%+v, want\n%+v", w.got.forward, w.want.forward)
	}
	if !slices.Equal(w.got.freed, w.want.freed) {
		w.t.Fatalf("freed %v, want %v", w.got.freed, w.want.freed)
	}
	if w.got.topology != w.want.topology {
		w.t.Fatalf("topology changed: %v, want %v", w.got.topology, w.want.topology)
	}
}

// learn tells the model in which slot the machine keeps a loan.
func (w *walker) learn(e *effect) {
	if q := w.p.queue(e.queue); q != nil {
		if m := q.loan(e.consumer, e.tag); m != nil {
			m.slot = e.slot
		}
	}
}

func (w *walker) same(what string, got, want any) {
	w.t.Helper()
	if got != want {
		w.t.Fatalf("%s: %+v, want %+v", what, got, want)
	}
}

// state compares everything that can be seen of the queues.
func (w *walker) state() {
	w.t.Helper()
	if w.m.now != w.p.now || w.m.session != w.p.session || len(w.m.order) != len(w.p.queues) {
		w.t.Fatalf("now %d, session %d, %d queues; want %d, %d, %d",
			w.m.now, w.m.session, len(w.m.order), w.p.now, w.p.session, len(w.p.queues))
	}
	for i, q := range w.m.order {
		w.stateOf(q, w.p.queues[i])
	}
}

func (w *walker) stateOf(q *queue, p *plainQueue) {
	w.t.Helper()
	if q.def.id != p.id || q.def.Queue != p.def || q.nextSeq != p.nextSeq || q.roster.turn != p.turn {
		w.t.Fatalf("queue %+v, next %d, turn %d; want %d %+v, next %d, turn %d",
			q.def, q.nextSeq, q.roster.turn, p.id, p.def, p.nextSeq, p.turn)
	}
	count := q.count
	count.bytesIn, count.bytesGone = 0, 0
	if count != p.count {
		w.t.Fatalf("queue %q counted %+v, want %+v", p.def.Name, count, p.count)
	}
	if q.ready.n != p.in(plainReady) || q.ledger.n != p.in(plainLent) ||
		q.delayedLen() != p.in(plainDelayed) || q.dyingLen() != p.in(plainDying) {
		w.t.Fatalf("queue %q: %d ready, %d lent, %d delayed, %d dying; want %d, %d, %d, %d", p.def.Name,
			q.ready.n, q.ledger.n, q.delayedLen(), q.dyingLen(),
			p.in(plainReady), p.in(plainLent), p.in(plainDelayed), p.in(plainDying))
	}
	q.ready.each(func(e entry) bool {
		w.entry(p, e, plainReady)
		return true
	})
	if q.delayed != nil {
		q.delayed.Ascend(func(d delayed) bool {
			w.same("delayed until", d.at, w.entry(p, d.entry, plainDelayed).at)
			return true
		})
	}
	if q.dying != nil {
		q.dying.Ascend(func(d dying) bool {
			m := w.entry(p, d.entry, plainDying)
			if d.at != m.at || d.reason.String() != m.reason || d.note != m.note {
				w.t.Fatalf("dying: %+v, want %+v", d, m)
			}
			return true
		})
	}
	for s := range q.ledger.slots {
		if ln := &q.ledger.slots[s]; ln.holder != nil {
			m := w.entry(p, ln.entry, plainLent)
			if ln.holder.id != m.holder.id || ln.tag != m.tag || slotID(s) != m.slot || ln.deadline != m.at {
				w.t.Fatalf("slot %d: %+v, want %+v", s, ln, m)
			}
		}
	}
	w.same("consumers", len(q.roster.all), len(p.consumers))
	for i, c := range q.roster.all {
		pc := p.consumers[i]
		got := plainConsumer{c.id, int(c.prefetch), c.pull, c.lastTag, c.turn}
		if got != *pc || int(c.outstanding) != p.outstanding(pc) {
			w.t.Fatalf("consumer %+v holds %d, want %+v holds %d", got, c.outstanding, *pc, p.outstanding(pc))
		}
	}
}

func (w *walker) entry(p *plainQueue, e entry, state plainState) *plainMessage {
	w.t.Helper()
	i, ok := slices.BinarySearchFunc(p.messages, e.seq, func(m *plainMessage, seq uint64) int { return cmp.Compare(m.seq, seq) })
	if !ok {
		w.t.Fatalf("queue %q holds message %d, which is gone", p.def.Name, e.seq)
	}
	m := p.messages[i]
	want := entry{
		seq: m.seq, ref: m.ref, arrived: m.arrived, size: m.size, deliveries: m.deliveries, failures: m.failures, level: uint8(m.level),
	}
	if e != want || m.state != state {
		w.t.Fatalf("queue %q: message %+v in state %d, want %+v in state %d", p.def.Name, e, state, want, m.state)
	}
	return m
}

// reload takes the machine through a snapshot.
func (w *walker) reload() {
	w.t.Helper()
	w.count.snapshots++
	before := w.m.appendTo(nil)
	kept := map[Ref]int{}
	m, err := decodeMachine(before, func(ref Ref) { kept[ref]++ })
	if err != nil {
		w.t.Fatalf("a snapshot does not decode: %v", err)
	}
	if !bytes.Equal(before, m.appendTo(nil)) {
		w.t.Fatalf("a snapshot does not come back as it was")
	}
	w.same("references in a snapshot", len(kept), len(w.held))
	for ref, n := range w.held {
		if kept[ref] != n {
			w.t.Fatalf("reference %d is held %d times, %d in the snapshot", ref, n, kept[ref])
		}
	}
	m.check()
	w.m = m
	// A leader that starts from a snapshot tells what is outstanding, and when to wake it.
	w.armed = 0
	w.got, w.want = w.got.emptied(), w.want.emptied()
	w.out = m.lead(w.out[:0])
	for i := range w.out {
		w.account(&w.out[i])
	}
	w.want.topology = true
	for _, q := range w.p.queues {
		for _, d := range q.messages {
			if d.state == plainDying {
				w.want.forward = append(w.want.forward, q.death(d))
			}
		}
	}
	w.lists()
	w.state()
}

// replayed runs the whole log from scratch, and with a snapshot in it at random places.
func (w *walker) replayed() {
	w.t.Helper()
	want := w.m.appendTo(nil)
	splits := []int{0, w.rng.IntN(len(w.log)), w.rng.IntN(len(w.log))}
	for _, split := range splits {
		m := newMachine(roleAll, newTopology(topologyLimits{}))
		for i, l := range w.log {
			if i == split && i > 0 {
				next, err := decodeMachine(m.appendTo(nil), func(Ref) {})
				if err != nil {
					w.t.Fatalf("a snapshot after command %d does not decode: %v", i, err)
				}
				m = next
			}
			var res applied
			res, w.out = m.apply(l.ref, l.cmd, w.out[:0])
			if res.answer.Code != l.answer.Code || !bytes.Equal(res.answer.Data, l.answer.Data) || res.kept != l.kept {
				w.t.Fatalf("replay with a snapshot at %d: command %d, %s: answer %+v, first %+v", split, i, describeCommand(l.cmd), res, l)
			}
		}
		if !bytes.Equal(want, m.appendTo(nil)) {
			w.t.Fatalf("replay with a snapshot at %d of %d commands ends in another state", split, len(w.log))
		}
	}
}

// drain deletes every queue: then nothing may be held but by the parking queue.
func (w *walker) drain() {
	w.t.Helper()
	for len(w.p.queues) > 1 {
		w.removeQueue(w.p.queues[len(w.p.queues)-1].def.Name, 0)
	}
	held := 0
	for _, n := range w.held {
		held += n
	}
	w.same("references after a drain", held, len(w.p.queues[0].messages))
}

func (w *walker) enqueue() {
	targets, priority, at := w.targets(), w.priority(), w.at()
	cmd := appendTargets(appendHeader(nil, cmdEnqueue, at), targets)
	cmd = w.message(cmd, priority)
	res := w.propose(at, cmd)
	code, kept := w.p.enqueue(w.ref, uint32(len(cmd)), priority, targets, &w.want)
	w.same("kept", res.kept, kept)
	w.agree(res.answer.Code, code)
}

func (w *walker) priority() uint8 {
	if w.one(2) {
		return 0
	}
	return uint8(w.rng.IntN([]int{2, 4, 12, 256}[w.rng.IntN(4)]))
}

func (w *walker) message(dst []byte, priority uint8) []byte {
	return appendMessage(dst, &Message{Priority: priority, Body: make([]byte, w.rng.IntN(20))}, messageID{}, nil)
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

func (w *walker) purge() {
	id, at := w.queueID(), w.at()
	res := w.propose(at, appendPurge(nil, at, id))
	w.agree(res.answer.Code, w.p.purge(id, &w.want))
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
	targets, priority, at := w.targets(), w.priority(), w.at()
	if w.one(2) {
		targets = []queueID{parkingID}
	}
	cmd := w.message(appendTargets(appendMove(nil, at, source, seq), targets), priority)
	res := w.propose(at, cmd)
	code, kept := w.p.move(w.ref, uint32(len(cmd)), priority, source, seq, targets, &w.want)
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
		def.Priorities = []int{0, 1, 2, 10, 256}[w.rng.IntN(5)]
		def.MaxRetries = []int{0, 1, 2, 3, NoRetry, NoLimit}[w.rng.IntN(6)]
		def.AckDeadline = []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second}[w.rng.IntN(4)]
		def.Retry = []Backoff{{}, {}, {Min: time.Second}, {Min: 500 * time.Millisecond, Max: 3 * time.Second}}[w.rng.IntN(4)]
		def.DeadLetter = []DeadLetter{{}, {}, {Discard: true}, {Exchange: "dead"}}[w.rng.IntN(4)]
	}
	at := w.at()
	res := w.propose(at, appendDeclare(nil, at, topologyLimits{}, []Declaration{def}))
	want := w.p.declare(def.withDefaults(), &w.want)
	w.refusal(res, want)
}

func (w *walker) remove() {
	w.removeQueue(fmt.Sprintf("q%d", w.rng.IntN(6)), removeOnly(w.rng.IntN(4)))
}

func (w *walker) removeQueue(name string, only removeOnly) {
	if q := w.p.named(name); q != nil {
		w.gone = append(w.gone, q.id)
	}
	at := w.at()
	res := w.propose(at, appendRemove(nil, at, only, []Declaration{Queue{Name: name}}))
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
		what = fmt.Sprintf("from %d seq %d to %v priority %d", from, seq, ids, m.priority)
	case cmdAttach:
		what = decodeAttach(&r)
	case cmdDetach:
		what = decodeDetach(&r)
	case cmdSettle:
		what = decodeSettle(&r)
	case cmdAckUpTo:
		what = decodeAckUpTo(&r)
	case cmdTake:
		what = decodeTake(&r)
	case cmdTick:
		what = "tick"
	case cmdOpen:
		what = fmt.Sprintf("open lost=%v", r.Bool())
	case cmdDeclare:
		decodeLimits(&r)
		what = decodeDeclarations(&r)
	case cmdRemove:
		what = fmt.Sprintf("remove only %d %+v", r.Byte(), decodeDeclarations(&r))
	default:
		what = fmt.Sprintf("%x", r.Rest())
	}
	return fmt.Sprintf("%d kind %d %T %+v", at, kind, what, what)
}
