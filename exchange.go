package bourse

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/google/btree"
)

// This file routes: from an exchange, a key and headers to queues. It reads an immutable
// topology, takes no lock and, but for a HeadersMatch exchange, allocates nothing.

// exchange is an exchange with what it needs to route. Never changed once it is reachable
// from a topology; a change makes a copy that shares what stayed.
type exchange struct {
	Exchange
	bindings *btree.BTreeG[*binding] // those that lead away from it, by compareBinding

	// By Kind, one of these holds the bindings again, made for matching.
	direct  *btree.BTreeG[named[*targets]] // by binding key
	topic   *topicNode
	fanout  *targets
	headers criteriaList
	hash    hashTargets
}

// targets is a set of queues and exchanges that bindings lead to. nil is the empty set; a
// set is never changed, only replaced.
type targets struct {
	queues    []queueID // rising
	exchanges []string  // rising
}

// with returns the set together with the target of b.
func (ts *targets) with(b *binding) *targets {
	var out targets
	if ts != nil {
		out = *ts
	}
	if b.queue != 0 {
		out.queues = withElement(out.queues, b.queue)
	} else {
		out.exchanges = withElement(out.exchanges, b.Destination)
	}
	return &out
}

// without returns the set less the target of b, nil if that leaves nothing.
func (ts *targets) without(b *binding) *targets {
	if ts == nil {
		return nil
	}
	out := *ts
	if b.queue != 0 {
		out.queues = withoutElement(out.queues, b.queue)
	} else {
		out.exchanges = withoutElement(out.exchanges, b.Destination)
	}
	if len(out.queues)+len(out.exchanges) == 0 {
		return nil
	}
	return &out
}

func withElement[E cmp.Ordered](sorted []E, e E) []E {
	i, found := slices.BinarySearch(sorted, e)
	if found {
		return sorted
	}
	out := make([]E, 0, len(sorted)+1)
	return append(append(append(out, sorted[:i]...), e), sorted[i:]...)
}

func withoutElement[E cmp.Ordered](sorted []E, e E) []E {
	i, found := slices.BinarySearch(sorted, e)
	if !found {
		return sorted
	}
	return slices.Delete(slices.Clone(sorted), i, i+1)
}

// clone returns a copy for add and remove to change.
func (ex *exchange) clone() *exchange {
	next := *ex
	next.bindings = ex.bindings.Clone()
	if ex.direct != nil {
		next.direct = ex.direct.Clone()
	}
	return &next
}

// add makes b, which ex does not have, a binding of ex. Only for an exchange that is not
// reachable yet.
func (ex *exchange) add(b *binding) {
	ex.bindings.ReplaceOrInsert(b)
	switch ex.Kind {
	case Direct:
		entry, _ := ex.direct.Get(named[*targets]{name: b.Key})
		ex.direct.ReplaceOrInsert(named[*targets]{b.Key, entry.value.with(b)})
	case Topic:
		ex.topic = ex.topic.with(b.Key, b)
	case Fanout:
		ex.fanout = ex.fanout.with(b)
	case ConsistentHash:
		ex.hash = ex.hash.set(ex.share(b))
	case HeadersMatch:
		ex.headers = ex.headers.with(b)
	}
}

// remove undoes add; ex has b.
func (ex *exchange) remove(b *binding) {
	ex.bindings.Delete(b)
	switch ex.Kind {
	case Direct:
		entry, _ := ex.direct.Get(named[*targets]{name: b.Key})
		if left := entry.value.without(b); left != nil {
			ex.direct.ReplaceOrInsert(named[*targets]{b.Key, left})
		} else {
			ex.direct.Delete(named[*targets]{name: b.Key})
		}
	case Topic:
		ex.topic = ex.topic.without(b.Key, b)
	case Fanout:
		if !ex.leadsTo(b) { // bindings that differ in their keys lead to one target
			ex.fanout = ex.fanout.without(b)
		}
	case ConsistentHash:
		if t := ex.share(b); ex.leadsTo(b) {
			ex.hash = ex.hash.set(t)
		} else {
			ex.hash = ex.hash.remove(t)
		}
	case HeadersMatch:
		ex.headers = ex.headers.without(b)
	}
}

