package bourse_test

// Goal: what a full queue does is what SEMANTICS 9, 4 and 10 say of length, through the public API. Method: a case for each rule,
// with queues of a few messages; block_test.go has what publishers see that wait.

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// requireFull checks that err is a refusal by exactly these queues, and that so many others have stored the message.
func requireFull(t require.TestingT, err error, stored int, queues ...string) {
	require.ErrorIs(t, err, bourse.ErrQueueFull)
	var rejected *bourse.RejectedError
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, stored, rejected.Stored)
	var names []string
	for _, r := range rejected.Refusals {
		names = append(names, r.Queue)
		require.ErrorContains(t, err, fmt.Sprintf("queue %q", r.Queue))
	}
	require.Equal(t, queues, names)
}

func publish(b *bourse.Broker, queue, body string) error {
	return b.Publish(ctx, bourse.Message{RoutingKey: queue, Body: []byte(body)})
}

func TestLengthRejects(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", MaxMessages: 2})
	send(t, b, "q", "a", "b")
	requireFull(t, publish(b, "q", "c"), 0, "q")
	requireFull(t, b.PublishAsync(ctx, bourse.Message{RoutingKey: "q"}).Wait(ctx), 0, "q")
	err := b.PublishBatch(ctx, []bourse.Message{{RoutingKey: "q"}, {RoutingKey: "q"}})
	require.ErrorIs(t, err, bourse.ErrQueueFull)
	require.ErrorContains(t, err, "2 of 2 messages not stored")
	st := stats(t, b, "q")
	require.Equal(t, []int64{2, 2}, []int64{st.Length, st.MaxMessages})
	require.EqualValues(t, 4, st.Rejected)
	require.EqualValues(t, 2, st.Enqueued)
	require.EqualValues(t, 2, b.Stats().Storage.References, "nothing of what was refused is kept")
	require.EqualValues(t, 2, b.Stats().Published)

	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	send(t, b, "q", "c") // what is on loan does not count
	requireFull(t, publish(b, "q", "d"), 0, "q")
	require.NoError(t, d.Nack()) // a requeue may exceed the limit, and nothing goes for it
	barrier(t, b, nil)
	require.EqualValues(t, 3, stats(t, b, "q").Length)
	requireFull(t, publish(b, "q", "d"), 0, "q")
	require.Equal(t, []string{"a", "b", "c"}, drain(t, b, "q"))
	send(t, b, "q", "d")
}

// What is delayed counts, from its publish on.
func TestLengthCountsDelayed(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", MaxMessages: 2})
	later := bourse.Message{RoutingKey: "q", DeliverAt: clock.Now().Add(time.Hour)}
	require.NoError(t, b.Publish(ctx, later))
	send(t, b, "q", "a")
	requireFull(t, publish(b, "q", "b"), 0, "q")
	requireFull(t, b.Publish(ctx, later), 0, "q")
	require.Equal(t, []string{"a"}, drain(t, b, "q"))
	require.EqualValues(t, 1, stats(t, b, "q").Length)
	n, err := b.Purge(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Zero(t, stats(t, b, "q").Length)
}

// The default is that the others keep the message.
func TestLengthOfSeveralTargets(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Exchange{Name: "e", Kind: bourse.Fanout}, bourse.Queue{Name: "a", MaxMessages: 1},
		bourse.Queue{Name: "b"}, bourse.Queue{Name: "c", MaxMessages: 1}, bourse.Binding{Exchange: "e", Queue: "a"},
		bourse.Binding{Exchange: "e", Queue: "b"}, bourse.Binding{Exchange: "e", Queue: "c"})
	m := bourse.Message{Exchange: "e"}
	send(t, b, "a", "x")
	requireFull(t, b.Publish(ctx, m), 2, "a")
	requireFull(t, b.Publish(ctx, m), 1, "a", "c")
	require.Equal(t, 2, stats(t, b, "b").Ready)
	require.Equal(t, 1, stats(t, b, "c").Ready)
}

