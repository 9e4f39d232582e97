package bourse_test

// Goal: every rule of SEMANTICS 6 (purge), 10 (Replay) and 11 (delayed messages can be listed, cancelled and promoted), and what
// each operation on one message does in each state, is a case here. Method: brokers in memory with a clock moved by hand.

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// browsed is all that Browse gives.
func browsed(t require.TestingT, b *bourse.Broker, queue string, opts bourse.BrowseOptions) (all []*bourse.Browsed) {
	for m, err := range b.Browse(ctx, queue, opts) {
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

// seen is what Browse gives, in short: the state of the messages with those that are in it, in order.
func seen(t require.TestingT, b *bourse.Broker, queue string, states ...bourse.State) string {
	text, last := "", bourse.State(0)
	for _, m := range browsed(t, b, queue, bourse.BrowseOptions{States: states}) {
		if m.State != last {
			text += m.State.String() + ":"
			last = m.State
		}
		text += string(m.Body) + " "
	}
	return text
}

// inAllStates is a broker with queue q: a and b are ready, c and d delayed, e and f unacked.
type inAllStates struct {
	*bourse.Broker
	clock *handClock
	sub   *bourse.Subscription
	loans []*bourse.Delivery
}

func openInAllStates(t *testing.T) *inAllStates {
	s := &inAllStates{clock: newHandClock()}
	s.Broker = open(t, bourse.Options{Clock: s.clock}, bourse.Exchange{Name: "x"},
		bourse.Queue{Name: "q", Priorities: 3, AckDeadline: 24 * time.Hour, DeadLetter: bourse.DeadLetter{Exchange: "x"}})
	s.sub = consume(t, s.Broker, "q", 2)
	send(t, s.Broker, "q", "e", "f")
	s.loans = []*bourse.Delivery{next(t, s.sub), next(t, s.sub)}
	for _, m := range []bourse.Message{
		{Body: []byte("a")}, {Body: []byte("b"), Priority: 1, ID: "B"}, {Body: []byte("c"), Delay: time.Hour},
		{Body: []byte("d"), Delay: time.Minute, Priority: 9, Headers: map[string]any{"h": 1}},
	} {
		m.RoutingKey = "q"
		require.NoError(t, s.Publish(ctx, m))
	}
	return s
}

// where is the locator of the message with that body.
func (s *inAllStates) where(t *testing.T, body string) bourse.Locator {
	for _, m := range browsed(t, s.Broker, "q", bourse.BrowseOptions{}) {
		if string(m.Body) == body {
			return m.Locator
		}
	}
	require.Fail(t, "no such message", body)
	return bourse.Locator{}
}

func TestSemanticsBrowse(t *testing.T) {
	s := openInAllStates(t)
	require.Equal(t, "ready:b a delayed:d c unacked:e f ", seen(t, s.Broker, "q"))
	require.Equal(t, "ready:b a ", seen(t, s.Broker, "q", bourse.StateReady))
	require.Equal(t, "ready:b a unacked:e f ", seen(t, s.Broker, "q", bourse.StateUnacked, bourse.StateReady))
	require.Empty(t, seen(t, s.Broker, "q", bourse.StateDying))
	before := stats(t, s.Broker, "q")
	now := s.clock.Now()
	all := browsed(t, s.Broker, "q", bourse.BrowseOptions{})
	require.Equal(t, before, stats(t, s.Broker, "q"), "looking changes nothing")
	for _, m := range all {
		require.True(t, now.Equal(m.EnqueuedAt))
		require.Equal(t, "q", m.Locator.Queue)
		require.Equal(t, "q", m.RoutingKey)
	}
	b, d, e := all[0], all[2], all[4]
	require.Equal(t, []any{"B", uint8(1), 1, uint64(4)}, []any{b.ID, b.Priority, b.Level, b.Seq})
	require.True(t, b.ReadyAt.IsZero() && b.ExpiresAt.IsZero() && b.Deadline.IsZero())
	require.Equal(t, []any{2, int64(1), uint8(9)}, []any{d.Level, d.Headers["h"], d.Priority})
	require.True(t, now.Add(time.Minute).Equal(d.ReadyAt))
	require.Equal(t, []any{1, 0, uint64(1), s.sub.ID()}, []any{e.Deliveries, e.Failures, e.Tag, e.Holder})
	require.True(t, s.loans[0].Deadline().Equal(e.Deadline))
	require.NotEqual(t, s.sub.ID(), consume(t, s.Broker, "q", 0).ID())
}

// Failures and deaths of what came back and of what died show.
func TestSemanticsBrowseTheDead(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", TTL: time.Hour})
	send(t, b, "q", "a", "b")
	s := consume(t, b, "q", 2)
	require.NoError(t, next(t, s).Reject("broken"))
	require.NoError(t, next(t, s).NackAfter(time.Minute))
	barrier(t, b, clock)
	dead := browsed(t, b, bourse.ParkingQueue, bourse.BrowseOptions{})
	require.Len(t, dead, 1)
	require.Equal(t, []any{"a", "q", bourse.ReasonRejected, "broken"},
		[]any{string(dead[0].Body), dead[0].Deaths[0].Queue, dead[0].Deaths[0].Reason, dead[0].Deaths[0].Note})
	all := browsed(t, b, "q", bourse.BrowseOptions{})
	require.Len(t, all, 1)
	require.Equal(t, []any{bourse.StateDelayed, 1, 1}, []any{all[0].State, all[0].Deliveries, all[0].Failures})
	require.True(t, clock.Now().Add(time.Hour).Equal(all[0].ExpiresAt))
}

// While its move waits for the disk, a dead message is dying where it died. A Cancel that comes behind the move finds nothing.
func TestSemanticsBrowseDying(t *testing.T) {
	fs := newHeldFS()
	engine, err := bourse.NewLocalEngine("data", bourse.LocalOptions{FS: fs})
	require.NoError(t, err)
	clock := newHandClock()
	b := open(t, bourse.Options{Engine: engine, Clock: clock}, bourse.Queue{Name: "q"})
	send(t, b, "q", "a")
	s := consume(t, b, "q", 1)
	d := next(t, s)
	fs.hold(true)
	require.NoError(t, d.Reject("broken"))
	for stats(t, b, "q").Dying == 0 {
		runtime.Gosched()
	}
	all := browsed(t, b, "q", bourse.BrowseOptions{})
	require.Len(t, all, 1)
	require.Equal(t, []any{bourse.StateDying, bourse.ReasonRejected, "broken", 1, "a"},
		[]any{all[0].State, all[0].Reason, all[0].Note, all[0].Failures, string(all[0].Body)})
	require.True(t, clock.Now().Equal(all[0].DiedAt))
	for seen(t, b, bourse.ParkingQueue) == "" {
		fs.hold(false)
		runtime.Gosched()
	}
	require.ErrorIs(t, b.Cancel(ctx, all[0].Locator), bourse.ErrNotFound)
}

// A queue of many pages, levels and states is given whole, and again from every place.
func TestSemanticsBrowsePages(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", Priorities: 5})
	var ms []bourse.Message
	for i := range 1500 {
		m := bourse.Message{RoutingKey: "q", ID: fmt.Sprint(i), Priority: uint8(i * 7 % 5), Body: []byte{1}}
		if i%3 == 0 {
			m.Delay = time.Duration(1+i*31%100) * time.Second
		}
		ms = append(ms, m)
	}
	require.NoError(t, b.PublishBatch(ctx, ms))
	s := consume(t, b, "q", 200)
	for range 200 {
		next(t, s)
	}
	all := browsed(t, b, "q", bourse.BrowseOptions{})
	require.Len(t, all, len(ms))
	ids := map[string]bool{}
	for i, m := range all {
		ids[m.ID] = true
		if i == 0 || m.State != all[i-1].State {
			continue
		}
		was := all[i-1]
		switch m.State {
		case bourse.StateReady:
			require.True(t, m.Level < was.Level || m.Level == was.Level && m.Seq > was.Seq)
		case bourse.StateDelayed:
			require.True(t, m.ReadyAt.After(was.ReadyAt) || m.ReadyAt.Equal(was.ReadyAt) && m.Seq > was.Seq)
		}
	}
	require.Len(t, ids, len(ms))
	for _, n := range []int{1, 63, 64, 65, 700, 999, 1100, 1498} {
		rest := browsed(t, b, "q", bourse.BrowseOptions{After: all[n].Locator})
		require.Len(t, rest, len(all)-n-1, "behind %d", n)
		require.Equal(t, all[n+1].ID, rest[0].ID)
		require.Len(t, browsed(t, b, "q", bourse.BrowseOptions{Limit: n}), n)
	}
	require.Empty(t, browsed(t, b, "q", bourse.BrowseOptions{After: all[len(all)-1].Locator}))
}

// What goes while one looks is skipped, what comes is left out, and the place of what is gone is still good.
func TestSemanticsBrowseWhileThingsChange(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"}, bourse.Queue{Name: "r"})
	var bodies []string
	for i := range 200 {
		bodies = append(bodies, fmt.Sprint(i))
	}
	send(t, b, "q", bodies...)
	var got []string
	var last bourse.Locator
	for m, err := range b.Browse(ctx, "q", bourse.BrowseOptions{}) {
		require.NoError(t, err)
		if len(got) == 0 { // some that have been looked at already, of the next page, and of the last
			for _, n := range []int{2, 63, 64, 65, 199} {
				require.NoError(t, b.Cancel(ctx, bourse.Locator{Queue: "q", Seq: uint64(n + 1)}))
			}
			send(t, b, "q", "new")
		}
		got, last = append(got, string(m.Body)), m.Locator
	}
	require.Len(t, got, 197)
	for _, gone := range []string{"64", "65", "199", "new"} {
		require.NotContains(t, got, gone)
	}
	require.NoError(t, b.Cancel(ctx, last))
	require.Equal(t, "new", string(browsed(t, b, "q", bourse.BrowseOptions{After: last})[0].Body))
	// The end of the queue ends it.
	n, failed := 0, error(nil)
	for m, err := range b.Browse(ctx, "q", bourse.BrowseOptions{}) {
		if failed = err; m != nil {
			if n++; n == 10 {
				require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
			}
		}
	}
	require.ErrorIs(t, failed, bourse.ErrQueueGone)
	require.LessOrEqual(t, n, 64, "no more than had been looked at")
}

func TestSemanticsBrowseEnds(t *testing.T) {
	s := openInAllStates(t)
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	n := 0
	for m, err := range s.Browse(short, "q", bourse.BrowseOptions{}) {
		if m == nil {
			require.ErrorIs(t, err, context.Canceled)
			break
		}
		n++
		cancel()
	}
	require.Equal(t, 1, n)
	for range s.Browse(ctx, "q", bourse.BrowseOptions{}) {
		break
	}
}

func TestSemanticsFind(t *testing.T) {
	s := openInAllStates(t)
	m, err := s.Find(ctx, "q", "B")
	require.NoError(t, err)
	require.Equal(t, "b", string(m.Body))
	_, err = s.Find(ctx, "q", "nobody")
	require.ErrorIs(t, err, bourse.ErrNotFound)
	_, err = s.Find(ctx, "no", "B")
	require.ErrorIs(t, err, bourse.ErrNotFound)
	m, err = s.Find(ctx, "q", s.loans[1].ID)
	require.NoError(t, err)
	require.Equal(t, bourse.StateUnacked, m.State)
}

// Cancel removes a message in any state, counted, and not dead-lettered.
func TestSemanticsCancel(t *testing.T) {
	s := openInAllStates(t)
	for i, body := range []string{"a", "d", "e"} {
		l := s.where(t, body)
		require.NoError(t, s.Cancel(ctx, l))
		require.ErrorIs(t, s.Cancel(ctx, l), bourse.ErrNotFound)
		require.EqualValues(t, i+1, stats(t, s.Broker, "q").Cancelled)
	}
	require.ErrorIs(t, s.loans[0].Ack(), bourse.ErrStaleDelivery)
	require.ErrorIs(t, s.loans[0].Extend(time.Hour), bourse.ErrStaleDelivery)
	require.Equal(t, "b", string(next(t, s.sub).Body), "the consumer has room again")
	require.NoError(t, s.loans[1].AckSync(ctx))
	s.clock.advance(t, s.Broker, 2*time.Hour)
	require.Zero(t, stats(t, s.Broker, "q").Dead)
	require.Empty(t, browsed(t, s.Broker, bourse.ParkingQueue, bourse.BrowseOptions{}))
}

// A loan that was not handed over yet goes without a trace.
func TestSemanticsCancelBeforeNext(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	s := consume(t, b, "q", 10)
	send(t, b, "q", "a", "b")
	barrier(t, b, nil)
	require.NoError(t, b.Cancel(ctx, bourse.Locator{Queue: "q", Seq: 1}))
	require.Equal(t, "b", string(next(t, s).Body))
}

func TestSemanticsPromote(t *testing.T) {
	s := openInAllStates(t)
	require.NoError(t, s.Promote(ctx, s.where(t, "d")))
	require.NoError(t, s.Promote(ctx, s.where(t, "d")), "again")
	require.NoError(t, s.Promote(ctx, s.where(t, "a")), "what is ready stays")
	require.Equal(t, "ready:d b a delayed:c unacked:e f ", seen(t, s.Broker, "q"))
	require.ErrorIs(t, s.Promote(ctx, s.where(t, "e")), bourse.ErrNotWaiting)
	require.NoError(t, s.loans[0].Ack())
	require.Equal(t, "d", string(next(t, s.sub).Body))
}

func TestSemanticsSetPriority(t *testing.T) {
	s := openInAllStates(t)
	a := s.where(t, "a")
	require.NoError(t, s.SetPriority(ctx, a, 1))
	require.Equal(t, "ready:a b delayed:d c unacked:e f ", seen(t, s.Broker, "q"), "by arrival at its level")
	require.NoError(t, s.SetPriority(ctx, a, 200))
	require.NoError(t, s.SetPriority(ctx, s.where(t, "d"), 0))
	require.ErrorIs(t, s.SetPriority(ctx, s.where(t, "e"), 2), bourse.ErrNotWaiting)
	s.clock.advance(t, s.Broker, time.Hour)
	require.Equal(t, "ready:a b c d unacked:e f ", seen(t, s.Broker, "q"))
	require.NoError(t, s.loans[0].Ack())
	d := next(t, s.sub)
	require.Equal(t, []any{"a", uint8(0)}, []any{string(d.Body), d.Priority}, "the message itself is as it was")
}

func TestSemanticsEdit(t *testing.T) {
	s := openInAllStates(t)
	edit := func(body string, change func(m *bourse.Message) error) error {
		return s.Edit(ctx, s.where(t, body), change)
	}
	before, err := s.Find(ctx, "q", "B")
	require.NoError(t, err)
	at := time.Unix(5, 0)
	require.NoError(t, edit("b", func(m *bourse.Message) error {
		m.Body, m.Headers, m.Timestamp = []byte("B2"), map[string]any{"new": true}, at
		return nil
	}))
	after, err := s.Find(ctx, "q", "B")
	require.NoError(t, err)
	require.Equal(t, []any{"B2", true, at}, []any{string(after.Body), after.Headers["new"], after.Timestamp})
	after.Message.Body, after.Headers, after.Timestamp = before.Body, before.Headers, before.Timestamp
	require.Equal(t, before.Message, after.Message)
	require.Equal(t, []any{before.Seq, before.EnqueuedAt, before.Level}, []any{after.Seq, after.EnqueuedAt, after.Level})
	// Delayed, with the headers changed in place.
	require.NoError(t, edit("d", func(m *bourse.Message) error { m.Headers["h"] = 2; return nil }))
	all := browsed(t, s.Broker, "q", bourse.BrowseOptions{States: []bourse.State{bourse.StateDelayed}})
	require.EqualValues(t, 2, all[0].Headers["h"])
	require.True(t, s.clock.Now().Add(time.Minute).Equal(all[0].ReadyAt))
	// Refused: nothing changes.
	refuse := errors.New("no")
	require.ErrorIs(t, edit("a", func(m *bourse.Message) error { m.Body = nil; return refuse }), refuse)
	for _, change := range []func(m *bourse.Message){
		func(m *bourse.Message) { m.ID = "other" }, func(m *bourse.Message) { m.Priority = 2 },
		func(m *bourse.Message) { m.RoutingKey = "r" }, func(m *bourse.Message) { m.Exchange = "x" },
		func(m *bourse.Message) { m.TTL = 1 }, func(m *bourse.Message) { m.Delay = 1 }, func(m *bourse.Message) { m.Mandatory = true },
		func(m *bourse.Message) { m.Body = make([]byte, bourse.DefaultBodyBytes+1) },
		func(m *bourse.Message) { m.Headers = map[string]any{"": 1} },
	} {
		require.ErrorIs(t, edit("a", func(m *bourse.Message) error { change(m); return nil }), bourse.ErrInvalid)
	}
	require.ErrorIs(t, edit("e", func(*bourse.Message) error { return nil }), bourse.ErrNotWaiting)
	require.Equal(t, "ready:B2 a delayed:d c unacked:e f ", seen(t, s.Broker, "q"))
	require.NoError(t, bourse.References(s.Broker))
	require.NoError(t, s.loans[0].Ack())
	require.Equal(t, "B2", string(next(t, s.sub).Body))
}

// Two who edit at the same time both have their effect.
func TestSemanticsEditTogether(t *testing.T) {
	s := openInAllStates(t)
	calls := 0
	require.NoError(t, s.Edit(ctx, s.where(t, "a"), func(m *bourse.Message) error {
		if calls++; calls == 1 {
			require.NoError(t, s.Edit(ctx, s.where(t, "a"), func(m *bourse.Message) error { m.Body = append(m.Body, '1'); return nil }))
		}
		m.Body = append(m.Body, '2')
		return nil
	}))
	require.Equal(t, 2, calls)
	require.Equal(t, "ready:b a12 delayed:d c unacked:e f ", seen(t, s.Broker, "q"))
	// One that is lent meanwhile stays as it is.
	require.ErrorIs(t, s.Edit(ctx, s.where(t, "b"), func(m *bourse.Message) error {
		require.NoError(t, s.loans[0].AckSync(ctx))
		m.Body = nil
		return nil
	}), bourse.ErrNotWaiting)
	require.Equal(t, "b", string(next(t, s.sub).Body))
}

// A locator means the message of one queue, whatever has the name later.
func TestSemanticsLocator(t *testing.T) {
	s := openInAllStates(t)
	a := s.where(t, "a")
	require.NoError(t, s.Delete(ctx, bourse.Queue{Name: "q"}))
	gone := func(is error) {
		require.ErrorIs(t, s.Cancel(ctx, a), is)
		require.ErrorIs(t, s.Promote(ctx, a), is)
		require.ErrorIs(t, s.SetPriority(ctx, a, 1), is)
		require.ErrorIs(t, s.Edit(ctx, a, func(*bourse.Message) error { return nil }), is)
		for _, err := range s.Browse(ctx, "q", bourse.BrowseOptions{After: a}) {
			require.ErrorIs(t, err, is)
		}
	}
	gone(bourse.ErrQueueGone)
	require.NoError(t, s.Declare(ctx, bourse.Queue{Name: "q"}))
	send(t, s.Broker, "q", "1", "2", "3", "4", "5", "6")
	gone(bourse.ErrQueueGone)
	require.NoError(t, s.Cancel(ctx, bourse.Locator{Queue: "q", Seq: a.Seq}), "the name alone is of whoever has it")
	require.ErrorIs(t, s.Cancel(ctx, bourse.Locator{Queue: "q"}), bourse.ErrNotFound)
	require.ErrorIs(t, s.Cancel(ctx, bourse.Locator{Queue: "no", Seq: 1}), bourse.ErrNotFound)
}

// Purge removes what is ready and delayed, counts it, and leaves the rest.
func TestSemanticsPurge(t *testing.T) {
	s := openInAllStates(t)
	n, err := s.Purge(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.EqualValues(t, 4, stats(t, s.Broker, "q").Purged)
	require.Equal(t, "unacked:e f ", seen(t, s.Broker, "q"))
	require.NoError(t, s.loans[0].Release(0))
	require.Equal(t, "e", string(next(t, s.sub).Body))
	s.clock.advance(t, s.Broker, 2*time.Hour)
	require.Zero(t, stats(t, s.Broker, "q").Dead)
}

// All of it survives a restart.
func TestSemanticsReviseSurvives(t *testing.T) {
	dir := t.TempDir()
	b := open(t, bourse.Options{Dir: dir}, bourse.Queue{Name: "q", Priorities: 3})
	send(t, b, "q", "a", "b", "c", "d")
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: []byte("e"), Delay: time.Hour}))
	at := func(seq uint64) bourse.Locator { return bourse.Locator{Queue: "q", Seq: seq} }
	require.NoError(t, b.Cancel(ctx, at(1)))
	require.NoError(t, b.SetPriority(ctx, at(3), 2))
	require.NoError(t, b.Edit(ctx, at(4), func(m *bourse.Message) error { m.Body = []byte("D"); return nil }))
	require.NoError(t, b.Promote(ctx, at(5)))
	require.NoError(t, b.Close())
	b = open(t, bourse.Options{Dir: dir})
	require.Equal(t, "ready:c b D e ", seen(t, b, "q"))
	require.EqualValues(t, 1, stats(t, b, "q").Cancelled)
	require.NoError(t, bourse.References(b))
}
