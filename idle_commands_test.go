package bourse_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// Goal: a queue that is idle but for one kind of command costs no more for many of them than for a few: the directory comes back to
// its floor, and memory, goroutines and descriptors to where they were. Method: each kind alone, in a broker that keeps nothing in
// between; which kinds came to the log is counted, so that none is left out. make idle runs more of them.

var idleCommands = flag.Int("idle.commands", 0, "how many times TestIdleCommands does each thing; 0: some hundred times")

// kindCounts counts the commands of each kind that come out of an engine.
type kindCounts struct {
	mu sync.Mutex
	n  [256]int
}

type countedEngine struct {
	bourse.Engine
	*kindCounts
}

func (e countedEngine) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	return e.Engine.Open(ctx, shard, countedMachine{m, e.kindCounts})
}

type countedMachine struct {
	bourse.Machine
	*kindCounts
}

func (m countedMachine) Apply(bodies bourse.Bodies, entries []bourse.Entry) {
	m.mu.Lock()
	for i := range entries {
		m.n[entries[i].Cmd[0]]++
	}
	m.mu.Unlock()
	m.Machine.Apply(bodies, entries)
}

// idleCase does one thing to a broker, and leaves it as it was.
type idleCase struct {
	name  string
	apart bool // each queue has a log of its own
	do    func(t *testing.T, b *bourse.Broker, clock *handClock, i int)
}

// taken publishes a message and returns its delivery.
func taken(t *testing.T, b *bourse.Broker, queue string) *bourse.Delivery {
	send(t, b, queue, "one")
	d, err := b.Get(ctx, queue)
	require.NoError(t, err)
	return d
}

// waiting publishes a message and finds it.
func waiting(t *testing.T, b *bourse.Broker, id string) bourse.Locator {
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", ID: id, Body: []byte("waits")}))
	found, err := b.Find(ctx, "q", id)
	require.NoError(t, err)
	return found.Locator
}

var idleCases = []idleCase{
	{"ack", false, func(t *testing.T, b *bourse.Broker, _ *handClock, _ int) { require.NoError(t, taken(t, b, "q").Ack()) }},
	{"ack, synced", false, func(t *testing.T, b *bourse.Broker, _ *handClock, _ int) {
		require.NoError(t, taken(t, b, "q").AckSync(ctx))
	}},
	{"back, extended", false, func(t *testing.T, b *bourse.Broker, _ *handClock, _ int) {
		d := taken(t, b, "q")
		require.NoError(t, d.Extend(time.Minute))
		require.NoError(t, d.NackAfter(0))
		require.Len(t, drain(t, b, "q"), 1)
	}},
	{"ack up to", false, func(t *testing.T, b *bourse.Broker, _ *handClock, _ int) {
		s, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
		require.NoError(t, err)
		send(t, b, "q", "one")
		require.NoError(t, s.AckUpTo(next(t, s).Tag))
		require.NoError(t, s.Close())
	}},
	{"dead letter", false, func(t *testing.T, b *bourse.Broker, clock *handClock, _ int) {
		require.NoError(t, taken(t, b, "dying").Reject("it is bad"))
		barrier(t, b, clock)
		require.Len(t, drain(t, b, "q"), 1)
	}},
	{"dead letter elsewhere", false, func(t *testing.T, b *bourse.Broker, clock *handClock, _ int) {
		require.NoError(t, taken(t, b, "lost").Reject("it is bad"))
		barrier(t, b, clock)
		require.Len(t, drain(t, b, "fast"), 1)
	}},
	{"declare and delete", false, func(t *testing.T, b *bourse.Broker, _ *handClock, i int) {
		q := bourse.Queue{Name: fmt.Sprint("passing ", i)}
		bound := bourse.Binding{Exchange: "all", Queue: q.Name}
		require.NoError(t, b.Declare(ctx, q, bound))
		require.NoError(t, b.Delete(ctx, bound))
		require.NoError(t, b.Delete(ctx, q))
	}},
	{"auto-delete", false, func(t *testing.T, b *bourse.Broker, _ *handClock, i int) {
		q := bourse.Queue{Name: fmt.Sprint("passing ", i), Transient: true, AutoDelete: true}
		require.NoError(t, b.Declare(ctx, q))
		s, err := b.Subscribe(ctx, q.Name, bourse.SubscribeOptions{})
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}},
	{"purge", false, func(t *testing.T, b *bourse.Broker, _ *handClock, _ int) {
		send(t, b, "q", "one", "two")
		n, err := b.Purge(ctx, "q")
		require.NoError(t, err)
		require.Equal(t, 2, n)
	}},
	{"promote, change, edit and cancel", false, func(t *testing.T, b *bourse.Broker, _ *handClock, i int) {
		id := fmt.Sprint("id ", i)
		l := waiting(t, b, id)
		require.NoError(t, b.SetPriority(ctx, l, 0))
		require.NoError(t, b.Edit(ctx, l, func(m *bourse.Message) error { m.Body = []byte("edited"); return nil }))
		found, err := b.Find(ctx, "q", id)
		require.NoError(t, err)
		require.NoError(t, b.Cancel(ctx, found.Locator))
	}},
	{"update", false, func(t *testing.T, b *bourse.Broker, _ *handClock, i int) {
		require.NoError(t, b.Update(ctx, bourse.Queue{Name: "changed", TTL: time.Hour + time.Duration(i%2)}))
		require.NoError(t, b.Update(ctx, bourse.Queue{Name: "fast", Transient: true, TTL: time.Hour + time.Duration(i%2)}))
	}},
	{"update, each in its log", true, func(t *testing.T, b *bourse.Broker, _ *handClock, i int) {
		require.NoError(t, b.Update(ctx, bourse.Queue{Name: "changed", TTL: time.Hour + time.Duration(i%2)}))
	}},
	{"pause and resume", false, func(t *testing.T, b *bourse.Broker, _ *handClock, _ int) {
		require.NoError(t, b.Pause(ctx, "q"))
		require.NoError(t, b.Resume(ctx, "q"))
	}},
	{"in one commit", false, func(t *testing.T, b *bourse.Broker, _ *handClock, _ int) {
		ms := []bourse.Message{{RoutingKey: "q", Body: []byte("a")}, {RoutingKey: "changed", Body: []byte("b")}}
		require.NoError(t, b.PublishAtomic(ctx, ms))
		d, err := b.Get(ctx, "q")
		require.NoError(t, err)
		require.NoError(t, d.AckAndPublish(ctx, ms[1]))
		require.Len(t, drain(t, b, "changed"), 2)
	}},
	{"ids that are remembered", false, func(t *testing.T, b *bourse.Broker, clock *handClock, i int) {
		for range 2 {
			require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "once", ID: fmt.Sprint("id ", i), Body: []byte("one")}))
		}
		require.Len(t, drain(t, b, "once"), 1)
		if i%64 == 63 {
			clock.advance(t, b, 2*time.Minute)
		}
	}},
	{"delay and expire", false, func(t *testing.T, b *bourse.Broker, clock *handClock, _ int) {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Delay: time.Second, TTL: time.Minute, Body: []byte("late")}))
		clock.advance(t, b, 2*time.Minute)
		require.Empty(t, drain(t, b, "q"))
	}},
	{"schedule", false, func(t *testing.T, b *bourse.Broker, clock *handClock, i int) {
		m := bourse.Message{RoutingKey: "q", Body: []byte("due")}
		s := bourse.Schedule{Name: fmt.Sprint("each ", i), Every: time.Minute, Message: m}
		require.NoError(t, b.Declare(ctx, s))
		clock.advance(t, b, time.Minute)
		require.Len(t, drain(t, b, "q"), 1)
		require.NoError(t, b.Delete(ctx, s))
	}},
	{"wait for room", false, func(t *testing.T, b *bourse.Broker, _ *handClock, _ int) {
		send(t, b, "narrow", "one")
		second := b.PublishAsync(ctx, bourse.Message{RoutingKey: "narrow", Body: []byte("two")})
		d, err := b.Get(ctx, "narrow")
		require.NoError(t, err)
		require.NoError(t, d.Ack())
		require.NoError(t, second.Wait(ctx))
		require.Len(t, drain(t, b, "narrow"), 1)
	}},
}

