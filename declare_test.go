package bourse

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/boursemq/bourse/internal/wire"
	"github.com/stretchr/testify/require"
)

// Goal: every limit of a declaration is checked and names its field, defaults are as
// documented, and what is encoded comes back. Method: tables and a fuzzed decoder.

func TestDeclarationsRefused(t *testing.T) {
	long := strings.Repeat("n", MaxNameBytes)
	q := func(change func(*Queue)) Queue {
		d := Queue{Name: "q"}
		change(&d)
		return d
	}
	rows := []struct {
		d     Declaration
		field string // empty: accepted
	}{
		{Queue{Name: long}, ""},
		{Queue{Name: "größe 1/../x"}, ""},
		{Queue{Name: long + "n"}, "Queue.Name"},
		{Queue{}, "Queue.Name"},
		{Queue{Name: "a\x00"}, "Queue.Name"},
		{Queue{Name: "a\u0085"}, "Queue.Name"},
		{Queue{Name: "a\x7f"}, "Queue.Name"},
		{Queue{Name: "\xff"}, "Queue.Name"},
		{Queue{Name: "bourse."}, "Queue.Name"},
		{Queue{Name: ParkingQueue}, "Queue.Name"},
		{Queue{Name: "bourse"}, ""},
		{q(func(d *Queue) { d.Priorities = -1 }), "Queue.Priorities"},
		{q(func(d *Queue) { d.Priorities = 256 }), ""},
		{q(func(d *Queue) { d.Priorities = 257 }), "Queue.Priorities"},
		{q(func(d *Queue) { d.Exclusive, d.Transient = true, true }), ""},
		{q(func(d *Queue) { d.Exclusive = true }), "Queue.Exclusive"},
		{q(func(d *Queue) { d.AutoDelete, d.Transient = true, true }), ""},
		{q(func(d *Queue) { d.AutoDelete = true }), "Queue.AutoDelete"},
		{q(func(d *Queue) { d.Expires = -1 }), "Queue.Expires"},
		{q(func(d *Queue) { d.Expires = 1 }), ""},
		{q(func(d *Queue) { d.Expires = MaxDelay }), ""},
		{q(func(d *Queue) { d.Expires = MaxDelay + 1 }), "Queue.Expires"},
		{q(func(d *Queue) { d.MaxRetries = NoRetry }), ""},
		{q(func(d *Queue) { d.MaxRetries = NoRetry - 1 }), "Queue.MaxRetries"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: time.Second} }), ""},
		{q(func(d *Queue) { d.Retry = Backoff{Min: time.Second, Max: time.Second} }), ""},
		{q(func(d *Queue) { d.Retry = Backoff{Min: -1} }), "Queue.Retry.Min"},
		{q(func(d *Queue) { d.Retry = Backoff{Max: -1} }), "Queue.Retry.Max"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 2, Max: 1} }), "Queue.Retry.Min"},
		{q(func(d *Queue) { d.Retry = Backoff{Max: 1} }), "Queue.Retry.Max"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Max: MaxDelay} }), ""},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Max: MaxDelay + 1} }), "Queue.Retry.Max"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: MaxDelay + 1} }), "Queue.Retry.Min"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Max: 2, Factor: 1} }), ""},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Max: 2, Factor: MaxBackoffFactor, Jitter: 1} }), ""},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Factor: 2} }), "Queue.Retry.Factor"},
		{q(func(d *Queue) { d.Retry = Backoff{Factor: 2} }), "Queue.Retry.Factor"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Max: 2, Factor: 0.99} }), "Queue.Retry.Factor"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Max: 2, Factor: 10.001} }), "Queue.Retry.Factor"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Max: 2, Factor: -1} }), "Queue.Retry.Factor"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Max: 2, Factor: math.NaN()} }), "Queue.Retry.Factor"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Max: 2, Factor: math.Inf(1)} }), "Queue.Retry.Factor"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Jitter: 1.01} }), "Queue.Retry.Jitter"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Jitter: -0.01} }), "Queue.Retry.Jitter"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Jitter: math.NaN()} }), "Queue.Retry.Jitter"},
		{q(func(d *Queue) { d.Retry = Backoff{Jitter: 0.5} }), "Queue.Retry.Jitter"},
		{q(func(d *Queue) { d.Retry = Backoff{Pauses: []time.Duration{0, MaxDelay}, Jitter: 0.5} }), ""},
		{q(func(d *Queue) { d.Retry = Backoff{Pauses: make([]time.Duration, MaxPauses)} }), ""},
		{q(func(d *Queue) { d.Retry = Backoff{Pauses: make([]time.Duration, MaxPauses+1)} }), "Queue.Retry.Pauses"},
		{q(func(d *Queue) { d.Retry = Backoff{Pauses: []time.Duration{-1}} }), "Queue.Retry.Pauses"},
		{q(func(d *Queue) { d.Retry = Backoff{Pauses: []time.Duration{1, MaxDelay + 1}} }), "Queue.Retry.Pauses"},
		{q(func(d *Queue) { d.Retry = Backoff{Min: 1, Pauses: []time.Duration{1}} }), "Queue.Retry.Pauses"},
		{q(func(d *Queue) { d.AckDeadline = MaxAckDeadline }), ""},
		{q(func(d *Queue) { d.AckDeadline = MaxAckDeadline + 1 }), "Queue.AckDeadline"},
		{q(func(d *Queue) { d.AckDeadline = -1 }), "Queue.AckDeadline"},
		{q(func(d *Queue) { d.GroupConcurrency = NoLimit }), ""},
		{q(func(d *Queue) { d.GroupConcurrency = MaxGroupConcurrency }), ""},
		{q(func(d *Queue) { d.GroupConcurrency = NoLimit - 1 }), "Queue.GroupConcurrency"},
		{q(func(d *Queue) { d.GroupConcurrency = MaxGroupConcurrency + 1 }), "Queue.GroupConcurrency"},
		{q(func(d *Queue) { d.DeadLetter = DeadLetter{Exchange: "x", RoutingKey: "k"} }), ""},
		{q(func(d *Queue) { d.DeadLetter = DeadLetter{Discard: true} }), ""},
		{q(func(d *Queue) { d.DeadLetter = DeadLetter{Discard: true, Exchange: "x"} }), "Queue.DeadLetter.Discard"},
		{q(func(d *Queue) { d.DeadLetter = DeadLetter{RoutingKey: "k"} }), "Queue.DeadLetter.RoutingKey"},
		{q(func(d *Queue) { d.DeadLetter = DeadLetter{Exchange: "x", RoutingKey: long + "n"} }), "Queue.DeadLetter.RoutingKey"},
		{q(func(d *Queue) { d.DeadLetter = DeadLetter{Exchange: "x\n"} }), "Queue.DeadLetter.Exchange"},
		{Exchange{Name: "e", Alternate: "f"}, ""},
		{Exchange{}, "Exchange.Name"},
		{Exchange{Name: "bourse.e"}, "Exchange.Name"},
		{Exchange{Name: "e", Kind: ConsistentHash + 1}, "Exchange.Kind"},
		{Exchange{Name: "e", Alternate: long + "n"}, "Exchange.Alternate"},
		{Binding{Exchange: "e", Queue: "q", Key: long}, ""},
		{Binding{Exchange: "e", Destination: "e"}, ""},
		{Binding{Queue: "q"}, "Binding.Exchange"},
		{Binding{Exchange: "bourse.e", Queue: "q"}, "Binding.Exchange"},
		{Binding{Exchange: "e"}, "Binding.Queue"},
		{Binding{Exchange: "e", Queue: "q", Destination: "e"}, "Binding.Destination"},
		{Binding{Exchange: "e", Queue: ParkingQueue}, "Binding.Queue"},
		{Binding{Exchange: "e", Destination: "bourse.e"}, "Binding.Destination"},
		{Binding{Exchange: "e", Queue: "q", Key: long + "n"}, "Binding.Key"},
		{Binding{Exchange: "e", Queue: "q", Key: "a\tb"}, "Binding.Key"},
		{Binding{Exchange: "e", Queue: "q", Headers: map[string]any{"a": 1}}, "Binding.Headers"}, // e is direct
		{Binding{Exchange: "e", Queue: "q", Weight: 1}, "Binding.Weight"},
		{Binding{Exchange: "h", Queue: "q", Headers: map[string]any{"a": nil}}, ""},
		{Binding{Exchange: "h", Queue: "q", Headers: map[string]any{"a": []int{}}}, "Binding.Headers"},
		{Binding{Exchange: "h", Queue: "q", Headers: map[string]any{"x-match": "none"}}, "Binding.Headers"},
		{Binding{Exchange: "h", Queue: "q", Weight: -1}, "Binding.Weight"},
		{Binding{Exchange: "c", Queue: "q", Weight: MaxWeight}, ""},
		{Binding{Exchange: "c", Queue: "q", Weight: -5}, ""},
		{Binding{Exchange: "c", Queue: "q", Weight: MaxWeight + 1}, "Binding.Weight"},
		{Schedule{Name: "s", Every: time.Hour}, ""},
		{Schedule{Name: "s", Cron: "whatever the parser says"}, ""},
		{Schedule{Name: "s", Cron: "* * * * *", TimeZone: "Mars/Phobos", CatchUp: CatchUpAll}, ""},
		{Schedule{Name: long[:MaxScheduleName], Every: MaxDelay, Message: Message{Body: make([]byte, MaxScheduleBody)}}, ""},
		{Schedule{Name: long[:MaxScheduleName+1], Every: time.Hour}, "Schedule.Name"},
		{Schedule{Every: time.Hour}, "Schedule.Name"},
		{Schedule{Name: "bourse.s", Every: time.Hour}, "Schedule.Name"},
		{Schedule{Name: "s"}, "Schedule.Cron"},
		{Schedule{Name: "s", Cron: long + "n"}, "Schedule.Cron"},
		{Schedule{Name: "s", Cron: "*\n"}, "Schedule.Cron"},
		{Schedule{Name: "s", Cron: "@daily", Every: time.Hour}, "Schedule.Every"},
		{Schedule{Name: "s", Every: MinEvery - 1}, "Schedule.Every"},
		{Schedule{Name: "s", Every: -1}, "Schedule.Every"},
		{Schedule{Name: "s", Every: MaxDelay + 1}, "Schedule.Every"},
		{Schedule{Name: "s", Every: time.Hour, TimeZone: "UTC"}, "Schedule.TimeZone"},
		{Schedule{Name: "s", Cron: "@daily", TimeZone: long[:101]}, "Schedule.TimeZone"},
		{Schedule{Name: "s", Cron: "@daily", TimeZone: "\xff"}, "Schedule.TimeZone"},
		{Schedule{Name: "s", Every: time.Hour, CatchUp: CatchUpAll + 1}, "Schedule.CatchUp"},
		{scheduled(Message{ID: "i"}), "Schedule.Message.ID"},
		{scheduled(Message{Timestamp: time.Unix(1, 0)}), "Schedule.Message.Timestamp"},
		{scheduled(Message{Delay: 1}), "Schedule.Message.Delay"},
		{scheduled(Message{DeliverAt: time.Unix(1, 0)}), "Schedule.Message.DeliverAt"},
		{scheduled(Message{Mandatory: true}), "Schedule.Message.Mandatory"},
		{scheduled(Message{Transient: true}), "Schedule.Message.Transient"},
		{scheduled(Message{Body: make([]byte, MaxScheduleBody+1)}), "Schedule.Message.Body"},
		{scheduled(Message{TTL: NoWait}), ""},
		{scheduled(Message{TTL: NoWait - 1}), "Schedule.Message.TTL"},
		{scheduled(Message{TTL: MaxDelay + 1}), "Schedule.Message.TTL"},
		{scheduled(Message{Exchange: long + "n"}), "Schedule.Message.Exchange"},
		{scheduled(Message{RoutingKey: "\x00"}), "Schedule.Message.RoutingKey"},
		{scheduled(Message{Headers: map[string]any{"a": nil}}), "Schedule.Message.Headers"},
		{nil, "Declaration"},
		{&Queue{Name: "q"}, "Declaration"},
		{(*Exchange)(nil), "Declaration"},
	}
	base := declared(t, Exchange{Name: "e", Alternate: "f"}, Exchange{Name: "h", Kind: HeadersMatch},
		Exchange{Name: "c", Kind: ConsistentHash})
	for _, row := range rows {
		ds := []Declaration{row.d}
		if _, ok := row.d.(Binding); ok {
			ds = append(ds, Queue{Name: "q"})
		}
		next, created, err := base.declare(ds)
		if row.field == "" {
			require.NoError(t, err, "%+v", row.d)
			continue
		}
		require.ErrorIs(t, err, ErrInvalid, "%+v", row.d)
		var invalid *InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, row.field, invalid.Field, "%+v: %v", row.d, err)
		require.NotEmpty(t, invalid.Reason)
		require.Same(t, base, next)
		require.Empty(t, created)
	}
}

