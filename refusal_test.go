package bourse_test

// Goal: every input that a caller can get wrong is refused with the error that the documentation names, the text
// says what and where, and nothing has changed. Method: one table. Before and after each row the topology and the
// statistics are compared, and rows that need no look at the queues must not even reach the log. What stands
// at a limit is in the table of what is accepted.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// refusal is one row: call must return an error that matches is and whose text has all of says.
type refusal struct {
	name string
	call func() error
	is   error
	says []string
	log  int // commands that the call may bring into the log
}

func long(n int) string { return strings.Repeat("x", n) }

// badNames are names that nothing may have, with what the error says of them.
var badNames = []struct{ what, name, says string }{
	{"too long", long(256), "256 bytes"},
	{"too long in bytes", strings.Repeat("é", 128), "256 bytes"},
	{"not UTF-8", "a\xff", "UTF-8"},
	{"half a rune", "\xe2\x82", "UTF-8"},
	{"NUL", "a\x00b", "control character at byte 1"},
	{"newline", "a\n", "control character"},
	{"delete", "\x7f", "control character"},
	{"C1 control", "a\u0085", "control character"},
}

func headers(n int) map[string]any {
	h := make(map[string]any, n)
	for i := range n {
		h[fmt.Sprintf("h%02d", i)] = i
	}
	return h
}

// badHeaders are headers that neither messages nor bindings may have.
var badHeaders = []struct {
	what    string
	headers map[string]any
	says    string
}{
	{"too many", headers(65), "65 headers"},
	{"too large", map[string]any{"h": make([]byte, 64<<10)}, "bytes encoded"},
	{"too large together", map[string]any{"a": long(33 << 10), "b": long(33 << 10)}, "bytes encoded"},
	{"a struct", map[string]any{"h": struct{}{}}, `"h" is a struct {}`},
	{"a map", map[string]any{"h": map[string]any{}}, `"h" is a map`},
	{"a list", map[string]any{"h": []string{"x"}}, `"h" is a []string`},
	{"a pointer", map[string]any{"h": new(int)}, `"h" is a *int`},
	{"a duration", map[string]any{"h": time.Second}, `"h" is a time.Duration`},
	{"uintptr", map[string]any{"h": uintptr(1)}, `"h" is a uintptr`},
	{"complex", map[string]any{"h": 1i}, `"h" is a complex128`},
	{"an empty name", map[string]any{"": 1}, `header "" is empty`},
	{"a long name", map[string]any{long(256): 1}, "256 bytes"},
	{"a name not UTF-8", map[string]any{"\xff": 1}, "UTF-8"},
	{"a control character", map[string]any{"a\tb": 1}, "control character"},
}

