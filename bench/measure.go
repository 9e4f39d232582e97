package bench

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// Sample is one run of one side of a scenario.
type Sample struct {
	Messages   int
	Elapsed    time.Duration
	Processor  time.Duration // user and system, of the whole process
	Allocs     uint64
	AllocBytes uint64
	P50, P99   time.Duration // of the scenarios that measure latency
}

// Rate is messages per second.
func (s Sample) Rate() float64 { return float64(s.Messages) / s.Elapsed.Seconds() }

func (s Sample) perMessage(v float64) float64 { return v / float64(max(s.Messages, 1)) }

// AllocsPerMessage is allocations, of publisher and consumer together, per message.
func (s Sample) AllocsPerMessage() float64 { return s.perMessage(float64(s.Allocs)) }

// BytesPerMessage is bytes allocated per message.
func (s Sample) BytesPerMessage() float64 { return s.perMessage(float64(s.AllocBytes)) }

// MicrosPerMessage is microseconds of processor time per message.
func (s Sample) MicrosPerMessage() float64 {
	return s.perMessage(float64(s.Processor) / float64(time.Microsecond))
}

// measure runs f, which returns how many messages it did and, for some scenarios, how long each took.
func measure(f func() (int, []time.Duration, error)) (Sample, error) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	processor, start := processorTime(), time.Now()
	n, took, err := f()
	s := Sample{Messages: n, Elapsed: time.Since(start), Processor: processorTime() - processor}
	runtime.ReadMemStats(&after)
	s.Allocs, s.AllocBytes = after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc
	if len(took) > 0 {
		s.P50, s.P99 = quantile(took, 0.5), quantile(took, 0.99)
	}
	return s, err
}

// quantile sorts all and returns the element below which the share q of them lies.
func quantile[T int64 | float64 | time.Duration](all []T, q float64) T {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(int(q*float64(len(all))), len(all)-1)]
}

// median of what f says about each of the rounds.
func median[R any](rounds []R, f func(R) float64) float64 {
	all := make([]float64, len(rounds))
	for i := range rounds {
		all[i] = f(rounds[i])
	}
	return quantile(all, 0.5)
}

// limit says when a publisher stops: after so many messages, or if that is 0 at a time.
type limit struct {
	messages int
	until    time.Time
}

// reached reports whether to stop after n messages.
func (l limit) reached(n int) bool {
	if l.messages > 0 {
		return n >= l.messages
	}
	return !time.Now().Before(l.until)
}

// soon is reached for tight loops: it looks at the clock only now and then.
func (l limit) soon(n int) bool { return (l.messages > 0 || n%32 == 0) && l.reached(n) }

// share is the part of one of n publishers.
func (l limit) share(n int) limit {
	l.messages = (l.messages + n - 1) / n
	return l
}

// window holds a publisher back while its consumer is far behind. Each of both counts in a cache line of its own and looks at the
// other's only when it must, so that it costs a cycle next to nothing.
type window struct {
	ahead  int64         // most messages that are published and not acked
	below  atomic.Int64  // the publisher waits until no more than this many are left; -1: it does not
	signal chan struct{} // capacity 1

	_         [64]byte
	published atomic.Int64
	seen      int64 // owned by the publisher: an earlier acked
	_         [64]byte
	acked     atomic.Int64
	_         [64]byte
}

func newWindow(ahead int) *window {
	w := &window{ahead: int64(ahead), signal: make(chan struct{}, 1)}
	w.below.Store(-1)
	return w
}

func (w *window) behind() int64 { return w.published.Load() - w.acked.Load() }

// publish counts n in, and waits if that is too many until half of the most are acked.
func (w *window) publish(n int) {
	published := w.published.Add(int64(n))
	if published-w.seen < w.ahead {
		return
	}
	if w.seen = w.acked.Load(); published-w.seen >= w.ahead {
		w.wait(w.ahead / 2)
	}
}

// wait blocks until at most n messages are not acked.
func (w *window) wait(n int64) {
	w.below.Store(n)
	for w.behind() > n {
		<-w.signal
	}
	w.below.Store(-1)
}

// ack counts n out.
func (w *window) ack(n int) {
	w.acked.Add(int64(n))
	if below := w.below.Load(); below >= 0 && w.behind() <= below {
		wake(w.signal)
	}
}
