package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/boursemq/bourse"
)

// Backlog is one round with a deep queue: how fast it fills while nobody consumes, how fast it is drained, message by message, and
// what publishing and consuming beside it costs.
type Backlog struct {
	Fill, Drain Round // without a bare log
	Cycle       Round // W2/Next; its Floor is the broker as well, with nothing waiting
}

// Backlog lets n messages wait, in the floor and then in the broker, in one queue, or as many as the floor's file has room for.
func (b *Bench) Backlog(n int) (d Backlog, err error) {
	b.floor.log.startOver()
	for _, step := range []struct {
		sample *Sample
		run    func(*Bench, limit) (int, []time.Duration, error)
	}{
		{&d.Cycle.Floor, (*Bench).cycleBeside},
		{&d.Fill.Floor, (*Bench).floorPublish},
		{&d.Drain.Floor, (*Bench).floorDrain},
		{&d.Fill.Broker, (*Bench).publishBatch},
		{&d.Drain.Broker, (*Bench).brokerDrain},
		{new(Sample), (*Bench).publishBatch},
		{&d.Cycle.Broker, (*Bench).cycleBeside},
	} {
		if *step.sample, err = measure(func() (int, []time.Duration, error) { return step.run(b, limit{messages: n}) }); err != nil {
			return d, err
		}
	}
	for _, of := range []Round{d.Fill, d.Drain} {
		if of.Floor.Messages != d.Fill.Floor.Messages || of.Broker.Messages != d.Fill.Broker.Messages {
			return d, fmt.Errorf("%d and %d messages were put in, not all came out", d.Fill.Floor.Messages, d.Fill.Broker.Messages)
		}
	}
	return d, b.Reset()
}

// cycleBeside is W2/Next, whatever waits. The consumer may then take more than is published meanwhile: the mean of both counts.
func (b *Bench) cycleBeside(limit) (int, []time.Duration, error) {
	var acked *window
	published, err := b.cycle(wideName(0), func(ctx context.Context, s *bourse.Subscription, w *window) error {
		acked = w
		return consumeNext(ctx, s, w)
	}, limit{until: time.Now().Add(b.cfg.Duration)})
	if err != nil {
		return 0, nil, err
	}
	return (published + int(acked.acked.Load())) / 2, nil, nil
}

// floorDrain hands out what floorPublish has published since the file was begun, and acks it. The acks are on disk at the end.
func (b *Bench) floorDrain(l limit) (int, []time.Duration, error) {
	f := b.floor
	queue, failed := make(chan delivery, b.cfg.Prefetch), make(chan error, 1)
	go func() { // ends with what is in the file
		defer close(queue)
		failed <- f.scan(l.messages, queue)
	}()
	n := 0
	for d := range queue {
		f.ack(d.seq)
		n++
	}
	if err := <-failed; err != nil {
		return n, nil, err
	}
	return n, nil, f.flush()
}

// flush waits until all that was appended is on disk.
func (f *floor) flush() error {
	done, l := make(chan error, 1), f.log
	l.mu.Lock()
	l.appendLocked(logHeader, 0, nil)
	l.open.told = append(l.open.told, floorMessage{done: done})
	l.mu.Unlock()
	l.work.Signal()
	return <-done
}

// scan reads the first n messages of the file, or as many as there are, in large pieces, and sends each with a body of its own.
func (f *floor) scan(n int, to chan<- delivery) error {
	size := f.sizes.publish
	piece := make([]byte, bufferAtOnce/size*size)
	before := uint64(0)
	for at := int64(0); ; at += int64(len(piece)) {
		k, err := f.log.file.ReadAt(piece, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for r := piece[:k]; len(r) >= size; r = r[size:] {
			seq := binary.LittleEndian.Uint64(r[8:])
			if n == 0 || seq <= before {
				return nil
			}
			if binary.LittleEndian.Uint32(r) != crc32.Checksum(r[4:size], castagnoli) {
				return fmt.Errorf("message %d of the floor is damaged", seq)
			}
			body := r[logHeader:]
			to <- delivery{seq: seq, body: append([]byte(nil), body[:binary.LittleEndian.Uint32(r[4:])]...)}
			before = seq
			n--
		}
		if k < len(piece) {
			return nil
		}
	}
}

// brokerDrain consumes and acks, one by one, what waits in the first queue.
func (b *Bench) brokerDrain(limit) (int, []time.Duration, error) {
	stats, ok := b.broker.QueueStats(wideName(0))
	if !ok || stats.Ready == 0 {
		return 0, nil, errors.New("nothing waits in the queue")
	}
	s, err := b.broker.Subscribe(b.ctx, wideName(0), bourse.SubscribeOptions{Prefetch: b.cfg.Prefetch})
	if err != nil {
		return 0, nil, err
	}
	for n := range stats.Ready {
		d, err := s.Next(b.ctx)
		switch {
		case err != nil:
		case n < stats.Ready-1:
			err = d.Ack()
		default:
			err = d.AckSync(b.ctx)
		}
		if err != nil {
			return n, nil, errors.Join(err, s.Close())
		}
	}
	return stats.Ready, nil, s.Close()
}

// Backlogs are the rounds of one size.
type Backlogs []Backlog

// ratio is the median of those of the rounds.
func (bs Backlogs) ratio(of func(Backlog) Round) float64 {
	return median(bs, func(d Backlog) float64 { return of(d).Ratio() })
}

// backlogRows are the lines of a table of backlogs, and the least ratio of each that Check accepts.
var backlogRows = []struct {
	name  string
	of    func(Backlog) Round
	least float64
}{
	{"fill: PublishBatch, against the floor", func(d Backlog) Round { return d.Fill }, 0.5},
	{"drain: Next and Ack, against the floor", func(d Backlog) Round { return d.Drain }, 0.5},
	{"W2/Next beside it, against the same with nothing waiting", func(d Backlog) Round { return d.Cycle }, 0.8},
}

// Write prints the medians in Markdown.
func (bs Backlogs) Write(w io.Writer) {
	fmt.Fprint(w, "| with a deep queue | messages | yardstick, msgs/s | bourse, msgs/s | ratio |\n|---|---:|---:|---:|---:|\n")
	for _, row := range backlogRows {
		of := func(f func(Round) float64) float64 {
			return median(bs, func(d Backlog) float64 { return f(row.of(d)) })
		}
		fmt.Fprintf(w, "| %s | %.0f | %.0f | %.0f | %.2f |\n", row.name, of(func(r Round) float64 { return float64(r.Broker.Messages) }),
			of(func(r Round) float64 { return r.Floor.Rate() }), of(func(r Round) float64 { return r.Broker.Rate() }), bs.ratio(row.of))
	}
}

// Check says which ratios are too low.
func (bs Backlogs) Check() (err error) {
	for _, row := range backlogRows {
		if ratio := bs.ratio(row.of); ratio < row.least {
			err = errors.Join(err, fmt.Errorf("%s: %.2f, bound %.2f", row.name, ratio, row.least))
		}
	}
	return err
}
