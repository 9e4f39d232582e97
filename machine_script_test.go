package bourse

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: every rule of SEMANTICS for a queue can be read as an example, and keeps to it. Method: the scripts
// in testdata/machine. A step is commands, a line of dashes, and what was recorded: answers that are
// not plain ok, and effects. -rewrite records anew, and the diff is what has to be reviewed. Every script
// runs twice: the second time the machine goes through a snapshot after each command, which must change
// nothing but when it asks to be woken.
//
//	queue q [priorities=N] [retries=N|none|forever] [retry=MIN[..MAX]|D,D,..] [factor=F] [jitter=J] [deadline=D] [discard] [dead=EXCHANGE]
//	      [ttl=D|none] [groups=N|none] [lower-one-in=N] [aging=D] [bump] [max=N] [max-bytes=N] [overflow=drop|dead-letter|block] [single]
//	      [rate=N] [per=D] [burst=N] [expires=D] [tail]
//	update q [the same]               single: one active consumer
//	exchange e | bind e q
//	delete q [if-unused] [if-empty] | delete-exchange e [if-unused]
//	open [lost] | attach c1 q [prefetch=N] [priority=N] | detach c1 [lost]
//	      [dedup=D] [until-done] [duplicate=replace|bump] [max-ids=N] [inbox=D] [inbox-ids=N]
//	enqueue m1 q[,q2] [priority=N] [ttl=D|none] [delay=D] [id=ID] [group=WORD]     none: NoWait
//	ack c1 N | nack c1 N [pause=D] [note=WORD] | reject c1 N [note=WORD] | release c1 N [pause=D] | extend c1 N by=D
//	done c1 N id=ID                   an ack that goes into the inbox
//	ack-up-to c1 N | take c1
//	tick [+D] | at +D                 move the clock, with a command or without
//	schedule s [catch-up=skip|one|all] | delete-schedule s | show-schedule s
//	fire s [m1 q[,q2]] [due=D] [at=D] next=D [skipped=N] [elsewhere|unroutable]    times from the start; due: as it is
//	pause q | resume q | purge q | move m1 q TARGET[,TARGET] [priority=N] [group=WORD] | forwarded m1 q
//	enter m1 q turn=N [first]         m1 was told to wait
//	cancel m1 q | promote m1 q | priority m1 q N | edit m1 q as=m2 [read=m3] | replay m1 q TARGET [priority=N] | replayed m1 q
//	snapshot                          go on with a machine that was decoded, and leads
//	show q                            what the queue holds
//
// q@2 is the queue with id 2, be it gone; parked is the parking queue.
// A verdict names its loan by consumer and tag, and the harness adds the slot that came with the
// delivery. Consumers keep their id while their session lasts. Times in outcomes count from the start
// of the script.

var rewriteFlag = flag.Bool("rewrite", false, "record the outcomes of testdata/machine anew")

func TestMachineScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/machine/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 25)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := newScript(t, false).run(string(text))
			again := newScript(t, true).run(string(text))
			require.Equal(t, withoutWakes(got), withoutWakes(again), "a snapshot after each command changes the outcome")
			if *rewriteFlag {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(text), got, "review the difference, then run with -rewrite")
		})
	}
}

func withoutWakes(s string) string {
	lines := slices.DeleteFunc(strings.Split(s, "\n"), func(l string) bool { return strings.HasPrefix(l, "wake ") || l == "ok" })
	return strings.Join(lines, "\n")
}

// script runs one file.
type script struct {
	t         *testing.T
	m         *machine
	snapshots bool // after each command
	start     instant
	now       instant
	ref       Ref
	held      map[Ref]int
	messages  map[Ref]string
	consumers map[string]scriptConsumer
	slots     map[plainTag]slotID
	out       strings.Builder
}

type scriptConsumer struct {
	id    consumerID
	queue queueID
}

func newScript(t *testing.T, snapshots bool) *script {
	s := &script{
		t: t, m: newMachine(roleAll, newTopology(topologyLimits{})),
		snapshots: snapshots, start: instant(1_700_000_000 * time.Second), held: map[Ref]int{},
		messages: map[Ref]string{}, consumers: map[string]scriptConsumer{}, slots: map[plainTag]slotID{},
	}
	s.now = s.start
	s.m.apply(1, appendOpen(nil, s.now, false), nil)
	s.ref = 1
	return s
}

