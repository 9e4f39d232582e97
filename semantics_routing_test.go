package bourse

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: every row of SEMANTICS sections 4 (alternates) and 5 (routing) is a row here.
// Method: tables over the public declarations and route.

// declared returns a topology of ds, which must be acceptable.
func declared(t testing.TB, ds ...Declaration) *topology {
	t.Helper()
	top, _, err := newTopology(topologyLimits{}).declare(ds)
	require.NoError(t, err)
	return top
}

// routed returns the names of the queues that a message goes to, in the order of route.
func routed(t testing.TB, top *topology, exchange, key string, headers map[string]any) []string {
	t.Helper()
	ids, err := top.route(exchange, key, headers, nil)
	require.NoError(t, err)
	names := []string{}
	for _, id := range ids {
		q, ok := top.queueByID(id)
		require.True(t, ok, "route returned the id of no queue")
		names = append(names, q.Name)
	}
	return names
}

func TestSemanticsTopicTable(t *testing.T) {
	keys := []string{"", "a", "a.b", "a.b.c", "a..b", "."}
	rows := []struct{ pattern, want string }{
		{"#", "yyyyyy"},
		{"*", "nynnnn"},
		{"", "ynnnnn"},
		{"*.*", "nnynny"},
		{"a.#", "nyyyyn"},
		{"#.a", "nynnnn"},
		{"a.#.b", "nnynyn"},
		{"a.*.b", "nnnnyn"},
		{"#.*", "nyyyyy"},
		{"a.*.#", "nnyyyn"},
	}
	for _, row := range rows {
		top := declared(t, Exchange{Name: "e", Kind: Topic}, Queue{Name: "q"},
			Binding{Exchange: "e", Queue: "q", Key: row.pattern})
		for i, key := range keys {
			got := len(routed(t, top, "e", key, nil)) == 1
			require.Equal(t, row.want[i] == 'y', got, "pattern %q, key %q", row.pattern, key)
		}
	}
}

func TestSemanticsTopicWords(t *testing.T) {
	rows := []struct {
		pattern, key string
		want         bool
	}{
		{"order.*.created", "order.us.created", true},
		{"order.*.created", "order.created", false},
		{"order.*.created", "order.us.east.created", false},
		{"orders.#.paid", "orders.paid", true},
		{"orders.#.paid", "orders.eu.de.paid", true},
		{"orders.#.paid", "orders.paid.x", false},
		{"a*", "a*", true},
		{"a*", "ab", false},
		{"a#", "a", false},
		{"#.#.#", "", true},
		{"#.#.#", "a.b", true},
		{"#.*.#", "", false},
		{"#.*.#", "a", true},
		{"*.#.*", "a", false},
		{"*.#.*", "a.b", true},
		{"#.a.#.a", "a.a", true},
		{"#.a.#.a", "a", false},
		{"#.a.#.a", "b.a.c.a", true},
		{"..", "..", true},
		{"..", ".", false},
	}
	for _, row := range rows {
		top := declared(t, Exchange{Name: "e", Kind: Topic}, Queue{Name: "q"},
			Binding{Exchange: "e", Queue: "q", Key: row.pattern})
		require.Equal(t, row.want, len(routed(t, top, "e", row.key, nil)) == 1, "pattern %q, key %q", row.pattern, row.key)
	}
}

func TestSemanticsDirect(t *testing.T) {
	top := declared(t, Exchange{Name: "e"}, Queue{Name: "q"}, Queue{Name: "r"},
		Binding{Exchange: "e", Queue: "q", Key: "k"},
		Binding{Exchange: "e", Queue: "r", Key: "k"},
		Binding{Exchange: "e", Queue: "r", Key: "*"},
		Binding{Exchange: "e", Queue: "q", Key: ""})
	for key, want := range map[string][]string{
		"k": {"q", "r"}, "*": {"r"}, "": {"q"}, "K": {}, "k ": {}, "x": {},
	} {
		require.Equal(t, want, routed(t, top, "e", key, nil), "key %q", key)
	}
}

