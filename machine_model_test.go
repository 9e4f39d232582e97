package bourse

import (
	"bytes"
	"cmp"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Goal: the machine does what SEMANTICS says for any sequence of commands, and is a function of
// its log: snapshot plus tail, and the whole log from scratch, lead to the same bytes.
// Method: random valid commands in lock-step with the naive model of machine_plain_test.go. After
// each command the answer, the effects and the whole visible state are compared, references to bodies are
// counted, and (each time in short queues, now and then in deep ones) the invariants are checked.
// A walk is a few hundred commands from an empty machine and has a seed of its own; a failure prints the
// command that repeats just that walk.

var commandsFlag = flag.Int("commands", 100_000, "random commands to the machine, in step with a naive model")

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
			"fires": total.fires, "activations": total.activations, "successions": total.successions, "unused queues": total.ended,
			"deaths": total.deaths, "moves": total.moves, "deadlines": total.deadlines, "stale verdicts": total.stale,
			"deletes": total.deletes, "sessions": total.sessions, "snapshots": total.snapshots, "takes": total.takes,
			"delays": total.delays, "expired messages": total.expired, "updates": total.updates, "held groups": total.held,
			"bundles": total.bundles, "acks in bundles": total.bundleAcks, "bundles refused": total.bundlesRefused,
			"messages cancelled": total.amended[amendCancel], "messages promoted": total.amended[amendPromote],
			"priorities changed": total.amended[amendPriority], "messages edited": total.amended[amendEdit],
			"messages replayed": total.amended[amendReplay], "messages replayed elsewhere": total.amended[amendReplayed],
			"duplicates": total.duplicates, "held back": total.throttled, "at the tail": total.tailed,
			"full": total.refusals[refusedFull], "too large": total.refusals[refusedLarge],
			"waits": total.refusals[refusedWaits], "entered": total.entered, "evicted": total.evicted,
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
	sessions, delays, expired, duplicates, updates, held       int
	bundles, bundleAcks, bundlesRefused                        int
	evicted, entered                                           int
	amended                                                    [amendReplay + 1]int
	fires, throttled, ended, tailed                            int
	activations, successions                                   int
	refusals                                                   [refusedWaits + 1]int
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
	c.fires += o.fires
	c.activations += o.activations
	c.successions += o.successions
	c.throttled += o.throttled
	c.tailed += o.tailed
	c.expired += o.expired
	c.ended += o.ended
	for i, n := range o.amended {
		c.amended[i] += n
	}
	c.duplicates += o.duplicates
	c.updates += o.updates
	c.held += o.held
	c.bundles += o.bundles
	c.bundleAcks += o.bundleAcks
	c.bundlesRefused += o.bundlesRefused
	c.evicted += o.evicted
	c.entered += o.entered
	for i, n := range o.refusals {
		c.refusals[i] += n
	}
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

	weighed weight // what the machine has said that it weighs

	lastEpoch map[string]uint64 // of each name of a queue

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
		held: map[Ref]int{}, lastEpoch: map[string]uint64{}, clock: instant(1_700_000_000 * time.Second),
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
		refused: r.refused[:0], activated: r.activated[:0],
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
		r.forward = append(r.forward, plainDeath{e.queue, e.seq, e.ref, e.part, e.size, e.failures, e.reason.String(), e.note, e.at})
	case effectFree:
		r.freed = append(r.freed, e.ref)
	case effectTopology:
		r.topology = true
	case effectActive:
		r.activated = append(r.activated, plainActive{tag, e.seq})
	case effectFire:
		r.fires = append(r.fires, plainFire{scheduleID(e.seq), e.at})
	}
}

func loanOf(e *effect) plainLoan {
	return plainLoan{
		plainTag: plainTag{e.queue, e.consumer, e.tag}, seq: e.seq, ref: e.ref, part: e.part, size: e.size,
		deliveries: e.deliveries, failures: e.failures, deadline: e.at, arrived: e.arrived,
	}
}

