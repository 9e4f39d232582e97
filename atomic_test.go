package bourse

// Goal: what is atomic stays so with a log for each queue, or is refused; and what is read as a bundle is one. Method: the local
// engine, dressed as one that gives each queue its own; decoders on cut commands.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/wire"
)

func TestAtomicShardPerQueue(t *testing.T) {
	ctx := context.Background()
	e, err := NewLocalEngine("", LocalOptions{})
	require.NoError(t, err)
	b, err := NewBroker(ctx, Options{Engine: perQueue{e}})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, Queue{Name: "a"}, Queue{Name: "b"}))
	toA, toB := Message{RoutingKey: "a"}, Message{RoutingKey: "b"}
	err = b.PublishAtomic(ctx, []Message{toA, toA, toB})
	require.ErrorIs(t, err, ErrNotAtomic)
	require.ErrorContains(t, err, "message 2")
	require.Zero(t, mustStats(t, b, "a").Ready)
	require.NoError(t, b.PublishAtomic(ctx, []Message{toA, toA}))
	require.Equal(t, 2, mustStats(t, b, "a").Ready)
	d, err := b.Get(ctx, "a")
	require.NoError(t, err)
	require.ErrorIs(t, d.AckAndPublish(ctx, toB), ErrNotAtomic)
	require.NoError(t, d.AckAndPublish(ctx, toA, toA), "to its own queue")
	require.Equal(t, 3, mustStats(t, b, "a").Ready)
	require.Zero(t, mustStats(t, b, "a").Unacked)
	require.Zero(t, mustStats(t, b, "b").Ready)
	require.NoError(t, b.Close())
}

// A bundle that acks in the queue that it publishes to brings that to the present only when its messages are there. What joins the end of
// its level then is behind them, and not new: from a lower level it is evicted as what was there before, and in one level only what the
// bundle brought is.
func TestBundleEvictsWhatJoinsTheTail(t *testing.T) {
	for _, row := range []struct {
		priority       uint8
		stay, evicted  int
		levelOfTheRest uint8
	}{{priority: 1, stay: 1, evicted: 2, levelOfTheRest: 1}, {priority: 0, stay: 2, evicted: 1}} {
		s := newScript(t, false)
		s.run(`queue q retry=1s tail priorities=2 max=1 overflow=drop
attach c1 q prefetch=3
enqueue m1 q
enqueue m2 q
enqueue held q
attach c1 q prefetch=0
nack c1 1
nack c1 2
at +1s
----
`)
		c := s.consumers["c1"]
		q := s.m.queues[c.queue]
		ack := settle{queue: c.queue, consumer: c.id, tag: 3, slot: s.slots[plainTag{c.queue, c.id, 3}]}
		m := Message{Body: []byte("new"), Priority: row.priority}
		part := appendMessage(appendTargets(nil, []queueID{c.queue}), &m, messageID{1, 2}, nil)
		res := s.apply(appendBundle(appendHeader(nil, cmdBundle, s.now), &ack, [][]byte{part}))
		require.Equal(t, applied{answer: Answer{Code: answerOK}, kept: 1}, res)
		require.Equal(t, row.stay, q.size(), "%+v", row)
		require.Equal(t, row.levelOfTheRest, q.ready.any().level)
		require.EqualValues(t, row.evicted, q.count.Evicted)
	}
}

func TestBundleDecodes(t *testing.T) {
	message := func(body string, targets ...queueID) []byte {
		return appendMessage(appendTargets(nil, targets), &Message{Body: []byte(body), Priority: 3}, messageID{1, 2}, nil)
	}
	parts := [][]byte{message("one", 2), message("", 2, 3), message("three", 300)}
	ack := &settle{queue: 2, consumer: 1 << 40, tag: 7, slot: 3}
	cmd := appendBundle(appendHeader(nil, cmdBundle, 5), ack, parts)
	decode := func(cmd []byte) (bundle, error) {
		r := wire.NewReader(cmd[commandHeader:])
		x := decodeBundle(&r)
		return x, r.Done()
	}
	x, err := decode(cmd)
	require.NoError(t, err)
	require.Equal(t, *ack, x.loan)
	require.Len(t, x.parts, 3)
	for i, want := range []string{"one", "", "three"} {
		b, err := partOf(cmd, uint8(i+1))
		require.NoError(t, err)
		require.Equal(t, parts[i], b)
		require.EqualValues(t, len(b), x.parts[i].size)
		env, err := envelopeIn(b)
		require.NoError(t, err)
		require.Equal(t, want, string(env.body))
	}
	for _, n := range []uint8{0, 4, 255} {
		_, err := partOf(cmd, n)
		require.Error(t, err)
	}
	_, err = partOf(appendTick(nil, 5), 1)
	require.Error(t, err)
	for n := commandHeader; n < len(cmd); n++ {
		_, err := decode(cmd[:n])
		require.Error(t, err, "%d bytes", n)
	}
	_, err = decode(append(cmd, 0))
	require.Error(t, err, "a byte too many")
	_, err = decode(appendBundle(appendHeader(nil, cmdBundle, 5), nil, [][]byte{message("to nobody")}))
	require.Error(t, err)
	many := make([][]byte, 256)
	for i := range many {
		many[i] = message("x", 2)
	}
	_, err = decode(appendBundle(appendHeader(nil, cmdBundle, 5), nil, many))
	require.Error(t, err)
	_, err = decode(appendBundle(appendHeader(nil, cmdBundle, 5), nil, many[:255]))
	require.NoError(t, err)
}
