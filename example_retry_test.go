package bourse_test

import (
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// A queue may list its pauses. The last one repeats until Queue.MaxRetries.
func ExampleBackoff_pauses() {
	clock := newHandClock() // a Clock for tests: it moves when it is told to
	b, err := bourse.NewBroker(ctx, bourse.Options{Clock: clock})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "jobs", Retry: bourse.Backoff{
		Pauses: []time.Duration{time.Second, 10 * time.Second, 5 * time.Minute},
	}}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs"}))
	s, err := b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{})
	check(err)
	start := clock.Now()
	for range 5 {
		d, err := s.Next(ctx)
		check(err)
		fmt.Println(clock.Now().Sub(start), d.Failures)
		check(d.Nack())
		check(b.Declare(ctx)) // returns when the nack has happened
		clock.step(clock.Now().Add(time.Hour))
	}
	// Output:
	// 0s 0
	// 1s 1
	// 11s 2
	// 5m11s 3
	// 10m11s 4
}
