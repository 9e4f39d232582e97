package bourse_test

// Goal: SEMANTICS 7, the group rule of dispatch, and Message.GroupID with all that can happen to a message: of each group one
// is on loan, in order, and nobody else waits for it. Method: a row for each way in which a message leaves its consumer, with what the
// group may do then; and a publisher that floods one group.

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// sendGroup publishes bodies to q; the group is what precedes the digit, "-" is none.
func sendGroup(t require.TestingT, b *bourse.Broker, bodies ...string) {
	for _, body := range bodies {
		group := strings.TrimRight(body, "0123456789")
		if group == "-" {
			group = ""
		}
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", GroupID: group, Body: []byte(body)}))
	}
}

// bodies of the next deliveries of s.
func nexts(t require.TestingT, s *bourse.Subscription, n int) (ds []*bourse.Delivery, bodies []string) {
	for range n {
		d := next(t, s)
		ds, bodies = append(ds, d), append(bodies, string(d.Body))
	}
	return ds, bodies
}

func TestSemanticsGroups(t *testing.T) {
	for _, row := range []struct {
		name string
		q    bourse.Queue
		do   func(b *bourse.Broker, d *bourse.Delivery) error // with a1, while a2 and a3 wait
		then string                                           // what comes, at once
		rest time.Duration                                    // then so much later
		at   string                                           // comes this
	}{
		{name: "ack", do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.Ack() }, then: "a2"},
		{name: "ack for certain", do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.AckSync(ctx) }, then: "a2"},
		{name: "nack", do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.Nack() }, then: "a1"},
		{name: "nack with a pause", do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.NackAfter(time.Second) },
			rest: time.Second, at: "a1"},
		{name: "nack with a policy", q: bourse.Queue{Retry: bourse.Backoff{Min: time.Minute}},
			do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.Nack() }, rest: time.Minute, at: "a1"},
		{name: "the last failure", q: bourse.Queue{MaxRetries: bourse.NoRetry},
			do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.Nack() }, then: "a2"},
		{name: "reject", do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.Reject("no") }, then: "a2"},
		{name: "reject, discarded", q: bourse.Queue{DeadLetter: bourse.DeadLetter{Discard: true}},
			do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.Reject("no") }, then: "a2"},
		{name: "release", do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.Release(0) }, then: "a1"},
		{name: "release for later", do: func(_ *bourse.Broker, d *bourse.Delivery) error { return d.Release(time.Hour) },
			rest: time.Hour, at: "a1"},
		{name: "a missed deadline", q: bourse.Queue{AckDeadline: time.Minute},
			do: func(*bourse.Broker, *bourse.Delivery) error { return nil }, rest: time.Minute, at: "a1"},
		{name: "a missed deadline with a policy", q: bourse.Queue{AckDeadline: time.Minute, Retry: bourse.Backoff{Min: time.Hour}},
			do: func(*bourse.Broker, *bourse.Delivery) error { return nil }, rest: time.Minute + time.Hour, at: "a1"},
		{name: "purge", do: func(b *bourse.Broker, d *bourse.Delivery) error {
			_, err := b.Purge(ctx, "q")
			return errors.Join(err, d.Release(0))
		}, then: "a1"},
		{name: "purge while it rests", do: func(b *bourse.Broker, d *bourse.Delivery) error {
			err := d.Release(time.Hour)
			_, purge := b.Purge(ctx, "q")
			sendGroup(t, b, "a9")
			return errors.Join(err, purge)
		}, then: "a9"},
		{name: "waiting ones expire, not the one on loan", q: bourse.Queue{TTL: time.Minute, AckDeadline: time.Hour},
			do: func(*bourse.Broker, *bourse.Delivery) error { return nil }, rest: time.Hour},
	} {
		t.Run(row.name, func(t *testing.T) {
			clock := newHandClock()
			row.q.Name = "q"
			b := open(t, bourse.Options{Clock: clock}, row.q)
			sendGroup(t, b, "a1", "a2", "a3")
			s := consume(t, b, "q", 10)
			d := next(t, s)
			require.Equal(t, "a1 a", string(d.Body)+" "+d.GroupID)
			nothing(t, b, clock, s)
			_, err := b.Get(ctx, "q")
			require.ErrorIs(t, err, bourse.ErrEmpty, "the others are held")
			require.NoError(t, row.do(b, d))
			if row.then != "" {
				require.Equal(t, row.then, string(next(t, s).Body))
			}
			nothing(t, b, clock, s)
			if row.rest == 0 {
				return
			}
			clock.advance(t, b, row.rest-1)
			nothing(t, b, clock, s)
			sendGroup(t, b, "b1", "-1")
			other, bodies := nexts(t, s, 2)
			require.Equal(t, []string{"b1", "-1"}, bodies, "others pass")
			for _, d := range other {
				require.NoError(t, d.AckSync(ctx))
			}
			clock.advance(t, b, 1)
			if row.at != "" {
				require.Equal(t, row.at, string(next(t, s).Body))
			}
			nothing(t, b, clock, s)
		})
	}
}

