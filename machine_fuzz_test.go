package bourse

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/wire"
)

// Goal: no input breaks an invariant or a decoder. Method: FuzzMachine makes valid commands of bytes, with an
// interpreter that needs no knowledge of the machine, and checks the invariants after each. The others
// give bytes to one decoder each: it must not panic, and what it accepts must come out again as it went in.

// fuzzLimit keeps one input fast.
const fuzzLimit = 150

// interpreter makes commands out of bytes, and remembers loans so that verdicts can hit.
type interpreter struct {
	in    []byte
	now   instant
	m     *machine
	ref   Ref
	held  map[Ref]int
	loans []settle
	dying []effect
	out   []effect
}

func (p *interpreter) byte() int {
	if len(p.in) == 0 {
		return 0
	}
	b := p.in[0]
	p.in = p.in[1:]
	return int(b)
}

func (p *interpreter) queue() queueID { return queueID(p.byte() % 6) }

func (p *interpreter) consumer() consumerID {
	return consumerID(p.m.session)<<32 | consumerID(p.byte()%5)
}

func (p *interpreter) loan() settle {
	if len(p.loans) == 0 {
		return settle{queue: p.queue(), consumer: p.consumer(), tag: 1}
	}
	return p.loans[p.byte()%len(p.loans)]
}

func (p *interpreter) declaration() Queue {
	b := p.byte()
	limited := p.byte() // half of the queues have a limit
	def := Queue{
		MaxMessages: int64(limited % 2 * (1 + limited/32)), MaxBytes: int64(limited % 2 * (limited & 64) * 4),
		Overflow: []Overflow{RejectPublish, DropHead, Block}[limited%2*(limited/2%3)],
		Name:     fmt.Sprintf("q%d", b%3), Priorities: []int{1, 2, 100, 256}[b/3%4], MaxRetries: []int{0, 1, NoRetry, NoLimit}[b/12%4],
		Retry:       []Backoff{{}, {Min: time.Second, Max: 4 * time.Second, Factor: 1.5, Jitter: 0.5}}[b/48%2],
		AckDeadline: []time.Duration{time.Second, time.Minute}[b/96%2], DeadLetter: DeadLetter{Discard: b >= 192},
		Dedup: []Dedup{
			{}, {Window: time.Second, OnDuplicate: BumpWaiting}, {UntilDone: true, OnDuplicate: ReplaceWaiting, MaxIDs: 2},
		}[b%3],
		Inbox: []InboxMemory{{}, {Window: time.Second, MaxIDs: 2}}[b/3%2],
	}
	def.Retry.AtTail = b%5 == 0
	def.Rate = []Rate{{}, {}, {Deliveries: 1, Burst: 2}, {Deliveries: 3, Per: 7 * time.Second}}[limited/8%4]
	if f := p.byte(); def.Priorities > 1 {
		def.Fairness = Fairness{LowerOneIn: []int{0, 2, 5}[f%3], Aging: []time.Duration{0, time.Second, time.Minute}[f/3%3]}
		def.BumpOnRedelivery = f/9%2 == 1
		def.Expires = []time.Duration{0, time.Second, time.Minute}[f/18%3]
	} else {
		def.SingleActiveConsumer = f%3 == 1
	}
	return def
}

func (p *interpreter) message() *Message {
	b := p.byte()
	return &Message{Priority: uint8(b), ID: []string{"", "a", "b", "c", "d"}[b%5]}
}

