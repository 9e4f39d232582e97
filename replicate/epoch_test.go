package replicate

import (
	"context"
	"testing"

	"github.com/boursemq/bourse"
)

// A queue with a single active consumer, whose leader is lost: the one who comes to the next leader has what the old one held, under a
// higher epoch, since the replicas count alike.
func TestEpochsRiseOverLeaders(t *testing.T) {
	t.Parallel()
	b := startBrokers(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	check("declare", b.leads(func(_ int, broker *bourse.Broker) error {
		return broker.Declare(ctx, bourse.Queue{Name: "q", SingleActiveConsumer: true})
	}))
	check("publish", b.leads(func(_ int, broker *bourse.Broker) error {
		return broker.Publish(ctx, bourse.Message{RoutingKey: "q", ID: "m", Mandatory: true})
	}))
	last := uint64(0)
	for range 2 { // leaders
		leader := -1
		check("consume", b.leads(func(i int, broker *bourse.Broker) error {
			for range 3 { // consumers
				s, err := broker.Subscribe(ctx, "q", bourse.SubscribeOptions{Prefetch: 1})
				if err != nil {
					return err
				}
				d, err := s.Next(ctx)
				if err != nil {
					return err
				}
				epoch, active := s.Active()
				if !active || d.ID != "m" || d.Epoch() != epoch || epoch <= last {
					t.Fatalf("message %q with epoch %x, active %v with epoch %x, after %x", d.ID, d.Epoch(), active, epoch, last)
				}
				leader, last = i, epoch
				if err := s.Close(); err != nil {
					return err
				}
			}
			return nil
		}))
		b.close(t, leader)
	}
}