// Whoever has much waiting does not hold up the others: each delivery is of another group than the one before.
func TestSemanticsGroupsTakeTurns(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	for range 500 {
		sendGroup(t, b, "flood0")
	}
	sendGroup(t, b, "a1", "a2", "b1", "-1", "-2", "a3")
	s := consume(t, b, "q", 1)
	var got []string
	for range 9 {
		d := next(t, s)
		got = append(got, string(d.Body))
		require.NoError(t, d.Ack())
	}
	require.Equal(t, []string{"-1", "flood0", "a1", "b1", "-2", "flood0", "a2", "flood0", "a3"}, got)
}

// Within a group the order of arrival comes before priorities; the group stands at the level of its first message.
func TestSemanticsGroupsAndPriorities(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", Priorities: 10})
	for _, m := range []struct {
		body, group string
		priority    uint8
	}{{"a1", "a", 1}, {"a2", "a", 9}, {"b1", "b", 5}, {"b2", "b", 0}, {"x", "", 3}} {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", GroupID: m.group, Priority: m.priority, Body: []byte(m.body)}))
	}
	require.Equal(t, []string{"b1", "x", "a1", "a2", "b2"}, drain(t, b, "q"))
}

// More than one at a time begin in order; what rests counts as one of them.
func TestSemanticsGroupConcurrency(t *testing.T) {
	for _, row := range []struct {
		concurrency int
		first       []string
	}{
		{2, []string{"a1", "a2"}},
		{3, []string{"a1", "a2", "a3"}},
		{bourse.NoLimit, []string{"a1", "a2", "a3", "a4", "a5"}},
	} {
		clock := newHandClock()
		b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", GroupConcurrency: row.concurrency})
		sendGroup(t, b, "a1", "a2", "a3", "a4", "a5")
		s := consume(t, b, "q", 10)
		ds, bodies := nexts(t, s, len(row.first))
		require.Equal(t, row.first, bodies)
		nothing(t, b, clock, s)
		require.NoError(t, ds[0].NackAfter(time.Minute))
		nothing(t, b, clock, s)
		if row.concurrency != bourse.NoLimit {
			require.NoError(t, ds[1].Ack())
			require.Equal(t, []string{"a3", "a4"}[row.concurrency-2], string(next(t, s).Body))
			nothing(t, b, clock, s)
		}
	}
}

// A message that its publisher delayed holds nobody back, and is in its place once it is ready.
func TestSemanticsGroupsDelayed(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"})
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", GroupID: "a", Delay: time.Minute, Body: []byte("a0")}))
	sendGroup(t, b, "a1", "a2", "a3")
	s := consume(t, b, "q", 10)
	d := next(t, s)
	require.Equal(t, "a1", string(d.Body))
	clock.advance(t, b, time.Minute)
	nothing(t, b, clock, s)
	require.NoError(t, d.Ack())
	require.Equal(t, "a0", string(next(t, s).Body))
}

// The group goes with a dead message, and orders it where the dead are worked on.
func TestSemanticsGroupsOfTheDead(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"})
	sendGroup(t, b, "a1", "a2", "b1")
	s := consume(t, b, "q", 10)
	for range 3 {
		require.NoError(t, next(t, s).Reject("no"))
	}
	parked := consume(t, b, bourse.ParkingQueue, 10)
	ds, bodies := nexts(t, parked, 2)
	require.ElementsMatch(t, []string{"a1", "b1"}, bodies)
	for _, d := range ds {
		require.Equal(t, string(d.Body[0]), d.GroupID)
	}
	require.Eventually(t, func() bool { return stats(t, b, bourse.ParkingQueue).Ready == 1 }, testTimeout, time.Millisecond)
	nothing(t, b, clock, parked)
	for _, d := range ds {
		require.NoError(t, d.Ack())
	}
	require.Equal(t, "a2", string(next(t, parked).Body))
}

// A restart keeps the order of groups, their turns, and what holds them back.
func TestSemanticsGroupsRestart(t *testing.T) {
	clock, dir := newHandClock(), t.TempDir()
	b := open(t, bourse.Options{Clock: clock, Dir: dir}, bourse.Queue{Name: "q"})
	sendGroup(t, b, "a1", "a2", "b1", "b2")
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "a1", string(d.Body))
	require.NoError(t, d.Release(time.Minute))
	d, err = b.Get(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "b1", string(d.Body))
	require.NoError(t, b.Close())

	b = open(t, bourse.Options{Clock: clock, Dir: dir})
	s := consume(t, b, "q", 10)
	d = next(t, s)
	require.Equal(t, "b1 2", string(d.Body)+" "+string(rune('0'+d.Deliveries)))
	nothing(t, b, clock, s)
	clock.advance(t, b, time.Minute)
	require.Equal(t, "a1", string(next(t, s).Body))
	nothing(t, b, clock, s)
}
