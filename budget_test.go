package bourse

// Goal: the budget counts what there is, and the gate keeps to it whoever comes and goes at once. Method: publishers and a consumer at
// the gate alone, with a look at the sums at every step; a memory log whose figures are compared with what it has.

import (
	"context"
	"errors"
	"math/rand"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/storage"
)

func TestBudgetShares(t *testing.T) {
	for _, limit := range []int64{leastMemory, 100_000_000, defaultMemory, 1 << 50} {
		var b budget
		b.open(limit)
		require.Positive(t, b.low)
		require.Less(t, b.low, b.high)
		require.LessOrEqual(t, b.high+int64(cacheOf(limit))+limit/aheadShare+limit/slackShare, limit)
		require.Positive(t, cacheOf(limit))
	}
	var b budget
	b.open(defaultMemory)
	require.Greater(t, b.high, int64(10_000_000*entryBytes), "the default is for ten million messages")
}

// A broker full of ids, which no consumer frees, lets one message in at a time.
func TestBudgetOfIDs(t *testing.T) {
	g := &gate{maxCount: 100, maxBytes: 1 << 30}
	g.memory.open(leastMemory)
	g.weighs(weight{ids: leastMemory})
	require.NoError(t, g.acquire(context.Background(), 1, false))
	require.False(t, g.enter(1, false))
	g.weighs(weight{messages: 50})
	g.release(1)
	require.False(t, g.enter(1, false))
	require.True(t, g.enter(1, true), "it frees")
	g.release(1)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, g.acquire(ended, 1, false), ErrMemoryFull)
	g.weighs(weight{messages: -50})
	require.True(t, g.enter(1, false))
	g.release(1)
	g.weighs(weight{ids: -leastMemory})
	require.True(t, g.enter(1, false))
	require.True(t, g.enter(1, false))
}

// What frees memory waits for its turn among those that do, and for nobody else.
func TestGateFreesFirst(t *testing.T) {
	g := &gate{maxCount: 1, maxBytes: 1 << 30}
	g.memory.open(leastMemory)
	ctx := context.Background()
	require.NoError(t, g.acquire(ctx, 1, false))
	var order []string
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, name := range []string{"a", "b", "frees 1", "frees 2"} {
		all.Go(func() {
			if err := g.acquire(ctx, 1, i > 1); err != nil {
				t.Error(err)
			}
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			g.release(1)
		})
		for g.waiting() <= i {
			runtime.Gosched()
		}
	}
	g.release(1)
	all.Wait()
	require.Equal(t, []string{"frees 1", "frees 2", "a", "b"}, order)
}

// Publishers come, wait, give up and get in, while consumers free what they brought: what is stored and on its way is never more than
// high, and nobody is left at the end.
func TestGateWithinBudget(t *testing.T) {
	const publishers, each = 8, 1500
	g := &gate{maxCount: 6, maxBytes: 1 << 30}
	g.memory.open(leastMemory)
	var all, consumers sync.WaitGroup
	var gaveUp, inside atomic.Int64
	stored := make(chan int64, publishers*each)
	for p := range publishers {
		all.Go(func() {
			rng := rand.New(rand.NewSource(int64(p)))
			for range each {
				ctx, cancel := context.WithCancel(context.Background())
				if rng.Intn(8) == 0 {
					cancel()
				}
				n := int64(rng.Intn(leastMemory / 8))
				err := g.acquire(ctx, n, false)
				cancel()
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					gaveUp.Add(1)
					continue
				}
				if now := inside.Add(1); now > g.maxCount {
					t.Errorf("%d on their way, more than %d", now, g.maxCount)
				}
				// In this order, as a shard does: what is stored is counted, then no more as being on its way.
				if total := g.memory.messages.Load() + n; total > g.memory.high {
					t.Errorf("%d in memory with one of %d on its way, more than %d", total, n, g.memory.high)
				}
				g.weighs(weight{messages: n})
				inside.Add(-1)
				g.release(n)
				stored <- n
			}
		})
	}
	for range 2 {
		consumers.Go(func() {
			for n := range stored {
				g.weighs(weight{messages: -n})
			}
		})
	}
	all.Wait()
	close(stored)
	consumers.Wait()
	require.Zero(t, g.memory.messages.Load())
	require.Zero(t, g.loaded().count())
	require.Zero(t, g.loaded().bytes())
	require.Zero(t, g.waiting())
	require.True(t, g.enter(1, false))
	require.Positive(t, gaveUp.Load())
}

