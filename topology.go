package bourse

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/internal/wire"
	"github.com/google/btree"
)

// queueID is one incarnation of a queue: a queue that is deleted and declared again has
// another. Ids rise and are never used twice; 0 is none.
type queueID uint64

// parkingID is the id of ParkingQueue in every topology.
const parkingID queueID = 1

// queueDef is a queue as it was declared, with its defaults applied.
type queueDef struct {
	id queueID
	Queue
}

// topologyLimits bound what can be declared. 0 means the default, which is also the most.
type topologyLimits struct {
	queues    int // default MaxQueues; ParkingQueue does not count
	exchanges int // default MaxExchanges; the default exchange does not count
	bindings  int // default MaxBindings
	schedules int // default MaxSchedules
}

func (l topologyLimits) withDefaults() topologyLimits {
	return topologyLimits{
		queues:    limitOr(l.queues, MaxQueues),
		exchanges: limitOr(l.exchanges, MaxExchanges),
		bindings:  limitOr(l.bindings, MaxBindings),
		schedules: limitOr(l.schedules, MaxSchedules),
	}
}

func limitOr(n, most int) int {
	if n <= 0 || n > most {
		return most
	}
	return n
}

// topology is the exchanges, bindings and queue definitions of a broker, as an immutable
// value: declare and remove return a new one that shares with the old what did not change.
// So any number of goroutines may read and route while one makes the next; two must not
// call declare or remove on the same value at a time. One change costs time in the
// logarithm of what exists, and in the number of targets of the key or exchange it changes.
//
// Invariants, tested by check:
//  1. Every binding leads from an existing exchange to an existing queue or exchange, and
//     to the present incarnation of the queue.
//  2. The bindings of all exchanges are those in inbound, and bindings counts them.
//  3. The part of an exchange that is made for matching holds exactly its bindings.
//  4. Every id is below nextID and belongs to one queue or schedule.
//  5. What is in updated belongs to a queue.
//  6. What is in owners is exclusive.
type topology struct {
	limits        topologyLimits
	nextID        queueID
	exchangeNames *btree.BTreeG[named[*exchange]]
	queueNames    *btree.BTreeG[named[*queueDef]]
	queueIDs      *btree.BTreeG[numbered]
	transients    *btree.BTreeG[numbered] // those of queueIDs that are transient
	inbound       *btree.BTreeG[*binding] // all bindings, by target first
	updated       *btree.BTreeG[updated]  // of the queues
	scheduleNames *btree.BTreeG[named[*scheduleDef]]
	owners        *btree.BTreeG[owned] // of the exclusive queues
}

// named is an item of a tree that is ordered by name. It is passed by value, so that a
// look-up allocates nothing.
type named[V any] struct {
	name  string
	value V
}

func lessNamed[V any](a, b named[V]) bool { return a.name < b.name }

// numbered is named for queues by id.
type numbered struct {
	id  queueID
	def *queueDef
}

func lessNumbered(a, b numbered) bool { return a.id < b.id }

// binding is a Binding that holds, with its defaults applied.
type binding struct {
	Binding
	queue    queueID  // the target's incarnation, 0 if the target is an exchange
	identity string   // Headers encoded: equal criteria, equal bytes
	criteria criteria // Headers made ready to match, at a HeadersMatch exchange
}

func newBinding(d Binding, kind ExchangeKind, queue queueID) *binding {
	d = d.withDefaults(kind)
	b := &binding{Binding: d, queue: queue, identity: string(appendHeaders(nil, d.Headers))}
	if kind == HeadersMatch {
		b.criteria = newCriteria(d.Headers)
	}
	// The caller's map may change; what the topology shows must not.
	b.Headers, _ = decodeHeaders([]byte(b.identity))
	return b
}

func (b *binding) targetName() string {
	if b.Queue != "" {
		return b.Queue
	}
	return b.Destination
}

