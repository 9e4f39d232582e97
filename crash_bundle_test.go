package bourse

// Goal: an ack and a publish in one commit, and an atomic batch, are never seen half, whatever power cut comes at whatever call of the
// file system. Method: a token goes from queue to queue by AckAndPublish, and leaves a trace of each step in a third one. In every
// image of a crash there is one token, at the step that was confirmed last or the one after, and the trace has as many
// steps. Batches of three are there whole or not at all.

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/storage"
)

// noted is a test on a goroutine that is not the test's: what fails is noted, and panics.
type noted struct {
	failed bool
	text   string
}

func (n *noted) Errorf(format string, args ...any) { n.text += fmt.Sprintf(format, args...) }
func (n *noted) FailNow()                          { n.failed = true; panic(n.text) }

func TestCrashToken(t *testing.T) {
	ctx := context.Background()
	const steps = 60
	fs, clock := &storage.MemFS{}, newCrashClock(1)
	choose := rand.New(rand.NewSource(7))
	confirmed, batches, images := -1, -1, 0
	var mu sync.Mutex // guards the variables above and below, which look uses on goroutines of the log
	var bad string
	look := func(image *storage.MemFS, what string) {
		if bad != "" {
			return
		}
		t := &noted{}
		defer func() {
			if t.failed {
				bad = t.text
				_ = recover() // of FailNow
			}
		}()
		b, err := crashOpen(image, newCrashClock(clock.now.Load()))
		require.NoError(t, err, what)
		defer func() { require.NoError(t, b.Close()) }()
		var tokens []int
		trail, batch := 0, map[string]int{}
		held, err := browseAll(b)
		require.NoError(t, err, what)
		require.NoError(t, References(b), what)
		for queue, list := range held {
			for _, h := range list {
				switch n, err := strconv.Atoi(h.Message.ID); {
				case queue == "trail":
					trail++
				case queue == "batch":
					batch[h.Message.ID]++
				default:
					require.NoError(t, err)
					require.Equal(t, []string{"even", "odd"}[n%2], queue, what)
					tokens = append(tokens, n)
				}
			}
		}
		if confirmed < 0 && len(tokens) == 0 {
			return // not sent yet
		}
		require.Len(t, tokens, 1, what)
		require.Equal(t, tokens[0], trail, "%s: steps in the trail", what)
		require.GreaterOrEqual(t, tokens[0], confirmed, what)
		require.LessOrEqual(t, tokens[0], confirmed+1, what)
		require.GreaterOrEqual(t, len(batch), batches+1, what)
		for id, n := range batch {
			require.Equal(t, 3, n, "%s: batch %s", what, id)
		}
	}
	armed := false
	every := 12
	if testing.Short() {
		every = 60
	}
	rule := func(op, name string, n int) error {
		mu.Lock()
		defer mu.Unlock()
		if !armed || slices.Contains(readingCalls, op) {
			return nil
		}
		for _, mode := range storage.CrashModes {
			if choose.Intn(every) == 0 {
				images++
				look(fs.Crash(mode, choose.Intn), fmt.Sprintf("call %d (%s %s), %s", n, op, name, mode))
			}
		}
		return nil
	}
	do := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
	b, err := crashOpen(&storage.FaultFS{FS: fs, Rule: rule}, clock)
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, Queue{Name: "even"}, Queue{Name: "odd"}, Queue{Name: "trail"}, Queue{Name: "batch"}))
	do(func() { armed = true })
	require.NoError(t, b.Publish(ctx, Message{RoutingKey: "even", ID: "0"}))
	do(func() { confirmed = 0 })
	for n := 1; n <= steps; n++ {
		d, err := b.Get(ctx, []string{"odd", "even"}[n%2])
		require.NoError(t, err)
		size := 0
		do(func() { size = choose.Intn(200) })
		if n%17 == 0 {
			size = 3000 // more than a segment
		}
		require.NoError(t, d.AckAndPublish(ctx,
			Message{RoutingKey: []string{"even", "odd"}[n%2], ID: strconv.Itoa(n), Body: make([]byte, size)},
			Message{RoutingKey: "trail", ID: fmt.Sprint("step ", n), Body: make([]byte, size/2)}))
		do(func() { confirmed = n })
		if n%5 == 0 {
			m := Message{RoutingKey: "batch", ID: strconv.Itoa(n), Body: make([]byte, size)}
			require.NoError(t, b.PublishAtomic(ctx, []Message{m, m, m}))
			do(func() { batches++ })
		}
	}
	do(func() { armed = false })
	require.NoError(t, b.Close())
	look(fs, "closed")
	require.Empty(t, bad)
	require.Greater(t, images, 20)
	t.Logf("%d images", images)
}