func scheduled(m Message) Schedule { return Schedule{Name: "s", Every: time.Hour, Message: m} }

func TestQueueDefaults(t *testing.T) {
	require.Equal(t, Queue{Name: "q", Priorities: 1, MaxRetries: DefaultRetries, AckDeadline: DefaultDeadline, GroupConcurrency: 1},
		Queue{Name: "q"}.withDefaults())
	require.Equal(t, Backoff{Min: 5, Max: 5, Factor: 2}, Queue{Retry: Backoff{Min: 5}}.withDefaults().Retry)
	require.Equal(t, Backoff{Pauses: []time.Duration{1}, Jitter: 0.25},
		Queue{Retry: Backoff{Pauses: []time.Duration{1}, Jitter: 0.2549}}.withDefaults().Retry)
	require.Equal(t, Backoff{Min: 1, Max: 3, Factor: 1.5}, Queue{Retry: Backoff{Min: 1, Max: 3, Factor: 1.502}}.withDefaults().Retry)
	require.Equal(t, Backoff{}, Queue{Retry: Backoff{Pauses: []time.Duration{}}}.withDefaults().Retry)
	require.Equal(t, Rate{Deliveries: 7, Per: time.Second, Burst: 7}, Queue{Rate: Rate{Deliveries: 7}}.withDefaults().Rate)
	require.Equal(t, Rate{Deliveries: 7, Per: 1, Burst: 2}, Queue{Rate: Rate{Deliveries: 7, Per: 1, Burst: 2}}.withDefaults().Rate)
	full := Queue{Name: "q", Priorities: 3, MaxRetries: NoLimit, Retry: Backoff{Min: 1, Max: 2, Factor: 1.25}, AckDeadline: 7,
		GroupConcurrency: 3}
	require.Equal(t, full, full.withDefaults())
}

