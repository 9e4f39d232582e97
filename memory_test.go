package bourse_test

// Goal: a message of a transient queue is what was published, though the memory of those before it is used again at once.
// Method: publishers and consumers at the same time, bodies of all sizes that say themselves what they must be, some messages that
// come back, loans that are taken away while their consumer reads; with the race detector, memory that is written to too early
// is a race.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// patterned is a body that begins with n and goes on with bytes that follow from it, up to twice what a slab is used for.
func patterned(n int) []byte {
	body := fmt.Appendf(nil, "%d ", n)
	return append(body, bytes.Repeat([]byte{byte(n)}, n*37%8000)...)
}

func TestTransientMemoryIsUsedAgain(t *testing.T) {
	const publishers, consumers, batches, batch = 2, 3, 20, 100
	b := open(t, bourse.Options{}, bourse.Queue{
		Name: "q", Transient: true, MaxRetries: bourse.NoLimit, AckDeadline: 50 * time.Millisecond,
	})
	var all sync.WaitGroup
	for p := range publishers {
		all.Go(func() {
			for i := range batches {
				ms := make([]bourse.Message, batch)
				for j := range ms {
					ms[j] = bourse.Message{RoutingKey: "q", Body: patterned((p*batches+i)*batch + j)}
				}
				assert.NoError(t, b.PublishBatch(ctx, ms))
			}
		})
	}
	stop, end := context.WithTimeout(ctx, testTimeout)
	defer end()
	var mu sync.Mutex
	seen := map[string]bool{}
	var given atomic.Int64
	for range consumers {
		s := consume(t, b, "q", 50)
		all.Go(func() { // ends when all was seen
			for {
				ds, err := s.NextBatch(stop, 20)
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					return
				}
				for _, d := range ds {
					var n int
					_, err := fmt.Sscan(string(d.Body[:bytes.IndexByte(d.Body, ' ')]), &n)
					assert.NoError(t, err)
					assert.True(t, bytes.Equal(patterned(n), d.Body), "message %d has another body", n)
					if given.Add(1)%7 == 0 {
						err = d.Nack()
					} else {
						err = d.Ack()
					}
					if err != nil {
						assert.True(t, errors.Is(err, bourse.ErrStaleDelivery), err)
					}
					mu.Lock()
					seen[string(d.Body[:bytes.IndexByte(d.Body, ' ')])] = true
					if len(seen) == publishers*batches*batch {
						end()
					}
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, publishers*batches*batch, len(seen))
	require.NoError(t, b.Check())
}
