package bourse_test

// Goal: whatever sequence of calls is made, the broker does what a naive reading of the semantics says. Method:
// rapid draws sequences of operations, which go to a broker and to the reference in model_reference_test.go. After
// every operation the broker comes to rest, and then deliveries, answers and statistics of every queue must be
// equal. The broker lives in a file system in memory with small segments, is closed and opened again, or dies and is
// recovered from what a killed process leaves, and its clock is moved by hand. A failure prints its seed, and
// "-rapid.seed" with it replays the sequence.

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

var sequences = flag.Int("sequences", 300, "random sequences of calls in TestModelAPI")

func TestModelAPI(t *testing.T) {
	noLeaks(t)
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	require.NoError(t, checks.Value.Set(strconv.Itoa(*sequences)))
	defer func() { require.NoError(t, checks.Value.Set(before)) }()
	operations := 0
	rapid.Check(t, func(t *rapid.T) {
		s := newSequence(t)
		for range rapid.IntRange(10, 100).Draw(t, "length") {
			s.pass(time.Microsecond) // no two operations at one instant
			s.operation()
			s.compare()
			operations++
		}
	})
	t.Logf("%d sequences, %d operations", *sequences, operations)
}

// sequence is one sequence in progress.
type sequence struct {
	t     *rapid.T
	clock *handClock
	fs    *storage.MemFS
	b     *bourse.Broker
	ref   *reference
	subs  map[int]*bourse.Subscription // by the number of the consumer in ref
	loans []held
	sent  int

	aligned uint64            // see align
	epochs  map[string]uint64 // the highest, by queue
	waiting []*pending        // publishes that wait for room

	chosen map[string]string // what the hash exchange chose, by key and bindings
}

// held is a delivery that the sequence has taken and may settle.
type held struct {
	*bourse.Delivery
	consumer *refConsumer
}

var (
	modelQueues    = []string{"a", "b", "c"} // that bindings lead to
	allQueues      = []string{"a", "b", "c", "a", "b", "c", "full", "full", "memory", "plan"}
	somewhere      = append([]string{bourse.ParkingQueue}, allQueues...)
	modelExchanges = []string{"direct", "fanout", "topic", "headers", "hash"}
	modelKeys      = []string{"a", "b", "a.b", "x.a", ""}
	modelPatterns  = []string{"a", "*", "#", "a.#", "*.a", ""}
)

func newSequence(t *rapid.T) *sequence {
	s := &sequence{t: t, clock: newHandClock(), fs: new(storage.MemFS), subs: map[int]*bourse.Subscription{}, chosen: map[string]string{},
		epochs: map[string]uint64{}}
	s.ref = newReference(s.clock)
	s.openBroker()
	t.Cleanup(func() { require.NoError(t, s.b.Close()) }) // also when a draw is cut short
	for _, name := range modelExchanges[:3] {
		s.declare(s.exchange(name))
	}
	for _, name := range append([]string{"full", "memory", "plan"}, modelQueues[:2]...) {
		s.declare(s.queue(name))
	}
	s.declare(bourse.Exchange{Name: "wide", Kind: bourse.Fanout})
	for range 3 {
		s.declare(s.binding())
	}
	return s
}

func (s *sequence) openBroker() {
	e, err := bourse.NewLocalEngine("data", bourse.LocalOptions{FS: s.fs, SegmentBytes: 8 << 10, CheckpointBytes: 4 << 10})
	require.NoError(s.t, err)
	compression := one(s.t, "compression", []bourse.Compression{bourse.CompressAuto, bourse.CompressOff})
	s.b, err = bourse.NewBroker(ctx, bourse.Options{Engine: e, Clock: s.clock, Compression: compression})
	require.NoError(s.t, err)
}

// one of list.
func one[T any](t *rapid.T, what string, list []T) T { return rapid.SampledFrom(list).Draw(t, what) }

func (s *sequence) exchange(name string) bourse.Exchange {
	kinds := map[string]bourse.ExchangeKind{
		"fanout": bourse.Fanout, "topic": bourse.Topic, "headers": bourse.HeadersMatch, "hash": bourse.ConsistentHash,
	}
	return bourse.Exchange{Name: name, Kind: kinds[name], Alternate: one(s.t, "alternate", append([]string{"", "missing"},
		s.later(name)...))}
}

