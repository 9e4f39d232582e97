package replicate

import (
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/invariant"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// body is a command that the machine keeps.
type body struct {
	data []byte // never changes
	sum  uint32 // CRC32C of data
	refs int    // guarded by bodies.mu
}

// bodies are the kept commands of a shard. Raft's own copies are recycled after Apply.
type bodies struct {
	mu   sync.RWMutex
	held map[bourse.Ref]*body
}

func (b *bodies) len() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.held)
}

// read appends the command at ref to dst.
func (b *bodies) read(ref bourse.Ref, dst []byte) ([]byte, error) {
	b.mu.RLock()
	x := b.held[ref]
	b.mu.RUnlock()
	if x == nil {
		return dst, fmt.Errorf("command %d is not kept: %w", ref, bourse.ErrNotFound)
	}
	if got := crc32.Checksum(x.data, castagnoli); got != x.sum {
		return dst, fmt.Errorf("%w: command %d of %d bytes has checksum %08x, was %08x", bourse.ErrStorage, ref, len(x.data), got, x.sum)
	}
	return append(dst, x.data...), nil
}

// kept is a command as a snapshot holds it.
type kept struct {
	ref bourse.Ref
	*body
}

// all returns the kept commands in the order of their refs.
func (b *bodies) all() []kept {
	b.mu.RLock()
	defer b.mu.RUnlock()
	all := make([]kept, 0, len(b.held))
	for ref, x := range b.held {
		all = append(all, kept{ref, x})
	}
	slices.SortFunc(all, func(x, y kept) int {
		if x.ref < y.ref {
			return -1
		}
		return 1
	})
	return all
}

// applying is the bourse.Bodies of one Apply: a command can be kept while it is applied, and
// again while it is held.
type applying struct {
	*bodies
	entries []bourse.Entry // in the order of their refs
}

func (a applying) Keep(ref bourse.Ref, n int) {
	invariant.Check(n > 0, "Keep of %d references", n)
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.held[ref]; x != nil {
		x.refs += n
		return
	}
	i, ok := slices.BinarySearchFunc(a.entries, ref, func(e bourse.Entry, ref bourse.Ref) int {
		switch {
		case e.Ref < ref:
			return -1
		case e.Ref > ref:
			return 1
		}
		return 0
	})
	invariant.Check(ok, "Keep of command %d, which is neither applied now nor held", ref)
	data := append([]byte(nil), a.entries[i].Cmd...)
	a.held[ref] = &body{data: data, sum: crc32.Checksum(data, castagnoli), refs: n}
}

func (a applying) Free(ref bourse.Ref) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.held[ref]
	invariant.Check(x != nil, "Free of command %d, which is not held", ref)
	if x.refs--; x.refs == 0 {
		delete(a.held, ref)
	}
}

// restoring is the bourse.Bodies of one Restore: only what the snapshot holds can be kept.
type restoring struct {
	found map[bourse.Ref]*body
	held  map[bourse.Ref]*body
	lost  bourse.Ref // the first that was asked for and not found
}

func (r *restoring) Keep(ref bourse.Ref, n int) {
	invariant.Check(n > 0, "Keep of %d references", n)
	x := r.held[ref]
	if x == nil {
		if x = r.found[ref]; x == nil {
			if r.lost == 0 {
				r.lost = ref
			}
			return
		}
		r.held[ref] = x
	}
	x.refs += n
}

func (r *restoring) Free(ref bourse.Ref) {
	x := r.held[ref]
	invariant.Check(x != nil, "Free of command %d, which is not held", ref)
	if x.refs--; x.refs == 0 {
		delete(r.held, ref)
	}
}
