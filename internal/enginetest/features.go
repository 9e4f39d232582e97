package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boursemq/bourse"
)

// Feature is one feature of queues, as a broker on the engine under test must keep it over whatever comes between Fill and Verify: a
// restart, or another leader. Its queues are its own.
type Feature struct {
	Name   string
	Queues []bourse.Queue
	Fill   func(ctx context.Context, b *bourse.Broker) error
	Verify func(ctx context.Context, b *bourse.Broker) error
}

// Features returns the features of the suite. What consumers hold goes back in between, so those that take messages ack them, or
// expect them again.
func Features() []Feature {
	return []Feature{
		{"ttl", []bourse.Queue{{Name: "ttl"}}, func(ctx context.Context, b *bourse.Broker) error {
			return errors.Join(
				put(ctx, b, bourse.Message{RoutingKey: "ttl", Body: []byte("1"), TTL: 100 * time.Millisecond}),
				put(ctx, b, bourse.Message{RoutingKey: "ttl", Body: []byte("2"), TTL: time.Hour}),
			)
		}, func(ctx context.Context, b *bourse.Broker) error {
			if err := comes(ctx, b, "ttl", func(s bourse.QueueStats) bool { return s.Expired == 1 && s.Ready == 1 }); err != nil {
				return err
			}
			return takes(ctx, b, "ttl", "2")
		}},
		{"delay", []bourse.Queue{{Name: "delay"}}, func(ctx context.Context, b *bourse.Broker) error {
			return errors.Join(
				put(ctx, b, bourse.Message{RoutingKey: "delay", Body: []byte("1"), Delay: time.Second}),
				put(ctx, b, bourse.Message{RoutingKey: "delay", Body: []byte("2"), Delay: time.Hour}),
				put(ctx, b, bourse.Message{RoutingKey: "delay", Body: []byte("3")}),
			)
		}, func(ctx context.Context, b *bourse.Broker) error {
			if err := comes(ctx, b, "delay", func(s bourse.QueueStats) bool { return s.Ready == 2 && s.Delayed == 1 }); err != nil {
				return err
			}
			return takes(ctx, b, "delay", "1", "3")
		}},
		{"limits", []bourse.Queue{
			{Name: "reject", MaxMessages: 2}, {Name: "drop", MaxMessages: 2, Overflow: bourse.DropHead},
		}, func(ctx context.Context, b *bourse.Broker) error {
			err := errors.Join(puts(ctx, b, "reject", "1", "2"), puts(ctx, b, "drop", "1", "2", "3"))
			return errors.Join(err, want(puts(ctx, b, "reject", "3"), bourse.ErrQueueFull))
		}, func(ctx context.Context, b *bourse.Broker) error {
			err := want(puts(ctx, b, "reject", "4"), bourse.ErrQueueFull)
			return errors.Join(err, puts(ctx, b, "drop", "4"), takes(ctx, b, "reject", "1", "2"), takes(ctx, b, "drop", "3", "4"),
				comes(ctx, b, "reject", func(s bourse.QueueStats) bool { return s.Rejected == 2 }),
				comes(ctx, b, "drop", func(s bourse.QueueStats) bool { return s.Evicted == 2 }))
		}},
		{"dedup", []bourse.Queue{
			{Name: "dedup", Dedup: bourse.Dedup{Window: time.Hour}},
		}, func(ctx context.Context, b *bourse.Broker) error {
			m := bourse.Message{RoutingKey: "dedup", ID: "x", Body: []byte("1")}
			return errors.Join(put(ctx, b, m), put(ctx, b, m), takes(ctx, b, "dedup", "1"))
		}, func(ctx context.Context, b *bourse.Broker) error {
			return errors.Join(
				put(ctx, b, bourse.Message{RoutingKey: "dedup", ID: "x", Body: []byte("2")}),
				put(ctx, b, bourse.Message{RoutingKey: "dedup", ID: "y", Body: []byte("3")}), takes(ctx, b, "dedup", "3"),
				comes(ctx, b, "dedup", func(s bourse.QueueStats) bool { return s.Duplicates >= 2 }))
		}},
		{"groups", []bourse.Queue{{Name: "groups"}}, func(ctx context.Context, b *bourse.Broker) error {
			for _, m := range []struct{ group, body string }{{"g", "g1"}, {"g", "g2"}, {"h", "h1"}, {"g", "g3"}} {
				if err := put(ctx, b, bourse.Message{RoutingKey: "groups", GroupID: m.group, Body: []byte(m.body)}); err != nil {
					return err
				}
			}
			return takes(ctx, b, "groups", "g1")
		}, func(ctx context.Context, b *bourse.Broker) error {
			if err := holds(ctx, b, "groups", "h1", "g2"); err != nil { // the turn of g is over
				return err
			}
			_, err := b.Get(ctx, "groups")
			return want(err, bourse.ErrEmpty)
		}},
		{"dead letters", []bourse.Queue{{Name: "dying", MaxRetries: bourse.NoRetry}}, func(ctx context.Context, b *bourse.Broker) error {
			if err := puts(ctx, b, "dying", "1", "2"); err != nil {
				return err
			}
			d, err := b.Get(ctx, "dying")
			if err != nil {
				return err
			}
			return errors.Join(d.Nack(), comes(ctx, b, "dying", func(s bourse.QueueStats) bool { return s.Dead == 1 }))
		}, func(ctx context.Context, b *bourse.Broker) error {
			err := comes(ctx, b, "dying", func(s bourse.QueueStats) bool { return s.Dying == 0 && s.Dead == 1 && s.Ready == 1 })
			if err != nil {
				return err
			}
			d, err := b.Get(ctx, bourse.ParkingQueue)
			if err != nil {
				return err
			}
			if string(d.Body) != "1" || len(d.Deaths) != 1 || d.Deaths[0].Queue != "dying" || d.Deaths[0].Failures != 1 {
				return fmt.Errorf("parked is %q with %+v", d.Body, d.Deaths)
			}
			return nil
		}},
		{"pause", []bourse.Queue{{Name: "pause"}}, func(ctx context.Context, b *bourse.Broker) error {
			return errors.Join(puts(ctx, b, "pause", "1"), b.Pause(ctx, "pause"))
		}, func(ctx context.Context, b *bourse.Broker) error {
			_, err := b.Get(ctx, "pause")
			return errors.Join(want(err, bourse.ErrHeldBack), b.Resume(ctx, "pause"), takes(ctx, b, "pause", "1"))
		}},
		{"bundles", []bourse.Queue{{Name: "bundles"}}, func(ctx context.Context, b *bourse.Broker) error {
			to := func(key, body string) bourse.Message {
				return bourse.Message{RoutingKey: key, Body: []byte(body), Mandatory: true}
			}
			err := b.PublishAtomic(ctx, []bourse.Message{to("bundles", "1"), to("bundles", "2"), to("bundles", "3")})
			return errors.Join(err, want(b.PublishAtomic(ctx, []bourse.Message{to("bundles", "4"), to("none", "5")}), bourse.ErrUnroutable))
		}, func(ctx context.Context, b *bourse.Broker) error {
			d, err := b.Get(ctx, "bundles")
			if err != nil {
				return err
			}
			err = d.AckAndPublish(ctx, bourse.Message{RoutingKey: "bundles", Body: []byte("6")})
			return errors.Join(err, takes(ctx, b, "bundles", "2", "3", "6"))
		}},
		{"fairness", []bourse.Queue{
			{Name: "fairness", Priorities: 3, Fairness: bourse.Fairness{LowerOneIn: 2}},
		}, func(ctx context.Context, b *bourse.Broker) error {
			for i := range 8 {
				m := bourse.Message{RoutingKey: "fairness", Priority: uint8(i % 2 * 2), Body: []byte{byte('1' + i)}}
				if err := put(ctx, b, m); err != nil {
					return err
				}
			}
			return takes(ctx, b, "fairness", "2", "1", "4") // the next is one of the lower again
		}, func(ctx context.Context, b *bourse.Broker) error {
			return takes(ctx, b, "fairness", "3", "6", "5", "8", "7")
		}},
	}
}

