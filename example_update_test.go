package bourse_test

import (
	"fmt"

	"github.com/boursemq/bourse"
)

// A queue is changed while it is in use: what it holds stays, and follows the new settings.
func ExampleBroker_Update() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	mail := bourse.Queue{Name: "mail", MaxRetries: 3}
	check(b.Declare(ctx, mail))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "mail", Body: []byte("hello")}))

	mail.MaxRetries, mail.Priorities = 10, 5
	fmt.Println(b.Declare(ctx, mail))
	check(b.Update(ctx, mail))
	fmt.Println(b.Declare(ctx, mail))

	d, err := b.Get(ctx, "mail")
	check(err)
	fmt.Println(string(d.Body))
	// Output:
	// broker: declare: queue "mail" exists with other settings: Priorities is 1, declared 5, MaxRetries is 3, declared 10
	// <nil>
	// hello
}