func TestLengthInBytes(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", MaxBytes: 1000}, bourse.Queue{Name: "last", MaxBytes: 1000,
		Overflow: bourse.DropHead}, bourse.Queue{Name: "any"})
	body := func(n int) string { return strings.Repeat("x", n) }
	send(t, b, "any", body(400))
	require.InDelta(t, 450, stats(t, b, "any").LengthBytes, 20, "body, names and id")
	send(t, b, "q", body(400), body(400))
	requireFull(t, publish(b, "q", body(200)), 0, "q")
	send(t, b, "q", body(20)) // a smaller one still fits
	for _, queue := range []string{"q", "last"} {
		err := publish(b, queue, body(1000)) // never fits
		var invalid *bourse.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "Message.Body", invalid.Field)
		require.ErrorContains(t, err, fmt.Sprintf("queue %q", queue))
		require.NotErrorIs(t, err, bourse.ErrQueueFull)
	}
	send(t, b, "last", body(100), body(300), body(301), body(800)) // several go for one
	require.Equal(t, []string{body(800)}, drain(t, b, "last"))
	require.EqualValues(t, 3, stats(t, b, "last").Evicted)
	require.EqualValues(t, 1, stats(t, b, "last").Rejected)
}

func TestLengthDropsHead(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", Priorities: 3, MaxMessages: 3, Overflow: bourse.DropHead})
	put := func(body string, priority uint8) {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Priority: priority, Body: []byte(body)}))
	}
	put("a", 1)
	put("b", 2)
	put("c", 1)
	put("d", 0) // alone in the lowest level: goes itself
	put("e", 2) // the oldest of level 1 goes
	put("f", 2) // then the other
	put("g", 2)
	require.Equal(t, []string{"e", "f", "g"}, drain(t, b, "q"))
	st := stats(t, b, "q")
	require.Equal(t, []uint64{7, 4, 4, 4, 0}, []uint64{st.Enqueued, st.Evicted, st.Dead, st.Discarded, st.Rejected}, "dropped and counted")
	require.Zero(t, b.Stats().Storage.References)
	require.Zero(t, stats(t, b, bourse.ParkingQueue).Ready)
}

// A message that a consumer takes at once needs no room, and one that comes back takes none.
func TestLengthDropsHeadForPublishesOnly(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", MaxMessages: 1, Overflow: bourse.DropHead,
		Retry: bourse.Backoff{Min: time.Minute}})
	s := consume(t, b, "q", 3)
	send(t, b, "q", "a", "b")
	require.NoError(t, next(t, s).Nack())
	require.NoError(t, next(t, s).Nack())
	barrier(t, b, clock)
	require.EqualValues(t, 2, stats(t, b, "q").Length)
	send(t, b, "q", "c")
	require.Equal(t, "c", string(next(t, s).Body))
	require.Zero(t, stats(t, b, "q").Evicted)
	require.NoError(t, s.Close())
	barrier(t, b, clock)
	require.EqualValues(t, 3, stats(t, b, "q").Length)
	send(t, b, "q", "d") // now it has to wait: what is ready goes first, from the oldest on, and that ends with itself
	require.EqualValues(t, 2, stats(t, b, "q").Evicted)
	require.Equal(t, 2, stats(t, b, "q").Delayed)
}

// If nothing is ready the delayed message that is due last goes.
func TestLengthDropsDelayed(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", MaxMessages: 2, Overflow: bourse.DropHead})
	for i, after := range []time.Duration{3, 1, 4, 2} {
		m := bourse.Message{RoutingKey: "q", Body: []byte(fmt.Sprint(i)), DeliverAt: clock.Now().Add(after * time.Hour)}
		require.NoError(t, b.Publish(ctx, m))
	}
	clock.advance(t, b, 5*time.Hour)
	require.Equal(t, []string{"1", "3"}, drain(t, b, "q"))
}

