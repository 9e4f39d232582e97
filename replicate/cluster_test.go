package replicate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/enginetest"
)

// patience is how long these tests wait for what must happen.
const patience = 60 * time.Second

// cluster is three nodes in this process, on loopback ports that were free.
type cluster struct {
	tb    testing.TB
	cfgs  []Config
	nodes []*Node // nil: down
}

func newCluster(tb testing.TB, rtt time.Duration) *cluster {
	tb.Helper()
	members := map[uint64]string{}
	for id := uint64(1); id <= 3; id++ {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		defer l.Close() // together, so that no port comes twice
		members[id] = l.Addr().String()
	}
	dir := tb.TempDir()
	c := &cluster{tb: tb, nodes: make([]*Node, 3)}
	for id := uint64(1); id <= 3; id++ {
		c.cfgs = append(c.cfgs, Config{
			NodeID:           id,
			RaftAddress:      members[id],
			Members:          members,
			Cluster:          members[1], // a port that is used again belongs to another cluster
			Dir:              filepath.Join(dir, fmt.Sprint(id)),
			RTT:              rtt,
			InsecureLoopback: true,
		})
	}
	tb.Cleanup(func() {
		for _, n := range c.nodes {
			if n != nil {
				_ = n.Close()
			}
		}
	})
	return c
}

// start starts the nodes that are down.
func (c *cluster) start() error {
	for i, n := range c.nodes {
		if n == nil {
			var err error
			if c.nodes[i], err = Start(c.cfgs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// until waits for a condition that something else brings about.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	if !poll(ok) {
		tb.Fatalf("not within %v: %s", patience, what)
	}
}

func poll(ok func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if ok() {
			return true
		}
	}
	return false
}

// accepting reports whether proposals are accepted at l.
func accepting(l bourse.Log) bool {
	s := l.(*shardLog)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusalLocked() == nil
}

// lead makes node i lead the shard; the logs are those of the nodes.
func (c *cluster) lead(shard uint64, i int, logs []bourse.Log) bool {
	var asked time.Time
	return poll(func() bool {
		if accepting(logs[i]) {
			return true
		}
		leader := c.nodes[i].Leader(shard)
		if leader != 0 && leader != c.cfgs[i].NodeID && time.Since(asked) > 6*c.cfgs[i].RTT {
			asked = time.Now()
			_ = c.nodes[leader-1].MoveLeader(shard, c.cfgs[i].NodeID)
		}
		return false
	})
}

// asEngine makes the cluster look like one engine to the suite: the suite's machine is on
// the first node, which is made to lead, and the others follow with machines of their own.
type asEngine struct {
	*cluster
	mu   sync.Mutex
	logs map[uint64][]bourse.Log
}

func (e *asEngine) Placement() bourse.Placement { return e.nodes[0].Placement() }

func (e *asEngine) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	var logs []bourse.Log
	for i, n := range e.nodes {
		use := m
		if i > 0 {
			use = enginetest.NewMachine()
		}
		l, err := n.Open(ctx, shard, use)
		if err != nil {
			for _, l := range logs {
				_ = l.Close()
			}
			return nil, err
		}
		logs = append(logs, l)
	}
	if !e.lead(shard, 0, logs) {
		return nil, fmt.Errorf("node 1 does not lead shard %d", shard)
	}
	e.mu.Lock()
	e.logs[shard] = logs
	e.mu.Unlock()
	return &asLog{logs[0], logs[1:]}, nil
}

func (e *asEngine) Close() error {
	var errs []error
	for _, n := range e.nodes {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

// asLog is the leader's log; its Close closes the followers' behind it.
type asLog struct {
	bourse.Log
	followers []bourse.Log
}

func (l *asLog) Close() error {
	errs := make([]error, 1+len(l.followers))
	errs[0] = l.Log.Close()
	var wg sync.WaitGroup
	for i, f := range l.followers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[1+i] = f.Close()
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TestEngine runs the conformance suite on three nodes.
func TestEngine(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) enginetest.Harness {
		t.Parallel()
		// The suite proposes at one node and takes no for a failure, so this one must not be
		// deposed: not by a neighbour's tests, nor by 4 MiB commands, three times each, on
		// one disk.
		rtt := 50 * time.Millisecond
		if strings.HasSuffix(t.Name(), "/Large") {
			rtt = 200 * time.Millisecond
		}
		c := newCluster(t, rtt)
		var e *asEngine
		log := func(shard uint64, i int) *shardLog {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.logs[shard][i].(*shardLog)
		}
		return enginetest.Harness{
			Open: func() (bourse.Engine, error) {
				if e != nil {
					clear(c.nodes)
				}
				e = &asEngine{cluster: c, logs: map[uint64][]bourse.Log{}}
				return e, c.start()
			},
			Snapshot: func(shard uint64) error {
				for _, n := range c.nodes {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					_, err := n.host.SyncRequestSnapshot(ctx, shard, dragonboat.SnapshotOption{})
					cancel()
					if err != nil && !errors.Is(err, dragonboat.ErrRejected) {
						return err
					}
				}
				return nil
			},
			Follower: func(shard uint64) (bourse.Log, error) { return log(shard, 1), nil },
			Held:     func(shard uint64) int { return log(shard, 0).replica.bodies.len() },
			LateLead: true,
			Patience: patience,
		}
	})
}