func TestIdleCommands(t *testing.T) {
	segment, n := 1<<20, *idleCommands
	if n == 0 {
		n = 300
	}
	all := new(kindCounts)
	for _, c := range idleCases {
		t.Run(c.name, func(t *testing.T) {
			dir, clock, own := t.TempDir(), newHandClock(), new(kindCounts)
			e, err := bourse.NewLocalEngine(dir, bourse.LocalOptions{
				SegmentBytes: segment, CheckpointBytes: 4 << 20, CacheBytes: 256 << 10,
			})
			require.NoError(t, err)
			declarations := []bourse.Declaration{
				bourse.Exchange{Name: "all", Kind: bourse.Fanout}, bourse.Exchange{Name: "graves", Kind: bourse.Direct},
				bourse.Queue{Name: "q"}, bourse.Queue{Name: "changed"},
				bourse.Queue{Name: "narrow", MaxMessages: 1, Overflow: bourse.Block},
				bourse.Queue{Name: "once", Dedup: bourse.Dedup{Window: time.Minute}},
				bourse.Queue{Name: "dying", DeadLetter: bourse.DeadLetter{Exchange: "graves", RoutingKey: "q"}},
				bourse.Queue{Name: "lost", DeadLetter: bourse.DeadLetter{Exchange: "graves", RoutingKey: "fast"}},
				bourse.Binding{Exchange: "graves", Queue: "q", Key: "q"},
			}
			if c.apart {
				e = bourse.PerQueue(e)
			} else {
				declarations = append(declarations, bourse.Queue{Name: "fast", Transient: true},
					bourse.Binding{Exchange: "graves", Queue: "fast", Key: "fast"})
			}
			b := open(t, bourse.Options{Engine: countedEngine{e, own}, Clock: clock}, declarations...)
			run := func(from, to int) vitals {
				for i := from; i < to; i++ {
					c.do(t, b, clock, i)
				}
				barrier(t, b, clock)
				for _, q := range b.Stats().Queues {
					require.Zero(t, q.Ready+q.Delayed+q.Unacked+q.Dying, q.Name)
				}
				return rested(t, b, dir, int64(segment))
			}
			few := run(0, n/3)
			many := run(n/3, n)
			commands := 0
			own.mu.Lock()
			for kind, k := range own.n {
				commands += k
				all.n[kind] += k
			}
			own.mu.Unlock()
			fmt.Printf("idle: %s: %d times, %d commands: directory %d KiB, heap %d to %d KiB\n", c.name, n, commands, size(t, dir)>>10,
				few.heap>>10, many.heap>>10)
			require.LessOrEqual(t, many.heap, few.heap+few.heap/20+512<<10)
			require.LessOrEqual(t, many.goroutines, few.goroutines)
			require.LessOrEqual(t, many.descriptors, few.descriptors)
			require.NoError(t, b.Close())
		})
	}
	for kind := 1; kind <= bourse.CommandKinds(); kind++ {
		if all.n[kind] == 0 {
			t.Errorf("no command of kind %d", kind)
		}
	}
}
