package bourse_test

// Goal: the promises of the API that a single call does not show: order, fan-out, dead letters, restarts and crashes,
// confirms, back-pressure, and many goroutines at once. Method: small scenarios against a broker in memory, with the
// file system of a killed process where one is needed (MemFS.Crash), and syncs that are held where the moment
// before durability matters. Every test ends with a look for goroutines that were left.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

func TestOrderByArrival(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	var want []string
	for i := range 300 { // more than one block of the ready set
		want = append(want, fmt.Sprint(i))
	}
	send(t, b, "q", want...)
	s := consume(t, b, "q", 100)
	var held []*bourse.Delivery
	for range 100 {
		held = append(held, next(t, s))
	}
	for _, i := range []int{50, 3, 99, 0, 7} { // back in any order
		require.NoError(t, held[i].Release(0))
	}
	require.NoError(t, s.Close()) // and the rest
	require.Equal(t, want, drain(t, b, "q"))
}

func TestPrioritiesOvertake(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", Priorities: 3})
	for i, p := range []uint8{0, 2, 1, 255, 0, 1, 2} {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Priority: p, Body: []byte(fmt.Sprint(p, "-", i))}))
	}
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "2-1", string(d.Body))
	require.NoError(t, d.Nack()) // keeps its level and place
	require.Equal(t, []string{"2-1", "255-3", "2-6", "1-2", "1-5", "0-0", "0-4"}, drain(t, b, "q"))
}

// Priorities above the levels of one queue are kept for the next.
func TestPriorityIsCarried(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Exchange{Name: "dlx"}, bourse.Queue{Name: "flat",
		DeadLetter: bourse.DeadLetter{Exchange: "dlx"}},
		bourse.Queue{Name: "levels", Priorities: 256}, bourse.Binding{Exchange: "dlx", Queue: "levels", Key: "flat"})
	for _, p := range []uint8{7, 200, 100} {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "flat", Priority: p, Body: []byte(fmt.Sprint(p))}))
	}
	for range 3 {
		d, err := b.Get(ctx, "flat")
		require.NoError(t, err)
		require.NoError(t, d.Reject(""))
	}
	barrier(t, b, nil)
	require.Equal(t, []string{"200", "100", "7"}, drain(t, b, "levels"))
}

func TestFanoutIsStoredOnce(t *testing.T) {
	const n = 5
	ds := []bourse.Declaration{bourse.Exchange{Name: "all", Kind: bourse.Fanout}}
	for i := range n {
		name := fmt.Sprint("q", i)
		ds = append(ds, bourse.Queue{Name: name}, bourse.Binding{Exchange: "all", Queue: name},
			bourse.Binding{Exchange: "all", Queue: name, Key: "a second binding is no second copy"})
	}
	b := open(t, bourse.Options{}, ds...)
	before := b.Stats().Storage
	body := make([]byte, 10_000)
	require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "all", ID: "m", Body: body}))
	after := b.Stats().Storage
	require.EqualValues(t, 1, after.Records-before.Records)
	require.Less(t, after.Written-before.Written, uint64(2*len(body)))
	require.EqualValues(t, n, after.References-before.References)

	var copies []*bourse.Delivery
	for i := range n {
		d, err := b.Get(ctx, fmt.Sprint("q", i))
		require.NoError(t, err)
		require.Equal(t, "m", d.ID)
		d.Body[0] = byte(i + 1) // is the receiver's own
		copies = append(copies, d)
	}
	require.NoError(t, copies[0].Ack())
	require.NoError(t, copies[1].Nack())
	require.NoError(t, copies[2].Reject("no"))
	d, err := b.Get(ctx, "q1")
	require.NoError(t, err)
	require.Equal(t, []int{2, 1, 0}, []int{d.Deliveries, d.Failures, int(d.Body[0])})
	require.Equal(t, 1, stats(t, b, "q3").Unacked)
	for _, d := range []*bourse.Delivery{d, copies[3], copies[4]} {
		require.NoError(t, d.Ack())
	}
	barrier(t, b, nil)
	require.Equal(t, []string{string(body)}, drain(t, b, bourse.ParkingQueue))
	barrier(t, b, nil)
	require.Equal(t, before.References, b.Stats().Storage.References)
}

