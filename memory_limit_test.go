package bourse_test

// Goal: what Options.MemoryLimit counts stays below it, but for what is on its way; who publishes above it waits, in order, neither for
// ever nor in vain, and nothing else does. Method: in a synctest bubble all goroutines are blocked when a publisher is; the smallest
// limit, filled with large transient bodies or with many messages that wait; publishers and consumers at once, and a look at
// the figures all the time.

import (
	"bytes"
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/storage"
)

const (
	leastMemory = 8 << 20
	quarter     = 1 << 20 // of these six fit
)

var quarterBody = make([]byte, quarter)

// narrow runs test in a bubble, with a broker that has little memory.
func narrow(t *testing.T, test func(t *testing.T, b *bourse.Broker), ds ...bourse.Declaration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{MemoryLimit: leastMemory})
		require.NoError(t, err)
		defer func() {
			require.NoError(t, b.Close())
			require.Zero(t, b.Weighed(), "of a closed broker")
		}()
		require.NoError(t, b.Declare(ctx, append(ds, bourse.Queue{Name: "t", Transient: true}, bourse.Queue{Name: "d"})...))
		test(t, b)
	})
}

// stuff fills the memory with transient messages, which are numbered.
func stuff(t *testing.T, b *bourse.Broker, queue string) int {
	t.Helper()
	for n := range 100 {
		copy(quarterBody, strconv.Itoa(n)+" ")
		done := make(chan error, 1)
		late, cancel := context.WithTimeout(ctx, time.Second)
		go func() { done <- b.Publish(late, bourse.Message{RoutingKey: queue, Body: quarterBody, Transient: true}) }()
		err := <-done
		cancel()
		if err != nil {
			require.ErrorIs(t, err, bourse.ErrMemoryFull)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, bourse.ErrUnknownOutcome)
			m := b.Stats().Memory
			require.True(t, m.Full)
			require.Zero(t, m.Waiters)
			return n
		}
	}
	t.Fatal("it never fills")
	return 0
}

// lingers starts a call and checks that it does not return.
func lingers(t *testing.T, b *bourse.Broker, waiters int, call func() error) chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }() // ends with call
	synctest.Wait()
	require.Empty(t, done, "it does not wait")
	require.Equal(t, waiters, b.Stats().Memory.Waiters)
	return done
}

func publishing(b *bourse.Broker, queue, body string) func() error {
	return func() error { return b.Publish(ctx, bourse.Message{RoutingKey: queue, Body: []byte(body)}) }
}

func TestMemoryLimitWaits(t *testing.T) {
	narrow(t, func(t *testing.T, b *bourse.Broker) {
		require.Equal(t, 6, stuff(t, b, "t"))
		m := b.Stats().Memory
		require.EqualValues(t, leastMemory, m.Limit)
		require.GreaterOrEqual(t, m.Transient, int64(6*quarter))
		require.Less(t, m.Transient, int64(6*quarter+10_000))
		require.Zero(t, m.Pending)
		require.LessOrEqual(t, m.Used, m.Limit)
		require.Equal(t, m.Used, m.Waiting+m.Transient+m.IDs+m.Pending+m.Cached+m.ReadAhead)
		// All ways to publish wait.
		done := make([]chan error, 0, 4)
		for i, call := range []func() error{
			publishing(b, "d", "0"),
			func() error { return b.PublishAsync(ctx, bourse.Message{RoutingKey: "d", Body: []byte("1")}).Wait(ctx) },
			func() error {
				return b.PublishBatch(ctx, []bourse.Message{{RoutingKey: "d", Body: []byte("2")}, {RoutingKey: "d", Body: []byte("3")}})
			},
			func() error { return b.PublishAtomic(ctx, []bourse.Message{{RoutingKey: "d", Body: []byte("4")}}) },
		} {
			done = append(done, lingers(t, b, i+1, call))
		}
		require.Zero(t, stats(t, b, "d").Ready)
		getAndAck(t, b, "t")
		for _, d := range done {
			require.NoError(t, requireDone(t, d))
		}
		require.ElementsMatch(t, []string{"0", "1", "2", "3", "4"}, drain(t, b, "d"))
		for range 5 {
			getAndAck(t, b, "t")
		}
		require.False(t, stuffed(b))
		m = b.Stats().Memory
		require.Zero(t, m.Waiting)
		require.Zero(t, m.Transient)
	})
}

