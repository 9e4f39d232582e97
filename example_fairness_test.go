package bourse_test

// Goal and method as in example_test.go: lower levels that are not left to starve.

import (
	"context"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

// Every third delivery goes to a lower level, though urgent ones wait. With Aging nothing waits for longer than it says.
func ExampleFairness() {
	ctx := context.Background()
	b := memory(bourse.Queue{Name: "jobs", Priorities: 2, Fairness: bourse.Fairness{LowerOneIn: 3, Aging: time.Hour}})
	defer b.Close()
	for _, m := range []bourse.Message{
		{Body: []byte("report")}, {Body: []byte("backup")},
		{Body: []byte("urgent 1"), Priority: 1}, {Body: []byte("urgent 2"), Priority: 1}, {Body: []byte("urgent 3"), Priority: 1},
	} {
		m.RoutingKey = "jobs"
		check(b.Publish(ctx, m))
	}
	st, _ := b.QueueStats("jobs")
	fmt.Println(st.Levels[0].Ready, "low,", st.Levels[1].Ready, "high")
	show(b, "jobs")
	// Output:
	// 2 low, 3 high
	// jobs: urgent 1 urgent 2 report urgent 3 backup
}