// run returns the text with the outcomes that the machine gives.
func (s *script) run(text string) string {
	var result strings.Builder
	for i, step := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			result.WriteString("\n")
		}
		commands, _, _ := strings.Cut(step, "\n----")
		result.WriteString(commands + "\n")
		s.out.Reset()
		n := 0
		for line := range strings.Lines(commands) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
			if words := strings.Fields(line); len(words) > 0 {
				s.command(words)
				n++
			}
		}
		if n == 0 { // only comments
			continue
		}
		if s.out.Len() == 0 {
			s.out.WriteString("ok\n")
		}
		result.WriteString("----\n" + s.out.String())
	}
	s.drained()
	return result.String()
}

// drained checks that nothing is held but by messages that are there.
func (s *script) drained() {
	holders := map[Ref]int{}
	_, err := decodeMachine(s.m.appendTo(nil), func(ref Ref) { holders[ref]++ })
	require.NoError(s.t, err)
	require.Equal(s.t, holders, s.held, "references to bodies")
}

func (s *script) say(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

// words of a command: those with a value, such as prefetch=3, and the rest.
type scriptArgs struct {
	s     *script
	words []string
	value map[string]string
}

func (a *scriptArgs) has(flag string) bool { return slices.Contains(a.words, flag) }

func (a *scriptArgs) word(i int) string {
	require.Greater(a.s.t, len(a.words), i, "too few words: %v", a.words)
	return a.words[i]
}

func (a *scriptArgs) number(name string, otherwise int) int {
	v, ok := a.value[name]
	if !ok {
		return otherwise
	}
	return a.s.atoi(v)
}

func (a *scriptArgs) duration(name string, otherwise time.Duration) time.Duration {
	v, ok := a.value[name]
	if !ok {
		return otherwise
	}
	return a.s.duration(v)
}

func (a *scriptArgs) share(name string) (f float64) {
	if v, ok := a.value[name]; ok {
		var err error
		f, err = strconv.ParseFloat(v, 64)
		require.NoError(a.s.t, err)
	}
	return f
}

func (s *script) atoi(v string) int {
	n, err := strconv.Atoi(v)
	require.NoError(s.t, err)
	return n
}

func (s *script) duration(v string) time.Duration {
	d, err := time.ParseDuration(v)
	require.NoError(s.t, err)
	return d
}

// queue is the id of the present queue of that name, or the number after an @: q@2 is the queue with id 2.
func (s *script) queue(name string) queueID {
	if _, id, ok := strings.Cut(name, "@"); ok {
		return queueID(s.atoi(id))
	}
	if name == "parked" {
		return parkingID
	}
	def, ok := s.m.topology.queue(name)
	require.True(s.t, ok, "no queue %q", name)
	return def.id
}

func (s *script) queues(list string) (ids []queueID) {
	for name := range strings.SplitSeq(list, ",") {
		ids = append(ids, s.queue(name))
	}
	return ids
}

func (s *script) queueName(id queueID) string {
	if id == parkingID {
		return "parked"
	}
	if def, ok := s.m.topology.queueByID(id); ok {
		return def.Name
	}
	return fmt.Sprintf("@%d", id)
}

func (s *script) consumer(name string) scriptConsumer {
	c, ok := s.consumers[name]
	require.True(s.t, ok, "no consumer %q", name)
	return c
}

func (s *script) consumerName(id consumerID) string {
	for name, c := range s.consumers {
		if c.id == id {
			return name
		}
	}
	return fmt.Sprintf("%x", uint64(id))
}

// seq is that of the message by that name in a queue; one that is not there has seq 0.
func (s *script) seq(name string, id queueID) uint64 {
	return s.entry(name, id).seq
}

func (s *script) entry(name string, id queueID) (found entry) {
	if q := s.m.queues[id]; q != nil {
		seen, _ := q.look(firstPlace(StateReady), 255, q.size()+1, nil)
		for i := range seen {
			if s.messages[seen[i].entry.ref] == name {
				found = seen[i].entry
			}
		}
	}
	return found
}

func (s *script) when(at instant) string {
	return "+" + time.Duration(at-s.start).String()
}

// command carries out one line.
func (s *script) command(words []string) {
	a := &scriptArgs{s: s, value: map[string]string{}}
	for _, w := range words {
		if name, v, ok := strings.Cut(w, "="); ok {
			a.value[name] = v
		} else {
			a.words = append(a.words, w)
		}
	}
	switch a.words[0] {
	case "at":
		s.now += instant(s.duration(a.word(1)))
	case "tick":
		if len(a.words) > 1 {
			s.now += instant(s.duration(a.word(1)))
		}
		s.apply(appendTick(nil, s.now))
	case "queue":
		s.apply(appendDeclare(nil, s.now, 0, topologyLimits{}, []Declaration{s.definition(a)}))
	case "update":
		s.apply(appendUpdate(nil, s.now, 0, s.definition(a)))
	case "exchange":
		s.apply(appendDeclare(nil, s.now, 0, topologyLimits{}, []Declaration{Exchange{Name: a.word(1)}}))
	case "bind":
		s.apply(appendDeclare(nil, s.now, 0, topologyLimits{}, []Declaration{Binding{Exchange: a.word(1), Queue: a.word(2)}}))
	case "delete":
		s.apply(appendRemove(nil, s.now, 0, a.only(), []Declaration{Queue{Name: a.word(1)}}))
	case "delete-exchange":
		s.apply(appendRemove(nil, s.now, 0, a.only(), []Declaration{Exchange{Name: a.word(1)}}))
	case "open":
		s.apply(appendOpen(nil, s.now, a.has("lost")))
	case "attach":
		s.attach(a)
	case "detach":
		c := s.consumer(a.word(1))
		s.apply(detach{queue: c.queue, consumer: c.id, failed: a.has("lost")}.appendTo(nil, s.now))
	case "enqueue":
		cmd := appendTargets(appendHeader(nil, cmdEnqueue, s.now), s.queues(a.word(2)))
		s.message(a, cmd, len(s.queues(a.word(2))))
	case "move":
		source := s.queue(a.word(2))
		cmd := appendTargets(appendMove(nil, s.now, source, s.seq(a.word(1), source)), s.queues(a.word(3)))
		s.message(a, cmd, len(s.queues(a.word(3))))
	case "forwarded":
		source := s.queue(a.word(2))
		s.apply(appendForwarded(nil, s.now, source, s.seq(a.word(1), source)))
	case "ack", "done", "nack", "reject", "release", "extend":
		s.settle(a)
	case "ack-up-to":
		c := s.consumer(a.word(1))
		s.apply(ackUpTo{queue: c.queue, consumer: c.id, tag: uint64(s.atoi(a.word(2)))}.appendTo(nil, s.now))
	case "take":
		s.take(a)
	case "cancel", "promote", "priority", "edit", "replay", "replayed":
		s.amend(a)
	case "schedule":
		s.apply(appendDeclare(nil, s.now, 0, topologyLimits{}, []Declaration{Schedule{Name: a.word(1), Every: time.Hour}}))
	case "delete-schedule":
		s.apply(appendRemove(nil, s.now, 0, 0, []Declaration{Schedule{Name: a.word(1)}}))
	case "show-schedule":
		s.showSchedule(s.schedule(a.word(1)))
	case "fire":
		s.fire(a)
	case "pause", "resume":
		s.apply(appendPause(nil, s.now, s.queue(a.word(1)), a.words[0] == "pause"))
	case "enter":
		cmd := appendEnter(nil, s.now, uint64(a.number("turn", 0)), a.has("first"))
		s.message(a, appendTargets(cmd, s.queues(a.word(2))), 1)
	case "purge":
		s.apply(appendPurge(nil, s.now, s.queue(a.word(1))))
	case "snapshot":
		s.snapshot()
		s.effects(s.m.lead(nil))
	case "show":
		s.show(s.m.queues[s.queue(a.word(1))])
	default:
		require.Fail(s.t, "unknown command", "%v", words)
	}
}

func (a *scriptArgs) only() (only removeOnly) {
	if a.has("if-unused") {
		only |= onlyUnused
	}
	if a.has("if-empty") {
		only |= onlyEmpty
	}
	return only
}

func (s *script) definition(a *scriptArgs) Queue {
	def := Queue{Name: a.word(1), Priorities: a.number("priorities", 0), AckDeadline: a.duration("deadline", 0)}
	if def.GroupConcurrency = NoLimit; a.value["groups"] != "none" {
		def.GroupConcurrency = a.number("groups", 0)
	}
	def.Fairness = Fairness{LowerOneIn: a.number("lower-one-in", 0), Aging: a.duration("aging", 0)}
	def.BumpOnRedelivery, def.SingleActiveConsumer = a.has("bump"), a.has("single")
	def.Rate = Rate{Deliveries: a.number("rate", 0), Per: a.duration("per", 0), Burst: a.number("burst", 0)}
	def.MaxMessages, def.MaxBytes = int64(a.number("max", 0)), int64(a.number("max-bytes", 0))
	def.Overflow = map[string]Overflow{"drop": DropHead, "dead-letter": DeadLetterHead, "block": Block}[a.value["overflow"]]
	switch retries := a.value["retries"]; retries {
	case "":
	case "none":
		def.MaxRetries = NoRetry
	case "forever":
		def.MaxRetries = NoLimit
	default:
		def.MaxRetries = s.atoi(retries)
	}
	if v, ok := a.value["retry"]; ok && strings.Contains(v, ",") {
		for d := range strings.SplitSeq(v, ",") {
			def.Retry.Pauses = append(def.Retry.Pauses, s.duration(d))
		}
	} else if ok {
		lowest, highest, two := strings.Cut(v, "..")
		def.Retry.Min = s.duration(lowest)
		if two {
			def.Retry.Max = s.duration(highest)
		}
	}
	def.Retry.Factor, def.Retry.Jitter, def.Retry.AtTail = a.share("factor"), a.share("jitter"), a.has("tail")
	def.TTL = a.ttl()
	def.DeadLetter = DeadLetter{Exchange: a.value["dead"], Discard: a.has("discard")}
	def.Dedup = Dedup{Window: a.duration("dedup", 0), UntilDone: a.has("until-done"), MaxIDs: a.number("max-ids", 0)}
	def.Inbox = InboxMemory{Window: a.duration("inbox", 0), MaxIDs: a.number("inbox-ids", 0)}
	def.Expires = a.duration("expires", 0)
	switch a.value["duplicate"] {
	case "replace":
		def.Dedup.OnDuplicate = ReplaceWaiting
	case "bump":
		def.Dedup.OnDuplicate = BumpWaiting
	}
	return def
}

// ttl is the value of ttl.
func (a *scriptArgs) ttl() time.Duration {
	if a.value["ttl"] == "none" {
		return NoWait
	}
	return a.duration("ttl", 0)
}

func (s *script) attach(a *scriptArgs) {
	name, queue := a.word(1), s.queue(a.word(2))
	c, again := s.consumers[name]
	if !again || c.id.session() != s.m.session && !a.has("old") || c.queue != queue {
		n := consumerID(len(s.consumers) + 1)
		c = scriptConsumer{consumerID(s.m.session)<<32 | n, queue}
		s.consumers[name] = c
	}
	s.apply(attach{
		queue: queue, consumer: c.id, prefetch: int32(a.number("prefetch", 1)), priority: int32(a.number("priority", 0)),
	}.appendTo(nil, s.now))
}

func (s *script) settle(a *scriptArgs) {
	c := s.consumer(a.word(1))
	tag := plainTag{c.queue, c.id, uint64(s.atoi(a.word(2)))}
	v := settle{queue: c.queue, consumer: c.id, tag: tag.tag, slot: s.slots[tag], note: a.value["note"]}
	switch a.words[0] {
	case "ack":
		v.verdict = verdictAck
	case "done":
		v.verdict, v.key = verdictDone, keyOf([]byte(a.value["id"]))
	case "nack":
		v.verdict, v.pause = verdictNack, a.duration("pause", -1)
	case "reject":
		v.verdict = verdictReject
	case "release":
		v.verdict, v.pause = verdictRelease, a.duration("pause", 0)
	case "extend":
		v.verdict, v.pause = verdictExtend, a.duration("by", 0)
	}
	s.apply(v.appendTo(nil, s.now))
}

func (s *script) take(a *scriptArgs) {
	c := s.consumer(a.word(1))
	res := s.apply(take{queue: c.queue, consumer: c.id}.appendTo(nil, s.now))
	if res.answer.Code == answerOK {
		e, err := decodeLoanEffect(res.answer.Data)
		require.NoError(s.t, err)
		s.say("taken %s", s.loan(&e))
	}
}

func (s *script) amend(a *scriptArgs) {
	id := s.queue(a.word(2))
	e := s.entry(a.word(1), id)
	c := amend{queue: id, place: place{seq: e.seq}, ref: e.ref}
	if q := s.m.queues[id]; q != nil {
		c.place.seq = q.number(e)
	}
	for ref, name := range s.messages {
		if name == a.value["read"] {
			c.ref = ref
		}
	}
	switch a.words[0] {
	case "cancel":
		c.what = amendCancel
	case "promote":
		c.what = amendPromote
	case "priority":
		c.what, c.priority = amendPriority, uint8(s.atoi(a.word(3)))
	case "replayed":
		c.what = amendReplayed
	case "edit":
		c.what = amendEdit
		a.words[1] = a.value["as"]
		s.message(a, appendTargets(c.appendTo(nil, s.now), nil), 1)
		return
	case "replay":
		c.what = amendReplay
		s.message(a, appendTargets(c.appendTo(nil, s.now), s.queues(a.word(3))), 1)
		return
	}
	s.apply(c.appendTo(nil, s.now))
}

// message ends a command with a message and names it.
func (s *script) message(a *scriptArgs, cmd []byte, targets int) {
	m := Message{
		Priority: uint8(a.number("priority", 0)), TTL: a.ttl(), ID: a.value["id"], GroupID: a.value["group"], Body: []byte(a.word(1)),
	}
	if d := a.duration("delay", 0); d > 0 {
		m.DeliverAt = time.Unix(0, int64(s.now)).Add(d)
	}
	cmd = appendMessage(cmd, &m, messageID{}, nil)
	s.messages[s.ref+1] = a.word(1)
	if res := s.apply(cmd); res.kept != targets && res.answer.Code == answerOK {
		s.say("kept %d of %d", res.kept, targets)
	}
}

func (s *script) apply(cmd []byte) applied {
	s.ref++
	res, out := s.m.apply(s.ref, cmd, nil)
	s.m.check()
	if res.kept > 0 {
		s.held[s.ref] = res.kept
	}
	switch code := res.answer.Code; {
	case code == answerOK:
	case code == answerGone:
		s.say("the queue is gone")
	case code == answerStale:
		s.say("stale")
	case code == answerEmpty:
		s.say("empty")
	case code == answerHeld:
		s.say("held back")
	case code == answerTooMany:
		s.say("too many")
	case code == answerAbsent:
		s.say("absent")
	case code == answerNotWaiting:
		s.say("not waiting")
	case code == answerFull:
		s.refused(res.answer)
	case code >= answerNumber:
		s.say("%d", code-answerNumber)
	default:
		err := decodeError(res.answer.Data)
		s.say("refused: %v", err)
		if len(sentinelsOf(err)) == 0 {
			require.Fail(s.t, "a refusal matches no sentinel", "%v", err)
		}
	}
	s.effects(out)
	if s.snapshots {
		s.snapshot()
	}
	return res
}

// snapshot replaces the machine by one that its snapshot makes.
func (s *script) snapshot() {
	b := s.m.appendTo(nil)
	m, err := decodeMachine(b, func(Ref) {})
	require.NoError(s.t, err)
	require.True(s.t, bytes.Equal(b, m.appendTo(nil)))
	s.m = m
	s.m.check()
}

func (s *script) effects(out []effect) {
	for i := range out {
		e := &out[i]
		switch e.kind {
		case effectDeliver:
			s.say("deliver %s", s.loan(e))
		case effectWithdraw:
			s.say("withdraw %s %d", s.consumerName(e.consumer), e.tag)
		case effectGone:
			s.say("gone %s", s.consumerName(e.consumer))
		case effectForward:
			s.say("forward %s", s.death(s.messages[e.ref], e.reason, e.note, e.at, s.queueName(e.queue)))
		case effectFree:
			s.say("free %s", s.messages[e.ref])
			s.held[e.ref]--
			require.GreaterOrEqual(s.t, s.held[e.ref], 0)
			if s.held[e.ref] == 0 {
				delete(s.held, e.ref)
			}
		case effectWake:
			if e.at == 0 {
				s.say("wake never")
			} else {
				s.say("wake %s", s.when(e.at))
			}
		case effectTopology:
			s.say("topology")
		case effectActive:
			s.say("active %s epoch %d.%d", s.consumerName(e.consumer), e.seq>>32, uint32(e.seq))
		case effectFire:
			s.say("ask %s at %s", s.scheduleName(scheduleID(e.seq)), s.timeOf(e.at))
		default:
			require.Fail(s.t, "unknown effect", "%+v", e)
		}
	}
}

// loan describes a delivery and remembers its slot.
func (s *script) loan(e *effect) string {
	s.slots[plainTag{e.queue, e.consumer, e.tag}] = e.slot
	text := fmt.Sprintf("%s %s tag=%d", s.consumerName(e.consumer), s.messages[e.ref], e.tag)
	return text + counts(e.deliveries, 1, e.failures) + " until " + s.when(e.at)
}

// counts says how often, where it is not the usual.
func counts(deliveries, usual, failures uint32) (text string) {
	if deliveries != usual {
		text += fmt.Sprintf(" deliveries=%d", deliveries)
	}
	if failures > 0 {
		text += fmt.Sprintf(" failures=%d", failures)
	}
	return text
}

func (s *script) death(name string, reason deathReason, note string, at instant, queue string) string {
	text := fmt.Sprintf("%s from %s: %s at %s", name, queue, reason, s.when(at))
	if note != "" {
		text += fmt.Sprintf(" (%s)", note)
	}
	return text
}

// show says what q holds, in the order in which it would be served.
func (s *script) show(q *queue) {
	var ready []string
	q.ready.each(func(e entry) bool {
		text := s.messages[e.ref] + counts(e.deliveries, 0, e.failures)
		if q.def.Priorities > 1 {
			text = fmt.Sprintf("%d:%s", e.level, text)
		}
		ready = append(ready, text)
		return true
	})
	// each goes from the lowest level; what is served first stands first here.
	slices.SortStableFunc(ready, func(a, b string) int { return s.level(b) - s.level(a) })
	s.say("%s", strings.TrimSpace("ready: "+strings.Join(ready, ", ")))
	for _, c := range q.roster.all {
		text := fmt.Sprintf("%s holds %d of %d:", s.consumerName(c.id), c.outstanding, c.prefetch)
		for slot := c.oldest; slot != noSlot; slot = q.ledger.slots[slot].newerOf {
			ln := &q.ledger.slots[slot]
			text += fmt.Sprintf(" %s(%d)", s.messages[ln.ref], ln.tag)
		}
		if q.activations.active == c {
			text += " active"
		}
		s.say("%s", text)
	}
	if q.delayedLen() > 0 {
		q.delayed.Ascend(func(d delayed) bool {
			s.say("delayed: %s%s until %s", s.messages[d.ref], counts(d.deliveries, 0, d.failures), s.when(d.at))
			return true
		})
	}
	if q.dyingLen() > 0 {
		q.dying.Ascend(func(d dying) bool {
			s.say("dying: %s", s.death(s.messages[d.ref], d.reason, d.note, d.at, q.def.Name))
			return true
		})
	}
	c := q.count
	s.say("enqueued %d delivered %d acked %d failed %d released %d timed-out %d dead %d discarded %d moved %d purged %d",
		c.Enqueued, c.Delivered, c.Acked, c.Failed, c.Released, c.TimedOut, c.Dead, c.Discarded, c.Moved, c.Purged)
	if c.Expired > 0 {
		s.say("expired %d", c.Expired)
	}
	if c.Rejected+c.Evicted > 0 {
		s.say("rejected %d evicted %d", c.Rejected, c.Evicted)
	}
	if q.turns != (turns{}) {
		s.say("turns given %d over %d stalled %v", q.turns.given, q.turns.over, q.turns.stalled)
	}
	if c.Cancelled+c.Replayed > 0 {
		s.say("cancelled %d replayed %d", c.Cancelled, c.Replayed)
	}
	if q.def.Inbox.Window > 0 {
		s.say("done %d inbox %d forgotten %d", c.Done, q.inbox.len(), c.Forgotten)
	}
	if q.def.Dedup.on() {
		s.say("ids %d duplicates %d forgotten %d", q.ids.len(), c.Duplicates, c.Forgotten)
	}
}

// refused says which queues did not take a message.
func (s *script) refused(a Answer) {
	_, refused, err := decodeRefused(a.Data)
	require.NoError(s.t, err)
	for _, no := range refused {
		switch no.why {
		case refusedFull:
			s.say("%s is full", s.queueName(no.queue))
		case refusedLarge:
			s.say("too large for %s", s.queueName(no.queue))
		case refusedWaits:
			s.say("waits for %s turn=%d", s.queueName(no.queue), no.turn)
		}
	}
}

func (s *script) level(text string) int {
	level, _, ok := strings.Cut(text, ":")
	if !ok {
		return 0
	}
	return s.atoi(level)
}
