package bench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/boursemq/bourse"
)

// Config is the size of everything. The zero value of each field is its default.
type Config struct {
	Dir      string        // of all files; must exist
	Payload  int           // bytes of a body; default 1,024
	InFlight int           // publishes that one publisher has not confirmed; default 1,000
	Prefetch int           // of a consumer; default 1,000
	Batch    int           // messages of a PublishBatch of W6; default 256
	Ahead    int           // messages of one queue that are published and not acked, at most; default 10,000
	Rate     int           // messages per second of W5; default 1,000
	Duration time.Duration // of one run of one side; default 2 seconds
	Messages int           // of one run of one side, instead of Duration
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *int
		value int
	}{{&c.Payload, 1024}, {&c.InFlight, 1000}, {&c.Prefetch, 1000}, {&c.Batch, 256}, {&c.Ahead, 10_000}, {&c.Rate, 1000}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Duration == 0 {
		c.Duration = 2 * time.Second
	}
	return c
}

// String is one line for the top of a table.
func (c Config) String() string {
	return fmt.Sprintf("bodies of %d bytes, durable (synced before the confirm) but for W6, prefetch %d, %d in flight per publisher, "+
		"batches of %d, at most %d published and not acked per queue", c.Payload, c.Prefetch, c.InFlight, c.Batch, c.Ahead)
}

// wideQueues is the number of queues of W3 and W6, each with a publisher and a consumer.
const wideQueues = 8

// Scenario is one way to use a queue.
type Scenario struct {
	Name    string // W1 to W6, and the style
	Title   string
	Latency bool // it measures time, not throughput
	Memory  bool // its floor has no log either
	// They return the number of messages, and for latencies the time of each.
	floor, bare, broker func(*Bench, limit) (int, []time.Duration, error)
}

// Side is one of the three that are compared.
type Side int

const (
	Floor Side = iota
	Bare
	Broker
)

func (s Side) String() string { return [...]string{"floor", "bare log", "bourse"}[s] }

// Scenarios returns all of them, in the order of a table.
func Scenarios() []Scenario {
	return []Scenario{
		{"W1/PublishAsync", "publish and confirm, 1 goroutine", false, false,
			(*Bench).floorPublish, (*Bench).barePublish, (*Bench).publishAsync},
		{"W1/PublishBatch", "the same in batches", false, false,
			(*Bench).floorPublish, (*Bench).barePublish, (*Bench).publishBatch},
		{"W1/Publish", "the same, one goroutine for each in flight", false, false,
			(*Bench).floorPublish, (*Bench).barePublish, (*Bench).publishSync},
		{"W2/Next", "publish, consume and ack, 1 queue", false, false,
			floorCycle(1), bareCycle(1), brokerCycle(1, consumeNext)},
		{"W2/NextBatch", "the same, NextBatch and AckUpTo", false, false,
			floorCycle(1), bareCycle(1), brokerCycle(1, consumeBatch)},
		{"W3/Next", "publish, consume and ack, 8 queues", false, false,
			floorCycle(wideQueues), bareCycle(wideQueues), brokerCycle(wideQueues, consumeNext)},
		{"W3/NextBatch", "the same, NextBatch and AckUpTo", false, false,
			floorCycle(wideQueues), bareCycle(wideQueues), brokerCycle(wideQueues, consumeBatch)},
		{"W4", "publish to confirm, one at a time", true, false,
			(*Bench).floorAlone, (*Bench).bareAlone, (*Bench).brokerAlone},
		{"W5", "publish to delivery, paced", true, false,
			(*Bench).floorPaced, (*Bench).barePaced, (*Bench).brokerPaced},
		{"W6/Batch", "transient: publish, consume and ack in batches, 8 queues", false, true,
			channelCycle(wideQueues), sliceCycle(wideQueues), transientCycle(wideQueues)},
	}
}

// Bench is a floor, a bare log and a broker on one disk.
type Bench struct {
	cfg     Config
	ctx     context.Context // of all calls: a run has no other end than its limit or an error
	cancel  context.CancelFunc
	broker  *bourse.Broker
	floor   *floor
	bare    *bareLog
	body    []byte // random, so that nothing can be saved by compressing it
	message bourse.Message
	epoch   time.Time
}

// Open makes all three in cfg.Dir, their files written before.
func Open(cfg Config) (*Bench, error) {
	b := &Bench{cfg: cfg.withDefaults(), epoch: time.Now()}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.body = make([]byte, b.cfg.Payload)
	if _, err := rand.Read(b.body); err != nil {
		return nil, err
	}
	b.message = bourse.Message{RoutingKey: wideName(0), Body: b.body}
	prepared := b.cfg.logBytes(recordSizes{b.cfg.Payload + 128, 64})
	var err error
	if b.broker, err = bourse.NewBroker(b.ctx, bourse.Options{
		Dir: filepath.Join(b.cfg.Dir, "broker"), Preallocate: prepared,
	}); err != nil {
		return nil, err
	}
	var declarations []bourse.Declaration
	for i := range wideQueues {
		declarations = append(declarations, bourse.Queue{Name: wideName(i)}, bourse.Queue{Name: transientName(i), Transient: true})
	}
	if err = b.broker.Declare(b.ctx, declarations...); err == nil {
		var sizes recordSizes
		if sizes, err = b.calibrate(); err == nil {
			b.floor, err = openFloor(b.cfg, sizes)
		}
		if err == nil {
			if b.bare, err = openBare(b.cfg.Dir, sizes); err != nil {
				err = errors.Join(err, b.floor.log.close())
			}
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.broker.Close())
	}
	// The broker prepares its log beside its work, the yardsticks before theirs.
	for b.broker.Stats().Storage.Bytes < prepared {
		time.Sleep(10 * time.Millisecond)
	}
	return b, b.warm()
}

