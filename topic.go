package bourse

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/google/btree"
)

// This file matches routing keys against the patterns of a topic exchange.
//
// Patterns live in a trie of words: each edge is a literal word, * or #. The trie is an
// immutable value; a change copies the path to its node and shares the rest, so readers
// need no lock.
//
// Matching walks the trie, not the key. A walk carries to a node the set of places in
// the key at which the node can be reached: place i means that i words are used up. A
// word's edge moves a place by one if the word is there, * moves any place by one, and #
// reaches every place from the lowest on. A node is therefore visited once per key,
// whatever mixture of # led there: the cost is at most the nodes that the key can reach
// times its words. (Trying every length for every # is exponential: 127 words against
// #.a.#.a.#.a would already be millions of steps.)

// topicNode is a node of the trie, never changed once it is reachable from a topology.
type topicNode struct {
	words   wordEdges
	star    *topicNode // edge *
	hash    *topicNode // edge #
	targets *targets   // of the patterns that end here; nil if none does
}

func (n *topicNode) empty() bool {
	return n.star == nil && n.hash == nil && n.targets == nil && n.words.len() == 0
}

// with returns a trie in which the pattern also leads to the target of b. n may be nil.
func (n *topicNode) with(pattern string, b *binding) *topicNode {
	return n.change(pattern, pattern != "", func(ts *targets) *targets { return ts.with(b) })
}

// without returns a trie in which the pattern does not lead to the target of b, or nil if
// it would be empty.
func (n *topicNode) without(pattern string, b *binding) *topicNode {
	return n.change(pattern, pattern != "", func(ts *targets) *targets { return ts.without(b) })
}

// change returns a copy of n in which change has been applied to the targets at the end of
// pattern. more says whether a word is left: one empty word and no word look the same.
func (n *topicNode) change(pattern string, more bool, change func(*targets) *targets) *topicNode {
	var c topicNode
	if n != nil {
		c = *n
	}
	if !more {
		c.targets = change(c.targets)
	} else {
		word, rest, more := strings.Cut(pattern, ".")
		switch word {
		case "*":
			c.star = c.star.change(rest, more, change)
		case "#":
			c.hash = c.hash.change(rest, more, change)
		default:
			c.words = c.words.set(word, c.words.get(word).change(rest, more, change))
		}
	}
	if c.empty() {
		return nil
	}
	return &c
}

// wordEdges are the literal edges of a node, a persistent map. Most nodes have one edge,
// and a few, such as one per customer, have very many: a sorted slice serves the first
// and a tree, which is copied by paths, the second.
type wordEdges struct {
	few  []wordEdge // in byte order
	many *btree.BTreeG[wordEdge]
}

type wordEdge struct {
	word string
	node *topicNode
}

const (
	maxFewEdges    = 32
	wordTreeDegree = 16
)

func lessWordEdge(a, b wordEdge) bool { return a.word < b.word }

func (e *wordEdges) len() int {
	if e.many != nil {
		return e.many.Len()
	}
	return len(e.few)
}

// get returns the node behind the word, nil if there is none.
func (e *wordEdges) get(word string) *topicNode {
	if e.many != nil {
		edge, _ := e.many.Get(wordEdge{word: word})
		return edge.node
	}
	if i, ok := e.find(word); ok {
		return e.few[i].node
	}
	return nil
}

