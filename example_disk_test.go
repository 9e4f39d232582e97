package bourse_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/boursemq/bourse"
)

// Below the mark nothing new comes in, and what waits goes out.
func ExampleOptions_minFreeDisk() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "bourse")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	open := func(minFree int64) *bourse.Broker {
		b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir, MinFreeDisk: minFree})
		if err != nil {
			log.Fatal(err)
		}
		return b
	}

	b := open(0) // the default, 64 MiB
	fmt.Println(b.Declare(ctx, bourse.Queue{Name: "jobs"}))
	fmt.Println(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("one")}))
	fmt.Println(b.Close())

	b = open(1 << 60) // no disk has so much
	fmt.Println(errors.Is(b.Publish(ctx, bourse.Message{RoutingKey: "jobs"}), bourse.ErrDiskFull), b.Stats().Storage.DiskLow)
	d, err := b.Get(ctx, "jobs")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(d.Body), d.AckSync(ctx))
	fmt.Println(b.Close())
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// true true
	// one <nil>
	// <nil>
}
