package bourse_test

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"github.com/boursemq/bourse"
)

// What compresses well takes little room on disk, and consumers do not notice.
func ExampleCompression() {
	ctx := context.Background()
	body := bytes.Repeat([]byte(`{"city": "Lyon", "paid": true}`+"\n"), 10_000)
	for _, how := range []bourse.Compression{bourse.CompressAuto, bourse.CompressOff} {
		dir, err := os.MkdirTemp("", "bourse")
		check(err)
		b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir, Compression: how})
		check(err)
		check(b.Declare(ctx, bourse.Queue{Name: "reports"}))
		check(b.Publish(ctx, bourse.Message{RoutingKey: "reports", Body: body}))
		d, err := b.Get(ctx, "reports")
		check(err)
		fmt.Println("the same body:", bytes.Equal(d.Body, body), "- a tenth of its size is enough:",
			b.Stats().Storage.Written < uint64(len(body)/10))
		check(b.Close())
		check(os.RemoveAll(dir))
	}
	// Output:
	// the same body: true - a tenth of its size is enough: true
	// the same body: true - a tenth of its size is enough: false
}
