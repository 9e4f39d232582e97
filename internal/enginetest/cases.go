package enginetest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/boursemq/bourse"
)

// Cases returns the cases of the suite.
func Cases() []Case {
	return []Case{
		{"Order", order},
		{"ConcurrentProposers", concurrentProposers},
		{"Durability", durability},
		{"ManySmall", manySmall},
		{"Large", large},
		{"ReadKept", readKept},
		{"ReadAfterRestart", readAfterRestart},
		{"ReadAfterSnapshot", readAfterSnapshot},
		{"Free", free},
		{"CloseDrains", closeDrains},
		{"EngineClose", engineClose},
		{"OpenTwice", openTwice},
		{"Reopen", reopen},
		{"SnapshotAndTail", snapshotAndTail},
		{"SnapshotUnderLoad", snapshotUnderLoad},
		{"Shards", shards},
		{"CancelledOpen", cancelledOpen},
		{"Lead", lead},
		{"NotLeader", notLeader},
	}
}

// ids numbers commands: the proposer in the upper half, its own count in the lower.
func ids(proposer, n int) uint64 { return uint64(proposer+1)<<32 | uint64(n+1) }

// inOrder fails unless the machine has the commands of each proposer in the order of its
// calls, each once.
func inOrder(s *subject) {
	s.Helper()
	last := map[uint64]uint64{}
	for i, l := range s.m.Lines() {
		p, n := l.ID>>32, l.ID&(1<<32-1)
		if n <= last[p] {
			s.Fatalf("shard %d: command %d is number %d of proposer %d, after its number %d", s.shard, i+1, n, p, last[p])
		}
		last[p] = n
	}
}

// count fails unless the machine holds n commands.
func count(s *subject, n int) {
	s.Helper()
	if got := s.m.Count(); got != n {
		s.Fatalf("shard %d: the machine has %d commands, proposed were %d", s.shard, got, n)
	}
}

// Proposals of one goroutine are applied, and done, in the order of the calls.
func order(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	cs := newCalls(s)
	const n = 2000
	for i := range n {
		cs.must(command(opPlain, ids(0, i), 20+i%50))
	}
	cs.settle()
	inOrder(s)
	count(s, n)
	for i, c := range cs.finished() {
		if c.id != ids(0, i) {
			s.Fatalf("Done %d is that of another proposal", i+1)
		}
	}
	s.close()
}

// propose starts proposers that make n proposals each, and returns when all are made.
func propose(cs *calls, proposers, n int, next func(p, i int) ([]byte, bool)) {
	var wg sync.WaitGroup
	errs := make([]error, proposers)
	for p := range proposers {
		wg.Add(1)
		go func() { // ends after n proposals; waited for below
			defer wg.Done()
			for i := range n {
				if _, err := cs.propose(next(p, i)); err != nil {
					errs[p] = err
					return
				}
			}
		}()
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			cs.s.Fatalf("Propose: %v", err)
		}
	}
}

// Proposers at once: each Done comes once, in log order, with the machine's answer.
func concurrentProposers(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	cs := newCalls(s)
	const proposers, n = 8, 250
	propose(cs, proposers, n, func(p, i int) ([]byte, bool) {
		return command(opPlain, ids(p, i), 30+p*i%400), true
	})
	cs.settle()
	inOrder(s)
	count(s, proposers*n)
	s.close()
}

// Durable and other proposals share one order, and both survive an orderly restart. What
// is not durable is done without a durable one behind it.
func durability(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	cs := newCalls(s)
	const proposers, n = 4, 100
	propose(cs, proposers, n, func(p, i int) ([]byte, bool) {
		return command(opKeep, ids(p, i), 100), (p+i)%3 == 0
	})
	cs.settle()
	propose(cs, 1, 10, func(_, i int) ([]byte, bool) {
		return command(opKeep, ids(proposers, i), 100), false
	})
	cs.settle()
	inOrder(s)
	count(s, proposers*n+10)
	s.readable()
	s = s.restart()
	s.readable()
	s.close()
}

// Many small commands, faster than any device syncs.
func manySmall(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	cs := newCalls(s)
	const proposers, n = 4, 5000
	propose(cs, proposers, n, func(p, i int) ([]byte, bool) { return command(opPlain, ids(p, i), 0), i%2 == 0 })
	cs.settle()
	inOrder(s)
	count(s, proposers*n)
	s.close()
}

