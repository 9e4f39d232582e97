package bourse_test

// Goal and method as in refusal_test.go, for the rate of a queue.

import (
	"fmt"
	"math"
	"time"

	"github.com/boursemq/bourse"
)

func rateRefusals(
	declare func(name string, is error, d bourse.Declaration, says ...string) *refusal,
	redeclare func(field string, change func(*bourse.Queue)),
) {
	refused := func(name string, r bourse.Rate, field string, says ...string) {
		declare("a rate, "+name, bourse.ErrInvalid, bourse.Queue{Name: "n", Rate: r}, append(says, "Queue.Rate."+field)...)
	}
	for _, n := range []int{-1, bourse.MaxRate + 1, math.MaxInt} {
		refused(fmt.Sprint("deliveries ", n), bourse.Rate{Deliveries: n}, "Deliveries", fmt.Sprint(n))
		refused(fmt.Sprint("burst ", n), bourse.Rate{Deliveries: 1, Burst: n}, "Burst", fmt.Sprint(n))
	}
	for _, d := range []time.Duration{-1, bourse.MaxDelay + 1, math.MaxInt64} {
		refused(fmt.Sprint("per ", d), bourse.Rate{Deliveries: 1, Per: d}, "Per", fmt.Sprint(d))
	}
	refused("per without deliveries", bourse.Rate{Per: time.Second}, "Per", "no Deliveries")
	refused("burst without deliveries", bourse.Rate{Burst: 1}, "Burst", "no Deliveries")
	refused("burst that takes too long", bourse.Rate{Deliveries: 1, Per: bourse.MaxDelay, Burst: 2}, "Burst", "87600h0m0s")
	refused("burst that takes a little too long", bourse.Rate{Deliveries: 3, Per: bourse.MaxDelay/100_000 + 1, Burst: 300_000}, "Burst")
	refused("burst beyond any number", bourse.Rate{Deliveries: 1, Per: bourse.MaxDelay, Burst: bourse.MaxRate}, "Burst", "1000000000")

	redeclare("Rate.Deliveries", func(d *bourse.Queue) { d.Rate.Deliveries = 2 })
	redeclare("Rate.Per", func(d *bourse.Queue) { d.Rate = bourse.Rate{Deliveries: 2, Per: 5} })
	redeclare("Rate.Burst", func(d *bourse.Queue) { d.Rate = bourse.Rate{Deliveries: 2, Burst: 5} })
}
