package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boursemq/bourse"
)

// progress shows how the work goes on: a bar that moves on a terminal, now and then a line elsewhere.
type progress struct {
	out      io.Writer
	terminal bool
	total    int
	before   int // done by earlier runs
	done     int
	started  time.Time
	took     time.Duration
	drawn    time.Time
	said     int // tenths
}

func newProgress(out io.Writer, total, done int) *progress {
	p := &progress{out: out, total: total, before: done, done: done, started: time.Now()}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	p.said = done * 10 / max(total, 1)
	return p
}

// now is the number of jobs done in this run.
func (p *progress) now() int { return p.done - p.before }

func (p *progress) rate() float64 {
	return float64(p.now()) / max(time.Since(p.started).Seconds(), 0.001)
}

func (p *progress) update(done int) {
	p.done = done
	tenth := done * 10 / max(p.total, 1)
	switch {
	case p.terminal && time.Since(p.drawn) > 50*time.Millisecond:
		const width = 40
		full := done * width / max(p.total, 1)
		fmt.Fprintf(p.out, "\rworking  [%s%s] %s of %s, %.0f/s ",
			strings.Repeat("#", full), strings.Repeat(".", width-full), number(done), number(p.total), p.rate())
		p.drawn = time.Now()
	case !p.terminal && tenth >= p.said+2:
		fmt.Fprintf(p.out, "working  %s of %s, %.0f/s\n", number(done), number(p.total), p.rate())
		p.said = tenth
	}
}

func (p *progress) end() {
	p.took = time.Since(p.started)
	if p.terminal {
		p.drawn = time.Time{}
		p.update(p.done)
		fmt.Fprintln(p.out)
	}
}

const listed = 20 // failures that are printed

// report prints what all runs together have found out.
func report(out io.Writer, b *bourse.Broker, c *collector, urgent string, p *progress, started time.Time) error {
	var functions, lines, parsed, first, last, hurried int
	var failed []outcome
	sum := sha256.New()
	for _, file := range slices.Sorted(maps.Keys(c.files)) {
		o := c.files[file]
		if o.death != nil {
			failed = append(failed, o)
			continue
		}
		parsed++
		functions += o.Functions
		lines += o.Lines
		if _, err := fmt.Fprintf(sum, "%s %s\n", o.Path, o.Sum); err != nil {
			return err
		}
		if urgent != "" && isUrgent(urgent, file) {
			hurried++
			last = max(last, o.place)
			if first == 0 || o.place < first {
				first = o.place
			}
		}
	}
	if urgent != "" {
		fmt.Fprintf(out, "urgent   %s files match %s; they were results %s to %s of %s\n",
			number(hurried), urgent, number(first), number(last), number(c.results))
	}
	for i, o := range failed {
		if i == listed {
			fmt.Fprintf(out, "         and %s more\n", number(len(failed)-listed))
			break
		}
		fmt.Fprintf(out, "failed   %s: died of %s after %s", o.Path, o.death.Reason, failures(o.death.Failures))
		if o.death.Note != "" {
			fmt.Fprintf(out, ": %s", strings.TrimPrefix(o.death.Note, o.Path+":"))
		}
		fmt.Fprintln(out)
	}
	jobs, _ := b.QueueStats("jobs")
	fmt.Fprintf(out, "total    %s files parsed, %s failed; %s functions, %s lines\n",
		number(parsed), number(len(failed)), number(functions), number(lines))
	fmt.Fprintf(out, "sha256   %x of all paths and sums\n", sum.Sum(nil))
	// Counters of a queue survive restarts, so these are of all runs.
	fmt.Fprintf(out, "queue    %s jobs, %s deliveries: %s again after a failure or a kill\n",
		number(int(jobs.Enqueued)), number(int(jobs.Delivered)), number(int(jobs.Delivered-jobs.Enqueued)))
	fmt.Fprintf(out, "time     %.1f s, %s jobs in this run, %.0f jobs/s\n", time.Since(started).Seconds(),
		number(p.now()), float64(p.now())/max(p.took.Seconds(), 0.001))
	return nil
}

func failures(n int) string {
	if n == 1 {
		return "1 failure"
	}
	return number(n) + " failures"
}

// number writes n with a comma between thousands.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
