package bourse_test

// Goal: a queue ends by itself when SEMANTICS 6 says so, at that nanosecond, and not before; and nobody sees half of it. Method: a
// case for each rule on a clock moved by hand, for queues in the log of the broker, in memory, and with logs of their own; then
// over restarts and crashes, and with consumers that come at the same moment.

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// ownLogs is an engine that gives each queue a log of its own.
type ownLogs struct{ bourse.Engine }

func (ownLogs) Placement() bourse.Placement { return bourse.ShardPerQueue }

// homes are where a queue can be.
var homes = []home{{name: "broker's log"}, {name: "memory", transient: true}, {name: "own log", own: true}}

type home struct {
	name           string
	transient, own bool
}

func (p home) options(t require.TestingT, clock *handClock, fs *storage.MemFS) bourse.Options {
	o := bourse.Options{Clock: clock, Engine: onFS(t, fs)}
	if p.own {
		o.Engine = ownLogs{o.Engine}
	}
	return o
}

// exists reports whether b has the queue.
func exists(b *bourse.Broker, queue string) bool {
	_, ok := b.QueueStats(queue)
	return ok
}

// ends waits until the queue is gone, which needs no more time on the clock.
func ends(t require.TestingT, b *bourse.Broker, queue string) {
	for end := time.Now().Add(testTimeout); exists(b, queue) || b.Routes(queue); runtime.Gosched() {
		require.True(t, time.Now().Before(end), "queue %q is still there", queue)
	}
}

// What is a use starts the time anew; what is none does not.
func TestSemanticsExpires(t *testing.T) {
	const lease = 10 * time.Minute
	for _, c := range []struct {
		name string
		act  func(t *testing.T, b *bourse.Broker, def bourse.Queue)
		want time.Duration // from the declaration; the act is half way
	}{
		{"nothing", func(*testing.T, *bourse.Broker, bourse.Queue) {}, lease},
		{"publish", func(t *testing.T, b *bourse.Broker, _ bourse.Queue) { send(t, b, "q", "m") }, lease},
		{"another queue", func(t *testing.T, b *bourse.Broker, def bourse.Queue) {
			def.Name = "other"
			require.NoError(t, b.Declare(ctx, def))
		}, lease},
		{"binding", func(t *testing.T, b *bourse.Broker, _ bourse.Queue) {
			require.NoError(t, b.Declare(ctx, bourse.Binding{Exchange: "e", Queue: "q", Key: "k"}))
		}, lease},
		{"check", func(t *testing.T, b *bourse.Broker, def bourse.Queue) { require.NoError(t, b.Check(def)) }, lease},
		{"purge", func(t *testing.T, b *bourse.Broker, _ bourse.Queue) {
			_, err := b.Purge(ctx, "q")
			require.NoError(t, err)
		}, lease},
		{"browse", func(t *testing.T, b *bourse.Broker, _ bourse.Queue) {
			for _, err := range b.Browse(ctx, "q", bourse.BrowseOptions{}) {
				require.NoError(t, err)
			}
		}, lease},
		{"declare", func(t *testing.T, b *bourse.Broker, def bourse.Queue) { require.NoError(t, b.Declare(ctx, def)) }, lease * 3 / 2},
		{"declare, refused", func(t *testing.T, b *bourse.Broker, def bourse.Queue) {
			def.Priorities = 7
			require.ErrorIs(t, b.Declare(ctx, def), bourse.ErrPrecondition)
		}, lease},
		{"declare, among what is refused", func(t *testing.T, b *bourse.Broker, def bourse.Queue) {
			require.ErrorIs(t, b.Declare(ctx, def, bourse.Queue{Name: "r", Priorities: -1}), bourse.ErrInvalid)
			require.ErrorIs(t, b.Declare(ctx, def, bourse.Binding{Exchange: "no", Queue: "q"}), bourse.ErrNoExchange)
		}, lease},
		{"update", func(t *testing.T, b *bourse.Broker, def bourse.Queue) {
			def.Expires = 2 * lease
			require.NoError(t, b.Update(ctx, def))
		}, lease * 5 / 2},
		{"update, shorter", func(t *testing.T, b *bourse.Broker, def bourse.Queue) {
			def.Expires = 1
			require.NoError(t, b.Update(ctx, def))
		}, lease/2 + 1},
		{"update, equal", func(t *testing.T, b *bourse.Broker, def bourse.Queue) { require.NoError(t, b.Update(ctx, def)) }, lease},
		{"update, for ever", func(t *testing.T, b *bourse.Broker, def bourse.Queue) {
			def.Expires = 0
			require.NoError(t, b.Update(ctx, def))
		}, 0},
		{"get of nothing", func(t *testing.T, b *bourse.Broker, _ bourse.Queue) {
			_, err := b.Get(ctx, "q")
			require.ErrorIs(t, err, bourse.ErrEmpty)
		}, lease * 3 / 2},
		{"get while it is paused", func(t *testing.T, b *bourse.Broker, _ bourse.Queue) {
			require.NoError(t, b.Pause(ctx, "q"))
			_, err := b.Get(ctx, "q")
			require.ErrorIs(t, err, bourse.ErrHeldBack)
		}, lease * 3 / 2},
		{"get, not settled", func(t *testing.T, b *bourse.Broker, _ bourse.Queue) {
			send(t, b, "q", "m")
			_, err := b.Get(ctx, "q")
			require.NoError(t, err)
		}, lease * 3 / 2},
		{"subscription that ended", func(t *testing.T, b *bourse.Broker, _ bourse.Queue) {
			require.NoError(t, consume(t, b, "q", 1).Close())
		}, lease * 3 / 2},
		{"subscription", func(t *testing.T, b *bourse.Broker, _ bourse.Queue) { consume(t, b, "q", 1) }, 0},
	} {
		for _, p := range homes {
			t.Run(c.name+", "+p.name, func(t *testing.T) {
				clock := newHandClock()
				def := bourse.Queue{Name: "q", Expires: lease, Transient: p.transient}
				b := open(t, p.options(t, clock, new(storage.MemFS)), bourse.Exchange{Name: "e"}, def)
				clock.advance(t, b, lease/2)
				c.act(t, b, def)
				if c.want == 0 {
					clock.advance(t, b, 5*lease)
					require.True(t, exists(b, "q"))
					return
				}
				clock.advance(t, b, c.want-lease/2-1)
				require.True(t, exists(b, "q"))
				clock.advance(t, b, 1)
				ends(t, b, "q")
			})
		}
	}
}

