// Hello puts a message into a durable queue and works it off.
package main

import (
	"context"
	"log"

	"github.com/boursemq/bourse"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: "hello-data"})
	check(err)
	check(b.Declare(ctx, bourse.Queue{Name: "mail"}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "mail", Body: []byte("hello, world")}))
	send := func(_ context.Context, d *bourse.Delivery) error { log.Printf("%s", d.Body); stop(); return nil }
	check(b.Work(ctx, "mail", send, bourse.WorkOptions{})) // until stop; nil acks, an error retries
	check(b.Close())
}
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