func TestSemanticsOneCopyForAQueueBoundTwice(t *testing.T) {
	for _, kind := range []ExchangeKind{Direct, Fanout, Topic, HeadersMatch, ConsistentHash} {
		ds := []Declaration{Exchange{Name: "e", Kind: kind}, Queue{Name: "q"},
			Binding{Exchange: "e", Queue: "q", Key: "a.b"}, Binding{Exchange: "e", Queue: "q", Key: "a.b"}}
		if kind != Direct {
			ds = append(ds, Binding{Exchange: "e", Queue: "q", Key: "a.#"}, Binding{Exchange: "e", Queue: "q", Key: "#"})
		}
		require.Equal(t, []string{"q"}, routed(t, declared(t, ds...), "e", "a.b", nil), "kind %v", kind)
	}
}

func TestSemanticsFanoutIgnoresTheKey(t *testing.T) {
	top := declared(t, Exchange{Name: "e", Kind: Fanout}, Queue{Name: "q"}, Queue{Name: "r"},
		Binding{Exchange: "e", Queue: "r", Key: "x"}, Binding{Exchange: "e", Queue: "q"})
	for _, key := range []string{"", "x", "y.z"} {
		require.Equal(t, []string{"q", "r"}, routed(t, top, "e", key, nil))
	}
}

func TestSemanticsDefaultExchange(t *testing.T) {
	top := declared(t, Queue{Name: "q"}, Queue{Name: "r"})
	require.Equal(t, []string{"q"}, routed(t, top, "", "q", nil))
	require.Empty(t, routed(t, top, "", "s", nil))
	require.Empty(t, routed(t, top, "", "", nil))
	for _, d := range []Declaration{
		Exchange{}, Binding{Queue: "q", Key: "x"}, Exchange{Kind: Fanout},
	} {
		_, _, err := top.declare([]Declaration{d})
		require.ErrorIs(t, err, ErrInvalid)
		_, _, err = top.remove([]Declaration{d})
		require.ErrorIs(t, err, ErrInvalid)
	}
	_, _, err := top.declare([]Declaration{Exchange{Name: "e"}, Binding{Exchange: "e", Destination: "", Queue: ""}})
	require.ErrorIs(t, err, ErrInvalid)
}

func TestSemanticsNoExchange(t *testing.T) {
	dst := []queueID{7}
	got, err := newTopology(topologyLimits{}).route("nowhere", "k", nil, dst)
	require.ErrorIs(t, err, ErrNoExchange)
	require.ErrorContains(t, err, "nowhere")
	require.Equal(t, dst, got)
}