// command makes the next command of the input.
func (p *interpreter) command() []byte {
	kind := p.byte()
	p.now += instant(p.byte()) * instant(50*time.Millisecond)
	if kind >= 240 {
		p.now -= instant(time.Second) // a clock that lags
	}
	switch kind % 25 {
	case 0, 1, 2, 3:
		cmd := appendTargets(appendHeader(nil, cmdEnqueue, p.now), []queueID{p.queue()})
		return appendMessage(cmd, p.message(), messageID{}, nil)
	case 4:
		cmd := appendTargets(appendHeader(nil, cmdEnqueue, p.now), []queueID{1, 2, 3, 9})
		return appendMessage(cmd, p.message(), messageID{}, nil)
	case 5, 6:
		return attach{p.queue(), p.consumer(), int32(p.byte() % 8), int32(p.byte()%3 - 1)}.appendTo(nil, p.now)
	case 7:
		return detach{p.queue(), p.consumer(), p.byte()%2 == 0}.appendTo(nil, p.now)
	case 8, 9, 10, 11:
		c := p.loan()
		c.verdict = verdict(p.byte() % int(verdictDone+1))
		if c.verdict == verdictDone {
			c.key = keyOf([]byte{byte(p.byte() % 4)})
		} else if c.verdict != verdictAck {
			c.pause = time.Duration(p.byte()-20) * 100 * time.Millisecond
		}
		return c.appendTo(nil, p.now)
	case 12:
		c := p.loan()
		if b := p.byte(); b >= 128 {
			list := appendAck(appendAck(nil, c.tag, 0, c.slot), c.tag+1, c.tag, slotID(b%4))
			return appendAcks(nil, p.now, c.queue, c.consumer, list, 16)
		} else {
			return ackUpTo{c.queue, c.consumer, c.tag + uint64(b%3)}.appendTo(nil, p.now)
		}
	case 13:
		return take{p.queue(), p.consumer()}.appendTo(nil, p.now)
	case 14:
		return appendTick(nil, p.now)
	case 15:
		return appendOpen(nil, p.now, p.byte()%2 == 0)
	case 16:
		return appendDeclare(nil, p.now, 0, topologyLimits{}, []Declaration{p.declaration()})
	case 17:
		return appendRemove(nil, p.now, 0, removeOnly(p.byte()%4), []Declaration{Queue{Name: fmt.Sprintf("q%d", p.byte()%3)}})
	case 18:
		if b := p.byte(); b >= 128 {
			return appendPause(nil, p.now, p.queue(), b%3 == 0)
		}
		return appendPurge(nil, p.now, p.queue())
	case 19, 20:
		return p.amend()
	case 22:
		d := Schedule{Name: fmt.Sprintf("s%d", p.byte()%3), Every: time.Second}
		if p.byte()%3 == 0 {
			return appendRemove(nil, p.now, 0, 0, []Declaration{d})
		}
		return appendDeclare(nil, p.now, 0, topologyLimits{schedules: 2}, []Declaration{d})
	case 23:
		return p.fire()
	case 24:
		cmd := appendTargets(appendEnter(nil, p.now, uint64(p.byte()%4), p.byte()%2 == 0), []queueID{p.queue()})
		return appendMessage(cmd, &Message{}, messageID{}, nil)
	}
	source, seq := p.queue(), uint64(p.byte())
	if len(p.dying) > 0 {
		d := p.dying[int(seq)%len(p.dying)]
		source, seq = d.queue, d.seq
	}
	if kind < 60 {
		return appendForwarded(nil, p.now, source, seq)
	}
	cmd := appendTargets(appendMove(nil, p.now, source, seq), []queueID{p.queue()})
	return appendMessage(cmd, &Message{}, messageID{}, nil)
}

// amend is of a message that is there, mostly.
func (p *interpreter) amend() []byte {
	c := amend{queue: p.queue(), what: amendment(1 + p.byte()%int(amendReplay)), priority: uint8(p.byte())}
	if q := p.m.queues[c.queue]; q != nil {
		seen, _ := q.look(firstPlace(State(1+p.byte()%4)), 255, 1+p.byte()%8, nil)
		if n := len(seen); n > 0 {
			c.place, c.ref = seen[n-1].place, seen[n-1].entry.ref
		}
	}
	if p.byte()%4 == 0 {
		c.place = place{seq: c.place.seq, state: State(p.byte() % 5), level: uint8(p.byte())}
	}
	cmd := c.appendTo(nil, p.now)
	switch c.what {
	case amendEdit:
		return appendMessage(appendTargets(cmd, nil), &Message{}, messageID{}, nil)
	case amendReplay:
		return appendMessage(appendTargets(cmd, []queueID{p.queue()}), &Message{Priority: uint8(p.byte())}, messageID{}, nil)
	}
	return cmd
}

// fire is an answer for one of the schedules.
func (p *interpreter) fire() []byte {
	c := fire{schedule: scheduleID(p.byte()), next: p.now + instant(p.byte())*instant(time.Second)/10 + 1}
	if all := p.m.agenda.all; len(all) > 0 {
		a := all[int(c.schedule)%len(all)]
		c.schedule, c.due = a.id, a.due
		c.next = max(c.next, a.due+1)
	}
	if c.due != 0 {
		if c.outcome = outcome(p.byte() % 4); c.outcome != outcomeNone {
			c.fire = c.due
		}
	}
	cmd := c.appendTo(nil, p.now)
	if c.outcome != outcomeHere {
		return cmd
	}
	return appendMessage(appendTargets(cmd, []queueID{p.queue()}), &Message{}, messageID{}, nil)
}

