package bourse

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boursemq/bourse/internal/wire"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Goal: declare and remove do what their contracts say, whole or not at all, without
// touching earlier values. Method: examples of each rule; and random changes in lock-step
// with a model that keeps plain lists and routes by their definition.

// checkTopology checks the invariants that stand at topology.
func checkTopology(t require.TestingT, top *topology) {
	count := 0
	top.exchangeNames.Ascend(func(e named[*exchange]) bool {
		ex := e.value
		require.Equal(t, e.name, ex.Name)
		rebuilt := newExchange(ex.Exchange)
		ex.bindings.Ascend(func(b *binding) bool {
			count++
			require.Equal(t, ex.Name, b.Exchange)
			require.True(t, top.inbound.Has(b), "binding %+v is not inbound", b.Binding)
			if b.Queue != "" {
				q, ok := top.queue(b.Queue)
				require.True(t, ok, "binding to no queue")
				require.Equal(t, q.id, b.queue, "binding to an old incarnation")
			} else {
				require.Zero(t, b.queue)
				_, ok := top.exchangeNamed(b.Destination)
				require.True(t, ok, "binding to no exchange")
			}
			rebuilt.add(b)
			return true
		})
		require.Equal(t, dumpExchange(rebuilt), dumpExchange(ex), "exchange %q matches by something else than its bindings", ex.Name)
		return true
	})
	top.schedules(func(s *scheduleDef) bool {
		require.Less(t, queueID(s.id), top.nextID)
		_, queue := top.queueByID(queueID(s.id))
		require.False(t, queue, "schedule %q has the id of a queue", s.Name)
		return true
	})
	require.Equal(t, count, top.inbound.Len())
	require.Equal(t, top.queueNames.Len(), top.queueIDs.Len())
	top.queueIDs.Ascend(func(n numbered) bool {
		q, ok := top.queue(n.def.Name)
		require.True(t, ok && q.id == n.id && n.id < top.nextID && n.id > 0, "queue %q", n.def.Name)
		return true
	})
	top.updated.Ascend(func(change updated) bool {
		q, ok := top.queueByID(change.id)
		require.True(t, ok && change.revision > 0 && change.declared.Name == q.Name, "a change of queue %d", change.id)
		return true
	})
}

// dumpExchange shows what an exchange matches by.
func dumpExchange(ex *exchange) string {
	var s strings.Builder
	set := func(ts *targets) string {
		if ts == nil {
			return "-"
		}
		return fmt.Sprint(ts.queues, ts.exchanges)
	}
	if ex.direct != nil {
		ex.direct.Ascend(func(e named[*targets]) bool {
			fmt.Fprintln(&s, "direct", e.name, set(e.value))
			return true
		})
	}
	fmt.Fprintln(&s, "fanout", set(ex.fanout), "hash", fmt.Sprint([]hashTarget(ex.hash)))
	for i, b := range slices.Concat(ex.headers...) {
		fmt.Fprintln(&s, "headers", i, b.Queue, b.Destination, b.Key, b.identity, b.queue)
	}
	var walk func(n *topicNode, path string)
	walk = func(n *topicNode, path string) {
		if n == nil {
			return
		}
		fmt.Fprintln(&s, "topic", path, set(n.targets))
		walk(n.star, path+"/*")
		walk(n.hash, path+"/#")
		edges := n.words.few
		if n.words.many != nil {
			n.words.many.Ascend(func(e wordEdge) bool {
				edges = append(edges, e)
				return true
			})
		}
		for _, e := range edges {
			walk(e.node, path+"/"+e.word)
		}
	}
	walk(ex.topic, "")
	return s.String()
}

func TestTopologyStart(t *testing.T) {
	top := newTopology(topologyLimits{})
	q, ok := top.queue(ParkingQueue)
	require.True(t, ok)
	require.Equal(t, queueID(1), q.id)
	require.Equal(t, NoLimit, q.MaxRetries)
	byID, ok := top.queueByID(1)
	require.True(t, ok)
	require.Equal(t, q, byID)
	require.Equal(t, []string{ParkingQueue}, routed(t, top, "", ParkingQueue, nil))
	_, ok = top.queueByID(2)
	require.False(t, ok)
	for range top.exchanges {
		t.Fatal("the default exchange was not declared")
	}
	checkTopology(t, top)
}