func TestRefusals(t *testing.T) {
	const maxBody = 1000
	clock := newHandClock()
	base := []bourse.Declaration{
		bourse.Exchange{Name: "direct"}, bourse.Exchange{Name: "topic", Kind: bourse.Topic, Alternate: "alt"},
		bourse.Exchange{Name: "headers", Kind: bourse.HeadersMatch}, bourse.Exchange{Name: "hash", Kind: bourse.ConsistentHash},
		bourse.Queue{Name: "q", AckDeadline: time.Minute, Priorities: 10, MaxRetries: 5, Retry: bourse.Backoff{Min: 1, Max: 2}},
		bourse.Queue{Name: "dead", DeadLetter: bourse.DeadLetter{Exchange: "direct", RoutingKey: "k"}},
		bourse.Queue{Name: "empty"},
		bourse.Binding{Exchange: "direct", Queue: "q", Key: "k"},
		bourse.Binding{Exchange: "direct", Destination: "topic", Key: "t"},
	}
	b := open(t, bourse.Options{Clock: clock, MaxBodyBytes: maxBody, MaxQueues: 4, MaxBindings: 3}, base...)
	send(t, b, "q", "one", "two", "three")
	s := consume(t, b, "q", 2)
	lent := next(t, s)

	var rows []refusal
	row := func(name string, is error, call func() error, says ...string) *refusal {
		rows = append(rows, refusal{name: name, call: call, is: is, says: says})
		return &rows[len(rows)-1]
	}
	declare := func(name string, is error, d bourse.Declaration, says ...string) *refusal {
		if q, ok := d.(bourse.Queue); ok && errors.Is(is, bourse.ErrInvalid) {
			row("update to "+name, is, func() error { return b.Update(ctx, q) }, says...)
		}
		// A good declaration before and behind shows all or none.
		return row("declare "+name, is, func() error {
			return b.Declare(ctx, bourse.Exchange{Name: "before"}, d, bourse.Exchange{Name: "behind"})
		}, says...)
	}
	publish := func(name string, is error, m bourse.Message, says ...string) {
		row("publish "+name, is, func() error { return b.Publish(ctx, m) }, says...)
		row("publish async "+name, is, func() error { return b.PublishAsync(ctx, m).Wait(ctx) }, says...)
		row("publish atomically "+name, is, func() error { return b.PublishAtomic(ctx, []bourse.Message{m}) }, says...)
		row("ack and publish "+name, is, func() error { return lent.AckAndPublish(ctx, m) }, says...)
		row("publish a batch with "+name, is, func() error { return b.PublishBatch(ctx, []bourse.Message{m}) }, says...)
	}
	invalid := bourse.ErrInvalid

	// Names and keys.
	for _, bad := range badNames {
		declare("an exchange, name "+bad.what, invalid, bourse.Exchange{Name: bad.name}, "Exchange.Name", bad.says)
		declare("an alternate, name "+bad.what, invalid, bourse.Exchange{Name: "n", Alternate: bad.name}, "Exchange.Alternate", bad.says)
		declare("a queue, name "+bad.what, invalid, bourse.Queue{Name: bad.name}, "Queue.Name", bad.says)
		declare("a dead-letter exchange, name "+bad.what, invalid,
			bourse.Queue{Name: "n", DeadLetter: bourse.DeadLetter{Exchange: bad.name}}, "Queue.DeadLetter.Exchange", bad.says)
		declare("a dead-letter key "+bad.what, invalid,
			bourse.Queue{Name: "n", DeadLetter: bourse.DeadLetter{Exchange: "x", RoutingKey: bad.name}},
			"Queue.DeadLetter.RoutingKey", bad.says)
		declare("a binding, key "+bad.what, invalid, bourse.Binding{Exchange: "direct", Queue: "q", Key: bad.name}, "Binding.Key",
			bad.says)
		declare("a binding, queue "+bad.what, invalid, bourse.Binding{Exchange: "direct", Queue: bad.name}, "Binding.Queue", bad.says)
		declare("a binding, destination "+bad.what, invalid,
			bourse.Binding{Exchange: "direct", Destination: bad.name}, "Binding.Destination", bad.says)
		declare("a binding, exchange "+bad.what, invalid, bourse.Binding{Exchange: bad.name, Queue: "q"}, "Binding.Exchange", bad.says)
		publish("a routing key "+bad.what, invalid, bourse.Message{RoutingKey: bad.name}, "Message.RoutingKey", bad.says)
		publish("a group "+bad.what, invalid, bourse.Message{RoutingKey: "q", GroupID: bad.name}, "Message.GroupID", bad.says)
		publish("an id "+bad.what, invalid, bourse.Message{RoutingKey: "q", ID: bad.name}, "Message.ID", bad.says)
		publish("to an exchange "+bad.what, bourse.ErrNoExchange, bourse.Message{Exchange: bad.name})
		row("subscribe to a queue "+bad.what, bourse.ErrNotFound, func() error {
			_, err := b.Subscribe(ctx, bad.name, bourse.SubscribeOptions{})
			return err
		})
		row("delete a queue "+bad.what, invalid, func() error { return b.Delete(ctx, bourse.Queue{Name: bad.name}) }, "Queue.Name")
		row("delete an exchange "+bad.what, invalid, func() error { return b.Delete(ctx, bourse.Exchange{Name: bad.name}) },
			"Exchange.Name")
	}
	declare("an exchange without a name", invalid, bourse.Exchange{}, "Exchange.Name", "default exchange")
	declare("a queue without a name", invalid, bourse.Queue{}, "Queue.Name", "is empty")
	declare("a reserved exchange", invalid, bourse.Exchange{Name: "bourse.x"}, "Exchange.Name", "reserved")
	declare("a reserved queue", invalid, bourse.Queue{Name: "bourse.x"}, "Queue.Name", "reserved")
	declare("the parking queue", invalid, bourse.Queue{Name: bourse.ParkingQueue}, "Queue.Name", "reserved")
	declare("nil", invalid, nil, "Declaration", "<nil>")
	declare("a pointer", invalid, &bourse.Queue{Name: "n"}, "Declaration", "*bourse.Queue")
	row("delete the default exchange", invalid, func() error { return b.Delete(ctx, bourse.Exchange{}) }, "Exchange.Name")
	row("delete the parking queue", invalid, func() error { return b.Delete(ctx, bourse.Queue{Name: bourse.ParkingQueue}) }, "Queue.Name")
	row("delete a good and a bad name", invalid, func() error {
		return b.Delete(ctx, bourse.Queue{Name: "empty"}, bourse.Queue{})
	}, "Queue.Name")
	row("delete nil", invalid, func() error { return b.Delete(ctx, nil) }, "Declaration")

	// Settings of exchanges and queues.
	queue := func(change func(*bourse.Queue)) bourse.Queue {
		q := bourse.Queue{Name: "n"}
		change(&q)
		return q
	}
	declare("a kind that is none", invalid, bourse.Exchange{Name: "n", Kind: bourse.ConsistentHash + 1}, "Exchange.Kind", "5")
	for _, n := range []int{-1, 257, math.MaxInt} {
		declare(fmt.Sprint("priorities ", n), invalid, queue(func(q *bourse.Queue) { q.Priorities = n }), "Queue.Priorities",
			fmt.Sprint(n))
	}
	for _, n := range []int{-1, 1, 1_000_001} {
		declare(fmt.Sprint("lower one in ", n), invalid, bourse.Queue{Name: "n", Priorities: 2, Fairness: bourse.Fairness{LowerOneIn: n}},
			"Queue.Fairness.LowerOneIn", fmt.Sprint(n))
	}
	for _, d := range []time.Duration{-1, bourse.MaxDelay + 1} {
		declare(fmt.Sprint("aging ", d), invalid, bourse.Queue{Name: "n", Priorities: 2, Fairness: bourse.Fairness{Aging: d}},
			"Queue.Fairness.Aging", fmt.Sprint(d))
	}
	declare("lower one in with one level", invalid, bourse.Queue{Name: "n", Fairness: bourse.Fairness{LowerOneIn: 2}},
		"Queue.Fairness.LowerOneIn", "Priorities")
	declare("aging with one level", invalid, bourse.Queue{Name: "n", Priorities: 1, Fairness: bourse.Fairness{Aging: 1}},
		"Queue.Fairness.Aging", "Priorities")
	declare("bump with one level", invalid, bourse.Queue{Name: "n", BumpOnRedelivery: true}, "Queue.BumpOnRedelivery", "Priorities")
	declare("retries below NoRetry", invalid, queue(func(q *bourse.Queue) { q.MaxRetries = -3 }), "Queue.MaxRetries", "-3")
	if math.MaxInt > math.MaxInt32 {
		n := math.MaxInt32
		declare("too many retries", invalid, queue(func(q *bourse.Queue) { q.MaxRetries = n + 1 }), "Queue.MaxRetries")
	}
	for _, c := range []struct {
		name, field string
		retry       bourse.Backoff
	}{
		{"negative min", "Queue.Retry.Min", bourse.Backoff{Min: -1}},
		{"negative max", "Queue.Retry.Max", bourse.Backoff{Min: 1, Max: -1}},
		{"huge min", "Queue.Retry.Min", bourse.Backoff{Min: bourse.MaxDelay + 1}},
		{"huge max", "Queue.Retry.Max", bourse.Backoff{Min: 1, Max: bourse.MaxDelay + 1}},
		{"max without min", "Queue.Retry.Max", bourse.Backoff{Max: 1}},
		{"min above max", "Queue.Retry.Min", bourse.Backoff{Min: 2, Max: 1}},
		{"a factor below one", "Queue.Retry.Factor", bourse.Backoff{Min: 1, Max: 2, Factor: 0.5}},
		{"a factor above the limit", "Queue.Retry.Factor", bourse.Backoff{Min: 1, Max: 2, Factor: 11}},
		{"a factor that is no number", "Queue.Retry.Factor", bourse.Backoff{Min: 1, Max: 2, Factor: math.NaN()}},
		{"a factor without a maximum", "Queue.Retry.Factor", bourse.Backoff{Min: 1, Factor: 2}},
		{"a jitter above one", "Queue.Retry.Jitter", bourse.Backoff{Min: 1, Jitter: 1.5}},
		{"a negative jitter", "Queue.Retry.Jitter", bourse.Backoff{Min: 1, Jitter: -0.5}},
		{"a jitter of nothing", "Queue.Retry.Jitter", bourse.Backoff{Jitter: 0.5}},
		{"a negative pause", "Queue.Retry.Pauses", bourse.Backoff{Pauses: []time.Duration{-1}}},
		{"a huge pause", "Queue.Retry.Pauses", bourse.Backoff{Pauses: []time.Duration{1, bourse.MaxDelay + 1}}},
		{"too many pauses", "Queue.Retry.Pauses", bourse.Backoff{Pauses: make([]time.Duration, 65)}},
		{"pauses and a minimum", "Queue.Retry.Pauses", bourse.Backoff{Min: 1, Pauses: []time.Duration{1}}},
	} {
		declare("backoff, "+c.name, invalid, queue(func(q *bourse.Queue) { q.Retry = c.retry }), c.field)
	}
	for _, d := range []time.Duration{bourse.NoWait - 1, bourse.MaxDelay + 1} {
		declare(fmt.Sprint("ttl ", d), invalid, queue(func(q *bourse.Queue) { q.TTL = d }), "Queue.TTL", d.String())
	}
	for _, c := range []struct {
		name, field string
		dedup       bourse.Dedup
	}{
		{"a negative window", "Queue.Dedup.Window", bourse.Dedup{Window: -1}},
		{"a huge window", "Queue.Dedup.Window", bourse.Dedup{Window: bourse.MaxDedupWindow + 1}},
		{"a window and until done", "Queue.Dedup.UntilDone", bourse.Dedup{Window: 1, UntilDone: true}},
		{"an action that is none", "Queue.Dedup.OnDuplicate", bourse.Dedup{Window: 1, OnDuplicate: bourse.BumpWaiting + 1}},
		{"an action without ids", "Queue.Dedup.OnDuplicate", bourse.Dedup{OnDuplicate: bourse.BumpWaiting}},
		{"a negative number of ids", "Queue.Dedup.MaxIDs", bourse.Dedup{UntilDone: true, MaxIDs: -1}},
		{"too many ids", "Queue.Dedup.MaxIDs", bourse.Dedup{UntilDone: true, MaxIDs: bourse.MaxDedupIDs + 1}},
		{"a number of no ids", "Queue.Dedup.MaxIDs", bourse.Dedup{MaxIDs: 1}},
	} {
		declare("deduplication, "+c.name, invalid, queue(func(q *bourse.Queue) { q.Dedup = c.dedup }), c.field)
	}
	for _, n := range []int{-2, bourse.MaxGroupConcurrency + 1} {
		declare(fmt.Sprint("group concurrency ", n), invalid, queue(func(q *bourse.Queue) { q.GroupConcurrency = n }),
			"Queue.GroupConcurrency", fmt.Sprint(n))
	}
	for _, c := range []struct {
		name, field string
		inbox       bourse.InboxMemory
	}{
		{"a negative window", "Queue.Inbox.Window", bourse.InboxMemory{Window: -1}},
		{"a huge window", "Queue.Inbox.Window", bourse.InboxMemory{Window: bourse.MaxDedupWindow + 1}},
		{"a negative number of ids", "Queue.Inbox.MaxIDs", bourse.InboxMemory{Window: 1, MaxIDs: -1}},
		{"too many ids", "Queue.Inbox.MaxIDs", bourse.InboxMemory{Window: 1, MaxIDs: bourse.MaxDedupIDs + 1}},
		{"a number of no ids", "Queue.Inbox.MaxIDs", bourse.InboxMemory{MaxIDs: 1}},
	} {
		declare("inbox, "+c.name, invalid, queue(func(q *bourse.Queue) { q.Inbox = c.inbox }), c.field)
	}
	for _, d := range []time.Duration{-1, bourse.MaxDelay + 1} {
		declare(fmt.Sprint("a queue that expires after ", d), invalid, queue(func(q *bourse.Queue) { q.Expires = d }), "Queue.Expires",
			d.String())
	}
	declare("a durable queue that is exclusive", invalid, queue(func(q *bourse.Queue) { q.Exclusive = true }), "Queue.Exclusive",
		"Transient")
	declare("a durable queue that goes with its last consumer", invalid, queue(func(q *bourse.Queue) { q.AutoDelete = true }),
		"Queue.AutoDelete", "Transient")
	row("the inbox of no queue", bourse.ErrNotFound, func() error { _, err := b.Inbox("no"); return err }, `"no"`)
	row("the inbox of a queue without one", invalid, func() error { _, err := b.Inbox("empty"); return err }, "Queue.Inbox", `"empty"`)
	for _, d := range []time.Duration{-1, bourse.MaxAckDeadline + 1} {
		declare(fmt.Sprint("deadline ", d), invalid, queue(func(q *bourse.Queue) { q.AckDeadline = d }), "Queue.AckDeadline", d.String())
	}
	declare("a negative limit of messages", invalid, queue(func(q *bourse.Queue) { q.MaxMessages = -1 }), "Queue.MaxMessages", "-1")
	declare("a negative limit of bytes", invalid, queue(func(q *bourse.Queue) { q.MaxBytes = -1 }), "Queue.MaxBytes", "-1")
	for o := bourse.DropHead; o <= bourse.Block; o++ {
		declare("an overflow without a limit, "+o.String(), invalid, queue(func(q *bourse.Queue) { q.Overflow = o }), "Queue.Overflow",
			o.String(), "MaxMessages")
	}
	declare("an overflow that is none", invalid, queue(func(q *bourse.Queue) { q.MaxBytes, q.Overflow = 1, bourse.Block+1 }),
		"Queue.Overflow", "4")
	declare("dead-letter head without an exchange", invalid, queue(func(q *bourse.Queue) {
		q.MaxMessages, q.Overflow = 1, bourse.DeadLetterHead
	}), "Queue.Overflow", "DeadLetter.Exchange")
	declare("discard with an exchange", invalid, queue(func(q *bourse.Queue) {
		q.DeadLetter = bourse.DeadLetter{Exchange: "direct", Discard: true}
	}), "Queue.DeadLetter.Discard")
	declare("a dead-letter key alone", invalid, queue(func(q *bourse.Queue) {
		q.DeadLetter = bourse.DeadLetter{RoutingKey: "k"}
	}), "Queue.DeadLetter.RoutingKey")

	// Schedules; more in semantics_schedule_test.go.
	for _, bad := range badNames {
		declare("a schedule, name "+bad.what, invalid, bourse.Schedule{Name: bad.name, Every: time.Hour}, "Schedule.Name")
		declare("a schedule, key "+bad.what, invalid, bourse.Schedule{Name: "n", Every: time.Hour,
			Message: bourse.Message{RoutingKey: bad.name}}, "Schedule.Message.RoutingKey", bad.says)
	}
	for _, bad := range badHeaders {
		declare("a schedule, headers "+bad.what, invalid, bourse.Schedule{Name: "n", Every: time.Hour,
			Message: bourse.Message{Headers: bad.headers}}, "Schedule.Message.Headers", bad.says)
	}
	declare("a schedule without times", invalid, bourse.Schedule{Name: "n"}, "Schedule.Cron")
	declare("a schedule that is too fast", invalid, bourse.Schedule{Name: "n", Every: time.Second - 1}, "Schedule.Every")
	declare("a schedule that does not parse", invalid, bourse.Schedule{Name: "n", Cron: "* *"}, "Schedule.Cron")

	// Bindings.
	bind := func(name string, is error, d bourse.Binding, says ...string) *refusal {
		return declare("a binding "+name, is, d, says...)
	}
	bind("without a target", invalid, bourse.Binding{Exchange: "direct"}, "Binding.Queue", "Destination")
	bind("with two targets", invalid, bourse.Binding{Exchange: "direct", Queue: "q", Destination: "topic"}, "Binding.Destination")
	bind("of the default exchange", invalid, bourse.Binding{Queue: "q"}, "Binding.Exchange", "default exchange")
	bind("to the parking queue", invalid, bourse.Binding{Exchange: "direct", Queue: bourse.ParkingQueue}, "Binding.Queue", "reserved")
	bind("to a reserved exchange", invalid, bourse.Binding{Exchange: "direct", Destination: "bourse.x"}, "Binding.Destination",
		"reserved")
	bind("of no exchange", bourse.ErrNoExchange, bourse.Binding{Exchange: "no", Queue: "q"}, `"no"`).log = 1
	bind("to no queue", bourse.ErrNotFound, bourse.Binding{Exchange: "direct", Queue: "no"}, `"no"`).log = 1
	bind("to no exchange", bourse.ErrNoExchange, bourse.Binding{Exchange: "direct", Destination: "no"}, `"no"`).log = 1
	bind("with headers at a direct exchange", invalid,
		bourse.Binding{Exchange: "direct", Queue: "q", Headers: map[string]any{"a": 1}}, "Binding.Headers", "direct").log = 1
	bind("with headers at a topic exchange", invalid,
		bourse.Binding{Exchange: "topic", Queue: "q", Headers: map[string]any{"x-match": "all"}}, "Binding.Headers", "topic").log = 1
	for _, x := range []any{"some", "", "ALL", 1, nil, true} {
		bind(fmt.Sprintf("with x-match %v", x), invalid,
			bourse.Binding{Exchange: "headers", Queue: "q", Headers: map[string]any{"x-match": x}}, "Binding.Headers", "x-match")
	}
	bind("with a huge weight", invalid, bourse.Binding{Exchange: "hash", Queue: "q", Weight: 101}, "Binding.Weight", "101")
	bind("with a weight at a direct exchange", invalid, bourse.Binding{Exchange: "direct", Queue: "q", Weight: 1},
		"Binding.Weight").log = 1
	bind("with a drain at a headers exchange", invalid, bourse.Binding{Exchange: "headers", Queue: "q", Weight: -1},
		"Binding.Weight").log = 1

	// Headers.
	for _, bad := range badHeaders {
		publish("headers, "+bad.what, invalid, bourse.Message{RoutingKey: "q", Headers: bad.headers}, "Message.Headers", bad.says)
		bind("with headers, "+bad.what, invalid, bourse.Binding{Exchange: "headers", Queue: "q", Headers: bad.headers},
			"Binding.Headers", bad.says)
	}
	publish("a header that is nil", invalid, bourse.Message{RoutingKey: "q", Headers: map[string]any{"h": nil}}, "Message.Headers",
		`"h" is nil`)

	// What exists already, with other settings.
	redeclare := func(field string, change func(*bourse.Queue)) {
		d := base[4].(bourse.Queue)
		change(&d)
		declare("with another "+field, bourse.ErrPrecondition, d, `queue "q"`, field).log = 1
	}
	redeclare("Priorities", func(d *bourse.Queue) { d.Priorities = 11 })
	redeclare("MaxMessages", func(d *bourse.Queue) { d.MaxMessages = 1 })
	redeclare("MaxBytes", func(d *bourse.Queue) { d.MaxBytes = 1 })
	redeclare("Overflow", func(d *bourse.Queue) { d.MaxMessages, d.Overflow = 1, bourse.Block })
	redeclare("MaxRetries", func(d *bourse.Queue) { d.MaxRetries = bourse.NoLimit })
	redeclare("Fairness.LowerOneIn", func(d *bourse.Queue) { d.Fairness.LowerOneIn = 2 })
	redeclare("Fairness.Aging", func(d *bourse.Queue) { d.Fairness.Aging = 2 })
	redeclare("BumpOnRedelivery", func(d *bourse.Queue) { d.BumpOnRedelivery = true })
	redeclare("Retry.Min", func(d *bourse.Queue) { d.Retry.Min = 2 })
	redeclare("Retry.Max", func(d *bourse.Queue) { d.Retry.Max = 3 })
	redeclare("Retry.Factor", func(d *bourse.Queue) { d.Retry.Factor = 1.5 })
	redeclare("Retry.Jitter", func(d *bourse.Queue) { d.Retry.Jitter = 0.1 })
	redeclare("Retry.Pauses", func(d *bourse.Queue) { d.Retry = bourse.Backoff{Pauses: []time.Duration{1, 2}} })
	redeclare("Retry.AtTail", func(d *bourse.Queue) { d.Retry.AtTail = true })
	redeclare("TTL", func(d *bourse.Queue) { d.TTL = time.Minute })
	redeclare("GroupConcurrency", func(d *bourse.Queue) { d.GroupConcurrency = 2 })
	redeclare("SingleActiveConsumer", func(d *bourse.Queue) { d.SingleActiveConsumer = true })
	rateRefusals(declare, redeclare)
	redeclare("AckDeadline", func(d *bourse.Queue) { d.AckDeadline = 0 })
	redeclare("DeadLetter.Exchange", func(d *bourse.Queue) { d.DeadLetter.Exchange = "direct" })
	redeclare("Dedup.Window", func(d *bourse.Queue) { d.Dedup.Window = 1 })
	redeclare("Dedup.UntilDone", func(d *bourse.Queue) { d.Dedup.UntilDone = true })
	redeclare("Dedup.OnDuplicate", func(d *bourse.Queue) {
		d.Dedup = bourse.Dedup{UntilDone: true, OnDuplicate: bourse.BumpWaiting}
	})
	redeclare("Expires", func(d *bourse.Queue) { d.Expires = 1 })
	redeclare("Inbox.Window", func(d *bourse.Queue) { d.Inbox.Window = 1 })
	redeclare("Inbox.MaxIDs", func(d *bourse.Queue) { d.Inbox = bourse.InboxMemory{Window: 1, MaxIDs: 5} })
	redeclare("Dedup.MaxIDs", func(d *bourse.Queue) { d.Dedup = bourse.Dedup{Window: 1, MaxIDs: 5} })
	redeclare("DeadLetter.Discard", func(d *bourse.Queue) { d.DeadLetter.Discard = true })
	declare("with another DeadLetter.RoutingKey", bourse.ErrPrecondition,
		bourse.Queue{Name: "dead", DeadLetter: bourse.DeadLetter{Exchange: "direct", RoutingKey: "other"}}, `queue "dead"`,
		"DeadLetter.RoutingKey").log = 1
	declare("an exchange with another kind", bourse.ErrPrecondition, bourse.Exchange{Name: "direct", Kind: bourse.Fanout},
		`exchange "direct"`, "Kind is direct, declared fanout").log = 1
	declare("an exchange with another alternate", bourse.ErrPrecondition, bourse.Exchange{Name: "topic", Kind: bourse.Topic},
		`exchange "topic"`, `Alternate is "alt", declared ""`).log = 1
	row("declare one name twice with differences", bourse.ErrPrecondition, func() error {
		return b.Declare(ctx, bourse.Exchange{Name: "n"}, bourse.Exchange{Name: "n", Kind: bourse.Fanout})
	}, `exchange "n"`).log = 1

	row("update no queue", bourse.ErrNotFound, func() error { return b.Update(ctx, bourse.Queue{Name: "no"}) }, `"no"`).log = 1
	row("update the parking queue", invalid, func() error {
		return b.Update(ctx, bourse.Queue{Name: bourse.ParkingQueue, MaxRetries: 1})
	}, "Queue.Name", "reserved")

	// Limits.
	row("declare queues above the limit", bourse.ErrTooMany, func() error {
		return b.Declare(ctx, bourse.Queue{Name: "fourth"}, bourse.Queue{Name: "fifth"})
	}, `queue "fifth"`, "4 queues").log = 1
	row("declare bindings above the limit", bourse.ErrTooMany, func() error {
		return b.Declare(ctx, bourse.Binding{Exchange: "direct", Queue: "q", Key: "3"}, bourse.Binding{Exchange: "direct",
			Queue: "q", Key: "4"})
	}, `"direct"`, "3 bindings").log = 1

	// Publishing.
	publish("a body above the limit", invalid, bourse.Message{RoutingKey: "q", Body: make([]byte, maxBody+1)}, "Message.Body",
		"1001 bytes, limit 1000")
	publish("to no exchange", bourse.ErrNoExchange, bourse.Message{Exchange: "no", RoutingKey: "k"}, `"no"`, `key "k"`)
	publish("what must not be unroutable", bourse.ErrUnroutable, bourse.Message{Exchange: "direct", RoutingKey: "nowhere",
		Mandatory: true}, "nowhere")
	publish("to no queue", bourse.ErrUnroutable, bourse.Message{RoutingKey: "nowhere", Mandatory: true}, "nowhere")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for name, call := range map[string]func() error{
		"publish":            func() error { return b.Publish(ended, bourse.Message{RoutingKey: "q"}) },
		"publish async":      func() error { return b.PublishAsync(ended, bourse.Message{RoutingKey: "q"}).Wait(ctx) },
		"publish a batch":    func() error { return b.PublishBatch(ended, []bourse.Message{{RoutingKey: "q"}}) },
		"publish atomically": func() error { return b.PublishAtomic(ended, []bourse.Message{{RoutingKey: "q"}}) },
		"ack and publish":    func() error { return lent.AckAndPublish(ended, bourse.Message{RoutingKey: "q"}) },
		"declare":            func() error { return b.Declare(ended, bourse.Queue{Name: "n"}) },
		"update":             func() error { return b.Update(ended, bourse.Queue{Name: "q"}) },
		"delete":             func() error { return b.Delete(ended, bourse.Queue{Name: "empty"}) },
		"purge":              func() error { _, err := b.Purge(ended, "q"); return err },
		"get":                func() error { _, err := b.Get(ended, "q"); return err },
		"subscribe":          func() error { _, err := b.Subscribe(ended, "q", bourse.SubscribeOptions{}); return err },
		"work":               func() error { return b.Work(ended, "q", acks, bourse.WorkOptions{}) },
		"ack":                func() error { return lent.AckSync(ended) },
		"pause":              func() error { return b.Pause(ended, "q") },
		"resume":             func() error { return b.Resume(ended, "q") },
	} {
		row(name+" with an ended context", context.Canceled, call)
	}

	browseRefusals(b, row)

	// Consuming.
	for _, n := range []int{-1, 65536} {
		row(fmt.Sprint("subscribe with prefetch ", n), invalid, func() error {
			_, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: n})
			return err
		}, "SubscribeOptions.Prefetch", fmt.Sprint(n), `"q"`)
		row(fmt.Sprint("work with concurrency ", n), invalid, func() error {
			return b.Work(ctx, "q", acks, bourse.WorkOptions{Concurrency: n})
		}, "WorkOptions.Concurrency", fmt.Sprint(n))
		row(fmt.Sprint("work with prefetch ", n), invalid, func() error {
			return b.Work(ctx, "q", acks, bourse.WorkOptions{Prefetch: n})
		}, "WorkOptions.Prefetch", fmt.Sprint(n))
	}
	for _, n := range []int{-1001, 1001, math.MaxInt} {
		row(fmt.Sprint("subscribe with priority ", n), invalid, func() error {
			_, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{Priority: n})
			return err
		}, "SubscribeOptions.Priority", fmt.Sprint(n), "-1000 to 1000")
		row(fmt.Sprint("work with priority ", n), invalid, func() error {
			return b.Work(ctx, "q", acks, bourse.WorkOptions{Priority: n})
		}, "WorkOptions.Priority", fmt.Sprint(n), "-1000 to 1000")
	}
	row("work with a negative timeout", invalid, func() error { return b.Work(ctx, "q", acks, bourse.WorkOptions{Timeout: -1}) },
		"WorkOptions.Timeout")
	row("work with a negative grace", invalid, func() error { return b.Work(ctx, "q", acks, bourse.WorkOptions{Grace: -1}) },
		"WorkOptions.Grace")
	row("work with a timeout above the limit", invalid, func() error {
		return b.Work(ctx, "q", acks, bourse.WorkOptions{AutoExtend: true, Timeout: bourse.MaxAckDeadline + 1})
	}, "WorkOptions.Timeout", "168h")
	row("work with less prefetch than handlers", invalid, func() error {
		return b.Work(ctx, "q", acks, bourse.WorkOptions{Concurrency: 3, Prefetch: 2})
	}, "WorkOptions.Prefetch", "3")
	row("work without a handler", invalid, func() error { return b.Work(ctx, "q", nil, bourse.WorkOptions{}) }, "Handler", "nil")
	row("work on no queue", bourse.ErrNotFound, func() error { return b.Work(ctx, "no", acks, bourse.WorkOptions{}) }, `"no"`)
	row("subscribe to no queue", bourse.ErrNotFound, func() error {
		_, err := b.Subscribe(ctx, "no",
			bourse.SubscribeOptions{})
		return err
	}, `"no"`)
	row("get from no queue", bourse.ErrNotFound, func() error { _, err := b.Get(ctx, "no"); return err }, `"no"`)
	row("purge no queue", bourse.ErrNotFound, func() error { _, err := b.Purge(ctx, "no"); return err }, `"no"`)
	for _, name := range []string{"no", "", "a\x00b"} {
		row(fmt.Sprintf("pause %q", name), bourse.ErrNotFound, func() error { return b.Pause(ctx, name) }, fmt.Sprintf("%q", name))
		row(fmt.Sprintf("resume %q", name), bourse.ErrNotFound, func() error { return b.Resume(ctx, name) }, fmt.Sprintf("%q", name))
	}
	row("get from an empty queue", bourse.ErrEmpty, func() error { _, err := b.Get(ctx, "empty"); return err }, `"empty"`).log = 2
	row("a batch of none", invalid, func() error { _, err := s.NextBatch(ctx, 0); return err }, "limit", "0", `"q"`)
	row("a batch of less than none", invalid, func() error { _, err := s.NextBatch(ctx, -1); return err }, "limit")

	// Verdicts on an open loan.
	for _, d := range []time.Duration{-1, bourse.MaxDelay + 1} {
		row(fmt.Sprint("nack after ", d), invalid, func() error { return lent.NackAfter(d) }, "pause", d.String(), `1 of "q"`)
		row(fmt.Sprint("release after ", d), invalid, func() error { return lent.Release(d) }, "after", d.String(), `1 of "q"`)
	}
	for _, d := range []time.Duration{-1, 0, bourse.MaxAckDeadline + 1} {
		row(fmt.Sprint("extend by ", d), invalid, func() error { return lent.Extend(d) }, "by", d.String(), `1 of "q"`)
	}
	row("ack up to a tag that was lent but not handed over", bourse.ErrUnknownDelivery, func() error { return s.AckUpTo(2) },
		"ack up to 2", `"q"`)
	row("ack up to a tag never issued", bourse.ErrUnknownDelivery, func() error { return s.AckUpTo(math.MaxUint64) }, `"q"`)

	// Conditions of a deletion.
	row("delete a queue in use", bourse.ErrInUse, func() error {
		return b.DeleteIf(ctx, bourse.DeleteOnly{IfUnused: true}, bourse.Queue{Name: "empty"}, bourse.Queue{Name: "q"})
	}, `queue "q"`, "1 consumers").log = 1
	row("delete an exchange in use", bourse.ErrInUse, func() error {
		return b.DeleteIf(ctx, bourse.DeleteOnly{IfUnused: true}, bourse.Queue{Name: "empty"}, bourse.Exchange{Name: "direct"})
	}, `exchange "direct"`, "2 bindings").log = 1
	row("delete a queue with messages", bourse.ErrNotEmpty, func() error {
		return b.DeleteIf(ctx, bourse.DeleteOnly{IfEmpty: true}, bourse.Queue{Name: "empty"}, bourse.Queue{Name: "q"})
	}, `queue "q"`, "3 messages").log = 1

	checkRefusals(t, b, rows)
	require.NoError(t, lent.AckSync(ctx), "after all that the loan is still open")
	t.Logf("%d refusals", len(rows))
}