// stuffed publishes once, and reports whether memory is full.
func stuffed(b *bourse.Broker) bool {
	ended, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return b.Publish(ended, bourse.Message{RoutingKey: "nowhere"}) != nil
}

// From high to low nobody is let in.
func TestMemoryLimitHysteresis(t *testing.T) {
	const small = 100 << 10
	narrow(t, func(t *testing.T, b *bourse.Broker) {
		n := 0
		for ; ; n++ {
			late, cancel := context.WithTimeout(ctx, time.Second)
			err := b.Publish(late, bourse.Message{RoutingKey: "t", Body: make([]byte, small)})
			cancel()
			if err != nil {
				break
			}
		}
		waiting := lingers(t, b, 1, publishing(b, "d", "late"))
		freed := 0
		for ; len(waiting) == 0; freed++ {
			getAndAck(t, b, "t")
			synctest.Wait()
		}
		require.NoError(t, <-waiting)
		require.InDelta(t, leastMemory/8, freed*small, 2*small)
		require.InDelta(t, leastMemory*13/15, n*small, 2*small)
	})
}

// Who waits comes in by the order of coming, a little one not before a large one.
func TestMemoryLimitOrder(t *testing.T) {
	narrow(t, func(t *testing.T, b *bourse.Broker) {
		n := stuff(t, b, "t")
		var done []chan error
		for i := range 8 {
			body := make([]byte, quarter*(1+i%2)/2)
			done = append(done, lingers(t, b, i+1, func() error {
				return b.Publish(ctx, bourse.Message{RoutingKey: "t", Body: body})
			}))
		}
		for range n + 4 {
			getAndAck(t, b, "t")
			synctest.Wait()
			for i := 1; i < len(done); i++ {
				require.False(t, len(done[i]) > 0 && len(done[i-1]) == 0, "%d came in before the one before it", i)
			}
		}
		for _, d := range done {
			require.NoError(t, requireDone(t, d))
		}
	})
}

// Who gives up lets in those behind for whom there is room.
func TestMemoryLimitGivesUp(t *testing.T) {
	narrow(t, func(t *testing.T, b *bourse.Broker) {
		stuff(t, b, "t")
		late, cancel := context.WithCancel(ctx)
		large := lingers(t, b, 1, func() error {
			return b.Publish(late, bourse.Message{RoutingKey: "t", Body: make([]byte, 4*quarter)})
		})
		small := lingers(t, b, 2, publishing(b, "d", "small"))
		getAndAck(t, b, "t")
		getAndAck(t, b, "t")
		synctest.Wait()
		require.Empty(t, small)
		cancel()
		err := requireDone(t, large)
		require.ErrorIs(t, err, bourse.ErrMemoryFull)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, requireDone(t, small))
		require.Equal(t, 4, stats(t, b, "t").Ready, "what gave up is not stored")
	})
}

// What frees memory, and what the broker does by itself, goes on.
func TestMemoryLimitFrees(t *testing.T) {
	narrow(t, func(t *testing.T, b *bourse.Broker) {
		for _, body := range []string{"ack", "nack", "reject", "replace"} {
			send(t, b, "work", body)
		}
		s := consume(t, b, "work", 10)
		var ds []*bourse.Delivery
		for range 4 {
			ds = append(ds, next(t, s))
		}
		stuff(t, b, "t")
		waiting := lingers(t, b, 1, publishing(b, "d", "waits"))
		require.NoError(t, ds[0].AckSync(ctx))
		require.NoError(t, ds[1].Nack())
		require.NoError(t, ds[2].Reject("no"))
		synctest.Wait()
		require.Equal(t, "reject", getAndAck(t, b, "dead"))
		require.Equal(t, "nack", string(next(t, s).Body))
		require.NoError(t, ds[3].AckAndPublish(ctx, bourse.Message{RoutingKey: "d", Body: []byte("replaced")}))
		require.Equal(t, "replaced", getAndAck(t, b, "d"))
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "new"}))
		<-time.After(2 * time.Minute) // of the bubble: the schedule fires, twice
		synctest.Wait()
		require.Equal(t, "tick", getAndAck(t, b, "ticks"))
		ended, cancel := context.WithCancel(ctx)
		cancel()
		err := b.Publish(ended, bourse.Message{RoutingKey: "d"})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, bourse.ErrMemoryFull, "it did not wait")
		require.Empty(t, waiting)
		require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "t"}))
		require.NoError(t, requireDone(t, waiting))
	}, bourse.Queue{Name: "work", DeadLetter: bourse.DeadLetter{Exchange: "dead"}}, bourse.Queue{Name: "dead"}, bourse.Queue{Name: "ticks"},
		bourse.Exchange{Name: "dead", Kind: bourse.Fanout}, bourse.Binding{Exchange: "dead", Queue: "dead"},
		bourse.Schedule{Name: "tick", Every: time.Minute, Message: bourse.Message{RoutingKey: "ticks", Body: []byte("tick")}})
}

