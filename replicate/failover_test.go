package replicate

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/enginetest"
)

// Goal: whatever happens to leaders and to single proposals, a stream of commands is
// applied in order, and each says the truth about its end. Method: a stream of numbered
// commands is proposed at whichever node leads, while something disturbs it. A refused
// number is proposed again under a new try. At the end the machines of all nodes agree,
// tries ascend, what was confirmed is there once, what was refused is not there, and what
// is unknown is there at most once.

// stream proposes numbers and notes how each try ended.
type stream struct {
	tb      testing.TB
	mu      sync.Mutex
	changed *sync.Cond
	tries   []*try
	again   []uint32 // numbers that were refused
	open    int
}

type try struct {
	of     *stream
	id     uint64 // try in the upper half, number in the lower
	number uint32
	dones  int
	err    error
}

func newStream(tb testing.TB) *stream {
	s := &stream{tb: tb}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (t *try) AppendTo(dst []byte) []byte {
	return append(dst, enginetest.Command(t.id, 100+int(t.number%900), t.number%7 == 0)...)
}

func (t *try) Durable() bool { return true }

func (t *try) Done(_ bourse.Answer, err error) {
	s := t.of
	s.mu.Lock()
	defer s.mu.Unlock()
	t.dones++
	t.err = err
	s.open--
	if err != nil && !errors.Is(err, bourse.ErrUnknownOutcome) {
		s.again = append(s.again, t.number)
	}
	s.changed.Broadcast()
}

// run proposes the numbers 1 to n, at most window at once, calling at with each number's
// count before. It returns when all have ended.
func (s *stream) run(n, window int, leader func() bourse.Log, at func(i int)) {
	s.tb.Helper()
	next, proposed := uint32(1), 0
	deadline := time.Now().Add(patience)
	for {
		s.mu.Lock()
		for s.open >= window || s.open > 0 && len(s.again) == 0 && next > uint32(n) {
			s.changed.Wait()
		}
		var number uint32
		switch {
		case len(s.again) > 0:
			number, s.again = s.again[0], s.again[1:]
		case next <= uint32(n):
			number = next
			next++
		default:
			s.mu.Unlock()
			return
		}
		t := &try{of: s, number: number, id: uint64(len(s.tries)+1)<<32 | uint64(number)}
		s.tries = append(s.tries, t)
		s.open++
		s.mu.Unlock()
		at(proposed)
		proposed++
		for {
			l := leader()
			if l != nil {
				err := l.Propose(t)
				if err == nil {
					break
				}
				if !errors.Is(err, bourse.ErrNotLeader) && !errors.Is(err, bourse.ErrClosed) {
					s.tb.Fatalf("Propose: %v", err)
				}
			}
			if time.Now().After(deadline) {
				s.tb.Fatalf("no leader within %v", patience)
			}
			poll(func() bool { return leader() != nil })
		}
	}
}

// check compares the machines with each other and with what the tries were told.
func (s *stream) check(ms ...*enginetest.Machine) (confirmed, refused, unknown int) {
	s.tb.Helper()
	for _, m := range ms {
		for _, p := range m.Problems() {
			s.tb.Error(p)
		}
	}
	for _, m := range ms[1:] {
		if diff := m.Diff(ms[0]); diff != "" {
			s.tb.Fatalf("replicas differ: %s", diff)
		}
		if m.Hash() != ms[0].Hash() {
			s.tb.Fatalf("replicas differ in their hash")
		}
	}
	there, byNumber, last := map[uint64]int{}, map[uint32]int{}, uint64(0)
	for i, l := range ms[0].Lines() {
		if l.ID>>32 <= last {
			s.tb.Fatalf("command %d is try %d, after try %d", i+1, l.ID>>32, last)
		}
		last = l.ID >> 32
		there[l.ID]++
		byNumber[uint32(l.ID)]++
	}
	for _, t := range s.tries {
		switch {
		case t.dones != 1:
			s.tb.Fatalf("try %d of number %d was done %d times", t.id>>32, t.number, t.dones)
		case t.err == nil:
			confirmed++
			if there[t.id] != 1 || byNumber[t.number] != 1 {
				s.tb.Fatalf("number %d was confirmed and is there %d times", t.number, byNumber[t.number])
			}
		case errors.Is(t.err, bourse.ErrUnknownOutcome):
			unknown++
			if byNumber[t.number] > 1 {
				s.tb.Fatalf("number %d of unknown outcome is there %d times", t.number, byNumber[t.number])
			}
		default:
			refused++
			if there[t.id] != 0 {
				s.tb.Fatalf("number %d was refused with %v and is there", t.number, t.err)
			}
		}
	}
	return confirmed, refused, unknown
}

// openAll opens shard 1 on the nodes that are up.
func (c *cluster) openAll() (logs []bourse.Log, ms []*enginetest.Machine) {
	c.tb.Helper()
	for _, n := range c.nodes {
		if n == nil {
			continue
		}
		m := enginetest.NewMachine()
		l, err := n.Open(context.Background(), 1, m)
		if err != nil {
			c.tb.Fatal(err)
		}
		logs, ms = append(logs, l), append(ms, m)
	}
	return logs, ms
}

// leading returns the log that accepts proposals; nil: none.
func leading(logs []bourse.Log) bourse.Log {
	for _, l := range logs {
		if accepting(l) {
			return l
		}
	}
	return nil
}

func indexOf(logs []bourse.Log, l bourse.Log) int {
	for i, x := range logs {
		if x == l {
			return i
		}
	}
	return -1
}

// crash stops a node without any order, as far as that can be done to a part of a process.
func (c *cluster) crash(i int) {
	c.nodes[i].host.Close()
	_ = c.nodes[i].Close() // ends our side; the library complains of a second Close
}

func TestLeaderClosedMidStream(t *testing.T) {
	for _, how := range []string{"closed", "crashed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 30*time.Millisecond)
			if err := c.start(); err != nil {
				t.Fatal(err)
			}
			logs, ms := c.openAll()
			const n = 3000
			s := newStream(t)
			down := -1
			closed := make(chan error, 1)
			s.run(n, 200, func() bourse.Log { return leading(logs) }, func(i int) {
				if i != n/2 {
					return
				}
				until(t, "a leader", func() bool { return leading(logs) != nil })
				down = indexOf(logs, leading(logs))
				go func() { // ends when the node is down; waited for below
					if how == "closed" {
						closed <- c.nodes[down].Close()
					} else {
						c.crash(down)
						closed <- nil
					}
				}()
			})
			if err := <-closed; err != nil {
				t.Fatalf("Close of the leader: %v", err)
			}
			var up []*enginetest.Machine
			for i, m := range ms {
				if i != down {
					up = append(up, m)
				}
			}
			until(t, "the survivors agree", func() bool { return up[0].Count() == up[1].Count() })
			confirmed, refused, unknown := s.check(up...)
			t.Logf("%d confirmed, %d refused and proposed again, %d unknown", confirmed, refused, unknown)
			if how == "closed" && unknown > 0 {
				t.Errorf("%d outcomes are unknown after an orderly close", unknown)
			}

			c.nodes[down] = nil
			if err := c.start(); err != nil {
				t.Fatal(err)
			}
			m := enginetest.NewMachine()
			if _, err := c.nodes[down].Open(context.Background(), 1, m); err != nil {
				t.Fatal(err)
			}
			until(t, "the restarted node has caught up", func() bool { return m.Hash() == up[0].Hash() })
			s.check(append(up, m)...)
		})
	}
}

