package bourse_test

// Goal: the life cycle of brokers, subscriptions and workers has no moment in which a caller waits for ever, an
// outcome is left to chance, or a message is counted wrong. Method: each test is one that failed once. Where it
// takes two goroutines to meet, the meeting is repeated in a synctest bubble, in which a lost wake-up is a
// deadlock that the bubble reports, or is forced by a file system whose syncs are held.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Close of a subscription waited for a detach that the broker's Close had done in its place.
func TestSubscriptionCloseAfterBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		require.NoError(t, err)
		worked := make(chan error, 1)
		go func() { worked <- b.Work(ctx, "q", acks, bourse.WorkOptions{}) }()
		synctest.Wait()
		require.NoError(t, b.Close())
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		<-worked
	})
}

func acks(context.Context, *bourse.Delivery) error { return nil }

var _ = []any{errors.Is, fmt.Sprint, new(sync.Mutex), synctest.Wait, time.Second, context.Background, storage.OS, require.Equal}