func TestDeclareIsAllOrNothing(t *testing.T) {
	top := declared(t, Queue{Name: "q", Priorities: 2}, Exchange{Name: "e"})
	before := top.appendTo(nil)
	rows := []struct {
		last Declaration
		want error
		text string
	}{
		{Queue{Name: "q"}, ErrPrecondition, `queue "q"`},
		{Exchange{Name: "e", Kind: Fanout}, ErrPrecondition, `exchange "e"`},
		{Queue{Name: "new", Priorities: 3}, ErrPrecondition, `queue "new"`}, // differs from the one in the same call
		{Binding{Exchange: "e", Queue: "absent"}, ErrNotFound, `queue "absent"`},
		{Binding{Exchange: "absent", Queue: "q"}, ErrNoExchange, `exchange "absent"`},
		{Binding{Exchange: "e", Destination: "absent"}, ErrNoExchange, `exchange "absent"`},
		{Queue{Name: "\n"}, ErrInvalid, "Queue.Name"},
	}
	for _, row := range rows {
		next, created, err := top.declare([]Declaration{Queue{Name: "new"}, Exchange{Name: "f"},
			Binding{Exchange: "f", Queue: "new"}, row.last})
		require.ErrorIs(t, err, row.want)
		require.ErrorContains(t, err, row.text)
		require.Same(t, top, next)
		require.Empty(t, created)
		require.Equal(t, before, top.appendTo(nil))
	}
}

func TestDeclareInAnyOrder(t *testing.T) {
	top, created, err := newTopology(topologyLimits{}).declare([]Declaration{
		Binding{Exchange: "e", Queue: "b", Key: "k"}, Binding{Exchange: "e", Destination: "f", Key: "k"}, Queue{Name: "b"},
		Exchange{Name: "e"}, Queue{Name: "a"}, Queue{Name: "b"}, Exchange{Name: "f"}})
	require.NoError(t, err)
	require.Equal(t, []queueDef{{2, Queue{Name: "b"}.withDefaults()}, {3, Queue{Name: "a"}.withDefaults()}}, created)
	require.Equal(t, 2, top.bindingsOf("e"))
	require.Zero(t, top.bindingsOf("f"))
	require.Zero(t, top.bindingsOf("absent"))
	var names []string
	for q := range top.queues {
		names = append(names, q.Name)
	}
	require.Equal(t, []string{"a", "b", ParkingQueue}, names)
	for q := range top.queues {
		require.Equal(t, "a", q.Name)
		break
	}
}

func TestRedeclareIsNoChange(t *testing.T) {
	ds := []Declaration{Queue{Name: "q"}, Exchange{Name: "c", Kind: ConsistentHash}, Exchange{Name: "h", Kind: HeadersMatch},
		Binding{Exchange: "c", Queue: "q"}, Binding{Exchange: "c", Queue: "q", Weight: -2, Key: "x"},
		Binding{Exchange: "h", Queue: "q", Headers: map[string]any{"a": 1, "b": nil}}}
	top := declared(t, ds...)
	same := []Declaration{Queue{Name: "q", Priorities: 1, MaxRetries: DefaultRetries, AckDeadline: DefaultDeadline},
		Binding{Exchange: "c", Queue: "q", Weight: 1}, Binding{Exchange: "c", Queue: "q", Weight: -1, Key: "x"},
		Binding{Exchange: "h", Queue: "q", Headers: map[string]any{"a": uint8(1), "b": nil}}}
	for _, again := range [][]Declaration{nil, ds, same} {
		next, created, err := top.declare(again)
		require.NoError(t, err)
		require.Same(t, top, next)
		require.Empty(t, created)
	}
	next, _, err := top.declare([]Declaration{Binding{Exchange: "c", Queue: "q", Weight: 2}})
	require.NoError(t, err)
	require.Equal(t, 3, next.bindingsOf("c"), "another weight is another binding")
}

