package bourse

// Goal: a change of a queue reaches whoever must know of it. Method: each field of Queue is tried; the placement with a
// shard for each queue is cut off between the catalogue and the shard, and opened again.

import (
	"context"
	"math"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/storage"
)

// fixedFields are the fields of Queue that Update does not change.
var fixedFields = []string{"Name", "Transient", "AutoDelete", "Exclusive", "SingleActiveConsumer"}

func TestEveryFieldIsMutableOrFixed(t *testing.T) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Queue]()) {
		var to, q Queue
		set(t, reflect.ValueOf(&to).Elem().FieldByIndex(f.Index))
		for _, change := range mutable {
			change(&q, &to)
		}
		if reflect.DeepEqual(q, to) == slices.Contains(fixedFields, f.Name) {
			t.Errorf("Queue.%s must be either in mutable or in fixedFields", f.Name)
		}
	}
}

// set gives v, or the parts of it, a value other than zero.
func set(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(7)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Struct:
		for i := range v.NumField() {
			set(t, v.Field(i))
		}
	default:
		t.Fatalf("no value of kind %v", v.Kind())
	}
}

// deaf is an engine whose logs of queues are led elsewhere, or fail, as long as refuse is set.
type deaf struct {
	perQueue
	refuse *atomic.Value // of deafness
}

type deafness struct{ error }

func (e deaf) Open(ctx context.Context, shard uint64, m Machine) (Log, error) {
	log, err := e.perQueue.Open(ctx, shard, m)
	if shard > shardOf(parkingID) {
		log = deafLog{log, e.refuse}
	}
	return log, err
}

type deafLog struct {
	Log
	refuse *atomic.Value
}

func (l deafLog) Propose(p Proposal) error {
	if r, _ := l.refuse.Load().(deafness); r.error != nil { // also from a goroutine of the broker
		return r.error
	}
	return l.Log.Propose(p)
}

func TestUpdateShardPerQueue(t *testing.T) {
	ctx := context.Background()
	fs := &storage.MemFS{}
	var refuse atomic.Value
	open := func() *Broker {
		e, err := NewLocalEngine("data", LocalOptions{FS: fs, SegmentBytes: 64 << 10, CheckpointBytes: 64 << 10})
		require.NoError(t, err)
		b, err := NewBroker(ctx, Options{Engine: deaf{perQueue{e}, &refuse}})
		require.NoError(t, err)
		return b
	}
	inForce := func(b *Broker) Queue {
		def, ok := b.topology.Load().queue("q")
		require.True(t, ok)
		s := b.placement.of(def.id)
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.m.queues[def.id].def.Queue
	}
	follows := func(b *Broker, want Queue) {
		t.Helper()
		require.Eventually(t, func() bool { return inForce(b).equal(want.withDefaults()) }, 10*time.Second, time.Millisecond)
	}
	b := open()
	q := Queue{Name: "q"}
	require.NoError(t, b.Declare(ctx, q))
	require.NoError(t, b.Publish(ctx, Message{RoutingKey: "q", Priority: 2}))
	level := func(b *Broker) (l uint8) {
		def, _ := b.topology.Load().queue("q")
		s := b.placement.of(def.id)
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.m.queues[def.id].ready.first().level
	}

	q.Priorities = 3
	require.NoError(t, b.Update(ctx, q))
	require.True(t, inForce(b).equal(q.withDefaults()), "Update waits for a queue that is led here")

	// Another node leads the queue, and hears of the change when it learns of it itself. This one looks when it leads.
	declared := q
	refuse.Store(deafness{ErrNotLeader})
	q.AckDeadline = time.Minute
	require.NoError(t, b.Update(ctx, q))
	require.NoError(t, b.Check(q), "in the catalogue it is")
	require.True(t, inForce(b).equal(declared.withDefaults()))
	refuse.Store(deafness{})
	led, _ := b.topology.Load().queue("q")
	b.placement.of(led.id).Lead(false)
	b.placement.of(led.id).Lead(true)
	follows(b, q)

	// The queue could not be reached, and then the process died.
	refuse.Store(deafness{ErrStorage})
	q.MaxRetries = 5
	require.ErrorIs(t, b.Update(ctx, q), ErrStorage)
	require.NoError(t, b.Check(q))
	require.Equal(t, 20, inForce(b).MaxRetries)
	image := fs.Crash(storage.CrashModes[0], func(int) int { return 0 })
	refuse.Store(deafness{})
	require.NoError(t, b.Close())
	fs = image
	b = open()
	follows(b, q)
	require.NoError(t, b.Check(q))
	require.Zero(t, level(b), "it came when the queue had one level, and the log is replayed from there")

	// A replica whose catalogue lags has nothing to say.
	def, _ := b.topology.Load().queue("q")
	s := b.placement.of(def.id)
	a, err := s.call(ctx, durably, func(dst []byte, at instant) []byte {
		return appendRedefine(dst, at, queueDef{def.id, declared}, 1)
	})
	require.NoError(t, err)
	require.EqualValues(t, answerStale, a.Code)
	require.True(t, inForce(b).equal(q.withDefaults()))

	// Each start replays the log of the shard from the queue as it was declared.
	require.EqualValues(t, 3, b.topology.Load().revision(def.id))
	require.True(t, b.topology.Load().declared(def).equal(Queue{Name: "q"}.withDefaults()))
	require.NoError(t, b.Close())
	b = open()
	follows(b, q)
	require.Equal(t, 1, mustStats(t, b, "q").Ready)
	require.NoError(t, b.Delete(ctx, q))
	require.NoError(t, b.Declare(ctx, declared))
	follows(b, declared)
	require.Zero(t, mustStats(t, b, "q").Ready)
	require.NoError(t, b.Close())
}

