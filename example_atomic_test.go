package bourse_test

import (
	"fmt"

	"github.com/boursemq/bourse"
)

// An order and its bill are both there or neither is.
func ExampleBroker_PublishAtomic() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "orders"}, bourse.Queue{Name: "bills"}))
	order, bill := bourse.Message{RoutingKey: "orders"}, bourse.Message{RoutingKey: "bill", Mandatory: true}
	fmt.Println(b.PublishAtomic(ctx, []bourse.Message{order, bill}))
	bill.RoutingKey = "bills"
	fmt.Println(b.PublishAtomic(ctx, []bourse.Message{order, bill}))
	for _, q := range b.Stats().Queues {
		fmt.Println(q.Name, q.Ready)
	}
	// Output:
	// broker: publish 2 messages atomically: nothing is stored: message 1: exchange "", key "bill": unroutable
	// <nil>
	// bills 1
	// bourse.parked 0
	// orders 1
}

// A step of a pipeline takes a message from one queue and puts its result into the next, never half.
func ExampleDelivery_AckAndPublish() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "texts"}, bourse.Queue{Name: "lengths"}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "texts", Body: []byte("hello")}))
	d, err := b.Get(ctx, "texts")
	check(err)
	check(d.AckAndPublish(ctx, bourse.Message{RoutingKey: "lengths", Body: fmt.Append(nil, len(d.Body))}))
	d, err = b.Get(ctx, "lengths")
	check(err)
	fmt.Println(string(d.Body))
	// Output: 5
}