func TestDeclareKeepsNothingOfTheCaller(t *testing.T) {
	raw := []byte("raw")
	h := map[string]any{"a": raw}
	top := declared(t, Exchange{Name: "h", Kind: HeadersMatch}, Queue{Name: "q"}, Binding{Exchange: "h", Queue: "q", Headers: h})
	before := top.appendTo(nil)
	raw[0] = 'X'
	h["a"] = 1
	require.Equal(t, before, top.appendTo(nil))
	require.Equal(t, []string{"q"}, routed(t, top, "h", "", map[string]any{"a": []byte("raw")}))
}

func TestRemove(t *testing.T) {
	top := declared(t, Queue{Name: "q"}, Queue{Name: "r"}, Exchange{Name: "e"}, Exchange{Name: "f", Kind: Fanout},
		Binding{Exchange: "e", Queue: "q", Key: "k"}, Binding{Exchange: "e", Destination: "f", Key: "k"},
		Binding{Exchange: "f", Destination: "f"}, Binding{Exchange: "f", Queue: "r"}, Binding{Exchange: "f", Queue: "q"})

	for _, absent := range []Declaration{Queue{Name: "x"}, Exchange{Name: "x"}, Binding{Exchange: "x", Queue: "q"},
		Binding{Exchange: "e", Queue: "x", Key: "k"}, Binding{Exchange: "e", Queue: "q", Key: "K"},
		Binding{Exchange: "e", Queue: "q", Key: "k", Weight: 3},
		Binding{Exchange: "e", Queue: "q", Key: "k", Headers: map[string]any{"a": 1}}} {
		next, removed, err := top.remove([]Declaration{absent})
		require.NoError(t, err)
		require.Same(t, top, next)
		require.Empty(t, removed)
	}
	for _, refused := range []Declaration{Queue{Name: ParkingQueue}, Exchange{Name: "bourse.x"}, nil, &Queue{Name: "q"}, Queue{}} {
		_, _, err := top.remove([]Declaration{refused, Queue{Name: "q"}})
		require.ErrorIs(t, err, ErrInvalid)
	}

	// A queue takes its bindings with it; what else it declares does not matter.
	next, removed, err := top.remove([]Declaration{Queue{Name: "r"}, Queue{Name: "q", Priorities: 99}, Queue{Name: "q"}})
	require.NoError(t, err)
	require.Equal(t, []queueDef{{3, Queue{Name: "r"}.withDefaults()}, {2, Queue{Name: "q"}.withDefaults()}}, removed)
	checkTopology(t, next)
	require.Equal(t, 1, next.bindingsOf("e"))
	require.Equal(t, 1, next.bindingsOf("f"))
	require.Equal(t, []string{"q", "r"}, routed(t, top, "e", "k", nil), "the old value changed")

	// Under the same name it is another queue, without bindings.
	again, created, err := next.declare([]Declaration{Queue{Name: "q"}})
	require.NoError(t, err)
	require.Equal(t, queueID(4), created[0].id)
	_, ok := again.queueByID(2)
	require.False(t, ok)
	require.Empty(t, routed(t, again, "e", "k", nil))

	// An exchange takes those in both directions.
	next, removed, err = top.remove([]Declaration{Exchange{Name: "f"}})
	require.NoError(t, err)
	require.Empty(t, removed)
	checkTopology(t, next)
	require.Equal(t, 1, next.inbound.Len())
	require.Equal(t, []string{"q"}, routed(t, next, "e", "k", nil))
}

func TestLimits(t *testing.T) {
	top := newTopology(topologyLimits{queues: 2, exchanges: 1, bindings: 2})
	top, _, err := top.declare([]Declaration{Queue{Name: "a"}, Queue{Name: "b"}, Exchange{Name: "e"},
		Binding{Exchange: "e", Queue: "a"}, Binding{Exchange: "e", Queue: "b"}})
	require.NoError(t, err)
	for _, d := range []Declaration{Queue{Name: "c"}, Exchange{Name: "f"}, Binding{Exchange: "e", Queue: "a", Key: "x"}} {
		_, _, err := top.declare([]Declaration{d})
		require.ErrorIs(t, err, ErrTooMany)
	}
	_, _, err = top.declare([]Declaration{Queue{Name: "a"}, Exchange{Name: "e"}, Binding{Exchange: "e", Queue: "a"}})
	require.NoError(t, err, "what exists is within the limit")
	less, _, err := top.remove([]Declaration{Queue{Name: "b"}})
	require.NoError(t, err)
	_, _, err = less.declare([]Declaration{Queue{Name: "c"}, Binding{Exchange: "e", Queue: "c"}})
	require.NoError(t, err)

	// Lower limits do not refuse what was stored under higher ones.
	r := wire.NewReader(top.appendTo(nil))
	lower, err := decodeTopology(&r, topologyLimits{queues: 1, exchanges: 1, bindings: 1})
	require.NoError(t, err)
	_, _, err = lower.declare([]Declaration{Queue{Name: "c"}})
	require.ErrorIs(t, err, ErrTooMany)
}

