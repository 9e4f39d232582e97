package bourse_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// Goal: who of several consumers is served, by SEMANTICS 7, as a program sees it. Method: a broker in memory, with bodies
// that say the order of arrival. testdata/machine/dispatch-*.txt has the same rules command by command.

// takeBodies takes n deliveries of s and returns what they hold.
func takeBodies(t testing.TB, s *bourse.Subscription, n int) (all []string) {
	for range n {
		all = append(all, string(next(t, s).Body))
	}
	return all
}

// listen subscribes with opts until the end of the test.
func listen(t testing.TB, b *bourse.Broker, queue string, opts bourse.SubscribeOptions) *bourse.Subscription {
	t.Helper()
	s, err := b.Subscribe(ctx, queue, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestSemanticsConsumerPriority(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	low := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 2, Priority: -bourse.MaxConsumerPriority})
	high := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 2, Priority: bourse.MaxConsumerPriority})
	none := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 2})
	send(t, b, "q", "1", "2", "3", "4", "5", "6", "7")
	first := next(t, high)
	require.Equal(t, "1", string(first.Body), "the highest first, though it came second")
	require.Equal(t, []string{"2"}, takeBodies(t, high, 1))
	require.Equal(t, []string{"3", "4"}, takeBodies(t, none, 2))
	require.Equal(t, []string{"5", "6"}, takeBodies(t, low, 2))
	require.NoError(t, first.Ack())
	require.Equal(t, []string{"7"}, takeBodies(t, high, 1))
}

// Work hands its priority on, and gives it up only when it ends.
func TestSemanticsWorkPriority(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	other := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 1})
	stop, end := context.WithCancel(ctx)
	defer end()
	handled, worked := make(chan string, 3), make(chan error, 1)
	go func() { // ends with stop
		worked <- b.Work(stop, "q", func(_ context.Context, d *bourse.Delivery) error {
			handled <- string(d.Body)
			return nil
		}, bourse.WorkOptions{Priority: 1})
	}()
	for stats(t, b, "q").Consumers < 2 {
		barrier(t, b, nil)
	}
	for i := range 3 { // its handler has always room: one at a time
		send(t, b, "q", fmt.Sprint(i))
		bounded, cancel := context.WithTimeout(ctx, testTimeout)
		select {
		case body := <-handled:
			require.Equal(t, fmt.Sprint(i), body)
		case <-bounded.Done():
			require.Fail(t, "the other was served")
		}
		cancel()
		barrier(t, b, nil)
	}
	end()
	require.NoError(t, <-worked)
	send(t, b, "q", "last")
	require.Equal(t, []string{"last"}, takeBodies(t, other, 1))
}