// checkRefusals runs the rows; none may leave a trace in b.
func checkRefusals(t *testing.T, b *bourse.Broker, rows []refusal) {
	t.Helper()
	for _, r := range rows {
		barrier(t, b, nil)
		topology, before := b.EncodedTopology(), b.Stats()
		err := r.call()
		require.ErrorIs(t, err, r.is, r.name)
		require.True(t, strings.HasPrefix(err.Error(), "broker: "), "%s: %v", r.name, err)
		for _, says := range r.says {
			require.Contains(t, err.Error(), says, r.name)
		}
		after := b.Stats()
		require.LessOrEqual(t, after.Storage.Records, before.Storage.Records+uint64(r.log), "%s: commands in the log", r.name)
		barrier(t, b, nil)
		after = b.Stats()
		before.Storage, after.Storage = bourse.StorageStats{}, bourse.StorageStats{}
		require.Equal(t, before, after, r.name)
		require.Equal(t, topology, b.EncodedTopology(), r.name)
	}
}

// What stands at a limit is accepted, and comes back as it was.
func TestLimitsAccepted(t *testing.T) {
	b := open(t, bourse.Options{MaxBodyBytes: 1000, MaxQueues: 3, MaxBindings: 2},
		bourse.Exchange{Name: long(255)}, bourse.Queue{Name: long(255), Priorities: 256, MaxRetries: math.MaxInt32,
			AckDeadline: bourse.MaxAckDeadline, Retry: bourse.Backoff{Min: bourse.MaxDelay, Max: bourse.MaxDelay}},
		bourse.Queue{Name: "../../etc/passwd"}, bourse.Queue{Name: " "},
		bourse.Binding{Exchange: long(255), Queue: long(255), Key: long(255)},
		bourse.Binding{Exchange: long(255), Queue: " "}, // 2 of 2
	)
	m := bourse.Message{
		Exchange: long(255), RoutingKey: long(255), ID: long(255), Priority: 255, Body: make([]byte, 1000), Headers: headers(64),
	}
	require.NoError(t, b.Publish(ctx, m))
	m.Headers = map[string]any{"h": make([]byte, 64<<10-8)} // version, count, name, tag and length take 8
	require.NoError(t, b.Publish(ctx, m))
	m.Headers = map[string]any{"h": make([]byte, 64<<10-7)}
	require.ErrorIs(t, b.Publish(ctx, m), bourse.ErrInvalid)

	s := consume(t, b, long(255), bourse.MaxPrefetch)
	d := next(t, s)
	require.Equal(t, m.ID, d.ID)
	require.Equal(t, m.Body, d.Body)
	require.Len(t, d.Headers, 64)
	require.EqualValues(t, 63, d.Headers["h63"])
	require.Len(t, next(t, s).Headers["h"], 64<<10-8)
	require.NoError(t, d.Extend(bourse.MaxAckDeadline))
	require.NoError(t, d.Release(bourse.MaxDelay))

	require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "never was"}, bourse.Exchange{Name: "never was"},
		bourse.Binding{Exchange: "never was", Queue: "never was"}))
	require.NoError(t, b.PublishBatch(ctx, nil))
	require.NoError(t, b.Declare(ctx))
}