// TestManyBindings declares as many bindings as there can be, one by one: the cost of one
// must not grow with those that exist.
func TestManyBindings(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	top := manyTopics(t, MaxBindings)
	require.Equal(t, MaxBindings, top.bindingsOf("e"))
	_, _, err := top.declare([]Declaration{Binding{Exchange: "e", Queue: "q0", Key: "one.more"}})
	require.ErrorIs(t, err, ErrTooMany)
	require.Equal(t, []string{"q7"}, routed(t, top, "e", "orders.c10007.eu.paid", nil))
	start := time.Now()
	r := wire.NewReader(top.appendTo(nil))
	_, err = decodeTopology(&r, topologyLimits{})
	require.NoError(t, err)
	t.Logf("encoded and decoded in %v", time.Since(start))
}

// manyTopics binds q0 to q99 by n patterns, one call each.
func manyTopics(t testing.TB, n int) *topology {
	ds := []Declaration{Exchange{Name: "e", Kind: Topic}}
	for i := range 100 {
		ds = append(ds, Queue{Name: fmt.Sprint("q", i)})
	}
	top := declared(t, ds...)
	start := time.Now()
	for i := range n {
		next, _, err := top.declare([]Declaration{Binding{Exchange: "e", Queue: fmt.Sprint("q", i%100),
			Key: fmt.Sprintf("orders.c%d.*.paid", i)}})
		require.NoError(t, err)
		top = next
	}
	took := time.Since(start)
	t.Logf("%d bindings in %v", n, took)
	require.Less(t, took, 30*time.Second)
	return top
}

func TestTopologyRoundTrip(t *testing.T) {
	top := declared(t, Queue{Name: "q", Priorities: 3}, Queue{Name: "gone"}, Queue{Name: "a"},
		Exchange{Name: "t", Kind: Topic, Alternate: "h"},
		Exchange{Name: "h", Kind: HeadersMatch}, Exchange{Name: "c", Kind: ConsistentHash},
		Binding{Exchange: "t", Queue: "q", Key: "a.#"}, Binding{Exchange: "t", Destination: "c", Key: "b.*"},
		Binding{Exchange: "h", Queue: "a", Headers: map[string]any{"k": 1, "n": nil}}, Binding{Exchange: "c", Queue: "a", Weight: 9})
	top, _, err := top.remove([]Declaration{Queue{Name: "gone"}})
	require.NoError(t, err)
	b := top.appendTo(nil)
	r := wire.NewReader(append(slices.Clone(b), "rest"...))
	got, err := decodeTopology(&r, topologyLimits{})
	require.NoError(t, err)
	require.Equal(t, "rest", string(r.Rest()))
	require.Equal(t, b, got.appendTo(nil))
	checkTopology(t, got)
	_, created, err := got.declare([]Declaration{Queue{Name: "gone"}})
	require.NoError(t, err)
	require.Equal(t, queueID(5), created[0].id, "an id was used again")
	for cut := range b {
		r := wire.NewReader(b[:cut])
		_, err := decodeTopology(&r, topologyLimits{})
		require.ErrorIs(t, err, wire.ErrMalformed)
	}
}

