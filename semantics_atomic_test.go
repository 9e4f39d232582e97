package bourse_test

// Goal: SEMANTICS 4, atomic mode, and an ack and a publish in one commit: all or nothing, whatever goes wrong. Method: each
// refusal in the middle of good messages, after which no queue has changed; what is stored, read back in every way.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

func atomicTopology() []bourse.Declaration {
	return []bourse.Declaration{
		bourse.Exchange{Name: "all", Kind: bourse.Fanout}, bourse.Exchange{Name: "none"},
		bourse.Queue{Name: "a", Priorities: 3, AckDeadline: time.Minute}, bourse.Queue{Name: "b"},
		bourse.Queue{Name: "once", Dedup: bourse.Dedup{Window: time.Hour}},
		bourse.Binding{Exchange: "all", Queue: "a"}, bourse.Binding{Exchange: "all", Queue: "b"},
	}
}

func TestSemanticsAtomicPublish(t *testing.T) {
	clock := newHandClock()
	fs := &storage.MemFS{}
	b := open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)}, atomicTopology()...)
	large := bytes.Repeat([]byte("x"), 20_000) // not cut from a slab
	body := []byte("two")
	require.NoError(t, b.PublishAtomic(ctx, []bourse.Message{
		{Exchange: "all", Body: []byte("one"), Headers: map[string]any{"h": 1}},
		{RoutingKey: "a", Body: body, Priority: 2, ID: "my id"},
		{RoutingKey: "nowhere", Body: []byte("dropped")},
		{RoutingKey: "b", Body: large},
		{RoutingKey: "a", Body: []byte("later"), Delay: time.Minute},
		{RoutingKey: "a", Body: []byte("soon over"), TTL: time.Second},
	}))
	copy(body, "XXX") // it is the caller's again
	require.EqualValues(t, 1, b.Stats().Unroutable)
	require.EqualValues(t, 6, b.Stats().Published)
	clock.advance(t, b, time.Second)
	require.EqualValues(t, 1, stats(t, b, "a").Expired)

	fs = crashed(fs)
	b = open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)})
	c := consume(t, b, "a", 10)
	two, one := next(t, c), next(t, c)
	require.Equal(t, "two my id", string(two.Body)+" "+two.ID)
	require.Equal(t, "one", string(one.Body))
	require.EqualValues(t, 1, one.Headers["h"])
	require.Len(t, one.ID, 32)
	require.NoError(t, two.Reject("no"))
	clock.advance(t, b, time.Minute)
	require.Equal(t, "later", string(next(t, c).Body))
	require.Equal(t, []string{"one", string(large)}, drain(t, b, "b"))
	require.Equal(t, []string{"two"}, drain(t, b, bourse.ParkingQueue))
}

// A repetition in a bundle is one, of what was there before and of what stands before it.
func TestSemanticsAtomicDedup(t *testing.T) {
	b := open(t, bourse.Options{}, atomicTopology()...)
	m := func(id, body string) bourse.Message {
		return bourse.Message{RoutingKey: "once", ID: id, Body: []byte(body)}
	}
	require.NoError(t, b.Publish(ctx, m("1", "first")))
	require.NoError(t, b.PublishAtomic(ctx, []bourse.Message{m("2", "second"), m("1", "again"), m("2", "again"), m("3", "third")}))
	require.NoError(t, b.PublishAtomic(ctx, []bourse.Message{m("2", "again"), m("3", "again")}))
	require.EqualValues(t, 4, stats(t, b, "once").Duplicates)
	require.Equal(t, []string{"first", "second", "third"}, drain(t, b, "once"))
}

