package bourse_test

// Goal: what the tests of the public API share, so that none of them sleeps or guesses.
// Method: a clock that moves only when it is told to; a barrier that returns when
// everything proposed so far has happened, dead letters included; a file system whose
// syncs can be held; and a check that every broker leaves no goroutine behind.

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

var ctx = context.Background()

// testTimeout bounds what a test waits for. It passes only if something is broken.
const testTimeout = 20 * time.Second

// handClock is a Clock that a test moves. What is due runs on goroutines of its own, and
// rest waits for them.
type handClock struct {
	mu      sync.Mutex
	idle    sync.Cond // running is 0
	now     time.Time
	timers  []*handTimer
	running int
	fired   int // since the clock was made
}

type handTimer struct {
	at time.Time
	f  func()
}

func newHandClock() *handClock {
	c := &handClock{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	c.idle.L = &c.mu
	return c
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &handTimer{c.now.Add(d), f}
	if d <= 0 {
		c.fireLocked(t)
		return func() bool { return false }
	}
	c.timers = append(c.timers, t)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.timers, t)
		if i >= 0 {
			c.timers = slices.Delete(c.timers, i, i+1)
		}
		return i >= 0
	}
}

func (c *handClock) fireLocked(t *handTimer) {
	c.running++
	c.fired++
	go func() {
		t.f()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.running--; c.running == 0 {
			c.idle.Broadcast()
		}
	}()
}

// rest returns when no function of a timer runs, and how many have run.
func (c *handClock) rest() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.running > 0 {
		c.idle.Wait()
	}
	return c.fired
}

// step moves the clock to the next timer that is due by limit, or to limit itself, and
// reports which.
func (c *handClock) step(limit time.Time) (fired bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := limit
	for _, t := range c.timers {
		if t.at.Before(at) || t.at.Equal(at) {
			at, fired = t.at, true
		}
	}
	c.now = at
	c.timers = slices.DeleteFunc(c.timers, func(t *handTimer) bool {
		if t.at.After(at) {
			return false
		}
		c.fireLocked(t)
		return true
	})
	return fired
}

// pending is the number of timers that are set.
func (c *handClock) pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// advance moves the clock by d, from timer to timer, and lets everything happen at each.
func (c *handClock) advance(t require.TestingT, b *bourse.Broker, d time.Duration) {
	barrier(t, b, c) // all timers are set
	limit := c.Now().Add(d)
	for c.step(limit) {
		barrier(t, b, c)
	}
	barrier(t, b, c)
}

// barrier returns when all that this goroutine has asked of b is done, what the clock started too, no
// message is on the way to a dead-letter queue, and every schedule waits for its next time. An empty Declare is ordered behind
// all that was proposed.
func barrier(t require.TestingT, b *bourse.Broker, clock *handClock) {
	for {
		fired := 0
		if clock != nil {
			fired = clock.rest()
		}
		require.NoError(t, b.Declare(ctx))
		if clock != nil && clock.rest() != fired {
			continue // what has come up meanwhile is in the log behind that Declare
		}
		dying := 0
		for _, q := range b.Stats().Queues {
			dying += q.Dying
		}
		if dying == 0 && !firing(b, clock) && b.Resting() {
			return
		}
		runtime.Gosched()
	}
}

// firing reports whether a schedule is at work. A bubble sees for itself that it is not.
func firing(b *bourse.Broker, clock *handClock) bool {
	return clock != nil && slices.ContainsFunc(b.Stats().Schedules, func(s bourse.ScheduleStats) bool { return !s.Next.After(clock.Now()) })
}

// noLeaks fails the test if goroutines are left at its end. Call it before anything else.
func noLeaks(t testing.TB) {
	t.Helper()
	already := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, already) })
}