func TestDecodeTopologyRefuses(t *testing.T) {
	park, _ := newTopology(topologyLimits{}).queue(ParkingQueue)
	q := func(id queueID, name string) queueDef { return queueDef{id, Queue{Name: name}.withDefaults()} }
	e, f := Exchange{Name: "e"}, Exchange{Name: "f", Kind: ConsistentHash}
	a, b := Binding{Exchange: "e", Queue: "a", Key: "1"}, Binding{Exchange: "e", Queue: "a", Key: "2"}
	rows := []struct {
		name      string
		next      queueID
		exchanges []Exchange
		queues    []queueDef
		bindings  []Binding
		good      bool
	}{
		{"all in order", 9, []Exchange{e, f}, []queueDef{q(3, "a"), q(2, "b"), park}, []Binding{a, b}, true},
		{"exchanges out of order", 9, []Exchange{f, e}, []queueDef{park}, nil, false},
		{"an exchange twice", 9, []Exchange{e, e}, []queueDef{park}, nil, false},
		{"the default exchange", 9, []Exchange{{}}, []queueDef{park}, nil, false},
		{"no parking queue", 9, nil, []queueDef{q(2, "a")}, nil, false},
		{"the parking queue with another id", 9, nil, []queueDef{{2, park.Queue}}, nil, false},
		{"the parking queue with other settings", 9, nil, []queueDef{q(1, ParkingQueue)}, nil, false},
		{"queues out of order", 9, nil, []queueDef{park, q(2, "a")}, nil, false},
		{"a queue twice", 9, nil, []queueDef{q(2, "a"), q(3, "a"), park}, nil, false},
		{"an id twice", 9, nil, []queueDef{q(2, "a"), q(2, "b"), park}, nil, false},
		{"the parking queue's id", 9, nil, []queueDef{q(1, "a"), park}, nil, false},
		{"an id not yet given", 2, nil, []queueDef{q(2, "a"), park}, nil, false},
		{"id none", 9, nil, []queueDef{q(0, "a"), park}, nil, false},
		{"a next id that the parking queue has", 1, nil, []queueDef{park}, nil, false},
		{"a queue without its defaults", 9, nil, []queueDef{{2, Queue{Name: "a"}}, park}, nil, false},
		{"a reserved name", 9, nil, []queueDef{q(2, "bourse.a"), park}, nil, false},
		{"bindings out of order", 9, []Exchange{e}, []queueDef{q(2, "a"), park}, []Binding{b, a}, false},
		{"a binding twice", 9, []Exchange{e}, []queueDef{q(2, "a"), park}, []Binding{a, a}, false},
		{"a binding to nothing", 9, []Exchange{e}, []queueDef{park}, []Binding{a}, false},
		{"a binding of nothing", 9, nil, []queueDef{q(2, "a"), park}, []Binding{a}, false},
		{"a binding without its default", 9, []Exchange{f}, []queueDef{q(2, "a"), park}, []Binding{{Exchange: "f", Queue: "a"}}, false},
		{"a binding of the wrong kind", 9, []Exchange{e}, []queueDef{q(2, "a"), park}, []Binding{{Exchange: "e", Queue: "a", Weight: 1}}, false},
	}
	for _, row := range rows {
		out := wire.AppendUvarint([]byte{topologyVersion}, uint64(row.next))
		out = wire.AppendUvarint(out, uint64(len(row.exchanges)))
		for _, d := range row.exchanges {
			out = d.appendTo(out)
		}
		out = wire.AppendUvarint(out, uint64(len(row.queues)))
		for _, q := range row.queues {
			out = append(q.Queue.appendTo(wire.AppendUvarint(out, uint64(q.id))), 0) // never updated
		}
		out = wire.AppendUvarint(out, uint64(len(row.bindings)))
		for _, d := range row.bindings {
			out = d.appendTo(out)
		}
		out = wire.AppendUvarint(out, 0) // schedules
		r := wire.NewReader(out)
		top, err := decodeTopology(&r, topologyLimits{})
		if row.good {
			require.NoError(t, err, row.name)
			require.Equal(t, out, top.appendTo(nil))
			continue
		}
		require.ErrorIs(t, err, wire.ErrMalformed, row.name)
		require.Nil(t, top)
	}
}

