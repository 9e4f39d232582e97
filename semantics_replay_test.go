package bourse_test

// Goal: the rules of SEMANTICS 10 for Replay are cases here: what goes where, in what order, with which counts and history, what
// stays and why, how fast, and that a crash at any step leaves each message in exactly one queue. Method: brokers in memory,
// time in a synctest bubble, and crashes as copies of the disk taken before each step.

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// die publishes the bodies to queue and rejects each.
func die(t testing.TB, b *bourse.Broker, queue string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: queue, ID: body, Body: []byte(body)}))
	}
	s, err := b.Subscribe(ctx, queue, bourse.SubscribeOptions{Prefetch: len(bodies)})
	require.NoError(t, err)
	for range bodies {
		require.NoError(t, next(t, s).Reject("no"))
	}
	require.NoError(t, s.Close())
	barrier(t, b, nil)
}

func replay(t testing.TB, b *bourse.Broker, from string, opts bourse.ReplayOptions) bourse.Replayed {
	t.Helper()
	r, err := b.Replay(ctx, from, opts)
	require.NoError(t, err)
	return r
}

func TestSemanticsReplay(t *testing.T) {
	b := open(t, bourse.Options{},
		bourse.Exchange{Name: "in", Kind: bourse.Topic}, bourse.Exchange{Name: "dead", Kind: bourse.Fanout},
		bourse.Queue{Name: "q", Priorities: 3, DeadLetter: bourse.DeadLetter{Exchange: "dead", RoutingKey: "d"}},
		bourse.Queue{Name: "sibling"}, bourse.Queue{Name: "graves"}, bourse.Queue{Name: "mirror"},
		bourse.Binding{Exchange: "dead", Queue: "graves"}, bourse.Binding{Exchange: "dead", Queue: "mirror"},
		bourse.Binding{Exchange: "in", Queue: "q", Key: "#"}, bourse.Binding{Exchange: "in", Queue: "sibling", Key: "#"})
	for i, p := range []uint8{0, 2, 1} {
		require.NoError(t, b.Publish(ctx, bourse.Message{
			Exchange: "in", RoutingKey: fmt.Sprintf("k.%d", i), Priority: p, TTL: time.Hour, ID: fmt.Sprint(i),
			Headers: map[string]any{"n": i}, Body: []byte(fmt.Sprint("m", i)),
		}))
	}
	s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 3})
	require.NoError(t, err)
	require.NoError(t, next(t, s).Reject("no"))
	for range 2 {
		require.NoError(t, next(t, s).Reject("no"))
	}
	barrier(t, b, nil)
	require.NoError(t, s.Close())
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Priority: 2, Body: []byte("there")}))
	published := b.Stats().Published
	require.Equal(t, bourse.Replayed{Moved: 3}, replay(t, b, "graves", bourse.ReplayOptions{}))
	// Directly: no sibling gets a copy; the other dead-letter queue has its own.
	require.Equal(t, published, b.Stats().Published)
	require.Equal(t, []int{4, 3, 0, 3}, []int{stats(t, b, "q").Ready, stats(t, b, "sibling").Ready, stats(t, b, "graves").Ready,
		stats(t, b, "mirror").Ready})
	require.EqualValues(t, 3, stats(t, b, "graves").Replayed)
	// At the end of its level, as it was before, with its history.
	require.Equal(t, "ready:there m1 m2 m0 ", seen(t, b, "q"))
	m := browsed(t, b, "q", bourse.BrowseOptions{})[1]
	require.Equal(t, []any{"1", "in", "k.1", uint8(2), int64(1), 0, 0, time.Duration(0)},
		[]any{m.ID, m.Exchange, m.RoutingKey, m.Priority, m.Headers["n"], m.Deliveries, m.Failures, m.TTL})
	require.Len(t, m.Deaths, 1)
	death := m.Deaths[0]
	require.Equal(t, []any{"q", bourse.ReasonRejected, 1, time.Hour}, []any{death.Queue, death.Reason, death.Count, death.TTL})
	require.NoError(t, bourse.References(b))
	// It dies again: counted in the same entry.
	s = consume(t, b, "q", 4)
	for range 4 {
		require.NoError(t, next(t, s).Reject("again"))
	}
	barrier(t, b, nil)
	m, err = b.Find(ctx, "graves", "1")
	require.NoError(t, err)
	require.Equal(t, []any{1, 2, "again"}, []any{len(m.Deaths), m.Deaths[0].Count, m.Deaths[0].Note})
}