// leadsTo reports whether any binding has the target of b.
func (ex *exchange) leadsTo(b *binding) bool {
	found := false
	ex.bindings.AscendGreaterOrEqual(firstBinding(b), func(o *binding) bool {
		found = o.sameTarget(b)
		return false
	})
	return found
}

// share returns the target of b with the weight that all bindings to it give.
func (ex *exchange) share(b *binding) hashTarget {
	t := hashTarget{name: b.targetName(), queue: b.queue, point: hashPoint(b.targetName(), b.queue != 0)}
	ex.bindings.AscendGreaterOrEqual(firstBinding(b), func(o *binding) bool {
		if !o.sameTarget(b) {
			return false
		}
		if o.Weight < 0 {
			t.weight = 0
			return false
		}
		t.weight += uint64(o.Weight)
		return true
	})
	return t
}

// firstBinding is a pivot before all bindings of an exchange to the target of b.
func firstBinding(b *binding) *binding {
	first := &binding{queue: b.queue}
	first.Exchange, first.Queue, first.Destination, first.Weight = b.Exchange, b.Queue, b.Destination, -1
	return first
}

// route appends to dst the queues that a message goes to, each once and in the order in
// which they were created. What dst held stays; on error, nothing is appended. It
// allocates nothing if dst has room for the queue of every binding that matches.
//
// An exchange hands a message to its alternate if its bindings brought the message to no
// queue, directly or over other exchanges; so do exchanges on the way, the innermost
// first. Each exchange is asked at most once per message. Nothing appended means
// unroutable. Errors: ErrNoExchange if there is no such exchange, ErrInvalid if the key is
// longer than a key may be, ErrTooMany if more than MaxExchangeHops exchanges would be
// asked: a message is refused rather than given to some of its queues.
func (t *topology) route(exchange, key string, headers map[string]any, dst []queueID) ([]queueID, error) {
	if exchange == "" && len(key) <= MaxNameBytes {
		// The default exchange has no bindings and no alternate: most messages need no walk.
		if q, ok := t.queueNames.Get(named[*queueDef]{name: key}); ok {
			dst = append(dst, q.value.id)
		}
		return dst, nil
	}
	ex, ok := t.exchangeNamed(exchange)
	if !ok {
		return dst, noExchange(exchange)
	}
	if len(key) > MaxNameBytes {
		return dst, validateKey("Message.RoutingKey", key)
	}
	w := walk{topology: t, key: key, headers: headers, dst: dst}
	w.add(ex)
	w.run()
	if w.tooMany {
		return dst, fmt.Errorf("exchange %q: its bindings lead over more than %d exchanges: %w", exchange, MaxExchangeHops, ErrTooMany)
	}
	if w.emits > 1 {
		found := w.dst[len(dst):]
		slices.Sort(found)
		w.dst = w.dst[:len(dst)+len(slices.Compact(found))]
	}
	return w.dst, nil
}

// hopSet is a set of hops of a walk, one bit each.
type hopSet uint64

// A walk has a bit for every hop.
const _ = uint(64 - MaxExchangeHops)

// walk is one message on its way through the exchanges. It lives on the stack of route.
// Matching only adds hops and never calls back, since a cycle of calls would move it to
// the heap.
type walk struct {
	topology *topology
	key      string
	headers  map[string]any
	dst      []queueID
	emits    int // times that queues were appended to dst; one set has no duplicates

	hops       [MaxExchangeHops]*exchange // the exchanges found; those before next have been asked
	n, next    int
	routed     hopSet                  // those that brought the message to a queue
	alternates hopSet                  // those that have an alternate, until it is asked
	links      [MaxExchangeHops]hopSet // for each hop, those that it leads to
	tooMany    bool
}

