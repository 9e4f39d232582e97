package bourse

import (
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/internal/sim"
)

// Goal: the queues keep what RELIABILITY promises of them whatever consumers, clocks, crashes and the mover do. Method: the
// machine, driven by internal/sim as a broker drives it; its observer judges each step by what publishers and consumers saw. A
// run has a seed of its own, and a failure prints the command that repeats just that run. This file is the adapter: it puts the
// machine behind sim.System, in the commands and effects of the log.

var (
	simSeeds = flag.Int("sim.seeds", simDefault, "seeds of TestSim")
	simSteps = flag.Int("sim.steps", 500, "commands for each seed of TestSim")
	simFloor = flag.Int("sim.floor", 0, "seeds per second that TestSim must reach")
	seedFlag = flag.Uint64("seed", 0, "seed of the first random walk; 0: a new one each time")
)

// simDefault is fewer where the machine looks at everything after each command.
var simDefault = map[bool]int{false: 2000, true: 500}[invariant.Costly]

// simSystem is a machine as internal/sim knows it.
type simSystem struct {
	m   *machine
	out []effect
}

func (s *simSystem) Reset() { s.m = newMachine(roleAll, newTopology(topologyLimits{})) }

func (s *simSystem) Encode(dst []byte, c *sim.Command) []byte {
	at, queue, consumer := instant(c.At), queueID(c.Queue), consumerID(c.Consumer)
	switch c.Kind {
	case sim.Publish:
		dst = appendTargets(appendHeader(dst, cmdEnqueue, at), simIDs(c.Targets))
		m := Message{Priority: c.Message.Priority, TTL: c.Message.TTL, Body: sim.AppendBody(nil, c.Message.Number)}
		if c.Message.Key != 0 {
			m.ID = strconv.FormatUint(c.Message.Key, 10)
		}
		if c.Message.ReadyAt != 0 {
			m.DeliverAt = time.Unix(0, c.Message.ReadyAt)
		}
		return appendMessage(dst, &m, messageID{number: c.Message.Number}, nil)
	case sim.Attach:
		return attach{queue: queue, consumer: consumer, prefetch: int32(c.Prefetch), priority: int32(c.Rank)}.appendTo(dst, at)
	case sim.Detach:
		return detach{queue: queue, consumer: consumer, failed: c.Lost}.appendTo(dst, at)
	case sim.Settle:
		return settle{
			queue: queue, consumer: consumer, tag: c.Tag, slot: c.Slot, verdict: verdict(c.Verdict), pause: c.Pause,
		}.appendTo(dst, at)
	case sim.AckUpTo:
		return ackUpTo{queue: queue, consumer: consumer, tag: c.Tag}.appendTo(dst, at)
	case sim.Take:
		return take{queue: queue, consumer: consumer}.appendTo(dst, at)
	case sim.Tick:
		return appendTick(dst, at)
	case sim.Open:
		return appendOpen(dst, at, c.Lost)
	case sim.Declare:
		return appendDeclare(dst, at, 0, topologyLimits{}, simDeclarations(&c.Spec))
	case sim.Delete:
		only := removeOnly(0)
		if c.Unused {
			only |= onlyUnused
		}
		if c.Emptied {
			only |= onlyEmpty
		}
		return appendRemove(dst, at, 0, only, []Declaration{Queue{Name: c.Spec.Name}})
	case sim.Purge:
		return appendPurge(dst, at, queue)
	case sim.Amend:
		dst = simAmend(c).appendTo(dst, at)
		if c.Amend == sim.Edit {
			m := Message{Body: sim.AppendBody(nil, c.Message.Number)}
			dst = appendMessage(appendTargets(dst, nil), &m, messageID{number: c.Message.Number}, nil)
		}
		return dst
	case sim.Move: // made by Bury
	}
	panic("a kind of command that Encode does not know")
}

func simAmend(c *sim.Command) amend {
	return amend{
		queue: queueID(c.Queue), place: place{seq: c.Seq}, priority: c.Message.Priority, ref: Ref(c.Ref),
		what: []amendment{amendCancel, amendPromote, amendPriority, amendEdit, amendReplay}[c.Amend],
	}
}

// Resend sends the message as one that was rejected, with its history and without what it said of its time.
func (s *simSystem) Resend(dst []byte, c *sim.Command, read []byte) []byte {
	var p moving
	simRead(&p, read)
	p.message.TTL, p.message.DeliverAt = 0, time.Time{}
	p.deaths = bury(p.deaths, Death{Queue: "elsewhere", Reason: ReasonRejected, Count: 1})
	dst = appendTargets(simAmend(c).appendTo(dst, instant(c.At)), simIDs(c.Targets))
	return appendMessage(dst, &p.message, p.made, p.deaths)
}

// simRead takes the message out of the command that holds it.
func simRead(p *moving, cmd []byte) {
	env, err := envelopeOf(cmd)
	if err == nil {
		p.deaths, err = decodeDeaths(env.deaths)
	}
	if err == nil {
		err = env.message(slices.Clone(cmd), &p.message)
	}
	if err != nil {
		panic(err)
	}
}