// Each message goes where it died; one whose queue is gone stays, and the rest go on.
func TestSemanticsReplayTargets(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"}, bourse.Queue{Name: "r"}, bourse.Queue{Name: "gone"})
	die(t, b, "q", "q1", "q2")
	die(t, b, "gone", "g1", "g2")
	die(t, b, "r", "r1")
	require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "gone"}))
	r := replay(t, b, bourse.ParkingQueue, bourse.ReplayOptions{})
	require.Equal(t, []int{3, 0, 2}, []int{r.Moved, r.Skipped, r.Failed})
	require.Len(t, r.Failures, 2)
	for i, f := range r.Failures {
		require.ErrorIs(t, f.Err, bourse.ErrQueueGone)
		require.ErrorContains(t, f.Err, `"gone"`)
		require.Equal(t, []any{bourse.ParkingQueue, fmt.Sprint("g", i+1)}, []any{f.Queue, f.ID})
	}
	require.Equal(t, []string{"ready:q1 q2 ", "ready:r1 ", "ready:g1 g2 "},
		[]string{seen(t, b, "q"), seen(t, b, "r"), seen(t, b, bourse.ParkingQueue)})
	// The queue is there again: so they can go.
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "gone"}))
	require.Equal(t, bourse.Replayed{Moved: 2}, replay(t, b, bourse.ParkingQueue, bourse.ReplayOptions{}))
}

func TestSemanticsReplayChoice(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	die(t, b, "q", "1", "2", "3", "4", "5", "6", "7", "8")
	from := bourse.ParkingQueue
	odd := func(m *bourse.Browsed) bool { return m.Body[0]%2 == 1 }
	r := replay(t, b, from, bourse.ReplayOptions{IDs: []string{"2", "5", "none"}})
	require.Equal(t, []int{2, 0, 1}, []int{r.Moved, r.Skipped, r.Failed})
	require.Equal(t, "none", r.Failures[0].ID)
	require.ErrorIs(t, r.Failures[0].Err, bourse.ErrNotFound)
	require.Equal(t, bourse.Replayed{Moved: 2}, replay(t, b, from, bourse.ReplayOptions{Filter: odd, Limit: 2}))
	require.Equal(t, "ready:2 5 1 3 ", seen(t, b, "q"))
	require.Equal(t, bourse.Replayed{Moved: 1}, replay(t, b, from, bourse.ReplayOptions{Filter: odd, Limit: 2}))
	require.Equal(t, bourse.Replayed{Moved: 3}, replay(t, b, from, bourse.ReplayOptions{}))
	require.Equal(t, bourse.Replayed{}, replay(t, b, from, bourse.ReplayOptions{}))
}

// Only what is ready or delayed goes; what has not died stays; what is named and on loan is skipped.
func TestSemanticsReplayStates(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"})
	die(t, b, "q", "1", "2", "3")
	from := bourse.ParkingQueue
	s := consume(t, b, from, 2)
	require.NoError(t, next(t, s).NackAfter(time.Hour))
	lent := []*bourse.Delivery{next(t, s), next(t, s)}
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: from, Body: []byte("live")}))
	require.Equal(t, "ready:live delayed:1 ", seen(t, b, from, bourse.StateReady, bourse.StateDelayed))
	require.Equal(t, bourse.Replayed{Moved: 1, Skipped: 1}, replay(t, b, from, bourse.ReplayOptions{}))
	require.Equal(t, "ready:1 ", seen(t, b, "q"))
	r := replay(t, b, from, bourse.ReplayOptions{IDs: []string{"2"}})
	require.Equal(t, []int{0, 1}, []int{r.Moved, r.Failed}, "not among what waits")
	// It goes on loan after it was looked at.
	require.NoError(t, s.Close())
	require.ErrorIs(t, lent[0].Ack(), bourse.ErrUnknownDelivery)
	took := false
	lend := func(*bourse.Browsed) bool {
		if !took {
			took = true
			_, err := b.Get(ctx, from)
			require.NoError(t, err)
		}
		return true
	}
	require.Equal(t, bourse.Replayed{Moved: 1, Skipped: 2}, replay(t, b, from, bourse.ReplayOptions{Filter: lend}))
}

// What is edited between the look and the move goes as it is then.
func TestSemanticsReplayOfTheEdited(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	die(t, b, "q", "1", "2")
	change := func(m *bourse.Browsed) bool {
		if m.ID == "2" {
			require.NoError(t, b.Cancel(ctx, m.Locator))
			return true
		}
		require.NoError(t, b.Edit(ctx, m.Locator, func(m *bourse.Message) error { m.Body = []byte("new"); return nil }))
		return true
	}
	require.Equal(t, bourse.Replayed{Moved: 1, Skipped: 1}, replay(t, b, bourse.ParkingQueue, bourse.ReplayOptions{Filter: change}))
	require.Equal(t, "ready:new ", seen(t, b, "q"))
	require.NoError(t, bourse.References(b))
}

