package bourse_test

// Goal: a job that fails every time, however it fails and however often it may, takes one of the places where handlers run and no
// more, so that with 20 of them the other jobs keep 95 % of their rate, and costs none of the others a retry; and where there is
// one place only, MaxRetries or a pause gives it back. Method: the broker and Work in a bubble, where a handler takes exactly its
// time, so how many other jobs end does not depend on the machine. BenchmarkPoison (make poison) is the other half: handlers
// that take no time, so that what is scarce is the processor.

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/invariant"
)

var errPoison = errors.New("poison")

// isPoison reports whether d is the job that fails.
func isPoison(d *bourse.Delivery) bool { return string(d.Body) == "poison" }

// poison fails in its way; the other jobs take job.
type poison func(ctx context.Context, job time.Duration) error

// poisons are the ways to fail every time.
var poisons = []struct {
	name  string
	queue bourse.Queue
	fail  poison
}{
	{"at once", bourse.Queue{}, func(context.Context, time.Duration) error {
		<-time.After(poisonJob / 50) // else no time ever passes in the bubble
		return errPoison
	}},
	{"as late as a job ends", bourse.Queue{}, func(_ context.Context, job time.Duration) error {
		<-time.After(job)
		return errPoison
	}},
	{"ten times as late", bourse.Queue{}, func(_ context.Context, job time.Duration) error {
		<-time.After(10 * job)
		return errPoison
	}},
	{"panic", bourse.Queue{}, func(_ context.Context, job time.Duration) error {
		<-time.After(job)
		panic(errPoison)
	}},
	{"RetryAfter at once", bourse.Queue{}, func(_ context.Context, job time.Duration) error {
		<-time.After(job)
		return bourse.RetryAfter(errPoison, 0)
	}},
	{"with a pause", bourse.Queue{Retry: bourse.Backoff{Min: 10 * time.Millisecond}}, func(_ context.Context, job time.Duration) error {
		<-time.After(job)
		return errPoison
	}},
	{"deadline", bourse.Queue{AckDeadline: 100 * time.Millisecond}, func(ctx context.Context, _ time.Duration) error {
		<-ctx.Done()
		return ctx.Err()
	}},
}

// poisoned is how many other jobs end in a length of time behind one that fails as fail does, and how many of them came
// with a failure.
func poisoned(t *testing.T, p place, queue bourse.Queue, length time.Duration, fail poison) (ended, failed int64) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		queue.Name = "q"
		require.NoError(t, b.Declare(ctx, queue))
		send(t, b, "q", "poison")
		ms := make([]bourse.Message, int(length/poisonJob)*p.places()+p.works*max(p.prefetch, 2*p.concurrency))
		for i := range ms {
			ms[i] = bourse.Message{RoutingKey: "q", Body: []byte("job")}
		}
		require.NoError(t, b.PublishBatch(ctx, ms))
		stop, end := context.WithTimeout(ctx, length+poisonJob/2)
		defer end()
		var ends, fails atomic.Int64
		worked := make(chan error, p.works)
		for range p.works {
			go func() { // ends with stop
				worked <- b.Work(stop, "q", func(ctx context.Context, d *bourse.Delivery) error {
					if isPoison(d) {
						return fail(ctx, poisonJob)
					}
					if d.Failures > 0 {
						fails.Add(1)
					}
					<-time.After(poisonJob)
					if stop.Err() == nil {
						ends.Add(1)
					}
					return nil
				}, bourse.WorkOptions{Concurrency: p.concurrency, Prefetch: p.prefetch})
			}()
		}
		for range p.works {
			require.NoError(t, <-worked)
		}
		require.NoError(t, b.Close())
		ended, failed = ends.Load(), fails.Load()
	})
	return ended, failed
}

// poisonJob is the time of the other jobs.
const poisonJob = time.Millisecond

// place is where handlers run.
type place struct{ works, concurrency, prefetch int }

func (p place) places() int { return p.works * p.concurrency }

func TestPoisonTakesOnePlace(t *testing.T) {
	length := 400 * poisonJob
	if invariant.Costly { // which looks at all that waits after each command
		length = 40 * poisonJob
	}
	for _, p := range poisons {
		for _, c := range []place{
			{1, 20, 20}, {1, 20, 0}, {1, 20, 200}, {20, 1, 1}, {20, 1, 0}, {20, 1, 10}, {4, 5, 0},
			{1, 2, 2}, {1, 2, 0}, {2, 1, 1}, {2, 1, 0},
		} {
			t.Run(fmt.Sprintf("%s/%d of %d,prefetch=%d", p.name, c.works, c.concurrency, c.prefetch), func(t *testing.T) {
				queue := p.queue
				queue.MaxRetries = bourse.NoLimit
				each := int64(length / poisonJob)
				ended, failed := poisoned(t, c, queue, length, p.fail)
				t.Logf("%.3f of the other jobs", float64(ended)/float64(each)/float64(c.places()))
				require.Zero(t, failed, "the other jobs have failed")
				require.GreaterOrEqual(t, ended, each*int64(c.places()-1), "the poison takes more than one place")
			})
		}
	}
}

// With one place and nothing prefetched the poison takes it, since what comes back goes before what came later, until it is dead
// or rests. With something prefetched it waits behind that.
func TestPoisonInTheOnlyPlace(t *testing.T) {
	const length = 400 * poisonJob
	slow := func(_ context.Context, job time.Duration) error {
		<-time.After(job)
		return errPoison
	}
	for name, c := range map[string]struct {
		prefetch int
		queue    bourse.Queue
		want     int64 // other jobs that end meanwhile
	}{
		"no limit, no pause": {1, bourse.Queue{MaxRetries: bourse.NoLimit}, 0},
		"no limit, a pause":  {1, bourse.Queue{MaxRetries: bourse.NoLimit, Retry: bourse.Backoff{Min: 9 * poisonJob}}, 360},
		"20 retries":         {1, bourse.Queue{}, 400 - 21},
		"a prefetch of 2":    {2, bourse.Queue{MaxRetries: bourse.NoLimit}, 200},
		"a prefetch of 10":   {10, bourse.Queue{MaxRetries: bourse.NoLimit}, 360},
	} {
		t.Run(name, func(t *testing.T) {
			ended, failed := poisoned(t, place{1, 1, c.prefetch}, c.queue, length, slow)
			require.Zero(t, failed, "the other jobs have failed")
			require.InDelta(t, c.want, ended, 2)
		})
	}
}