// On expiry as on delete: bindings and messages are gone, nothing is dead-lettered, and another queue of that name is another.
func TestSemanticsExpiresAsDelete(t *testing.T) {
	for _, p := range homes {
		t.Run(p.name, func(t *testing.T) {
			clock := newHandClock()
			def := bourse.Queue{Name: "q", Expires: time.Second, Transient: p.transient}
			bound := bourse.Binding{Exchange: "e", Queue: "q"}
			b := open(t, p.options(t, clock, new(storage.MemFS)), bourse.Exchange{Name: "e", Kind: bourse.Fanout}, def, bound)
			require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e"}))
			require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e", Delay: time.Hour}))
			d, err := b.Get(ctx, "q")
			require.NoError(t, err)
			clock.advance(t, b, time.Second)
			ends(t, b, "q")
			require.ErrorIs(t, b.Check(bound), bourse.ErrNotFound)
			require.ErrorIs(t, b.Publish(ctx, bourse.Message{Exchange: "e", Mandatory: true}), bourse.ErrUnroutable)
			require.ErrorIs(t, d.Ack(), bourse.ErrQueueGone)
			_, err = b.Get(ctx, "q")
			require.ErrorIs(t, err, bourse.ErrNotFound)
			_, err = b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
			require.ErrorIs(t, err, bourse.ErrNotFound)
			require.Zero(t, stats(t, b, bourse.ParkingQueue).Enqueued)
			require.NoError(t, b.Declare(ctx, def))
			require.Zero(t, stats(t, b, "q").Enqueued)
			clock.advance(t, b, time.Second-1)
			require.True(t, exists(b, "q"))
			clock.advance(t, b, 1)
			ends(t, b, "q")
			require.Zero(t, b.Stats().Storage.References)
		})
	}
}

