package bourse_test

// Goal and method as in example_test.go: stopping a queue while something behind it is repaired.

import (
	"context"
	"errors"
	"fmt"

	"github.com/boursemq/bourse"
)

// A paused queue takes messages and hands out none.
func ExampleBroker_Pause() {
	ctx := context.Background()
	b := memory(bourse.Queue{Name: "mail"})
	defer b.Close()
	check(b.Pause(ctx, "mail"))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "mail", Body: []byte("hello")}))
	_, err := b.Get(ctx, "mail")
	fmt.Println(errors.Is(err, bourse.ErrHeldBack))
	check(b.Resume(ctx, "mail"))
	show(b, "mail")
	// Output:
	// true
	// mail: hello
}
