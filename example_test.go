package bourse_test

// Goal: one runnable program per concept, which a reader can copy and whose output is checked. Method: Go examples
// against a broker in memory. What would depend on the time uses no pause, or a clock of its own.

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/boursemq/bourse"
)

// A job queue in one process. Options{Dir: "data"} would make it durable.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	if err := b.Declare(ctx, bourse.Queue{Name: "hello"}); err != nil {
		log.Fatal(err)
	}
	if err := b.Publish(ctx, bourse.Message{RoutingKey: "hello", Body: []byte("world")}); err != nil {
		log.Fatal(err)
	}
	err = b.Work(ctx, "hello", func(_ context.Context, d *bourse.Delivery) error {
		fmt.Printf("hello %s\n", d.Body)
		stop()
		return nil // acks
	}, bourse.WorkOptions{})
	if err != nil {
		log.Fatal(err)
	}
	// Output: hello world
}

// memory opens a broker in memory with declarations. The examples below start with it.
func memory(ds ...bourse.Declaration) *bourse.Broker {
	b, err := bourse.NewBroker(context.Background(), bourse.Options{})
	if err == nil {
		err = b.Declare(context.Background(), ds...)
	}
	check(err)
	return b
}

// check ends an example at an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// show prints and acks what is ready in queues.
func show(b *bourse.Broker, queues ...string) {
	for _, queue := range queues {
		fmt.Print(queue, ":")
		for {
			d, err := b.Get(context.Background(), queue)
			if errors.Is(err, bourse.ErrEmpty) {
				break
			}
			check(err)
			fmt.Printf(" %s", d.Body)
			check(d.Ack())
		}
		fmt.Println()
	}
}

// Topology is declared as values, all or none. To declare again what exists is no error, so every program can
// declare what it needs when it starts.
func ExampleBroker_Declare() {
	b := memory()
	defer b.Close()
	topology := []bourse.Declaration{
		bourse.Exchange{Name: "orders", Kind: bourse.Topic},
		bourse.Queue{Name: "billing", Priorities: 10, MaxRetries: 5},
		bourse.Binding{Exchange: "orders", Queue: "billing", Key: "order.*.paid"},
	}
	check(b.Declare(ctx, topology...))
	check(b.Declare(ctx, topology...))

	err := b.Declare(ctx, bourse.Queue{Name: "billing", Priorities: 20, MaxRetries: 5})
	var different *bourse.PreconditionError
	if errors.As(err, &different) {
		for _, f := range different.Fields {
			fmt.Println(different.Object, f.Field, "is", f.Have, "and not", f.Want)
		}
	}
	fmt.Println(errors.Is(err, bourse.ErrPrecondition))
	// Output:
	// queue "billing" Priorities is 10 and not 20
	// true
}

// Delete undoes declarations; DeleteIf does it only if nothing would be lost.
func ExampleBroker_DeleteIf() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs"}))
	err := b.DeleteIf(ctx, bourse.DeleteOnly{IfEmpty: true, IfUnused: true}, bourse.Queue{Name: "jobs"})
	fmt.Println(err)
	check(b.Delete(ctx, bourse.Queue{Name: "jobs"}))
	// Output: broker: delete: queue "jobs" holds 1 messages: not empty
}

// A direct exchange compares the routing key with the binding keys.
func ExampleDirect() {
	b := memory(bourse.Exchange{Name: "logs"}, bourse.Queue{Name: "errors"}, bourse.Queue{Name: "all"},
		bourse.Binding{Exchange: "logs", Queue: "errors", Key: "error"},
		bourse.Binding{Exchange: "logs", Queue: "all", Key: "error"},
		bourse.Binding{Exchange: "logs", Queue: "all", Key: "info"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{Exchange: "logs", RoutingKey: "info", Body: []byte("started")}))
	check(b.Publish(ctx, bourse.Message{Exchange: "logs", RoutingKey: "error", Body: []byte("failed")}))
	show(b, "errors", "all")
	// Output:
	// errors: failed
	// all: started failed
}

