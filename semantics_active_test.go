package bourse_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Goal: SEMANTICS 7, the single active consumer, as a program sees it: one subscription at a time has messages, what the old one
// held is back before the next has any, and epochs never go back. Method: a case for each rule and for each feature that has a say in who
// gets what. testdata/machine/single_active.txt has the rules command by command.

// active asks that s is the active subscription of its queue, and returns its epoch.
func active(t require.TestingT, s *bourse.Subscription) uint64 {
	epoch, is := s.Active()
	require.True(t, is)
	require.NotZero(t, epoch)
	return epoch
}

func standsBy(t require.TestingT, s *bourse.Subscription) {
	epoch, is := s.Active()
	require.False(t, is)
	require.Zero(t, epoch)
}

func TestSemanticsActiveConsumer(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", SingleActiveConsumer: true})
	require.Zero(t, stats(t, b, "q").Epoch)
	first := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 2})
	second := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 3})
	third := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 3, Priority: 1})
	epoch := active(t, first)
	standsBy(t, second)
	standsBy(t, third)
	require.Equal(t, epoch, stats(t, b, "q").Epoch)
	require.Equal(t, 3, stats(t, b, "q").Consumers)

	send(t, b, "q", "1", "2", "3", "4")
	one, two := next(t, first), next(t, first)
	require.Equal(t, []uint64{epoch, epoch}, []uint64{one.Epoch(), two.Epoch()})
	nothing(t, b, clock, second)
	nothing(t, b, clock, third) // a higher priority takes over from nobody
	require.NoError(t, two.Ack())
	require.Equal(t, "3", string(next(t, first).Body))
	nothing(t, b, clock, third)

	// The active one closes while it holds messages. They are in their places when the next is served: by priority, with its own prefetch.
	require.NoError(t, first.Close())
	standsBy(t, first)
	require.Greater(t, active(t, third), epoch)
	standsBy(t, second)
	epoch = active(t, third)
	require.Equal(t, []string{"1", "3", "4"}, takeBodies(t, third, 3))
	require.ErrorIs(t, one.Ack(), bourse.ErrUnknownDelivery)
	require.ErrorIs(t, one.AckSync(ctx), bourse.ErrUnknownDelivery)
	require.ErrorIs(t, first.AckUpTo(0), bourse.ErrUnknownDelivery)
	require.ErrorIs(t, first.AckUpTo(3), bourse.ErrUnknownDelivery)
	require.Equal(t, 3, stats(t, b, "q").Unacked)
	require.NotEqual(t, epoch, one.Epoch(), "a delivery keeps its epoch")

	// One that stands by leaves: nothing changes.
	fourth := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 1})
	require.NoError(t, second.Close())
	require.Equal(t, epoch, active(t, third))
	require.NoError(t, third.AckUpTo(2))
	require.NoError(t, third.Close())
	d := next(t, fourth)
	require.Equal(t, "4", string(d.Body))
	require.Equal(t, []int{2, 0}, []int{d.Deliveries, d.Failures}, "closing is no failure")
}

// A deadline that passes takes the message, not the place: the late delivery is stale, and the next one is of the same consumer.
func TestSemanticsActiveMissesADeadline(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", SingleActiveConsumer: true, AckDeadline: time.Minute})
	first := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 1})
	second := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 1})
	epoch := active(t, first)
	send(t, b, "q", "a", "b")
	late := next(t, first)
	clock.advance(t, b, time.Minute)
	again := next(t, first)
	require.Equal(t, []int{2, 1}, []int{again.Deliveries, again.Failures})
	require.ErrorIs(t, late.Ack(), bourse.ErrStaleDelivery)
	require.NoError(t, first.AckUpTo(late.Tag), "of what is settled otherwise")
	require.Equal(t, 1, stats(t, b, "q").Unacked, "the newer delivery is untouched")
	require.NoError(t, again.AckSync(ctx))
	require.Equal(t, "b", string(next(t, first).Body))
	require.Equal(t, epoch, active(t, first))
	nothing(t, b, clock, second)
}

