package bourse

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	for _, d := range []string{"", dir} {
		b, err := NewBroker(ctx, Options{Dir: d})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, Queue{Name: "q"}))
		for i := range 10 {
			require.NoError(t, b.Publish(ctx, Message{RoutingKey: "q", Body: fmt.Appendf(nil, "m%d", i)}))
		}
		s, err := b.Subscribe(ctx, "q", SubscribeOptions{Prefetch: 3})
		require.NoError(t, err)
		for i := range 5 {
			d, err := s.Next(ctx)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("m%d", i), string(d.Body))
			require.NoError(t, d.AckSync(ctx))
		}
		require.NoError(t, b.Close())
	}
	b, err := NewBroker(ctx, Options{Dir: dir})
	require.NoError(t, err)
	st, ok := b.QueueStats("q")
	require.True(t, ok)
	require.Equal(t, 5, st.Ready)
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "m5", string(d.Body))
	require.NoError(t, d.Reject("no"))
	p, err := b.Subscribe(ctx, ParkingQueue, SubscribeOptions{})
	require.NoError(t, err)
	d, err = p.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, "no", d.Deaths[0].Note)
	require.Equal(t, "m5", string(d.Body))
	require.NoError(t, b.Close())
}