func TestBodyLimits(t *testing.T) {
	b := open(t, bourse.Options{MaxBodyBytes: bourse.MaxBodyBytes}, bourse.Queue{Name: "q"})
	var invalid *bourse.InvalidError
	body := make([]byte, bourse.MaxBodyBytes+1)
	require.ErrorAs(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: body}), &invalid)
	require.Equal(t, "Message.Body", invalid.Field)
	b = open(t, bourse.Options{}, bourse.Queue{Name: "q"})
	require.ErrorAs(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: body[:bourse.DefaultBodyBytes+1]}), &invalid)
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "q", Body: body[:bourse.DefaultBodyBytes]}))
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.Len(t, d.Body, bourse.DefaultBodyBytes)
}

// A redeclaration names every field that differs, with both values.
func TestRedeclareNamesAllFields(t *testing.T) {
	first := bourse.Queue{Name: "q"}
	other := bourse.Queue{Name: "q", Priorities: 2, MaxRetries: bourse.NoRetry, Retry: bourse.Backoff{Min: 1, Max: 2},
		AckDeadline: time.Second, DeadLetter: bourse.DeadLetter{Exchange: "x", RoutingKey: "k"}}
	b := open(t, bourse.Options{}, first, bourse.Exchange{Name: "e"})
	var pre *bourse.PreconditionError
	require.ErrorAs(t, b.Declare(ctx, other), &pre)
	require.Equal(t, bourse.PreconditionError{Object: `queue "q"`, Fields: []bourse.FieldDiff{
		{Field: "Priorities", Have: "1", Want: "2"}, {Field: "MaxRetries", Have: "20", Want: "NoRetry"},
		{Field: "Retry.Min", Have: "0s", Want: "1ns"}, {Field: "Retry.Max", Have: "0s", Want: "2ns"}, {Field: "Retry.Factor", Have: "0", Want: "2"},
		{Field: "AckDeadline", Have: "30m0s", Want: "1s"}, {Field: "DeadLetter.Exchange", Have: `""`, Want: `"x"`},
		{Field: "DeadLetter.RoutingKey", Have: `""`, Want: `"k"`},
	}}, *pre)
	require.ErrorAs(t, b.Declare(ctx, bourse.Exchange{Name: "e", Kind: bourse.Topic, Alternate: "a"}), &pre)
	require.Equal(t, []bourse.FieldDiff{{Field: "Kind", Have: "direct", Want: "topic"}, {Field: "Alternate", Have: `""`,
		Want: `"a"`}}, pre.Fields)
	// Defaults written out are the same declaration.
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", Priorities: 1, MaxRetries: bourse.DefaultRetries,
		AckDeadline: bourse.DefaultDeadline}))
}