// refusedBundles are bundles that are not stored, with the number of the message that is why; -1: all of them.
func refusedBundles() []struct {
	name string
	ms   []bourse.Message
	is   error
	at   int
} {
	good, many := bourse.Message{Exchange: "all"}, make([]bourse.Message, 256)
	for i := range many {
		many[i] = good
	}
	half := bourse.Message{RoutingKey: "a", Body: make([]byte, 2<<20)}
	return []struct {
		name string
		ms   []bourse.Message
		is   error
		at   int
	}{
		{"an unroutable one", []bourse.Message{good, {Exchange: "none", Mandatory: true}, good}, bourse.ErrUnroutable, 1},
		{"one to no exchange", []bourse.Message{good, good, {Exchange: "missing"}}, bourse.ErrNoExchange, 2},
		{"an invalid one", []bourse.Message{{RoutingKey: "a", TTL: -5}, good}, bourse.ErrInvalid, 0},
		{"one too large", []bourse.Message{good, {RoutingKey: "a", Body: make([]byte, 17<<20)}}, bourse.ErrInvalid, 1},
		{"too many", many, bourse.ErrInvalid, -1},
		{"too much together", []bourse.Message{half, good, half}, bourse.ErrInvalid, -1},
		{"too much only with headers", []bourse.Message{
			half, {RoutingKey: "a", Body: half.Body[:2<<20-1000], Headers: map[string]any{"h": make([]byte, 1200)}},
		}, bourse.ErrInvalid, -1},
	}
}

func TestSemanticsAtomicRefusals(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, atomicTopology()...)
	send(t, b, "a", "work")
	d := next(t, consume(t, b, "a", 1))
	before := b.Stats().Queues
	for _, row := range refusedBundles() {
		for name, err := range map[string]error{
			"publish": b.PublishAtomic(ctx, row.ms), "ack and publish": d.AckAndPublish(ctx, row.ms...),
		} {
			require.ErrorIs(t, err, row.is, "%s, %s", row.name, name)
			var at *bourse.AtomicError
			require.Equal(t, row.at >= 0, errors.As(err, &at), "%s: %v", row.name, err)
			if row.at >= 0 {
				require.Equal(t, row.at, at.Index, row.name)
				require.ErrorContains(t, err, fmt.Sprint("message ", row.at))
			}
			require.Equal(t, before, b.Stats().Queues, row.name)
		}
	}
	require.Zero(t, b.Stats().Pending)
	require.NoError(t, d.Ack(), "the loan goes on")

	// At the limits.
	require.NoError(t, b.PublishAtomic(ctx, nil))
	require.NoError(t, b.PublishAtomic(ctx, make([]bourse.Message, 255)))
	require.EqualValues(t, 255, b.Stats().Unroutable)
	require.NoError(t, b.PublishAtomic(ctx, []bourse.Message{{RoutingKey: "b", Body: make([]byte, 16<<20)}}))
	d, err := b.Get(ctx, "b")
	require.NoError(t, err)
	require.Len(t, d.Body, 16<<20)
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.PublishAtomic(ctx, []bourse.Message{{RoutingKey: "b"}}), bourse.ErrClosed)
}

func TestSemanticsAckAndPublish(t *testing.T) {
	clock := newHandClock()
	fs := &storage.MemFS{}
	b := open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)}, atomicTopology()...)
	send(t, b, "a", "1", "2", "3", "4")
	c := consume(t, b, "a", 1)
	result := bourse.Message{RoutingKey: "b", Body: []byte("result")}

	d := next(t, c)
	require.NoError(t, d.AckAndPublish(ctx, result, bourse.Message{RoutingKey: "a", Body: []byte("5"), Priority: 2}))
	require.ErrorIs(t, d.Ack(), bourse.ErrUnknownDelivery)
	require.ErrorIs(t, d.AckAndPublish(ctx, result), bourse.ErrUnknownDelivery)
	require.Equal(t, 1, stats(t, b, "b").Ready)

	// What it published is taken into account at once: 5 is above the others.
	d = next(t, c)
	require.Equal(t, "5", string(d.Body))
	clock.advance(t, b, time.Minute) // its deadline
	require.ErrorIs(t, d.AckAndPublish(ctx, result), bourse.ErrStaleDelivery)
	require.Equal(t, 1, stats(t, b, "b").Ready)
	d = next(t, c)
	require.Equal(t, "5", string(d.Body), "it came back")
	require.NoError(t, d.AckAndPublish(ctx), "an ack alone")

	// A restart and a crash later, both have happened.
	fs = crashed(fs)
	b = open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)})
	require.Equal(t, []string{"2", "3", "4"}, drain(t, b, "a"))
	require.Equal(t, []string{"result"}, drain(t, b, "b"))

	send(t, b, "a", "6", "7")
	auto, err := b.Subscribe(ctx, "a", bourse.SubscribeOptions{AutoAck: true})
	require.NoError(t, err)
	require.ErrorIs(t, next(t, auto).AckAndPublish(ctx, result), bourse.ErrAutoAck)
	require.NoError(t, auto.Close())
	require.ErrorIs(t, new(bourse.Delivery).AckAndPublish(ctx, result), bourse.ErrUnknownDelivery)
	ended, end := context.WithCancel(ctx)
	end()
	send(t, b, "a", "8")
	d, err = b.Get(ctx, "a")
	require.NoError(t, err)
	require.ErrorIs(t, d.AckAndPublish(ended, result), ended.Err())
	require.NoError(t, d.Nack(), "nothing was said")
	require.Zero(t, stats(t, b, "b").Ready)
}