// Each way to free memory lets in who waits.
func TestMemoryLimitWakes(t *testing.T) {
	for name, free := range map[string]func(t *testing.T, b *bourse.Broker){
		"purge":  func(t *testing.T, b *bourse.Broker) { _, err := b.Purge(ctx, "t"); require.NoError(t, err) },
		"delete": func(t *testing.T, b *bourse.Broker) { require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "t"})) },
		"expiry": func(t *testing.T, b *bourse.Broker) {
			require.NoError(t, b.Update(ctx, bourse.Queue{Name: "t", Transient: true, TTL: time.Second}))
			<-time.After(time.Minute) // of the bubble
		},
		"ack up to": func(t *testing.T, b *bourse.Broker) {
			s := consume(t, b, "t", 6)
			for range 6 {
				next(t, s)
			}
			require.NoError(t, s.AckUpTo(0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			narrow(t, func(t *testing.T, b *bourse.Broker) {
				stuff(t, b, "t")
				waiting := lingers(t, b, 1, publishing(b, "d", "waits"))
				free(t, b)
				require.NoError(t, requireDone(t, waiting))
			})
		})
	}
	t.Run("annex", func(t *testing.T) {
		narrow(t, func(t *testing.T, b *bourse.Broker) {
			stuff(t, b, "d")
			require.EqualValues(t, 1, b.Annexes())
			waiting := lingers(t, b, 1, publishing(b, "t", "waits"))
			require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "d"}))
			require.NoError(t, requireDone(t, waiting))
		})
	})
}

func TestMemoryLimitCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{MemoryLimit: leastMemory})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "t", Transient: true}, bourse.Queue{Name: "d"}))
		stuff(t, b, "t")
		waiting := lingers(t, b, 1, publishing(b, "d", "waits"))
		atomic := lingers(t, b, 2, func() error { return b.PublishAtomic(ctx, []bourse.Message{{RoutingKey: "d"}}) })
		require.NoError(t, b.Close())
		require.ErrorIs(t, requireDone(t, waiting), bourse.ErrClosed)
		require.ErrorIs(t, requireDone(t, atomic), bourse.ErrClosed)
		require.Zero(t, b.Weighed())
	})
}

// One message may be larger than the limit, and comes in when nothing else waits.
func TestMemoryLimitLargeMessage(t *testing.T) {
	narrow(t, func(t *testing.T, b *bourse.Broker) {
		large := bourse.Message{RoutingKey: "t", Body: make([]byte, 10<<20)}
		require.NoError(t, b.Publish(ctx, large))
		waiting := lingers(t, b, 1, func() error { return b.Publish(ctx, large) })
		small := lingers(t, b, 2, publishing(b, "t", "small"))
		getAndAck(t, b, "t")
		require.NoError(t, requireDone(t, waiting))
		require.Empty(t, small)
		getAndAck(t, b, "t")
		require.NoError(t, requireDone(t, small))
		require.Equal(t, "small", getAndAck(t, b, "t"))
	})
}

// Bodies of durable messages are no reason to wait; so many messages that they alone are the memory are one.
func TestMemoryLimitDurable(t *testing.T) {
	if invariant.Costly {
		t.Skip("all of the 30,000 messages that wait are looked at after each command")
	}
	synctest.Test(t, testMemoryLimitDurable)
}