// A fanout exchange gives every queue a copy. The body is stored once.
func ExampleFanout() {
	b := memory(bourse.Exchange{Name: "news", Kind: bourse.Fanout}, bourse.Queue{Name: "mail"}, bourse.Queue{Name: "sms"},
		bourse.Binding{Exchange: "news", Queue: "mail"}, bourse.Binding{Exchange: "news", Queue: "sms"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{Exchange: "news", Body: []byte("hi")}))
	show(b, "mail", "sms")
	// Output:
	// mail: hi
	// sms: hi
}

// A topic exchange matches words between dots: * is one word, # is zero or more.
func ExampleTopic() {
	b := memory(bourse.Exchange{Name: "orders", Kind: bourse.Topic}, bourse.Queue{Name: "paid"}, bourse.Queue{Name: "europe"},
		bourse.Binding{Exchange: "orders", Queue: "paid", Key: "order.*.paid"},
		bourse.Binding{Exchange: "orders", Queue: "europe", Key: "order.eu.#"})
	defer b.Close()
	for _, key := range []string{"order.eu.paid", "order.us.paid", "order.eu", "order.eu.paid.late"} {
		check(b.Publish(ctx, bourse.Message{Exchange: "orders", RoutingKey: key, Body: []byte(key)}))
	}
	show(b, "paid", "europe")
	// Output:
	// paid: order.eu.paid order.us.paid
	// europe: order.eu.paid order.eu order.eu.paid.late
}

// A headers exchange compares headers by type and value.
func ExampleHeadersMatch() {
	b := memory(bourse.Exchange{Name: "files", Kind: bourse.HeadersMatch}, bourse.Queue{Name: "thumbnails"},
		bourse.Binding{Exchange: "files", Queue: "thumbnails", Headers: map[string]any{"x-match": "any", "type": "png", "wide": true}})
	defer b.Close()
	for name, headers := range map[string]map[string]any{"a": {"type": "png"}, "b": {"type": "pdf", "wide": "true"}} {
		check(b.Publish(ctx, bourse.Message{Exchange: "files", Headers: headers, Body: []byte(name)}))
	}
	show(b, "thumbnails")
	// Output: thumbnails: a
}

// A consistent-hash exchange gives every key to one queue, always the same, so what belongs together stays in order.
func ExampleConsistentHash() {
	b := memory(bourse.Exchange{Name: "users", Kind: bourse.ConsistentHash}, bourse.Queue{Name: "shard-1"}, bourse.Queue{Name: "shard-2"},
		bourse.Binding{Exchange: "users", Queue: "shard-1"}, bourse.Binding{Exchange: "users", Queue: "shard-2", Weight: 3})
	defer b.Close()
	for range 3 {
		for _, user := range []string{"ann", "bob", "eve", "joe"} {
			check(b.Publish(ctx, bourse.Message{Exchange: "users", RoutingKey: user}))
		}
	}
	one, _ := b.QueueStats("shard-1")
	two, _ := b.QueueStats("shard-2")
	fmt.Println(one.Ready%3, two.Ready%3, one.Ready+two.Ready)
	// Output: 0 0 12
}

// The alternate exchange gets what no binding matches. Without one a message that must arrive is refused, and any other
// is dropped and counted.
func ExampleExchange_alternate() {
	b := memory(bourse.Exchange{Name: "known", Alternate: "rest"}, bourse.Exchange{Name: "rest", Kind: bourse.Fanout},
		bourse.Exchange{Name: "strict"}, bourse.Queue{Name: "unknown"}, bourse.Binding{Exchange: "rest", Queue: "unknown"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{Exchange: "known", RoutingKey: "typo", Body: []byte("caught"), Mandatory: true}))
	show(b, "unknown")
	err := b.Publish(ctx, bourse.Message{Exchange: "strict", RoutingKey: "typo", Mandatory: true})
	fmt.Println(errors.Is(err, bourse.ErrUnroutable), err)
	check(b.Publish(ctx, bourse.Message{Exchange: "strict", RoutingKey: "typo"}))
	fmt.Println(b.Stats().Unroutable)
	// Output:
	// unknown: caught
	// true broker: publish to "strict" with key "typo": unroutable
	// 1
}