// find is slices.BinarySearchFunc without its call per step.
func (e *wordEdges) find(word string) (int, bool) {
	lo, hi := 0, len(e.few)
	for lo < hi {
		mid := (lo + hi) / 2
		if e.few[mid].word < word {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(e.few) && e.few[lo].word == word
}

// set returns edges in which the word leads to node, or nowhere if node is nil.
func (e wordEdges) set(word string, node *topicNode) wordEdges {
	if e.many != nil {
		tree := e.many.Clone()
		if node == nil {
			tree.Delete(wordEdge{word: word})
		} else {
			tree.ReplaceOrInsert(wordEdge{word: word, node: node})
		}
		return wordEdges{many: tree}
	}
	i, found := e.find(word)
	switch {
	case node == nil && !found:
		return e
	case node == nil:
		return wordEdges{few: slices.Delete(slices.Clone(e.few), i, i+1)}
	case found:
		few := slices.Clone(e.few)
		few[i].node = node
		return wordEdges{few: few}
	case len(e.few) < maxFewEdges:
		few := make([]wordEdge, 0, len(e.few)+1)
		few = append(append(append(few, e.few[:i]...), wordEdge{word, node}), e.few[i:]...)
		return wordEdges{few: few}
	}
	tree := btree.NewG(wordTreeDegree, lessWordEdge)
	for _, edge := range e.few {
		tree.ReplaceOrInsert(edge)
	}
	tree.ReplaceOrInsert(wordEdge{word: word, node: node})
	return wordEdges{many: tree}
}

// maxWords is the number of words in a key of nothing but dots.
const maxWords = MaxNameBytes + 1

// places is a set of places in a key, 0 to maxWords.
type places [maxWords/64 + 1]uint64

func (p *places) add(i int)      { p[i/64] |= 1 << (i % 64) }
func (p *places) remove(i int)   { p[i/64] &^= 1 << (i % 64) }
func (p *places) has(i int) bool { return p[i/64]&(1<<(i%64)) != 0 }

// addRange adds from to last, both included.
func (p *places) addRange(from, last int) {
	for w := from / 64; w <= last/64; w++ {
		m := ^uint64(0)
		if w == from/64 {
			m <<= from % 64
		}
		if w == last/64 {
			m &= ^uint64(0) >> (63 - last%64)
		}
		p[w] |= m
	}
}

// next returns the lowest place that is at least i, or maxWords+1.
func (p *places) next(i int) int {
	for w := i / 64; w < len(p); w++ {
		m := p[w]
		if w == i/64 {
			m &= ^uint64(0) << (i % 64)
		}
		if m != 0 {
			return w*64 + bits.TrailingZeros64(m)
		}
	}
	return maxWords + 1
}

// up returns the set with every place one higher, up to last.
func (p *places) up(last int) places {
	var out places
	carry := uint64(0)
	for w := 0; w <= last/64; w++ {
		out[w] = p[w]<<1 | carry
		carry = p[w] >> 63
	}
	out[last/64] &= ^uint64(0) >> (63 - last%64)
	return out
}

// topicMatch is the match of one key at one exchange. It lives on the stack of route; the walk
// is passed beside it, not inside, or it would move to the heap.
type topicMatch struct {
	hop int // the exchange, in the walk
	key string
	n   int // words of key
	// start is where each word starts. A key has at most 255 bytes, so a byte is enough.
	start [maxWords]uint8
	// same leads from a word to the next one that is equal, 0 if there is none. It is only
	// needed behind a #, and built then.
	same      [maxWords]uint8
	sameBuilt bool
}

// matchTopic emits the targets of every pattern in trie that key matches, for a hop of w. A
// target with several such patterns is emitted several times.
func matchTopic(w *walk, hop int, trie *topicNode, key string) {
	if trie == nil {
		return
	}
	m := topicMatch{hop: hop, key: key}
	if key != "" { // no words at all, rather than an empty one
		m.n = 1
		for i := range len(key) {
			if key[i] == '.' {
				m.start[m.n] = uint8(i + 1)
				m.n++
			}
		}
	}
	m.visit(w, trie, 0)
}

func (m *topicMatch) word(i int) string {
	if i+1 < m.n {
		return m.key[m.start[i] : m.start[i+1]-1]
	}
	return m.key[m.start[i]:]
}

// visit is visitAll for a node that is reached at one place only: all nodes, as long as no
// # was passed.
func (m *topicMatch) visit(w *walk, n *topicNode, i int) {
	if n.hash != nil {
		m.visitHash(w, n.hash, i)
	}
	if i == m.n {
		w.emit(m.hop, n.targets)
		return
	}
	if next := n.words.get(m.word(i)); next != nil {
		m.visit(w, next, i+1)
	}
	if n.star != nil {
		m.visit(w, n.star, i+1)
	}
}

// visitHash visits the node behind a # whose lowest place is i.
func (m *topicMatch) visitHash(w *walk, n *topicNode, i int) {
	var at places
	at.addRange(i, m.n)
	m.visitAll(w, n, at)
}

// visitAll goes on from n, which is reached at every place of at and at no other.
func (m *topicMatch) visitAll(w *walk, n *topicNode, at places) {
	lowest := at.next(0)
	if n.hash != nil {
		m.visitHash(w, n.hash, lowest)
	}
	if at.has(m.n) {
		w.emit(m.hop, n.targets)
	}
	if lowest == m.n {
		return
	}
	if n.star != nil {
		m.visitAll(w, n.star, at.up(m.n))
	}
	if n.words.len() > 0 {
		m.visitWords(w, n, at)
	}
}

// visitWords follows the literal edges of n, each word that occurs at one of the places
// once, with all its places together.
func (m *topicMatch) visitWords(w *walk, n *topicNode, at places) {
	m.buildSame()
	for i := at.next(0); i < m.n; i = at.next(i + 1) {
		next := n.words.get(m.word(i))
		var up places
		up.add(i + 1)
		for j := int(m.same[i]); j != 0; j = int(m.same[j]) {
			if at.has(j) {
				at.remove(j)
				up.add(j + 1)
			}
		}
		if next != nil {
			m.visitAll(w, next, up)
		}
	}
}

func (m *topicMatch) buildSame() {
	if m.sameBuilt {
		return
	}
	m.sameBuilt = true
	for i := range m.n {
		for j := i + 1; j < m.n; j++ {
			if m.word(i) == m.word(j) {
				m.same[i] = uint8(j)
				break
			}
		}
	}
}
