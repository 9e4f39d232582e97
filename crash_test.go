package bourse

// Goal: no power cut, at whatever call of the file system, loses what was confirmed, brings back what AckSync
// settled, tears apart what is one step, or leaves a directory that does not open. Method: a broker works on a
// storage.MemFS with tiny segments and checkpoints, driven by one goroutine from a seed. Before every call that
// changes something, every kind of crash is taken as an image. Each image is recovered twice: without a broker, where
// the state must be, byte for byte, one that the living machine went through, and not older than the last
// durable command; and by a broker, where counters and every single message are compared with what the driver knows.
// Crashes of the recovery itself are recovered too, and so is what the recovered broker then does. -images says
// how many.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/boursemq/bourse/storage"
)

var (
	crashImages = flag.Int("images", 300, "images of TestCrash tests")
	crashSeed   = flag.Int64("crash-seed", 1, "first seed of TestCrashFS")
)

func crashLocal(fs storage.FS) LocalOptions {
	return LocalOptions{FS: fs, SegmentBytes: 2048, CheckpointBytes: 1500}
}

var crashTopology = []Declaration{
	Exchange{Name: "all", Kind: Fanout}, Exchange{Name: "dead", Kind: Fanout},
	Queue{
		Name: "jobs", Priorities: 3, MaxRetries: 1, Retry: Backoff{Min: time.Millisecond, Max: time.Second},
		DeadLetter: DeadLetter{Exchange: "dead"},
	},
	Queue{Name: "side", MaxRetries: NoLimit}, Queue{Name: "dead1", MaxRetries: NoLimit}, Queue{Name: "dead2", MaxRetries: NoLimit},
	Binding{Exchange: "all", Queue: "jobs"}, Binding{Exchange: "all", Queue: "side"},
	Binding{Exchange: "dead", Queue: "dead1"}, Binding{Exchange: "dead", Queue: "dead2"},
}

// crashCounts are figures of a whole test.
type crashCounts struct{ calls, images, nested, again int }

// crashRun is one workload.
type crashRun struct {
	seed   int64
	rng    *rand.Rand // of the driver
	fs     *storage.MemFS
	fault  *storage.FaultFS
	clock  *crashClock
	h      *crashHistory
	fates  fates
	counts *crashCounts
	share  int // of images that are taken: one in share

	b      *Broker
	number int // of the last message
	lent   []*Delivery

	mu      sync.Mutex // guards below; images are looked at one by one
	choose  *rand.Rand
	bad     error
	pending []crashState
}

// crashState is a state that was recovered: it must turn up in the history, which goes on meanwhile.
type crashState struct {
	what    string
	state   uint64
	atLeast int
}

var readingCalls = []string{"read", "readdir", "size", "open", "lock", "mkdir"}