// Large commands among small ones keep order and content.
func large(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	cs := newCalls(s)
	sizes := []int{1 << 20, 0, 1<<20 + 1, 64 << 10, 64<<10 - 1, 64<<10 + 1, 100, s.MaxCommand, 200, s.MaxCommand - 1, 0, 0}
	for i, size := range sizes {
		cs.must(command(opKeep, ids(0, i), size))
	}
	cs.settle()
	inOrder(s)
	count(s, len(sizes))
	for i, b := range s.m.Bodies() {
		if b.Size != max(sizes[i], opHead) {
			s.Fatalf("command %d arrived with %d bytes, proposed were %d", i+1, b.Size, sizes[i])
		}
	}
	s.readable()
	s = s.restart()
	s.readable()
	s.close()
}

// keepSome proposes n commands, of which every third is kept and the others pass by.
func keepSome(cs *calls, proposer, n int) {
	propose(cs, 1, n, func(_, i int) ([]byte, bool) {
		op := byte(opPlain)
		if i%3 == 0 {
			op = opKeep
		}
		return command(op, ids(proposer, i), 50+i*37%3000), true
	})
	cs.settle()
}

// What is kept reads as it was, also after much else went through the log's buffers, and
// while more does.
func readKept(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	cs := newCalls(s)
	keepSome(cs, 0, 100)
	s.readable()
	keepSome(cs, 1, 2000)
	s.readable()
	done := make(chan struct{})
	go func() { // ends after its proposals; waited for below
		defer close(done)
		for i := range 1000 {
			if _, err := cs.propose(command(opKeep, ids(2, i), 500), false); err != nil {
				return
			}
		}
	}()
	s.readable()
	<-done
	cs.settle()
	s.readable()
	s.close()
}

// What is kept reads as it was after one restart and after another.
func readAfterRestart(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	keepSome(newCalls(s), 0, 300)
	s = s.restart()
	s.readable()
	keepSome(newCalls(s), 1, 300)
	s.readable()
	s = s.restart()
	s.readable()
	s.close()
}

// What is kept reads as it was after the log before the snapshot is gone.
func readAfterSnapshot(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	keepSome(newCalls(s), 0, 300)
	s.snapshot()
	s.readable()
	s = s.restart()
	s.readable()
	keepSome(newCalls(s), 1, 300)
	s.snapshot()
	keepSome(newCalls(s), 2, 30)
	s = s.restart()
	s.readable()
	s.snapshot()
	s = s.restart()
	s.readable()
	s.close()
}

// A freed command is forgotten, in time; a command with a reference left, and its
// neighbours, are not.
func free(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	cs := newCalls(s)
	const n = 60
	for i := range n {
		op := byte(opKeep)
		if i%2 == 1 {
			op = opTwice
		}
		cs.must(command(op, ids(0, i), 200+i))
	}
	cs.settle()
	for i := range n / 2 {
		cs.must(freeing(ids(1, i), uint64(i+1)))
	}
	cs.settle()
	s.readable()
	held := func() {
		s.Helper()
		if s.Held == nil {
			return
		}
		if got, want := s.Harness.Held(s.shard), len(s.m.Bodies()); got != want {
			s.Fatalf("the engine holds %d commands, the machine keeps %d", got, want)
		}
	}
	s.snapshot()
	held()
	s = s.restart()
	s.readable()
	held()
	cs = newCalls(s)
	for i, b := range s.m.Bodies() {
		for j := range b.Refs {
			cs.must(freeing(ids(2, i*2+j), b.Ordinal))
		}
	}
	cs.settle()
	s.snapshot()
	held()
	s = s.restart()
	s.readable()
	held()
	if n := len(s.m.Bodies()); n != 0 {
		s.Fatalf("%d commands are kept after all were freed", n)
	}
	s.close()
}

