package bourse_test

import (
	"context"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// With AutoExtend the deadline may be short, so that what a lost process held comes back soon, and a handler may still run for
// hours.
func ExampleWorkOptions_autoExtend() {
	clock := newHandClock() // a Clock for tests: it moves when it is told to
	b, err := bourse.NewBroker(ctx, bourse.Options{Clock: clock})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "films", AckDeadline: time.Minute}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "films", Body: []byte("cut it")}))
	stop, end := context.WithCancel(ctx)
	check(b.Work(stop, "films", func(ctx context.Context, d *bourse.Delivery) error {
		for limit := clock.Now().Add(3 * time.Hour); clock.step(limit); { // a long job
			clock.rest()
		}
		fmt.Printf("%s: delivery %d, its time is over: %v\n", d.Body, d.Deliveries, ctx.Err() != nil)
		end()
		return nil
	}, bourse.WorkOptions{AutoExtend: true, Timeout: 6 * time.Hour}))
	q, _ := b.QueueStats("films")
	fmt.Println("missed deadlines:", q.TimedOut)
	// Output:
	// cut it: delivery 1, its time is over: false
	// missed deadlines: 0
}
