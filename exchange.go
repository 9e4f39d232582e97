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
	direct *btree.BTreeG[named[*targets]] // by binding key
	topic  *topicNode
	fanout *targets
	hash   hashTargets
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

// with returns the exchange with b, which it does not have, among its bindings.
func (ex *exchange) with(b *binding) *exchange {
	next := *ex
	next.bindings = ex.bindings.Clone()
	next.bindings.ReplaceOrInsert(b)
	switch ex.Kind {
	case Direct:
		next.direct = ex.direct.Clone()
		entry, _ := ex.direct.Get(named[*targets]{name: b.Key})
		next.direct.ReplaceOrInsert(named[*targets]{b.Key, entry.value.with(b)})
	case Topic:
		next.topic = ex.topic.with(b.Key, b)
	case Fanout:
		next.fanout = ex.fanout.with(b)
	case ConsistentHash:
		next.hash = ex.hash.set(next.share(b))
	case HeadersMatch: // has no more than the bindings themselves
	}
	return &next
}

// without returns the exchange without b, which it has.
func (ex *exchange) without(b *binding) *exchange {
	next := *ex
	next.bindings = ex.bindings.Clone()
	next.bindings.Delete(b)
	switch ex.Kind {
	case Direct:
		next.direct = ex.direct.Clone()
		entry, _ := ex.direct.Get(named[*targets]{name: b.Key})
		if left := entry.value.without(b); left != nil {
			next.direct.ReplaceOrInsert(named[*targets]{b.Key, left})
		} else {
			next.direct.Delete(named[*targets]{name: b.Key})
		}
	case Topic:
		next.topic = ex.topic.without(b.Key, b)
	case Fanout:
		if !next.leadsTo(b) { // bindings that differ in their keys lead to one target
			next.fanout = ex.fanout.without(b)
		}
	case ConsistentHash:
		if t := next.share(b); next.leadsTo(b) {
			next.hash = ex.hash.set(t)
		} else {
			next.hash = ex.hash.remove(t)
		}
	case HeadersMatch: // has no more than the bindings themselves
	}
	return &next
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

// route appends to dst the queues that a message goes to, each once and in the order in which the queues were
// created, which no order of declarations or bindings changes. dst is otherwise as
// before, also on error. There is no allocation if dst has room for the queue of
// every binding that matches, except at a HeadersMatch exchange.
//
// An exchange hands a message to its alternate if its bindings brought the message to no
// queue, directly or over other exchanges; so do exchanges on the way. Each exchange is
// asked at most once per message; asked again, it is the end of that path. Nothing
// appended means unroutable. Errors: ErrNoExchange if there is no such exchange, ErrInvalid if the key is longer
// than a key may be, ErrTooMany if more than MaxExchangeHops exchanges would be asked.
func (t *topology) route(exchange, key string, headers map[string]any, dst []queueID) ([]queueID, error) {
	ex, ok := t.exchangeNamed(exchange)
	if !ok {
		return dst, noExchange(exchange)
	}
	if len(key) > MaxNameBytes {
		return dst, validateKey("Message.RoutingKey", key)
	}
	w := walk{topology: t, key: key, headers: headers, dst: dst}
	w.visit(ex)
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

// walk is one message on its way through the exchanges. It lives on the stack of route.
type walk struct {
	topology *topology
	key      string
	headers  map[string]any
	dst      []queueID
	emits    int // times that queues were appended to dst; one set has no duplicates

	hops    [MaxExchangeHops]*exchange // those asked, in order
	n       int
	routed  uint64 // bit i: hops[i] has brought the message to a queue
	tooMany bool
}

// A bit of walk.routed for every hop.
const _ = uint(64 - MaxExchangeHops)

// visit asks ex, unless it was asked before, and reports whether it has brought the
// message to a queue. For an exchange that is being asked, further up, that is what is
// known by now: a cycle of bindings ends there.
func (w *walk) visit(ex *exchange) bool {
	for i, seen := range w.hops[:w.n] {
		if seen == ex {
			return w.routed&(1<<i) != 0
		}
	}
	if w.n == len(w.hops) {
		w.tooMany = true
		return true
	}
	at := w.n
	w.hops[at] = ex
	w.n++
	w.match(at, ex)
	if w.routed&(1<<at) == 0 && ex.Alternate != "" {
		w.follow(at, ex.Alternate)
	}
	return w.routed&(1<<at) != 0
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
		ex.bindings.Ascend(func(b *binding) bool {
			if b.criteria.match(w.headers) {
				w.emitTarget(at, b.queue, b.Destination)
			}
			return true
		})
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

// follow goes on at the exchange of that name, on behalf of hop at. An alternate need not
// exist.
func (w *walk) follow(at int, exchange string) {
	if ex, ok := w.topology.exchangeNamed(exchange); ok && w.visit(ex) {
		w.routed |= 1 << at
	}
}