func TestDeclarationsRoundTrip(t *testing.T) {
	at := time.Unix(1, 2).UTC()
	ds := []Declaration{
		Exchange{Name: "e", Kind: Topic, Alternate: "f"}, Exchange{},
		Queue{Name: "q", Priorities: 10, MaxRetries: NoRetry, Retry: Backoff{Min: 1, Max: MaxDelay}, AckDeadline: time.Hour,
			DeadLetter: DeadLetter{Exchange: "x", RoutingKey: "k"}, GroupConcurrency: NoLimit},
		Queue{DeadLetter: DeadLetter{Discard: true}, Retry: Backoff{Pauses: []time.Duration{0, 1, MaxDelay}, Jitter: 0.99}},
		Queue{Retry: Backoff{Min: 1, Max: 2, Factor: 9.99, Jitter: 1}, Dedup: Dedup{Window: MaxDedupWindow, MaxIDs: MaxDedupIDs},
			Inbox: InboxMemory{Window: MaxDedupWindow, MaxIDs: MaxDedupIDs}},
		Queue{Dedup: Dedup{UntilDone: true, OnDuplicate: BumpWaiting}},
		Queue{Retry: Backoff{AtTail: true}},
		Queue{Rate: Rate{Deliveries: MaxRate, Per: MaxDelay, Burst: 3}},
		Queue{Priorities: 2, Fairness: Fairness{LowerOneIn: 10, Aging: time.Minute}, BumpOnRedelivery: true, Expires: MaxDelay},
		Queue{Transient: true, AutoDelete: true}, Queue{Transient: true, Exclusive: true},
		Queue{SingleActiveConsumer: true},
		Binding{Exchange: "e", Queue: "q", Key: "a.#", Weight: -3},
		Schedule{Name: "s", Cron: "@daily", TimeZone: "Europe/Paris", CatchUp: CatchUpAll, Message: Message{Exchange: "e", RoutingKey: "k",
			Priority: 7, TTL: time.Hour, Headers: map[string]any{"a": "b"}, Body: []byte("body")}},
		Schedule{Name: "r", Every: time.Hour},
		Binding{Exchange: "e", Destination: "f", Headers: map[string]any{"a": int64(1), "b": nil, "x-match": "any", "t": at}},
	}
	b := appendDeclarations([]byte("before"), ds)[len("before"):]
	r := wire.NewReader(b)
	require.Equal(t, ds, decodeDeclarations(&r))
	require.NoError(t, r.Done())
	for cut := range b {
		r := wire.NewReader(b[:cut])
		require.Nil(t, decodeDeclarations(&r))
		require.Error(t, r.Err())
	}
	r = wire.NewReader(appendDeclarations(nil, nil))
	require.Empty(t, decodeDeclarations(&r))
	require.NoError(t, r.Done())
	require.Panics(t, func() { appendDeclarations(nil, []Declaration{nil}) })
}

