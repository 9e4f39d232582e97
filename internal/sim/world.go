package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// Runner runs simulations one after the other and keeps memory between them. The zero value is not ready: see NewRunner.
type Runner struct {
	sys System
	rng *rand.Rand
	pcg *rand.PCG
	obs observer

	clock    int64 // the virtual clock
	wake     int64 // the timer; 0: it is not set
	steps    []step
	log      []byte   // the commands, one behind the other
	effects  []Effect // of the steps
	targets  []uint64 // of the steps
	durable  int      // steps that a power cut leaves
	saved    int      // steps in snapshot
	snapshot []byte
	scratch  []byte
	out      Outcome
	failing  bool // commands are written, and the process ends before they are applied

	actors  []*actor // the consumers of this session
	idle    []*actor // for their memory
	numbers uint32   // consumers given an id in this session
	session uint64
	orders  []Effect // moves to make
	repeats []Command
	again   [][]byte          // moves that are proposed once more
	message uint64            // the number of the last message
	gone    []uint64          // ids of deleted queues
	epochs  map[string]uint64 // that were heard of, the last of each name
	most    int               // messages in all queues, beyond which nothing is published

	report Report
}

// step is one entry of the log and what it brought about.
type step struct {
	command  Command
	from, to int // in log
	code     Code
	number   uint64
	kept     int
	lent     Effect
	first    int // its effects are effects[first:last]
	last     int
	applied  bool
}

// Report counts what runs went through, so that a generator that has become tame is noticed.
type Report struct {
	Runs, Commands, Delivered, Acked, Deaths, Moves, Repeated, Parked, Deadlines, Expired, Delayed, Stale, Taken                      int
	Kills, PowerCuts, LostCommands, Unknown, Snapshots, Restores, Replays, Vanished, Deleted, Purged, Amended, Repetitions, LateTicks int
	Activated                                                                                                                         int
	Trace                                                                                                                             uint64
}

// Add adds the counts of another report.
func (r *Report) Add(o *Report) {
	r.Runs += o.Runs
	r.Commands += o.Commands
	r.Delivered += o.Delivered
	r.Acked += o.Acked
	r.Deaths += o.Deaths
	r.Moves += o.Moves
	r.Repeated += o.Repeated
	r.Parked += o.Parked
	r.Deadlines += o.Deadlines
	r.Expired += o.Expired
	r.Delayed += o.Delayed
	r.Stale += o.Stale
	r.Taken += o.Taken
	r.Kills += o.Kills
	r.PowerCuts += o.PowerCuts
	r.LostCommands += o.LostCommands
	r.Unknown += o.Unknown
	r.Snapshots += o.Snapshots
	r.Restores += o.Restores
	r.Replays += o.Replays
	r.Vanished += o.Vanished
	r.Deleted += o.Deleted
	r.Purged += o.Purged
	r.LateTicks += o.LateTicks
	r.Activated += o.Activated
	r.Amended += o.Amended
	r.Repetitions += o.Repetitions
	r.Trace ^= o.Trace
}

// NewRunner returns a runner for sys, which it alone uses from now on.
func NewRunner(sys System) *Runner {
	pcg := rand.NewPCG(0, 0)
	return &Runner{sys: sys, pcg: pcg, rng: rand.New(pcg)}
}

// start is the clock at the beginning of a run.
const start = 1_700_000_000 * int64(second)

// Run simulates the given number of commands, and then those that it takes to drain the queues. The error, a *Failure, is an
// invariant that did not hold. Equal seeds give equal runs.
func (w *Runner) Run(seed uint64, commands int) (report Report, err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		f, ok := p.(*Failure)
		if !ok {
			f = &Failure{Rule: "panic", What: fmt.Sprint(p)}
		}
		f.Last = w.last(30)
		report, err = w.report, f
	}()
	w.begin(seed)
	for len(w.steps) < commands {
		w.step()
	}
	w.drain()
	w.kept(w.replay(0, len(w.steps)))
	w.same("the whole log")
	w.report.Runs, w.report.Commands = 1, len(w.steps)
	w.report.Trace = checksum(w.log) ^ checksum(w.scratch)
	return w.report, nil
}