func TestConsumerLimit(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q"}, bourse.Queue{Name: "other"})
	for range 1000 {
		consume(t, b, "q", 1)
	}
	_, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{})
	require.ErrorIs(t, err, bourse.ErrTooMany)
	require.ErrorContains(t, err, "limit 1000")
	require.Equal(t, 1000, stats(t, b, "q").Consumers)
	consume(t, b, "other", 1)
}

func TestVerdictEdges(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", AckDeadline: time.Minute}, bourse.Queue{Name: "gone"})
	all := func(d *bourse.Delivery, is error) {
		t.Helper()
		barrier(t, b, clock)
		before := b.Stats().Queues
		for name, verdict := range map[string]func() error{
			"ack": d.Ack, "ack sync": func() error { return d.AckSync(ctx) }, "nack": d.Nack,
			"nack after": func() error { return d.NackAfter(1) }, "reject": func() error { return d.Reject("no") },
			"release": func() error { return d.Release(1) }, "extend": func() error { return d.Extend(1) },
		} {
			require.ErrorIs(t, verdict(), is, name)
		}
		barrier(t, b, clock)
		require.Equal(t, before, b.Stats().Queues)
	}
	all(&bourse.Delivery{}, bourse.ErrUnknownDelivery)

	send(t, b, "q", "1", "2", "3", "4", "5")
	s := consume(t, b, "q", 3)
	one, two, three := next(t, s), next(t, s), next(t, s)
	require.NoError(t, s.AckUpTo(0)) // all three
	require.NoError(t, s.AckUpTo(0)) // none left
	require.NoError(t, s.AckUpTo(2)) // issued, settled: nothing lower is open
	for _, d := range []*bourse.Delivery{one, two, three} {
		all(d, bourse.ErrUnknownDelivery)
	}
	barrier(t, b, clock)
	require.EqualValues(t, 3, stats(t, b, "q").Acked)

	four, five := next(t, s), next(t, s)
	require.EqualValues(t, 4, four.Tag)
	require.NoError(t, four.Nack())
	all(four, bourse.ErrUnknownDelivery)
	again := next(t, s)
	require.Equal(t, []any{"4", uint64(6), 2, 1}, []any{string(again.Body), again.Tag, again.Deliveries, again.Failures})

	other := consume(t, b, "q", 1)
	require.ErrorIs(t, other.AckUpTo(5), bourse.ErrUnknownDelivery, "tags of another subscription")
	require.Equal(t, 2, stats(t, b, "q").Unacked)

	clock.advance(t, b, time.Minute) // both loans are over, and one message each goes to s and other
	all(five, bourse.ErrStaleDelivery)
	all(again, bourse.ErrStaleDelivery)
	require.EqualValues(t, 2, stats(t, b, "q").TimedOut)
	require.Equal(t, 2, stats(t, b, "q").Unacked, "the newer loans are untouched")
	newer := next(t, s)
	require.NoError(t, newer.Release(0))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	all(again, bourse.ErrUnknownDelivery)
	require.ErrorIs(t, s.AckUpTo(0), bourse.ErrUnknownDelivery)
	_, err := s.Next(ctx)
	require.ErrorIs(t, err, bourse.ErrClosed)

	auto, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{AutoAck: true, Prefetch: 1})
	require.NoError(t, err)
	all(next(t, auto), bourse.ErrAutoAck)
	require.ErrorIs(t, auto.AckUpTo(0), bourse.ErrAutoAck)
	require.NoError(t, auto.Close())

	// A queue that is deleted, and declared again, does not know what was lent before.
	send(t, b, "gone", "old")
	g := consume(t, b, "gone", 10)
	old := next(t, g)
	require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "gone"}))
	all(old, bourse.ErrQueueGone)
	require.ErrorIs(t, g.AckUpTo(0), bourse.ErrQueueGone)
	_, err = g.Next(ctx)
	require.ErrorIs(t, err, bourse.ErrQueueGone)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "gone"}))
	require.Zero(t, stats(t, b, "gone").Ready)
	send(t, b, "gone", "new")
	all(old, bourse.ErrQueueGone)
	_, err = g.Next(ctx)
	require.ErrorIs(t, err, bourse.ErrQueueGone)
	fresh := next(t, consume(t, b, "gone", 1))
	require.Equal(t, []any{"new", uint64(1), 1}, []any{string(fresh.Body), fresh.Tag, fresh.Deliveries})
}

