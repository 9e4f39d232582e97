package replicate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/enginetest"
)

// Goal: the replicated state machine applies each batch of an epoch once and in order,
// whatever arrives, and its snapshots are whole or refused. Method: entries are fed to a
// replica by hand; a random mixture is compared with a naive model.

// watcher is an observer that takes notes.
type watcher struct{ notes []string }

func (w *watcher) applied(epoch, seq uint64, entries []bourse.Entry) {
	w.notes = append(w.notes, fmt.Sprintf("applied %d/%d %d", epoch, seq, len(entries)))
}
func (w *watcher) opened(epoch uint64) { w.notes = append(w.notes, fmt.Sprintf("opened %d", epoch)) }
func (w *watcher) gap(epoch uint64, attempt uint32) {
	w.notes = append(w.notes, fmt.Sprintf("gap %d %d", epoch, attempt))
}
func (w *watcher) skipped(p position) {
	w.notes = append(w.notes, fmt.Sprintf("skipped %d/%d", p.epoch, p.seq))
}

// proposal is a command that nobody waits for.
type proposal []byte

func (p proposal) AppendTo(dst []byte) []byte { return append(dst, p...) }
func (p proposal) Durable() bool              { return true }
func (p proposal) Done(bourse.Answer, error)  {}

// sealed encodes a batch with one command a given id. Even ids are kept.
func sealed(epoch, seq uint64, ids ...uint64) []byte {
	b := newBatch(0)
	for _, id := range ids {
		b.add(proposal(enginetest.Command(id, 20+int(id%50), id%2 == 0)))
	}
	b.seal(epoch, seq, 0)
	return b.payload
}

// feed is a replica that is fed by hand.
type feed struct {
	*replica
	t     *testing.T
	m     *enginetest.Machine
	w     *watcher
	index uint64
}

func newFeed(t *testing.T) *feed {
	f := &feed{t: t, m: enginetest.NewMachine(), w: &watcher{}}
	f.replica = newReplica(1, f.m, f.w)
	return f
}

// update feeds entries in one call, scribbles over them, as Raft does in time, and returns
// the verdicts.
func (f *feed) update(payloads ...[]byte) (verdicts []uint64) {
	f.t.Helper()
	var es []sm.Entry
	for _, p := range payloads {
		f.index++
		es = append(es, sm.Entry{Index: f.index, Cmd: slices.Clone(p)})
	}
	out, err := f.Update(es)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range out {
		verdicts = append(verdicts, e.Result.Value)
		for i := range e.Cmd {
			e.Cmd[i] = 0xEE
		}
	}
	for _, p := range f.m.Problems() {
		f.t.Error(p)
	}
	return verdicts
}

func (f *feed) ids() (ids []uint64) {
	for _, l := range f.m.Lines() {
		ids = append(ids, l.ID)
	}
	return ids
}

