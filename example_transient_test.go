package bourse_test

import (
	"context"
	"fmt"
	"log"

	"github.com/boursemq/bourse"
)

// Two kinds of messages in one durable queue: orders, which must not be lost, and position updates, of which the next one
// is worth more than the last. The latter are never written to the log.
func ExampleMessage_transient() {
	ctx := context.Background()
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	if err := b.Declare(ctx, bourse.Queue{Name: "van-7"}); err != nil {
		log.Fatal(err)
	}
	written := b.Stats().Storage.Records
	for _, body := range []string{"52.51 N", "52.52 N"} {
		if err := b.Publish(ctx, bourse.Message{RoutingKey: "van-7", Body: []byte(body), Transient: true}); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("records:", b.Stats().Storage.Records-written)
	if err := b.Publish(ctx, bourse.Message{RoutingKey: "van-7", Body: []byte("deliver order 1")}); err != nil {
		log.Fatal(err)
	}
	fmt.Println("records:", b.Stats().Storage.Records-written)
	s, err := b.Subscribe(ctx, "van-7", bourse.SubscribeOptions{Prefetch: 2})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		d, err := s.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s, in memory only: %v\n", d.Body, d.Transient)
		if err := d.Ack(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// records: 0
	// records: 1
	// 52.51 N, in memory only: true
	// 52.52 N, in memory only: true
	// deliver order 1, in memory only: false
}
