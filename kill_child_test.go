package bourse_test

// The process that TestKill kills: it publishes, consumes and settles all the time, and writes what it knows to
// its standard output, one line an event, each in one write:
//
//	@ opened                  the broker is open
//	@ declared Q              Declare returned
//	@ deleting Q, deleted Q   before and after Delete
//	@ confirmed NAME          a publish was confirmed
//	@ bulk NAME               likewise, and all of that publisher before it; see kill_bulk_test.go
//	@ got Q NAME D F          a delivery, with its counters
//	@ verdict Q NAME V        about to give it: a ack, s AckSync, n nack, r reject
//	@ acked Q NAME            AckSync returned nil
//	@ wrong TEXT              something that must not be
//
// What a message is, where it goes and what becomes of it follows from its name and a hash, so that the parent
// knows it too.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boursemq/bourse"
)

const killEnv = "BOURSE_KILL_CHILD" // mode, directory, generation

const killRetries = 3

var killTopology = []bourse.Declaration{
	bourse.Exchange{Name: "all", Kind: bourse.Fanout},
	bourse.Exchange{Name: "dead", Kind: bourse.Fanout},
	bourse.Queue{Name: "jobs", Priorities: 3, MaxRetries: killRetries, DeadLetter: bourse.DeadLetter{Exchange: "dead"}},
	bourse.Queue{Name: "audit", MaxRetries: bourse.NoLimit},
	bourse.Queue{Name: "cold"},
	bourse.Queue{Name: bulkQueue},
	bourse.Queue{Name: "dead1", MaxRetries: bourse.NoLimit},
	bourse.Queue{Name: "dead2", MaxRetries: bourse.NoLimit},
	bourse.Binding{Exchange: "all", Queue: "jobs"},
	bourse.Binding{Exchange: "all", Queue: "audit"},
	bourse.Binding{Exchange: "all", Queue: "cold"},
	bourse.Binding{Exchange: "dead", Queue: "dead1"},
	bourse.Binding{Exchange: "dead", Queue: "dead2"},
}

func killQueues() []string { return []string{"jobs", "audit", "cold", "dead1", "dead2"} }

// killName is a message: generation, publisher, number.
type killName struct{ gen, pub, n int }

func (k killName) String() string { return fmt.Sprintf("%d.%d.%d", k.gen, k.pub, k.n) }

func parseKillName(s string) (k killName, err error) {
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return k, fmt.Errorf("no name: %q", s)
	}
	for i, p := range []*int{&k.gen, &k.pub, &k.n} {
		if *p, err = strconv.Atoi(parts[i]); err != nil {
			return k, err
		}
	}
	return k, nil
}

func killHash(parts ...any) int {
	h := fnv.New32a()
	fmt.Fprint(h, parts...)
	return int(h.Sum32() >> 1)
}

func killTemp(gen int) string { return fmt.Sprintf("temp%d", gen) }

// route is where a message goes.
func (k killName) route() (exchange, key string, queues []string) {
	switch {
	case k.n%100 == 57:
		return "", killTemp(k.gen), []string{killTemp(k.gen)}
	case k.n%20 == 9:
		return "all", "", []string{"jobs", "audit", "cold"}
	case k.n%4 == 3:
		return "", "audit", []string{"audit"}
	}
	return "", "jobs", []string{"jobs"}
}

func (k killName) message() bourse.Message {
	exchange, key, _ := k.route()
	return bourse.Message{
		Exchange: exchange, RoutingKey: key, Mandatory: true, ID: k.String(), Priority: uint8(killHash("p", k) % 3), Body: k.body(),
	}
}

func (k killName) body() []byte {
	sum := sha256.Sum256([]byte(k.String()))
	size := killHash("size", k) % 300
	if size%30 == 0 {
		size *= 30
	}
	return slices.Concat(sum[:], make([]byte, size))
}

