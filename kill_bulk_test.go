package bourse_test

// Messages by the thousand for TestKill and TestPower: the process publishes them in batches and with many in flight, to a queue that
// nobody consumes from, and tells only how far it is. So few lines stand for many messages, and still each is looked for: what a
// publisher has stored is without a gap from its first to its last, which is not before the last that was confirmed.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/boursemq/bourse"
)

const bulkQueue = "bulk"

// The publishers, as in killName.
const (
	bulkBatches = 10
	bulkMany    = 11
)

func bulkMessage(k killName) bourse.Message {
	sum := sha256.Sum256([]byte(k.String()))
	return bourse.Message{RoutingKey: bulkQueue, ID: k.String(), Body: sum[:16]}
}

// bulkRush is how many messages come as fast as can be, by mode. Behind them there are pauses: the parent has to look for
// each, and the others must get their turn.
var bulkRush = map[string]int{"run": 1024, "power": 128}

// publishBatches publishes batches. It ends with the process.
func (c *killChild) publishBatches() {
	ctx := context.Background()
	const size = 128
	batch := make([]bourse.Message, size)
	pause := time.NewTicker(5 * time.Millisecond)
	for n := 0; ; n += size {
		if n >= c.rush {
			<-pause.C
		}
		for i := range batch {
			batch[i] = bulkMessage(killName{c.gen, bulkBatches, n + i})
		}
		c.must("publish a batch", c.b.PublishBatch(ctx, batch))
		c.say("bulk %s", killName{c.gen, bulkBatches, n + size - 1})
	}
}

// publishMany keeps many publishes in flight. It ends with the process.
func (c *killChild) publishMany() {
	ctx := context.Background()
	const tell = 64
	window := make(chan *bourse.Confirm, 512)
	go func() { // ends with the process
		n := 0
		for confirm := range window {
			c.must("publish many", confirm.Wait(ctx))
			if n++; n%tell == 0 {
				c.say("bulk %s", killName{c.gen, bulkMany, n - 1})
			}
		}
	}()
	pause := time.NewTicker(5 * time.Millisecond)
	for n := 0; ; n++ {
		if n >= c.rush && n%tell == 0 {
			<-pause.C
		}
		window <- c.b.PublishAsync(ctx, bulkMessage(killName{c.gen, bulkMany, n}))
	}
}

// killBulk is what the parent knows of them. Each check empties the queue, so all are of one process.
type killBulk struct {
	gen       int
	confirmed map[int]int // by publisher: how many for certain
}

func (m *killBulk) read(line string) error {
	var name string
	if _, err := fmt.Sscanf(line, "bulk %s", &name); err != nil {
		return err
	}
	k, err := parseKillName(name)
	if err == nil {
		m.confirmed[k.pub] = k.n + 1
	}
	return err
}

// check compares and returns how many were confirmed.
func (m *killBulk) check(b *bourse.Broker, fail func(format string, args ...any)) (confirmed int) {
	held, err := bourse.Browse(b, bulkQueue)
	if err != nil && !errors.Is(err, bourse.ErrNotFound) {
		fail("browse: %v", err)
		return 0
	}
	next := map[int]int{}
	for _, h := range held {
		k, err := parseKillName(h.Message.ID)
		if want := (killName{m.gen, k.pub, next[k.pub]}); err != nil || k != want {
			fail("%s is in bulk where %s should be: %v", h.Message.ID, want, err)
			return 0
		}
		if !bytes.Equal(h.Message.Body, bulkMessage(k).Body) || h.Deliveries != 0 {
			fail("%s in bulk has another body, or was delivered", k)
		}
		next[k.pub]++
	}
	for _, pub := range []int{bulkBatches, bulkMany} {
		if next[pub] < m.confirmed[pub] {
			fail("%d of publisher %d were confirmed, and %d are in bulk", m.confirmed[pub], pub, next[pub])
		}
		confirmed += m.confirmed[pub]
	}
	return confirmed
}
