package bourse_test

// Goal and method as in example_test.go: queues that go by themselves.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// A queue for replies goes when nobody has used it for a while: no subscription, no Get, no Declare.
func ExampleQueue_expires() {
	ctx := context.Background()
	b := memory(bourse.Queue{Name: "replies", Expires: time.Millisecond})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "replies", Body: []byte("for nobody")}))
	for { // it goes by itself; a Check is no use
		if err := b.Check(bourse.Queue{Name: "replies", Expires: time.Millisecond}); errors.Is(err, bourse.ErrNotFound) {
			break
		}
	}
	err := b.Publish(ctx, bourse.Message{RoutingKey: "replies", Mandatory: true})
	fmt.Println(errors.Is(err, bourse.ErrUnroutable))
	// Output:
	// true
}

// A queue for the updates that one visitor sees goes when the visitor does.
func ExampleQueue_autoDelete() {
	ctx := context.Background()
	b := memory(bourse.Exchange{Name: "updates", Kind: bourse.Fanout})
	defer b.Close()
	check(b.Declare(ctx,
		bourse.Queue{Name: "visitor.17", Transient: true, AutoDelete: true},
		bourse.Binding{Exchange: "updates", Queue: "visitor.17"},
	))
	s, err := b.Subscribe(ctx, "visitor.17", bourse.SubscribeOptions{AutoAck: true})
	check(err)
	check(b.Publish(ctx, bourse.Message{Exchange: "updates", Body: []byte("hello")}))
	d, err := s.Next(ctx)
	check(err)
	fmt.Println(string(d.Body))
	check(s.Close())
	_, there := b.QueueStats("visitor.17")
	fmt.Println(there)
	// Output:
	// hello
	// false
}

// An exclusive queue belongs to the broker that declares it, and goes with it.
func ExampleQueue_exclusive() {
	ctx := context.Background()
	b := memory()
	defer b.Close()
	err := b.Declare(ctx, bourse.Queue{Name: "replies", Exclusive: true})
	fmt.Println(err)
	check(b.Declare(ctx, bourse.Queue{Name: "replies", Exclusive: true, Transient: true, AutoDelete: true}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "replies", Body: []byte("yes")}))
	show(b, "replies")
	// Output:
	// broker: declare: Queue.Exclusive: is set, but the queue is not Transient: it would outlive the broker that it belongs to
	// replies: yes
}
