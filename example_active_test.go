package bourse_test

import (
	"fmt"

	"github.com/boursemq/bourse"
)

// Goal and method as in example_test.go: one consumer at a time, and how the world outside tells it from the one before.

// ledger is a resource outside of the broker. It knows the highest epoch that has written to it.
type ledger struct{ epoch uint64 }

func (l *ledger) write(d *bourse.Delivery) {
	if d.Epoch() < l.epoch {
		fmt.Printf("%s: refused, its consumer was replaced\n", d.Body)
		return
	}
	l.epoch = d.Epoch()
	fmt.Printf("%s: written\n", d.Body)
}

// A consumer that was replaced, and does not know yet, cannot spoil what the next one does.
func ExampleDelivery_Epoch() {
	b := memory(bourse.Queue{Name: "payments", SingleActiveConsumer: true})
	defer b.Close()
	for _, payment := range []string{"17", "18"} {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "payments", Body: []byte(payment)}))
	}
	first, err := b.Subscribe(ctx, "payments", bourse.SubscribeOptions{Prefetch: 1})
	check(err)
	second, err := b.Subscribe(ctx, "payments", bourse.SubscribeOptions{Prefetch: 1})
	check(err)
	slow, err := first.Next(ctx)
	check(err)
	_, active := second.Active()
	fmt.Println("second is active:", active)

	check(first.Close()) // while a request of it is still under way
	_, active = second.Active()
	fmt.Println("second is active:", active)
	var outside ledger
	for range 2 {
		d, err := second.Next(ctx)
		check(err)
		outside.write(d)
		check(d.Ack())
	}
	outside.write(slow)
	// Output:
	// second is active: false
	// second is active: true
	// 17: written
	// 18: written
	// 17: refused, its consumer was replaced
}