// later are the exchanges that an exchange may lead to: without circles, in which what is asked first decides, and not to
// the hash exchange, whose choice is not predicted.
func (s *sequence) later(name string) []string {
	if name == "hash" {
		return modelExchanges[:4]
	}
	return modelExchanges[slices.Index(modelExchanges, name)+1 : 4]
}

func (s *sequence) queue(name string) bourse.Queue {
	q := bourse.Queue{
		Name: name, Priorities: one(s.t, "priorities", []int{0, 3, 256}),
		MaxRetries: one(s.t, "retries", []int{0, bourse.NoRetry, bourse.NoLimit, 1, 2}),
		Retry: one(s.t, "retry", []bourse.Backoff{
			{}, {Min: time.Second}, {Min: time.Second, AtTail: true},
			{Min: time.Second, Max: 3 * time.Second}, {Min: time.Second, Max: 20 * time.Second, Factor: 4},
			{Pauses: []time.Duration{time.Second, 0, 7 * time.Second}},
		}),
		AckDeadline: one(s.t, "deadline", []time.Duration{0, 5 * time.Second, time.Minute}),
		TTL:         one(s.t, "ttl", []time.Duration{0, 0, 0, 15 * time.Second, 30 * time.Minute, bourse.NoWait}),
		Transient:   name == "memory",
	}
	q.SingleActiveConsumer = rapid.IntRange(0, 3).Draw(s.t, "single active consumer") == 0
	q.Retry.AtTail = one(s.t, "at the tail", []bool{false, false, true})
	q.GroupConcurrency = one(s.t, "group concurrency", []int{0, 0, 2, bourse.NoLimit})
	q.Dedup = one(s.t, "dedup", []bourse.Dedup{
		{}, {}, {Window: 20 * time.Second}, {Window: time.Minute, OnDuplicate: bourse.ReplaceWaiting, MaxIDs: 2}, {UntilDone: true},
		{UntilDone: true, OnDuplicate: bourse.ReplaceWaiting}, {UntilDone: true, OnDuplicate: bourse.BumpWaiting, MaxIDs: 3},
	})
	if q.Priorities > 0 {
		q.Fairness = one(s.t, "fairness", []bourse.Fairness{
			{}, {LowerOneIn: 2}, {LowerOneIn: 3, Aging: time.Second}, {Aging: 500 * time.Millisecond}, {Aging: time.Minute},
		})
		q.BumpOnRedelivery = rapid.Bool().Draw(s.t, "bump")
	}
	q.Rate = one(s.t, "rate", []bourse.Rate{
		{}, {}, {}, {Deliveries: 1}, {Deliveries: 2, Per: 7 * time.Second, Burst: 1}, {Deliveries: 3, Burst: 2},
	})
	q.Inbox = one(s.t, "inbox", []bourse.InboxMemory{{}, {Window: 20 * time.Second}, {Window: time.Hour, MaxIDs: 2}})
	switch rapid.IntRange(0, 7).Draw(s.t, "dead letter") {
	case 0:
		q.DeadLetter.Discard = true
	case 1: // the parking queue
	default:
		q.DeadLetter.Exchange = one(s.t, "dead-letter exchange", append([]string{"missing"}, modelExchanges[:4]...))
		q.DeadLetter.RoutingKey = one(s.t, "dead-letter key", modelKeys)
	}
	if q.Transient { // what dies by itself in two shards at one instant would arrive in any order
		q.DeadLetter, q.MaxRetries = bourse.DeadLetter{Discard: rapid.Bool().Draw(s.t, "discard")}, bourse.NoLimit
	}
	s.limit(&q)
	s.straighten(&q)
	return q
}

func (s *sequence) binding() bourse.Binding {
	if rapid.IntRange(0, 4).Draw(s.t, "wide") == 0 {
		return bourse.Binding{Exchange: "wide", Queue: one(s.t, "queue", []string{"a", "full", "memory"})}
	}
	d := bourse.Binding{Exchange: one(s.t, "exchange", modelExchanges)}
	if to := s.later(d.Exchange); d.Exchange == "hash" || len(to) == 0 || rapid.IntRange(0, 3).Draw(s.t, "target") > 0 {
		d.Queue = one(s.t, "queue", modelQueues)
	} else {
		d.Destination = one(s.t, "destination", to)
	}
	switch d.Exchange {
	case "headers":
		d.Headers = one(s.t, "criteria", []map[string]any{
			nil, {"h": 1}, {"h": 1, "g": nil}, {"h": 1, "g": "x", "x-match": "any"}, {"x-h": 1, "x-match": "any"},
			{"x-h": 1, "x-match": "all-with-x"}, {"x-h": 1, "h": "1", "x-match": "any-with-x"},
		})
	case "hash":
		d.Weight = one(s.t, "weight", []int{0, 1, 3, -1})
	default:
		d.Key = one(s.t, "key", modelPatterns)
	}
	return d
}

