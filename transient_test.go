package bourse_test

// Goal: a transient queue does what any queue does, and nothing of it comes to the log or survives its broker. Method: the same
// steps on both kinds where they must not differ, records of the log counted where nothing may be written, restarts and crashes.

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

func TestTransientWritesNothing(t *testing.T) {
	b := open(t, bourse.Options{Dir: t.TempDir()}, bourse.Queue{Name: "q", Transient: true, Priorities: 3})
	barrier(t, b, nil)
	before := b.Stats().Storage.Records
	s := consume(t, b, "q", 10)
	for i := range 100 {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Priority: uint8(i % 3), Body: fmt.Append(nil, i)}))
		d := next(t, s)
		require.Equal(t, fmt.Sprint(i), string(d.Body))
		switch i % 4 {
		case 0:
			require.NoError(t, d.Nack())
			d = next(t, s)
			require.Equal(t, []int{2, 1}, []int{d.Deliveries, d.Failures})
			require.NoError(t, d.AckSync(ctx))
		case 1:
			require.NoError(t, s.AckUpTo(d.Tag))
		default:
			require.NoError(t, d.Ack())
		}
	}
	require.NoError(t, s.Close())
	require.Equal(t, before, b.Stats().Storage.Records)
	q := stats(t, b, "q")
	require.Equal(t, []uint64{100, 125, 100}, []uint64{q.Enqueued, q.Delivered, q.Acked})
}

// The same steps give the same on both kinds of queues.
func TestTransientAsDurable(t *testing.T) {
	def := bourse.Queue{
		Name: "q", Priorities: 4, MaxRetries: 1, Retry: bourse.Backoff{Min: time.Second}, AckDeadline: time.Minute, TTL: time.Hour,
	}
	script := func(t *testing.T, transient bool) (seen []string) {
		clock := newHandClock()
		def.Transient = transient
		b := open(t, bourse.Options{Clock: clock}, def)
		note := func(format string, args ...any) { seen = append(seen, fmt.Sprintf(format, args...)) }
		take := func(s *bourse.Subscription) *bourse.Delivery {
			d := next(t, s)
			note("%s tag %d deliveries %d failures %d after %v", d.Body, d.Tag, d.Deliveries, d.Failures, clock.Now().Sub(d.EnqueuedAt))
			return d
		}
		for i, m := range []bourse.Message{
			{Priority: 1}, {Priority: 3}, {}, {Priority: 9}, {Delay: 10 * time.Second}, {TTL: 5 * time.Second},
		} {
			sendWith(t, b, "q", fmt.Sprint("m", i), m)
		}
		s := consume(t, b, "q", 2)
		a, c := take(s), take(s)
		require.NoError(t, a.Nack())
		require.NoError(t, c.Ack())
		a, c = take(s), take(s)
		require.NoError(t, a.Release(0))
		require.NoError(t, c.Reject("no"))
		clock.advance(t, b, time.Second)
		note("%d left", stats(t, b, "q").Ready)
		require.NoError(t, s.Close())
		clock.advance(t, b, 20*time.Second)
		note("%q", drain(t, b, "q"))
		q := stats(t, b, "q")
		note("%+v", q)
		note("%q", drain(t, b, bourse.ParkingQueue))
		n, err := b.Purge(ctx, "q")
		note("purged %d, %v", n, err)
		require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
		_, err = b.Get(ctx, "q")
		require.ErrorIs(t, err, bourse.ErrNotFound)
		return seen
	}
	var durable, transient []string
	t.Run("durable", func(t *testing.T) { durable = script(t, false) })
	t.Run("transient", func(t *testing.T) { transient = script(t, true) })
	require.Equal(t, durable, transient)
}

// After a restart and after a crash the queue, its bindings and its messages are gone; another of that name starts empty.
func TestTransientIsGone(t *testing.T) {
	for _, how := range []string{"closed", "crashed"} {
		t.Run(how, func(t *testing.T) {
			fs := &storage.MemFS{}
			ds := []bourse.Declaration{
				bourse.Exchange{Name: "e", Kind: bourse.Fanout}, bourse.Queue{Name: "d"}, bourse.Queue{Name: "q", Transient: true},
				bourse.Binding{Exchange: "e", Queue: "d"}, bourse.Binding{Exchange: "e", Queue: "q"},
			}
			b := open(t, bourse.Options{Engine: onFS(t, fs)}, ds...)
			require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e", Body: []byte("both")}))
			require.Equal(t, 1, stats(t, b, "q").Ready)
			if how == "closed" {
				require.NoError(t, b.Close())
			} else {
				fs = crashed(fs)
			}
			b = open(t, bourse.Options{Engine: onFS(t, fs)})
			require.ErrorIs(t, b.Check(bourse.Queue{Name: "q", Transient: true}), bourse.ErrNotFound)
			require.ErrorIs(t, b.Check(ds[4]), bourse.ErrNotFound)
			require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e", Body: []byte("one")}))
			require.NoError(t, b.Declare(ctx, ds...))
			require.Zero(t, stats(t, b, "q").Ready)
			require.Equal(t, []string{"both", "one"}, drain(t, b, "d"))
			require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e", Body: []byte("again")}))
			require.Equal(t, []string{"again"}, drain(t, b, "q"))
		})
	}
}