// Close in the middle of proposals: what was accepted is done before Close returns, the
// rest is refused with ErrClosed, and what was done without an error is in the log.
func closeDrains(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	cs := newCalls(s)
	const proposers = 6
	var wg sync.WaitGroup
	var once sync.Once
	flowing := make(chan struct{}) // closed when the first proposer has made some
	closed := make(chan struct{})  // closed when Close has returned
	errs := make([]error, proposers)
	for p := range proposers {
		wg.Add(1)
		go func() { // ends at the first refusal, or soon after Close; waited for below
			defer wg.Done()
			for i, late := 0, 0; late < 10; i++ {
				select {
				case <-closed:
					late++
				default:
				}
				if _, err := cs.propose(command(opPlain, ids(p, i), 100), i%2 == 0); err != nil {
					errs[p] = err
					return
				}
				if i == 50 {
					once.Do(func() { close(flowing) })
				}
			}
		}()
	}
	<-flowing
	s.Helper()
	if err := s.log.Close(); err != nil {
		s.Fatalf("Log.Close: %v", err)
	}
	s.m.forbid()
	close(closed)
	_, before := cs.progress()
	wg.Wait()
	for p, err := range errs {
		if !errors.Is(err, bourse.ErrClosed) {
			s.Errorf("proposer %d was refused with %v", p, err)
		}
	}
	open, after := cs.progress()
	if open > 0 {
		s.Fatalf("Close returned with %d proposals not done", open)
	}
	if after != before {
		s.Fatalf("%d proposals were done after Close returned", after-before)
	}
	cs.check(true)
	inOrder(s)
	if _, err := cs.propose(command(opPlain, ids(proposers, 0), 0), true); !errors.Is(err, bourse.ErrClosed) {
		s.Fatalf("Propose after Close: %v", err)
	}
	if err := s.log.Close(); err != nil && !errors.Is(err, bourse.ErrClosed) {
		s.Fatalf("second Log.Close: %v", err)
	}
	// A refusal says that the command is not in the log, so the two agree.
	count(s, cs.confirmed())
	old := s.m
	s.stop()
	s.start()
	s = s.open(1)
	s.sameAs(old)
	s.close()
}

// Engine.Close closes the logs, may be called again, and ends the engine.
func engineClose(tb TB, h Harness) {
	r := newRig(tb, h)
	a, b := r.open(1), r.open(2)
	ca, cb := newCalls(a), newCalls(b)
	for i := range 100 {
		ca.must(command(opPlain, ids(0, i), 100))
		cb.must(command(opPlain, ids(0, i), 100))
	}
	r.stop()
	for _, s := range []*subject{a, b} {
		s.m.forbid()
		if _, err := newCalls(s).propose(command(opPlain, 1, 0), true); !errors.Is(err, bourse.ErrClosed) {
			r.Fatalf("Propose after Engine.Close: %v", err)
		}
	}
	for _, cs := range []*calls{ca, cb} {
		if open, _ := cs.progress(); open > 0 {
			r.Fatalf("Engine.Close returned with %d proposals not done", open)
		}
		cs.check(true)
	}
	r.stop()
	ctx, cancel := context.WithTimeout(context.Background(), r.Patience)
	defer cancel()
	if _, err := r.engine.Open(ctx, 1, NewMachine()); !errors.Is(err, bourse.ErrClosed) {
		r.Fatalf("Open after Engine.Close: %v", err)
	}
	r.start()
	for _, old := range []*subject{a, b} {
		s := r.open(old.shard)
		s.sameAs(old.m)
		s.close()
	}
}

// Opening an open shard is an error and harms nothing; a closed log can be opened again.
func openTwice(tb TB, h Harness) {
	r := newRig(tb, h)
	s := r.open(1)
	cs := newCalls(s)
	keepSome(cs, 0, 30)
	ctx, cancel := context.WithTimeout(context.Background(), r.Patience)
	defer cancel()
	if l, err := r.engine.Open(ctx, 1, NewMachine()); err == nil {
		_ = l.Close()
		r.Fatalf("a shard was opened twice")
	}
	keepSome(cs, 1, 30)
	s.readable()
	s.close()
	n := r.open(1)
	n.sameAs(s.m)
	n.readable()
	n.close()
}

// After each restart the machine is what it was, and goes on from there.
func reopen(tb TB, h Harness) {
	r := newRig(tb, h)
	s := r.open(1)
	s = s.restart() // of nothing
	total := 0
	for round := range 3 {
		keepSome(newCalls(s), round, 100)
		total += 100
		count(s, total)
		s = s.restart()
	}
	inOrder(s)
	s.close()
}

// A snapshot and what follows it give what the whole log gives.
func snapshotAndTail(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	keepSome(newCalls(s), 0, 200)
	s.snapshot()
	keepSome(newCalls(s), 1, 100)
	s = s.restart()
	if restores, applied := s.m.Recovered(); s.Snapshot != nil && (restores == 0 || applied > 100) {
		s.Fatalf("recovery called Restore %d times and applied %d commands, 100 came after the snapshot", restores, applied)
	}
	inOrder(s)
	keepSome(newCalls(s), 2, 100)
	s.snapshot()
	s = s.restart()
	s.readable()
	count(s, 400)
	inOrder(s)
	s.close()
}

