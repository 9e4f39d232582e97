package bourse_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Goal: a paused queue hands out nothing, by whatever way a message may go, until it is resumed; and that is durable. Method: each
// thing that would deliver is done on a paused queue. testdata/machine/pause.txt has the rules command by command.

func TestPauseStopsDeliveries(t *testing.T) {
	clock := newHandClock()
	for name, c := range map[string]struct {
		act   func(t *testing.T, b *bourse.Broker)
		ready int
	}{
		"publish":   {func(t *testing.T, b *bourse.Broker) { send(t, b, "q", "new") }, 1},
		"subscribe": {func(t *testing.T, b *bourse.Broker) { send(t, b, "q", "new"); consume(t, b, "q", 5) }, 1},
		"delay": {func(t *testing.T, b *bourse.Broker) {
			require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Delay: time.Second}))
			clock.advance(t, b, time.Second)
		}, 1},
		"dead letter": {func(t *testing.T, b *bourse.Broker) {
			send(t, b, "source", "dead")
			d, err := b.Get(ctx, "source")
			require.NoError(t, err)
			require.NoError(t, d.Reject("no"))
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, bourse.Options{Clock: clock}, bourse.Exchange{Name: "dead", Kind: bourse.Fanout}, bourse.Queue{Name: "q"},
				bourse.Queue{Name: "source", DeadLetter: bourse.DeadLetter{Exchange: "dead"}}, bourse.Binding{Exchange: "dead", Queue: "q"})
			s := consume(t, b, "q", 5)
			require.NoError(t, b.Pause(ctx, "q"))
			c.act(t, b)
			nothing(t, b, clock, s)
			_, err := b.Get(ctx, "q")
			require.ErrorIs(t, err, bourse.ErrHeldBack)
			st := stats(t, b, "q")
			require.True(t, st.Paused)
			require.Equal(t, c.ready, st.Ready)
			require.NoError(t, b.Resume(ctx, "q"))
			require.NotNil(t, next(t, s))
			require.False(t, stats(t, b, "q").Paused)
		})
	}
}

// Paused is paused after a restart and after a crash, and resumed likewise.
func TestPauseIsDurable(t *testing.T) {
	noLeaks(t)
	fs := new(storage.MemFS)
	var b *bourse.Broker
	start := func() {
		var err error
		b, err = bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
		require.NoError(t, err)
	}
	start()
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	send(t, b, "q", "m")
	for _, crash := range []bool{false, true} {
		for _, paused := range []bool{true, false} {
			if paused {
				require.NoError(t, b.Pause(ctx, "q"))
			} else {
				require.NoError(t, b.Resume(ctx, "q"))
			}
			left := fs
			if crash {
				left = fs.Crash(storage.CrashLost, func(int) int { return 0 })
			}
			require.NoError(t, b.Close())
			fs = left
			start()
			require.Equal(t, paused, stats(t, b, "q").Paused)
			d, err := b.Get(ctx, "q")
			if paused {
				require.ErrorIs(t, err, bourse.ErrHeldBack)
				require.EqualError(t, err, `broker: get from "q": queue holds its messages back`)
			} else {
				require.NoError(t, err)
				require.NoError(t, d.Release(0))
			}
		}
	}
	require.NoError(t, b.Close())
}

// A message that may not wait expires at a paused queue, and what expires in time does so.
func TestPauseLetsExpire(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"})
	s := consume(t, b, "q", 5)
	require.NoError(t, b.Pause(ctx, "q"))
	for _, ttl := range []time.Duration{bourse.NoWait, time.Second} {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", TTL: ttl}))
	}
	require.EqualValues(t, 1, stats(t, b, "q").Expired)
	clock.advance(t, b, time.Second)
	require.EqualValues(t, 2, stats(t, b, "q").Expired)
	require.NoError(t, b.Resume(ctx, "q"))
	nothing(t, b, clock, s)
}
