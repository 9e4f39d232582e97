package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/boursemq/bourse"
)

// Goal: the broker itself works on Raft, one group per queue and one for the catalogue, and the loss of a leader in the
// middle of publishing and consuming loses nothing that was confirmed. Method: three brokers in this process; a call goes from
// broker to broker until one leads; the one that leads a queue is closed half way; then everything is drained and compared.

// brokers is a broker on each node of a cluster; nil for one that was closed.
type brokers struct {
	*cluster
	mu  sync.Mutex
	all []*bourse.Broker
}

func startBrokers(t *testing.T) *brokers {
	c := newCluster(t, 30*time.Millisecond)
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	b := &brokers{cluster: c, all: make([]*bourse.Broker, len(c.nodes))}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		wg.Go(func() {
			var err error
			if b.all[i], err = bourse.NewBroker(ctx, bourse.Options{Engine: n}); err != nil {
				t.Errorf("open broker %d: %v", i+1, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		for i := range b.all {
			b.close(t, i)
		}
	})
	return b
}

func (b *brokers) close(t *testing.T, i int) {
	b.mu.Lock()
	broker := b.all[i]
	b.all[i] = nil
	b.mu.Unlock()
	if broker == nil {
		return
	}
	if err := broker.Close(); err != nil {
		t.Errorf("close broker %d: %v", i+1, err)
	}
}

// elsewhere is what a broker says that does not lead, was closed, or has not heard of the queue yet.
var elsewhere = []error{bourse.ErrNotLeader, bourse.ErrClosed, bourse.ErrNotFound, bourse.ErrUnroutable}

// leads calls f with one broker after the other until one does not say that it does not lead.
func (b *brokers) leads(f func(i int, broker *bourse.Broker) error) error {
	err := errors.New("no broker leads")
	poll(func() bool {
		for i := range b.all {
			b.mu.Lock()
			broker := b.all[i]
			b.mu.Unlock()
			if broker == nil {
				continue
			}
			err = f(i, broker)
			if !slices.ContainsFunc(elsewhere, func(e error) bool { return errors.Is(err, e) }) {
				return true
			}
		}
		return false
	})
	return err
}

func TestBrokerLeaderClosed(t *testing.T) {
	b := startBrokers(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	queues := []string{"a", "b"}
	err := b.leads(func(_ int, broker *bourse.Broker) error {
		return broker.Declare(ctx, bourse.Queue{Name: "a"}, bourse.Queue{Name: "b", Priorities: 2})
	})
	if err != nil {
		t.Fatal(err)
	}

	const n, half = 1500, 700
	var mu sync.Mutex
	confirmed, unknown := map[string]bool{}, map[string]bool{}
	reached := make(chan int, 1) // the broker that leads queue a, once half of its messages are confirmed
	var publishers sync.WaitGroup
	for _, queue := range queues {
		publishers.Go(func() {
			for i := range n {
				id := fmt.Sprintf("%s-%d", queue, i)
				err := b.leads(func(at int, broker *bourse.Broker) error {
					err := broker.Publish(ctx, bourse.Message{RoutingKey: queue, ID: id, Body: []byte(id), Mandatory: true})
					switch {
					case err == nil && queue == "a" && i == half:
						reached <- at
					case errors.Is(err, bourse.ErrUnknownOutcome):
						mu.Lock()
						unknown[id] = true
						mu.Unlock()
						return bourse.ErrNotLeader // again, with the same id
					}
					return err
				})
				if err != nil {
					t.Errorf("publish %s: %v", id, err)
					return
				}
				mu.Lock()
				confirmed[id] = true
				mu.Unlock()
			}
		})
	}

	// Half a dozen messages are with a consumer on the leader when it goes.
	leader := <-reached
	b.mu.Lock()
	broker := b.all[leader]
	b.mu.Unlock()
	s, err := broker.Subscribe(ctx, "a", bourse.SubscribeOptions{Prefetch: 6})
	if err != nil {
		t.Fatal(err)
	}
	acked, err := s.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := acked.AckSync(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(ctx); err != nil { // never settled
		t.Fatal(err)
	}
	b.close(t, leader)
	publishers.Wait()
	if t.Failed() {
		return
	}

	seen := map[string]int{acked.ID: 1}
	for _, queue := range queues {
		for drained := false; !drained; {
			err := b.leads(func(_ int, broker *bourse.Broker) error {
				s, err := broker.Subscribe(ctx, queue, bourse.SubscribeOptions{Prefetch: 100})
				if err != nil {
					return err
				}
				defer func() { _ = s.Close() }()
				for {
					stats, _ := broker.QueueStats(queue)
					if stats.Ready+stats.Unacked == 0 {
						drained = true
						return nil
					}
					d, err := s.Next(ctx)
					if err != nil {
						return err
					}
					if d.ID != string(d.Body) || d.Queue != queue || d.Failures != 0 {
						t.Errorf("%s of %s has body %s and %d failures", d.ID, d.Queue, d.Body, d.Failures)
					}
					seen[d.ID]++
					if err := d.AckSync(ctx); err != nil {
						return err
					}
				}
			})
			if err != nil {
				t.Fatalf("drain %s: %v", queue, err)
			}
		}
	}
	for id := range confirmed {
		if seen[id] == 0 {
			t.Errorf("%s was confirmed and is lost", id)
		}
		if seen[id] > 1 && !unknown[id] {
			t.Errorf("%s came %d times, published once", id, seen[id])
		}
		delete(seen, id)
	}
	for id := range seen {
		t.Errorf("%s was never published", id)
	}
	t.Logf("%d confirmed, %d of them after an unknown outcome", len(confirmed), len(unknown))
}

// TestBrokerDeadLetterAcrossGroups sends a message to two queues, each in its own group, and moves one copy on to a third.
func TestBrokerDeadLetterAcrossGroups(t *testing.T) {
	b := startBrokers(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	err := b.leads(func(_ int, broker *bourse.Broker) error {
		return broker.Declare(ctx, bourse.Exchange{Name: "dead", Kind: bourse.Fanout},
			bourse.Queue{Name: "q", DeadLetter: bourse.DeadLetter{Exchange: "dead"}}, bourse.Queue{Name: "graves"},
			bourse.Binding{Exchange: "dead", Queue: "graves"})
	})
	if err != nil {
		t.Fatal(err)
	}
	// Forwarding to another node's leader is not there yet: one node leads all.
	until(t, "all nodes know the queues", func() bool {
		for _, broker := range b.all {
			if broker.Check(bourse.Queue{Name: "graves"}) != nil {
				return false
			}
		}
		return true
	})
	for shard := uint64(1); shard <= 4; shard++ {
		var asked time.Time
		until(t, fmt.Sprintf("node 1 leads shard %d", shard), func() bool {
			leader := b.nodes[0].Leader(shard)
			if leader > 1 && time.Since(asked) > 6*b.cfgs[0].RTT {
				asked = time.Now()
				_ = b.nodes[leader-1].MoveLeader(shard, 1)
			}
			return leader == 1
		})
	}
	broker := b.all[0]
	if err := b.leads(func(int, *bourse.Broker) error {
		return broker.Publish(ctx, bourse.Message{RoutingKey: "q", Body: []byte("poison")})
	}); err != nil {
		t.Fatal(err)
	}
	s, err := broker.Subscribe(ctx, "q", bourse.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Reject("bad"); err != nil {
		t.Fatal(err)
	}
	graves, err := broker.Subscribe(ctx, "graves", bourse.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := graves.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if string(dead.Body) != "poison" || len(dead.Deaths) != 1 || dead.Deaths[0].Note != "bad" || dead.ID != d.ID {
		t.Fatalf("came out as %q with %+v", dead.Body, dead.Deaths)
	}
	until(t, "the source is empty", func() bool {
		stats, ok := broker.QueueStats("q")
		return ok && stats.Dying == 0 && stats.Ready == 0
	})
}

// TestBrokerQueueExpires has the catalogue and a queue led by different nodes: the queue stays while it is used, over a change of its
// leader, and goes from all nodes when it is not.
func TestBrokerQueueExpires(t *testing.T) {
	b := startBrokers(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	def := bourse.Queue{Name: "q", Expires: 2 * time.Second}
	if err := b.leads(func(_ int, broker *bourse.Broker) error { return broker.Declare(ctx, def) }); err != nil {
		t.Fatal(err)
	}
	known := func(want bool) func() bool {
		return func() bool {
			return !slices.ContainsFunc(b.all, func(broker *bourse.Broker) bool { return (broker.Check(def) == nil) != want })
		}
	}
	until(t, "all nodes know the queue", known(true))
	moves := func(shard, to uint64) {
		var asked time.Time
		until(t, fmt.Sprintf("node %d leads shard %d", to, shard), func() bool {
			leader := b.nodes[0].Leader(shard)
			if leader != 0 && leader != to && time.Since(asked) > 6*b.cfgs[0].RTT {
				asked = time.Now()
				_ = b.nodes[leader-1].MoveLeader(shard, to)
			}
			return leader == to
		})
	}
	const queue = 3 // behind the catalogue and the parking queue
	var s *bourse.Subscription
	if err := b.leads(func(_ int, broker *bourse.Broker) (err error) {
		s, err = broker.Subscribe(ctx, "q", bourse.SubscribeOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(2 * def.Expires)
	until(t, "the time passes", func() bool { return time.Now().After(end) })
	if !known(true)() {
		t.Fatal("a queue with a consumer is gone")
	}
	moves(1, 1)
	moves(queue, 2)
	_ = s.Close() // its session may have moved away under it
	until(t, "the queue is gone from all nodes", known(false))
}
