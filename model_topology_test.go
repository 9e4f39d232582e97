package bourse_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/boursemq/bourse"
)

// The topology of the reference: what is declared, and which queues a message goes to. What queues do is in
// model_reference_test.go.

func sameBindings(a, b bourse.Binding) bool { return fmt.Sprintf("%#v", a) == fmt.Sprintf("%#v", b) }

func (r *reference) declare(ds []bourse.Declaration) error {
	for _, d := range ds {
		switch d := d.(type) {
		case bourse.Exchange:
			if have, ok := r.exchanges[d.Name]; ok && have != d {
				return bourse.ErrPrecondition
			}
			r.exchanges[d.Name] = d
		case bourse.Queue:
			if have := r.queue(d.Name); have == nil {
				r.addQueue(d)
			} else if !reflect.DeepEqual(have.Queue, withDefaults(d)) {
				return bourse.ErrPrecondition
			}
		case bourse.Schedule:
			return r.declareSchedule(d)
		case bourse.Binding:
			if _, ok := r.exchanges[d.Exchange]; !ok {
				return bourse.ErrNoExchange
			}
			if d.Queue != "" && r.queue(d.Queue) == nil {
				return bourse.ErrNotFound
			}
			if _, ok := r.exchanges[d.Destination]; d.Destination != "" && !ok {
				return bourse.ErrNoExchange
			}
			if d.Exchange == "hash" && d.Weight == 0 {
				d.Weight = 1
			}
			if !slices.ContainsFunc(r.bindings, func(b bourse.Binding) bool { return sameBindings(b, d) }) {
				r.bindings = append(r.bindings, d)
			}
		}
	}
	return nil
}

func (r *reference) update(d bourse.Queue) error {
	q := r.queue(d.Name)
	if q == nil {
		return bourse.ErrNotFound
	}
	if q.SingleActiveConsumer != d.SingleActiveConsumer {
		return bourse.ErrPrecondition
	}
	was := q.Queue
	if was.Transient != d.Transient {
		return bourse.ErrPrecondition
	}
	q.Queue = withDefaults(d)
	q.rerate(was.Rate, r.clock.Now())
	q.rememberAnew(was.Dedup, r.clock.Now())
	q.redefinedInbox(was.Inbox, r.clock.Now())
	all := slices.Concat(q.ready, q.delayed)
	for _, l := range q.loans {
		all = append(all, l.refEntry)
	}
	for _, e := range all {
		e.level = min(e.level, q.Priorities-1)
	}
	q.mergeTurns()
	r.dispatch(q)
	return nil
}

func (r *reference) remove(only bourse.DeleteOnly, d bourse.Declaration) error {
	unbind := func(is func(bourse.Binding) bool) { r.bindings = slices.DeleteFunc(r.bindings, is) }
	switch d := d.(type) {
	case bourse.Exchange:
		if only.IfUnused && slices.ContainsFunc(r.bindings, func(b bourse.Binding) bool { return b.Exchange == d.Name }) {
			return bourse.ErrInUse
		}
		delete(r.exchanges, d.Name)
		unbind(func(b bourse.Binding) bool { return b.Exchange == d.Name || b.Destination == d.Name })
	case bourse.Queue:
		q := r.queue(d.Name)
		if q == nil {
			return nil
		}
		if q.Transient && only != (bourse.DeleteOnly{}) {
			return bourse.ErrInvalid
		}
		st := q.stats(r.clock.Now())
		if only.IfUnused && st.Consumers > 0 {
			return bourse.ErrInUse
		}
		if only.IfEmpty && st.Ready+st.Unacked+st.Delayed > 0 {
			return bourse.ErrNotEmpty
		}
		r.forget(q)
	case bourse.Schedule:
		r.schedules = slices.DeleteFunc(r.schedules, func(s *refSchedule) bool { return s.Name == d.Name })
	case bourse.Binding:
		if d.Exchange == "hash" && d.Weight == 0 {
			d.Weight = 1
		}
		unbind(func(b bourse.Binding) bool { return sameBindings(b, d) })
	}
	return nil
}