// deaths is a history in short: queue/reason/count.
func deaths(d *bourse.Delivery) (short []string) {
	for _, x := range d.Deaths {
		short = append(short, fmt.Sprintf("%s/%s/%d", x.Queue, x.Reason, x.Count))
	}
	return short
}

// reject kills the next message of queue and returns the next of target.
func reject(t require.TestingT, b *bourse.Broker, queue, target, why string) *bourse.Delivery {
	d, err := b.Get(ctx, queue)
	require.NoError(t, err)
	require.NoError(t, d.Reject(why))
	barrier(t, b, nil)
	d, err = b.Get(ctx, target)
	require.NoError(t, err)
	return d
}

func TestDeadLetterHistory(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Exchange{Name: "in"}, bourse.Exchange{Name: "dlx"},
		bourse.Queue{Name: "work", DeadLetter: bourse.DeadLetter{Exchange: "dlx", RoutingKey: "again"}},
		bourse.Queue{Name: "again", DeadLetter: bourse.DeadLetter{Exchange: "in", RoutingKey: "work"}},
		bourse.Binding{Exchange: "in", Queue: "work", Key: "work"}, bourse.Binding{Exchange: "dlx", Queue: "again", Key: "again"})
	sent := bourse.Message{Exchange: "in", RoutingKey: "work", ID: "id", Priority: 3, Body: []byte("body"),
		Headers:   map[string]any{"x-death": "mine", "n": 1},
		Timestamp: clock.Now().Add(-time.Hour)}
	require.NoError(t, b.Publish(ctx, sent))
	first := clock.Now()
	d := reject(t, b, "work", "again", "first")
	require.Equal(t, []string{"work/rejected/1"}, deaths(d))
	require.Equal(t, []any{"id", uint8(3), "body", "mine", int64(1)}, []any{d.ID, d.Priority, string(d.Body), d.Headers["x-death"],
		d.Headers["n"]})
	require.True(t, sent.Timestamp.Equal(d.Timestamp))
	require.Equal(t, []string{"dlx", "again"}, []string{d.Exchange, d.RoutingKey})
	require.Equal(t, []int{1, 0}, []int{d.Deliveries, d.Failures}, "counters start anew")
	require.NoError(t, d.Release(0))
	clock.advance(t, b, time.Minute)
	d = reject(t, b, "again", "work", "second")
	require.Equal(t, []string{"again/rejected/1", "work/rejected/1"}, deaths(d))
	require.NoError(t, d.Release(0))
	clock.advance(t, b, time.Minute)
	d = reject(t, b, "work", "again", "third")
	require.Equal(t, []string{"work/rejected/2", "again/rejected/1"}, deaths(d), "counted, and moved to the front")
	top := d.Deaths[0]
	require.Equal(t, []string{"third", "in", "work"}, []string{top.Note, top.Exchange, top.RoutingKey}, "the address of the first death")
	require.True(t, top.First.Equal(first))
	require.True(t, top.Last.Equal(first.Add(2*time.Minute)))

	// A client cannot give a message a history.
	require.NoError(t, b.Publish(ctx, d.Message))
	require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "in", RoutingKey: "work", Headers: d.Headers}))
	d, err := b.Get(ctx, "work")
	require.NoError(t, err)
	require.Empty(t, d.Deaths)
}