// Messages that die again at once are not moved for ever.
func TestSemanticsReplayEnds(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	var bodies []string
	for i := range 300 {
		bodies = append(bodies, fmt.Sprint(i))
	}
	die(t, b, "q", bodies...)
	working, stop := context.WithCancel(ctx)
	worked := make(chan error)
	go func() { // ends by stop
		reject := func(context.Context, *bourse.Delivery) error { return bourse.Reject(errors.New("no")) }
		worked <- b.Work(working, "q", reject, bourse.WorkOptions{})
	}()
	for stats(t, b, "q").Consumers == 0 {
		runtime.Gosched()
	}
	require.Equal(t, 300, replay(t, b, bourse.ParkingQueue, bourse.ReplayOptions{}).Moved)
	stop()
	require.NoError(t, <-worked)
	barrier(t, b, nil)
	require.Equal(t, 300, stats(t, b, bourse.ParkingQueue).Ready+stats(t, b, "q").Ready)
}

// Rate spreads the moves evenly over the broker's time, whatever the number.
func TestSemanticsReplayRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		die(t, b, "q", "1", "2", "3", "4", "5")
		start := time.Now()
		r, err := b.Replay(ctx, bourse.ParkingQueue, bourse.ReplayOptions{Rate: 4})
		require.NoError(t, err)
		require.Equal(t, 5, r.Moved)
		require.Equal(t, time.Second, time.Since(start))
		var gaps []time.Duration
		for _, m := range browsed(t, b, "q", bourse.BrowseOptions{}) {
			gaps = append(gaps, m.EnqueuedAt.Sub(start))
		}
		require.Equal(t, []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond, time.Second}, gaps)
		// The end of ctx and that of the broker end it.
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		require.NoError(t, err)
		for range 5 {
			require.NoError(t, next(t, s).Reject("no"))
		}
		barrier(t, b, nil)
		require.NoError(t, s.Close())
		short, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
		defer cancel()
		r, err = b.Replay(short, bourse.ParkingQueue, bourse.ReplayOptions{Rate: 1})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 2, r.Moved)
		go func() { // ends with Close
			<-time.After(1500 * time.Millisecond)
			_ = b.Close()
		}()
		r, err = b.Replay(ctx, bourse.ParkingQueue, bourse.ReplayOptions{Rate: 1})
		require.ErrorIs(t, err, bourse.ErrClosed)
		require.Equal(t, 2, r.Moved)
		require.NoError(t, b.Close())
	})
}

// A crash before any step of a Replay leaves every message in exactly one queue, and a second Replay brings the rest.
func TestSemanticsReplayCrash(t *testing.T) {
	const n = 200
	fs := new(storage.MemFS)
	var images []*storage.MemFS
	taking := false
	engine := &hookedEngine{Engine: onFS(t, fs), closing: func() {}}
	engine.propose = func() {
		if taking {
			images = append(images, crashed(fs))
		}
	}
	b := open(t, bourse.Options{Engine: engine}, bourse.Queue{Name: "q"})
	var bodies []string
	for i := range n {
		bodies = append(bodies, fmt.Sprint(i))
	}
	die(t, b, "q", bodies...)
	taking = true
	require.Equal(t, bourse.Replayed{Moved: n}, replay(t, b, bourse.ParkingQueue, bourse.ReplayOptions{}))
	taking = false
	require.NotEmpty(t, images)
	between := 0
	for i, image := range images {
		if i%10 != 0 && i != len(images)-1 {
			continue
		}
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, image)})
		require.NoError(t, err)
		check := func() (parked int) {
			held, err := bourse.Browse(b, bourse.ParkingQueue)
			require.NoError(t, err)
			moved, err := bourse.Browse(b, "q")
			require.NoError(t, err)
			var ids []string
			for _, h := range append(moved, held...) {
				ids = append(ids, h.Message.ID)
			}
			slices.Sort(ids)
			require.Len(t, slices.Compact(ids), n, "each message is in one queue")
			require.Len(t, ids, n)
			require.NoError(t, bourse.References(b))
			return len(held)
		}
		parked := check()
		if parked > 0 && parked < n {
			between++
		}
		require.Equal(t, parked, replay(t, b, bourse.ParkingQueue, bourse.ReplayOptions{}).Moved)
		require.Zero(t, check())
		require.NoError(t, b.Close())
	}
	require.NotZero(t, between, "no crash was in the middle")
}
