package bourse_test

import (
	"context"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// A message with a TTL of its own: NoWait is the shortest one. Nobody consumes here, so it is dead at once, and the dead-letter
// exchange leads it on.
func ExampleMessage_ttl() {
	b := memory(
		bourse.Queue{Name: "quotes", DeadLetter: bourse.DeadLetter{Exchange: "missed"}},
		bourse.Exchange{Name: "missed", Kind: bourse.Fanout},
		bourse.Queue{Name: "report"},
		bourse.Binding{Exchange: "missed", Queue: "report"},
	)
	defer b.Close()
	ctx := context.Background()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "quotes", TTL: bourse.NoWait, Body: []byte("101.5")}))
	s, err := b.Subscribe(ctx, "report", bourse.SubscribeOptions{})
	check(err)
	d, err := s.Next(ctx)
	check(err)
	fmt.Printf("%s died in %s: %s\n", d.Body, d.Deaths[0].Queue, d.Deaths[0].Reason)
	// Output: 101.5 died in quotes: expired
}

// A delayed message is in its queue, and nobody gets it before its time.
func ExampleMessage_delay() {
	b := memory(bourse.Queue{Name: "reminders"})
	defer b.Close()
	ctx := context.Background()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "reminders", Delay: 24 * time.Hour, Body: []byte("renew")}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "reminders", Delay: time.Millisecond, Body: []byte("call back")}))
	s, err := b.Subscribe(ctx, "reminders", bourse.SubscribeOptions{})
	check(err)
	d, err := s.Next(ctx)
	check(err)
	fmt.Printf("%s\n", d.Body)
	q, _ := b.QueueStats("reminders")
	fmt.Println("delayed:", q.Delayed)
	// Output:
	// call back
	// delayed: 1
}
