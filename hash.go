package bourse

import (
	"cmp"
	"math/bits"
	"slices"
)

// This file chooses the target of a ConsistentHash exchange, by weighted rendezvous hashing:
// every target draws a number from the key and its own name, and the best draw wins.
//
// With u uniform in (0, 1], the draw is -log(u)/weight, and the smallest wins: a target
// then wins with a probability of its weight over the sum of weights. Nobody's draw
// depends on who else takes part, which gives all the properties at once: the choice does
// not depend on the order of binding, a new target takes keys only for itself and its
// share of them from everybody alike, and one that leaves gives its keys to all others.
//
// A ring of points was the alternative. It finds a target in logarithmic instead of linear
// time, and shares keys out unevenly unless every target has hundreds of points; with
// weights to 100 that is tens of thousands each. A draw costs some nanoseconds, and hash
// exchanges have tens of targets.
//
// All of it is a format: another hash would move the keys of running systems. It uses
// integers only, so all platforms agree.

// hashTarget is one target of a ConsistentHash exchange.
type hashTarget struct {
	name   string
	queue  queueID // 0: the target is the exchange of that name
	point  uint64  // hash of the name and whether it is a queue
	weight uint64  // sum over its bindings; 0: drained
}

func compareHashTarget(a, b hashTarget) int {
	if c := cmp.Compare(a.name, b.name); c != 0 {
		return c
	}
	return compareBool(a.queue == 0, b.queue == 0)
}

// hashTargets are the targets of one exchange, by name. Never changed, only replaced.
type hashTargets []hashTarget

// set returns targets in which t has the weight that t says.
func (ts hashTargets) set(t hashTarget) hashTargets {
	i, found := slices.BinarySearchFunc(ts, t, compareHashTarget)
	if found {
		ts = slices.Clone(ts)
		ts[i] = t
		return ts
	}
	return slices.Insert(slices.Clone(ts), i, t)
}

// remove returns targets without t.
func (ts hashTargets) remove(t hashTarget) hashTargets {
	i, found := slices.BinarySearchFunc(ts, t, compareHashTarget)
	if !found {
		return ts
	}
	return slices.Delete(slices.Clone(ts), i, i+1)
}

// pick returns the target for key, nil if all are drained or there are none.
func (ts hashTargets) pick(key string) *hashTarget {
	k := mix64(hashString(fnvOffset, key))
	var best *hashTarget
	var bestHash uint64
	for i := range ts {
		t := &ts[i]
		if t.weight == 0 {
			continue
		}
		if h := mix64(k ^ t.point); best == nil || better(h, t.weight, bestHash, best.weight) {
			best, bestHash = t, h
		}
	}
	return best
}

// better reports whether hash a with weight wa draws less than hash b with weight wb. Equal
// draws are no better, so of two the first by name wins.
func better(a, wa, b, wb uint64) bool {
	if wa == wb {
		return a > b
	}
	// -log(a)/wa < -log(b)/wb, multiplied out in 128 bits.
	hiA, loA := bits.Mul64(negLog2(a), wb)
	hiB, loB := bits.Mul64(negLog2(b), wa)
	return hiA < hiB || hiA == hiB && loA < loB
}

// hashPoint is the point of a target.
func hashPoint(name string, queue bool) uint64 {
	h := hashString(fnvOffset, name)
	if queue {
		h = hashString(h, "\x00q") // a control character is in no name
	} else {
		h = hashString(h, "\x00x")
	}
	return mix64(h)
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// hashString is FNV-1a of s, continued from h.
func hashString(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

// mix64 is the finalizer of SplitMix64, a permutation in which every bit of the result
// depends on every bit of x. FNV alone leaves keys that differ in the last byte close together.
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

const (
	logBits     = 56 // fraction bits of negLog2
	logCellBits = 8  // the table has 1<<logCellBits cells
)

// log2Table[i] is log2(1 + i/256), with logBits fraction bits.
var log2Table = makeLog2Table()

func makeLog2Table() (t [1<<logCellBits + 1]uint64) {
	for i := range t[:1<<logCellBits] {
		// Squaring doubles the logarithm: each overflow past 2 is its next bit.
		x := uint64(1<<logCellBits+i) << (63 - logCellBits)
		for range logBits {
			hi, lo := bits.Mul64(x, x)
			t[i] <<= 1
			if hi>>63 == 1 {
				t[i] |= 1
				x = hi
			} else {
				x = hi<<1 | lo>>63
			}
		}
	}
	t[1<<logCellBits] = 1 << logBits
	return t
}

// negLog2 returns -log2((h+1)/2^64), with logBits fraction bits. Between the points of its
// table it is linear, which makes it wrong by at most 3 in a million, and by the same
// factor for all draws near zero, where large exchanges decide.
func negLog2(h uint64) uint64 {
	if h == ^uint64(0) {
		return 0
	}
	h++
	zeros := bits.LeadingZeros64(h)
	m := h << zeros << 1 // the fraction after the leading one
	cell := m >> (64 - logCellBits)
	low, high := log2Table[cell], log2Table[cell+1]
	hi, _ := bits.Mul64(high-low, m<<logCellBits)
	return uint64(zeros+1)<<logBits - low - hi
}
