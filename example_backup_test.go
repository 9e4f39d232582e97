package bourse_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/boursemq/bourse"
)

// A copy of a broker at work, and a broker on that copy.
func ExampleBroker_Backup() {
	b := memory(bourse.Queue{Name: "jobs"})
	defer b.Close()
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("before")}))
	var backup bytes.Buffer // a file, in life
	check(b.Backup(ctx, &backup))
	check(b.Publish(ctx, bourse.Message{RoutingKey: "jobs", Body: []byte("after")}))

	temp, err := os.MkdirTemp("", "bourse")
	check(err)
	defer os.RemoveAll(temp)
	dir := filepath.Join(temp, "data")
	check(bourse.Restore(dir, &backup))
	again, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	check(err)
	defer again.Close()
	d, err := again.Get(ctx, "jobs")
	check(err)
	_, err = again.Get(ctx, "jobs")
	fmt.Printf("%s, %v\n", d.Body, err)
	// Output:
	// before, broker: get from "jobs": queue is empty
}
