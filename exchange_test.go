package bourse

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: routing costs what the design says. Method: allocations counted for each kind of
// exchange, and benchmarks; readers beside a writer under the race detector.

// routeCase is one kind of publish, with the number of queues it must reach.
type routeCase struct {
	name          string
	top           *topology
	exchange, key string
	headers       map[string]any
	want          int
}

func routeCases(tb testing.TB, bindings int) []routeCase {
	var ds []Declaration
	add := func(d ...Declaration) { ds = append(ds, d...) }
	for i := range 100 {
		add(Queue{Name: fmt.Sprint("q", i)})
	}
	add(Exchange{Name: "direct"}, Exchange{Name: "fanout", Kind: Fanout}, Exchange{Name: "deep", Kind: Topic},
		Exchange{Name: "headers", Kind: HeadersMatch}, Exchange{Name: "hash", Kind: ConsistentHash},
		Exchange{Name: "weighted", Kind: ConsistentHash}, Exchange{Name: "source", Kind: Fanout})
	for i := range 1000 {
		add(Binding{Exchange: "direct", Queue: fmt.Sprint("q", i%100), Key: fmt.Sprint("orders.created.", i)})
	}
	for i := range 8 {
		q := fmt.Sprint("q", i)
		add(Binding{Exchange: "fanout", Queue: q}, Binding{Exchange: "source", Destination: "fanout"},
			Binding{Exchange: "source", Queue: q},
			Binding{Exchange: "deep", Queue: q, Key: "#.#.#"}, Binding{Exchange: "deep", Queue: q, Key: "#.x.#.y.#"},
			Binding{Exchange: "headers", Queue: q, Headers: map[string]any{"region": "eu", "tier": i}})
	}
	for i := range 10 {
		add(Binding{Exchange: "hash", Queue: fmt.Sprint("q", i)}, Binding{Exchange: "weighted", Queue: fmt.Sprint("q", i), Weight: i + 1})
	}
	top := declared(tb, ds...)
	topics := declaredTopics(tb, bindings)
	return []routeCase{
		{"default", top, "", "q42", nil, 1},
		{"direct", top, "direct", "orders.created.777", nil, 1},
		{"fanout-8", top, "fanout", "any", nil, 8},
		{fmt.Sprintf("topic-%d", bindings), topics, "e", fmt.Sprintf("orders.c%d.eu.paid", bindings/2), nil, 1},
		{"topic-hashes", top, "deep", "a.b.c.d.e", nil, 8},
		{"topic-128-words", top, "deep", longKey, nil, 8},
		{"headers-8", top, "headers", "", map[string]any{"region": "eu", "tier": 3}, 1},
		{"hash-10", top, "hash", "customer-4711", nil, 1},
		{"hash-10-weighted", top, "weighted", "customer-4711", nil, 1},
		{"exchange-to-exchange", top, "source", "any", nil, 8},
	}
}

// longKey has 128 words, as many as fit with a letter each.
var longKey = strings.Repeat("a.", 127) + "x"

// declaredTopics is manyTopics in one call.
func declaredTopics(tb testing.TB, n int) *topology {
	ds := []Declaration{Exchange{Name: "e", Kind: Topic}}
	for i := range 100 {
		ds = append(ds, Queue{Name: fmt.Sprint("q", i)})
	}
	for i := range n {
		ds = append(ds, Binding{Exchange: "e", Queue: fmt.Sprint("q", i%100), Key: fmt.Sprintf("orders.c%d.*.paid", i)})
	}
	return declared(tb, ds...)
}

func TestRouteDoesNotAllocate(t *testing.T) {
	for _, c := range routeCases(t, 1000) {
		dst := make([]queueID, 0, 64)
		got, err := c.top.route(c.exchange, c.key, c.headers, dst)
		require.NoError(t, err)
		require.Len(t, got, c.want, c.name)
		allocs := testing.AllocsPerRun(100, func() {
			_, _ = c.top.route(c.exchange, c.key, c.headers, dst)
		})
		require.Zero(t, allocs, c.name)
	}
}

func TestRouteKeepsWhatDstHolds(t *testing.T) {
	top := declared(t, Exchange{Name: "e", Kind: Topic}, Queue{Name: "a"}, Queue{Name: "b"},
		Binding{Exchange: "e", Queue: "b", Key: "#"}, Binding{Exchange: "e", Queue: "a", Key: "*"},
		Binding{Exchange: "e", Queue: "b", Key: "x"})
	got, err := top.route("e", "x", nil, []queueID{9, 3, 3})
	require.NoError(t, err)
	require.Equal(t, []queueID{9, 3, 3, 2, 3}, got)
}

func TestRouteRefusesALongKey(t *testing.T) {
	top := declared(t, Exchange{Name: "e", Kind: Topic})
	_, err := top.route("e", string(make([]byte, MaxNameBytes+1)), nil, nil)
	require.ErrorIs(t, err, ErrInvalid)
}

// TestRouteBesideDeclare is for the race detector: readers keep routing by old values
// while new ones are made of them.
func TestRouteBesideDeclare(t *testing.T) {
	cases := routeCases(t, 100)
	var wg sync.WaitGroup
	for _, c := range cases {
		wg.Go(func() {
			for range 200 {
				got, err := c.top.route(c.exchange, c.key, c.headers, nil)
				if err != nil || len(got) != c.want {
					t.Errorf("%s: %d queues, %v", c.name, len(got), err)
				}
			}
		})
	}
	for _, top := range []*topology{cases[0].top, cases[3].top} {
		for i := range 100 {
			next, _, err := top.declare([]Declaration{Queue{Name: fmt.Sprint("new", i)}, Exchange{Name: "more", Kind: Topic},
				Binding{Exchange: "more", Queue: "q1", Key: fmt.Sprint(i)}})
			require.NoError(t, err)
			_, _, err = next.remove([]Declaration{Queue{Name: "q1"}, Exchange{Name: "fanout"}})
			require.NoError(t, err)
			top = next
		}
	}
	wg.Wait()
}

func BenchmarkRoute(b *testing.B) {
	for _, c := range routeCases(b, MaxBindings) {
		b.Run(c.name, func(b *testing.B) {
			dst := make([]queueID, 0, 64)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.top.route(c.exchange, c.key, c.headers, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDeclareBinding(b *testing.B) {
	top := declaredTopics(b, MaxBindings-1)
	ds := []Declaration{Binding{Exchange: "e", Queue: "q1", Key: "orders.last"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := top.declare(ds); err != nil {
			b.Fatal(err)
		}
	}
}