func TestDeadEnds(t *testing.T) {
	noRetry := func(name, exchange string) bourse.Queue {
		return bourse.Queue{Name: name, MaxRetries: bourse.NoRetry, DeadLetter: bourse.DeadLetter{Exchange: exchange}}
	}
	b := open(t, bourse.Options{}, bourse.Exchange{Name: "nowhere"}, bourse.Exchange{Name: "round", Kind: bourse.Fanout},
		bourse.Exchange{Name: "to-b"}, bourse.Exchange{Name: "to-a"}, bourse.Queue{Name: "none"},
		noRetry("missing", "no such exchange"), noRetry("unrouted", "nowhere"), noRetry("self", "round"), noRetry("a", "to-b"),
		noRetry("b", "to-a"), bourse.Queue{Name: "drop", DeadLetter: bourse.DeadLetter{Discard: true}},
		bourse.Binding{Exchange: "round", Queue: "self"}, bourse.Binding{Exchange: "to-b", Queue: "b", Key: "a"},
		bourse.Binding{Exchange: "to-a", Queue: "a", Key: "a"})
	kill := func(queue string, die func(*bourse.Delivery) error) {
		t.Helper()
		d, err := b.Get(ctx, queue)
		require.NoError(t, err)
		require.NoError(t, die(d))
		barrier(t, b, nil)
	}
	nack := (*bourse.Delivery).Nack
	parked := func(key string, want ...string) {
		t.Helper()
		d, err := b.Get(ctx, bourse.ParkingQueue)
		require.NoError(t, err)
		require.Equal(t, want, deaths(d))
		require.Equal(t, []string{"", key}, []string{d.Exchange, d.RoutingKey}, "the address it died with")
		require.NoError(t, d.AckSync(ctx))
		_, err = b.Get(ctx, bourse.ParkingQueue)
		require.ErrorIs(t, err, bourse.ErrEmpty)
	}
	for _, q := range []string{"none", "missing", "unrouted", "self", "drop", "a"} {
		send(t, b, q, q)
	}
	kill("none", func(d *bourse.Delivery) error { return d.Reject("") })
	parked("none", "none/rejected/1")
	kill("missing", nack)
	parked("missing", "missing/unroutable/1", "missing/delivery_limit/1")
	kill("unrouted", nack)
	parked("unrouted", "unrouted/unroutable/1", "unrouted/delivery_limit/1")
	kill("self", nack)
	parked("self", "self/cycle/1", "self/delivery_limit/1")
	kill("drop", func(d *bourse.Delivery) error { return d.Reject("") })
	q := stats(t, b, "drop")
	require.Equal(t, []uint64{1, 1}, []uint64{q.Dead, q.Discarded})
	require.Zero(t, q.Bytes)

	kill("a", nack) // to b
	kill("b", nack) // b would send it to a, where it died and nobody rejected it since
	d, err := b.Get(ctx, bourse.ParkingQueue)
	require.NoError(t, err)
	require.Equal(t, []string{"b/cycle/1", "b/delivery_limit/1", "a/delivery_limit/1"}, deaths(d))
	require.NoError(t, d.AckSync(ctx))
	send(t, b, "self", "again")
	kill("self", func(d *bourse.Delivery) error { return d.Reject("") }) // a rejection may go round
	require.Equal(t, 1, stats(t, b, "self").Ready)
}

// Nothing that happens to a message in the parking queue loses it.
func TestParkedStays(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	send(t, b, "q", "a")
	d := reject(t, b, "q", bourse.ParkingQueue, "1")
	for range 50 {
		require.NoError(t, d.Nack())
		var err error
		d, err = b.Get(ctx, bourse.ParkingQueue)
		require.NoError(t, err)
	}
	require.NoError(t, d.Reject("even so"))
	barrier(t, b, nil)
	d, err := b.Get(ctx, bourse.ParkingQueue)
	require.NoError(t, err, "a rejected message must not vanish")
	require.Equal(t, "a", string(d.Body))
}

func TestRestartKeepsWhatIsTold(t *testing.T) {
	fs := new(storage.MemFS)
	b := open(t, bourse.Options{Engine: onFS(t, fs)}, bourse.Exchange{Name: "e", Kind: bourse.Topic}, bourse.Queue{Name: "q",
		Priorities: 5},
		bourse.Binding{Exchange: "e", Queue: "q", Key: "a.*"})
	for _, body := range []string{"lent", "failed", "released", "never"} {
		require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e", RoutingKey: "a.b", Body: []byte(body),
			Headers: map[string]any{"h": 1.5}}))
	}
	s := consume(t, b, "q", 3)
	next(t, s)
	require.NoError(t, next(t, s).Nack())
	require.NoError(t, next(t, s).Release(0))
	require.NoError(t, s.Close())
	barrier(t, b, nil)
	before := stats(t, b, "q")
	topology := b.EncodedTopology()
	require.NoError(t, b.Close())

	b = open(t, bourse.Options{Engine: onFS(t, fs)})
	require.Equal(t, topology, b.EncodedTopology())
	after := stats(t, b, "q")
	before.Oldest, after.Oldest = 0, 0
	before.Levels[0].Oldest, after.Levels[0].Oldest = 0, 0
	require.Equal(t, before, after)
	s = consume(t, b, "q", 4)
	for _, want := range []struct {
		body                 string
		deliveries, failures int
	}{{"lent", 2, 0}, {"failed", 3, 1}, {"released", 3, 0}, {"never", 1, 0}} {
		d := next(t, s)
		require.Equal(t, want.body, string(d.Body))
		require.Equal(t, want.failures, d.Failures, want.body)
		require.Equal(t, want.body != "never", d.Redelivered(), "%s: %d deliveries", want.body, d.Deliveries)
		require.Equal(t, 1.5, d.Headers["h"])
	}
}