// A snapshot taken while proposals flow is of one moment, and loses none.
func snapshotUnderLoad(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	if s.Snapshot == nil {
		return
	}
	cs := newCalls(s)
	for round := range 3 {
		made := make(chan struct{}) // closed when all proposals of the round are
		go func() {                 // ends after its proposals; waited for below
			defer close(made)
			for i := range 400 {
				op := byte(opPlain)
				if i%2 == 0 {
					op = opKeep
				}
				if _, err := cs.propose(command(op, ids(round, i), 300), i%2 == 0); err != nil {
					return
				}
			}
		}()
		for more := true; more; {
			s.snapshot()
			select {
			case <-made:
				more = false
			default:
			}
		}
		cs.settle()
	}
	count(s, 1200)
	s = s.restart()
	s.readable()
	inOrder(s)
	s.close()
}

// Shards have their own order, their own machine and their own bodies.
func shards(tb TB, h Harness) {
	r := newRig(tb, h)
	var subjects []*subject
	var all []*calls
	for shard := uint64(1); shard <= 3; shard++ {
		s := r.open(shard)
		subjects = append(subjects, s)
		all = append(all, newCalls(s))
	}
	const n = 300
	var wg sync.WaitGroup
	for k, cs := range all {
		wg.Add(1)
		go func() { // ends after n proposals; waited for below
			defer wg.Done()
			for i := range n {
				if _, err := cs.propose(command(opKeep, ids(k, i), 100), true); err != nil {
					return
				}
			}
		}()
	}
	wg.Wait()
	for k, cs := range all {
		cs.settle()
		count(subjects[k], n)
		inOrder(subjects[k])
		subjects[k].readable()
	}
	// Closing one leaves the others at work.
	subjects[0].close()
	for i := range 10 {
		all[1].must(command(opPlain, ids(9, i), 0))
	}
	all[1].settle()
	for _, s := range subjects[1:] {
		s.close()
	}
	r.stop()
	r.start()
	for _, old := range subjects {
		s := r.open(old.shard)
		s.sameAs(old.m)
		s.readable()
		for _, l := range s.m.Lines() {
			if p := l.ID >> 32; p != old.shard && p != 10 {
				r.Fatalf("shard %d has a command of another", old.shard)
			}
		}
		s.close()
	}
}

// An Open whose context is over fails and leaves nothing behind.
func cancelledOpen(tb TB, h Harness) {
	r := newRig(tb, h)
	s := r.open(1)
	keepSome(newCalls(s), 0, 30)
	s.close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m := NewMachine()
	if l, err := r.engine.Open(ctx, 1, m); err == nil {
		_ = l.Close()
		r.Fatalf("Open with a cancelled context succeeded")
	} else if !errors.Is(err, context.Canceled) {
		r.Fatalf("Open with a cancelled context: %v", err)
	}
	m.forbid()
	n := r.open(1)
	n.sameAs(s.m)
	n.close()
	for _, p := range m.Problems() {
		r.Errorf("after a cancelled Open: %s", p)
	}
}

// Lead(true) comes once, after all that recovery applies and before anything new.
func lead(tb TB, h Harness) {
	r := newRig(tb, h)
	s := r.open(1)
	leads := func(want int) {
		r.Helper()
		if got := s.m.Leads(); !slices.Equal(got, []int{want}) {
			r.Fatalf("Lead(true) came when the machine had %v commands, want [%d]", got, want)
		}
	}
	leads(0)
	keepSome(newCalls(s), 0, 50)
	leads(0)
	s = s.restart()
	leads(50)
	keepSome(newCalls(s), 1, 50)
	s.snapshot()
	keepSome(newCalls(s), 2, 5)
	s = s.restart()
	leads(105)
	s.close()
}

// A node that does not lead refuses, and does not make its own order.
func notLeader(tb TB, h Harness) {
	s := newRig(tb, h).open(1)
	if s.Follower == nil {
		return
	}
	cs := newCalls(s)
	keepSome(cs, 0, 10)
	l, err := s.Harness.Follower(1)
	if err != nil {
		s.Fatalf("follower: %v", err)
	}
	refused := newCalls(s)
	c := &call{to: refused, cmd: command(opPlain, ids(1, 0), 0)}
	if err := l.Propose(c); !errors.Is(err, bourse.ErrNotLeader) {
		s.Fatalf("Propose at a follower: %v", err)
	}
	keepSome(cs, 2, 10)
	count(s, 20)
	if _, done := refused.progress(); done > 0 {
		s.Fatalf("Done of a proposal that was refused")
	}
	s.close()
}
