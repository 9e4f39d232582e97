package bourse_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// A queue with a limit refuses what does not fit, and says so.
func ExampleRejectedError() {
	ctx := context.Background()
	b := memory(bourse.Queue{Name: "orders", MaxMessages: 2})
	defer b.Close()
	for i := range 3 {
		err := b.Publish(ctx, bourse.Message{RoutingKey: "orders", Body: []byte(fmt.Sprint("order ", i))})
		var rejected *bourse.RejectedError
		if errors.As(err, &rejected) {
			fmt.Println(rejected, "-", errors.Is(err, bourse.ErrQueueFull))
		}
	}
	show(b, "orders")
	// Output:
	// queue "orders": queue full - true
	// orders: order 0 order 1
}

// A queue that keeps the newest messages, and sends the others to a dead-letter exchange.
func ExampleOverflow_dropHead() {
	ctx := context.Background()
	b := memory(
		bourse.Exchange{Name: "old", Kind: bourse.Fanout}, bourse.Queue{Name: "archive"}, bourse.Binding{Exchange: "old", Queue: "archive"},
		bourse.Queue{Name: "prices", MaxMessages: 1, Overflow: bourse.DropHead, DeadLetter: bourse.DeadLetter{Exchange: "old"}},
	)
	defer b.Close()
	for _, price := range []string{"10.1", "10.2"} {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "prices", Body: []byte(price)}))
	}
	show(b, "prices")
	s, err := b.Subscribe(ctx, "archive", bourse.SubscribeOptions{})
	check(err)
	d, err := s.Next(ctx)
	check(err)
	fmt.Printf("archive: %s, %s in %s\n", d.Body, d.Deaths[0].Reason, d.Deaths[0].Queue)
	// Output:
	// prices: 10.2
	// archive: 10.1, maxlen in prices
}

// A publisher that waits for room, but not for ever.
func ExampleOverflow_block() {
	ctx := context.Background()
	b := memory(bourse.Queue{Name: "jobs", MaxMessages: 1, Overflow: bourse.Block})
	defer b.Close()
	job := bourse.Message{RoutingKey: "jobs", Body: []byte("job")}
	check(b.Publish(ctx, job))

	bounded, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	err := b.Publish(bounded, job)
	fmt.Println(errors.Is(err, bourse.ErrQueueFull), errors.Is(err, context.DeadlineExceeded))

	confirm := b.PublishAsync(ctx, job) // waits in the background
	d, err := b.Get(ctx, "jobs")
	check(err)
	check(d.AckSync(ctx)) // a message on loan takes no room: the other one has come in by now
	fmt.Printf("%s, %v\n", d.Body, confirm.Wait(ctx))
	// Output:
	// true true
	// job, <nil>
}
