package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: an owner of another kind than the broker can live on the log: one that keeps the logs of many groups, as a Raft
// library does. An entry at an index takes away what was at that index and behind it; a group is cut at its front when it has been
// compacted; and a state of each group, which pins nothing, is as durable as the entries beside it. Method: random
// work, a crash of some kind at any moment, recovery, comparison with a model of the same prefix, and on from there.

const groups = 5

// groupOp is one record. What it does: entry, cut or state.
type groupOp struct {
	id    uint64 // 1, 2, 3, ... over all groups
	what  byte
	group uint64
	index uint64 // of the entry, or the first that stays
	salt  uint64 // the term, or the state
	size  int
	sync  bool
}

const (
	groupEntry = byte(iota)
	groupCut
	groupState
)

func (o groupOp) AppendTo(dst []byte) []byte {
	dst = append(dst, o.what)
	for _, v := range []uint64{o.id, o.group, o.index, o.salt} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	return append(dst, bytes.Repeat([]byte{byte(o.id)}, o.size)...)
}

// group is the log of one group: entries from first on. at is for the owner, ids for the model.
type group struct {
	first, state uint64
	at           []Position
	ids          []uint64
}

// take applies an operation and returns what it takes away.
func (g *group) take(o groupOp, pos Position) (gone []Position) {
	switch o.what {
	case groupEntry:
		n := o.index - g.first
		gone = append(gone, g.at[n:]...)
		g.at, g.ids = append(g.at[:n:n], pos), append(g.ids[:n:n], o.id)
	case groupCut:
		n := o.index - g.first
		gone = append(gone, g.at[:n]...)
		g.at, g.ids, g.first = g.at[n:], g.ids[n:], o.index
	case groupState:
		g.state = o.salt
	}
	return gone
}

// groupOwner is the owner.
type groupOwner struct {
	l *Log

	mu     sync.Mutex
	cond   sync.Cond
	ops    []groupOp // ops[i].id is i+1
	all    [groups]group
	last   uint64
	synced uint64 // last that was reported and asked for a sync
	want   bool   // a mark
	mark   chan Mark
	state  []byte
	err    error
}

func (g *groupOwner) open(fs FS, ops []groupOp) error {
	g.cond.L, g.ops, g.mark = &g.mu, ops, make(chan Mark, 1)
	for i := range g.all {
		g.all[i].first = 1
	}
	l, err := Open("d", Options{FS: fs, SegmentBytes: testSegment, CacheBytes: -1, Commit: g.commit})
	if err != nil {
		return err
	}
	g.l = l
	r, found, err := l.Checkpoint()
	if err != nil {
		return err
	}
	if found {
		b, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
		next := func() (v uint64) { v, b = binary.LittleEndian.Uint64(b), b[8:]; return v }
		g.last = next()
		for i := range g.all {
			gr := &g.all[i]
			gr.first, gr.state = next(), next()
			for range next() {
				gr.ids, gr.at = append(gr.ids, next()), append(gr.at, Position(next()))
				l.Keep(gr.at[len(gr.at)-1], 1)
			}
		}
	}
	if err := l.Replay(func(batch []Committed) error { return g.apply(batch) }); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ops, g.synced = g.ops[:g.last], g.last
	return nil
}

func (g *groupOwner) apply(batch []Committed) error {
	for _, c := range batch {
		id := binary.LittleEndian.Uint64(c.Data[1:])
		if id != g.last+1 || id > uint64(len(g.ops)) || !bytes.Equal(c.Data, g.ops[id-1].AppendTo(nil)) {
			return fmt.Errorf("record %d after %d is not what was appended", id, g.last)
		}
		g.last = id
		o := g.ops[id-1]
		if o.what == groupEntry {
			g.l.Keep(c.Pos, 1)
		}
		for _, pos := range g.all[o.group].take(o, c.Pos) {
			g.l.Free(pos)
		}
	}
	return nil
}

func (g *groupOwner) commit(batch []Committed, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.cond.Broadcast()
	if err == nil {
		err = g.apply(batch)
	}
	if err != nil {
		g.err = err
		return
	}
	for _, c := range batch {
		if o, ok := c.Owner.(groupOp); ok && o.sync {
			g.synced = o.id
		}
	}
	if g.want {
		g.want, g.state = false, g.encode()
		g.mark <- g.l.Mark()
	}
}

