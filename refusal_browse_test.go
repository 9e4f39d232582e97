package bourse_test

// Goal and method as in refusal_test.go, for looking at messages and acting on them where they are.

import (
	"context"
	"errors"

	"github.com/boursemq/bourse"
)

// browseRefusals adds the rows, for a broker in which queue q, of ten levels, has two messages on loan and message 3 ready.
func browseRefusals(b *bourse.Broker, row func(name string, is error, call func() error, says ...string) *refusal) {
	invalid := bourse.ErrInvalid
	browse := func(name string, is error, queue string, opts bourse.BrowseOptions, says ...string) {
		row("browse "+name, is, func() error {
			for _, err := range b.Browse(ctx, queue, opts) {
				return err
			}
			return nil
		}, says...)
	}
	var third bourse.Locator
	for m, err := range b.Browse(ctx, "q", bourse.BrowseOptions{States: []bourse.State{bourse.StateReady}}) {
		if err == nil {
			third = m.Locator
		}
	}
	browse("no queue", bourse.ErrNotFound, "no", bourse.BrowseOptions{}, `"no"`)
	browse("a negative limit", invalid, "q", bourse.BrowseOptions{Limit: -1}, "BrowseOptions.Limit", "-1")
	for _, s := range []bourse.State{0, bourse.StateDying + 1} {
		browse("no state", invalid, "q", bourse.BrowseOptions{States: []bourse.State{bourse.StateReady, s}}, "BrowseOptions.States")
	}
	browse("behind a number", invalid, "q", bourse.BrowseOptions{After: bourse.Locator{Queue: "q", Seq: 1}}, "BrowseOptions.After")
	browse("behind a message of another queue", invalid, "empty", bourse.BrowseOptions{After: third}, "BrowseOptions.After", `"empty"`)
	row("browse with an ended context", context.Canceled, func() error {
		for _, err := range b.Browse(canceled(), "q", bourse.BrowseOptions{}) {
			return err
		}
		return nil
	})
	row("find nothing", bourse.ErrNotFound, func() error { _, err := b.Find(ctx, "q", "nobody"); return err }, `"nobody"`, `"q"`)
	row("find in no queue", bourse.ErrNotFound, func() error { _, err := b.Find(ctx, "no", "id"); return err })

	ops := map[string]func(ctx context.Context, l bourse.Locator) error{
		"cancel":       b.Cancel,
		"promote":      b.Promote,
		"set priority": func(ctx context.Context, l bourse.Locator) error { return b.SetPriority(ctx, l, 1) },
		"edit": func(ctx context.Context, l bourse.Locator) error {
			return b.Edit(ctx, l, func(*bourse.Message) error { return nil })
		},
	}
	for name, op := range ops {
		at := func(queue string, seq uint64) func() error {
			return func() error { return op(ctx, bourse.Locator{Queue: queue, Seq: seq}) }
		}
		row(name+" in no queue", bourse.ErrNotFound, at("no", 3), `"no"`, "message 3")
		for _, seq := range []uint64{0, 4, 1 << 63} {
			row(name+" of no message", bourse.ErrNotFound, at("q", seq), `"q"`).log = 1
		}
		if name != "cancel" {
			row(name+" of one on loan", bourse.ErrNotWaiting, at("q", 1), `"q"`, "message 1").log = 1
		}
		row(name+" with an ended context", context.Canceled, func() error { return op(canceled(), third) }).log = 0
	}
	refuse := errors.New("I will not")
	for _, c := range []struct {
		name, says string
		is         error
		change     func(m *bourse.Message) error
	}{
		{"that is refused", "I will not", refuse, func(*bourse.Message) error { return refuse }},
		{"of the id", "Message.ID", invalid, func(m *bourse.Message) error { m.ID = "x"; return nil }},
		{"of the key", "Message.RoutingKey", invalid, func(m *bourse.Message) error { m.RoutingKey = "x"; return nil }},
		{"of the priority", "Message.Priority", invalid, func(m *bourse.Message) error { m.Priority++; return nil }},
		{"of the TTL", "Message.TTL", invalid, func(m *bourse.Message) error { m.TTL++; return nil }},
		{"to a large body", "Message.Body", invalid, func(m *bourse.Message) error { m.Body = make([]byte, 1001); return nil }},
		{"to bad headers", "Message.Headers", invalid, func(m *bourse.Message) error { m.Headers = headers(65); return nil }},
	} {
		row("edit "+c.name, c.is, func() error { return b.Edit(ctx, third, c.change) }, c.says)
	}

	replay := func(name string, is error, from string, opts bourse.ReplayOptions, says ...string) {
		row("replay "+name, is, func() error { _, err := b.Replay(ctx, from, opts); return err }, says...)
	}
	replay("from no queue", bourse.ErrNotFound, "no", bourse.ReplayOptions{}, `"no"`)
	replay("at a negative rate", invalid, "q", bourse.ReplayOptions{Rate: -1}, "ReplayOptions.Rate", "-1")
	replay("up to a negative limit", invalid, "q", bourse.ReplayOptions{Limit: -1}, "ReplayOptions.Limit", "-1")
	row("replay with an ended context", context.Canceled, func() error {
		_, err := b.Replay(canceled(), "q", bourse.ReplayOptions{})
		return err
	})
}

func canceled() context.Context {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	return ended
}