// Close closes all three; the directory is the caller's to remove.
func (b *Bench) Close() error {
	err := b.broker.Close()
	b.cancel()
	return errors.Join(err, b.floor.log.close(), b.bare.log.close())
}

// Sizes says what all three write for a publish and an ack: what the broker did when it was asked to.
func (b *Bench) Sizes() string {
	return fmt.Sprintf("%d bytes of log for a publish, %d for an ack; a run of the floor ends with its file of %d MiB",
		b.floor.sizes.publish, b.floor.sizes.ack, b.floor.log.size>>20)
}

func wideName(i int) string { return "w" + strconv.Itoa(i) }

// calibrate measures what the broker writes for a publish and for an ack.
func (b *Bench) calibrate() (recordSizes, error) {
	const n = 1000
	start := b.broker.Stats().Storage.Written
	if _, _, err := b.publishBatch(limit{messages: n}); err != nil {
		return recordSizes{}, err
	}
	published := b.broker.Stats().Storage.Written
	s, err := b.broker.Subscribe(b.ctx, wideName(0), bourse.SubscribeOptions{Prefetch: b.cfg.Prefetch})
	if err != nil {
		return recordSizes{}, err
	}
	for i := range n {
		d, err := s.Next(b.ctx)
		if err != nil {
			return recordSizes{}, err
		}
		if i < n-1 {
			err = d.Ack()
		} else {
			err = d.AckSync(b.ctx)
		}
		if err != nil {
			return recordSizes{}, err
		}
	}
	acked := b.broker.Stats().Storage.Written
	return recordSizes{
		publish: max(int(published-start)/n, logHeader+b.cfg.Payload), ack: max(int(acked-published)/n, logHeader),
	}, s.Close()
}

// warm runs full cycles until the log has come round to files that were written before.
func (b *Bench) warm() error {
	_, _, err := brokerCycle(1, consumeBatch)(b, limit{messages: max(1, 128<<20/b.floor.sizes.publish)})
	return err
}

// Run measures one side of a scenario, after leaving the disk a moment of rest.
func (b *Bench) Run(s Scenario, side Side) (Sample, error) {
	time.Sleep(50 * time.Millisecond)
	return b.run(s, side, limit{messages: b.cfg.Messages, until: time.Now().Add(b.cfg.Duration)})
}

func (b *Bench) run(s Scenario, side Side, l limit) (Sample, error) {
	f := s.broker
	switch side {
	case Floor:
		f = s.floor
		b.floor.log.startOver()
	case Bare:
		f = s.bare
	case Broker:
	}
	sample, err := measure(func() (int, []time.Duration, error) { return f(b, l) })
	if err != nil {
		err = fmt.Errorf("%s, %v: %w", s.Name, side, err)
	}
	return sample, err
}

// Reset empties the queues, for which a scenario that only publishes has no consumer.
func (b *Bench) Reset() error {
	for i := range wideQueues {
		if _, err := b.broker.Purge(b.ctx, wideName(i)); err != nil {
			return err
		}
	}
	return nil
}

// Round is a run of each side, one after the other.
type Round struct{ Floor, Bare, Broker Sample }

// Ratio is the broker's rate, or the median of its latencies, as a multiple of the floor's.
func (r Round) Ratio() float64 { return r.Broker.over(r.Floor) }

// BareRatio is the same as a multiple of the bare log's.
func (r Round) BareRatio() float64 { return r.Broker.over(r.Bare) }

func (s Sample) over(other Sample) float64 {
	if other.P50 > 0 {
		return float64(s.P50) / float64(other.P50)
	}
	return s.Rate() / other.Rate()
}

// Round runs all sides of a scenario. The bare log comes behind the broker, so that what is still to do after the queues
// were emptied is no burden of the floor.
func (b *Bench) Round(s Scenario) (r Round, err error) {
	if r.Floor, err = b.Run(s, Floor); err != nil {
		return r, err
	}
	if r.Broker, err = b.Run(s, Broker); err != nil {
		return r, err
	}
	if err = b.Reset(); err != nil {
		return r, err
	}
	r.Bare, err = b.Run(s, Bare)
	return r, err
}

// paced calls publish Rate times per second with bodies that carry the time of the call; what is late is published at
// once, so that the rate holds. It stops at an error.
func (b *Bench) paced(l limit, publish func(body []byte) error) int {
	pause := time.Second / time.Duration(b.cfg.Rate)
	n := 0
	for next := time.Now(); !l.reached(n); n++ {
		if early := time.Until(next); early > 0 {
			time.Sleep(early)
		}
		next = next.Add(pause)
		body := make([]byte, b.cfg.Payload)
		copy(body, b.body)
		binary.LittleEndian.PutUint64(body, uint64(time.Since(b.epoch)))
		if publish(body) != nil {
			break
		}
	}
	return n
}

// age is how long ago a paced body was published.
func (b *Bench) age(body []byte) time.Duration {
	return time.Since(b.epoch) - time.Duration(binary.LittleEndian.Uint64(body))
}

// inParallel runs part n times at once and adds up what they did.
func inParallel(n int, part func(i int) (int, error)) (int, []time.Duration, error) {
	counts, errs := make([]int, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { counts[i], errs[i] = part(i) })
	}
	all.Wait()
	total := 0
	for _, c := range counts {
		total += c
	}
	return total, nil, errors.Join(errs...)
}
