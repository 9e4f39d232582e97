package bourse

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/storage"
)

// Goal: a broker works with a log for each queue as it does with one for all. Method: the local engine, which can hold many
// shards, dressed as one that gives each queue its own.

type perQueue struct{ Engine }

func (perQueue) Placement() Placement { return ShardPerQueue }

func TestShardPerQueue(t *testing.T) {
	ctx := context.Background()
	fs := &storage.MemFS{}
	open := func() *Broker {
		e, err := NewLocalEngine("data", LocalOptions{FS: fs, SegmentBytes: 64 << 10, CheckpointBytes: 64 << 10})
		require.NoError(t, err)
		b, err := NewBroker(ctx, Options{Engine: perQueue{e}})
		require.NoError(t, err)
		return b
	}
	b := open()
	require.NoError(t, b.Declare(ctx,
		Exchange{Name: "all", Kind: Fanout}, Exchange{Name: "dead", Kind: Fanout},
		Queue{Name: "a", DeadLetter: DeadLetter{Exchange: "dead"}}, Queue{Name: "b"}, Queue{Name: "graves"},
		Binding{Exchange: "all", Queue: "a"}, Binding{Exchange: "all", Queue: "b"}, Binding{Exchange: "dead", Queue: "graves"}))
	require.NoError(t, b.Check(Exchange{Name: "all", Kind: Fanout}, Queue{Name: "b"}, Binding{Exchange: "all", Queue: "b"}))
	require.ErrorIs(t, b.Check(Queue{Name: "c"}), ErrNotFound)
	require.ErrorIs(t, b.Check(Exchange{Name: "c"}), ErrNoExchange)
	require.ErrorIs(t, b.Check(Queue{Name: "b", Priorities: 2}), ErrPrecondition)
	require.ErrorIs(t, b.Check(Binding{Exchange: "all", Queue: "graves"}), ErrNotFound)
	const n = 200
	for i := range n {
		require.NoError(t, b.Publish(ctx, Message{Exchange: "all", Body: fmt.Appendf(nil, "m%d", i)}))
	}
	for _, q := range []string{"a", "b"} {
		s, err := b.Subscribe(ctx, q, SubscribeOptions{Prefetch: 7})
		require.NoError(t, err)
		for i := range n / 2 {
			d, err := s.Next(ctx)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("m%d", i), string(d.Body))
			if q == "a" && i == 0 {
				require.NoError(t, d.Reject("bad"))
			} else {
				require.NoError(t, d.AckSync(ctx))
			}
		}
		require.NoError(t, s.Close())
	}
	graves, err := b.Subscribe(ctx, "graves", SubscribeOptions{})
	require.NoError(t, err)
	d, err := graves.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, "m0", string(d.Body))
	require.Equal(t, "a", d.Deaths[0].Queue)
	require.NoError(t, d.AckSync(ctx))
	require.NoError(t, b.Delete(ctx, Queue{Name: "b"}))
	require.ErrorIs(t, b.DeleteIf(ctx, DeleteOnly{IfEmpty: true}, Queue{Name: "a"}), ErrInvalid)
	require.NoError(t, b.Close())

	b = open()
	_, ok := b.QueueStats("b")
	require.False(t, ok)
	s, err := b.Subscribe(ctx, "a", SubscribeOptions{})
	require.NoError(t, err)
	for i := n / 2; i < n; i++ {
		d, err := s.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("m%d", i), string(d.Body))
		require.Equal(t, 0, d.Failures)
		require.NoError(t, d.Ack())
	}
	require.NoError(t, b.Close())
}

// Where queues have logs of their own, a dead message is brought back by a copy and the end of the old one.
func TestShardPerQueueReplay(t *testing.T) {
	ctx := context.Background()
	e, err := NewLocalEngine("data", LocalOptions{FS: &storage.MemFS{}})
	require.NoError(t, err)
	b, err := NewBroker(ctx, Options{Engine: perQueue{e}})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, Queue{Name: "q"}, Queue{Name: "gone"}))
	parked, err := b.Subscribe(ctx, ParkingQueue, SubscribeOptions{})
	require.NoError(t, err)
	for _, q := range []string{"q", "gone", "q"} {
		require.NoError(t, b.Publish(ctx, Message{RoutingKey: q, Body: []byte(q)}))
		d, err := b.Get(ctx, q)
		require.NoError(t, err)
		require.NoError(t, d.Reject("no"))
		_, err = parked.Next(ctx)
		require.NoError(t, err)
	}
	require.NoError(t, parked.Close())
	require.NoError(t, b.Delete(ctx, Queue{Name: "gone"}))
	done, err := b.Replay(ctx, ParkingQueue, ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, []int{2, 0, 1}, []int{done.Moved, done.Skipped, done.Failed})
	require.ErrorIs(t, done.Failures[0].Err, ErrQueueGone)
	for queue, want := range map[string]int{"q": 2, ParkingQueue: 1} {
		n := 0
		for m, err := range b.Browse(ctx, queue, BrowseOptions{}) {
			require.NoError(t, err)
			require.Equal(t, []any{StateReady, 0, ReasonRejected}, []any{m.State, m.Failures, m.Deaths[0].Reason})
			n++
		}
		require.Equal(t, want, n, queue)
		s, _ := b.QueueStats(queue)
		require.Equal(t, want, s.Ready)
	}
	require.NoError(t, b.Close())
}

// elsewhere is an engine whose shards from refused on another node leads.
type elsewhere struct {
	perQueue
	refused uint64
}

func (e elsewhere) Open(ctx context.Context, shard uint64, m Machine) (Log, error) {
	log, err := e.perQueue.Open(ctx, shard, m)
	if shard >= e.refused {
		log = notLed{log}
	}
	return log, err
}

type notLed struct{ Log }

func (notLed) Propose(Proposal) error { return ErrNotLeader }

// A message that one of its queues took and another did not is not one of which it is known that it is not stored.
func TestPublishToSomeOfItsQueues(t *testing.T) {
	ctx := context.Background()
	e, err := NewLocalEngine("", LocalOptions{})
	require.NoError(t, err)
	b, err := NewBroker(ctx, Options{Engine: elsewhere{perQueue{e}, shardOf(parkingID + 2)}})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, Exchange{Name: "all", Kind: Fanout}, Queue{Name: "a"}, Queue{Name: "b"},
		Binding{Exchange: "all", Queue: "a"}, Binding{Exchange: "all", Queue: "b"}))
	err = b.Publish(ctx, Message{Exchange: "all"})
	require.ErrorIs(t, err, ErrUnknownOutcome)
	require.ErrorIs(t, err, ErrNotLeader)
	require.ErrorContains(t, err, `stored in 1 of 2 queues: queue "b"`)
	err = b.Publish(ctx, Message{RoutingKey: "b"})
	require.ErrorIs(t, err, ErrNotLeader)
	require.NotErrorIs(t, err, ErrUnknownOutcome)
	q, _ := b.QueueStats("a")
	require.Equal(t, 1, q.Ready)
	require.NoError(t, b.Close())
}

func TestCloneHeaders(t *testing.T) {
	h := map[string]any{"a": "text", "b": []byte("bytes"), "c": 1}
	c := cloneHeaders(h)
	require.Equal(t, h, c)
	h["a"], h["b"].([]byte)[0] = "other", 'B'
	require.Equal(t, map[string]any{"a": "text", "b": []byte("bytes"), "c": 1}, c)
	require.Nil(t, cloneHeaders(nil))
}