// Exchanges can be bound to exchanges. A queue that is reached on two ways gets one copy.
func ExampleBinding_destination() {
	b := memory(bourse.Exchange{Name: "in", Kind: bourse.Fanout}, bourse.Exchange{Name: "audit", Kind: bourse.Topic},
		bourse.Queue{Name: "log"},
		bourse.Binding{Exchange: "in", Destination: "audit"},
		bourse.Binding{Exchange: "in", Queue: "log"},
		bourse.Binding{Exchange: "audit", Queue: "log", Key: "#"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{Exchange: "in", RoutingKey: "a.b", Body: []byte("once")}))
	show(b, "log")
	// Output: log: once
}

// The highest level goes first, and within one level the oldest.
func ExampleQueue_priorities() {
	b := memory(bourse.Queue{Name: "jobs", Priorities: 10})
	defer b.Close()
	for i, p := range []uint8{0, 9, 5, 9} {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Priority: p, Body: fmt.Appendf(nil, "%d/%d", i, p)}))
	}
	show(b, "jobs")
	// Output: jobs: 1/9 3/9 2/5 0/0
}

// A message that fails too often, or is rejected, goes to the dead-letter exchange, and its history with it.
func ExampleQueue_deadLetter() {
	b := memory(bourse.Exchange{Name: "dead"}, bourse.Queue{Name: "post-mortem"},
		bourse.Queue{Name: "jobs", MaxRetries: 2, DeadLetter: bourse.DeadLetter{Exchange: "dead"}},
		bourse.Binding{Exchange: "dead", Queue: "post-mortem", Key: "jobs"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("poison")}))
	dead, err := b.Subscribe(ctx, "post-mortem", bourse.SubscribeOptions{})
	check(err)
	working, stop := context.WithCancel(ctx)
	worked := make(chan error)
	go func() {
		worked <- b.Work(working, "jobs", func(_ context.Context, d *bourse.Delivery) error {
			fmt.Println("delivery", d.Deliveries, "after", d.Failures, "failures")
			return errors.New("cannot digest")
		}, bourse.WorkOptions{})
	}()
	d, err := dead.Next(ctx)
	check(err)
	for _, death := range d.Deaths {
		fmt.Printf("%s died in %s: %s, %s\n", d.Body, death.Queue, death.Reason, death.Note)
	}
	check(d.Ack())
	stop()
	check(<-worked)
	// Output:
	// delivery 1 after 0 failures
	// delivery 2 after 1 failures
	// delivery 3 after 2 failures
	// poison died in jobs: delivery_limit, cannot digest
}

// Without a dead-letter exchange the dead are parked, never dropped.
func ExampleDelivery_Reject() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("?")}))
	d, err := b.Get(ctx, "jobs")
	check(err)
	check(d.Reject("not a job"))
	parked, err := b.Subscribe(ctx, bourse.ParkingQueue, bourse.SubscribeOptions{})
	check(err)
	d, err = parked.Next(ctx)
	check(err)
	fmt.Println(d.Deaths[0].Reason, "-", d.Deaths[0].Note)
	// Output: rejected - not a job
}

// Failures are retried after a pause that doubles. A test moves the clock itself.
func ExampleBackoff() {
	clock := newHandClock() // a Clock for tests: it moves when it is told to
	b, err := bourse.NewBroker(ctx, bourse.Options{Clock: clock})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "jobs", Retry: bourse.Backoff{Min: time.Second, Max: 5 * time.Second}}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs"}))
	s, err := b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{})
	check(err)
	start := clock.Now()
	for range 5 {
		d, err := s.Next(ctx)
		check(err)
		fmt.Println(clock.Now().Sub(start), d.Failures)
		check(d.Nack())
		check(b.Declare(ctx)) // returns when the nack has happened
		clock.step(clock.Now().Add(time.Minute))
	}
	// Output:
	// 0s 0
	// 1s 1
	// 3s 2
	// 7s 3
	// 12s 4
}