func TestSemanticsHeadersModes(t *testing.T) {
	type h = map[string]any
	rows := []struct {
		name              string
		criteria, message h
		want              bool
	}{
		{"missing x-match is all, all hold", h{"a": 1, "b": "x"}, h{"a": 1, "b": "x", "c": 0}, true},
		{"missing x-match is all, one fails", h{"a": 1, "b": "x"}, h{"a": 1, "b": "y"}, false},
		{"missing x-match is all, one missing", h{"a": 1, "b": "x"}, h{"a": 1}, false},
		{"all, all hold", h{"x-match": "all", "a": 1}, h{"a": 1}, true},
		{"any, one holds", h{"x-match": "any", "a": 1, "b": 2}, h{"b": 2}, true},
		{"any, none holds", h{"x-match": "any", "a": 1, "b": 2}, h{"a": 2, "b": 1}, false},
		{"all ignores x- criteria", h{"x-match": "all", "a": 1, "x-b": 2}, h{"a": 1}, true},
		{"any ignores x- criteria", h{"x-match": "any", "a": 1, "x-b": 2}, h{"x-b": 2}, false},
		{"all-with-x counts them", h{"x-match": "all-with-x", "a": 1, "x-b": 2}, h{"a": 1}, false},
		{"all-with-x, all hold", h{"x-match": "all-with-x", "a": 1, "x-b": 2}, h{"a": 1, "x-b": 2}, true},
		{"any-with-x counts them", h{"x-match": "any-with-x", "a": 1, "x-b": 2}, h{"x-b": 2}, true},
		{"x-match itself never counts", h{"x-match": "any-with-x", "a": 1}, h{"x-match": "any-with-x"}, false},
		{"x-match itself need not be there", h{"x-match": "all-with-x", "a": 1}, h{"a": 1}, true},
		{"nil asks for presence", h{"a": nil}, h{"a": "whatever"}, true},
		{"nil asks for presence, absent", h{"a": nil}, h{"b": 1}, false},
		{"any with nil", h{"x-match": "any", "a": nil, "b": 1}, h{"a": false}, true},
		{"a string is no number", h{"a": "1"}, h{"a": 1}, false},
		{"a number is no string", h{"a": 1}, h{"a": "1"}, false},
		{"1 is 1.0", h{"a": 1}, h{"a": 1.0}, true},
		{"1.0 is uint8 1", h{"a": 1.0}, h{"a": uint8(1)}, true},
		{"all without criteria", nil, h{"a": 1}, true},
		{"all with x- criteria only", h{"x-a": 1}, h{"x-a": 2}, true},
		{"all without criteria, no headers", h{"x-match": "all"}, nil, true},
		{"all with criteria, no headers", h{"a": 1}, nil, false},
		{"any without criteria", h{"x-match": "any"}, h{"a": 1}, false},
		{"any without criteria, no headers", h{"x-match": "any"}, nil, false},
		{"any with x- criteria only", h{"x-match": "any", "x-a": 1}, h{"x-a": 1}, false},
		{"presence, no headers", h{"a": nil}, nil, false},
		{"names are compared by bytes", h{"A": 1}, h{"a": 1}, false},
	}
	for _, row := range rows {
		top := declared(t, Exchange{Name: "e", Kind: HeadersMatch}, Queue{Name: "q"},
			Binding{Exchange: "e", Queue: "q", Headers: row.criteria, Key: "ignored"})
		require.Equal(t, row.want, len(routed(t, top, "e", "key", row.message)) == 1, row.name)
	}
	for _, mode := range []any{"", "ALL", "some", 1, nil, true} {
		_, _, err := newTopology(topologyLimits{}).declare([]Declaration{Exchange{Name: "e", Kind: HeadersMatch}, Queue{Name: "q"},
			Binding{Exchange: "e", Queue: "q", Headers: h{"x-match": mode}}})
		require.ErrorIs(t, err, ErrInvalid, "mode %v", mode)
		require.ErrorContains(t, err, "Binding.Headers")
	}
}

func TestSemanticsConsistentHash(t *testing.T) {
	top := declared(t, Exchange{Name: "e", Kind: ConsistentHash}, Queue{Name: "a"}, Queue{Name: "b"}, Queue{Name: "drained"},
		Binding{Exchange: "e", Queue: "a"}, Binding{Exchange: "e", Queue: "b", Weight: 3},
		Binding{Exchange: "e", Queue: "drained", Weight: 50}, Binding{Exchange: "e", Queue: "drained", Weight: -7})
	counts := [3]int{}
	owner := map[string]string{}
	for i := range 4000 {
		key := "customer." + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
		got := routed(t, top, "e", key, nil)
		require.Len(t, got, 1, "exactly one target")
		owner[key] = got[0]
		counts[got[0][0]-'a']++
	}
	require.InDelta(t, 1000, counts[0], 150)
	require.InDelta(t, 3000, counts[1], 150)

	// Deleting a queue removes its points in the same step; other keys stay.
	less, _, err := top.remove([]Declaration{Queue{Name: "a"}})
	require.NoError(t, err)
	for key, name := range owner {
		require.Equal(t, []string{"b"}, routed(t, less, "e", key, nil))
		require.Equal(t, []string{name}, routed(t, top, "e", key, nil), "the old value changed")
	}
	// The same name under a new incarnation takes the same keys.
	again, _, err := less.declare([]Declaration{Queue{Name: "a"}, Binding{Exchange: "e", Queue: "a"}})
	require.NoError(t, err)
	for key, name := range owner {
		require.Equal(t, []string{name}, routed(t, again, "e", key, nil))
	}
	// Undoing the drain gives the weight back.
	full, _, err := top.remove([]Declaration{Binding{Exchange: "e", Queue: "drained", Weight: -1}})
	require.NoError(t, err)
	got := map[string]int{}
	for key := range owner {
		got[routed(t, full, "e", key, nil)[0]]++
	}
	require.Greater(t, got["drained"], 3000)
	// No binding, or only drained ones: unroutable.
	none := declared(t, Exchange{Name: "e", Kind: ConsistentHash}, Queue{Name: "a"})
	require.Empty(t, routed(t, none, "e", "k", nil))
	drained, _, err := none.declare([]Declaration{Binding{Exchange: "e", Queue: "a", Weight: -1}})
	require.NoError(t, err)
	require.Empty(t, routed(t, drained, "e", "k", nil))
}

