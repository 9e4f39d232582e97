package bench

import (
	"fmt"
	"io"
)

// yardsticks is what a ratio means nothing without.
const yardsticks = `Floor: what one would write in Go without a broker, a preallocated log with group commit, a channel for the outcome of
each publish, a channel of messages to the consumer, bodies of its own, and a record for each ack.
Bare log: the disk and the checksums alone, which counts confirms instead of giving them, hands over all there is at
once, and overwrites what it stored.
W6: the floor is a Go channel for each queue, the bare one a slice under a lock; nothing comes back from either.
`

// Header prints what the figures of a table mean nothing without.
func (b *Bench) Header(w io.Writer, m Machine) {
	fmt.Fprintf(w, "%v.\n%s.\n%v.\n\n%s\n", b.cfg, b.Sizes(), m, yardsticks)
}

const (
	throughputHead = "| scenario | floor, msgs/s | bourse, msgs/s | ratio to the floor | bare log, msgs/s | allocs/msg | bytes/msg " +
		"| CPU us/msg, bourse | floor |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
	latencyHead = "| scenario | floor p50 / p99, ms | bourse p50 / p99, ms | p50 ratio to the floor | bare log p50 / p99, ms " +
		"| CPU us/msg, bourse | floor |\n|---|---:|---:|---:|---:|---:|---:|\n"
)

// Result is what the rounds of a scenario gave.
type Result struct {
	Scenario Scenario
	Rounds   []Round
}

// Ratio is the median of the ratios of the rounds.
func (r Result) Ratio() float64 { return median(r.Rounds, Round.Ratio) }

func (r Result) floor(f func(Sample) float64) float64 {
	return median(r.Rounds, func(r Round) float64 { return f(r.Floor) })
}

func (r Result) bare(f func(Sample) float64) float64 {
	return median(r.Rounds, func(r Round) float64 { return f(r.Bare) })
}

func (r Result) broker(f func(Sample) float64) float64 {
	return median(r.Rounds, func(r Round) float64 { return f(r.Broker) })
}

// WriteTables prints the medians of all rounds in Markdown, throughput and latency apart.
func WriteTables(w io.Writer, results []Result) {
	fmt.Fprint(w, throughputHead)
	for _, r := range results {
		if !r.Scenario.Latency {
			fmt.Fprintf(w, "| %s: %s | %.0f | %.0f | %.2f | %.0f | %.2f | %.0f | %.2f | %.2f |\n",
				r.Scenario.Name, r.Scenario.Title, r.floor(Sample.Rate), r.broker(Sample.Rate), r.Ratio(), r.bare(Sample.Rate),
				r.broker(Sample.AllocsPerMessage), r.broker(Sample.BytesPerMessage), r.broker(Sample.MicrosPerMessage),
				r.floor(Sample.MicrosPerMessage))
		}
	}
	fmt.Fprint(w, "\n", latencyHead)
	p50 := func(s Sample) float64 { return milliseconds(s.P50) }
	p99 := func(s Sample) float64 { return milliseconds(s.P99) }
	for _, r := range results {
		if r.Scenario.Latency {
			fmt.Fprintf(w, "| %s: %s | %.3f / %.2f | %.3f / %.2f | %.2f | %.3f / %.2f | %.1f | %.1f |\n",
				r.Scenario.Name, r.Scenario.Title, r.floor(p50), r.floor(p99), r.broker(p50), r.broker(p99), r.Ratio(),
				r.bare(p50), r.bare(p99), r.broker(Sample.MicrosPerMessage), r.floor(Sample.MicrosPerMessage))
		}
	}
}