func (s *sequence) message() bourse.Message {
	s.sent++
	m := bourse.Message{
		Exchange:   one(s.t, "exchange", append([]string{"", "", "", "", "missing", "wide"}, modelExchanges...)),
		RoutingKey: one(s.t, "key", modelKeys), Mandatory: rapid.Bool().Draw(s.t, "mandatory"),
		Priority: one(s.t, "priority", []uint8{0, 1, 2, 255}), Body: []byte(strconv.Itoa(s.sent)),
		GroupID: one(s.t, "group", []string{"", "", "g", "h"}),
		Headers: one(s.t, "headers", []map[string]any{nil, {"h": 1}, {"h": 1.0, "g": "x"}, {"h": "1"}, {"x-h": 1}}),
	}
	if m.Exchange == "" {
		m.RoutingKey = one(s.t, "key", append([]string{"x"}, allQueues...))
	}
	m.TTL = one(s.t, "ttl", []time.Duration{0, 0, 0, bourse.NoWait, 10 * time.Second})
	switch rapid.IntRange(0, 9).Draw(s.t, "delay") {
	case 0:
		m.Delay = one(s.t, "delay", []time.Duration{time.Second, time.Minute})
	case 1:
		m.DeliverAt = s.clock.Now().Add(one(s.t, "deliver in", []time.Duration{-time.Second, 4 * time.Second}))
	}
	m.Timestamp = one(s.t, "timestamp", []time.Time{{}, time.Unix(1, 0)})
	if m.Exchange != "hash" { // where it must be seen to arrive
		m.ID = one(s.t, "id", []string{"", "", "x", "y", "z", "u", "v"})
	}
	if rapid.IntRange(0, 9).Draw(s.t, "large") == 0 {
		m.Body = append(m.Body, make([]byte, largeBody)...)
		// A huge one is only sent where it is refused: no queue that it died from would bring it to one that has a limit.
		if q := s.ref.queue(m.RoutingKey); m.Exchange == "" && q != nil && q.MaxBytes > 0 && rapid.Bool().Draw(s.t, "huge") {
			m.Body = append(m.Body, make([]byte, hugeBody)...)
		}
	}
	return m
}

// operation draws one operation and does it on both sides.
func (s *sequence) operation() {
	pass := func() {
		s.pass(one(s.t, "time", []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, time.Minute, time.Hour}))
	}
	ops := []func(){
		s.publish, s.publish, s.publish, s.publish, s.publishBatch, s.subscribe, s.closeSubscription, s.take, s.take, s.take, s.settle,
		s.settle, s.settle, s.settle, s.ackUpTo, s.get, s.get, s.purge, s.amend, s.amend, pass, pass, s.restart, s.crash,
		func() { s.declare(s.binding()) }, func() { s.declare(s.binding()) }, func() {
			s.declare(s.queue(one(s.t, "queue", allQueues)))
		},
		func() { s.declare(s.exchange(one(s.t, "exchange", modelExchanges))) }, s.remove, s.update,
		s.publishAtomic, s.ackAndPublish, s.ackAndPublish,
		s.pause, s.plan, s.giveUp, s.crowd,
	}
	ops[rapid.IntRange(0, len(ops)-1).Draw(s.t, "operation")]()
}

// same compares what a call returned with the sentinel that the reference expects; nil is success.
func (s *sequence) same(err, want error, format string, args ...any) {
	if want == nil {
		require.NoError(s.t, err, format, args)
		return
	}
	require.ErrorIs(s.t, err, want, format, args)
}

func (s *sequence) declare(ds ...bourse.Declaration) {
	want := s.ref.declare(ds)
	s.same(s.b.Declare(ctx, ds...), want, "declare %+v", ds)
	if want == nil {
		require.NoError(s.t, s.b.Check(ds...))
	}
}

