package bourse_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"runtime"

	"github.com/boursemq/bourse"
)

// A broker keeps to a limit of memory: while consumers are behind, publishers wait.
func ExampleOptions_memoryLimit() {
	ctx := context.Background()
	b, err := bourse.NewBroker(ctx, bourse.Options{MemoryLimit: 8 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	if err := b.Declare(ctx, bourse.Queue{Name: "frames", Transient: true}); err != nil {
		log.Fatal(err)
	}
	frame := bourse.Message{RoutingKey: "frames", Body: make([]byte, 1<<20)}
	for range 6 {
		if err := b.Publish(ctx, frame); err != nil {
			log.Fatal(err)
		}
	}
	impatient, giveUp := context.WithCancel(ctx)
	published := make(chan error)
	go func() { published <- b.Publish(impatient, frame) }()
	for b.Stats().Memory.Waiters == 0 {
		runtime.Gosched()
	}
	giveUp()
	err = <-published
	fmt.Println("no room:", errors.Is(err, bourse.ErrMemoryFull), errors.Is(err, context.Canceled))

	d, err := b.Get(ctx, "frames")
	if err != nil {
		log.Fatal(err)
	}
	go func() { published <- b.Publish(ctx, frame) }() // waits for the ack, at most
	if err := d.Ack(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("room again:", <-published == nil)
	// Output:
	// no room: true true
	// room again: true
}
