package bourse_test

import (
	"fmt"

	"github.com/boursemq/bourse"
)

// The events of one order are worked on one at a time, in order; those of others go on meanwhile.
func ExampleMessage_group() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "orders"}))
	for _, event := range []string{"17 placed", "17 paid", "18 placed", "17 shipped"} {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "orders", GroupID: event[:2], Body: []byte(event)}))
	}
	s, err := b.Subscribe(ctx, "orders", bourse.SubscribeOptions{Prefetch: 10})
	check(err)
	first, err := s.Next(ctx)
	check(err)
	fmt.Printf("%s\n", first.Body)
	other, err := s.Next(ctx)
	check(err)
	fmt.Printf("%s, while 17 waits\n", other.Body)
	check(first.Nack()) // it failed: again, before what follows it
	for range 3 {
		d, err := s.Next(ctx)
		check(err)
		fmt.Printf("%s\n", d.Body)
		check(d.Ack())
	}
	// Output:
	// 17 placed
	// 18 placed, while 17 waits
	// 17 placed
	// 17 paid
	// 17 shipped
}