// What no binding wants and is not mandatory is confirmed, counted, and stored nowhere.
func TestUnroutableIsCounted(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Exchange{Name: "e"}, bourse.Queue{Name: "q"})
	before := b.Stats()
	require.NoError(t, b.Publish(ctx, bourse.Message{Exchange: "e"}))
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "nowhere"}))
	require.NoError(t, b.PublishAsync(ctx, bourse.Message{Exchange: "e"}).Wait(ctx))
	require.NoError(t, b.PublishBatch(ctx, make([]bourse.Message, 2)))
	after := b.Stats()
	require.EqualValues(t, 5, after.Unroutable)
	require.EqualValues(t, 5, after.Published)
	require.Zero(t, after.Pending)
	require.Equal(t, before.Queues, after.Queues)
	require.Equal(t, before.Storage.Records, after.Storage.Records)
}

func TestClosedRefuses(t *testing.T) {
	noLeaks(t)
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}))
	send(t, b, "q", "a")
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	require.NoError(t, b.Shutdown(ctx))
	for name, err := range map[string]error{
		"publish":            b.Publish(ctx, bourse.Message{RoutingKey: "q"}),
		"publish async":      b.PublishAsync(ctx, bourse.Message{RoutingKey: "q"}).Err(),
		"publish a batch":    b.PublishBatch(ctx, make([]bourse.Message, 2)),
		"publish atomically": b.PublishAtomic(ctx, make([]bourse.Message, 2)),
		"declare":            b.Declare(ctx, bourse.Queue{Name: "n"}),
		"update":             b.Update(ctx, bourse.Queue{Name: "q"}),
		"delete":             b.Delete(ctx, bourse.Queue{Name: "q"}),
		"work":               b.Work(ctx, "q", acks, bourse.WorkOptions{}),
		"purge":              func() error { _, err := b.Purge(ctx, "q"); return err }(),
		"get":                func() error { _, err := b.Get(ctx, "q"); return err }(),
		"subscribe":          func() error { _, err := b.Subscribe(ctx, "q", bourse.SubscribeOptions{}); return err }(),
		"pause":              b.Pause(ctx, "q"),
		"resume":             b.Resume(ctx, "q"),
	} {
		require.ErrorIs(t, err, bourse.ErrClosed, name)
	}
	require.ErrorIs(t, d.Ack(), bourse.ErrUnknownDelivery)
	require.ErrorIs(t, d.Extend(1), bourse.ErrUnknownDelivery)
}