func simIDs(ids []uint64) []queueID {
	out := make([]queueID, len(ids))
	for i, id := range ids {
		out[i] = queueID(id)
	}
	return out
}

// simDeclarations is a queue and the exchanges that dead messages go through.
func simDeclarations(s *sim.Spec) []Declaration {
	q := Queue{
		Name: s.Name, Priorities: s.Levels, MaxRetries: s.Retries, AckDeadline: s.Deadline, TTL: s.TTL,
		Dedup: Dedup{Window: s.Window}, SingleActiveConsumer: s.Single,
		Retry: Backoff{Min: s.Retry.Min, Max: s.Retry.Max, Factor: float64(s.Retry.Percent) / 100, Jitter: float64(s.Retry.Jitter) / 100},
	}
	q.Retry.Pauses = append(q.Retry.Pauses, s.Retry.Pauses[:s.Retry.Listed]...)
	switch s.Retries {
	case 0:
		q.MaxRetries = NoRetry
	case sim.Unlimited:
		q.MaxRetries = NoLimit
	}
	switch s.Dead {
	case sim.DeadParked:
	case sim.DeadDropped:
		q.DeadLetter.Discard = true
	case sim.DeadDirect:
		q.DeadLetter = DeadLetter{Exchange: "dead", RoutingKey: s.DeadTo}
	case sim.DeadFan:
		q.DeadLetter.Exchange = "fan"
	case sim.DeadMissing:
		q.DeadLetter.Exchange = "missing"
	}
	ds := []Declaration{
		Exchange{Name: "dead"}, Exchange{Name: "fan", Kind: Fanout}, q, Binding{Exchange: "dead", Queue: s.Name, Key: s.Name},
	}
	if s.Joined {
		ds = append(ds, Binding{Exchange: "fan", Queue: s.Name})
	}
	return ds
}

// Bury uses what the mover does between the order and its proposal.
func (s *simSystem) Bury(dst []byte, at int64, from *sim.Effect, dead []byte) ([]byte, []uint64) {
	p := &moving{order: order{effect: effect{
		kind: effectForward, queue: queueID(from.Queue), seq: from.Seq, failures: from.Failures,
		reason: deathReason(from.Reason), at: instant(from.At),
	}}}
	simRead(p, dead)
	def, _ := s.m.topology.queueByID(p.order.queue)
	p.address(s.m.topology, def)
	dst = appendTargets(appendMove(dst, instant(at), p.order.queue, p.order.seq), p.targets)
	targets := make([]uint64, len(p.targets))
	for i, id := range p.targets {
		targets[i] = uint64(id)
	}
	return appendMessage(dst, &p.message, p.made, p.deaths), targets
}

func (s *simSystem) Body(cmd []byte) []byte {
	env, err := envelopeOf(cmd)
	if err != nil {
		panic(err)
	}
	return env.body
}

func (s *simSystem) Apply(ref uint64, cmd []byte, out *sim.Outcome) {
	var res applied
	res, s.out = s.m.apply(Ref(ref), cmd, s.out[:0])
	out.Kept = res.kept
	switch code := res.answer.Code; {
	case code >= answerNumber:
		out.Code, out.Number = sim.Number, code-answerNumber
	case code == answerOK:
		if len(res.answer.Data) > 0 {
			e, err := decodeLoanEffect(res.answer.Data)
			if err != nil {
				panic(err)
			}
			out.Lent = simEffect(&e, sim.Deliver)
		}
	default:
		out.Code = map[uint64]sim.Code{
			answerGone: sim.Gone, answerStale: sim.Stale, answerEmpty: sim.Empty, answerError: sim.Refused,
			answerAbsent: sim.Absent, answerNotWaiting: sim.Busy, answerHeld: sim.Held,
		}[code]
	}
	s.effects(out)
}

func (s *simSystem) effects(out *sim.Outcome) {
	for i := range s.out {
		e := &s.out[i]
		kind := sim.Deliver
		switch e.kind {
		case effectDeliver:
		case effectWithdraw:
			kind = sim.Withdraw
		case effectGone:
			kind = sim.QueueGone
		case effectForward:
			kind = sim.Forward
		case effectFree:
			kind = sim.Free
		case effectWake:
			out.Woken, out.Wake = true, int64(e.at)
			continue
		case effectActive:
			kind = sim.Active
		case effectTopology:
			continue
		}
		out.Effects = append(out.Effects, simEffect(e, kind))
	}
}

func simEffect(e *effect, kind sim.EffectKind) sim.Effect {
	return sim.Effect{
		Kind: kind, Reason: sim.Reason(e.reason), Queue: uint64(e.queue), Consumer: uint64(e.consumer), Tag: e.tag, Slot: e.slot,
		Seq: e.seq, Ref: uint64(e.ref), Deliveries: e.deliveries, Failures: e.failures, At: int64(e.at), Arrived: int64(e.arrived),
	}
}