// The time passes while no broker has the data open. What was attended at the end of a broker has its whole time from that end, if it was
// in good order, and from the next open after a crash.
func TestSemanticsExpiresOverRestarts(t *testing.T) {
	const lease = time.Hour
	for _, p := range homes {
		if p.transient {
			continue // it is gone with its broker
		}
		for _, c := range []struct {
			name            string
			attended, crash bool
			down            time.Duration
			left            time.Duration // of the lease at the open; 0: the queue is gone
		}{
			{"closed", false, false, lease/2 - 1, 1},
			{"closed for long", false, false, lease / 2, 0},
			{"crashed", false, true, lease/2 - 1, 1},
			{"crashed for long", false, true, lease / 2, 0},
			{"closed with a consumer", true, false, lease - 1, 1},
			{"closed with a consumer for long", true, false, lease, 0},
			{"crashed with a consumer", true, true, 5 * lease, lease},
		} {
			t.Run(c.name+", "+p.name, func(t *testing.T) {
				noLeaks(t)
				clock, fs := newHandClock(), new(storage.MemFS)
				b, err := bourse.NewBroker(ctx, p.options(t, clock, fs))
				require.NoError(t, err)
				require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", Expires: lease}))
				send(t, b, "q", "m")
				if c.attended {
					consume(t, b, "q", 1)
				}
				clock.advance(t, b, lease/2)
				left := fs
				if c.crash {
					left = crashed(fs)
				}
				require.NoError(t, b.Close())
				clock.step(clock.Now().Add(c.down))
				b = open(t, p.options(t, clock, left))
				b.Served(ctx) // the end of the last session has its time from the clock
				if c.left == 0 {
					ends(t, b, "q")
					require.Zero(t, b.Stats().Storage.References)
					require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", Expires: lease}))
					require.Zero(t, stats(t, b, "q").Ready)
					c.left = lease
				}
				clock.advance(t, b, c.left-1)
				require.True(t, exists(b, "q"))
				clock.advance(t, b, 1)
				ends(t, b, "q")
			})
		}
	}
}

// A consumer that comes when the lease is over either has the queue, which then stays, or is told that there is none.
func TestSemanticsExpiresOrIsUsed(t *testing.T) {
	for _, p := range homes {
		t.Run(p.name, func(t *testing.T) {
			clock := newHandClock()
			b := open(t, p.options(t, clock, new(storage.MemFS)))
			used, gone := 0, 0
			for i := range 60 {
				q := fmt.Sprint("q", i)
				require.NoError(t, b.Declare(ctx, bourse.Queue{Name: q, Expires: time.Second, Transient: p.transient}))
				send(t, b, q, "m")
				barrier(t, b, clock)
				var both sync.WaitGroup
				both.Go(func() { clock.step(clock.Now().Add(time.Second)) }) // ends by itself
				s, err := b.Subscribe(ctx, q, bourse.SubscribeOptions{})
				both.Wait()
				if err != nil {
					require.True(t, errors.Is(err, bourse.ErrNotFound), "%v", err)
					gone++
					ends(t, b, q)
					continue
				}
				used++
				clock.advance(t, b, 3*time.Second)
				require.NoError(t, next(t, s).AckSync(ctx))
				require.True(t, exists(b, q))
				require.NoError(t, s.Close())
				clock.advance(t, b, time.Second)
				ends(t, b, q)
			}
			t.Logf("%d used, %d gone", used, gone)
		})
	}
}

// A declare at that moment leaves a queue that can be used, the old one or another.
func TestSemanticsExpiresOrIsDeclared(t *testing.T) {
	for _, p := range homes {
		t.Run(p.name, func(t *testing.T) {
			clock := newHandClock()
			b := open(t, p.options(t, clock, new(storage.MemFS)))
			for i := range 60 {
				def := bourse.Queue{Name: fmt.Sprint("q", i), Expires: time.Second, Transient: p.transient}
				require.NoError(t, b.Declare(ctx, def))
				barrier(t, b, clock)
				var both sync.WaitGroup
				both.Go(func() { clock.step(clock.Now().Add(time.Second)) }) // ends by itself
				declared := clock.Now()
				require.NoError(t, b.Declare(ctx, def))
				s, err := b.Subscribe(ctx, def.Name, bourse.SubscribeOptions{})
				clock.rest()
				both.Wait()
				if err != nil && clock.Now().After(declared) { // its time went by in between
					require.ErrorIs(t, err, bourse.ErrNotFound)
					continue
				}
				require.NoError(t, err)
				send(t, b, def.Name, "m")
				require.NoError(t, next(t, s).AckSync(ctx))
				require.NoError(t, s.Close())
			}
		})
	}
}