func TestSemanticsExchangeToExchange(t *testing.T) {
	// A diamond with a cycle: e -> f, g -> h -> e.
	top := declared(t,
		Exchange{Name: "e", Kind: Topic}, Exchange{Name: "f", Kind: Fanout}, Exchange{Name: "g"}, Exchange{Name: "h", Kind: Fanout},
		Queue{Name: "qe"}, Queue{Name: "qf"}, Queue{Name: "qg"}, Queue{Name: "qh"},
		Binding{Exchange: "e", Destination: "f", Key: "a.#"}, Binding{Exchange: "e", Destination: "g", Key: "*.b"},
		Binding{Exchange: "f", Destination: "h"}, Binding{Exchange: "g", Destination: "h", Key: "a.b"},
		Binding{Exchange: "h", Destination: "e"}, Binding{Exchange: "h", Destination: "h"},
		Binding{Exchange: "e", Queue: "qe", Key: "a.b"}, Binding{Exchange: "f", Queue: "qf"}, Binding{Exchange: "f", Queue: "qh"},
		Binding{Exchange: "g", Queue: "qg", Key: "c.b"}, Binding{Exchange: "h", Queue: "qh"})
	require.Equal(t, []string{"qe", "qf", "qh"}, routed(t, top, "e", "a.b", nil))
	require.Equal(t, []string{"qf", "qh"}, routed(t, top, "e", "a", nil))
	require.Equal(t, []string{"qg"}, routed(t, top, "e", "c.b", nil))
	require.Equal(t, []string{"qe", "qf", "qh"}, routed(t, top, "h", "a.b", nil))
	require.Empty(t, routed(t, top, "e", "x", nil))
}

func TestSemanticsAlternate(t *testing.T) {
	top := declared(t,
		Exchange{Name: "e", Alternate: "f"}, Exchange{Name: "f", Kind: Topic, Alternate: "g"},
		Exchange{Name: "g", Alternate: "e"}, Exchange{Name: "dangling", Alternate: "nowhere"},
		Exchange{Name: "self", Alternate: "self"}, Exchange{Name: "loop1", Alternate: "loop2"}, Exchange{Name: "loop2", Alternate: "loop1"},
		Queue{Name: "qe"}, Queue{Name: "qf"}, Queue{Name: "qg"},
		Binding{Exchange: "e", Queue: "qe", Key: "1"}, Binding{Exchange: "f", Queue: "qf", Key: "2.#"},
		Binding{Exchange: "g", Queue: "qg", Key: "3"})
	rows := []struct {
		name, exchange, key string
		want                []string
	}{
		{"routed here: the alternate is not asked", "e", "1", []string{"qe"}},
		{"first alternate, same key", "e", "2.x", []string{"qf"}},
		{"second alternate", "e", "3", []string{"qg"}},
		{"the chain ends at an exchange seen before", "e", "4", []string{}},
		{"the chain goes on past the start of another", "g", "2", []string{"qf"}},
		{"a missing alternate is the end of the chain", "dangling", "1", []string{}},
		{"its own alternate", "self", "1", []string{}},
		{"a loop of alternates", "loop1", "1", []string{}},
	}
	for _, row := range rows {
		require.Equal(t, row.want, routed(t, top, row.exchange, row.key, nil), row.name)
	}
}