func FuzzDeclarations(f *testing.F) {
	f.Add(appendDeclarations(nil, []Declaration{Exchange{Name: "e", Kind: Topic}, Queue{Name: "q"},
		Binding{Exchange: "e", Queue: "q", Key: "a.#"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := wire.NewReader(b)
		ds := decodeDeclarations(&r)
		if r.Err() != nil {
			require.Nil(t, ds)
			return
		}
		if top, _, err := newTopology(topologyLimits{}).declare(ds); err == nil {
			checkTopology(t, top)
		}
	})
}

func TestPreconditionNamesEveryField(t *testing.T) {
	top := declared(t, Queue{Name: "q", Priorities: 2}, Exchange{Name: "e", Kind: Topic, Alternate: "f"})
	_, _, err := top.declare([]Declaration{Queue{Name: "q", MaxRetries: NoLimit, Retry: Backoff{Min: time.Second, Jitter: 0.1},
		AckDeadline: time.Minute, DeadLetter: DeadLetter{Exchange: "x", RoutingKey: "k"},
		Dedup: Dedup{Window: time.Hour, OnDuplicate: ReplaceWaiting}, Inbox: InboxMemory{Window: time.Minute}, Expires: time.Hour}})
	require.ErrorIs(t, err, ErrPrecondition)
	var pre *PreconditionError
	require.True(t, errors.As(err, &pre))
	require.Equal(t, &PreconditionError{Object: `queue "q"`, Fields: []FieldDiff{
		{"Priorities", "2", "1"}, {"MaxRetries", "20", "NoLimit"}, {"Retry.Min", "0s", "1s"}, {"Retry.Max", "0s", "1s"},
		{"Retry.Factor", "0", "2"}, {"Retry.Jitter", "0", "0.1"}, {"AckDeadline", "30m0s", "1m0s"}, {"DeadLetter.Exchange", `""`, `"x"`}, {"DeadLetter.RoutingKey", `""`, `"k"`},
		{"Dedup.Window", "0s", "1h0m0s"}, {"Dedup.OnDuplicate", "ignore", "replace"}, {"Dedup.MaxIDs", "0", "1048576"},
		{"Inbox.Window", "0s", "1m0s"}, {"Inbox.MaxIDs", "0", "1048576"}, {"Expires", "0s", "1h0m0s"},
	}}, pre)
	_, _, err = top.declare([]Declaration{
		Queue{Name: "q", Priorities: 2, Fairness: Fairness{LowerOneIn: 3, Aging: time.Hour}, BumpOnRedelivery: true},
	})
	require.EqualError(t, err, `queue "q" exists with other settings: Fairness.LowerOneIn is 0, declared 3, `+
		`Fairness.Aging is 0s, declared 1h0m0s, BumpOnRedelivery is false, declared true`)
	_, _, err = top.declare([]Declaration{Queue{Name: "q", Priorities: 2, DeadLetter: DeadLetter{Discard: true}}})
	require.EqualError(t, err, `queue "q" exists with other settings: DeadLetter.Discard is false, declared true`)
	_, _, err = top.declare([]Declaration{Queue{Name: "q", Priorities: 2, Retry: Backoff{Pauses: []time.Duration{1, time.Second}}}})
	require.EqualError(t, err, `queue "q" exists with other settings: Retry.Pauses is [], declared [1ns 1s]`)
	_, _, err = top.declare([]Declaration{Queue{Name: "q", Priorities: 2, MaxMessages: 7, MaxBytes: 8, Overflow: Block}})
	require.EqualError(t, err, `queue "q" exists with other settings: MaxMessages is 0, declared 7, MaxBytes is 0, declared 8, `+
		`Overflow is RejectPublish, declared Block`)
	_, _, err = top.declare([]Declaration{Queue{Name: "q", Priorities: 2, Retry: Backoff{AtTail: true}}})
	require.EqualError(t, err, `queue "q" exists with other settings: Retry.AtTail is false, declared true`)
	_, _, err = top.declare([]Declaration{Queue{Name: "q", Priorities: 2, Rate: Rate{Deliveries: 3}}})
	require.EqualError(t, err, `queue "q" exists with other settings: Rate.Deliveries is 0, declared 3, Rate.Per is 0s, declared 1s, `+
		`Rate.Burst is 0, declared 3`)
	_, _, err = top.declare([]Declaration{Exchange{Name: "e"}})
	require.EqualError(t, err, `exchange "e" exists with other settings: Kind is topic, declared direct, Alternate is "f", declared ""`)
}

func TestDeclarationsMalformed(t *testing.T) {
	good := appendDeclarations(nil, []Declaration{Queue{Name: "q"}})
	head := good[:5] // version, count, kind, name
	rows := map[string][]byte{
		"another version":          append([]byte{2}, good[1:]...),
		"an unknown kind":          {1, 1, 5, 0, 0},
		"a count past the end":     {1, 200, 1, kindExchange, 0, 0, 0},
		"priorities of 33 bits":    append(append([]byte{}, head...), wire.AppendVarint(nil, 1<<32)...),
		"headers do not decode":    {1, 1, kindBinding, 1, 'e', 1, 'q', 0, 0, 1, 99, 0},
		"a factor above the limit": append(append([]byte{}, head...), 2, 0, 0, 0, 0, 0, 0, 0, 2, 2, 0xe9, 7, 0),
		"a jitter above one":       append(append([]byte{}, head...), 2, 0, 0, 0, 0, 0, 0, 0, 2, 2, 0, 101, 0),
		"a bump that is no truth":  append(append([]byte{}, head...), 2, 0, 0, 2),
		"too many pauses": append(append(append([]byte{}, head...), 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, MaxPauses+1),
			make([]byte, 99)...),
		"discard is not a truth":  append(append([]byte{}, good[:len(good)-10]...), 2),
		"auto-delete is no truth": append(append([]byte{}, good[:len(good)-2]...), 2),
		"exclusive is no truth":   append(append([]byte{}, good[:len(good)-1]...), 2),
		"until done is no truth":  append(append([]byte{}, good[:len(good)-8]...), 2),
	}
	for name, b := range rows {
		r := wire.NewReader(append(b, make([]byte, 16)...))
		require.Nil(t, decodeDeclarations(&r), name)
		require.ErrorIs(t, r.Err(), wire.ErrMalformed, name)
	}
}