// A queue with AutoDelete goes with its last consumer, and with it all that it holds.
func TestSemanticsAutoDelete(t *testing.T) {
	def := bourse.Queue{Name: "q", Transient: true, AutoDelete: true}
	bound := bourse.Binding{Exchange: "e", Queue: "q"}
	start := func(t *testing.T) (*bourse.Broker, *handClock) {
		clock := newHandClock()
		return open(t, bourse.Options{Clock: clock}, bourse.Exchange{Name: "e", Kind: bourse.Fanout}, def, bound), clock
	}
	t.Run("it stays before the first", func(t *testing.T) {
		b, clock := start(t)
		send(t, b, "q", "m")
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.NoError(t, d.Ack())
		require.NoError(t, b.Declare(ctx, def, bound))
		_, err = b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: -1})
		require.ErrorIs(t, err, bourse.ErrInvalid)
		clock.advance(t, b, 1000*time.Hour)
		require.True(t, exists(b, "q"))
	})
	t.Run("it goes when Close returns", func(t *testing.T) {
		b, _ := start(t)
		send(t, b, "q", "a", "b", "c")
		s := consume(t, b, "q", 1)
		d := next(t, s)
		got, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.False(t, exists(b, "q"))
		require.ErrorIs(t, b.Check(bound), bourse.ErrNotFound)
		require.ErrorIs(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Mandatory: true}), bourse.ErrUnroutable)
		require.ErrorIs(t, d.Ack(), bourse.ErrUnknownDelivery)
		require.ErrorIs(t, got.Ack(), bourse.ErrQueueGone)
		require.Zero(t, stats(t, b, bourse.ParkingQueue).Enqueued)
		require.NoError(t, b.Declare(ctx, def))
		require.Zero(t, stats(t, b, "q").Enqueued)
		require.NoError(t, s.Close())
		require.True(t, exists(b, "q"), "a close of what was closed is nobody's leaving")
	})
	t.Run("the last of several", func(t *testing.T) {
		b, _ := start(t)
		first, second := consume(t, b, "q", 1), consume(t, b, "q", 1)
		require.NoError(t, b.Declare(ctx, def)) // changes nothing
		require.NoError(t, first.Close())
		require.True(t, exists(b, "q"))
		send(t, b, "q", "m")
		require.NoError(t, next(t, second).Ack())
		third := consume(t, b, "q", 1)
		require.NoError(t, second.Close())
		require.True(t, exists(b, "q"))
		require.NoError(t, third.Close())
		require.False(t, exists(b, "q"))
	})
	t.Run("the end of Work", func(t *testing.T) {
		b, _ := start(t)
		worked, stop := make(chan error), make(chan struct{})
		working, cancel := context.WithCancel(ctx)
		go func() { // ends with working
			worked <- b.Work(working, "q", func(context.Context, *bourse.Delivery) error { close(stop); return nil }, bourse.WorkOptions{})
		}()
		send(t, b, "q", "m")
		<-stop
		require.True(t, exists(b, "q"))
		cancel()
		require.NoError(t, <-worked)
		require.False(t, exists(b, "q"))
	})
	t.Run("a subscription that was given up", func(t *testing.T) {
		b, _ := start(t)
		over, cancel := context.WithCancel(ctx)
		cancel()
		_, err := b.Subscribe(over, "q", bourse.SubscribeOptions{})
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, exists(b, "q"), "it has not begun")
	})
	t.Run("with Expires", func(t *testing.T) {
		b, clock := start(t)
		both := bourse.Queue{Name: "both", Transient: true, AutoDelete: true, Expires: time.Hour}
		for range 2 {
			require.NoError(t, b.Declare(ctx, both))
			clock.advance(t, b, time.Hour-1)
			s := consume(t, b, "both", 1)
			clock.advance(t, b, time.Hour)
			require.True(t, exists(b, "both"))
			require.NoError(t, b.Declare(ctx, both))
			require.NoError(t, s.Close())
			require.False(t, exists(b, "both"))
		}
		require.NoError(t, b.Declare(ctx, both))
		clock.advance(t, b, time.Hour)
		ends(t, b, "both")
	})
	t.Run("it is fixed", func(t *testing.T) {
		b, _ := start(t)
		var differs *bourse.PreconditionError
		require.ErrorAs(t, b.Declare(ctx, bourse.Queue{Name: "q", Transient: true}), &differs)
		require.Equal(t, []bourse.FieldDiff{{Field: "AutoDelete", Have: "true", Want: "false"}}, differs.Fields)
		require.ErrorAs(t, b.Update(ctx, bourse.Queue{Name: "q", Transient: true}), &differs)
		changed := def
		changed.TTL = time.Hour
		require.NoError(t, b.Update(ctx, changed))
		s := consume(t, b, "q", 1)
		require.NoError(t, b.Update(ctx, def))
		require.NoError(t, s.Close())
		require.False(t, exists(b, "q"))
	})
}

