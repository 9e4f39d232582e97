package bourse

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/storage"
)

// Limits where each queue has a log of its own: what placement_test.go is for the rest.
func TestShardPerQueueLimits(t *testing.T) {
	ctx := context.Background()
	clock := &standingClock{make(chan func(), 10)}
	e, err := NewLocalEngine("data", LocalOptions{FS: new(storage.MemFS)})
	require.NoError(t, err)
	b, err := NewBroker(ctx, Options{Engine: perQueue{e}, Clock: clock})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	require.NoError(t, b.Declare(ctx,
		Exchange{Name: "all", Kind: Fanout}, Exchange{Name: "dead", Kind: Fanout}, Queue{Name: "free"},
		Queue{Name: "full", MaxMessages: 1}, Queue{Name: "wait", MaxMessages: 1, Overflow: Block},
		Queue{Name: "q", DeadLetter: DeadLetter{Exchange: "dead"}},
		Binding{Exchange: "all", Queue: "free"}, Binding{Exchange: "all", Queue: "full"}, Binding{Exchange: "all", Queue: "wait"},
		Binding{Exchange: "dead", Queue: "free"}, Binding{Exchange: "dead", Queue: "full"}))
	ready := func(queue string) int {
		s, ok := b.QueueStats(queue)
		require.True(t, ok)
		return s.Ready
	}
	take := func(queue string) *Delivery {
		d, err := b.Get(ctx, queue)
		require.NoError(t, err)
		return d
	}

	// A publish is in those that have room, waits for one, and says who refused it.
	require.NoError(t, b.Publish(ctx, Message{Exchange: "all"}))
	confirm := b.PublishAsync(ctx, Message{Exchange: "all"})
	for s, _ := b.QueueStats("wait"); s.Waiting == 0; s, _ = b.QueueStats("wait") {
	}
	require.NoError(t, take("wait").Ack())
	err = confirm.Wait(ctx)
	var rejected *RejectedError
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, &RejectedError{Refusals: []Refusal{{"full", ErrQueueFull}}, Stored: 2}, rejected)
	require.Equal(t, []int{2, 1, 1}, []int{ready("free"), ready("full"), ready("wait")})

	// A dead letter stays until all have it, and comes to none of them twice.
	require.NoError(t, b.Publish(ctx, Message{RoutingKey: "q"}))
	require.NoError(t, take("q").Reject("no"))
	for range 3 {
		again := clock.wait()
		require.Equal(t, 3, ready("free"))
		s, _ := b.QueueStats("q")
		require.Equal(t, 1, s.Dying)
		again()
	}
	again := clock.wait()
	require.NoError(t, take("full").Ack())
	again()
	for s, _ := b.QueueStats("q"); s.Dying > 0; s, _ = b.QueueStats("q") {
	}
	require.Equal(t, []int{3, 1}, []int{ready("free"), ready("full")})

	// Close ends a wait.
	confirm = b.PublishAsync(ctx, Message{RoutingKey: "wait"})
	for s, _ := b.QueueStats("wait"); s.Waiting == 0; s, _ = b.QueueStats("wait") {
	}
	require.NoError(t, b.Close())
	require.ErrorIs(t, confirm.Wait(ctx), ErrClosed)
}

// standingClock does not move. What the mover waits for is let go by hand.
type standingClock struct{ timers chan func() }

func (c *standingClock) Now() time.Time { return time.Unix(1_700_000_000, 0) }

func (c *standingClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	if d <= retryMoveMost {
		c.timers <- f
	}
	return func() bool { return true }
}

// wait returns when the mover has given up for now, with what makes it try again.
func (c *standingClock) wait() func() { return <-c.timers }
