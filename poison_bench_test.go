package bourse_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// Goal and method: see poison_test.go. Each of the other jobs computes for a while, so that what is scarce is the processor, of which a
// place has its share. A round is so many of them through one broker, behind a poison and without, in turn and in changing
// order; the figure is the median of the ratios of the rates. -poison.least makes the benchmark fail below a ratio.

var poisonLeast = flag.Float64("poison.least", 0, "fail if a poison leaves the other jobs less than this share of their rate; 0: never")

const (
	poisonRound  = 1000   // other jobs
	longRound    = 20_000 // likewise, where a job behind the poison waits for two thirds of its deadline: that is late, but few of all
	poisonPlaces = 40
)

// compute is what an other job does: some 50 microseconds of it.
func compute() uint64 {
	x := uint64(1)
	for range 50_000 {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

var computed atomic.Uint64 // so that it is not left out

func BenchmarkPoison(b *testing.B) {
	atOnce := func(context.Context, time.Duration) error { return errPoison }
	for _, c := range []struct {
		name  string
		queue bourse.Queue
		fail  poison
		round int
	}{
		{"at once", bourse.Queue{}, atOnce, poisonRound},
		{"panic", bourse.Queue{}, func(context.Context, time.Duration) error { panic(errPoison) }, poisonRound},
		{"with a pause", bourse.Queue{Retry: bourse.Backoff{Min: time.Millisecond}}, atOnce, poisonRound},
		{"deadline", bourse.Queue{AckDeadline: 20 * time.Millisecond}, func(ctx context.Context, _ time.Duration) error {
			<-ctx.Done()
			return ctx.Err()
		}, longRound},
	} {
		for _, p := range []place{{1, poisonPlaces, 0}, {poisonPlaces, 1, 0}, {poisonPlaces, 1, 1}} {
			b.Run(fmt.Sprintf("%s/%d of %d,prefetch=%d", c.name, p.works, p.concurrency, p.prefetch), func(b *testing.B) {
				c.queue.Name, c.queue.MaxRetries, c.queue.Transient = "q", bourse.NoLimit, true
				broker := open(b, bourse.Options{}, c.queue)
				var rates []float64
				var times [2][]time.Duration
				for i := 0; b.Loop(); i++ {
					var took [2]time.Duration
					for _, with := range []int{i % 2, 1 - i%2} {
						took[with] = poisonedRound(b, broker, p, c.round, with == 1, c.fail)
						times[with] = append(times[with], took[with])
					}
					rates = append(rates, float64(took[0])/float64(took[1]))
				}
				slices.Sort(rates)
				for i, name := range []string{"ns/job", "ns/job-poisoned"} {
					slices.Sort(times[i])
					b.ReportMetric(float64(times[i][len(times[i])/2].Nanoseconds())/float64(c.round), name)
				}
				rate := rates[len(rates)/2]
				b.ReportMetric(rate, "of-rate")
				b.ReportMetric(0, "ns/op")
				if least := *poisonLeast; rate < least {
					b.Errorf("the poison leaves %.2f of the rate, want at least %.2f", rate, least)
				}
			})
		}
	}
}

// poisonedRound is how long so many other jobs take.
func poisonedRound(b *testing.B, broker *bourse.Broker, p place, round int, poison bool, fail poison) (took time.Duration) {
	if poison {
		send(b, broker, "q", "poison")
	}
	ms := make([]bourse.Message, round)
	for i := range ms {
		ms[i] = bourse.Message{RoutingKey: "q", Body: []byte("job")}
	}
	require.NoError(b, broker.PublishBatch(ctx, ms))
	stop, end := context.WithCancel(ctx)
	defer end()
	var left atomic.Int64
	left.Store(int64(round))
	worked := make(chan error, p.works)
	start := time.Now()
	for range p.works {
		go func() { // ends with stop
			worked <- broker.Work(stop, "q", func(ctx context.Context, d *bourse.Delivery) error {
				if isPoison(d) {
					return fail(ctx, 0)
				}
				computed.Add(compute())
				if left.Add(-1) == 0 {
					took = time.Since(start)
					end()
				}
				return nil
			}, bourse.WorkOptions{Concurrency: p.concurrency, Prefetch: p.prefetch})
		}()
	}
	for range p.works {
		if err := <-worked; stop.Err() == nil { // else it may have come too late to subscribe
			require.NoError(b, err)
		}
	}
	_, err := broker.Purge(ctx, "q")
	require.NoError(b, err)
	return took
}