// Dead letters go from one kind to the other, and to both.
func TestTransientDeadLetters(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Exchange{Name: "dead", Kind: bourse.Topic},
		bourse.Queue{
			Name: "t", Transient: true, MaxRetries: bourse.NoRetry, DeadLetter: bourse.DeadLetter{Exchange: "dead", RoutingKey: "t"},
		},
		bourse.Queue{Name: "d", MaxRetries: bourse.NoRetry, DeadLetter: bourse.DeadLetter{Exchange: "dead", RoutingKey: "d"}},
		bourse.Queue{Name: "td", Transient: true}, bourse.Queue{Name: "dd"},
		bourse.Binding{Exchange: "dead", Queue: "td", Key: "#"}, bourse.Binding{Exchange: "dead", Queue: "dd", Key: "#"},
		bourse.Queue{Name: "alone", Transient: true, MaxRetries: bourse.NoRetry})
	for _, queue := range []string{"t", "d", "alone"} {
		send(t, b, queue, "from "+queue)
		d, err := b.Get(ctx, queue)
		require.NoError(t, err)
		require.NoError(t, d.Nack())
		barrier(t, b, nil)
		require.Zero(t, stats(t, b, queue).Dying)
	}
	require.Equal(t, []string{"from t", "from d"}, drain(t, b, "td"))
	require.Equal(t, []string{"from t", "from d"}, drain(t, b, "dd"))
	require.Equal(t, []string{"from alone"}, drain(t, b, bourse.ParkingQueue))
}

func TestTransientRefusals(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", Transient: true}, bourse.Queue{Name: "d"})
	var differs *bourse.PreconditionError
	require.ErrorAs(t, b.Declare(ctx, bourse.Queue{Name: "q"}), &differs)
	require.Equal(t, []bourse.FieldDiff{{Field: "Transient", Have: "true", Want: "false"}}, differs.Fields)
	var invalid *bourse.InvalidError
	require.ErrorAs(t, b.DeleteIf(ctx, bourse.DeleteOnly{IfEmpty: true}, bourse.Queue{Name: "d"}, bourse.Queue{Name: "q"}), &invalid)
	require.Equal(t, "DeleteOnly", invalid.Field)
	require.NoError(t, b.Check(bourse.Queue{Name: "d"}))
}

// A change of a transient queue reaches it as it does any other.
func TestTransientUpdate(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", Transient: true, AckDeadline: time.Hour})
	send(t, b, "q", "a", "b")
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, b.Update(ctx, bourse.Queue{Name: "q", Transient: true, TTL: time.Minute, MaxRetries: bourse.NoRetry}))
	clock.advance(t, b, time.Minute)
	require.EqualValues(t, 1, stats(t, b, "q").Expired)
	require.NoError(t, d.Nack())
	barrier(t, b, clock)
	require.Equal(t, []string{"a"}, drain(t, b, bourse.ParkingQueue))
	require.Error(t, b.Update(ctx, bourse.Queue{Name: "q"}))
}

// Publishers and consumers of several transient queues at once, while queues come and go: each message is seen once.
func TestTransientConcurrent(t *testing.T) {
	const queues, each = 4, 2000
	b := open(t, bourse.Options{})
	var wg sync.WaitGroup
	for k := range queues {
		name := fmt.Sprint("q", k)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: name, Transient: true}))
		s := consume(t, b, name, 50)
		wg.Go(func() { // ends with its messages
			for i := range each {
				if err := b.PublishAsync(ctx, bourse.Message{RoutingKey: name, Body: fmt.Append(nil, i)}).Wait(ctx); err != nil {
					t.Errorf("publish: %v", err)
					return
				}
			}
		})
		wg.Go(func() { // likewise
			for i := range each {
				d, err := s.Next(ctx)
				if err != nil || string(d.Body) != fmt.Sprint(i) || d.Ack() != nil {
					t.Errorf("message %d: %v, %v", i, d, err)
					return
				}
			}
		})
	}
	wg.Go(func() { // ends after its queues
		for i := range 50 {
			q := bourse.Queue{Name: fmt.Sprint("short", i), Transient: true}
			if err := b.Declare(ctx, q); err != nil {
				t.Errorf("declare: %v", err)
			}
			if err := b.Publish(ctx, bourse.Message{RoutingKey: q.Name}); err != nil {
				t.Errorf("publish: %v", err)
			}
			if err := b.Delete(ctx, q); err != nil {
				t.Errorf("delete: %v", err)
			}
		}
	})
	wg.Wait()
	for k := range queues {
		require.EqualValues(t, each, stats(t, b, fmt.Sprint("q", k)).Acked)
	}
}

// A batch keeps its order in a transient queue, whatever else its messages go to.
func TestTransientBatchOrder(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "t", Transient: true}, bourse.Queue{Name: "d"},
		bourse.Exchange{Name: "e", Kind: bourse.Fanout},
		bourse.Binding{Exchange: "e", Queue: "t"}, bourse.Binding{Exchange: "e", Queue: "d"})
	require.NoError(t, b.PublishBatch(ctx, []bourse.Message{
		{RoutingKey: "t", Body: []byte("a")}, {RoutingKey: "t", Body: []byte("b")}, {Exchange: "e", Body: []byte("c")},
		{RoutingKey: "t", Body: []byte("d")}, {RoutingKey: "d", Body: []byte("e")}, {Exchange: "e", Body: []byte("f")},
	}))
	require.Equal(t, []string{"a", "b", "c", "d", "f"}, drain(t, b, "t"))
	require.Equal(t, []string{"c", "e", "f"}, drain(t, b, "d"))
}
