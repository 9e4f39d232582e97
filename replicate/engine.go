package replicate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"
	"github.com/lni/dragonboat/v4/raftio"
	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/boursemq/bourse"
)

// Node is this process's member of a cluster: a bourse.Engine with a Raft group a shard.
type Node struct {
	cfg  Config
	host *dragonboat.NodeHost
	stop chan struct{} // closed by Close: Opens that run give up
	// propose and leader are host.Propose and host.GetLeaderID; tests put something less
	// reliable in their place.
	propose func(*client.Session, []byte, time.Duration) (*dragonboat.RequestState, error)
	leader  func(shard uint64) (leader, term uint64, known bool, err error)

	closeOnce sync.Once
	closeErr  error

	mu     sync.Mutex // guards below; leaf
	logs   map[uint64]*shardLog
	opens  sync.WaitGroup // Opens that run; none starts once closed is true
	closed bool
}

var _ bourse.Engine = (*Node)(nil)

// dirs are the directories that nodes of this process have open: the library may panic,
// or worse, if one is opened twice.
var dirs struct {
	sync.Mutex
	open map[string]bool
}

func claim(dir string) bool {
	dirs.Lock()
	defer dirs.Unlock()
	if dirs.open[dir] {
		return false
	}
	if dirs.open == nil {
		dirs.open = map[string]bool{}
	}
	dirs.open[dir] = true
	return true
}

func unclaim(dir string) {
	dirs.Lock()
	defer dirs.Unlock()
	delete(dirs.open, dir)
}

// Start starts, or restarts, this node. It does not wait for the others. The error is an
// *bourse.InvalidError for a bad Config, a *net.OpError if RaftAddress cannot be listened
// on, else it matches ErrDirInUse, ErrForeignDir or ErrStorage.
func Start(cfg Config) (*Node, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("replicate: %w", err)
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("replicate: %w: %w", bourse.ErrStorage, err)
	}
	if !claim(cfg.Dir) {
		return nil, fmt.Errorf("replicate: start node %d in %s: %w", cfg.NodeID, cfg.Dir, bourse.ErrDirInUse)
	}
	n := &Node{cfg: cfg, stop: make(chan struct{}), logs: map[uint64]*shardLog{}}
	if err := n.start(); err != nil {
		unclaim(cfg.Dir)
		return nil, fmt.Errorf("replicate: start node %d in %s: %w", cfg.NodeID, cfg.Dir, err)
	}
	return n, nil
}

func (n *Node) start() (err error) {
	if err := checkHost(n.cfg.Dir); err != nil {
		return err
	}
	bridge(n.cfg.Logger)
	defer func() {
		if p := recover(); p != nil {
			err = started(fmt.Errorf("raft library: %v", p))
		}
	}()
	hc := n.cfg.nodeHost()
	hc.RaftEventListener = listener{n}
	host, err := dragonboat.NewNodeHost(hc)
	if err != nil {
		return started(err)
	}
	if host == nil { // it recovers from some of its own panics, and returns nothing
		return started(errors.New("raft library: the host did not start"))
	}
	n.host, n.propose, n.leader = host, host.Propose, host.GetLeaderID
	return nil
}

// listener hears of leaders from the library, on a goroutine that all shards share.
type listener struct{ n *Node }

func (l listener) LeaderUpdated(info raftio.LeaderInfo) {
	l.n.mu.Lock()
	log := l.n.logs[info.ShardID]
	l.n.mu.Unlock()
	if log == nil {
		return
	}
	log.mu.Lock()
	log.hint = hint{info.Term, info.LeaderID}
	log.mu.Unlock()
	log.poke()
}

// Placement implements bourse.Engine.
func (n *Node) Placement() bourse.Placement { return bourse.ShardPerQueue }

// Open implements bourse.Engine: it starts, or restarts, this node's replica of the shard.
// It returns when m has what the node's newest snapshot holds. The log behind it is
// applied as soon as the members know how far it is committed, which can take a quorum;
// Lead(true) says that m has caught up, and that proposals are accepted here.
func (n *Node) Open(ctx context.Context, shard uint64, m bourse.Machine) (bourse.Log, error) {
	l, err := n.open(ctx, shard, m)
	if err != nil {
		return nil, fmt.Errorf("replicate: open shard %d: %w", shard, err)
	}
	return l, nil
}

func (n *Node) open(ctx context.Context, shard uint64, m bourse.Machine) (*shardLog, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if shard == 0 {
		return nil, &bourse.InvalidError{Field: "shard", Reason: "must not be 0"}
	}
	l := newShardLog(n, shard, m)
	n.mu.Lock()
	switch {
	case n.closed:
		n.mu.Unlock()
		return nil, bourse.ErrClosed
	case n.logs[shard] != nil:
		n.mu.Unlock()
		return nil, errors.New("it is open already")
	}
	n.logs[shard] = l // before the start, so that no word of a leader is missed
	n.opens.Add(1)
	n.mu.Unlock()
	defer n.opens.Done()
	if err := n.startReplica(ctx, l); err != nil {
		l.replica.detach()
		n.forget(l)
		return nil, err
	}
	l.session = n.host.GetNoOPSession(shard)
	go l.run() // until Close, which waits for it
	l.poke()
	return l, nil
}