func (s *sequence) update() {
	q := s.queue(one(s.t, "queue", allQueues))
	s.keepKind(&q)
	s.same(s.b.Update(ctx, q), s.ref.update(q), "update %+v", q)
}

func (s *sequence) remove() {
	var d bourse.Declaration
	switch rapid.IntRange(0, 4).Draw(s.t, "kind") {
	case 0:
		d = bourse.Queue{Name: s.removable()}
	case 1:
		d = bourse.Exchange{Name: one(s.t, "exchange", modelExchanges)}
	default:
		d = s.binding()
		if all := s.ref.bindings; len(all) > 0 {
			d = one(s.t, "binding", all)
		}
	}
	only := bourse.DeleteOnly{IfUnused: rapid.Bool().Draw(s.t, "if unused"), IfEmpty: rapid.Bool().Draw(s.t, "if empty")}
	s.same(s.b.DeleteIf(ctx, only, d), s.ref.remove(only, d), "delete %+v %+v", only, d)
}

// removable draws a queue to delete. Not one where several wait who would go elsewhere then: nobody says in which order.
func (s *sequence) removable() string {
	name := one(s.t, "queue", allQueues)
	if q := s.ref.queue(name); q != nil && len(q.line) > 1 {
		return "missing"
	}
	return name
}

func (s *sequence) publish() {
	m := s.message()
	shares := s.ref.shares()
	if m.Exchange == "hash" {
		m.TTL = 0
		// What leaves a queue again at once arrives elsewhere, and hides what was chosen.
		if slices.ContainsFunc(shares, func(name string) bool {
			q := s.ref.queue(name)
			return q.limited() || q.TTL == bourse.NoWait
		}) {
			m.Exchange = "direct"
		}
	}
	routed, want := s.ref.route(m.Exchange, m.RoutingKey, m.Headers)
	if m.Exchange != "hash" || want != nil || len(shares) == 0 {
		s.send(m, s.ref.publish(m, routed, want))
		return
	}
	// The hash chooses one of the shares, and the same whenever key and shares are the same.
	before := s.arrived()
	require.NoError(s.t, s.b.Publish(ctx, m))
	var chosen []string
	for name, n := range s.arrived() {
		if n != before[name] {
			require.Equal(s.t, before[name]+1, n)
			chosen = append(chosen, name)
		}
	}
	require.Len(s.t, chosen, 1)
	require.Contains(s.t, shares, chosen[0])
	state := fmt.Sprint(m.RoutingKey, s.ref.hashBindings())
	if had, ok := s.chosen[state]; ok {
		require.Equal(s.t, had, chosen[0])
	}
	s.chosen[state] = chosen[0]
	p := s.ref.publish(m, []*refQueue{s.ref.queue(chosen[0])}, nil)
	require.True(s.t, p.known && p.err == nil)
}

// arrived is how many messages have come to each queue.
func (s *sequence) arrived() map[string]uint64 {
	n := map[string]uint64{}
	for _, q := range s.b.Stats().Queues {
		n[q.Name] = q.Enqueued
	}
	return n
}

func (s *sequence) publishBatch() {
	var ms []bourse.Message
	var wants []error
	for range rapid.IntRange(1, 5).Draw(s.t, "batch") {
		m := s.message()
		if m.Exchange == "hash" {
			m.Exchange = "" // several at once do not tell its choice
		}
		routed, want := s.ref.route(m.Exchange, m.RoutingKey, m.Headers)
		if slices.ContainsFunc(routed, func(q *refQueue) bool { return q.Overflow == bourse.Block }) {
			continue // it could wait, and the batch with it
		}
		wants = append(wants, s.ref.publish(m, routed, want).err)
		ms = append(ms, m)
	}
	err := s.b.PublishBatch(ctx, ms)
	var batch *bourse.BatchError
	if !errors.As(err, &batch) {
		require.NoError(s.t, err)
		batch = &bourse.BatchError{Errs: make([]error, len(ms))}
	}
	for i, want := range wants {
		s.same(batch.Errs[i], want, "message %d", i)
	}
}