// forget removes a queue and what leads to it.
func (r *reference) forget(q *refQueue) {
	for _, c := range q.attached {
		c.ended, c.buffer = bourse.ErrQueueGone, nil
	}
	r.queues = slices.DeleteFunc(r.queues, func(o *refQueue) bool { return o == q })
	r.bindings = slices.DeleteFunc(r.bindings, func(b bourse.Binding) bool { return b.Queue == q.Name })
	for _, w := range q.line {
		r.partDone(w.p)
	}
}

// route is where a message goes, but for the hash exchange, whose choice is not predicted.
func (r *reference) route(exchange, key string, headers map[string]any) (routed []*refQueue, err error) {
	found := map[string]bool{}
	if exchange == "" {
		found[key] = true
	} else if _, ok := r.exchanges[exchange]; !ok {
		return nil, bourse.ErrNoExchange
	} else {
		r.visit(exchange, key, headers, map[string]bool{}, found)
	}
	for _, q := range r.queues {
		if found[q.Name] {
			routed = append(routed, q)
		}
	}
	return routed, nil
}

// visit asks an exchange, unless asked is true already, and reports whether it brought the message to a queue.
func (r *reference) visit(exchange, key string, headers map[string]any, asked, found map[string]bool) bool {
	ex, ok := r.exchanges[exchange]
	if routed, again := asked[exchange]; again || !ok {
		return routed
	}
	routed := false
	for _, b := range r.bindings {
		if b.Exchange != exchange || !binds(ex.Kind, b, key, headers) {
			continue
		}
		if b.Queue != "" {
			found[b.Queue], routed = true, true
		} else if r.visit(b.Destination, key, headers, asked, found) {
			routed = true
		}
	}
	if !routed && ex.Alternate != "" {
		routed = r.visit(ex.Alternate, key, headers, asked, found)
	}
	asked[exchange] = routed
	return routed
}

func binds(kind bourse.ExchangeKind, b bourse.Binding, key string, headers map[string]any) bool {
	switch kind {
	case bourse.Direct:
		return b.Key == key
	case bourse.Fanout:
		return true
	case bourse.Topic:
		return topicMatch(refWords(b.Key), refWords(key))
	case bourse.HeadersMatch:
		return headersMatch(b.Headers, headers)
	}
	return false
}

func refWords(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ".")
}

func topicMatch(pattern, words []string) bool {
	switch {
	case len(pattern) == 0:
		return len(words) == 0
	case pattern[0] == "#":
		return topicMatch(pattern[1:], words) || len(words) > 0 && topicMatch(pattern, words[1:])
	case len(words) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == words[0]) && topicMatch(pattern[1:], words[1:])
}

func headersMatch(criteria, headers map[string]any) bool {
	mode, _ := criteria["x-match"].(string)
	all, hits := 0, 0
	for name, want := range criteria {
		if name == "x-match" || strings.HasPrefix(name, "x-") && !strings.HasSuffix(mode, "-with-x") {
			continue
		}
		all++
		if have, ok := headers[name]; ok && (want == nil || number(want) == number(have)) {
			hits++
		}
	}
	if strings.HasPrefix(mode, "any") {
		return hits > 0
	}
	return hits == all
}

func number(v any) any {
	if n, ok := v.(int); ok {
		return float64(n)
	}
	return v
}

// shares is the queues that the hash exchange may choose.
func (r *reference) shares() (names []string) {
	for _, q := range r.queues {
		bound, drained := false, false
		for _, b := range r.bindings {
			if b.Exchange == "hash" && b.Queue == q.Name {
				bound, drained = true, drained || b.Weight < 0
			}
		}
		if bound && !drained {
			names = append(names, q.Name)
		}
	}
	return names
}

// hashBindings tells when the hash exchange may choose anew.
func (r *reference) hashBindings() (all []string) {
	for _, b := range r.bindings {
		if b.Exchange == "hash" {
			all = append(all, fmt.Sprint(b.Queue, b.Weight))
		}
	}
	slices.Sort(all)
	return all
}
