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
