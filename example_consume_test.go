package bourse_test

// Goal and method as in example_test.go: who of several consumers is served.

import (
	"context"
	"fmt"

	"github.com/boursemq/bourse"
)

// A subscription of a higher priority is served first, as long as it has room: the spare one gets what is left.
func ExampleSubscribeOptions_priority() {
	ctx := context.Background()
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	spare, err := b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{Priority: -1})
	check(err)
	main, err := b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{Prefetch: 2})
	check(err)
	for _, body := range []string{"one", "two", "three"} {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte(body)}))
	}
	for _, s := range []*bourse.Subscription{main, main, spare} {
		d, err := s.Next(ctx)
		check(err)
		fmt.Println(s == main, string(d.Body))
		check(d.Ack())
	}
	// Output:
	// true one
	// true two
	// false three
}