func TestOptionsRefused(t *testing.T) {
	noLeaks(t)
	e, err := bourse.NewLocalEngine("", bourse.LocalOptions{})
	require.NoError(t, err)
	many := func(set func(*bourse.Options, int), values ...int) (all []bourse.Options) {
		for _, n := range values {
			var o bourse.Options
			set(&o, n)
			all = append(all, o)
		}
		return all
	}
	for field, bad := range map[string][]bourse.Options{
		"Options.MaxPending":      many(func(o *bourse.Options, n int) { o.MaxPending = n }, -1, 1_000_001, math.MaxInt),
		"Options.MaxPendingBytes": many(func(o *bourse.Options, n int) { o.MaxPendingBytes = int64(n) }, -1, 1<<30+1, math.MinInt),
		"Options.MemoryLimit":     many(func(o *bourse.Options, n int) { o.MemoryLimit = int64(n) }, -1, 1, 8<<20-1, math.MinInt),
		"Options.MaxBodyBytes":    many(func(o *bourse.Options, n int) { o.MaxBodyBytes = n }, -1, bourse.MaxBodyBytes+1),
		"Options.MaxQueues":       many(func(o *bourse.Options, n int) { o.MaxQueues = n }, -1, bourse.MaxQueues+1),
		"Options.MaxBindings":     many(func(o *bourse.Options, n int) { o.MaxBindings = n }, -1, bourse.MaxBindings+1),
		"Options.MaxSchedules":    many(func(o *bourse.Options, n int) { o.MaxSchedules = n }, -1, bourse.MaxSchedules+1),
		"Options.Compression":     {{Compression: bourse.CompressOff + 1}, {Compression: 255}},
		"Options.Engine":          {{Dir: "somewhere", Engine: e}},
	} {
		for _, o := range bad {
			b, err := bourse.NewBroker(ctx, o)
			require.Nil(t, b)
			var invalid *bourse.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, field, invalid.Field)
		}
	}
	_, err = bourse.NewBroker(ctx, bourse.Options{MaxQueues: -1, MaxBindings: -1})
	require.ErrorContains(t, err, "Options.MaxQueues")
	require.ErrorContains(t, err, "Options.MaxBindings")

	_, err = bourse.NewBroker(ctx, bourse.Options{Engine: placed{e}})
	require.ErrorIs(t, err, bourse.ErrInvalid)
	require.ErrorContains(t, err, "Options.Engine")

	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = bourse.NewBroker(ended, bourse.Options{})
	require.ErrorIs(t, err, context.Canceled)

	dir := t.TempDir()
	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.NoError(t, err)
	_, err = bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.ErrorIs(t, err, bourse.ErrDirInUse)
	require.NoError(t, b.Close())
}

// placed is an engine with a placement that does not exist.
type placed struct{ bourse.Engine }

func (placed) Placement() bourse.Placement { return 7 }