// killEngine has segments so small that files are changed, freed and used again all the time.
func killEngine(mode, dir string, gen int) (bourse.Engine, error) {
	size := []int{16 << 10, 64 << 10, 256 << 10}[gen%3]
	if mode == "power" { // for less time
		size /= 4
	}
	return bourse.NewLocalEngine(dir, bourse.LocalOptions{SegmentBytes: size, CheckpointBytes: int64(2 * size), MinFreeDisk: -1})
}

func killOpen(mode, dir string, gen int) (*bourse.Broker, error) {
	e, err := killEngine(mode, dir, gen)
	if err != nil {
		return nil, err
	}
	return bourse.NewBroker(context.Background(), bourse.Options{Engine: e})
}

// killChild is the state of the process.
type killChild struct {
	b    *bourse.Broker
	gen  int
	rush int        // see bulkRush
	mu   sync.Mutex // guards writes to standard output
}

func (c *killChild) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = os.Stdout.Write(fmt.Appendf(nil, "@ "+format+"\n", args...))
}

// must ends the process: nothing may fail.
func (c *killChild) must(what string, err error) {
	if err != nil {
		c.say("wrong %s: %v", what, strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(3)
	}
}

// TestKillChild is not a test of its own.
func TestKillChild(t *testing.T) {
	mode, rest, ok := strings.Cut(os.Getenv(killEnv), "|")
	if !ok {
		t.Skip("runs in a process of its own")
	}
	dir, number, _ := strings.Cut(rest, "|")
	gen, _ := strconv.Atoi(number)
	c := &killChild{gen: gen, rush: bulkRush[mode]}
	var err error
	c.b, err = killOpen(mode, dir, gen)
	c.must("open", err)
	c.say("opened")
	if mode == "poison" {
		c.poisoned()
		return
	}
	c.must("declare", c.b.Declare(t.Context(), killTopology...))
	c.inOrder()
	temp := killTemp(gen)
	c.must("declare", c.b.Declare(t.Context(), bourse.Queue{Name: temp}))
	c.say("declared %s", temp)
	for pub := range 2 {
		go c.publish(pub)
	}
	go c.publishBatches()
	go c.publishMany()
	go c.consume("jobs", 8)
	go c.consume("dead1", 4)
	go c.consumeBatches("dead2")
	go c.work()
	for _, q := range c.b.Stats().Queues {
		if strings.HasPrefix(q.Name, "temp") && q.Name != temp {
			c.say("deleting %s", q.Name)
			c.must("delete", c.b.Delete(t.Context(), bourse.Queue{Name: q.Name}))
			c.say("deleted %s", q.Name)
		}
	}
	<-t.Context().Done() // by the kill
}

// inOrder consumes a part of what the last process left and checks that it comes as it lies there.
func (c *killChild) inOrder() {
	ctx := context.Background()
	held, err := bourse.Browse(c.b, "jobs")
	c.must("browse", err)
	for _, h := range held {
		if h.State != "ready" {
			return
		}
	}
	s, err := c.b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{Prefetch: 3})
	c.must("subscribe", err)
	for _, h := range held[:min(len(held), 30)] {
		d, err := s.Next(ctx)
		c.must("next", err)
		if d.ID != h.Message.ID {
			c.must("order", fmt.Errorf("%s came, %s is next", d.ID, h.Message.ID))
		}
		c.got(d)
		c.settle(d, 'a')
	}
	// No graceful close: the prefetched ones must be counted as lost.
}

func (c *killChild) publish(pub int) {
	ctx := context.Background()
	type sent struct {
		name killName
		c    *bourse.Confirm
	}
	window := make(chan sent, 32)
	go func() {
		for s := range window {
			c.must("publish", s.c.Wait(ctx))
			c.say("confirmed %s", s.name)
		}
	}()
	pause := time.NewTicker(time.Millisecond)
	for n := 0; ; n++ {
		k := killName{c.gen, pub, n}
		if n%16 == 0 {
			for {
				jobs, _ := c.b.QueueStats("jobs")
				audit, _ := c.b.QueueStats("audit")
				if jobs.Ready < 300 && audit.Ready < 300 {
					break
				}
				<-pause.C
			}
		}
		if n%50 == 25 {
			c.must("publish", c.b.Publish(ctx, k.message()))
			c.say("confirmed %s", k)
			continue
		}
		window <- sent{k, c.b.PublishAsync(ctx, k.message())}
	}
}

