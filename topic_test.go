package bourse

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Goal: the trie matches exactly as the definition of * and # says, at a bounded cost.
// Method: a naive twin that tries every length for every #, on random and fuzzed
// patterns; and the worst keys and patterns that fit 255 bytes.

// naiveMatch is the definition. It is exponential in the number of #.
func naiveMatch(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return naiveMatch(pattern[1:], key) || len(key) > 0 && naiveMatch(pattern, key[1:])
	case len(key) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == key[0]) && naiveMatch(pattern[1:], key[1:])
}

func splitWords(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ".")
}

// trieOf returns a trie in which pattern i leads to queue i+1.
func trieOf(patterns []string) *topicNode {
	var trie *topicNode
	for i, p := range patterns {
		trie = trie.with(p, &binding{queue: queueID(i + 1)})
	}
	return trie
}

// matches returns how often each pattern's queue is emitted for key, by index.
func matches(trie *topicNode, key string, n int) []int {
	var w walk
	matchTopic(&w, 0, trie, key)
	counts := make([]int, n)
	for _, id := range w.dst {
		counts[id-1]++
	}
	return counts
}

func compareWithNaive(t require.TestingT, patterns []string, key string) {
	got := matches(trieOf(patterns), key, len(patterns))
	for i, p := range patterns {
		want := 0
		if naiveMatch(splitWords(p), splitWords(key)) {
			want = 1 // once: a node is visited once
		}
		require.Equal(t, want, got[i], "pattern %q, key %q, among %q", p, key, patterns)
	}
}

func drawWords(t *rapid.T, alphabet []string, label string) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(alphabet), 0, 7).Draw(t, label), ".")
}

func TestTopicAgreesWithNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		patterns := make([]string, rapid.IntRange(1, 12).Draw(t, "n"))
		for i := range patterns {
			patterns[i] = drawWords(t, []string{"a", "b", "", "*", "#", "#"}, "pattern")
		}
		compareWithNaive(t, patterns, drawWords(t, []string{"a", "b", "c", "", "*", "#"}, "key"))
	})
}

func TestTopicWithoutUndoesWith(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		patterns := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) string {
			return drawWords(t, []string{"a", "b", "*", "#"}, "pattern")
		}), 1, 10, func(s string) string { return s }).Draw(t, "patterns")
		keep := rapid.IntRange(0, len(patterns)-1).Draw(t, "keep")
		trie := trieOf(patterns)
		before := trie
		for i, p := range patterns[keep:] {
			trie = trie.without(p, &binding{queue: queueID(keep + i + 1)})
		}
		key := drawWords(t, []string{"a", "b"}, "key")
		require.Equal(t, matches(trieOf(patterns[:keep]), key, len(patterns)), matches(trie, key, len(patterns)))
		require.Equal(t, matches(trieOf(patterns), key, len(patterns)), matches(before, key, len(patterns)), "the old trie changed")
		require.Equal(t, keep == 0, trie == nil, "an empty trie must be nil")
	})
}

func TestTopicManyEdges(t *testing.T) {
	// Past maxFewEdges a node turns into a tree; both forms must find and forget.
	var patterns []string
	for i := range 4 * maxFewEdges {
		patterns = append(patterns, "x."+strings.Repeat("y", i+1))
	}
	trie := trieOf(patterns)
	full := trie
	for i, p := range patterns {
		require.Equal(t, 1, matches(trie, p, len(patterns))[i])
		require.Equal(t, 1, matches(full, p, len(patterns))[i])
		trie = trie.without(p, &binding{queue: queueID(i + 1)})
		require.Zero(t, matches(trie, p, len(patterns))[i])
	}
	require.Nil(t, trie)
	for i, p := range patterns {
		require.Equal(t, 1, matches(full, p, len(patterns))[i], "the old trie changed")
	}
}

func TestTopicLongestKeys(t *testing.T) {
	dots := strings.Repeat(".", MaxNameBytes)                  // 256 empty words
	ones := strings.TrimSuffix(strings.Repeat("a.", 128), ".") // 128 words, 255 bytes
	require.Len(t, ones, MaxNameBytes)
	stars := strings.ReplaceAll(ones, "a", "*")
	hashes := strings.ReplaceAll(ones, "a", "#")
	patterns := []string{
		dots, ones, stars, hashes, "#", "#.a", "#.b", "#.b.#", "a.#.a", dots + "x",
		"#.a.#.a.#.a", "#.*.#.*.#.*", "#..#..#", "#.#.#", "#." + ones[:250] + "a",
	}
	trie := trieOf(patterns)
	want := func(key string, yes ...string) {
		t.Helper()
		for i, n := range matches(trie, key, len(patterns)) {
			require.Equal(t, n == 1, contains(yes, patterns[i]), "pattern %q", patterns[i])
			require.LessOrEqual(t, n, 1)
		}
	}
	want(dots, dots, hashes, "#", "#.*.#.*.#.*", "#..#..#", "#.#.#")
	want(ones, ones, stars, hashes, "#", "#.a", "a.#.a", "#.a.#.a.#.a", "#.*.#.*.#.*", "#.#.#", "#."+ones[:250]+"a")
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

func TestTopicWorstCaseIsBounded(t *testing.T) {
	// A naive matcher would need longer than the age of the universe here.
	key := strings.TrimSuffix(strings.Repeat("a.", 127), ".")
	var patterns []string
	for i := range 60 {
		patterns = append(patterns, strings.Repeat("#.a.", i+1)+"b", strings.Repeat("#.*.", i+1)+"b")
	}
	trie := trieOf(patterns)
	start := time.Now()
	const n = 10
	for range n {
		require.Equal(t, make([]int, len(patterns)), matches(trie, key, len(patterns)))
	}
	require.Less(t, time.Since(start)/n, 100*time.Millisecond)
}

func TestPlacesAgreeWithSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := rapid.IntRange(0, maxWords).Draw(t, "last")
		from := rapid.IntRange(0, last).Draw(t, "from")
		var p places
		p.addRange(from, last)
		if extra := rapid.IntRange(0, last).Draw(t, "extra"); true {
			p.add(extra)
		}
		up := p.up(last)
		seen := 0
		for i := p.next(0); i <= maxWords; i = p.next(i + 1) {
			require.True(t, p.has(i))
			require.Equal(t, i < last, i < maxWords && up.has(min(i+1, maxWords)) && i+1 <= last)
			seen++
		}
		count := 0
		for i := range maxWords + 1 {
			if p.has(i) {
				count++
			}
			require.Equal(t, i > 0 && i <= last && p.has(max(i-1, 0)), up.has(i))
		}
		require.Equal(t, count, seen)
		require.GreaterOrEqual(t, count, last-from+1)
	})
}

// FuzzTopic compares the trie with the definition. The patterns are separated by spaces.
func FuzzTopic(f *testing.F) {
	f.Add("a.b", "a.# #.b a.*")
	f.Add("a..b", "a.#.b  # .")
	f.Add("", "# #.# *")
	f.Add("a.a.a.b", "#.a.#.a.#.b *.#.*")
	f.Fuzz(func(t *testing.T, key, list string) {
		patterns := strings.Split(list, " ")
		if len(key) > 40 || len(list) > 80 {
			t.Skip("the twin is exponential")
		}
		compareWithNaive(t, patterns, key)
	})
}