// Release gives a message back without a failure, now or later. What comes back keeps its place.
func ExampleDelivery_Release() {
	clock := newHandClock()
	b, err := bourse.NewBroker(ctx, bourse.Options{Clock: clock})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "jobs"}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("first")}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("second")}))
	d, err := b.Get(ctx, "jobs")
	check(err)
	check(d.Release(10 * time.Minute))
	s, err := b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{Prefetch: 2})
	check(err)
	for range 2 {
		d, err := s.Next(ctx)
		check(err)
		fmt.Printf("%s, failures %d, redelivered %t\n", d.Body, d.Failures, d.Redelivered())
		check(d.Ack())
		clock.step(clock.Now().Add(10 * time.Minute))
	}
	// Output:
	// second, failures 0, redelivered false
	// first, failures 0, redelivered true
}

// A batch waits once for all its messages, and tells the outcome of each.
func ExampleBroker_PublishBatch() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	err := b.PublishBatch(ctx, []bourse.Message{
		{RoutingKey: "jobs", Body: []byte("a")}, {Exchange: "typo", Body: []byte("b")}, {RoutingKey: "jobs", Body: []byte("c")},
	})
	var batch *bourse.BatchError
	if errors.As(err, &batch) {
		for i, err := range batch.Errs {
			fmt.Println(i, errors.Is(err, bourse.ErrNoExchange), err == nil)
		}
	}
	show(b, "jobs")
	// Output:
	// 0 false true
	// 1 true false
	// 2 false true
	// jobs: a c
}

// PublishAsync goes on at once; the Confirm tells when the message is durable.
func ExampleBroker_PublishAsync() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	var confirms []*bourse.Confirm
	for i := range 100 {
		confirms = append(confirms, b.PublishAsync(ctx, bourse.Message{RoutingKey: "jobs", ID: fmt.Sprint("job-", i)}))
	}
	for _, c := range confirms {
		check(c.Wait(ctx))
	}
	jobs, _ := b.QueueStats("jobs")
	fmt.Println(jobs.Ready)
	// Output: 100
}

// A subscription is for those who drive themselves. The prefetch bounds what is unacked.
func ExampleBroker_Subscribe() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	s, err := b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{Prefetch: 10})
	check(err)
	defer s.Close()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("a"), Headers: map[string]any{"n": 1}}))
	d, err := s.Next(ctx)
	check(err)
	fmt.Printf("%d: %s, n=%v\n", d.Tag, d.Body, d.Headers["n"])
	check(d.Ack())
	fmt.Println(errors.Is(d.Ack(), bourse.ErrUnknownDelivery)) // the first verdict counts
	// Output:
	// 1: a, n=1
	// true
}

// Many messages can be taken, and acked, at once.
func ExampleSubscription_AckUpTo() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	check(b.PublishBatch(ctx, []bourse.Message{{RoutingKey: "jobs"}, {RoutingKey: "jobs"}, {RoutingKey: "jobs"}}))
	s, err := b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{})
	check(err)
	batch, err := s.NextBatch(ctx, 100)
	check(err)
	fmt.Println(len(batch))
	check(s.AckUpTo(batch[1].Tag))
	check(s.Close()) // gives the third back
	jobs, _ := b.QueueStats("jobs")
	fmt.Println(jobs.Acked, jobs.Ready)
	// Output:
	// 3
	// 2 1
}