// run asks every exchange that the first hop leads to.
func (w *walk) run() {
	for {
		for ; w.next < w.n; w.next++ {
			w.match(w.next, w.hops[w.next])
		}
		// An exchange that has no alternate need not know whether it routed.
		if w.alternates&^w.routed == 0 || !w.askAlternates() {
			return
		}
	}
}

// askAlternates follows the alternates of hops that led to no queue, and reports whether
// there were any. Of two such hops where one leads to the other it is the inner one's
// turn: what its alternate routes, the outer one has routed too. Hops that lead to each
// other take their turn together. So the result does not depend on the order of hops.
func (w *walk) askAlternates() bool {
	for k := range w.n { // close links and routed over paths
		for i := range w.n {
			if w.links[i]&(1<<k) != 0 {
				w.links[i] |= w.links[k]
			}
		}
	}
	for i := range w.n {
		if w.links[i]&w.routed != 0 {
			w.routed |= 1 << i
		}
	}
	waiting := w.alternates &^ w.routed
	var turn hopSet
	for i := range w.n {
		if waiting&(1<<i) == 0 {
			continue
		}
		inner := false
		for k := range w.n {
			inner = inner || (waiting&w.links[i])&(1<<k) != 0 && w.links[k]&(1<<i) == 0
		}
		if !inner {
			turn |= 1 << i
		}
	}
	for i := range w.n { // new hops come behind
		if turn&(1<<i) != 0 {
			w.follow(i, w.hops[i].Alternate)
		}
	}
	w.alternates &^= turn
	return turn != 0
}

// add returns the hop of ex, a new one if it is found for the first time.
func (w *walk) add(ex *exchange) int {
	for i, known := range w.hops[:w.n] {
		if known == ex {
			return i
		}
	}
	if w.n == len(w.hops) {
		w.tooMany = true
		return 0
	}
	at := w.n
	w.hops[at] = ex
	w.n++
	if ex.Alternate != "" {
		w.alternates |= 1 << at
	}
	return at
}

// match emits what the bindings of ex, which is hop at, lead to.
func (w *walk) match(at int, ex *exchange) {
	switch ex.Kind {
	case Direct:
		if ex.Name == "" {
			if q, ok := w.topology.queueNames.Get(named[*queueDef]{name: w.key}); ok {
				w.emitQueue(at, q.value.id)
			}
			return
		}
		entry, _ := ex.direct.Get(named[*targets]{name: w.key})
		w.emit(at, entry.value)
	case Fanout:
		w.emit(at, ex.fanout)
	case Topic:
		matchTopic(w, at, ex.topic, w.key)
	case HeadersMatch:
		for _, chunk := range ex.headers {
			for _, b := range chunk {
				if b.criteria.match(w.headers) {
					w.emitTarget(at, b.queue, b.Destination)
				}
			}
		}
	case ConsistentHash:
		if t := ex.hash.pick(w.key); t != nil {
			w.emitTarget(at, t.queue, t.name)
		}
	}
}

func (w *walk) emit(at int, ts *targets) {
	if ts == nil {
		return
	}
	if len(ts.queues) > 0 {
		w.dst = append(w.dst, ts.queues...)
		w.emits++
		w.routed |= 1 << at
	}
	for _, name := range ts.exchanges {
		w.follow(at, name)
	}
}

func (w *walk) emitQueue(at int, id queueID) {
	w.dst = append(w.dst, id)
	w.emits++
	w.routed |= 1 << at
}

// emitTarget emits a queue or, if queue is 0, an exchange.
func (w *walk) emitTarget(at int, queue queueID, exchange string) {
	if queue != 0 {
		w.emitQueue(at, queue)
	} else {
		w.follow(at, exchange)
	}
}

// follow links hop at to the exchange of that name. An alternate need not exist.
func (w *walk) follow(at int, exchange string) {
	if ex, ok := w.topology.exchangeNamed(exchange); ok {
		w.links[at] |= 1 << w.add(ex)
	}
}
