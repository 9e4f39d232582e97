package bench

// Goal: the figures of the scenarios with the tool that every Go programmer has. Method: b.N messages go through the
// broker in three parts, with as many through the floor and the bare log around each part, off the clock; msgs/s and
// the rest are the broker's, and the ratios compare it with the two. Before all that, one part goes through each side
// unmeasured. Set BOURSE_BENCH_DIR to put the log on a disk of your choice.

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// opened is what all benchmarks share, so that files are prepared once.
var opened = sync.OnceValues(func() (*Bench, error) {
	dir, err := Dir(os.Getenv("BOURSE_BENCH_DIR"))
	if err != nil {
		return nil, err
	}
	cleanUp = append(cleanUp, func() error { return os.RemoveAll(dir) })
	machine, err := Probe(dir)
	if err != nil {
		return nil, err
	}
	b, err := Open(Config{Dir: dir})
	if err != nil {
		return nil, err
	}
	cleanUp = append(cleanUp, b.Close)
	b.Header(os.Stdout, machine)
	return b, nil
})

// cleanUp is run from last to first when the tests are done.
var cleanUp []func() error

func TestMain(m *testing.M) {
	code := m.Run()
	for i := len(cleanUp) - 1; i >= 0; i-- {
		if err := cleanUp[i](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func BenchmarkW1(b *testing.B) { benchmark(b, "W1") }
func BenchmarkW2(b *testing.B) { benchmark(b, "W2") }
func BenchmarkW3(b *testing.B) { benchmark(b, "W3") }
func BenchmarkW4(b *testing.B) { benchmark(b, "W4") }
func BenchmarkW5(b *testing.B) { benchmark(b, "W5") }
func BenchmarkW6(b *testing.B) { benchmark(b, "W6") }

func benchmark(b *testing.B, name string) {
	shared, err := opened()
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range Scenarios() {
		switch {
		case s.Name == name:
			benchmarkScenario(b, shared, s)
		case len(s.Name) > len(name) && s.Name[:len(name)+1] == name+"/":
			b.Run(s.Name[len(name)+1:], func(b *testing.B) { benchmarkScenario(b, shared, s) })
		}
	}
}

func benchmarkScenario(b *testing.B, shared *Bench, s Scenario) {
	const parts = 3
	var rounds []Round
	run := func(messages int, side Side) Sample {
		sample, err := shared.run(s, side, limit{messages: messages})
		if err != nil {
			b.Fatal(err)
		}
		return sample
	}
	reset := func() {
		if err := shared.Reset(); err != nil {
			b.Fatal(err)
		}
	}
	for _, side := range []Side{Floor, Bare, Broker} {
		run((b.N+parts-1)/parts, side)
	}
	reset()
	b.ResetTimer()
	for i := range parts {
		messages := (b.N + i) / parts // which adds up to b.N
		if messages == 0 {
			continue
		}
		b.StopTimer()
		r := Round{Floor: run(messages, Floor)}
		b.StartTimer()
		r.Broker = run(messages, Broker)
		b.StopTimer()
		reset()
		r.Bare = run(messages, Bare)
		rounds = append(rounds, r)
	}
	r := Result{s, rounds}
	var took time.Duration
	for _, round := range rounds {
		took += round.Broker.Elapsed
	}
	b.ReportMetric(float64(took)/float64(b.N), "ns/op") // without the collection of garbage before each part
	b.ReportMetric(r.Ratio(), "of-floor")
	b.ReportMetric(median(rounds, Round.BareRatio), "of-bare-log")
	b.ReportMetric(r.broker(Sample.AllocsPerMessage), "allocs/msg")
	b.ReportMetric(r.broker(Sample.BytesPerMessage), "B/msg")
	b.ReportMetric(r.broker(Sample.MicrosPerMessage), "us-cpu/msg")
	if s.Latency {
		b.ReportMetric(r.broker(func(s Sample) float64 { return milliseconds(s.P50) }), "p50-ms")
		b.ReportMetric(r.broker(func(s Sample) float64 { return milliseconds(s.P99) }), "p99-ms")
		return
	}
	b.ReportMetric(r.broker(Sample.Rate), "msgs/s")
}