func (b *binding) sameTarget(o *binding) bool {
	return b.Queue == o.Queue && b.Destination == o.Destination
}

// compareTarget orders by target: exchanges before queues, then by name.
func (b *binding) compareTarget(o *binding) int {
	if c := strings.Compare(b.Queue, o.Queue); c != 0 {
		return c
	}
	return strings.Compare(b.Destination, o.Destination)
}

// compareRest orders bindings of one exchange to one target.
func (b *binding) compareRest(o *binding) int {
	if c := strings.Compare(b.Key, o.Key); c != 0 {
		return c
	}
	if c := strings.Compare(b.identity, o.identity); c != 0 {
		return c
	}
	return cmp.Compare(b.Weight, o.Weight)
}

// compareBinding is the order of the bindings of one exchange, and of topology.bindings.
func compareBinding(a, b *binding) int {
	if c := strings.Compare(a.Exchange, b.Exchange); c != 0 {
		return c
	}
	if c := a.compareTarget(b); c != 0 {
		return c
	}
	return a.compareRest(b)
}

// compareInbound is the order of topology.inbound.
func compareInbound(a, b *binding) int {
	if c := a.compareTarget(b); c != 0 {
		return c
	}
	if c := strings.Compare(a.Exchange, b.Exchange); c != 0 {
		return c
	}
	return a.compareRest(b)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

const treeDegree = 16

// newTopology returns a topology of the default exchange and ParkingQueue.
func newTopology(limits topologyLimits) *topology {
	t := &topology{
		limits:        limits.withDefaults(),
		nextID:        parkingID + 1,
		exchangeNames: btree.NewG(treeDegree, lessNamed[*exchange]),
		queueNames:    btree.NewG(treeDegree, lessNamed[*queueDef]),
		queueIDs:      btree.NewG(treeDegree, lessNumbered),
		transients:    btree.NewG(treeDegree, lessNumbered),
		inbound:       btree.NewG(treeDegree, func(a, b *binding) bool { return compareInbound(a, b) < 0 }),
		updated:       btree.NewG(treeDegree, byUpdated),
		scheduleNames: btree.NewG(treeDegree, lessNamed[*scheduleDef]),
		owners:        btree.NewG(treeDegree, byOwned),
	}
	t.putExchange(newExchange(Exchange{}))
	// What is parked has failed already: nothing that happens to it here may kill it.
	t.putQueue(&queueDef{parkingID, Queue{Name: ParkingQueue, MaxRetries: NoLimit}.withDefaults()})
	return t
}

func newExchange(d Exchange) *exchange {
	ex := &exchange{
		Exchange: d,
		bindings: btree.NewG(treeDegree, func(a, b *binding) bool { return compareBinding(a, b) < 0 }),
	}
	if d.Kind == Direct {
		ex.direct = btree.NewG(treeDegree, lessNamed[*targets])
	}
	return ex
}

func (t *topology) clone() *topology {
	next := *t
	next.exchangeNames = t.exchangeNames.Clone()
	next.queueNames = t.queueNames.Clone()
	next.queueIDs = t.queueIDs.Clone()
	next.transients = t.transients.Clone()
	next.inbound = t.inbound.Clone()
	next.updated = t.updated.Clone()
	next.owners = t.owners.Clone()
	return &next
}

func noExchange(name string) error { return fmt.Errorf("exchange %q: %w", name, ErrNoExchange) }

// declare makes all of ds hold or none: what is missing is created and what exists must be
// the same. ds may be in any order, as exchanges and queues come before bindings. It
// returns t itself if everything held already, and else the queues it created, in the order
// of ds. The first thing that is refused decides the error: an *InvalidError, a
// *PreconditionError with every field that differs, ErrNoExchange or ErrNotFound for an end
// of a binding that does not exist, ErrTooMany over a limit.
func (t *topology) declare(ds []Declaration) (next *topology, created []queueDef, err error) {
	if err := validateDeclarations(ds); err != nil {
		return t, nil, err
	}
	change := editor{topology: t}
	for _, d := range ds {
		switch d := d.(type) {
		case Exchange:
			err = change.addExchange(d)
		case Queue:
			err = change.addQueue(d.withDefaults())
		case Schedule:
			err = change.addSchedule(d.withDefaults())
		}
		if err != nil {
			return t, nil, err
		}
	}
	for _, d := range ds {
		if d, ok := d.(Binding); ok {
			if err := change.addBinding(d); err != nil {
				return t, nil, err
			}
		}
	}
	return change.topology, change.created, nil
}

// remove makes none of ds exist. What is absent is no error, and t itself is the result if
// all of it is. With an exchange go its bindings in both directions, with a queue those to
// it. Exchanges and queues are taken by name, bindings by all their fields. It returns the
// queues removed, in the order of ds.
func (t *topology) remove(ds []Declaration) (next *topology, removed []queueDef, err error) {
	if err := validateRemovals(ds); err != nil {
		return t, nil, err
	}
	change := editor{topology: t}
	for _, d := range ds {
		switch d := d.(type) {
		case Exchange:
			change.removeExchange(d.Name)
		case Queue:
			change.removeQueue(d.Name)
		case Binding:
			change.removeBinding(d)
		case Schedule:
			change.removeSchedule(d.Name)
		}
	}
	return change.topology, change.removed, nil
}

// missing reports the first of ds that does not hold, as declare would refuse it, or with ErrNotFound, for an
// exchange ErrNoExchange. It only reads.
func (t *topology) missing(ds []Declaration) error {
	for _, d := range ds {
		var err error
		switch d := d.(type) {
		case Exchange:
			have, ok := t.exchangeNamed(d.Name)
			if err = noExchange(d.Name); ok {
				err = d.compare(have.Exchange)
			}
		case Queue:
			have, ok := t.queue(d.Name)
			if err = fmt.Errorf("queue %q: %w", d.Name, ErrNotFound); ok {
				err = d.withDefaults().compare(have.Queue)
			}
		case Binding:
			err = t.missingBinding(d)
		case Schedule:
			have, ok := t.schedule(d.Name)
			if err = fmt.Errorf("schedule %q: %w", d.Name, ErrNotFound); ok {
				err = d.withDefaults().compare(have.Schedule)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *topology) missingBinding(d Binding) error {
	ex, ok := t.exchangeNamed(d.Exchange)
	if !ok {
		return noExchange(d.Exchange)
	}
	if err := d.validateFor(ex.Kind); err != nil {
		return err
	}
	b := newBinding(d, ex.Kind, 0)
	if !ex.bindings.Has(b) {
		return fmt.Errorf("binding of exchange %q to %q: %w", d.Exchange, b.targetName(), ErrNotFound)
	}
	return nil
}

// editor makes a topology out of another. It copies at the first real change, so that no
// change gives the original back.
type editor struct {
	*topology
	copied  bool
	own     *exchange // the exchange that it copied last, for the next binding of the same
	created []queueDef
	removed []queueDef

	ownSchedules bool // its tree of schedules is its own
}

func (e *editor) write() *topology {
	if !e.copied {
		e.topology, e.copied = e.topology.clone(), true
	}
	return e.topology
}

// writeExchange returns an exchange to change in the place of ex, which is of this topology.
func (e *editor) writeExchange(ex *exchange) *exchange {
	if ex != e.own {
		e.own = ex.clone()
		e.write().putExchange(e.own)
	}
	return e.own
}

func (e *editor) addExchange(d Exchange) error {
	if have, ok := e.exchangeNamed(d.Name); ok {
		return d.compare(have.Exchange)
	}
	if e.exchangeNames.Len()-1 >= e.limits.exchanges {
		return fmt.Errorf("exchange %q: the limit is %d exchanges: %w", d.Name, e.limits.exchanges, ErrTooMany)
	}
	e.write().putExchange(newExchange(d))
	return nil
}

func (e *editor) addQueue(d Queue) error {
	if have, ok := e.queue(d.Name); ok {
		return d.compare(have.Queue)
	}
	if e.queueNames.Len()-1 >= e.limits.queues {
		return fmt.Errorf("queue %q: the limit is %d queues: %w", d.Name, e.limits.queues, ErrTooMany)
	}
	if d.SingleActiveConsumer && e.nextID > lastEpochs {
		return fmt.Errorf("queue %q: the ids of queues with epochs are used up: %w", d.Name, ErrTooMany)
	}
	t := e.write()
	q := &queueDef{t.nextID, d}
	t.nextID++
	t.putQueue(q)
	e.created = append(e.created, *q)
	return nil
}

func (e *editor) addBinding(d Binding) error {
	ex, ok := e.exchangeNamed(d.Exchange)
	if !ok {
		return noExchange(d.Exchange)
	}
	if err := d.validateFor(ex.Kind); err != nil {
		return err
	}
	var id queueID
	if d.Queue != "" {
		q, ok := e.queue(d.Queue)
		if !ok {
			return fmt.Errorf("queue %q: %w", d.Queue, ErrNotFound)
		}
		id = q.id
	} else if _, ok := e.exchangeNamed(d.Destination); !ok {
		return noExchange(d.Destination)
	}
	b := newBinding(d, ex.Kind, id)
	if ex.bindings.Has(b) {
		return nil
	}
	if e.inbound.Len() >= e.limits.bindings {
		return fmt.Errorf("binding of exchange %q to %q: the limit is %d bindings: %w",
			d.Exchange, b.targetName(), e.limits.bindings, ErrTooMany)
	}
	e.write().inbound.ReplaceOrInsert(b)
	e.writeExchange(ex).add(b)
	return nil
}

func (e *editor) removeExchange(name string) {
	ex, ok := e.exchangeNamed(name)
	if !ok {
		return
	}
	t := e.write()
	e.removeInbound(&binding{Binding: Binding{Destination: name, Weight: -1}})
	// Its bindings to itself are gone, from inbound and perhaps from a copy of ex.
	ex.bindings.Ascend(func(b *binding) bool {
		t.inbound.Delete(b)
		return true
	})
	t.exchangeNames.Delete(named[*exchange]{name: name})
}

func (e *editor) removeQueue(name string) {
	q, ok := e.queueNames.Get(named[*queueDef]{name: name})
	if !ok {
		return
	}
	t := e.write()
	e.removeInbound(&binding{Binding: Binding{Queue: name, Weight: -1}})
	t.queueNames.Delete(q)
	t.queueIDs.Delete(numbered{id: q.value.id})
	t.updated.Delete(updated{id: q.value.id})
	t.owners.Delete(owned{id: q.value.id})
	t.transients.Delete(numbered{id: q.value.id})
	e.removed = append(e.removed, *q.value)
}

func (e *editor) removeBinding(d Binding) {
	ex, ok := e.exchangeNamed(d.Exchange)
	if !ok {
		return
	}
	b, ok := ex.bindings.Get(newBinding(d, ex.Kind, 0))
	if !ok {
		return
	}
	e.write().inbound.Delete(b)
	e.writeExchange(ex).remove(b)
}

// removeInbound removes all bindings to the target of first, which sorts before them.
func (e *editor) removeInbound(first *binding) {
	var gone []*binding
	e.write().inbound.AscendGreaterOrEqual(first, func(b *binding) bool {
		if !b.sameTarget(first) {
			return false
		}
		gone = append(gone, b)
		return true
	})
	for _, b := range gone {
		ex, ok := e.exchangeNamed(b.Exchange)
		invariant.Check(ok, "a binding of no exchange")
		e.inbound.Delete(b)
		e.writeExchange(ex).remove(b)
	}
}

func (t *topology) putExchange(ex *exchange) {
	t.exchangeNames.ReplaceOrInsert(named[*exchange]{ex.Name, ex})
}

func (t *topology) putQueue(q *queueDef) {
	t.queueNames.ReplaceOrInsert(named[*queueDef]{q.Name, q})
	t.queueIDs.ReplaceOrInsert(numbered{q.id, q})
	if q.Transient {
		t.transients.ReplaceOrInsert(numbered{q.id, q})
	}
}

func (t *topology) exchangeNamed(name string) (*exchange, bool) {
	e, ok := t.exchangeNames.Get(named[*exchange]{name: name})
	return e.value, ok
}

// queue returns the queue of that name.
func (t *topology) queue(name string) (queueDef, bool) {
	q, ok := t.queueNames.Get(named[*queueDef]{name: name})
	if !ok {
		return queueDef{}, false
	}
	return *q.value, true
}

// queueByID returns the queue of that incarnation, if that is the present one.
func (t *topology) queueByID(id queueID) (queueDef, bool) {
	q, ok := t.queueIDs.Get(numbered{id: id})
	if !ok {
		return queueDef{}, false
	}
	return *q.def, true
}

// queues yields all queues, ParkingQueue included, in the order of their names.
func (t *topology) queues(yield func(queueDef) bool) {
	t.queueNames.Ascend(func(q named[*queueDef]) bool { return yield(*q.value) })
}

// exchanges yields what was declared, so not the default exchange, in the order of names.
func (t *topology) exchanges(yield func(Exchange) bool) {
	t.exchangeNames.Ascend(func(ex named[*exchange]) bool { return ex.name == "" || yield(ex.value.Exchange) })
}

// bindings yields all bindings with their defaults applied, by exchange, target and key.
// The Headers are the topology's own and must not be changed.
func (t *topology) bindings(yield func(Binding) bool) {
	t.exchangeNames.Ascend(func(ex named[*exchange]) bool {
		on := true
		ex.value.bindings.Ascend(func(b *binding) bool {
			on = yield(b.Binding)
			return on
		})
		return on
	})
}

// bindingsOf is the number of bindings that lead away from the exchange.
func (t *topology) bindingsOf(exchange string) int {
	ex, ok := t.exchangeNamed(exchange)
	if !ok {
		return 0
	}
	return ex.bindings.Len()
}

// The encoding of a topology, for checkpoints:
//
//	version 1 | next id
//	count | count times: an exchange                    by name
//	count | count times: id, a queue, its revision and owner    by name, see appendRevision and appendOwner
//	count | count times: a binding                      as bindings yields them
//	count | count times: id, a schedule                 by name
//
// with the parts as declare.go encodes them. Everything is in the one order it can have,
// so equal topologies have equal encodings, whatever their history.
const topologyVersion = 1

func (t *topology) appendTo(dst []byte) []byte {
	dst = append(dst, topologyVersion)
	dst = wire.AppendUvarint(dst, uint64(t.nextID))
	dst = wire.AppendUvarint(dst, uint64(t.exchangeNames.Len()-1))
	t.exchanges(func(d Exchange) bool {
		dst = d.appendTo(dst)
		return true
	})
	dst = wire.AppendUvarint(dst, uint64(t.queueNames.Len()))
	t.queues(func(q queueDef) bool {
		dst = wire.AppendUvarint(dst, uint64(q.id))
		dst = t.appendOwner(t.appendRevision(q.Queue.appendTo(dst), q.id), q)
		return true
	})
	dst = wire.AppendUvarint(dst, uint64(t.inbound.Len()))
	t.bindings(func(d Binding) bool {
		dst = d.appendTo(dst)
		return true
	})
	return t.appendSchedules(dst)
}

// decodeTopology reads what appendTo wrote: what could not have been declared, or is not in the
// one order, is wire.ErrMalformed. limits hold for later declarations. What was
// written when they were higher is kept, as a broker must open what it stored.
func decodeTopology(r *wire.Reader, limits topologyLimits) (*topology, error) {
	t, err := decodeTopologyBody(r)
	if err != nil {
		r.Fail()
		return nil, fmt.Errorf("topology: %w", err)
	}
	t.limits = limits.withDefaults()
	return t, nil
}

func decodeTopologyBody(r *wire.Reader) (*topology, error) {
	if r.Byte() != topologyVersion {
		return nil, wire.ErrMalformed
	}
	e := editor{topology: newTopology(topologyLimits{}), copied: true}
	e.nextID = queueID(r.Uvarint())
	last := ""
	for range r.Count(3) {
		d := decodeExchange(r)
		if r.Err() != nil || d.Name <= last || d.validate() != nil {
			return nil, wire.ErrMalformed
		}
		if err := e.addExchange(d); err != nil {
			return nil, fmt.Errorf("%w: %w", wire.ErrMalformed, err)
		}
		last = d.Name
	}
	if err := e.decodeQueues(r); err != nil {
		return nil, err
	}
	var before *binding
	for range r.Count(6) {
		d := decodeBinding(r)
		if r.Err() != nil || d.validate() != nil {
			return nil, wire.ErrMalformed
		}
		if err := e.addBinding(d); err != nil {
			return nil, fmt.Errorf("%w: %w", wire.ErrMalformed, err)
		}
		ex, _ := e.exchangeNamed(d.Exchange)
		b := newBinding(d, ex.Kind, 0)
		if before != nil && compareBinding(before, b) >= 0 || b.Weight != d.Weight {
			return nil, wire.ErrMalformed
		}
		before = b
	}
	if r.Err() != nil || e.decodeSchedules(r) != nil {
		return nil, wire.ErrMalformed
	}
	return e.topology, nil
}

func (e *editor) decodeQueues(r *wire.Reader) error {
	last, parked := "", false
	for range r.Count(12) {
		q := &queueDef{id: queueID(r.Uvarint()), Queue: decodeQueue(r)}
		if r.Err() != nil || q.Name <= last || q.id == 0 || q.id >= e.nextID || !q.Queue.equal(q.withDefaults()) {
			return wire.ErrMalformed
		}
		last = q.Name
		changed := e.decodeRevision(r, q)
		e.decodeOwner(r, q)
		if q.Name == ParkingQueue {
			if have, _ := e.queue(ParkingQueue); q.id != have.id || !q.Queue.equal(have.Queue) || changed {
				return wire.ErrMalformed
			}
			parked = true
			continue
		}
		if _, taken := e.queueByID(q.id); taken || q.validate() != nil {
			return wire.ErrMalformed
		}
		if e.queueNames.Len() > MaxQueues {
			return fmt.Errorf("%w: %w", wire.ErrMalformed, ErrTooMany)
		}
		e.putQueue(q)
	}
	if !parked || r.Err() != nil {
		return wire.ErrMalformed
	}
	return nil
}

// durable is t without its transient queues.
func (t *topology) durable() *topology {
	if t.transients.Len() == 0 {
		return t
	}
	change := editor{topology: t}
	t.transients.Ascend(func(n numbered) bool {
		change.removeQueue(n.def.Name)
		return true
	})
	return change.topology
}

// within is t with other limits for the next declare.
func (t *topology) within(limits topologyLimits) *topology {
	next := *t
	next.limits = limits.withDefaults()
	return &next
}

// topologyOf is the topology of a shard that holds one queue.
func topologyOf(def queueDef) *topology {
	t := newTopology(topologyLimits{})
	t.queueNames.Clear(false)
	t.queueIDs.Clear(false)
	t.transients.Clear(false)
	t.putQueue(&def)
	t.nextID = def.id + 1
	return t
}
