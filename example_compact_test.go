package bourse_test

import (
	"fmt"
	"os"

	"github.com/boursemq/bourse"
)

// A directory that is to be kept or sent somewhere takes little more than what waits in it.
func ExampleBroker_Compact() {
	dir, err := os.MkdirTemp("", "bourse")
	check(err)
	defer os.RemoveAll(dir)
	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	check(err)
	check(b.Declare(ctx, bourse.Queue{Name: "jobs"}))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("the last one")}))
	check(b.Compact(ctx))
	check(b.Close())

	files, err := os.ReadDir(dir)
	check(err)
	size := int64(0)
	for _, f := range files {
		info, err := f.Info()
		check(err)
		size += info.Size()
	}
	fmt.Println("less than 4 KiB:", size < 4<<10)
	// Output:
	// less than 4 KiB: true
}