// A consumer that lost its loan in the log, without knowing it, publishes nothing.
func TestSemanticsAckAndPublishTooLate(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, atomicTopology()...)
	send(t, b, "a", "1")
	d, err := b.Get(ctx, "a")
	require.NoError(t, err)
	require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "a"}))
	require.ErrorIs(t, d.AckAndPublish(ctx, bourse.Message{RoutingKey: "b"}), bourse.ErrQueueGone)
	require.Zero(t, stats(t, b, "b").Ready)
}

// A queue that is deleted after the routing and before the commit: all is routed anew.
func TestSemanticsAtomicRoutedAnew(t *testing.T) {
	nothing := func() {}
	e := &hookedEngine{Engine: onFS(t, &storage.MemFS{}), propose: nothing, closing: nothing}
	b := open(t, bourse.Options{Engine: e}, atomicTopology()...)
	hook := func() {
		e.propose = nothing
		require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "a"}))
	}
	e.propose = hook
	err := b.PublishAtomic(ctx, []bourse.Message{{RoutingKey: "b"}, {RoutingKey: "a", Mandatory: true}})
	require.ErrorIs(t, err, bourse.ErrUnroutable)
	require.Zero(t, stats(t, b, "b").Ready)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "a"}))
	e.propose = hook
	require.NoError(t, b.PublishAtomic(ctx, []bourse.Message{{RoutingKey: "b"}, {RoutingKey: "a"}}))
	require.Equal(t, 1, stats(t, b, "b").Ready)
	require.EqualValues(t, 1, b.Stats().Unroutable)
}

// What came in a bundle can be looked at and edited like anything else.
func TestSemanticsAtomicBrowse(t *testing.T) {
	b := open(t, bourse.Options{}, append(atomicTopology(), bourse.Queue{Name: "memory", Transient: true})...)
	require.NoError(t, b.PublishAtomic(ctx, []bourse.Message{
		{RoutingKey: "b", ID: "1", Body: []byte("one")}, {RoutingKey: "b", ID: "2", Body: []byte("two")},
		{RoutingKey: "a", ID: "3"}, {RoutingKey: "b", ID: "4", Body: []byte("four")},
	}))
	var seen []string
	for m, err := range b.Browse(ctx, "b", bourse.BrowseOptions{}) {
		require.NoError(t, err)
		seen = append(seen, m.ID+string(m.Body))
		if m.ID == "2" {
			require.NoError(t, b.Edit(ctx, m.Locator, func(m *bourse.Message) error {
				m.Body = append(m.Body, "!"...)
				return nil
			}))
		}
	}
	require.Equal(t, []string{"1one", "2two", "4four"}, seen)
	require.Equal(t, []string{"one", "two!", "four"}, drain(t, b, "b"))
	require.NoError(t, b.PublishAtomic(ctx, []bourse.Message{{RoutingKey: "memory", Body: []byte("m")}, {RoutingKey: "memory"}}))
	require.ErrorIs(t, b.PublishAtomic(ctx, []bourse.Message{{RoutingKey: "memory"}, {RoutingKey: "b"}}), bourse.ErrNotAtomic)
	require.Equal(t, []string{"m", ""}, drain(t, b, "memory"))
}