// startReplica starts the Raft replica and waits for its snapshot to be restored.
func (n *Node) startReplica(ctx context.Context, l *shardLog) error {
	factory := func(uint64, uint64) sm.IConcurrentStateMachine { return l.replica }
	result := make(chan error, 1)
	for {
		go func() { // ends when the replica is ready or stopped; waited for below
			result <- n.host.StartConcurrentReplica(n.cfg.Members, false, factory, n.cfg.replica(l.shard))
		}()
		var err error
		select {
		case err = <-result:
		case <-ctx.Done():
			return n.abandon(l, result, ctx.Err())
		case <-n.stop:
			return n.abandon(l, result, bourse.ErrClosed)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, dragonboat.ErrShardAlreadyExist) {
			return opened(err)
		}
		// The library has not let go of the replica that was closed before.
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		case <-n.stop:
			return bourse.ErrClosed
		}
	}
}

// abandon stops a replica that may still be starting.
func (n *Node) abandon(l *shardLog, result <-chan error, why error) error {
	for {
		_ = n.host.StopShard(l.shard) // there is none yet, or it stops
		select {
		case err := <-result:
			if err == nil {
				_ = n.host.StopShard(l.shard)
				l.awaitClosed()
			}
			return why
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stopped stops the replica of a log that has ended.
func (n *Node) stopped(l *shardLog) error {
	n.mu.Lock()
	mine := n.logs[l.shard] == l
	n.mu.Unlock()
	if !mine {
		return nil // closed before
	}
	err := n.host.StopShard(l.shard)
	if err != nil && !errors.Is(err, dragonboat.ErrShardNotFound) && !errors.Is(err, dragonboat.ErrClosed) {
		return fmt.Errorf("replicate: close shard %d: %w", l.shard, err)
	}
	l.awaitClosed()
	n.forget(l)
	return nil
}

// awaitClosed waits until the library has let go of the replica, or for so long that it
// must be stuck in a snapshot; a later Open then waits on.
func (l *shardLog) awaitClosed() {
	select {
	case <-l.replica.closed:
	case <-time.After(10 * time.Second):
	}
}

func (n *Node) forget(l *shardLog) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.logs[l.shard] == l {
		delete(n.logs, l.shard)
	}
}

// Close implements bourse.Engine: it closes the logs, hands over what this node leads and
// leaves the cluster's port.
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.close() })
	return n.closeErr
}

func (n *Node) close() (err error) {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	close(n.stop)
	n.opens.Wait()
	n.mu.Lock()
	logs := slices.Collect(maps.Values(n.logs))
	n.mu.Unlock()
	errs := make([]error, len(logs)+1)
	var wg sync.WaitGroup
	for i, l := range logs {
		wg.Add(1)
		go func() { // ends with the log; waited for below
			defer wg.Done()
			errs[i] = l.Close()
		}()
	}
	wg.Wait()
	func() {
		defer func() {
			if p := recover(); p != nil {
				errs[len(logs)] = fmt.Errorf("replicate: close: %w: %v", bourse.ErrStorage, p)
			}
		}()
		n.host.Close()
	}()
	unclaim(n.cfg.Dir)
	return errors.Join(errs...)
}

// Leader returns the node that leads an open shard, as far as this one knows; 0: none.
func (n *Node) Leader(shard uint64) uint64 {
	leader, _, known, err := n.host.GetLeaderID(shard)
	if err != nil || !known {
		return 0
	}
	return leader
}

// MoveLeader asks that the member lead the shard. It must be called on the node that leads
// it. It is a request: see Leader for what became of it, and ask again.
func (n *Node) MoveLeader(shard, member uint64) error {
	if err := n.host.RequestLeaderTransfer(shard, member); err != nil {
		return fmt.Errorf("replicate: move the leader of shard %d to %d: %w", shard, member, err)
	}
	return nil
}

// others returns the other members, starting behind this one.
func (n *Node) others() []uint64 {
	ids := slices.Sorted(maps.Keys(n.cfg.Members))
	i := slices.Index(ids, n.cfg.NodeID)
	return append(slices.Clone(ids[i+1:]), ids[:i]...)
}

// timeout is when a try of a batch has ended without a result.
func (n *Node) timeout() time.Duration { return max(2*time.Second, 4*n.cfg.election()) }

// patience is how long batches wait, after their session was lost, for word of the next.
func (n *Node) patience() time.Duration { return max(2*time.Second, 10*n.cfg.election()) }
