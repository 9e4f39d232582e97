package bourse_test

import (
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// A publish that is sent twice, after a timeout or a crash of its sender, is stored once.
func ExampleDedup() {
	clock := newHandClock() // a Clock for tests: it moves when it is told to
	b, err := bourse.NewBroker(ctx, bourse.Options{Clock: clock})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "payments", Dedup: bourse.Dedup{Window: time.Hour}}))
	m := bourse.Message{RoutingKey: "payments", ID: "order-17"}
	for range 3 {
		check(b.Publish(ctx, m))
	}
	s, _ := b.QueueStats("payments")
	fmt.Println(s.Ready, "ready,", s.Duplicates, "duplicates")
	clock.step(clock.Now().Add(time.Hour))
	check(b.Publish(ctx, m))
	s, _ = b.QueueStats("payments")
	fmt.Println(s.Ready, "ready")
	// Output:
	// 1 ready, 2 duplicates
	// 2 ready
}

// A job that is asked for while it waits already is not done twice, and is done on what was said last.
func ExampleDedup_untilDone() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "index", Dedup: bourse.Dedup{UntilDone: true, OnDuplicate: bourse.ReplaceWaiting}}))
	ask := func(revision string) {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "index", ID: "page-9", Body: []byte(revision)}))
	}
	ask("revision 1")
	ask("revision 2")
	d, err := b.Get(ctx, "index")
	check(err)
	fmt.Printf("%s\n", d.Body)
	check(d.AckSync(ctx))
	ask("revision 3")
	d, err = b.Get(ctx, "index")
	check(err)
	fmt.Printf("%s\n", d.Body)
	// Output:
	// revision 2
	// revision 3
}