func (s *sequence) subscribe() {
	name, prefetch := one(s.t, "queue", somewhere), rapid.IntRange(0, 4).Draw(s.t, "prefetch")
	opts := bourse.SubscribeOptions{
		Prefetch: prefetch, Priority: one(s.t, "priority", []int{0, 0, 0, 1, -1}), AutoAck: rapid.IntRange(0, 4).Draw(s.t, "auto") == 0,
	}
	sub, err := s.b.Subscribe(ctx, name, opts)
	n, want := s.ref.subscribe(name, opts)
	s.same(err, want, "subscribe to %s", name)
	if err == nil {
		s.subs[n] = sub
	}
}

// consumer draws one of those that were made and not closed here.
func (s *sequence) consumer() (int, bool) {
	if len(s.subs) == 0 {
		return 0, false
	}
	all := slices.Sorted(maps.Keys(s.subs))
	return one(s.t, "consumer", all), true
}

func (s *sequence) closeSubscription() {
	if n, ok := s.consumer(); ok {
		require.NoError(s.t, s.subs[n].Close())
		s.ref.closeConsumer(n)
		delete(s.subs, n)
	}
}

func (s *sequence) take() {
	n, ok := s.consumer()
	if !ok {
		return
	}
	c := s.ref.consumers[n]
	if limit := rapid.IntRange(0, 3).Draw(s.t, "limit"); limit > 1 && !c.auto { // who acks itself gets more meanwhile
		s.takeBatch(n, limit)
		return
	}
	d, err := s.subs[n].Next(&lookContext{Context: ctx})
	want, wantErr := s.ref.next(n)
	if wantErr == nil && want == nil {
		require.Error(s.t, err, "delivery of nothing")
		return
	}
	s.same(err, wantErr, "next")
	if err == nil {
		s.delivered(d, want)
		s.loans = append(s.loans, held{d, c})
	}
}

func (s *sequence) takeBatch(n, limit int) {
	ds, err := s.subs[n].NextBatch(&lookContext{Context: ctx}, limit)
	for i := range limit {
		want, wantErr := s.ref.next(n)
		switch {
		case want != nil:
			require.Less(s.t, i, len(ds))
			s.delivered(ds[i], want)
			s.loans = append(s.loans, held{ds[i], s.ref.consumers[n]})
			continue
		case wantErr != nil:
			require.ErrorIs(s.t, err, wantErr)
		case i == 0:
			require.Error(s.t, err)
		}
		require.Len(s.t, ds, i)
		return
	}
	require.NoError(s.t, err)
	require.Len(s.t, ds, limit)
}

func (s *sequence) get() {
	name := one(s.t, "queue", somewhere)
	d, err := s.b.Get(ctx, name)
	want, c, wantErr := s.ref.get(name)
	s.same(err, wantErr, "get from %s", name)
	if err == nil {
		s.delivered(d, want)
		s.loans = append(s.loans, held{d, c})
	}
}

func (s *sequence) delivered(d *bourse.Delivery, want *refLoan) {
	type view struct {
		body, exchange, key, deaths string
		group                       string
		priority                    uint8
		ttl                         time.Duration
		at                          int64
		tag                         uint64
		deliveries, failures        int
	}
	have := view{string(d.Body), d.Exchange, d.RoutingKey, "", d.GroupID, d.Priority, d.TTL, d.DeliverAt.UnixNano(), d.Tag,
		d.Deliveries, d.Failures}
	for _, x := range d.Deaths {
		have.deaths += fmt.Sprintf("%s/%s/%d/%d/%v ", x.Queue, x.Reason, x.Count, x.Failures, x.TTL)
	}
	m := want.m
	require.Equal(s.t, view{string(m.Body), m.Exchange, m.RoutingKey, m.history(), m.GroupID, m.Priority, m.TTL,
		m.DeliverAt.UnixNano(), want.tag, want.deliveries,
		want.failures}, have)
	require.True(s.t, want.deadline.Equal(d.Deadline()), "deadline")
	require.True(s.t, want.arrived.Equal(d.EnqueuedAt), "arrival")
	require.Len(s.t, d.Headers, len(m.Headers))
	s.seen(d, want.consumer.q)
	require.Equal(s.t, want.consumer.epoch, d.Epoch())
}

