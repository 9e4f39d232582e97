package bourse_test

// Goal and method as in example_test.go: what failed lets the others go first.

import (
	"context"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// A message that failed comes back behind those that wait, and not before them.
func ExampleBackoff_atTail() {
	ctx := context.Background()
	b := memory(bourse.Queue{Name: "jobs", Retry: bourse.Backoff{Min: time.Microsecond, AtTail: true}})
	defer b.Close()
	for _, body := range []string{"broken", "b", "c"} {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte(body)}))
	}
	d, err := b.Get(ctx, "jobs")
	check(err)
	check(d.Nack())
	for range 3 {
		d, err := b.Get(ctx, "jobs")
		check(err)
		fmt.Println(string(d.Body), d.Failures)
		check(d.Ack())
	}
	// Output:
	// b 0
	// c 0
	// broken 1
}