// bodiesRead reads back what the machine keeps.
func (f *feed) bodiesRead() {
	f.t.Helper()
	bs := f.m.Bodies()
	if n := f.bodies.len(); n != len(bs) {
		f.t.Fatalf("%d commands are held, the machine keeps %d", n, len(bs))
	}
	for _, b := range bs {
		got, err := f.bodies.read(b.Ref, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		line := f.m.Lines()[b.Ordinal-1]
		if want := enginetest.Command(line.ID, b.Size, true); !bytes.Equal(got, want) {
			f.t.Fatalf("command %d reads % x, was % x", b.Ordinal, got, want)
		}
	}
}

func TestSessions(t *testing.T) {
	f := newFeed(t)
	step := func(what string, want []uint64, payloads ...[]byte) {
		t.Helper()
		if got := f.update(payloads...); !slices.Equal(got, want) {
			t.Fatalf("%s: verdicts %v, want %v", what, got, want)
		}
	}
	const applied, repeat, gap, stale = verdictApplied, verdictRepeat, verdictGap, verdictStale
	step("nothing before an opening", []uint64{gap}, sealed(5, 1, 99))
	step("opening, and again", []uint64{applied, repeat}, opening(5), opening(5))
	step("in order, in one call", []uint64{applied, applied}, sealed(5, 1, 10, 11), sealed(5, 2, 12))
	step("a retry of both", []uint64{repeat, repeat}, sealed(5, 1, 10, 11), sealed(5, 2, 12))
	step("the middle is lost, then all are sent again",
		[]uint64{gap, gap, applied, applied, applied},
		sealed(5, 4, 14), sealed(5, 5, 15), sealed(5, 3, 13), sealed(5, 4, 14), sealed(5, 5, 15))
	step("a late copy of the first try", []uint64{repeat, repeat}, sealed(5, 5, 15), sealed(5, 4, 14))
	step("still the old leader, before the new one opens", []uint64{applied}, sealed(5, 6, 16))
	step("the new leader opens; the old one is over", []uint64{applied, stale, stale, stale},
		opening(7), sealed(5, 7, 98), sealed(5, 1, 97), opening(6))
	step("an epoch that nobody opened", []uint64{gap}, sealed(9, 1, 96))
	step("the new one goes on from 1", []uint64{gap, applied, repeat}, sealed(7, 2, 95), sealed(7, 1, 17), sealed(7, 1, 17))
	if want := []uint64{10, 11, 12, 13, 14, 15, 16, 17}; !slices.Equal(f.ids(), want) {
		t.Fatalf("applied %v, want %v", f.ids(), want)
	}
	f.bodiesRead()
	if (f.position != position{epoch: 7, seq: 1, commands: 8}) {
		t.Fatalf("position %+v", f.position)
	}
}

// TestSessionsRandom compares with a model that knows only what should be: of an epoch the
// numbers from 1 on, once, in order, until a higher epoch opens.
func TestSessionsRandom(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		f := newFeed(t)
		var want []uint64
		epoch, next := uint64(0), uint64(1)
		for range 200 {
			var in [][]byte
			for range 1 + rnd.IntN(5) {
				e := max(1, epoch+uint64(rnd.IntN(3))) - uint64(rnd.IntN(2))
				if rnd.IntN(10) == 0 {
					in = append(in, opening(e))
					if e > epoch {
						epoch, next = e, 1
					}
					continue
				}
				seq := max(1, next+uint64(rnd.IntN(4))-min(next, 2))
				id := e<<32 | seq
				in = append(in, sealed(e, seq, id))
				if e == epoch && epoch > 0 && seq == next {
					want = append(want, id)
					next++
				}
			}
			f.update(in...)
		}
		if !slices.Equal(f.ids(), want) {
			t.Fatalf("seed %d: applied %v, want %v", seed, f.ids(), want)
		}
		f.bodiesRead()
	}
}

func (f *feed) snapshot() []byte {
	f.t.Helper()
	captured, err := f.PrepareSnapshot()
	if err != nil {
		f.t.Fatal(err)
	}
	f.update(sealed(f.position.epoch, f.position.seq+1, 1000+f.position.commands)) // beside it
	var buf bytes.Buffer
	if err := f.SaveSnapshot(captured, &buf, nil, nil); err != nil {
		f.t.Fatal(err)
	}
	return buf.Bytes()
}