func (s *sequence) settle() {
	if len(s.loans) == 0 {
		return
	}
	i := rapid.IntRange(0, len(s.loans)-1).Draw(s.t, "loan")
	d := s.loans[i]
	if rapid.IntRange(0, 5).Draw(s.t, "forget") > 0 { // else it may be settled again
		s.loans = append(s.loans[:i:i], s.loans[i+1:]...)
	}
	pause := one(s.t, "pause", []time.Duration{0, time.Second, 10 * time.Second})
	verdicts := []struct {
		name string
		call func() error
	}{
		{"ack", d.Ack}, {"ack", func() error { return d.AckSync(ctx) }}, {"nack", d.Nack}, {"nack", d.Nack},
		{"after", func() error { return d.NackAfter(pause) }}, {"reject", func() error { return d.Reject("no") }},
		{"done", func() error { return s.done(d) }}, {"done", func() error { return s.done(d) }},
		{"release", func() error { return d.Release(pause) }}, {"extend", func() error { return d.Extend(pause + time.Second) }},
	}
	v := verdicts[rapid.IntRange(0, len(verdicts)-1).Draw(s.t, "verdict")]
	err := v.call()
	want := s.ref.settle(d.consumer, d.Tag, v.name, pause)
	s.same(err, want, "%s tag %d of %s", v.name, d.Tag, d.Queue)
	if v.name == "done" && want == nil {
		d.consumer.q.record(d.ID, s.clock.Now())
	}
}

func (s *sequence) ackUpTo() {
	n, ok := s.consumer()
	if !ok {
		return
	}
	tag := uint64(rapid.IntRange(0, 6).Draw(s.t, "tag"))
	s.same(s.subs[n].AckUpTo(tag), s.ref.ackUpTo(n, tag), "ack up to %d", tag)
}

func (s *sequence) pause() {
	name := one(s.t, "queue", allQueues)
	if rapid.IntRange(0, 2).Draw(s.t, "resume") > 0 {
		s.same(s.b.Resume(ctx, name), s.ref.pause(name, false), "resume %s", name)
	} else {
		s.same(s.b.Pause(ctx, name), s.ref.pause(name, true), "pause %s", name)
	}
}

func (s *sequence) purge() {
	name := one(s.t, "queue", allQueues)
	n, err := s.b.Purge(ctx, name)
	count, want := s.ref.purge(name)
	s.same(err, want, "purge %s", name)
	require.Equal(s.t, count, n)
}

// pass moves the clock, and both sides from one instant with something due to the next.
func (s *sequence) pass(d time.Duration) {
	limit := s.clock.Now().Add(d)
	for s.clock.step(limit) {
		barrier(s.t, s.b, s.clock)
	}
	s.ref.pass(limit)
}

func (s *sequence) restart() {
	require.NoError(s.t, s.b.Close())
	s.closed()
	s.reopened(false)
}

func (s *sequence) crash() {
	fs := crashed(s.fs)
	require.NoError(s.t, s.b.Close()) // the old one goes on, in a file system that nobody looks at again
	s.closed()
	s.fs = fs
	s.reopened(true)
}

func (s *sequence) reopened(lost bool) {
	// Time passes only if there were no loans: who finds first that one is over, its deadline or the new session, is open.
	if down := one(s.t, "down", []time.Duration{0, 0, time.Minute, 50 * time.Minute, 9 * time.Hour}); !s.ref.lends() {
		s.clock.step(s.clock.Now().Add(down))
	}
	s.openBroker()
	s.subs = map[int]*bourse.Subscription{}
	s.loans = nil
	s.ref.reopen(lost)
}

// compare lets the broker come to rest and compares all that Stats shows.
func (s *sequence) compare() {
	barrier(s.t, s.b, s.clock)
	s.ref.rests()
	s.heard()
	s.compareSchedules()
	s.activity()
	st := s.b.Stats()
	var have []bourse.QueueStats
	references := 0
	for _, q := range st.Queues {
		s.epochOf(&q)
		q.Bytes, q.LengthBytes, q.Oldest, q.IDs, q.InboxIDs = 0, 0, 0, 0, 0
		have = append(have, q)
		if q.Name != "memory" {
			references += q.Ready + q.Unacked + q.Delayed + q.Dying
		}
	}
	require.Equal(s.t, s.ref.stats(), have)
	require.EqualValues(s.t, references, st.Storage.References, "references into the log")
	require.Equal(s.t, len(s.waiting), st.Pending)
	s.align()
}