// agree compares what machine and model say after a command.
func (w *walker) agree(got, want uint64) {
	w.t.Helper()
	w.same("answer", got, want)
	w.lists()
	w.epochs()
	w.refused()
	for i := range w.out {
		if e := &w.out[i]; e.kind == effectDeliver {
			w.learn(e)
		}
	}
	w.count.delivered += len(w.got.delivered)
	w.count.deadlines += len(w.got.withdrawn)
	w.count.deaths += len(w.got.forward)
	w.count.expired += w.want.expired
	w.count.ended += w.want.ended
	for i := range w.want.forward {
		if w.want.forward[i].reason == ReasonMaxLength {
			w.count.evicted++
		}
	}
	if w.deep && !w.one(100) {
		return
	}
	w.state()
	if due := w.p.due(); due != 0 && (w.armed == 0 || w.armed > due) {
		w.t.Fatalf("something is due at %d, the wake is set to %d", due, w.armed)
	}
	w.weigh()
	w.m.check()
	w.count.checks++
}

// weigh adds the changes of the machine's weight up, now and then: they must come to what all queues weigh.
func (w *walker) weigh() {
	w.t.Helper()
	if !w.one(3) {
		return
	}
	w.weighed = w.weighed.plus(w.m.weigh())
	var all weight
	for _, q := range w.m.order {
		all = all.plus(q.weight())
	}
	w.same("weight", w.weighed, all)
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
	if !slices.Equal(w.got.activated, w.want.activated) {
		w.t.Fatalf("activated %v, want %v", w.got.activated, w.want.activated)
	}
	if !slices.Equal(w.got.fires, w.want.fires) {
		w.t.Fatalf("fires %v, want %v", w.got.fires, w.want.fires)
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

// refused compares what an answer says of the queues that did not take a message.
func (w *walker) refused() {
	w.t.Helper()
	last := w.log[len(w.log)-1]
	if last.answer.Code != answerFull {
		w.same("refused", len(w.want.refused), 0)
		return
	}
	kept, refused, err := decodeRefused(last.answer.Data)
	if err != nil || kept != w.want.stored || !slices.Equal(refused, w.want.refused) {
		w.t.Fatalf("refused %+v, kept %d, %v; want %+v, kept %d", refused, kept, err, w.want.refused, w.want.stored)
	}
	for _, no := range refused {
		w.count.refusals[no.why]++
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
	w.schedules()
}

func (w *walker) stateOf(q *queue, p *plainQueue) {
	w.t.Helper()
	if q.def.id != p.id || !q.def.Queue.equal(p.def) || q.nextSeq != p.nextSeq || q.roster.turn != p.turn ||
		q.valve.paused != p.paused || q.heldUntil(p.now) != p.heldUntil() {
		w.t.Fatalf("queue %+v, next %d, turn %d; want %d %+v, next %d, turn %d",
			q.def, q.nextSeq, q.roster.turn, p.id, p.def, p.nextSeq, p.turn)
	}
	if p.in(plainReady) > 0 && p.next() == nil {
		w.count.held++
	}
	w.count.tailed += q.tailed
	if p.refills() != 0 {
		w.count.throttled++
	}
	count := q.count
	count.bytesIn, count.bytesGone = 0, 0
	over := p.given
	if len(p.waiting) > 0 {
		over = p.waiting[0]
	}
	w.same("turns", q.turns, turns{p.given, over, p.stalled})
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
	w.known(q, p)
	w.activations(q, p)
	w.same("consumers", len(q.roster.all), len(p.consumers))
	for i, c := range q.roster.all {
		pc := p.consumers[i]
		got := plainConsumer{c.id, int(c.prefetch), int(c.priority), c.pull, c.lastTag, c.turn}
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
		extra: e.extra, part: m.part, counted: m.group != "" && (state == plainLent || state == plainDelayed && m.deliveries > 0),
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
	w.m, w.weighed = m, weight{}
	// A leader that starts from a snapshot tells what is outstanding, and when to wake it.
	w.armed = 0
	w.got, w.want = w.got.emptied(), w.want.emptied()
	w.out = m.lead(w.out[:0])
	for i := range w.out {
		w.account(&w.out[i])
	}
	w.want.topology = true
	for _, s := range w.p.schedules {
		if s.asked {
			w.want.fires = append(w.want.fires, plainFire{s.id, s.due})
		}
	}
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