func TestSnapshotRoundTrip(t *testing.T) {
	f := newFeed(t)
	f.update(opening(3))
	for seq := range uint64(400) {
		f.update(sealed(3, seq+1, 4*seq, 4*seq+1, 4*seq+2, 4*seq+3))
	}
	whole := f.snapshot() // and one batch more
	g := newFeed(t)
	if err := g.RecoverFromSnapshot(bytes.NewReader(whole), nil, nil); err != nil {
		t.Fatal(err)
	}
	if want := (position{epoch: 3, seq: 400, commands: 1600}); g.position != want {
		t.Fatalf("position %+v, want %+v", g.position, want)
	}
	g.bodiesRead()
	// What follows is the same batch that f has applied; before it comes a repeat, and
	// a gap behind it, which the table must still know.
	g.index = f.index - 1
	tail := sealed(3, 401, 1000+1600)
	if got := g.update(sealed(3, 400, 7), sealed(3, 402, 8)); !slices.Equal(got, []uint64{verdictRepeat, verdictGap}) {
		t.Fatalf("after the snapshot: verdicts %v", got)
	}
	g.index = f.index - 1
	g.update(tail)
	if diff := g.m.Diff(f.m); diff != "" {
		t.Fatal(diff)
	}
	if !slices.Equal(g.m.Bodies(), f.m.Bodies()) { // with their refs: snapshots travel
		t.Fatal("refs differ between replicas")
	}
	g.bodiesRead()
	if g.w.notes[0] != "skipped 3/400" {
		t.Fatalf("notes %q", g.w.notes)
	}

	// A second restore replaces the first.
	if err := f.RecoverFromSnapshot(bytes.NewReader(whole), nil, nil); err != nil {
		t.Fatal(err)
	}
	f.bodiesRead()
}

// Every flipped byte and every cut is noticed before the machine takes over anything.
func TestSnapshotDamage(t *testing.T) {
	f := newFeed(t)
	f.update(opening(3), sealed(3, 1, 2, 3, 4), sealed(3, 2, 5, 6))
	whole := f.snapshot()
	check := func(what string, b []byte) {
		t.Helper()
		g := newFeed(t)
		err := g.RecoverFromSnapshot(bytes.NewReader(b), nil, nil)
		if err == nil {
			t.Fatalf("%s: not noticed", what)
		}
		if g.position != (position{}) || g.bodies.len() != 0 {
			t.Fatalf("%s: %v, and yet taken over", what, err)
		}
	}
	for i := range whole {
		b := slices.Clone(whole)
		b[i] ^= 0x10
		check(fmt.Sprintf("byte %d of %d flipped", i, len(whole)), b)
		check(fmt.Sprintf("cut at %d of %d", i, len(whole)), whole[:i])
	}
	if err := newFeed(t).RecoverFromSnapshot(bytes.NewReader(nil), nil, nil); !errors.Is(err, bourse.ErrStorage) {
		t.Fatalf("an empty snapshot: %v", err)
	}
}

// A snapshot that is being written or read stops when its replica does.
func TestSnapshotStops(t *testing.T) {
	f := newFeed(t)
	f.update(opening(3), sealed(3, 1, 2, 4, 6))
	whole := f.snapshot()
	stop := make(chan struct{})
	close(stop)
	captured, err := f.PrepareSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SaveSnapshot(captured, &bytes.Buffer{}, nil, stop); !errors.Is(err, sm.ErrSnapshotStopped) {
		t.Errorf("SaveSnapshot: %v", err)
	}
	if err := newFeed(t).RecoverFromSnapshot(bytes.NewReader(whole), nil, stop); !errors.Is(err, sm.ErrSnapshotStopped) {
		t.Errorf("RecoverFromSnapshot: %v", err)
	}
	f.detach()
	if _, err := f.PrepareSnapshot(); !errors.Is(err, sm.ErrSnapshotStopped) {
		t.Errorf("PrepareSnapshot after detach: %v", err)
	}
	f.update(sealed(3, 3, 8))
	if n := len(f.ids()); n != 4 {
		t.Errorf("%d commands after detach, were 4", n)
	}
}

// A log of a newer release stops an old one.
func TestUnknownEntryPanics(t *testing.T) {
	newer := opening(1)
	newer[0] = 2
	long := sealed(3, 1, 2)
	binary.LittleEndian.PutUint32(long[batchHeader:], 1<<31)
	for name, b := range map[string][]byte{
		"version": newer, "short": newer[:5], "length": long, "rest": append(sealed(3, 1, 2), 0),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFeed(t)
			f.update(opening(3))
			defer func() {
				if recover() == nil {
					t.Fatal("applied")
				}
			}()
			f.update(b)
		})
	}
}