// A message that kills its process each time is handed out MaxRetries+1 times, and then dead.
func TestPoisonDies(t *testing.T) {
	const retries = 4
	fs := new(storage.MemFS)
	b := open(t, bourse.Options{Engine: onFS(t, fs)}, bourse.Queue{Name: "q", MaxRetries: retries})
	send(t, b, "q", "poison", "neighbour")
	for i := range retries + 1 {
		d := next(t, consume(t, b, "q", 1))
		require.Equal(t, "poison", string(d.Body))
		require.Equal(t, []int{i + 1, i}, []int{d.Deliveries, d.Failures})
		fs = crashed(fs) // the process is gone
		b = open(t, bourse.Options{Engine: onFS(t, fs)})
		barrier(t, b, nil)
	}
	d := next(t, consume(t, b, "q", 1))
	require.Equal(t, "neighbour", string(d.Body))
	require.False(t, d.Redelivered())
	d, err := b.Get(ctx, bourse.ParkingQueue)
	require.NoError(t, err)
	require.Equal(t, []string{"q/delivery_limit/1"}, deaths(d))
}

// What a crash interrupts on the way to a dead-letter queue arrives once.
func TestDyingSurvivesCrash(t *testing.T) {
	fs := new(storage.MemFS)
	b := open(t, bourse.Options{Engine: onFS(t, fs)}, bourse.Queue{Name: "q"})
	for i := range 20 {
		send(t, b, "q", fmt.Sprint(i))
	}
	var at []*storage.MemFS
	for range 20 {
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.NoError(t, d.Reject("no"))
		at = append(at, crashed(fs)) // with the reject written or not, and the move written or not
	}
	for _, fs := range at {
		again := open(t, bourse.Options{Engine: onFS(t, fs)})
		barrier(t, again, nil)
		got := append(drain(t, again, bourse.ParkingQueue), drain(t, again, "q")...)
		slices.Sort(got)
		require.Len(t, got, 20)
		require.Len(t, slices.Compact(got), 20)
		require.NoError(t, again.Close())
	}
}

// A confirm, and a consumer, wait for the sync; a crash before it may lose the message, after it not.
func TestConfirmIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newHeldFS()
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		require.NoError(t, err)
		lost := func(fs *storage.MemFS) int {
			power := fs.Crash(storage.CrashLost, func(int) int { return 0 })
			b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, power)})
			require.NoError(t, err)
			defer func() { require.NoError(t, b.Close()) }()
			return int(stats(t, b, "q").Enqueued)
		}
		fs.hold(true)
		c := b.PublishAsync(ctx, bourse.Message{RoutingKey: "q", Body: []byte("a")})
		synctest.Wait()
		select {
		case <-c.Done():
			t.Fatal("confirmed before the sync")
		default:
		}
		require.NoError(t, c.Err(), "not known yet")
		_, err = s.Next(&lookContext{Context: ctx})
		require.ErrorIs(t, err, context.Canceled, "handed over before the sync")
		late, cancel := context.WithTimeout(ctx, time.Second)
		err = b.Publish(late, bourse.Message{RoutingKey: "q", Body: []byte("b")})
		cancel()
		require.ErrorIs(t, err, bourse.ErrUnknownOutcome)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 2, b.Stats().Pending)
		require.Zero(t, lost(fs.MemFS))
		fs.hold(false)
		require.NoError(t, c.Wait(ctx))
		require.GreaterOrEqual(t, lost(fs.MemFS), 1)
		d := next(t, s)
		require.Equal(t, "a", string(d.Body))

		synctest.Wait() // the sync of b must not be held as well
		fs.hold(true)
		require.NoError(t, d.Ack()) // waits for nothing
		acked := make(chan error, 1)
		d = next(t, s)
		go func() { acked <- d.AckSync(ctx) }()
		synctest.Wait()
		require.Empty(t, acked)
		fs.hold(false)
		require.NoError(t, <-acked)
		power := fs.Crash(storage.CrashLost, func(int) int { return 0 })
		require.NoError(t, b.Close())
		b, err = bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, power)})
		require.NoError(t, err)
		require.EqualValues(t, 2, stats(t, b, "q").Acked)
		require.NoError(t, b.Close())
	})
}

