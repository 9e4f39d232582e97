package bourse_test

import (
	"context"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// A payment that was published twice, and a consumer that charges once.
func ExampleInbox() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "payments", Inbox: bourse.InboxMemory{Window: 24 * time.Hour}}))
	for range 2 {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "payments", ID: "order-17"}))
	}
	inbox, err := b.Inbox("payments")
	check(err)
	for range 2 {
		d, err := b.Get(ctx, "payments")
		check(err)
		seen, err := inbox.Seen(ctx, d)
		check(err)
		if seen {
			fmt.Println(d.ID, "was charged before")
			check(d.Ack())
			continue
		}
		fmt.Println("charge", d.ID)
		check(inbox.Done(ctx, d)) // recorded and acked, or neither
	}
	// Output:
	// charge order-17
	// order-17 was charged before
}

// The same around a handler.
func ExampleInbox_Handle() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "payments", Inbox: bourse.InboxMemory{Window: 24 * time.Hour}}))
	for _, id := range []string{"order-17", "order-17", "order-18"} {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "payments", ID: id}))
	}
	inbox, err := b.Inbox("payments")
	check(err)
	working, stop := context.WithCancel(ctx)
	charge := func(_ context.Context, d *bourse.Delivery) error {
		fmt.Println("charge", d.ID)
		if d.ID == "order-18" {
			stop()
		}
		return nil
	}
	check(b.Work(working, "payments", inbox.Handle(charge), bourse.WorkOptions{}))
	// Output:
	// charge order-17
	// charge order-18
}