// Features that decide what is next, or whether anything is, do so for the active consumer.
func TestSemanticsActiveAndOthers(t *testing.T) {
	for name, c := range map[string]struct {
		def  bourse.Queue
		send []bourse.Message
		then func(t *testing.T, b *bourse.Broker, first *bourse.Subscription) // before first is closed
		old  []string                                                         // what first gets, with a prefetch of 2
		want []string                                                         // what second gets, with one of 9
	}{
		"groups": {
			send: []bourse.Message{
				{GroupID: "x", Body: []byte("x1")}, {GroupID: "x", Body: []byte("x2")}, {GroupID: "y", Body: []byte("y1")},
			},
			old: []string{"x1", "y1"}, want: []string{"x1", "y1"}, // x2 waits for x1
		},
		"priorities": {
			def:  bourse.Queue{Priorities: 3},
			send: []bourse.Message{{Body: []byte("low")}, {Body: []byte("low2")}, {Priority: 2, Body: []byte("high")}},
			old:  []string{"low", "low2"}, want: []string{"high", "low", "low2"},
		},
		"fairness": {
			def: bourse.Queue{Priorities: 2, Fairness: bourse.Fairness{LowerOneIn: 2}},
			send: []bourse.Message{
				{Body: []byte("a")}, {Body: []byte("b")}, {Priority: 1, Body: []byte("A")}, {Priority: 1, Body: []byte("B")},
			},
			old: []string{"a", "b"}, want: []string{"A", "a", "B", "b"},
		},
		"purge": {
			send: []bourse.Message{{Body: []byte("a")}, {Body: []byte("b")}, {Body: []byte("c")}},
			then: func(t *testing.T, b *bourse.Broker, first *bourse.Subscription) {
				n, err := b.Purge(ctx, "q")
				require.NoError(t, err)
				require.Equal(t, 1, n)
				active(t, first)
			},
			old: []string{"a", "b"}, want: []string{"a", "b"},
		},
		"cancel": {
			send: []bourse.Message{{Body: []byte("a")}, {Body: []byte("b")}, {Body: []byte("c")}},
			then: func(t *testing.T, b *bourse.Broker, first *bourse.Subscription) {
				for m, err := range b.Browse(ctx, "q", bourse.BrowseOptions{}) {
					require.NoError(t, err)
					if string(m.Body) == "a" {
						require.NoError(t, b.Cancel(ctx, m.Locator))
					}
				}
			},
			old: []string{"a", "b"}, want: []string{"b", "c"},
		},
		"a retry": {
			def:  bourse.Queue{MaxRetries: 1},
			send: []bourse.Message{{Body: []byte("a")}, {Body: []byte("b")}},
			then: func(t *testing.T, b *bourse.Broker, first *bourse.Subscription) {
				require.NoError(t, first.AckUpTo(0))
				send(t, b, "q", "c")
				require.NoError(t, next(t, first).Nack())
				require.NoError(t, next(t, first).Nack()) // dead, of its second failure
				send(t, b, "q", "d")
			},
			old: []string{"a", "b"}, want: []string{"d"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newHandClock()
			c.def.Name, c.def.SingleActiveConsumer = "q", true
			b := open(t, bourse.Options{Clock: clock}, c.def)
			first := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 2})
			second := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 9})
			for _, m := range c.send {
				m.RoutingKey = "q"
				require.NoError(t, b.Publish(ctx, m))
			}
			require.Equal(t, c.old, takeBodies(t, first, len(c.old)))
			if c.then != nil {
				c.then(t, b, first)
			}
			nothing(t, b, clock, second)
			require.NoError(t, first.Close())
			require.Equal(t, c.want, takeBodies(t, second, len(c.want)))
			nothing(t, b, clock, second)
		})
	}
}

// A paused queue has an active consumer, and gets another, and delivers to nobody.
func TestSemanticsActivePause(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", SingleActiveConsumer: true})
	require.NoError(t, b.Pause(ctx, "q"))
	first := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 1})
	second := listen(t, b, "q", bourse.SubscribeOptions{Prefetch: 1})
	send(t, b, "q", "a")
	epoch := active(t, first)
	require.NoError(t, first.Close())
	require.Greater(t, active(t, second), epoch)
	nothing(t, b, clock, second)
	require.NoError(t, b.Resume(ctx, "q"))
	require.Equal(t, active(t, second), next(t, second).Epoch())
}

