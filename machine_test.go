package bourse

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/invariant"
)

// Goal: what scripts cannot say in a few lines and random walks do not reach: limits of one step, of consumers,
// and what a broken log does. Method: a machine driven by a bench of one queue.

// single is a machine with a queue "q" and a session, at a fixed time.
type single struct {
	t   testing.TB
	m   *machine
	q   *queue
	now instant
	ref Ref
	out []effect
}

func newSingle(t testing.TB, def Queue) *single {
	s := &single{t: t, m: newMachine(roleAll, newTopology(topologyLimits{})), now: instant(time.Hour)}
	def.Name = "q"
	s.apply(appendOpen(nil, s.now, false))
	res := s.apply(appendDeclare(nil, s.now, 0, topologyLimits{}, []Declaration{def}))
	require.Equal(t, answerOK, res.answer.Code)
	s.q = s.m.order[1]
	return s
}

func (s *single) apply(cmd []byte) applied {
	var res applied
	s.ref++
	res, s.out = s.m.apply(s.ref, cmd, s.out[:0])
	return res
}

func (s *single) consumer(n int) consumerID { return consumerID(s.m.session)<<32 | consumerID(n) }

func (s *single) attach(n, prefetch int) applied {
	return s.apply(attach{queue: s.q.def.id, consumer: s.consumer(n), prefetch: int32(prefetch)}.appendTo(nil, s.now))
}

func (s *single) enqueue(priority uint8) applied {
	cmd := appendTargets(appendHeader(nil, cmdEnqueue, s.now), []queueID{s.q.def.id})
	return s.apply(appendMessage(cmd, &Message{Priority: priority}, messageID{}, nil))
}