func mustStats(t *testing.T, b *Broker, queue string) QueueStats {
	s, ok := b.QueueStats(queue)
	require.True(t, ok)
	return s
}

// A change goes through the snapshot of a topology and of a shard, and what could not have been written does not decode.
func TestUpdateInSnapshots(t *testing.T) {
	q := Queue{Name: "q"}
	for _, role := range []role{roleAll, roleQueue} {
		top := declared(t, q)
		def, _ := top.queue("q")
		if role == roleQueue {
			top = topologyOf(def)
		}
		m := newMachine(role, top)
		q.Priorities = 4
		cmd := appendUpdate(nil, 1, 0, q)
		if role == roleQueue {
			cmd = appendRedefine(nil, 1, queueDef{def.id, q}, 9)
		}
		res, _ := m.apply(1, cmd, nil)
		require.EqualValues(t, answerOK, res.answer.Code)
		m.check()
		b := m.appendTo(nil)
		again, err := decodeMachine(b, func(Ref) {})
		require.NoError(t, err)
		again.check()
		require.Equal(t, b, again.appendTo(nil))
		require.Equal(t, 4, again.queues[def.id].def.Priorities)
		require.Equal(t, m.revision, again.revision)
		require.Equal(t, m.topology.revision(def.id), again.topology.revision(def.id))
		require.True(t, m.updatedHere(m.queues[def.id]))
		require.True(t, again.updatedHere(again.queues[def.id]))
	}
	top := declared(t, Queue{Name: "q"}, Queue{Name: "r"})
	for range 3 {
		q.Priorities++
		next, def, err := top.update(q)
		require.NoError(t, err)
		require.NotSame(t, top, next)
		top = next
		require.Equal(t, q.Priorities, def.Priorities)
	}
	same, _, err := top.update(q)
	require.NoError(t, err)
	require.Same(t, top, same)
	require.EqualValues(t, 3, top.revision(2))
	checkTopology(t, top)
	top, _, err = top.remove([]Declaration{q})
	require.NoError(t, err)
	require.Zero(t, top.updated.Len())
	_, _, err = top.update(q)
	require.ErrorIs(t, err, ErrNotFound)
	_, _, err = top.update(Queue{Name: "r", MaxRetries: math.MinInt32})
	require.ErrorIs(t, err, ErrInvalid)
}
