package bourse

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: what scripts (testdata/machine/single_active.txt) do not show of the active consumer: snapshots that no machine wrote, and the
// ends of the numbers. Method: a machine with one queue.

// succession is a machine whose queue is at its second active consumer, with one on loan, one ready, and two that stand by.
func succession(t testing.TB) *single {
	s := newSingle(t, Queue{SingleActiveConsumer: true, AckDeadline: time.Minute})
	s.attach(1, 1)
	s.attach(2, 1)
	s.attach(3, 1)
	s.attach(4, 0)
	s.enqueue(0)
	s.enqueue(0)
	s.apply(detach{queue: s.q.def.id, consumer: s.consumer(1)}.appendTo(nil, s.now))
	require.Equal(t, []effect{{kind: effectActive, queue: 2, consumer: s.consumer(2), seq: 2<<32 | 2}}, s.effects(effectActive))
	s.m.check()
	return s
}

func TestActivationOfNoMachine(t *testing.T) {
	for name, spoil := range map[string]func(q *queue){
		"nobody active":              func(q *queue) { q.activations.active = nil },
		"one who takes is active":    func(q *queue) { q.activations.active = q.roster.all[2] },
		"active without activations": func(q *queue) { q.activations.count = 0 },
		"another has the loan":       func(q *queue) { q.activations.active = q.roster.all[1] },
	} {
		t.Run(name, func(t *testing.T) {
			s := succession(t)
			spoil(s.q)
			_, err := decodeMachine(s.m.appendTo(nil), func(Ref) {})
			require.Error(t, err)
		})
	}
	idle := newSingle(t, Queue{SingleActiveConsumer: true})
	idle.attach(1, 1)
	idle.attach(2, 0)
	idle.q.activations.active = idle.q.roster.all[1]
	_, err := decodeMachine(idle.m.appendTo(nil), func(Ref) {})
	require.Error(t, err, "one who takes is active, and nobody has a loan")
	good := succession(t).m.appendTo(nil)
	for n := range good {
		_, err := decodeMachine(good[:n], func(Ref) {})
		require.Error(t, err, "cut after %d of %d bytes", n, len(good))
	}
}

// When the activations are used up nobody is active any more: an epoch must not come again.
func TestActivationsAreUsedUp(t *testing.T) {
	s := succession(t)
	s.q.activations.count = math.MaxUint32 - 1
	s.apply(detach{queue: s.q.def.id, consumer: s.consumer(2)}.appendTo(nil, s.now))
	require.EqualValues(t, uint64(2<<32|math.MaxUint32), s.effects(effectActive)[0].seq)
	require.Len(t, s.effects(effectDeliver), 1)
	s.attach(5, 1)
	s.apply(detach{queue: s.q.def.id, consumer: s.consumer(3)}.appendTo(nil, s.now))
	require.Empty(t, s.effects(effectActive))
	require.Empty(t, s.effects(effectDeliver))
	s.m.check()
	m, err := decodeMachine(s.m.appendTo(nil), func(Ref) {})
	require.NoError(t, err)
	m.check()
}

// Ids of queues that do not fit into epochs are not given to queues that have them.
func TestActivationsNeedAnID(t *testing.T) {
	top := newTopology(topologyLimits{})
	top.nextID = lastEpochs
	last, _, err := top.declare([]Declaration{Queue{Name: "last", SingleActiveConsumer: true}})
	require.NoError(t, err)
	_, _, err = last.declare([]Declaration{Queue{Name: "plain"}})
	require.NoError(t, err)
	_, _, err = last.declare([]Declaration{Queue{Name: "behind", SingleActiveConsumer: true}})
	require.ErrorIs(t, err, ErrTooMany)
	require.ErrorContains(t, err, `queue "behind"`)
}