// Acks alone cost no sync.
func TestAckNeedsNoSync(t *testing.T) {
	b := open(t, bourse.Options{Engine: onFS(t, new(storage.MemFS))}, bourse.Queue{Name: "q"})
	for i := range 50 {
		send(t, b, "q", fmt.Sprint(i))
	}
	s := consume(t, b, "q", 10)
	syncs := b.Stats().Storage.Syncs
	for range 50 {
		require.NoError(t, next(t, s).Ack())
	}
	require.Equal(t, syncs, b.Stats().Storage.Syncs)
}

func TestConfirmsInOrder(t *testing.T) {
	b := open(t, bourse.Options{MaxPending: 100}, bourse.Queue{Name: "q"})
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			var cs []*bourse.Confirm
			for i := range 200 {
				cs = append(cs, b.PublishAsync(ctx, bourse.Message{RoutingKey: "q", Body: []byte(fmt.Sprintf("%d %d", g, i))}))
				if err := cs[len(cs)-1].Err(); err != nil {
					t.Error(err)
				}
			}
			for i := len(cs) - 1; i >= 0; i-- {
				// Once the last is done all before it are.
				<-cs[i].Done()
				if i < len(cs)-1 {
					continue
				}
				for _, c := range cs[:i] {
					select {
					case <-c.Done():
					default:
						t.Error("a later publish was confirmed before an earlier one")
					}
				}
			}
		})
	}
	all.Wait()
	last := map[string]int{}
	for _, body := range drain(t, b, "q") {
		var g string
		var i int
		_, err := fmt.Sscan(body, &g, &i)
		require.NoError(t, err)
		require.Equal(t, last[g], i, "publisher %s", g)
		last[g]++
	}
	require.Len(t, last, 8)
}

func TestBatchInParts(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Exchange{Name: "e"}, bourse.Queue{Name: "q"})
	err := b.PublishBatch(ctx, []bourse.Message{
		{RoutingKey: "q", Body: []byte("0")}, {Exchange: "no"}, {RoutingKey: "q", Body: []byte("2")}, {RoutingKey: "q", ID: "\xff"},
		{Exchange: "e", Mandatory: true}, {Exchange: "e"},
	})
	var batch *bourse.BatchError
	require.ErrorAs(t, err, &batch)
	require.ErrorContains(t, err, "3 of 6 messages not stored")
	for i, want := range []error{nil, bourse.ErrNoExchange, nil, bourse.ErrInvalid, bourse.ErrUnroutable, nil} {
		require.ErrorIs(t, batch.Errs[i], want, "message %d", i)
	}
	for _, is := range []error{bourse.ErrNoExchange, bourse.ErrInvalid, bourse.ErrUnroutable} {
		require.ErrorIs(t, err, is)
	}
	require.Equal(t, []string{"0", "2"}, drain(t, b, "q"))
	require.Zero(t, b.Stats().Pending)
}

func TestMaxPendingBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newHeldFS()
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs), MaxPending: 3})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}, bourse.Exchange{Name: "e"}))
		fs.hold(true)
		var cs []*bourse.Confirm
		for range 3 {
			cs = append(cs, b.PublishAsync(ctx, bourse.Message{RoutingKey: "q", Body: []byte("in")}))
		}
		late, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		start := time.Now()
		c := b.PublishAsync(late, bourse.Message{RoutingKey: "q", Body: []byte("late")})
		require.ErrorIs(t, c.Err(), context.DeadlineExceeded)
		require.NotErrorIs(t, c.Err(), bourse.ErrUnknownOutcome, "it was never proposed")
		require.Equal(t, time.Minute, time.Since(start))
		require.ErrorIs(t, b.Publish(late, bourse.Message{RoutingKey: "q"}), context.DeadlineExceeded)
		waiting := make(chan *bourse.Confirm, 1)
		go func() { waiting <- b.PublishAsync(ctx, bourse.Message{RoutingKey: "q", Body: []byte("waits")}) }()
		synctest.Wait()
		require.Empty(t, waiting)
		fs.hold(false)
		for _, c := range append(cs, <-waiting) {
			require.NoError(t, c.Wait(ctx))
		}
		require.Equal(t, []string{"in", "in", "in", "waits"}, drain(t, b, "q"))
		// Refusals give their place back.
		for range 10 {
			require.Error(t, b.Publish(ctx, bourse.Message{Exchange: "no"}))
			require.Error(t, b.Publish(ctx, bourse.Message{Exchange: "e", Mandatory: true}))
			require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e"}))
		}
		require.Zero(t, b.Stats().Pending)
		// Close lets nobody wait for ever.
		fs.hold(true)
		for range 3 {
			b.PublishAsync(ctx, bourse.Message{RoutingKey: "q"})
		}
		go func() { waiting <- b.PublishAsync(ctx, bourse.Message{RoutingKey: "q"}) }()
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		require.ErrorIs(t, (<-waiting).Err(), bourse.ErrClosed)
		fs.hold(false)
		require.NoError(t, <-closed)
	})
}

