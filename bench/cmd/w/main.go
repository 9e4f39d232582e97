// The program w prints the benchmarks of bourse as tables in Markdown, each figure beside those of the floor and the bare log in
// the same run.
//
//	go run ./bench/cmd/w -rounds 5 -seconds 2
//	go run ./bench/cmd/w -check
//	go run ./bench/cmd/w -backlog 1000000
//	go run ./bench/cmd/w -only W2/Next -profiles .
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/boursemq/bourse/bench"
)

type options struct {
	config   bench.Config
	parent   string
	rounds   int
	seconds  float64
	only     string
	check    bool
	profiles string
	backlog  int
}

func main() {
	var o options
	flag.StringVar(&o.parent, "dir", "", "put the data below this `directory`; default: where temporary files go, if that is a disk")
	flag.IntVar(&o.rounds, "rounds", 5, "measured runs of each side of each scenario; figures are medians")
	flag.Float64Var(&o.seconds, "seconds", 2, "length of a run of one side")
	flag.StringVar(&o.only, "only", "", "comma-separated beginnings of the `names` of the scenarios to run; default: all")
	flag.BoolVar(&o.check, "check", false, "fail if W1 or W2 is below 0.6 of the floor, W6 below 0.12, or W4 above 1.5 times its time")
	flag.StringVar(&o.profiles, "profiles", "", "run the broker's side only, and write profiles to this `directory`")
	flag.IntVar(&o.backlog, "backlog", 0, "no scenarios, but fill a queue with so many `messages`, drain it, and publish and consume "+
		"with as many waiting; -check: fail if filling or draining is below 0.5 of the floor, or the rest below 0.8 of what it is alone")
	flag.IntVar(&o.config.InFlight, "inflight", 0, "unconfirmed publishes of a publisher; default 1000")
	flag.IntVar(&o.config.Payload, "payload", 0, "bytes of a body; default 1024")
	flag.IntVar(&o.config.Prefetch, "prefetch", 0, "prefetch of a consumer; default 1000")
	flag.IntVar(&o.config.Batch, "batch", 0, "messages of a batch of W6; default 256")
	flag.Parse()
	o.config.Duration = time.Duration(o.seconds * float64(time.Second))
	o.config.Messages = o.backlog
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(o options) (err error) {
	if o.config.Dir, err = bench.Dir(o.parent); err != nil {
		return err
	}
	defer os.RemoveAll(o.config.Dir)
	machine, err := bench.Probe(o.config.Dir)
	if err != nil {
		return err
	}
	b, err := bench.Open(o.config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	b.Header(os.Stdout, machine)
	if o.backlog > 0 {
		return backlogs(b, o)
	}
	if o.check && o.only == "" {
		o.only = strings.Join(checked(), ",")
	}
	var chosen []bench.Scenario
	for _, s := range bench.Scenarios() {
		for name := range strings.SplitSeq(o.only, ",") {
			if strings.HasPrefix(s.Name, name) {
				chosen = append(chosen, s)
				break
			}
		}
	}
	if o.profiles != "" {
		return profile(b, chosen, o.profiles)
	}
	var results []bench.Result
	for _, s := range chosen {
		r := bench.Result{Scenario: s}
		for i := range o.rounds + 1 {
			round, err := b.Round(s)
			if err != nil {
				return err
			}
			if i > 0 { // the first one warms up the files of all sides
				r.Rounds = append(r.Rounds, round)
			}
		}
		results = append(results, r)
	}
	fmt.Printf("Medians of %d rounds behind one to warm up, floor, bourse and bare log in turn, %g s each.\n\n", o.rounds, o.seconds)
	bench.WriteTables(os.Stdout, results)
	if o.check {
		return check(results)
	}
	return nil
}

// backlogs measures a deep queue.
func backlogs(b *bench.Bench, o options) error {
	var all bench.Backlogs
	for i := range o.rounds + 1 {
		d, err := b.Backlog(o.backlog)
		if err != nil {
			return err
		}
		if i > 0 { // the first one warms up, as with the scenarios
			all = append(all, d)
		}
	}
	fmt.Printf("Medians of %d rounds behind one to warm up, with %d messages waiting; full cycles for %g s.\n\n",
		o.rounds, o.backlog, o.seconds)
	all.Write(os.Stdout)
	if o.check {
		return all.Check()
	}
	return nil
}

// bounds are what -check holds: at least this share of the floor's rate, or at most this multiple of its time.
var bounds = []struct {
	name  string
	bound float64
}{{"W1/PublishAsync", 0.6}, {"W2/Next", 0.6}, {"W4", 1.5}, {"W6/Batch", 0.12}}

func checked() (names []string) {
	for _, b := range bounds {
		names = append(names, b.name)
	}
	return names
}

func check(results []bench.Result) (err error) {
	for _, r := range results {
		for _, b := range bounds {
			ratio := r.Ratio()
			switch {
			case r.Scenario.Name != b.name:
			case r.Scenario.Latency && ratio > b.bound:
				err = errors.Join(err, fmt.Errorf("%s takes %.2f times the floor's time, bound %.2f", b.name, ratio, b.bound))
			case !r.Scenario.Latency && ratio < b.bound:
				err = errors.Join(err, fmt.Errorf("%s reaches %.2f of the floor, bound %.2f", b.name, ratio, b.bound))
			}
		}
	}
	return err
}

// profile runs the broker's side of each scenario once and writes what the profilers saw.
func profile(b *bench.Bench, scenarios []bench.Scenario, dir string) error {
	runtime.SetMutexProfileFraction(5)
	runtime.SetBlockProfileRate(10_000)
	for _, s := range scenarios {
		name := filepath.Join(dir, strings.ReplaceAll(s.Name, "/", "-"))
		f, err := os.Create(name + "-cpu.prof")
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		sample, err := b.Run(s, bench.Broker)
		pprof.StopCPUProfile()
		if err := errors.Join(err, f.Close(), b.Reset()); err != nil {
			return err
		}
		fmt.Printf("%s: %.0f msgs/s, %.2f us/msg, p50 %v\n", s.Name, sample.Rate(), sample.MicrosPerMessage(), sample.P50)
	}
	for _, kind := range []string{"allocs", "mutex", "block"} {
		f, err := os.Create(filepath.Join(dir, kind+".prof"))
		if err != nil {
			return err
		}
		if err := errors.Join(pprof.Lookup(kind).WriteTo(f, 0), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
