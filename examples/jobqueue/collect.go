package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/boursemq/bourse"
)

// outcome is how the job of one file ended.
type outcome struct {
	result
	place int           // among the results, from 1 in the order of their arrival; 0: it failed
	death *bourse.Death // how it failed
}

// collector reads the queues results and failed and holds on to all of it: nothing is acked before the end,
// so a run that is killed loses none of it.
type collector struct {
	b     *bourse.Broker
	found chan *bourse.Delivery // sent by the readers, received by collect and until; never closed
	ended chan error            // a reader failed; capacity 1
	stop  context.CancelFunc    // ends the readers
	wg    sync.WaitGroup        // of the readers

	files   map[string]outcome // by path
	results int                // arrived, repetitions included
}

// openCollector collects what earlier runs have left, and starts to collect what comes.
func openCollector(ctx context.Context, b *bourse.Broker) (*collector, error) {
	c := &collector{b: b, found: make(chan *bourse.Delivery), ended: make(chan error, 1), files: map[string]outcome{}}
	reading, stop := context.WithCancel(ctx)
	c.stop = stop
	for _, queue := range []string{"results", "failed"} {
		waiting, _ := b.QueueStats(queue)
		if err := c.read(reading, queue); err != nil {
			c.close()
			return nil, err
		}
		for range waiting.Ready {
			if err := c.collect(ctx, nil, nil); err != nil {
				c.close()
				return nil, err
			}
		}
	}
	return c, nil
}

// read starts a reader of a queue. A subscription holds at most bourse.MaxPrefetch messages, so when it has
// that many the reader goes on with another one.
func (c *collector) read(ctx context.Context, queue string) error {
	sub, err := c.b.Subscribe(ctx, queue, bourse.SubscribeOptions{})
	if err != nil {
		return err
	}
	c.wg.Go(func() { // ends with ctx, by close, which waits
		for n := 1; err == nil; n++ {
			var d *bourse.Delivery
			if d, err = sub.Next(ctx); err != nil {
				break
			}
			select {
			case c.found <- d:
			case <-ctx.Done():
			}
			if n%bourse.MaxPrefetch == 0 {
				sub, err = c.b.Subscribe(ctx, queue, bourse.SubscribeOptions{})
			}
		}
		if ctx.Err() == nil {
			select {
			case c.ended <- err:
			default:
			}
		}
	})
	return nil
}

// close ends the readers. What they hold goes back when the broker closes.
func (c *collector) close() {
	c.stop()
	c.wg.Wait()
}

var errTick = errors.New("tick")

// collect waits for one outcome, or a tick, or the end of the workers.
func (c *collector) collect(ctx context.Context, tick <-chan time.Time, worked chan error) error {
	select {
	case d := <-c.found:
		return c.add(d)
	case <-tick:
		return errTick
	case err := <-c.ended:
		return err
	case err := <-worked:
		worked <- nil // for run, which waits for it too
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *collector) add(d *bourse.Delivery) error {
	if d.Queue == "failed" {
		j, err := bourse.JSON[job]().Decode(d.Body)
		if err != nil {
			return err
		}
		if _, known := c.files[j.Path]; !known {
			c.files[j.Path] = outcome{result: result{Path: j.Path}, death: &d.Deaths[0]}
		}
		return nil
	}
	r, err := bourse.JSON[result]().Decode(d.Body)
	if err != nil {
		return err
	}
	c.results++
	if had, known := c.files[r.Path]; !known || had.death != nil {
		c.files[r.Path] = outcome{result: r, place: c.results}
	}
	return nil
}

// until collects until there is an outcome for each of total files and the queue jobs is empty: what was queued
// twice is worked off too. done is told the number of files from time to time.
func (c *collector) until(ctx context.Context, total int, done func(int), worked chan error) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := c.collect(ctx, ticker.C, worked)
		if err != nil && !errors.Is(err, errTick) {
			return err
		}
		done(len(c.files))
		if len(c.files) > total {
			return fmt.Errorf("%d outcomes of %d jobs", len(c.files), total)
		}
		if err != nil && len(c.files) == total {
			q, _ := c.b.QueueStats("jobs")
			if q.Ready+q.Unacked+q.Delayed+q.Dying == 0 {
				return nil
			}
		}
	}
}