// keepsSome is a machine that keeps each command that brings a message until it is told to free it.
type keepsSome struct {
	Machine
	kept []Ref
	rng  *rand.Rand
}

func (k *keepsSome) Apply(bodies Bodies, entries []Entry) {
	for i := range entries {
		if k.rng.Intn(4) > 0 {
			bodies.Keep(entries[i].Ref, 1)
			k.kept = append(k.kept, entries[i].Ref)
		}
		for len(k.kept) > 0 && k.rng.Intn(2) == 0 {
			j := k.rng.Intn(len(k.kept))
			bodies.Free(k.kept[j])
			k.kept[j] = k.kept[len(k.kept)-1]
			k.kept = k.kept[:len(k.kept)-1]
		}
		if len(k.kept) > 500 || k.rng.Intn(5000) == 0 {
			for _, ref := range k.kept {
				bodies.Free(ref)
			}
			k.kept = nil
		}
	}
}

// sized is a proposal of that many bytes.
type sized int

func (n sized) AppendTo(dst []byte) []byte {
	return append(append(dst, byte(cmdEnqueue)), make([]byte, n)...)
}
func (sized) Durable() bool      { return false }
func (sized) Done(Answer, error) {}

func TestMemoryLogHolds(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	k := &keepsSome{rng: rng}
	l := newMemoryLog(k)
	l.gate = &gate{}
	empty := 0
	for range 20_000 {
		size := sized(rng.Intn(3000))
		if rng.Intn(20) == 0 {
			size = sized(rng.Intn(100_000))
		}
		require.NoError(t, l.Propose(size))
		slabs, bytes, n := map[*memorySlab]bool{}, int64(0), int64(0)
		for i := range l.kept {
			c := &l.kept[i]
			if c.cmd == nil {
				continue
			}
			n++
			if c.slab == nil {
				bytes += int64(len(c.cmd))
			} else if !slabs[c.slab] {
				slabs[c.slab] = true
				if c.slab == l.open {
					bytes += int64(len(c.slab.all) - len(c.slab.rest))
				} else {
					bytes += memorySlabBytes
				}
			}
		}
		if held := l.gate.memory.bodies.Load(); held != bytes+keptBytes*n || n == 0 && held != 0 {
			t.Fatalf("%d held, %d in %d commands", held, bytes, n)
		}
		if n == 0 {
			empty++
		}
	}
	require.Positive(t, empty)
	require.NoError(t, l.Close())
	require.Zero(t, l.gate.memory.bodies.Load())
}

// What the budget counts is what the queues weigh, also once loans came back at a start, and when queues are gone.
func TestBudgetFollowsQueues(t *testing.T) {
	ctx := context.Background()
	fs := &storage.MemFS{}
	open := func() *Broker {
		e, err := NewLocalEngine("data", LocalOptions{FS: fs})
		require.NoError(t, err)
		b, err := NewBroker(ctx, Options{Engine: e})
		require.NoError(t, err)
		return b
	}
	weighs := func(b *Broker, least int64) {
		t.Helper()
		s := b.placement.all()[0]           // there is one
		require.Eventually(t, func() bool { // the session that gives loans back is opened beside
			s.mu.Lock()
			defer s.mu.Unlock()
			sum := int64(0)
			for _, q := range s.m.queues {
				sum += q.weight().messages
			}
			return sum >= least && sum == b.gate.memory.messages.Load() && sum == s.weight.messages
		}, 10*time.Second, time.Millisecond)
	}
	b := open()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, b.Declare(ctx, Queue{Name: name}))
		for range 3 {
			require.NoError(t, b.PublishBatch(ctx, make100(name)))
		}
	}
	weighs(b, 600*entryBytes)
	s, err := b.Subscribe(ctx, "a", SubscribeOptions{Prefetch: 200})
	require.NoError(t, err)
	_, err = s.Next(ctx)
	require.NoError(t, err)
	weighs(b, 400*entryBytes+200*loanBytes)
	image := fs.Crash(storage.CrashModes[0], func(int) int { return 0 })
	require.NoError(t, b.Close())
	fs = image
	b = open()
	require.Eventually(t, func() bool { return mustStats(t, b, "a").Ready == 300 }, 10*time.Second, time.Millisecond)
	weighs(b, 600*entryBytes)
	require.NoError(t, b.Delete(ctx, Queue{Name: "b"}))
	weighs(b, 300*entryBytes)
	require.NoError(t, b.Delete(ctx, Queue{Name: "a"}))
	weighs(b, 0)
	require.Zero(t, b.Stats().Memory.Waiting)
	require.NoError(t, b.Close())
}
