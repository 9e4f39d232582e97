// Jobqueue is a durable job queue at work on a real input: it parses every Go file below a folder, one job
// a file, and adds up what it finds. It may be killed at any time; the next run goes on where it was, and
// the totals come out the same.
//
//	go run ./examples/jobqueue [-dir jobqueue-data] [-workers N] [-urgent GLOB] [-kill-after N] [FOLDER]
//
// FOLDER is the source of the standard library unless given. Try it with -kill-after 2000 a few times.
// Files that do not parse fail, are tried again, and end in a dead-letter queue, which is listed at the end.
//
// The queues (plan.go, work.go and collect.go have the programs around them):
//
//	bookmark   one message: how far the folder has been turned into jobs
//	jobs       one message a file, urgent ones at a higher priority
//	results    what a worker found out about a file
//	failed     jobs that failed once too often, by way of the exchange dead
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"time"

	"github.com/boursemq/bourse"
)

// The topology is a value. Declaring it at every start costs nothing if it is there already.
var topology = []bourse.Declaration{
	bourse.Queue{Name: "bookmark", MaxRetries: bourse.NoLimit},
	bourse.Queue{
		Name: "jobs", Priorities: 2, MaxRetries: 3, Retry: bourse.Backoff{Min: 50 * time.Millisecond, Max: 400 * time.Millisecond},
		DeadLetter: bourse.DeadLetter{Exchange: "dead"},
	},
	// Results are read and held, not acked, until the end: however often the program is killed
	// with them in hand, they come back.
	bourse.Queue{Name: "results", MaxRetries: bourse.NoLimit, AckDeadline: bourse.MaxAckDeadline},
	bourse.Queue{Name: "failed", MaxRetries: bourse.NoLimit, AckDeadline: bourse.MaxAckDeadline},
	bourse.Exchange{Name: "dead", Kind: bourse.Fanout},
	bourse.Binding{Exchange: "dead", Queue: "failed"},
}

// options are what the command line says. chunk and killQueued are for the test.
type options struct {
	dir        string
	folder     string // absolute; empty: that of an unfinished run, or else the standard library
	urgent     string
	workers    int
	killAfter  int // jobs done
	chunk      int // jobs published between two bookmarks
	killQueued int // jobs queued
}

func main() {
	opts := options{chunk: 500}
	flag.StringVar(&opts.dir, "dir", "jobqueue-data", "the directory of the broker")
	flag.IntVar(&opts.workers, "workers", runtime.NumCPU(), "jobs at once")
	flag.StringVar(&opts.urgent, "urgent", "", "`glob` of paths or names of files to be done first, such as 'net/http/*'")
	flag.IntVar(&opts.killAfter, "kill-after", 0, "kill this process (SIGKILL) after `N` jobs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := opts.complete(flag.Args())
	if err == nil {
		err = run(ctx, opts, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "jobqueue:", err)
		os.Exit(1)
	}
}

func (o *options) complete(args []string) (err error) {
	if _, err := path.Match(o.urgent, ""); err != nil || o.workers < 1 || len(args) > 1 {
		flag.Usage()
		return errors.New("the command line is not as described above")
	}
	if len(args) == 1 {
		if o.folder, err = filepath.Abs(args[0]); err == nil {
			o.folder, err = filepath.EvalSymlinks(o.folder)
		}
	}
	return err
}

// run does what is left to do, and prints the totals when all is done.
func run(ctx context.Context, opts options, out io.Writer) (err error) {
	started := time.Now()
	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: opts.dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := b.Declare(ctx, topology...); err != nil {
		return err
	}
	p, err := openPlan(ctx, b, opts)
	if err != nil {
		return err
	}
	c, err := openCollector(ctx, b)
	if err != nil {
		return err
	}
	defer c.close()
	if p.resumed {
		fmt.Fprintf(out, "resuming: %s done, %s waiting\n", number(len(c.files)), number(p.mark.Queued-len(c.files)))
	}
	fmt.Fprintf(out, "folder   %s\n", p.mark.Folder)
	if err := p.enqueue(ctx, out); err != nil {
		return paused(ctx, c, p, err)
	}

	root, err := os.OpenRoot(p.mark.Folder)
	if err != nil {
		return err
	}
	defer root.Close()
	show := newProgress(out, p.mark.Queued, len(c.files))
	working, stopWork := context.WithCancel(ctx)
	worked := make(chan error, 1)
	go func() { // ends with stopWork, which every way out of run comes by
		worked <- b.Work(working, "jobs", parseFile(b, root), bourse.WorkOptions{Concurrency: opts.workers, Prefetch: opts.workers})
	}()
	err = c.until(ctx, p.mark.Queued, func(done int) {
		show.update(done)
		if opts.killAfter > 0 && show.now() >= opts.killAfter {
			show.end()
			fmt.Fprintf(out, "killing this process after %s jobs; run it again to go on\n", number(show.now()))
			killMyself()
		}
	}, worked)
	stopWork()
	err = errors.Join(err, <-worked)
	show.end()
	if err != nil {
		return paused(ctx, c, p, err)
	}
	if err := report(out, b, c, p.mark.Urgent, show, started); err != nil {
		return err
	}
	// Queues go with what they hold, all in one step: the next run starts afresh.
	return b.Delete(context.WithoutCancel(ctx), topology...)
}

// paused tells a run that was interrupted from one that failed.
func paused(ctx context.Context, c *collector, p *plan, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return fmt.Errorf("interrupted with %s of %s jobs done; run it again to go on", number(len(c.files)), number(p.mark.Queued))
	}
	return err
}

// killMyself ends the process as kill -9 does: nothing is flushed, closed or deferred.
func killMyself() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // the signal is on its way
}