// A subscription can be ranged over.
func ExampleSubscription_All() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	check(b.PublishBatch(ctx, []bourse.Message{{RoutingKey: "jobs", Body: []byte("a")}, {RoutingKey: "jobs", Body: []byte("b")}}))
	s, err := b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{AutoAck: true})
	check(err)
	for d, err := range s.All(ctx) {
		check(err)
		fmt.Printf("%s\n", d.Body)
		if d.Tag == 2 {
			check(s.Close()) // ends the loop
		}
	}
	// Output:
	// a
	// b
}

// Get takes one message without a subscription.
func ExampleBroker_Get() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("a")}))
	d, err := b.Get(ctx, "jobs")
	check(err)
	fmt.Printf("%s\n", d.Body)
	check(d.Ack())
	_, err = b.Get(ctx, "jobs")
	fmt.Println(errors.Is(err, bourse.ErrEmpty))
	// Output:
	// a
	// true
}

// Handle decodes bodies for a handler of a type. What does not decode is rejected, since it would fail each time.
func ExampleHandle() {
	type order struct{ ID, Total int }
	b := memory(bourse.Queue{Name: "orders"})
	defer b.Close()
	codec := bourse.JSON[order]()
	body, err := codec.Encode(order{17, 40})
	check(err)
	check(b.Publish(ctx, bourse.Message{RoutingKey: "orders", Body: body}))
	working, stop := context.WithCancel(ctx)
	check(b.Work(working, "orders", bourse.Handle(codec, func(_ context.Context, o order, _ *bourse.Delivery) error {
		defer stop()
		fmt.Println("order", o.ID, "costs", o.Total)
		return nil
	}), bourse.WorkOptions{}))
	// Output: order 17 costs 40
}

// AckSync returns when the ack is durable: this message will not come back, whatever crashes.
func ExampleDelivery_AckSync() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs"}))
	d, err := b.Get(ctx, "jobs")
	check(err)
	check(d.AckSync(ctx))
	jobs, _ := b.QueueStats("jobs")
	fmt.Println(jobs.Acked, jobs.Unacked)
	// Output: 1 0
}

// Stats is a picture of all queues.
func ExampleBroker_Stats() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	check(b.PublishBatch(ctx, make([]bourse.Message, 2))) // to no queue
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs"}))
	st := b.Stats()
	fmt.Println(st.Published, "published,", st.Unroutable, "unroutable")
	for _, q := range st.Queues {
		fmt.Println(q.Name, q.Ready, "ready,", q.Consumers, "consumers")
	}
	// Output:
	// 3 published, 2 unroutable
	// bourse.parked 0 ready, 0 consumers
	// jobs 1 ready, 0 consumers
}

// Shutdown lets handlers finish before it closes the broker.
func ExampleBroker_Shutdown() {
	b := memory(bourse.Queue{Name: "jobs"})
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs"}))
	running, finish, worked := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		worked <- b.Work(ctx, "jobs", func(context.Context, *bourse.Delivery) error {
			close(running)
			<-finish // the last piece of work
			fmt.Println("finished")
			return nil
		}, bourse.WorkOptions{})
	}()
	<-running
	close(finish)
	check(b.Shutdown(ctx))
	check(<-worked)
	fmt.Println(errors.Is(b.Publish(ctx, bourse.Message{RoutingKey: "jobs"}), bourse.ErrClosed))
	// Output:
	// finished
	// true
}

// RetryAfter and Reject say more than that a handler failed.
func ExampleRetryAfter() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("busy")}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("bad")}))
	working, stop := context.WithCancel(ctx)
	check(b.Work(working, "jobs", func(_ context.Context, d *bourse.Delivery) error {
		if string(d.Body) == "busy" {
			return bourse.RetryAfter(errors.New("come back later"), time.Hour)
		}
		stop()
		return bourse.Reject(errors.New("never again"))
	}, bourse.WorkOptions{}))
	jobs, _ := b.QueueStats("jobs")
	fmt.Println(jobs.Delayed, "delayed,", jobs.Dead, "dead")
	// Output: 1 delayed, 1 dead
}