func (s *simSystem) Lead(out *sim.Outcome) {
	s.out = s.m.lead(s.out[:0])
	s.effects(out)
}

func (s *simSystem) Snapshot(dst []byte) []byte { return s.m.appendTo(dst) }

func (s *simSystem) Restore(snapshot []byte, keep func(uint64)) error {
	m, err := decodeMachine(snapshot, func(ref Ref) { keep(uint64(ref)) })
	if err == nil {
		s.m = m
	}
	return err
}

func (s *simSystem) QueueID(name string) uint64 {
	def, _ := s.m.topology.queue(name)
	return uint64(def.id)
}

func (s *simSystem) Counts(id uint64) (sim.Counts, bool) {
	q := s.m.queues[queueID(id)]
	if q == nil {
		return sim.Counts{}, false
	}
	return sim.Counts{
		Ready: q.ready.n, Unacked: q.ledger.n, Delayed: q.delayedLen(), Dying: q.dyingLen(),
		Enqueued: q.count.Enqueued, Delivered: q.count.Delivered, Acked: q.count.Acked, Failed: q.count.Failed,
		Released: q.count.Released, TimedOut: q.count.TimedOut, Dead: q.count.Dead, Expired: q.count.Expired,
		Discarded: q.count.Discarded, Moved: q.count.Moved, Purged: q.count.Purged,
		Cancelled: q.count.Cancelled, Replayed: q.count.Replayed, Duplicates: q.count.Duplicates,
	}, true
}

func (s *simSystem) Check() { s.m.check() }

func TestSim(t *testing.T) {
	first := *seedFlag
	if first == 0 {
		first = rand.Uint64() >> 1
	}
	seeds := *simSeeds
	if testing.Short() {
		seeds = min(seeds, 300)
	}
	var (
		next   atomic.Int64
		failed atomic.Bool
		all    sync.WaitGroup
		mu     sync.Mutex
		total  sim.Report
	)
	begun := time.Now()
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() { // ends with the last seed, or the first failure
			runner := sim.NewRunner(&simSystem{})
			var sum sim.Report
			for !failed.Load() {
				n := next.Add(1) - 1
				if n >= int64(seeds) {
					break
				}
				report, err := runner.Run(first+uint64(n), *simSteps)
				if err != nil {
					failed.Store(true)
					simFailed(t, first+uint64(n), err)
					return
				}
				sum.Add(&report)
			}
			mu.Lock()
			total.Add(&sum)
			mu.Unlock()
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	rate := float64(seeds) / time.Since(begun).Seconds()
	t.Logf("seed %d: %.0f seeds per second, %+v", first, rate, total)
	if rate < float64(*simFloor) {
		t.Errorf("%.0f seeds per second, the floor is %d", rate, *simFloor)
	}
	if seeds >= 1000 && *simSteps >= 500 {
		simTame(t, &total)
	}
}

func simFailed(t *testing.T, seed uint64, err error) {
	var f *sim.Failure
	if errors.As(err, &f) {
		for _, c := range f.Last {
			t.Log(c)
		}
	}
	t.Errorf("seed %d: %v", seed, err)
	t.Logf("replay: go test -run '^TestSim$' -sim.seeds 1 -sim.steps %d -seed %d .", *simSteps, seed)
}

// simTame fails if something hardly happened.
func simTame(t *testing.T, r *sim.Report) {
	for name, n := range map[string]int{
		"deaths": r.Deaths, "moves": r.Moves, "repeated moves": r.Repeated, "parked messages": r.Parked, "deadlines": r.Deadlines,
		"expired messages": r.Expired, "delays": r.Delayed, "stale answers": r.Stale, "takes": r.Taken, "kills": r.Kills,
		"power cuts": r.PowerCuts, "commands lost with them": r.LostCommands, "unknown outcomes": r.Unknown,
		"snapshots": r.Snapshots, "restores": r.Restores, "vanished consumers": r.Vanished, "deleted queues": r.Deleted,
		"purges": r.Purged, "amendments": r.Amended, "repeated publishes": r.Repetitions, "late ticks": r.LateTicks,
		"activations": r.Activated,
	} {
		if n < r.Runs/4 {
			t.Errorf("the simulation is too tame: only %d %s in %d runs", n, name, r.Runs)
		}
	}
}

// TestSimRepeats: equal seeds give equal runs, down to the bytes of the log and of the last snapshot.
func TestSimRepeats(t *testing.T) {
	one, other := sim.NewRunner(&simSystem{}), sim.NewRunner(&simSystem{})
	seen := map[uint64]bool{}
	for seed := range uint64(20) {
		a, err := one.Run(seed, 300)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = other.Run(seed+100, 50); err != nil { // what a runner did before must not count
			t.Fatal(err)
		}
		b, err := other.Run(seed, 300)
		if err != nil {
			t.Fatal(err)
		}
		if a != b {
			t.Errorf("seed %d: %+v, and again %+v", seed, a, b)
		}
		if seen[a.Trace] {
			t.Errorf("seed %d ran like another", seed)
		}
		seen[a.Trace] = true
	}
}