func TestFanoutTargetStaysWhileOneBindingLeadsThere(t *testing.T) {
	top := declared(t, Exchange{Name: "e", Kind: Fanout}, Queue{Name: "q"},
		Binding{Exchange: "e", Queue: "q", Key: "1"}, Binding{Exchange: "e", Queue: "q", Key: "2"})
	top, _, err := top.remove([]Declaration{Binding{Exchange: "e", Queue: "q", Key: "1"}})
	require.NoError(t, err)
	require.Equal(t, []string{"q"}, routed(t, top, "e", "", nil))
	top, _, err = top.remove([]Declaration{Binding{Exchange: "e", Queue: "q", Key: "2"}})
	require.NoError(t, err)
	require.Empty(t, routed(t, top, "e", "", nil))
}

// FuzzTopology decodes arbitrary bytes: an error or a topology that keeps its invariants.
func FuzzTopology(f *testing.F) {
	f.Add(newTopology(topologyLimits{}).appendTo(nil))
	f.Add(declared(f, Queue{Name: "q"}, Exchange{Name: "e", Kind: Topic}, Binding{Exchange: "e", Queue: "q", Key: "#"},
		Schedule{Name: "s", Cron: "@daily", Message: Message{RoutingKey: "q", Body: []byte("body")}}).appendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := wire.NewReader(b)
		top, err := decodeTopology(&r, topologyLimits{})
		if err != nil {
			require.ErrorIs(t, err, wire.ErrMalformed)
			require.Error(t, r.Err())
			return
		}
		checkTopology(t, top)
		again := wire.NewReader(top.appendTo(nil))
		same, err := decodeTopology(&again, topologyLimits{})
		require.NoError(t, err)
		require.Equal(t, top.appendTo(nil), same.appendTo(nil))
	})
}

// model is the naive twin of topology: lists, searched from end to end.
type model struct {
	exchanges []Exchange
	queues    []queueDef
	bindings  []Binding
	nextID    queueID
}