func (c *killChild) got(d *bourse.Delivery) {
	c.say("got %s %s %d %d", d.Queue, d.ID, d.Deliveries, d.Failures)
}

func (c *killChild) settle(d *bourse.Delivery, v byte) {
	c.say("verdict %s %s %c", d.Queue, d.ID, v)
	switch v {
	case 'a':
		c.must("ack", d.Ack())
	case 's':
		c.must("ack", d.AckSync(context.Background()))
		c.say("acked %s %s", d.Queue, d.ID)
	case 'n':
		c.must("nack", d.NackAfter(time.Duration(killHash(d.ID)%3)*time.Millisecond))
	case 'r':
		c.must("reject", d.Reject("no "+d.ID))
	}
}

func (c *killChild) consume(queue string, prefetch int) {
	ctx := context.Background()
	s, err := c.b.Subscribe(ctx, queue, bourse.SubscribeOptions{Prefetch: prefetch})
	c.must("subscribe", err)
	var kept []*bourse.Delivery
	for {
		d, err := s.Next(ctx)
		c.must("next", err)
		c.got(d)
		switch h := killHash(d.ID, d.Deliveries) % 100; {
		case queue == "dead1" && h < 50 || h < 5:
			c.settle(d, 's')
		case queue == "dead1" || h < 55:
			c.settle(d, 'a')
		case h < 75:
			c.settle(d, 'n')
		case h < 80:
			c.settle(d, 'r')
		default: // held for a while
			if kept = append(kept, d); len(kept) == prefetch/2 {
				c.settle(kept[0], 'a')
				kept = kept[1:]
			}
		}
	}
}

func (c *killChild) consumeBatches(queue string) {
	ctx := context.Background()
	s, err := c.b.Subscribe(ctx, queue, bourse.SubscribeOptions{Prefetch: 5})
	c.must("subscribe", err)
	for {
		batch, err := s.NextBatch(ctx, 5)
		c.must("next", err)
		for _, d := range batch {
			c.got(d)
			c.say("verdict %s %s a", queue, d.ID)
		}
		c.must("ack up to", s.AckUpTo(0))
	}
}

func (c *killChild) work() {
	err := c.b.Work(context.Background(), "audit", func(_ context.Context, d *bourse.Delivery) error {
		c.got(d)
		if killHash(d.ID, d.Deliveries)%10 == 0 {
			c.say("verdict %s %s n", d.Queue, d.ID)
			return errors.New("as the hash will have it")
		}
		c.say("verdict %s %s a", d.Queue, d.ID)
		return nil
	}, bourse.WorkOptions{Concurrency: 2})
	c.must("work", err)
}

// poisoned works on jobs, one of which kills the process, until there are none.
func (c *killChild) poisoned() {
	ctx := context.Background()
	s, err := c.b.Subscribe(ctx, "jobs", bourse.SubscribeOptions{Prefetch: 1})
	c.must("subscribe", err)
	for {
		if q, _ := c.b.QueueStats("jobs"); q.Ready+q.Unacked == 0 {
			break
		}
		d, err := s.Next(ctx)
		c.must("next", err)
		c.got(d)
		if d.ID == "poison" {
			self, err := os.FindProcess(os.Getpid())
			c.must("find", err)
			c.must("kill", self.Kill())
			select {}
		}
		c.must("ack", d.AckSync(ctx))
	}
	c.must("close", c.b.Close()) // the poison may still be dying: that goes on at the next open
	c.say("done")
}

func killDigest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:4])
}