// One who comes while the last one leaves has the queue, or there is none; and a declare makes one that stays until it is used.
func TestSemanticsAutoDeleteAtOnce(t *testing.T) {
	b := open(t, bourse.Options{})
	def := bourse.Queue{Name: "q", Transient: true, AutoDelete: true}
	kept, gone := 0, 0
	for range 300 {
		require.NoError(t, b.Declare(ctx, def))
		last, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		require.NoError(t, err)
		send(t, b, "q", "old")
		var all sync.WaitGroup
		all.Go(func() { // ends by itself
			if err := last.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		if err != nil {
			require.ErrorIs(t, err, bourse.ErrNotFound)
			gone++
			require.NoError(t, b.Declare(ctx, def))
			s, err = b.Subscribe(ctx, "q", bourse.SubscribeOptions{}) // the queue of the declare is there, and empty
			require.NoError(t, err)
			all.Wait()
			require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Mandatory: true}), "it stays")
			require.NoError(t, next(t, s).Ack())
			send(t, b, "q", "new")
			require.Equal(t, "new", string(next(t, s).Body))
		} else {
			kept++
			all.Wait()
			require.Equal(t, "old", string(next(t, s).Body))
		}
		require.NoError(t, s.Close())
		require.False(t, exists(b, "q"))
	}
	t.Logf("%d kept, %d gone", kept, gone)
}

// A publish to an exchange goes on when one of its queues ends beside it: the others have it.
func TestSemanticsAutoDeletePublish(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Exchange{Name: "e", Kind: bourse.Fanout}, bourse.Queue{Name: "kept"},
		bourse.Binding{Exchange: "e", Queue: "kept"})
	stop := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() { // ends with stop
		for {
			select {
			case <-stop:
				return
			default:
			}
			def := bourse.Queue{Name: "q", Transient: true, AutoDelete: true}
			if err := b.Declare(ctx, def, bourse.Binding{Exchange: "e", Queue: "q"}); err != nil {
				t.Errorf("declare: %v", err)
				return
			}
			s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
			if err != nil {
				t.Errorf("subscribe: %v", err)
				return
			}
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	const n = 2000
	for range n {
		require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e"}))
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q"}))
	}
	close(stop)
	both.Wait()
	require.Equal(t, n, stats(t, b, "kept").Ready)
}

// A queue whose messages must not be lost with it: they expire first, in one step, and then it goes when it is empty.
func TestSemanticsDeleteDeadLetters(t *testing.T) {
	clock, fs := newHandClock(), new(storage.MemFS)
	b := open(t, bourse.Options{Clock: clock, Engine: onFS(t, fs)}, bourse.Queue{Name: "dead"},
		bourse.Exchange{Name: "dlx", Kind: bourse.Fanout}, bourse.Binding{Exchange: "dlx", Queue: "dead"})
	def := bourse.Queue{Name: "q", Priorities: 2, DeadLetter: bourse.DeadLetter{Exchange: "dlx"}}
	require.NoError(t, b.Declare(ctx, def))
	send(t, b, "q", "held", "a", "b")
	sendWith(t, b, "q", "memory", bourse.Message{Transient: true})
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	clock.advance(t, b, time.Second)
	def.TTL = 1
	require.NoError(t, b.Update(ctx, def))
	barrier(t, b, clock)
	empty := bourse.DeleteOnly{IfEmpty: true}
	require.ErrorIs(t, b.DeleteIf(ctx, empty, bourse.Queue{Name: "q"}), bourse.ErrNotEmpty, "one is on loan")
	require.NoError(t, b.Close())
	b = open(t, bourse.Options{Clock: clock, Engine: onFS(t, crashed(fs))})
	require.ErrorIs(t, d.Ack(), bourse.ErrUnknownDelivery)
	barrier(t, b, clock)
	require.NoError(t, b.DeleteIf(ctx, empty, bourse.Queue{Name: "q"}))
	require.ElementsMatch(t, []string{"held", "a", "b", "memory"}, drain(t, b, "dead"))
}
