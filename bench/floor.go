// Package bench measures bourse against the least that any durable queue must do.
//
// That least is the floor (floor.go): an append to one preallocated log, a checksum, one write and one sync for all
// who wait, a handover in process of a body that is the consumer's own, a short append for the ack. It routes nothing,
// orders nothing by priority, remembers no loan and could not recover. Each scenario runs on the floor and on a broker
// in turn, in the same process and on the same disk, so that a noisy machine hurts both, and the ratio says what the
// broker costs.
//
//	go test -bench . ./bench
//	go run ./bench/cmd/w -rounds 5 -seconds 2
package bench

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

const (
	floorBytes  = 256 << 20 // of the file; at its end the floor starts over
	floorHeader = 16        // checksum, length, sequence
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// floor appends records to one file. Its methods may be called concurrently.
type floor struct {
	file    *os.File // fixed after openFloor
	sizes   recordSizes
	stopped chan struct{} // closed by write

	mu      sync.Mutex // guards below
	work    sync.Cond  // write waits: there is something in open, or closing
	open    *floorBatch
	idle    *floorBatch // for reuse
	seq     uint64
	closing bool
	err     error // of the file; nothing is confirmed after it

	at int64 // owned by write: where the next batch goes
}

// recordSizes is what a broker writes, headers and padding included.
type recordSizes struct{ publish, ack int }

type floorBatch struct {
	buf      []byte
	messages []floorMessage // those that must be synced; without any the batch is only written
}

type floorMessage struct {
	by   *floorPublisher
	to   *floorQueue // nil: nobody consumes it
	body []byte
}

// openFloor makes the file of a floor in dir, with all its blocks written.
func openFloor(dir string, sizes recordSizes) (*floor, error) {
	file, err := os.OpenFile(filepath.Join(dir, "floor"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < floorBytes && err == nil; at += int64(len(zeros)) {
		_, err = file.WriteAt(zeros, at)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return nil, fmt.Errorf("prepare the floor: %w", err)
	}
	f := &floor{file: file, sizes: sizes, stopped: make(chan struct{}), open: &floorBatch{}, idle: &floorBatch{}}
	f.work.L = &f.mu
	go f.write() // ends by close, which waits for it
	return f, nil
}

func (f *floor) close() error {
	f.mu.Lock()
	f.closing = true
	f.work.Signal()
	f.mu.Unlock()
	<-f.stopped
	if err := f.file.Close(); f.err == nil {
		f.err = err
	}
	return f.err
}

// appendLocked adds a record of size bytes that holds body.
func (f *floor) appendLocked(size int, body []byte) {
	f.seq++
	from := len(f.open.buf)
	if from+size > cap(f.open.buf) {
		grown := make([]byte, from, 2*(from+size))
		copy(grown, f.open.buf)
		f.open.buf = grown
	}
	f.open.buf = f.open.buf[:from+size]
	r := f.open.buf[from:]
	binary.LittleEndian.PutUint32(r[4:], uint32(len(body)))
	binary.LittleEndian.PutUint64(r[8:], f.seq)
	copy(r[floorHeader:], body)
	binary.LittleEndian.PutUint32(r, crc32.Checksum(r[4:], castagnoli))
}

// write takes what is there, writes it, syncs it if somebody waits, and tells who does. Meanwhile the next batch fills.
func (f *floor) write() {
	defer close(f.stopped)
	for {
		f.mu.Lock()
		for len(f.open.buf) == 0 && !f.closing {
			f.work.Wait()
		}
		b := f.open
		if len(b.buf) == 0 {
			f.mu.Unlock()
			return
		}
		f.open = f.idle
		f.mu.Unlock()
		if err := f.flush(b); err != nil {
			f.mu.Lock()
			f.err = err
			f.mu.Unlock()
			panic(err) // a benchmark without a disk is over
		}
		tell(b.messages)
		clear(b.messages)
		b.buf, b.messages = b.buf[:0], b.messages[:0]
		f.mu.Lock()
		f.idle = b
		f.mu.Unlock()
	}
}

func (f *floor) flush(b *floorBatch) error {
	if f.at+int64(len(b.buf)) > floorBytes {
		f.at = 0
	}
	if _, err := f.file.WriteAt(b.buf, f.at); err != nil {
		return err
	}
	f.at += int64(len(b.buf))
	if len(b.messages) == 0 {
		return nil
	}
	return datasync(f.file)
}

// tell confirms messages and hands them over, in runs of one publisher and one queue.
func tell(ms []floorMessage) {
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

// floorPublisher is one goroutine that publishes.
type floorPublisher struct {
	f         *floor
	sent      uint64 // owned by the publisher
	confirmed atomic.Uint64
	signal    chan struct{} // capacity 1: confirmed has grown
}

func (f *floor) publisher() *floorPublisher {
	return &floorPublisher{f: f, signal: make(chan struct{}, 1)}
}

func (p *floorPublisher) publish(to *floorQueue, body []byte) {
	f := p.f
	f.mu.Lock()
	f.appendLocked(f.sizes.publish, body)
	f.open.messages = append(f.open.messages, floorMessage{p, to, body})
	f.mu.Unlock()
	f.work.Signal()
	p.sent++
}

// wait blocks until at most n messages are unconfirmed.
func (p *floorPublisher) wait(n int) {
	for p.sent-p.confirmed.Load() > uint64(n) {
		<-p.signal
	}
}

// floorQueue is what one consumer takes from.
type floorQueue struct {
	f      *floor
	signal chan struct{} // capacity 1: there is something in ready, or closed

	mu     sync.Mutex // guards below
	ready  []floorMessage
	closed bool
}

func (f *floor) queue() *floorQueue { return &floorQueue{f: f, signal: make(chan struct{}, 1)} }

// receive gives the consumer a body of its own, since the publisher may use m.body again after the confirm.
func (m floorMessage) receive() []byte { return append([]byte(nil), m.body...) }

// take swaps all that is ready for the memory of an earlier take. It returns nothing once the queue is closed.
func (q *floorQueue) take(memory []floorMessage) []floorMessage {
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

func (q *floorQueue) ack() {
	f := q.f
	f.mu.Lock()
	f.appendLocked(f.sizes.ack, nil)
	f.mu.Unlock()
	f.work.Signal()
}

func (q *floorQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	wake(q.signal)
}
