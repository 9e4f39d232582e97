package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/boursemq/bourse"
)

// W6 is the full cycle of transient queues, from memory to memory, so its yardsticks have no log. The floor is a Go channel for
// each queue that carries one message at a time, the bare one a slice under a lock that carries batches. Both copy each body
// once, since the publisher may use its own again, and the consumer receives that copy, which it cannot give back.

func transientName(i int) string { return "t" + strconv.Itoa(i) }

// transientCycle publishes batches to each of so many queues and consumes and acks them in batches, a goroutine for each.
func transientCycle(queues int) func(*Bench, limit) (int, []time.Duration, error) {
	return func(b *Bench, l limit) (int, []time.Duration, error) {
		return inParallel(queues, func(i int) (int, error) { return b.cycleBatches(transientName(i), l.share(queues)) })
	}
}

func (b *Bench) cycleBatches(queue string, l limit) (int, error) {
	s, err := b.broker.Subscribe(b.ctx, queue, bourse.SubscribeOptions{Prefetch: b.cfg.Prefetch})
	if err != nil {
		return 0, err
	}
	w := newWindow(b.cfg.Ahead)
	ctx, stop := context.WithCancel(b.ctx)
	failed := make(chan error, 1)
	go func() { // ends by stop, below
		err := consumeBatch(ctx, s, w)
		if ctx.Err() == nil {
			b.cancel() // so that the publisher does not wait for ever
		}
		failed <- err
	}()
	batch := make([]bourse.Message, b.cfg.Batch)
	for i := range batch {
		batch[i] = b.message
		batch[i].RoutingKey = queue
	}
	n := 0
	for ; err == nil && !l.reached(n); n += len(batch) {
		err = b.broker.PublishBatch(b.ctx, batch)
		w.publish(len(batch))
	}
	if err == nil {
		w.wait(0)
	}
	stop()
	if lost := <-failed; !errors.Is(lost, context.Canceled) {
		err = errors.Join(err, lost)
	}
	return n, errors.Join(err, s.Close())
}

// channelCycle is the floor of transientCycle.
func channelCycle(queues int) func(*Bench, limit) (int, []time.Duration, error) {
	return func(b *Bench, l limit) (int, []time.Duration, error) {
		return inParallel(queues, func(int) (int, error) {
			queue := make(chan []byte, b.cfg.Prefetch)
			received := make(chan int, 1)
			var acked atomic.Int64
			go func() { // ends with queue, below
				size := 0
				for body := range queue {
					size += len(body)
					acked.Add(1)
				}
				received <- size
			}()
			n := 0
			for l := l.share(queues); !l.soon(n); n++ {
				queue <- append([]byte(nil), b.body...)
			}
			close(queue)
			if size := <-received; size != n*b.cfg.Payload || acked.Load() != int64(n) {
				return n, fmt.Errorf("the channel delivered %d bytes and %d acks of %d messages", size, acked.Load(), n)
			}
			return n, nil
		})
	}
}

// sliceCycle is the bare log of transientCycle.
func sliceCycle(queues int) func(*Bench, limit) (int, []time.Duration, error) {
	return func(b *Bench, l limit) (int, []time.Duration, error) {
		return inParallel(queues, func(int) (int, error) {
			q, w := b.bare.queue(), newWindow(b.cfg.Ahead)
			received := make(chan int, 1)
			go func() { // ends when q is closed, below
				var got []bareMessage
				size := 0
				for {
					if got = q.take(got); len(got) == 0 {
						received <- size
						return
					}
					for _, m := range got {
						size += len(m.body)
					}
					w.ack(len(got))
				}
			}()
			batch := make([]bareMessage, b.cfg.Batch)
			n := 0
			for l := l.share(queues); !l.reached(n); n += len(batch) {
				for i := range batch {
					batch[i].body = append([]byte(nil), b.body...)
				}
				q.mu.Lock()
				q.ready = append(q.ready, batch...)
				q.mu.Unlock()
				wake(q.signal)
				w.publish(len(batch))
			}
			w.wait(0)
			q.close()
			if size := <-received; size != n*b.cfg.Payload {
				return n, fmt.Errorf("the slice delivered %d bytes of %d messages", size, n)
			}
			return n, nil
		})
	}
}
