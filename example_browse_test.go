package bourse_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// Browse shows what a queue holds and takes nothing.
func ExampleBroker_Browse() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "mail", Priorities: 2}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "mail", Body: []byte("first")}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "mail", Body: []byte("tomorrow"), Delay: 24 * time.Hour}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "mail", Body: []byte("urgent"), Priority: 1}))
	_, err = b.Get(ctx, "mail")
	check(err)
	for m, err := range b.Browse(ctx, "mail", bourse.BrowseOptions{}) {
		check(err)
		fmt.Printf("%d %s: %s, delivered %d times\n", m.Seq, m.State, m.Body, m.Deliveries)
	}
	// Output:
	// 1 ready: first, delivered 0 times
	// 2 delayed: tomorrow, delivered 0 times
	// 3 unacked: urgent, delivered 1 times
}

// A message that waits can be changed, hurried or removed, by what Browse or Find says of it.
func ExampleBroker_Find() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "jobs", Priorities: 10}))
	for _, id := range []string{"a", "b", "c"} {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", ID: id, Body: []byte("job " + id), Delay: time.Hour}))
	}
	a, err := b.Find(ctx, "jobs", "a")
	check(err)
	check(b.Cancel(ctx, a.Locator))
	m, err := b.Find(ctx, "jobs", "c")
	check(err)
	check(b.SetPriority(ctx, m.Locator, 9))
	check(b.Promote(ctx, m.Locator)) // now, not in an hour
	check(b.Edit(ctx, m.Locator, func(m *bourse.Message) error {
		m.Body = append(m.Body, ", carefully"...)
		return nil
	}))
	for m, err := range b.Browse(ctx, "jobs", bourse.BrowseOptions{}) {
		check(err)
		fmt.Printf("%s %s at level %d\n", m.State, m.Body, m.Level)
	}
	fmt.Println(errors.Is(b.Cancel(ctx, a.Locator), bourse.ErrNotFound))
	// Output:
	// ready job c, carefully at level 9
	// delayed job b at level 0
	// true
}

// When the cause is gone, the dead go back to where they died.
func ExampleBroker_Replay() {
	b, err := bourse.NewBroker(ctx, bourse.Options{})
	check(err)
	defer b.Close()
	check(b.Declare(ctx, bourse.Queue{Name: "mail"}))
	for _, id := range []string{"a", "b", "c"} {
		check(b.Publish(ctx, bourse.Message{RoutingKey: "mail", ID: id}))
		d, err := b.Get(ctx, "mail")
		check(err)
		check(d.Reject("no such address"))
	}
	parked, err := b.Subscribe(ctx, bourse.ParkingQueue, bourse.SubscribeOptions{})
	check(err)
	for range 3 { // all have arrived there
		_, err := parked.Next(ctx)
		check(err)
	}
	check(parked.Close()) // they wait again
	done, err := b.Replay(ctx, bourse.ParkingQueue, bourse.ReplayOptions{
		Filter: func(m *bourse.Browsed) bool { return m.Deaths[0].Queue == "mail" && m.ID != "b" },
		Rate:   1000, // a second
	})
	check(err)
	fmt.Println("moved", done.Moved, "failed", done.Failed)
	for m, err := range b.Browse(ctx, "mail", bourse.BrowseOptions{}) {
		check(err)
		fmt.Println(m.ID, m.State, "failures", m.Failures, "died before:", m.Deaths[0].Note)
	}
	// Output:
	// moved 2 failed 0
	// a ready failures 0 died before: no such address
	// c ready failures 0 died before: no such address
}