func TestSemanticsAlternateAndBindings(t *testing.T) {
	// Only queues count: a binding to an exchange that leads nowhere is not a route.
	top := declared(t, Exchange{Name: "e", Kind: Fanout, Alternate: "lost"}, Exchange{Name: "deaf"}, Exchange{Name: "lost", Kind: Fanout},
		Queue{Name: "ql"}, Queue{Name: "q"},
		Binding{Exchange: "e", Destination: "deaf"}, Binding{Exchange: "lost", Queue: "ql"})
	require.Equal(t, []string{"ql"}, routed(t, top, "e", "k", nil))

	// An exchange on the way has its own alternate; another target does not hide it.
	top = declared(t, Exchange{Name: "e", Kind: Fanout, Alternate: "never"}, Exchange{Name: "audit", Alternate: "lost"},
		Exchange{Name: "lost", Kind: Fanout}, Exchange{Name: "never", Kind: Fanout}, Queue{Name: "q"}, Queue{Name: "ql"}, Queue{Name: "qn"},
		Binding{Exchange: "e", Destination: "audit"}, Binding{Exchange: "e", Queue: "q"},
		Binding{Exchange: "lost", Queue: "ql"}, Binding{Exchange: "never", Queue: "qn"})
	require.Equal(t, []string{"q", "ql"}, routed(t, top, "e", "k", nil))

	// What an alternate on the way routed counts as routed.
	less, _, err := top.remove([]Declaration{Binding{Exchange: "e", Queue: "q"}})
	require.NoError(t, err)
	require.Equal(t, []string{"ql"}, routed(t, less, "e", "k", nil))

	// The inner of two that lead nowhere hands over, and the outer has routed with it.
	top = declared(t, Exchange{Name: "outer", Kind: Fanout, Alternate: "a"}, Exchange{Name: "inner", Alternate: "b"},
		Exchange{Name: "a", Kind: Fanout}, Exchange{Name: "b", Kind: Fanout}, Queue{Name: "qa"}, Queue{Name: "qb"},
		Binding{Exchange: "outer", Destination: "inner"}, Binding{Exchange: "a", Queue: "qa"}, Binding{Exchange: "b", Queue: "qb"})
	require.Equal(t, []string{"qb"}, routed(t, top, "outer", "k", nil))
	top, _, err = top.remove([]Declaration{Queue{Name: "qb"}})
	require.NoError(t, err)
	require.Equal(t, []string{"qa"}, routed(t, top, "outer", "k", nil))

	// The alternate gets headers unchanged.
	top = declared(t, Exchange{Name: "e", Alternate: "h"}, Exchange{Name: "h", Kind: HeadersMatch}, Queue{Name: "q"},
		Binding{Exchange: "h", Queue: "q", Headers: map[string]any{"a": 1}})
	require.Equal(t, []string{"q"}, routed(t, top, "e", "k", map[string]any{"a": 1}))
	require.Empty(t, routed(t, top, "e", "k", map[string]any{"a": 2}))
}

func TestSemanticsHopsAreBounded(t *testing.T) {
	ds := []Declaration{Queue{Name: "q"}}
	for i := range MaxExchangeHops + 1 {
		ds = append(ds, Exchange{Name: hopName(i), Kind: Fanout, Alternate: hopName(i + 1)})
	}
	top := declared(t, append(ds, Binding{Exchange: hopName(MaxExchangeHops), Queue: "q"})...)
	require.Equal(t, []string{"q"}, routed(t, top, hopName(1), "k", nil), "%d exchanges", MaxExchangeHops)
	dst := []queueID{9}
	got, err := top.route(hopName(0), "k", nil, dst)
	require.ErrorIs(t, err, ErrTooMany)
	require.Equal(t, dst, got)
}

func hopName(i int) string { return "hop" + string(rune('A'+i/26)) + string(rune('a'+i%26)) }