// Publishers, consumers of all kinds, declarations and deletions at once; then the sums must be right.
func TestManyAtOnce(t *testing.T) {
	const publishers, each = 4, 200
	b := open(t, bourse.Options{MaxPending: 50}, bourse.Exchange{Name: "e", Kind: bourse.Fanout}, bourse.Queue{Name: "q",
		MaxRetries: bourse.NoLimit},
		bourse.Queue{Name: "copy"}, bourse.Binding{Exchange: "e", Queue: "q"}, bourse.Binding{Exchange: "e", Queue: "copy"})
	var seen sync.Map
	var acked atomic.Int64
	done, finish := context.WithCancel(ctx)
	var consumers, others sync.WaitGroup
	handle := func(n int, d *bourse.Delivery) error {
		switch n % 4 {
		case 0:
			return d.Release(0)
		case 1:
			return d.Nack()
		}
		if _, again := seen.LoadOrStore(string(d.Body), true); again {
			t.Errorf("%s was acked twice", d.Body)
		}
		if acked.Add(1) == publishers*each {
			finish()
		}
		return d.AckSync(ctx)
	}
	for i := range 3 {
		consumers.Go(func() {
			for n := i; done.Err() == nil; n++ {
				s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 5})
				if err != nil {
					t.Error(err)
					return
				}
				for range 20 {
					d, err := s.Next(done)
					if err != nil {
						break
					}
					if err := handle(n+int(d.Tag), d); err != nil {
						t.Error(err)
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	others.Go(func() {
		for i := 0; done.Err() == nil; i++ {
			q := bourse.Queue{Name: fmt.Sprint("passing", i%3)}
			if err := b.Declare(ctx, q, bourse.Binding{Exchange: "e", Queue: q.Name}); err != nil {
				t.Error(err)
			}
			d, err := b.Get(ctx, q.Name)
			if err == nil {
				err = d.Ack()
			}
			if err != nil && !errors.Is(err, bourse.ErrEmpty) {
				t.Error(err)
			}
			if err := b.Delete(ctx, q); err != nil {
				t.Error(err)
			}
		}
	})
	var publishing sync.WaitGroup
	for p := range publishers {
		publishing.Go(func() {
			for i := range each {
				if err := b.Publish(ctx, bourse.Message{Exchange: "e", Body: fmt.Appendf(nil, "%d %d", p, i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	publishing.Wait()
	consumers.Wait()
	others.Wait()
	q := stats(t, b, "q")
	require.EqualValues(t, publishers*each, q.Acked)
	require.Zero(t, q.Ready+q.Unacked+q.Delayed+q.Dying)
	require.Equal(t, publishers*each, stats(t, b, "copy").Ready)
	require.EqualValues(t, publishers*each, b.Stats().Published)
	_, err := b.Purge(ctx, "copy")
	require.NoError(t, err)
	require.Zero(t, b.Stats().Storage.References, "nothing refers to the log any more")
}

// Close in the middle of everything: every call returns, and what was confirmed is there afterwards.
func TestCloseDuringEverything(t *testing.T) {
	noLeaks(t)
	for round := range 20 {
		fs := new(storage.MemFS)
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs), MaxPending: 5})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}, bourse.Queue{Name: "r"}))
		var confirmed atomic.Int64
		var all sync.WaitGroup
		busy := make(chan struct{}, 1000)
		repeat := func(call func() error) {
			all.Go(func() {
				for {
					err := call()
					switch {
					case errors.Is(err, bourse.ErrClosed) || errors.Is(err, bourse.ErrUnknownDelivery):
						return
					case err != nil && !errors.Is(err, bourse.ErrEmpty):
						t.Error(err)
						return
					}
					select {
					case busy <- struct{}{}:
					default:
					}
				}
			})
		}
		for range 3 {
			repeat(func() error {
				err := b.Publish(ctx, bourse.Message{RoutingKey: "q"})
				if err == nil {
					confirmed.Add(1)
				}
				return err
			})
		}
		repeat(func() error {
			return b.Work(ctx, "q", func(_ context.Context, d *bourse.Delivery) error { return d.Release(0) },
				bourse.WorkOptions{})
		})
		repeat(func() error {
			s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 3})
			if err != nil {
				return err
			}
			d, err := s.Next(ctx)
			if err == nil {
				err = d.Release(0)
			}
			return errors.Join(err, s.Close())
		})
		repeat(func() error { _, err := b.Get(ctx, "r"); return err })
		repeat(func() error { return b.Declare(ctx, bourse.Queue{Name: "s"}) })
		repeat(func() error { return b.Delete(ctx, bourse.Queue{Name: "s"}) })
		repeat(func() error { b.Stats(); _, err := b.Purge(ctx, "r"); return err })
		for range 20 * (round + 1) {
			<-busy
		}
		var closing sync.WaitGroup
		for range 3 {
			closing.Go(func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		closing.Wait()
		all.Wait()
		b, err = bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
		require.NoError(t, err)
		q := stats(t, b, "q")
		require.GreaterOrEqual(t, int64(q.Ready), confirmed.Load())
		require.Zero(t, q.Failed, "a close in good order counts no failure")
		require.NoError(t, b.Close())
	}
}

// Many wait on one subscription: each message wakes one, and the end wakes all.
func TestManyWaitForNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		require.NoError(t, err)
		got := make(chan error, 6)
		for range 6 {
			go func() { _, err := s.Next(ctx); got <- err }()
		}
		start := time.Now()
		synctest.Wait()
		require.NoError(t, b.PublishBatch(ctx, []bourse.Message{{RoutingKey: "q"}, {RoutingKey: "q"}, {RoutingKey: "q"}}))
		for range 3 {
			require.NoError(t, <-got)
		}
		synctest.Wait()
		require.Empty(t, got)
		require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
		for range 3 {
			require.ErrorIs(t, <-got, bourse.ErrQueueGone)
		}
		require.Zero(t, time.Since(start), "nobody waited for a deadline")
		require.NoError(t, b.Close())
	})
}

// What is confirmed, or refused, gives its bytes back.
func TestPendingBytesComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newHeldFS()
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs), MaxPendingBytes: 1000})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
		for range 3 {
			require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: make([]byte, 5000)}), "one always fits")
			require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "nowhere", Body: make([]byte, 500)}))
			require.Error(t, b.Publish(ctx, bourse.Message{Exchange: "no", Body: make([]byte, 500)}))
		}
		fs.hold(true)
		late, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var cs []*bourse.Confirm
		for range 2 {
			cs = append(cs, b.PublishAsync(late, bourse.Message{RoutingKey: "q", Body: make([]byte, 500)}))
		}
		require.ErrorIs(t, b.PublishAsync(late, bourse.Message{RoutingKey: "q", Body: make([]byte, 1)}).Err(), context.DeadlineExceeded)
		fs.hold(false)
		for _, c := range cs {
			require.NoError(t, c.Wait(ctx))
		}
		require.NoError(t, b.Close())
	})
}