// run applies what the input means and returns the log.
func (p *interpreter) run(t require.TestingT) (log [][]byte) {
	p.m, p.held, p.now = newMachine(roleAll, newTopology(topologyLimits{})), map[Ref]int{}, instant(time.Hour)
	apply := func(cmd []byte) {
		p.ref++
		log = append(log, cmd)
		var res applied
		res, p.out = p.m.apply(p.ref, cmd, p.out[:0])
		p.m.check()
		if res.kept > 0 {
			p.held[p.ref] = res.kept
		}
		if commandKind(cmd[0]) == cmdTake && res.answer.Code == answerOK {
			e, err := decodeLoanEffect(res.answer.Data)
			require.NoError(t, err)
			p.out = append(p.out, e)
		}
		for _, e := range p.out {
			switch e.kind {
			case effectDeliver:
				p.loans = append(p.loans, settle{queue: e.queue, consumer: e.consumer, tag: e.tag, slot: e.slot})
			case effectForward:
				p.dying = append(p.dying, e)
			case effectFree:
				p.held[e.ref]--
				require.GreaterOrEqual(t, p.held[e.ref], 0, "freed once too often")
				if p.held[e.ref] == 0 {
					delete(p.held, e.ref)
				}
			}
		}
	}
	apply(appendOpen(nil, p.now, false))
	for i := range 2 {
		q := Queue{Name: fmt.Sprintf("q%d", i), AckDeadline: time.Second, Priorities: 3}
		if i > 0 {
			q.MaxMessages, q.Overflow = 4, Block
		}
		apply(appendDeclare(nil, p.now, 0, topologyLimits{}, []Declaration{q}))
	}
	for len(p.in) > 0 && len(log) < fuzzLimit {
		apply(p.command())
	}
	return log
}

// fuzzSeeds are inputs that reach far: random bytes of a fixed seed.
func fuzzSeeds(f *testing.F) {
	rng := rand.New(rand.NewPCG(7, 7))
	f.Add([]byte{})
	for n := range 6 {
		b := make([]byte, 50*(n+1))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
}

func FuzzMachine(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		p := &interpreter{in: in}
		log := p.run(t)
		// The state is what a snapshot says and what the log gives once more, and refers to what is held.
		want := p.m.appendTo(nil)
		kept := map[Ref]int{}
		m, err := decodeMachine(want, func(ref Ref) { kept[ref]++ })
		require.NoError(t, err)
		m.check()
		require.Equal(t, p.held, kept)
		require.True(t, bytes.Equal(want, m.appendTo(nil)))
		again := newMachine(roleAll, newTopology(topologyLimits{}))
		for i, cmd := range log {
			again.apply(Ref(i+1), cmd, nil)
		}
		require.True(t, bytes.Equal(want, again.appendTo(nil)), "the log gives another state")
	})
}

