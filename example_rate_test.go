package bourse_test

// Goal and method as in example_test.go: a queue that hands out no faster than what is behind it can take.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// At most two calls at once, and a hundred a day, whoever makes them.
func ExampleRate() {
	ctx := context.Background()
	b := memory(bourse.Queue{Name: "calls", Rate: bourse.Rate{Deliveries: 100, Per: 24 * time.Hour, Burst: 2}})
	defer b.Close()
	for i := range 5 {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "calls", Body: fmt.Append(nil, "call ", i)}))
	}
	for {
		d, err := b.Get(ctx, "calls")
		if errors.Is(err, bourse.ErrHeldBack) {
			break
		}
		check(err)
		fmt.Println(string(d.Body))
		check(d.Ack())
	}
	st, _ := b.QueueStats("calls")
	fmt.Println("next in", time.Until(st.HeldUntil).Round(time.Minute))
	// Output:
	// call 0
	// call 1
	// next in 14m0s
}
