package bourse_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Goal: which message of a queue with priorities is next, by SEMANTICS 3 and 9, and the promises about it: the share of the lower
// levels, and the longest wait. Method: a broker in memory with a clock that is moved by hand, and a queue that is kept
// full. testdata/machine/fairness-*.txt and bump*.txt have the same rules command by command.

// publishAt publishes one message of a priority.
func publishAt(t testing.TB, b *bourse.Broker, queue, body string, priority uint8) {
	t.Helper()
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: queue, Body: []byte(body), Priority: priority}))
}

// takeOne gets and acks the next message.
func takeOne(t testing.TB, b *bourse.Broker, queue string) *bourse.Delivery {
	t.Helper()
	d, err := b.Get(ctx, queue)
	require.NoError(t, err)
	require.NoError(t, d.Ack())
	return d
}

// Of any LowerOneIn deliveries exactly one goes to a lower level while one waits, across a restart too.
func TestSemanticsLowerShare(t *testing.T) {
	for _, n := range []int{2, 3, 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			noLeaks(t)
			fs := new(storage.MemFS)
			b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
			require.NoError(t, err)
			require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q", Priorities: 3, Fairness: bourse.Fairness{LowerOneIn: n}}))
			for i := range 60 {
				publishAt(t, b, "q", fmt.Sprint("low", i), 0)
				publishAt(t, b, "q", fmt.Sprint("high", i), 2)
			}
			low, high := 0, 0
			for i := 1; i <= 60; i++ {
				if i%7 == 0 {
					require.NoError(t, b.Close())
					b, err = bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
					require.NoError(t, err)
				}
				want := fmt.Sprint("high", high)
				if i%n == 0 {
					want = fmt.Sprint("low", low)
					low++
				} else {
					high++
				}
				require.Equal(t, want, string(takeOne(t, b, "q").Body), "delivery %d", i)
			}
			require.NoError(t, b.Close())
		})
	}
}

// With aging no message waits longer than (highest-level)*Aging, and for what arrived before it. Here one message a period arrives
// at the highest level and one is served: without aging the lower ones would wait for ever.
func TestSemanticsAgingLongestWait(t *testing.T) {
	const period = 100 * time.Millisecond
	for _, levels := range []int{2, 5, 70} {
		for _, lowerOneIn := range []int{0, 4} {
			t.Run(fmt.Sprint(levels, lowerOneIn), func(t *testing.T) {
				aging := 2 * time.Second / time.Duration(levels)
				clock := newHandClock()
				b := open(t, bourse.Options{Clock: clock}, bourse.Queue{
					Name: "q", Priorities: levels, Fairness: bourse.Fairness{Aging: aging, LowerOneIn: lowerOneIn},
				})
				backlog := 0
				for level := range levels { // the lowest first, so that nothing but age helps it
					publishAt(t, b, "q", "old", uint8(level))
					backlog++
				}
				start, waiting := clock.Now(), backlog
				for i := 0; waiting > 0; i++ {
					require.Less(t, i, 1000, "%d still wait", waiting)
					publishAt(t, b, "q", "new", uint8(levels-1))
					d := takeOne(t, b, "q")
					if string(d.Body) == "old" {
						waiting--
						raise := time.Duration(levels-1-int(d.Priority)) * aging
						most := raise + time.Duration(backlog)*period
						if lowerOneIn > 0 { // one of four of those before it is another
							most = raise + time.Duration(backlog)*period*4/3
						}
						require.LessOrEqual(t, clock.Now().Sub(start), most, "level %d", d.Priority)
					}
					clock.step(clock.Now().Add(period))
				}
			})
		}
	}
}

// Strict priority is the default: a lower level waits as long as there is anything above it.
func TestSemanticsStrictPriority(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", Priorities: 2})
	publishAt(t, b, "q", "low", 0)
	for range 50 {
		clock.step(clock.Now().Add(time.Hour))
		publishAt(t, b, "q", "high", 1)
		require.Equal(t, "high", string(takeOne(t, b, "q").Body))
	}
	require.Equal(t, "low", string(takeOne(t, b, "q").Body))
}

// A failure raises the level of the message in this queue, not its priority.
func TestSemanticsBump(t *testing.T) {
	b := open(t, bourse.Options{}, bourse.Queue{Name: "q", Priorities: 3, BumpOnRedelivery: true})
	s := consume(t, b, "q", 1)
	publishAt(t, b, "q", "failing", 0)
	d := next(t, s)
	for range 3 { // the third finds it at the highest level already
		publishAt(t, b, "q", "other", 1)
		require.NoError(t, d.Nack())
		d = next(t, s)
		require.Equal(t, "failing", string(d.Body), "raised above, or older than the others")
		require.Zero(t, d.Priority)
	}
	publishAt(t, b, "q", "top", 2)
	require.NoError(t, d.Release(0))
	require.Equal(t, "failing", string(next(t, s).Body))
}

func TestSemanticsLevelStats(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", Priorities: 3}, bourse.Queue{Name: "flat"})
	require.Equal(t, []bourse.LevelStats{{}, {}, {}}, stats(t, b, "q").Levels)
	require.Nil(t, stats(t, b, "flat").Levels)
	for i, level := range []uint8{0, 2, 0, 9} {
		publishAt(t, b, "q", fmt.Sprint(i), level)
		clock.step(clock.Now().Add(time.Second))
	}
	require.Equal(t, []bourse.LevelStats{{2, 4 * time.Second}, {}, {2, 3 * time.Second}}, stats(t, b, "q").Levels)
	s := consume(t, b, "q", 1)
	d := next(t, s)
	require.Equal(t, []bourse.LevelStats{{2, 4 * time.Second}, {}, {1, time.Second}}, stats(t, b, "q").Levels)
	require.NoError(t, d.Release(time.Minute))
	require.NoError(t, next(t, s).Ack())
	require.NoError(t, next(t, s).Ack())
	barrier(t, b, clock)
	require.Equal(t, []bourse.LevelStats{{}, {}, {}}, stats(t, b, "q").Levels, "the last is on loan, one is delayed")
	clock.advance(t, b, time.Minute)
	require.Equal(t, []bourse.LevelStats{{}, {}, {1, time.Minute + 3*time.Second}}, stats(t, b, "q").Levels, "since it arrived")
	require.Equal(t, time.Minute+3*time.Second, stats(t, b, "q").Oldest)
	_, err := b.Purge(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, []bourse.LevelStats{{}, {}, {}}, stats(t, b, "q").Levels)
}

// Oldest is of the message that is next, whichever level is served.
func TestSemanticsOldestIsOfTheNext(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q", Priorities: 2, Fairness: bourse.Fairness{Aging: time.Minute}})
	publishAt(t, b, "q", "low", 0)
	clock.step(clock.Now().Add(30 * time.Second))
	publishAt(t, b, "q", "high", 1)
	require.Zero(t, stats(t, b, "q").Oldest)
	clock.advance(t, b, 30*time.Second)
	require.Equal(t, time.Minute, stats(t, b, "q").Oldest)
}