func checksum(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func (w *Runner) begin(seed uint64) {
	w.pcg.Seed(seed, 0x626f75727365)
	w.sys.Reset()
	w.obs.reset()
	w.report = Report{}
	w.clock, w.wake, w.durable, w.saved, w.session = start, 0, 0, 0, 0
	w.steps, w.log, w.effects, w.targets = w.steps[:0], w.log[:0], w.effects[:0], w.targets[:0]
	w.snapshot, w.message, w.gone = w.snapshot[:0], 0, w.gone[:0]
	w.failing, w.epochs = false, map[string]uint64{}
	w.dismissAll()
	w.most = 10 + w.rng.IntN(60)
	if w.one(50) {
		w.most = 400 // over several blocks of a queue
	}
	w.lead()
	for range 1 + w.rng.IntN(4) {
		w.declare()
	}
}

// one of n with equal chance.
func (w *Runner) one(n int) bool { return w.rng.IntN(n) == 0 }

// submit writes a command to the log and, unless the process is about to end, has it applied. It returns false
// if nobody heard the answer.
func (w *Runner) submit(c *Command) bool {
	from := len(w.log)
	w.log = w.sys.Encode(w.log, c)
	return w.submitted(c, from)
}

// submitted is submit for a command that is in the log already, from that place on.
func (w *Runner) submitted(c *Command, from int) bool {
	n := len(w.targets)
	w.targets = append(w.targets, c.Targets...)
	c.Targets = w.targets[n:len(w.targets):len(w.targets)]
	w.steps = append(w.steps, step{command: *c, from: from, to: len(w.log)})
	if w.failing {
		return false
	}
	w.apply(len(w.steps) - 1)
	w.carryOut()
	return true
}

// apply applies step i for the first time, and has it judged.
func (w *Runner) apply(i int) {
	s := &w.steps[i]
	w.out.Clear()
	w.sys.Apply(uint64(i+1), w.log[s.from:s.to], &w.out)
	if s.command.Kind == Declare && w.out.Code == OK {
		w.out.Number = w.sys.QueueID(s.command.Spec.Name)
	}
	s.code, s.number, s.kept, s.lent, s.applied = w.out.Code, w.out.Number, w.out.Kept, w.out.Lent, true
	s.first = len(w.effects)
	w.effects = append(w.effects, w.out.Effects...)
	s.last = len(w.effects)
	if s.command.durable() {
		w.durable = i + 1
	}
	w.obs.see(uint64(i+1), &s.command, &w.out)
	w.agree()
	w.tally(s)
	if w.one(64) {
		w.sys.Check()
	}
}

// agree compares the counters of all queues: those that the command had nothing to do with, too.
func (w *Runner) agree() {
	for _, v := range w.obs.order {
		w.obs.agree(v, w.sys)
	}
	for _, id := range w.gone {
		if _, ok := w.sys.Counts(id); ok {
			fail("I23", "queue %d was deleted and is there", id)
		}
	}
}

func (w *Runner) tally(s *step) {
	for i := range w.out.Effects {
		switch e := &w.out.Effects[i]; e.Kind {
		case Deliver:
			w.report.Delivered++
		case Withdraw:
			w.report.Deadlines++
		case Forward:
			w.report.Deaths++
			if e.Reason == Expired {
				w.report.Expired++
			}
		case Active:
			w.report.Activated++
		case QueueGone, Free:
		}
	}
	switch c := &s.command; {
	case s.code == Stale:
		w.report.Stale++
	case c.Kind == Move && s.code == OK:
		w.report.Moves++
		if slices.Contains(c.Targets, 1) {
			w.report.Parked++
		}
	case c.Kind == Publish && s.code == OK && s.kept == 0:
		w.report.Repetitions++
	case c.Kind == Amend && s.code == OK:
		w.report.Amended++
	case c.Kind == Take && s.code == OK:
		w.report.Taken++
	case c.Kind == Settle && c.Verdict == Ack && s.code == OK:
		w.report.Acked++
	case c.Kind == Settle && c.Pause > 0 && c.Verdict != Extend, c.Kind == Publish && c.Message.ReadyAt > c.At:
		w.report.Delayed++
	case c.Kind == Purge && s.number > 0:
		w.report.Purged++
	}
}

// carryOut does what the last outcome orders, as the process that leads does.
func (w *Runner) carryOut() {
	for i := range w.out.Effects {
		switch e := &w.out.Effects[i]; e.Kind {
		case Deliver:
			w.receive(e)
		case Withdraw:
			if a := w.actor(e.Consumer); a != nil {
				a.lose(e.Tag)
			}
		case QueueGone:
			w.dismiss(e.Consumer)
		case Forward:
			w.orders = append(w.orders, *e)
		case Active:
			w.hear(e)
		case Free:
		}
	}
	if w.out.Woken {
		w.wake = w.out.Wake
	}
	w.obs.timed(w.wake)
}

// receive hands a message to its consumer, who looks at the body.
func (w *Runner) receive(e *Effect) {
	if w.body(e.Ref); w.actor(e.Consumer) == nil {
		fail("I6", "message at %d is delivered to consumer %x, which is gone", e.Ref, e.Consumer)
	} else {
		a := w.actor(e.Consumer)
		a.held = append(a.held, hold{e.Queue, e.Tag, e.Slot})
	}
}

// body asks that what lies at ref is kept, and is the message that was put there.
func (w *Runner) body(ref uint64) {
	r := w.obs.refs[ref]
	if r.held <= 0 {
		fail("I2", "the command at %d is read and was freed", ref)
	}
	s := &w.steps[ref-1]
	w.scratch = AppendBody(w.scratch[:0], r.number)
	if got := w.sys.Body(w.log[s.from:s.to]); !bytes.Equal(got, w.scratch) {
		fail("I2", "the body at %d is %x, want message %d: %x", ref, got, r.number, w.scratch)
	}
}

// tick proposes the tick that the timer asks for.
func (w *Runner) tick() {
	at := max(w.clock, w.wake)
	w.clock, w.wake = at, 0
	w.submit(&Command{Kind: Tick, At: at})
}

// pass lets the clock go on, and the timer ring. Now and then it rings late, behind the next command.
func (w *Runner) pass(to int64) {
	for n := 0; w.wake != 0 && w.wake <= to; n++ {
		if n > 1000 {
			fail("I12", "the timer is set to %d again and again, now is %d", w.wake, w.clock)
		}
		if w.one(10) {
			w.report.LateTicks++
			break
		}
		w.tick()
	}
	w.clock = max(w.clock, to)
}

// save takes a snapshot, which is durable at once, and with it all that it holds.
func (w *Runner) save() {
	w.snapshot = w.sys.Snapshot(w.snapshot[:0])
	w.saved = len(w.steps)
	w.durable = len(w.steps)
	w.report.Snapshots++
}

// end of a process.
type end byte

const (
	closed   end = iota // in good order
	killed              // what was written stays
	powerCut            // what was not synced may be lost
)

// restart ends the process and starts another on the log that is left.
func (w *Runner) restart(how end) {
	if how == closed {
		w.submit(&Command{Kind: Open, At: w.at()})
		w.session++
	} else if w.one(2) { // some commands are on their way: nobody hears what becomes of them
		w.failing = true
		for range 1 + w.rng.IntN(3) {
			w.act()
		}
		w.failing = false
	}
	w.dismissAll()
	applied := len(w.steps)
	for applied > 0 && !w.steps[applied-1].applied {
		applied--
	}
	w.scratch = w.sys.Snapshot(w.scratch[:0])
	keep := len(w.steps)
	if how != closed {
		keep = applied + w.rng.IntN(keep-applied+1) // a write that was under way is whole or is not there
		w.report.Kills++
	}
	if how == powerCut {
		w.report.PowerCuts++
		keep = w.durable + w.rng.IntN(keep-w.durable+1)
		w.report.LostCommands += max(0, applied-keep)
	}
	w.cut(keep)
	from := 0
	if w.saved > 0 && !w.one(4) {
		from = w.saved
	}
	kept := w.replay(from, min(keep, applied))
	if keep >= applied {
		w.same("the log at a restart")
	} else {
		w.rewind(keep)
	}
	w.kept(kept)
	for i := applied; i < keep; i++ {
		w.report.Unknown++
		w.apply(i)
		w.clock = max(w.clock, w.steps[i].command.At)
	}
	w.sys.Check()
	w.lead()
}

// cut drops the steps from n on.
func (w *Runner) cut(n int) {
	if n < len(w.steps) {
		w.log = w.log[:w.steps[n].from]
		w.steps = w.steps[:n]
	}
}

// replay brings the system to step n: from the snapshot, which holds the steps before from, or with 0 from nothing. Each answer and
// effect must be what it was. It returns how often each command is kept.
func (w *Runner) replay(from, n int) []int32 {
	w.report.Replays++
	w.sys.Reset()
	kept := make([]int32, n+1)
	if from > 0 {
		w.report.Restores++
		if err := w.sys.Restore(w.snapshot, func(ref uint64) { kept[ref]++ }); err != nil {
			fail("I17", "the snapshot does not restore: %v", err)
		}
	}
	for i := from; i < n; i++ {
		s := &w.steps[i]
		w.out.Clear()
		w.sys.Apply(uint64(i+1), w.log[s.from:s.to], &w.out)
		if s.command.Kind == Declare && w.out.Code == OK {
			w.out.Number = w.sys.QueueID(s.command.Spec.Name)
		}
		if w.out.Code != s.code || w.out.Number != s.number || w.out.Kept != s.kept || w.out.Lent != s.lent {
			fail("I17", "step %d, %v: answer %+v in a replay from step %d, first %d %d %d %+v",
				i, s.command.Kind, w.out, from, s.code, s.number, s.kept, s.lent)
		}
		if !alike(s.command.Kind, w.out.Effects, w.effects[s.first:s.last]) {
			fail("I17", "step %d, %v: effects\n\t%+v in a replay from step %d, first\n\t%+v",
				i, s.command.Kind, w.out.Effects, from, w.effects[s.first:s.last])
		}
		kept[i+1] += int32(w.out.Kept)
		for j := range w.out.Effects {
			if e := &w.out.Effects[j]; e.Kind == Free {
				kept[e.Ref]--
			}
		}
	}
	return kept
}

// alike reports whether two lists of effects of a command say the same. A tick looks at the queues in the order of their timers,
// which may be too early and are not in a snapshot: so the order of the queues does not count there.
func alike(kind Kind, a, b []Effect) bool {
	if slices.Equal(a, b) {
		return true
	}
	if kind != Tick {
		return false
	}
	byQueue := func(list []Effect) []Effect {
		list = slices.Clone(list)
		slices.SortStableFunc(list, func(x, y Effect) int {
			if x.Kind == Free && y.Kind == Free {
				return cmp.Compare(x.Ref, y.Ref)
			}
			return cmp.Compare(x.Queue, y.Queue) // 0 for the others of Free
		})
		return list
	}
	return slices.Equal(byQueue(a), byQueue(b))
}

// kept asks that the references that a replay found are those that were not freed before.
func (w *Runner) kept(found []int32) {
	for ref, n := range found {
		if ref < len(w.obs.refs) && w.obs.refs[ref].held != n {
			fail("I17", "after a replay the command at %d is kept %d times, before %d", ref, n, w.obs.refs[ref].held)
		}
	}
}

// same asks that the state is what scratch holds.
func (w *Runner) same(what string) {
	n := len(w.scratch)
	w.scratch = w.sys.Snapshot(w.scratch)
	if !bytes.Equal(w.scratch[:n], w.scratch[n:]) {
		fail("I17", "%s leads to another state", what)
	}
	w.scratch = w.scratch[:n]
}

// rewind makes the observer forget what was lost with a power cut: it sees the first n steps anew.
func (w *Runner) rewind(n int) {
	w.obs.reset()
	w.session = 0
	for i := range n {
		s := &w.steps[i]
		w.out.Clear()
		w.out.Code, w.out.Number, w.out.Kept, w.out.Lent = s.code, s.number, s.kept, s.lent
		w.out.Effects = append(w.out.Effects, w.effects[s.first:s.last]...)
		w.obs.see(uint64(i+1), &s.command, &w.out)
	}
	w.agree()
}

// lead begins to act for the system: what is outstanding is ordered anew, and a session is opened.
func (w *Runner) lead() {
	w.out.Clear()
	w.wake = 0
	w.sys.Lead(&w.out)
	w.obs.ordered(&w.out)
	w.carryOut()
	w.numbers = 0
	w.submit(&Command{Kind: Open, At: w.at(), Lost: true})
	w.session = w.obs.session
}

// last is the last n commands in words.
func (w *Runner) last(n int) []string {
	var all []string
	for i := max(0, len(w.steps)-n); i < len(w.steps); i++ {
		s := &w.steps[i]
		c := &s.command
		text := fmt.Sprintf("%d: +%dms %v", i+1, (c.At-start)/1e6, c.Kind)
		switch c.Kind {
		case Publish, Move:
			text += fmt.Sprintf(" %+v to %v, from queue %d seq %d", c.Message, c.Targets, c.Queue, c.Seq)
		case Settle:
			text += fmt.Sprintf(" %v queue %d consumer %x tag %d pause %v", c.Verdict, c.Queue, c.Consumer, c.Tag, c.Pause)
		case Declare, Delete:
			text += fmt.Sprintf(" %+v", c.Spec)
		case Open, Tick:
			text += fmt.Sprintf(" lost %v", c.Lost)
		case Amend:
			text += fmt.Sprintf(" %d queue %d seq %d ref %d %+v to %v", c.Amend, c.Queue, c.Seq, c.Ref, c.Message, c.Targets)
		case Attach, Detach, AckUpTo, Take, Purge:
			text += fmt.Sprintf(" queue %d consumer %x tag %d prefetch %d lost %v", c.Queue, c.Consumer, c.Tag, c.Prefetch, c.Lost)
		}
		text += fmt.Sprintf(" -> %d", s.code)
		if !s.applied {
			text += " (not applied)"
		}
		all = append(all, text)
	}
	return all
}