// The leadership moves from node to node under load, and nobody is restarted.
func TestLeaderMoves(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 30*time.Millisecond)
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	logs, ms := c.openAll()
	s := newStream(t)
	s.run(4000, 200, func() bourse.Log { return leading(logs) }, func(i int) {
		if l := leading(logs); i%300 == 299 && l != nil {
			from := indexOf(logs, l)
			_ = c.nodes[from].MoveLeader(1, c.cfgs[(from+1)%3].NodeID)
		}
	})
	until(t, "the nodes agree", func() bool { return ms[0].Count() == ms[1].Count() && ms[1].Count() == ms[2].Count() })
	confirmed, refused, unknown := s.check(ms...)
	t.Logf("%d confirmed, %d refused and proposed again, %d unknown", confirmed, refused, unknown)
	if unknown > 0 {
		t.Errorf("%d outcomes are unknown, and no node was ever cut off", unknown)
	}
}

// Batches are lost, doubled, delayed and refused on their way into the library. Nothing of
// that is seen from outside.
func TestUnreliableProposals(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 30*time.Millisecond)
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	did := [5]int{}
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range c.nodes {
		propose := n.host.Propose
		n.propose = func(cs *client.Session, cmd []byte, timeout time.Duration) (*dragonboat.RequestState, error) {
			mu.Lock()
			what := rnd.IntN(20)
			if what < len(did) {
				did[what]++
			}
			mu.Unlock()
			answer := make(chan dragonboat.RequestResult, 1)
			//lint:ignore SA1019 an answer that is made up has no other way in
			lost := &dragonboat.RequestState{CompletedC: answer} //nolint:staticcheck // likewise
			switch what {
			case 0: // lost, and the answer is that nobody knows
				time.AfterFunc(50*time.Millisecond, func() { answer <- dragonboat.RequestResult{} })
				return lost, nil
			case 1: // arrives, and the answer is that nobody knows
				_, err := propose(cs, cmd, timeout)
				time.AfterFunc(20*time.Millisecond, func() { answer <- dragonboat.RequestResult{} })
				return lost, err
			case 2: // arrives twice
				if _, err := propose(cs, cmd, timeout); err != nil {
					return nil, err
				}
			case 3: // refused
				return nil, dragonboat.ErrSystemBusy
			case 4: // arrives again later
				late := append([]byte(nil), cmd...)
				time.AfterFunc(30*time.Millisecond, func() {
					defer func() { _ = recover() }() // the host may be closed
					_, _ = propose(cs, late, timeout)
				})
			}
			return propose(cs, cmd, timeout)
		}
	}
	logs, ms := c.openAll()
	s := newStream(t)
	s.run(4000, 40, func() bourse.Log { return leading(logs) }, func(i int) {
		if l := leading(logs); i == 2000 && l != nil {
			from := indexOf(logs, l)
			_ = c.nodes[from].MoveLeader(1, c.cfgs[(from+1)%3].NodeID)
		}
	})
	until(t, "the nodes agree", func() bool { return ms[0].Count() == ms[1].Count() && ms[1].Count() == ms[2].Count() })
	confirmed, refused, unknown := s.check(ms...)
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d confirmed, %d refused and proposed again, %d unknown; lost, unanswered, doubled, busy, late: %v",
		confirmed, refused, unknown, did)
	for i, n := range did {
		if n == 0 {
			t.Errorf("disturbance %d never happened", i)
		}
	}
}