// open opens a broker that the end of the test closes, and declares ds.
func open(t testing.TB, opts bourse.Options, ds ...bourse.Declaration) *bourse.Broker {
	t.Helper()
	noLeaks(t)
	b, err := bourse.NewBroker(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	require.NoError(t, b.Declare(ctx, ds...))
	return b
}

// onFS is a local engine with small files in a file system that may outlive it.
func onFS(t require.TestingT, fs storage.FS) bourse.Engine {
	e, err := bourse.NewLocalEngine("data", bourse.LocalOptions{FS: fs, SegmentBytes: 64 << 10, CheckpointBytes: 256 << 10})
	require.NoError(t, err)
	return e
}

// crashed is fs as a killed process leaves it: all that was written is there.
func crashed(fs *storage.MemFS) *storage.MemFS {
	return fs.Crash(storage.CrashKept, func(int) int { return 0 })
}

// send publishes bodies to queue, one after the other.
func send(t require.TestingT, b *bourse.Broker, queue string, bodies ...string) {
	for _, body := range bodies {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: queue, Body: []byte(body)}))
	}
}

// consume subscribes until the end of the test.
func consume(t testing.TB, b *bourse.Broker, queue string, prefetch int) *bourse.Subscription {
	t.Helper()
	s, err := b.Subscribe(ctx, queue, bourse.SubscribeOptions{Prefetch: prefetch})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// next is the next delivery of s, which must come.
func next(t require.TestingT, s *bourse.Subscription) *bourse.Delivery {
	bounded, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	d, err := s.Next(bounded)
	require.NoError(t, err)
	return d
}

// nothing checks that s has nothing to hand over, once all that was asked for is done.
func nothing(t require.TestingT, b *bourse.Broker, clock *handClock, s *bourse.Subscription) {
	barrier(t, b, clock)
	_, err := s.Next(&lookContext{Context: ctx})
	require.ErrorIs(t, err, context.Canceled)
}

// lookContext is a context for one look: Next finds what is there, and if it would have to wait, it ends.
type lookContext struct {
	context.Context
	looked bool
}

func (*lookContext) Done() <-chan struct{} { return alreadyDone }

func (c *lookContext) Err() error {
	if c.looked {
		return context.Canceled
	}
	c.looked = true
	return nil
}

var alreadyDone = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// drain takes and acks all that is ready in queue, and returns the bodies.
func drain(t require.TestingT, b *bourse.Broker, queue string) (bodies []string) {
	for {
		d, err := b.Get(ctx, queue)
		if err != nil {
			require.ErrorIs(t, err, bourse.ErrEmpty)
			return bodies
		}
		bodies = append(bodies, string(d.Body))
		require.NoError(t, d.Ack())
	}
}

// stats is the state of a queue that must exist.
func stats(t require.TestingT, b *bourse.Broker, queue string) bourse.QueueStats {
	q, ok := b.QueueStats(queue)
	require.True(t, ok, "queue %q", queue)
	return q
}

// heldFS is a file system in memory whose syncs wait while it is held.
type heldFS struct {
	*storage.MemFS
	mu   sync.Mutex
	free sync.Cond
	held bool
}

func newHeldFS() *heldFS {
	f := &heldFS{MemFS: new(storage.MemFS)}
	f.free.L = &f.mu
	return f
}

func (f *heldFS) hold(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = on
	f.free.Broadcast()
}

func (f *heldFS) Create(name string) (storage.File, error) {
	file, err := f.MemFS.Create(name)
	return heldFile{file, f}, err
}

func (f *heldFS) Open(name string) (storage.File, error) {
	file, err := f.MemFS.Open(name)
	return heldFile{file, f}, err
}

type heldFile struct {
	storage.File
	fs *heldFS
}

func (f heldFile) Sync() error {
	f.fs.mu.Lock()
	for f.fs.held {
		f.fs.free.Wait()
	}
	f.fs.mu.Unlock()
	return f.File.Sync()
}

// hookedEngine calls propose before every proposal and closing before the log is closed.
type hookedEngine struct {
	bourse.Engine
	propose, closing func()
}

func (e *hookedEngine) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	log, err := e.Engine.Open(ctx, shard, m)
	return hookedLog{log, e}, err
}

type hookedLog struct {
	bourse.Log
	e *hookedEngine
}

func (l hookedLog) Propose(p bourse.Proposal) error {
	l.e.propose()
	return l.Log.Propose(p)
}

func (l hookedLog) Close() error {
	l.e.closing()
	return l.Log.Close()
}