func testMemoryLimitDurable(t *testing.T) {
	fs := &storage.MemFS{}
	e, err := bourse.NewLocalEngine("data", bourse.LocalOptions{FS: fs, CacheBytes: leastMemory / 16})
	require.NoError(t, err)
	b, err := bourse.NewBroker(ctx, bourse.Options{Engine: e, MemoryLimit: leastMemory})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "d"}, bourse.Queue{Name: "small"}))
	for range 100 { // far more than the limit
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "d", Body: make([]byte, 1<<20)}))
	}
	require.False(t, b.Stats().Memory.Full)
	n, err := b.Purge(ctx, "d")
	require.NoError(t, err)
	require.Equal(t, 100, n)
	require.Zero(t, b.Stats().Memory.Waiting)

	// Delayed messages are the largest.
	full, cancel := context.WithCancel(ctx)
	batch := make([]bourse.Message, 1000)
	for i := range batch {
		batch[i] = bourse.Message{RoutingKey: "small", Delay: time.Hour, TTL: time.Hour}
	}
	done := make(chan error, 1)
	go func() { // ends with cancel
		for {
			if err := b.PublishBatch(full, batch); err != nil {
				done <- err
				return
			}
		}
	}()
	synctest.Wait()
	require.Equal(t, 1, b.Stats().Memory.Waiters)
	cancel()
	require.ErrorIs(t, <-done, bourse.ErrMemoryFull)
	stored := stats(t, b, "small").Delayed
	m := b.Stats().Memory
	require.Greater(t, m.Waiting, m.Limit*3/4)
	require.LessOrEqual(t, m.Used-m.Cached, m.Limit) // the cache is the engine's, and lets go when it needs room
	require.Greater(t, stored, 30_000)
	require.NoError(t, b.Close())

	// A broker that is opened with more than its limit serves, and lets nobody in before there is room.
	b, err = bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs), MemoryLimit: leastMemory})
	require.NoError(t, err)
	require.Equal(t, m.Waiting, b.Stats().Memory.Waiting)
	go func() { done <- b.Publish(ctx, bourse.Message{RoutingKey: "d", Body: quarterBody}) }()
	synctest.Wait()
	require.Equal(t, 1, b.Stats().Memory.Waiters)
	n, err = b.Purge(ctx, "small")
	require.NoError(t, err)
	require.Equal(t, stored, n)
	require.NoError(t, <-done)
	require.NoError(t, b.Close())
}

// Publishers and consumers at once, of both kinds: the limit holds all the time, all comes through, in order, and at the end nothing is
// counted.
func TestMemoryLimitConcurrent(t *testing.T) {
	const publishers, each, size = 8, 150, 60 << 10
	b := open(t, bourse.Options{MemoryLimit: leastMemory}, bourse.Queue{Name: "t", Transient: true}, bourse.Queue{Name: "d"})
	stop, watched := make(chan struct{}), make(chan int64)
	go func() { // ends with stop
		most := int64(0)
		for {
			select {
			case <-stop:
				watched <- most
				return
			default:
			}
			m := b.Stats().Memory
			most = max(most, m.Waiting+m.Transient+m.IDs)
		}
	}()
	var all sync.WaitGroup
	for p := range publishers {
		all.Go(func() {
			body := bytes.Repeat([]byte{byte(p)}, size)
			for i := range each {
				body[1] = byte(i)
				m := bourse.Message{RoutingKey: []string{"t", "d"}[p%2], Body: body, Transient: i%2 == 0}
				if err := b.Publish(ctx, m); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for _, queue := range []string{"t", "d"} {
		all.Go(func() {
			s, err := b.Subscribe(ctx, queue, bourse.SubscribeOptions{Prefetch: 20})
			if err != nil {
				t.Error(err)
				return
			}
			last := map[byte][2]int{}
			for range publishers / 2 * each {
				d, err := s.Next(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				seen, kind := last[d.Body[0]], int(d.Body[1])%2
				if queue == "t" {
					kind = 0 // there is one order
				}
				if i := int(d.Body[1]) + 1; i <= seen[kind] {
					t.Errorf("message %d of %d after %d", i, d.Body[0], seen[kind])
				} else {
					seen[kind] = i
				}
				last[d.Body[0]] = seen
				if err := d.Ack(); err != nil {
					t.Error(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(stop)
	most := <-watched
	require.LessOrEqual(t, most, int64(leastMemory))
	// All acks are in the log when this one is.
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "d"}))
	getAndAck(t, b, "d")
	require.Eventually(t, func() bool { return b.Weighed() == 0 }, testTimeout, time.Millisecond)
	require.False(t, stuffed(b))
}