// Work that stops keeps its place while its handlers run, so that no two of them work at a time.
func TestSemanticsActiveWork(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", SingleActiveConsumer: true})
	var running atomic.Int32
	begun, release, seen := make(chan string, 9), make(chan struct{}), make(chan string, 9)
	start := func(name string, h bourse.Handler) (stop func(), ended chan error) {
		until, cancel := context.WithCancel(ctx)
		ended = make(chan error, 1)
		consumers := stats(t, b, "q").Consumers
		go func() { // ends with stop
			ended <- b.Work(until, "q", func(ctx context.Context, d *bourse.Delivery) error {
				if running.Add(1) > 1 {
					t.Error("two handlers at a time")
				}
				defer running.Add(-1)
				begun <- fmt.Sprintf("%s has %s", name, d.Body)
				return h(ctx, d)
			}, bourse.WorkOptions{})
		}()
		for stats(t, b, "q").Consumers == consumers {
			barrier(t, b, nil)
		}
		return cancel, ended
	}
	stopFirst, firstEnded := start("first", func(context.Context, *bourse.Delivery) error { <-release; return nil })
	stopSecond, secondEnded := start("second", func(_ context.Context, d *bourse.Delivery) error { seen <- string(d.Body); return nil })
	send(t, b, "q", "1", "2", "3")
	require.Equal(t, "first has 1", <-begun)
	epoch := stats(t, b, "q").Epoch
	stopFirst()
	for range 20 {
		barrier(t, b, nil)
		require.Equal(t, epoch, stats(t, b, "q").Epoch, "another is active while the handler runs")
	}
	close(release)
	require.NoError(t, <-firstEnded)
	require.Equal(t, []string{"2", "3"}, []string{<-seen, <-seen})
	require.Greater(t, stats(t, b, "q").Epoch, epoch)
	stopSecond()
	require.NoError(t, <-secondEnded)
	require.Zero(t, stats(t, b, "q").Epoch)
}

// Get has no consumer, so it is refused, and nothing changes.
func TestSemanticsActiveGet(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", SingleActiveConsumer: true})
	send(t, b, "q", "a")
	before := stats(t, b, "q")
	_, err := b.Get(ctx, "q")
	var invalid *bourse.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, "Queue.SingleActiveConsumer", invalid.Field)
	require.EqualError(t, err, `broker: get from "q": Queue.SingleActiveConsumer: is set, so only a subscription can have messages`)
	require.Zero(t, b.Pullers())
	after := stats(t, b, "q")
	before.Oldest, after.Oldest = 0, 0
	require.Equal(t, before, after)
}

func TestSemanticsActiveIsFixed(t *testing.T) {
	single := bourse.Queue{Name: "single", SingleActiveConsumer: true}
	b := open(t, bourse.Options{}, single, bourse.Queue{Name: "plain"})
	for _, q := range []bourse.Queue{{Name: "single", TTL: time.Hour}, {Name: "plain", SingleActiveConsumer: true}} {
		for _, err := range []error{b.Update(ctx, q), b.Declare(ctx, q)} {
			var pre *bourse.PreconditionError
			require.ErrorAs(t, err, &pre)
			require.Equal(t, "SingleActiveConsumer", pre.Fields[len(pre.Fields)-1].Field)
		}
	}
	s := consume(t, b, "single", 1)
	epoch := active(t, s)
	single.AckDeadline = time.Minute
	require.NoError(t, b.Update(ctx, single))
	require.NoError(t, b.Declare(ctx, single))
	require.Equal(t, epoch, active(t, s), "other changes leave the active consumer alone")
}

// Where it is not set every subscription is served, and nothing has an epoch.
func TestSemanticsActiveNotSet(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	for range 2 {
		s := consume(t, b, "q", 1)
		epoch, is := s.Active()
		require.Zero(t, epoch)
		require.True(t, is)
		send(t, b, "q", "a")
		require.Zero(t, next(t, s).Epoch())
		if c, _ := b.QueueStats("q"); c.Consumers == 2 {
			require.NoError(t, s.Close())
			_, is = s.Active()
			require.False(t, is)
		}
	}
	require.Zero(t, stats(t, b, "q").Epoch)
	require.Zero(t, new(bourse.Delivery).Epoch())
}

// Epochs rise over everything that a queue can go through, the loss of all that was not synced too.
func TestSemanticsEpochsRise(t *testing.T) {
	noLeaks(t)
	for name, placed := range map[string]func(bourse.Engine) bourse.Engine{
		"one shard":       func(e bourse.Engine) bourse.Engine { return e },
		"shard per queue": bourse.PerQueue,
	} {
		for _, transient := range []bool{false, true} {
			if transient && name != "one shard" {
				continue // refused there
			}
			t.Run(fmt.Sprint(name, ", transient ", transient), func(t *testing.T) {
				fs := new(storage.MemFS)
				def := bourse.Queue{Name: "q", SingleActiveConsumer: true, Transient: transient}
				last := uint64(0)
				var b *bourse.Broker
				rises := func(s *bourse.Subscription) {
					epoch := active(t, s)
					require.Greater(t, epoch, last)
					last = epoch
				}
				subscribe := func() *bourse.Subscription {
					s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
					require.NoError(t, err)
					return s
				}
				round := func() {
					require.NoError(t, b.Declare(ctx, def))
					first, second := subscribe(), subscribe()
					rises(first)
					require.NoError(t, first.Close())
					rises(second)
					require.NoError(t, second.Close())
					rises(subscribe())
				}
				for i, end := range []string{"close", "kill", "power cut", "delete", "power cut", "power cut", "kill", "delete", "close"} {
					var err error
					b, err = bourse.NewBroker(ctx, bourse.Options{Engine: placed(onFS(t, fs))})
					require.NoError(t, err, "round %d", i)
					round()
					left := fs
					switch end {
					case "kill":
						left = crashed(fs)
					case "power cut":
						left = fs.Crash(storage.CrashLost, func(int) int { return 0 })
					case "delete":
						require.NoError(t, b.Delete(ctx, def))
						round()
					}
					require.NoError(t, b.Close())
					fs = left
				}
			})
		}
	}
}