func (s *single) effects(kind effectKind) (found []effect) {
	for _, e := range s.out {
		if e.kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// One tick does a bounded number of things, and asks for another at once.
func TestMachineStepLimit(t *testing.T) {
	if invariant.Costly {
		t.Skip("thousands of messages, walked after each of thousands of commands")
	}
	const n = stepLimit + 100
	cases := []struct {
		name  string
		setup func(s *single)
	}{
		{"deadlines", func(s *single) {}},
		{"delays", func(s *single) {
			for s.q.ledger.n > 0 {
				ln := &s.q.ledger.slots[s.q.ledger.oldest]
				c := settle{s.q.def.id, ln.holder.id, ln.tag, s.q.ledger.oldest, verdictRelease, time.Minute, "", idKey{}}
				require.Equal(s.t, answerOK, s.apply(c.appendTo(nil, s.now)).answer.Code)
			}
			s.apply(detach{s.q.def.id, s.consumer(1), false}.appendTo(nil, s.now))
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newSingle(t, Queue{AckDeadline: time.Minute, MaxRetries: NoRetry})
			s.attach(1, n)
			for range n {
				s.enqueue(0)
			}
			require.Equal(t, n, s.q.ledger.n)
			c.setup(s)
			waiting := func() int { return s.q.ledger.n + s.q.delayedLen() }
			s.now += instant(time.Minute)
			s.apply(appendTick(nil, s.now))
			require.Equal(t, n-stepLimit, waiting())
			wakes := s.effects(effectWake)
			require.Len(t, wakes, 1, "the rest is due and nobody is told")
			require.LessOrEqual(t, wakes[0].at, s.now)
			s.apply(appendTick(nil, s.now))
			require.Zero(t, waiting())
			s.m.check()
		})
	}
}

func TestMachineConsumerLimit(t *testing.T) {
	s := newSingle(t, Queue{})
	for i := range maxConsumers {
		require.Equal(t, answerOK, s.attach(1+i, 1).answer.Code)
	}
	require.Equal(t, answerTooMany, s.attach(1+maxConsumers, 1).answer.Code)
	require.Equal(t, answerOK, s.attach(1, 7).answer.Code, "another prefetch is no other consumer")
	s.apply(detach{s.q.def.id, s.consumer(1), false}.appendTo(nil, s.now))
	require.Equal(t, answerOK, s.attach(1+maxConsumers, 1).answer.Code)
	s.m.check()
}

// What does not decode stops the process: guessing would let replicas differ.
func TestMachineRefusesWhatDoesNotDecode(t *testing.T) {
	s := newSingle(t, Queue{})
	good := [][]byte{
		attach{s.q.def.id, s.consumer(1), 1, 2}.appendTo(nil, s.now),
		detach{s.q.def.id, s.consumer(1), true}.appendTo(nil, s.now),
		settle{queue: s.q.def.id, verdict: verdictNack, note: "note"}.appendTo(nil, s.now),
		ackUpTo{s.q.def.id, s.consumer(1), 3}.appendTo(nil, s.now),
		take{s.q.def.id, s.consumer(1)}.appendTo(nil, s.now),
		appendOpen(nil, s.now, true),
		appendDeclare(nil, s.now, 0, topologyLimits{}, []Declaration{Queue{Name: "other"}}),
		appendRemove(nil, s.now, 0, onlyEmpty, []Declaration{Queue{Name: "other"}}),
		appendForwarded(nil, s.now, s.q.def.id, 300),
		settle{queue: s.q.def.id, verdict: verdictDone, key: keyOf(nil)}.appendTo(nil, s.now),
		appendPurge(nil, s.now, s.q.def.id),
		appendPause(nil, s.now, s.q.def.id, false),
		appendTick(nil, s.now),
		fire{schedule: 300, next: 5}.appendTo(nil, s.now),
	}
	for _, cmd := range good {
		require.Panics(t, func() { s.apply(cmd[:len(cmd)-1]) }, "kind %d cut short", cmd[0])
		require.Panics(t, func() { s.apply(append(cmd[:len(cmd):len(cmd)], 0)) }, "kind %d with more behind it", cmd[0])
		require.NotPanics(t, func() { s.apply(cmd) })
	}
	for _, cmd := range [][]byte{
		nil,
		appendHeader(nil, 0, s.now),
		appendHeader(nil, 200, s.now),
		appendHeader(nil, cmdEnqueue, s.now),
		attach{s.q.def.id, s.consumer(1), MaxPrefetch + 1, 0}.appendTo(nil, s.now),
		attach{s.q.def.id, s.consumer(1), 1, MaxConsumerPriority + 1}.appendTo(nil, s.now),
		attach{s.q.def.id, s.consumer(1), 1, -MaxConsumerPriority - 1}.appendTo(nil, s.now),
		settle{queue: s.q.def.id, slot: noSlot}.appendTo(nil, s.now),
		settle{queue: s.q.def.id, verdict: verdictDone + 1}.appendTo(nil, s.now),
		fire{schedule: 1, due: 5, next: 5}.appendTo(nil, s.now),
		fire{schedule: 1, due: 5, outcome: outcomeUnroutable + 1, fire: 5, next: 6}.appendTo(nil, s.now),
		fire{schedule: 1, due: 5, outcome: outcomeUnroutable, fire: 4, next: 6}.appendTo(nil, s.now),
		fire{schedule: 1, due: 5, outcome: outcomeUnroutable, fire: 6, next: 6}.appendTo(nil, s.now),
		fire{schedule: 1, due: 5, outcome: outcomeUnroutable, next: 6}.appendTo(nil, s.now),
		fire{schedule: 1, due: 5, fire: 5, next: 6}.appendTo(nil, s.now),
		fire{schedule: 1, outcome: outcomeUnroutable, fire: 5, next: 6}.appendTo(nil, s.now),
		settle{queue: s.q.def.id, verdict: verdictNack, pause: MaxDelay + 1}.appendTo(nil, s.now),
	} {
		require.Panics(t, func() { s.apply(cmd) }, "%x", cmd)
	}
	s.m.check()
}

// A loan that is extended ends at the latest after the most that a loan may last.
func TestMachineExtendIsCapped(t *testing.T) {
	s := newSingle(t, Queue{})
	s.attach(1, 1)
	s.enqueue(0)
	e := s.effects(effectDeliver)[0]
	s.apply(settle{e.queue, e.consumer, e.tag, e.slot, verdictExtend, MaxDelay, "", idKey{}}.appendTo(nil, s.now))
	require.Equal(t, s.now+instant(MaxAckDeadline), s.q.due())
}

// A full queue name space and full limits travel with the command, not with the replica.
func TestMachineDeclareLimits(t *testing.T) {
	s := newSingle(t, Queue{})
	res := s.apply(appendDeclare(nil, s.now, 0, topologyLimits{queues: 1}, []Declaration{Queue{Name: "second"}}))
	require.Equal(t, answerError, res.answer.Code)
	require.ErrorIs(t, decodeError(res.answer.Data), ErrTooMany)
	res = s.apply(appendDeclare(nil, s.now, 0, topologyLimits{queues: 2}, []Declaration{Queue{Name: "second"}}))
	require.Equal(t, answerOK, res.answer.Code)
	s.m.check()
}

// The parking queue is the broker's own: no command removes it.
func TestMachineKeepsTheParkingQueue(t *testing.T) {
	s := newSingle(t, Queue{})
	before := s.m.appendTo(nil)
	for _, d := range []Declaration{Queue{Name: ParkingQueue}, Exchange{}, Binding{Exchange: "e"}} {
		res := s.apply(appendRemove(nil, s.now, 0, 0, []Declaration{Queue{Name: "q"}, d}))
		require.Equal(t, answerError, res.answer.Code)
		require.ErrorIs(t, decodeError(res.answer.Data), ErrInvalid)
	}
	require.Equal(t, before, s.m.appendTo(nil), "a refused command changes nothing")
}