func put(ctx context.Context, b *bourse.Broker, m bourse.Message) error { return b.Publish(ctx, m) }

func puts(ctx context.Context, b *bourse.Broker, queue string, bodies ...string) error {
	for _, body := range bodies {
		if err := put(ctx, b, bourse.Message{RoutingKey: queue, Body: []byte(body)}); err != nil {
			return err
		}
	}
	return nil
}

// want is nil if err is the one that is expected.
func want(err, is error) error {
	if errors.Is(err, is) {
		return nil
	}
	return fmt.Errorf("got %w, want %w", err, is)
}

// holds takes what must be next.
func holds(ctx context.Context, b *bourse.Broker, queue string, bodies ...string) error {
	_, err := get(ctx, b, queue, bodies)
	return err
}

// takes takes and acks what must be next.
func takes(ctx context.Context, b *bourse.Broker, queue string, bodies ...string) error {
	for i := range bodies {
		ds, err := get(ctx, b, queue, bodies[i:i+1])
		if err == nil {
			err = ds[0].AckSync(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func get(ctx context.Context, b *bourse.Broker, queue string, bodies []string) (ds []*bourse.Delivery, err error) {
	var have []string
	for range bodies {
		d, err := b.Get(ctx, queue)
		if err != nil {
			return nil, fmt.Errorf("%s: %v taken, then %w", queue, have, err)
		}
		have, ds = append(have, string(d.Body)), append(ds, d)
	}
	if !slices.Equal(have, bodies) {
		return nil, fmt.Errorf("%s: took %v, want %v", queue, have, bodies)
	}
	return ds, nil
}

// comes waits until the queue is as ok says.
func comes(ctx context.Context, b *bourse.Broker, queue string, ok func(bourse.QueueStats) bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s, _ := b.QueueStats(queue)
		if ok(s) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s stays %+v", queue, s)
		}
	}
}
