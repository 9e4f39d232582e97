// Package bench measures bourse against two yardsticks, in the same process and on the same disk and in turn with it, so
// that a noisy machine hurts all three.
//
// The floor is the least that a durable queue must do whose edge is that of a queue: every publish has an outcome that
// its publisher waits for, and every message is handed to the consumer as a body of its own and acked by itself. It is
// what one would write in Go without a broker: one preallocated log with checksums, one write and one sync for all who
// wait, a channel for the outcome of each publish and a channel of messages for each consumer. It routes nothing, orders
// nothing by priority, remembers no loan and could not recover. The ratio to it says what the broker costs.
//
// The bare log (bare.go) is less than a queue: the same log, but it counts confirms instead of giving them, hands over
// all there is at once, and overwrites what it stored. It says what the disk and the checksums cost.
//
//	go test -bench . ./bench
//	go run ./bench/cmd/w -rounds 5 -seconds 2
package bench

import (
	"errors"
	"fmt"
	"time"
)

const (
	floorPerSecond = 2 << 30 // bytes of file for each second of a run; a run that needs more ends there
	floorMost      = 4 << 30 // bytes of file
)

// errFull ends a run that the file of the floor has no room for.
var errFull = errors.New("the floor's file is full")

// floor is a log that gives each message a confirm, a consumer and an ack.
type floor struct {
	log   *groupLog[floorMessage]
	sizes recordSizes
}

// floorMessage waits in a batch until that is on disk.
type floorMessage struct {
	done    chan error    // capacity 1: the outcome
	to      chan delivery // nil: nobody consumes it
	message delivery
	last    bool // there is no message: to ends here
}

// delivery is what a consumer is handed.
type delivery struct {
	seq  uint64
	body []byte // the consumer's own
}

// openFloor makes a floor whose file holds all that a run of cfg can write.
func openFloor(cfg Config, sizes recordSizes) (*floor, error) {
	size := min(int64(cfg.Duration.Seconds()*floorPerSecond), floorMost)
	if cfg.Messages > 0 {
		size = min(int64(cfg.Messages)*int64(sizes.publish+sizes.ack)+bufferAtOnce, floorMost)
	}
	log, err := openLog(cfg.Dir, "floor", size, tellFloor)
	return &floor{log, sizes}, err
}

// tellFloor gives each message its outcome, and hands it over if it is stored.
func tellFloor(ms []floorMessage, err error) {
	for _, m := range ms {
		m.done <- err
		switch {
		case m.last:
			close(m.to)
		case m.to != nil && err == nil:
			m.to <- m.message // waits while Prefetch messages are not received
		}
	}
}

// publish appends a message, unless the file is full: then it returns nil. The caller may use body again at once.
func (f *floor) publish(to chan delivery, body []byte) chan error {
	m := floorMessage{done: make(chan error, 1), to: to}
	reserve := f.sizes.publish
	if to != nil {
		m.message.body = append([]byte(nil), body...)
		reserve += f.sizes.ack
	}
	l := f.log
	l.mu.Lock()
	if !l.reserveLocked(reserve) {
		l.mu.Unlock()
		return nil
	}
	l.seq++
	m.message.seq = l.seq
	l.appendLocked(f.sizes.publish, l.seq, body)
	l.open.told = append(l.open.told, m)
	l.mu.Unlock()
	l.work.Signal()
	return m.done
}

// ack appends that the message with this number is done with. It is synced with the next publish.
func (f *floor) ack(seq uint64) {
	l := f.log
	l.mu.Lock()
	l.appendLocked(f.sizes.ack, seq, nil)
	l.mu.Unlock()
	l.work.Signal()
}

// end closes to behind all that was published to it.
func (f *floor) end(to chan delivery) {
	l := f.log
	l.mu.Lock()
	l.appendLocked(logHeader, 0, nil)
	l.open.told = append(l.open.told, floorMessage{done: make(chan error, 1), to: to, last: true})
	l.mu.Unlock()
	l.work.Signal()
}

// outcomes are the publishes of one goroutine that it has not waited for, oldest first.
type outcomes struct {
	all  []chan error // a ring
	next int
}

func newOutcomes(n int) *outcomes { return &outcomes{all: make([]chan error, n)} }

// add waits for the oldest, whose place the next one takes.
func (o *outcomes) add(done chan error) error {
	o.all[o.next] = done
	if o.next++; o.next == len(o.all) {
		o.next = 0
	}
	oldest := o.all[o.next]
	if oldest == nil {
		return nil
	}
	o.all[o.next] = nil
	return <-oldest
}

func (o *outcomes) wait() error {
	for _, done := range o.all {
		if done != nil {
			if err := <-done; err != nil {
				return err
			}
		}
	}
	return nil
}

// The floor's side of the scenarios.

func (b *Bench) floorPublish(l limit) (int, []time.Duration, error) {
	n, err := b.publishToFloor(nil, l)
	return n, nil, err
}

// publishToFloor publishes until l, or until the file is full, and waits for all outcomes.
func (b *Bench) publishToFloor(to chan delivery, l limit) (int, error) {
	waiting := newOutcomes(b.cfg.InFlight)
	n := 0
	for ; !l.soon(n); n++ {
		done := b.floor.publish(to, b.body)
		if done == nil {
			break
		}
		if err := waiting.add(done); err != nil {
			return n, err
		}
	}
	return n, waiting.wait()
}

func floorCycle(queues int) func(*Bench, limit) (int, []time.Duration, error) {
	return func(b *Bench, l limit) (int, []time.Duration, error) {
		return inParallel(queues, func(int) (int, error) {
			queue := make(chan delivery, b.cfg.Prefetch)
			received := make(chan int, 1)
			go func() { // ends with queue, below
				size := 0
				for d := range queue {
					size += len(d.body)
					b.floor.ack(d.seq)
				}
				received <- size
			}()
			n, err := b.publishToFloor(queue, l.share(queues))
			b.floor.end(queue)
			if size := <-received; err == nil && size != n*b.cfg.Payload {
				err = fmt.Errorf("the floor delivered %d bytes of %d messages", size, n)
			}
			return n, err
		})
	}
}

func (b *Bench) floorAlone(l limit) (int, []time.Duration, error) {
	took := make([]time.Duration, 0, 1<<16)
	for !l.reached(len(took)) {
		start := time.Now()
		done := b.floor.publish(nil, b.body)
		if done == nil {
			break
		}
		if err := <-done; err != nil {
			return len(took), took, err
		}
		took = append(took, time.Since(start))
	}
	return len(took), took, nil
}

func (b *Bench) floorPaced(l limit) (int, []time.Duration, error) {
	queue := make(chan delivery, b.cfg.Prefetch)
	received := make(chan []time.Duration, 1)
	go func() { // ends with queue, below
		var took []time.Duration
		for d := range queue {
			took = append(took, b.age(d.body))
			b.floor.ack(d.seq)
		}
		received <- took
	}()
	waiting := newOutcomes(b.cfg.InFlight)
	var err error
	n := b.paced(l, func(body []byte) error {
		done := b.floor.publish(queue, body)
		if done == nil {
			return errFull
		}
		err = waiting.add(done)
		return err
	})
	if err == nil {
		err = waiting.wait()
	}
	b.floor.end(queue)
	return n, <-received, err
}