// On a full disk consumers can still come, and take over, since they give space back.
func TestActiveOnAFullDisk(t *testing.T) {
	noLeaks(t)
	fs := &storage.MemFS{}
	fs.SetCapacity(1 << 20)
	b, err := openFault(fs, "data")
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", SingleActiveConsumer: true}))
	n := len(fillUp(t, b, 0))
	for i := range n {
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
		require.NoError(t, err)
		require.NoError(t, next(t, s).Ack())
		require.NoError(t, s.Close(), "consumer %d", i)
		if i > 10 {
			break
		}
	}
	require.NoError(t, b.Close())
}

// Consumers come and go at once: no two have messages at a time, and a resource that looks at the epochs never refuses one in order.
func TestActiveConcurrent(t *testing.T) {
	const messages, workers = 300, 6
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", SingleActiveConsumer: true})
	for i := range messages {
		send(t, b, "q", fmt.Sprint(i))
	}
	until, done := context.WithTimeout(ctx, testTimeout)
	defer done()
	var acked atomic.Int32
	var holder, highest atomic.Int64
	var all sync.WaitGroup
	for w := range int64(workers) {
		all.Go(func() { // ends with until
			for n := 0; until.Err() == nil; n++ {
				s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1 + int(w)%3})
				if err != nil {
					t.Error(err)
					return
				}
				for range 1 + n%3*2 {
					d, err := s.Next(until)
					if err != nil {
						break
					}
					if !holder.CompareAndSwap(0, w+1) {
						t.Errorf("%d has a message while %d does", w, holder.Load()-1)
					}
					if epoch := int64(d.Epoch()); epoch < highest.Swap(epoch) {
						t.Errorf("epoch %x after a higher one", epoch)
					}
					if n%3 > 0 { // else it goes back with Close
						if err := d.AckSync(ctx); err != nil {
							t.Error(err)
						} else if acked.Add(1) == messages {
							done()
						}
					}
					holder.Store(0)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, messages, acked.Load())
	require.Zero(t, stats(t, b, "q").Ready)
}

// TestCrashEpochs cuts the power before every call to the disk: an epoch that anybody had heard of by then does not come again.
func TestCrashEpochs(t *testing.T) {
	noLeaks(t)
	type image struct {
		fs    *storage.MemFS
		heard uint64
	}
	var images []image
	var heard atomic.Uint64
	var mu sync.Mutex // of images
	fs := new(storage.MemFS)
	fault := &storage.FaultFS{FS: fs, Rule: func(op, _ string, _ int) error {
		if op == "write" || op == "sync" {
			before := heard.Load()
			mu.Lock()
			images = append(images, image{fs.Crash(storage.CrashLost, func(int) int { return 0 }), before})
			mu.Unlock()
		}
		return nil
	}}
	def := bourse.Queue{Name: "q", SingleActiveConsumer: true}
	for range 2 {
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fault)})
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, b.Declare(ctx, def))
			send(t, b, "q", "a", "b")
			var before *bourse.Subscription
			for range 6 {
				s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
				require.NoError(t, err)
				if before != nil {
					require.NoError(t, before.Close())
				}
				heard.Store(next(t, s).Epoch())
				before = s
			}
			require.NoError(t, b.Delete(ctx, def))
		}
		require.NoError(t, b.Close())
	}
	for i, cut := range images {
		if testing.Short() && i%4 > 0 {
			continue
		}
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, cut.fs)})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, def))
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		require.NoError(t, err)
		require.Greater(t, active(t, s), cut.heard, "power cut before call %d of %d", i, len(images))
		require.NoError(t, b.Close())
	}
	require.Greater(t, len(images), 50)
}