func FuzzSnapshot(f *testing.F) {
	f.Add(newMachine(roleAll, newTopology(topologyLimits{})).appendTo(nil))
	rng := rand.New(rand.NewPCG(8, 8))
	for n := range 6 {
		b := make([]byte, 150*(n+1))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		p := &interpreter{in: b}
		p.run(f)
		f.Add(p.m.appendTo(nil))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := decodeMachine(in, func(Ref) {})
		runtime.ReadMemStats(&after)
		// A level that is not empty costs a block, and a queue its levels: some thousand bytes for a few of input.
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20+8192*uint64(len(in)) {
			t.Fatalf("%d bytes of input took %d of memory", len(in), got)
		}
		if err != nil {
			return
		}
		out := m.appendTo(nil)
		if !bytes.Equal(in, out) {
			// Only a number that was written with more bytes than it needs comes out in another way.
			require.Less(t, len(out), len(in), "a snapshot came back otherwise")
			again, err := decodeMachine(out, func(Ref) {})
			require.NoError(t, err)
			require.True(t, bytes.Equal(out, again.appendTo(nil)))
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	targets := appendTargets(appendHeader(nil, cmdEnqueue, 1), []queueID{1, 2})
	f.Add(appendMessage(targets[:len(targets):len(targets)], &Message{Body: []byte("body")}, messageID{1, 2}, nil))
	f.Add(appendMessage(appendTargets(amend{what: amendEdit}.appendTo(nil, 1), nil), &Message{Body: []byte("new")}, messageID{3, 4}, nil))
	f.Add(appendMessage(appendTargets(appendMove(nil, 1, 2, 3), []queueID{1}), &Message{
		ID: "id", Exchange: "ex", RoutingKey: "key", Priority: 3, Headers: map[string]any{"a": "b", "n": 1}, Timestamp: time.Unix(5, 0),
	}, messageID{}, history("q/rejected r/cycle*3")))
	f.Fuzz(func(t *testing.T, cmd []byte) {
		cmd = bytes.Clone(cmd) // message takes it
		env, err := envelopeOf(cmd)
		if err != nil {
			return
		}
		var m Message
		deaths, errDeaths := decodeDeaths(env.deaths)
		if env.message(cmd, &m) != nil || errDeaths != nil {
			return
		}
		require.Equal(t, len(m.Body), cap(m.Body))
		// What was read, written again, reads the same.
		again := appendMessage(appendTargets(appendHeader(nil, cmdEnqueue, 1), nil), &m, messageID{}, deaths)
		env, err = envelopeOf(again)
		require.NoError(t, err)
		var second Message
		require.NoError(t, env.message(again, &second))
		if m.ID == "" {
			second.ID = "" // a given id of no bytes: the broker makes one
		}
		if !m.Timestamp.IsZero() {
			require.Equal(t, m.Timestamp.UnixNano(), second.Timestamp.UnixNano())
		}
		m.Timestamp, second.Timestamp = time.Time{}, time.Time{}
		require.Equal(t, fmt.Sprint(m), fmt.Sprint(second)) // as text: a float header may be no number
	})
}

func FuzzDeaths(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendDeaths(nil, nil))
	f.Add(appendDeaths(nil, history("q/rejected r/delivery_limit*7 s/cycle")))
	f.Fuzz(func(t *testing.T, in []byte) {
		all, err := decodeDeaths(in)
		if err != nil {
			return
		}
		again, err := decodeDeaths(appendDeaths(nil, all))
		require.NoError(t, err)
		require.Equal(t, len(all), len(again))
		for i := range all {
			require.Equal(t, all[i], again[i])
		}
		d := Death{Queue: "q", Reason: ReasonRejected, Count: 1}
		require.LessOrEqual(t, len(bury(all, d)), maxDeaths)
		cycles(all, "q")
	})
}

func FuzzAnswerError(f *testing.F) {
	f.Add(appendError(nil, ErrNotFound))
	f.Add(appendError(nil, &InvalidError{"Queue.Name", "is empty"}))
	f.Add(appendError(nil, &PreconditionError{`queue "q"`, []FieldDiff{{"Priorities", "1", "2"}}}))
	f.Fuzz(func(t *testing.T, in []byte) {
		err := decodeError(in)
		require.Error(t, err)
		again := decodeError(appendError(nil, err))
		require.Equal(t, err.Error(), again.Error())
		require.Equal(t, sentinelsOf(err), sentinelsOf(again))
	})
}

func FuzzCommandDecode(f *testing.F) {
	f.Add(attach{1, 2, 3, -4}.appendTo(nil, 4))
	f.Add(settle{1, 2, 3, 4, verdictNack, -1, "note", idKey{}}.appendTo(nil, 5))
	f.Add(appendAcks(nil, 5, 1, 2, appendAck(appendAck(nil, 7, 0, 1), 5, 7, 0), 16))
	f.Add(amend{1, place{2, 1, 3, 4, StateDelayed, 5}, amendPriority, 6, 7}.appendTo(nil, 8))
	f.Add(appendDeclare(nil, 1, 0, topologyLimits{},
		[]Declaration{Queue{Name: "q"}, Exchange{Name: "e"}, Binding{Exchange: "e", Queue: "q"}}))
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, decode := range []func(r *wire.Reader) []byte{
			func(r *wire.Reader) []byte { return decodeAttach(r).appendTo(nil, 0)[commandHeader:] },
			func(r *wire.Reader) []byte { return decodeDetach(r).appendTo(nil, 0)[commandHeader:] },
			func(r *wire.Reader) []byte { return decodeSettle(r).appendTo(nil, 0)[commandHeader:] },
			func(r *wire.Reader) []byte { return decodeAckUpTo(r).appendTo(nil, 0)[commandHeader:] },
			func(r *wire.Reader) []byte { return decodeTake(r).appendTo(nil, 0)[commandHeader:] },
			func(r *wire.Reader) []byte { return decodeAmend(r).appendTo(nil, 0)[commandHeader:] },
			func(r *wire.Reader) []byte { return appendDeclarations(nil, decodeDeclarations(r)) },
			func(r *wire.Reader) []byte { decodeLimits(r); return nil },
		} {
			r := wire.NewReader(in)
			// What decodes and is written again has at most the bytes that were read: numbers may only get shorter.
			out := decode(&r)
			if r.Err() == nil && len(out) > len(in)-r.Len() {
				t.Fatalf("%x was read from %x", out, in)
			}
		}
		if e, err := decodeLoanEffect(in); err == nil {
			require.Equal(t, in, e.appendTo(nil))
		}
		// A machine either refuses a command with a panic that says so, or applies it and is well.
		m := newMachine(roleAll, newTopology(topologyLimits{}))
		m.apply(1, appendOpen(nil, 1, false), nil)
		if len(in) > 0 && decodes(m, in) {
			m.check()
		}
	})
}

// decodes applies a command and reports whether it decoded.
func decodes(m *machine, cmd []byte) (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			text, _ := r.(string)
			_, newer := r.(newerCommand)
			ok = false
			if !newer && !strings.Contains(text, "does not decode") {
				panic(r)
			}
		}
	}()
	m.apply(2, cmd, nil)
	return true
}
