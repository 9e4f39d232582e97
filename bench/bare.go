package bench

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// bareBytes is the size of the file. What a long run stores is overwritten when the log comes round.
const bareBytes = 256 << 20

// bareLog is how fast bytes come to a disk in groups: a publisher learns how many of its messages are stored, of none by
// itself, and a consumer takes all that is there at once.
type bareLog struct {
	log   *groupLog[bareMessage]
	sizes recordSizes
}

type bareMessage struct {
	by   *barePublisher
	to   *bareQueue // nil: nobody consumes it
	body []byte
}

func openBare(dir string, sizes recordSizes) (*bareLog, error) {
	log, err := openLog(dir, "bare", bareBytes, tellBare)
	return &bareLog{log, sizes}, err
}

// tellBare confirms messages and hands them over, in runs of one publisher and one queue.
func tellBare(ms []bareMessage, err error) {
	if err != nil {
		panic(err) // nobody here can be told
	}
	for len(ms) > 0 {
		n := 1
		for n < len(ms) && ms[n].by == ms[0].by && ms[n].to == ms[0].to {
			n++
		}
		if q := ms[0].to; q != nil {
			q.mu.Lock()
			q.ready = append(q.ready, ms[:n]...)
			q.mu.Unlock()
			wake(q.signal)
		}
		ms[0].by.confirmed.Add(uint64(n))
		wake(ms[0].by.signal)
		ms = ms[n:]
	}
}

func wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// barePublisher is one goroutine that publishes.
type barePublisher struct {
	b         *bareLog
	sent      uint64 // owned by the publisher
	confirmed atomic.Uint64
	signal    chan struct{} // capacity 1: confirmed has grown
}

func (b *bareLog) publisher() *barePublisher {
	return &barePublisher{b: b, signal: make(chan struct{}, 1)}
}

func (p *barePublisher) publish(to *bareQueue, body []byte) {
	l := p.b.log
	l.mu.Lock()
	l.seq++
	l.appendLocked(p.b.sizes.publish, l.seq, body)
	l.open.told = append(l.open.told, bareMessage{p, to, body})
	l.mu.Unlock()
	l.work.Signal()
	p.sent++
}

// wait blocks until at most n messages are unconfirmed.
func (p *barePublisher) wait(n int) {
	for p.sent-p.confirmed.Load() > uint64(n) {
		<-p.signal
	}
}

// bareQueue is what one consumer takes from.
type bareQueue struct {
	b      *bareLog
	signal chan struct{} // capacity 1: there is something in ready, or closed

	mu     sync.Mutex // guards below
	ready  []bareMessage
	closed bool
}

func (b *bareLog) queue() *bareQueue { return &bareQueue{b: b, signal: make(chan struct{}, 1)} }

// receive gives the consumer a body of its own. The publisher must not have changed m.body.
func (m bareMessage) receive() []byte { return append([]byte(nil), m.body...) }

// take swaps all that is ready for the memory of an earlier take. It returns nothing once the queue is closed.
func (q *bareQueue) take(memory []bareMessage) []bareMessage {
	for {
		q.mu.Lock()
		got, closed := q.ready, q.closed
		if len(got) > 0 {
			q.ready = memory[:0]
		}
		q.mu.Unlock()
		if len(got) > 0 || closed {
			return got
		}
		<-q.signal
	}
}

func (q *bareQueue) ack() {
	l := q.b.log
	l.mu.Lock()
	l.seq++
	l.appendLocked(q.b.sizes.ack, l.seq, nil)
	l.mu.Unlock()
	l.work.Signal()
}

func (q *bareQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	wake(q.signal)
}

// The bare log's side of the scenarios.

func (b *Bench) barePublish(l limit) (int, []time.Duration, error) {
	p := b.bare.publisher()
	n := 0
	for ; !l.soon(n); n++ {
		p.publish(nil, b.body)
		p.wait(b.cfg.InFlight - 1)
	}
	p.wait(0)
	return n, nil, nil
}

func bareCycle(queues int) func(*Bench, limit) (int, []time.Duration, error) {
	return func(b *Bench, l limit) (int, []time.Duration, error) {
		return inParallel(queues, func(int) (int, error) {
			q, p, w := b.bare.queue(), b.bare.publisher(), newWindow(b.cfg.Ahead)
			done := make(chan struct{})
			received := 0
			go func() { // ends when q is closed, below
				defer close(done)
				var got []bareMessage
				for {
					if got = q.take(got); len(got) == 0 {
						return
					}
					for _, m := range got {
						received += len(m.receive())
						q.ack()
						w.ack(1)
					}
				}
			}()
			n := 0
			for l := l.share(queues); !l.soon(n); n++ {
				p.publish(q, b.body)
				p.wait(b.cfg.InFlight - 1)
				w.publish(1)
			}
			p.wait(0)
			w.wait(0)
			q.close()
			<-done
			if received != n*b.cfg.Payload {
				return n, fmt.Errorf("the bare log delivered %d bytes of %d messages", received, n)
			}
			return n, nil
		})
	}
}

func (b *Bench) bareAlone(l limit) (int, []time.Duration, error) {
	p := b.bare.publisher()
	took := make([]time.Duration, 0, 1<<16)
	for !l.reached(len(took)) {
		start := time.Now()
		p.publish(nil, b.body)
		p.wait(0)
		took = append(took, time.Since(start))
	}
	return len(took), took, nil
}

func (b *Bench) barePaced(l limit) (int, []time.Duration, error) {
	q, p := b.bare.queue(), b.bare.publisher()
	var took []time.Duration
	done := make(chan struct{})
	go func() { // ends when q is closed, below
		defer close(done)
		var got []bareMessage
		for {
			if got = q.take(got); len(got) == 0 {
				return
			}
			for _, m := range got {
				took = append(took, b.age(m.receive()))
				q.ack()
			}
		}
	}()
	n := b.paced(l, func(body []byte) error {
		p.publish(q, body)
		return nil
	})
	p.wait(0)
	q.close()
	<-done
	return n, took, nil
}