// atCall is the rule of the living broker's file system.
func (r *crashRun) atCall(op, name string, n int) error {
	if slices.Contains(readingCalls, op) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.calls++
	for _, mode := range storage.CrashModes {
		if r.bad != nil || r.choose.Intn(r.share) > 0 {
			continue
		}
		what := fmt.Sprintf("seed %d, call %d (%s %s), %s", r.seed, n, op, name, mode)
		r.fates.mu.Lock()
		durable := r.h.syncedTo()
		all := r.fates.copyLocked()
		image := r.fs.Crash(mode, r.choose.Intn)
		r.fates.mu.Unlock()
		if err := r.recover(image, durable, all, what); err != nil {
			r.bad = fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

// recover looks at one image.
func (r *crashRun) recover(image *storage.MemFS, durable int, all map[string]fate, what string) error {
	r.counts.images++
	fault := &storage.FaultFS{FS: image}
	if r.choose.Intn(6) == 0 {
		var once sync.Mutex // the log's own goroutines make calls too
		fault.Rule = func(op, name string, n int) error {
			once.Lock()
			defer once.Unlock()
			if slices.Contains(readingCalls, op) || r.choose.Intn(6) > 0 {
				return nil
			}
			mode := storage.CrashModes[r.choose.Intn(len(storage.CrashModes))]
			nested := image.Crash(mode, r.choose.Intn)
			r.counts.nested++
			at := fmt.Sprintf("%s; in its recovery, call %d (%s %s), %s", what, n, op, name, mode)
			state, _, err := recoverRaw(nested, r.h)
			if err != nil && r.bad == nil {
				r.bad = fmt.Errorf("%s: %w", at, err)
			}
			r.pending = append(r.pending, crashState{at, state, durable})
			return nil
		}
	}
	state, raw, err := recoverRaw(fault, r.h)
	if err != nil {
		return err
	}
	r.pending = append(r.pending, crashState{what, state, durable})
	b, err := crashOpen(image, newCrashClock(r.clock.now.Load()))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	held, err := browseAll(b)
	if err == nil {
		err = errors.Join(checkCounters(raw, held), checkHeld(held, all), References(b))
	}
	if err == nil && r.choose.Intn(3) == 0 {
		return r.again(b, image)
	}
	return errors.Join(err, b.Close())
}

// again works with a recovered broker, crashes it, and looks what has become of that work.
func (r *crashRun) again(b *Broker, image *storage.MemFS) error {
	r.counts.again++
	ctx := context.Background()
	err := errors.Join(
		crashDeclare(b),
		b.Publish(ctx, Message{Exchange: "all", ID: "again", Priority: 2, Mandatory: true}),
		b.Publish(ctx, Message{RoutingKey: "side", ID: "side", Mandatory: true}))
	var acked string
	var d *Delivery
	if err == nil {
		d, err = b.Get(ctx, "jobs")
	}
	if err == nil {
		acked, err = d.ID, d.AckSync(ctx)
	}
	crashed := image.Crash(storage.CrashModes[r.choose.Intn(len(storage.CrashModes))], r.choose.Intn)
	if err = errors.Join(err, b.Close()); err != nil {
		return fmt.Errorf("then: %w", err)
	}
	for i, fs := range []*storage.MemFS{crashed, image} { // crashed, and closed
		b, err := crashOpen(fs, newCrashClock(r.clock.now.Load()+int64(time.Second)))
		if err != nil {
			return fmt.Errorf("open again (%d): %w", i, err)
		}
		held, err := browseAll(b)
		found := map[string]int{}
		for queue, list := range held {
			for _, h := range list {
				found[queue+" "+h.Message.ID]++
			}
		}
		want := 1
		if acked == "again" {
			want = 0
		}
		if err == nil && (found["jobs again"] != want || found["side again"] != 1 || found["side side"] != 1 || found["jobs "+acked] != 0) {
			err = fmt.Errorf("opened again (%d), after the ack of %q: %v", i, acked, found)
		}
		if err := errors.Join(err, b.Close()); err != nil {
			return err
		}
	}
	return nil
}

func crashOpen(fs storage.FS, clock Clock) (*Broker, error) {
	e, err := NewLocalEngine("d", crashLocal(fs))
	if err != nil {
		return nil, err
	}
	// Bodies are to be larger than segments.
	return NewBroker(context.Background(), Options{Engine: e, Clock: clock, Compression: CompressOff})
}

// dying waits until no dead message is on the move.
func waitForDead(b *Broker) error {
	for until := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		n := 0
		for _, q := range b.Stats().Queues {
			n += q.Dying
		}
		if n == 0 {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d dead messages do not move", n)
		}
	}
}

// browseAll returns what all queues hold, once the dead have moved.
func browseAll(b *Broker) (map[string][]Held, error) {
	if err := waitForDead(b); err != nil {
		return nil, err
	}
	held := map[string][]Held{}
	for _, q := range b.Stats().Queues {
		list, err := Browse(b, q.Name)
		if err != nil {
			return nil, err
		}
		held[q.Name] = list
	}
	return held, nil
}

// checkCounters compares messages before and after a broker was opened: what was on loan has failed once more, and
// nothing else has.
func checkCounters(raw map[rawKey]rawEntry, held map[string][]Held) error {
	for queue, list := range held {
		for _, h := range list {
			was, old := raw[rawKey{queue, h.Seq}]
			want := was.failures
			if was.loan {
				want++
			}
			switch {
			case !old && h.Deliveries+h.Failures > 0:
				return fmt.Errorf("%s of %s is new, and has %d deliveries", h.Message.ID, queue, h.Deliveries)
			case h.State == "unacked":
				return fmt.Errorf("%s of %s is on loan to nobody", h.Message.ID, queue)
			case h.Deliveries != was.deliveries || h.Failures != want:
				return fmt.Errorf("%s of %s (on loan: %t) had %d deliveries and %d failures, and has %d and %d", h.Message.ID,
					queue, was.loan, was.deliveries, was.failures, h.Deliveries, h.Failures)
			}
		}
	}
	return nil
}

// work drives the broker.
func (r *crashRun) work(steps int) error {
	r.fault = &storage.FaultFS{FS: r.fs, Rule: r.atCall}
	if err := r.open(); err != nil {
		return err
	}
	for range steps {
		before := r.h.syncedTo()
		durable, err := r.step(r.rng.Intn(100))
		if err != nil {
			return err
		}
		if durable && r.h.syncedTo() == before {
			return errors.New("a step was confirmed before it was durable")
		}
	}
	if err := waitForDead(r.b); err != nil {
		return err
	}
	if err := r.b.Close(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pending {
		switch at, ok := r.h.last[p.state]; {
		case r.bad != nil:
		case !ok:
			r.bad = fmt.Errorf("%s: the machine has never been in this state", p.what)
		case at < p.atLeast:
			r.bad = fmt.Errorf("%s: state %d was recovered, %d was durable", p.what, at, p.atLeast)
		}
	}
	return r.bad
}

// open opens the broker and has its states recorded.
func (r *crashRun) open() error {
	var err error
	if r.b, err = crashOpen(r.fault, r.clock); err != nil {
		return err
	}
	e, s := r.b.engine.(*localEngine), r.b.placement.first
	e.mu.Lock()
	e.shards[1].m = recorder{s, r.h} // nothing is being applied
	e.mu.Unlock()
	s.mu.Lock()
	r.h.record(cmdOpen, s.m)
	s.mu.Unlock()
	r.lent = nil
	return crashDeclare(r.b)
}

// crashDeclare declares the topology, with the queue that was updated as it was.
func crashDeclare(b *Broker) error {
	if err := b.Update(context.Background(), Queue{Name: "side", MaxRetries: NoLimit}); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return b.Declare(context.Background(), crashTopology...)
}

// update changes a queue, mostly to something else.
func (r *crashRun) update() error {
	return r.b.Update(context.Background(), Queue{
		Name: "side", MaxRetries: NoLimit, Priorities: 1 + r.rng.Intn(3), AckDeadline: time.Duration(1+r.rng.Intn(2)) * time.Minute,
	})
}

// step does one thing, and reports whether it is durable by now.
func (r *crashRun) step(dice int) (durable bool, err error) {
	ctx := context.Background()
	switch {
	case dice < 30:
		m := r.message()
		if err := r.b.Publish(ctx, m); err != nil {
			return false, err
		}
		r.confirm(m)
		return true, nil
	case dice < 38:
		var ms []Message
		for range 2 + r.rng.Intn(4) {
			ms = append(ms, r.message())
		}
		publish := r.b.PublishBatch
		if r.rng.Intn(2) == 0 {
			publish = r.b.PublishAtomic
		}
		if err := publish(ctx, ms); err != nil {
			return false, err
		}
		r.confirm(ms...)
		return true, nil
	case dice < 63:
		queue := []string{"jobs", "jobs", "side", "dead1", "dead2"}[r.rng.Intn(5)]
		d, err := r.b.Get(ctx, queue)
		if errors.Is(err, ErrEmpty) {
			return false, nil
		}
		r.lent = append(r.lent, d)
		return false, err
	case dice < 87 && len(r.lent) > 0:
		i := r.rng.Intn(len(r.lent))
		d := r.lent[i]
		r.lent = slices.Delete(r.lent, i, i+1)
		return r.settle(d)
	case dice < 90:
		return true, r.temporary()
	case dice < 96:
		r.clock.advance(time.Duration(r.rng.Intn(3_000_000)))
	case dice < 97:
		return true, r.update()
	case dice < 99:
		if err := errors.Join(waitForDead(r.b), r.b.Close()); err != nil {
			return false, err
		}
		return false, r.open()
	}
	return false, nil
}

// message makes the next message, and its fate.
func (r *crashRun) message() Message {
	r.number++
	id := fmt.Sprintf("m%d", r.number)
	m := Message{ID: id, Priority: uint8(r.rng.Intn(3)), Mandatory: true}
	route := []string{"jobs"}
	switch r.rng.Intn(4) {
	case 0:
		m.Exchange, route = "all", []string{"jobs", "side"}
	case 1:
		m.RoutingKey, route = "side", []string{"side"}
	default:
		m.RoutingKey = "jobs"
	}
	size := r.rng.Intn(200)
	if r.rng.Intn(20) == 0 {
		size = 3000 // more than a segment
	}
	m.Body = crashBody(id, size)
	r.fates.change(func(all map[string]*fate) {
		all[id] = &fate{route: route, touched: map[string]bool{}, final: map[string]bool{}}
	})
	return m
}

func (r *crashRun) confirm(ms ...Message) {
	r.fates.change(func(all map[string]*fate) {
		for _, m := range ms {
			all[m.ID].confirmed = true
		}
	})
}

func (r *crashRun) settle(d *Delivery) (durable bool, err error) {
	dice := r.rng.Intn(10)
	if d.Queue != "jobs" && (dice == 7 || dice == 8) {
		dice = 0 // what is rejected there would be parked
	}
	if dice < 6 {
		r.fates.change(func(all map[string]*fate) { all[d.ID].touched[d.Queue] = true })
	}
	switch {
	case dice < 3:
		return false, d.Ack()
	case dice < 6:
		if dice == 5 {
			m := r.message()
			if err := d.AckAndPublish(context.Background(), m); err != nil {
				return false, err
			}
			r.confirm(m)
		} else {
			r.h.mu.Lock()
			r.h.syncing = true
			r.h.mu.Unlock()
			if err := d.AckSync(context.Background()); err != nil {
				return false, err
			}
		}
		r.fates.change(func(all map[string]*fate) {
			f := all[d.ID]
			f.final[d.Queue] = true
			if d.Queue == "jobs" {
				f.final["dead1"], f.final["dead2"] = true, true
			}
		})
		return true, nil
	case dice == 6:
		return false, d.Release(time.Duration(r.rng.Intn(2)) * time.Millisecond)
	case dice == 7:
		return false, d.Reject("no")
	}
	return false, d.Nack()
}

// temporary declares a queue, fills it, and purges or deletes it.
func (r *crashRun) temporary() error {
	ctx := context.Background()
	name := fmt.Sprintf("t%d", r.rng.Intn(3))
	if err := r.b.Declare(ctx, Queue{Name: name}); err != nil {
		return err
	}
	id := fmt.Sprintf("m%d", r.number+1)
	r.number++
	r.fates.change(func(all map[string]*fate) {
		all[id] = &fate{route: []string{name}, touched: map[string]bool{}, final: map[string]bool{}}
	})
	if err := r.b.Publish(ctx, Message{RoutingKey: name, ID: id, Mandatory: true, Body: crashBody(id, 9)}); err != nil {
		return err
	}
	r.confirm(Message{ID: id})
	if r.rng.Intn(3) == 0 {
		return nil
	}
	remove := func(final bool) {
		r.fates.change(func(all map[string]*fate) {
			for _, f := range all {
				if f.route[0] == name {
					f.touched[name] = true
					if final {
						f.final[name] = true
					}
				}
			}
		})
	}
	remove(false)
	var err error
	if r.rng.Intn(2) == 0 {
		_, err = r.b.Purge(ctx, name)
	} else {
		err = r.b.Delete(ctx, Queue{Name: name})
	}
	if err == nil {
		remove(true)
	}
	return err
}

func TestCrashFS(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var counts crashCounts
	share := 1
	if *crashImages < 5000 {
		share = 5000 / max(*crashImages, 1)
	}
	started := time.Now()
	seeds := 0
	for seed := *crashSeed; counts.images < *crashImages; seed++ {
		seeds++
		r := &crashRun{
			seed: seed, rng: rand.New(rand.NewSource(seed)), choose: rand.New(rand.NewSource(seed + 1<<32)), fs: &storage.MemFS{},
			clock: newCrashClock(1), h: newCrashHistory(), counts: &counts, share: share, fates: fates{all: map[string]*fate{}},
		}
		require.NoError(t, r.work(120), "replay: go test -run '^TestCrashFS$' -crash-seed %d -images %d .", seed, *crashImages)
	}
	took := time.Since(started)
	fmt.Printf("crash: %d workloads, %d calls, %d images (%d/s), %d of their recoveries crashed, %d crashed after more work, 0 bad\n",
		seeds, counts.calls, counts.images, int(float64(counts.images)/took.Seconds()), counts.nested, counts.again)
	require.NotZero(t, counts.nested)
	require.NotZero(t, counts.again)
}
