package bourse

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: whoever waits for a confirm learns of its outcome, whenever he comes. Method: several come while it is told, and each must
// find its channel closed and the outcome behind it.
func TestConfirmFindsWhoWaits(t *testing.T) {
	refused := errors.New("refused")
	for range 200 {
		c := newConfirm()
		var all sync.WaitGroup
		start := make(chan struct{})
		for range 3 {
			all.Go(func() {
				<-start
				<-c.Done()
				require.ErrorIs(t, c.Err(), refused)
				require.ErrorIs(t, c.Wait(context.Background()), refused)
			})
		}
		require.NoError(t, c.Err())
		all.Go(func() {
			<-start
			c.published(nil, refused)
		})
		close(start)
		all.Wait()
	}
}

// A confirm that waits has one channel, the same for all.
func TestConfirmHasOneChannel(t *testing.T) {
	c := newConfirm()
	first := c.Done()
	require.Equal(t, first, c.Done())
	select {
	case <-first:
		t.Fatal("done before its outcome")
	default:
	}
	c.published(nil, nil)
	<-first
	<-c.Done()
	require.NoError(t, c.Wait(context.Background()))
}

// Confirms of one block are apart, and so are deliveries; one with a large body has no neighbours.
func TestConfirmBlocks(t *testing.T) {
	var in space
	confirms, deliveries := make(map[*Confirm]bool), make(map[*Delivery]bool)
	for i := range 5 * blockConfirms {
		c, d := newConfirm(), in.delivery(slabMost)
		require.False(t, c.done.Load())
		require.Nil(t, c.wait.Load())
		require.Zero(t, d.Tag)
		require.Nil(t, d.loan.sub)
		c.published(nil, errors.New("its own"))
		d.Tag, d.loan.sub = uint64(i), new(Subscription)
		confirms[c], deliveries[d] = true, true
	}
	require.Len(t, confirms, 5*blockConfirms)
	require.Len(t, deliveries, 5*blockConfirms)
	var large *Delivery // where it escapes to
	alone := testing.AllocsPerRun(100, func() { large = in.delivery(slabMost + 1) })
	require.Zero(t, large.Tag)
	require.InDelta(t, 1, alone, 0.1)
}
