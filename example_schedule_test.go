package bourse_test

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/boursemq/bourse"
)

// pass lets d go by on a test's clock, and everything happen meanwhile.
func pass(b *bourse.Broker, clock *handClock, d time.Duration) {
	limit := clock.Now().Add(d)
	for again := true; again; again = clock.step(limit) {
		for clock.rest(); firing(b, clock); clock.rest() {
			runtime.Gosched()
		}
	}
}

// A schedule publishes by itself. What it missed while no broker was open comes as CatchUp says: here the last of it, once.
func ExampleSchedule() {
	dir, err := os.MkdirTemp("", "schedule")
	check(err)
	defer os.RemoveAll(dir)
	clock := newHandClock() // a Clock for tests: it moves when it is told to
	report := bourse.Schedule{
		Name: "report", Cron: "0 9 * * MON-FRI", TimeZone: "Europe/Berlin", CatchUp: bourse.CatchUpOne,
		Message: bourse.Message{RoutingKey: "reports", Body: []byte("write it")},
	}
	for range 2 {
		b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir, Clock: clock})
		check(err)
		check(b.Declare(ctx, bourse.Queue{Name: "reports"}, report))
		pass(b, clock, 48*time.Hour)
		for {
			d, err := b.Get(ctx, "reports")
			if err != nil {
				break // bourse.ErrEmpty
			}
			fmt.Println(d.ID)
			check(d.AckSync(ctx))
		}
		fmt.Println("passed over:", b.Stats().Schedules[0].Skipped)
		check(b.Close())
		clock.step(clock.Now().AddDate(0, 1, 0)) // a month without a broker
	}
	// Output:
	// report@2030-01-01T08:00:00Z
	// report@2030-01-02T08:00:00Z
	// passed over: 0
	// report@2030-02-01T08:00:00Z
	// report@2030-02-04T08:00:00Z
	// passed over: 21
}