func TestLengthDeadLetters(t *testing.T) {
	for _, overflow := range []bourse.Overflow{bourse.DropHead, bourse.DeadLetterHead} {
		t.Run(overflow.String(), func(t *testing.T) {
			b := open(t, bourse.Options{}, bourse.Queue{Name: "dead"},
				bourse.Exchange{Name: "dlx", Kind: bourse.Fanout}, bourse.Binding{Exchange: "dlx", Queue: "dead"},
				bourse.Queue{Name: "q", MaxMessages: 2, Overflow: overflow, DeadLetter: bourse.DeadLetter{Exchange: "dlx"}})
			send(t, b, "q", "a", "b", "c", "d", "e")
			barrier(t, b, nil)
			require.Equal(t, []string{"d", "e"}, drain(t, b, "q"))
			for _, want := range []string{"a", "b", "c"} { // in the order in which they went
				d, err := b.Get(ctx, "dead")
				require.NoError(t, err)
				require.Equal(t, want, string(d.Body))
				require.Equal(t, []string{"q/maxlen/1"}, deaths(d))
				require.Zero(t, d.Failures)
			}
			st := stats(t, b, "q")
			require.Equal(t, []uint64{3, 3, 0}, []uint64{st.Evicted, st.Dead, st.Discarded})
		})
	}
}

// A dead letter whose target is full stays where it died, counts there and is brought again, at longer and longer
// intervals. Others go on.
func TestLengthOfDeadLetterQueue(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Exchange{Name: "dlx"}, bourse.Queue{Name: "narrow", MaxMessages: 1},
		bourse.Queue{Name: "wide"}, bourse.Binding{Exchange: "dlx", Queue: "narrow", Key: "narrow"},
		bourse.Binding{Exchange: "dlx", Queue: "wide", Key: "narrow"}, bourse.Binding{Exchange: "dlx", Queue: "wide", Key: "wide"},
		bourse.Exchange{Name: "in", Kind: bourse.Fanout}, bourse.Binding{Exchange: "in", Queue: "q"},
		bourse.Queue{Name: "q", MaxMessages: 2, DeadLetter: bourse.DeadLetter{Exchange: "dlx"}})
	reject := func(key string) {
		require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "in", RoutingKey: key, Body: []byte(key)}))
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.NoError(t, d.Reject("no"))
	}
	rest := func() {
		for range 3 {
			clock.rest()
			require.NoError(t, b.Declare(ctx))
		}
	}
	waitFor := func(done func() bool) {
		for !done() {
			rest()
		}
	}
	retrySet := func(after time.Duration) func() bool {
		return func() bool { return dueBy(clock, clock.Now().Add(after)) }
	}
	send(t, b, "narrow", "x")
	reject("narrow")
	reject("wide")
	waitFor(func() bool { return stats(t, b, "wide").Ready == 1 && retrySet(time.Second)() })
	require.Equal(t, 1, stats(t, b, "q").Dying, "in none of its targets before all have room")
	require.Zero(t, stats(t, b, "narrow").Rejected)
	require.EqualValues(t, 1, stats(t, b, "q").Length)
	send(t, b, "q", "y")
	requireFull(t, publish(b, "q", "z"), 0, "q")

	clock.step(clock.Now().Add(time.Second))
	waitFor(retrySet(2 * time.Second))
	require.Equal(t, 1, stats(t, b, "q").Dying)
	require.Equal(t, []string{"x"}, drain(t, b, "narrow"))
	clock.step(clock.Now().Add(2*time.Second - 1))
	rest()
	require.Equal(t, 1, stats(t, b, "q").Dying)
	clock.step(clock.Now().Add(1))
	waitFor(func() bool { return stats(t, b, "q").Dying == 0 })
	require.Equal(t, 1, stats(t, b, "narrow").Ready)
	require.Equal(t, 2, stats(t, b, "wide").Ready)
}

// dueBy reports whether a timer is set for that time or an earlier one.
func dueBy(clock *handClock, at time.Time) bool {
	clock.mu.Lock()
	defer clock.mu.Unlock()
	return slices.ContainsFunc(clock.timers, func(timer *handTimer) bool { return !timer.at.After(at) })
}

