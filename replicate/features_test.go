package replicate

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/enginetest"
)

// Goal: the state of every feature of queues is the same on all nodes, and what it was when another node leads. Method: the
// suite that the local engine passes, with all groups moved to another node in between; at each rest the snapshots of the three machines of
// each group are equal byte for byte. One node then starts anew, from snapshots and logs, and must agree too.

// tapped is an engine whose machines can be looked at.
type tapped struct {
	*Node
	mu       sync.Mutex
	machines map[uint64]bourse.Machine
}

func (e *tapped) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	e.mu.Lock()
	e.machines[shard] = m
	e.mu.Unlock()
	return e.Node.Open(ctx, shard, m)
}

func (e *tapped) snapshot(t *testing.T, shard uint64) []byte {
	e.mu.Lock()
	m := e.machines[shard]
	e.mu.Unlock()
	if m == nil {
		return nil
	}
	w, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// featured is three brokers whose machines can be looked at.
type featured struct {
	*cluster
	t       *testing.T
	engines []*tapped
	brokers []*bourse.Broker
	shards  uint64
}

func (f *featured) open(ctx context.Context) {
	var wg sync.WaitGroup
	for i, n := range f.nodes {
		if f.brokers[i] != nil {
			continue
		}
		f.engines[i] = &tapped{Node: n, machines: map[uint64]bourse.Machine{}}
		wg.Go(func() { // ends when the broker is open
			var err error
			if f.brokers[i], err = bourse.NewBroker(ctx, bourse.Options{Engine: f.engines[i]}); err != nil {
				f.t.Errorf("open broker %d: %v", i+1, err)
			}
		})
	}
	wg.Wait()
	if f.t.Failed() {
		f.t.FailNow()
	}
}

// leads makes a node lead all groups.
func (f *featured) leads(node uint64) {
	for shard := uint64(1); shard <= f.shards; shard++ {
		var asked time.Time
		until(f.t, fmt.Sprintf("node %d leads shard %d", node, shard), func() bool {
			leader := f.nodes[node-1].Leader(shard)
			if leader != 0 && leader != node && time.Since(asked) > 6*f.cfgs[0].RTT {
				asked = time.Now()
				_ = f.nodes[leader-1].MoveLeader(shard, node)
			}
			return leader == node
		})
	}
}

// agree waits until the machines of each group are equal.
func (f *featured) agree(when string) {
	for shard := uint64(1); shard <= f.shards; shard++ {
		until(f.t, fmt.Sprintf("%s: the machines of shard %d are equal", when, shard), func() bool {
			first := f.engines[0].snapshot(f.t, shard)
			return first != nil && bytes.Equal(first, f.engines[1].snapshot(f.t, shard)) &&
				bytes.Equal(first, f.engines[2].snapshot(f.t, shard))
		})
	}
}

// again calls do until the broker leads what it needs.
func (f *featured) again(what string, do func() error) {
	var err error
	if !poll(func() bool { err = do(); return err == nil }) {
		f.t.Fatalf("%s: %v", what, err)
	}
}

// serves subscribes without taking, which a leader that has just begun refuses.
func (f *featured) serves(ctx context.Context, b *bourse.Broker, queue string) error {
	paused, _ := b.QueueStats(queue)
	if !paused.Paused {
		if err := b.Pause(ctx, queue); err != nil {
			return err
		}
	}
	s, err := b.Subscribe(ctx, queue, bourse.SubscribeOptions{Prefetch: 1})
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil || paused.Paused {
		return err
	}
	return b.Resume(ctx, queue)
}

func TestBrokerFeatures(t *testing.T) {
	f := &featured{cluster: newCluster(t, 30*time.Millisecond), t: t, engines: make([]*tapped, 3), brokers: make([]*bourse.Broker, 3)}
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	f.open(ctx)
	defer func() {
		for i, b := range f.brokers {
			if err := b.Close(); err != nil {
				t.Errorf("close broker %d: %v", i+1, err)
			}
		}
	}()
	f.shards = 1
	f.leads(1)
	f.shards = 2 // of the catalogue, and of the parking queue
	var all []bourse.Declaration
	for _, feature := range enginetest.Features() {
		for _, q := range feature.Queues {
			all = append(all, q)
			f.shards++
		}
	}
	f.again("declare", func() error { return f.brokers[0].Declare(ctx, all...) })
	until(t, "all nodes know the queues", func() bool {
		for _, b := range f.brokers {
			if b.Check(all...) != nil {
				return false
			}
		}
		return true
	})
	f.leads(1)
	for _, feature := range enginetest.Features() {
		for _, q := range feature.Queues { // a leader that has just begun refuses at first
			f.again("purge "+q.Name, func() error { _, err := f.brokers[0].Purge(ctx, q.Name); return err })
		}
		if err := feature.Fill(ctx, f.brokers[0]); err != nil {
			t.Fatalf("%s: %v", feature.Name, err)
		}
	}
	f.agree("filled")

	f.leads(2)
	f.agree("under another leader")
	for _, feature := range enginetest.Features() {
		for _, q := range feature.Queues {
			f.again("resume "+q.Name, func() error { return f.serves(ctx, f.brokers[1], q.Name) })
		}
		if err := feature.Verify(ctx, f.brokers[1]); err != nil {
			t.Errorf("%s: %v", feature.Name, err)
		}
	}
	f.agree("verified")

	if err := f.brokers[2].Close(); err != nil { // its engine too
		t.Fatal(err)
	}
	f.brokers[2], f.nodes[2] = nil, nil
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	f.open(ctx)
	f.agree("with a node that has started anew")
}