func (m *model) exchange(name string) *Exchange {
	i := slices.IndexFunc(m.exchanges, func(e Exchange) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return &m.exchanges[i]
}

func (m *model) queue(name string) *queueDef {
	i := slices.IndexFunc(m.queues, func(q queueDef) bool { return q.Name == name })
	if i < 0 {
		return nil
	}
	return &m.queues[i]
}

func sameBinding(a, b Binding) bool {
	return a.Exchange == b.Exchange && a.Queue == b.Queue && a.Destination == b.Destination && a.Key == b.Key &&
		a.Weight == b.Weight && string(appendHeaders(nil, a.Headers)) == string(appendHeaders(nil, b.Headers))
}

func (m *model) matches(b Binding, kind ExchangeKind, key string, headers map[string]any) bool {
	switch kind {
	case Direct:
		return b.Key == key
	case Topic:
		return naiveMatch(splitWords(b.Key), splitWords(key))
	case HeadersMatch:
		all := b.Headers["x-match"] != "any"
		for name, want := range b.Headers {
			got, ok := headers[name]
			if name == "x-match" {
				continue
			}
			if hit := ok && (want == nil || want == got); hit != all {
				return hit
			}
		}
		return all
	}
	return true
}

// reach returns the queues that a message at the exchange reaches, by the definition:
// follow all bindings; then, as long as an exchange that was asked reaches no queue and
// reaches no other such exchange one-way, follow the alternates of all these.
func (m *model) reach(name, key string, headers map[string]any) map[string]bool {
	got := map[string]bool{}
	links := map[string]map[string]bool{} // of the exchanges asked, to queues ("/q") and exchanges
	var ask func(name string)
	ask = func(name string) {
		ex := m.exchange(name)
		if links[name] != nil || ex == nil {
			return
		}
		links[name] = map[string]bool{}
		for _, b := range m.bindings {
			if b.Exchange != name || !m.matches(b, ex.Kind, key, headers) {
				continue
			}
			if b.Queue != "" {
				got[b.Queue] = true
				links[name]["/"+b.Queue] = true
			} else {
				links[name][b.Destination] = true
				ask(b.Destination)
			}
		}
	}
	leads := func(from string) map[string]bool { // all that is behind from
		seen := map[string]bool{}
		var walk func(string)
		walk = func(at string) {
			for to := range links[at] {
				if !seen[to] {
					seen[to] = true
					walk(to)
				}
			}
		}
		walk(from)
		return seen
	}
	ask(name)
	asked := map[string]bool{}
	for {
		waiting := map[string]bool{}
		for at := range links {
			routed := false
			for to := range leads(at) {
				routed = routed || strings.HasPrefix(to, "/")
			}
			waiting[at] = !routed && !asked[at] && m.exchange(at).Alternate != ""
		}
		var turn []string
		for at, waits := range waiting {
			for to := range leads(at) {
				if waiting[to] && !leads(to)[at] {
					waits = false
				}
			}
			if waits {
				turn = append(turn, at)
			}
		}
		if len(turn) == 0 {
			return got
		}
		for _, at := range turn {
			asked[at] = true
			links[at][m.exchange(at).Alternate] = true
			ask(m.exchange(at).Alternate)
		}
	}
}

func (m *model) declare(d Declaration) {
	switch d := d.(type) {
	case Exchange:
		if m.exchange(d.Name) == nil {
			m.exchanges = append(m.exchanges, d)
		}
	case Queue:
		if m.queue(d.Name) == nil {
			m.queues = append(m.queues, queueDef{m.nextID, d.withDefaults()})
			m.nextID++
		}
	case Binding:
		if !slices.ContainsFunc(m.bindings, func(b Binding) bool { return sameBinding(b, d) }) {
			m.bindings = append(m.bindings, d)
		}
	}
}

func (m *model) remove(d Declaration) {
	var gone func(Binding) bool
	switch d := d.(type) {
	case Exchange:
		m.exchanges = slices.DeleteFunc(m.exchanges, func(e Exchange) bool { return e.Name == d.Name })
		gone = func(b Binding) bool { return b.Exchange == d.Name || b.Destination == d.Name }
	case Queue:
		m.queues = slices.DeleteFunc(m.queues, func(q queueDef) bool { return q.Name == d.Name })
		gone = func(b Binding) bool { return b.Queue == d.Name }
	case Binding:
		gone = func(b Binding) bool { return sameBinding(b, d) }
	}
	m.bindings = slices.DeleteFunc(m.bindings, gone)
}

// Exchanges of the model by kind; a hash is tested on its own, as its choice is no definition.
var modelExchanges = []Exchange{
	{Name: "d", Kind: Direct, Alternate: "f"}, {Name: "d2", Kind: Direct, Alternate: "t"}, {Name: "f", Kind: Fanout, Alternate: "h"},
	{Name: "t", Kind: Topic}, {Name: "t2", Kind: Topic, Alternate: "d"}, {Name: "h", Kind: HeadersMatch, Alternate: "d2"},
}

func drawModelBinding(t *rapid.T) Binding {
	ex := rapid.SampledFrom(modelExchanges).Draw(t, "exchange")
	b := Binding{Exchange: ex.Name, Key: drawModelKey(t, "a", "b", "*", "#")}
	if rapid.Bool().Draw(t, "to queue") {
		b.Queue = rapid.SampledFrom([]string{"q1", "q2", "q3"}).Draw(t, "queue")
	} else {
		b.Destination = rapid.SampledFrom(modelExchanges).Draw(t, "destination").Name
	}
	if ex.Kind == HeadersMatch {
		b.Headers = drawModelHeaders(t, nil, int64(1), "1")
		if rapid.Bool().Draw(t, "any") {
			b.Headers["x-match"] = "any"
		}
	}
	return b
}

func drawModelHeaders(t *rapid.T, values ...any) map[string]any {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom(values), 0, 2).Draw(t, "headers")
}

func drawModelKey(t *rapid.T, words ...string) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 3).Draw(t, "key"), ".")
}

func TestTopologyAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top := newTopology(topologyLimits{})
		park, _ := top.queue(ParkingQueue)
		m := &model{nextID: 2, queues: []queueDef{park}}
		// Most of the time there is something to bind.
		start := []Declaration{Queue{Name: "q1"}, Queue{Name: "q2"}, Queue{Name: "q3"}}
		for _, ex := range modelExchanges {
			start = append(start, ex)
		}
		for range rapid.IntRange(0, 12).Draw(t, "bindings") {
			start = append(start, drawModelBinding(t))
		}
		top, _, err := top.declare(start)
		require.NoError(t, err)
		for _, d := range start {
			m.declare(d)
		}
		type old struct {
			top   *topology
			bytes []byte
		}
		var past []old
		t.Repeat(map[string]func(*rapid.T){
			"declare": func(t *rapid.T) {
				var d Declaration
				switch rapid.IntRange(0, 5).Draw(t, "what") {
				case 0:
					d = rapid.SampledFrom(modelExchanges).Draw(t, "exchange")
				case 1:
					d = Queue{Name: rapid.SampledFrom([]string{"q1", "q2", "q3"}).Draw(t, "queue")}
				default:
					b := drawModelBinding(t)
					if m.exchange(b.Exchange) == nil || b.Queue != "" && m.queue(b.Queue) == nil ||
						b.Destination != "" && m.exchange(b.Destination) == nil {
						next, _, err := top.declare([]Declaration{b})
						require.Error(t, err)
						require.Same(t, top, next)
						return
					}
					d = b
				}
				past = append(past, old{top, top.appendTo(nil)})
				next, _, err := top.declare([]Declaration{d})
				require.NoError(t, err)
				m.declare(d)
				top = next
			},
			"remove": func(t *rapid.T) {
				var d Declaration
				switch rapid.IntRange(0, 7).Draw(t, "what") {
				case 0:
					d = rapid.SampledFrom(modelExchanges).Draw(t, "exchange")
				case 1:
					d = Queue{Name: rapid.SampledFrom([]string{"q1", "q2", "q3"}).Draw(t, "queue")}
				default:
					d = drawModelBinding(t)
					if len(m.bindings) > 0 {
						d = rapid.SampledFrom(m.bindings).Draw(t, "binding")
					}
				}
				past = append(past, old{top, top.appendTo(nil)})
				next, _, err := top.remove([]Declaration{d})
				require.NoError(t, err)
				m.remove(d)
				top = next
			},
			"route": func(t *rapid.T) {
				name := rapid.SampledFrom(modelExchanges).Draw(t, "exchange").Name
				key := drawModelKey(t, "a", "b", "c")
				headers := drawModelHeaders(t, int64(1), "1")
				ids, err := top.route(name, key, headers, nil)
				if m.exchange(name) == nil {
					require.ErrorIs(t, err, ErrNoExchange)
					return
				}
				require.NoError(t, err)
				require.True(t, slices.IsSorted(ids))
				require.Len(t, slices.Compact(slices.Clone(ids)), len(ids), "a queue twice")
				want := m.reach(name, key, headers)
				got := map[string]bool{}
				for _, id := range ids {
					q, _ := top.queueByID(id)
					got[q.Name] = true
				}
				require.Equal(t, want, got)
			},
			"": func(t *rapid.T) {
				checkTopology(t, top)
				require.Equal(t, m.nextID, top.nextID)
				require.Equal(t, len(m.bindings), top.inbound.Len())
				for b := range top.bindings {
					require.True(t, slices.ContainsFunc(m.bindings, func(o Binding) bool { return sameBinding(o, b) }), "%+v", b)
				}
				slices.SortFunc(m.queues, func(a, b queueDef) int { return cmp.Compare(a.Name, b.Name) })
				require.Equal(t, m.queues, slices.Collect(top.queues))
				b := top.appendTo(nil)
				r := wire.NewReader(b)
				decoded, err := decodeTopology(&r, topologyLimits{})
				require.NoError(t, err)
				require.NoError(t, r.Done())
				require.Equal(t, b, decoded.appendTo(nil))
				if len(past) > 0 {
					p := past[len(past)/2]
					require.Equal(t, p.bytes, p.top.appendTo(nil), "an old topology changed")
					checkTopology(t, p.top)
				}
			},
		})
	})
}

func BenchmarkDecodeTopology(b *testing.B) {
	encoded := declaredTopics(b, MaxBindings).appendTo(nil)
	b.ReportAllocs()
	b.SetBytes(int64(len(encoded)))
	for b.Loop() {
		r := wire.NewReader(encoded)
		if _, err := decodeTopology(&r, topologyLimits{}); err != nil {
			b.Fatal(err)
		}
	}
}