func (g *groupOwner) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, g.last)
	for i := range g.all {
		gr := &g.all[i]
		for _, v := range []uint64{gr.first, gr.state, uint64(len(gr.at))} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		for j := range gr.at {
			b = binary.LittleEndian.AppendUint64(b, gr.ids[j])
			b = binary.LittleEndian.AppendUint64(b, uint64(gr.at[j]))
		}
	}
	return b
}

// check compares with the model.
func (g *groupOwner) check() error {
	var model [groups]group
	for i := range model {
		model[i].first = 1
	}
	for _, o := range g.ops[:g.last] {
		model[o.group].take(o, 0)
	}
	for i := range model {
		want, have := &model[i], &g.all[i]
		if want.first != have.first || want.state != have.state || fmt.Sprint(want.ids) != fmt.Sprint(have.ids) {
			return fmt.Errorf("group %d: %v, want %v", i, have, want)
		}
		for j, pos := range have.at {
			b, err := g.l.Read(pos, 0, nil)
			if err != nil {
				return err
			}
			if !bytes.Equal(b, g.ops[have.ids[j]-1].AppendTo(nil)) {
				return fmt.Errorf("group %d: entry %d reads back other bytes", i, have.first+uint64(j))
			}
		}
	}
	return nil
}

// work does one random thing.
func (g *groupOwner) work(rng *rand.Rand, tails *[groups]struct{ first, next uint64 }) error {
	g.mu.Lock()
	o := groupOp{id: uint64(len(g.ops) + 1), group: uint64(rng.Intn(groups)), salt: rng.Uint64(), sync: rng.Intn(2) == 0}
	t := &tails[o.group]
	switch n := rng.Intn(20); {
	case n < 2:
		o.what = groupState
	case n < 5 && t.next > t.first:
		o.what, o.index = groupCut, t.first+1+uint64(rng.Intn(int(t.next-t.first)))
		t.first = o.index
	case n < 7 && t.next > t.first: // another leader
		o.index, o.size = t.first+uint64(rng.Intn(int(t.next-t.first))), rng.Intn(400)
		t.next = o.index + 1
	default:
		o.index, o.size = t.next, rng.Intn(400)
		t.next++
	}
	g.ops = append(g.ops, o)
	g.mu.Unlock()
	return g.l.Append(o.group, o.sync, o)
}

func (g *groupOwner) tails() (tails [groups]struct{ first, next uint64 }) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.all {
		tails[i].first, tails[i].next = g.all[i].first, g.all[i].first+uint64(len(g.all[i].at))
	}
	return tails
}

func TestGroupsOfAnotherOwner(t *testing.T) {
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewSource(seed))
	fs := &MemFS{}
	var ops []groupOp
	moved, cut := int64(0), 0
	synced := uint64(0)
	for round := range 300 {
		g := &groupOwner{}
		require.NoError(t, g.open(fs, ops), "round %d", round)
		require.GreaterOrEqual(t, g.last, synced, "round %d", round)
		cut += len(ops) - int(g.last)
		require.NoError(t, g.check(), "round %d", round)
		tails := g.tails()
		for range rng.Intn(80) {
			require.NoError(t, g.work(rng, &tails))
			switch rng.Intn(12) {
			case 0:
				g.mu.Lock()
				for g.last < uint64(len(g.ops)) && g.err == nil {
					g.cond.Wait()
				}
				g.mu.Unlock()
			case 1:
				g.mu.Lock()
				g.want = true
				g.mu.Unlock()
				g.l.Poke()
				m := <-g.mark
				require.NoError(t, g.l.WriteCheckpoint(m, bytes.NewReader(g.state)))
			}
		}
		g.mu.Lock()
		synced, ops = g.synced, g.ops
		require.NoError(t, g.err)
		g.mu.Unlock()
		crashed := fs.Crash(CrashModes[rng.Intn(len(CrashModes))], rng.Intn)
		require.NoError(t, g.l.Close())
		moved += g.l.Stats().Moved
		if rng.Intn(8) == 0 { // closed in good order
			synced, ops = uint64(len(g.ops)), g.ops
			continue
		}
		fs = crashed
	}
	require.Positive(t, moved)
	require.Positive(t, cut)
	fmt.Printf("groups: %d operations, 300 rounds, %d records moved, %d operations cut off\n", len(ops), moved, cut)
}