// Dead letters evict where a publish would.
func TestLengthOfDeadLetterQueueThatDrops(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "dead", MaxMessages: 1, Overflow: bourse.DropHead},
		bourse.Exchange{Name: "dlx", Kind: bourse.Fanout}, bourse.Binding{Exchange: "dlx", Queue: "dead"},
		bourse.Queue{Name: "q", DeadLetter: bourse.DeadLetter{Exchange: "dlx"}})
	send(t, b, "q", "a", "b")
	for range 2 {
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.NoError(t, d.Reject("no"))
	}
	barrier(t, b, nil)
	require.EqualValues(t, 1, stats(t, b, "dead").Evicted)
	require.Equal(t, []string{"b"}, drain(t, b, "dead"))
}

// A dead letter that is larger than its target may be waits until nothing else is there. It is not lost, and not stuck.
func TestLengthOfLargeDeadLetter(t *testing.T) {
	for _, overflow := range []bourse.Overflow{bourse.RejectPublish, bourse.DropHead, bourse.Block} {
		t.Run(overflow.String(), func(t *testing.T) {
			clock := newHandClock()
			b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "dead", MaxBytes: 200, Overflow: overflow},
				bourse.Exchange{Name: "dlx", Kind: bourse.Fanout}, bourse.Binding{Exchange: "dlx", Queue: "dead"},
				bourse.Queue{Name: "q", DeadLetter: bourse.DeadLetter{Exchange: "dlx"}})
			send(t, b, "dead", "x")
			send(t, b, "q", strings.Repeat("y", 500))
			d, err := b.Get(ctx, "q")
			require.NoError(t, err)
			require.NoError(t, d.Reject("no"))
			for !dueBy(clock, clock.Now().Add(time.Second)) {
				require.NoError(t, b.Declare(ctx))
			}
			require.Equal(t, []string{"x"}, drain(t, b, "dead"))
			clock.step(clock.Now().Add(time.Second))
			barrier(t, b, clock)
			require.Equal(t, 1, stats(t, b, "dead").Ready)
			require.Len(t, drain(t, b, "dead"), 1)
		})
	}
}

// A replay is refused by a full queue, and an edit by one that has no room for what the message grows by.
func TestLengthOfReplayAndEdit(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", MaxMessages: 1}, bourse.Queue{Name: "narrow", MaxBytes: 200})
	send(t, b, "q", "a")
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, d.Reject("no"))
	barrier(t, b, nil)
	send(t, b, "q", "b")
	done, err := b.Replay(ctx, bourse.ParkingQueue, bourse.ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, []int{0, 1}, []int{done.Moved, done.Failed})
	require.ErrorIs(t, done.Failures[0].Err, bourse.ErrQueueFull)
	require.Zero(t, stats(t, b, "q").Rejected)
	require.Equal(t, []string{"b"}, drain(t, b, "q"))
	done, err = b.Replay(ctx, bourse.ParkingQueue, bourse.ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, done.Moved)
	require.Equal(t, []string{"a"}, drain(t, b, "q"))

	send(t, b, "narrow", "short")
	edit := func(size int) error {
		for m, err := range b.Browse(ctx, "narrow", bourse.BrowseOptions{}) {
			require.NoError(t, err)
			return b.Edit(ctx, m.Locator, func(m *bourse.Message) error { m.Body = make([]byte, size); return nil })
		}
		return nil
	}
	require.ErrorIs(t, edit(300), bourse.ErrQueueFull)
	require.NoError(t, edit(100))
	require.Len(t, drain(t, b, "narrow")[0], 100)
}

