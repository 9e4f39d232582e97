package bourse_test

import (
	"context"
	"fmt"

	"github.com/boursemq/bourse"
)

// A transient queue has all that a queue has but a place on the disk. One exchange may lead to both kinds.
func ExampleQueue_transient() {
	b := memory(
		bourse.Exchange{Name: "prices", Kind: bourse.Fanout},
		bourse.Queue{Name: "screen", Transient: true},
		bourse.Queue{Name: "ledger"},
		bourse.Binding{Exchange: "prices", Queue: "screen"},
		bourse.Binding{Exchange: "prices", Queue: "ledger"},
	)
	defer b.Close()
	check(b.Publish(context.Background(), bourse.Message{Exchange: "prices", Body: []byte("101.5")}))
	for _, queue := range []string{"screen", "ledger"} {
		q, _ := b.QueueStats(queue)
		fmt.Println(queue, q.Ready)
	}
	// Output:
	// screen 1
	// ledger 1
}