// A bundle is taken as a whole or not at all, and does not wait; a refusal leaves the loan as it is.
func TestLengthOfBundle(t *testing.T) {
	for _, overflow := range []bourse.Overflow{bourse.RejectPublish, bourse.Block} {
		b := open(t, bourse.Options{}, bourse.Queue{Name: "in"}, bourse.Queue{Name: "q", MaxMessages: 2, Overflow: overflow},
			bourse.Queue{Name: "last", MaxMessages: 1, Overflow: bourse.DropHead})
		send(t, b, "in", "x")
		d, err := b.Get(ctx, "in")
		require.NoError(t, err)
		m := bourse.Message{RoutingKey: "q"}
		unrouted := bourse.Message{RoutingKey: "nowhere"}
		err = d.AckAndPublish(ctx, bourse.Message{RoutingKey: "in"}, unrouted, m, m, m)
		requireFull(t, err, 0, "q")
		var atomic *bourse.AtomicError
		require.ErrorAs(t, err, &atomic)
		require.Equal(t, 4, atomic.Index, "the first that does not fit")
		require.Equal(t, []int{0, 1, 0}, []int{stats(t, b, "in").Ready, stats(t, b, "in").Unacked, stats(t, b, "q").Ready})
		last := func(body string) bourse.Message { return bourse.Message{RoutingKey: "last", Body: []byte(body)} }
		require.NoError(t, d.AckAndPublish(ctx, m, m, last("a"), last("b")))
		require.EqualValues(t, 2, stats(t, b, "q").Length)
		require.Equal(t, []string{"b"}, drain(t, b, "last"))
		require.EqualValues(t, 1, stats(t, b, "last").Evicted)
	}
}

// Limits and counters survive a restart, and so does what is over the limit.
func TestLengthAfterRestart(t *testing.T) {
	fs := new(storage.MemFS)
	noLeaks(t)
	b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", MaxMessages: 1, Overflow: bourse.DropHead}))
	send(t, b, "q", "a", "b")
	for range 2 { // from a log, and from a checkpoint
		fs = crashed(fs)
		require.NoError(t, b.Close())
		b, err = bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
		require.NoError(t, err)
		require.EqualValues(t, 1, stats(t, b, "q").Length)
	}
	require.EqualValues(t, 1, stats(t, b, "q").Evicted)
	send(t, b, "q", "c")
	require.EqualValues(t, 2, stats(t, b, "q").Evicted)
	require.Equal(t, []string{"c"}, drain(t, b, "q"))
	require.NoError(t, b.Close())
}

// Whatever many publishers do at once, a limit holds at every moment, and is reached.
func TestLengthIsExact(t *testing.T) {
	const publishers, each, limit = 16, 200, 25
	for _, overflow := range []bourse.Overflow{bourse.RejectPublish, bourse.DropHead, bourse.Block} {
		t.Run(overflow.String(), func(t *testing.T) {
			b := open(t, bourse.Options{}, bourse.Queue{Name: "q", MaxMessages: limit, Overflow: overflow})
			var over atomic.Int64
			done := make(chan struct{})
			var observer sync.WaitGroup
			observer.Go(func() { // ends with done
				for {
					select {
					case <-done:
						return
					default:
						over.Store(max(over.Load(), stats(t, b, "q").Length))
					}
				}
			})
			stored := make([][]string, publishers)
			var group sync.WaitGroup
			for p := range publishers {
				group.Go(func() {
					for i := range each {
						body := fmt.Sprintf("%02d %03d", p, i)
						if err := publish(b, "q", body); err != nil {
							requireFull(t, err, 0, "q")
							continue
						}
						stored[p] = append(stored[p], body)
					}
				})
			}
			taken := make([][]string, publishers)
			take := func(want int) {
				s := consume(t, b, "q", 10)
				for range want {
					d := next(t, s)
					var p int
					_, err := fmt.Sscanf(string(d.Body), "%d", &p)
					require.NoError(t, err)
					taken[p] = append(taken[p], string(d.Body))
					require.NoError(t, d.Ack())
				}
				require.NoError(t, s.Close())
			}
			if overflow == bourse.Block {
				take(publishers * each)
				group.Wait()
				require.Equal(t, stored, taken, "all, and those of each publisher in order")
			} else {
				group.Wait()
				require.EqualValues(t, limit, stats(t, b, "q").Length)
				if overflow == bourse.RejectPublish {
					require.Len(t, slices.Concat(stored...), limit)
				} else {
					require.EqualValues(t, publishers*each-limit, stats(t, b, "q").Evicted)
				}
			}
			close(done)
			observer.Wait()
			require.LessOrEqual(t, over.Load(), int64(limit))
		})
	}
}
